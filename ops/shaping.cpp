#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/kernels/strided.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace tapehead {
namespace {

template <class T>
Array<T> gathered(const Array<T>& x, const kernels::Walk& walk) {
  auto y = Array<T>::uninitialized(walk.shape);
  kernels::gather(x.data(), walk, y.mutable_values().data());
  return y;
}

}  // namespace

template <std::floating_point T>
Var<T> reshape(const Var<T>& x, const Shape& shape) {
  if (shape.size() != x.size())
    throw ShapeError("reshape", "sizes differ", {{"x", x.shape()}, {"to", shape}});
  return record("reshape", x.value().reshape(shape),
                edge(x, [from = x.shape()](const Var<T>& dy) { return reshape(dy, from); }));
}

template <std::floating_point T>
Var<T> reshape(const Var<T>& x, std::initializer_list<Index> extents) {
  return reshape(x, reshaped("reshape", x.shape(), std::span(extents.begin(), extents.size())));
}

namespace {

struct AxisOrder {
  std::array<int, max_rank> axes{};
  int rank = 0;

  AxisOrder inverse() const {
    AxisOrder result{.rank = rank};
    for (int i = 0; i < rank; ++i) result.axes[static_cast<std::size_t>((*this)[i])] = i;
    return result;
  }
  int operator[](int i) const { return axes[static_cast<std::size_t>(i)]; }
};

template <class T>
Var<T> permuted(OpName op, const Var<T>& x, const AxisOrder& order) {
  const Strides from(x.shape());
  kernels::Walk walk{x.shape()};
  for (int i = 0; i < order.rank; ++i) {
    walk.shape = walk.shape.with(i, x.shape()[order[i]]);
    walk.stride[i] = from[order[i]];
  }
  return record(op, gathered(x.value(), walk),
                edge(x, [op, back = order.inverse()](const Var<T>& dy) { return permuted(op, dy, back); }));
}

}  // namespace

template <std::floating_point T>
Var<T> permute(const Var<T>& x, std::span<const int> axes) {
  AxisOrder order{.rank = x.rank()};
  std::array<bool, max_rank> seen{};
  bool each_once = static_cast<int>(axes.size()) == x.rank();
  for (std::size_t i = 0; each_once && i < axes.size(); ++i) {
    order.axes[i] = axis_of("permute", x.shape(), axes[i]);
    each_once = !std::exchange(seen[static_cast<std::size_t>(order.axes[i])], true);
  }
  if (!each_once) throw ShapeError("permute", "needs each axis once", {{"x", x.shape()}});
  return permuted("permute", x, order);
}

template <std::floating_point T>
Var<T> transpose(const Var<T>& x, int axis_a, int axis_b) {
  AxisOrder order{.rank = x.rank()};
  std::iota(order.axes.begin(), order.axes.end(), 0);
  std::swap(order.axes[static_cast<std::size_t>(axis_of("transpose", x.shape(), axis_a))],
            order.axes[static_cast<std::size_t>(axis_of("transpose", x.shape(), axis_b))]);
  return permuted("transpose", x, order);
}

template <std::floating_point T>
Var<T> broadcast_to(const Var<T>& x, const Shape& shape) {
  if (!broadcasts_to(x.shape(), shape)) {
    throw ShapeError("broadcast_to", "x does not broadcast", {{"x", x.shape()}, {"to", shape}});
  }
  const Strides strides(x.shape(), shape);
  kernels::Walk walk{shape};
  std::copy_n(strides.step, max_rank, walk.stride);
  return record("broadcast_to", gathered(x.value(), walk),
                edge(x, [from = x.shape()](const Var<T>& dy) { return sum_to(dy, from); }));
}

template <std::floating_point T>
Var<T> sum_to(const Var<T>& x, const Shape& shape) {
  if (!broadcasts_to(shape, x.shape())) {
    throw ShapeError("sum_to", "the result would not broadcast to x", {{"x", x.shape()}, {"to", shape}});
  }
  const int lead = x.rank() - shape.rank();
  unsigned summed = 0;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < lead || (shape[i - lead] == 1 && x.shape()[i] != 1)) summed |= 1u << i;
  }
  return record("sum_to", sum_over(x.value(), summed).reshape(shape),
                edge(x, [from = x.shape()](const Var<T>& dy) { return broadcast_to(dy, from); }));
}

