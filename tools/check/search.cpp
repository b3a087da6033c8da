#include <tools/check/search.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include <tapehead/core/errors.h>

namespace tapehead::check {
namespace {

bool is_gradient(std::string_view name) { return name.starts_with("grad_"); }

// What leaves more than this share of the residual is not looked at more closely, unless the noise is so
// large that it may be no more than that: noise under another formula can be several times that of the right
// one.
constexpr double worth_a_look = 0.05, at_most = 0.6, noisier = 10;

// Two explanations whose scores differ by less are as good as each other. What is left of the same formula is
// the candidate's own rounding, and so nearly the same number; in float64 the rounding of the evaluation
// joins it, and no score says more than that it is within the noise.
constexpr double as_good = 1.15, within_noise_of_float64 = 1;

// In any order.
bool same_mistakes(const Explanation& a, const Explanation& b) {
  return std::is_permutation(a.acting.begin(), a.acting.end(), b.acting.begin(), b.acting.end(),
                             [](const Hypothesis& x, const Hypothesis& y) { return x.mistake == y.mistake; });
}

// Nothing where two mistakes do not go together.
std::optional<Tensors> results_of(const Call& call, const Formula& formula, bool gradients) {
  try {
    return evaluate(call, formula, gradients).results;
  } catch (const ShapeError&) {
    return std::nullopt;
  }
}

bool is_generic(const Explanation& e) {
  return std::any_of(e.acting.begin(), e.acting.end(), [](const Hypothesis& h) { return h.generic; });
}

}  // namespace

Formula Explanation::formula() const {
  Formula f = right_formula();
  for (const Hypothesis& h : acting) h.change(f);
  return f;
}

Search::Search(const Call& call)
    : call_(call),
      right_(evaluate(call, right_formula())),
      noise_(noise_of(call, right_formula(), right_.results)),
      judged_(call, right_.results) {
  for (const auto& [name, got] : call.candidate) {
    const auto known = right_.results.find(name);
    if (known != right_.results.end() && known->second.shape() == got.shape()) names_.push_back(name);
  }
  of_right_ = judge(right_.results, right_.results, noise_, noise_);
  agrees_ = of_right_.forward && of_right_.gradients;
  threshold_ = std::clamp(noisier * share_of_noise(), worth_a_look, at_most);
}

Search::Judgement Search::judge(const Tensors& results, const Tensors& gradients, const NoiseOf& noise,
                                const NoiseOf& noise_of_gradients) const {
  Judgement j;
  double score = 0;
  for (const std::string& name : names_) {
    const bool of_gradient = is_gradient(name);
    const Tensors& from = of_gradient ? gradients : results;
    const auto formula = from.find(name);
    const NoiseOf& known = of_gradient ? noise_of_gradients : noise;
    const auto allowed = known.find(name);
    const Array<double>& got = call_.candidate.find(name)->second;
    bool& within = of_gradient ? j.gradients : j.forward;
    if (formula == from.end() || formula->second.shape() != got.shape()) {
      within = false;
      continue;
    }
    const Noise limit = allowed == known.end() ? noise_.find(name)->second : allowed->second;
    const Difference d = compare(got, formula->second, limit, noise_factor, judged_, name);
    within = within && d.within;
    const double unit = std::max(largest_finite(right_.results.find(name)->second), 1e-300);
    const double count = static_cast<double>(d.count);
    (of_gradient ? j.left_gradients : j.left_forward) +=
        d.rms / unit * (d.rms / unit) * count + static_cast<double>(d.mismatches);
    const double noisy = limit.rms > 0 ? d.rms / limit.rms : d.rms > 0 ? 1e300 : 0;
    score += noisy * noisy / static_cast<double>(names_.size());
  }
  j.score = std::sqrt(score);
  return j;
}

// The norm of the noise, relative to that of the residual.
double Search::share_of_noise() const {
  double noise = 0;
  for (const std::string& name : names_) {
    if (!of_right_.forward && is_gradient(name)) continue;
    const Array<double>& right = right_.results.find(name)->second;
    const double rms = noise_.find(name)->second.rms / std::max(largest_finite(right), 1e-300);
    noise += rms * rms * static_cast<double>(right.size());
  }
  const double all = of_right_.forward ? of_right_.left_gradients : of_right_.left_forward;
  return all > 0 ? std::sqrt(noise / all) : 1;
}

bool Search::equals_right(const Tensors& results) const {
  return std::all_of(names_.begin(), names_.end(), [&](const std::string& name) {
    const auto found = results.find(name);
    if (found == results.end()) return false;
    const Array<double>& right = right_.results.find(name)->second;
    if (found->second.shape() != right.shape()) return false;
    return compare(found->second, right, noise_.find(name)->second, 1, judged_, name).within;
  });
}

// The gradients of a wrong forward pass follow it, or are those of the right one.
Explanation Search::judged_explanation(std::vector<Hypothesis> acting) {
  Explanation e{std::move(acting)};
  const Formula formula = e.formula();
  const std::optional<Tensors> found = results_of(call_, formula, true);
  const double all = of_right_.left_forward + of_right_.left_gradients;
  if (!found || equals_right(*found)) return e;
  const Tensors& results = *found;
  Judgement best = judge(results, results, noise_, noise_);
  const bool of_forward = !of_right_.forward;
  const double before = of_forward ? of_right_.left_forward : all;
  const double after = of_forward ? best.left_forward : best.left_forward + best.left_gradients;
  e.left = std::sqrt((best.left_forward + best.left_gradients) / all);
  if (after > threshold_ * threshold_ * before) return e;
  const NoiseOf noise = noise_of(call_, formula, results);
  best = judge(results, results, noise, noise);
  const bool mixed =
      of_forward && !best.gradients &&
      std::none_of(e.acting.begin(), e.acting.end(), [](const Hypothesis& h) { return h.backward_only; });
  if (mixed) {
    const Judgement other = judge(results, right_.results, noise, noise_);
    if (other.left_gradients < best.left_gradients) best = other, e.right_gradients = true;
  }
  e.left = std::sqrt((best.left_forward + best.left_gradients) / all);
  e.score = best.score;
  e.explains = best.forward && best.gradients;
  if (of_forward && best.forward && !best.gradients && e.acting.size() < 3) forward_only_.push_back(e);
  return e;
}

void Search::try_alone() {
  for (const Family family : families()) {
    for (Hypothesis& h : family(call_)) {
      note(judged_explanation({h}));
      hypotheses_.push_back(std::move(h));
    }
  }
}

void Search::try_backward_on_top() {
  const std::vector<Explanation> forward = std::exchange(forward_only_, {});
  for (const Explanation& first : forward) {
    Call call = call_;
    call.found = [&first](Formula& f) {
      for (const Hypothesis& h : first.acting) h.change(f);
    };
    for (const Family family : families()) {
      for (const Hypothesis& h : family(call)) {
        if (!h.backward_only) continue;
        std::vector<Hypothesis> acting = first.acting;
        acting.push_back(h);
        note(judged_explanation(acting));
      }
    }
  }
}

std::vector<Search::Alike> Search::distinct_forward() const {
  std::vector<Alike> list;
  std::vector<Tensors> seen{right_.results};
  for (const Hypothesis& h : hypotheses_) {
    if (h.backward_only) continue;
    const Tensors results = evaluate(call_, Explanation{{h}}.formula(), false).results;
    const auto same = std::find_if(seen.begin(), seen.end(), [&](const Tensors& other) {
      return std::all_of(results.begin(), results.end(), [&](const auto& named) {
        const auto found = other.find(named.first);
        return found != other.end() && std::ranges::equal(found->second.values(), named.second.values());
      });
    });
    if (same == seen.begin()) continue;
    if (same == seen.end()) {
      seen.push_back(results);
      list.push_back({&h});
    } else {
      list[static_cast<std::size_t>(same - seen.begin()) - 1].push_back(&h);
    }
  }
  return list;
}

// All pairs of different families by what they leave of the forward pass; the best ones are looked at
// closely.
void Search::try_two_forward() {
  const std::vector<Alike> list = distinct_forward();
  struct Pair {
    double left;
    std::size_t a, b;
  };
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < list.size(); ++a) {
    for (std::size_t b = 0; b < list.size(); ++b) {
      const Explanation both{{*list[a].front(), *list[b].front()}};
      if (both.acting[0].mistake->family == both.acting[1].mistake->family) continue;
      const std::optional<Tensors> results = results_of(call_, both.formula(), false);
      if (!results) continue;
      const double left = judge(*results, right_.results, noise_, noise_).left_forward;
      if (left <= threshold_ * threshold_ * of_right_.left_forward) pairs.push_back({left, a, b});
    }
  }
  std::ranges::sort(pairs, {}, &Pair::left);
  constexpr std::size_t close_looks = 32;
  for (std::size_t n = 0; n < std::min(pairs.size(), close_looks); ++n) {
    for (const Hypothesis* first : list[pairs[n].a]) {
      for (const Hypothesis* second : list[pairs[n].b]) note(judged_explanation({*first, *second}));
    }
  }
}

