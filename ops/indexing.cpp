#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/kernels/strided.h>

#include <algorithm>

namespace tapehead {
namespace {

void require_in_range(std::string_view op, const Array<Index>& index, Index count) {
  for (Index i = 0; i < index.size(); ++i) {
    const Index row = index.data()[i];
    if (row >= 0 && row < count) continue;
    throw DomainError(op, "index " + std::to_string(row) + " at position " + position_text(index.shape(), i) +
                              " is not in 0 to " + std::to_string(count - 1));
  }
}

template <class T>
Var<T> selected(OpName op, const Var<T>& x, const Array<Index>& index, int axis) {
  const Index rows = x.shape()[axis];
  require_in_range(op, index, rows);
  const Shape before = x.shape().first(axis), row = x.shape().last(x.rank() - axis - 1);
  const Index width = row.size();
  auto y = Array<T>::uninitialized(before.followed_by(index.shape()).followed_by(row));
  const T* in = x.value().data();
  T* out = y.mutable_values().data();
  const Index* numbers = index.data();
  const Index count = index.size();
  parallel_for(before.size() * count, elementwise_grain / std::max<Index>(width, 1),
               [&](Index begin, Index end) {
                 for (Index i = begin; i < end; ++i) {
                   std::copy_n(in + (i / count * rows + numbers[i % count]) * width, width, out + i * width);
                 }
               });
  return record(op, std::move(y),
                edge(x, [index, axis, rows](const Var<T>& dy) { return index_add(dy, index, axis, rows); }));
}

}  // namespace

template <std::floating_point T>
Var<T> index_select(const Var<T>& x, const Array<Index>& index, int axis) {
  return selected("index_select", x, index, axis_of("index_select", x.shape(), axis));
}

template <std::floating_point T>
Var<T> embedding(const Var<T>& table, const Array<Index>& index) {
  if (table.rank() < 1) throw ShapeError("embedding", "the table has no rows", {{"table", table.shape()}});
  return selected("embedding", table, index, 0);
}

template <std::floating_point T>
Var<T> index_add(const Var<T>& x, const Array<Index>& index, int axis_from_either_end, Index count) {
  const int rank = x.rank() - index.rank() + 1;  // of the result
  const int axis = axis_from_either_end < 0 ? axis_from_either_end + rank : axis_from_either_end;
  if (axis < 0 || axis >= rank || x.shape().last(x.rank() - axis).first(index.rank()) != index.shape()) {
    throw ShapeError("index_add",
                     "x has not the axes of index at axis " + std::to_string(axis_from_either_end),
                     {{"x", x.shape()}, {"index", index.shape()}});
  }
  if (count < 0) throw DomainError("index_add", "count " + std::to_string(count) + " is negative");
  require_in_range("index_add", index, count);
  const Shape before = x.shape().first(axis), row = x.shape().last(x.rank() - axis - index.rank());
  const Index width = row.size();
  auto y = Array<T>::zeros(before.followed_by({count}).followed_by(row));
  T* const out = y.mutable_values().data();
  const T* const in = x.value().data();
  // Rows may meet in one sum; columns do not.
  constexpr Index columns = 64;
  const Index strips = (width + columns - 1) / columns, work = index.size() * std::min(width, columns);
  parallel_for(before.size() * strips, elementwise_grain / std::max<Index>(work, 1),
               [&](Index begin, Index end) {
                 for (Index strip = begin; strip < end; ++strip) {
                   const Index part = strip / strips, first = strip % strips * columns;
                   const Index last = std::min(width, first + columns);
                   const T* from = in + part * index.size() * width;
                   for (const Index i : index.values()) {
                     T* const sums = out + (part * count + i) * width;
                     for (Index c = first; c < last; ++c) sums[c] += from[c];
                     from += width;
                   }
                 }
               });
  return record("index_add", std::move(y),
                edge(x, [index, axis](const Var<T>& dy) { return index_select(dy, index, axis); }));
}

namespace {

// Where the element of an array of `shape` lies that each element of index stands for.
Array<Index> places(std::string_view op, std::string_view name, const Shape& shape, const Array<Index>& index,
                    int axis) {
  bool fits = index.rank() == shape.rank();
  for (int i = 0; fits && i < shape.rank(); ++i) fits = i == axis || index.shape()[i] <= shape[i];
  if (!fits) {
    throw ShapeError(op, "index has another rank or is longer beside axis " + std::to_string(axis),
                     {{name, shape}, {"index", index.shape()}});
  }
  require_in_range(op, index, shape[axis]);
  const Strides strides(shape);
  kernels::Walk walk{index.shape()};
  std::copy_n(strides.step, max_rank, walk.stride);
  walk.stride[axis] = 0;
  const int last = shape.rank() - 1;
  const Index length = index.shape()[last], step = walk.stride[last];
  auto result = Array<Index>::uninitialized(index.shape());
  Index* out = result.mutable_values().data();
  kernels::for_each_row(walk, [&](Index first, Index at) {
    for (Index i = first; i < first + length; ++i) {
      out[i] = at + (i - first) * step + index.data()[i] * strides[axis];
    }
  });
  return result;
}

}  // namespace

template <std::floating_point T>
Var<T> gather(const Var<T>& x, const Array<Index>& index, int axis_from_either_end) {
  const int axis = axis_of("gather", x.shape(), axis_from_either_end);
  const Array<Index> from = places("gather", "x", x.shape(), index, axis);
  auto y = Array<T>::uninitialized(index.shape());
  const T* const in = x.value().data();
  T* const out = y.mutable_values().data();
  parallel_for(y.size(), elementwise_grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) out[i] = in[from.data()[i]];
  });
  return record("gather", std::move(y), edge(x, [index, axis, shape = x.shape()](const Var<T>& dy) {
                  return scatter_add(dy, index, axis, shape);
                }));
}

template <std::floating_point T>
Var<T> scatter_add(const Var<T>& x, const Array<Index>& index, int axis_from_either_end, const Shape& shape) {
  const int axis = axis_of("scatter_add", shape, axis_from_either_end);
  if (x.shape() != index.shape()) {
    throw ShapeError("scatter_add", "x has not the shape of index",
                     {{"x", x.shape()}, {"index", index.shape()}});
  }
  const Array<Index> to = places("scatter_add", "to", shape, index, axis);
  auto y = Array<T>::zeros(shape);
  T* const sums = y.mutable_values().data();
  const T* const in = x.value().data();
  // Elements meet only when they differ along the axis alone.
  const Index parts = x.shape().first(axis).size(), size = parts == 0 ? 0 : x.size() / parts;
  parallel_for(parts, elementwise_grain / std::max<Index>(size, 1), [&](Index begin, Index end) {
    for (Index i = begin * size; i < end * size; ++i) sums[to.data()[i]] += in[i];
  });
  return record("scatter_add", std::move(y),
                edge(x, [index, axis](const Var<T>& dy) { return gather(dy, index, axis); }));
}

#define TAPEHEAD_INSTANTIATE(T)                                              \
  template Var<T> index_select(const Var<T>&, const Array<Index>&, int);     \
  template Var<T> index_add(const Var<T>&, const Array<Index>&, int, Index); \
  template Var<T> embedding(const Var<T>&, const Array<Index>&);             \
  template Var<T> gather(const Var<T>&, const Array<Index>&, int);           \
  template Var<T> scatter_add(const Var<T>&, const Array<Index>&, int, const Shape&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
