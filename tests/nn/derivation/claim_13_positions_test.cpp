#include <tapehead/nn/positions.h>

#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 13  positions
//
// Sinusoidal: Vaswani and others, "Attention is all you need", 2017, section 3.5. Rotary: Su and others,
// "RoFormer", 2021, section 3.2.

using Reals = std::vector<double>;

A products_of_rows(const A& p) { return product(p, transposed(p)); }

// What two rows p and q have in common depends on |p - q| alone.
bool depends_on_the_distance_only(const A& products) {
  const Index n = products.dim(0);
  const double tolerance = rounding * magnitude(products);
  for (Index p = 0; p < n; ++p) {
    for (Index q = 0; q < n; ++q) {
      if (std::abs(products(p, q) - products(0, std::abs(p - q))) > tolerance) return false;
    }
  }
  return true;
}

// sin a sin b + cos a cos b = cos(a - b), so the product of two rows is the sum over the pairs of
// cos((p - q) w_i). Without the cosines the sum of the angles stays in it.
TEST(Claim13Sinusoidal, ProductsDependOnTheDistanceOnly) {
  for (const Index width : {2, 6, 64}) {
    const A p = sinusoidal_positions<double>(50, width);
    EXPECT_TRUE(depends_on_the_distance_only(products_of_rows(p)));
    const A sines = slice(V(p), -1, {0, {}, 2}).value();
    EXPECT_FALSE(depends_on_the_distance_only(products_of_rows(sines)));
    const A learned = Generator(131).normal<double>({50, width});
    EXPECT_FALSE(depends_on_the_distance_only(products_of_rows(learned)));
    const A later = sinusoidal_positions<double>(50, width, 10000, 1000);
    EXPECT_TRUE(agree(products_of_rows(later), products_of_rows(p), rounding));
  }
}

// Products of position 0 with 0, 1, 2 ...
Reals by_distance(Index width, Index length) {
  const A p = sinusoidal_positions<double>(length, width);
  return product(p, transposed(slice(V(p), 0, {0, 1}).value())).to_vector();
}
double sum_of_cosines(Index width, Index distance) {
  double total = 0;
  for (Index i = 0; i < width; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(width);
    total += std::cos(static_cast<double>(distance) / std::pow(1e4, exponent));
  }
  return total;
}
bool only_falls(const Reals& x) { return std::is_sorted(x.rbegin(), x.rend()); }
std::vector<Index> local_maxima(const Reals& x) {
  std::vector<Index> where;
  for (std::size_t d = 1; d + 1 < x.size(); ++d) {
    if (x[d] > x[d - 1] && x[d] > x[d + 1]) where.push_back(static_cast<Index>(d));
  }
  return where;
}

// The fastest pair is cos(d), with a maximum every 2 pi; slower ones are a slope under it. A bias by
// distance, as of ALiBi, only falls.
TEST(Claim13Sinusoidal, ProductsOscillateWithTheDistance) {
  // Next to 6.28, 12.57, 18.85, 25.13.
  EXPECT_EQ(local_maxima(by_distance(2, 30)), (std::vector<Index>{6, 13, 19, 25}));
  for (const Index width : {2, 4, 64, 512}) {
    const Reals products = by_distance(width, 200);
    for (Index d = 0; d < 200; ++d) {
      const double expected = sum_of_cosines(width, d);
      EXPECT_NEAR(products[static_cast<std::size_t>(d)], expected, rounding * static_cast<double>(width));
    }
    EXPECT_FALSE(only_falls(products)) << width;
    EXPECT_GE(local_maxima(products).size(), 10u) << width;
  }
  Reals alibi(200);
  for (std::size_t d = 0; d < 200; ++d) alibi[d] = -alibi_slopes<double>(8)(0) * static_cast<double>(d);
  EXPECT_TRUE(only_falls(alibi));
  EXPECT_EQ(local_maxima(alibi).size(), 0u);
  // Near 0 they do fall, which is why one may believe that they always do.
  EXPECT_TRUE(only_falls(by_distance(64, 5)));
}

// |cos| <= 1 for each of width / 2 pairs; 1 for all of them at distance 0 and, the slowest angle not having
// come round, nowhere else.
TEST(Claim13Sinusoidal, ProductsAreAtMostHalfTheWidthAndThatAtDistanceZero) {
  for (const Index width : {4, 64, 512}) {
    const Reals products = by_distance(width, 1000);
    const double half = static_cast<double>(width) / 2;
    EXPECT_NEAR(products[0], half, rounding * half);
    for (std::size_t d = 1; d < products.size(); ++d) {
      EXPECT_LT(products[d], half - visible);
      EXPECT_GE(products[d], -half * (1 + rounding));
    }
    EXPECT_FALSE(magnitude(A::from(products)) <= half - visible);
  }
}

// (sin a, cos a) -> (sin(a + c), cos(a + c)), c = k w_i, in each pair: of k alone.
A turned_by(Index k, const A& p, double direction = 1) {
  const Index width = p.dim(1);
  A y = A::uninitialized(p.shape());
  for (Index l = 0; l < p.dim(0); ++l) {
    for (Index i = 0; i < width; i += 2) {
      const double c = direction * static_cast<double>(k) *
                       std::pow(1e4, -static_cast<double>(i) / static_cast<double>(width));
      y.set({l, i}, p(l, i) * std::cos(c) + p(l, i + 1) * std::sin(c));
      y.set({l, i + 1}, p(l, i + 1) * std::cos(c) - p(l, i) * std::sin(c));
    }
  }
  return y;
}