namespace {

// Arrays that differ along the axis only, one after another.
template <class T>
Array<T> joined(const std::vector<Array<T>>& parts, int axis) {
  Index total = 0;
  for (const Array<T>& part : parts) total += part.shape()[axis];
  auto y = Array<T>::uninitialized(parts[0].shape().with(axis, total));
  T* out = y.mutable_values().data();
  const Strides strides(y.shape());
  Index start = 0;
  for (const Array<T>& part : parts) {
    kernels::Walk walk{part.shape()};
    std::copy_n(strides.step, max_rank, walk.stride);
    walk.offset = start * strides[axis];
    kernels::scatter(part.data(), walk, out);
    start += part.shape()[axis];
  }
  return y;
}

template <class T>
Var<T> concatenated(std::span<const Var<T>> x, int axis_from_either_end) {
  if (x.empty()) throw ShapeError("concat", "nothing to join");
  const int axis = axis_of("concat", x[0].shape(), axis_from_either_end);
  std::vector<Array<T>> parts;
  std::vector<Index> starts;
  Index start = 0;
  for (const Var<T>& one : x) {
    if (one.rank() != x[0].rank() || one.shape().with(axis, 0) != x[0].shape().with(axis, 0)) {
      throw ShapeError("concat", "shapes differ beside axis " + std::to_string(axis),
                       {{"first", x[0].shape()}, {"other", one.shape()}});
    }
    parts.push_back(one.value());
    starts.push_back(start);
    start += one.shape()[axis];
  }
  return record_each("concat", joined(parts, axis), x, [&](std::size_t i) {
    const Slice part{starts[i], starts[i] + x[i].shape()[axis]};
    return [axis, part](const Var<T>& dy) { return slice(dy, axis, part); };
  });
}

template <class T>
Var<T> stacked(std::span<const Var<T>> x, int axis_from_either_end) {
  if (x.empty()) throw ShapeError("stack", "nothing to join");
  const Shape& shape = x[0].shape();
  const int rank = shape.rank() + 1;
  const int axis = axis_from_either_end < 0 ? axis_from_either_end + rank : axis_from_either_end;
  if (axis < 0 || axis >= rank) {
    throw ShapeError(
        "stack",
        "axis " + std::to_string(axis_from_either_end) + " is out of range for rank " + std::to_string(rank),
        {{"first", shape}});
  }
  const Shape with_axis = shape.first(axis).followed_by({1}).followed_by(shape.last(rank - 1 - axis));
  std::vector<Array<T>> parts;
  for (const Var<T>& one : x) {
    if (one.shape() != shape) {
      throw ShapeError("stack", "shapes differ", {{"first", shape}, {"other", one.shape()}});
    }
    parts.push_back(one.value().reshape(with_axis));
  }
  return record_each("stack", joined(parts, axis), x, [&](std::size_t i) {
    const Slice part{static_cast<Index>(i), static_cast<Index>(i) + 1};
    return [axis, part, shape](const Var<T>& dy) { return reshape(slice(dy, axis, part), shape); };
  });
}

using Slices = std::vector<Slice>;

// Where the sliced elements lie in an array of shape x.
kernels::Walk sliced(std::string_view op, const Shape& x, std::span<const Slice> slices) {
  if (static_cast<int>(slices.size()) > x.rank()) {
    throw ShapeError(op, std::to_string(slices.size()) + " slices", {{"x", x}});
  }
  const Strides strides(x);
  kernels::Walk walk{x};
  std::copy_n(strides.step, max_rank, walk.stride);
  for (int i = 0; i < static_cast<int>(slices.size()); ++i) {
    const auto& [from, to, step] = slices[static_cast<std::size_t>(i)];
    if (step == 0) throw DomainError(op, "the step of axis " + std::to_string(i) + " is 0");
    const Index extent = x[i];
    const Index lowest = step > 0 ? 0 : -1, highest = step > 0 ? extent : extent - 1;
    auto bound = [&](const std::optional<Index>& given, Index otherwise) {
      if (!given) return otherwise;
      return std::clamp(*given < 0 ? *given + extent : *given, lowest, highest);
    };
    const Index start = bound(from, step > 0 ? lowest : highest),
                stop = bound(to, step > 0 ? highest : lowest);
    const Index reach =
        step > 0 ? stop - start - 1 : stop - start + 1;  // from the first to the last that may be taken
    const Index count = (step > 0 ? reach >= 0 : reach <= 0) ? reach / step + 1 : 0;
    walk.shape = walk.shape.with(i, count);
    if (count > 0) walk.offset += start * strides[i];
    if (count > 1) walk.stride[i] = step * strides[i];  // otherwise the step may be too large for this
  }
  return walk;
}

}  // namespace

Var<float> concat(Vars<float> x, int axis) { return concatenated<float>(x, axis); }
Var<double> concat(Vars<double> x, int axis) { return concatenated<double>(x, axis); }
Var<float> stack(Vars<float> x, int axis) { return stacked<float>(x, axis); }
Var<double> stack(Vars<double> x, int axis) { return stacked<double>(x, axis); }

