#pragma once
// Matrix products on row-major memory.

#include <tapehead/core/shape.h>

namespace tapehead::kernels {

// One operand: `data` holds the matrix, or its transpose, with `stride` elements from row to row as stored.
template <class T>
struct Matrix {
  const T* data;
  Index stride;
  bool transposed = false;
};

// C = A B + beta C,   A (m, k)   B (k, n)   C (m, n) with `c_stride` elements from row to row.
// beta is 0 or 1; with 0 what C held does not matter, NaN included. With 0, `bias` (n) is added to each row
// of C unless it is null.
template <class T>
void gemm(Index m, Index n, Index k, Matrix<T> a, Matrix<T> b, T beta, T* c, Index c_stride,
          const T* bias = nullptr);

// C = bias in each row, or 0 when it is null.
template <class T>
void fill_rows(Index m, Index n, const T* bias, T* c, Index c_stride);

}  // namespace tapehead::kernels
