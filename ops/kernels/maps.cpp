#include <tapehead/core/xtensor.h>
#include <tapehead/ops/kernels/maps.h>

#include <cmath>
#include <numbers>

#include <xtensor/xmath.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xtensor.hpp>

namespace tapehead::kernels {
namespace {

// Flat views of rank fixed at compile time: those cost nothing to make. Only maps, no reducer, no broadcast:
// what xtensor evaluates as one contiguous loop.
template <class T>
auto read(std::span<const T> x) {
  const T* data = x.data();
  return xt::adapt(data, x.size(), xt::no_ownership(), std::array{x.size()});
}
template <class T>
auto write(std::span<T> y) {
  T* data = y.data();
  return xt::adapt(data, y.size(), xt::no_ownership(), std::array{y.size()});
}

template <class T>
T normal_distribution(T x) {
  return T{0.5} * std::erfc(-x * (std::numbers::sqrt2_v<T> / 2));
}

template <class T>
T normal_density(T x) {
  return std::exp(-x * x / 2) * (std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>);
}

template <class T>
constexpr T gelu_cubic = T(0.044715);

template <class T>
T tanh_of_cubic(T x) {
  const T slope = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
  return std::tanh(slope * (x + gelu_cubic<T> * x * x * x));
}

template <class T>
T one_gelu(T x) {
  return std::isinf(x) ? std::max(x, T{0}) : x * normal_distribution(x);
}
template <class T>
T one_gelu_slope(T x) {
  return std::isinf(x) ? T(x > 0) : normal_distribution(x) + x * normal_density(x);
}
template <class T>
T one_gelu_tanh(T x) {
  return std::isinf(x) ? std::max(x, T{0}) : x * ((1 + tanh_of_cubic(x)) / 2);
}
template <class T>
T one_gelu_tanh_slope(T x) {
  if (std::abs(x) > 40) return T(x > 0);  // where 1 - t^2 is 0 and du may be infinite
  const T t = tanh_of_cubic(x);
  const T du = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T> * (1 + 3 * gelu_cubic<T> * x * x);
  return (1 + t) / 2 + x * (1 - t * t) / 2 * du;
}
template <class T>
T one_relu(T x) {
  return x > T{0} || x != x ? x : T{0};  // NaN stays NaN
}

template <class T>
T sign_of(T x) {
  return T(x > T{0}) - T(x < T{0});
}

// Only exponentials of what is negative: none overflows, and small results keep their digits.
template <class T>
T one_sigmoid(T x) {
  const T e = std::exp(-std::abs(x));
  return (x >= T{0} ? T{1} : e) / (T{1} + e);
}
template <class T>
T one_softplus(T x) {
  return std::max(x, T{0}) + std::log1p(std::exp(-std::abs(x)));
}
template <class T>
T one_silu(T x) {
  return std::isinf(x) ? std::max(x, T{0}) : x * one_sigmoid(x);
}
template <class T>
T one_silu_slope(T x) {
  return std::isinf(x) ? T(x > 0) : one_sigmoid(x) * (1 + x * one_sigmoid(-x));
}

}  // namespace

#define TAPEHEAD_MAP(name, expression)                          \
  template <class T>                                            \
  void name(std::span<const T> in, std::span<T> out) {          \
    const auto x = read(in);                                    \
    auto y = write(out);                                        \
    xt::noalias(y) = expression;                                \
  }                                                             \
  template void name(std::span<const float>, std::span<float>); \
  template void name(std::span<const double>, std::span<double>);
TAPEHEAD_MAP(exp, xt::exp(x))
TAPEHEAD_MAP(log, xt::log(x))
TAPEHEAD_MAP(sqrt, xt::sqrt(x))
TAPEHEAD_MAP(rsqrt, T{1} / xt::sqrt(x))
TAPEHEAD_MAP(reciprocal, T{1} / x)
TAPEHEAD_MAP(square, x* x)
TAPEHEAD_MAP(abs, xt::abs(x))
TAPEHEAD_MAP(sign, xt::make_lambda_xfunction([](T v) { return sign_of(v); }, x))
TAPEHEAD_MAP(sin, xt::sin(x))
TAPEHEAD_MAP(cos, xt::cos(x))
TAPEHEAD_MAP(tanh, xt::tanh(x))
TAPEHEAD_MAP(erf, xt::erf(x))
TAPEHEAD_MAP(relu, xt::make_lambda_xfunction([](T v) { return one_relu(v); }, x))
TAPEHEAD_MAP(sigmoid, xt::make_lambda_xfunction([](T v) { return one_sigmoid(v); }, x))
TAPEHEAD_MAP(softplus, xt::make_lambda_xfunction([](T v) { return one_softplus(v); }, x))
TAPEHEAD_MAP(silu, xt::make_lambda_xfunction([](T v) { return one_silu(v); }, x))
TAPEHEAD_MAP(silu_slope, xt::make_lambda_xfunction([](T v) { return one_silu_slope(v); }, x))
TAPEHEAD_MAP(gelu, xt::make_lambda_xfunction([](T v) { return one_gelu(v); }, x))
TAPEHEAD_MAP(gelu_slope, xt::make_lambda_xfunction([](T v) { return one_gelu_slope(v); }, x))
TAPEHEAD_MAP(gelu_tanh, xt::make_lambda_xfunction([](T v) { return one_gelu_tanh(v); }, x))
TAPEHEAD_MAP(gelu_tanh_slope, xt::make_lambda_xfunction([](T v) { return one_gelu_tanh_slope(v); }, x))
#undef TAPEHEAD_MAP

}  // namespace tapehead::kernels