template <std::floating_point T>
Var<T> slice(const Var<T>& x, std::span<const Slice> slices) {
  return record("slice", gathered(x.value(), sliced("slice", x.shape(), slices)),
                edge(x, [from = x.shape(), where = Slices(slices.begin(), slices.end())](const Var<T>& dy) {
                  return unslice<T>(dy, from, where);
                }));
}

template <std::floating_point T>
Var<T> slice(const Var<T>& x, std::initializer_list<Slice> slices) {
  return slice(x, std::span<const Slice>(slices.begin(), slices.size()));
}

template <std::floating_point T>
Var<T> slice(const Var<T>& x, int axis, const Slice& part) {
  Slices slices(static_cast<std::size_t>(axis_of("slice", x.shape(), axis)) + 1);
  slices.back() = part;
  return slice<T>(x, slices);
}

template <std::floating_point T>
Var<T> unslice(const Var<T>& x, const Shape& shape, std::span<const Slice> slices) {
  const kernels::Walk walk = sliced("unslice", shape, slices);
  if (walk.shape != x.shape()) {
    throw ShapeError("unslice", "x has not the shape of the slices",
                     {{"x", x.shape()}, {"slices", walk.shape}});
  }
  auto y = Array<T>::zeros(shape);
  kernels::scatter(x.value().data(), walk, y.mutable_values().data());
  return record("unslice", std::move(y),
                edge(x, [where = Slices(slices.begin(), slices.end())](const Var<T>& dy) {
                  return slice<T>(dy, where);
                }));
}

template <std::floating_point T>
Var<T> pad(const Var<T>& x, std::span<const Padding> paddings, double fill) {
  if (static_cast<int>(paddings.size()) > x.rank()) {
    throw ShapeError("pad", std::to_string(paddings.size()) + " paddings", {{"x", x.shape()}});
  }
  Shape shape = x.shape();
  Slices where;
  for (int i = 0; i < static_cast<int>(paddings.size()); ++i) {
    const auto [before, after] = paddings[static_cast<std::size_t>(i)];
    constexpr Index most = Index{1} << 61;  // so that the sum of three cannot overflow
    if (std::min(before, after) < 0 || std::max(before, after) > most) {
      throw DomainError("pad", "axis " + std::to_string(i) + " cannot be padded by " +
                                   std::to_string(before) + " and " + std::to_string(after));
    }
    shape = shape.with(i, before + x.shape()[i] + after);
    where.push_back({before, before + x.shape()[i]});
  }
  auto y = Array<T>::full(shape, static_cast<T>(fill));
  kernels::scatter(x.value().data(), sliced("pad", shape, where), y.mutable_values().data());
  return record("pad", std::move(y), Given{fill},
                edge(x, [where = std::move(where)](const Var<T>& dy) { return slice<T>(dy, where); }));
}

template <std::floating_point T>
Var<T> pad(const Var<T>& x, std::initializer_list<Padding> paddings, double fill) {
  return pad(x, std::span<const Padding>(paddings.begin(), paddings.size()), fill);
}

template <std::floating_point T>
Var<T> pad(const Var<T>& x, int axis, const Padding& padding, double fill) {
  std::vector<Padding> paddings(static_cast<std::size_t>(axis_of("pad", x.shape(), axis)) + 1);
  paddings.back() = padding;
  return pad<T>(x, paddings, fill);
}

template <std::floating_point T>
Var<T> flip(const Var<T>& x, const Axes& axes) {
  const unsigned flipped = axes.mask("flip", x.shape());
  const Strides strides(x.shape());
  kernels::Walk walk{x.shape()};
  for (int i = 0; i < x.rank(); ++i) {
    const bool back = flipped >> i & 1u;
    walk.stride[i] = back ? -strides[i] : strides[i];
    if (back) walk.offset += (x.shape()[i] - 1) * strides[i];
  }
  return record("flip", gathered(x.value(), walk),
                edge(x, [axes](const Var<T>& dy) { return flip(dy, axes); }));
}

