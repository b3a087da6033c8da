#pragma once
// Elementwise functions of two operands that broadcast: inside the loop, by strides of 0, so that nothing is
// repeated in memory.

#include <tapehead/core/parallel.h>

namespace tapehead::kernels {

// Two operands read as one shape, over as few axes as their strides allow.
struct ZipPlan {
  ZipPlan(const Shape& a, const Shape& b, const Shape& y);
  Shape shape;
  Index step_a[max_rank] = {}, step_b[max_rank] = {};
};

namespace detail {

// One row; the common strides are constants in loops of their own, which vectorise.
template <class A, class B, class Y, class F>
void zip_row(Index n, const A* a, Index step_a, const B* b, Index step_b, Y* y, F f) {
  if (step_a == 1 && step_b == 1) {
    for (Index i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  } else if (step_a == 1 && step_b == 0) {
    const B right = *b;
    for (Index i = 0; i < n; ++i) y[i] = f(a[i], right);
  } else if (step_a == 0 && step_b == 1) {
    const A left = *a;
    for (Index i = 0; i < n; ++i) y[i] = f(left, b[i]);
  } else {
    for (Index i = 0; i < n; ++i) y[i] = f(a[i * step_a], b[i * step_b]);
  }
}

}  // namespace detail

// y = f(a, b), shapes broadcast to y's. y may be the storage of an operand that has y's shape.
template <class A, class B, class Y, class F>
void zip(const A* a, const Shape& shape_a, const B* b, const Shape& shape_b, Y* y, const Shape& shape, F f) {
  if (shape_a == shape_b) {
    parallel_for(shape.size(), elementwise_grain, [&](Index begin, Index end) {
      detail::zip_row(end - begin, a + begin, 1, b + begin, 1, y + begin, f);
    });
    return;
  }
  const ZipPlan plan(shape_a, shape_b, shape);
  const int outer = std::max(plan.shape.rank() - 1, 0);
  const Index length = plan.shape.rank() > 0 ? plan.shape[outer] : 1;
  const Index rows = length == 0 ? 0 : plan.shape.size() / length;
  parallel_for(rows, std::max<Index>(elementwise_grain / std::max<Index>(length, 1), 1),
               [&](Index begin, Index end) {
                 Index index[max_rank] = {};
                 Index at_a = 0, at_b = 0;
                 for (Index rest = begin, i = outer; i-- > 0;) {
                   const Index extent = plan.shape[static_cast<int>(i)];
                   index[i] = rest % extent;
                   rest /= extent;
                   at_a += index[i] * plan.step_a[i];
                   at_b += index[i] * plan.step_b[i];
                 }
                 for (Index row = begin; row < end; ++row) {
                   detail::zip_row(length, a + at_a, plan.step_a[outer], b + at_b, plan.step_b[outer],
                                   y + row * length, f);
                   for (int i = outer; i-- > 0;) {
                     at_a += plan.step_a[i];
                     at_b += plan.step_b[i];
                     if (++index[i] < plan.shape[i]) break;
                     at_a -= index[i] * plan.step_a[i];
                     at_b -= index[i] * plan.step_b[i];
                     index[i] = 0;
                   }
                 }
               });
}

}  // namespace tapehead::kernels
