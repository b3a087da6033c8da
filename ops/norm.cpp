#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/kernels/rows.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

namespace tapehead {
namespace {

template <class T>
using ThreeGradients = std::array<Var<T>, 3>;

template <class T>
ThreeGradients<T> values_by_kernel(const Var<T>& x, const Var<T>& gain, const Var<T>& dy, double eps,
                                   Wanted wanted) {
  const Index n = gain.size(), rows = n == 0 ? 0 : x.size() / n;
  auto partial = Array<double>::uninitialized({2 * n * kernels::layer_norm_pieces(rows)});
  std::array<Array<T>, 3> d;
  auto room = [&](std::size_t i, const Shape& shape) -> T* {
    if (!wanted[i]) return nullptr;
    d[i] = Array<T>::uninitialized(shape);
    return d[i].mutable_values().data();
  };
  T* const dx = room(0, x.shape());
  T* const dgain = room(1, gain.shape());
  T* const dbias = room(2, gain.shape());
  kernels::layer_norm_vjp(x.value().data(), gain.value().data(), dy.value().data(), eps, rows, n, dx, dgain,
                          dbias, partial.mutable_values().data());
  return {Var<T>(d[0]), Var<T>(d[1]), Var<T>(d[2])};
}

// The mean over the trailing axes that gain has.
template <class T>
auto mean_over_axes_of(const Var<T>& gain) {
  std::vector<int> trailing;
  for (int i = 1; i <= gain.rank(); ++i) trailing.push_back(-i);
  return [axes = Axes(trailing)](const Var<T>& v) { return mean(v, axes, Keep::yes); };
}

template <class T>
ThreeGradients<T> recorded_by_formula(const Var<T>& x, const Var<T>& gain, const Var<T>& dy, double eps) {
  const auto row_mean = mean_over_axes_of(gain);
  const Var<T> centred = x - row_mean(x);
  const Var<T> scale = 1.0 / sqrt(row_mean(centred * centred) + eps);
  const Var<T> u = centred * scale;
  const Var<T> du = dy * gain;
  return {(du - row_mean(du) - u * row_mean(du * u)) * scale, sum_to(dy * u, gain.shape()),
          sum_to(dy, gain.shape())};
}

}  // namespace

template <std::floating_point T>
Var<T> layer_norm(const Var<T>& x, const Var<T>& gain, const Var<T>& bias, double eps) {
  const bool fits = gain.rank() >= 1 && gain.rank() <= x.rank() &&
                    x.shape().last(gain.rank()) == gain.shape() && bias.shape() == gain.shape();
  if (!fits) {
    throw ShapeError("layer_norm", "gain and bias must have the trailing axes of x",
                     {{"x", x.shape()}, {"gain", gain.shape()}, {"bias", bias.shape()}});
  }
  const Index n = gain.size();
  auto y = Array<T>::uninitialized(x.shape());
  kernels::layer_norm(x.value().data(), gain.value().data(), bias.value().data(), eps,
                      n == 0 ? 0 : x.size() / n, n, y.mutable_values().data());
  const std::array<const Var<T>*, 3> inputs = {&x, &gain, &bias};
  return record_joint("layer_norm", std::move(y), inputs,
                      [x, gain, bias, eps](const Var<T>& dy, Wanted wanted) {
                        return is_recording(x, gain, bias) ? recorded_by_formula(x, gain, dy, eps)
                                                           : values_by_kernel(x, gain, dy, eps, wanted);
                      });
}

namespace {

template <class T>
std::array<Var<T>, 2> rms_values_by_kernel(const Var<T>& x, const Var<T>& gain, const Var<T>& dy, double eps,
                                           Wanted wanted) {
  const Index n = gain.size(), rows = n == 0 ? 0 : x.size() / n;
  auto partial = Array<double>::uninitialized({2 * n * kernels::layer_norm_pieces(rows)});
  Array<T> dx, dgain;
  if (wanted[0]) dx = Array<T>::uninitialized(x.shape());
  if (wanted[1]) dgain = Array<T>::uninitialized(gain.shape());
  kernels::rms_norm_vjp(x.value().data(), gain.value().data(), dy.value().data(), eps, rows, n,
                        wanted[0] ? dx.mutable_values().data() : nullptr,
                        wanted[1] ? dgain.mutable_values().data() : nullptr, partial.mutable_values().data());
  return {Var<T>(dx), Var<T>(dgain)};
}

template <class T>
std::array<Var<T>, 2> rms_recorded_by_formula(const Var<T>& x, const Var<T>& gain, const Var<T>& dy,
                                              double eps) {
  const auto row_mean = mean_over_axes_of(gain);
  const Var<T> scale = rsqrt(row_mean(square(x)) + eps);
  const Var<T> u = x * scale;
  const Var<T> du = dy * gain;
  return {(du - u * row_mean(du * u)) * scale, sum_to(dy * u, gain.shape())};
}

}  // namespace

template <std::floating_point T>
Var<T> rms_norm(const Var<T>& x, const Var<T>& gain, double eps) {
  if (gain.rank() < 1 || gain.rank() > x.rank() || x.shape().last(gain.rank()) != gain.shape()) {
    throw ShapeError("rms_norm", "gain must have the trailing axes of x",
                     {{"x", x.shape()}, {"gain", gain.shape()}});
  }
  const Index n = gain.size();
  auto y = Array<T>::uninitialized(x.shape());
  kernels::rms_norm(x.value().data(), gain.value().data(), eps, n == 0 ? 0 : x.size() / n, n,
                    y.mutable_values().data());
  const std::array<const Var<T>*, 2> inputs = {&x, &gain};
  return record_joint("rms_norm", std::move(y), inputs, [x, gain, eps](const Var<T>& dy, Wanted wanted) {
    return is_recording(x, gain) ? rms_recorded_by_formula(x, gain, dy, eps)
                                 : rms_values_by_kernel(x, gain, dy, eps, wanted);
  });
}

template Var<float> layer_norm(const Var<float>&, const Var<float>&, const Var<float>&, double);
template Var<double> layer_norm(const Var<double>&, const Var<double>&, const Var<double>&, double);
template Var<float> rms_norm(const Var<float>&, const Var<float>&, double);
template Var<double> rms_norm(const Var<double>&, const Var<double>&, double);

}  // namespace tapehead
