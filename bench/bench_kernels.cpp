// The vector kernels: our matrix product beside OpenBLAS, and fused attention as a share of the best rate
// that either product reaches in this process. One thread.
//
//   bench_kernels --benchmark_filter=attention
//   OPENBLAS_CORETYPE=SkylakeX bench_kernels      # OpenBLAS 0.3.21 does not know processors newer than
//   itself TAPEHEAD_ARCH=avx2 bench_kernels

#include <benchmark/benchmark.h>

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <tapehead/core/memory.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/kernels/block_product.h>
#include <tapehead/ops/kernels/fused_attention.h>
#include <tapehead/ops/kernels/processor.h>

namespace tapehead::kernels {
namespace {

template <class T>
Array<T> numbers(const Shape& shape) {
  Generator random(1);
  return random.normal<T>(shape);
}

void blas_product(Index n, bool transposed, const float* a, const float* b, float* c) {
  const auto i = static_cast<blasint>(n);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, i, i, i, 1, a, i, b, i, 0,
              c, i);
}
void blas_product(Index n, bool transposed, const double* a, const double* b, double* c) {
  const auto i = static_cast<blasint>(n);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, i, i, i, 1, a, i, b, i, 0,
              c, i);
}

template <class T>
struct Products {  // `count` products of n x n
  Index n, count;
  Array<T> a = numbers<T>({count, n, n}), b = numbers<T>({count, n, n}), c = Array<T>::zeros({count, n, n});
  double operations() const { return 2.0 * static_cast<double>(count * n * n * n); }
  void ours(bool transposed) {
    T* y = c.mutable_values().data();
    for (Index i = 0; i < count * n * n; i += n * n) {
      block_product<T>(n, n, n, {a.data() + i, n}, {b.data() + i, n, transposed}, 0, y + i, n);
    }
  }
  void openblas(bool transposed) {
    openblas_set_num_threads(1);
    T* y = c.mutable_values().data();
    for (Index i = 0; i < count * n * n; i += n * n)
      blas_product(n, transposed, a.data() + i, b.data() + i, y + i);
  }
};

void count_rate(benchmark::State& state, double operations) {
  state.counters["FLOP/s"] = benchmark::Counter(operations, benchmark::Counter::kIsIterationInvariantRate);
}

template <class T>
void ours(benchmark::State& state) {
  Products<T> products{state.range(0), state.range(1)};
  for (auto _ : state) products.ours(state.range(2) != 0);
  count_rate(state, products.operations());
}
template <class T>
void openblas(benchmark::State& state) {
  Products<T> products{state.range(0), state.range(1)};
  for (auto _ : state) products.openblas(state.range(2) != 0);
  count_rate(state, products.operations());
}

void product_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"n", "count", "transposed"});
  for (const Index n : {8, 16, 32, 64}) bench->Args({n, 256, 0})->Args({n, 256, 1});
  for (const Index n : {8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048}) bench->Args({n, 1, 0});
}
BENCHMARK_TEMPLATE(ours, float)->Name("product/ours/f32")->Apply(product_sizes);
BENCHMARK_TEMPLATE(openblas, float)->Name("product/openblas/f32")->Apply(product_sizes);
BENCHMARK_TEMPLATE(ours, double)->Name("product/ours/f64")->Apply(product_sizes);
BENCHMARK_TEMPLATE(openblas, double)->Name("product/openblas/f64")->Apply(product_sizes);

// The best of several sizes and runs, in operations a second: what shares are taken of.
template <class T, class F>
double best_rate(F product) {
  double best = 0;
  for (const Index n : {64, 96, 256, 512, 1024}) {
    Products<T> products{n, 1};
    for (int run = 0; run < 20; ++run) {
      const auto start = std::chrono::steady_clock::now();
      product(products);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::max(best, products.operations() / seconds.count());
    }
  }
  return best;
}
template <class T>
double openblas_rate() {
  static const double rate = best_rate<T>([](Products<T>& p) { p.openblas(false); });
  return rate;
}
template <class T>
double our_rate() {
  static const double rate = best_rate<T>([](Products<T>& p) { p.ours(false); });
  return rate;
}

struct Sizes {
  Index batches, heads, key_heads, queries, keys, width;
  bool causal;
};

template <class T>
struct Attention {
  Sizes s;
  Array<T> q = numbers<T>({s.batches, s.heads, s.queries, s.width});
  Array<T> k = numbers<T>({s.batches, s.key_heads, s.keys, s.width}), v = k, dout = q, output = q, dq = q,
           dk = k, dv = k;
  Array<double> lse = Array<double>::zeros({s.batches, s.heads, s.queries});
  KeyRange range = {};