template <std::floating_point T>
Var<T> roll(const Var<T>& x, Index shift, int axis_from_either_end) {
  const int axis = axis_of("roll", x.shape(), axis_from_either_end);
  const Index n = x.shape()[axis];
  const Index forward = n == 0 ? 0 : (shift % n + n) % n;
  // All that follows the axis moves with it: a rotation of one long row for each element in front of it.
  const Index rows = x.shape().first(axis).size(), inner = x.shape().last(x.rank() - axis - 1).size();
  auto y = Array<T>::uninitialized(x.shape());
  const T* in = x.value().data();
  T* out = y.mutable_values().data();
  parallel_for(rows, elementwise_grain / std::max<Index>(n * inner, 1), [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const T* const first = in + row * n * inner;
      std::rotate_copy(first, first + (n - forward) * inner, first + n * inner, out + row * n * inner);
    }
  });
  return record("roll", std::move(y),
                edge(x, [forward, axis](const Var<T>& dy) { return roll(dy, -forward, axis); }));
}

namespace {

// The part of each matrix on one side of a diagonal, the diagonal included; 0 on the other.
template <class T>
Var<T> triangle(OpName op, const Var<T>& x, Index diagonal, bool lower) {
  if (x.rank() < 2) throw ShapeError(op, "needs two axes", {{"x", x.shape()}});
  const Index rows = x.dim(-2), columns = x.dim(-1);
  const Index end_of_first_row = std::clamp(diagonal, -rows, columns) + (lower ? 1 : 0);
  auto y = Array<T>::uninitialized(x.shape());
  const T* in = x.value().data();
  T* out = y.mutable_values().data();
  parallel_for(x.shape().first(x.rank() - 1).size(), elementwise_grain / std::max<Index>(columns, 1),
               [&](Index begin, Index end) {
                 for (Index row = begin; row < end; ++row) {
                   const Index split = std::clamp<Index>(row % rows + end_of_first_row, 0, columns);
                   const T* const from = in + row * columns;
                   T* const to = out + row * columns;
                   if (lower) {
                     std::fill(std::copy_n(from, split, to), to + columns, T{0});
                   } else {
                     std::copy(from + split, from + columns, std::fill_n(to, split, T{0}));
                   }
                 }
               });
  return record(op, std::move(y), edge(x, [op, diagonal, lower](const Var<T>& dy) {
                  return triangle(op, dy, diagonal, lower);
                }));
}

}  // namespace

template <std::floating_point T>
Var<T> tril(const Var<T>& x, Index diagonal) {
  return triangle("tril", x, diagonal, true);
}

template <std::floating_point T>
Var<T> triu(const Var<T>& x, Index diagonal) {
  return triangle("triu", x, diagonal, false);
}

template <std::floating_point T>
Var<T> repeat_interleave(const Var<T>& x, Index repeats, int axis_from_either_end) {
  const int axis = axis_of("repeat_interleave", x.shape(), axis_from_either_end);
  if (repeats < 0) {
    throw DomainError("repeat_interleave",
                      "the number of repeats " + std::to_string(repeats) + " is negative");
  }
  const Index n = x.shape()[axis], inner = x.shape().last(x.rank() - axis - 1).size();
  const Shape copies{x.shape().first(axis).size(), n, repeats, inner};  // the copies on an axis of their own
  const kernels::Walk walk{copies, {n * inner, inner, 0, 1}};
  return record("repeat_interleave", gathered(x.value(), walk).reshape(x.shape().with(axis, n * repeats)),
                edge(x, [copies, from = x.shape()](const Var<T>& dy) {
                  return reshape(sum(reshape(dy, copies), 2), from);
                }));
}

#define TAPEHEAD_INSTANTIATE(T)                                                 \
  template Var<T> reshape(const Var<T>&, std::initializer_list<Index>);         \
  template Var<T> reshape(const Var<T>&, const Shape&);                         \
  template Var<T> permute(const Var<T>&, std::span<const int>);                 \
  template Var<T> transpose(const Var<T>&, int, int);                           \
  template Var<T> broadcast_to(const Var<T>&, const Shape&);                    \
  template Var<T> sum_to(const Var<T>&, const Shape&);                          \
  template Var<T> slice(const Var<T>&, std::initializer_list<Slice>);           \
  template Var<T> slice(const Var<T>&, std::span<const Slice>);                 \
  template Var<T> slice(const Var<T>&, int, const Slice&);                      \
  template Var<T> unslice(const Var<T>&, const Shape&, std::span<const Slice>); \
  template Var<T> pad(const Var<T>&, std::initializer_list<Padding>, double);   \
  template Var<T> pad(const Var<T>&, std::span<const Padding>, double);         \
  template Var<T> pad(const Var<T>&, int, const Padding&, double);              \
  template Var<T> flip(const Var<T>&, const Axes&);                             \
  template Var<T> roll(const Var<T>&, Index, int);                              \
  template Var<T> tril(const Var<T>&, Index);                                   \
  template Var<T> triu(const Var<T>&, Index);                                   \
  template Var<T> repeat_interleave(const Var<T>&, Index, int);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
