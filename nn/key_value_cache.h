#pragma once
// KeyValueCache: the keys and values of all tokens so far, so that decoding computes those of new ones only.

#include <span>

#include <tapehead/nn/attention.h>

namespace tapehead {

// Keys (..., Hk, length, D) and values (..., Hk, length, E), those of each head of each sample in one stretch
// with room behind it. Values alone are held: what is cached is a constant, on no tape. Copying a cache
// copies no element; the first append to one of two copies does. Shazeer, "Fast transformer decoding", 2019,
// section 2.
template <std::floating_point T>
class KeyValueCache {
 public:
  KeyValueCache() = default;
  KeyValueCache(const KeyValueCache&) = default;
  KeyValueCache(KeyValueCache&& other) noexcept { swap(other); }
  KeyValueCache& operator=(KeyValueCache other) noexcept {
    swap(other);
    return *this;
  }

  // Copies key (..., Hk, n, D) and value (..., Hk, n, E) behind what is held, as scores are to be made of
  // them: normed and turned, if they are to be. When there is no room, there will be for at least twice as
  // many, so that n tokens one by one copy fewer than 2 n for growth. Throws ShapeError when the two do not
  // fit each other, or not what is held; the cache is then as it was. An empty cache takes any.
  void append(const Var<T>& key, const Var<T>& value);

  Index length() const { return length_; }                                // tokens held
  Index capacity() const { return keys_.defined() ? keys_.dim(-2) : 0; }  // for which there is room
  std::size_t bytes() const { return keys_.bytes() + values_.bytes(); }   // of that room
  std::size_t bytes_in_use() const;                                       // of the tokens held

  // Room for at least `capacity` tokens, as soon as a first block has said how large they are.
  // Throws DomainError for a negative number.
  void reserve(Index capacity);
  // Forgets the tokens from `length` on, as when guessed ones are rejected (Leviathan, Kalman, Matias, "Fast
  // inference from transformers via speculative decoding", 2023). The room stays. Throws DomainError unless
  // 0 <= length <= length().
  void truncate(Index length);
  void clear() { *this = {}; }  // gives the room back as well

  // Copies, of shape (..., Hk, length, D) and (..., Hk, length, E), on no tape. Throws LogicError when
  // nothing is held.
  Var<T> keys() const;
  Var<T> values() const;

  // The keys (length, D) and values (length, E) of entry i of the leading axes (..., Hk), not copied; until
  // the cache is changed. Throws DomainError when there is no such entry.
  std::span<const T> key_rows(Index i) const;
  std::span<const T> value_rows(Index i) const;

 private:
  template <std::floating_point U>
  friend AttentionResult<U> attention(const Var<U>&, const Var<U>&, const Var<U>&, KeyValueCache<U>&,
                                      const AttentionOptions<U>&);

  void swap(KeyValueCache& other) noexcept;
  void require_fits(const char* op, const Shape& key, const Shape& value) const;
  void write_behind(const Array<T>& key, const Array<T>& value);  // all of append() but counting
  void make_room(const Shape& key, const Shape& value, Index capacity);
  std::span<const T> rows(const char* op, const Array<T>& held, Index i) const;

  Array<T> keys_, values_;  // (..., Hk, capacity, D), (..., Hk, capacity, E)
  Index length_ = 0;
  Index reserved_ = 0;
};

// attention() of query (..., H, L, D) to all that is cached and the block key (..., Hk, n, D), value
// (..., Hk, n, E), which is appended: the rows that attention() of the whole sequence gives these queries.
// With P = cache.length() before the call, the queries and the block lie P tokens later than the options say:
// mask.later(P), query_offset + P, and rotary positions of the block from start + P on. Norm and rotary
// positions are applied to the block before it is cached, and never again. Arrays in the options are those of
// these scores: bias, allowed and documents reach over P + n keys, and a length counts them from the first.
// Gradients reach the query, the block and the options, and not what was cached before. A call that records
// nothing reads the cache where it lies, by the fused kernel when that can do what is wanted and the
// log-sum-exp is not. Copies of it are read when something is recorded, by the composition when a value that
// no row may see is not finite, and by the kernel for a log-sum-exp. Throws as attention() does, and
// ShapeError for a block that does not fit what is cached; the cache then holds what it held, perhaps with
// more room.
template <std::floating_point T>
AttentionResult<T> attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                             KeyValueCache<T>& cache, const AttentionOptions<T>& options = {});

}  // namespace tapehead
