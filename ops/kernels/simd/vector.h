// Vectors of the processor level that the including file is compiled for, through xsimd. Everything in this
// folder's headers lies in an unnamed namespace and calls no inline function of the standard library: a copy
// compiled for a new processor could be the one that the linker keeps for all.
#pragma once

#include <tapehead/ops/kernels/simd/kernel_set.h>

#include <xsimd/xsimd.hpp>

namespace tapehead::kernels {
namespace {

#if defined(__AVX512F__)
using VectorArch = xsimd::avx512bw;
#elif defined(__AVX2__)
using VectorArch = xsimd::fma3<xsimd::avx2>;
#else
using VectorArch = xsimd::default_arch;
#endif

template <class T>
using Vector = xsimd::batch<T, VectorArch>;
template <class T>
using VectorMask = xsimd::batch_bool<T, VectorArch>;

template <class T>
constexpr int width = static_cast<int>(Vector<T>::size);

constexpr Index least(Index a, Index b) { return a < b ? a : b; }
constexpr Index most(Index a, Index b) { return a > b ? a : b; }
constexpr Index pieces(Index n, Index size) { return (n + size - 1) / size; }
template <class T>
constexpr Index padded(Index n) {
  return pieces(n, width<T>) * width<T>;
}

template <int... lane>
struct Lanes {};
template <int count, int... lane>
auto first_lanes() {
  if constexpr (count == 0) {
    return Lanes<lane...>();
  } else {
    return first_lanes<count - 1, count - 1, lane...>();
  }
}
template <class T>
using AllLanes = decltype(first_lanes<width<T>>());

template <class T>
constexpr T infinity = static_cast<T>(__builtin_inff());

template <class T>
Vector<T> load(const T* x) {
  return Vector<T>::load_unaligned(x);
}
template <class T>
void store(T* x, const Vector<T>& y) {
  y.store_unaligned(x);
}

// The first `count` elements and zeros; nothing beyond them is touched. xsimd 8 has no masked access.
template <class T>
Vector<T> load_first(const T* x, int count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return Vector<T>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), x));
  } else {
    return Vector<T>(_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1), x));
  }
#else
  alignas(64) T buffer[width<T>] = {};
  for (int i = 0; i < count; ++i) buffer[i] = x[i];
  return load(buffer);
#endif
}
template <class T>
void store_first(T* x, const Vector<T>& y, int count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(x, static_cast<__mmask16>((1u << count) - 1), y);
  } else {
    _mm512_mask_storeu_pd(x, static_cast<__mmask8>((1u << count) - 1), y);
  }
#else
  alignas(64) T buffer[width<T>];
  store(buffer, y);
  for (int i = 0; i < count; ++i) x[i] = buffer[i];
#endif
}

// x y + z and z - x y, rounded once where the processor can: xsimd 8 has no such instruction for AVX-512.
template <class T>
Vector<T> multiply_add(const Vector<T>& x, const Vector<T>& y, const Vector<T>& z) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return Vector<T>(_mm512_fmadd_ps(x, y, z));
  } else {
    return Vector<T>(_mm512_fmadd_pd(x, y, z));
  }
#else
  return xsimd::fma(x, y, z);
#endif
}
template <class T>
Vector<T> subtract_product(const Vector<T>& x, const Vector<T>& y, const Vector<T>& z) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return Vector<T>(_mm512_fnmadd_ps(x, y, z));
  } else {
    return Vector<T>(_mm512_fnmadd_pd(x, y, z));
  }
#else
  return xsimd::fnma(x, y, z);
#endif
}

// Lanes without bit `step` from a plus their neighbours with it, and the other way round from b.
template <int step, class Register, int... lane>
Register pair_sums(const Register& a, const Register& b, Lanes<lane...>) {
  constexpr int n = sizeof...(lane);
  return __builtin_shufflevector(a, b, (lane & step ? n + lane : lane)...) +
         __builtin_shufflevector(a, b, (lane & step ? n + lane - step : lane + step)...);
}
// Lane i of the result is the sum of the lanes of x[i].
template <class T, int step = 1>
[[gnu::always_inline]] inline Vector<T> sums_of(Vector<T>* x) {
  using Register = typename Vector<T>::register_type;
  constexpr int left = width<T> / step;
#pragma GCC unroll 16
  for (int i = 0; i < left; i += 2) {
    const Register a = x[i], b = x[i + 1];
    x[i / 2] = Vector<T>(pair_sums<step>(a, b, AllLanes<T>()));
  }
  if constexpr (left > 2) {
    return sums_of<T, 2 * step>(x);
  } else {
    return x[0];
  }
}

// Whether any lane is set.
template <class T>
bool any_of(const VectorMask<T>& mask) {
  return xsimd::any(mask);
}

