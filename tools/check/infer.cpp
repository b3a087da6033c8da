#include <tools/check/infer.h>

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include <tools/check/contract_of.h>
#include <tools/check/layout.h>
#include <tools/check/masks.h>
#include <tools/check/packing.h>
#include <tools/check/projections.h>

namespace tapehead::check {
namespace {

// Reads one dump, in one layout, into a call.
class Builder {
 public:
  Builder(const Dump& dump, const Settings& said, Layout layout, Assumed& assumed)
      : shapes_(with_plain_projections(dump, said, assumed), said, layout), said_(said), assumed_(assumed) {}

  Call build() {
    Call call;
    call.B = sizes().B, call.H = sizes().H, call.Hk = sizes().Hk;
    call.L = sizes().L, call.S = sizes().S, call.D = sizes().D, call.E = sizes().E;
    if (!said_.layout) assumed_.emplace(assumed_.begin(), "layout", name_of(shapes_.layout()));
    for (const DumpTensor& tensor : shapes_.dump().tensors) {
      const Role* role = role_of(tensor.name);
      if (!role || tensor.name == "mask") continue;
      (role->judged ? call.candidate : call.inputs)[tensor.name] = read(tensor, role->form);
    }
    add_mask(call);
    add_value(call);
    leave_out_what_has_no_upstream(call);
    call.contract = contract_of(shapes_, said_, assumed_);
    set_type(call);
    if (shapes_.layout() == Layout::THD) return unpacked_call(std::move(call));
    share_keys(call);
    require_values(call);
    return call;
  }

 private:
  const Sizes& sizes() const { return shapes_.sizes(); }
  [[noreturn]] void fail(const std::string& what) const {
    throw Unusable(shapes_.dump().origin + ": " + what);
  }

  Array<double> read(const DumpTensor& tensor, Form form) const {
    const auto& [B, H, Hk, L, S, D, E, samples] = sizes();
    const Array<double> numbers = tensor.read();
    switch (form) {
      case Form::query:
      case Form::key:
      case Form::value:
        return heads_first(numbers, shapes_.layout_of(tensor), shapes_.shape_of(form)[1]);
      case Form::output:
        if (shapes_.is_projected_output(tensor)) return numbers.reshape({B, L, -1});
        return heads_first(numbers, shapes_.layout_of(tensor), H);
      case Form::scores:
        return numbers.reshape(shapes_.scores());
      case Form::broadcast:
        return in_scores(shapes_, numbers);
      case Form::rows:
        if (shapes_.is_exact(tensor.shape, {B, H, L}) || shapes_.is_exact(tensor.shape, {B, H, L, 1})) {
          return numbers.reshape({B, H, L});
        }
        return transposed(numbers).reshape({B, H, L});
      case Form::samples:
        return numbers.reshape({-1});
      case Form::queries:
        return repeated(numbers, {B, L});
      case Form::keys:
        return repeated(numbers, {B, S});
      case Form::partial_output:
        return read_parts(numbers, tensor);
      case Form::other:
        if (const std::optional<Shape> wanted = shapes_.projection_shape(tensor.name))
          return numbers.reshape(*wanted);
        return numbers;
      default:
        return numbers;
    }
  }

  Array<double> read_parts(const Array<double>& numbers, const DumpTensor& tensor) const {
    const Shape wanted = shapes_.shape_of(Form::output);
    auto result = Array<double>::uninitialized(Shape{numbers.dim(0)}.followed_by(wanted));
    double* to = result.mutable_values().data();
    for (Index part = 0; part < numbers.dim(0); ++part) {
      const Array<double> one =
          slice(numbers, 0, part, part + 1).reshape(tensor.shape.last(tensor.shape.rank() - 1));
      const Array<double> turned = heads_first(one, shapes_.layout(), sizes().H);
      to = std::copy_n(turned.data(), turned.size(), to);
    }
    return result;
  }

  void add_mask(Call& call) const {
    const std::optional<ReadMask> mask = mask_of(shapes_, said_, assumed_);
    if (!mask) return;
    call.inputs["mask"] = mask->numbers;
    call.mask_is_additive = mask->additive;
    const DumpTensor* tensor = shapes_.first_of({"mask", "key_padding_mask"});
    call.mask_in_numbers = !mask->additive && number_type(tensor->type).has_value();
  }

  Call unpacked_call(Call call) const {
    const Packing packing = packing_of(shapes_);
    for (const char* name : {"query_lengths", "key_lengths"}) call.inputs.erase(name);
    call.inputs["query_segments"] = document_numbers(packing.queries);
    call.inputs["key_segments"] = document_numbers(packing.keys);
    share_keys(call);
    require_values(call);
    const Contract& contract = call.contract;
    const bool is_aligned = contract.causal || contract.window_left || contract.window_right;
    if (packing.queries == packing.keys || !is_aligned) return call;
    return call_by_sequences(std::move(call), packing, said_, shapes_.dump());
  }

  // Segments and positions of the keys are those of the queries where only these are there.
  void share_keys(Call& call) const {
    for (const char* what : {"segments", "positions"}) {
      const auto queries = call.inputs.find(std::string("query_") + what);
      const std::string keys = std::string("key_") + what;
      if (queries == call.inputs.end() || call.inputs.count(keys) > 0) continue;
      if (sizes().L != sizes().S) {
        fail(fmt::format("no {0}: expected a tensor {0} beside query_{1}", keys, what));
      }
      assumed_.emplace_back(keys, std::string("query_") + what);
      call.inputs[keys] = queries->second;
    }
  }

