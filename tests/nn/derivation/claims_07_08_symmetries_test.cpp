#include <tapehead/core/xtensor.h>  // first: see there

#include <xtensor-blas/xlinalg.hpp>

#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 7  prefix perturbation

using OnSequence = std::function<V(const V& x)>;  // (..., L, M) to (..., L, E)

A after(Index t, const A& x, std::uint64_t seed) {  // x, and anything else after position t
  Generator random(seed);
  const Index L = x.dim(-2);
  A changed = x;
  for (Index i = 0; i < x.size(); ++i) {
    if (i / x.dim(-1) % L > t) changed.mutable_values()[static_cast<std::size_t>(i)] = 100 * random.normal();
  }
  return changed;
}
V up_to(Index t, const V& y) { return slice(y, -2, {0, t + 1}); }

// Whether, for each t, outputs up to t are the same bits whatever comes after t.
bool keeps_prefixes(const OnSequence& f, const A& x) {
  const V before = f(V(x));
  for (Index t = 0; t + 1 < x.dim(-2); ++t) {
    for (const std::uint64_t seed : {71u, 72u}) {
      if (!same_numbers(up_to(t, f(V(after(t, x, seed)))), up_to(t, before))) return false;
    }
  }
  return true;
}

// Whether, for each t, outputs up to t have gradient exactly 0 with respect to what comes after t, and some
// before.
bool has_gradient_up_to_each_position_only(const OnSequence& f, const A& x) {
  for (Index t = 0; t < x.dim(-2); ++t) {
    Tape<double> tape;
    const V input = tape.input(x);
    const V y = up_to(t, f(input));
    Generator random(73);
    const A dx = gradient_values(y, input, V(random.normal<double>(y.shape())))[0];
    for (Index i = 0; i < dx.size(); ++i) {
      const bool future = i / dx.dim(-1) % dx.dim(-2) > t;
      if ((dx.data()[i] == 0) != future) return false;
    }
  }
  return true;
}

OnSequence self_attention_with(const Mask& mask) {
  return [c = random_self_attention(mask)](const V& x) { return c.layer(x, c.options).output; };
}
V self_attention_zeroed_after_softmax(const V& x) {
  const MultiHeadAttention<double> layer = random_self_attention({}).layer;
  const V weights = softmax(scores_of(projection(x, layer.query.w), projection(x, layer.key.w)));
  return matmul(kept(weights, causal(0), 0), projection(x, layer.value.w));
}

TEST(Claim07PrefixPerturbation, LeavesEarlierOutputsBitwiseTheSame) {
  const A x = random_self_attention({}).x;
  EXPECT_TRUE(keeps_prefixes(self_attention_with(causal(0)), x));
  EXPECT_FALSE(keeps_prefixes(self_attention_with({}), x));
  EXPECT_FALSE(keeps_prefixes(self_attention_with(causal(1)), x));
  EXPECT_FALSE(keeps_prefixes(self_attention_zeroed_after_softmax, x));
}

TEST(Claim07PrefixPerturbation, GradientWithRespectToTheFutureIsExactlyZero) {
  const A x = random_self_attention({}).x;
  EXPECT_TRUE(has_gradient_up_to_each_position_only(self_attention_with(causal(0)), x));
  EXPECT_FALSE(has_gradient_up_to_each_position_only(self_attention_with({}), x));
  EXPECT_FALSE(has_gradient_up_to_each_position_only(self_attention_with(causal(1)), x));
  EXPECT_FALSE(has_gradient_up_to_each_position_only(self_attention_zeroed_after_softmax, x));
}

TEST(Claim07PrefixPerturbation, OfKeysAndValuesAloneLeavesEarlierOutputsToo) {
  const Case c = causal_square();
  auto of_key = [&](const Mask& mask) {
    return [&c, mask](const V& key) {
      return attention(V(c.in.query), key, V(c.in.value), masked_by(mask)).output;
    };
  };
  auto of_value = [&](const Mask& mask) {
    return [&c, mask](const V& value) {
      return attention(V(c.in.query), V(c.in.key), value, masked_by(mask)).output;
    };
  };
  EXPECT_TRUE(keeps_prefixes(of_key(causal(0)), c.in.key));
  EXPECT_TRUE(keeps_prefixes(of_value(causal(0)), c.in.value));
  EXPECT_FALSE(keeps_prefixes(of_key({}), c.in.key));
  EXPECT_FALSE(keeps_prefixes(of_value({}), c.in.value));
}

TEST(Claim07PrefixPerturbation, HoldsThroughAWholeCausalModel) {
  Generator random(74);
  const auto model = CausalModel<double>::initial(
      random, {.vocabulary = 7, .context = 5, .width = 6, .heads = 2, .layers = 2, .hidden = 11});
  const A embedded = random.normal<double>({2, 5, 6});
  const OnSequence logits = [&](const V& x) { return model.continued(x); };
  EXPECT_TRUE(keeps_prefixes(logits, embedded));
  EXPECT_TRUE(has_gradient_up_to_each_position_only(logits, embedded));
  const OnSequence unmasked = [&](const V& x) { return model.layers[0](x, {}); };
  EXPECT_FALSE(keeps_prefixes(unmasked, embedded));
  EXPECT_FALSE(has_gradient_up_to_each_position_only(unmasked, embedded));
}

// ---- 8  basis changes

