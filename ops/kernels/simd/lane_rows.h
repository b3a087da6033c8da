// A block of queries as the lanes of vectors: which rows they are, which keys they see, and their copies.
#pragma once

#include <tapehead/ops/kernels/simd/register_kernel.h>

namespace tapehead::kernels {
namespace {

constexpr Index lanes = AttentionBlock::most_rows;
template <class T>
constexpr Index most_vectors = lanes / width<T>;

struct Span {
  Index first, last;
  Index count() const { return last - first; }
  bool meets(Span other) const { return first < other.last && other.first < last; }
  Span within(Span other) const {
    const Index a = least(most(first, other.first), other.last);
    return {a, most(a, least(last, other.last))};
  }
};
inline Span hull(Span a, Span b) {
  if (a.first >= a.last) return b;
  if (b.first >= b.last) return a;
  return {least(a.first, b.first), most(a.last, b.last)};
}

// The rows of a block: which query of which head each lane is and which keys its range lets it see. Lanes
// beyond the last row repeat it, and nobody reads what they hold.
template <class T>
struct LaneRows {
  Index count, vectors;
  Index head[lanes], query[lanes];
  Span sees[lanes];
  Span any[most_vectors<T>];  // keys that some lane of a vector sees
  Span all[most_vectors<T>];  // keys that each of them sees
  Span keys;                  // keys that some lane sees

  LaneRows(const AttentionProblem<T>& p, const AttentionBlock& block)
      : count(block.count), vectors(pieces(count, width<T>)), keys{0, 0} {
    place(p, block);
    KeyRange range;
    if (p.ranges) range = p.ranges[p.range_of_batch ? block.batch : 0];
    const Index first = most(range.first, 0),
                last = range.from < range.to ? least(range.last, p.keys) : first;
    for (Index r = 0; r < vectors * width<T>; ++r) {
      sees[r] = Span{query[r] + range.from, query[r] + range.to}.within({first, most(first, last)});
    }
    for (Index v = 0; v < vectors; ++v) {
      any[v] = rows_see(v * width<T>, width<T>);
      all[v] = all_see(v * width<T>, width<T>);
      keys = hull(keys, any[v]);
    }
  }

  // Both ends of what a row sees grow with its query, so a run of one head is bounded by its ends.
  Span rows_see(Index row, Index rows) const {
    const Index end = row + rows - 1;
    if (head[row] == head[end]) return {sees[row].first, sees[end].last};
    Span seen = sees[row];
    for (Index r = row + 1; r <= end; ++r) seen = hull(seen, sees[r]);
    return seen;
  }
  // The vectors of [first, last) that see any of the keys.
  Span vectors_that_see(Span some, Index first, Index last) const {
    while (first < last && !any[first].meets(some)) ++first;
    while (first < last && !any[last - 1].meets(some)) --last;
    return {first, last};
  }

 private:
  void place(const AttentionProblem<T>& p, const AttentionBlock& block) {
    Index h = block.key_head * (p.heads / p.key_heads) + block.row / p.queries, i = block.row % p.queries;
    for (Index r = 0; r < vectors * width<T>; ++r) {
      head[r] = h, query[r] = i;
      if (r + 1 < count && ++i == p.queries) i = 0, ++h;
    }
  }
  Span all_see(Index row, Index rows) const {
    const Index end = row + rows - 1;
    if (head[row] == head[end]) return Span{sees[end].first, sees[row].last}.within(sees[end]);
    Span seen = sees[row];
    for (Index r = row + 1; r <= end; ++r) seen = seen.within(sees[r]);
    return seen;
  }
};

template <class T>
const T* row_of(const HeadRows<const T>& x, Index batch, Index head, Index row) {
  return x.data + batch * x.batch + head * x.head + row * x.row;
}
template <class T>
T* row_of(const HeadRows<T>& x, Index batch, Index head, Index row) {
  return x.data + batch * x.batch + head * x.head + row * x.row;
}

// Calls f(row, rows) for runs of rows that belong to one head.
template <class T, class F>
void for_each_run(const LaneRows<T>& rows, F f) {
  for (Index r = 0, n; r < rows.count; r += n) {
    for (n = 1; r + n < rows.count && rows.head[r + n] == rows.head[r];) ++n;
    f(r, n);
  }
}

// y (columns, lanes) = factor x of the block's rows, transposed; zeros in lanes beyond the last row.
template <class T>
void transpose_rows(const LaneRows<T>& rows, Index batch, const HeadRows<const T>& x, Index columns, T factor,
                    T* y) {
  for_each_run(rows, [&](Index r, Index n) {
    transpose(n, columns, row_of(x, batch, rows.head[r], rows.query[r]), x.row, factor, y + r, lanes);
  });
  for (Index r = rows.count; r < rows.vectors * width<T>; ++r) {
    for (Index d = 0; d < columns; ++d) y[d * lanes + r] = 0;
  }
}

// y (lanes, stride) = factor x of the block's rows.
template <class T>
void copy_rows(const LaneRows<T>& rows, Index batch, const HeadRows<const T>& x, Index columns, T factor,
               T* y, Index stride) {
  for (Index r = 0; r < rows.count; ++r) {
    const T* from = row_of(x, batch, rows.head[r], rows.query[r]);
    for (Index d = 0; d < columns; ++d) y[r * stride + d] = factor * from[d];
  }
}

}  // namespace
}  // namespace tapehead::kernels
