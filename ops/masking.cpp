#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/kernels/zip.h>
#include <tapehead/ops/masking.h>

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
  return record("masked_fill", std::move(y),
                edge(x, [kept](const Var<T>& dy) { return masked_fill(dy, kept, 0); }));
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
template Array<bool> positive(const Array<float>&);
template Array<bool> positive(const Array<double>&);

}  // namespace tapehead
