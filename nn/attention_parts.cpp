#include <tapehead/core/errors.h>
#include <tapehead/nn/attention_parts.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapehead::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Index heads_of(const Shape& query) { return query.rank() >= 4 ? query.dim(-3) : 1; }

void require_broadcast(const char* what, const Shape& shape, const Shape& scores) {
  if (broadcasts_to(shape, scores)) return;
  throw ShapeError("attention", std::string("the ") + what + " does not broadcast to the scores",
                   {{what, shape}, {"scores", scores}});
}

// A Var of one number a head, (H), as an array that broadcasts to the scores.
template <class T>
Var<T> of_heads(const Var<T>& numbers, const Shape& scores) {
  return scores.rank() >= 4 ? reshape(numbers, Shape{heads_of(scores), 1, 1}) : numbers;
}

template <class T>
bool all_finite(const Array<T>& x) {
  return std::all_of(x.values().begin(), x.values().end(), [](T value) { return std::isfinite(value); });
}

// Whether any is true along the axis, which stays with extent 1.
Array<bool> any(const Array<bool>& x, int axis) {
  const Index extent = x.dim(axis);
  const Shape shape = x.shape().with(axis, 1);
  const Index inner = Strides(x.shape())[axis_of("any", x.shape(), axis)];
  Array<bool> result = Array<bool>::full(shape, false);
  bool* out = result.mutable_values().data();
  for (Index i = 0; i < shape.size(); ++i) {
    const bool* first = x.data() + i / inner * inner * extent + i % inner;
    for (Index k = 0; k < extent && !out[i]; ++k) out[i] = first[k * inner];
  }
  return result;
}

template <class T>
void require_of_heads(const char* what, const std::optional<Var<T>>& numbers, const Shape& scores) {
  if (!numbers) return;
  if (numbers->shape() != Shape{heads_of(scores)}) {
    throw ShapeError("attention", std::string(what) + " must be one number for each query head",
                     {{what, numbers->shape()}, {"scores", scores}});
  }
  if (!all_finite(numbers->value())) throw DomainError("attention", std::string(what) + " is not finite");
}

bool all(const Array<bool>& x) {
  return std::find(x.values().begin(), x.values().end(), false) == x.values().end();
}

// Heads (..., H, 1, S) of queries brought down to those of keys: whether any of a group sees the key.
Array<bool> any_of_group(const Array<bool>& seen, const Shape& scores, const Shape& key) {
  const Index own = heads_of(seen.shape()), key_heads = heads_of(key);
  if (own == 1 || key_heads == heads_of(scores)) return seen;
  const Shape leading = seen.shape().first(seen.rank() - 3);
  const Shape groups = leading.followed_by({key_heads, own / key_heads, 1, seen.dim(-1)});
  return any(seen.reshape(groups), -3).reshape(leading.followed_by({key_heads, 1, seen.dim(-1)}));
}

template <class T>
Var<T> scaled(const Var<T>& scores, const Scale<T>& scale, double otherwise) {
  if (!scale.var()) return scores * scale.number(otherwise);
  return scores * *scale.var();
}

template <class T>
Var<T> capped(const Var<T>& scores, double cap) {
  return cap == 0 ? scores : tanh(scores / cap) * cap;
}

// |position of query - position of key|, (..., 1, L, S) with the leading axes that the offset depends on.
template <class T>
Array<T> distances(const PerSample& offset, const Shape& scores) {
  const Shape shape = with_ones(offset.values().shape(), scores.rank() - 2);
  auto result = Array<T>::uninitialized(shape.followed_by(scores.last(2)));
  T* out = result.mutable_values().data();
  for (const Index first : offset.values().values()) {
    for (Index i = 0; i < scores.dim(-2); ++i) {
      for (Index j = 0; j < scores.dim(-1); ++j) {
        *out++ = std::abs(static_cast<T>(saturated_sum(first, i - j)));
      }
    }
  }
  return result;
}

template <class T>
Var<T> biased(Var<T> scores, const AttentionOptions<T>& options) {
  if (options.bias) scores = scores + *options.bias;
  return options.slopes ? scores - distance_penalty(options, scores.shape()) : scores;
}

template <class T>
Var<T> masked(const Var<T>& capped_scores, const Exclusion& excluded, const AttentionOptions<T>& options) {
  const Var<T> scores = biased(capped_scores, options);
  return excluded.allowed.defined() ? masked_fill(scores, excluded.allowed, -infinity) : scores;
}

}  // namespace

