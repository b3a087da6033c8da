#pragma once
// Functions of one number, applied to each.

#include <tapehead/core/var.h>

namespace tapehead {

// y = exp(x)           dx = dy y
template <std::floating_point T>
Var<T> exp(const Var<T>& x);
// y = log(x)           dx = dy / x
template <std::floating_point T>
Var<T> log(const Var<T>& x);
// y = sqrt(x)          dx = dy / (2 y)
template <std::floating_point T>
Var<T> sqrt(const Var<T>& x);
// y = tanh(x)          dx = dy (1 - y^2)
template <std::floating_point T>
Var<T> tanh(const Var<T>& x);
// y = erf(x)           dx = dy 2 / sqrt(pi) exp(-x^2)
template <std::floating_point T>
Var<T> erf(const Var<T>& x);
// y = max(x, 0)        dx = dy where x > 0, 0 elsewhere
template <std::floating_point T>
Var<T> relu(const Var<T>& x);

// Which curve gelu() is: with the normal distribution Phi itself, or with its usual approximation by tanh.
enum class Gelu { exact, tanh };

// y = x Phi(x)         dx = dy (Phi(x) + x phi(x)),  phi the normal density
// Gelu::tanh:  y = x (1 + t) / 2,  t = tanh(u),  u = sqrt(2 / pi) (x + 0.044715 x^3)
//              dx = dy ((1 + t) / 2 + x (1 - t^2) / 2 du/dx)
// Hendrycks and Gimpel, "Gaussian error linear units", 2016.
template <std::floating_point T>
Var<T> gelu(const Var<T>& x, Gelu kind = Gelu::exact);

}  // namespace tapehead
