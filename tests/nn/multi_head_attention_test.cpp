#include <tapehead/nn/multi_head_attention.h>

#include <gtest/gtest.h>

#include <tapehead/core/errors.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

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
using Attention = MultiHeadAttention<double>;
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
Attention random_attention(Index M, Index N, Index heads, Index D, Index E, Index out) {
  Attention layer;
  layer.heads = heads;
  layer.query.w = A::zeros({M, heads * D});
  layer.key.w = A::zeros({N, heads * D});
  layer.value.w = A::zeros({N, heads * E});
  if (out > 0) layer.out = Projection<double>{A::zeros({heads * E, out})};
  return with_random_parameters(layer, 11);
}
Attention random_self_attention(Index M, Index heads, Index D, Index E, Index out) {
  return random_attention(M, M, heads, D, E, out);
}

A by_loops(const Attention& layer, const A& x, const A& y, bool is_causal) {
  std::vector<Rows> sequences;
  for (Index b = 0; b < x.dim(0); ++b) {
    sequences.push_back(loops::attention(layer, loops::rows_of(x, b), loops::rows_of(y, b), is_causal));
  }
  return loops::batch_of(sequences);
}

struct AttentionSizes {
  Index heads, D, E, out;  // out 0: no output projection
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
  const auto layer = random_attention(7, 8, heads, D, E, out);
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
  expect_gradients_of_differences(random_attention(4, 6, heads, D, E, out),
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

TEST(MultiHeadAttention, IsCrossAttentionOfXAndItself) {
  const auto layer = random_self_attention(5, 2, 3, 4, 7);
  MultiHeadAttention<double> cross;
  cross.query.w = layer.query.w, cross.key.w = layer.key.w, cross.value.w = layer.value.w;
  cross.out = layer.out, cross.heads = layer.heads;
  const V x = random_array(1, {2, 3, 5});
  EXPECT_SAME_NUMBERS(layer(x).output, cross(x, x).output);
}

TEST(MultiHeadAttention, TakesOneSequenceOrManyBatchAxes) {
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

TEST(MultiHeadAttention, GivesTheWeightsOfEachHeadWhenWanted) {
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
    const Rows query = loops::times(rows, layer.query.w.value(), 2 * h, 2);
    const Rows key = loops::times(rows, layer.key.w.value(), 2 * h, 2);
    const auto expected = loops::weights_of(query[4], key, 4, loops::no_later_key);
    for (Index j = 0; j < 7; ++j) {
      EXPECT_NEAR(result.weights->value()(1, h, 4, j), expected[static_cast<std::size_t>(j)], rounding);
    }
  }
}

TEST(MultiHeadAttention, OfOneHeadHasWeightsWithoutAHeadAxis) {
  const auto layer = random_self_attention(5, 1, 2, 4, 0);
  Options options;
  options.weights = true;
  EXPECT_EQ(layer(V(random_array(5, {2, 7, 5})), options).weights->shape(), Shape({2, 7, 7}));
}

TEST(MultiHeadAttention, AppliesAMaskOfAllowedKeysToEveryHead) {
  const auto layer = random_self_attention(4, 3, 2, 5, 0);
  Options options;
  options.mask = Mask::allowed(Array<bool>::of({{1, 0, 0}, {1, 1, 0}, {1, 1, 1}}));
  const V x = random_array(6, {2, 3, 4});
  EXPECT_SAME_NUMBERS(layer(x, options).output, layer(x, causal()).output);
}

TEST(MultiHeadAttention, OfHeadsThatDoNotDivideAProjectionIsAnError) {
  const V x = random_array(7, {2, 3, 4});
  MultiHeadAttention<double> layer = random_self_attention(4, 1, 6, 5, 0);
  layer.heads = 5;  // divides the values only
  EXPECT_TRUE(raises<ShapeError>([&] { layer(x); }, {"split_heads", "5 heads", "(2, 3, 6)"}));
  layer.heads = 3;  // divides the queries only
  EXPECT_TRUE(raises<ShapeError>([&] { layer(x); }, {"split_heads", "3 heads", "(2, 3, 5)"}));
  layer.heads = 0;
  EXPECT_TRUE(raises<ShapeError>([&] { layer(x); }, {"split_heads", "0 heads"}));
}

TEST(MultiHeadAttention, OfAnInputOfAnotherWidthIsAnError) {
  const auto layer = random_self_attention(4, 1, 3, 5, 0);
  EXPECT_TRUE(raises<ShapeError>([&] { layer(V(A::ones({2, 3, 6}))); }, {"(2, 3, 6)", "(4, 3)"}));
}

TEST(MultiHeadAttention, InFloatAgreesWithDouble) {
  const auto layer = random_self_attention(4, 2, 3, 5, 6);
  MultiHeadAttention<float> single;
  single.heads = 2;
  single.query.w = layer.query.w.value().cast<float>(), single.key.w = layer.key.w.value().cast<float>();
  single.value.w = layer.value.w.value().cast<float>(),
  single.out = Projection<float>{layer.out->w.value().cast<float>()};
  const A x = random_array(8, {2, 7, 4});
  // Rounding to 6e-8 in scores near 10 shows in their exponentials, and again in three sums.
  EXPECT_NEAR_RELATIVE(single(Var<float>(x.cast<float>())).output.value().cast<double>(), layer(V(x)).output,
                       5e-6);
}

TEST(MultiHeadAttention, OfQueriesAndKeysThatSplitIntoOtherWidthsIsAnError) {
  auto layer = random_attention(4, 6, 2, 3, 5, 0);
  layer.key.w = A::ones({6, 8});
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        layer(V(A::ones({1, 3, 4})), V(A::ones({1, 7, 6})));
      },
      {"attention", "widths", "(1, 2, 3, 3)", "(1, 2, 7, 4)"}));
}