template <class T>
Array<bool> rows_with_keys(const Array<T>& scores, EmptyRows empty_rows) {
  const Index keys = scores.dim(-1);
  Array<bool> rows;
  for (Index row = 0; row < scores.size() / keys; ++row) {
    const T* s = scores.data() + row * keys;
    T largest = s[0];
    bool nan = false;
    for (Index j = 0; j < keys; ++j) {
      largest = s[j] > largest ? s[j] : largest;
      nan |= s[j] != s[j];
    }
    if (!nan && std::isfinite(largest)) continue;
    const bool empty = !nan && largest < 0;
    if (!empty || empty_rows == EmptyRows::error) {
      const std::string what = nan     ? "a score is not a number"
                               : empty ? "no key is allowed"
                                       : "a score is infinite";
      throw DomainError("attention", what + ": " + place_of_row(scores.shape(), row));
    }
    if (!rows.defined()) rows = Array<bool>::full(scores.shape().with(-1, 1), true);
    rows.mutable_values()[static_cast<std::size_t>(row)] = false;
  }
  return rows;
}

namespace {

// The scores with the sink as one more key.
template <class T>
Var<T> with_sink(const Var<T>& scores, const Var<T>& sink) {
  const Var<T> of_rows = of_heads(sink, scores.shape());
  return concat({scores, broadcast_to(of_rows, scores.shape().with(-1, 1))}, -1);
}

// The mean of numbers (..., L) of rows over those that have a key.
template <class T>
Var<T> mean_over_rows(const Var<T>& numbers, const Array<bool>& rows) {
  if (!rows.defined()) return mean(numbers, -1);
  const Array<bool> kept = rows.reshape(numbers.shape());
  auto count = Array<T>::zeros(numbers.shape().without(-1));
  T* const counts = count.mutable_values().data();
  for (Index i = 0; i < kept.size(); ++i) counts[i / kept.dim(-1)] += kept.data()[i] ? T{1} : T{0};
  for (Index i = 0; i < count.size(); ++i) counts[i] = std::max(counts[i], T{1});
  return sum(selected(numbers, kept), -1) / Var<T>(count);
}

// Of weights P over `columns`, the keys and the sink.
template <class T>
AttentionStatistics<T> statistics(const Var<T>& columns, const Var<T>& p, const Var<T>& masked,
                                  const Array<bool>& rows) {
  auto counted = Array<bool>::uninitialized(columns.shape());
  std::transform(columns.value().values().begin(), columns.value().values().end(),
                 counted.mutable_values().begin(), [](T score) { return score > -infinity; });
  const Var<T> log_p = masked_fill(log_softmax(columns), counted, 0);
  return {mean_over_rows(-sum(p * log_p, -1), rows), amax(masked, {-2, -1}),
          mean_over_rows(reshape(slice(p, -1, {0, 1}), p.shape().without(-1)), rows)};
}

// A row that is not kept may hold NaN: it is 1 here, lest the rule of the norm multiplies that NaN by 0.
template <class T>
Var<T> normed(const Var<T>& x, const Var<T>& gain, double eps, const Array<bool>& kept) {
  return rms_norm(kept.defined() ? masked_fill(x, kept, 1) : x, gain, eps);
}

Array<bool> kept_by(const Dropout& dropout, const Shape& scores) {
  if (const auto* given = std::get_if<Array<bool>>(&dropout.kept)) {
    if (given->shape() == scores) return *given;
    return positive(masked_fill(Var<float>(Array<float>::ones(scores)), *given, 0).value());
  }
  Generator generator = std::get<Generator>(dropout.kept);
  auto kept = Array<bool>::uninitialized(scores);
  for (bool& keep : kept.mutable_values()) keep = generator.uniform() >= dropout.rate;
  return kept;
}

}  // namespace

void require_attention_shapes(const char* op, const Shape& query, const Shape& key, const Shape& value) {
  auto reject = [&](std::string_view what) {
    throw ShapeError(op, what, {{"query", query}, {"key", key}, {"value", value}});
  };
  const int rank = query.rank();
  if (rank < 2 || key.rank() != rank || value.rank() != rank) {
    reject("needs query (..., L, D), key (..., S, D), value (..., S, E)");
  }
  if (key.dim(-2) != value.dim(-2)) reject("the lengths of key and value differ");
  const int others = rank >= 4 ? rank - 3 : rank - 2;
  if (query.first(others) != key.first(others) || key.first(rank - 2) != value.first(rank - 2)) {
    reject("the leading axes differ");
  }
  if (rank >= 4 && (key.dim(-3) == 0 || query.dim(-3) % key.dim(-3) != 0)) {
    reject("the heads of the key do not divide those of the query");
  }
  if (query.dim(-1) == 0) reject("the head width is 0");
  if (key.dim(-2) == 0) reject("there is no key");
}

