#include <tapehead/core/shape.h>

#include <charconv>
#include <cmath>

#include "tools/planted/cases.h"

namespace tapehead::planted {
namespace {

std::string text(double x) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x).ptr;
  return {buffer, end};
}

class Dumper {
 public:
  Dumper(Case& dump, const Call& call, const Shown& shown) : d_(dump), c_(call), shown_(shown) {}

  // A tensor (B,heads,rows,width) in the layout of the dump.
  void heads(const std::string& name, const Grid& x, const std::string& type) {
    if (x.empty()) return;
    const Index B = x.extents[0], H = x.extents[1], L = x.extents[2], D = x.extents[3];
    if (shown_.layout == "BHLD") return put(name, x.array(), type);
    Grid y(B, L, H, D);
    each(y, [&](Index b, Index i, Index h, Index n) { y(b, i, h, n) = x(b, h, i, n); });
    put(name, shown_.layout == "BLHD" ? y.array() : y.array(Shape{B, L, H * D}), type);
  }
  void as_is(const std::string& name, const Grid& x, const Shape& shape, const std::string& type) {
    if (!x.empty()) put(name, x.array(shape), type);
  }
  void scores(const std::string& name, const Grid& x, const std::string& type) {
    if (!x.empty()) put(name, x.array(), type);
  }
  template <class T>
  void list(const std::string& name, const std::vector<T>& x, const Shape& shape, const std::string& type) {
    if (!x.empty()) put(name, Array<double>::from(std::vector<double>(x.begin(), x.end()), shape), type);
  }
  void put(const std::string& name, Array<double> x, const std::string& type) {
    d_.tensors[name] = {std::move(x), type};
  }
  void set(const std::string& key, const std::string& value) { d_.settings[key] = value; }
  void set(const std::string& key, Index value) { set(key, std::to_string(value)); }

  void inputs() {
    const std::string type = name_of(c_.type);
    const std::string suffix = c_.norm != Norm::none   ? "_unnormed"
                               : c_.turn != Turn::none ? "_unrotated"
                                                       : "";
    heads("query" + suffix, c_.query, type), heads("key" + suffix, c_.key, type);
    heads("value", c_.value, type);
    const bool in_numbers = c_.mask_kind == MaskKind::additive || c_.mask_in_numbers;
    scores("mask", c_.mask, in_numbers ? type : "bool");
    scores("bias", c_.bias, type);
    list("sink", c_.sink, {c_.H}, type), list("slopes", c_.slopes, {c_.H}, type);
    list("key_lengths", c_.key_lengths, {c_.B}, "i64");
    list("query_lengths", c_.query_lengths, {c_.B}, "i64");
    list("query_positions", c_.query_positions, {c_.B, c_.L}, "i64");
    list("key_positions", c_.key_positions, {c_.B, c_.S}, "i64");
    list("query_segments", c_.query_segments, {c_.B, c_.L}, "i64");
    list("key_segments", c_.key_segments, {c_.B, c_.S}, "i64");
    list("query_gain", c_.query_gain, {c_.D}, type), list("key_gain", c_.key_gain, {c_.D}, type);
    if (c_.train) scores("dropout_keep", c_.keep, "bool");
    list("partial_end", c_.part_ends, {static_cast<Index>(c_.part_ends.size())}, "i64");
    rows("x", c_.x, type), rows("y", c_.y, type), rows("projection", c_.projection, type);
    weights("w_query", c_.w_query, type), weights("w_key", c_.w_key, type);
    weights("w_value", c_.w_value, type);
  }

  void results(const Results& r) {
    const std::string type = name_of(c_.type), wide = c_.type == Type::f64 ? "f64" : "f32";
    heads("output", r.output, type);
    heads("output_second", r.output_second, type);
    if (shown_.weights && c_.dropout == 0) scores("weights", r.weights, type);
    if (shown_.lse && !r.lse.empty()) as_is("lse", r.lse, {c_.B, c_.H, c_.L}, wide);
    partials(r, type, wide);
    heads("query_after", r.query_after, type), heads("key_after", r.key_after, type);
    heads("value_after", r.value_after, type);
    if (shown_.gradients && !r.grad_query.empty()) gradients(r, type);
  }