TEST(MultiHeadAttention, OfBatchesThatDifferIsAnError) {
  const auto layer = random_attention(4, 6, 2, 3, 5, 0);
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        layer(V(A::ones({2, 3, 4})), V(A::ones({1, 7, 6})));
      },
      {"attention", "leading"}));
}

// ---- Every form of it

struct Named {
  const char* name;
  Attention::Form form;
};
std::ostream& operator<<(std::ostream& stream, const Named& named) { return stream << named.name; }

constexpr Index width = 12, head_count = 6;  // of width 2 each

Attention random_form(const Named& named) {
  Generator random(1);
  return with_random_parameters(Attention::initial(random, width, head_count, named.form), 2, 0.5);
}

// Sources of keys and values as wide as the layer reads them, 5 long.
struct Sources {
  explicit Sources(const Attention& layer)
      : key(random_array(5, {2, 5, layer.key.w.dim(0)})),
        value(random_array(6, {2, 5, layer.value.w.dim(0)})) {}
  A key, value;
};

// The second sample has 3 keys.
const loops::Seen first_three = [](std::size_t, std::size_t j) { return j < 3; };
Options padded() {
  Options options;
  options.mask = Mask::lengths(Array<Index>::of({5, 3}));
  return options;
}

class AttentionForms : public testing::TestWithParam<Named> {};
INSTANTIATE_TEST_SUITE_P(
    Layers, AttentionForms,
    testing::Values(Named{"Plain", {}}, Named{"Bias", {.bias = true}}, Named{"Grouped", {.key_heads = 3}},
                    Named{"OneKeyHead", {.key_heads = 1}}, Named{"NoOutput", {.out = false}},
                    Named{"Normed", {.norm = true}}, Named{"Rotary", {.rope = RopeOptions{}}},
                    Named{"RotaryOfAnotherBase", {.rope = RopeOptions{.base = 100}}},
                    Named{"OtherWidths", {.key_width = 5, .value_width = 7}},
                    Named{"OtherKeyWidth", {.key_width = 5, .bias = true}},
                    Named{"All", {.key_heads = 2, .bias = true, .norm = true, .rope = RopeOptions{}}}),
    [](const auto& named) { return named.param.name; });

TEST_P(AttentionForms, AgreesWithLoopsOverItsHeads) {
  const Attention layer = random_form(GetParam());
  const Sources sources(layer);
  const A x = random_array(4, {2, 4, width});
  const V all = layer(V(x), V(sources.key), V(sources.value)).output;
  const V some = layer(V(x), V(sources.key), V(sources.value), padded()).output;
  std::vector<Rows> of_all, of_some;
  for (Index b = 0; b < 2; ++b) {
    const Rows rows = loops::rows_of(x, b), key = loops::rows_of(sources.key, b),
               value = loops::rows_of(sources.value, b);
    of_all.push_back(loops::attention(layer, rows, key, value, loops::everything));
    of_some.push_back(loops::attention(layer, rows, key, value, b == 0 ? loops::everything : first_three));
  }
  EXPECT_NEAR_RELATIVE(all, loops::batch_of(of_all), rounding);
  EXPECT_NEAR_RELATIVE(some, loops::batch_of(of_some), rounding);
  EXPECT_FALSE(agree(some, loops::batch_of(of_all), 1e-3));
}

