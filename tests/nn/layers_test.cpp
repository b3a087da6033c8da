#include <tapehead/nn/layers.h>

#include <gtest/gtest.h>

#include <cmath>

#include <tapehead/core/errors.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/layer_loops.h"
#include "support/model_gradients.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using loops::Rows;

// Sums of at most a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;

A random_array(std::uint64_t seed, const Shape& shape) {
  Generator random(seed);
  return random.normal<double>(shape);
}

// What loops(rows) makes of each sequence of a batch.
template <class Loops>
A by_loops(const A& x, Loops loops) {
  std::vector<Rows> sequences;
  for (Index b = 0; b < x.dim(0); ++b) sequences.push_back(loops(loops::rows_of(x, b)));
  return loops::batch_of(sequences);
}

class WithOrWithoutBias : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Layers, WithOrWithoutBias, testing::Bool(),
                         [](const auto& bias) { return bias.param ? "Bias" : "NoBias"; });

// ---- Projection

TEST_P(WithOrWithoutBias, ProjectionAgreesWithLoops) {
  Generator random(1);
  const auto layer = with_random_parameters(Projection<double>::initial(random, 5, 7, GetParam()), 2);
  EXPECT_EQ(layer.b.has_value(), GetParam());
  const A x = random_array(3, {2, 3, 5});
  EXPECT_NEAR_RELATIVE(layer(V(x)), by_loops(x, [&](const Rows& r) { return loops::projected(layer, r); }),
                       rounding);
}

TEST_P(WithOrWithoutBias, ProjectionHasTheGradientsOfDifferences) {
  Generator random(1);
  const V x = random_array(3, {4, 5}), upstream = random_array(4, {4, 7});
  expect_gradients_of_differences(
      with_random_parameters(Projection<double>::initial(random, 5, 7, GetParam()), 2),
      [&](const auto& layer) { return sum(layer(x) * upstream); });
}

TEST(Projection, TakesVectorsAndManyBatchAxes) {
  Generator random(1);
  const auto layer = with_random_parameters(Projection<double>::initial(random, 5, 7, true), 2);
  const A x = random_array(3, {2, 3, 4, 5});
  const A whole = layer(V(x)).value();
  ASSERT_EQ(whole.shape(), Shape({2, 3, 4, 7}));
  const A last = layer(V(A::from(x.values().last(5), {5}))).value();
  EXPECT_NEAR_RELATIVE(last, A::from(whole.values().last(7), {7}), rounding);
}

TEST(Projection, OfAnotherWidthOrABiasThatDoesNotFitIsAnError) {
  Generator random(1);
  auto layer = Projection<double>::initial(random, 5, 7, true);
  EXPECT_TRUE(raises<ShapeError>([&] { layer(V(A::ones({2, 6}))); }, {"(2, 6)", "(5, 7)"}));
  layer.b = A::ones({5});
  EXPECT_TRUE(raises<ShapeError>([&] { layer(V(A::ones({2, 5}))); }, {"(5)"}));
}

// ---- Embedding

TEST(Embedding, GivesTheRowsThatIndicesName) {
  const A table = random_array(1, {5, 3});
  const auto indices = Array<Index>::of({{4, 0}, {2, 4}, {1, 1}});
  const A rows = Embedding<double>{table}(indices).value();
  ASSERT_EQ(rows.shape(), Shape({3, 2, 3}));
  for (Index i = 0; i < 3; ++i) {
    for (Index j = 0; j < 2; ++j) {
      for (Index m = 0; m < 3; ++m) EXPECT_EQ(rows(i, j, m), table(indices(i, j), m));
    }
  }
  EXPECT_EQ(Embedding<double>{table}(Array<Index>::scalar(3)).shape(), Shape({3}));
}

TEST(Embedding, HasTheGradientsOfDifferencesAlsoOfRowsThatComeTwice) {
  const V upstream = random_array(2, {2, 4, 3});
  expect_gradients_of_differences(Embedding<double>{random_array(1, {5, 3})}, [&](const auto& layer) {
    return sum(layer(Array<Index>::of({{4, 0, 4, 4}, {2, 3, 1, 0}})) * upstream);
  });
}

