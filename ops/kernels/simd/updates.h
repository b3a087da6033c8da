// What an optimizer does to its elements, in place.
#pragma once

#include <tapehead/ops/kernels/simd/vector.h>

namespace tapehead::kernels {
namespace {

template <class T>
void adapt(Index n, T* p, const T* g, T* m, T* v, const AdamStep<T>& s) {
  using V = Vector<T>;
  auto step = [&s](const V& parameter, const V& gradient, V& mean, V& square) {
    const V d = gradient + V(s.decay) * parameter;
    mean = V(s.beta1) * mean + V(s.rest1) * d;
    square = V(s.beta2) * square + V(s.rest2) * d * d;
    return V(s.remain) * parameter - V(s.rate) * mean / (xsimd::sqrt(square) * V(s.root) + V(s.eps));
  };
  Index i = 0;
  for (; i + width<T> <= n; i += width<T>) {
    V mean = load(m + i), square = load(v + i);
    store(p + i, step(load(p + i), load(g + i), mean, square));
    store(m + i, mean);
    store(v + i, square);
  }
  if (i == n) return;
  const int rest = static_cast<int>(n - i);
  V mean = load_first(m + i, rest), square = load_first(v + i, rest);
  store_first(p + i, step(load_first(p + i, rest), load_first(g + i, rest), mean, square), rest);
  store_first(m + i, mean, rest);
  store_first(v + i, square, rest);
}

}  // namespace
}  // namespace tapehead::kernels
