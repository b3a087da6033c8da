#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 14  what a basis change no longer leaves alone
//
// With W_q B and W_k B^-T the scores x W_q B (x W_k B^-T)^T = x W_q B B^-1 (x W_k)^T are those of W_q and
// W_k, for every invertible B: claim 8. What stands between the projections and the product must let B
// through.

// Queries and keys x W + b of width 6.
struct Projections {
  A w_query, w_key, b_query, b_key;
};
constexpr Index tokens = 5, model_width = 7, head_width = 6;

A random_x() { return Generator(141).normal<double>({tokens, model_width}); }
Projections random_projections() {
  Generator random(142);
  auto draw = [&](const Shape& shape) { return random.normal<double>(shape); };
  return {draw({model_width, head_width}), draw({model_width, head_width}), draw({1, head_width}),
          draw({1, head_width})};
}
Projections without_biases() {
  Projections p = random_projections();
  p.b_query = p.b_key = A::zeros({1, head_width});
  return p;
}

Result attended(const Projections& p, Options options = {}) {
  options.weights = options.scaled_scores = true;
  const V x(random_x()), query = projection(x, V(p.w_query)) + V(p.b_query),
                         key = projection(x, V(p.w_key)) + V(p.b_key);
  return attention(query, key, V(A::ones({tokens, 1})), options);
}
A scores_of(const Projections& p, const Options& options = {}) {
  return attended(p, options).scaled_scores->value();
}
A weights_of(const Projections& p, const Options& options = {}) {
  return attended(p, options).weights->value();
}

// A basis change and its inverse transpose.
struct Basis {
  A matrix, inverse_transpose;
};

A outer(const A& u, const A& v, double factor) {  // factor u^T v of rows (1, n)
  return scaled(product(transposed(u), v), factor);
}
// I + u^T v, with the inverse of Sherman and Morrison, I - u^T v / (1 + v . u).
Basis invertible() {
  const A u = Generator(143).uniform<double>({1, head_width}, 0.2, 1),
          v = Generator(144).uniform<double>({1, head_width}, 0.2, 1);
  const A one = A::eye(head_width);
  return {sum_of({one, outer(u, v, 1)}), sum_of({one, outer(v, u, -1 / (1 + dot(u.values(), v.values())))})};
}
// I - 2 n^T n / (n . n), a reflection; two of them are a rotation. Either is its own inverse transpose.
A reflection(std::uint64_t seed) {
  const A n = Generator(seed).normal<double>({1, head_width});
  return sum_of({A::eye(head_width), outer(n, n, -2 / dot(n.values(), n.values()))});
}
Basis orthogonal() {
  const A rotation = product(reflection(145), reflection(146));
  return {rotation, rotation};
}
// Pair i, in the order of neighbours, times (real[i] + sqrt(-1) imaginary[i]).
Basis complex_in_each_pair(const std::vector<double>& real, const std::vector<double>& imaginary) {
  A b = A::zeros({head_width, head_width}), inverse_transpose = b;
  for (Index i = 0; i < head_width / 2; ++i) {
    const double re = real[static_cast<std::size_t>(i)], im = imaginary[static_cast<std::size_t>(i)];
    const Index one = 2 * i, other = one + 1;
    auto set = [&](A& m, double size) {
      m.set({one, one}, re * size), m.set({one, other}, im * size);
      m.set({other, one}, -im * size), m.set({other, other}, re * size);
    };
    set(b, 1);
    set(inverse_transpose, 1 / (re * re + im * im));
  }
  return {b, inverse_transpose};
}
Basis rotation_in_each_pair() {
  return complex_in_each_pair({std::cos(1), std::cos(2), std::cos(5)},
                              {std::sin(1), std::sin(2), std::sin(5)});
}
Basis diagonal(const std::vector<double>& numbers) {
  A b = A::zeros({head_width, head_width}), inverse = b;
  for (Index i = 0; i < head_width; ++i) {
    b.set({i, i}, numbers[static_cast<std::size_t>(i)]);
    inverse.set({i, i}, 1 / numbers[static_cast<std::size_t>(i)]);
  }
  return {b, inverse};
}

