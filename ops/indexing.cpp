#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/indexing.h>

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

}  // namespace

template <std::floating_point T>
Var<T> embedding(const Var<T>& table, const Array<Index>& index) {
  if (table.rank() < 1) throw ShapeError("embedding", "the table has no rows", {{"table", table.shape()}});
  const Index rows = table.dim(0);
  require_in_range("embedding", index, rows);
  const Shape row = table.shape().last(table.rank() - 1);
  const Index width = row.size();
  auto y = Array<T>::uninitialized(index.shape().followed_by(row));
  T* out = y.mutable_values().data();
  for (const Index i : index.values()) out = std::copy_n(table.value().data() + i * width, width, out);
  return record("embedding", std::move(y),
                edge(table, [index, rows](const Var<T>& dy) { return scatter_add(dy, index, rows); }));
}

template <std::floating_point T>
Var<T> scatter_add(const Var<T>& x, const Array<Index>& index, Index count) {
  if (x.rank() < index.rank() || x.shape().first(index.rank()) != index.shape()) {
    throw ShapeError("scatter_add", "x does not begin with the axes of index",
                     {{"x", x.shape()}, {"index", index.shape()}});
  }
  if (count < 0) throw DomainError("scatter_add", "count " + std::to_string(count) + " is negative");
  require_in_range("scatter_add", index, count);
  const Shape row = x.shape().last(x.rank() - index.rank());
  const Index width = row.size();
  auto y = Array<T>::zeros(Shape{count}.followed_by(row));
  T* out = y.mutable_values().data();
  const T* in = x.value().data();
  for (const Index i : index.values()) {
    T* sum = out + i * width;
    for (Index c = 0; c < width; ++c) sum[c] += in[c];
    in += width;
  }
  return record("scatter_add", std::move(y),
                edge(x, [index](const Var<T>& dy) { return embedding(dy, index); }));
}

template Var<float> embedding(const Var<float>&, const Array<Index>&);
template Var<double> embedding(const Var<double>&, const Array<Index>&);
template Var<float> scatter_add(const Var<float>&, const Array<Index>&, Index);
template Var<double> scatter_add(const Var<double>&, const Array<Index>&, Index);

}  // namespace tapehead
