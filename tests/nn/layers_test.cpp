#include <tapehead/nn/layers.h>

#include <gtest/gtest.h>

#include <algorithm>
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
using Options = AttentionOptions<double>;
using loops::Rows;

// Sums of at most a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;

A random_array(std::uint64_t seed, const Shape& shape) {
  Generator random(seed);
  return random.normal<double>(shape);
}

Options causal() {
  Options options;
  options.mask = Mask::causal(0);
  return options;
}

// Queries from width M, keys and values from width N, heads of widths D and E, with an output of width out or
// none.
template <class Layer>
Layer random_attention(Index M, Index N, Index heads, Index D, Index E, Index out) {
  Layer layer;
  layer.heads = heads;
  layer.w_query = A::zeros({M, heads * D});
  layer.w_key = A::zeros({N, heads * D});
  layer.w_value = A::zeros({N, heads * E});
  if (out > 0) layer.w_out = A::zeros({heads * E, out});
  return with_random_parameters(layer, 11);
}
SelfAttention<double> random_self_attention(Index M, Index heads, Index D, Index E, Index out) {
  return random_attention<SelfAttention<double>>(M, M, heads, D, E, out);
}

template <class Layer>
A by_loops(const Layer& layer, const A& x, const A& y, bool is_causal) {
  std::vector<Rows> sequences;
  for (Index b = 0; b < x.dim(0); ++b) {
    sequences.push_back(loops::attention(layer, loops::rows_of(x, b), loops::rows_of(y, b), is_causal));
  }
  return loops::batch_of(sequences);
}

struct AttentionSizes {
  Index heads, D, E, out;  // out 0: no w_out
};
std::ostream& operator<<(std::ostream& stream, const AttentionSizes& sizes) {
  return stream << sizes.heads << " heads, D " << sizes.D << ", E " << sizes.E << ", out " << sizes.out;
}

class AttentionLayer : public testing::TestWithParam<AttentionSizes> {};

TEST_P(AttentionLayer, OfOneInputAgreesWithLoopsOverItsHeads) {
  const auto [heads, D, E, out] = GetParam();
  const auto layer = random_self_attention(7, heads, D, E, out);
  const A x = random_array(1, {3, 5, 7});
  EXPECT_NEAR_RELATIVE(layer(V(x)).output, by_loops(layer, x, x, false), rounding);
  EXPECT_NEAR_RELATIVE(layer(V(x), causal()).output, by_loops(layer, x, x, true), rounding);
}

TEST_P(AttentionLayer, OfTwoInputsAgreesWithLoopsOverItsHeads) {
  const auto [heads, D, E, out] = GetParam();
  const auto layer = random_attention<CrossAttention<double>>(7, 8, heads, D, E, out);
  const A x = random_array(2, {3, 5, 7}), y = random_array(3, {3, 9, 8});
  EXPECT_NEAR_RELATIVE(layer(V(x), V(y)).output, by_loops(layer, x, y, false), rounding);
}

TEST_P(AttentionLayer, HasTheGradientsOfDifferences) {
  const auto [heads, D, E, out] = GetParam();
  const V x = random_array(4, {2, 3, 4}), y = random_array(5, {2, 5, 6});
  const V upstream = random_array(6, {2, 3, out > 0 ? out : heads * E});
  expect_gradients_of_differences(random_self_attention(4, heads, D, E, out), [&](const auto& layer) {
    return sum(layer(x, causal()).output * upstream);
  });
  expect_gradients_of_differences(random_attention<CrossAttention<double>>(4, 6, heads, D, E, out),
                                  [&](const auto& layer) { return sum(layer(x, y).output * upstream); });
}

INSTANTIATE_TEST_SUITE_P(Heads, AttentionLayer,
                         testing::Values(AttentionSizes{1, 3, 4, 0}, AttentionSizes{1, 4, 3, 6},
                                         AttentionSizes{2, 3, 5, 0}, AttentionSizes{3, 2, 4, 5}),
                         [](const auto& sizes) {
                           const AttentionSizes& s = sizes.param;
                           return std::to_string(s.heads) + "Of" + std::to_string(s.D) + "And" +
                                  std::to_string(s.E) + (s.out > 0 ? "Projected" : "Bare");
                         });