// One mistake more has to take away clearly more.
void Search::note(Explanation e) {
  if (e.explains) found_.push_back(e);
  const bool more = !best_.acting.empty() && e.acting.size() > best_.acting.size();
  if (e.left < (more ? 0.7 : 1) * best_.left) best_ = std::move(e);
}

// A fitted number can follow the noise, so that it is left out before scores are compared.
std::vector<Explanation> Search::equal_ones() const {
  std::size_t fewest = 2;
  for (const Explanation& e : found_) fewest = std::min(fewest, e.acting.size());
  std::vector<Explanation> left;
  std::ranges::copy_if(found_, std::back_inserter(left),
                       [&](const Explanation& e) { return e.acting.size() == fewest; });
  if (!std::ranges::all_of(left, is_generic)) std::erase_if(left, is_generic);
  double best = std::ranges::min(left, {}, &Explanation::score).score;
  if (call_.contract.computed_in == NumberType::f64) best = std::max(best, within_noise_of_float64);
  std::vector<Explanation> equal;
  for (const Explanation& e : left) {
    const auto known = [&](const Explanation& other) { return same_mistakes(e, other); };
    if (e.score <= as_good * best && std::ranges::none_of(equal, known)) equal.push_back(e);
  }
  return equal;
}

// Too little is left of a candidate that is NaN for two mistakes to be told from others.
bool Search::mostly_finite() const {
  Index finite = 0, all = 0;
  for (const std::string& name : names_) {
    if (is_gradient(name)) continue;
    const Array<double>& right = right_.results.find(name)->second;
    const Array<double>& got = call_.candidate.find(name)->second;
    for (Index n = 0; n < right.size(); ++n) {
      if (!std::isfinite(right.data()[n])) continue;
      ++all;
      if (std::isfinite(got.data()[n])) ++finite;
    }
  }
  return 2 * finite >= all;
}

std::vector<Explanation> Search::explanations_by_one() {
  if (hypotheses_.empty()) try_alone();
  return found_.empty() ? std::vector<Explanation>{} : equal_ones();
}

std::vector<Explanation> Search::explanations() {
  if (hypotheses_.empty()) try_alone();
  if (found_.empty()) try_backward_on_top();
  if (found_.empty() && !of_right_.forward && mostly_finite()) try_two_forward();
  if (!found_.empty()) return equal_ones();
  if (best_.acting.empty()) return {};
  return {best_};
}

}  // namespace tapehead::check
