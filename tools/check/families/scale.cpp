#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <tools/check/families/hypotheses.h>

namespace tapehead::check {
namespace {

double root(Index n) { return std::sqrt(static_cast<double>(n)); }

Change with_scale(double scale) {
  return
      [scale](Formula& f) { f.contract = after(f.contract, [scale](Work& w) { w.contract.scale = scale; }); };
}

// ---- z = t' q.k

class Scales {
 public:
  explicit Scales(const Call& call) : call_(call), right_(call.contract.scale) {}

  void add(std::string_view id, std::string_view variant, double scale) {
    if (std::abs(scale / right_ - 1) < 1e-12) return;
    found_.push_back(hypothesis(id, variant, with_scale(scale), numbers(scale)));
  }
  void add_fitted() {
    const double starts[] = {right_ / 8,     right_ / 4,     right_ / 2, right_ / 1.3,
                             right_ * 0.999, right_ * 1.001, right_ * 2, right_ * 1.3,
                             right_ * 4,     right_ * 8,     -right_};
    const auto found = fit(call_, with_scale, starts, Part::results, true);
    if (!found) return;
    found_.push_back(
        hypothesis("scale-custom-ignored", "", with_scale(found->number), numbers(found->number)));
    found_.back().generic = true;
  }
  std::vector<Hypothesis> take() { return std::move(found_); }

