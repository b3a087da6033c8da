#pragma once
// Matrix products.

#include <tapehead/core/var.h>

namespace tapehead {

// Y = A B              dA = dY B^T              dB = A^T dY
// A (..., M, N)   B (..., N, P)   Y (..., M, P); with a flag, the operand is stored transposed: A (..., N,
// M), B (..., P, N), and nothing is copied. Leading axes broadcast. A vector A (N) is one row, a vector B (N)
// one column, and the result loses that axis. Throws ShapeError naming both shapes; for a flag on a vector,
// too.
template <std::floating_point T>
Var<T> matmul(const Var<T>& a, const Var<T>& b, bool transpose_a = false, bool transpose_b = false);

// Y = X W + b          dX = dY W^T              dW = X^T dY, over all rows        db = sum of the rows of dY
// X (..., N)   W (N, P)   b (P)   Y (..., P)
template <std::floating_point T>
Var<T> projection(const Var<T>& x, const Var<T>& w);
template <std::floating_point T>
Var<T> projection(const Var<T>& x, const Var<T>& w, const Var<T>& b);

}  // namespace tapehead
