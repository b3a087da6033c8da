#include <tools/check/families/hypotheses.h>

#include <algorithm>
#include <cmath>

#include <tapehead/core/errors.h>
#include <tools/check/sample.h>

namespace tapehead::check {
namespace {

Hypothesis make(std::string_view id, std::string_view variant, Change change,
                std::map<std::string, double> fitted, bool backward_only) {
  const Mistake* mistake = find_mistake(id, variant);
  if (!mistake)
    throw LogicError("hypothesis", std::string(id) + "/" + std::string(variant) + " is not in the table");
  return {mistake, std::move(change), std::move(fitted), backward_only};
}

bool belongs(std::string_view name, Part part) {
  return name.starts_with("grad_") == (part == Part::gradients);
}

double largest_finite(const Array<double>& x) {
  double largest = 0;
  for (const double v : x.values()) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  return largest;
}

void append_residual(const Array<double>& got, const Array<double>& formula, std::vector<double>& to) {
  const double unit = largest_finite(got) > 0 ? largest_finite(got) : 1;
  for (Index i = 0; i < got.size(); ++i) {
    const double difference = (formula.data()[i] - got.data()[i]) / unit;
    to.push_back(std::isfinite(difference) ? difference : 0);
  }
}

double left_by(const Call& call, const Change& change, Part part) {
  return sum_of_squares(residual(call, change, part));
}

// x - <r, dr/dx> / <dr/dx, dr/dx>
double gauss_newton(const Call& call, const std::function<Change(double)>& change, double x, Part part) {
  const double step = 1e-5 * std::max(std::abs(x), 1e-2);
  const std::vector<double> here = residual(call, change(x), part);
  const std::vector<double> above = residual(call, change(x + step), part);
  const std::vector<double> below = residual(call, change(x - step), part);
  double along = 0, length = 0;
  for (std::size_t i = 0; i < here.size(); ++i) {
    const double slope = (above[i] - below[i]) / (2 * step);
    along += here[i] * slope;
    length += slope * slope;
  }
  return length > 0 ? x - along / length : x;
}

// The heads of a part of a large call of which most is left; the call itself when it is no such part.
Call loudest_heads(const Call& call, Part part) {
  const bool is_large = !call.rows.empty() && call.H * call.L * call.S > many_scores;
  if (!is_large || call.Hk == 1 || !call.heads.empty() || call.found || part != Part::results) return call;
  double most = -1;
  Call loudest;
  for (Index g = 0; g < call.Hk; ++g) {
    Call heads = heads_of_part(call, g);
    const double left = left_by(heads, {}, part);
    if (left > most) most = left, loudest = std::move(heads);
  }
  return loudest;
}

std::optional<std::size_t> nearest_here(const Call& call, std::span<const Change> changes, Part part) {
  double least = left_by(call, {}, part);
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const double left = left_by(call, changes[i], part);
    if (left < least) least = left, best = i;
  }
  return best;
}

}  // namespace

Hypothesis hypothesis(std::string_view id, std::string_view variant, Change change,
                      std::map<std::string, double> fitted) {
  return make(id, variant, std::move(change), std::move(fitted), false);
}

Hypothesis backward_hypothesis(std::string_view id, std::string_view variant, Change change,
                               std::map<std::string, double> fitted) {
  return make(id, variant, std::move(change), std::move(fitted), true);
}

Step after(Step first, Step second) {
  return [first = std::move(first), second = std::move(second)](Work& work) {
    if (first) first(work);
    second(work);
  };
}

Step within(Step change, Step step) {
  return [change = std::move(change), step = std::move(step)](Work& work) {
    const Contract contract = work.contract;
    const Tensors inputs = work.inputs;
    change(work);
    if (step) step(work);
    work.contract = contract;
    work.inputs = inputs;
  };
}

std::vector<double> residual(const Call& call, const Change& change, Part part) {
  Formula formula = formula_of(call);
  if (change) change(formula);
  const Work work = evaluate(call, formula, part == Part::gradients);
  std::vector<double> result;
  for (const auto& [name, got] : call.candidate) {
    const Array<double>* ours = find(work.results, name);
    if (ours && belongs(name, part) && ours->size() == got.size()) append_residual(got, *ours, result);
  }
  return result;
}

double sum_of_squares(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return sum;
}

std::optional<Fit> fit(const Call& call, const std::function<Change(double)>& change,
                       std::span<const double> starts, Part part, bool refine) {
  const Call heads = loudest_heads(call, part);
  std::optional<Fit> found = fit_on_all_heads(heads, change, starts, part, refine);
  if (!found || heads.H == call.H) return found;
  found->left = left_by(call, change(found->number), part);
  return found->left < left_by(call, {}, part) ? found : std::nullopt;
}

std::optional<Fit> fit_on_all_heads(const Call& call, const std::function<Change(double)>& change,
                                    std::span<const double> starts, Part part, bool refine) {
  Fit best{0, left_by(call, {}, part)};
  bool found = false;
  const auto consider = [&](double x) {
    const double left = std::isfinite(x) ? left_by(call, change(x), part) : best.left;
    const bool better = left < best.left;
    if (better) best = {x, left};
    return better;
  };
  for (const double x : starts) found = consider(x) || found;
  if (!found) return std::nullopt;
  constexpr int enough = 12;  // each step squares the relative error near the solution
  for (int i = 0; refine && i < enough; ++i) {
    if (!consider(gauss_newton(call, change, best.number, part))) break;
  }
  return best;
}

double exact_if_as_good(const Call& call, const std::function<Change(double)>& change, const Fit& fitted,
                        double exact, Part part) {
  constexpr double about = 4, rounding = 1e-24;  // squares: of two fits to the same noise; of none
  return left_by(call, change(exact), part) <= about * fitted.left + rounding ? exact : fitted.number;
}

std::optional<std::size_t> nearest(const Call& call, std::span<const Change> changes, Part part) {
  const Call heads = loudest_heads(call, part);
  const std::optional<std::size_t> best = nearest_here(heads, changes, part);
  if (!best || heads.H == call.H) return best;
  return left_by(call, changes[*best], part) < left_by(call, {}, part) ? best : std::nullopt;
}

const Array<double>* find(const Tensors& tensors, std::string_view name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

}  // namespace tapehead::check
