#pragma once
// What the tests of the derivation share. Each check there is shown twice: that what is right passes it, and
// that what is wrong, made on purpose, does not.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention_reference.h>
#include <tapehead/nn/layers.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include "support/compare.h"
#include "support/differences.h"
#include "support/expect_error.h"
#include "support/golden.h"

namespace tapehead::derivation {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;
using Result = AttentionResult<double>;

inline constexpr double infinity = std::numeric_limits<double>::infinity();

// What separates two correct evaluations: sums of a few dozen products of numbers near 1, each rounded
// to 1.1e-16.
inline constexpr double rounding = 1e-12;
// What a mistake must differ by to count as seen: nine orders above rounding.
inline constexpr double visible = 1e-3;

// ---- what is compared with what

struct Inputs {
  A query, key, value, upstream;
};

inline Inputs random_inputs(std::uint64_t seed, Index L, Index S, Index D, Index E,
                            const Shape& leading = {2}) {
  Generator random(seed);
  auto draw = [&](Index rows, Index columns) {
    return random.normal<double>(leading.followed_by({rows, columns}));
  };
  return {draw(L, D), draw(S, D), draw(S, E), draw(L, E)};
}

// All that an evaluation of attention gives, upstream being the gradient of output.
struct Numbers {
  A output, weights, dquery, dkey, dvalue;
};

inline testing::AssertionResult agree(const Numbers& actual, const Numbers& expected, double tolerance) {
  const std::tuple<const char*, A Numbers::*> parts[] = {{"output", &Numbers::output},
                                                         {"weights", &Numbers::weights},
                                                         {"dquery", &Numbers::dquery},
                                                         {"dkey", &Numbers::dkey},
                                                         {"dvalue", &Numbers::dvalue}};
  for (const auto& [name, part] : parts) {
    const testing::AssertionResult result = agree(actual.*part, expected.*part, tolerance);
    if (!result) return testing::AssertionFailure() << name << ": " << result.message();
  }
  return testing::AssertionSuccess();
}

inline Mask causal(Index offset) { return Mask::causal(offset); }

inline Options scaled_by(Scale<double> scale, Mask mask = {}, bool weights = false) {
  Options options;
  options.scale = std::move(scale);
  options.mask = std::move(mask);
  options.weights = weights;
  return options;
}
inline Options masked_by(Mask mask, bool weights = false) { return scaled_by({}, std::move(mask), weights); }
inline Options with_weights() { return scaled_by({}, {}, true); }

using Attend = std::function<Result(const V& query, const V& key, const V& value)>;

inline Attend attention_with(Options options) {
  options.weights = true;
  return [options](const V& query, const V& key, const V& value) {
    return attention(query, key, value, options);
  };
}

inline Numbers evaluated(const Attend& attend, const Inputs& in) {
  Tape<double> tape;
  const V query = tape.input(in.query), key = tape.input(in.key), value = tape.input(in.value);
  const Result result = attend(query, key, value);
  const auto d = gradient_values(result.output, {query, key, value}, V(in.upstream));
  return {result.output.value(), result.weights->value(), d[0], d[1], d[2]};
}

inline Numbers formulas(const Inputs& in, const Options& options) {
  const AttentionReference r = attention_reference(in.query, in.key, in.value, options, {in.upstream});
  return {r.output, r.weights, r.dquery, r.dkey, r.dvalue};
}

// Each row of weights sums to 1, to a rounding error a term.
inline testing::AssertionResult rows_sum_to_one(const A& weights) {
  const Index S = weights.dim(-1);
  for (Index row = 0; row < weights.size() / S; ++row) {
    const double total = std::accumulate(weights.data() + row * S, weights.data() + (row + 1) * S, 0.0);
    if (!(std::abs(total - 1) <= 1e-15 * static_cast<double>(S))) {
      return testing::AssertionFailure() << "row " << row << " sums to " << total;
    }
  }
  return testing::AssertionSuccess();
}

inline bool all_finite(const A& x) {
  return std::all_of(x.values().begin(), x.values().end(), [](double v) { return std::isfinite(v); });
}

// ---- attention with a part exchanged

inline V scores_of(const V& query, const V& key) {
  return matmul(query, key, false, true) / std::sqrt(static_cast<double>(query.dim(-1)));
}

inline Result weighted(const V& weights, const V& value) { return {matmul(weights, value), weights}; }

// The softmax of ops/ with another rule: rule(y, dy) is the gradient of the scores.
template <class Rule>
inline V softmax_with_rule(const V& scores, Rule rule) {
  return record("softmax", softmax(scores.detach()).value(), edge(scores, rule));
}

inline V kept(const V& x, const Mask& mask, double fill) {
  return masked_fill(x, mask.expanded(x.shape()), fill);
}

// Attention whose scores are z (L, S) itself: the queries are z, the keys unit vectors, the scale is 1.
inline Result attention_on(const V& z, const V& value, const Mask& mask = {}, double scale = 1) {
  return attention(z, V(A::eye(z.dim(-1))), value, scaled_by(scale, mask, true));
}
inline A weights_on(const A& z, double scale = 1) {
  return attention_on(V(z), V(A::zeros({z.dim(-1), 1})), {}, scale).weights->value();
}

// ---- plain loops

// Y = A B; the leading axes of A count as rows.
inline A product(const A& a, const A& b) {
  A y = A::zeros(a.shape().with(a.rank() - 1, b.dim(1)));
  const Index N = a.dim(-1), P = b.dim(1);
  double* out = y.mutable_values().data();
  for (Index i = 0; i < a.size() / N; ++i) {
    for (Index j = 0; j < P; ++j) {
      for (Index k = 0; k < N; ++k) out[i * P + j] += a.data()[i * N + k] * b.data()[k * P + j];
    }
  }
  return y;
}
inline A transposed(const A& a) {
  A y = A::uninitialized({a.dim(1), a.dim(0)});
  for (Index i = 0; i < a.dim(0); ++i) {
    for (Index j = 0; j < a.dim(1); ++j) y.set({j, i}, a(i, j));
  }
  return y;
}
// X^T Y over all rows of both.
inline A product_of_rows(const A& x, const A& y) {
  return product(transposed(x.reshape({-1, x.dim(-1)})), y.reshape({-1, y.dim(-1)}));
}
template <class F>
inline A mapped(const A& x, F f) {
  A y = x;
  for (double& v : y.mutable_values()) v = f(v);
  return y;
}
inline A scaled(const A& x, double c) {
  return mapped(x, [c](double v) { return c * v; });
}
inline A sum_of(const std::vector<A>& terms) {
  A total = A::zeros(terms.at(0).shape());
  for (const A& term : terms) {
    for (std::size_t i = 0; i < term.values().size(); ++i) total.mutable_values()[i] += term.values()[i];
  }
  return total;
}
inline double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
inline double mean_of(std::span<const double> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}
inline double variance_of(std::span<const double> x) {
  const double m = mean_of(x);
  double total = 0;
  for (const double v : x) total += (v - m) * (v - m);
  return total / static_cast<double>(x.size());
}

// ---- cases that several claims look at

struct Case {
  Inputs in;
  Options options;
};

inline Case rectangular() { return {random_inputs(11, 3, 5, 7, 2), {}}; }
inline Case causal_square() { return {random_inputs(12, 4, 4, 3, 5), masked_by(causal(0))}; }
inline Case cached_prefix() { return {random_inputs(13, 2, 5, 7, 3), masked_by(causal(3))}; }

inline Inputs inputs_of(const Golden& golden) {
  return {golden.array("query"), golden.array("key"), golden.array("value"), golden.array("upstream")};
}
inline Numbers numbers_of(const Golden& golden) {
  return {golden.array("output"), golden.array("weights"), golden.array("grad_query"),
          golden.array("grad_key"), golden.array("grad_value")};
}

// Of central differences.
inline constexpr double steps[] = {1e-4, 1e-5, 1e-6};

struct SelfAttentionCase {
  A x, upstream;
  MultiHeadAttention<double> layer;
  Options options;
};

inline SelfAttentionCase random_self_attention(Mask mask) {
  Generator random(31);
  SelfAttentionCase c;
  c.x = random.normal<double>({2, 5, 4});
  c.layer.query.w = random.normal<double>({4, 3});
  c.layer.key.w = random.normal<double>({4, 3});
  c.layer.value.w = random.normal<double>({4, 7});
  c.upstream = random.normal<double>({2, 5, 7});
  c.options.mask = std::move(mask);
  return c;
}

// The gradient of the masked scores z for the upstream gradient of the output.
inline A dz_of(const std::function<V(const V& z)>& output_of, const A& z, const A& upstream) {
  Tape<double> tape;
  const V scores = tape.input(z);
  return gradient_values(output_of(scores), scores, V(upstream))[0];
}

}  // namespace tapehead::derivation
