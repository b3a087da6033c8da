#include <tapehead/core/gradient_check.h>
#include <tapehead/core/slope.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace tapehead {
namespace detail {
namespace {

// ---------------------------------------------------------------- one order

template <class T>
class OrderCheck {
 public:
  OrderCheck(Problem<T> problem, int order, const GradientCheckOptions& options)
      : problem_(std::move(problem)),
        order_(order),
        options_(options),
        random_(Generator(options.seed).split(static_cast<std::uint64_t>(order))) {}

  // Appends what is found; false when it is not all right.
  bool run(std::vector<GradientFinding>& findings) {
    Tape<T> tape;
    const List<T> arguments = problem_.arguments_on(tape, problem_.x), x = problem_.wanted_of(arguments);
    const List<T> y = problem_.f(arguments);
    const Arrays<T> values = values_of(y);
    if (y.empty()) throw LogicError("check_gradients", "f gives no Var");
    require_finite(values, order_ == 1 ? "output" : "order " + std::to_string(order_) + ": gradient");
    if (order_ == 1) {
      for (std::size_t o = 0; o < y.size(); ++o)
        problem_.output_names.push_back("output " + std::to_string(o));
    }
    middle_ = flat(values);
    if (not_repeatable(values, findings)) return false;

    for (const Array<T>& one : values) w_.push_back(random_like(one));
    const List<T> seeds(w_.begin(), w_.end());
    const Arrays<T> recorded = values_of(gradient(y, x, seeds)), plain = gradient_values(y, x, seeds);
    bool ok = true;
    for (std::size_t i = 0; i < x.size(); ++i) {
      GradientFinding finding = about(i, flat<T>({recorded[i]}), flat<T>({plain[i]}));
      if (options_.full && finding.verdict != GradientVerdict::constant) {
        finding = element_by_element(i, y, x, finding);
      }
      finding.ops = ops_between(tape, x[i], y);
      ok &= is_ok(finding);
      findings.push_back(std::move(finding));
    }
    return ok;
  }

  Problem<T> next() const { return next_order(problem_, w_); }

 private:
  bool is_ok(const GradientFinding& finding) const {
    if (finding.verdict == GradientVerdict::constant) return options_.allow_constant || order_ > 1;
    return finding.verdict == GradientVerdict::right;
  }

  static bool agrees(const Judgement& judgement) {
    return judgement.verdict == GradientVerdict::right || judgement.verdict == GradientVerdict::constant;
  }

  // Of either sign and no element near 0.
  Array<T> random_like(const Array<T>& like) {
    auto result = random_.template uniform<T>(like.shape(), 0.5, 1);
    for (T& value : result.mutable_values()) {
      if (random_.below(2) == 0) value = -value;
    }
    return result;
  }

  bool not_repeatable(const Arrays<T>& first, std::vector<GradientFinding>& findings) const {
    Tape<T> tape;
    const Arrays<T> second = values_of(problem_.f(problem_.arguments_on(tape, problem_.x)));
    for (std::size_t o = 0; o < first.size(); ++o) {
      const bool same_shape = o < second.size() && second[o].shape() == first[o].shape();
      if (!same_shape) throw LogicError("check_gradients", "f gives other shapes when it is called again");
      GradientFinding finding;
      finding.verdict = GradientVerdict::not_repeatable;
      finding.order = order_;
      finding.name = problem_.output_names[o];
      finding.shape = first[o].shape();
      double worst = 0;
      for (std::size_t k = 0; k < first[o].values().size(); ++k) {
        const double a = static_cast<double>(first[o].values()[k]),
                     b = static_cast<double>(second[o].values()[k]);
        if (a == b || std::abs(a - b) <= worst) continue;
        worst = std::abs(a - b);
        finding.element = static_cast<Index>(k);
        finding.by_rule = a, finding.by_difference = b;
      }
      if (finding.element < 0) continue;
      findings.push_back(std::move(finding));
      return true;
    }
    return false;
  }

