#pragma once
// Elementwise functions of contiguous memory. y may be x.

#include <span>

namespace tapehead::kernels {

#define TAPEHEAD_MAP(name) \
  template <class T>       \
  void name(std::span<const T> x, std::span<T> y);
TAPEHEAD_MAP(exp)
TAPEHEAD_MAP(log)
TAPEHEAD_MAP(sqrt)
TAPEHEAD_MAP(rsqrt)
TAPEHEAD_MAP(reciprocal)
TAPEHEAD_MAP(square)
TAPEHEAD_MAP(abs)
TAPEHEAD_MAP(sign)  // 1, 0 or -1; 0 for NaN
TAPEHEAD_MAP(sin)
TAPEHEAD_MAP(cos)
TAPEHEAD_MAP(tanh)
TAPEHEAD_MAP(erf)
TAPEHEAD_MAP(relu)
TAPEHEAD_MAP(sigmoid)          // 1 / (1 + exp(-x))
TAPEHEAD_MAP(softplus)         // log(1 + exp(x))
TAPEHEAD_MAP(silu)             // x sigmoid(x)
TAPEHEAD_MAP(silu_slope)       // sigmoid(x) (1 + x sigmoid(-x))
TAPEHEAD_MAP(gelu)             // x Phi(x)
TAPEHEAD_MAP(gelu_slope)       // Phi(x) + x phi(x)
TAPEHEAD_MAP(gelu_tanh)        // x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3)
TAPEHEAD_MAP(gelu_tanh_slope)  // (1 + tanh(u)) / 2 + x (1 - tanh(u)^2) / 2 u'
#undef TAPEHEAD_MAP

}  // namespace tapehead::kernels
