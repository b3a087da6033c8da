#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/nn/attention.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include <cmath>
#include <limits>

namespace tapehead {
namespace {

template <class T>
void require_shapes(const Var<T>& query, const Var<T>& key, const Var<T>& value) {
  auto reject = [&](std::string_view what) {
    throw ShapeError("attention", what,
                     {{"query", query.shape()}, {"key", key.shape()}, {"value", value.shape()}});
  };
  const int rank = query.rank();
  if (rank < 2 || key.rank() != rank || value.rank() != rank) {
    reject("needs query (..., L, D), key (..., S, D), value (..., S, E)");
  }
  if (query.dim(-1) != key.dim(-1)) reject("the widths of query and key differ");
  if (key.dim(-2) != value.dim(-2)) reject("the lengths of key and value differ");
  const Shape leading = query.shape().first(rank - 2);
  if (key.shape().first(rank - 2) != leading || value.shape().first(rank - 2) != leading) {
    reject("the leading axes differ");
  }
  if (query.dim(-1) == 0) reject("the head width is 0");
  if (key.dim(-2) == 0) reject("there is no key");
}

template <class T>
void require_rows_with_keys(const Array<T>& scores) {
  const Index keys = scores.dim(-1);
  const T infinity = std::numeric_limits<T>::infinity();
  for (Index row = 0; row < scores.size() / keys; ++row) {
    const T* s = scores.data() + row * keys;
    T largest = -infinity;
    bool nan = false;
    for (Index j = 0; j < keys; ++j) {
      largest = s[j] > largest ? s[j] : largest;
      nan |= s[j] != s[j];
    }
    if (!nan && largest > -infinity && largest < infinity) continue;
    const std::string what = nan           ? "a score is not a number"
                             : largest > 0 ? "a score is infinite"
                                           : "no key is allowed";
    throw DomainError("attention", what + ": " + place_of_row(scores.shape(), row));
  }
}

template <class T>
Var<T> scaled(const Var<T>& scores, const Scale<T>& scale, Index width) {
  if (!scale.var()) return scores * scale.number(width);
  const Var<T>& s = *scale.var();
  if (!broadcasts_to(s.shape(), scores.shape())) {
    throw ShapeError("attention", "the scale does not broadcast to the scores",
                     {{"scale", s.shape()}, {"scores", scores.shape()}});
  }
  for (const T x : s.value().values()) {
    if (!std::isfinite(x)) throw DomainError("attention", "the scale is not finite");
  }
  return scores * s;
}

}  // namespace

template <std::floating_point T>
double Scale<T>::number(Index width) const {
  const double scale = number_.value_or(1 / std::sqrt(static_cast<double>(width)));
  if (!std::isfinite(scale)) throw DomainError("attention", "the scale is not finite");
  return scale;
}

template <std::floating_point T>
AttentionResult<T> attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                             const AttentionOptions<T>& options) {
  require_shapes(query, key, value);
  const Var<T> q = port(query, "query"), k = port(key, "key"), v = port(value, "value");
  Var<T> scores = scaled(matmul(q, k, false, true), options.scale, query.dim(-1));
  if (!options.mask.allows_all()) {
    scores =
        masked_fill(scores, options.mask.expanded(scores.shape()), -std::numeric_limits<double>::infinity());
  }
  require_rows_with_keys(scores.value());
  const Var<T> weights = softmax(scores);
  AttentionResult<T> result{matmul(weights, v), {}};
  if (options.weights) result.weights = weights;
  return result;
}

template <std::floating_point T>
Var<T> split_heads(const Var<T>& x, Index heads) {
  if (x.rank() < 2 || heads < 1 || x.dim(-1) % heads != 0) {
    throw ShapeError("split_heads", std::to_string(heads) + " heads do not divide the last axis",
                     {{"x", x.shape()}});
  }
  const Var<T> by_head = reshape(x, x.shape().first(x.rank() - 1).followed_by({heads, x.dim(-1) / heads}));
  return transpose(by_head, -3, -2);
}

template <std::floating_point T>
Var<T> merge_heads(const Var<T>& x) {
  if (x.rank() < 3) throw ShapeError("merge_heads", "needs (..., H, L, D)", {{"x", x.shape()}});
  const Var<T> by_token = transpose(x, -3, -2);
  return reshape(by_token, x.shape().first(x.rank() - 3).followed_by({x.dim(-2), x.dim(-3) * x.dim(-1)}));
}

#define TAPEHEAD_INSTANTIATE(T)                                                      \
  template class Scale<T>;                                                           \
  template AttentionResult<T> attention(const Var<T>&, const Var<T>&, const Var<T>&, \
                                        const AttentionOptions<T>&);                 \
  template Var<T> split_heads(const Var<T>&, Index);                                 \
  template Var<T> merge_heads(const Var<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