TEST(Claim13Sinusoidal, AnOffsetIsOneRotationForAllPositions) {
  const A p = sinusoidal_positions<double>(40, 16);
  for (const Index k : {1, 7, 100}) {
    const A shifted = sinusoidal_positions<double>(40, 16, 10000, k);
    EXPECT_TRUE(agree(turned_by(k, p), shifted, rounding));
    EXPECT_FALSE(agree(turned_by(k, p, -1), shifted, visible));
    EXPECT_FALSE(agree(turned_by(k + 1, p), shifted, visible));
    // And no translation: what is to be added differs from position to position.
    const A step = (V(shifted) - V(p)).value();
    EXPECT_FALSE(agree(slice(V(step), 0, {1, {}}), slice(V(step), 0, {0, 39}), visible));
  }
}

// ---- rotary

// Scores of queries and keys (L, D) whose first row stands at the given positions.
A rotary_scores(const A& query, const A& key, Index query_at, Index key_at, Pairing pairing = Pairing::half) {
  Options options = scaled_by(1);
  options.scaled_scores = true;
  options.rope = RopeOptions{.pairing = pairing, .start = key_at};
  options.query_offset = query_at - key_at;
  return attention(V(query), V(key), V(A::zeros({key.dim(0), 1})), options).scaled_scores->value();
}

// <R_p q, R_s k> = <q, R_(s - p) k>
TEST(Claim13Rotary, ScoresDependOnTheOffset) {
  const Inputs in = random_inputs(132, 4, 6, 8, 1, {});
  for (const Pairing pairing : {Pairing::half, Pairing::neighbours}) {
    const A scores = rotary_scores(in.query, in.key, 3, 0, pairing);
    for (const Index shift : {1, 10, 1000}) {
      const A shifted = rotary_scores(in.query, in.key, 3 + shift, shift, pairing);
      EXPECT_TRUE(agree(shifted, scores, rounding));
      EXPECT_FALSE(agree(rotary_scores(in.query, in.key, 3 + shift, 0, pairing), scores, visible));
    }
    // Turned queries and keys that are left alone see where they are.
    auto half_done = [&](Index at) {
      return product(rope(V(in.query), {.pairing = pairing, .start = at}).value(), transposed(in.key));
    };
    EXPECT_FALSE(agree(half_done(10), half_done(0), visible));
  }
}

TEST(Claim13Rotary, ScoresDependOnTheContentToo) {
  const Inputs in = random_inputs(133, 1, 1, 8, 1, {}), other = random_inputs(134, 1, 1, 8, 1, {});
  const A scores = rotary_scores(in.query, in.key, 5, 0);
  EXPECT_FALSE(agree(rotary_scores(in.query, other.key, 5, 0), scores, visible));
  EXPECT_FALSE(agree(rotary_scores(other.query, in.key, 5, 0), scores, visible));
  EXPECT_TRUE(agree(rotary_scores(in.query, in.key, 7, 2), scores, rounding));
}

// Of a score that is a function of the offset plus one of the content, s11 - s12 - s21 + s22 of two queries
// and two keys is the same at all offsets. ALiBi's is such a score.
TEST(Claim13Rotary, OffsetAndContentAreNotTwoTerms) {
  const Inputs in = random_inputs(133, 1, 1, 8, 1, {}), other = random_inputs(134, 1, 1, 8, 1, {});
  auto interaction = [&](auto score) {
    return score(in.query, in.key) - score(in.query, other.key) - score(other.query, in.key) +
           score(other.query, other.key);
  };
  auto rotary = [&](Index offset) {
    return interaction([=](const A& q, const A& k) { return rotary_scores(q, k, offset, 0).item(); });
  };
  auto alibi = [&](Index offset) {
    Options options = scaled_by(1);
    options.masked_scores = true;
    options.slopes = V(A::of({0.5}));
    options.query_offset = offset;
    return interaction([=](const A& q, const A& k) {
      return attention(V(q), V(k), V(A::zeros({1, 1})), options).masked_scores->item();
    });
  };
  EXPECT_GT(std::abs(rotary(5) - rotary(0)), visible);
  EXPECT_NEAR(alibi(5), alibi(0), rounding);
}

// Of one pair: |q| |k| cos(a + (s - p)), a the angle from q to k. So the content says at which distance the
// score is largest; only q = k makes it 0, for then it is a sum of |q_i|^2 cos((s - p) w_i).
Index best_distance(const A& query, const A& key) {
  Reals scores;
  for (Index distance = 0; distance < 6; ++distance) {
    scores.push_back(rotary_scores(query, key, distance, 0).item());
  }
  return std::max_element(scores.begin(), scores.end()) - scores.begin();
}

TEST(Claim13Rotary, TheLargestScoreIsWhereTheContentPutsIt) {
  const A query = A::of({{1, 0}});
  for (const Index distance : {0, 1, 3, 5}) {
    const auto a = static_cast<double>(distance);
    EXPECT_EQ(best_distance(query, A::of({{std::cos(a), std::sin(a)}})), distance);
  }
  const A q = Generator(135).normal<double>({1, 8});
  EXPECT_EQ(best_distance(q, q), 0);
  EXPECT_NE(best_distance(q, scaled(q, -1)), 0);
}

}  // namespace
}  // namespace tapehead::derivation
