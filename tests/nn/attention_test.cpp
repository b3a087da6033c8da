#include <tapehead/nn/attention.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tapehead/core/gradient.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/print.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention_reference.h>
#include <tapehead/nn/multi_head_attention.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/differences.h"
#include "support/expect_error.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;
using Paths = std::vector<GradientPath<double>>;
using Names = std::vector<std::string>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Sums of a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;

Options scaled_by(Scale<double> scale) {
  Options options;
  options.scale = std::move(scale);
  return options;
}
Options masked_by(Mask mask) {
  Options options;
  options.mask = std::move(mask);
  return options;
}
Options composed(Options options = {}) {
  options.kernel = AttentionKernel::composed;
  return options;
}
Options with_weights(Options options = {}) {
  options.weights = true;
  return options;
}

struct Inputs {
  A query, key, value, upstream;
};
Inputs random_inputs(std::uint64_t seed, const Shape& leading, Index L, Index S, Index D, Index E) {
  Generator random(seed);
  auto draw = [&](Index rows, Index columns) {
    return random.normal<double>(leading.followed_by({rows, columns}));
  };
  return {draw(L, D), draw(S, D), draw(S, E), draw(L, E)};
}

V attention_output(const Inputs& in, const Options& options = {}) {
  return attention(V(in.query), V(in.key), V(in.value), options).output;
}

// Output, weights and gradients are those of the explicit formulas.
void expect_formulas(const Inputs& in, const Options& options) {
  const AttentionReference r = attention_reference(in.query, in.key, in.value, options, {in.upstream});
  Tape<double> tape;
  const V query = tape.input(in.query), key = tape.input(in.key), value = tape.input(in.value);
  const AttentionResult<double> result = attention(query, key, value, with_weights(options));
  const auto d = gradient_values(result.output, {query, key, value}, V(in.upstream));
  EXPECT_NEAR_RELATIVE(result.output, r.output, rounding);
  EXPECT_NEAR_RELATIVE(*result.weights, r.weights, rounding);
  EXPECT_NEAR_RELATIVE(d[0], r.dquery, rounding);
  EXPECT_NEAR_RELATIVE(d[1], r.dkey, rounding);
  EXPECT_NEAR_RELATIVE(d[2], r.dvalue, rounding);
}

// ---- shapes

TEST(AttentionShapes, OfEveryRankFromTwoToEightAgreeWithTheFormulas) {
  for (const Shape& leading :
       {Shape{}, Shape{2}, Shape{2, 3}, Shape{2, 1, 3}, Shape{2, 2, 1, 3}, Shape{1, 2, 1, 2, 1, 2}}) {
    SCOPED_TRACE(to_string(leading));
    expect_formulas(random_inputs(1, leading, 4, 6, 5, 7), {});
    expect_formulas(random_inputs(2, leading, 4, 6, 5, 7), masked_by(Mask::causal(2)));
  }
}

TEST(AttentionShapes, MayHaveAnExtentOfOne) {
  expect_formulas(random_inputs(3, {2}, 3, 5, 1, 7), {});  // D
  expect_formulas(random_inputs(4, {2}, 3, 1, 5, 7), {});  // S
  expect_formulas(random_inputs(5, {2}, 1, 3, 5, 7), {});  // L
  expect_formulas(random_inputs(6, {2}, 3, 5, 7, 1), {});  // E
  expect_formulas(random_inputs(7, {1}, 1, 1, 1, 1), {});
}

TEST(AttentionShapes, OfValuesMayBeNarrowerOrWiderThanThoseOfKeys) {
  expect_formulas(random_inputs(8, {2}, 3, 5, 7, 2), {});
  expect_formulas(random_inputs(9, {2}, 3, 5, 2, 7), {});
}

TEST(AttentionShapes, WithoutQueriesOrValueColumnsGiveAnEmptyOutput) {
  EXPECT_EQ(attention_output(random_inputs(10, {2}, 0, 5, 3, 7)).shape(), (Shape{2, 0, 7}));
  EXPECT_EQ(attention_output(random_inputs(10, {2}, 3, 5, 7, 0)).shape(), (Shape{2, 3, 0}));
  EXPECT_EQ(attention_output(random_inputs(10, {0}, 3, 5, 7, 2)).shape(), (Shape{0, 3, 2}));
}

TEST(AttentionShapes, OneKeyHasWeightOneWhateverItsScore) {
  const Inputs in = random_inputs(11, {2}, 3, 1, 5, 7);
  EXPECT_SAME_NUMBERS(*attention(V(in.query), V(in.key), V(in.value), with_weights()).weights,
                      A::ones({2, 3, 1}));
}

// ---- what is rejected

testing::AssertionResult rejects(const Shape& query, const Shape& key, const Shape& value,
                                 std::string_view what) {
  const V q(A::ones(query)), k(A::ones(key)), v(A::ones(value));
  return raises<ShapeError>([&] { attention(q, k, v); },
                            {"attention: ", what, "query " + to_string(query), "key " + to_string(key),
                             "value " + to_string(value)});
}

TEST(AttentionRejects, RanksThatDifferOrAreTooSmall) {
  EXPECT_TRUE(rejects({5}, {5}, {7}, "needs query (..., L, D)"));
  EXPECT_TRUE(rejects({}, {}, {}, "needs query (..., L, D)"));
  EXPECT_TRUE(rejects({2, 3, 5}, {3, 5}, {3, 7}, "needs query (..., L, D)"));
  EXPECT_TRUE(rejects({2, 3, 5}, {2, 3, 5}, {3, 7}, "needs query (..., L, D)"));
}

