// Whole training steps of pre-norm causal models with a feed-forward part of four times their width, GELU and
// AdamW, in float. The cases of bench/peers.py.
//
//   bench_train --benchmark_filter=toy
//   bench_train --memory medium     # resident bytes that three steps add, in a process that did nothing else

#include <fstream>
#include <iostream>
#include <string_view>

#include <tapehead/nn/training.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/reduction.h>

#include "measure.h"

namespace tapehead::bench {
namespace {

struct Case {
  std::string_view name;
  Index batch, length, width, heads, layers, vocabulary;
};
constexpr Case cases[] = {{"tiny", 8, 16, 32, 2, 2, 32},
                          {"toy", 16, 64, 64, 4, 2, 64},
                          {"small", 16, 128, 128, 4, 4, 128},
                          {"medium", 8, 256, 256, 8, 4, 256}};

class Training {
 public:
  explicit Training(const Case& c) {
    Generator random(1);
    model_ = CausalModel<float>::initial(random, {.vocabulary = c.vocabulary,
                                                  .context = c.length,
                                                  .width = c.width,
                                                  .heads = c.heads,
                                                  .layers = c.layers,
                                                  .hidden = 4 * c.width,
                                                  .bias = true});
    tokens_ = random.integers({c.batch, c.length}, c.vocabulary);
    targets_ = random.integers({c.batch, c.length}, c.vocabulary);
    Index in_matrices = 0;
    for_each_parameter(model_, [&](const std::string&, const Var<float>& p) {
      if (p.shape().rank() > 1) in_matrices += p.value().size();
    });
    operations_ = 6.0 * static_cast<double>(c.batch * c.length * in_matrices);
  }
  double operations() const { return operations_; }  // of the products with parameters
  void step() {
    training_step(tape_, model_, optimizer_, [this](const CausalModel<float>& model) {
      return mean(cross_entropy(model(tokens_), targets_));
    });
  }

 private:
  CausalModel<float> model_;
  Array<Index> tokens_, targets_;
  AdamW<float> optimizer_{{.rate = 1e-3}};
  Tape<float> tape_;
  double operations_ = 0;
};

// In kB, from /proc/self/status: "VmRSS:" now, "VmHWM:" the most so far.
double resident(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stod(line.substr(field.size()));
  }
  return 0;
}

int say_memory(std::string_view name) {
  for (const Case& c : cases) {
    if (c.name != name) continue;
    set_thread_count(1);
    Training training(c);
    const double before = resident("VmRSS:");
    for (int i = 0; i < 3; ++i) training.step();
    std::cout << "{\"case\": \"" << name << "\", \"resident_bytes\": " << 1024 * (resident("VmHWM:") - before)
              << "}\n";
    return 0;
  }
  std::cerr << "bench_train: no case is called " << name << "\n";
  return 2;
}

void add_all() {
  for (const Case& c : cases) {
    add("train_step/" + std::string(c.name), [&c](benchmark::State& state) {
      Training training(c);
      measure<float>(state, {training.operations()}, [&] { training.step(); });
    });
  }
}

}  // namespace
}  // namespace tapehead::bench

int main(int count, char** arguments) {
  using namespace tapehead::bench;
  if (count == 3 && std::string_view(arguments[1]) == "--memory") return say_memory(arguments[2]);
  return run_benchmarks(count, arguments, add_all);
}
