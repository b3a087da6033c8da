// Single ops: what the engine itself costs (an op of 8 floats), our matrix product beside OpenBLAS's, and ops
// of a training step over arrays that do not fit the first cache.
//
//   bench_ops --benchmark_filter=overhead
//   bench_ops --benchmark_filter='product|matmul'
//   OPENBLAS_CORETYPE=SkylakeX bench_ops --benchmark_filter=matmul
//   TAPEHEAD_ARCH=avx2 bench_ops --benchmark_filter=forward

#include <cblas.h>

#include <tapehead/core/gradient.h>
#include <tapehead/nn/optimizer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/kernels/block_product.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/softmax.h>

#include "measure.h"

namespace tapehead::bench {
namespace {

// ---- What an op of next to no arithmetic costs

constexpr Index chain = 1000;

Var<float> product_chain(const Var<float>& x, const Var<float>& factor) {
  Var<float> y = x;
  for (Index i = 0; i < chain; ++i) y = y * factor;
  return y;
}
Var<float> product_chain(const Var<float>& x) {
  Var<float> y = x;
  for (Index i = 0; i < chain; ++i) y = y * 1.0001;
  return y;
}

void add_overhead() {
  const Array<float> ones = Array<float>::ones({8});
  auto add_chain = [](const std::string& name, auto run) {
    add("overhead_" + name + "/chain1000", [run](benchmark::State& state) {
      Tape<float> tape;
      measure<float>(state, {.parts = chain}, [&] {
        tape.clear();
        run(tape);
      });
    });
  };
  add_chain("unrecorded",
            [=](Tape<float>&) { benchmark::DoNotOptimize(product_chain(Var<float>(ones)).value().data()); });
  add_chain("record", [=](Tape<float>& tape) {
    benchmark::DoNotOptimize(product_chain(tape.input(ones)).value().data());
  });
  add_chain("record_backward", [=](Tape<float>& tape) {
    const Var<float> x = tape.input(ones);
    benchmark::DoNotOptimize(gradient_values(product_chain(x), x, Var<float>(ones)).data());
  });
  add_chain("record_backward_both_operands", [=](Tape<float>& tape) {
    const Var<float> x = tape.input(ones), factor = tape.input(ones);
    benchmark::DoNotOptimize(gradient_values(product_chain(x, factor), {x, factor}, Var<float>(ones)).data());
  });
  add_chain("record_backward_recorded", [=](Tape<float>& tape) {
    const Var<float> x = tape.input(ones), factor = tape.input(ones);
    benchmark::DoNotOptimize(gradient(product_chain(x, factor), {x, factor}, Var<float>(ones)).data());
  });
}

// ---- Matrix products

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

enum class Whose { ours, openblas };

template <class T>
void product(benchmark::State& state, Whose whose, Index n, Index count, bool transposed) {
  const Array<T> a = normal<T>({count, n, n}), b = a;
  Array<T> c = Array<T>::zeros({count, n, n});
  T* y = c.mutable_values().data();
  openblas_set_num_threads(1);
  measure<T>(state, {2.0 * static_cast<double>(count * n * n * n)}, [&] {
    for (Index i = 0; i < count * n * n; i += n * n) {
      if (whose == Whose::openblas) {
        blas_product(n, transposed, a.data() + i, b.data() + i, y + i);
      } else {
        kernels::block_product<T>(n, n, n, {a.data() + i, n}, {b.data() + i, n, transposed}, 0, y + i, n);
      }
    }
  });
}

template <class T>
void add_products(const std::string& type) {
  add("matmul/2048_" + type, [](benchmark::State& state) {
    const Var<T> a(normal<T>({2048, 2048}));
    measure<T>(state, {2.0 * 2048 * 2048 * 2048},
               [&] { benchmark::DoNotOptimize(matmul(a, a).value().data()); });
  });
  auto both = [&](Index n, Index count, bool transposed) {
    const std::string size =
        std::to_string(count) + "x" + std::to_string(n) + (transposed ? "_transposed/" : "/");
    for (const Whose whose : {Whose::ours, Whose::openblas}) {
      benchmark::RegisterBenchmark(
          ("product/" + type + "/" + size + (whose == Whose::ours ? "ours" : "openblas")).c_str(),
          [=](benchmark::State& state) { product<T>(state, whose, n, count, transposed); });
    }
  };
  for (const Index n : {8, 16, 32, 64}) both(n, 256, false), both(n, 256, true);
  for (const Index n : {8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048}) both(n, 1, false);
}

// ---- The other ops of a training step

constexpr Index rows = 2048, width = 256;

// Forward alone, and with the gradients of all inputs.
template <class Op>
void add_op(const std::string& name, const std::vector<Shape>& shapes, Op op) {
  std::vector<Array<float>> arrays;
  for (const Shape& shape : shapes) arrays.push_back(normal<float>(shape));
  add("forward/" + name, [=](benchmark::State& state) {
    const std::vector<Var<float>> x(arrays.begin(), arrays.end());
    measure<float>(state, {}, [&] { benchmark::DoNotOptimize(op(x).value().data()); });
  });
  add("forward_backward/" + name, [=](benchmark::State& state) {
    Tape<float> tape;
    const Var<float> seed(normal<float>(op(std::vector<Var<float>>(arrays.begin(), arrays.end())).shape()));
    measure<float>(state, {}, [&] {
      tape.clear();
      std::vector<Var<float>> x;
      for (const Array<float>& array : arrays) x.push_back(tape.input(array));
      benchmark::DoNotOptimize(gradient_values(op(x), x, seed).data());
    });
  });
}

struct OneMatrix {
  Var<float> w{normal<float>({rows, width})};
  static void fields(auto& self, auto f) { f("w", self.w); }
};

void add_optimizer() {
  add("optimizer/adamw", [](benchmark::State& state) {
    OneMatrix model;
    const std::vector<Array<float>> gradients = {normal<float>({rows, width})};
    AdamW<float> optimizer({.rate = 1e-3});
    measure<float>(state, {}, [&] { optimizer.step(model, gradients); });
  });
}

void add_training_ops() {
  using List = std::vector<Var<float>>;
  const Shape matrix{rows, width}, row{width};
  Generator random(2);
  const Array<Index> labels = random.integers({rows}, width);
  add_op("add", {matrix, matrix}, [](const List& x) { return x[0] + x[1]; });
  add_op("add_row", {matrix, row}, [](const List& x) { return x[0] + x[1]; });
  add_op("exp", {matrix}, [](const List& x) { return exp(x[0]); });
  add_op("tanh", {matrix}, [](const List& x) { return tanh(x[0]); });
  add_op("gelu", {matrix}, [](const List& x) { return gelu(x[0]); });
  add_op("softmax", {matrix}, [](const List& x) { return softmax(x[0]); });
  add_op("layer_norm", {matrix, row, row}, [](const List& x) { return layer_norm(x[0], x[1], x[2]); });
  add_op("rms_norm", {matrix, row}, [](const List& x) { return rms_norm(x[0], x[1]); });
  add_op("cross_entropy", {matrix}, [labels](const List& x) { return mean(cross_entropy(x[0], labels)); });
  add_optimizer();
}

void add_all() {
  add_overhead();
  add_products<float>("f32");
  add_products<double>("f64");
  add_training_ops();
}

}  // namespace
}  // namespace tapehead::bench

int main(int count, char** arguments) {
  return tapehead::bench::run_benchmarks(count, arguments, tapehead::bench::add_all);
}