TEST(AttentionRejects, WidthsThatDiffer) { EXPECT_TRUE(rejects({2, 3, 5}, {2, 7, 3}, {2, 7, 5}, "widths")); }

TEST(AttentionRejects, LengthsThatDiffer) {
  EXPECT_TRUE(rejects({2, 3, 5}, {2, 7, 5}, {2, 3, 5}, "lengths"));
}

TEST(AttentionRejects, LeadingAxesThatDifferEvenWhereTheyWouldBroadcast) {
  EXPECT_TRUE(rejects({2, 3, 5}, {3, 7, 5}, {2, 7, 5}, "leading"));
  EXPECT_TRUE(rejects({2, 3, 5}, {2, 7, 5}, {3, 7, 5}, "leading"));
  EXPECT_TRUE(rejects({2, 3, 5}, {1, 7, 5}, {1, 7, 5}, "leading"));
  EXPECT_TRUE(rejects({2, 3, 4, 5}, {3, 2, 7, 5}, {3, 2, 7, 5}, "leading"));
}

TEST(AttentionRejects, AHeadWidthOfZero) {
  EXPECT_TRUE(rejects({2, 3, 0}, {2, 5, 0}, {2, 5, 7}, "head width is 0"));
}

TEST(AttentionRejects, NoKeys) { EXPECT_TRUE(rejects({2, 3, 5}, {2, 0, 5}, {2, 0, 7}, "no key")); }

TEST(AttentionRejects, AMaskThatDoesNotBroadcastToTheScores) {
  const Inputs in = random_inputs(12, {2}, 3, 5, 7, 2);
  for (const Shape& shape : {Shape{3}, Shape{5, 3}, Shape{3, 3, 5}, Shape{1, 2, 3, 5}}) {
    EXPECT_TRUE(
        raises<ShapeError>([&] { attention_output(in, masked_by(Mask::allowed(Array<bool>::ones(shape)))); },
                           {"attention", "mask " + to_string(shape), "scores (2, 3, 5)"}));
  }
}

TEST(AttentionRejects, AScaleThatDoesNotBroadcastToTheScores) {
  const Inputs in = random_inputs(13, {2}, 3, 5, 7, 2);
  for (const Shape& shape : {Shape{2}, Shape{5, 3}, Shape{3, 1, 1}, Shape{1, 1, 1, 1}}) {
    EXPECT_TRUE(raises<ShapeError>([&] { attention_output(in, scaled_by(V(A::ones(shape)))); },
                                   {"attention", "scale " + to_string(shape), "scores (2, 3, 5)"}));
  }
}

TEST(AttentionRejects, AScaleThatIsNotFinite) {
  const Inputs in = random_inputs(14, {2}, 3, 5, 7, 2);
  for (const double scale : {nan, infinity, -infinity}) {
    EXPECT_TRUE(raises<DomainError>([&] { attention_output(in, scaled_by(scale)); }, {"attention", "scale"}));
    EXPECT_TRUE(raises<DomainError>(
        [&] {
          attention_output(in, scaled_by(V(A::of({{{1}}, {{scale}}}))));
        },
        {"attention", "scale"}));
  }
}

// Query, key and value of ones, and a mask that hides all keys from the row at this place.
testing::AssertionResult names_the_row(const Shape& leading, std::initializer_list<Index> place,
                                       std::string_view words) {
  const Inputs in = random_inputs(15, leading, 3, 5, 7, 2);
  const Shape scores = leading.followed_by({3, 5});
  Array<bool> keys = Array<bool>::ones(scores);
  std::vector<Index> index(place);
  index.push_back(0);
  const Strides step(scores);
  Index first = 0;
  for (int axis = 0; axis < scores.rank(); ++axis)
    first += index[static_cast<std::size_t>(axis)] * step[axis];
  for (Index j = 0; j < 5; ++j) keys.mutable_values()[static_cast<std::size_t>(first + j)] = false;
  return raises<DomainError>([&] { attention_output(in, masked_by(Mask::allowed(keys))); },
                             {"attention: no key is allowed: ", words});
}

TEST(AttentionRejects, ARowWithNoAllowedKeyNamingBatchHeadAndRow) {
  EXPECT_TRUE(names_the_row({}, {2}, ": row 2"));
  EXPECT_TRUE(names_the_row({4}, {3, 1}, ": batch 3, row 1"));
  EXPECT_TRUE(names_the_row({4, 2}, {3, 1, 2}, ": batch 3, head 1, row 2"));
  EXPECT_TRUE(names_the_row({2, 3, 4}, {1, 2, 3, 0}, ": batch 1, axis 1 2, head 3, row 0"));
}

TEST(AttentionRejects, ACausalRowBeforeTheFirstKey) {
  const Inputs in = random_inputs(16, {2}, 3, 5, 7, 2);
  EXPECT_TRUE(
      raises<DomainError>([&] { attention_output(in, masked_by(Mask::causal(-1))); }, {"batch 0, row 0"}));
}

TEST(AttentionRejects, ALargestScoreThatIsInfiniteOrNotANumber) {
  Inputs in = random_inputs(17, {2, 3}, 4, 5, 1, 2);
  in.query = A::ones(in.query.shape());
  in.key.set({1, 2, 3, 0}, infinity);
  EXPECT_TRUE(
      raises<DomainError>([&] { attention_output(in); }, {"a score is infinite", "batch 1, head 2, row 0"}));
  in.key.set({1, 2, 3, 0}, nan);
  EXPECT_TRUE(raises<DomainError>([&] { attention_output(in); }, {"not a number", "batch 1, head 2, row 0"}));
  in.key.set({1, 2, 3, 0}, -infinity);
  EXPECT_NO_THROW(attention_output(in));  // a key that is not seen
}

