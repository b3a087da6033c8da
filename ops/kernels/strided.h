#pragma once
// Reading memory in another order. Permuting, broadcasting and slicing are one walk with different strides,
// and their adjoints are the same walk adding in the other direction.

#include <tapehead/core/parallel.h>

namespace tapehead::kernels {

// Element (i0, i1, ...) lies at offset + i0 * stride[0] + i1 * stride[1] + ...; a stride may be 0 or
// negative.
struct Walk {
  Shape shape;
  Index stride[max_rank] = {};
  Index offset = 0;

  Walk without_seams() const;  // the same elements in the same order over as few axes as possible
};

// Calls f(first, at) for each row along the last axis, in any order and perhaps at once: the number of its
// first element in the order of the walk, and where that lies. The next ones follow at the stride of the last
// axis.
template <class F>
void for_each_row(const Walk& walk, F f) {
  const int outer = std::max(walk.shape.rank() - 1, 0);
  const Index length = walk.shape.rank() > 0 ? walk.shape[outer] : 1;
  const Index rows = length == 0 ? 0 : walk.shape.size() / length;
  parallel_for(rows, std::max<Index>(elementwise_grain / std::max<Index>(length, 1), 1),
               [&](Index begin, Index end) {
                 Index index[max_rank] = {};
                 Index at = walk.offset;
                 for (Index rest = begin, i = outer; i-- > 0;) {
                   index[i] = rest % walk.shape[static_cast<int>(i)];
                   rest /= walk.shape[static_cast<int>(i)];
                   at += index[i] * walk.stride[i];
                 }
                 for (Index row = begin; row < end; ++row) {
                   f(row * length, at);
                   for (int i = outer; i-- > 0;) {
                     at += walk.stride[i];
                     if (++index[i] < walk.shape[i]) break;
                     at -= index[i] * walk.stride[i];
                     index[i] = 0;
                   }
                 }
               });
}

template <class T>
void gather(const T* x, const Walk& walk, T* y);  // y, contiguous, = x along the walk
template <class T>
void scatter(const T* dy, const Walk& walk, T* dx);  // dx along the walk = dy; no element may be met twice

}  // namespace tapehead::kernels
