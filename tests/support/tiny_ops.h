#pragma once
// The types and a handful of ops for the tests of the engine alone: core knows no op.

#include <cmath>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>

namespace tapehead::tiny {

using A = Array<double>;
using V = Var<double>;
using T = Tape<double>;
using Values = std::vector<double>;

inline Values values(const V& x) { return x.value().to_vector(); }
inline Values values(const A& x) { return x.to_vector(); }

template <class T, class F>
Array<T> map(const Array<T>& x, F f) {
  auto y = Array<T>::uninitialized(x.shape());
  T* out = y.mutable_values().data();
  for (const T value : x.values()) *out++ = f(value);
  return y;
}

template <class T, class F>
Array<T> zip(std::string_view op, const Array<T>& a, const Array<T>& b, F f) {
  if (a.shape() != b.shape()) throw ShapeError(op, "shapes differ", {{"a", a.shape()}, {"b", b.shape()}});
  auto y = Array<T>::uninitialized(a.shape());
  T* out = y.mutable_values().data();
  for (Index i = 0; i < a.size(); ++i) *out++ = f(a.data()[i], b.data()[i]);
  return y;
}

// Y = A + B          dA = dY          dB = dY
template <class T>
Var<T> add(const Var<T>& a, const Var<T>& b) {
  auto through = [](const Var<T>& dy) { return dy; };
  return record("add", zip("add", a.value(), b.value(), [](T p, T q) { return p + q; }), edge(a, through),
                edge(b, through));
}

// Y = s X            dX = s dY
template <class T>
Var<T> scale(const Var<T>& x, T s) {
  return record("scale", map(x.value(), [s](T v) { return s * v; }),
                edge(x, [s](const Var<T>& dy) { return scale(dy, s); }));
}

// Y = A * B          dA = dY * B      dB = dY * A
template <class T>
Var<T> mul(const Var<T>& a, const Var<T>& b) {
  return record("mul", zip("mul", a.value(), b.value(), [](T p, T q) { return p * q; }),
                edge(a, [b](const Var<T>& dy) { return mul(dy, b); }),
                edge(b, [a](const Var<T>& dy) { return mul(dy, a); }));
}

// Y = X^2            dX = 2 X * dY
template <class T>
Var<T> square(const Var<T>& x) {
  return record("square", map(x.value(), [](T v) { return v * v; }),
                edge(x, [x](const Var<T>& dy) { return scale(mul(dy, x), T{2}); }));
}

// Y = exp X          dX = Y * dY
template <class T>
Var<T> exp(const Var<T>& x) {
  return record("exp", map(x.value(), [](T v) { return std::exp(v); }),
                edge(x, [](const Var<T>& y, const Var<T>& dy) { return mul(y, dy); }));
}

// Y = 1 / X          dX = -Y^2 * dY
template <class T>
Var<T> reciprocal(const Var<T>& x) {
  return record("reciprocal", map(x.value(), [](T v) { return 1 / v; }),
                edge(x, [](const Var<T>& y, const Var<T>& dy) { return scale(mul(square(y), dy), T{-1}); }));
}

template <class T>
Var<T> spread(const Var<T>& x, const Shape& shape);

// Y = sum of X, a scalar      dX = dY everywhere
template <class T>
Var<T> sum(const Var<T>& x) {
  T total{};
  for (const T v : x.value().values()) total += v;
  return record("sum", Array<T>::scalar(total),
                edge(x, [shape = x.shape()](const Var<T>& dy) { return spread(dy, shape); }));
}

// Y = X, a scalar, everywhere      dX = sum of dY
template <class T>
Var<T> spread(const Var<T>& x, const Shape& shape) {
  return record("spread", Array<T>::full(shape, x.item()), edge(x, [](const Var<T>& dy) { return sum(dy); }));
}

// Y = 1 X_1 + 2 X_2 + 3 X_3 + ...      dX_i = i dY
template <class T>
Var<T> weighted_total(const std::vector<Var<T>>& xs) {
  auto y = Array<T>::zeros(xs.at(0).shape());
  T weight{};
  for (const Var<T>& x : xs) {
    y = zip("weighted_total", y, x.value(), [w = ++weight](T p, T q) { return p + w * q; });
  }
  return record_each("weighted_total", y, std::span(xs), [](std::size_t i) {
    return [w = static_cast<T>(i + 1)](const Var<T>& dy) { return scale(dy, w); };
  });
}

}  // namespace tapehead::tiny
