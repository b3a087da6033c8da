// Attention as a user calls it, through the tape: forward alone, and forward with the gradients of query, key
// and value. The cases of bench/peers.py, and a series of lengths for the growth of time and memory.
//
//   bench_attention --benchmark_filter=long_f32
//   bench_attention --benchmark_filter=length_

#include <tapehead/core/gradient.h>
#include <tapehead/nn/attention.h>

#include "measure.h"

namespace tapehead::bench {
namespace {

struct Sizes {
  Index batch, heads, kv_heads, length, source, width;
  bool causal;

  double operations() const {  // of forward; a causal mask leaves out half
    return (causal ? 2.0 : 4.0) * static_cast<double>(batch * heads * length * source * width);
  }
};

template <class T>
struct Inputs {
  explicit Inputs(const Sizes& s)
      : query(normal<T>({s.batch, s.heads, s.length, s.width})),
        key(normal<T>({s.batch, s.kv_heads, s.source, s.width})),
        value(key),
        upstream(query) {
    if (s.causal) options.mask = Mask::causal();
  }
  Array<T> query, key, value, upstream;
  AttentionOptions<T> options;
};

template <class T>
void forward(benchmark::State& state, const Sizes& sizes) {
  const Inputs<T> in(sizes);
  const Var<T> query(in.query), key(in.key), value(in.value);
  measure<T>(state, {sizes.operations()}, [&] {
    benchmark::DoNotOptimize(attention(query, key, value, in.options).output.value().data());
  });
}

template <class T>
void forward_backward(benchmark::State& state, const Sizes& sizes) {
  const Inputs<T> in(sizes);
  Tape<T> tape;
  // Backward takes five products where forward takes two.
  measure<T>(state, {3.5 * sizes.operations()}, [&] {
    tape.clear();
    const Var<T> query = tape.input(in.query), key = tape.input(in.key), value = tape.input(in.value);
    const Var<T> y = attention(query, key, value, in.options).output;
    benchmark::DoNotOptimize(gradient_values(y, {query, key, value}, Var<T>(in.upstream)).data());
  });
}

template <class T>
void add_case(const std::string& name, Sizes sizes) {
  add("attention_forward/" + name, [=](benchmark::State& state) { forward<T>(state, sizes); });
  add("attention_forward_backward/" + name,
      [=](benchmark::State& state) { forward_backward<T>(state, sizes); });
}

void add_all() {
  add_case<float>("long_f32", {1, 8, 8, 2048, 2048, 64, false});
  add_case<float>("long_causal_f32", {1, 8, 8, 2048, 2048, 64, true});
  add_case<double>("long_f64", {1, 8, 8, 1024, 1024, 64, false});
  add_case<float>("wide_f32", {1, 4, 4, 2048, 2048, 128, false});
  add_case<float>("mid_f32", {4, 8, 8, 512, 512, 64, true});
  add_case<float>("gqa_f32", {1, 16, 2, 1024, 1024, 64, true});
  add_case<float>("small_f32", {32, 4, 4, 128, 128, 32, true});
  add_case<float>("toy_f32", {8, 4, 4, 64, 64, 16, true});
  add_case<double>("toy_f64", {8, 4, 4, 64, 64, 16, true});
  add_case<float>("tiny_f32", {4, 2, 2, 16, 16, 8, true});
  add_case<float>("decode_f32", {1, 16, 4, 1, 4096, 64, false});
  add_case<float>("ragged_f32", {2, 4, 4, 777, 1031, 40, false});
  add_case<double>("seed_f64", {1, 1, 1, 16, 16, 8, false});
  for (Index length = 256; length <= 32768; length *= 2) {
    add_case<float>("length_" + std::to_string(length), {1, 1, 1, length, length, 64, false});
  }
}

}  // namespace
}  // namespace tapehead::bench

int main(int count, char** arguments) {
  return tapehead::bench::run_benchmarks(count, arguments, tapehead::bench::add_all);
}