void require_dot_product_shapes(const char* op, const Shape& query, const Shape& key, const Shape& value) {
  require_attention_shapes(op, query, key, value);
  if (query.dim(-1) == key.dim(-1)) return;
  throw ShapeError(op, "the widths of query and key differ",
                   {{"query", query}, {"key", key}, {"value", value}});
}

Shape scores_shape(const Shape& query, const Shape& key) { return query.with(-1, key.dim(-2)); }

template <class T>
Var<T> reshaped(const Var<T>& x, const Shape& shape) {
  return x.shape() == shape ? x : reshape(x, shape);
}

template <class T>
Var<T> grouped(const Var<T>& x, const Shape& key) {
  if (heads_of(x.shape()) == heads_of(key)) return x;
  const Index group = x.dim(-3) / key.dim(-3);
  return reshaped(x, key.first(key.rank() - 2).followed_by({group * x.dim(-2), x.dim(-1)}));
}

template <class T>
Var<T> dot_products(const Var<T>& query, const Var<T>& key) {
  return reshaped(matmul(grouped(query, key.shape()), key, false, true),
                  scores_shape(query.shape(), key.shape()));
}

template <class T>
Var<T> distance_penalty(const AttentionOptions<T>& options, const Shape& scores) {
  return of_heads(*options.slopes, scores) * Var<T>(distances<T>(options.query_offset, scores));
}

template <class T>
Var<T> placed_query(const Var<T>& query, const AttentionOptions<T>& options, const PerSample& query_offset,
                    const Array<bool>& kept) {
  const Var<T> x = options.norm ? normed(query, options.norm->query_gain, options.norm->eps, kept) : query;
  if (!options.rope) return x;
  RopeOptions rope_options = *options.rope;
  if (!rope_options.start.same() && !query_offset.same()) {
    throw DomainError("attention",
                      "give positions of each sample by rope.start or query_offset, not by both");
  }
  rope_options.start = query_offset.same() ? rope_options.start + query_offset.values().item()
                                           : query_offset + rope_options.start.values().item();
  return rope(x, rope_options);
}

template <class T>
Var<T> placed_key(const Var<T>& key, const AttentionOptions<T>& options, Index key_offset,
                  const Array<bool>& kept) {
  const Var<T> x = options.norm ? normed(key, options.norm->key_gain, options.norm->eps, kept) : key;
  if (!options.rope) return x;
  RopeOptions rope_options = *options.rope;
  rope_options.start = rope_options.start + key_offset;
  return rope(x, rope_options);
}

template <class T>
void require_options(const AttentionOptions<T>& options, const Shape& scores) {
  options.mask.require_fits(scores);
  if (const auto& scale = options.scale.var()) {
    require_broadcast("scale", scale->shape(), scores);
    if (!all_finite(scale->value())) throw DomainError("attention", "the scale is not finite");
  }
  if (!(options.softcap >= 0 && options.softcap < infinity)) {
    throw DomainError("attention",
                      "the softcap " + std::to_string(options.softcap) + " must be positive, or 0 for none");
  }
  if (options.bias) require_broadcast("bias", options.bias->shape(), scores);
  require_of_heads("slopes", options.slopes, scores);
  require_of_heads("sink", options.sink, scores);
  if (!options.query_offset.fits(scores.first(scores.rank() - 2))) {
    throw ShapeError("attention", "query_offset is not one for each sample of the scores",
                     {{"query_offset", options.query_offset.values().shape()}, {"scores", scores}});
  }
  if (!options.dropout) return;
  const double rate = options.dropout->rate;
  if (!(rate >= 0 && rate < 1)) {
    throw DomainError("attention", "the dropout rate " + std::to_string(rate) + " is not in [0, 1)");
  }
  if (const auto* given = std::get_if<Array<bool>>(&options.dropout->kept)) {
    require_broadcast("dropout mask", given->shape(), scores);
  }
}

template <class T>
Mask allowed_by(const Var<T>& bias) {
  const auto values = bias.value().values();
  const T excluded = -std::numeric_limits<T>::infinity();
  if (std::find(values.begin(), values.end(), excluded) == values.end()) return {};
  auto keys = Array<bool>::uninitialized(bias.shape());
  std::transform(values.begin(), values.end(), keys.mutable_values().begin(),
                 [=](T value) { return value != excluded; });
  return Mask::allowed(keys);
}

