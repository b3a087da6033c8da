#pragma once
// SGD, Adam and AdamW: what optimizers share, and a rule each for the elements of a parameter.

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tapehead/nn/model.h>

namespace tapehead {

// What an optimizer has gathered: how many steps it took, and the arrays that it keeps beside each parameter,
// named "layers.0.w_query.mean", in the order of for_each_parameter. Options are not part of it.
template <std::floating_point T>
struct OptimizerState {
  Index steps = 0;
  std::vector<std::pair<std::string, Array<T>>> arrays;
};

// What updates the parameters of a model. A rule of one's own derives from it, names the arrays that it keeps
// beside each parameter (zeros at first), and says in `update` what a step does to elements.
template <std::floating_point T>
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  double rate() const { return rate_; }
  void set_rate(double rate);             // throws DomainError unless finite and at least 0
  Index steps() const { return steps_; }  // taken so far

  // One step on the parameters of a model, gradients in the order of for_each_parameter. A parameter whose
  // storage nobody else holds (no tape, no copy of the model) is updated in place. Throws ShapeError when a
  // gradient, or what is kept, has not the shape of its parameter, LogicError for another number of them;
  // nothing has changed then.
  template <class Model>
  void step(Model& model, const std::vector<Array<T>>& gradients) {
    std::vector<Var<T>*> parameters;
    for_each_parameter(model, [&](const std::string& name, Var<T>& parameter) {
      require_fit(parameters.size(), name, parameter.shape(), gradients);
      parameters.push_back(&parameter);
    });
    require_counts(parameters.size(), gradients);
    prepare(model);
    step_on(parameters, gradients);
  }

  // Makes what is kept beside the parameters of this model ahead of the first step, which does it otherwise:
  // a training step does so before its forward pass, lest it sits on memory that the next one needs.
  template <class Model>
  void prepare(const Model& model) {
    if (kept_.empty()) make_kept(kept_of(model));
  }

  // What is needed to go on from here as if never interrupted, given the model and the options as well. Holds
  // the arrays without a copy; the next step leaves them as they are. Throws LogicError or ShapeError when
  // the steps were taken on another model.
  template <class Model>
  OptimizerState<T> state(const Model& model) const {
    return state_of(kept_of(model));
  }

  // Goes on from a state. Its arrays are found by their names, in any order. Throws LogicError that lists all
  // names that are missing, unexpected or there twice, ShapeError for an array that has not the shape of its
  // parameter, DomainError for a negative number of steps; nothing has changed then.
  template <class Model>
  void load(const Model& model, const OptimizerState<T>& state) {
    load_kept(kept_of(model), state);
  }

 protected:
  static constexpr std::size_t most_kept = 4;

  // Some elements of one parameter with what belongs to them; all spans are of one length, and none overlap.
  struct Elements {
    std::span<T> parameter;
    std::span<const T> gradient;
    std::array<std::span<T>, most_kept> kept;  // in the order of the names
  };

  // Throws DomainError for a rate that set_rate refuses, LogicError for more than `most_kept` names.
  Optimizer(std::string name, double rate, std::vector<std::string> kept);
  Optimizer(const Optimizer&) = default;
  Optimizer& operator=(const Optimizer&) = default;

  // steps() counts the current step already. Called from several threads at once, for other elements.
  virtual void update(const Elements& x) const = 0;

 private:
  using Kept = std::vector<std::pair<std::string, Shape>>;

  template <class Model>
  Kept kept_of(const Model& model) const {
    Kept list;
    for_each_parameter(model, [&](const std::string& name, const Var<T>& parameter) {
      for (const std::string& kept : kept_names_) list.emplace_back(name + "." + kept, parameter.shape());
    });
    return list;
  }
  void require_fit(std::size_t i, const std::string& name, const Shape& shape,
                   const std::vector<Array<T>>& gradients) const;
  void require_counts(std::size_t parameters, const std::vector<Array<T>>& gradients) const;
  void make_kept(const Kept& names_and_shapes);
  void step_on(const std::vector<Var<T>*>& parameters, const std::vector<Array<T>>& gradients);
  void update_one(Var<T>& parameter, const Array<T>& gradient, std::span<Array<T>> kept) const;
  OptimizerState<T> state_of(const Kept& expected) const;
  void load_kept(const Kept& expected, const OptimizerState<T>& state);

  std::string name_;
  double rate_;
  std::vector<std::string> kept_names_;
  Index steps_ = 0;
  std::vector<Array<T>>
      kept_;  // all of the first parameter, all of the second, ...; none before the first step
};

// d = g + decay p      b = momentum b + d      p = p - rate b, or p - rate (d + momentum b) by Nesterov's
// rule Keeps "velocity", b, when there is a momentum. The numbers of PyTorch's SGD with dampening 0. Polyak,
// "Some methods of speeding up the convergence of iteration methods", 1964; Sutskever, Martens, Dahl and
// Hinton, "On the importance of initialization and momentum in deep learning", 2013, section 2.
template <std::floating_point T>
class Sgd : public Optimizer<T> {
 public:
  struct Options {
    double rate = 1e-3;
    double momentum = 0;
    bool nesterov = false;
    double decay = 0;
  };

  Sgd() : Sgd(Options{}) {}
  // Throws DomainError, naming the option, unless rate, momentum and decay are finite and at least 0, and for
  // Nesterov's rule without a momentum.
  explicit Sgd(const Options& options);

 private:
  void update(const typename Optimizer<T>::Elements& x) const override;

  Options options_;
};

// d = g + decay p      m = beta1 m + (1 - beta1) d      v = beta2 v + (1 - beta2) d^2
// p = p - rate m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)      in step t = 1, 2, ...
// Keeps "mean", m, and "square", v. The decay is part of the gradient, and so divided by the root like it:
// see AdamW for the other. The numbers of PyTorch's Adam. Kingma and Ba, "Adam", 2015, algorithm 1.
template <std::floating_point T>
class Adam : public Optimizer<T> {
 public:
  struct Options {
    double rate = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;
    double eps = 1e-8;
    double decay = 0;
  };

  Adam() : Adam(Options{}) {}
  // Throws DomainError, naming the option, unless both betas are in [0, 1), the others finite and at least 0.
  explicit Adam(const Options& options) : Adam("Adam", options, false) {}

 protected:
  Adam(std::string name, const Options& options, bool decoupled);

 private:
  void update(const typename Optimizer<T>::Elements& x) const override;

  Options options_;
  bool decoupled_;
};

// Adam with d = g, and p = p - rate decay p ahead of the rest: the decay is apart from the gradient.
// The numbers of PyTorch's AdamW. Loshchilov and Hutter, "Decoupled weight decay regularization", 2019,
// algorithm 2.
template <std::floating_point T>
class AdamW : public Adam<T> {
 public:
  struct Options {
    double rate = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;
    double eps = 1e-8;
    double decay = 1e-2;
  };

  AdamW() : AdamW(Options{}) {}
  // Throws as Adam does.
  explicit AdamW(const Options& o) : Adam<T>("AdamW", {o.rate, o.beta1, o.beta2, o.eps, o.decay}, true) {}
};

}  // namespace tapehead
