#pragma once
// Positions as vectors that are added to what stands there.

#include <tapehead/core/array.h>

namespace tapehead {

// P[l, 2 i] = sin((start + l) base^(-2 i / width))      P[l, 2 i + 1] = cos of the same angle
// P (length, width). The product of rows p and q is the sum over i of cos((p - q) base^(-2 i / width)), at
// most width / 2. Vaswani and others, "Attention is all you need", 2017, section 3.5. Throws DomainError for
// a negative length, a width that is not positive and even, and unless the base is positive and finite.
template <std::floating_point T>
Array<T> sinusoidal_positions(Index length, Index width, double base = 10000, Index start = 0);

}  // namespace tapehead