  // No result that is there depends on it.
  void add_value(Call& call) const {
    if (shapes_.projected() || shapes_.find("value")) return;
    call.inputs["value"] = Array<double>::zeros({sizes().B, sizes().Hk, sizes().S, 1});
    assumed_.emplace_back("value", "zeros");
  }

  void leave_out_what_has_no_upstream(Call& call) const {
    if (shapes_.find("upstream") || shapes_.find("upstream_weights") || shapes_.find("upstream_lse")) return;
    std::erase_if(call.candidate, [&](const auto& entry) {
      const bool is_gradient = entry.first.starts_with("grad_");
      if (is_gradient) assumed_.emplace_back(entry.first, "not judged, without upstream");
      return is_gradient;
    });
    if (call.candidate.empty()) fail("no upstream: expected a tensor upstream (or dout) beside gradients");
  }

  void require_values(const Call& call) const {
    const auto require = [&](const char* name, double low, double high, const std::string& expected) {
      const auto found = call.inputs.find(name);
      if (found == call.inputs.end()) return;
      for (const double x : found->second.values()) {
        if (!is_whole(x) || x < low || x > high) {
          const DumpTensor* tensor = shapes_.find(name);
          tensor ? fail_tensor(shapes_.dump(), *tensor, expected, number_text(x))
                 : fail(std::string(name) + ": expected " + expected);
        }
      }
    };
    const auto up_to = [](Index n) { return fmt::format("whole numbers from 0 to {}", n); };
    require("key_lengths", 0, static_cast<double>(sizes().S), up_to(sizes().S));
    require("query_lengths", 0, static_cast<double>(sizes().L), up_to(sizes().L));
    require("partial_end", 0, static_cast<double>(sizes().S), up_to(sizes().S));
    require("dropout_keep", 0, 1, "0 and 1");
    for (const char* name : {"query_segments", "key_segments", "query_positions", "key_positions"}) {
      require(name, -0x1p40, 0x1p40, "whole numbers");
    }
  }

  void set_type(Call& call) const {
    find_type(call);
    for (const DumpTensor& tensor : shapes_.dump().tensors) {
      if (call.candidate.count(tensor.name) == 0) continue;
      const NumberType type = *number_type(tensor.type);
      if (significand_bits(type) < significand_bits(call.contract.computed_in))
        call.kept_in[tensor.name] = type;
    }
  }

  void find_type(Call& call) const {
    if (said_.computed_in) {
      call.contract.computed_in = *said_.computed_in;
      return;
    }
    const std::string& name = call.candidate.count("output") > 0 ? "output" : call.candidate.begin()->first;
    const NumberType kept_in = *number_type(shapes_.find(name)->type);
    call.contract.computed_in = narrower_type(call.candidate.at(name), kept_in).value_or(kept_in);
    assumed_.emplace_back("computed_in", std::string(name_of(call.contract.computed_in)));
  }

  const Shapes shapes_;
  const Settings& said_;
  Assumed& assumed_;
};

// Layouts by the rank of the query, or of the output behind projections, the usual one first.
std::vector<Layout> layouts_by_rank(const Dump& dump) {
  int rank = 3;
  for (const char* name : {"x", "projection", "query_unnormed", "query_unrotated", "query"}) {
    const DumpTensor* tensor = dump.find(name);
    if (!tensor) continue;
    rank = tensor->shape.rank();
    const bool is_projected = dump.find("w_query") || dump.find("in_proj_weight") || dump.find("projection");
    const DumpTensor* output = dump.find("output");
    if (is_projected) rank = output ? output->shape.rank() : 3;
    break;
  }
  if (rank >= 4) return {Layout::BHLD, Layout::BLHD};
  if (dump.find("cu_seqlens_q")) return {Layout::THD};
  return {Layout::BLD, Layout::BLHD, Layout::BHLD};
}

}  // namespace

std::vector<Layout> possible_layouts(const Dump& dump, const Settings& settings) {
  if (settings.layout) return {*settings.layout};
  std::vector<Layout> possible;
  std::optional<Unusable> first;
  for (const Layout layout : layouts_by_rank(dump)) {
    Assumed scratch;
    try {
      Shapes(with_plain_projections(dump, settings, scratch), settings, layout);
      possible.push_back(layout);
      if (layout == Layout::BLD) break;
    } catch (const Unusable& error) {
      if (!first) first = error;
    }
  }
  if (possible.empty()) throw *first;
  return possible;
}

Call call_in_layout(const Dump& dump, const Settings& settings, Layout layout, Assumed& assumed) {
  return Builder(dump, settings, layout, assumed).build();
}

std::vector<std::string> unused_tensors(const Dump& dump) {
  std::vector<std::string> unused;
  for (const DumpTensor& tensor : dump.tensors) {
    const bool known = role_of(tensor.name) || is_taken_apart(tensor.name);
    if (!known) unused.push_back(tensor.given_name);
  }
  return unused;
}

}  // namespace tapehead::check
