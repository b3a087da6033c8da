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

// u = x / sqrt(mean(x^2) + eps), over the trailing axes that gain has        y = u gain
// du = dy gain      dx = (du - u mean(du u)) / sqrt(mean(x^2) + eps)
// dgain = sum of dy u over the leading axes
// x (..., N)   gain (N), or several trailing axes.
// Zhang and Sennrich, "Root mean square layer normalization", 2019.
// Throws ShapeError when gain has not the trailing axes of x.
template <std::floating_point T>
Var<T> rms_norm(const Var<T>& x, const Var<T>& gain, double eps = 1e-6);

}  // namespace tapehead
