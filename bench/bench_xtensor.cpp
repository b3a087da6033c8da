// Where tapehead leaves xtensor and xtensor-blas: the same work by their expressions and by our kernels, side
// by side.

#include <tapehead/core/xtensor.h>
#include <tapehead/tapehead.h>

#include <benchmark/benchmark.h>
#include <xtensor-blas/xlinalg.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xview.hpp>

namespace tapehead {
namespace {

using Tensor = xt::xarray<double>;

Array<double> numbers(const Shape& shape) { return Generator(1).normal<double>(shape); }
Tensor tensor(const Array<double>& array) { return as_xtensor(array); }

void exp_by_xtensor(benchmark::State& state) {
  const Tensor x = tensor(numbers({512, 128}));
  Tensor y = x;
  for (auto _ : state) {
    xt::noalias(y) = xt::exp(x);
    benchmark::DoNotOptimize(y.data());
  }
}
void exp_by_tapehead(benchmark::State& state) {
  set_thread_count(1);
  const Var<double> x = numbers({512, 128});
  for (auto _ : state) benchmark::DoNotOptimize(exp(x));
}
BENCHMARK(exp_by_xtensor);
BENCHMARK(exp_by_tapehead);

void add_of_8_by_xtensor(benchmark::State& state) {
  const Tensor a = tensor(numbers({2, 4})), b = a;
  for (auto _ : state) {
    Tensor y = a + b;
    benchmark::DoNotOptimize(y.data());
  }
}
void add_of_8_by_tapehead(benchmark::State& state) {
  const Var<double> a = numbers({2, 4}), b = numbers({2, 4});
  for (auto _ : state) benchmark::DoNotOptimize(a + b);
}
BENCHMARK(add_of_8_by_xtensor);
BENCHMARK(add_of_8_by_tapehead);

void add_bias_by_xtensor(benchmark::State& state) {
  const Tensor x = tensor(numbers({512, 128})), bias = tensor(numbers({128}));
  Tensor y = x;
  for (auto _ : state) {
    xt::noalias(y) = x + bias;
    benchmark::DoNotOptimize(y.data());
  }
}
void add_bias_by_tapehead(benchmark::State& state) {
  set_thread_count(1);
  const Var<double> x = numbers({512, 128}), bias = numbers({128});
  for (auto _ : state) benchmark::DoNotOptimize(x + bias);
}
BENCHMARK(add_bias_by_xtensor);
BENCHMARK(add_bias_by_tapehead);

void split_heads_by_xtensor(benchmark::State& state) {
  const Tensor x = tensor(numbers({8, 64, 4, 32}));
  Tensor y = xt::transpose(x, {0, 2, 1, 3});
  for (auto _ : state) {
    xt::noalias(y) = xt::transpose(x, {0, 2, 1, 3});
    benchmark::DoNotOptimize(y.data());
  }
}
void split_heads_by_tapehead(benchmark::State& state) {
  set_thread_count(1);
  const Var<double> x = numbers({8, 64, 4, 32});
  for (auto _ : state) benchmark::DoNotOptimize(permute(x, {0, 2, 1, 3}));
}
BENCHMARK(split_heads_by_xtensor);
BENCHMARK(split_heads_by_tapehead);

void batch_of_products_by_xtensor(benchmark::State& state) {
  const Tensor a = tensor(numbers({32, 16, 16})), b = a;
  Tensor y = a;
  for (auto _ : state) {
    for (std::size_t i = 0; i < 32; ++i) xt::view(y, i) = xt::linalg::dot(xt::view(a, i), xt::view(b, i));
    benchmark::DoNotOptimize(y.data());
  }
}
void batch_of_products_by_tapehead(benchmark::State& state) {
  set_thread_count(1);
  const Var<double> a = numbers({32, 16, 16}), b = numbers({32, 16, 16});
  for (auto _ : state) benchmark::DoNotOptimize(matmul(a, b));
}
BENCHMARK(batch_of_products_by_xtensor);
BENCHMARK(batch_of_products_by_tapehead);

void one_product_by_xtensor(benchmark::State& state) {
  const Tensor a = tensor(numbers({64, 64})), b = a;
  for (auto _ : state) {
    Tensor y = xt::linalg::dot(a, b);
    benchmark::DoNotOptimize(y.data());
  }
}
void one_product_by_tapehead(benchmark::State& state) {
  set_thread_count(1);
  const Var<double> a = numbers({64, 64}), b = numbers({64, 64});
  for (auto _ : state) benchmark::DoNotOptimize(matmul(a, b));
}
BENCHMARK(one_product_by_xtensor);
BENCHMARK(one_product_by_tapehead);

}  // namespace
}  // namespace tapehead
