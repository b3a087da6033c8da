#pragma once
// Elementwise functions of contiguous memory through xtensor: y[i] = f(x[i]) for i < n. y may be x. The
// functions that cost time in training have vector code instead (simd/maps.h).

#include <tapehead/core/shape.h>

namespace tapehead::kernels {

#define TAPEHEAD_MAP(name) \
  template <class T>       \
  void name(const T* x, Index n, T* y);
TAPEHEAD_MAP(log)
TAPEHEAD_MAP(sqrt)
TAPEHEAD_MAP(rsqrt)
TAPEHEAD_MAP(reciprocal)
TAPEHEAD_MAP(square)
TAPEHEAD_MAP(abs)
TAPEHEAD_MAP(sign)  // 1, 0 or -1; 0 for NaN
TAPEHEAD_MAP(sin)
TAPEHEAD_MAP(cos)
TAPEHEAD_MAP(erf)
TAPEHEAD_MAP(relu)
TAPEHEAD_MAP(softplus)  // log(1 + exp(x))
#undef TAPEHEAD_MAP

}  // namespace tapehead::kernels
