#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 6  the scale

constexpr Index pairs = 5000;
constexpr Index widths[] = {8, 32, 128};

// The scores that attention computes of queries (..., L, D) and keys (..., S, D), read off its weights: a key
// of zeros goes before the others, so the logarithms of the ratios to its weight are the scores.
A scores_inside(const A& query, const A& key, const Scale<double>& scale = {}) {
  const V first(A::zeros(key.shape().with(key.rank() - 2, 1)));
  const V keys = concat({first, V(key)}, -2);
  const V value(A::zeros(keys.shape().with(keys.rank() - 1, 1)));
  const V weights = *attention(V(query), keys, value, scaled_by(scale, {}, true)).weights;
  return (log(slice(weights, -1, {1, {}})) - log(slice(weights, -1, {0, 1}))).value();
}
A scores_of_pairs(const A& query, const A& key, const Scale<double>& scale = {}) {
  const Index D = query.dim(-1);
  return scores_inside(query.reshape({-1, 1, D}), key.reshape({-1, 1, D}), scale);
}

struct Pairs {
  A query, key;
};
Pairs independent_pairs(Index D) {
  Generator random(61 + static_cast<std::uint64_t>(D));
  const A query = random.normal<double>({pairs, D});
  return {query, random.normal<double>({pairs, D})};
}

// The sample variance of 5,000 scores has a relative standard error of 2 to 2.4 %, so 15 % is more than six
// of them.
bool has_variance(const A& scores, double expected) {
  const double ratio = variance_of(scores.values()) / expected;
  return 0.85 < ratio && ratio < 1.15;
}

TEST(Claim06Scale, ScoresOfIndependentPairsHaveUnitVariance) {
  for (const Index D : widths) {
    const auto [query, key] = independent_pairs(D);
    EXPECT_TRUE(has_variance(scores_of_pairs(query, key), 1)) << D;
    EXPECT_FALSE(has_variance(scores_of_pairs(query, key, 1.0), 1)) << D;
    EXPECT_FALSE(has_variance(scores_of_pairs(query, key, 1.0 / static_cast<double>(D)), 1)) << D;
  }
}

TEST(Claim06Scale, UnscaledTheVarianceIsTheWidth) {
  for (const Index D : widths) {
    const auto [query, key] = independent_pairs(D);
    EXPECT_TRUE(has_variance(scores_of_pairs(query, key, 1.0), static_cast<double>(D))) << D;
  }
}

TEST(Claim06Scale, DividedByTheWidthTheVarianceIsItsInverse) {
  for (const Index D : widths) {
    const auto [query, key] = independent_pairs(D);
    const auto d = static_cast<double>(D);
    EXPECT_TRUE(has_variance(scores_of_pairs(query, key, 1 / d), 1 / d)) << D;
  }
}

// x . x is chi-squared with D degrees of freedom: mean D, variance 2 D.
TEST(Claim06Tied, DiagonalScoresHaveTheWidthAsMeanAndAreAnotherCase) {
  for (const Index D : widths) {
    const A x = independent_pairs(D).query;
    const auto d = static_cast<double>(D);
    const double standard_error = std::sqrt(2 * d / static_cast<double>(pairs));
    EXPECT_NEAR(mean_of(scores_of_pairs(x, x, 1.0).values()), d, 5 * standard_error) << D;
    const A scores = scores_of_pairs(x, x);
    EXPECT_NEAR(mean_of(scores.values()), std::sqrt(d), 5 * standard_error / std::sqrt(d)) << D;
    EXPECT_FALSE(has_variance(scores, 1)) << D;
    EXPECT_TRUE(has_variance(scores, 2)) << D;
  }
}

TEST(Claim06Tied, IndependentPairsHaveMeanZero) {
  for (const Index D : widths) {
    const auto [query, key] = independent_pairs(D);
    EXPECT_NEAR(mean_of(scores_of_pairs(query, key).values()), 0, 5 / std::sqrt(static_cast<double>(pairs)))
        << D;
  }
}

// Over n pairs of independent rows, entries of Q^T K / n have mean square 1 / n. The D^2 entries make the
// estimate good to a few percent; twice that is out of reach by chance.
bool look_independent(const A& query, const A& key) {
  const A covariance = scaled(product_of_rows(query, key), 1 / static_cast<double>(query.dim(0)));
  const double mean_square =
      dot(covariance.values(), covariance.values()) / static_cast<double>(covariance.size());
  return mean_square < 2 / static_cast<double>(query.dim(0));
}