// e^x = 2^n e^r with r = x - n ln 2, |r| <= ln 2 / 2. x log2 e + magic = t rounds to n and leaves n, biased,
// in the low bits of t, from where a shift takes it to the exponent field.
template <class T>
struct Exponent;
template <>
struct Exponent<float> {
  using Bits = std::int32_t;
  static constexpr int digits = 23;
  static constexpr float shift = 30;                       // keeps 2^(n + shift) normal down to n = -156
  static constexpr float magic = 0x1.8p23f + 127 + shift;  // adding it rounds to an integer
  static constexpr float unshift = 0x1p-30f;
  static constexpr float log2_e = 0x1.715476p+0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  static constexpr float lowest = -104, highest = 89;  // there e^x rounds to 0 and to infinity
  // (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, lowest power first
  static constexpr float series[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f4p-5f, 0x1.123a2p-7f,
                                     0x1.6a23c8p-10f};
};
template <>
struct Exponent<double> {
  using Bits = std::int64_t;
  static constexpr int digits = 52;
  static constexpr double shift = 60;
  static constexpr double magic = 0x1.8p52 + 1023 + shift;
  static constexpr double unshift = 0x1p-60;
  static constexpr double log2_e = 0x1.71547652b82fep+0, ln2_high = 0x1.62e42fefa0000p-1,
                          ln2_low = 0x1.cf79abc9e3b3ap-40;
  static constexpr double lowest = -746, highest = 710;
  static constexpr double series[] = {0x1.000000000000ap-1,  0x1.55555555554f9p-3,  0x1.555555555083fp-5,
                                      0x1.1111111127d05p-7,  0x1.6c16c18438ab3p-10, 0x1.a01a012a11caep-13,
                                      0x1.a01999e26baabp-16, 0x1.71df25ae6b8eap-19, 0x1.28ad9b8387350p-22,
                                      0x1.ad7f44a01e787p-26};
};

template <class T>
Vector<T> bits_shifted(const Vector<T>& t) {
  using Bits = typename Exponent<T>::Bits;
#if XSIMD_VERSION_MAJOR >= 9
  return xsimd::bitwise_cast<T>(xsimd::bitwise_cast<Bits>(t) << Exponent<T>::digits);
#else
  return xsimd::bitwise_cast<Vector<T>>(xsimd::bitwise_cast<Vector<Bits>>(t) << Exponent<T>::digits);
#endif
}

// c[0] + c[1] x + c[2] x^2 + ...
template <class T, unsigned terms>
Vector<T> polynomial(const Vector<T>& x, const T (&c)[terms]) {
  Vector<T> sum(c[terms - 1]);
  for (unsigned i = terms - 1; i-- > 0;) sum = multiply_add<T>(sum, x, Vector<T>(c[i]));
  return sum;
}

// e^x = 2^n (1 + rest)
template <class T>
struct Reduced {
  Vector<T> t, n, rest;
};

// The t of x; e^r for r = x - n ln 2 or near it.
template <class T>
Vector<T> rounded_power(const Vector<T>& x) {
  return multiply_add<T>(x, Vector<T>(Exponent<T>::log2_e), Vector<T>(Exponent<T>::magic));
}
template <class T>
Vector<T> less_power(const Vector<T>& x, const Vector<T>& n) {
  const Vector<T> r = subtract_product<T>(n, Vector<T>(Exponent<T>::ln2_high), x);
  return subtract_product<T>(n, Vector<T>(Exponent<T>::ln2_low), r);
}
template <class T>
Vector<T> exp_minus_one(const Vector<T>& r) {
  return multiply_add<T>(polynomial<T>(r, Exponent<T>::series), r * r, r);
}

template <class T>
Reduced<T> reduced(const Vector<T>& x) {
  const Vector<T> t = rounded_power<T>(x), n = t - Vector<T>(Exponent<T>::magic);
  return {t, n, exp_minus_one<T>(less_power<T>(x, n))};
}

// y 2^n, rounded once
template <class T>
Vector<T> times_power(const Vector<T>& y, const Reduced<T>& x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return Vector<T>(_mm512_scalef_ps(y, x.n));
  } else {
    return Vector<T>(_mm512_scalef_pd(y, x.n));
  }
#else
  return y * bits_shifted<T>(x.t) * Vector<T>(Exponent<T>::unshift);
#endif
}

// To about 1 ulp for x <= 60; 0 where e^x rounds to it; NaN stays.
template <class T>
Vector<T> exp_of(const Vector<T>& x) {
  const Reduced<T> parts = reduced<T>(xsimd::max(Vector<T>(Exponent<T>::lowest), x));
  return times_power<T>(parts.rest + Vector<T>(1), parts);
}

// (1 - e) / (1 + e) with e = e^-2|x|, whose 1 - e is taken without cancellation, and the sign of x.
template <class T>
Vector<T> tanh_of(const Vector<T>& x) {
  const Vector<T> one(1);
  const Reduced<T> parts = reduced<T>(xsimd::max(Vector<T>(-60), xsimd::abs(x) * Vector<T>(-2)));
  const Vector<T> power = times_power<T>(one, parts);
  const Vector<T> minus_one = multiply_add<T>(power, parts.rest, power - one);  // e - 1
  const Vector<T> y = minus_one / (minus_one + Vector<T>(2));
  return xsimd::copysign(y, x);
}

}  // namespace
}  // namespace tapehead::kernels
