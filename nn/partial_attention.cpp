#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/nn/attention_parts.h>
#include <tapehead/nn/partial_attention.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapehead {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class T>
void require_for_parts(const AttentionOptions<T>& options) {
  auto reject = [](const char* what) { throw LogicError("partial_attention", what); };
  if (options.sink) reject("a sink counts once, not in every part: merge a sink_part");
  if (options.dropout || options.kept) reject("dropout falls on weights, and a part has none");
  if (options.weights) reject("weights need the sum over all keys");
  if (options.statistics) reject("statistics need the weights of all keys");
  if (options.scaled_scores || options.capped_scores || options.masked_scores) {
    reject("scores are asked of attention()");
  }
  if (options.kernel == AttentionKernel::fused) reject("a part is composed of ops");
}

void require_keys(const Array<Index>& keys, Index S) {
  if (keys.rank() != 1) {
    throw ShapeError("partial_attention", "keys must be a list of numbers", {{"keys", keys.shape()}});
  }
  Array<bool> named = Array<bool>::full({S}, false);
  bool* const seen = named.mutable_values().data();
  for (const Index key : keys.values()) {
    if (key < 0 || key >= S) {
      throw DomainError("partial_attention", "key " + std::to_string(key) + " of " + std::to_string(S));
    }
    if (std::exchange(seen[key], true)) {
      throw DomainError("partial_attention", "key " + std::to_string(key) + " is named twice");
    }
  }
}

// The columns of x, which broadcasts to the scores, that belong to the keys.
template <class T>
Var<T> columns(const Var<T>& x, const Array<Index>& keys) {
  return x.rank() == 0 || x.dim(-1) == 1 ? x : index_select(x, keys, -1);
}
Array<bool> columns(const Array<bool>& x, const Array<Index>& keys) {
  if (!x.defined() || x.dim(-1) == 1) return x;
  auto picked = Array<bool>::uninitialized(x.shape().with(-1, keys.size()));
  bool* out = picked.mutable_values().data();
  for (const bool* row = x.data(); row != x.data() + x.size(); row += x.dim(-1)) {
    for (const Index key : keys.values()) *out++ = row[key];
  }
  return picked;
}

// The options of all keys as those of some: norm and positions done, slopes as a bias.
template <class T>
AttentionOptions<T> of_keys(const AttentionOptions<T>& options, const Shape& scores,
                            const Array<Index>& keys) {
  AttentionOptions<T> part;
  part.scale = options.scale;
  part.softcap = options.softcap;
  if (options.scale.var()) part.scale = Scale<T>(columns(*options.scale.var(), keys));
  if (options.bias) part.bias = columns(*options.bias, keys);
  if (options.slopes) {
    const Var<T> slopes = -columns(detail::distance_penalty(options, scores), keys);
    part.bias = part.bias ? *part.bias + slopes : slopes;
  }
  return part;
}

template <class T>
PartialAttention<T> nothing(const Shape& output) {
  const Shape rows = output.without(-1);
  return {Array<T>::full(rows, static_cast<T>(-infinity)), Var<T>(Array<T>::zeros(rows)),
          Var<T>(Array<T>::zeros(output)), Array<bool>::full(rows, false)};
}

// Of masked scores (..., H, L, n) and value (..., Hk, n, E).
template <class T>
PartialAttention<T> summed(const Var<T>& scores, const Var<T>& value) {
  const Array<bool> rows = detail::rows_with_keys(scores.value(), EmptyRows::zero);
  const Shape shape = scores.shape().without(-1);
  const Var<T> s = detail::selected(scores, rows);
  const Var<T> largest = amax(s.detach(), -1, Keep::yes);
  const Var<T> exponentials = detail::selected(exp(s - largest), rows);
  const Var<T> weighted = detail::reshaped(matmul(detail::grouped(exponentials, value.shape()), value),
                                           scores.shape().with(-1, value.dim(-1)));
  const Var<T> maximum = rows.defined() ? masked_fill(largest, rows, -infinity) : largest;
  return {maximum.value().reshape(shape), sum(exponentials, -1), detail::selected(weighted, rows),
          rows.defined() ? rows.reshape(shape) : Array<bool>::full(shape, true)};
}

// exp(own - maximum), by which what was summed with the own maximum is multiplied; 0 where nothing was.
template <class T>
Array<T> rescaling(const Array<T>& own, const Array<T>& maximum) {
  auto factors = Array<T>::uninitialized(own.shape());
  std::transform(own.values().begin(), own.values().end(), maximum.values().begin(),
                 factors.mutable_values().begin(),
                 [](T m, T all) { return m == -infinity ? T{0} : std::exp(m - all); });
  return factors;
}

// x (..., L) as (..., L, 1)
template <class T>
Var<T> as_column(const Var<T>& x) {
  return reshape(x, x.shape().followed_by({1}));
}

// The sums, and 1 for rows that have none, so that dividing by them is 0 / 1 and their logarithm 0.
template <class T>
Var<T> divisors(const PartialAttention<T>& part) {
  auto missing = Array<T>::zeros(part.maximum.shape());
  bool any = false;
  std::transform(part.maximum.values().begin(), part.maximum.values().end(), missing.mutable_values().begin(),
                 [&](T m) {
                   any |= m == -infinity;
                   return m == -infinity ? T{1} : T{0};
                 });
  return any ? part.sum + Var<T>(missing) : part.sum;
}

}  // namespace