TEST(AttentionRejects, NothingOfWhatTheMaskHides) {
  Inputs in = random_inputs(18, {}, 2, 3, 1, 2);
  in.query = A::ones(in.query.shape());
  const Options options = masked_by(Mask::allowed(Array<bool>::of({true, false, true})));
  const A expected = attention_output(in, options).value();
  for (const double score : {infinity, nan}) {
    in.key.set({1, 0}, score);
    EXPECT_SAME_NUMBERS(attention_output(in, options), expected);
  }
}

TEST(AttentionRejects, RecordedVarsOfTwoTapes) {
  const Inputs in = random_inputs(19, {2}, 3, 5, 7, 2);
  Tape<double> one, two;
  const V query = one.input(in.query), key = two.input(in.key);
  EXPECT_TRUE(raises<LogicError>([&] { attention(query, key, V(in.value)); }));
}

TEST(AttentionReference, RejectsWhatAttentionRejects) {
  const A q = A::ones({2, 3, 5}), k = A::ones({2, 7, 5}), v = A::ones({2, 7, 3});
  auto shapes = [](const Shape& query, const Shape& key, const Shape& value) {
    return raises<ShapeError>(
        [&] { attention_reference(A::ones(query), A::ones(key), A::ones(value)); },
        {"query " + to_string(query), "key " + to_string(key), "value " + to_string(value)});
  };
  EXPECT_TRUE(shapes({5}, {5}, {7}));
  EXPECT_TRUE(shapes({2, 3, 5}, {2, 7, 3}, {2, 7, 5}));
  EXPECT_TRUE(shapes({2, 3, 5}, {2, 7, 5}, {2, 3, 5}));
  EXPECT_TRUE(shapes({2, 3, 5}, {1, 7, 5}, {1, 7, 5}));
  EXPECT_TRUE(shapes({2, 3, 0}, {2, 5, 0}, {2, 5, 7}));
  EXPECT_TRUE(shapes({2, 3, 5}, {2, 0, 5}, {2, 0, 7}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        attention_reference(q, k, v, {}, {A::ones({2, 3, 5})});
      },
      {"upstream (2, 3, 5)"}));
  EXPECT_TRUE(raises<DomainError>([&] { attention_reference(q, k, v, scaled_by(nan)); }, {"scale"}));
  EXPECT_TRUE(
      raises<DomainError>([&] { attention_reference(q, k, v, scaled_by(V(A::scalar(nan)))); }, {"scale"}));
  EXPECT_TRUE(raises<ShapeError>([&] { attention_reference(q, k, v, scaled_by(V(A::ones({2, 1})))); }));
  EXPECT_TRUE(
      raises<DomainError>([&] { attention_reference(q, k, v, masked_by(Mask::causal(-2))); }, {"row 0"}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        attention_reference(q, k, v, masked_by(Mask::allowed(Array<bool>::ones({3, 3, 7}))));
      },
      {"(3, 3, 7)"}));
}

TEST(AttentionReference, RejectsAMaskOfMoreAxesThanTheScores) {
  const A q = A::ones({2, 3, 5}), k = A::ones({2, 7, 5}), v = A::ones({2, 7, 3});
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        attention_reference(q, k, v, masked_by(Mask::allowed(Array<bool>::ones({1, 2, 3, 7}))));
      },
      {"mask (1, 2, 3, 7)", "scores (2, 3, 7)"}));
}

TEST(AttentionReference, GradientOfTheScaleIsItsDifferenceQuotient) {
  const Inputs in = random_inputs(20, {2}, 3, 5, 7, 2);
  const double dscale =
      attention_reference(in.query, in.key, in.value, scaled_by(V(A::scalar(0.4))), {in.upstream})
          .dscale.item();
  const A quotient = central_differences(
      [&](const A& scale) {
        const A output = attention_reference(in.query, in.key, in.value, scaled_by(scale.item())).output;
        return sum(V(output) * V(in.upstream)).item();
      },
      A::scalar(0.4), 1e-5);
  EXPECT_NEAR(dscale, quotient.item(), 1e-7);
}

// ---- scale

TEST(AttentionScale, IsOneOverTheRootOfTheWidthUnlessGiven) {
  const Inputs in = random_inputs(21, {2}, 3, 5, 7, 2);
  EXPECT_SAME_NUMBERS(attention_output(in), attention_output(in, scaled_by(1 / std::sqrt(7.0))));
  EXPECT_FALSE(agree(attention_output(in), attention_output(in, scaled_by(1 / std::sqrt(5.0))), 1e-3));
}

TEST(AttentionScale, MayBeAnyFiniteNumber) {
  const Inputs in = random_inputs(22, {2}, 3, 5, 7, 2);
  for (const double scale : {0.37, -1.5, 0.0}) expect_formulas(in, scaled_by(scale));
  const A uniform = A::full({2, 3, 5}, 0.2);
  EXPECT_NEAR_RELATIVE(*attention(V(in.query), V(in.key), V(in.value), with_weights(scaled_by(0))).weights,
                       uniform, rounding);
}

