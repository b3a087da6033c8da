#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 4  a trace by hand

// X = [[1, 0], [0, 1], [1, 1]], Q = K = V = X; the numbers were computed with pencil and paper, to six
// places.
const A& hand_x() {
  static const A x = A::of({{1, 0}, {0, 1}, {1, 1}});
  return x;
}
A hand_weights() {
  return A::of(
      {{0.401112, 0.197776, 0.401112}, {0.197776, 0.401112, 0.401112}, {0.248255, 0.248255, 0.503490}});
}
const double six_places = 1e-6;

Result traced(const A& query, const Mask& mask = {}) {
  return attention(V(query), V(query), V(hand_x()), masked_by(mask, true));
}

TEST(Claim04HandTrace, Weights) {
  EXPECT_LE(absolute_error(traced(hand_x()).weights->value(), hand_weights()), six_places);
}

TEST(Claim04HandTrace, Outputs) {
  const A expected = A::of({{0.802224, 0.598888}, {0.598888, 0.802224}, {0.751745, 0.751745}});
  EXPECT_LE(absolute_error(traced(hand_x()).output.value(), expected), six_places);
}

TEST(Claim04HandTrace, OfTheExplicitFormulas) {
  const AttentionReference r = attention_reference(hand_x(), hand_x(), hand_x());
  EXPECT_LE(absolute_error(r.weights, hand_weights()), six_places);
}

TEST(Claim04HandTrace, WithoutTheScaleIsSeen) {
  const Result wrong = attention(V(hand_x()), V(hand_x()), V(hand_x()), scaled_by(1, {}, true));
  EXPECT_GT(absolute_error(wrong.weights->value(), hand_weights()), six_places);
}

TEST(Claim04HandTrace, ByCosinesTheLastRowWouldBeAnother) {
  A directions = hand_x();
  for (Index i = 0; i < 3; ++i) {
    const double length = std::hypot(hand_x()(i, 0), hand_x()(i, 1));
    for (Index d = 0; d < 2; ++d) directions.set({i, d}, hand_x()(i, d) / length);
  }
  const A by_cosines = traced(directions).weights->value();
  EXPECT_NEAR(by_cosines(2, 0), 0.309587, six_places);
  EXPECT_NEAR(by_cosines(2, 1), 0.309587, six_places);
  EXPECT_NEAR(by_cosines(2, 2), 0.380827, six_places);
  EXPECT_GT(absolute_error(by_cosines, hand_weights()), six_places);
}

TEST(Claim04HandTrace, SymmetricScoresDoNotGiveSymmetricWeights) {
  const V scores = scores_of(V(hand_x()), V(hand_x()));
  EXPECT_SAME_NUMBERS(transposed(scores.value()), scores);
  const A weights = traced(hand_x()).weights->value();
  EXPECT_FALSE(agree(transposed(weights), weights, visible));
  EXPECT_NEAR(weights(0, 2) - weights(2, 0), 0.401112 - 0.248255, 2 * six_places);
}

TEST(Claim04HandTrace, CausalRows) {
  const A weights = traced(hand_x(), causal(0)).weights->value();
  EXPECT_SAME_NUMBERS(A::of({weights(0, 0), weights(0, 1), weights(0, 2)}), A::of({1, 0, 0}));
  EXPECT_NEAR(weights(1, 0), 0.330238, six_places);
  EXPECT_NEAR(weights(1, 1), 0.669762, six_places);
  EXPECT_EQ(weights(1, 2), 0);
  EXPECT_NEAR(weights(2, 2), hand_weights()(2, 2), six_places);  // the last row sees everything
}

TEST(Claim04HandTrace, CausalRowsAreNotTheOthersCutOff) {
  const A weights = traced(hand_x(), causal(0)).weights->value();
  EXPECT_GT(std::abs(weights(1, 0) - hand_weights()(1, 0)), visible);
  EXPECT_GT(std::abs(weights(1, 1) - hand_weights()(1, 1)), visible);
}

// ---- 5  wrong on purpose

Result softmax_over_queries(const V& query, const V& key, const V& value) {
  return weighted(softmax(scores_of(query, key), -2), value);
}

TEST(Claim05WrongAxis, IsSeenByTheSumsOfRows) {
  for (const Case& c : {rectangular(), Case{causal_square().in, {}}}) {
    EXPECT_TRUE(rows_sum_to_one(evaluated(attention_with({}), c.in).weights));
    EXPECT_FALSE(rows_sum_to_one(evaluated(softmax_over_queries, c.in).weights));
  }
}

TEST(Claim05WrongAxis, IsSeenByTheRectangularCase) {
  const Case c = rectangular();
  EXPECT_TRUE(agree(evaluated(attention_with({}), c.in), formulas(c.in, {}), rounding));
  EXPECT_FALSE(agree(evaluated(softmax_over_queries, c.in), formulas(c.in, {}), visible));
}

TEST(Claim05WrongAxis, WouldPassOnASquareOfEqualScores) {
  const V equal(A::zeros({3, 3}));
  EXPECT_SAME_NUMBERS(softmax(equal, -2), softmax(equal, -1));
  const V rectangle(A::zeros({3, 5}));
  EXPECT_FALSE(agree(softmax(rectangle, -2), softmax(rectangle, -1), visible));
}

