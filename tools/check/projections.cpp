#include <tools/check/projections.h>

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include <tools/check/layout.h>
#include <tools/check/tensor_names.h>

namespace tapehead::check {
namespace {

using Change = std::function<Array<double>(const Array<double>&)>;

class Projections {
 public:
  Projections(Dump dump, const Settings& settings, std::vector<std::pair<std::string, std::string>>& assumed)
      : dump_(std::move(dump)), settings_(settings), assumed_(assumed) {}

  Dump plain() {
    for (const std::string prefix : {"", "grad_"}) {
      cut(prefix, "in_proj_weight", "w_", 2);
      cut(prefix, "in_proj_bias", "b_", 1);
    }
    for (DumpTensor& tensor : dump_.tensors) turn(tensor);
    if (dump_.find("w_query") && dump_.find("query") && !dump_.find("x")) name_inputs();
    return std::move(dump_);
  }

 private:
  DumpTensor* find(std::string_view name) {
    const auto found = std::ranges::find(dump_.tensors, name, &DumpTensor::name);
    return found == dump_.tensors.end() ? nullptr : &*found;
  }

  void remove(std::string_view name) {
    std::erase_if(dump_.tensors, [&](const DumpTensor& tensor) { return tensor.name == name; });
  }

  [[noreturn]] void fail(const DumpTensor& tensor, std::string_view expected) const {
    throw Unusable(fmt::format("{}: tensor {}: expected {}, and is {}", dump_.origin, tensor.given_name,
                               expected, to_string(tensor.shape)));
  }

  // PyTorch's packed weight is (3 M, M'); as (in, out) it is (M', 3 M).
  void cut(const std::string& prefix, std::string_view packed, const std::string& part, int rank) {
    const DumpTensor* found = find(prefix + std::string(packed));
    if (!found) return;
    const DumpTensor whole = *found;
    const int axis = rank == 2 && settings_.weights_out_in == std::optional(false) ? 1 : 0;
    if (whole.shape.rank() != rank || whole.shape[axis] % 3 != 0) {
      fail(whole, rank == 2 ? "a matrix of three equal parts" : "three equal parts");
    }
    remove(whole.name);
    const Index size = whole.shape[axis] / 3;
    Index first = 0;
    for (const char* name : {"query", "key", "value"}) {
      DumpTensor piece = whole;
      piece.name = prefix + part + name;
      piece.shape = whole.shape.with(axis, size);
      piece.read = [whole, axis, first, size] { return slice(whole.read(), axis, first, first + size); };
      if (rank == 2) done_.insert(piece.name);
      if (rank == 2 && axis == 0) transpose(piece);
      first += size;
      if (!find(piece.name)) dump_.tensors.push_back(std::move(piece));
    }
  }

  static void transpose(DumpTensor& tensor) {
    tensor.shape = {tensor.shape[1], tensor.shape[0]};
    tensor.read = [read = tensor.read] { return transposed(read()); };
  }

  void turn(DumpTensor& tensor) {
    const std::string_view name = tensor.name;
    const bool is_weight = name.starts_with("w_") || name.starts_with("grad_w_");
    if (!is_weight || done_.count(tensor.name) > 0) return;
    const bool named_so = is_linear_weight_name(tensor.given_name);
    if (!settings_.weights_out_in.value_or(named_so)) return;
    if (tensor.shape.rank() != 2) fail(tensor, "a matrix");
    transpose(tensor);
    const std::pair<std::string, std::string> note{"linear_weight_layout", "(out,in)"};
    if (!settings_.weights_out_in && std::ranges::find(assumed_, note) == assumed_.end()) {
      assumed_.push_back(note);
    }
  }

  void name_inputs() {
    rename("query", "x");
    if (!find("key")) {
      if (find("value")) fail(*find("value"), "a key beside it");
      return;
    }
    const DumpTensor* value = find("value");
    if (!value || same_numbers(*find("key"), *value)) {
      join_gradients();
      remove("value");
      rename("key", "y");
    } else {
      place_side_by_side();
    }
  }

