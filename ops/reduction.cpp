#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/kernels/rows.h>
#include <tapehead/ops/kernels/zip.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <cmath>

namespace tapehead {

unsigned Axes::mask(std::string_view op, const Shape& shape) const {
  if (all_) return (1u << shape.rank()) - 1;
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

Shape with_ones(Shape shape, unsigned axes) {
  for (int i = 0; i < shape.rank(); ++i) {
    if (axes >> i & 1u) shape = shape.with(i, 1);
  }
  return shape;
}

Index count_over(const Shape& shape, unsigned axes) {
  Index count = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (axes >> i & 1u) count *= shape[i];
  }
  return count;
}

Shape shape_over(const Shape& shape, unsigned axes, Keep keep) {
  return keep == Keep::yes ? with_ones(shape, axes) : without_axes(shape, axes);
}

// A result or its gradient with the reduced axes as extents of 1, to meet x again.
template <class T>
Var<T> kept(const Var<T>& y, const Shape& shape, unsigned axes) {
  return reshape(y, with_ones(shape, axes));
}

// The sum divided by `divisor`, which is 1 for a sum.
template <class T>
Var<T> reduced(OpName op, const Var<T>& x, unsigned axes, Keep keep, double divisor) {
  Array<T> total = sum_over(x.value(), axes);
  if (divisor != 1) {
    for (T& one : total.mutable_values()) one /= static_cast<T>(divisor);
  }
  return record(op, total.reshape(shape_over(x.shape(), axes, keep)),
                edge(x, [from = x.shape(), axes, divisor](const Var<T>& dy) {
                  return broadcast_to(kept(divisor == 1 ? dy : dy / divisor, from, axes), from);
                }));
}

template <class T>
Var<T> averaged(const Var<T>& x, unsigned axes, Keep keep) {
  return reduced("mean", x, axes, keep, static_cast<double>(count_over(x.shape(), axes)));
}

std::vector<int> axes_in(unsigned axes, int rank) {
  std::vector<int> result;
  for (int i = 0; i < rank; ++i) {
    if (axes >> i & 1u) result.push_back(i);
  }
  return result;
}

// The order of axes in which the given ones stand behind the others.
std::vector<int> moved_last(unsigned axes, int rank) {
  std::vector<int> order = axes_in(~axes, rank);
  const std::vector<int> last = axes_in(axes, rank);
  order.insert(order.end(), last.begin(), last.end());
  return order;
}

// x with the given axes behind the others, as (rows, elements of one reduction).
template <class T>
Var<T> as_rows(const Var<T>& x, unsigned axes) {
  const std::vector<int> order = moved_last(axes, x.rank());
  const Index n = count_over(x.shape(), axes);
  const bool in_order = std::is_sorted(order.begin(), order.end());
  return reshape(in_order ? x : permute(x, std::span<const int>(order)),
                 Shape{count_over(x.shape(), ~axes), n});
}

// The inverse: rows of elements of one reduction back where they were in an array of the given shape.
template <class T>
Var<T> from_rows(const Var<T>& rows, const Shape& shape, unsigned axes) {
  const std::vector<int> order = moved_last(axes, shape.rank());
  Shape permuted = shape;
  std::vector<int> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    permuted = permuted.with(static_cast<int>(i), shape[order[i]]);
    back[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  }
  return permute(reshape(rows, permuted), std::span<const int>(back));
}

// kernel(x, rows, n, ..., y), a number a row.
template <class T, class Kernel, class... Rest>
Array<T> by_rows(Kernel kernel, const Var<T>& x, unsigned axes, Keep keep, Rest... rest) {
  const Array<T> rows = as_rows(x.detach(), axes).value();
  auto y = Array<T>::uninitialized(shape_over(x.shape(), axes, keep));
  kernel(rows.data(), rows.dim(0), rows.dim(1), rest..., y.mutable_values().data());
  return y;
}

template <class T>
Var<T> variance(const Var<T>& x, unsigned axes, Keep keep, int correction) {
  if (correction != 0 && correction != 1) {
    throw DomainError("var", "correction " + std::to_string(correction) + " is not 0 or 1");
  }
  const auto divisor = static_cast<double>(std::max<Index>(count_over(x.shape(), axes) - correction, 0));
  return record("var", by_rows(kernels::variance<T>, x, axes, keep, divisor),
                edge(x, [x, axes, divisor](const Var<T>& dy) {
                  const Var<T> centred = x - mean(x, axes_in(axes, x.rank()), Keep::yes);
                  return kept(dy, x.shape(), axes) * centred * (2 / divisor);
                }));
}

// What each element gets of the gradient of the extreme y (extents of 1): 1 / count if it is one of `count`.
template <class T>
Array<T> shares(const Array<T>& x, const Array<T>& y, unsigned axes) {
  auto hits = Array<T>::uninitialized(x.shape());
  kernels::zip(x.data(), x.shape(), y.data(), y.shape(), hits.mutable_values().data(), x.shape(),
               [](T p, T q) { return p == q ? T{1} : T{0}; });
  return (Var<T>(hits) / Var<T>(sum_over(hits, axes))).value();
}

template <class T, class Kernel>
Var<T> extreme(OpName op, Kernel kernel, const Var<T>& x, unsigned axes, Keep keep) {
  if (count_over(x.shape(), axes) == 0) throw ShapeError(op, "is over no element", {{"x", x.shape()}});
  return record(op, by_rows(kernel, x, axes, keep), edge(x, [x, axes](const Var<T>& y, const Var<T>& dy) {
                  const Array<T> share = shares(x.value(), kept(y.detach(), x.shape(), axes).value(), axes);
                  const Var<T> dy_of_each = broadcast_to(kept(dy, x.shape(), axes), x.shape());
                  return masked_fill(dy_of_each, positive(share), 0) * Var<T>(share);
                }));
}

// (rows, n): for each element the product of the others in its row. The halves of a row are multiplied, the
// products of the others are formed among what came out, and each of those is multiplied with the partner of
// the element it is for: no division, and nothing but ops, so that it can be differentiated.
template <class T>
Var<T> product_of_others(const Var<T>& x) {
  const Index n = x.dim(1);
  if (n <= 1) return Array<T>::ones(x.shape());
  const Index half = n / 2;
  const Var<T> left = slice(x, 1, {0, half}), right = slice(x, 1, {half, 2 * half});
  if (n % 2 == 0) {
    const Var<T> others = product_of_others(left * right);
    return concat({others * right, others * left}, 1);
  }
  const Var<T> last = slice(x, 1, {n - 1, n});
  const Var<T> others = product_of_others(concat({left * right, last}, 1));
  const Var<T> of_pairs = slice(others, 1, {0, half});
  return concat({of_pairs * right, of_pairs * left, slice(others, 1, {half, half + 1})}, 1);
}

template <class T>
Var<T> product(const Var<T>& x, unsigned axes, Keep keep) {
  return record("prod", by_rows(kernels::product<T>, x, axes, keep), edge(x, [x, axes](const Var<T>& dy) {
                  const Var<T> others = from_rows(product_of_others(as_rows(x, axes)), x.shape(), axes);
                  return kept(dy, x.shape(), axes) * others;
                }));
}

// The sum of p, (...) with the axes kept, or 1 where y is not finite.
template <class T>
Var<T> sum_where_finite(const Var<T>& p, unsigned axes, const Array<T>& y) {
  const Var<T> sum = reduced("sum", p, axes, Keep::yes, 1);
  auto finite = Array<bool>::uninitialized(sum.shape());
  std::transform(y.values().begin(), y.values().end(), finite.mutable_values().begin(),
                 [](T value) { return std::isfinite(value); });
  const bool all = std::find(finite.values().begin(), finite.values().end(), false) == finite.values().end();
  return all ? sum : masked_fill(sum, finite, 1);
}

template <class T>
Var<T> log_of_sum(const Var<T>& x, unsigned axes, Keep keep) {
  return record("logsumexp", by_rows(kernels::logsumexp<T>, x, axes, keep),
                edge(x, [x, axes](const Var<T>& y, const Var<T>& dy) {
                  // y was rounded, which is off by a factor common to a row: dividing by the sum takes it
                  // out.
                  const Var<T> p = exp(x - kept(y, x.shape(), axes));
                  return kept(dy, x.shape(), axes) * (p / sum_where_finite(p, axes, y.value()));
                }));
}

template <class T>
Var<T> running_sum(const Var<T>& x, int axis, bool backwards) {
  const Shape& shape = x.shape();
  auto y = Array<T>::uninitialized(shape);
  kernels::cumsum(x.value().data(), shape.first(axis).size(), shape[axis],
                  shape.last(shape.rank() - axis - 1).size(), backwards, y.mutable_values().data());
  return record("cumsum", std::move(y),
                edge(x, [axis, backwards](const Var<T>& dy) { return running_sum(dy, axis, !backwards); }));
}

}  // namespace