TEST(Embedding, OfARowThatThereIsNotIsAnError) {
  const Embedding<double> layer{A::ones({5, 3})};
  EXPECT_TRUE(raises<DomainError>([&] { layer(Array<Index>::of({0, 5})); }, {"embedding", "5"}));
  EXPECT_TRUE(raises<DomainError>([&] { layer(Array<Index>::of({0, -1})); }, {"embedding", "-1"}));
}

// ---- Norms

TEST(LayerNorm, AgreesWithLoops) {
  auto layer = with_random_parameters(LayerNorm<double>::initial(7), 1);
  const A x = random_array(2, {3, 5, 7});
  for (const double eps : {1e-5, 0.5}) {
    layer.eps = eps;
    EXPECT_NEAR_RELATIVE(layer(V(x)), by_loops(x, [&](const Rows& r) { return loops::layer_norm(layer, r); }),
                         rounding);
  }
}

TEST(LayerNorm, HasTheGradientsOfDifferences) {
  const V x = random_array(3, {3, 5}), upstream = random_array(4, {3, 5});
  expect_gradients_of_differences(with_random_parameters(LayerNorm<double>::initial(5), 2),
                                  [&](const auto& layer) { return sum(layer(x) * upstream); });
}

TEST(LayerNorm, AtFirstOnlyStandardisesEachRow) {
  const auto layer = LayerNorm<double>::initial(6);
  EXPECT_SAME_NUMBERS(layer.gain, A::ones({6}));
  EXPECT_SAME_NUMBERS(layer.bias, A::zeros({6}));
  for (const auto& row : loops::rows_of(layer(V(random_array(5, {4, 6}))).value())) {
    double mean = 0, square = 0;
    for (const double v : row) mean += v / 6, square += v * v / 6;
    EXPECT_NEAR(mean, 0, rounding);
    EXPECT_NEAR(square, 1, 1e-3);  // variance / (variance + 1e-5), of a variance that is hardly below 0.01
  }
}

TEST(RmsNorm, AgreesWithLoops) {
  auto layer = with_random_parameters(RmsNorm<double>::initial(7), 1);
  const A x = random_array(2, {3, 5, 7});
  for (const double eps : {1e-6, 0.5}) {
    layer.eps = eps;
    EXPECT_NEAR_RELATIVE(
        layer(V(x)), by_loops(x, [&](const Rows& r) { return loops::rms_norm(r, layer.gain.value(), eps); }),
        rounding);
  }
}

TEST(RmsNorm, HasTheGradientsOfDifferences) {
  const V x = random_array(3, {3, 5}), upstream = random_array(4, {3, 5});
  expect_gradients_of_differences(with_random_parameters(RmsNorm<double>::initial(5), 2),
                                  [&](const auto& layer) { return sum(layer(x) * upstream); });
}

TEST(RmsNorm, AtFirstGivesEachRowAMeanSquareOfOneAndLeavesItsMean) {
  const auto layer = RmsNorm<double>::initial(6);
  EXPECT_SAME_NUMBERS(layer.gain, A::ones({6}));
  const A x = random_array(5, {4, 6});
  const Rows before = loops::rows_of(x), after = loops::rows_of(layer(V(x)).value());
  for (std::size_t i = 0; i < after.size(); ++i) {
    double square = 0, factor = after[i][0] / before[i][0];
    for (std::size_t j = 0; j < 6; ++j) {
      square += after[i][j] * after[i][j] / 6;
      EXPECT_NEAR(after[i][j], factor * before[i][j], rounding);
    }
    EXPECT_NEAR(square, 1, 1e-4);  // s / (s + 1e-6), of a mean square s that is hardly below 0.01
  }
}

TEST(Norm, IsWhicheverOfTheTwoItHolds) {
  const V x = random_array(3, {3, 5});
  const auto layer = with_random_parameters(LayerNorm<double>::initial(5), 2);
  const auto rms = with_random_parameters(RmsNorm<double>::initial(5), 2);
  EXPECT_SAME_NUMBERS(normed(Norm<double>(layer), x), layer(x));
  EXPECT_SAME_NUMBERS(normed(Norm<double>(rms), x), rms(x));
}

// ---- FeedForward

