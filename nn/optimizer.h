#pragma once
// Adam, with decoupled weight decay when asked for.

#include <vector>

#include <tapehead/nn/model.h>

namespace tapehead {

// m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2      p = p - rate decay p
// p = p - rate m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
// Kingma and Ba, "Adam", 2015; Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
template <std::floating_point T>
class Adam {
 public:
  struct Options {
    double rate = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;
    double eps = 1e-8;
    double decay = 0;
  };

  Adam() = default;
  explicit Adam(const Options& options) : options_(options) {}
  void set_rate(double rate) { options_.rate = rate; }

  // One step on the parameters of a model, gradients in the order of for_each_parameter. A parameter whose
  // storage nobody else holds (no tape, no copy of the model) is updated in place. Throws ShapeError when a
  // gradient has not the shape of its parameter, LogicError for another number of them.
  template <class Model>
  void step(Model& model, const std::vector<Array<T>>& gradients) {
    std::size_t count = 0;
    for_each_parameter(model, [&](const std::string& name, const Var<T>& parameter) {
      require_fit(count++, name, parameter.shape(), gradients);
    });
    begin_step(count, gradients.size());
    std::size_t i = 0;
    for_each_parameter(
        model, [&](const std::string&, Var<T>& parameter) { update(i, parameter, gradients[i]), ++i; });
  }

 private:
  void require_fit(std::size_t i, const std::string& name, const Shape& shape,
                   const std::vector<Array<T>>& gradients) const;
  void begin_step(std::size_t parameters, std::size_t gradients);
  void update(std::size_t i, Var<T>& parameter, const Array<T>& gradient);

  Options options_;
  Index steps_ = 0;
  std::vector<Array<T>> mean_, square_;
};

}  // namespace tapehead