template <std::floating_point T>
Var<T> sum(const Var<T>& x, const Axes& axes, Keep keep) {
  return reduced("sum", x, axes.mask("sum", x.shape()), keep, 1);
}
template <std::floating_point T>
Var<T> mean(const Var<T>& x, const Axes& axes, Keep keep) {
  return averaged(x, axes.mask("mean", x.shape()), keep);
}

template <std::floating_point T>
Var<T> var(const Var<T>& x, const Axes& axes, Keep keep, int correction) {
  return variance(x, axes.mask("var", x.shape()), keep, correction);
}

template <std::floating_point T>
Var<T> amax(const Var<T>& x, const Axes& axes, Keep keep) {
  return extreme("amax", kernels::largest<T>, x, axes.mask("amax", x.shape()), keep);
}
template <std::floating_point T>
Var<T> amin(const Var<T>& x, const Axes& axes, Keep keep) {
  return extreme("amin", kernels::smallest<T>, x, axes.mask("amin", x.shape()), keep);
}

template <std::floating_point T>
Var<T> prod(const Var<T>& x, const Axes& axes, Keep keep) {
  return product(x, axes.mask("prod", x.shape()), keep);
}

template <std::floating_point T>
Var<T> logsumexp(const Var<T>& x, const Axes& axes, Keep keep) {
  return log_of_sum(x, axes.mask("logsumexp", x.shape()), keep);
}

template <std::floating_point T>
Var<T> cumsum(const Var<T>& x, int axis) {
  return running_sum(x, axis_of("cumsum", x.shape(), axis), false);
}

#define TAPEHEAD_INSTANTIATE(T)                                \
  template Var<T> sum(const Var<T>&, const Axes&, Keep);       \
  template Var<T> mean(const Var<T>&, const Axes&, Keep);      \
  template Var<T> var(const Var<T>&, const Axes&, Keep, int);  \
  template Var<T> amax(const Var<T>&, const Axes&, Keep);      \
  template Var<T> amin(const Var<T>&, const Axes&, Keep);      \
  template Var<T> prod(const Var<T>&, const Axes&, Keep);      \
  template Var<T> logsumexp(const Var<T>&, const Axes&, Keep); \
  template Var<T> cumsum(const Var<T>&, int);                  \
  template Array<T> sum_over(const Array<T>&, unsigned);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