struct FeedForwardForm {
  const char* name;
  Activation activation;
  bool gate, bias;
};
std::ostream& operator<<(std::ostream& stream, const FeedForwardForm& form) { return stream << form.name; }

FeedForward<double> random_feed_forward(const FeedForwardForm& form) {
  Generator random(1);
  FeedForward<double> layer;
  layer.up = Projection<double>::initial(random, 5, 7, form.bias);
  if (form.gate) layer.gate = Projection<double>::initial(random, 5, 7, form.bias);
  layer.down = Projection<double>::initial(random, 7, 5, form.bias);
  layer.activation = form.activation;
  return with_random_parameters(layer, 3);
}

class FeedForwards : public testing::TestWithParam<FeedForwardForm> {};
INSTANTIATE_TEST_SUITE_P(Layers, FeedForwards,
                         testing::Values(FeedForwardForm{"Relu", Activation::relu, false, true},
                                         FeedForwardForm{"Gelu", Activation::gelu, false, true},
                                         FeedForwardForm{"GeluTanh", Activation::gelu_tanh, false, true},
                                         FeedForwardForm{"Silu", Activation::silu, false, false},
                                         FeedForwardForm{"SwiGlu", Activation::silu, true, false},
                                         FeedForwardForm{"GeGluWithBiases", Activation::gelu, true, true}),
                         [](const auto& form) { return form.param.name; });

TEST_P(FeedForwards, AgreesWithLoops) {
  const auto layer = random_feed_forward(GetParam());
  const A x = random_array(3, {2, 3, 5});
  EXPECT_NEAR_RELATIVE(layer(V(x)), by_loops(x, [&](const Rows& r) { return loops::feed_forward(layer, r); }),
                       rounding);
}

TEST_P(FeedForwards, HasTheGradientsOfDifferences) {
  const V x = random_array(4, {3, 5}), upstream = random_array(5, {3, 5});
  expect_gradients_of_differences(random_feed_forward(GetParam()),
                                  [&](const auto& layer) { return sum(layer(x) * upstream); });
}

TEST(FeedForward, OfGateAndUpExchangedIsAnother) {
  const auto layer = random_feed_forward({"SwiGlu", Activation::silu, true, false});
  const A x = random_array(3, {2, 3, 5});
  auto exchanged = layer;
  exchanged.up = *layer.gate, exchanged.gate = layer.up;
  EXPECT_FALSE(agree(exchanged(V(x)), layer(V(x)), 1e-3));
}

TEST(Activated, OfEachKindIsItsFormulaAndNoOther) {
  const A x = random_array(1, {40});
  const Activation all[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu};
  for (const Activation one : all) {
    for (const Activation other : all) {
      A expected = x;
      for (double& v : expected.mutable_values()) v = loops::activated(other, v);
      EXPECT_EQ(agree(activated(one, V(x)), expected, 1e-5), one == other);
    }
  }
}

TEST(InitialProjection, IsUniformWithinOneOverTheRootOfItsInputs) {
  Generator random(1);
  const A w = Projection<double>::initial(random, 64, 50).w.value();
  ASSERT_EQ(w.shape(), Shape({64, 50}));
  double mean = 0, square = 0;
  for (const double x : w.values()) mean += x / 3200, square += x * x / 3200;
  EXPECT_LE(magnitude(w), 1.0 / 8);
  EXPECT_GT(magnitude(w), 0.99 / 8) << "3200 draws come closer to the bound";
  // Five deviations of a mean and a mean square of 3200 numbers uniform in +-b: b / sqrt(3 n), sqrt(4 / 45 /
  // n) b^2.
  EXPECT_NEAR(mean, 0, 5 * (1.0 / 8) / std::sqrt(3 * 3200.0));
  EXPECT_NEAR(64 * square, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / 3200));
}

TEST(InitialProjection, OfUnitVarianceInputsHasAThirdOfIt) {
  Generator random(2);
  const V w = Projection<double>::initial(random, 100, 40).w;
  const Rows y = loops::times(loops::rows_of(random.normal<double>({200, 100})), w.value());
  double square = 0;
  for (const auto& row : y) {
    for (const double v : row) square += v * v / (200 * 40);
  }
  EXPECT_NEAR(square, 1.0 / 3, 0.03);  // about 8000 squares, 40 to a w that has 4000 numbers: a few per cent
}

