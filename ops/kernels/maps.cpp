#include <tapehead/core/xtensor.h>
#include <tapehead/ops/kernels/maps.h>

#include <cmath>

#include <xtensor/xmath.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xtensor.hpp>

namespace tapehead::kernels {
namespace {

// Flat views of rank fixed at compile time: those cost nothing to make. Only maps, no reducer, no broadcast:
// what xtensor evaluates as one contiguous loop.
template <class T>
auto flat(T* x, Index n) {
  return xt::adapt(x, static_cast<std::size_t>(n), xt::no_ownership(),
                   std::array{static_cast<std::size_t>(n)});
}

template <class T>
T one_relu(T x) {
  return x > T{0} || x != x ? x : T{0};  // NaN stays NaN
}

template <class T>
T sign_of(T x) {
  return T(x > T{0}) - T(x < T{0});
}

template <class T>
T one_softplus(T x) {
  return std::max(x, T{0}) + std::log1p(std::exp(-std::abs(x)));
}

}  // namespace

#define TAPEHEAD_MAP(name, expression)             \
  template <class T>                               \
  void name(const T* in, Index n, T* out) {        \
    const auto x = flat(in, n);                    \
    auto y = flat(out, n);                         \
    xt::noalias(y) = expression;                   \
  }                                                \
  template void name(const float*, Index, float*); \
  template void name(const double*, Index, double*);
TAPEHEAD_MAP(log, xt::log(x))
TAPEHEAD_MAP(sqrt, xt::sqrt(x))
TAPEHEAD_MAP(rsqrt, T{1} / xt::sqrt(x))
TAPEHEAD_MAP(reciprocal, T{1} / x)
TAPEHEAD_MAP(square, x* x)
TAPEHEAD_MAP(abs, xt::abs(x))
TAPEHEAD_MAP(sign, xt::make_lambda_xfunction([](T v) { return sign_of(v); }, x))
TAPEHEAD_MAP(sin, xt::sin(x))
TAPEHEAD_MAP(cos, xt::cos(x))
TAPEHEAD_MAP(erf, xt::erf(x))
TAPEHEAD_MAP(relu, xt::make_lambda_xfunction([](T v) { return one_relu(v); }, x))
TAPEHEAD_MAP(softplus, xt::make_lambda_xfunction([](T v) { return one_softplus(v); }, x))
#undef TAPEHEAD_MAP

}  // namespace tapehead::kernels
