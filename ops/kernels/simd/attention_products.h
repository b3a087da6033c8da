// The products of a block of queries with a tile of keys. Scores stand transposed, a row for each key and a
// lane for each query: scores^T = K Q^T. So keys and values are read where they lie, only the block's queries
// are transposed, the softmax runs down the lanes without a horizontal sum, and a mask cuts off whole vectors
// on one side and rows of keys on the other.
#pragma once

#include <tapehead/ops/kernels/simd/lane_rows.h>

namespace tapehead::kernels {
namespace {

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
      if (add) call.add_to_c();
      multiply_rows(n, panel, call);
    }
  }
}

}  // namespace
}  // namespace tapehead::kernels