TEST(InitialProjection, InFloatStaysWithinTheBoundToo) {
  Generator random(3);
  const Array<float> w = Projection<float>::initial(random, 16, 300).w.value();
  EXPECT_LE(magnitude(w), 0.25);
}

// ---- Initial values

TEST(InitialValues, OfAProjectionHaveABiasOfZerosWhenThereIsToBeOne) {
  Generator random(1), again(1);
  const auto bare = Projection<double>::initial(random, 4, 25);
  const auto layer = Projection<double>::initial(again, 4, 25, true);
  EXPECT_FALSE(bare.b.has_value());
  EXPECT_SAME_NUMBERS(*layer.b, A::zeros({25}));
  EXPECT_SAME_NUMBERS(layer.w, bare.w);
}

TEST(InitialValues, OfAnEmbeddingAreNormal) {
  Generator random(1);
  const A table = Embedding<double>::initial(random, 50, 64).table.value();
  ASSERT_EQ(table.shape(), Shape({50, 64}));
  double mean = 0, square = 0;
  for (const double x : table.values()) mean += x / 3200, square += x * x / 3200;
  EXPECT_NEAR(mean, 0, 5 / std::sqrt(3200.0));  // five deviations of a mean and a mean square of 3200
  EXPECT_NEAR(square, 1, 5 * std::sqrt(2 / 3200.0));
  EXPECT_GT(magnitude(table), 3);
}

TEST(InitialValues, OfFeedForwardHaveBiasesOfZerosAndNoGate) {
  Generator random(1);
  const auto layer = FeedForward<double>::initial(random, 4, 25);
  EXPECT_EQ(layer.up.w.shape(), Shape({4, 25}));
  EXPECT_EQ(layer.down.w.shape(), Shape({25, 4}));
  EXPECT_SAME_NUMBERS(*layer.up.b, A::zeros({25}));
  EXPECT_SAME_NUMBERS(*layer.down.b, A::zeros({4}));
  EXPECT_LE(magnitude(layer.up.w.value()), 0.5);
  EXPECT_LE(magnitude(layer.down.w.value()), 0.2);
  EXPECT_GT(magnitude(layer.up.w.value()), 0.45);
  EXPECT_GT(magnitude(layer.down.w.value()), 0.18);
  EXPECT_FALSE(layer.gate.has_value());
  EXPECT_EQ(layer.activation, Activation::gelu);
  EXPECT_EQ(FeedForward<double>::initial(random, 4, 25, Activation::relu).activation, Activation::relu);
}

TEST(InitialValues, OfSwiGluHaveAGateAndNoBiases) {
  Generator random(1);
  const auto layer = FeedForward<double>::initial_swiglu(random, 4, 25);
  EXPECT_EQ(layer.gate->w.shape(), Shape({4, 25}));
  EXPECT_EQ(layer.up.w.shape(), Shape({4, 25}));
  EXPECT_EQ(layer.down.w.shape(), Shape({25, 4}));
  EXPECT_FALSE(layer.up.b || layer.gate->b || layer.down.b);
  EXPECT_FALSE(same_bits(layer.up.w.value(), layer.gate->w.value()));
  EXPECT_EQ(layer.activation, Activation::silu);
}

TEST(InitialValues, OfOneSeedAreTheSameAndOfAnotherAreOthers) {
  auto drawn = [](std::uint64_t seed) {
    Generator random(seed);
    return parameters<double>(FeedForward<double>::initial_swiglu(random, 4, 5));
  };
  const auto first = drawn(1), again = drawn(1), other = drawn(2);
  ASSERT_EQ(first.size(), 3u);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(same_bits(first[i].value(), again[i].value()));
    EXPECT_FALSE(same_bits(first[i].value(), other[i].value()));
  }
}

TEST(InitialValues, AreNotRecorded) {
  Generator random(1);
  for (const V& w : parameters<double>(FeedForward<double>::initial(random, 3, 5)))
    EXPECT_FALSE(w.recorded());
}

}  // namespace
}  // namespace tapehead
