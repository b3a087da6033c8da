#pragma once
// Selecting by a Boolean array, true = kept.

#include <tapehead/core/var.h>

namespace tapehead {

// y = x where kept, fill elsewhere       dx = dy where kept, 0 elsewhere
// x (...)   kept broadcast to x. What is not kept gets gradient 0 even where dy is not finite.
// Throws ShapeError when kept does not broadcast to x.
template <std::floating_point T>
Var<T> masked_fill(const Var<T>& x, const Array<bool>& kept, double fill);

// z = x where the condition is true, y elsewhere
// dx = dz where it is true, 0 elsewhere       dy = dz where it is false, 0 elsewhere
// All three broadcast. What is not selected gets gradient 0 even where dz is not finite. A branch with an
// infinite slope still turns that 0 into NaN: select its argument too, where(c, log(where(c, x, one)), y).
// Throws ShapeError when the three do not broadcast.
template <std::floating_point T>
Var<T> where(const Array<bool>& condition, const Var<T>& x, const Var<T>& y);

// Where x > 0.
template <std::floating_point T>
Array<bool> positive(const Array<T>& x);

}  // namespace tapehead
