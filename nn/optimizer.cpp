#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/nn/optimizer.h>
#include <tapehead/nn/option_checks.h>
#include <tapehead/ops/kernels/processor.h>

#include <cmath>
#include <map>

namespace tapehead {
namespace {

// The only handle of a parameter's value, so that it can be written in place; gives it back at the end.
template <class T>
class Borrowed {
 public:
  explicit Borrowed(Var<T>& parameter) : parameter_(parameter), value_(std::move(parameter).value()) {}
  ~Borrowed() { parameter_ = Var<T>(std::move(value_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  std::span<T> values() { return value_.mutable_values(); }

 private:
  Var<T>& parameter_;
  Array<T> value_;
};

// Names joined to " WHAT a, b, c", nothing for none.
std::string listed(std::string_view what, const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) {
    text.append(text.empty() ? std::string(" ").append(what).append(" ") : ", ").append(name);
  }
  return text;
}

// Arrays by their names. Taking one that is not there, twice or never is remembered.
template <class T>
class ByName {
 public:
  explicit ByName(const std::vector<std::pair<std::string, Array<T>>>& arrays) {
    for (const auto& [name, array] : arrays) {
      if (!arrays_.emplace(name, &array).second) repeated_.push_back(name);
    }
  }
  Array<T> take(const std::string& name) {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) return missing_.push_back(name), Array<T>();
    const Array<T> array = *found->second;
    arrays_.erase(found);
    return array;
  }
  // What is wrong, empty for nothing.
  std::string complaint() const {
    std::vector<std::string_view> unexpected;
    for (const auto& entry : arrays_) unexpected.push_back(entry.first);
    std::string text;
    for (const std::string& part :
         {listed("missing", missing_), listed("unexpected", unexpected), listed("twice", repeated_)}) {
      if (!part.empty()) text.append(text.empty() ? "" : ";").append(part);
    }
    return text;
  }

 private:
  std::map<std::string_view, const Array<T>*> arrays_;
  std::vector<std::string_view> missing_, repeated_;
};

}  // namespace

// ---- What is shared

template <std::floating_point T>
Optimizer<T>::Optimizer(std::string name, double rate, std::vector<std::string> kept)
    : name_(std::move(name)), kept_names_(std::move(kept)) {
  if (kept_names_.size() > most_kept) {
    throw LogicError(name_, std::to_string(kept_names_.size()) + " arrays kept beside a parameter, at most " +
                                std::to_string(most_kept) + " can be");
  }
  set_rate(rate);
}

template <std::floating_point T>
void Optimizer<T>::set_rate(double rate) {
  detail::require_not_negative(name_, "rate", rate);
  rate_ = rate;
}

template <std::floating_point T>
void Optimizer<T>::require_fit(std::size_t i, const std::string& name, const Shape& shape,
                               const std::vector<Array<T>>& gradients) const {
  if (i < gradients.size() && gradients[i].shape() != shape) {
    throw ShapeError(name_, "the gradient of " + name + " has another shape",
                     {{"parameter", shape}, {"gradient", gradients[i].shape()}});
  }
  for (std::size_t k = 0; k < kept_names_.size(); ++k) {
    const std::size_t at = i * kept_names_.size() + k;
    if (at < kept_.size() && kept_[at].shape() != shape) {
      throw ShapeError(name_, "the state of " + name + " is of another model",
                       {{"parameter", shape}, {kept_names_[k], kept_[at].shape()}});
    }
  }
}

template <std::floating_point T>
void Optimizer<T>::make_kept(const Kept& names_and_shapes) {
  std::vector<Array<T>> zeros;
  for (const auto& [name, shape] : names_and_shapes) zeros.push_back(Array<T>::zeros(shape));
  kept_ = std::move(zeros);
}

template <std::floating_point T>
void Optimizer<T>::require_counts(std::size_t count, const std::vector<Array<T>>& gradients) const {
  const std::size_t kept = kept_names_.size();
  if (gradients.size() != count || (!kept_.empty() && kept_.size() != count * kept)) {
    throw LogicError(name_, std::to_string(count) + " parameters, " + std::to_string(gradients.size()) +
                                " gradients, " + std::to_string(kept_.size()) + " arrays of state");
  }
}

template <std::floating_point T>
void Optimizer<T>::step_on(const std::vector<Var<T>*>& parameters, const std::vector<Array<T>>& gradients) {
  const std::size_t kept = kept_names_.size();
  ++steps_;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    update_one(*parameters[i], gradients[i], std::span(kept_).subspan(i * kept, kept));
  }
}

template <std::floating_point T>
void Optimizer<T>::update_one(Var<T>& parameter, const Array<T>& gradient, std::span<Array<T>> kept) const {
  Borrowed<T> value(parameter);
  Elements all{value.values(), gradient.values(), {}};
  for (std::size_t k = 0; k < kept.size(); ++k) all.kept[k] = kept[k].mutable_values();
  parallel_for(gradient.size(), elementwise_grain, [&](Index begin, Index end) {
    const auto from = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
    Elements piece{all.parameter.subspan(from, count), all.gradient.subspan(from, count), {}};
    for (std::size_t k = 0; k < kept.size(); ++k) piece.kept[k] = all.kept[k].subspan(from, count);
    update(piece);
  });
}

template <std::floating_point T>
OptimizerState<T> Optimizer<T>::state_of(const Kept& expected) const {
  if (!kept_.empty() && kept_.size() != expected.size()) {
    throw LogicError(name_, "the model has room for " + std::to_string(expected.size()) +
                                " arrays of state, " + std::to_string(kept_.size()) + " are there");
  }
  OptimizerState<T> state{steps_, {}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, shape] = expected[i];
    if (!kept_.empty() && kept_[i].shape() != shape) {
      throw ShapeError(name_, name + " is of another model",
                       {{"parameter", shape}, {"state", kept_[i].shape()}});
    }
    state.arrays.emplace_back(name, kept_.empty() ? Array<T>::zeros(shape) : kept_[i]);
  }
  return state;
}

