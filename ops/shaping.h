#pragma once
// The same elements in another shape, order or number. Each op here is linear and stands beside its adjoint.

#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/ops/reduction.h>

namespace tapehead {

// Y = X in another shape of the same size, without a copy; one extent may be -1       dX = reshape(dY)
// Throws ShapeError when the sizes differ.
template <std::floating_point T>
Var<T> reshape(const Var<T>& x, std::initializer_list<Index> extents);
template <std::floating_point T>
Var<T> reshape(const Var<T>& x, const Shape& shape);

// Y has the axes of X in the given order: Y.dim(i) = X.dim(axes[i])                   dX = permute(dY) back
// Throws ShapeError unless axes holds each axis once.
template <std::floating_point T>
Var<T> permute(const Var<T>& x, std::span<const int> axes);
template <std::floating_point T>
Var<T> permute(const Var<T>& x, std::initializer_list<int> axes) {
  return permute(x, std::span<const int>(axes.begin(), axes.size()));
}
// Y = X with two axes exchanged, by default the last two                              dX = transpose(dY)
// Throws ShapeError for an axis that X has not.
template <std::floating_point T>
Var<T> transpose(const Var<T>& x, int axis_a = -2, int axis_b = -1);

// Y = X repeated to fill shape, by NumPy's rule                                       dX = sum_to(dY)
// Throws ShapeError when X does not broadcast to it.
template <std::floating_point T>
Var<T> broadcast_to(const Var<T>& x, const Shape& shape);
// Y = X summed over the axes along which Y would be repeated to fill X                dX = broadcast_to(dY)
// Throws ShapeError when Y would not broadcast to X.
template <std::floating_point T>
Var<T> sum_to(const Var<T>& x, const Shape& shape);

// Y = the X one after another along the axis                                          dX_i = its slice of dY
// Throws ShapeError when there is none, or when they differ along another axis.
Var<float> concat(Vars<float> x, int axis);
Var<double> concat(Vars<double> x, int axis);

// Y = the X side by side along a new axis, which is `axis` of Y                       dX_i = its part of dY
// Throws ShapeError when there is none, or when their shapes differ.
Var<float> stack(Vars<float> x, int axis);
Var<double> stack(Vars<double> x, int axis);

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

// Elements put in front of an axis and behind it.
struct Padding {
  Index before = 0, after = 0;
};

// Y = X with `fill` around it, one padding an axis; axes not named get none           dX = slice(dY)
// Throws ShapeError for more paddings than axes, DomainError for a negative one.
template <std::floating_point T>
Var<T> pad(const Var<T>& x, std::initializer_list<Padding> paddings, double fill = 0);
template <std::floating_point T>
Var<T> pad(const Var<T>& x, std::span<const Padding> paddings, double fill = 0);
// One axis padded.
template <std::floating_point T>
Var<T> pad(const Var<T>& x, int axis, const Padding& padding, double fill = 0);

// Y = X read from the end of each of the axes: Y[i] = X[n - 1 - i]                    dX = flip(dY)
// Throws ShapeError for an axis that X has not, or named twice.
template <std::floating_point T>
Var<T> flip(const Var<T>& x, const Axes& axes);

// Y = X moved along the axis, round its end: Y[(i + shift) mod n] = X[i]              dX = roll(dY, -shift)
// shift is any integer. Throws ShapeError for an axis that X has not.
template <std::floating_point T>
Var<T> roll(const Var<T>& x, Index shift, int axis);

// Y = X where j <= i + diagonal, 0 elsewhere                                          dX = tril(dY)
// X (..., L, S), i of L and j of S. What is left out does not matter, NaN included.
// Throws ShapeError for fewer than two axes.
template <std::floating_point T>
Var<T> tril(const Var<T>& x, Index diagonal = 0);
// Y = X where j >= i + diagonal, 0 elsewhere                                          dX = triu(dY)
template <std::floating_point T>
Var<T> triu(const Var<T>& x, Index diagonal = 0);

// Y = each element of the axis `repeats` times in a row: Y[i] = X[i / repeats]        dX = sum of dY's copies
// Throws ShapeError for an axis that X has not, DomainError for a negative number.
template <std::floating_point T>
Var<T> repeat_interleave(const Var<T>& x, Index repeats, int axis);

}  // namespace tapehead
