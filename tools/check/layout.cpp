#include <tools/check/layout.h>

#include <algorithm>

namespace tapehead::check {
namespace {

// (a, m, n, b) as (a, n, m, b)
Array<double> exchanged(const Array<double>& x, Index a, Index m, Index n, Index b) {
  auto y = Array<double>::uninitialized({a, n, m, b});
  double* to = y.mutable_values().data();
  for (Index i = 0; i < a; ++i) {
    for (Index k = 0; k < n; ++k) {
      for (Index j = 0; j < m; ++j, to += b) std::copy_n(x.data() + ((i * m + j) * n + k) * b, b, to);
    }
  }
  return y;
}

Index product(const Shape& shape, int first, int last) {
  Index result = 1;
  for (int i = first; i < last; ++i) result *= shape[i];
  return result;
}

}  // namespace

std::optional<Shape> heads_shape(const Shape& shape, Layout layout, Index heads) {
  const int rank = shape.rank();
  if (layout == Layout::BLD) {
    if (rank < 2 || rank > 3 || shape[rank - 1] % heads != 0) return std::nullopt;
    return Shape{product(shape, 0, rank - 2), heads, shape[rank - 2], shape[rank - 1] / heads};
  }
  const bool packed = layout == Layout::THD;
  if (packed ? rank != 3 : rank < 3) return std::nullopt;
  const Index samples = product(shape, 0, rank - 3);
  const Index second = shape[rank - 3], third = shape[rank - 2], width = shape[rank - 1];
  return layout == Layout::BHLD ? Shape{samples, second, third, width} : Shape{samples, third, second, width};
}

Array<double> heads_first(const Array<double>& x, Layout layout, Index heads) {
  const Shape shape = *heads_shape(x.shape(), layout, heads);
  const bool in_place = layout == Layout::BHLD || shape[1] == 1;
  return in_place ? x.reshape(shape) : exchanged(x, shape[0], shape[2], shape[1], shape[3]);
}

Array<double> transposed(const Array<double>& x) {
  const int rank = x.rank();
  const Index m = x.dim(-2), n = x.dim(-1);
  return exchanged(x, product(x.shape(), 0, rank - 2), m, n, 1)
      .reshape(x.shape().with(rank - 2, n).with(rank - 1, m));
}

Array<double> slice(const Array<double>& x, int axis, Index first, Index last) {
  const Index outer = product(x.shape(), 0, axis), inner = product(x.shape(), axis + 1, x.rank());
  auto y = Array<double>::uninitialized(x.shape().with(axis, last - first));
  double* to = y.mutable_values().data();
  for (Index i = 0; i < outer; ++i) {
    const double* from = x.data() + (i * x.dim(axis) + first) * inner;
    to = std::copy_n(from, (last - first) * inner, to);
  }
  return y;
}

Array<double> repeated(const Array<double>& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  auto y = Array<double>::uninitialized(shape);
  double* const to = y.mutable_values().data();
  const Strides stride(x.shape(), shape);
  Index at[max_rank] = {};
  for (Index n = 0; n < y.size(); ++n) {
    Index from = 0;
    for (int axis = 0; axis < shape.rank(); ++axis) from += at[axis] * stride[axis];
    to[n] = x.data()[from];
    for (int axis = shape.rank() - 1; axis >= 0 && ++at[axis] == shape[axis]; --axis) at[axis] = 0;
  }
  return y;
}

Array<double> unpacked(const Array<double>& x, const std::vector<Index>& starts, double fill) {
  const Index samples = static_cast<Index>(starts.size()) - 1, inner = product(x.shape(), 1, x.rank());
  Index longest = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) longest = std::max(longest, starts[i] - starts[i - 1]);
  Array<double> y = Array<double>::full(Shape{samples}.followed_by(x.shape().with(0, longest)), fill);
  double* const to = y.mutable_values().data();
  for (Index b = 0; b < samples; ++b) {
    const Index first = starts[static_cast<std::size_t>(b)], last = starts[static_cast<std::size_t>(b) + 1];
    std::copy_n(x.data() + first * inner, (last - first) * inner, to + b * longest * inner);
  }
  return y;
}

}  // namespace tapehead::check
