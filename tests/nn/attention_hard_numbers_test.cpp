// Where attention is most easily wrong: masks that leave little, scores that are capped and shown, large
// scores that are nearly tied. Every result has an upstream gradient; against loops in long double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention.h>
#include <tapehead/ops/masking.h>

#include "support/attention_loops.h"
#include "support/compare.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using loops::AttentionGradients;
using loops::AttentionInputs;
using loops::AttentionLoops;
using loops::AttentionOutputs;

constexpr double infinity = std::numeric_limits<double>::infinity();

// Sums of a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;
// What a mistake must differ by to count as seen.
constexpr double visible = 1e-3;

// Four query heads on two key heads.
AttentionInputs random_inputs(std::uint64_t seed, Index L, Index S, double spread = 1) {
  Generator random(seed);
  AttentionInputs in{random.normal<double>({2, 4, L, 6}, 0, spread), random.normal<double>({2, 2, S, 6}),
                     random.normal<double>({2, 2, S, 5}), random.normal<double>({2, 4, L, S}),
                     Array<bool>::ones({2, 4, L, S})};
  in.scale = 1 / std::sqrt(6.0);
  return in;
}

AttentionOptions<double> options_of(const AttentionInputs& in) {
  return {.scale = in.scale,
          .softcap = in.softcap,
          .bias = V(in.bias),
          .mask = Mask::allowed(in.allowed),
          .empty_rows = EmptyRows::zero,
          .scaled_scores = true,
          .capped_scores = true,
          .masked_scores = true,
          .log_sum_exp = true,
          .weights = true};
}

struct Both {
  AttentionOutputs outputs;
  AttentionGradients gradients;
};

Both by_loops(const AttentionInputs& in, const AttentionOutputs& upstream) {
  const AttentionLoops loops(in);
  return {loops.outputs(), loops.gradients(upstream)};
}

Both by_attention(const AttentionInputs& in, const AttentionOutputs& up, AttentionOptions<double> options) {
  Tape<double> tape;
  const V query = tape.input(in.query), key = tape.input(in.key), value = tape.input(in.value),
          bias = tape.input(in.bias);
  if (options.bias) options.bias = bias;
  const auto r = attention(query, key, value, options);
  const auto d = gradient_values(
      {r.output, *r.weights, *r.scaled_scores, *r.capped_scores, *r.masked_scores, *r.log_sum_exp},
      {query, key, value, bias},
      {V(up.output), V(up.weights), V(up.scaled), V(up.capped), V(up.masked), V(up.lse)});
  return {{r.output.value(), r.weights->value(), r.scaled_scores->value(), r.capped_scores->value(),
           r.masked_scores->value(), r.log_sum_exp->value()},
          {d[0], d[1], d[2], d[3]}};
}
Both by_attention(const AttentionInputs& in, const AttentionOutputs& up) {
  return by_attention(in, up, options_of(in));
}

// Upstream gradients for the results whose letter is in `which`, zeros for the others: output, weights,
// scaled, capped and masked scores, lse.
AttentionOutputs upstream_of(const AttentionInputs& in, const std::string& which = "owscml") {
  Generator random(71);
  auto draw = [&](char letter, const Shape& shape) {
    const A drawn = random.normal<double>(shape);
    return which.find(letter) == std::string::npos ? A::zeros(shape) : drawn;
  };
  const Shape scores = in.bias.shape();
  return {draw('o', scores.with(-1, in.value.dim(-1))),
          draw('w', scores),
          draw('s', scores),
          draw('c', scores),
          draw('m', scores),
          draw('l', scores.without(-1))};
}

testing::AssertionResult agree(const Both& actual, const Both& expected, double tolerance) {
  const AttentionOutputs &a = actual.outputs, &e = expected.outputs;
  const AttentionGradients &da = actual.gradients, &de = expected.gradients;
  const std::tuple<const char*, const A*, const A*> parts[] = {
      {"output", &a.output, &e.output}, {"weights", &a.weights, &e.weights}, {"scaled", &a.scaled, &e.scaled},
      {"capped", &a.capped, &e.capped}, {"masked", &a.masked, &e.masked},    {"lse", &a.lse, &e.lse},
      {"dquery", &da.query, &de.query}, {"dkey", &da.key, &de.key},          {"dvalue", &da.value, &de.value},
      {"dbias", &da.bias, &de.bias}};
  for (const auto& [name, one, other] : parts) {
    const auto result = agree(*one, *other, tolerance);
    if (!result) return testing::AssertionFailure() << name << ": " << result.message();
  }
  return testing::AssertionSuccess();
}