TEST(Claim06LayerNormed, ProjectionsOfOneInputByXavierWeightsAreNotIndependent) {
  const Index M = 32;
  Generator random(62);
  const V x = layer_norm(V(random.normal<double>({pairs, M}, 3, 2)), V(A::ones({M})), V(A::zeros({M})));
  const double xavier = std::sqrt(2.0 / (M + M));
  const V w_query(random.normal<double>({M, M}, 0, xavier)), w_key(random.normal<double>({M, M}, 0, xavier));
  const A query = projection(x, w_query).value(), key = projection(x, w_key).value();
  EXPECT_FALSE(look_independent(query, key));

  const Pairs apart = independent_pairs(M);
  EXPECT_TRUE(look_independent(apart.query, apart.key));
  const V other = layer_norm(V(random.normal<double>({pairs, M}, 3, 2)), V(A::ones({M})), V(A::zeros({M})));
  EXPECT_TRUE(look_independent(query, projection(other, w_key).value()));  // of two inputs they are
}

struct LengthStatistics {
  bool unit_variance;
  double largest;  // of a row, on average
};

LengthStatistics statistics_at(Index S, const Scale<double>& scale) {
  Generator random(63);
  const A query = random.normal<double>({64, 16, 32});
  const A scores = scores_inside(query, random.normal<double>({64, S, 32}), scale);
  double total = 0;
  for (Index row = 0; row < 64 * 16; ++row) {
    total += *std::max_element(scores.data() + row * S, scores.data() + (row + 1) * S);
  }
  return {has_variance(scores, 1), total / (64 * 16)};
}

TEST(Claim06Length, LongerSequencesLeaveTheVarianceAndRaiseTheLargestScore) {
  double before = 0;
  for (const Index S : {8, 64, 512}) {
    const auto [unit_variance, largest] = statistics_at(S, {});
    EXPECT_TRUE(unit_variance) << S;
    EXPECT_GT(largest, before + 0.5) << S;  // the expected maxima of S normal numbers: 1.4, 2.4, 3.0
    before = largest;
  }
}

TEST(Claim06Length, AScaleByTheLengthIsSeen) {
  for (const Index S : {8, 64, 512}) {
    EXPECT_FALSE(statistics_at(S, 1 / std::sqrt(static_cast<double>(S))).unit_variance) << S;
  }
}

// sqrt(sum of squares) of the Jacobian of the weights of a row of scores, by the engine.
double size_of_jacobian(const A& row, double scale = 1) {
  Tape<double> tape;
  const V z = tape.input(row.reshape({1, -1}));
  const V weights = *attention_on(z, V(A::zeros({row.size(), 1})), {}, scale).weights;
  double total = 0;
  for (Index j = 0; j < row.size(); ++j) {
    A one = A::zeros(weights.shape());
    one.set({0, j}, 1);
    const A d = gradient_values(weights, z, V(one))[0];
    total += dot(d.values(), d.values());
  }
  return std::sqrt(total) / scale;
}

TEST(Claim06Gaps, LargeOnesShrinkTheSoftmaxJacobian) {
  const A row = A::of({0, -1, -1.5, -3});
  double before = infinity;
  for (const double gap : {0.5, 2.0, 8.0, 32.0}) {
    const double size = size_of_jacobian(scaled(row, gap));
    EXPECT_LT(size, before / 1.1) << gap;
    before = size;
  }
  EXPECT_LT(before, 1e-12);
}

TEST(Claim06Gaps, OfTwoKeysGiveTheLogisticSlope) {
  for (const double gap : {0.0, 1.0, 5.0}) {
    const double w = 1 / (1 + std::exp(-gap));
    EXPECT_NEAR(size_of_jacobian(A::of({gap, 0})), 2 * w * (1 - w), 1e-15);  // four entries of +-w (1 - w)
  }
}

TEST(Claim06Gaps, AreWhatCountsNotTheScoresThemselves) {
  const A row = A::of({0, -1, -1.5, -3});
  const A high = mapped(row, [](double z) { return z + 512; });
  EXPECT_NEAR(size_of_jacobian(high), size_of_jacobian(row), 1e-15);
}

TEST(Claim06Gaps, UnscaledScoresOfWideHeadsHaveASmallJacobian) {
  const auto [query, key] = independent_pairs(128);
  double scaled_size = 0, unscaled_size = 0;
  for (Index i = 0; i < 100; ++i) {
    A row = A::uninitialized({7});
    for (Index j = 0; j < 7; ++j) {
      row.set({j}, dot(query.values().subspan(static_cast<std::size_t>(i) * 128, 128),
                       key.values().subspan(static_cast<std::size_t>(7 * i + j) * 128, 128)));
    }
    scaled_size += size_of_jacobian(scaled(row, 1 / std::sqrt(128.0)));
    unscaled_size += size_of_jacobian(row);
  }
  EXPECT_LT(unscaled_size, scaled_size / 2);
}

}  // namespace
}  // namespace tapehead::derivation
