#pragma once
// The steps that every attention of this library is made of, whatever its scores and wherever its keys are.

#include <tapehead/nn/attention.h>

namespace tapehead::detail {

// Throws ShapeError unless query (..., H, L, D), key (..., Hk, S, N), value (..., Hk, S, E) belong together.
void require_attention_shapes(const char* op, const Shape& query, const Shape& key, const Shape& value);

// The same, and that query and key have one width.
void require_dot_product_shapes(const char* op, const Shape& query, const Shape& key, const Shape& value);

// Scores (..., H, L, S) of query (..., H, L, D) and key (..., Hk, S, N).
Shape scores_shape(const Shape& query, const Shape& key);

// The shape that split_heads gives; the same for no heads. Throws as it does.
Shape shape_by_head(const Shape& x, Index heads);

// x under another shape; no node when it has that shape.
template <class T>
Var<T> reshaped(const Var<T>& x, const Shape& shape);

// x (..., H, L, D) as (..., Hk, H / Hk L, D): the rows of all heads that read one key head, one below the
// other. No element moves, since neighbours share.
template <class T>
Var<T> grouped(const Var<T>& x, const Shape& key);

// query key^T, (..., H, L, S)
template <class T>
Var<T> dot_products(const Var<T>& query, const Var<T>& key);

// slope |position of query - position of key|, which the slopes of the options subtract; broadcasts to the
// scores.
template <class T>
Var<T> distance_penalty(const AttentionOptions<T>& options, const Shape& scores);

// Query and key with norm and rotary positions, as the options say. The first query lies `query_offset`
// behind the start of the options' positions, the first key `key_offset`. Rows that are not `kept` are to be
// selected away: what they hold has no influence on the norm or its gradients.
template <class T>
Var<T> placed_query(const Var<T>& query, const AttentionOptions<T>& options, const PerSample& query_offset,
                    const Array<bool>& kept = {});
template <class T>
Var<T> placed_key(const Var<T>& key, const AttentionOptions<T>& options, Index key_offset,
                  const Array<bool>& kept = {});

// Throws as attention does for an option that is out of range or does not fit scores (..., H, L, S).
template <class T>
void require_options(const AttentionOptions<T>& options, const Shape& scores);

// A bias of minus infinity is a mask; one that allows all when there is none.
template <class T>
Mask allowed_by(const Var<T>& bias);

// Which keys the mask and an infinite bias exclude. Arrays are undefined when they would exclude nothing.
struct Exclusion {
  Array<bool> allowed;    // broadcasts to (..., H, L, S)
  Array<bool> seen_keys;  // (..., Hk, S, 1), extents of 1 where all agree: whether any row sees the key
  Array<bool> rows;       // (..., H, L, 1), likewise: whether the row sees any key
};

// Throws as require_options does, and for an empty row when that is an error.
template <class T>
Exclusion exclusion(const AttentionOptions<T>& options, const Shape& scores, const Shape& key);

// x with 0 where it is not kept; x itself when nothing is excluded.
template <class T>
Var<T> selected(const Var<T>& x, const Array<bool>& kept);

// Raw scores (..., H, L, S) after scale, softcap, bias and mask: minus infinity where excluded.
template <class T>
Var<T> masked_scores(const Var<T>& raw, double default_scale, const Exclusion& excluded,
                     const AttentionOptions<T>& options);

// Which rows (..., L, 1) of masked scores have a key; undefined when all have. Throws DomainError for a row
// whose largest score is infinite or not a number, and for an empty row when that is an error.
template <class T>
Array<bool> rows_with_keys(const Array<T>& scores, EmptyRows empty_rows);

template <class T>
struct Weighed {
  AttentionResult<T> result;  // all that is wanted but the output
  Var<T> weights;             // as they meet the values, dropout included
  Array<bool> rows;           // (..., H, L, 1): whether the row has a key; undefined when every one has
};

// What follows raw scores (..., H, L, S). `shown` are those of every key, for scores that are wanted of keys
// that no row may see.
template <class T>
Weighed<T> weighed(const Var<T>& raw, const Var<T>& shown, double default_scale, const Exclusion& excluded,
                   const AttentionOptions<T>& options);

// Query (..., H, L, D), key (..., Hk, S, D) and value (..., Hk, S, E), placed; norm and rope of the options
// have had their effect. Or as projections give them, the heads side by side in a row: (..., L, H D),
// (..., S, Hk D), (..., S, Hk E).
template <class T>
struct Operands {
  Var<T> query, key, value;
  Index heads = 0, key_heads = 0;  // side by side; 0: they have an axis

  // Throws ShapeError when the heads do not divide a row.
  Shape query_shape() const { return shape_by_head(query.shape(), heads); }
  Shape key_shape() const { return shape_by_head(key.shape(), key_heads); }
  Shape value_shape() const { return shape_by_head(value.shape(), key_heads); }
  Shape scores_shape() const { return detail::scores_shape(query_shape(), key_shape()); }
};

// Attention as ops, scores by the product of query and key, which have an axis of heads.
template <class T>
AttentionResult<T> composed_attention(const Operands<T>& x, const AttentionOptions<T>& options);

// Why the fused kernel cannot do this; empty when it can. Options fit the scores.
template <class T>
std::string_view obstacle_to_fusion(const Shape& scores, const AttentionOptions<T>& options);

// Attention as one op of the fused kernel, to which there is no obstacle. The output is laid out as the
// query.
template <class T>
AttentionResult<T> fused_attention(const Operands<T>& x, const AttentionOptions<T>& options);

// What no tape records, with keys (..., Hk, room, D) and values (..., Hk, room, E) of which the first
// `length` are read where they lie: the output, undefined when a row has no key and that is an error, or has
// a score that is not finite.
template <class T>
Array<T> fused_output(const Array<T>& query, const Array<T>& keys, const Array<T>& values, Index length,
                      const AttentionOptions<T>& options);

// attention() of projections whose heads lie side by side, output (..., L, H E): their heads are only set
// apart where the composition is taken, or a norm, rotary positions or the log-sum-exp wanted.
template <class T>
AttentionResult<T> attention_side_by_side(const Operands<T>& x, const AttentionOptions<T>& options);

}  // namespace tapehead::detail
