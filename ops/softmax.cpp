#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/kernels/rows.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

namespace tapehead {
namespace {

// kernel(x..., rows, n, y) on rows along the last axis.
template <class T, class Kernel, class... Rest>
Array<T> by_rows(Kernel kernel, const Var<T>& x, const Rest&... rest) {
  auto y = Array<T>::uninitialized(x.shape());
  const Index n = x.dim(-1);
  kernel(x.value().data(), rest.value().data()..., n == 0 ? 0 : x.size() / n, n, y.mutable_values().data());
  return y;
}

template <class T>
Var<T> softmax_of_rows(const Var<T>& s) {
  return record("softmax", by_rows(kernels::softmax<T>, s),
                edge(s, [](const Var<T>& p, const Var<T>& dp) -> Var<T> {
                  if (!is_recording(p)) return by_rows(kernels::softmax_vjp<T>, p, dp);
                  return p * (dp - sum(dp * p, -1, Keep::yes));
                }));
}

template <class T>
Var<T> log_softmax_of_rows(const Var<T>& s) {
  return record("log_softmax", by_rows(kernels::log_softmax<T>, s),
                edge(s, [](const Var<T>& y, const Var<T>& dy) -> Var<T> {
                  if (!is_recording(y)) return by_rows(kernels::log_softmax_vjp<T>, y, dy);
                  return dy - exp(y) * sum(dy, -1, Keep::yes);
                }));
}

template <class T, class OfRows>
Var<T> along(std::string_view op, const Var<T>& x, int axis, OfRows of_rows) {
  axis = axis_of(op, x.shape(), axis);
  if (axis == x.rank() - 1) return of_rows(x);
  return transpose(of_rows(transpose(x, axis, -1)), axis, -1);
}

}  // namespace

template <std::floating_point T>
Var<T> softmax(const Var<T>& s, int axis) {
  return along("softmax", s, axis, softmax_of_rows<T>);
}

template <std::floating_point T>
Var<T> log_softmax(const Var<T>& s, int axis) {
  return along("log_softmax", s, axis, log_softmax_of_rows<T>);
}

template Var<float> softmax(const Var<float>&, int);
template Var<double> softmax(const Var<double>&, int);
template Var<float> log_softmax(const Var<float>&, int);
template Var<double> log_softmax(const Var<double>&, int);

}  // namespace tapehead
