#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/kernels/strided.h>
#include <tapehead/ops/rope.h>

#include <algorithm>
#include <cmath>

namespace tapehead {
namespace {

template <class T>
void require_pairs(const Var<T>& x) {
  if (x.rank() < 2) throw ShapeError("rope", "x needs an axis of positions", {{"x", x.shape()}});
  if (x.dim(-1) % 2 != 0) throw ShapeError("rope", "the last axis is not of pairs", {{"x", x.shape()}});
}

// Turns each pair by its angle, or with `sign` -1 back. The table is read as if it were repeated to x's
// shape.
template <class T>
Array<T> turned(const Array<T>& x, const Array<T>& cosines, const Array<T>& sines, Pairing pairing, T sign) {
  const Index width = x.dim(-1), pairs = width / 2;
  const Index apart = pairing == Pairing::half ? pairs : 1, step = pairing == Pairing::half ? 1 : 2;
  kernels::Walk table{x.shape().with(-1, pairs)};
  const Strides strides(cosines.shape(), table.shape);
  std::copy_n(strides.step, max_rank, table.stride);
  const Index next = strides[x.rank() - 1];
  auto y = Array<T>::uninitialized(x.shape());
  T* const out = y.mutable_values().data();
  kernels::for_each_row(table, [&](Index first, Index at) {
    const T* from = x.data() + 2 * first;
    T* to = out + 2 * first;
    for (Index i = 0; i < pairs; ++i) {
      const T c = cosines.data()[at + i * next], s = sign * sines.data()[at + i * next];
      const T x1 = from[i * step], x2 = from[i * step + apart];
      to[i * step] = x1 * c - x2 * s;
      to[i * step + apart] = x1 * s + x2 * c;
    }
  });
  return y;
}

template <class T>
Var<T> rotation(const Var<T>& x, const Array<T>& cosines, const Array<T>& sines, Pairing pairing, T sign) {
  return record("rope", turned(x.value(), cosines, sines, pairing, sign),
                edge(x, [cosines, sines, pairing, sign](const Var<T>& dy) {
                  return rotation(dy, cosines, sines, pairing, -sign);
                }));
}

}  // namespace

template <std::floating_point T>
Var<T> rope(const Var<T>& x, const Array<T>& cosines, const Array<T>& sines, Pairing pairing) {
  require_pairs(x);
  if (cosines.shape() != sines.shape() ||
      !broadcasts_to(cosines.shape(), x.shape().with(-1, x.dim(-1) / 2))) {
    throw ShapeError("rope", "cosines and sines do not broadcast to the pairs of x",
                     {{"x", x.shape()}, {"cosines", cosines.shape()}, {"sines", sines.shape()}});
  }
  return rotation(x, cosines, sines, pairing, T{1});
}

template <std::floating_point T>
Var<T> rope(const Var<T>& x, const RopeOptions& options) {
  require_pairs(x);
  if (!(options.base > 0 && std::isfinite(options.base))) {
    throw DomainError("rope", "the base " + std::to_string(options.base) + " is not positive and finite");
  }
  const Index rows = x.dim(-2), pairs = x.dim(-1) / 2;
  auto cosines = Array<T>::uninitialized({rows, pairs}), sines = Array<T>::uninitialized({rows, pairs});
  T* const c = cosines.mutable_values().data();
  T* const s = sines.mutable_values().data();
  // In double also for float: far positions would otherwise lose the digits of their angle.
  for (Index i = 0; i < pairs; ++i) {
    const double turn = std::pow(options.base, -static_cast<double>(2 * i) / static_cast<double>(2 * pairs));
    for (Index row = 0; row < rows; ++row) {
      const double angle = (static_cast<double>(options.start) + static_cast<double>(row)) * turn;
      c[row * pairs + i] = static_cast<T>(std::cos(angle));
      s[row * pairs + i] = static_cast<T>(std::sin(angle));
    }
  }
  return rotation(x, cosines, sines, options.pairing, T{1});
}

#define TAPEHEAD_INSTANTIATE(T)                            \
  template Var<T> rope(const Var<T>&, const RopeOptions&); \
  template Var<T> rope(const Var<T>&, const Array<T>&, const Array<T>&, Pairing);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