// Output and log-sum-exp when nothing else is wanted, which may be computed in another way.
testing::AssertionResult alone_agrees_with_loops(const AttentionInputs& in, double tolerance = rounding) {
  const AttentionOutputs up = upstream_of(in, "ol");
  const Both expected = by_loops(in, up);
  Tape<double> tape;
  const V query = tape.input(in.query), key = tape.input(in.key), value = tape.input(in.value),
          bias = tape.input(in.bias);
  const auto r = attention(query, key, value,
                           {.scale = in.scale,
                            .softcap = in.softcap,
                            .bias = bias,
                            .mask = Mask::allowed(in.allowed),
                            .empty_rows = EmptyRows::zero,
                            .log_sum_exp = true});
  const auto d =
      gradient_values({r.output, *r.log_sum_exp}, {query, key, value, bias}, {V(up.output), V(up.lse)});
  Both actual = expected;
  actual.outputs.output = r.output.value(), actual.outputs.lse = r.log_sum_exp->value();
  actual.gradients = {d[0], d[1], d[2], d[3]};
  return agree(actual, expected, tolerance);
}

// ---- masks that leave little

// Each key seen with this probability.
Array<bool> sparse(const Shape& shape, double seen, std::uint64_t seed) {
  Generator random(seed);
  auto keys = Array<bool>::uninitialized(shape);
  for (bool& key : keys.mutable_values()) key = random.uniform() < seen;
  return keys;
}

Index rows_with_keys(const Array<bool>& keys, Index least, Index most) {
  Index rows = 0;
  for (Index row = 0; row < keys.size() / keys.dim(-1); ++row) {
    Index seen = 0;
    for (Index j = 0; j < keys.dim(-1); ++j) seen += keys.data()[row * keys.dim(-1) + j];
    rows += seen >= least && seen <= most;
  }
  return rows;
}

TEST(MostlyBlockedMask, OfOneKeyInTwentyAgreesWithTheLoops) {
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
    AttentionInputs in = random_inputs(seed, 7, 19);
    in.allowed = sparse(in.bias.shape(), 0.05, seed + 10);
    ASSERT_GT(rows_with_keys(in.allowed, 0, 0), 5);
    ASSERT_GT(rows_with_keys(in.allowed, 1, 1), 5);
    ASSERT_GT(rows_with_keys(in.allowed, 2, 9), 3);
    const AttentionOutputs up = upstream_of(in);
    EXPECT_TRUE(agree(by_attention(in, up), by_loops(in, up), rounding)) << seed;
    EXPECT_TRUE(alone_agrees_with_loops(in)) << seed;
  }
}

TEST(MostlyBlockedMask, OfOneKeyARowGivesThatKeysValue) {
  AttentionInputs in = random_inputs(5, 6, 11);
  in.allowed = Array<bool>::zeros(in.bias.shape());
  Generator random(6);
  for (Index row = 0; row < in.allowed.size() / 11; ++row) {
    in.allowed.mutable_values()[static_cast<std::size_t>(row * 11 + random.below(11))] = true;
  }
  const AttentionOutputs up = upstream_of(in);
  const Both both = by_attention(in, up);
  EXPECT_TRUE(agree(both, by_loops(in, up), rounding));
  EXPECT_SAME_NUMBERS(both.outputs.weights, in.allowed.cast<double>());
}

TEST(MostlyBlockedMask, SeesOneKeyTooManyAndOneTooFew) {
  AttentionInputs in = random_inputs(7, 7, 19);
  in.allowed = sparse(in.bias.shape(), 0.1, 17);
  const AttentionOutputs up = upstream_of(in);
  const Both expected = by_loops(in, up);
  AttentionInputs wrong = in;
  wrong.allowed.set({1, 2, 3, 4}, !in.allowed(1, 2, 3, 4));
  EXPECT_TRUE(agree(by_attention(in, up), expected, rounding));
  EXPECT_FALSE(agree(by_attention(wrong, up), expected, visible));
}

TEST(MostlyBlockedMask, OfABiasOfMinusInfinityIsTheSame) {
  AttentionInputs in = random_inputs(8, 7, 19);
  in.allowed = sparse(in.bias.shape(), 0.1, 18);
  const AttentionOutputs up = upstream_of(in);
  AttentionInputs by_bias = in;
  by_bias.bias = where(in.allowed, V(in.bias), V(A::scalar(-infinity))).value();
  AttentionOptions<double> options = options_of(in);
  options.mask = {};
  EXPECT_TRUE(agree(by_attention(by_bias, up, options), by_loops(in, up), rounding));
}

// ---- capped scores, each result alone and all together

class SoftcapWithScores : public testing::TestWithParam<double> {};

TEST_P(SoftcapWithScores, AgreesWithTheLoops) {
  AttentionInputs in = random_inputs(9, 5, 7, 3);
  in.allowed = sparse(in.bias.shape(), 0.7, 19);
  in.softcap = GetParam();
  for (const char* which : {"o", "w", "s", "c", "m", "l", "owscml"}) {
    const AttentionOutputs up = upstream_of(in, which);
    EXPECT_TRUE(agree(by_attention(in, up), by_loops(in, up), rounding)) << which;
  }
  EXPECT_TRUE(alone_agrees_with_loops(in));
}