enum class Biases { left, changed };
Projections in_basis(const Basis& basis, Projections p, Biases biases = Biases::changed) {
  p.w_query = product(p.w_query, basis.matrix), p.w_key = product(p.w_key, basis.inverse_transpose);
  if (biases == Biases::changed) {
    p.b_query = product(p.b_query, basis.matrix), p.b_key = product(p.b_key, basis.inverse_transpose);
  }
  return p;
}
bool leaves_the_scores(const Basis& basis, const Options& options) {
  const Projections p = without_biases();
  return agree(scores_of(in_basis(basis, p), options), scores_of(p, options), rounding);
}
// And so the scores, by more than a number a row.
bool changes_the_weights(const Basis& basis, const Options& options) {
  const Projections p = without_biases();
  return !agree(weights_of(in_basis(basis, p), options), weights_of(p, options), visible);
}

Options rotary(double base = 10000, Index width = 0) {
  Options options;
  options.rope = RopeOptions{.pairing = Pairing::neighbours, .base = base, .width = width};
  return options;
}

TEST(Claim14Basis, PlainProjectionsAllowEveryInvertibleOne) {
  for (const Basis& basis :
       {invertible(), orthogonal(), rotation_in_each_pair(), diagonal({1, 2, 3, 4, 5, 6})}) {
    ASSERT_TRUE(
        agree(product(basis.matrix, transposed(basis.inverse_transpose)), A::eye(head_width), rounding));
    EXPECT_TRUE(leaves_the_scores(basis, {}));
  }
  const Basis b = invertible();
  EXPECT_TRUE(changes_the_weights({b.matrix, b.matrix}, {}));
}

// (x W_q B + b_q) (x W_k B^-T + b_k)^T has b_q B^-1 (x W_k)^T where it had b_q (x W_k)^T.
TEST(Claim14Biases, BreakABasisChangeThatLeavesThemOut) {
  const Projections p = random_projections();
  for (const Basis& basis : {invertible(), orthogonal()}) {
    EXPECT_FALSE(agree(weights_of(in_basis(basis, p, Biases::left)), weights_of(p), visible));
    EXPECT_TRUE(agree(scores_of(in_basis(basis, p, Biases::changed)), scores_of(p), rounding));
  }
}

// A bias of the keys adds q . b_k, the same number to a whole row: scores see it, softmax does not.
TEST(Claim14Biases, OfTheKeysAloneIsSeenByTheScoresAndNotByTheWeights) {
  const Projections p = random_projections();
  Projections changed = in_basis(invertible(), p, Biases::changed);
  changed.b_key = p.b_key;
  EXPECT_FALSE(agree(scores_of(changed), scores_of(p), visible));
  EXPECT_TRUE(agree(weights_of(changed), weights_of(p), rounding));
  changed.b_query = p.b_query;
  EXPECT_FALSE(agree(weights_of(changed), weights_of(p), visible));
  Projections none = p;
  none.b_key = A::zeros({1, head_width});
  EXPECT_TRUE(agree(weights_of(none), weights_of(p), rounding));
  // With rotary positions q . R b_k differs from key to key, and a bias of the keys counts.
  EXPECT_FALSE(agree(weights_of(none, rotary()), weights_of(p, rotary()), visible));
}

// x W_q B R B^-1 (x W_k)^T is to be x W_q R (x W_k)^T for the rotations R of all offsets: B R = R B. Where
// the pairs turn at different speeds, B must keep them apart and be a complex number in each.
TEST(Claim14Rotary, AllowsOneComplexNumberAPairAndBreaksTheRest) {
  EXPECT_TRUE(leaves_the_scores(rotation_in_each_pair(), rotary()));
  EXPECT_TRUE(leaves_the_scores(complex_in_each_pair({2, -0.5, 0.3}, {1, 0, -2}), rotary()));
  EXPECT_TRUE(changes_the_weights(invertible(), rotary()));
  EXPECT_TRUE(changes_the_weights(orthogonal(), rotary()));                     // mixes pairs
  EXPECT_TRUE(changes_the_weights(diagonal({1, 2, 1, 2, 1, 2}), rotary()));     // two numbers in a pair
  EXPECT_TRUE(changes_the_weights(diagonal({1, -1, 1, -1, 1, -1}), rotary()));  // orthogonal, a mirror image
  EXPECT_TRUE(leaves_the_scores(diagonal({2, 2, -1, -1, 0.5, 0.5}), rotary()));
  Options halves = rotary();  // the same numbers paired otherwise
  halves.rope->pairing = Pairing::half;
  EXPECT_TRUE(changes_the_weights(rotation_in_each_pair(), halves));
}

