#include <tools/check/diagnosis.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <tapehead/core/errors.h>
#include <tools/check/equivalent.h>
#include <tools/check/probe.h>
#include <tools/check/sample.h>
#include <tools/check/search.h>

namespace tapehead::check {
namespace {

// What takes away this share of the residual explains it in part.
constexpr double much = 0.7;

TensorError tensor_error(const std::string& name, const Array<double>& got, const Array<double>& right,
                         const Noise& noise, const Judged& judged) {
  const Difference d = compare(got, right, noise, noise_factor, judged, name);
  const double unit = largest_finite(right);
  const auto relative = [unit](double x) { return unit > 0 ? x / unit : x; };
  TensorError e;
  e.name = name;
  e.ok = d.within;
  e.max_abs = d.max;
  e.relative = relative(d.max);
  e.plain_relative = relative(noise.max);
  const Index at = d.mismatches > 0 && d.first >= 0 ? d.first : d.worst;
  if (at >= 0) {
    e.worst = position_of(got.shape(), at);
    e.got = got.data()[at];
    e.expected = right.data()[at];
  }
  if (!d.within) e.first_bad = position_of(got.shape(), d.first >= 0 ? d.first : std::max<Index>(d.worst, 0));
  return e;
}

std::vector<Finding> findings(const Explanation& e) {
  std::vector<Finding> result;
  for (const Hypothesis& h : e.acting) {
    result.push_back({h.mistake, h.fitted, std::clamp(1 - e.left, 0.0, 1.0)});
  }
  return result;
}

bool disagrees(const Diagnosis& d, std::string_view prefix) {
  return std::any_of(d.tensors.begin(), d.tensors.end(),
                     [&](const TensorError& t) { return !t.ok && t.name.starts_with(prefix); });
}

// The number by which all of the right result is multiplied in the candidate, when that is all that is wrong.
std::optional<double> constant_factor(const Array<double>& got, const Array<double>& right,
                                      const Noise& noise, const Judged& judged, const std::string& name) {
  double along = 0, length = 0;
  for (Index n = 0; n < right.size(); ++n) {
    const double x = got.data()[n], y = right.data()[n];
    if (judged(name, n) && std::isfinite(x) && std::isfinite(y)) along += x * y, length += y * y;
  }
  if (!(length > 0)) return std::nullopt;
  const double factor = along / length, size = std::max(std::abs(factor), 1.0);
  Array<double> times = right;
  for (double& y : times.mutable_values()) y *= factor;
  const bool fits =
      compare(got, times, {noise.max * size, noise.rms * size}, noise_factor, judged, name).within;
  return fits ? std::optional(factor) : std::nullopt;
}

// What would tell more, of what is not in the dump.
std::string what_to_dump_next(const Call& call, const Diagnosis& d) {
  const auto lacks = [&](const char* name) {
    return !call.candidate.contains(name) && !call.inputs.contains(name);
  };
  const bool of_gradients = !disagrees(d, "output") && !disagrees(d, "weights") && !disagrees(d, "lse");
  if (of_gradients) {
    if (lacks("grad_bias") && lacks("bias")) {
      return "a bias of zeros (B, H, L, S) and its gradient: it is the gradient of the scores";
    }
    return "the same call with one key more or less, and one with one head";
  }
  if (lacks("weights")) return "weights: they tell whether the scores or the values are off";
  if (lacks("lse")) return "lse: it tells whether the scores or their normalisation is off";
  return "a call with one head, one query and two keys; the projection or the tensors before rotation";
}

}  // namespace

std::map<std::string, double> plain_errors(const Call& call, const Tensors& reference) {
  std::map<std::string, double> errors;
  for (const auto& [name, noise] : noise_of(call, right_formula(), reference)) errors[name] = noise.max;
  return errors;
}

namespace {

void set_errors(const Call& call, const Tensors& right, const NoiseOf& noise, const Judged& judged,
                const std::vector<std::string>& names, Diagnosis& d) {
  for (const std::string& name : names) {
    d.tensors.push_back(tensor_error(name, call.candidate.find(name)->second, right.find(name)->second,
                                     noise.find(name)->second, judged));
  }
}

void set_verdict(const Call& call, const std::vector<Explanation>& explanations, Diagnosis& d) {
  if (explanations.empty() || (!explanations.front().explains && 1 - explanations.front().left < much)) {
    d.next = what_to_dump_next(call, d);
    return;
  }
  d.mistakes = findings(explanations.front());
  if (!explanations.front().explains) {
    d.verdict = Verdict::partly;
    d.next = what_to_dump_next(call, d);
    return;
  }
  d.verdict = explanations.size() == 1 ? Verdict::explained : Verdict::ambiguous;
  if (explanations.size() == 1) return;
  for (const Explanation& e : explanations) d.alternatives.push_back(findings(e));
  const auto other = separation(call, d.alternatives);
  d.separate = other ? other->input : "no other sizes: on all that were tried they give the same numbers";
}

// A factor that is in no table, said before what to dump next.
void add_factors(const Call& call, const Tensors& right, const NoiseOf& noise, const Judged& judged,
                 Diagnosis& d) {
  for (const TensorError& t : d.tensors) {
    if (t.ok) continue;
    const auto factor = constant_factor(call.candidate.find(t.name)->second, right.find(t.name)->second,
                                        noise.find(t.name)->second, judged, t.name);
    if (factor)
      d.next = fmt::format("{} is {:.6g} times the right one, all of it; {}", t.name, *factor, d.next);
  }
}

Diagnosis diagnose_at_once(const Call& call) {
  Search search(call);
  Diagnosis d;
  set_errors(call, search.right(), search.noise(), search.judged(), search.names(), d);
  if (search.agrees()) {
    d.verdict = Verdict::agrees;
    return d;
  }
  d.equivalent = equivalent_forms(call, search);
  if (!d.equivalent.empty() && search.explanations_by_one().empty()) {
    d.verdict = Verdict::agrees;
    for (TensorError& t : d.tensors) t.ok = true, t.first_bad.clear();
    return d;
  }
  d.equivalent.clear();
  set_verdict(call, search.explanations(), d);
  if (!d.next.empty()) add_factors(call, search.right(), search.noise(), search.judged(), d);
  return d;
}

// ---- large calls: explained on some rows, confirmed on all

// Noise on a part, relative to the largest number there, is that on the whole, relative to its largest.
NoiseOf noise_on_the_whole(const Call& part, const Formula& formula, const Tensors& whole) {
  const Tensors results = evaluate(part, formula).results;
  NoiseOf noise;
  for (const auto& [name, n] : noise_of(part, formula, results)) {
    const auto of_whole = whole.find(name);
    const double unit = largest_finite(results.find(name)->second);
    if (of_whole == whole.end()) continue;
    const double factor = unit > 0 ? largest_finite(of_whole->second) / unit : 1;
    noise[name] = {n.max * factor, n.rms * factor};
  }
  return noise;
}

bool nearly_equal(const Array<double>& a, const Array<double>& b) {
  const double allowed = 1e-9 * largest_finite(a);  // above the rounding of sums in another order
  for (Index n = 0; n < a.size(); ++n) {
    const double x = a.data()[n], y = b.data()[n];
    if (x != y && !(std::abs(x - y) <= allowed) && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

// Whether a formula gives the first and the last key head the same without the others.
bool keeps_heads_apart(const Call& part, const Formula& formula) {
  Call made = part;
  made.candidate = evaluate(part, formula).results;
  for (const Index key_head : {Index{0}, part.Hk - 1}) {
    const Call heads = heads_of_part(made, key_head);
    try {
      const Tensors alone = evaluate(heads, formula).results;
      for (const auto& [name, x] : heads.candidate) {
        if (!nearly_equal(x, alone.find(name)->second)) return false;
      }
    } catch (const ShapeError&) {
      return false;
    }
  }
  return true;
}

class LargeCall {
 public:
  explicit LargeCall(const Call& call)
      : call_(call),
        parts_(sampled_parts(call)),
        right_(evaluate_in_blocks(call, right_formula(), Cut::rows_and_heads)),
        judged_(call, right_) {
    for (const auto& [name, got] : call.candidate) {
      const auto known = right_.find(name);
      if (known != right_.end() && known->second.shape() == got.shape()) names_.push_back(name);
    }
    noise_ = noise_on_the_whole(parts_.front(), right_formula(), right_);
  }

  Diagnosis diagnose() {
    Diagnosis d;
    set_errors(call_, right_, noise_, judged_, names_, d);
    const auto bad =
        std::find_if(d.tensors.begin(), d.tensors.end(), [](const TensorError& t) { return !t.ok; });
    if (bad == d.tensors.end()) {
      d.verdict = Verdict::agrees;
      return d;
    }
    add_part_with(d);
    for (const Call& part : parts_) {
      if (explained_by(part, d)) return d;
    }
    if (const std::optional<Call> part = part_with_bad_sums(d); part && explained_by(*part, d)) return d;
    if (is_small(call_)) return diagnose_at_once(call_);
    d.next = "the same call with fewer queries: these gradients are sums over all rows";
    return d;
  }

 private:
  static bool is_small(const Call& call) {
    constexpr Index not_too_many = 1 << 21;
    return call.B * call.H * call.L * call.S <= not_too_many;
  }

  // False when the part shows nothing.
  bool explained_by(const Call& part, Diagnosis& d) const {
    Search search(part);
    if (search.agrees()) return false;
    set_verdict(part, confirmed(part, search.explanations()), d);
    if (!d.next.empty()) add_factors(call_, right_, noise_, judged_, d);
    return true;
  }

  // The smallest part that makes what is off, of gradients that are sums over rows: one key head of one
  // sample, or all heads of one.
  std::optional<Call> part_with_bad_sums(const Diagnosis& d) const {
    std::vector<std::string> bad;
    Index sample = 0, key_head = 0;
    for (const TensorError& t : d.tensors) {
      if (t.ok) continue;
      bad.push_back(t.name);
      const bool of_keys = t.name == "grad_key" || t.name == "grad_value";
      if (of_keys) sample = t.first_bad[0], key_head = t.first_bad[1];
    }
    std::optional<Call> part = part_with_all_rows(call_, sample, key_head, bad);
    if (!part) part = part_with_all_rows(call_, sample, std::nullopt, bad);
    return part && is_small(*part) ? part : std::nullopt;
  }

  // A part with the rows around the first bad one.
  void add_part_with(const Diagnosis& d) {
    for (const TensorError& t : d.tensors) {
      const bool of_rows =
          t.name == "output" || t.name == "weights" || t.name == "lse" || t.name == "grad_query";
      if (t.ok || !of_rows || t.first_bad.size() < 3) continue;
      std::vector<Index> rows;
      const Index at = t.first_bad[2];
      for (Index i = std::max<Index>(at - 2, 0); i < std::min(at + 3, call_.L); ++i) rows.push_back(i);
      parts_.push_back(part_of(call_, t.first_bad[0], rows));
      return;
    }
  }

  double norm_left(const Tensors& results, const Tensors& gradients, const NoiseOf& noise,
                   bool& within) const {
    double sum = 0;
    for (const std::string& name : names_) {
      const Tensors& from = name.starts_with("grad_") ? gradients : results;
      const auto formula = from.find(name);
      if (formula == from.end()) {
        within = false;
        continue;
      }
      const Difference d = compare(call_.candidate.find(name)->second, formula->second,
                                   noise.find(name)->second, noise_factor, judged_, name);
      within = within && d.within;
      const double unit = std::max(largest_finite(right_.find(name)->second), 1e-300);
      sum += d.rms / unit * (d.rms / unit) * static_cast<double>(d.count) + static_cast<double>(d.mismatches);
    }
    return std::sqrt(sum);
  }

  void confirm(const Call& part, double all, Explanation& e) const {
    const Formula formula = e.formula();
    e.explains = false;
    try {
      const Cut along = keeps_heads_apart(part, formula) ? Cut::rows_and_heads : Cut::rows;
      const Tensors results = evaluate_in_blocks(call_, formula, along);
      const NoiseOf noise = noise_on_the_whole(part, formula, results);
      bool within = true;
      e.left = norm_left(results, e.right_gradients ? right_ : results, noise, within) / all;
      e.explains = within;
    } catch (const ShapeError&) {
      e.left = 1;  // fitted to the part alone
    }
  }

  // What explains the whole, too; the first one as it is when none does.
  std::vector<Explanation> confirmed(const Call& part, std::vector<Explanation> found) const {
    std::vector<Explanation> result;
    bool ignored = true;
    const double all = norm_left(right_, right_, noise_, ignored);
    for (Explanation& e : found) {
      if (!e.explains) continue;
      confirm(part, all, e);
      if (e.explains) result.push_back(e);
    }
    if (result.empty() && !found.empty()) result.push_back(found.front());
    return result;
  }

  const Call& call_;
  std::vector<Call> parts_;
  Tensors right_;
  Judged judged_;
  NoiseOf noise_;
  std::vector<std::string> names_;
};

}  // namespace

Diagnosis diagnose(const Call& call) {
  const bool large = call.B * call.H * call.L * call.S > 2 * many_scores && has_parts(call);
  return large ? LargeCall(call).diagnose() : diagnose_at_once(call);
}

}  // namespace tapehead::check
