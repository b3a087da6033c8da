#pragma once
// Rows by number.

#include <tapehead/core/var.h>

namespace tapehead {

// Y = the rows of the table at index            dtable = scatter_add(dY, index, rows of the table)
// table (V, D...)   index (I...) of 0 to V - 1   Y (I..., D...)
// Throws DomainError naming the position of an index out of range.
template <std::floating_point T>
Var<T> embedding(const Var<T>& table, const Array<Index>& index);

// Y = zeros, and each X added to the row at its index; a repeated index adds       dX = embedding(dY, index)
// X (I..., D...)   index (I...) of 0 to count - 1   Y (count, D...)
// Throws ShapeError when X does not begin with the axes of index, DomainError as above.
template <std::floating_point T>
Var<T> scatter_add(const Var<T>& x, const Array<Index>& index, Index count);

}  // namespace tapehead
