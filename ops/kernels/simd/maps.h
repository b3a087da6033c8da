// Functions of one number on vectors, and their slopes.
#pragma once

#include <tapehead/ops/kernels/simd/vector.h>

namespace tapehead::kernels {
namespace {

// e^x for every x. Without an instruction for it, 2^n is made of two factors, so that each is a number.
template <class T>
Vector<T> full_exp(const Vector<T>& x) {
  using E = Exponent<T>;
  const Reduced<T> parts = reduced<T>(xsimd::min(Vector<T>(E::highest), xsimd::max(Vector<T>(E::lowest), x)));
  const Vector<T> y = parts.rest + Vector<T>(1);
#if defined(__AVX512F__)
  return times_power<T>(y, parts);
#else
  const VectorMask<T> grows = x > Vector<T>(0);
  const Vector<T> first = xsimd::select(grows, Vector<T>(1 / E::unshift), Vector<T>(E::unshift));
  const Vector<T> back = xsimd::select(grows, Vector<T>(2 * E::shift), Vector<T>(0));
  return y * first * bits_shifted<T>(parts.t - back);
#endif
}

// 1 / (1 + e^-x) and 1 / (1 + e^x). Only what is negative is raised: nothing overflows, and small results
// keep their digits.
template <class T>
struct Sigmoids {
  Vector<T> of_x, of_minus_x;

  explicit Sigmoids(const Vector<T>& x) {
    const Vector<T> e = exp_of<T>(Vector<T>(0) - xsimd::abs(x));
    const Vector<T> large = Vector<T>(1) / (e + Vector<T>(1)), small = e * large;
    const VectorMask<T> positive = x > Vector<T>(0);
    of_x = xsimd::select(positive, large, small);
    of_minus_x = xsimd::select(positive, small, large);
  }
};

template <class T>
Vector<T> sigmoid_of(const Vector<T>& x) {
  return Sigmoids<T>(x).of_x;
}

// Beyond this the sigmoid of -x is 0, and x times it would be NaN for an infinite x.
template <class T>
constexpr T saturated = T(1) - Exponent<T>::lowest;

template <class T>
Vector<T> silu_of(const Vector<T>& x) {
  const Vector<T> bounded = xsimd::max(Vector<T>(-saturated<T>), x);
  return bounded * Sigmoids<T>(bounded).of_x;
}
template <class T>
Vector<T> silu_slope(const Vector<T>& x) {
  const Vector<T> bounded = xsimd::min(Vector<T>(saturated<T>), xsimd::max(Vector<T>(-saturated<T>), x));
  const Sigmoids<T> s(bounded);
  return s.of_x * multiply_add<T>(bounded, s.of_minus_x, Vector<T>(1));
}

// The tail of the normal distribution: Phi(-x) = e^(-x^2 / 2) m with m = P(u) / (x + k), u = 1 - 2 k / (x +
// k), P fitted for least relative error, of 2^-28.7 and 2^-57.3.
template <class T>
struct NormalFit;
template <>
struct NormalFit<float> {
  static constexpr float highest = 14.6f;    // where x phi(x) rounds to 0
  static constexpr float split = 0x1.8p16f;  // adding it leaves few enough digits for an exact square
  static constexpr float k = 4.2f;
  static constexpr float series[] = {0x1.847b14p-1f,   -0x1.3e64c2p-1f, 0x1.a623f8p-2f,   -0x1.b5e5aap-3f,
                                     0x1.4869c6p-4f,   -0x1.12c35ap-6f, -0x1.85298ap-10f, 0x1.1649aep-9f,
                                     -0x1.f3e2aap-13f, -0x1.cc0cd6p-13f};
};
template <>
struct NormalFit<double> {
  static constexpr double highest = 38.7;
  static constexpr double split = 0x1.8p32;
  static constexpr double k = 5.5;
  static constexpr double series[] = {
      0x1.8c2b8893b5c8dp-1,   -0x1.5ed05c7e41a2ep-1,  0x1.1239b3f8c06dap-1,   -0x1.77dbb5cdda96cp-2,
      0x1.be33e6ee995efp-3,   -0x1.c15806fa4913ep-4,  0x1.71707b5751f99p-5,   -0x1.c83edf43363aep-7,
      0x1.4034e561cd734p-9,   0x1.1ab345dd43177p-12,  -0x1.544962c0f693fp-12, 0x1.2b891ccfbc2a2p-14,
      0x1.11cdc72d7dea0p-16,  -0x1.96a48e75ed638p-17, 0x1.df447092ddb07p-22,  0x1.8e528510d4af2p-20,
      -0x1.1f856ad72bc64p-22, -0x1.7d626ba3bb3a7p-23, 0x1.afa5d3bbce6f2p-25,  0x1.8a1aa6946ce68p-26,
      -0x1.846f1dd6927a6p-28, -0x1.629384a2fb596p-29};
};

template <class T>
struct NormalTail {
  Vector<T> x, m;
  Reduced<T> bell;  // e^(-x^2 / 2)