template <class T>
Exclusion exclusion(const AttentionOptions<T>& options, const Shape& scores, const Shape& key) {
  require_options(options, scores);
  Mask mask = options.mask;
  if (options.bias) mask = mask & allowed_by(*options.bias);
  Exclusion excluded;
  if (mask.allows_all()) return excluded;
  const Array<bool> allowed = mask.expanded(scores);
  if (all(allowed)) return excluded;
  excluded.allowed = allowed;
  const Array<bool> seen = any_of_group(any(allowed, -2), scores, key);
  if (!all(seen)) {
    const Shape shape = seen.shape().first(seen.rank() - 2).followed_by({seen.dim(-1), 1});
    excluded.seen_keys = seen.reshape(shape);
  }
  const Array<bool> rows = any(allowed, -1);
  if (all(rows)) return excluded;
  if (options.empty_rows == EmptyRows::error) {
    throw DomainError("attention",
                      "no key is allowed: " + place_of_row(scores, *mask.first_empty_row(scores)));
  }
  excluded.rows = rows;
  return excluded;
}

template <class T>
Var<T> selected(const Var<T>& x, const Array<bool>& kept) {
  return kept.defined() ? masked_fill(x, kept, 0) : x;
}

template <class T>
Var<T> masked_scores(const Var<T>& raw, double default_scale, const Exclusion& excluded,
                     const AttentionOptions<T>& options) {
  return masked(capped(scaled(raw, options.scale, default_scale), options.softcap), excluded, options);
}

template <class T>
Weighed<T> weighed(const Var<T>& raw, const Var<T>& shown, double default_scale, const Exclusion& excluded,
                   const AttentionOptions<T>& options) {
  Weighed<T> out;
  AttentionResult<T>& result = out.result;
  const Var<T> scores = scaled(raw, options.scale, default_scale);
  const Var<T> cap = capped(scores, options.softcap);
  const bool as_shown = raw.value().shares_storage_with(shown.value());
  if (options.scaled_scores || options.capped_scores) {
    const Var<T> all_scores = as_shown ? scores : scaled(shown, options.scale, default_scale);
    if (options.scaled_scores) result.scaled_scores = all_scores;
    if (options.capped_scores) result.capped_scores = as_shown ? cap : capped(all_scores, options.softcap);
  }
  const Var<T> masked = detail::masked(cap, excluded, options);
  if (options.masked_scores) result.masked_scores = masked;

  out.rows = rows_with_keys(masked.value(), options.empty_rows);
  const Var<T> keys = selected(masked, out.rows);  // an empty row gets weights here, and loses them below
  const Var<T> columns = options.sink ? with_sink(keys, *options.sink) : keys;
  const Var<T> p = selected(softmax(columns), out.rows);
  const Var<T> weights = options.sink ? slice(p, -1, {0, masked.dim(-1)}) : p;
  if (options.weights) result.weights = weights;
  if (options.log_sum_exp) {
    const Var<T> lse = logsumexp(columns, -1);
    result.log_sum_exp =
        out.rows.defined() ? masked_fill(lse, out.rows.reshape(lse.shape()), -infinity) : lse;
  }
  if (options.statistics) result.statistics = statistics(columns, p, masked, out.rows);
  out.weights = weights;
  if (options.dropout) {
    const Array<bool> kept = kept_by(*options.dropout, weights.shape());
    if (options.kept) result.kept = kept;
    out.weights = masked_fill(weights, kept, 0) * (1 / (1 - options.dropout->rate));
  }
  return out;
}

#define TAPEHEAD_INSTANTIATE(T)                                                                       \
  template Var<T> reshaped(const Var<T>&, const Shape&);                                              \
  template Var<T> grouped(const Var<T>&, const Shape&);                                               \
  template Var<T> dot_products(const Var<T>&, const Var<T>&);                                         \
  template Var<T> distance_penalty(const AttentionOptions<T>&, const Shape&);                         \
  template Var<T> placed_query(const Var<T>&, const AttentionOptions<T>&, const PerSample&,           \
                               const Array<bool>&);                                                   \
  template Var<T> placed_key(const Var<T>&, const AttentionOptions<T>&, Index, const Array<bool>&);   \
  template void require_options(const AttentionOptions<T>&, const Shape&);                            \
  template Mask allowed_by(const Var<T>&);                                                            \
  template Exclusion exclusion(const AttentionOptions<T>&, const Shape&, const Shape&);               \
  template Var<T> selected(const Var<T>&, const Array<bool>&);                                        \
  template Array<bool> rows_with_keys(const Array<T>&, EmptyRows);                                    \
  template Var<T> masked_scores(const Var<T>&, double, const Exclusion&, const AttentionOptions<T>&); \
  template Weighed<T> weighed(const Var<T>&, const Var<T>&, double, const Exclusion&,                 \
                              const AttentionOptions<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead::detail
