// Second derivatives against PyTorch in float64; its first ones are golden cases of the op table
// (op_table.h).

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/softmax.h>

#include "support/compare.h"
#include "support/golden.h"

namespace tapehead {
namespace {

using V = Var<double>;

struct SecondOrder {
  std::string name;                 // of the file in tests/data/made, after "op_"
  std::vector<std::string> inputs;  // in the order of the list that f takes
  std::function<V(const Golden&, const std::vector<V>&)> f;
};
std::ostream& operator<<(std::ostream& stream, const SecondOrder& op) { return stream << op.name; }

V cross_entropy_of(const Golden& golden, const std::vector<V>& v) {
  CrossEntropyOptions<double> options;
  options.reduction = Reduction::sum;
  options.ignored = std::stoll(golden.meta("ignore_index"));
  options.smoothing = golden.number("label_smoothing");
  options.weights = golden.array("weight");
  options.axis = std::stoi(golden.meta("axis"));
  return cross_entropy(v[0], golden.index("target"), options);
}

std::vector<SecondOrder> cases() {
  return {
      {"var_sample",
       {"x"},
       [](auto&, auto& v) {
         return var(v[0], {0, 2}, Keep::yes, 1);
       }},
      {"prod_zeros", {"x"}, [](auto&, auto& v) { return prod(v[0], -1); }},
      {"prod_all", {"x"}, [](auto&, auto& v) { return prod(v[0]); }},
      {"logsumexp_axes",
       {"x"},
       [](auto&, auto& v) {
         return logsumexp(v[0], {0, 2});
       }},
      {"rms_norm_axes",
       {"x", "weight"},
       [](auto& g, auto& v) { return rms_norm(v[0], v[1], g.number("eps")); }},
      {"cross_entropy_axis", {"x"}, cross_entropy_of},
      {"softmax_tied", {"x"}, [](auto&, auto& v) { return softmax(v[0]); }},
      {"log_softmax_tied", {"x"}, [](auto&, auto& v) { return log_softmax(v[0]); }},
  };
}

class SecondDerivatives : public testing::TestWithParam<SecondOrder> {};

// With d the gradients of sum(output * upstream), `second` are those of sum(d * vector).
TEST_P(SecondDerivatives, AgreeWithPyTorch) {
  const SecondOrder& op = GetParam();
  const Golden golden("op_" + op.name, "made");
  Tape<double> tape;
  std::vector<V> inputs, vectors;
  for (const std::string& name : op.inputs) {
    inputs.push_back(tape.input(golden.array(name)));
    vectors.push_back(golden.array("vector_" + name));
  }
  const V upstream = golden.array("upstream");
  const std::vector<V> d = gradient(op.f(golden, inputs), inputs, upstream);
  const std::vector<Array<double>> plain = gradient_values(d, inputs, vectors);
  const std::vector<V> recorded = gradient(d, inputs, vectors);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Array<double> expected = golden.array("second_" + op.inputs[i]);
    EXPECT_NEAR_RELATIVE(plain[i], expected, 1e-12) << "plain sweep, " << op.inputs[i];
    EXPECT_NEAR_RELATIVE(recorded[i], expected, 1e-12) << "recorded sweep, " << op.inputs[i];
    EXPECT_GT(magnitude(expected), 0.1) << "next to nothing would agree with anything";
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, SecondDerivatives, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace tapehead
