#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/record.h>
#include <tapehead/nn/attention_parts.h>
#include <tapehead/nn/key_value_cache.h>
#include <tapehead/ops/kernels/gemm.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <cmath>

namespace tapehead {
namespace {

constexpr Index first_capacity = 16;

// Stretches of `count` numbers, from one array with `from_step` from stretch to stretch to another.
template <class T>
void copy_stretches(Index stretches, Index count, const T* from, Index from_step, T* to, Index to_step) {
  for (Index i = 0; i < stretches; ++i) std::copy_n(from + i * from_step, count, to + i * to_step);
}

// x (..., n, D) with room for `capacity` rows, of which the first `length` of `held` are kept.
template <class T>
Array<T> with_room(const Array<T>& held, Index length, const Shape& x, Index capacity) {
  auto result = Array<T>::uninitialized(x.with(-2, capacity));
  if (length == 0) return result;
  const Index width = x.dim(-1);
  copy_stretches(x.first(x.rank() - 2).size(), length * width, held.data(), held.dim(-2) * width,
                 result.mutable_values().data(), capacity * width);
  return result;
}

// x behind the first `length` rows of `room`, or of a copy of it when another cache shares it.
template <class T>
void write_rows(const Array<T>& x, Index length, Array<T>& room) {
  const Index width = x.dim(-1);
  copy_stretches(x.shape().first(x.rank() - 2).size(), x.dim(-2) * width, x.data(), x.dim(-2) * width,
                 room.mutable_values().data() + length * width, room.dim(-2) * width);
}

template <class T>
Array<T> first_rows(const Array<T>& room, Index length) {
  auto rows = Array<T>::uninitialized(room.shape().with(-2, length));
  const Index width = room.dim(-1);
  copy_stretches(room.shape().first(room.rank() - 2).size(), length * width, room.data(),
                 room.dim(-2) * width, rows.mutable_values().data(), length * width);
  return rows;
}

// What seen_keys (..., S, 1) says of the keys from number `first` on.
Array<bool> rows_from(const Array<bool>& seen_keys, Index first) {
  if (!seen_keys.defined() || seen_keys.dim(-2) == 1) return seen_keys;
  const Index length = seen_keys.dim(-2) - first;
  auto rows = Array<bool>::uninitialized(seen_keys.shape().with(-2, length));
  copy_stretches(rows.size() / length, length, seen_keys.data() + first, seen_keys.dim(-2),
                 rows.mutable_values().data(), length);
  return rows;
}

// What the two products of attention read: `keys` rows of each of the matrices of a cache.
template <class T>
struct Held {
  const Array<T>&keys, &values;  // (..., Hk, capacity, D), (..., Hk, capacity, E)
  Index length;

