#pragma once
// Sums, differences, products and quotients, of broadcastable operands and with numbers.

#include <tapehead/core/var.h>

namespace tapehead {

// Shapes broadcast by NumPy's rule; each throws ShapeError when they do not.

// y = a + b            da = dy                  db = dy
template <std::floating_point T>
Var<T> add(const Var<T>& a, const Var<T>& b);
// y = a - b            da = dy                  db = -dy
template <std::floating_point T>
Var<T> sub(const Var<T>& a, const Var<T>& b);
// y = a b              da = dy b                db = dy a
template <std::floating_point T>
Var<T> mul(const Var<T>& a, const Var<T>& b);
// y = a / b            da = dy / b              db = -dy y / b
template <std::floating_point T>
Var<T> div(const Var<T>& a, const Var<T>& b);
// y = -x               dx = -dy
template <std::floating_point T>
Var<T> neg(const Var<T>& x);

// y = x + c            dx = dy
template <std::floating_point T>
Var<T> add(const Var<T>& x, double c);
// y = x - c            dx = dy
template <std::floating_point T>
Var<T> sub(const Var<T>& x, double c) {
  return add(x, -c);
}
// y = c - x            dx = -dy
template <std::floating_point T>
Var<T> sub(double c, const Var<T>& x) {
  return add(neg(x), c);
}
// y = c x              dx = c dy
template <std::floating_point T>
Var<T> mul(const Var<T>& x, double c);
// y = x / c            dx = dy / c
template <std::floating_point T>
Var<T> div(const Var<T>& x, double c);
// y = c / x            dx = -dy y / x
template <std::floating_point T>
Var<T> div(double c, const Var<T>& x);

template <std::floating_point T>
Var<T> operator+(const Var<T>& a, const Var<T>& b) {
  return add(a, b);
}
template <std::floating_point T>
Var<T> operator-(const Var<T>& a, const Var<T>& b) {
  return sub(a, b);
}
template <std::floating_point T>
Var<T> operator*(const Var<T>& a, const Var<T>& b) {
  return mul(a, b);
}
template <std::floating_point T>
Var<T> operator/(const Var<T>& a, const Var<T>& b) {
  return div(a, b);
}
template <std::floating_point T>
Var<T> operator-(const Var<T>& x) {
  return neg(x);
}

template <std::floating_point T>
Var<T> operator+(const Var<T>& x, double c) {
  return add(x, c);
}
template <std::floating_point T>
Var<T> operator+(double c, const Var<T>& x) {
  return add(x, c);
}
template <std::floating_point T>
Var<T> operator-(const Var<T>& x, double c) {
  return sub(x, c);
}
template <std::floating_point T>
Var<T> operator-(double c, const Var<T>& x) {
  return add(neg(x), c);
}
template <std::floating_point T>
Var<T> operator*(const Var<T>& x, double c) {
  return mul(x, c);
}
template <std::floating_point T>
Var<T> operator*(double c, const Var<T>& x) {
  return mul(x, c);
}
template <std::floating_point T>
Var<T> operator/(const Var<T>& x, double c) {
  return div(x, c);
}
template <std::floating_point T>
Var<T> operator/(double c, const Var<T>& x) {
  return div(c, x);
}

}  // namespace tapehead