TEST_P(SoftcapWithScores, SeesACapOfAnotherSizeAndTheModesExchanged) {
  AttentionInputs in = random_inputs(9, 5, 7, 3);
  in.softcap = GetParam();
  const AttentionOutputs up = upstream_of(in);
  const Both expected = by_loops(in, up);
  AttentionOptions<double> options = options_of(in);
  options.softcap = in.softcap * 1.1;
  EXPECT_FALSE(agree(by_attention(in, up, options), expected, 1e-6));
  EXPECT_FALSE(agree(expected.outputs.scaled, expected.outputs.capped, 1e-6));
  EXPECT_FALSE(agree(expected.outputs.capped, expected.outputs.masked, visible));
  AttentionOutputs exchanged = up;
  std::swap(exchanged.scaled, exchanged.capped);
  EXPECT_FALSE(agree(by_attention(in, exchanged), expected, 1e-6));
}

// Scores have a spread of 3: nearly all beyond the first cap, nearly none near the last.
INSTANTIATE_TEST_SUITE_P(Caps, SoftcapWithScores, testing::Values(0.25, 2.0, 50.0));

TEST(SoftcapWithScores, ShowScoresOfKeysThatNoRowSees) {
  AttentionInputs in = random_inputs(10, 5, 7, 3);
  in.softcap = 2;
  in.allowed = Array<bool>::ones(in.bias.shape());
  for (Index i = 0; i < in.allowed.size(); ++i) {
    if (i % 7 == 3) in.allowed.mutable_values()[static_cast<std::size_t>(i)] = false;
  }
  const AttentionOutputs up = upstream_of(in);
  EXPECT_TRUE(agree(by_attention(in, up), by_loops(in, up), rounding));
}

// ---- large scores, nearly tied

// Keys whose first number is 2048 and queries whose first is 1024, others on a grid of 1/256 below 2: scores
// are 2^20 and a little, exact in double. So the weights are as exact as those of small scores, though a
// score of 2^20 with an error of half a unit in its last place would put 6e-11 on them.
AttentionInputs nearly_tied(double softcap) {
  AttentionInputs in = random_inputs(11, 5, 9);
  auto on_grid = [](A x, double first) {
    auto values = x.mutable_values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = i % 6 == 0 ? first : std::clamp(std::round(values[i] * 256) / 256, -2.0, 2.0);
    }
    return x;
  };
  in.query = on_grid(in.query, 1024);
  in.key = on_grid(in.key, 2048);
  in.bias = A::zeros(in.bias.shape());
  in.scale = 0.5;
  in.softcap = softcap;
  return in;
}

TEST(LargeNearlyTiedScores, AgreeWithTheLoops) {
  const AttentionInputs in = nearly_tied(0);
  const Both expected = by_loops(in, upstream_of(in));
  EXPECT_GT(magnitude(expected.outputs.scaled), 1e6);
  EXPECT_LT(magnitude(expected.outputs.weights), 0.95);
  for (const char* which : {"o", "w", "m", "l", "owscml"}) {
    const AttentionOutputs up = upstream_of(in, which);
    const Both actual = by_attention(in, up), exact = by_loops(in, up);
    EXPECT_NEAR_RELATIVE(actual.outputs.output, exact.outputs.output, rounding) << which;
    EXPECT_NEAR_RELATIVE(actual.outputs.weights, exact.outputs.weights, rounding) << which;
    EXPECT_NEAR_RELATIVE(actual.outputs.lse, exact.outputs.lse, 2e-16) << which;
    EXPECT_NEAR_RELATIVE(actual.gradients.query, exact.gradients.query, rounding) << which;
    EXPECT_NEAR_RELATIVE(actual.gradients.key, exact.gradients.key, rounding) << which;
    EXPECT_NEAR_RELATIVE(actual.gradients.value, exact.gradients.value, rounding) << which;
  }
  // The kernel's gradients take weights from the log-sum-exp, of which a unit in the last place is 2^-32
  // here.
  EXPECT_TRUE(alone_agrees_with_loops(in, 0x1p-32));
}

// A float has 24 bits: at 2^19 it counts in sixteenths.
TEST(LargeNearlyTiedScores, SeeScoresRoundedToFloat) {
  AttentionInputs in = nearly_tied(0);
  const A weights = by_loops(in, upstream_of(in)).outputs.weights;
  const auto r = attention(Var<float>(in.query.cast<float>()), Var<float>(in.key.cast<float>()),
                           Var<float>(in.value.cast<float>()), {.scale = 0.5, .weights = true});
  EXPECT_FALSE(agree(r.weights->value().cast<double>(), weights, visible));
}

TEST(LargeNearlyTiedScores, ThatAreTiedByACapHaveEqualWeights) {
  const AttentionInputs in = nearly_tied(30);
  const AttentionOutputs up = upstream_of(in, "ow");
  const Both both = by_attention(in, up);
  EXPECT_TRUE(agree(both, by_loops(in, up), rounding));
  EXPECT_SAME_NUMBERS(both.outputs.capped, A::full(in.bias.shape(), 30.0));
  EXPECT_NEAR_RELATIVE(both.outputs.weights, A::full(in.bias.shape(), 1.0 / 9), 1e-15);
  EXPECT_EQ(magnitude(both.gradients.query), 0);
  EXPECT_GT(magnitude(both.gradients.value), 0.1);
}

}  // namespace
}  // namespace tapehead