TEST(AttentionScale, AsAVarIsTheSameAsTheNumber) {
  const Inputs in = random_inputs(23, {2}, 3, 5, 7, 2);
  expect_formulas(in, scaled_by(V(A::scalar(0.37))));
  EXPECT_SAME_NUMBERS(attention_output(in, scaled_by(V(A::scalar(0.37)))),
                      attention_output(in, composed(scaled_by(0.37))));
}

// The gradient of a scale of this shape is its difference quotient, at each of its elements.
void expect_gradient_of_scale(const Inputs& in, const A& scale, const Mask& mask) {
  auto output_with = [&](const V& s) {
    Options options = scaled_by(s);
    options.mask = mask;
    return attention_output(in, options);
  };
  Tape<double> tape;
  const V s = tape.input(scale);
  const A dscale = gradient_values(output_with(s), s, V(in.upstream))[0];
  ASSERT_EQ(dscale.shape(), scale.shape());
  for (const double step : {1e-4, 1e-5, 1e-6}) {
    const A quotient = central_differences(
        [&](const A& x) { return sum(output_with(V(x)) * V(in.upstream)).item(); }, scale, step);
    EXPECT_LE(absolute_error(dscale, quotient), 1e-7) << to_string(scale.shape());
  }
}

TEST(AttentionScale, LearnedTemperatureHasAGradient) {
  const Inputs in = random_inputs(24, {2, 3}, 4, 5, 7, 2);
  expect_gradient_of_scale(in, A::scalar(0.4), {});
  expect_gradient_of_scale(in, A::scalar(0.4), Mask::causal(1));
}

TEST(AttentionScale, MayDifferByHeadRowOrKey) {
  const Inputs in = random_inputs(25, {2, 3}, 4, 5, 7, 2);
  Generator random(26);
  for (const Shape& shape : {Shape{3, 1, 1}, Shape{4, 1}, Shape{5}, Shape{2, 1, 1, 1}, Shape{2, 3, 4, 5}}) {
    expect_gradient_of_scale(in, random.uniform<double>(shape, 0.2, 0.6), {});
  }
}

TEST(AttentionScale, OfOneHeadScalesThatHeadOnly) {
  const Inputs in = random_inputs(27, {2, 3}, 4, 5, 7, 2);
  const A per_head = attention_output(in, scaled_by(V(A::of({{{0.3}}, {{0.5}}, {{0.9}}})))).value();
  const double scales[] = {0.3, 0.5, 0.9};
  for (Index h = 0; h < 3; ++h) {
    const V whole = attention_output(in, composed(scaled_by(scales[h])));
    EXPECT_SAME_NUMBERS(slice(V(per_head), 1, {h, h + 1}), slice(whole, 1, {h, h + 1}));
  }
}

TEST(AttentionScale, GradientFlowsToQueryAndKeyThroughALearnedOneToo) {
  const Inputs in = random_inputs(28, {2}, 3, 5, 7, 2);
  Tape<double> tape;
  const V scale = tape.input(A::scalar(0.4)), query = tape.input(in.query), key = tape.input(in.key);
  const V output = attention(query, key, V(in.value), scaled_by(scale)).output;
  const auto d = gradient_values(output, {query, key, scale}, V(in.upstream));
  const AttentionReference r =
      attention_reference(in.query, in.key, in.value, scaled_by(V(A::scalar(0.4))), {in.upstream});
  EXPECT_NEAR_RELATIVE(d[0], r.dquery, rounding);
  EXPECT_NEAR_RELATIVE(d[1], r.dkey, rounding);
  EXPECT_NEAR_RELATIVE(d[2], r.dscale, rounding);
}

// ---- masks and weights

TEST(AttentionMask, OfEveryKindAgreesWithTheFormulas) {
  const Inputs in = random_inputs(29, {2, 3}, 4, 5, 7, 2);
  const auto padding = Array<bool>::of({{{{1, 1, 1, 0, 0}}}, {{{1, 0, 1, 1, 1}}}});
  const auto per_row = Array<bool>::of({{1, 1, 0, 1, 0}, {1, 0, 1, 1, 1}, {1, 1, 1, 0, 0}, {1, 0, 0, 0, 1}});
  const auto per_head = Array<bool>::of({{{1, 0, 1, 0, 1}}, {{1, 1, 0, 0, 0}}, {{1, 1, 1, 1, 1}}});
  for (const Mask& mask :
       {Mask(), Mask::causal(0), Mask::causal(1), Mask::causal(7), Mask::allowed(padding),
        Mask::allowed(per_row), Mask::allowed(per_head), Mask::causal(1) & Mask::allowed(padding),
        Mask::allowed(per_row) & Mask::allowed(per_head) & Mask::causal(0)}) {
    expect_formulas(in, masked_by(mask));
  }
}

TEST(AttentionMask, GivesForbiddenKeysAWeightOfExactlyZero) {
  const Inputs in = random_inputs(30, {2}, 3, 5, 7, 2);
  const A weights = attention(V(in.query), V(in.key), V(in.value), with_weights(masked_by(Mask::causal(1))))
                        .weights->value();
  for (Index b = 0; b < 2; ++b) {
    for (Index i = 0; i < 3; ++i) {
      for (Index j = 0; j < 5; ++j) EXPECT_EQ(weights(b, i, j) == 0, j > i + 1);
    }
  }
}

