#pragma once
// Whether one slope by rule is what differences of values converge to: the function of an order, its values
// along a line, differences with shrinking steps, and the verdict over them. Internal to core;
// gradient_check.cpp puts it together for all inputs, outputs and orders.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient_check.h>
#include <tapehead/core/random.h>

namespace tapehead::detail {

template <class T>
using List = std::vector<Var<T>>;
template <class T>
using Arrays = std::vector<Array<T>>;
using Numbers = std::vector<double>;

template <class T>
Numbers flat(const std::vector<Array<T>>& arrays) {
  Numbers numbers;
  for (const Array<T>& one : arrays) numbers.insert(numbers.end(), one.values().begin(), one.values().end());
  return numbers;
}
template <class T>
Arrays<T> values_of(const List<T>& vars) {
  Arrays<T> values;
  for (const Var<T>& one : vars) values.push_back(one.value());
  return values;
}
inline bool all_finite(const Numbers& numbers) {
  return std::ranges::all_of(numbers, [](double x) { return std::isfinite(x); });
}
template <class T>
void require_finite(const Arrays<T>& arrays, std::string_view what) {
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const auto values = arrays[i].values();
    const auto bad = std::ranges::find_if(values, [](T x) { return !std::isfinite(x); });
    if (bad == values.end()) continue;
    throw DomainError("check_gradients",
                      std::string(what) + " " + std::to_string(i) + " is not finite at " +
                          position_text(arrays[i].shape(), static_cast<Index>(bad - values.begin())));
  }
}
inline double dot(const Numbers& a, const Numbers& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// A power of two, so that a step changes no digit: the largest that is not above |x|, or 1.
inline double scale_of(const Numbers& x) {
  double largest = 1;
  for (const double v : x) largest = std::max(largest, std::abs(v));
  return std::exp2(std::floor(std::log2(largest)));
}

// Half of the digits of the type. What is right is right to here.
template <class T>
const double resolution = std::sqrt(static_cast<double>(std::numeric_limits<T>::epsilon()));

// ---------------------------------------------------------------- the function of one order

// f, or the gradient of <w, the function of the order before> as a function of its arguments and of w.
template <class T>
struct Problem {
  ListFunction<T> f;
  Arrays<T> x;
  std::vector<std::string> names, output_names;
  std::vector<std::size_t> wanted;  // numbers of x
  std::size_t original = 0;         // that many x are of f itself; f is linear in the others

  // Calls f on a tape, since it may ask for gradients itself.
  List<T> arguments_on(Tape<T>& tape, const Arrays<T>& at) const {
    List<T> arguments(at.begin(), at.end());
    for (const std::size_t i : wanted) arguments[i] = tape.input(at[i]);
    return arguments;
  }
  List<T> wanted_of(const List<T>& arguments) const {
    List<T> result;
    for (const std::size_t i : wanted) result.push_back(arguments[i]);
    return result;
  }
  Numbers numbers_at(const Arrays<T>& at) const {
    Tape<T> tape;
    return flat(values_of(f(arguments_on(tape, at))));
  }
};

template <class T>
Problem<T> next_order(const Problem<T>& problem, const Arrays<T>& w) {
  Problem<T> next = problem;
  const std::size_t count = problem.x.size();
  next.f = [problem, count](const List<T>& x_and_w) {
    const auto split = x_and_w.begin() + static_cast<std::ptrdiff_t>(count);
    const List<T> x(x_and_w.begin(), split), seeds(split, x_and_w.end());
    return gradient(problem.f(x), problem.wanted_of(x), seeds);
  };
  next.output_names.clear();
  for (const std::size_t i : problem.wanted)
    next.output_names.push_back("the gradient of " + problem.names[i]);
  for (std::size_t o = 0; o < w.size(); ++o) {
    next.wanted.push_back(next.x.size());
    next.x.push_back(w[o]);
    next.names.push_back("the seed of " + problem.output_names[o]);
  }
  return next;
}

// The ops on a way from input to an output, each named once.
template <class T>
std::vector<std::string> ops_between(const Tape<T>& tape, const Var<T>& input, const List<T>& outputs) {
  const Index from = Tape<T>::index_of("check_gradients", input);
  std::vector<bool> forth(static_cast<std::size_t>(tape.size())), back(forth.size());
  auto any_input = [&](Index i, auto f) {
    const Node<T>& node = tape.node(i);
    for (std::uint32_t e = 0; e < node.edge_count; ++e) f(static_cast<std::size_t>(tape.edge(node, e).input));
  };
  forth[static_cast<std::size_t>(from)] = true;
  for (Index i = from + 1; i < tape.size(); ++i) {
    any_input(i, [&](std::size_t j) {
      if (forth[j]) forth[static_cast<std::size_t>(i)] = true;
    });
  }
  for (const Var<T>& y : outputs) {
    if (y.recorded()) back[static_cast<std::size_t>(Tape<T>::index_of("check_gradients", y))] = true;
  }
  for (Index i = tape.size(); i-- > 0;) {
    if (back[static_cast<std::size_t>(i)]) any_input(i, [&](std::size_t j) { back[j] = true; });
  }
  std::vector<std::string> names;
  for (Index i = from + 1; i < tape.size(); ++i) {
    const std::string name(tape.node(i).op.text());
    const bool between = forth[static_cast<std::size_t>(i)] && back[static_cast<std::size_t>(i)];
    if (between && std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

// ---------------------------------------------------------------- values along a line

// f at x + h u and x - h u, u a direction of one input. The moves are those that were made, after rounding.
struct Sample {
  double h = 0;
  Numbers above, below;            // values of f
  Numbers move_above, move_below;  // of the input: x_above - x and x - x_below
};

template <class T>
class Line {
 public:
  Line(const Problem<T>& problem, const Numbers& middle, std::size_t input, Numbers direction)
      : problem_(problem), middle_(middle), input_(input), direction_(std::move(direction)) {}

  const Numbers& middle() const { return middle_; }
  const Numbers& direction() const { return direction_; }

  // Nothing when f is not finite there: the step left its domain.
  const Sample* at(double h) {
    const auto [entry, is_new] = samples_.try_emplace(h);
    if (is_new) {
      Sample sample;
      sample.h = h;
      sample.above = values_at(h, sample.move_above);
      sample.below = values_at(-h, sample.move_below);
      if (all_finite(sample.above) && all_finite(sample.below)) entry->second = std::move(sample);
    }
    return entry->second ? &*entry->second : nullptr;
  }

 private:
  Numbers values_at(double t, Numbers& moves) const {
    Arrays<T> x = problem_.x;
    const Array<T> start = x[input_];
    const std::span<T> values = x[input_].mutable_values();
    moves.resize(values.size());
    for (std::size_t k = 0; k < values.size(); ++k) {
      const double before = static_cast<double>(start.values()[k]);
      values[k] = static_cast<T>(before + t * direction_[k]);
      moves[k] = std::copysign(1.0, t) * (static_cast<double>(values[k]) - before);
    }
    Numbers result = problem_.numbers_at(x);
    if (result.size() != middle_.size()) {
      throw LogicError("check_gradients", "f gives another number of elements when x moves");
    }
    return result;
  }

  const Problem<T>& problem_;
  const Numbers& middle_;
  std::size_t input_;
  Numbers direction_;
  std::map<double, std::optional<Sample>> samples_;
};

// ---------------------------------------------------------------- judging a slope

// One number phi of the outputs of f: <w, f(x)>, or one element of f(x).
struct Functional {
  const Numbers* w = nullptr;
  std::size_t element = 0;
};

struct Difference {
  double value = 0;
  double size = 0;   // what the terms sum to without their signs
  double moved = 0;  // the same of those that differ
};
inline Difference difference(const Functional& phi, const Numbers& a, const Numbers& b) {
  if (!phi.w) {
    const double p = a[phi.element], q = b[phi.element];
    const double size = std::abs(p) + std::abs(q);
    return {p - q, size, p == q ? 0 : size};
  }
  Difference sum;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double w = (*phi.w)[i];
    sum.value += w * (a[i] - b[i]);
    const double size = std::abs(w) * (std::abs(a[i]) + std::abs(b[i]));
    sum.size += size;
    if (a[i] != b[i]) sum.moved += size;
  }
  return sum;
}

// The slope of phi along a line, by the rule and by differences with one step.
//
// noise: how far rounding alone may take the two apart. Each output carries an error of about a unit roundoff
// of itself, and so does each term of an inner product; the errors of n terms are as many random steps, which
// end about sqrt(n) away, and 8 stands for the roundings inside an op. A difference of values divides that by
// h. An output with the same bits on both sides adds nothing to a residual of 0, but it may hide a slope that
// is too small to show: `noise` leaves such outputs out, for what is called right; `doubt` has them, for what
// is called wrong.
struct Step {
  double h = 0;
  double rule = 0, slope = 0;  // slope: by the central difference
  double residual = 0;         // slope - rule
  double left = 0, right = 0;  // one-sided differences
  double jump = 0;             // right - left, but for what the rounded moves explain
  double noise = 0, doubt = 0;
};

template <class T>
Step step_of(const Sample& sample, const Numbers& middle, const Functional& phi, const Numbers& rule) {
  Step step;
  step.h = sample.h;
  const Difference above = difference(phi, sample.above, middle),
                   below = difference(phi, middle, sample.below);
  const Difference across = difference(phi, sample.above, sample.below);
  const double rule_above = dot(rule, sample.move_above), rule_below = dot(rule, sample.move_below);
  double rule_size = 0;
  for (std::size_t k = 0; k < rule.size(); ++k) rule_size += std::abs(rule[k] * sample.move_above[k]);
  step.rule = (rule_above + rule_below) / (2 * step.h);
  step.slope = across.value / (2 * step.h);
  step.residual = step.slope - step.rule;
  step.right = above.value / step.h;
  step.left = below.value / step.h;
  step.jump = (above.value - rule_above - (below.value - rule_below)) / step.h;
  const double terms = static_cast<double>(rule.size() + (phi.w ? middle.size() : 1));
  const double roundoff = static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;
  const double unit = roundoff * (8 + std::sqrt(terms)) / step.h;
  step.noise = unit * ((above.moved + below.moved) / 4 + rule_size);
  step.doubt = unit * (across.size / 2 + rule_size);
  return step;
}

struct Judgement {
  GradientVerdict verdict = GradientVerdict::no_digits;
  Step step;
  double bound = 0;
};

// From one step to the next. The error of a central difference is a series in h^2, so Romberg's extrapolation
// from two steps leaves h^4 and from three h^6.
constexpr double ratio = 2;

template <class T>
class Judge {
 public:
  // scale: the size of slopes that an error is relative to, when this one happens to be small.
  Judge(Line<T>& line, Functional phi, const Numbers& rule, double size_of_x, double smallest_x, int order,
        double scale)
      : line_(line),
        phi_(phi),
        rule_(rule),
        size_of_x_(size_of_x),
        smallest_x_(smallest_x),
        order_(order),
        scale_(scale) {}

  Judgement operator()(bool exact) {
    if (!all_finite(rule_)) return of_no_number();
    if (exact) {
      if (const auto judgement = by_one_step()) return *judgement;
    }
    const double start = size_of_x_ * (std::numeric_limits<T>::digits > 30 ? 0x1p-5 : 0x1p-2);
    const double end = resolution<T> * std::min(1.0, smallest_x_);
    for (double h = start; h >= end; h /= ratio) {
      const Sample* sample = line_.at(h);
      if (!sample) {
        steps_.clear();
        continue;
      }
      steps_.push_back(step_of<T>(*sample, line_.middle(), phi_, rule_));
      if (const auto judgement = settled()) return *judgement;
    }
    // Too few digits may be left at small steps, or none may have been needed.
    for (double h = start * ratio; !steps_.empty() && h <= 8 * start; h *= ratio) {
      const Sample* sample = line_.at(h);
      if (!sample || steps_.front().h != h / ratio) break;
      steps_.insert(steps_.begin(), step_of<T>(*sample, line_.middle(), phi_, rule_));
      if (const auto judgement = settled()) return *judgement;
    }
    measure_noise();
    if (const auto judgement = settled()) return *judgement;
    return disagreement();
  }

 private:
  double scale(const Step& step) const {
    const double own = std::max(std::abs(step.rule), std::abs(step.slope));
    // At an extremum the slope is 0; then what counts is how far f moves on either side.
    if (step.rule == 0 && scale_ == 0) return std::max({own, std::abs(step.left), std::abs(step.right)});
    return std::max(own, scale_);
  }

  // A gradient that is not finite is wrong where f has values on both sides.
  Judgement of_no_number() {
    Judgement judgement;
    judgement.step.rule = dot(rule_, line_.direction());
    for (double h = size_of_x_; h >= resolution<T>; h /= ratio) {
      const Sample* sample = line_.at(h);
      if (!sample) continue;
      judgement.verdict = GradientVerdict::wrong;
      judgement.step.h = h;
      judgement.step.slope = difference(phi_, sample->above, sample->below).value / (2 * h);
    }
    return judgement;
  }

  std::optional<Judgement> by_one_step() {
    const Sample* sample = line_.at(size_of_x_);
    if (!sample) return {};
    const Step step = step_of<T>(*sample, line_.middle(), phi_, rule_);
    if (does_not_move(step)) return Judgement{GradientVerdict::constant, step, step.doubt};
    if (!(std::abs(step.residual) <= step.noise && step.noise <= resolution<T> * scale(step))) return {};
    return Judgement{GradientVerdict::right, step, step.noise};
  }

  // A residue of rounding counts as 0 past the first order, where a gradient that is constant is normal.
  bool does_not_move(const Step& step) const {
    const bool no_gradient = step.rule == 0 || (order_ > 1 && std::abs(step.rule) <= step.doubt);
    return no_gradient && std::abs(step.left) <= step.doubt && std::abs(step.right) <= step.doubt;
  }

  // Right, constant or at a kink, when the steps so far can tell.
  std::optional<Judgement> settled() const {
    if (steps_.size() < 3) return {};
    if (std::ranges::all_of(steps_, [&](const Step& step) { return does_not_move(step); })) {
      return Judgement{GradientVerdict::constant, steps_.front(), steps_.front().doubt};
    }
    std::optional<Judgement> best;
    std::size_t at_best = 0;
    for_each_estimate(&Step::noise, [&](std::size_t k, double residual, double bound) {
      if (std::abs(residual) > bound || bound > resolution<T> * scale(steps_[k])) return;
      if (best && bound >= best->bound) return;
      best = Judgement{GradientVerdict::right, steps_[k], bound};
      at_best = k;
    });
    if (best && has_kink(std::max<std::size_t>(at_best, 2))) best->verdict = GradientVerdict::kink;
    return best;
  }

  // f(k, residual, bound) for each residual extrapolated to h = 0 from step k and up to two above it. Its
  // error is less than what the extrapolation with one smaller step, or of one order more, still changed.
  // Rounding grows by (4 + 1/2) / 3 (16 + 1/2) / 15 = 1.65, since the step above has half of it.
  template <class F>
  void for_each_estimate(double Step::*rounding, F f) const {
    Numbers column, before;
    for (const Step& step : steps_) column.push_back(step.residual);
    for (std::size_t j = 0; j < 3; ++j) {
      for (std::size_t k = std::max<std::size_t>(j, 1); k < column.size(); ++k) {
        const double change = k > j ? column[k] - column[k - 1] : column[k] - before[k];
        f(k, column[k], std::abs(change) + 1.65 * steps_[k].*rounding);
      }
      before = column;
      const double gain = std::pow(ratio, 2.0 * static_cast<double>(j + 1));
      for (std::size_t k = j + 1; k < column.size(); ++k) {
        column[k] = before[k] + (before[k] - before[k - 1]) / (gain - 1);
      }
    }
  }

  // The jump of the slope at x, extrapolated to h = 0: a smooth f has h f'' there, a kink has a number that
  // stays when h shrinks.
  bool has_kink(std::size_t k) const {
    if (k < 2) return false;
    auto jump = [&](std::size_t i) { return (ratio * steps_[i].jump - steps_[i - 1].jump) / (ratio - 1); };
    const double here = jump(k), change = here - jump(k - 1), noise = 16 * steps_[k].doubt;
    return std::abs(here) > std::max(noise + 4 * std::abs(change), resolution<T> * scale(steps_[k]));
  }

  // When values have fewer digits than their own size promises (a difference of large numbers inside f), the
  // smallest steps show it: nothing but noise changes from one to the next there, and the largest of three
  // changes is more than a quarter of it.
  void measure_noise() {
    double noise = 0;  // of the value of phi
    for (std::size_t i = 1; i < steps_.size() && i <= 3; ++i) {
      const Step &step = steps_[steps_.size() - i], &larger = steps_[steps_.size() - i - 1];
      noise = std::max(noise, std::abs(step.residual - larger.residual) * step.h);
    }
    // Values that stand still at small steps, when larger ones bear the rule out, are rounded to a multiple
    // of something that f does not show.
    double moves = 0;
    for (const Step& step : steps_) {
      if (std::abs(step.residual) <= std::abs(step.rule) / 4) moves = std::abs(step.rule);
      if (step.left == 0 && step.right == 0) noise = std::max(noise, moves * step.h);
    }
    for (Step& step : steps_) {
      step.noise = std::max(step.noise, 4 * noise / step.h);
      step.doubt = std::max(step.doubt, step.noise);
    }
  }

  // Wrong when the best estimate of the residual stands well above what it is known to and no smaller step
  // contradicts it.
  Judgement disagreement() const {
    Judgement best;
    best.step.rule = dot(rule_, line_.direction());
    best.bound = std::numeric_limits<double>::infinity();
    std::size_t at_best = 0;
    for_each_estimate(&Step::doubt, [&](std::size_t k, double residual, double bound) {
      const bool told = std::abs(residual) >= 4 * bound && confirmed(k, residual);
      const bool told_before = best.verdict == GradientVerdict::wrong;
      if (told == told_before ? bound >= best.bound : told_before) return;
      best = {told ? GradientVerdict::wrong : GradientVerdict::no_digits, steps_[k], bound};
      best.step.slope = best.step.rule + residual;
      at_best = k;
    });
    const bool wrong = best.verdict == GradientVerdict::wrong;
    if (wrong && has_kink(std::max<std::size_t>(at_best, 2))) best.verdict = GradientVerdict::kink;
    return best;
  }

  bool confirmed(std::size_t k, double residual) const {
    return std::all_of(steps_.begin() + static_cast<std::ptrdiff_t>(k), steps_.end(), [&](const Step& step) {
      return std::abs(step.residual - residual) <= std::abs(residual) / 4 + 4 * step.doubt;
    });
  }

  Line<T>& line_;
  Functional phi_;
  const Numbers& rule_;
  double size_of_x_, smallest_x_;
  int order_;
  double scale_;
  std::vector<Step> steps_;  // by falling h, each half of the one before
};

}  // namespace tapehead::detail
