#pragma once
// Normalisation.

#include <tapehead/core/var.h>

namespace tapehead {

// u = (x - mean) / sqrt(variance + eps), over the trailing axes that gain has        y = u gain + bias
// du = dy gain      dx = (du - mean(du) - u mean(du u)) / sqrt(variance + eps)
// dgain = sum of dy u over the leading axes      dbias = sum of dy over them
// x (..., N)   gain and bias (N), or several trailing axes. Ba, Kiros, Hinton, "Layer normalization", 2016.
// Throws ShapeError when gain has not the trailing axes of x or bias not the shape of gain.
template <std::floating_point T>
Var<T> layer_norm(const Var<T>& x, const Var<T>& gain, const Var<T>& bias, double eps = 1e-5);

}  // namespace tapehead