TEST(SelfAttention, IsCrossAttentionOfXAndItself) {
  const auto layer = random_self_attention(5, 2, 3, 4, 7);
  CrossAttention<double> cross;
  cross.w_query = layer.w_query, cross.w_key = layer.w_key, cross.w_value = layer.w_value;
  cross.w_out = layer.w_out, cross.heads = layer.heads;
  const V x = random_array(1, {2, 3, 5});
  EXPECT_SAME_NUMBERS(layer(x).output, cross(x, x).output);
}

TEST(SelfAttention, TakesOneSequenceOrManyBatchAxes) {
  const auto layer = random_self_attention(5, 2, 3, 4, 7);
  const A x = random_array(2, {2, 3, 4, 5});
  const A whole = layer(V(x)).output.value();
  ASSERT_EQ(whole.shape(), Shape({2, 3, 4, 7}));
  EXPECT_NEAR_RELATIVE(whole.reshape({6, 4, 7}),
                       by_loops(layer, x.reshape({6, 4, 5}), x.reshape({6, 4, 5}), false), rounding);
  const A one = random_array(3, {4, 5});
  EXPECT_NEAR_RELATIVE(layer(V(one)).output.value().reshape({1, 4, 7}),
                       by_loops(layer, one.reshape({1, 4, 5}), one.reshape({1, 4, 5}), false), rounding);
}

TEST(SelfAttention, GivesTheWeightsOfEachHeadWhenWanted) {
  const auto layer = random_self_attention(5, 3, 2, 4, 0);
  Options options = causal();
  options.weights = true;
  const V x = random_array(4, {2, 7, 5});
  const auto result = layer(x, options);
  ASSERT_TRUE(result.weights.has_value());
  ASSERT_EQ(result.weights->shape(), Shape({2, 3, 7, 7}));
  EXPECT_FALSE(layer(x).weights.has_value());
  for (Index h = 0; h < 3; ++h) {
    const Rows rows = loops::rows_of(x.value(), 1);
    const Rows query = loops::times(rows, layer.w_query.value(), 2 * h, 2);
    const Rows key = loops::times(rows, layer.w_key.value(), 2 * h, 2);
    const auto expected = loops::weights_of(query[4], key, 5);
    for (Index j = 0; j < 7; ++j) {
      EXPECT_NEAR(result.weights->value()(1, h, 4, j), j < 5 ? expected[static_cast<std::size_t>(j)] : 0,
                  rounding);
    }
  }
}

TEST(SelfAttention, OfOneHeadHasWeightsWithoutAHeadAxis) {
  const auto layer = random_self_attention(5, 1, 2, 4, 0);
  Options options;
  options.weights = true;
  EXPECT_EQ(layer(V(random_array(5, {2, 7, 5})), options).weights->shape(), Shape({2, 7, 7}));
}

TEST(SelfAttention, AppliesAMaskOfAllowedKeysToEveryHead) {
  const auto layer = random_self_attention(4, 3, 2, 5, 0);
  Options options;
  options.mask = Mask::allowed(Array<bool>::of({{1, 0, 0}, {1, 1, 0}, {1, 1, 1}}));
  const V x = random_array(6, {2, 3, 4});
  EXPECT_SAME_NUMBERS(layer(x, options).output, layer(x, causal()).output);
}

TEST(SelfAttention, OfHeadsThatDoNotDivideAProjectionIsAnError) {
  const V x = random_array(7, {2, 3, 4});
  SelfAttention<double> layer = random_self_attention(4, 1, 6, 5, 0);
  layer.heads = 5;  // divides the values only
  EXPECT_TRUE(raises<ShapeError>([&] { layer(x); }, {"split_heads", "5 heads", "(2, 3, 6)"}));
  layer.heads = 3;  // divides the queries only
  EXPECT_TRUE(raises<ShapeError>([&] { layer(x); }, {"split_heads", "3 heads", "(2, 3, 5)"}));
  layer.heads = 0;
  EXPECT_TRUE(raises<ShapeError>([&] { layer(x); }, {"split_heads", "0 heads"}));
}

TEST(SelfAttention, OfAnInputOfAnotherWidthIsAnError) {
  const auto layer = random_self_attention(4, 1, 3, 5, 0);
  EXPECT_TRUE(raises<ShapeError>([&] { layer(V(A::ones({2, 3, 6}))); }, {"(2, 3, 6)", "(4, 3)"}));
}

