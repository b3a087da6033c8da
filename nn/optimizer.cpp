#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/nn/optimizer.h>

#include <cmath>

namespace tapehead {

template <std::floating_point T>
void Adam<T>::require_fit(std::size_t i, const std::string& name, const Shape& shape,
                          const std::vector<Array<T>>& gradients) const {
  if (i < gradients.size() && gradients[i].shape() != shape) {
    throw ShapeError("Adam", "the gradient of " + name + " has another shape",
                     {{"parameter", shape}, {"gradient", gradients[i].shape()}});
  }
  if (i < mean_.size() && mean_[i].shape() != shape) {
    throw ShapeError("Adam", "the state of " + name + " is of another model",
                     {{"parameter", shape}, {"state", mean_[i].shape()}});
  }
}

template <std::floating_point T>
void Adam<T>::begin_step(std::size_t parameters, std::size_t gradients) {
  if (gradients != parameters || (steps_ > 0 && parameters != mean_.size())) {
    throw LogicError("Adam", std::to_string(parameters) + " parameters, " + std::to_string(gradients) +
                                 " gradients, state for " + std::to_string(mean_.size()));
  }
  mean_.resize(parameters);
  square_.resize(parameters);
  ++steps_;
}

template <std::floating_point T>
void Adam<T>::update(std::size_t i, Var<T>& parameter, const Array<T>& gradient) {
  if (!mean_[i].defined()) {
    mean_[i] = Array<T>::zeros(parameter.shape());
    square_[i] = Array<T>::zeros(parameter.shape());
  }
  Array<T> value = parameter.value();
  parameter = Var<T>();  // gives up its share, so that `value` may be the only owner
  T* const p = value.mutable_values().data();
  T* const m = mean_[i].mutable_values().data();
  T* const v = square_[i].mutable_values().data();
  const T* const g = gradient.data();
  const auto t = static_cast<double>(steps_);
  const auto beta1 = static_cast<T>(options_.beta1), beta2 = static_cast<T>(options_.beta2);
  const T rest1 = T(1 - options_.beta1), rest2 = T(1 - options_.beta2);
  const auto kept = static_cast<T>(1 - options_.rate * options_.decay);
  const auto step = static_cast<T>(options_.rate / (1 - std::pow(options_.beta1, t)));
  const auto root = static_cast<T>(std::sqrt(1 - std::pow(options_.beta2, t)));
  const auto eps = static_cast<T>(options_.eps);
  parallel_for(value.size(), elementwise_grain, [&](Index begin, Index end) {
    for (Index k = begin; k < end; ++k) {
      m[k] = beta1 * m[k] + rest1 * g[k];
      v[k] = beta2 * v[k] + rest2 * g[k] * g[k];
      p[k] = kept * p[k] - step * m[k] / (std::sqrt(v[k]) / root + eps);
    }
  });
  parameter = Var<T>(std::move(value));
}

template class Adam<float>;
template class Adam<double>;

}  // namespace tapehead