TEST(AttentionWeights, AreGivenOnlyWhenWanted) {
  const Inputs in = random_inputs(31, {2}, 3, 5, 7, 2);
  EXPECT_FALSE(attention(V(in.query), V(in.key), V(in.value)).weights.has_value());
  const auto wanted = attention(V(in.query), V(in.key), V(in.value), with_weights());
  ASSERT_TRUE(wanted.weights.has_value());
  EXPECT_EQ(wanted.weights->shape(), (Shape{2, 3, 5}));
  EXPECT_SAME_NUMBERS(wanted.output, attention_output(in, composed()));
}

TEST(AttentionWeights, HaveAGradient) {
  const Inputs in = random_inputs(32, {2}, 3, 5, 7, 2);
  const A upstream = Generator(33).normal<double>({2, 3, 5});
  auto weights_of = [&](const V& query) {
    return *attention(query, V(in.key), V(in.value), with_weights()).weights;
  };
  Tape<double> tape;
  const V query = tape.input(in.query);
  const A dquery = gradient_values(weights_of(query), query, V(upstream))[0];
  const A quotient = central_differences(
      [&](const A& x) { return sum(weights_of(V(x)) * V(upstream)).item(); }, in.query, 1e-5);
  EXPECT_LE(absolute_error(dquery, quotient), 1e-7);
}

// ---- tape and types

TEST(AttentionOnATape, OfUnrecordedVarsRecordsNothing) {
  const Inputs in = random_inputs(34, {2}, 3, 5, 7, 2);
  EXPECT_FALSE(attention_output(in).recorded());
  Tape<double> tape;
  const V query = tape.input(in.query);
  const Pause<double> pause(tape);
  EXPECT_FALSE(attention(query, V(in.key), V(in.value)).output.recorded());
  EXPECT_EQ(tape.size(), 1);
}

TEST(AttentionOnATape, NeedsOnlyOneOfTheThreeRecorded) {
  const Inputs in = random_inputs(35, {2}, 3, 5, 7, 2);
  const AttentionReference r = attention_reference(in.query, in.key, in.value, {}, {in.upstream});
  const A* const expected[] = {&r.dquery, &r.dkey, &r.dvalue};
  for (const int which : {0, 1, 2}) {
    Tape<double> tape;
    const A* const values[] = {&in.query, &in.key, &in.value};
    const V x = tape.input(*values[which]);
    const V output =
        attention(which == 0 ? x : V(in.query), which == 1 ? x : V(in.key), which == 2 ? x : V(in.value))
            .output;
    EXPECT_NEAR_RELATIVE(gradient_values(output, x, V(in.upstream))[0], *expected[which], rounding);
  }
}

TEST(AttentionOnATape, LeavesTheTapeUsableAfterAnError) {
  const Inputs in = random_inputs(36, {2}, 3, 5, 7, 2);
  Tape<double> tape;
  const V query = tape.input(in.query), key = tape.input(in.key), value = tape.input(in.value);
  EXPECT_THROW(attention(query, key, value, masked_by(Mask::causal(-1))), DomainError);
  const V output = attention(query, key, value).output;
  const AttentionReference r = attention_reference(in.query, in.key, in.value, {}, {in.upstream});
  EXPECT_NEAR_RELATIVE(gradient_values(output, query, V(in.upstream))[0], r.dquery, rounding);
}

TEST(AttentionOnATape, IsPrintedAsAComposition) {
  Tape<double> tape;
  const V x = tape.input(A::ones({2, 3, 5}), "x");
  {
    const Scope<double> scope(tape, "layer 1");
    attention(x, x, x, composed(masked_by(Mask::causal(0))));
  }
  EXPECT_EQ(to_string(tape),
            "node  op           label          inputs  shape\n"
            "  %0  input        x                      (2, 3, 5)\n"
            "  %1  port         layer 1/query  %0      (2, 3, 5)\n"
            "  %2  port         layer 1/key    %0      (2, 3, 5)\n"
            "  %3  port         layer 1/value  %0      (2, 3, 5)\n"
            "  %4  matmul       layer 1        %1, %2  (2, 3, 3)\n"
            "  %5  mul          layer 1        %4      (2, 3, 3)\n"
            "  %6  masked_fill  layer 1        %5      (2, 3, 3)\n"
            "  %7  softmax      layer 1        %6      (2, 3, 3)\n"
            "  %8  matmul       layer 1        %7, %3  (2, 3, 5)  composed: asked for\n"
            "9 nodes: 1 inputs, 8 ops; 1 outputs kept for rules, 144 bytes\n");
}

TEST(AttentionOnATape, WithoutAMaskHasNoMaskedFill) {
  Tape<double> tape;
  const V x = tape.input(A::ones({2, 3, 5}));
  attention(x, x, x, composed());
  EXPECT_EQ(to_string(tape).find("masked_fill"), std::string::npos);
}

// Float against double: a few roundings of 6e-8 each.
TEST(AttentionInFloat, AgreesWithDouble) {
  const Inputs in = random_inputs(37, {2, 3}, 4, 5, 7, 2);
  const AttentionReference r =
      attention_reference(in.query, in.key, in.value, masked_by(Mask::causal(1)), {in.upstream});
  Tape<float> tape;
  const Var<float> query = tape.input(in.query.cast<float>()), key = tape.input(in.key.cast<float>()),
                   value = tape.input(in.value.cast<float>());
  AttentionOptions<float> options;
  options.mask = Mask::causal(1);
  options.weights = true;
  const AttentionResult<float> result = attention(query, key, value, options);
  const auto d = gradient_values(result.output, {query, key, value}, Var<float>(in.upstream.cast<float>()));
  EXPECT_NEAR_RELATIVE(result.output.value().cast<double>(), r.output, 1e-6);
  EXPECT_NEAR_RELATIVE(result.weights->value().cast<double>(), r.weights, 1e-6);
  EXPECT_NEAR_RELATIVE(d[0].cast<double>(), r.dquery, 1e-6);
  EXPECT_NEAR_RELATIVE(d[1].cast<double>(), r.dkey, 1e-6);
  EXPECT_NEAR_RELATIVE(d[2].cast<double>(), r.dvalue, 1e-6);
}