  Judgement judge(Line<T>& line, std::size_t i, Functional phi, const Numbers& rule, double scale = 0) const {
    const Numbers x = flat<T>({problem_.x[i]});
    double smallest = 1;
    for (const double v : x) {
      if (std::abs(v) > 1e-12) smallest = std::min(smallest, std::abs(v));
    }
    const bool linear = i >= problem_.original;
    return Judge<T>(line, phi, rule, scale_of(x), smallest, order_, scale)(linear || options_.quadratic);
  }

  GradientFinding finding_of(std::size_t i, const Judgement& judgement) const {
    GradientFinding finding;
    finding.verdict = judgement.verdict;
    finding.order = order_;
    finding.input = static_cast<Index>(i);
    finding.name = problem_.names[i];
    finding.shape = problem_.x[i].shape();
    finding.by_rule = judgement.step.rule;
    finding.by_difference = judgement.step.slope;
    finding.bound = judgement.bound;
    finding.step = judgement.step.h;
    if (judgement.verdict == GradientVerdict::kink)
      finding.slopes = {judgement.step.left, judgement.step.right};
    return finding;
  }

  // Input number `which` of those wanted, along one direction. Its signs follow the gradient, so that the
  // terms of the slope do not cancel and an error in any of them is seen against their sum.
  GradientFinding about(std::size_t which, const Numbers& recorded, const Numbers& plain) {
    const std::size_t i = problem_.wanted[which];
    if (problem_.x[i].size() == 0) return finding_of(i, {GradientVerdict::constant, {}, 0});
    Numbers direction = flat<T>({random_like(problem_.x[i])});
    for (std::size_t k = 0; k < direction.size(); ++k) {
      if (recorded[k] != 0) direction[k] = std::copysign(direction[k], recorded[k]);
    }
    Line<T> line(problem_, middle_, i, direction);
    const Numbers w = flat(w_);
    const Functional phi{&w, 0};
    Judgement judgement = judge(line, i, phi, recorded);
    bool of_plain = false;
    if (agrees(judgement) && plain != recorded) {
      judgement = judge(line, i, phi, plain);
      of_plain = !agrees(judgement);
    }
    GradientFinding finding = finding_of(i, judgement);
    finding.plain = of_plain;
    if (!agrees(judgement)) find_worst_element(finding, i, phi, of_plain ? plain : recorded);
    return finding;
  }

  // Where the rule and the difference, or at a kink the two slopes, are furthest apart with the step that
  // told.
  void find_worst_element(GradientFinding& finding, std::size_t i, const Functional& phi,
                          const Numbers& rule) {
    double worst = -1;
    const bool kink = finding.verdict == GradientVerdict::kink;
    const double h = finding.step > 0 ? finding.step : resolution<T>;
    for (std::size_t k = 0; k < rule.size(); ++k) {
      Numbers direction(rule.size());
      direction[k] = 1;
      Line<T> line(problem_, middle_, i, std::move(direction));
      const Sample *sample = line.at(h), *larger = line.at(ratio * h);
      const bool finite = std::isfinite(rule[k]);
      if (!sample && finite) continue;
      Step step = sample ? step_of<T>(*sample, middle_, phi, rule) : Step();
      if (larger && finite && !kink) {  // extrapolated, so that the curve does not count
        const Step above = step_of<T>(*larger, middle_, phi, rule);
        step.slope += (step.residual - above.residual) / (ratio * ratio - 1);
      }
      double residual = std::abs(kink ? step.jump : step.slope - rule[k]);
      if (!finite) residual = std::numeric_limits<double>::infinity();
      if (!(residual > worst)) continue;
      worst = residual;
      finding.element = static_cast<Index>(k);
      finding.by_rule = rule[k];
      finding.by_difference = step.slope;
      if (finding.verdict != GradientVerdict::no_digits) finding.bound = step.doubt;
      if (kink) finding.slopes = {step.left, step.right};
    }
  }

