#pragma once
// Functions of one number, applied to each. A NaN gives NaN; what infinities give is said where it is not
// plain from the formula.

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
// y = 1 / sqrt(x)      dx = -dy y^3 / 2          Infinite at 0, 0 at infinity, NaN below 0.
template <std::floating_point T>
Var<T> rsqrt(const Var<T>& x);
// y = 1 / x            dx = -dy y^2              Infinite at 0, of the sign of that 0.
template <std::floating_point T>
Var<T> reciprocal(const Var<T>& x);
// y = x^2              dx = 2 dy x
template <std::floating_point T>
Var<T> square(const Var<T>& x);
// y = |x|              dx = dy sign(x), 0 where x is 0 or NaN
template <std::floating_point T>
Var<T> abs(const Var<T>& x);
// y = sin(x)           dx = dy cos(x)            NaN at an infinity.
template <std::floating_point T>
Var<T> sin(const Var<T>& x);
// y = cos(x)           dx = -dy sin(x)           NaN at an infinity.
template <std::floating_point T>
Var<T> cos(const Var<T>& x);
// y = tanh(x)          dx = dy (1 - y^2)
template <std::floating_point T>
Var<T> tanh(const Var<T>& x);
// y = erf(x)           dx = dy 2 / sqrt(pi) exp(-x^2)
template <std::floating_point T>
Var<T> erf(const Var<T>& x);
// y = max(x, 0)        dx = dy where x > 0, 0 elsewhere
template <std::floating_point T>
Var<T> relu(const Var<T>& x);

// y = 1 / (1 + exp(-x))          dx = dy y (1 - y)
// 0 and 1 at the infinities; no finite x overflows.
template <std::floating_point T>
Var<T> sigmoid(const Var<T>& x);
// y = log(1 + exp(x))            dx = dy sigmoid(x)
// 0 and infinity at the infinities; x itself when that is large.
template <std::floating_point T>
Var<T> softplus(const Var<T>& x);
// y = x sigmoid(x)               dx = dy sigmoid(x) (1 + x sigmoid(-x))
// Its limits at the infinities: 0 with slope 0, and infinity with slope 1.
// Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units", 2018.
template <std::floating_point T>
Var<T> silu(const Var<T>& x);

// Which curve gelu() is: with the normal distribution Phi itself, or with its usual approximation by tanh.
enum class Gelu { exact, tanh };

// y = x Phi(x)         dx = dy (Phi(x) + x phi(x)),  phi the normal density
// Gelu::tanh:  y = x (1 + t) / 2,  t = tanh(u),  u = sqrt(2 / pi) (x + 0.044715 x^3)
//              dx = dy ((1 + t) / 2 + x (1 - t^2) / 2 du/dx)
// Hendrycks and Gimpel, "Gaussian error linear units", 2016.
template <std::floating_point T>
Var<T> gelu(const Var<T>& x, Gelu kind = Gelu::exact);

}  // namespace tapehead