 private:
  std::map<std::string, double> numbers(double scale) const {
    return {{"scale", scale}, {"expected", right_}, {"ratio", scale / right_}};
  }
  const Call& call_;
  double right_;
  std::vector<Hypothesis> found_;
};

// The next widths of kernels: a power of two, or a multiple of 8, 16 or 32.
std::set<Index> padded_widths(Index width) {
  std::set<Index> result;
  Index power = 1;
  while (power < width) power *= 2;
  result.insert(power);
  for (const Index unit : {8, 16, 32}) result.insert((width + unit - 1) / unit * unit);
  result.erase(width);
  return result;
}

std::vector<Hypothesis> wrong_scales(const Call& call) {
  Scales scales(call);
  const double by_default = 1 / root(call.D);
  const bool custom = std::abs(call.contract.scale / by_default - 1) > 1e-6;
  scales.add("scale-omitted", "", 1);
  scales.add("scale-one-over-d", "", 1 / static_cast<double>(call.D));
  scales.add("scale-inverted", "", root(call.D));
  if (custom) {
    scales.add("scale-inverted", "", 1 / call.contract.scale);
    scales.add("scale-custom-ignored", "", by_default);
  }
  scales.add("scale-wrong-dim", "model", 1 / root(call.H * call.D));
  scales.add("scale-wrong-dim", "heads", 1 / root(call.H));
  scales.add("scale-wrong-dim", "value", 1 / root(call.E));
  for (const Index width : padded_widths(call.D)) scales.add("scale-padded-dim", "", 1 / root(width));
  scales.add("scale-custom-ignored", "", call.contract.scale * std::log(2.0));  // as powers of two do
  scales.add_fitted();
  return scales.take();
}

// ---- p = 2^s / sum 2^s, the sink among them      lambda as a sum of either base, or with m as it is

enum class Slope { of_two, of_e };
enum class Lambda { base_e, base_2, mixed };

void weigh_in_powers_of_two(Work& work, const Step& right, Lambda lambda) {
  const Numbers scores = work.scores;
  const Tensors inputs = work.inputs;
  const double ln2 = std::log(2.0);
  for (double& s : work.scores.at) s *= ln2;
  if (find(inputs, "sink")) {
    for (double& s : work.inputs["sink"].mutable_values()) s *= ln2;
  }
  right(work);
  work.scores = scores;
  work.inputs = inputs;
  if (lambda == Lambda::base_2) {
    for (double& x : work.log_sum_exp.at) x /= ln2;
  }
  if (lambda != Lambda::mixed) return;
  for_each_row(*work.call, [&](Index b, Index h, Index i) {
    double largest = -std::numeric_limits<double>::infinity();
    for (Index j = 0; j < work.call->S; ++j) {
      if (work.sees(b, h, i, j)) largest = std::max(largest, scores(b, h, i, j));
    }
    if (std::isfinite(largest)) work.log_sum_exp(b, h, i) += largest * (1 - ln2);
  });
}

Change powers_of_two(Slope slope, Lambda lambda) {
  return [slope, lambda](Formula& f) {
    f.softmax = [right = f.softmax, lambda](Work& w) { weigh_in_powers_of_two(w, right, lambda); };
    if (slope == Slope::of_e) return;
    f.softmax_backward = after(f.softmax_backward, [](Work& w) {
      for (double& d : w.dscores.at) d *= std::log(2.0);
      for (double& d : w.dsink) d *= std::log(2.0);
    });
  };
}

// ---- biases before the scale

// What is added to scores with the scale on it: t (q.k + b). An additive mask and slopes may be meant, too.
Change scaled_bias(std::string name) {
  return [name](Formula& f) {
    const auto times = [name](Work& w) {
      if (!find(w.inputs, name)) return;  // another mistake left it out
      for (double& x : w.inputs[name].mutable_values()) x *= w.contract.scale;
    };
    f.bias = within(times, f.bias);
    f.gradients = after(f.gradients, [name](Work& w) {
      if (!find(w.results, "grad_" + name)) return;
      for (double& x : w.results["grad_" + name].mutable_values()) x *= w.contract.scale;
    });
  };
}

Change other_order() {
  return [](Formula& f) {
    f.contract =
        after(f.contract, [](Work& w) { w.contract.bias_before_scale = !w.contract.bias_before_scale; });
  };
}

std::vector<Hypothesis> bias_orders(const Call& call) {
  std::vector<Hypothesis> result;
  const double t = call.contract.scale;
  const auto add = [&](Change change, double factor) {
    result.push_back(
        hypothesis("bias-before-scale", "", std::move(change), {{"factor", factor}, {"expected", 1}}));
  };
  if (find(call.inputs, "bias")) add(other_order(), call.contract.bias_before_scale ? 1 / t : t);
  if (call.mask_is_additive && find(call.inputs, "mask")) add(scaled_bias("mask"), t);
  if (find(call.inputs, "slopes")) add(scaled_bias("slopes"), t);
  return result;
}

// ---- caps

Change with_cap(double cap) {
  return [cap](Formula& f) { f.contract = after(f.contract, [cap](Work& w) { w.contract.softcap = cap; }); };
}

// u = cap of what is in the scores, with its slope; what a row does not see is -c when `blocked_too`.
Change capped_last(bool blocked_too) {
  return [blocked_too](Formula& f) {
    f.cap = [](Work& w) { w.capped = w.scaled; };
    f.visibility = after(f.visibility, [blocked_too](Work& w) {
      const double c = w.contract.softcap;
      for (std::size_t n = 0; n < w.scores.at.size(); ++n) {
        w.capped.at[n] = w.scores.at[n];
        w.scores.at[n] = c * std::tanh(w.scores.at[n] / c);
        if (!blocked_too || w.visible[n]) continue;
        w.scores.at[n] = -c;
        w.capped.at[n] = -std::numeric_limits<double>::infinity();
      }
      if (blocked_too) w.visible.assign(w.visible.size(), 1);
    });
    f.cap_backward = [](Work& w) {
      for (std::size_t n = 0; n < w.dscores.at.size(); ++n) {
        const double t = std::tanh(w.capped.at[n] / w.contract.softcap);
        w.dscores.at[n] *= 1 - t * t;
      }
      w.dcapped = w.dscores;
    };
  };
}

// Blocked scores are -c, and a bias is added after that.
Change capped_after_mask_before_bias() {
  return [](Formula& f) {
    f.visibility = after(f.visibility, [](Work& w) {
      for (std::size_t n = 0; n < w.scores.at.size(); ++n) {
        if (w.visible[n]) continue;
        const double bias = w.scores.at[n] - w.capped.at[n];
        w.scores.at[n] = -w.contract.softcap + (std::isfinite(bias) ? bias : 0);
        w.scaled.at[n] = -std::numeric_limits<double>::infinity();
      }
      w.visible.assign(w.visible.size(), 1);
    });
  };
}

// u = t c tanh(q.k / c)
Change capped_before_scale() {
  return [](Formula& f) {
    f.cap = [](Work& w) {
      const double c = w.contract.softcap;
      w.capped = w.products;
      for (double& u : w.capped.at) u = w.contract.scale * c * std::tanh(u / c);
    };
    f.cap_backward = [](Work& w) {
      w.dcapped = w.dscores;
      for (std::size_t n = 0; n < w.dcapped.at.size(); ++n) {
        const double t = std::tanh(w.products.at[n] / w.contract.softcap);
        w.dcapped.at[n] *= 1 - t * t;
      }
    };
  };
}

// u = z tanh(z / c)
Change unbounded() {
  return [](Formula& f) {
    f.cap = [](Work& w) {
      w.capped = w.scaled;
      for (double& u : w.capped.at) u *= std::tanh(u / w.contract.softcap);
    };
    f.cap_backward = [](Work& w) {
      w.dcapped = w.dscores;
      for (std::size_t n = 0; n < w.dcapped.at.size(); ++n) {
        const double z = w.scaled.at[n] / w.contract.softcap, t = std::tanh(z);
        w.dcapped.at[n] *= t + z * (1 - t * t);
      }
    };
  };
}

void add_fitted_cap(const Call& call, std::vector<Hypothesis>& to) {
  const double c = call.contract.softcap;
  const double starts[] = {c / 4, c / 2, c / 1.3, c * 1.3, c * 2, c * 4};
  const auto found = fit(call, with_cap, starts, Part::results, true);
  if (!found || found->number <= 0) return;
  to.push_back(hypothesis("softcap-omitted", "", with_cap(found->number),
                          {{"softcap", found->number}, {"expected", c}}));
  to.back().generic = true;
}

std::vector<Hypothesis> wrong_caps(const Call& call) {
  if (call.contract.softcap == 0) return {};
  std::vector<Hypothesis> result{
      hypothesis("softcap-omitted", "", with_cap(0)),
      hypothesis("softcap-after-mask", "", capped_last(true)),
      hypothesis("softcap-after-mask", "", capped_after_mask_before_bias()),
      hypothesis("softcap-order", "after-bias", capped_last(false)),
      hypothesis("softcap-order", "before-scale", capped_before_scale()),
      hypothesis("softcap-order", "wrong-form", unbounded()),
  };
  add_fitted_cap(call, result);
  return result;
}

}  // namespace

std::vector<Hypothesis> scale_mistakes(const Call& call) {
  std::vector<Hypothesis> result = wrong_scales(call);
  const auto append = [&](std::vector<Hypothesis> more) {
    std::move(more.begin(), more.end(), std::back_inserter(result));
  };
  for (const Slope slope : {Slope::of_two, Slope::of_e}) {
    for (const Lambda lambda : {Lambda::base_e, Lambda::base_2, Lambda::mixed}) {
      result.push_back(hypothesis("scale-exp2-without-log2e", "", powers_of_two(slope, lambda),
                                  {{"ratio", std::log(2.0)}}));
    }
  }
  append(bias_orders(call));
  append(wrong_caps(call));
  return result;
}

}  // namespace tapehead::check