  // The whole Jacobian of one input: each column by differences along its element, each row by a sweep.
  // Relative to the largest element of an output.
  GradientFinding element_by_element(std::size_t which, const List<T>& y, const List<T>& x,
                                     const GradientFinding& along_direction) {
    const std::size_t i = problem_.wanted[which];
    std::vector<Numbers> rows;
    Numbers largest;  // of the output that a row belongs to
    for (std::size_t o = 0; o < y.size(); ++o) {
      for (std::size_t m = 0; m < y[o].value().values().size(); ++m) {
        Array<T> seed = Array<T>::zeros(y[o].shape());
        seed.mutable_values()[m] = 1;
        rows.push_back(flat<T>(gradient_values(y[o], x[which], Var<T>(seed))));
      }
      double of_output = 0;
      for (std::size_t m = largest.size(); m < rows.size(); ++m) {
        for (const double v : rows[m]) of_output = std::max(of_output, std::abs(v));
      }
      largest.resize(rows.size(), of_output);
    }
    std::optional<GradientFinding> worst;
    double worst_error = -1;
    for (std::size_t k = 0; k < static_cast<std::size_t>(problem_.x[i].size()); ++k) {
      Numbers direction(static_cast<std::size_t>(problem_.x[i].size()));
      direction[k] = 1;
      Line<T> line(problem_, middle_, i, std::move(direction));
      for (std::size_t m = 0; m < rows.size(); ++m) {
        const Judgement judgement = judge(line, i, {nullptr, m}, rows[m], largest[m]);
        const double residual = std::abs(judgement.step.residual);
        const double error = std::isfinite(residual) ? residual : std::numeric_limits<double>::infinity();
        if (agrees(judgement) || error <= worst_error) continue;
        worst_error = error;
        worst = finding_of(i, judgement);
        worst->element = static_cast<Index>(k);
        worst->output_element = static_cast<Index>(m);
      }
    }
    return worst.value_or(along_direction);
  }

  Problem<T> problem_;
  int order_;
  const GradientCheckOptions& options_;
  Generator random_;
  Numbers middle_;  // f(x)
  Arrays<T> w_;
};

}  // namespace

template <class T>
GradientReport check_gradients(const ListFunction<T>& f, const std::vector<Array<T>>& x,
                               const GradientCheckOptions& options) {
  if (x.empty()) throw LogicError("check_gradients", "no inputs");
  if (options.order < 1)
    throw LogicError("check_gradients", "order " + std::to_string(options.order) + " < 1");
  require_finite(x, "input");
  Problem<T> problem{f, x, options.names, {}, {}, x.size()};
  for (std::size_t i = problem.names.size(); i < x.size(); ++i) {
    problem.names.push_back("input " + std::to_string(i));
  }
  problem.names.resize(x.size());
  for (const Index i : options.wanted) {
    if (i < 0 || i >= std::ssize(x)) {
      throw LogicError("check_gradients",
                       "wanted is input " + std::to_string(i) + " of " + std::to_string(x.size()));
    }
    problem.wanted.push_back(static_cast<std::size_t>(i));
  }
  if (options.wanted.empty()) {
    problem.wanted.resize(x.size());
    std::iota(problem.wanted.begin(), problem.wanted.end(), std::size_t{0});
  }
  GradientReport report;
  for (int order = 1;; ++order) {
    OrderCheck<T> check(std::move(problem), order, options);
    report.ok = check.run(report.findings);
    if (!report.ok || order == options.order) return report;
    problem = check.next();
  }
}

template GradientReport check_gradients(const ListFunction<float>&, const std::vector<Array<float>>&,
                                        const GradientCheckOptions&);
template GradientReport check_gradients(const ListFunction<double>&, const std::vector<Array<double>>&,
                                        const GradientCheckOptions&);

}  // namespace detail

}  // namespace tapehead
