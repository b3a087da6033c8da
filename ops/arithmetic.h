#pragma once
// Sums, differences, products, quotients, powers and extremes, of broadcastable operands and with numbers.

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

// y = x^c              dx = dy c x^(c - 1), 0 for c = 0
template <std::floating_point T>
Var<T> pow(const Var<T>& x, double c);
// y = a^b              da = dy b a^(b - 1)      db = dy y log a
// da is 0 where b is 0, also at a = 0; db is 0 where a is 0 and b is not negative. A negative a has a power
// when b is an integer, and then a da; its db is NaN.
template <std::floating_point T>
Var<T> pow(const Var<T>& a, const Var<T>& b);

// y = max(a, b)        da = dy where a > b, dy / 2 where they are equal, 0 elsewhere; db likewise
// A NaN on either side gives NaN, and dy to both.
template <std::floating_point T>
Var<T> maximum(const Var<T>& a, const Var<T>& b);
// y = min(a, b)        da = dy where a < b, dy / 2 where they are equal, 0 elsewhere; db likewise
template <std::floating_point T>
Var<T> minimum(const Var<T>& a, const Var<T>& b);
// y = min(max(x, low), high)     dx = dy where low <= x <= high, 0 elsewhere
// Either bound may be infinite; NaN stays NaN. Throws DomainError unless low <= high.
template <std::floating_point T>
Var<T> clamp(const Var<T>& x, double low, double high);

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