A random_orthogonal(std::uint64_t seed, Index n) {
  const A square = Generator(seed).normal<double>({n, n});
  const auto [q, r] = xt::linalg::qr(xt::xarray<double>(as_xtensor(square)));
  return from_xtensor(xt::xarray<double>(q));
}
// Orthogonal times a triangle with 1 on its diagonal: far from orthogonal, and a condition of about ten.
A random_invertible(std::uint64_t seed, Index n) {
  A triangle = A::eye(n);
  Generator random(seed);
  for (Index i = 0; i < n; ++i) {
    for (Index j = i + 1; j < n; ++j) triangle.set({i, j}, random.uniform() - 0.5);
  }
  return product(random_orthogonal(seed, n), triangle);
}
A inverse(const A& matrix) { return from_xtensor(xt::linalg::inv(xt::xarray<double>(as_xtensor(matrix)))); }

A weights_between(const A& query, const A& key) {
  const V no_value(A::zeros(key.shape().with(key.rank() - 1, 1)));
  return attention(V(query), V(key), no_value, with_weights()).weights->value();
}

TEST(Claim08Basis, AnOrthogonalOneOnQueriesAndKeysLeavesTheWeights) {
  const Inputs in = random_inputs(81, 3, 5, 7, 2);
  const A R = random_orthogonal(82, 7);
  ASSERT_TRUE(agree(product(R, transposed(R)), A::eye(7), rounding));
  const A weights = weights_between(in.query, in.key);
  EXPECT_TRUE(agree(weights_between(product(in.query, R), product(in.key, R)), weights, rounding));
  EXPECT_FALSE(agree(weights_between(product(in.query, R), in.key), weights, visible));
}

TEST(Claim08Basis, AnInvertibleOneOnQueriesAndItsInverseTransposeOnKeysLeaveTheWeights) {
  const Inputs in = random_inputs(81, 3, 5, 7, 2);
  const A R = random_invertible(83, 7);
  ASSERT_TRUE(agree(product(R, inverse(R)), A::eye(7), rounding));
  const A weights = weights_between(in.query, in.key);
  EXPECT_TRUE(agree(weights_between(product(in.query, R), product(in.key, transposed(inverse(R)))), weights,
                    rounding));
  EXPECT_FALSE(agree(weights_between(product(in.query, R), product(in.key, inverse(R))), weights, visible));
}

TEST(Claim08Basis, TheSameNonOrthogonalOneOnBothChangesTheWeights) {
  const Inputs in = random_inputs(81, 3, 5, 7, 2);
  const A R = random_invertible(83, 7);
  EXPECT_FALSE(agree(weights_between(product(in.query, R), product(in.key, R)),
                     weights_between(in.query, in.key), visible));
}

TEST(Claim08Basis, OneOfValuesUndoneByTheOutputProjectionLeavesTheOutput) {
  SelfAttentionCase c = random_self_attention(causal(0));
  Generator random(84);
  const A w_value = c.layer.value.w.value(), w_out = random.normal<double>({7, 3});
  const A R = random_invertible(85, 7);
  auto output_with = [&](const A& value_weights, const A& out_weights) {
    c.layer.value.w = value_weights;
    c.layer.out = Projection<double>{out_weights};
    return c.layer(V(c.x), c.options).output;
  };
  const V before = output_with(w_value, w_out);
  EXPECT_TRUE(agree(output_with(product(w_value, R), product(inverse(R), w_out)), before, rounding));
  EXPECT_FALSE(agree(output_with(product(w_value, R), product(transposed(R), w_out)), before, visible));
}

A with_rows_permuted(const A& x, const std::vector<Index>& order) {  // of the axis before the last
  A y = A::uninitialized(x.shape());
  for (Index b = 0; b < x.dim(0); ++b) {
    for (Index i = 0; i < x.dim(1); ++i) {
      for (Index d = 0; d < x.dim(2); ++d) y.set({b, i, d}, x(b, order[static_cast<std::size_t>(i)], d));
    }
  }
  return y;
}

bool is_permutation_equivariant(const OnSequence& f, const A& x) {
  for (const std::vector<Index>& order :
       {std::vector<Index>{4, 2, 0, 1, 3}, {1, 0, 2, 3, 4}, {1, 2, 3, 4, 0}}) {
    const A expected = with_rows_permuted(f(V(x)).value(), order);
    if (!agree(f(V(with_rows_permuted(x, order))), expected, rounding)) return false;
  }
  return true;
}

TEST(Claim08Permutation, UnmaskedAttentionIsEquivariantAndAFixedCausalMaskBreaksIt) {
  const A x = random_self_attention({}).x;
  EXPECT_TRUE(is_permutation_equivariant(self_attention_with({}), x));
  EXPECT_FALSE(is_permutation_equivariant(self_attention_with(causal(0)), x));
}

Index best_key(const A& weights, Index row) {
  const double* w = weights.data() + row * weights.dim(1);
  return std::max_element(w, w + weights.dim(1)) - w;
}

TEST(Claim08ShiftedKeys, OnAnOrthogonalBasisQueryMatchesTheNextPosition) {
  const Index n = 5;
  const A basis = random_orthogonal(86, n);
  A shifted = A::uninitialized({n, n});  // the key at j is the basis vector of j - 1, cyclically
  for (Index j = 0; j < n; ++j) {
    for (Index d = 0; d < n; ++d) shifted.set({j, d}, basis((j + n - 1) % n, d));
  }
  for (Index i = 0; i < n; ++i) {
    EXPECT_EQ(best_key(weights_between(basis, shifted), i), (i + 1) % n);
    EXPECT_EQ(best_key(weights_between(basis, basis), i), i);
  }
}

}  // namespace
}  // namespace tapehead::derivation
