#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/kernels/strided.h>
#include <tapehead/ops/rope.h>

#include <algorithm>
#include <cmath>

namespace tapehead {
namespace {

// The width that is turned. Throws ShapeError when x has no such pairs.
template <class T>
Index turned_width(const Var<T>& x, Index width) {
  if (x.rank() < 2) throw ShapeError("rope", "x needs an axis of positions", {{"x", x.shape()}});
  if (width == 0) width = x.dim(-1);
  if (width < 0 || width > x.dim(-1)) {
    throw ShapeError("rope", "the width " + std::to_string(width) + " is not one of the last axis",
                     {{"x", x.shape()}});
  }
  if (width % 2 != 0) {
    throw ShapeError("rope", "the width " + std::to_string(width) + " is not of pairs", {{"x", x.shape()}});
  }
  return width;
}

template <class T>
struct Table {
  Array<T> cosines, sines;
  Pairing pairing;
  Index width;
};

// Turns each pair by its angle, or with `sign` -1 back. The table is read as if it were repeated to x's
// shape.
template <class T>
Array<T> turned(const Array<T>& x, const Table<T>& by, T sign) {
  const Index width = x.dim(-1), pairs = by.width / 2;
  const Index apart = by.pairing == Pairing::half ? pairs : 1, step = by.pairing == Pairing::half ? 1 : 2;
  kernels::Walk table{x.shape().with(-1, pairs)};
  const Strides strides(by.cosines.shape(), table.shape);
  std::copy_n(strides.step, max_rank, table.stride);
  const Index next = strides[x.rank() - 1];
  auto y = by.width < width ? Array<T>::from(x.values(), x.shape()) : Array<T>::uninitialized(x.shape());
  T* const out = y.mutable_values().data();
  if (pairs == 0) return y;
  kernels::for_each_row(table, [&](Index first, Index at) {
    const T* from = x.data() + first / pairs * width;
    T* to = out + first / pairs * width;
    for (Index i = 0; i < pairs; ++i) {
      const T c = by.cosines.data()[at + i * next], s = sign * by.sines.data()[at + i * next];
      const T x1 = from[i * step], x2 = from[i * step + apart];
      to[i * step] = x1 * c - x2 * s;
      to[i * step + apart] = x1 * s + x2 * c;
    }
  });
  return y;
}

template <class T>
Var<T> rotation(const Var<T>& x, const Table<T>& by, T sign) {
  return record("rope", turned(x.value(), by, sign),
                edge(x, [by, sign](const Var<T>& dy) { return rotation(dy, by, -sign); }));
}

void require_positive(const char* what, double value) {
  if (value > 0 && std::isfinite(value)) return;
  throw DomainError("rope",
                    std::string("the ") + what + " " + std::to_string(value) + " is not positive and finite");
}

}  // namespace

template <std::floating_point T>
Var<T> rope(const Var<T>& x, const Array<T>& cosines, const Array<T>& sines, Pairing pairing, Index width) {
  width = turned_width(x, width);
  if (cosines.shape() != sines.shape() || !broadcasts_to(cosines.shape(), x.shape().with(-1, width / 2))) {
    throw ShapeError("rope", "cosines and sines do not broadcast to the pairs of x",
                     {{"x", x.shape()}, {"cosines", cosines.shape()}, {"sines", sines.shape()}});
  }
  return rotation(x, Table<T>{cosines, sines, pairing, width}, T{1});
}

template <std::floating_point T>
Var<T> rope(const Var<T>& x, const RopeOptions& options) {
  const Index width = turned_width(x, options.width);
  require_positive("base", options.base);
  require_positive("position scale", options.position_scale);
  if (!options.start.fits(x.shape().first(x.rank() - 2))) {
    throw ShapeError("rope", "the start is not one for each sample of x",
                     {{"x", x.shape()}, {"start", options.start.values().shape()}});
  }
  const Index rows = x.dim(-2), pairs = width / 2;
  const Index samples = options.start.values().size();
  const Shape shape = with_ones(options.start.values().shape(), x.rank() - 2).followed_by({rows, pairs});
  auto cosines = Array<T>::uninitialized(shape), sines = Array<T>::uninitialized(shape);
  T* const c = cosines.mutable_values().data();
  T* const s = sines.mutable_values().data();
  // In double also for float: far positions would otherwise lose the digits of their angle.
  for (Index i = 0; i < pairs; ++i) {
    const double turn = options.position_scale *
                        std::pow(options.base, -static_cast<double>(2 * i) / static_cast<double>(width));
    for (Index row = 0; row < samples * rows; ++row) {
      const auto start = static_cast<double>(options.start.values().data()[row / rows]);
      const double angle = (start + static_cast<double>(row % rows)) * turn;
      c[row * pairs + i] = static_cast<T>(std::cos(angle));
      s[row * pairs + i] = static_cast<T>(std::sin(angle));
    }
  }
  return rotation(x, Table<T>{cosines, sines, options.pairing, width}, T{1});
}

#define TAPEHEAD_INSTANTIATE(T)                            \
  template Var<T> rope(const Var<T>&, const RopeOptions&); \
  template Var<T> rope(const Var<T>&, const Array<T>&, const Array<T>&, Pairing, Index);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
