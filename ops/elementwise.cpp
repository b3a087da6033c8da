#include <tapehead/core/parallel.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/kernels/maps.h>
#include <tapehead/ops/kernels/processor.h>
#include <tapehead/ops/masking.h>

#include <limits>
#include <numbers>

namespace tapehead {
namespace {

using kernels::vector_kernels;

template <class T>
using Map = void (*)(const T* x, Index n, T* y);

template <class T>
Array<T> mapped(const Var<T>& x, Map<T> map) {
  auto y = Array<T>::uninitialized(x.shape());
  const T* const in = x.value().data();
  T* const out = y.mutable_values().data();
  parallel_for(x.size(), elementwise_grain / 4,
               [&](Index begin, Index end) { map(in + begin, end - begin, out + begin); });
  return y;
}

// What a plain sweep does in one pass: f(x, dy, n, dx) for runs of n elements. dx takes the storage of dy
// when nobody else reads it.
template <class T, class F>
Var<T> weighed(const Var<T>& x, Var<T> dy, F f) {
  Array<T> given = std::move(dy).value();
  Array<T> dx = given.sole_owner() ? std::move(given) : Array<T>::uninitialized(x.shape());
  const T* const in = x.value().data();
  T* const out = dx.mutable_values().data();
  const T* const up = given.defined() ? given.data() : out;
  parallel_for(x.size(), elementwise_grain / 4,
               [&](Index begin, Index end) { f(in + begin, up + begin, end - begin, out + begin); });
  return dx;
}

// The same, dx = f(x, dy) for each element.
template <class T, class F>
Var<T> weighed_each(const Var<T>& x, Var<T> dy, F f) {
  return weighed(x, std::move(dy), [f](const T* in, const T* up, Index n, T* out) {
    for (Index i = 0; i < n; ++i) out[i] = f(in[i], up[i]);
  });
}

// Slopes as ops, for a sweep that is recorded.
template <class T>
Var<T> gelu_slope(const Var<T>& x, Gelu kind) {
  constexpr double root_2_over_pi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  // Beyond 40 the slope is that of the distribution alone; x times a density of 0 is NaN when x is infinite.
  const Var<T> near = masked_fill(x, positive((1600.0 - x * x).value()), 0);
  const Var<T> x2 = near * near;
  if (kind == Gelu::exact) {
    const Var<T> distribution = erf(x / std::numbers::sqrt2) * 0.5 + 0.5;
    return distribution + near * exp(x2 * -0.5) * (root_2_over_pi / 2);
  }
  constexpr double cubic = 0.044715;
  const Var<T> t = tanh(x * (x2 * cubic + 1.0) * root_2_over_pi);
  const Var<T> du = (x2 * (3 * cubic) + 1.0) * root_2_over_pi;
  return t * 0.5 + 0.5 + near * (1.0 - t * t) * du * 0.5;
}

template <class T>
Var<T> silu_slope(const Var<T>& x) {
  // x times a sigmoid of 0 is NaN when x is infinite.
  const Array<bool> finite =
      positive((std::numeric_limits<T>::max() - Var<T>(mapped(x, Map<T>(kernels::abs)))).value());
  return sigmoid(x) * (masked_fill(x, finite, 0) * sigmoid(-x) + 1.0);
}

}  // namespace

template <std::floating_point T>
Var<T> exp(const Var<T>& x) {
  return record("exp", mapped(x, vector_kernels<T>().exp),
                edge(x, [](const Var<T>& y, const Var<T>& dy) { return dy * y; }));
}

template <std::floating_point T>
Var<T> log(const Var<T>& x) {
  return record("log", mapped(x, Map<T>(kernels::log)), edge(x, [x](const Var<T>& dy) { return dy / x; }));
}

template <std::floating_point T>
Var<T> sqrt(const Var<T>& x) {
  return record("sqrt", mapped(x, Map<T>(kernels::sqrt)),
                edge(x, [](const Var<T>& y, const Var<T>& dy) { return dy / y * 0.5; }));
}

template <std::floating_point T>
Var<T> rsqrt(const Var<T>& x) {
  return record("rsqrt", mapped(x, Map<T>(kernels::rsqrt)),
                edge(x, [](const Var<T>& y, const Var<T>& dy) { return dy * (y * y * y) * -0.5; }));
}

template <std::floating_point T>
Var<T> reciprocal(const Var<T>& x) {
  return record("reciprocal", mapped(x, Map<T>(kernels::reciprocal)),
                edge(x, [](const Var<T>& y, const Var<T>& dy) { return -(dy * square(y)); }));
}

template <std::floating_point T>
Var<T> square(const Var<T>& x) {
  return record("square", mapped(x, Map<T>(kernels::square)),
                edge(x, [x](const Var<T>& dy) { return dy * x * 2.0; }));
}

template <std::floating_point T>
Var<T> abs(const Var<T>& x) {
  return record("abs", mapped(x, Map<T>(kernels::abs)),
                edge(x, [x](const Var<T>& dy) { return dy * Var<T>(mapped(x, Map<T>(kernels::sign))); }));
}

template <std::floating_point T>
Var<T> sin(const Var<T>& x) {
  return record("sin", mapped(x, Map<T>(kernels::sin)),
                edge(x, [x](const Var<T>& dy) { return dy * cos(x); }));
}

template <std::floating_point T>
Var<T> cos(const Var<T>& x) {
  return record("cos", mapped(x, Map<T>(kernels::cos)),
                edge(x, [x](const Var<T>& dy) { return -(dy * sin(x)); }));
}

template <std::floating_point T>
Var<T> tanh(const Var<T>& x) {
  return record("tanh", mapped(x, vector_kernels<T>().tanh),
                edge(x, [](const Var<T>& y, Var<T> dy) -> Var<T> {
                  if (is_recording(y)) return dy * (1.0 - y * y);
                  return weighed_each(y, std::move(dy), [](T p, T dp) { return dp * (1 - p * p); });
                }));
}

template <std::floating_point T>
Var<T> erf(const Var<T>& x) {
  return record("erf", mapped(x, Map<T>(kernels::erf)), edge(x, [x](const Var<T>& dy) {
                  return dy * exp(-(x * x)) * (2 * std::numbers::inv_sqrtpi);
                }));
}

template <std::floating_point T>
Var<T> relu(const Var<T>& x) {
  return record("relu", mapped(x, Map<T>(kernels::relu)), edge(x, [](const Var<T>& y, Var<T> dy) -> Var<T> {
                  if (is_recording(y)) return masked_fill(dy, positive(y.value()), 0);
                  return weighed_each(y, std::move(dy), [](T p, T dp) { return p > 0 ? dp : 0; });
                }));
}

template <std::floating_point T>
Var<T> sigmoid(const Var<T>& x) {
  return record("sigmoid", mapped(x, vector_kernels<T>().sigmoid),
                edge(x, [](const Var<T>& y, Var<T> dy) -> Var<T> {
                  if (is_recording(y)) return dy * (y * (1.0 - y));
                  return weighed_each(y, std::move(dy), [](T p, T dp) { return dp * (p * (1 - p)); });
                }));
}

template <std::floating_point T>
Var<T> softplus(const Var<T>& x) {
  return record("softplus", mapped(x, Map<T>(kernels::softplus)),
                edge(x, [x](const Var<T>& dy) { return dy * sigmoid(x); }));
}

template <std::floating_point T>
Var<T> silu(const Var<T>& x) {
  return record("silu", mapped(x, vector_kernels<T>().silu), edge(x, [x](Var<T> dy) -> Var<T> {
                  if (is_recording(x)) return dy * silu_slope(x);
                  return weighed(x, std::move(dy), vector_kernels<T>().silu_vjp);
                }));
}

template <std::floating_point T>
Var<T> gelu(const Var<T>& x, Gelu kind) {
  const kernels::VectorKernels<T>& vector = vector_kernels<T>();
  return record("gelu", mapped(x, kind == Gelu::exact ? vector.gelu : vector.gelu_tanh),
                edge(x, [x, kind](Var<T> dy) -> Var<T> {
                  if (is_recording(x)) return dy * gelu_slope(x, kind);
                  const kernels::VectorKernels<T>& own = vector_kernels<T>();
                  return weighed(x, std::move(dy), kind == Gelu::exact ? own.gelu_vjp : own.gelu_tanh_vjp);
                }));
}

#define TAPEHEAD_INSTANTIATE(T)              \
  template Var<T> exp(const Var<T>&);        \
  template Var<T> log(const Var<T>&);        \
  template Var<T> sqrt(const Var<T>&);       \
  template Var<T> rsqrt(const Var<T>&);      \
  template Var<T> reciprocal(const Var<T>&); \
  template Var<T> square(const Var<T>&);     \
  template Var<T> abs(const Var<T>&);        \
  template Var<T> sin(const Var<T>&);        \
  template Var<T> cos(const Var<T>&);        \
  template Var<T> tanh(const Var<T>&);       \
  template Var<T> erf(const Var<T>&);        \
  template Var<T> relu(const Var<T>&);       \
  template Var<T> sigmoid(const Var<T>&);    \
  template Var<T> softplus(const Var<T>&);   \
  template Var<T> silu(const Var<T>&);       \
  template Var<T> gelu(const Var<T>&, Gelu);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
