// The products of a block of queries with a tile of keys. Scores stand transposed, a row for each key and a
// lane for each query: scores^T = K Q^T. So keys and values are read where they lie, only the block's queries
// are transposed, the softmax runs down the lanes without a horizontal sum, and a mask cuts off whole vectors
// on one side and rows of keys on the other.
#pragma once

#include <tapehead/ops/kernels/simd/lane_rows.h>

namespace tapehead::kernels {
namespace {

// Rows that come next; the processor's own prefetcher does not follow several rows at once.
template <class T>
void prefetch_rows(const T* x, Index row, Index rows, Index columns) {
  for (Index r = 0; r < rows; ++r) {
    for (Index d = 0; d < columns; d += 64 / static_cast<Index>(sizeof(T)))
      __builtin_prefetch(x + r * row + d);
  }
}

// C (keys, lanes) = X Y: X (keys, depth) has a row for each key, Y (depth, lanes) is transposed. Vectors
// whose lanes see none of the keys of a register block are left out.
template <class T>
void multiply_keys(const LaneRows<T>& rows, Span keys, Strided<T> x, Index depth, const T* y, T* c) {
  for (Index v = 0; v < rows.vectors; v += kernel_vectors) {
    const Index end = least(v + kernel_vectors, rows.vectors);
    Index n;
    for (Index j = keys.first; j < keys.last; j += n) {
      n = next_rows(keys.last - j);
      const Span see = rows.vectors_that_see({j, j + n}, v, end);
      if (see.count() == 0) continue;
      prefetch_rows(x.data + (j + n - keys.first) * x.row, x.row, least(n, keys.last - j - n), depth);
      KernelCall<T> call{};
      call.k = depth;
      call.a = {x.data + (j - keys.first) * x.row, x.row, 1};
      call.b = y + see.first * width<T>;
      call.c = c + (j - keys.first) * lanes + see.first * width<T>;
      call.b_row = call.c_row = lanes;
      kernels<T>.entry[false][n - 1][see.count() - 1](call);
    }
  }
}

// The same for a handful of rows, which would leave most lanes idle: dot products along the depth, as many as
// make a vector at a time. y has the rows of Y^T; rows and keys beyond the last repeat it.
constexpr Index few_rows = 8;

template <class T, int rows>
void multiply_few(Index count, Index keys, Strided<T> x, Index depth, Strided<T> y, T* c) {
  constexpr int step = width<T> / rows;  // keys at a time
  const Index whole = depth / width<T> * width<T>;
  const int rest = static_cast<int>(depth - whole);
  for (Index j = 0; j < keys; j += step) {
    prefetch_rows(x.data + (j + 4 * step) * x.row, x.row, least(keys - j - 4 * step, step), depth);
    Several<const T*, rows> query;
    Several<const T*, step> key;
    Several<Vector<T>, width<T>> sum;
    for (int r = 0; r < rows; ++r) query[r] = y.data + least(r, count - 1) * y.row;
    for (int i = 0; i < step; ++i) key[i] = x.data + least(j + i, keys - 1) * x.row;
#pragma GCC unroll 16
    for (int i = 0; i < width<T>; ++i) sum[i] = Vector<T>(0);
    for (Index d = 0; d < whole; d += width<T>) {
#pragma GCC unroll 16
      for (int i = 0; i < width<T>; ++i) {
        sum[i] = multiply_add<T>(load(query[i % rows] + d), load(key[i / rows] + d), sum[i]);
      }
    }
    for (int i = 0; rest > 0 && i < width<T>; ++i) {
      const Vector<T> left = load_first(query[i % rows] + whole, rest);
      sum[i] = multiply_add<T>(left, load_first(key[i / rows] + whole, rest), sum[i]);
    }
    alignas(64) T dot[width<T>];
    store(dot, sums_of<T>(sum));
    for (int i = 0; i < least(step, keys - j); ++i) {
      for (int r = 0; r < least(rows, count); ++r) c[(j + i) * lanes + r] = dot[i * rows + r];
    }
  }
}

template <class T>
void clear_rows(Index rows, Index columns, T* y, Index y_row) {
  for (Index r = 0; r < rows; ++r) {
    for (Index e = 0; e < columns; ++e) y[r * y_row + e] = 0;
  }
}

// y (lanes, y_row) = weights^T x, or += it: `weights` (keys, lanes), x (keys, columns) where it lies. A panel
// of x is used by all rows before the next.
template <class T>
void multiply_weighted_keys(const LaneRows<T>& rows, Span keys, const T* weights, Strided<T> x, Index columns,
                            bool add, T* y, Index y_row) {
  for (Index e = 0; e < columns; e += kernel_columns<T>) {
    const Index panel = least(kernel_columns<T>, columns - e);
    Index n;
    for (Index r = 0; r < rows.count; r += n) {
      n = next_rows(rows.count - r);
      const Span see = rows.rows_see(r, n).within(keys);
      KernelCall<T> call{};
      call.c = y + r * y_row + e;
      call.c_row = y_row;
      if (see.count() == 0) {
        if (!add) clear_rows(n, panel, call.c, y_row);
        continue;
      }
      call.k = see.count();
      call.a = {weights + (see.first - keys.first) * lanes + r, 1, lanes};
      call.b = x.data + (see.first - keys.first) * x.row + e;
      call.b_row = x.row;
      call.add = add;
      multiply_rows(n, panel, call);
    }
  }
}

}  // namespace
}  // namespace tapehead::kernels
