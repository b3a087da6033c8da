#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/kernels/zip.h>
#include <tapehead/ops/shaping.h>

namespace tapehead {
namespace {

template <class T, class F>
Array<T> zipped(OpName op, const Var<T>& a, const Var<T>& b, F f) {
  const Shape shape = broadcast_shapes(op, "a", a.shape(), "b", b.shape());
  auto y = Array<T>::uninitialized(shape);
  kernels::zip(a.value().data(), a.shape(), b.value().data(), b.shape(), y.mutable_values().data(), shape, f);
  return y;
}

template <class T, class F>
Array<T> mapped(const Var<T>& x, F f) {
  auto y = Array<T>::uninitialized(x.shape());
  const T* in = x.value().data();
  T* out = y.mutable_values().data();
  parallel_for(x.size(), elementwise_grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) out[i] = f(in[i]);
  });
  return y;
}

}  // namespace

template <std::floating_point T>
Var<T> add(const Var<T>& a, const Var<T>& b) {
  return record("add", zipped("add", a, b, [](T p, T q) { return p + q; }),
                edge(
                    a, [](Var<T> dy) { return dy; }, sum_to),
                edge(
                    b, [](Var<T> dy) { return dy; }, sum_to));
}

template <std::floating_point T>
Var<T> sub(const Var<T>& a, const Var<T>& b) {
  return record("sub", zipped("sub", a, b, [](T p, T q) { return p - q; }),
                edge(
                    a, [](Var<T> dy) { return dy; }, sum_to),
                edge(
                    b, [](const Var<T>& dy) { return neg(dy); }, sum_to));
}

template <std::floating_point T>
Var<T> mul(const Var<T>& a, const Var<T>& b) {
  return record("mul", zipped("mul", a, b, [](T p, T q) { return p * q; }),
                edge(
                    a, [b](const Var<T>& dy) { return mul(dy, b); }, sum_to),
                edge(
                    b, [a](const Var<T>& dy) { return mul(dy, a); }, sum_to));
}

template <std::floating_point T>
Var<T> div(const Var<T>& a, const Var<T>& b) {
  return record("div", zipped("div", a, b, [](T p, T q) { return p / q; }),
                edge(
                    a, [b](const Var<T>& dy) { return div(dy, b); }, sum_to),
                edge(
                    b, [b](const Var<T>& y, const Var<T>& dy) { return neg(div(mul(dy, y), b)); }, sum_to));
}

template <std::floating_point T>
Var<T> neg(const Var<T>& x) {
  return record("neg", mapped(x, [](T p) { return -p; }), edge(x, [](const Var<T>& dy) { return neg(dy); }));
}

template <std::floating_point T>
Var<T> add(const Var<T>& x, double c) {
  return record("add", mapped(x, [c = static_cast<T>(c)](T p) { return p + c; }),
                edge(x, [](Var<T> dy) { return dy; }));
}

template <std::floating_point T>
Var<T> mul(const Var<T>& x, double c) {
  return record("mul", mapped(x, [c = static_cast<T>(c)](T p) { return p * c; }),
                edge(x, [c](const Var<T>& dy) { return mul(dy, c); }));
}

template <std::floating_point T>
Var<T> div(const Var<T>& x, double c) {
  return record("div", mapped(x, [c = static_cast<T>(c)](T p) { return p / c; }),
                edge(x, [c](const Var<T>& dy) { return div(dy, c); }));
}

template <std::floating_point T>
Var<T> div(double c, const Var<T>& x) {
  return record("div", mapped(x, [c = static_cast<T>(c)](T p) { return c / p; }),
                edge(x, [x](const Var<T>& y, const Var<T>& dy) { return neg(div(mul(dy, y), x)); }));
}

#define TAPEHEAD_INSTANTIATE(T)                      \
  template Var<T> add(const Var<T>&, const Var<T>&); \
  template Var<T> sub(const Var<T>&, const Var<T>&); \
  template Var<T> mul(const Var<T>&, const Var<T>&); \
  template Var<T> div(const Var<T>&, const Var<T>&); \
  template Var<T> neg(const Var<T>&);                \
  template Var<T> add(const Var<T>&, double);        \
  template Var<T> mul(const Var<T>&, double);        \
  template Var<T> div(const Var<T>&, double);        \
  template Var<T> div(double, const Var<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