  explicit NormalTail(const Vector<T>& any) : x(xsimd::min(Vector<T>(Fit::highest), xsimd::abs(any))) {
    const Vector<T> r = Vector<T>(1) / (x + Vector<T>(Fit::k));
    m = r * polynomial<T>(subtract_product<T>(r, Vector<T>(2 * Fit::k), Vector<T>(1)), Fit::series);
    // x^2 as h^2 + (x - h) (x + h): the exponential would magnify the rounding of one square.
    const Vector<T> h = x + Vector<T>(Fit::split) - Vector<T>(Fit::split), half(T(0.5));
    const Vector<T> t = rounded_power<T>(Vector<T>(0) - x * x * half), n = t - Vector<T>(Exponent<T>::magic);
    const Vector<T> rest = less_power<T>(Vector<T>(0) - h * h * half, n) - (x - h) * (x + h) * half;
    bell = {t, n, exp_minus_one<T>(rest)};
  }
  // y e^(-x^2 / 2)
  Vector<T> times_bell(const Vector<T>& y) const {
    return times_power<T>(multiply_add<T>(y, bell.rest, y), bell);
  }

 private:
  using Fit = NormalFit<T>;
};

// x Phi(x) = max(x, 0) - |x| Phi(-|x|), whose slope is one minus that at -x.
template <class T>
Vector<T> gelu_of(const Vector<T>& x) {
  const NormalTail<T> tail(x);
  return xsimd::max(Vector<T>(0), x) - tail.times_bell(tail.x * tail.m);
}
template <class T>
Vector<T> gelu_slope(const Vector<T>& x) {
  constexpr T inverse_root_2pi = T(0x1.9884533d43651p-2);
  const NormalTail<T> tail(x);
  const Vector<T> y = tail.times_bell(subtract_product<T>(tail.x, Vector<T>(inverse_root_2pi), tail.m));
  return xsimd::select(x > Vector<T>(0), Vector<T>(1) - y, y);
}

template <class T>
constexpr T cubic = T(0.044715);
template <class T>
constexpr T steep = T(0x1.9884533d43651p+0);  // 2 sqrt(2 / pi)

// x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): the same as x (1 + tanh u) / 2, without a difference.
template <class T>
struct CubicSigmoids {
  Vector<T> x, slope;  // x where both sigmoids are not yet 0 or 1, and the slope of 2 u
  Sigmoids<T> of_2u;

  explicit CubicSigmoids(const Vector<T>& any)
      : x(xsimd::min(Vector<T>(40), xsimd::max(Vector<T>(-40), any))),
        slope(scaled(3 * cubic<T>)),
        of_2u(x * scaled(cubic<T>)) {}

 private:
  Vector<T> scaled(T c) const {
    return Vector<T>(steep<T>) * multiply_add<T>(x * x, Vector<T>(c), Vector<T>(1));
  }
};
template <class T>
Vector<T> gelu_tanh_of(const Vector<T>& x) {
  return xsimd::max(Vector<T>(-40), x) * CubicSigmoids<T>(x).of_2u.of_x;
}
template <class T>
Vector<T> gelu_tanh_slope(const Vector<T>& any) {
  const CubicSigmoids<T> c(any);
  return multiply_add<T>(c.x * c.of_2u.of_minus_x, c.slope, Vector<T>(1)) * c.of_2u.of_x;
}

template <class T>
using VectorFunction = Vector<T> (*)(const Vector<T>&);

// y = f(x); dx = dy f(x).
template <class T, VectorFunction<T> f>
void map_all(const T* x, Index n, T* y) {
  for (; n >= width<T>; n -= width<T>, x += width<T>, y += width<T>) store(y, f(load(x)));
  const int rest = static_cast<int>(n);
  if (rest > 0) store_first(y, f(load_first(x, rest)), rest);
}
template <class T, VectorFunction<T> f>
void weigh_all(const T* x, const T* dy, Index n, T* dx) {
  for (; n >= width<T>; n -= width<T>, x += width<T>, dy += width<T>, dx += width<T>) {
    store(dx, load(dy) * f(load(x)));
  }
  const int rest = static_cast<int>(n);
  if (rest > 0) store_first(dx, load_first(dy, rest) * f(load_first(x, rest)), rest);
}

}  // namespace
}  // namespace tapehead::kernels