TEST_P(AttentionForms, HasTheGradientsOfDifferences) {
  Attention layer = random_form(GetParam());
  // Without norm and rotary positions a key bias moves all scores of a row alike, and has no gradient.
  if (!layer.norm && !layer.rope) layer.key.b.reset();
  const Sources sources(layer);
  const V x = random_array(4, {2, 4, width}), upstream = random_array(7, {2, 4, width});
  expect_gradients_of_differences(layer, [&](const Attention& one) {
    return sum(one(x, V(sources.key), V(sources.value), padded()).output * upstream);
  });
}

TEST(MultiHeadAttention, OfAKeyBiasHasNoGradient) {
  const Attention layer = random_form({"Bias", {.bias = true}});
  Tape<double> tape;
  const Attention recorded = on_tape(tape, layer);
  const V x = random_array(4, {2, 4, width}), upstream = random_array(7, {2, 4, width});
  const V loss = sum(recorded(x, causal()).output * upstream);
  EXPECT_LE(magnitude(gradient_values(loss, *recorded.key.b)[0]), rounding);
  EXPECT_GT(magnitude(gradient_values(loss, *recorded.query.b)[0]), 1e-3);
}

TEST_P(AttentionForms, OnABlockThatContinuesACacheIsTheRowsOfTheWhole) {
  const Attention layer = random_form(GetParam());
  const A x = random_array(4, {2, 5, width});
  if (layer.key.w.dim(0) != width) {
    KeyValueCache<double> cache;
    EXPECT_TRUE(raises<ShapeError>([&] { layer(V(x), cache); }, {"(2, 5, 12)", "(5, 12)"}));
    return;
  }
  for (const Options& options : {causal(), Options{}}) {
    const bool alone = options.mask.allows_all();
    const A whole = layer(V(x), causal()).output.value();
    for (const std::vector<Index>& blocks : {std::vector<Index>{1, 1, 1, 1, 1}, {3, 2}, {2, 1, 2}, {5}}) {
      if (alone && blocks.size() < 5) continue;  // a token alone sees what is cached and itself, mask or not
      KeyValueCache<double> cache;
      std::vector<V> outputs;
      Index from = 0;
      for (const Index n : blocks) {
        outputs.push_back(layer(slice(V(x), 1, {from, from + n}), cache, options).output);
        EXPECT_EQ(cache.length(), from += n);
      }
      EXPECT_NEAR_RELATIVE(concat(Vars<double>(outputs), 1), whole, rounding);
    }
  }
}

TEST(MultiHeadAttention, PutsItsOwnNormAndPositionsInPlaceOfThoseOfACall) {
  const Attention layer = random_form({"All", {.norm = true, .rope = RopeOptions{}}});
  const V x = random_array(4, {2, 4, width});
  Options options;
  options.norm = QueryKeyNorm<double>{A::full({2}, 3), A::full({2}, 3)};
  options.rope = RopeOptions{.base = 7};
  EXPECT_SAME_NUMBERS(layer(x, options).output, layer(x).output);
  const Attention bare = random_form({"Plain", {}});
  EXPECT_FALSE(agree(bare(x, options).output, bare(x).output, 1e-3)) << "of a layer that has none they count";
}

