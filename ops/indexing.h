#pragma once
// Elements by number. Every index counts from the front of its axis. Each op is linear; what takes stands
// above what adds back, its adjoint.

#include <tapehead/core/var.h>

namespace tapehead {

// Y = X at index along the axis, all else whole                dX = index_add(dY, index, axis, N)
// X (A..., N, D...)   index (I...) of 0 to N - 1   Y (A..., I..., D...)
// Throws DomainError naming the position of an index out of range, ShapeError for an axis that X has not.
template <std::floating_point T>
Var<T> index_select(const Var<T>& x, const Array<Index>& index, int axis);

// Y = zeros, each part of X added where its index says         dX = index_select(dY, index, axis)
// X (A..., I..., D...)   index (I...) of 0 to count - 1   Y (A..., count, D...)   axis: that of count in Y
// A repeated index adds. Throws ShapeError when X has not the axes of index at the axis, DomainError as above
// and for a negative count.
template <std::floating_point T>
Var<T> index_add(const Var<T>& x, const Array<Index>& index, int axis, Index count);

// Y = the rows of the table at index                           dtable = index_add(dY, index, 0, V)
// table (V, D...)   index (I...) of 0 to V - 1   Y (I..., D...)
// Throws DomainError naming the position of an index out of range, ShapeError for a table of rank 0.
template <std::floating_point T>
Var<T> embedding(const Var<T>& table, const Array<Index>& index);

// Y[i, j, k] = X[i, index[i, j, k], k]   (axis 1 of 3)         dX = scatter_add(dY, index, axis, X's shape)
// X and index of one rank, index nowhere longer than X but along the axis   Y of the shape of index
// Throws ShapeError when they are not, DomainError naming the position of an index out of range.
template <std::floating_point T>
Var<T> gather(const Var<T>& x, const Array<Index>& index, int axis);

// Y[i, index[i, j, k], k] += X[i, j, k]   (axis 1 of 3)        dX = gather(dY, index, axis)
// X and index of one shape, nowhere longer than Y but along the axis   Y of the given shape, zeros before
// A repeated place adds. Throws ShapeError when they are not, DomainError as above.
template <std::floating_point T>
Var<T> scatter_add(const Var<T>& x, const Array<Index>& index, int axis, const Shape& shape);

}  // namespace tapehead
