#pragma once
// Selecting by a Boolean array, true = kept.

#include <tapehead/core/var.h>

namespace tapehead {

// y = x where kept, fill elsewhere       dx = dy where kept, 0 elsewhere
// x (...)   kept broadcast to x. What is not kept gets gradient 0 even where dy is not finite.
// Throws ShapeError when kept does not broadcast to x.
template <std::floating_point T>
Var<T> masked_fill(const Var<T>& x, const Array<bool>& kept, double fill);

// Where x > 0.
template <std::floating_point T>
Array<bool> positive(const Array<T>& x);

}  // namespace tapehead