  template <class U>
  static HeadRows<U> rows(U* data, const Shape& shape) {
    const Strides step(shape);
    return {data, step[0], step[1], step[2]};
  }
  AttentionProblem<T> problem() {
    AttentionProblem<T> p;
    p.batches = s.batches, p.heads = s.heads, p.key_heads = s.key_heads, p.queries = s.queries,
    p.keys = s.keys;
    p.width = p.value_width = s.width, p.scale = 1 / std::sqrt(static_cast<double>(s.width));
    p.q = rows(q.data(), q.shape()), p.k = rows(k.data(), k.shape()), p.v = rows(v.data(), v.shape());
    range.to = 1;
    if (s.causal) p.ranges = &range;
    return p;
  }
  double operations() const {
    return (s.causal ? 2.0 : 4.0) * static_cast<double>(s.batches * s.heads * s.queries * s.keys * s.width);
  }
  void forward() {
    attention_forward(problem(), rows(output.mutable_values().data(), output.shape()),
                      lse.mutable_values().data());
  }
  void backward() {
    AttentionGradients<T> g;
    g.output = rows(output.data(), output.shape()), g.doutput = rows(dout.data(), dout.shape()),
    g.lse = lse.data();
    g.dq = rows(dq.mutable_values().data(), dq.shape()), g.dk = rows(dk.mutable_values().data(), dk.shape());
    g.dv = rows(dv.mutable_values().data(), dv.shape());
    attention_backward(problem(), g);
  }
};

template <class T>
void attend(benchmark::State& state, Sizes sizes, bool with_backward) {
  const int threads = thread_count();
  set_thread_count(1);
  Attention<T> attention{sizes};
  attention.forward();
  attention.backward();  // every array owns its elements now
  const std::ptrdiff_t before = memory_statistics().live;
  reset_memory_peak();
  for (auto _ : state) {
    attention.forward();
    if (with_backward) attention.backward();
  }
  const double operations = attention.operations() * (with_backward ? 3.5 : 1);
  const auto bytes = static_cast<double>(memory_statistics().peak - before);
  using benchmark::Counter;
  count_rate(state, operations);
  state.counters["of_openblas"] =
      Counter(operations / openblas_rate<T>(), Counter::kIsIterationInvariantRate);
  state.counters["of_ours"] = Counter(operations / our_rate<T>(), Counter::kIsIterationInvariantRate);
  state.counters["bytes"] = Counter(bytes, Counter::kDefaults, Counter::kIs1024);
  set_thread_count(threads);
}

template <class T>
void add_attention(const std::string& name, Sizes sizes) {
  benchmark::RegisterBenchmark(("attention_forward/" + name).c_str(), attend<T>, sizes, false);
  benchmark::RegisterBenchmark(("attention_forward_backward/" + name).c_str(), attend<T>, sizes, true);
}

void add_all_attention() {
  for (Index length = 16; length <= 8192; length *= 2) {
    const Index heads = std::max<Index>(1, 2048 / length);
    add_attention<float>("length_" + std::to_string(length), {1, heads, heads, length, length, 64, false});
  }
  add_attention<float>("memory_32768", {1, 1, 1, 32768, 32768, 64, true});
  // The cases of ../shared/peers/peers.py.
  add_attention<float>("long_f32", {1, 8, 8, 2048, 2048, 64, false});
  add_attention<float>("long_causal_f32", {1, 8, 8, 2048, 2048, 64, true});
  add_attention<double>("long_f64", {1, 8, 8, 1024, 1024, 64, false});
  add_attention<float>("wide_f32", {1, 4, 4, 2048, 2048, 128, false});
  add_attention<float>("mid_f32", {4, 8, 8, 512, 512, 64, true});
  add_attention<float>("gqa_f32", {1, 16, 2, 1024, 1024, 64, true});
  add_attention<float>("small_f32", {32, 4, 4, 128, 128, 32, true});
  add_attention<float>("toy_f32", {8, 4, 4, 64, 64, 16, true});
  add_attention<double>("toy_f64", {8, 4, 4, 64, 64, 16, true});
  add_attention<float>("tiny_f32", {4, 2, 2, 16, 16, 8, true});
  add_attention<float>("decode_f32", {1, 16, 4, 1, 4096, 64, false});
  add_attention<float>("ragged_f32", {2, 4, 4, 777, 1031, 40, false});
  add_attention<double>("seed_f64", {1, 1, 1, 16, 16, 8, false});
}

}  // namespace
}  // namespace tapehead::kernels

int main(int count, char** arguments) {
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 1;
  benchmark::AddCustomContext("openblas", openblas_get_corename());
  benchmark::AddCustomContext("arch",
                              std::string(tapehead::kernels::name_of(tapehead::kernels::arch_in_use())));
  tapehead::kernels::add_all_attention();
  benchmark::RunSpecifiedBenchmarks();
}