const Mask& three_of_five() {
  static const Mask mask = causal(1);  // rows of 2, 3 and 4 allowed keys
  return mask;
}

V zeroed_after_softmax(const V& z, const V& value) {
  return matmul(kept(softmax(z), three_of_five(), 0), value);
}
V renormalised_afterwards(const V& z, const V& value) {
  const V weights = kept(softmax(z), three_of_five(), 0);
  return matmul(weights / sum(weights, -1, Keep::yes), value);
}
V masked_before_softmax(const V& z, const V& value) { return attention_on(z, value, three_of_five()).output; }

using OnScores = V (*)(const V& z, const V& value);

// Whether a change of the forbidden scores changes a single bit of the output.
bool depends_on_forbidden_scores(OnScores output_of) {
  Generator random(51);
  const V value(random.normal<double>({5, 2}));
  const A z = random.normal<double>({3, 5});
  const Array<bool> allowed = three_of_five().expanded({3, 5});
  A changed = z;
  for (std::size_t i = 0; i < 15; ++i) {
    if (!allowed.values()[i]) changed.mutable_values()[i] += random.normal();
  }
  return !same_numbers(output_of(V(z), value), output_of(V(changed), value));
}

TEST(Claim05ZeroingAfterSoftmax, StillDependsOnForbiddenScoresAndMaskingBeforeDoesNot) {
  EXPECT_FALSE(depends_on_forbidden_scores(masked_before_softmax));
  EXPECT_TRUE(depends_on_forbidden_scores(zeroed_after_softmax));
}

// Random scores; those that are forbidden are higher by `lead`.
A scores_with_forbidden_lead(double lead) {
  Generator random(52);
  const Array<bool> allowed = three_of_five().expanded({3, 5});
  A z = random.normal<double>({3, 5});
  for (std::size_t i = 0; i < 15; ++i) z.mutable_values()[i] += allowed.values()[i] ? 0 : lead;
  return z;
}

testing::AssertionResult agrees_with_masking_before(OnScores output_of, double lead) {
  Generator random(53);
  const V value(random.normal<double>({5, 2})), z(scores_with_forbidden_lead(lead));
  const A expected =
      attention_reference(z.value(), A::eye(5), value.value(), scaled_by(1, three_of_five())).output;
  return agree(output_of(z, value), expected, rounding);
}

TEST(Claim05RenormalisingAfterwards, AgreesForWellConditionedRows) {
  EXPECT_TRUE(agrees_with_masking_before(renormalised_afterwards, 0));
  EXPECT_TRUE(agrees_with_masking_before(renormalised_afterwards, 30));
  EXPECT_FALSE(agrees_with_masking_before(zeroed_after_softmax, 0));
}

// exp(-735) has but a dozen significant bits left, exp(-800) none: then it is 0 / 0.
TEST(Claim05RenormalisingAfterwards, FailsWhenTheAllowedMassUnderflows) {
  EXPECT_FALSE(agrees_with_masking_before(renormalised_afterwards, 735));
  EXPECT_FALSE(agrees_with_masking_before(renormalised_afterwards, 800));
  EXPECT_FALSE(
      all_finite(renormalised_afterwards(V(scores_with_forbidden_lead(800)), V(A::ones({5, 2}))).value()));
  for (const double lead : {0, 30, 735, 800})
    EXPECT_TRUE(agrees_with_masking_before(masked_before_softmax, lead));
}

TEST(Claim05TopLeftCausalMask, DiffersFromTheRightOneOnTheCachedPrefix) {
  const Golden golden("sdpa_cached_prefix");
  const Inputs in = inputs_of(golden);
  EXPECT_TRUE(agree(evaluated(attention_with(masked_by(causal(3))), in), numbers_of(golden), rounding));
  EXPECT_FALSE(agree(evaluated(attention_with(masked_by(causal(0))), in), numbers_of(golden), visible));
}

TEST(Claim05TopLeftCausalMask, DiscardsValidKeys) {
  const Case c = cached_prefix();  // two queries at positions 3 and 4
  const A right = evaluated(attention_with(c.options), c.in).weights;
  const A wrong = evaluated(attention_with(masked_by(causal(0))), c.in).weights;
  for (const Index b : {0, 1}) {
    for (const Index i : {0, 1}) {
      for (Index j = 0; j < 5; ++j) {
        EXPECT_EQ(right(b, i, j) > 0, j <= 3 + i) << i << j;
        EXPECT_EQ(wrong(b, i, j) > 0, j <= i) << i << j;
      }
    }
  }
}

TEST(Claim05TopLeftCausalMask, IsTheSameOnASquareWhichWouldNotSeeIt) {
  const Shape square{4, 4}, prefix{2, 5};
  EXPECT_EQ(causal(4 - 4).expanded(square).to_vector(), causal(0).expanded(square).to_vector());
  EXPECT_NE(causal(5 - 2).expanded(prefix).to_vector(), causal(0).expanded(prefix).to_vector());
}

}  // namespace
}  // namespace tapehead::derivation
