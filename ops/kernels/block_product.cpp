#include <tapehead/ops/kernels/block_product.h>
#include <tapehead/ops/kernels/processor.h>
#include <tapehead/ops/kernels/room.h>

#include <algorithm>

namespace tapehead::kernels {
namespace {

template <class T>
Strided<T> strided(const Matrix<T>& x) {
  return x.transposed ? Strided<T>{x.data, 1, x.stride} : Strided<T>{x.data, x.stride, 1};
}

}  // namespace

template <class T>
void block_product(Index m, Index n, Index k, Matrix<T> a, Matrix<T> b, T beta, T* c, Index c_stride) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (Index i = 0; i < m && beta == T{0}; ++i) std::fill_n(c + i * c_stride, n, T{0});
    return;
  }
  const VectorKernels<T>& kernels = vector_kernels<T>();
  const Strided<T> left = strided(a), right = strided(b);
  WorkRoom<T> room(kernels.block_product_room(m, n, k, left, right));
  kernels.block_product(m, n, k, left, right, beta != T{0}, c, c_stride, room.data());
}

template void block_product(Index, Index, Index, Matrix<float>, Matrix<float>, float, float*, Index);
template void block_product(Index, Index, Index, Matrix<double>, Matrix<double>, double, double*, Index);

}  // namespace tapehead::kernels
