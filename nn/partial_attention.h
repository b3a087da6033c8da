#pragma once
// Attention taken apart by keys: what of it can be computed from some of them, and how two such parts become
// one. This is the sum under every fused attention kernel, in the open.

#include <tapehead/nn/attention.h>

namespace tapehead {

// Of the scores s_j and values v_j of the keys j of one part, row by row:
//   maximum = max_j s_j     sum = sum_j exp(s_j - maximum)     weighted = sum_j exp(s_j - maximum) v_j
// A row that sees no key of the part has maximum minus infinity, sum 0 and weighted 0. The maximum is a
// constant: outputs do not depend on it, whichever number is taken. Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018, section 3; Dao and others, "FlashAttention", 2022, section 3.1.
template <std::floating_point T>
struct PartialAttention {
  Array<T> maximum;     // (..., H, L)
  Var<T> sum;           // (..., H, L)
  Var<T> weighted;      // (..., H, L, E)
  Array<bool> has_key;  // (..., H, L): whether the row sees a key, a sink not counted

  // weighted / sum: attention() to the keys of the part, (..., H, L, E). Rows without a key are an error or
  // 0, as attention() has them. Throws DomainError naming batch, head and row.
  Var<T> output(EmptyRows empty_rows = EmptyRows::error) const;
  // maximum + log sum, (..., H, L): minus infinity for a row without a key.
  Var<T> log_sum_exp() const;
};

// The part of attention() that the given keys have in it: numbers 0 to S - 1, in any order, none twice; none
// at all is a part that changes nothing. Query, key, value and options are those of all S keys. A key that is
// named in two parts counts twice. A part may leave rows empty, so options.empty_rows is not looked at; a
// sink is a part of its own, see sink_part(). Throws as attention() does, DomainError for a key that does not
// exist or comes twice, and LogicError for what no part has: a sink, dropout, weights, scores, statistics and
// the fused kernel.
template <std::floating_point T>
PartialAttention<T> partial_attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                                      const Array<Index>& keys, const AttentionOptions<T>& options = {});

// Keys first to last - 1.
struct KeyRange {
  Index first, last;
};
// The same for a range. Throws DomainError unless 0 <= first <= last <= S.
template <std::floating_point T>
PartialAttention<T> partial_attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                                      KeyRange keys, const AttentionOptions<T>& options = {});

// The part of a sink (H), or (1) below rank 4, in an output (..., H, L, E): a score without a value.
// Throws ShapeError when it does not fit the output, DomainError when it is not finite.
template <std::floating_point T>
PartialAttention<T> sink_part(const Var<T>& sink, const Shape& output);

// The part of the keys of both: with m the larger maximum of a row,
//   sum = exp(m_a - m) sum_a + exp(m_b - m) sum_b, and weighted likewise.
// Associative and commutative up to rounding. Throws ShapeError when the parts are of different rows.
template <std::floating_point T>
PartialAttention<T> merge(const PartialAttention<T>& a, const PartialAttention<T>& b);

}  // namespace tapehead
