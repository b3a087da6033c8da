#pragma once
// Tensors as they were dumped, brought to the layout (B, H, L, D).

#include <optional>
#include <vector>

#include <tools/check/settings.h>

namespace tapehead::check {

// The shape (B, heads, length, width) of a tensor in a layout; `heads` cuts the last axis of BLD. More
// leading axes than one are taken together. None when the shape does not have this layout.
std::optional<Shape> heads_shape(const Shape& shape, Layout layout, Index heads);

// The tensor in that shape.
Array<double> heads_first(const Array<double>& x, Layout layout, Index heads);

// x (..., m, n) as (..., n, m).
Array<double> transposed(const Array<double>& x);

// Rows first to last - 1 of the axis.
Array<double> slice(const Array<double>& x, int axis, Index first, Index last);

// x repeated to fill `shape`, to which it broadcasts.
Array<double> repeated(const Array<double>& x, const Shape& shape);

// x (T, ...) cut at `starts` (N + 1 of them) into (N, longest, ...), filled up with `fill`.
Array<double> unpacked(const Array<double>& x, const std::vector<Index>& starts, double fill);

}  // namespace tapehead::check
