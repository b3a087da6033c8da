#pragma once
// Our own matrix product, from the register kernel of the fused attention. Single-threaded: the caller cuts.

#include <tapehead/ops/kernels/gemm.h>

namespace tapehead::kernels {

// C = A B + beta C as gemm() means it, but on the calling thread and without OpenBLAS. A sum over k runs in
// order, in blocks of 256.
template <class T>
void block_product(Index m, Index n, Index k, Matrix<T> a, Matrix<T> b, T beta, T* c, Index c_stride);

}  // namespace tapehead::kernels
