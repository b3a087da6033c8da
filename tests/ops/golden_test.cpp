// The ops against numbers from PyTorch in float64. Axes, shapes, fills and the like come from each case's own
// file.

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include "support/compare.h"
#include "support/golden.h"

namespace tapehead {
namespace {

constexpr double tolerance = 1e-12;  // relative to the largest element; both sides compute in float64

using V = Var<double>;

struct GoldenOp {
  std::string name;                 // of the file, after "op_"
  std::vector<std::string> inputs;  // the tensors with a gradient, in the order of the function's arguments
  std::function<V(const Golden&, const std::vector<V>&)> f;
};
std::ostream& operator<<(std::ostream& stream, const GoldenOp& op) { return stream << op.name; }

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<int> integers(const std::string& text) {  // "0,2"
  std::vector<int> result;
  for (const std::string& part : split(text, ',')) result.push_back(std::stoi(part));
  return result;
}

Shape shape_of(const Golden& golden) {
  std::vector<Index> extents;
  for (const int extent : integers(golden.meta("shape"))) extents.push_back(extent);
  return Shape(std::span<const Index>(extents));
}

Keep keep_of(const Golden& golden) { return golden.meta("keepdim") == "1" ? Keep::yes : Keep::no; }

int axis_in(const Golden& golden) { return std::stoi(golden.meta("axis")); }

std::vector<Slice> slices_of(const Golden& golden) {  // ":,1:3,::2"
  std::vector<Slice> result;
  for (const std::string& text : split(golden.meta("slices"), ',')) {
    const std::vector<std::string> bounds = split(text, ':');
    auto bound = [&](std::size_t i) {
      return i < bounds.size() && !bounds[i].empty() ? std::optional<Index>(std::stoll(bounds[i]))
                                                     : std::nullopt;
    };
    result.push_back({bound(0), bound(1), bound(2).value_or(1)});
  }
  return result;
}

V summed(const Golden& golden, const V& x) {
  if (golden.meta("axis") == "all") return sum(x);
  return sum(x, integers(golden.meta("axis")), keep_of(golden));
}

V cross_entropy_of(const Golden& golden, const V& x) {
  CrossEntropyOptions<double> options;
  const std::string& reduction = golden.meta("reduction");
  options.reduction = reduction == "mean"  ? Reduction::mean
                      : reduction == "sum" ? Reduction::sum
                                           : Reduction::none;
  if (golden.has_meta("ignore_index")) options.ignored = std::stoll(golden.meta("ignore_index"));
  if (golden.has_meta("label_smoothing")) options.smoothing = golden.number("label_smoothing");
  return cross_entropy(reshape(x, {-1, x.dim(-1)}), golden.index("target").reshape({-1}), options);
}

V masked_fill_of(const Golden& golden, const V& x) {
  EXPECT_EQ(golden.meta("mask_true_means"), "kept");
  return masked_fill(x, golden.mask("mask"), golden.number("fill"));
}

template <class F>
GoldenOp unary(std::string name, F f) {
  return {
      std::move(name), {"x"}, [f](const Golden& golden, const std::vector<V>& v) { return f(golden, v[0]); }};
}
template <class F>
GoldenOp map(std::string name, F f) {
  return {std::move(name), {"x"}, [f](const Golden&, const std::vector<V>& v) { return f(v[0]); }};
}
template <class F>
GoldenOp binary(std::string name, F f) {
  return {std::move(name), {"x", "y"}, [f](const Golden&, const std::vector<V>& v) { return f(v[0], v[1]); }};
}

std::vector<GoldenOp> golden_ops() {
  std::vector<GoldenOp> ops = {
      binary("add_broadcast", [](const V& x, const V& y) { return x + y; }),
      binary("sub_broadcast", [](const V& x, const V& y) { return x - y; }),
      binary("mul_broadcast", [](const V& x, const V& y) { return x * y; }),
      binary("div_broadcast", [](const V& x, const V& y) { return x / y; }),
      map("neg", [](const V& x) { return -x; }),
      map("exp", [](const V& x) { return exp(x); }),
      map("log", [](const V& x) { return log(x); }),
      map("sqrt", [](const V& x) { return sqrt(x); }),
      map("tanh", [](const V& x) { return tanh(x); }),
      map("erf", [](const V& x) { return erf(x); }),
      map("relu", [](const V& x) { return relu(x); }),
      map("gelu", [](const V& x) { return gelu(x); }),
      map("gelu_tanh", [](const V& x) { return gelu(x, Gelu::tanh); }),
      map("square", [](const V& x) { return x * x; }),
      map("reciprocal", [](const V& x) { return 1.0 / x; }),
      unary("sum_axis0", summed),
      unary("sum_axis1", summed),
      unary("sum_axis-1", summed),
      unary("sum_keep", summed),
      unary("sum_all", summed),
      unary("mean_axis", [](const Golden& g, const V& x) { return mean(x, axis_in(g), keep_of(g)); }),
      unary("broadcast_to", [](const Golden& g, const V& x) { return broadcast_to(x, shape_of(g)); }),
      unary("reshape", [](const Golden& g, const V& x) { return reshape(x, shape_of(g)); }),
      unary("transpose",
            [](const Golden& g, const V& x) {
              const std::vector<int> axes = integers(g.meta("axes"));
              return transpose(x, axes.at(0), axes.at(1));
            }),
      unary("permute",
            [](const Golden& g, const V& x) {
              const std::vector<int> axes = integers(g.meta("axes"));
              return permute(x, std::span<const int>(axes));
            }),
      {"concat",
       {"x", "y"},
       [](const Golden& g, const std::vector<V>& v) {
         return concat({v[0], v[1]}, axis_in(g));
       }},
      unary("slice",
            [](const Golden& g, const V& x) {
              const std::vector<Slice> slices = slices_of(g);
              return slice(x, std::span<const Slice>(slices));
            }),
      map("matmul_self", [](const V& x) { return matmul(x, x, false, true); }),
      unary("masked_fill", masked_fill_of),
      {"linear",
       {"x", "weight", "b"},
       [](const Golden& g, const std::vector<V>& v) {
         EXPECT_EQ(g.meta("weight_layout"), "(in,out)");
         return projection(v[0], v[1], v[2]);
       }},
      {"embedding",
       {"table"},
       [](const Golden& g, const std::vector<V>& v) { return embedding(v[0], g.index("index")); }},
      {"layer_norm",
       {"x", "weight", "b"},
       [](const Golden& g, const std::vector<V>& v) {
         return layer_norm(v[0], v[1], v[2], g.number("eps"));
       }},
  };
  for (const char* name : {"2d", "batch", "broadcast", "shared_right", "vec_right", "vec_left", "dot"}) {
    ops.push_back(binary(std::string("matmul_") + name, [](const V& x, const V& y) { return matmul(x, y); }));
  }
  for (const char* axis : {"0", "1", "-1"}) {
    ops.push_back(unary(std::string("softmax_axis") + axis,
                        [](const Golden& g, const V& x) { return softmax(x, axis_in(g)); }));
    ops.push_back(unary(std::string("log_softmax_axis") + axis,
                        [](const Golden& g, const V& x) { return log_softmax(x, axis_in(g)); }));
  }
  for (const char* kind : {"mean", "sum", "none", "ignore", "smooth"}) {
    ops.push_back(unary(std::string("cross_entropy_") + kind, cross_entropy_of));
  }
  return ops;
}

// An op on the inputs of its case.
struct Applied {
  Applied(const Golden& golden, const GoldenOp& op) {
    for (const std::string& name : op.inputs) inputs.push_back(tape.input(golden.array(name)));
    y = op.f(golden, inputs);
  }
  Tape<double> tape;
  std::vector<V> inputs;
  V y;
};

class GoldenCase : public testing::TestWithParam<GoldenOp> {};

TEST_P(GoldenCase, ForwardAndGradientsAgreeWithPyTorch) {
  const GoldenOp& op = GetParam();
  const Golden golden("op_" + op.name);
  const Applied now(golden, op);
  EXPECT_NEAR_RELATIVE(now.y, golden.array("output"), tolerance);

  const V upstream = golden.array("upstream");
  const std::vector<Array<double>> plain = gradient_values(now.y, now.inputs, upstream);
  const std::vector<V> recorded = gradient(now.y, now.inputs, upstream);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Array<double> expected = golden.array("grad_" + op.inputs[i]);
    EXPECT_NEAR_RELATIVE(plain[i], expected, tolerance) << "plain sweep, " << op.inputs[i];
    EXPECT_NEAR_RELATIVE(recorded[i], expected, tolerance) << "recorded sweep, " << op.inputs[i];
  }
}

std::string test_name(const testing::TestParamInfo<GoldenOp>& info) {
  std::string name = info.param.name;
  const std::size_t at = name.find("-1");
  return at == std::string::npos ? name : name.replace(at, 2, "_last");
}
INSTANTIATE_TEST_SUITE_P(PyTorch, GoldenCase, testing::ValuesIn(golden_ops()), test_name);

// Scores of thousands make one-hot rows: what is left of dP - sum(dP P) is rounding, so it is held to dP.
TEST(GoldenSoftmax, HugeScoresStayFinite) {
  const Golden golden("op_softmax_huge");
  const GoldenOp op =
      unary("softmax_huge", [](const Golden& g, const V& x) { return softmax(x, axis_in(g)); });
  const Applied now(golden, op);
  EXPECT_NEAR_RELATIVE(now.y, golden.array("output"), tolerance);
  const Array<double> upstream = golden.array("upstream"), expected = golden.array("grad_x");
  const double bound = tolerance * magnitude(upstream);
  EXPECT_LE(absolute_error(gradient_values(now.y, now.inputs, V(upstream))[0], expected), bound);
  EXPECT_LE(absolute_error(gradient(now.y, now.inputs, V(upstream))[0].value(), expected), bound);
}

}  // namespace
}  // namespace tapehead
