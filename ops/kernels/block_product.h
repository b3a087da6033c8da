#pragma once
// Our own matrix product, from the register kernel of the fused attention. Single-threaded: the caller cuts.

#include <tapehead/ops/kernels/gemm.h>
#include <tapehead/ops/kernels/room.h>

namespace tapehead::kernels {

// The panels of B that products of `rows` rows share, made once; none when they read B where it lies.
template <class T>
class PackedRight {
 public:
  PackedRight(Index rows, Index n, Index k, Matrix<T> a, Matrix<T> b);
  const T* data() const { return room_.data(); }

 private:
  WorkRoom<T> room_;
};

// C = A B + beta C, or + bias, as gemm() means it, but on the calling thread and without OpenBLAS. A sum over
// k runs in order, in blocks of 256. `packed` is of this B, or null.
template <class T>
void block_product(Index m, Index n, Index k, Matrix<T> a, Matrix<T> b, T beta, T* c, Index c_stride,
                   const T* bias = nullptr, const T* packed = nullptr);

}  // namespace tapehead::kernels