// The pairs exchanged in a circle: it commutes with rotations of one speed for all, not with those of three.
TEST(Claim14Rotary, AllowsPairsToMixWhenTheyTurnAtOneSpeed) {
  A circle = A::zeros({head_width, head_width});
  for (Index i = 0; i < head_width; ++i) circle.set({i, (i + 2) % head_width}, 1);
  const Basis exchange{circle, circle};
  EXPECT_TRUE(leaves_the_scores(exchange, rotary(1)));
  EXPECT_TRUE(changes_the_weights(exchange, rotary()));
  EXPECT_TRUE(changes_the_weights(invertible(), rotary(1)));
}

// What lies past the width is not turned.
TEST(Claim14Rotary, AllowsEveryChangeOfWhatIsNotTurned) {
  const Basis whole = invertible();
  Basis past{A::eye(head_width), A::eye(head_width)};
  const double factor = 1 / (2.0 * 1.0 - 0.5 * 3.0);  // of the inverse of ((2, 0.5), (3, 1))
  past.matrix.set({4, 4}, 2), past.matrix.set({4, 5}, 0.5), past.matrix.set({5, 4}, 3);
  past.inverse_transpose.set({4, 4}, factor), past.inverse_transpose.set({4, 5}, -3 * factor);
  past.inverse_transpose.set({5, 4}, -0.5 * factor), past.inverse_transpose.set({5, 5}, 2 * factor);
  EXPECT_TRUE(leaves_the_scores(past, rotary(10000, 4)));
  EXPECT_TRUE(changes_the_weights(past, rotary()));
  EXPECT_TRUE(changes_the_weights(whole, rotary(10000, 4)));
}

Options normed(const A& query_gain, const A& key_gain) {
  Options options;
  options.norm = QueryKeyNorm<double>{V(query_gain), V(key_gain), 0};
  return options;
}
Options normed() { return normed(A::ones({head_width}), A::ones({head_width})); }

// The norm of q B is that of q when B is orthogonal: q B B^T q^T = q q^T.
TEST(Claim14QueryKeyNorm, AllowsOrthogonalOnesAndBreaksTheRest) {
  EXPECT_TRUE(leaves_the_scores(orthogonal(), normed()));
  EXPECT_TRUE(leaves_the_scores({reflection(145), reflection(145)}, normed()));
  EXPECT_TRUE(changes_the_weights(invertible(), normed()));
  EXPECT_TRUE(changes_the_weights(diagonal({1, 2, 3, 4, 5, 6}), normed()));
}

// And it allows what plain projections do not: sizes are divided away, of W_q and W_k each on its own.
TEST(Claim14QueryKeyNorm, ForgetsTheSizeOfEachProjection) {
  const A one = A::eye(head_width);
  const Basis larger_queries{scaled(one, 5), one};
  EXPECT_TRUE(leaves_the_scores(larger_queries, normed()));
  EXPECT_TRUE(changes_the_weights(larger_queries, {}));
  EXPECT_TRUE(changes_the_weights({scaled(one, -5), one}, normed()));  // but not the sign
}

// q B G_q G_k B^T k^T is to be q G_q G_k k^T: B must commute with the product of the gains, and only that
// product counts.
TEST(Claim14QueryKeyNorm, GainsBreakOrthogonalOnesUnlessTheirProductIsOneNumber) {
  const A gain = A::of({1, 2, 4, 0.5, 1, 3}), reciprocal = A::of({1, 0.5, 0.25, 2, 1, 1.0 / 3});
  const A ones = A::ones({head_width});
  EXPECT_TRUE(changes_the_weights(orthogonal(), normed(gain, ones)));
  EXPECT_TRUE(changes_the_weights(orthogonal(), normed(ones, gain)));
  EXPECT_TRUE(leaves_the_scores(orthogonal(), normed(gain, reciprocal)));
  EXPECT_TRUE(leaves_the_scores(diagonal({1, -1, -1, 1, 1, -1}), normed(gain, ones)));  // signs commute
}

TEST(Claim14QueryKeyNorm, WithRotaryPositionsLeavesRotationsInEachPair) {
  Options both = rotary();
  both.norm = normed().norm;
  EXPECT_TRUE(leaves_the_scores(rotation_in_each_pair(), both));
  EXPECT_TRUE(changes_the_weights(orthogonal(), both));  // by the positions
  EXPECT_TRUE(changes_the_weights(complex_in_each_pair({2, -0.5, 0.3}, {1, 0, -2}), both));  // by the norm
}

}  // namespace
}  // namespace tapehead::derivation
