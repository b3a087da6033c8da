// Attention differentiated twice against PyTorch, and three times against differences.

#include <gtest/gtest.h>

#include <string>

#include <tapehead/core/derivatives.h>
#include <tapehead/core/expect_gradients.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/reduction.h>

#include "support/compare.h"
#include "support/golden.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;

// Sums of a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;

class SecondOrder : public testing::TestWithParam<const char*> {
 protected:
  V attend(const V& query, const V& key, const V& value) const {
    const AttentionOptions<double> options = {.scale = golden_.number("scale"),
                                              .mask = Mask::allowed(golden_.mask("mask"))};
    return attention(query, key, value, options).output;
  }
  auto attended() const {
    return [this](const V& q, const V& k, const V& v) { return attend(q, k, v); };
  }
  auto loss() const {  // of query, key and value
    return [this](const V& q, const V& k, const V& v) {
      return sum(attend(q, k, v) * V(golden_.array("upstream")));
    };
  }
  std::vector<V> three(const std::string& prefix) const {
    std::vector<V> result;
    for (const char* name : {"query", "key", "value"}) result.push_back(golden_.array(prefix + name));
    return result;
  }

  Golden golden_ = Golden(GetParam());
};

TEST_P(SecondOrder, HvpIsPyTorchs) {
  const auto second = hvp(loss(), three(""), three("vector_"));
  const auto expected = three("second_");
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR_RELATIVE(second[i], expected[i], rounding) << "input " << i;
}

// The gradient of <J^T upstream, vector> with respect to upstream is J vector.
TEST_P(SecondOrder, JvpIsPyTorchs) {
  const V second = jvp(attended(), three(""), three("vector_"))[0];
  EXPECT_NEAR_RELATIVE(second, golden_.array("second_upstream"), rounding);
}

TEST_P(SecondOrder, VjpIsPyTorchs) {
  const auto first = vjp(attended(), three(""), {golden_.array("upstream")});
  const auto expected = three("grad_");
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR_RELATIVE(first[i], expected[i], rounding) << "input " << i;
}

// All four at once, as PyTorch made them: upstream is an input too.
TEST_P(SecondOrder, GradientOfAGradientIsPyTorchs) {
  Tape<double> tape;
  std::vector<V> x;
  for (const V& one : three("")) x.push_back(tape.input(one.value()));
  const V upstream = tape.input(golden_.array("upstream"));
  const auto first = gradient(attend(x[0], x[1], x[2]), x, upstream);
  const auto vectors = three("vector_");
  x.push_back(upstream);
  const auto second = gradient_values(first, x, vectors);
  auto expected = three("second_");
  expected.push_back(golden_.array("second_upstream"));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR_RELATIVE(second[i], expected[i], rounding) << "input " << i;
}

TEST_P(SecondOrder, FailsWhenAnInputIsLeftOut) {
  const auto without_key = [this](const V& q, const V& k, const V& v) {
    return sum(attend(q, k.detach(), v) * V(golden_.array("upstream")));
  };
  const auto second = hvp(without_key, three(""), three("vector_"));
  EXPECT_FALSE(agree(second[0], three("second_")[0], 1e-3));
}

INSTANTIATE_TEST_SUITE_P(Golden, SecondOrder,
                         testing::Values("second_order_sdpa", "second_order_sdpa_causal"),
                         [](const auto& name) { return std::string(name.param); });

// ---------------------------------------------------------------- third order

// Self-attention of one X with projections: X is used three times and every rule meets every other.
V small_attention(const V& x, const V& w_query, const V& w_value) {
  return attention(matmul(x, w_query), x, matmul(x, w_value), {.mask = Mask::causal(0)}).output;
}

TEST(ThirdOrder, OfAttentionAgreesWithDifferences) {
  Generator random(11);
  const A x = random.normal<double>({3, 2}), w_query = random.normal<double>({2, 2}),
          w_value = random.normal<double>({2, 1});
  EXPECT_GRADIENTS(small_attention, {x, w_query, w_value},
                   {.order = 3, .names = {"X", "W_query", "W_value"}});
}

// The same without the checker: T(u, v, w) = d^3/dr ds dt loss(X + r u + s v + t w), by three sweeps in any
// order of the directions, and by differences of the second derivative.
TEST(ThirdOrder, OfAttentionIsSymmetricAndADifferenceOfTheSecond) {
  Generator random(12);
  const A x = random.normal<double>({3, 2});
  const V w_query = random.normal<double>({2, 2}), w_value = random.normal<double>({2, 1});
  const V upstream = random.normal<double>({3, 1});
  const V u = random.normal<double>({3, 2}), v = random.normal<double>({3, 2}),
          w = random.normal<double>({3, 2});
  const auto loss = [&](const V& at) { return sum(small_attention(at, w_query, w_value) * upstream); };
  const auto second = [&](const V& at, const V& p, const V& q) { return sum(hvp(loss, at, p) * q); };
  const auto third = [&](const V& p, const V& q, const V& r) {
    return jvp([&](const V& at) { return second(at, p, q); }, V(x), r).item();
  };
  const double by_sweeps = third(u, v, w);
  EXPECT_GT(std::abs(by_sweeps), 0.1);
  // A few hundred roundings of terms up to 10.
  for (const double other :
       {third(u, w, v), third(v, u, w), third(v, w, u), third(w, u, v), third(w, v, u)}) {
    EXPECT_NEAR(other, by_sweeps, 1e-12);
  }
  // The five-point formula: 1e-3^4 / 30 of a seventh derivative below 1e4, and 1e-16 of 10 over the step.
  const auto at = [&](double h) { return second(V(x) + w * h, u, v).item(); };
  constexpr double h = 1e-3;
  const double by_differences = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
  EXPECT_NEAR(by_differences, by_sweeps, 1e-9);
}

}  // namespace
}  // namespace tapehead