TEST(SelfAttention, InFloatAgreesWithDouble) {
  const auto layer = random_self_attention(4, 2, 3, 5, 6);
  SelfAttention<float> single;
  single.heads = 2;
  single.w_query = layer.w_query.value().cast<float>(), single.w_key = layer.w_key.value().cast<float>();
  single.w_value = layer.w_value.value().cast<float>(), single.w_out = layer.w_out->value().cast<float>();
  const A x = random_array(8, {2, 7, 4});
  // Rounding to 6e-8 in scores near 10 shows in their exponentials, and again in three sums.
  EXPECT_NEAR_RELATIVE(single(Var<float>(x.cast<float>())).output.value().cast<double>(), layer(V(x)).output,
                       5e-6);
}

TEST(CrossAttention, OfQueriesAndKeysThatSplitIntoOtherWidthsIsAnError) {
  auto layer = random_attention<CrossAttention<double>>(4, 6, 2, 3, 5, 0);
  layer.w_key = A::ones({6, 8});
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        layer(V(A::ones({1, 3, 4})), V(A::ones({1, 7, 6})));
      },
      {"attention", "widths", "(1, 2, 3, 3)", "(1, 2, 7, 4)"}));
}

TEST(CrossAttention, OfBatchesThatDifferIsAnError) {
  const auto layer = random_attention<CrossAttention<double>>(4, 6, 2, 3, 5, 0);
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        layer(V(A::ones({2, 3, 4})), V(A::ones({1, 7, 6})));
      },
      {"attention", "leading"}));
}

TEST(SplitHeads, TakesEachHeadFromItsOwnColumnsOfTheSameToken) {
  const A x = A::arange(2 * 5 * 12).reshape({2, 5, 12});
  const A y = split_heads(V(x), 3).value();
  ASSERT_EQ(y.shape(), Shape({2, 3, 5, 4}));
  for (Index b = 0; b < 2; ++b) {
    for (Index h = 0; h < 3; ++h) {
      for (Index t = 0; t < 5; ++t) {
        for (Index d = 0; d < 4; ++d) EXPECT_EQ(y(b, h, t, d), x(b, t, 4 * h + d));
      }
    }
  }
}

TEST(SplitHeads, AndMergeHeadsUndoEachOther) {
  for (const Shape& shape : {Shape({5, 6}), Shape({4, 5, 6}), Shape({2, 4, 5, 6})}) {
    const V x = random_array(1, shape);
    for (const Index heads : {1, 2, 3, 6}) EXPECT_SAME_NUMBERS(merge_heads(split_heads(x, heads)), x);
  }
  const V by_head = random_array(2, {2, 3, 5, 4});
  EXPECT_SAME_NUMBERS(split_heads(merge_heads(by_head), 3), by_head);
}

TEST(SplitHeads, HasMergeHeadsAsItsGradient) {
  Tape<double> tape;
  const V x = tape.input(random_array(3, {2, 5, 6}));
  const V dy = random_array(4, {2, 3, 5, 2});
  EXPECT_SAME_NUMBERS(gradient_values(split_heads(x, 3), x, dy)[0], merge_heads(dy));
  const V by_head = tape.input(random_array(5, {2, 3, 5, 2}));
  const V dz = random_array(6, {2, 5, 6});
  EXPECT_SAME_NUMBERS(gradient_values(merge_heads(by_head), by_head, dz)[0], split_heads(dz, 3));
}

