#pragma once
// Softmax and its logarithm, shifted by the row maximum so that no exponential overflows.

#include <tapehead/core/var.h>

namespace tapehead {

// P = exp(S - m) / sum exp(S - m) along the axis, m the maximum          dS = P (dP - sum(dP P))
// Follows IEEE: an infinite maximum, or a row of minus infinities, gives NaN. Costs O(n) a row, also
// backward.
template <std::floating_point T>
Var<T> softmax(const Var<T>& s, int axis = -1);

// Y = S - m - log sum exp(S - m) along the axis                          dS = dY - exp(Y) sum(dY)
template <std::floating_point T>
Var<T> log_softmax(const Var<T>& s, int axis = -1);

}  // namespace tapehead