TEST(MultiHeadAttention, WithHeadsThatTakeKeyHeadsInTurnIsAnother) {
  const Attention layer = random_form({"Grouped", {.key_heads = 3}});
  const V x = random_array(4, {2, 4, width});
  Attention tiled = layer;  // query heads in the order 0, 2, 4, 1, 3, 5: head h reads key head h modulo 3
  tiled.query.w = reshape(permute(reshape(layer.query.w, {width, 3, 2, 2}), {0, 2, 1, 3}), {width, width});
  tiled.out->w = reshape(permute(reshape(layer.out->w, {3, 2, 2, width}), {1, 0, 2, 3}), {width, width});
  EXPECT_FALSE(agree(tiled(x).output, layer(x).output, 1e-3));
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

// ---- Initial values

TEST(InitialValues, OfAttentionHaveTheFormAskedFor) {
  Generator random(1);
  const auto layer =
      Attention::initial(random, 12, 6, {.key_heads = 2, .bias = true, .out = false, .norm = true});
  EXPECT_EQ(layer.query.w.shape(), Shape({12, 12}));
  EXPECT_EQ(layer.key.w.shape(), Shape({12, 4}));
  EXPECT_EQ(layer.value.w.shape(), Shape({12, 4}));
  EXPECT_SAME_NUMBERS(*layer.query.b, A::zeros({12}));
  EXPECT_SAME_NUMBERS(*layer.key.b, A::zeros({4}));
  EXPECT_FALSE(layer.out.has_value());
  EXPECT_SAME_NUMBERS(layer.norm->query_gain, A::ones({2}));
  EXPECT_SAME_NUMBERS(layer.norm->key_gain, A::ones({2}));
  EXPECT_EQ(layer.heads, 6);
  EXPECT_EQ(layer.key_heads, 2);
  EXPECT_FALSE(layer.rope.has_value());
  const auto plain = Attention::initial(random, 12, 6);
  EXPECT_FALSE(plain.query.b || plain.key.b || plain.value.b || plain.out->b || plain.norm);
  EXPECT_EQ(Attention::initial(random, 12, 6, {.rope = RopeOptions{.base = 7}}).rope->base, 7);
}

TEST(InitialValues, OfHeadsThatDoNotDivideAreAnError) {
  Generator random(1);
  auto make = [&](Index count, Index key_heads) {
    return [&random, count, key_heads] { Attention::initial(random, 12, count, {.key_heads = key_heads}); };
  };
  EXPECT_TRUE(raises<ShapeError>(make(5, 0), {"MultiHeadAttention", "5 heads", "width 12"}));
  EXPECT_TRUE(raises<ShapeError>(make(0, 0), {"MultiHeadAttention", "0 heads"}));
  EXPECT_TRUE(raises<ShapeError>(make(-2, 0), {"MultiHeadAttention", "-2 heads"}));
  EXPECT_TRUE(raises<ShapeError>(make(6, 4), {"MultiHeadAttention", "4 key heads", "6 heads"}));
  EXPECT_TRUE(raises<ShapeError>(make(4, 6), {"MultiHeadAttention", "6 key heads", "4 heads"}));
}

TEST(InitialValues, OfOneSeedAreTheSameAndOfAnotherAreOthers) {
  auto weights = [](std::uint64_t seed) {
    Generator random(seed);
    return parameters<double>(MultiHeadAttention<double>::initial(random, 6, 2));
  };
  const auto first = weights(1), again = weights(1), other = weights(2);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(same_bits(first[i].value(), again[i].value()));
    EXPECT_FALSE(same_bits(first[i].value(), other[i].value()));
  }
}

TEST(InitialValues, OfTheProjectionsOfALayerAllDiffer) {
  Generator random(1);
  const auto w = parameters<double>(MultiHeadAttention<double>::initial(random, 6, 3));
  ASSERT_EQ(w.size(), 4u);
  for (std::size_t i = 0; i < w.size(); ++i) {
    EXPECT_EQ(w[i].shape(), Shape({6, 6}));
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(same_bits(w[i].value(), w[j].value())) << i << ", " << j;
  }
}

TEST(InitialValues, OfCrossAttentionReadASourceOfItsOwnWidthAndItsOwnBound) {
  Generator random(1);
  const auto layer =
      MultiHeadAttention<double>::initial(random, 4, 2, {.key_width = 100, .value_width = 100});
  EXPECT_EQ(layer.heads, 2);
  EXPECT_EQ(layer.query.w.shape(), Shape({4, 4}));
  EXPECT_EQ(layer.key.w.shape(), Shape({100, 4}));
  EXPECT_EQ(layer.value.w.shape(), Shape({100, 4}));
  EXPECT_EQ(layer.out->w.shape(), Shape({4, 4}));
  EXPECT_LE(magnitude(layer.key.w.value()), 0.1);
  EXPECT_LE(magnitude(layer.value.w.value()), 0.1);
  EXPECT_GT(magnitude(layer.query.w.value()), 0.1);
  EXPECT_EQ(layer(V(A::ones({3, 5, 4})), V(A::ones({3, 2, 100}))).output.shape(), Shape({3, 5, 4}));
}

}  // namespace
}  // namespace tapehead