TEST(LayerNorm, AgreesWithLoops) {
  const auto layer = with_random_parameters(LayerNorm<double>::initial(7), 1);
  const A x = random_array(2, {3, 5, 7});
  std::vector<Rows> expected;
  for (Index b = 0; b < 3; ++b) expected.push_back(loops::layer_norm(layer, loops::rows_of(x, b)));
  EXPECT_NEAR_RELATIVE(layer(V(x)), loops::batch_of(expected), rounding);
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

TEST(FeedForward, AgreesWithLoops) {
  Generator random(1);
  const auto layer = with_random_parameters(FeedForward<double>::initial(random, 5, 8), 2);
  const A x = random_array(3, {2, 3, 5});
  std::vector<Rows> expected;
  for (Index b = 0; b < 2; ++b) expected.push_back(loops::feed_forward(layer, loops::rows_of(x, b)));
  EXPECT_NEAR_RELATIVE(layer(V(x)), loops::batch_of(expected), rounding);
}

TEST(FeedForward, HasTheGradientsOfDifferences) {
  Generator random(1);
  const V x = random_array(4, {3, 5}), upstream = random_array(5, {3, 5});
  expect_gradients_of_differences(with_random_parameters(FeedForward<double>::initial(random, 5, 7), 3),
                                  [&](const auto& layer) { return sum(layer(x) * upstream); });
}

TEST(InitialProjection, IsUniformWithinOneOverTheRootOfItsInputs) {
  Generator random(1);
  const A w = initial_projection<double>(random, 64, 50).value();
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
  const V w = initial_projection<double>(random, 100, 40);
  const Rows y = loops::times(loops::rows_of(random.normal<double>({200, 100})), w.value());
  double square = 0;
  for (const auto& row : y) {
    for (const double v : row) square += v * v / (200 * 40);
  }
  EXPECT_NEAR(square, 1.0 / 3, 0.03);  // about 8000 squares, 40 to a w that has 4000 numbers: a few per cent
}

TEST(InitialProjection, InFloatStaysWithinTheBoundToo) {
  Generator random(3);
  const Array<float> w = initial_projection<float>(random, 16, 300).value();
  EXPECT_LE(magnitude(w), 0.25);
}

TEST(InitialValues, OfOneSeedAreTheSameAndOfAnotherAreOthers) {
  auto weights = [](std::uint64_t seed) {
    Generator random(seed);
    return parameters<double>(SelfAttention<double>::initial(random, 6, 2));
  };
  const auto first = weights(1), again = weights(1), other = weights(2);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(same_bits(first[i].value(), again[i].value()));
    EXPECT_FALSE(same_bits(first[i].value(), other[i].value()));
  }
}

TEST(InitialValues, OfTheProjectionsOfALayerAllDiffer) {
  Generator random(1);
  const auto w = parameters<double>(SelfAttention<double>::initial(random, 6, 3));
  ASSERT_EQ(w.size(), 4u);
  for (std::size_t i = 0; i < w.size(); ++i) {
    EXPECT_EQ(w[i].shape(), Shape({6, 6}));
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(same_bits(w[i].value(), w[j].value())) << i << ", " << j;
  }
}

TEST(InitialValues, OfCrossAttentionReadASourceOfItsOwnWidthAndItsOwnBound) {
  Generator random(1);
  const auto layer = CrossAttention<double>::initial(random, 4, 100, 2);
  EXPECT_EQ(layer.heads, 2);
  EXPECT_EQ(layer.w_query.shape(), Shape({4, 4}));
  EXPECT_EQ(layer.w_key.shape(), Shape({100, 4}));
  EXPECT_EQ(layer.w_value.shape(), Shape({100, 4}));
  EXPECT_EQ(layer.w_out->shape(), Shape({4, 4}));
  EXPECT_LE(magnitude(layer.w_key.value()), 0.1);
  EXPECT_LE(magnitude(layer.w_value.value()), 0.1);
  EXPECT_GT(magnitude(layer.w_query.value()), 0.1);
  EXPECT_EQ(layer(V(A::ones({3, 5, 4})), V(A::ones({3, 2, 100}))).output.shape(), Shape({3, 5, 4}));
}

TEST(InitialValues, OfFeedForwardHaveNoBias) {
  Generator random(1);
  const auto layer = FeedForward<double>::initial(random, 4, 25);
  EXPECT_EQ(layer.w_up.shape(), Shape({4, 25}));
  EXPECT_EQ(layer.w_down.shape(), Shape({25, 4}));
  EXPECT_SAME_NUMBERS(layer.b_up, A::zeros({25}));
  EXPECT_SAME_NUMBERS(layer.b_down, A::zeros({4}));
  EXPECT_LE(magnitude(layer.w_up.value()), 0.5);
  EXPECT_LE(magnitude(layer.w_down.value()), 0.2);
}

TEST(InitialValues, AreNotRecorded) {
  Generator random(1);
  for (const V& w : parameters<double>(FeedForward<double>::initial(random, 3, 5)))
    EXPECT_FALSE(w.recorded());
}

}  // namespace
}  // namespace tapehead
