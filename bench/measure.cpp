#include "measure.h"

#include <cblas.h>

#include <algorithm>

#include <tapehead/ops/kernels/block_product.h>
#include <tapehead/ops/kernels/processor.h>

namespace tapehead::bench {
namespace {

void blas_product(Index n, const float* a, const float* b, float* c) {
  const auto i = static_cast<blasint>(n);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, i, i, i, 1, a, i, b, i, 0, c, i);
}
void blas_product(Index n, const double* a, const double* b, double* c) {
  const auto i = static_cast<blasint>(n);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, i, i, i, 1, a, i, b, i, 0, c, i);
}

}  // namespace

template <class T>
double best_product_rate() {
  static const double rate = [] {
    openblas_set_num_threads(1);
    double best = 0;
    for (const Index n : {64, 96, 256, 512, 1024}) {
      const Array<T> a = normal<T>({n, n}), b = a;
      Array<T> c = Array<T>::zeros({n, n});
      T* out = c.mutable_values().data();
      const auto operations = 2.0 * static_cast<double>(n * n * n);
      for (int run = 0; run < 20; ++run) {
        const double start = seconds_now();
        blas_product(n, a.data(), b.data(), out);
        const double middle = seconds_now();
        kernels::block_product<T>(n, n, n, {a.data(), n}, {b.data(), n}, 0, out, n);
        const double end = seconds_now();
        best = std::max({best, operations / (middle - start), operations / (end - middle)});
      }
    }
    return best;
  }();
  return rate;
}
template double best_product_rate<float>();
template double best_product_rate<double>();

int run_benchmarks(int count, char** arguments, void (*add_all)()) {
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  benchmark::AddCustomContext("openblas", openblas_get_corename());
  benchmark::AddCustomContext("vectors", std::string(kernels::name_of(kernels::arch_in_use())));
  add_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace tapehead::bench