  void gradients(const Results& r, const std::string& type) {
    heads("upstream", c_.upstream, type);
    scores("upstream_weights", c_.upstream_weights, type);
    as_is("upstream_lse", c_.upstream_lse, {c_.B, c_.H, c_.L}, type);
    heads("grad_query", r.grad_query, type), heads("grad_key", r.grad_key, type);
    heads("grad_value", r.grad_value, type);
    scores("grad_bias", r.grad_bias, type);
    as_is("grad_sink", r.grad_sink, {c_.H}, type);
    rows("grad_x", r.grad_x, type), rows("grad_y", r.grad_y, type);
    weights("grad_w_query", r.grad_w_query, type), weights("grad_w_key", r.grad_w_key, type);
    weights("grad_w_value", r.grad_w_value, type);
  }

  void settings() {
    if (shown_.layout_said) set("layout", shown_.layout);
    if (shown_.layout == "BLD" || !c_.x.empty() || !c_.projection.empty())
      set("heads", c_.H), set("kv_heads", c_.Hk);
    if (c_.scale) set("scale", text(*c_.scale));
    const std::string corners[] = {"none", "top-left", "bottom-right", "offset " + std::to_string(c_.offset)};
    if (c_.causal != Causal::none) set("causal", corners[static_cast<int>(c_.causal)]);
    if (c_.window_left) set("window_left", *c_.window_left);
    if (c_.window_right) set("window_right", *c_.window_right);
    const std::string means[] = {"", "allowed", "blocked", "additive"};
    if (c_.mask_kind != MaskKind::none) set("mask_means", means[static_cast<int>(c_.mask_kind)]);
    if (c_.softcap > 0) set("softcap", text(c_.softcap));
    if (c_.bias_before_scale) set("bias_order", "before-scale");
    if (c_.tiled) set("head_map", "tiled");
    if (c_.dropout > 0) set("dropout", text(c_.dropout)), set("mode", c_.train ? "train" : "eval");
    if (c_.lse_base_2) set("lse_base", "2");
    set("empty_rows", "zero");
    positions();
  }

 private:
  void positions() {
    if (c_.turn != Turn::none) {
      set("rope", c_.turn == Turn::half ? "half" : "neighbour");
      set("rope_base", text(c_.base));
      set("rope_width", c_.turned_width());
    }
    if ((c_.turn != Turn::none || !c_.slopes.empty()) && c_.query_positions.empty())
      set("rope_start_query", c_.start_query), set("rope_start_key", c_.start_key);
    if (c_.norm != Norm::none)
      set("qk_norm", c_.norm == Norm::rms ? "rms" : "l2"), set("qk_norm_eps", text(c_.norm_eps));
  }
  void rows(const std::string& name, const Grid& x, const std::string& type) {
    if (!x.empty()) put(name, x.array(Shape{x.extents[0], x.extents[2], x.extents[3]}), type);
  }
  void weights(const std::string& name, const Grid& x, const std::string& type) {
    if (!x.empty()) put(name, x.array(Shape{x.extents[2], x.extents[3]}), type);
  }
  void partials(const Results& r, const std::string& type, const std::string& wide) {
    if (r.partial_output.empty()) return;
    const auto P = static_cast<Index>(c_.part_ends.size());
    as_is("partial_output", r.partial_output, {P, c_.B, c_.H, c_.L, c_.E}, type);
    as_is("partial_lse", r.partial_lse, {P, c_.B, c_.H, c_.L}, wide);
  }

  Case& d_;
  const Call& c_;
  const Shown& shown_;
};

}  // namespace

void show(Case& dump, const Call& call, const Results& results, const Shown& shown) {
  dump.shape = call.shape, dump.type = call.type;
  Dumper dumper(dump, call, shown);
  dumper.inputs(), dumper.results(results), dumper.settings();
}

std::string Case::text() const {
  std::string line;
  for (const auto& [id, variant] : truth)
    line.append(line.empty() ? "" : " with ").append(id).append(variant.empty() ? "" : "/").append(variant);
  if (truth.empty()) line = "right";
  if (!form.empty()) line.append(" [").append(form).append("]");
  line.append(" (").append(shape).append("; ").append(name_of(type));
  return line.append(every_step ? ", every step)" : ", float with rounded weights)");
}

}  // namespace tapehead::planted
