#include <tools/contract/trial.h>

#include <algorithm>
#include <cmath>

namespace tapehead::contract {
namespace {

// How much of its bound an error takes: what two errors are compared by.
double weight(double error, double bound) {
  if (error == 0) return 0;
  return std::isnan(error) || bound == 0 ? HUGE_VAL : error / bound;
}

// The largest distance from the explicit formulas, in units of what rounding may leave.
double distance(const Run& run, Number number) {
  const Answer expected = formulas(run.problem);
  const Magnitudes size = magnitudes(run.problem);
  const double bound = rounding(run.problem, number);
  double most = 0;
  auto look = [&](const Array<double>& got, const Array<double>& right, double magnitude) {
    for (Index n = 0; n < std::min(got.size(), right.size()); ++n) {
      const double error = got.data()[n] == right.data()[n] ? 0 : std::abs(got.data()[n] - right.data()[n]);
      most = std::max(most, std::isnan(error) ? HUGE_VAL : weight(error, bound * magnitude));
    }
  };
  look(run.answer.output, expected.output, size.output);
  look(run.answer.dquery, expected.dquery, size.dquery);
  look(run.answer.dkey, expected.dkey, size.dkey);
  look(run.answer.dvalue, expected.dvalue, size.dvalue);
  return most;
}

}  // namespace

Run Trial::evidence() const {
  const std::vector<Run>& runs = worst_.value().runs;
  std::size_t chosen = runs.size() - 1;
  constexpr double clearly = 100;
  double most = clearly;  // below which it is the last one, whose number it was
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double d = distance(runs[i], number());
    const double counted = std::isfinite(d) ? d : 2 * clearly;  // NaN says little: another goes before it
    if (counted > most) most = counted, chosen = i;
  }
  return runs.at(chosen);
}

void Trial::within(double error, double bound, const std::string& where) {
  if (worst_ && weight(error, bound) <= weight(worst_->error, worst_->bound)) return;
  worst_ = Worst{error, bound, where, {}};
  if (worst_->fails()) worst_->runs = runs_;
}

void Trial::compare_answers(const Run& run, const std::string& what, const Answer& expected) {
  const Magnitudes size = magnitudes(run.problem);
  const Answer& got = run.answer;
  compare("output" + what, got.output, expected.output, 2 * rounding(run.problem) * size.output);
  if (!got.dquery.defined() || !expected.dquery.defined()) return;
  const double bound = 2 * gradient_rounding(run.problem);
  compare("dquery" + what, got.dquery, expected.dquery, bound * size.dquery);
  compare("dkey" + what, got.dkey, expected.dkey, bound * size.dkey);
  compare("dvalue" + what, got.dvalue, expected.dvalue, bound * size.dvalue);
}

void Trial::compare(std::string_view what, const Array<double>& got, const Array<double>& expected,
                    double bound) {
  if (got.shape() != expected.shape()) {
    return within(HUGE_VAL, bound,
                  fmt::format("{} has shape {}, expected {}", what, to_string(got.shape()),
                              to_string(expected.shape())));
  }
  double error = 0;
  Index worst = 0;
  for (Index n = 0; n < got.size(); ++n) {
    const double x = got.data()[n], y = expected.data()[n];
    const double distance = x == y ? 0 : std::abs(x - y);
    if (distance <= error) continue;
    error = std::isnan(distance) ? HUGE_VAL : distance, worst = n;
    if (std::isnan(distance)) break;
  }
  if (got.size() == 0) return;
  within(error, bound,
         fmt::format("{} at {} is {:.7g}, expected {:.7g}", what, position_text(got.shape(), worst),
                     got.data()[worst], expected.data()[worst]));
}

void Trial::same(std::string_view what, const Array<double>& got, const Array<double>& expected) {
  for (Index n = 0; n < got.size(); ++n) {
    const double x = got.data()[n], y = expected.data()[n];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double distance = std::isfinite(x - y) ? std::abs(x - y) : HUGE_VAL;
    return within(distance, 0,
                  fmt::format("{} at {} is {:.9g}, expected exactly {:.9g}", what,
                              position_text(got.shape(), n), x, y));
  }
  within(0, 0, {});
}

}  // namespace tapehead::contract
