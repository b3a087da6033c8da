#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/kernels/rows.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

namespace tapehead {

unsigned Axes::mask(std::string_view op, const Shape& shape) const {
  unsigned mask = 0;
  for (const int axis : axes_) {
    const unsigned bit = 1u << axis_of(op, shape, axis);
    if (mask & bit) throw ShapeError(op, "axis " + std::to_string(axis) + " is named twice", {{"x", shape}});
    mask |= bit;
  }
  return mask;
}

template <std::floating_point T>
Array<T> sum_over(const Array<T>& x, unsigned axes) {
  Array<T> y = x;
  // From the last axis, where a sum shrinks most; neighbouring axes go in one sum.
  for (int last = x.rank() - 1; last >= 0; --last) {
    if (!(axes >> last & 1u)) continue;
    int first = last;
    while (first > 0 && (axes >> (first - 1) & 1u)) --first;
    const Shape& shape = y.shape();
    const Index outer = shape.first(first).size(), inner = shape.last(shape.rank() - last - 1).size();
    Index n = 1;
    Shape reduced = shape;
    for (int i = first; i <= last; ++i) {
      n *= shape[i];
      reduced = reduced.with(i, 1);
    }
    auto sums = Array<T>::uninitialized(reduced);
    kernels::sum(y.data(), outer, n, inner, sums.mutable_values().data());
    y = std::move(sums);
    last = first;
  }
  return y;
}

namespace {

Shape without_axes(const Shape& shape, unsigned axes) {
  Shape result = shape;
  for (int i = shape.rank(); i-- > 0;) {
    if (axes >> i & 1u) result = result.without(i);
  }
  return result;
}

unsigned all_axes(const Shape& shape) { return (1u << shape.rank()) - 1; }

// The sum divided by `divisor`, which is 1 for a sum.
template <class T>
Var<T> reduced(OpName op, const Var<T>& x, unsigned axes, Keep keep, double divisor) {
  Array<T> kept = sum_over(x.value(), axes);
  if (divisor != 1) {
    for (T& total : kept.mutable_values()) total /= static_cast<T>(divisor);
  }
  const Shape shape = keep == Keep::yes ? kept.shape() : without_axes(kept.shape(), axes);
  return record(op, kept.reshape(shape), edge(x, [from = x.shape(), axes, divisor](const Var<T>& dy) {
                  Shape with_ones = from;
                  for (int i = 0; i < from.rank(); ++i) {
                    if (axes >> i & 1u) with_ones = with_ones.with(i, 1);
                  }
                  return broadcast_to(reshape(divisor == 1 ? dy : dy / divisor, with_ones), from);
                }));
}

template <class T>
Var<T> averaged(const Var<T>& x, unsigned axes, Keep keep) {
  Index count = 1;
  for (int i = 0; i < x.rank(); ++i) {
    if (axes >> i & 1u) count *= x.shape()[i];
  }
  return reduced("mean", x, axes, keep, static_cast<double>(count));
}

}  // namespace

template <std::floating_point T>
Var<T> sum(const Var<T>& x, const Axes& axes, Keep keep) {
  return reduced("sum", x, axes.mask("sum", x.shape()), keep, 1);
}
template <std::floating_point T>
Var<T> sum(const Var<T>& x) {
  return reduced("sum", x, all_axes(x.shape()), Keep::no, 1);
}
template <std::floating_point T>
Var<T> mean(const Var<T>& x, const Axes& axes, Keep keep) {
  return averaged(x, axes.mask("mean", x.shape()), keep);
}
template <std::floating_point T>
Var<T> mean(const Var<T>& x) {
  return averaged(x, all_axes(x.shape()), Keep::no);
}

#define TAPEHEAD_INSTANTIATE(T)                           \
  template Var<T> sum(const Var<T>&, const Axes&, Keep);  \
  template Var<T> sum(const Var<T>&);                     \
  template Var<T> mean(const Var<T>&, const Axes&, Keep); \
  template Var<T> mean(const Var<T>&);                    \
  template Array<T> sum_over(const Array<T>&, unsigned);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
