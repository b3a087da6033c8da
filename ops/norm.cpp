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

// A call and what its rule keeps of it.
template <class T>
struct NormCall {
  Var<T> x, gain, bias;  // bias is undefined for rms_norm
  double eps;
  Array<double> moments{};

  Index rows() const { return gain.size() == 0 ? 0 : x.size() / gain.size(); }
  kernels::NormRows<T> problem() const {
    const bool centred = bias.value().defined();
    return {x.value().data(), gain.value().data(), bias.value().data(), gain.size(), eps, centred};
  }
  Array<T> value() {
    auto y = Array<T>::uninitialized(x.shape());
    moments = Array<double>::uninitialized({rows(), 2});
    kernels::normalise(problem(), rows(), moments.mutable_values().data(), y.mutable_values().data());
    return y;
  }
};

template <class T>
using ThreeGradients = std::array<Var<T>, 3>;

template <class T>
ThreeGradients<T> values_by_kernel(const NormCall<T>& call, const Var<T>& dy, Wanted wanted) {
  std::array<Array<T>, 3> d;
  auto room = [&](std::size_t i, const Shape& shape) -> T* {
    if (i >= wanted.size() || !wanted[i]) return nullptr;
    d[i] = Array<T>::uninitialized(shape);
    return d[i].mutable_values().data();
  };
  T* const dx = room(0, call.x.shape());
  T* const dgain = room(1, call.gain.shape());
  T* const dbias = room(2, call.gain.shape());
  kernels::normalise_vjp(call.problem(), call.moments.data(), dy.value().data(), call.rows(), dx, dgain,
                         dbias);
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
ThreeGradients<T> recorded_by_formula(const NormCall<T>& call, const Var<T>& dy) {
  const auto& [x, gain, bias, eps, moments] = call;
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
  NormCall<T> call{x, gain, bias, eps};
  Array<T> y = call.value();
  const std::array<const Var<T>*, 3> inputs = {&x, &gain, &bias};
  return record_joint("layer_norm", std::move(y), inputs, [call](const Var<T>& dy, Wanted wanted) {
    return is_recording(call.x, call.gain, call.bias) ? recorded_by_formula(call, dy)
                                                      : values_by_kernel(call, dy, wanted);
  });
}

namespace {

template <class T>
std::array<Var<T>, 2> rms_recorded_by_formula(const NormCall<T>& call, const Var<T>& dy) {
  const auto& [x, gain, bias, eps, moments] = call;
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
  NormCall<T> call{x, gain, {}, eps};
  Array<T> y = call.value();
  const std::array<const Var<T>*, 2> inputs = {&x, &gain};
  return record_joint("rms_norm", std::move(y), inputs, [call](const Var<T>& dy, Wanted wanted) {
    if (is_recording(call.x, call.gain)) return rms_recorded_by_formula(call, dy);
    const ThreeGradients<T> d = values_by_kernel(call, dy, wanted);
    return std::array{d[0], d[1]};
  });
}

template Var<float> layer_norm(const Var<float>&, const Var<float>&, const Var<float>&, double);
template Var<double> layer_norm(const Var<double>&, const Var<double>&, const Var<double>&, double);
template Var<float> rms_norm(const Var<float>&, const Var<float>&, double);
template Var<double> rms_norm(const Var<double>&, const Var<double>&, double);

}  // namespace tapehead
