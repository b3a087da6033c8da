// What the engine itself costs: ops of 8 floats, so that the arithmetic is next to nothing. Times are an op.

#include <tapehead/tapehead.h>

#include <benchmark/benchmark.h>

namespace tapehead {
namespace {

constexpr Index chain = 1000;

Var<float> product_chain(const Var<float>& x) {
  Var<float> y = x;
  for (Index i = 0; i < chain; ++i) y = y * 1.0001;
  return y;
}

Var<float> binary_chain(const Var<float>& x, const Var<float>& factor) {
  Var<float> y = x;
  for (Index i = 0; i < chain; ++i) y = y * factor;
  return y;
}

void per_op(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * chain);
  state.counters["per_op"] = benchmark::Counter(static_cast<double>(state.iterations()) * chain,
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void unrecorded(benchmark::State& state) {
  const Var<float> x = Array<float>::ones({8});
  for (auto _ : state) benchmark::DoNotOptimize(product_chain(x));
  per_op(state);
}
BENCHMARK(unrecorded);

void recorded(benchmark::State& state) {
  Tape<float> tape;
  for (auto _ : state) {
    tape.clear();
    benchmark::DoNotOptimize(product_chain(tape.input(Array<float>::ones({8}))));
  }
  per_op(state);
}
BENCHMARK(recorded);

void recorded_and_differentiated(benchmark::State& state) {
  Tape<float> tape;
  const Var<float> seed = Array<float>::ones({8});
  for (auto _ : state) {
    tape.clear();
    const Var<float> x = tape.input(Array<float>::ones({8}));
    benchmark::DoNotOptimize(gradient_values(product_chain(x), x, seed));
  }
  per_op(state);
}
BENCHMARK(recorded_and_differentiated);

void both_operands_recorded_and_differentiated(benchmark::State& state) {
  Tape<float> tape;
  const Var<float> seed = Array<float>::ones({8});
  for (auto _ : state) {
    tape.clear();
    const Var<float> x = tape.input(Array<float>::ones({8})), factor = tape.input(Array<float>::ones({8}));
    benchmark::DoNotOptimize(gradient_values(binary_chain(x, factor), {x, factor}, seed));
  }
  per_op(state);
}
BENCHMARK(both_operands_recorded_and_differentiated);

void gradient_recorded_too(benchmark::State& state) {
  Tape<float> tape;
  const Var<float> seed = Array<float>::ones({8});
  for (auto _ : state) {
    tape.clear();
    const Var<float> x = tape.input(Array<float>::ones({8})), factor = tape.input(Array<float>::ones({8}));
    benchmark::DoNotOptimize(gradient(binary_chain(x, factor), {x, factor}, seed));
  }
  per_op(state);
}
BENCHMARK(gradient_recorded_too);

}  // namespace
}  // namespace tapehead