template <std::floating_point T>
Var<T> PartialAttention<T>::output(EmptyRows empty_rows) const {
  const auto empty = std::find(has_key.values().begin(), has_key.values().end(), false);
  if (empty_rows == EmptyRows::error && empty != has_key.values().end()) {
    throw DomainError(
        "PartialAttention::output",
        "no key is allowed: " + place_of_row(weighted.shape(), empty - has_key.values().begin()));
  }
  return weighted / as_column(divisors(*this));
}

template <std::floating_point T>
Var<T> PartialAttention<T>::log_sum_exp() const {
  return masked_fill(Var<T>(maximum) + log(divisors(*this)), has_key, -infinity);
}

template <std::floating_point T>
PartialAttention<T> partial_attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                                      const Array<Index>& keys, const AttentionOptions<T>& options) {
  detail::require_dot_product_shapes("partial_attention", query.shape(), key.shape(), value.shape());
  require_for_parts(options);
  require_keys(keys, key.dim(-2));
  AttentionOptions<T> rows_may_be_empty = options;
  rows_may_be_empty.empty_rows = EmptyRows::zero;
  const Shape scores = detail::scores_shape(query.shape(), key.shape());
  const detail::Exclusion excluded = detail::exclusion(rows_may_be_empty, scores, key.shape());
  const AttentionOptions<T> part = of_keys(options, scores, keys);
  if (keys.size() == 0) return nothing<T>(query.shape().with(-1, value.dim(-1)));

  auto picked = [&](const Var<T>& x) {
    return index_select(detail::selected(x, excluded.seen_keys), keys, -2);
  };
  const Var<T> q = detail::selected(
      detail::placed_query(port(query, "query"), options, options.query_offset, excluded.rows),
      excluded.rows);
  const Var<T> k = picked(detail::placed_key(port(key, "key"), options, 0, excluded.seen_keys));
  const Var<T> v = picked(port(value, "value"));
  const Var<T> raw = detail::dot_products(q, k);
  detail::Exclusion of_part;
  of_part.allowed = columns(excluded.allowed, keys);
  const double scale = 1 / std::sqrt(static_cast<double>(query.dim(-1)));
  return summed(detail::masked_scores(raw, scale, of_part, part), v);
}

template <std::floating_point T>
PartialAttention<T> partial_attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                                      KeyRange keys, const AttentionOptions<T>& options) {
  detail::require_attention_shapes("partial_attention", query.shape(), key.shape(), value.shape());
  if (keys.first < 0 || keys.first > keys.last || keys.last > key.dim(-2)) {
    throw DomainError("partial_attention", "keys " + std::to_string(keys.first) + " to before " +
                                               std::to_string(keys.last) + " of " +
                                               std::to_string(key.dim(-2)));
  }
  return partial_attention(query, key, value, Array<Index>::arange(keys.first, keys.last), options);
}

template <std::floating_point T>
PartialAttention<T> sink_part(const Var<T>& sink, const Shape& output) {
  const Index heads = output.rank() >= 4 ? output.dim(-3) : 1;
  if (output.rank() < 2 || sink.shape() != Shape{heads}) {
    throw ShapeError("sink_part", "needs a number for each head of an output (..., H, L, E)",
                     {{"sink", sink.shape()}, {"output", output}});
  }
  for (const T x : sink.value().values()) {
    if (!std::isfinite(x)) throw DomainError("sink_part", "a sink is not finite");
  }
  const Shape rows = output.without(-1);
  const Var<T> score = broadcast_to(output.rank() >= 4 ? reshape(sink, Shape{heads, 1}) : sink, rows);
  return {score.value(), exp(score - score.detach()), Var<T>(Array<T>::zeros(output)),
          Array<bool>::full(rows, false)};
}

template <std::floating_point T>
PartialAttention<T> merge(const PartialAttention<T>& a, const PartialAttention<T>& b) {
  if (a.weighted.shape() != b.weighted.shape()) {
    throw ShapeError("merge", "the parts are of different rows or values",
                     {{"a", a.weighted.shape()}, {"b", b.weighted.shape()}});
  }
  auto maximum = Array<T>::uninitialized(a.maximum.shape());
  std::transform(a.maximum.values().begin(), a.maximum.values().end(), b.maximum.values().begin(),
                 maximum.mutable_values().begin(), [](T x, T y) { return std::max(x, y); });
  auto has_key = Array<bool>::uninitialized(a.has_key.shape());
  std::transform(a.has_key.values().begin(), a.has_key.values().end(), b.has_key.values().begin(),
                 has_key.mutable_values().begin(), [](bool x, bool y) { return x || y; });
  const Var<T> by_a(rescaling(a.maximum, maximum)), by_b(rescaling(b.maximum, maximum));
  return {maximum, a.sum * by_a + b.sum * by_b, a.weighted * as_column(by_a) + b.weighted * as_column(by_b),
          has_key};
}

#define TAPEHEAD_INSTANTIATE(T)                                                                         \
  template struct PartialAttention<T>;                                                                  \
  template PartialAttention<T> partial_attention(const Var<T>&, const Var<T>&, const Var<T>&,           \
                                                 const Array<Index>&, const AttentionOptions<T>&);      \
  template PartialAttention<T> partial_attention(const Var<T>&, const Var<T>&, const Var<T>&, KeyRange, \
                                                 const AttentionOptions<T>&);                           \
  template PartialAttention<T> sink_part(const Var<T>&, const Shape&);                                  \
  template PartialAttention<T> merge(const PartialAttention<T>&, const PartialAttention<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
