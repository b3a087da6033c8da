#include <tapehead/ops/kernels/block_product.h>
#include <tapehead/ops/kernels/processor.h>

namespace tapehead::kernels {
namespace {

template <class T>
Strided<T> strided(const Matrix<T>& x) {
  return x.transposed ? Strided<T>{x.data, 1, x.stride} : Strided<T>{x.data, x.stride, 1};
}

}  // namespace

template <class T>
PackedRight<T>::PackedRight(Index rows, Index n, Index k, Matrix<T> a, Matrix<T> b)
    : room_(vector_kernels<T>().packed_product_room(rows, n, k, strided(a), strided(b))) {
  if (room_.data()) vector_kernels<T>().pack_product(n, k, strided(b), room_.data());
}

template <class T>
void block_product(Index m, Index n, Index k, Matrix<T> a, Matrix<T> b, T beta, T* c, Index c_stride,
                   const T* bias, const T* packed) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (beta == T{0}) fill_rows(m, n, bias, c, c_stride);
    return;
  }
  const VectorKernels<T>& kernels = vector_kernels<T>();
  const Strided<T> left = strided(a), right = strided(b);
  const Addend<T> addend = beta != T{0} ? Addend<T>{c, c_stride} : Addend<T>{bias, 0};
  WorkRoom<T> room(kernels.block_product_room(m, n, k, left, right));
  kernels.block_product(m, n, k, left, right, addend, c, c_stride, packed, room.data());
}

#define TAPEHEAD_INSTANTIATE(T)  \
  template class PackedRight<T>; \
  template void block_product(Index, Index, Index, Matrix<T>, Matrix<T>, T, T*, Index, const T*, const T*);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead::kernels