TEST(AttentionInFloat, TakesALearnedScaleAndRejectsEmptyRows) {
  const Var<float> q(Array<float>::ones({3, 5})), k(Array<float>::ones({7, 5})),
      v(Array<float>::ones({7, 2}));
  AttentionOptions<float> options;
  options.scale = Var<float>(Array<float>::scalar(0.5F));
  EXPECT_SAME_NUMBERS(attention(q, k, v, options).output, Array<float>::ones({3, 2}));
  options.mask = Mask::causal(-2);
  EXPECT_TRUE(raises<DomainError>([&] { attention(q, k, v, options); }, {"row 0"}));
}

// ---- heads

TEST(Heads, AreSplitTokenByTokenAndMergedBack) {
  const A x = A::arange(2 * 3 * 10).reshape({2, 3, 10});
  const V split = split_heads(V(x), 5);
  ASSERT_EQ(split.shape(), (Shape{2, 5, 3, 2}));
  for (Index h = 0; h < 5; ++h) EXPECT_EQ(split.value()(1, h, 2, 1), x(1, 2, 2 * h + 1)) << h;
  EXPECT_SAME_NUMBERS(merge_heads(split), x);
  EXPECT_EQ(split_heads(V(A::zeros({3, 10})), 2).shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(merge_heads(V(A::zeros({2, 3, 5}))).shape(), (Shape{3, 10}));
}

TEST(Heads, ThatDoNotDivideTheWidthAreAnError) {
  const V x(A::zeros({2, 3, 10}));
  for (const Index heads : {3, 0, -2}) {
    EXPECT_TRUE(raises<ShapeError>([&] { split_heads(x, heads); },
                                   {"split_heads", std::to_string(heads), "(2, 3, 10)"}));
  }
  EXPECT_TRUE(raises<ShapeError>([&] { split_heads(V(A::zeros({10})), 2); }, {"split_heads", "(10)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { merge_heads(V(A::zeros({3, 10}))); }, {"merge_heads", "(3, 10)"}));
}

// ---- gradient paths

Names names(const Paths& paths) {
  Names result;
  for (const auto& path : paths) result.push_back(path.name);
  return result;
}
const Names query_key_value = {"query", "key", "value"};

A total(const Paths& paths) {
  V sum(A::zeros(paths.at(0).gradient.shape()));
  for (const auto& path : paths) sum = sum + V(path.gradient);
  return sum.value();
}

A matrix_product(const A& a, const A& b, bool transpose_b = false) {
  return matmul(V(a), V(b), false, transpose_b).value();
}

struct Layer {
  A x, upstream;
  A w_query, w_key, w_value;
  Options options = masked_by(Mask::causal(0));
};
Layer random_layer() {
  Generator random(41);
  return {random.normal<double>({2, 5, 3}), random.normal<double>({2, 5, 7}), random.normal<double>({3, 4}),
          random.normal<double>({3, 4}), random.normal<double>({3, 7})};
}

// The three paths from the output back to what is projected, each by its own formula.
std::vector<A> path_formulas(const Layer& layer, const A& projected) {
  const AttentionReference r =
      attention_reference(matrix_product(projected, layer.w_query), matrix_product(projected, layer.w_key),
                          matrix_product(projected, layer.w_value), layer.options, {layer.upstream});
  return {matrix_product(r.dquery, layer.w_query, true), matrix_product(r.dkey, layer.w_key, true),
          matrix_product(r.dvalue, layer.w_value, true)};
}

void expect_paths(const V& output, const V& x, const A& upstream, const std::vector<A>& expected) {
  const Paths paths = gradient_paths(output, x, V(upstream));
  ASSERT_EQ(names(paths), query_key_value);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(agree(paths[i].gradient, expected[i], rounding)) << paths[i].name;
  EXPECT_NEAR_RELATIVE(total(paths), gradient_values(output, x, V(upstream))[0], rounding);
}

MultiHeadAttention<double> self_attention(const Layer& layer) {
  return {{layer.w_query}, {layer.w_key}, {layer.w_value}};
}

TEST(SelfAttentionPaths, AreQueryKeyAndValue) {
  const Layer layer = random_layer();
  Tape<double> tape;
  const V x = tape.input(layer.x);
  expect_paths(self_attention(layer)(x, layer.options).output, x, layer.upstream,
               path_formulas(layer, layer.x));
}

TEST(SelfAttentionPaths, OfRecordedWeightsAreTheSame) {
  const Layer layer = random_layer();
  Tape<double> tape;
  const V x = tape.input(layer.x);
  const auto recorded = on_tape(tape, self_attention(layer));
  const V output = recorded(x, layer.options).output;
  expect_paths(output, x, layer.upstream, path_formulas(layer, layer.x));
  const V weights[] = {recorded.query.w, recorded.key.w, recorded.value.w};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(names(gradient_paths(output, weights[i], V(layer.upstream))), Names{query_key_value[i]});
  }
}

TEST(SelfAttentionPaths, BehindALayerNormAreTheSame) {
  const Layer layer = random_layer();
  const V gain(A::of({0.5, 1.5, 2})), bias(A::of({0.1, -0.2, 0.3}));
  Tape<double> tape;
  const V x = tape.input(layer.x);
  const V normed = layer_norm(x, gain, bias);
  const V output = self_attention(layer)(normed, layer.options).output;
  std::vector<A> expected;  // each formula, carried on through the norm alone
  for (const A& path : path_formulas(layer, normed.value())) {
    expected.push_back(gradient_values(normed, x, V(path))[0]);
  }
  expect_paths(output, x, layer.upstream, expected);
}

TEST(SelfAttentionPaths, BehindAReshapeAreTheSame) {
  const Layer layer = random_layer();
  Tape<double> tape;
  const V x = tape.input(layer.x.reshape({10, 3}));
  const V output = self_attention(layer)(reshape(x, {2, 5, 3}), layer.options).output;
  std::vector<A> expected;
  for (const A& path : path_formulas(layer, layer.x)) expected.push_back(path.reshape({10, 3}));
  expect_paths(output, x, layer.upstream, expected);
}

TEST(SelfAttentionPaths, WithOnePackedProjectionAreTheSame) {
  Layer layer = random_layer();
  layer.w_value = Generator(42).normal<double>({3, 4});  // as wide as the others
  layer.upstream = Generator(43).normal<double>({2, 5, 4});
  const A packed = concat({V(layer.w_query), V(layer.w_key), V(layer.w_value)}, 1).value();
  Tape<double> tape;
  const V x = tape.input(layer.x), w = tape.input(packed);
  const V projected = projection(x, w);  // x has a single consumer
  auto part = [&](Index i) { return slice(projected, -1, {4 * i, 4 * i + 4}); };
  const V output = attention(part(0), part(1), part(2), layer.options).output;
  expect_paths(output, x, layer.upstream, path_formulas(layer, layer.x));
  EXPECT_EQ(names(gradient_paths(output, w, V(layer.upstream))), query_key_value);
}

TEST(SelfAttentionPaths, WithOneMatrixCutInThreeAreTheSame) {
  Layer layer = random_layer();
  layer.w_value = Generator(42).normal<double>({3, 4});
  layer.upstream = Generator(43).normal<double>({2, 5, 4});
  Tape<double> tape;
  const V w = tape.input(concat({V(layer.w_query), V(layer.w_key), V(layer.w_value)}, 1).value());
  const V x = tape.input(layer.x);
  const MultiHeadAttention<double> cut{{slice(w, 1, {0, 4})}, {slice(w, 1, {4, 8})}, {slice(w, 1, {8, 12})}};
  expect_paths(cut(x, layer.options).output, x, layer.upstream, path_formulas(layer, layer.x));
}

TEST(SelfAttentionPaths, WithTiedQueryAndKeyAreStillThree) {
  Layer layer = random_layer();
  layer.w_key = layer.w_query;
  Tape<double> tape;
  const V x = tape.input(layer.x);
  const V tied = projection(x, V(layer.w_query));
  const V output = attention(tied, tied, projection(x, V(layer.w_value)), layer.options).output;
  const std::vector<A> expected = path_formulas(layer, layer.x);
  expect_paths(output, x, layer.upstream, expected);
  EXPECT_FALSE(agree(expected[0], expected[1], 1e-3));  // tied, and yet not the same path
}

TEST(SelfAttentionPaths, OfXItselfAsAllThreeAreTheFormulasOfAttention) {
  const Inputs in = random_inputs(44, {2}, 5, 5, 3, 3);
  const AttentionReference r = attention_reference(in.query, in.query, in.query, {}, {in.upstream});
  Tape<double> tape;
  const V x = tape.input(in.query);
  expect_paths(attention(x, x, x).output, x, in.upstream, {r.dquery, r.dkey, r.dvalue});
}

// A multi-head layer taken apart: each head is a layer of its own, on its columns of the weights.
TEST(SelfAttentionPaths, OfSeveralHeadsAreTheSumsOverTheHeads) {
  Generator random(45);
  const A x_value = random.normal<double>({2, 5, 3}), upstream = random.normal<double>({2, 5, 6});
  MultiHeadAttention<double> heads{
      {random.normal<double>({3, 8})}, {random.normal<double>({3, 8})}, {random.normal<double>({3, 6})}};
  heads.heads = 2;
  std::vector<A> expected(3, A::zeros({2, 5, 3}));
  for (const Index h : {0, 1}) {
    auto columns = [&](const V& w) {
      return slice(w, -1, {h * w.dim(-1) / 2, (h + 1) * w.dim(-1) / 2}).value();
    };
    const Layer one{x_value, columns(V(upstream)), columns(heads.query.w), columns(heads.key.w),
                    columns(heads.value.w)};
    const std::vector<A> paths = path_formulas(one, x_value);
    for (std::size_t i = 0; i < 3; ++i) expected[i] = add(V(expected[i]), V(paths[i])).value();
  }
  Tape<double> tape;
  const V x = tape.input(x_value);
  expect_paths(heads(x, masked_by(Mask::causal(0))).output, x, upstream, expected);
}

TEST(SelfAttentionPaths, OfALayerWithAnOutputProjectionAreTheSame) {
  Layer layer = random_layer();
  const A w_out = Generator(46).normal<double>({7, 2}), upstream = Generator(47).normal<double>({2, 5, 2});
  layer.upstream = matrix_product(upstream, w_out, true);
  MultiHeadAttention<double> with_out = self_attention(layer);
  with_out.out = Projection<double>{w_out};
  Tape<double> tape;
  const V x = tape.input(layer.x);
  expect_paths(with_out(x, layer.options).output, x, upstream, path_formulas(layer, layer.x));
}

TEST(SelfAttentionPaths, InAResidualBlockComeWithADirectOne) {
  Layer layer = random_layer();
  layer.w_value = Generator(48).normal<double>({3, 3});
  layer.upstream = Generator(49).normal<double>({2, 5, 3});
  Tape<double> tape;
  const V x = tape.input(layer.x);
  const V output = x + self_attention(layer)(x, layer.options).output;
  const Paths paths = gradient_paths(output, x, V(layer.upstream));
  ASSERT_EQ(names(paths), (Names{"query", "key", "value", "direct"}));
  const std::vector<A> expected = path_formulas(layer, layer.x);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(agree(paths[i].gradient, expected[i], rounding)) << i;
  EXPECT_EQ(paths[3].op, "add");
  EXPECT_EQ(paths[3].argument, 0);
  EXPECT_SAME_NUMBERS(paths[3].gradient, layer.upstream);
  EXPECT_NEAR_RELATIVE(total(paths), gradient_values(output, x, V(layer.upstream))[0], rounding);
}

TEST(SelfAttentionPaths, OfTwoLayersCarryTheirScopes) {
  const Inputs in = random_inputs(50, {2}, 5, 5, 3, 3);
  Tape<double> tape;
  const V x = tape.input(in.query);
  V y = x;
  for (const char* name : {"layer 1", "layer 2"}) {
    const Scope<double> scope(tape, name);
    y = attention(y, x, x).output;
  }
  Names labels;
  for (const auto& path : gradient_paths(y, x, V(in.upstream))) labels.push_back(path.label);
  EXPECT_EQ(labels, (Names{"layer 1/query", "layer 1/key", "layer 1/value", "layer 2/key", "layer 2/value"}));
}

TEST(CrossAttentionPaths, OfXIsQueryAndOfYAreKeyAndValue) {
  Generator random(51);
  const A x_value = random.normal<double>({2, 5, 3}), y_value = random.normal<double>({2, 7, 2}),
          upstream = random.normal<double>({2, 5, 6});
  const MultiHeadAttention<double> layer{
      {random.normal<double>({3, 4})}, {random.normal<double>({2, 4})}, {random.normal<double>({2, 6})}};
  Tape<double> tape;
  const V x = tape.input(x_value), y = tape.input(y_value);
  const V output = layer(x, y).output;
  const AttentionReference r = attention_reference(
      matrix_product(x_value, layer.query.w.value()), matrix_product(y_value, layer.key.w.value()),
      matrix_product(y_value, layer.value.w.value()), {}, {upstream});
  const Paths of_x = gradient_paths(output, x, V(upstream)), of_y = gradient_paths(output, y, V(upstream));
  ASSERT_EQ(names(of_x), Names{"query"});
  ASSERT_EQ(names(of_y), (Names{"key", "value"}));
  EXPECT_NEAR_RELATIVE(of_x[0].gradient, matrix_product(r.dquery, layer.query.w.value(), true), rounding);
  EXPECT_NEAR_RELATIVE(of_y[0].gradient, matrix_product(r.dkey, layer.key.w.value(), true), rounding);
  EXPECT_NEAR_RELATIVE(of_y[1].gradient, matrix_product(r.dvalue, layer.value.w.value(), true), rounding);
}

TEST(CrossAttentionPaths, OfSeveralHeadsHaveTheSameNames) {
  Generator random(52);
  const auto layer = MultiHeadAttention<double>::initial(random, 6, 3, {.key_width = 4, .value_width = 4});
  Tape<double> tape;
  const V x = tape.input(random.normal<double>({2, 5, 6})), y = tape.input(random.normal<double>({2, 7, 4}));
  const V output = layer(x, y).output;
  EXPECT_EQ(output.shape(), (Shape{2, 5, 6}));
  EXPECT_EQ(names(gradient_paths(sum(output), x)), Names{"query"});
  EXPECT_EQ(names(gradient_paths(sum(output), y)), (Names{"key", "value"}));
}

// ---- the gradient of a gradient

// <u, d> with d the gradients of <output, upstream>, by the explicit formulas, and its difference quotient.
TEST(AttentionSecondOrder, WithALearnedScaleIsTheDifferenceQuotientOfTheFormulas) {
  const Inputs in = random_inputs(53, {2}, 3, 5, 4, 2);
  const A vector = Generator(54).normal<double>(in.key.shape());
  auto along = [&](const A& scale) {
    const A dkey = attention_reference(in.query, in.key, in.value, scaled_by(V(scale)), {in.upstream}).dkey;
    return sum(V(dkey) * V(vector)).item();
  };
  Tape<double> tape;
  const V scale = tape.input(A::scalar(0.4)), key = tape.input(in.key);
  const V output = attention(V(in.query), key, V(in.value), scaled_by(scale)).output;
  const V dkey = gradient(output, key, V(in.upstream))[0];
  const A second = gradient_values(sum(dkey * V(vector)), scale)[0];
  EXPECT_NEAR(second.item(), central_differences(along, A::scalar(0.4), 1e-5).item(), 1e-7);
}

}  // namespace
}  // namespace tapehead
