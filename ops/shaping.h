#pragma once
// The same elements in another shape, order or number. Each op here is linear and stands beside its adjoint.

#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <tapehead/core/gradient.h>

namespace tapehead {

// Y = X in another shape of the same size, without a copy; one extent may be -1       dX = dY in the shape of
// X
template <std::floating_point T>
Var<T> reshape(const Var<T>& x, std::initializer_list<Index> extents);
template <std::floating_point T>
Var<T> reshape(const Var<T>& x, const Shape& shape);

// Y has the axes of X in the given order: Y.dim(i) = X.dim(axes[i])                   dX = inverse order of
// dY Throws ShapeError unless axes holds each axis once.
template <std::floating_point T>
Var<T> permute(const Var<T>& x, std::span<const int> axes);
template <std::floating_point T>
Var<T> permute(const Var<T>& x, std::initializer_list<int> axes) {
  return permute(x, std::span<const int>(axes.begin(), axes.size()));
}
// Two axes exchanged, by default the last two.
template <std::floating_point T>
Var<T> transpose(const Var<T>& x, int axis_a = -2, int axis_b = -1);

// Y = X repeated to fill shape                                                        dX = sum_to(dY)
template <std::floating_point T>
Var<T> broadcast_to(const Var<T>& x, const Shape& shape);
// Y = X summed over the axes along which Y would be repeated to fill X                dX = broadcast_to(dY)
template <std::floating_point T>
Var<T> sum_to(const Var<T>& x, const Shape& shape);

// Y = the X one after another along the axis                                          dX_i = its slice of dY
// Throws ShapeError when there is none, or when they differ along another axis.
Var<float> concat(Vars<float> x, int axis);
Var<double> concat(Vars<double> x, int axis);

// Elements start, start + step, ... before stop of an axis, as in Python: negative numbers count from the
// end, what is beyond an end is cut off, a negative step walks backwards. Slice{} is the whole axis.
struct Slice {
  std::optional<Index> start, stop;
  Index step = 1;
};

// Y = X at the slices, one an axis; axes not named are whole                          dX = unslice(dY)
// Throws ShapeError for more slices than axes, DomainError for a step of 0.
template <std::floating_point T>
Var<T> slice(const Var<T>& x, std::initializer_list<Slice> slices);
template <std::floating_point T>
Var<T> slice(const Var<T>& x, std::span<const Slice> slices);
// One axis sliced, the others whole.
template <std::floating_point T>
Var<T> slice(const Var<T>& x, int axis, const Slice& part);
// Y of the given shape: X at the slices, 0 elsewhere                                  dX = slice(dY)
template <std::floating_point T>
Var<T> unslice(const Var<T>& x, const Shape& shape, std::span<const Slice> slices);

}  // namespace tapehead