template <std::floating_point T>
void Optimizer<T>::load_kept(const Kept& expected, const OptimizerState<T>& state) {
  detail::require_option(state.steps >= 0, name_, "steps", state.steps, "at least 0");
  ByName<T> given(state.arrays);
  std::vector<Array<T>> arrays;
  for (const auto& entry : expected) arrays.push_back(given.take(entry.first));
  const std::string complaint = given.complaint();
  if (!complaint.empty()) throw LogicError(name_, "the state is of another model:" + complaint);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const auto& [name, shape] = expected[i];
    if (arrays[i].shape() != shape) {
      throw ShapeError(name_, name + " is of another model",
                       {{"parameter", shape}, {"state", arrays[i].shape()}});
    }
  }
  kept_ = std::move(arrays);
  steps_ = state.steps;
}

// ---- SGD

namespace {

template <class T>
void descend(std::size_t n, T* __restrict p, const T* __restrict g, T rate, T decay) {
  for (std::size_t k = 0; k < n; ++k) p[k] -= rate * (g[k] + decay * p[k]);
}

template <class T>
void descend(std::size_t n, T* __restrict p, const T* __restrict g, T* __restrict b, T rate, T decay,
             T momentum, bool nesterov) {
  for (std::size_t k = 0; k < n; ++k) {
    const T d = g[k] + decay * p[k];
    b[k] = momentum * b[k] + d;
    p[k] -= rate * (nesterov ? d + momentum * b[k] : b[k]);
  }
}

std::vector<std::string> kept_for(double momentum) {
  if (momentum == 0) return {};
  return {"velocity"};
}

}  // namespace

template <std::floating_point T>
Sgd<T>::Sgd(const Options& options)
    : Optimizer<T>("Sgd", options.rate, kept_for(options.momentum)), options_(options) {
  detail::require_not_negative("Sgd", "momentum", options.momentum);
  detail::require_not_negative("Sgd", "decay", options.decay);
  detail::require_option(!options.nesterov || options.momentum > 0, "Sgd", "momentum", options.momentum,
                         "above 0 for Nesterov's rule");
}

template <std::floating_point T>
void Sgd<T>::update(const typename Optimizer<T>::Elements& x) const {
  const std::size_t n = x.parameter.size();
  T* const p = x.parameter.data();
  const T* const g = x.gradient.data();
  const auto rate = static_cast<T>(this->rate()), decay = static_cast<T>(options_.decay);
  if (options_.momentum == 0) return descend(n, p, g, rate, decay);
  descend(n, p, g, x.kept[0].data(), rate, decay, static_cast<T>(options_.momentum), options_.nesterov);
}

// ---- Adam and AdamW

template <std::floating_point T>
Adam<T>::Adam(std::string name, const Options& options, bool decoupled)
    : Optimizer<T>(name, options.rate, {"mean", "square"}), options_(options), decoupled_(decoupled) {
  detail::require_fraction(name, "beta1", options.beta1);
  detail::require_fraction(name, "beta2", options.beta2);
  detail::require_not_negative(name, "eps", options.eps);
  detail::require_not_negative(name, "decay", options.decay);
}

template <std::floating_point T>
void Adam<T>::update(const typename Optimizer<T>::Elements& x) const {
  const auto t = static_cast<double>(this->steps());
  const double rate = this->rate(), beta1 = options_.beta1, beta2 = options_.beta2;
  kernels::AdamStep<T> s;
  s.beta1 = static_cast<T>(beta1), s.rest1 = static_cast<T>(1 - beta1);
  s.beta2 = static_cast<T>(beta2), s.rest2 = static_cast<T>(1 - beta2);
  s.decay = static_cast<T>(decoupled_ ? 0 : options_.decay);
  s.remain = static_cast<T>(decoupled_ ? 1 - rate * options_.decay : 1);
  s.rate = static_cast<T>(rate / (1 - std::pow(beta1, t)));
  s.root = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, t)));
  s.eps = static_cast<T>(options_.eps);
  kernels::vector_kernels<T>().adapt(static_cast<Index>(x.parameter.size()), x.parameter.data(),
                                     x.gradient.data(), x.kept[0].data(), x.kept[1].data(), s);
}

template class Optimizer<float>;
template class Optimizer<double>;
template class Sgd<float>;
template class Sgd<double>;
template class Adam<float>;
template class Adam<double>;
template class AdamW<float>;
template class AdamW<double>;

}  // namespace tapehead
