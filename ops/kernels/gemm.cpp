#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/ops/kernels/block_product.h>
#include <tapehead/ops/kernels/gemm.h>
#include <tapehead/ops/kernels/processor.h>

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <string>

namespace tapehead::kernels {
namespace {

// Our threads share out blocks of C; inside a block the library must neither start threads nor let their
// number decide the order of a sum.
void use_one_blas_thread() {
  static const bool once = (openblas_set_num_threads(1), true);
  static_cast<void>(once);
}

blasint blas_int(Index i) {
  if (i > std::numeric_limits<blasint>::max()) {
    throw DomainError("matmul", "an extent of " + std::to_string(i) + " is beyond the BLAS index type");
  }
  return static_cast<blasint>(i);
}

void cblas_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k, const float* a,
                blasint lda, const float* b, blasint ldb, float beta, float* c, blasint ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
}
void cblas_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k, const double* a,
                blasint lda, const double* b, blasint ldb, double beta, double* c, blasint ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc);
}

// Whether our own product is the faster one. OpenBLAS is behind when it runs kernels for a lesser processor,
// as versions do that are older than the processor (0.3.21 takes current Intel ones for a Prescott: a third
// to a quarter of the rate). With AVX-512 ours is ahead of its 0.3.21 by 3 to 26 % from about 32 x 32 x 32
// on, and below that when B is transposed; bench_ops has the table. Elsewhere it was not measured, so
// OpenBLAS it is.
template <class T>
bool ours_is_faster(Index m, Index n, Index k, const Matrix<T>& b) {
  static const Arch blas = arch_of_blas_core(openblas_get_corename());
  const Arch arch = arch_in_use();
  if (blas < arch) return true;
  constexpr Index small = 32 * 32 * 32;
  return arch == Arch::avx512 && (b.transposed || m * n >= small / k);
}

template <class T>
void block(Index m, Index n, Index k, Matrix<T> a, Matrix<T> b, T beta, T* c, Index c_stride, const T* bias,
           const T* packed = nullptr) {
  if (ours_is_faster(m, n, k, b)) return block_product(m, n, k, a, b, beta, c, c_stride, bias, packed);
  if (bias) fill_rows(m, n, bias, c, c_stride);
  // The library wants a leading dimension of at least 1 and at least a row, also when there is only one row.
  auto leading = [](const Matrix<T>& x, Index columns) {
    return blas_int(std::max({x.stride, columns, Index{1}}));
  };
  cblas_gemm(a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, blas_int(m),
             blas_int(n), blas_int(k), a.data, leading(a, a.transposed ? m : k), b.data,
             leading(b, b.transposed ? k : n), bias ? T{1} : beta, c, blas_int(std::max(c_stride, n)));
}

constexpr Index worth_sharing = Index{1} << 20;  // multiply-adds; about 20 microseconds

constexpr Index most_shared = Index{1} << 20;  // elements of B that are packed at once

// Rows of C to a piece: an eighth, in whole register blocks, but neither so few that packing the other
// operand again costs more than it brings nor so many that a cache level is left.
Index piece_of(Index rows) { return std::clamp<Index>((rows / 8 + 15) / 16 * 16, 64, 256); }

}  // namespace

template <class T>
void fill_rows(Index m, Index n, const T* bias, T* c, Index c_stride) {
  for (Index i = 0; i < m; ++i) {
    if (bias) {
      std::copy_n(bias, n, c + i * c_stride);
    } else {
      std::fill_n(c + i * c_stride, n, T{0});
    }
  }
}

template <class T>
void gemm(Index m, Index n, Index k, Matrix<T> a, Matrix<T> b, T beta, T* c, Index c_stride, const T* bias) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (beta == T{0}) fill_rows(m, n, bias, c, c_stride);
    return;
  }
  use_one_blas_thread();
  if (m * n < worth_sharing / k) return block(m, n, k, a, b, beta, c, c_stride, bias);
  if (m >= n) {
    const Index piece = piece_of(m);
    const bool shared = m > piece && n <= most_shared / k && ours_is_faster(piece, n, k, b);
    const PackedRight<T> packed(shared ? piece : 0, n, k, a, b);
    parallel_for(m, piece, [&](Index begin, Index end) {
      const Matrix<T> rows{a.data + begin * (a.transposed ? 1 : a.stride), a.stride, a.transposed};
      block(end - begin, n, k, rows, b, beta, c + begin * c_stride, c_stride, bias, packed.data());
    });
  } else {
    parallel_for(n, piece_of(n), [&](Index begin, Index end) {
      const Matrix<T> columns{b.data + begin * (b.transposed ? b.stride : 1), b.stride, b.transposed};
      block(m, end - begin, k, a, columns, beta, c + begin, c_stride, bias ? bias + begin : nullptr);
    });
  }
}

#define TAPEHEAD_INSTANTIATE(T)                               \
  template void fill_rows(Index, Index, const T*, T*, Index); \
  template void gemm(Index, Index, Index, Matrix<T>, Matrix<T>, T, T*, Index, const T*);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead::kernels
