#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/kernels/zip.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/shaping.h>

namespace tapehead {

template <std::floating_point T>
Var<T> masked_fill(const Var<T>& x, const Array<bool>& kept, double fill) {
  if (!broadcasts_to(kept.shape(), x.shape())) {
    throw ShapeError("masked_fill", "kept does not broadcast to x",
                     {{"x", x.shape()}, {"kept", kept.shape()}});
  }
  auto y = Array<T>::uninitialized(x.shape());
  kernels::zip(x.value().data(), x.shape(), kept.data(), kept.shape(), y.mutable_values().data(), x.shape(),
               [fill = static_cast<T>(fill)](T value, bool keep) { return keep ? value : fill; });
  return record("masked_fill", std::move(y), Given{fill},
                edge(x, [kept](const Var<T>& dy) { return masked_fill(dy, kept, 0); }));
}

namespace {

template <class T>
Array<T> selected(const Array<bool>& condition, const Array<T>& x, const Array<T>& y, const Shape& shape) {
  auto z = Array<T>::uninitialized(shape);
  const Strides steps_c(condition.shape(), shape), steps_x(x.shape(), shape), steps_y(y.shape(), shape);
  const int outer = std::max(shape.rank() - 1, 0);
  const Index n = shape.rank() > 0 ? shape[outer] : 1;
  const Index step_c = steps_c[outer], step_x = steps_x[outer], step_y = steps_y[outer];
  T* const out = z.mutable_values().data();
  parallel_for(n == 0 ? 0 : shape.size() / n, elementwise_grain / std::max<Index>(n, 1),
               [&](Index begin, Index end) {
                 for (Index row = begin; row < end; ++row) {
                   const bool* c = condition.data();
                   const T *from_x = x.data(), *from_y = y.data();
                   Index rest = row;
                   for (int i = outer; i-- > 0; rest /= shape[i]) {
                     const Index at = rest % shape[i];
                     c += at * steps_c[i];
                     from_x += at * steps_x[i];
                     from_y += at * steps_y[i];
                   }
                   for (Index i = 0; i < n; ++i) {
                     out[row * n + i] = c[i * step_c] ? from_x[i * step_x] : from_y[i * step_y];
                   }
                 }
               });
  return z;
}

Array<bool> negation(const Array<bool>& condition) {
  auto result = Array<bool>::uninitialized(condition.shape());
  bool* out = result.mutable_values().data();
  for (const bool holds : condition.values()) *out++ = !holds;
  return result;
}

}  // namespace

template <std::floating_point T>
Var<T> where(const Array<bool>& condition, const Var<T>& x, const Var<T>& y) {
  const std::optional<Shape> of_branches = broadcast(x.shape(), y.shape());
  const std::optional<Shape> shape = of_branches ? broadcast(condition.shape(), *of_branches) : std::nullopt;
  if (!shape) {
    throw ShapeError("where", "shapes do not broadcast",
                     {{"condition", condition.shape()}, {"x", x.shape()}, {"y", y.shape()}});
  }
  return record(
      "where", selected(condition, x.value(), y.value(), *shape),
      edge(
          x, [condition](const Var<T>& dz) { return masked_fill(dz, condition, 0); }, sum_to),
      edge(
          y, [condition](const Var<T>& dz) { return masked_fill(dz, negation(condition), 0); }, sum_to));
}

template <std::floating_point T>
Array<bool> positive(const Array<T>& x) {
  auto result = Array<bool>::uninitialized(x.shape());
  const T* in = x.data();
  bool* out = result.mutable_values().data();
  parallel_for(x.size(), elementwise_grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) out[i] = in[i] > T{0};
  });
  return result;
}

template Var<float> masked_fill(const Var<float>&, const Array<bool>&, double);
template Var<double> masked_fill(const Var<double>&, const Array<bool>&, double);
template Var<float> where(const Array<bool>&, const Var<float>&, const Var<float>&);
template Var<double> where(const Array<bool>&, const Var<double>&, const Var<double>&);
template Array<bool> positive(const Array<float>&);
template Array<bool> positive(const Array<double>&);

}  // namespace tapehead