  void rename(const std::string& from, const std::string& to) {
    for (const std::string prefix : {"", "grad_"}) {
      if (DumpTensor* tensor = find(prefix + from)) tensor->name = prefix + to;
    }
  }

  static bool same_numbers(const DumpTensor& a, const DumpTensor& b) {
    if (a.shape != b.shape) return false;
    const Array<double> one = a.read(), other = b.read();
    return std::ranges::equal(one.values(), other.values());
  }

  // One array went in twice: its gradient is the sum of both.
  void join_gradients() {
    DumpTensor *const key = find("grad_key"), *const value = find("grad_value");
    if (key && value && key->shape == value->shape) {
      key->read = [one = key->read, other = value->read] {
        Array<double> sum = one();
        const Array<double> more = other();
        const double* from = more.data();
        for (double& x : sum.mutable_values()) x += *from++;
        return sum;
      };
    }
    remove("grad_value");
  }

  // y = [key | value], w_key over zeros, zeros over w_value.
  void place_side_by_side() {
    DumpTensor *const key = find("key"), *const value = find("value");
    DumpTensor *const w_key = find("w_key"), *const w_value = find("w_value");
    if (!w_key || !w_value || w_key->shape.rank() != 2 || w_value->shape.rank() != 2) return;
    const Shape key_shape = key->shape, value_shape = value->shape;
    const int last = key_shape.rank() - 1;
    if (last < 1 || value_shape.rank() != last + 1 || key_shape.with(last, 1) != value_shape.with(last, 1)) {
      fail(*value, "the leading axes of the key " + to_string(key_shape));
    }
    const Index above = key_shape[last], below = value_shape[last];
    add_rows(*w_key, 0, below);
    add_rows(*w_value, above, 0);
    for (const char* name : {"grad_w_key", "grad_w_value"}) remove(name);
    for (const std::string prefix : {"", "grad_"}) {
      DumpTensor *const one = find(prefix + "key"), *const other = find(prefix + "value");
      if (!one || !other || one->shape != key_shape || other->shape != value_shape) continue;
      one->shape = key_shape.with(last, above + below);
      one->read = [a = one->read, b = other->read, last] { return joined(a(), b(), last); };
    }
    for (const char* name : {"value", "grad_value"}) remove(name);
    rename("key", "y");
    assumed_.emplace_back("y", "key and value side by side");
  }

  static void add_rows(DumpTensor& w, Index before, Index after) {
    const Shape old = w.shape;
    w.shape = {before + old[0] + after, old[1]};
    w.read = [read = w.read, before, after, columns = old[1]] {
      return joined(joined(Array<double>::zeros({before, columns}), read(), 0),
                    Array<double>::zeros({after, columns}), 0);
    };
  }

  static Array<double> joined(const Array<double>& a, const Array<double>& b, int axis) {
    auto y = Array<double>::uninitialized(a.shape().with(axis, a.dim(axis) + b.dim(axis)));
    double* to = y.mutable_values().data();
    const Index outer = axis == 0 ? 1 : a.size() / a.dim(axis);
    const Index of_a = a.size() / outer, of_b = b.size() / outer;
    for (Index i = 0; i < outer; ++i) {
      to = std::copy_n(a.data() + i * of_a, of_a, to);
      to = std::copy_n(b.data() + i * of_b, of_b, to);
    }
    return y;
  }

  Dump dump_;
  std::set<std::string, std::less<>> done_;  // weights whose axes are in order
  const Settings& settings_;
  std::vector<std::pair<std::string, std::string>>& assumed_;
};

}  // namespace

Dump with_plain_projections(const Dump& dump, const Settings& settings,
                            std::vector<std::pair<std::string, std::string>>& assumed) {
  return Projections(dump, settings, assumed).plain();
}

}  // namespace tapehead::check