  Index matrices() const { return keys.shape().first(keys.rank() - 2).size(); }
};

// Calls product(i) for each matrix i, shared out by the multiply-adds of one.
template <class F>
void for_each_matrix(Index matrices, Index work, F product) {
  constexpr Index work_of_a_piece = Index{1} << 18;
  parallel_for(matrices, std::max<Index>(work_of_a_piece / std::max<Index>(work, 1), 1),
               [&](Index begin, Index end) {
                 for (Index i = begin; i < end; ++i) product(i);
               });
}

// query (..., H, L, D) and the keys in place: (..., H, L, length)
template <class T>
Array<T> raw_scores(const Array<T>& query, const Held<T>& held) {
  const Index length = held.length, width = query.dim(-1), matrices = held.matrices();
  auto scores = Array<T>::uninitialized(query.shape().with(-1, length));
  if (scores.size() == 0) return scores;
  const Index rows = scores.size() / (matrices * length), stride = held.keys.dim(-2) * width;
  T* const out = scores.mutable_values().data();
  for_each_matrix(matrices, rows * length * width, [&](Index i) {
    kernels::gemm<T>(rows, length, width, {query.data() + i * rows * width, width},
                     {held.keys.data() + i * stride, width, true}, 0, out + i * rows * length, length);
  });
  return scores;
}

// weights (..., H, L, length) and the values in place: (..., H, L, E)
template <class T>
Array<T> weighted_values(const Array<T>& weights, const Held<T>& held) {
  const Index length = held.length, width = held.values.dim(-1), matrices = held.matrices();
  auto output = Array<T>::uninitialized(weights.shape().with(-1, width));
  if (output.size() == 0) return output;
  const Index rows = output.size() / (matrices * width), stride = held.values.dim(-2) * width;
  T* const out = output.mutable_values().data();
  for_each_matrix(matrices, rows * length * width, [&](Index i) {
    kernels::gemm<T>(rows, width, length, {weights.data() + i * rows * length, length},
                     {held.values.data() + i * stride, width}, 0, out + i * rows * width, width);
  });
  return output;
}

// Whether all values of unseen keys are finite, so that a weight of 0 makes nothing of them.
template <class T>
bool unseen_are_finite(const Array<bool>& seen_keys, const Held<T>& held) {
  if (!seen_keys.defined()) return true;
  const Index width = held.values.dim(-1), room = held.values.dim(-2);
  const Shape all = held.values.shape().with(-2, held.length).with(-1, 1);
  const Strides step(seen_keys.shape(), all), position(all);
  for (Index key = 0; key < all.size(); ++key) {
    Index at = 0;
    for (int axis = 0; axis < all.rank(); ++axis) at += key / position[axis] % all[axis] * step[axis];
    if (seen_keys.data()[at]) continue;
    const T* row = held.values.data() + (key / held.length * room + key % held.length) * width;
    if (!std::all_of(row, row + width, [](T x) { return std::isfinite(x); })) return false;
  }
  return true;
}

template <class T>
bool anything_recorded(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                       const AttentionOptions<T>& options) {
  const Var<T> none;
  const QueryKeyNorm<T> norm = options.norm.value_or(QueryKeyNorm<T>());
  return is_recording(query, key, value, norm.query_gain, norm.key_gain, options.scale.var().value_or(none),
                      options.bias.value_or(none), options.slopes.value_or(none),
                      options.sink.value_or(none));
}

// The options for a block whose query and key have norm and positions, `before` tokens behind the first.
template <class T>
AttentionOptions<T> placed_later(AttentionOptions<T> options, Index before) {
  options.norm.reset();
  options.rope.reset();
  options.query_offset = options.query_offset + before;
  options.mask = options.mask.later(before);
  return options;
}

// Whether the fused kernel may read the cache where it lies.
template <class T>
bool takes_kernel(const Shape& scores, const AttentionOptions<T>& options) {
  return options.kernel != AttentionKernel::composed && !options.log_sum_exp &&
         detail::obstacle_to_fusion(scores, options).empty();
}

template <class T>
AttentionResult<T> attention_in_place(const Var<T>& query, const Held<T>& held,
                                      const detail::Exclusion& excluded, const AttentionOptions<T>& options) {
  const Var<T> raw(raw_scores(query.value(), held));
  const double scale = 1 / std::sqrt(static_cast<double>(query.dim(-1)));
  detail::Weighed<T> all = detail::weighed(raw, raw, scale, excluded, options);
  all.result.output = detail::selected(Var<T>(weighted_values(all.weights.value(), held)), all.rows);
  all.result.computed_by = "composed: the cache is read where it lies";
  return std::move(all.result);
}

}  // namespace

template <std::floating_point T>
void KeyValueCache<T>::swap(KeyValueCache& other) noexcept {
  std::swap(keys_, other.keys_);
  std::swap(values_, other.values_);
  std::swap(length_, other.length_);
  std::swap(reserved_, other.reserved_);
}

template <std::floating_point T>
void KeyValueCache<T>::require_fits(const char* op, const Shape& key, const Shape& value) const {
  const int rank = key.rank();
  if (rank < 2 || value.rank() != rank || key.first(rank - 1) != value.first(rank - 1)) {
    throw ShapeError(op, "a block needs key (..., n, D) and value (..., n, E)",
                     {{"key", key}, {"value", value}});
  }
  if (length_ == 0) return;
  const Shape keys = keys_.shape().with(-2, length_), values = values_.shape().with(-2, length_);
  auto fits = [](const Shape& block, const Shape& held) {
    return block.rank() == held.rank() && block.with(-2, held.dim(-2)) == held;
  };
  if (fits(key, keys) && fits(value, values)) return;
  throw ShapeError(op, "the block and what is cached differ in more than their length",
                   {{"key", key}, {"value", value}, {"cached keys", keys}, {"cached values", values}});
}

template <std::floating_point T>
void KeyValueCache<T>::make_room(const Shape& key, const Shape& value, Index capacity) {
  Array<T> keys = with_room(keys_, length_, key, capacity);
  Array<T> values = with_room(values_, length_, value, capacity);
  std::swap(keys_, keys);
  std::swap(values_, values);
}

template <std::floating_point T>
void KeyValueCache<T>::write_behind(const Array<T>& key, const Array<T>& value) {
  const bool same_kind = keys_.defined() && key.shape().with(-2, capacity()) == keys_.shape() &&
                         value.shape().with(-2, capacity()) == values_.shape();
  const Index held = same_kind ? capacity() : 0, needed = length_ + key.dim(-2);
  if (held < needed) {
    make_room(key.shape(), value.shape(), std::max({needed, 2 * held, reserved_, first_capacity}));
  }
  write_rows(key, length_, keys_);
  write_rows(value, length_, values_);
}

template <std::floating_point T>
void KeyValueCache<T>::append(const Var<T>& key, const Var<T>& value) {
  require_fits("KeyValueCache::append", key.shape(), value.shape());
  write_behind(key.value(), value.value());
  length_ += key.dim(-2);
}

template <std::floating_point T>
std::size_t KeyValueCache<T>::bytes_in_use() const {
  return length_ == 0 ? 0
                      : bytes() / static_cast<std::size_t>(capacity()) * static_cast<std::size_t>(length_);
}

template <std::floating_point T>
void KeyValueCache<T>::reserve(Index capacity) {
  if (capacity < 0) {
    throw DomainError("KeyValueCache::reserve", std::to_string(capacity) + " tokens");
  }
  if (keys_.defined() && capacity > this->capacity()) make_room(keys_.shape(), values_.shape(), capacity);
  reserved_ = std::max(reserved_, capacity);
}

template <std::floating_point T>
void KeyValueCache<T>::truncate(Index length) {
  if (length < 0 || length > length_) {
    throw DomainError("KeyValueCache::truncate",
                      "the length " + std::to_string(length) + " is not 0 to " + std::to_string(length_));
  }
  length_ = length;
}

template <std::floating_point T>
Var<T> KeyValueCache<T>::keys() const {
  if (length_ == 0) throw LogicError("KeyValueCache::keys", "nothing is held");
  return Var<T>(first_rows(keys_, length_));
}

template <std::floating_point T>
Var<T> KeyValueCache<T>::values() const {
  if (length_ == 0) throw LogicError("KeyValueCache::values", "nothing is held");
  return Var<T>(first_rows(values_, length_));
}

template <std::floating_point T>
std::span<const T> KeyValueCache<T>::rows(const char* op, const Array<T>& held, Index i) const {
  const Index entries = length_ == 0 ? 0 : held.shape().first(held.rank() - 2).size();
  if (i < 0 || i >= entries) {
    throw DomainError(op, "entry " + std::to_string(i) + " of " + std::to_string(entries));
  }
  const Index width = held.dim(-1);
  return {held.data() + i * held.dim(-2) * width, static_cast<std::size_t>(length_ * width)};
}

template <std::floating_point T>
std::span<const T> KeyValueCache<T>::key_rows(Index i) const {
  return rows("KeyValueCache::key_rows", keys_, i);
}

template <std::floating_point T>
std::span<const T> KeyValueCache<T>::value_rows(Index i) const {
  return rows("KeyValueCache::value_rows", values_, i);
}

template <std::floating_point T>
AttentionResult<T> attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                             KeyValueCache<T>& cache, const AttentionOptions<T>& options) {
  detail::require_dot_product_shapes("attention", query.shape(), key.shape(), value.shape());
  cache.require_fits("attention", key.shape(), value.shape());
  const Index before = cache.length_, all = before + key.dim(-2);
  const AttentionOptions<T> later = placed_later(options, before);
  const Shape keys = key.shape().with(-2, all), scores = detail::scores_shape(query.shape(), keys);
  detail::require_options(later, scores);
  const bool in_place = before > 0 && !anything_recorded(query, key, value, options);
  const bool by_kernel = in_place && takes_kernel(scores, later);
  const bool by_ops = in_place && !by_kernel && options.kernel != AttentionKernel::fused;
  // A mask as large as the scores is made for who reads it only.
  detail::Exclusion excluded;
  if (options.norm || by_ops) excluded = detail::exclusion(later, scores, keys);
  const Var<T> q = detail::placed_query(query, options, later.query_offset, excluded.rows);
  const Var<T> k = detail::placed_key(key, options, before, rows_from(excluded.seen_keys, before));
  cache.write_behind(k.value(), value.value());

  auto over_copies = [&] {
    auto whole = [&](const Array<T>& room, const Var<T>& block) {
      return before == 0 ? block : concat({Var<T>(first_rows(room, before)), block}, -2);
    };
    return attention(q, whole(cache.keys_, k), whole(cache.values_, value), later);
  };
  auto result = [&]() -> AttentionResult<T> {
    if (by_kernel) {
      const Array<T> output = detail::fused_output(q.value(), cache.keys_, cache.values_, all, later);
      if (output.defined())
        return {.output = output, .computed_by = "fused: the cache is read where it lies"};
    }
    const Held<T> held{cache.keys_, cache.values_, all};
    if (by_ops && unseen_are_finite(excluded.seen_keys, held)) {
      return attention_in_place(q, held, excluded, later);
    }
    return over_copies();
  }();
  cache.length_ = all;
  return result;
}

#define TAPEHEAD_INSTANTIATE(T)                                                                         \
  template class KeyValueCache<T>;                                                                      \
  template AttentionResult<T> attention(const Var<T>&, const Var<T>&, const Var<T>&, KeyValueCache<T>&, \
                                        const AttentionOptions<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
