#pragma once
// What the benchmarks share: the best time of many runs, rates, and the rate of the best matrix product that
// this process has, of which shares are taken.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <tapehead/core/array.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/random.h>

namespace tapehead::bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class T>
Array<T> normal(const Shape& shape) {
  Generator random(1);
  return random.normal<T>(shape);
}

// Operations a second of the best product of two square matrices, ours or OpenBLAS's, on one thread.
template <class T>
double best_product_rate();

struct Work {
  double operations = 0;  // of one run
  double parts = 1;       // equal parts of a run, of which `best` is one
};

// Runs f over and over. Counters: the best seconds, bytes taken beyond what was there before, and where the
// operations are known, their rate and its share of the rate of the best product.
template <class T, class F>
void measure(benchmark::State& state, Work work, F f) {
  f();  // takes from the system what the later runs reuse
  double best = std::numeric_limits<double>::infinity();
  const std::ptrdiff_t before = memory_statistics().live;
  reset_memory_peak();
  for (auto _ : state) {
    const double start = seconds_now();
    f();
    best = std::min(best, seconds_now() - start);
  }
  state.counters["best"] = best / work.parts;
  state.counters["bytes"] = static_cast<double>(memory_statistics().peak - before);
  if (work.operations > 0) {
    const double rate = work.operations / best;
    state.counters["GFLOP/s"] = rate / 1e9;
    state.counters["of_sgemm"] = rate / best_product_rate<T>() / thread_count();
  }
}

// Registers `run(state)` as NAME/threads:N for one thread, and for two where the machine has them.
template <class F>
void add(const std::string& name, F run) {
  const int available = thread_count();
  for (int threads = 1; threads <= std::min(available, 2); ++threads) {
    auto timed = [run, threads](benchmark::State& state) {
      const int before = thread_count();
      set_thread_count(threads);
      run(state);
      set_thread_count(before);
    };
    benchmark::RegisterBenchmark((name + "/threads:" + std::to_string(threads)).c_str(), timed)
        ->Unit(benchmark::kMicrosecond);
  }
}

// The whole of main(): says in the context what the figures depend on, and runs what was added.
int run_benchmarks(int count, char** arguments, void (*add_all)());

}  // namespace tapehead::bench
