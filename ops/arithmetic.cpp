#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/kernels/zip.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <cmath>

namespace tapehead {
namespace {

// f is T(T, T), or bool(T, T) for a mask.
template <class T, class F, class Y = std::invoke_result_t<F, T, T>>
Array<Y> zipped(OpName op, const Var<T>& a, const Var<T>& b, F f) {
  const Shape shape = broadcast_shapes(op, "a", a.shape(), "b", b.shape());
  auto y = Array<Y>::uninitialized(shape);
  kernels::zip(a.value().data(), a.shape(), b.value().data(), b.shape(), y.mutable_values().data(), shape, f);
  return y;
}

template <class T, class F, class Y = std::invoke_result_t<F, T>>
Array<Y> mapped(const Var<T>& x, F f) {
  auto y = Array<Y>::uninitialized(x.shape());
  const T* in = x.value().data();
  Y* out = y.mutable_values().data();
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
  return record("add", mapped(x, [c = static_cast<T>(c)](T p) { return p + c; }), Given{c},
                edge(x, [](Var<T> dy) { return dy; }));
}

template <std::floating_point T>
Var<T> mul(const Var<T>& x, double c) {
  return record("mul", mapped(x, [c = static_cast<T>(c)](T p) { return p * c; }), Given{c},
                edge(x, [c](const Var<T>& dy) { return mul(dy, c); }));
}

template <std::floating_point T>
Var<T> div(const Var<T>& x, double c) {
  return record("div", mapped(x, [c = static_cast<T>(c)](T p) { return p / c; }), Given{c},
                edge(x, [c](const Var<T>& dy) { return div(dy, c); }));
}

template <std::floating_point T>
Var<T> div(double c, const Var<T>& x) {
  return record("div", mapped(x, [c = static_cast<T>(c)](T p) { return c / p; }), Given{c},
                edge(x, [x](const Var<T>& y, const Var<T>& dy) { return neg(div(mul(dy, y), x)); }));
}

template <std::floating_point T>
Var<T> pow(const Var<T>& x, double c) {
  return record("pow", mapped(x, [c = static_cast<T>(c)](T p) { return std::pow(p, c); }),
                edge(x, [x, c](const Var<T>& dy) -> Var<T> {
                  // 0 times a power of -1 would be NaN at 0.
                  if (c == 0) return Array<T>::zeros(x.shape());
                  return dy * pow(x, c - 1) * c;
                }));
}

namespace {

// x broadcast to the mask, 1 where it is not kept: selected away before its derivative is formed, since 0
// times an infinite derivative is NaN.
template <class T>
Var<T> kept_or_one(const Var<T>& x, const Array<bool>& kept) {
  return where(kept, x, Var<T>(Array<T>::scalar(1)));
}

}  // namespace

template <std::floating_point T>
Var<T> pow(const Var<T>& a, const Var<T>& b) {
  return record("pow", zipped("pow", a, b, [](T p, T q) { return std::pow(p, q); }),
                edge(
                    a,
                    [a, b](const Var<T>& dy) {
                      const Array<bool> has_slope =
                          zipped("pow", a, b, [](T p, T q) { return q != 0 || std::abs(p) > 0; });
                      return masked_fill(dy, has_slope, 0) * b * pow(kept_or_one(a, has_slope), b - 1.0);
                    },
                    sum_to),
                edge(
                    b,
                    [a, b](const Var<T>& y, const Var<T>& dy) {
                      const Array<bool> has_slope =
                          zipped("pow", a, b, [](T p, T q) { return !(p == 0 && q >= 0); });
                      return masked_fill(dy, has_slope, 0) * y * log(kept_or_one(a, has_slope));
                    },
                    sum_to));
}

namespace {

// y is the operand that comes before the other. `share` is what an operand gets of dy: 1, 1/2 or nothing.
template <class T, class Before>
Var<T> extreme(OpName op, const Var<T>& a, const Var<T>& b, Before before) {
  auto share = [before](T own, T other) { return before(other, own) ? T{0} : own == other ? T{0.5} : T{1}; };
  auto shared_out = [](const Var<T>& dy, const Array<T>& shares) {
    return masked_fill(dy, positive(shares), 0) * Var<T>(shares);
  };
  return record(op, zipped(op, a, b, [before](T p, T q) { return p != p || before(p, q) ? p : q; }),
                edge(
                    a, [=](const Var<T>& dy) { return shared_out(dy, zipped(op, a, b, share)); }, sum_to),
                edge(
                    b,
                    [=](const Var<T>& dy) {
                      return shared_out(dy, zipped(op, a, b, [share](T p, T q) { return share(q, p); }));
                    },
                    sum_to));
}

}  // namespace

template <std::floating_point T>
Var<T> maximum(const Var<T>& a, const Var<T>& b) {
  return extreme("maximum", a, b, [](T p, T q) { return p > q; });
}

template <std::floating_point T>
Var<T> minimum(const Var<T>& a, const Var<T>& b) {
  return extreme("minimum", a, b, [](T p, T q) { return p < q; });
}

template <std::floating_point T>
Var<T> clamp(const Var<T>& x, double low, double high) {
  if (!(low <= high)) {
    throw DomainError("clamp", "low " + std::to_string(low) + " is not at most high " + std::to_string(high));
  }
  const T least = static_cast<T>(low), most = static_cast<T>(high);
  return record("clamp", mapped(x, [least, most](T p) { return p < least  ? least
                                                               : p > most ? most
                                                                          : p; }),
                edge(x, [x, least, most](const Var<T>& dy) {
                  return masked_fill(dy, mapped(x, [=](T p) { return least <= p && p <= most; }), 0);
                }));
}

#define TAPEHEAD_INSTANTIATE(T)                          \
  template Var<T> add(const Var<T>&, const Var<T>&);     \
  template Var<T> sub(const Var<T>&, const Var<T>&);     \
  template Var<T> mul(const Var<T>&, const Var<T>&);     \
  template Var<T> div(const Var<T>&, const Var<T>&);     \
  template Var<T> neg(const Var<T>&);                    \
  template Var<T> add(const Var<T>&, double);            \
  template Var<T> mul(const Var<T>&, double);            \
  template Var<T> div(const Var<T>&, double);            \
  template Var<T> div(double, const Var<T>&);            \
  template Var<T> pow(const Var<T>&, double);            \
  template Var<T> pow(const Var<T>&, const Var<T>&);     \
  template Var<T> maximum(const Var<T>&, const Var<T>&); \
  template Var<T> minimum(const Var<T>&, const Var<T>&); \
  template Var<T> clamp(const Var<T>&, double, double);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
