#pragma once
// Reading memory in another order. Permuting, broadcasting and slicing are one walk with different strides,
// and their adjoints are the same walk adding in the other direction.

#include <tapehead/core/shape.h>

namespace tapehead::kernels {

// Element (i0, i1, ...) lies at offset + i0 * stride[0] + i1 * stride[1] + ...; a stride may be 0 or
// negative.
struct Walk {
  Shape shape;
  Index stride[max_rank] = {};
  Index offset = 0;

  Walk without_seams() const;  // the same elements in the same order over as few axes as possible
};

template <class T>
void gather(const T* x, const Walk& walk, T* y);  // y, contiguous, = x along the walk
template <class T>
void scatter(const T* dy, const Walk& walk, T* dx);  // dx along the walk = dy; no element may be met twice

}  // namespace tapehead::kernels
