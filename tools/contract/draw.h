#pragma once
// The inputs that claims are tried on. All drawn numbers are held exactly by float, so that both types
// compute the same problem.

#include <cmath>

#include <tapehead/core/random.h>
#include <tools/contract/trial.h>

namespace tapehead::contract {

// How many of each; grouped heads when there are fewer key heads.
struct Sizes {
  Index batches = 1, heads = 1, key_heads = 1, queries = 3, keys = 5, width = 8, value_width = 4;
};

inline Array<double> drawn(Generator& random, const Shape& shape) {
  return random.normal<float>(shape).cast<double>();
}

inline Problem drawn_problem(std::uint64_t seed, const Sizes& n) {
  Generator random(seed);
  Problem problem;
  problem.query = drawn(random, {n.batches, n.heads, n.queries, n.width});
  problem.key = drawn(random, {n.batches, n.key_heads, n.keys, n.width});
  problem.value = drawn(random, {n.batches, n.key_heads, n.keys, n.value_width});
  return problem;
}

// Wants gradients of the output times normal numbers, of both signs.
inline Problem with_upstream(Problem problem, std::uint64_t seed = 991) {
  Generator random(seed);
  problem.upstream = drawn(random, problem.scores().with(3, problem.value_width()));
  return problem;
}

// Values (B, Hk, S, S) of which key j has row j of the identity: the output is then the weights.
inline Problem showing_weights(Problem problem) {
  const Index S = problem.keys();
  problem.value = Array<double>::zeros(problem.key.shape().with(3, S));
  for (Index n = 0; n < problem.value.size(); ++n) {
    if (n / S % S == n % S) problem.value.mutable_values()[static_cast<std::size_t>(n)] = 1;
  }
  return problem;
}

template <class F>
Array<double> mapped(const Array<double>& x, F f) {
  Array<double> y = x;
  Index n = 0;
  for (double& v : y.mutable_values()) v = f(n++, v);
  return y;
}

// Rows order[0], order[1] ... of the axis before the last.
inline Array<double> rows_of(const Array<double>& x, const std::vector<Index>& order) {
  const Index rows = x.dim(-2), width = x.dim(-1), count = static_cast<Index>(order.size());
  auto y = Array<double>::uninitialized(x.shape().with(x.rank() - 2, count));
  double* out = y.mutable_values().data();
  for (Index n = 0; n < y.size(); ++n) {
    const Index matrix = n / (count * width), row = order[static_cast<std::size_t>(n / width % count)];
    out[n] = x.data()[(matrix * rows + row) * width + n % width];
  }
  return y;
}
inline std::vector<Index> range(Index from, Index to) {
  std::vector<Index> numbers;
  for (Index i = from; i < to; ++i) numbers.push_back(i);
  return numbers;
}

// scale q . k in double, (B, H, L, S), without cap, bias and mask.
inline Array<double> scores_of(const Problem& p) {
  auto scores = Array<double>::zeros(p.scores());
  double* out = scores.mutable_values().data();
  const Index L = p.queries(), S = p.keys(), D = p.width(), group = p.heads() / p.key_heads();
  for (Index n = 0; n < scores.size(); ++n) {
    const Index row = n / S, head = row / L, g = head / p.heads() * p.key_heads() + head % p.heads() / group;
    for (Index d = 0; d < D; ++d) {
      out[n] += p.scale_in_force() * p.query.data()[row * D + d] * p.key.data()[(g * S + n % S) * D + d];
    }
  }
  return scores;
}

}  // namespace tapehead::contract
