#include <tapehead/ops/kernels/strided.h>

namespace tapehead::kernels {

Walk Walk::without_seams() const {
  Index extents[max_rank];
  Walk result;
  result.offset = offset;
  int rank = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    if (rank > 0 && result.stride[rank - 1] == stride[i] * shape[i]) {
      extents[rank - 1] *= shape[i];
      result.stride[rank - 1] = stride[i];
    } else {
      extents[rank] = shape[i];
      result.stride[rank++] = stride[i];
    }
  }
  result.shape = Shape(std::span<const Index>(extents, static_cast<std::size_t>(rank)));
  return result;
}

namespace {

// Whole rows of a transposition would touch a new cache line an element on one side; tiles touch each line
// once.
template <class T>
void gather_transposed(const T* x, Index rows, Index columns, Index column_stride, T* y) {
  constexpr Index tile = 32;
  for (Index r0 = 0; r0 < rows; r0 += tile) {
    const Index r1 = std::min(rows, r0 + tile);
    for (Index c0 = 0; c0 < columns; c0 += tile) {
      const Index c1 = std::min(columns, c0 + tile);
      for (Index r = r0; r < r1; ++r) {
        for (Index c = c0; c < c1; ++c) y[r * columns + c] = x[r + c * column_stride];
      }
    }
  }
}

}  // namespace

template <class T>
void gather(const T* x, const Walk& seamed, T* y) {
  const Walk walk = seamed.without_seams();
  const int rank = walk.shape.rank();
  const Index length = rank > 0 ? walk.shape[rank - 1] : 1;
  const Index step = rank > 0 ? walk.stride[rank - 1] : 1;
  if (rank >= 2 && step > 1 && walk.stride[rank - 2] == 1) {
    Walk matrices = walk;
    matrices.shape = walk.shape.first(rank - 2).followed_by({1});
    const Index rows = walk.shape[rank - 2];
    for_each_row(matrices, [&](Index number, Index at) {
      gather_transposed(x + at, rows, length, step, y + number * rows * length);
    });
    return;
  }
  for_each_row(walk, [&](Index first, Index at) {
    const T* from = x + at;
    T* to = y + first;
    if (step == 1) {
      std::copy_n(from, length, to);
    } else if (step == 0) {
      std::fill_n(to, length, *from);
    } else {
      for (Index i = 0; i < length; ++i) to[i] = from[i * step];
    }
  });
}

template <class T>
void scatter(const T* dy, const Walk& seamed, T* dx) {
  const Walk walk = seamed.without_seams();
  const int rank = walk.shape.rank();
  const Index length = rank > 0 ? walk.shape[rank - 1] : 1;
  const Index step = rank > 0 ? walk.stride[rank - 1] : 1;
  for_each_row(walk, [&](Index first, Index at) {
    const T* from = dy + first;
    T* to = dx + at;
    if (step == 1) {
      std::copy_n(from, length, to);
    } else {
      for (Index i = 0; i < length; ++i) to[i * step] = from[i];
    }
  });
}

template void gather(const float*, const Walk&, float*);
template void gather(const double*, const Walk&, double*);
template void gather(const bool*, const Walk&, bool*);
template void gather(const Index*, const Walk&, Index*);
template void scatter(const float*, const Walk&, float*);
template void scatter(const double*, const Walk&, double*);

}  // namespace tapehead::kernels
