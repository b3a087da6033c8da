#include <tapehead/nn/option_checks.h>
#include <tapehead/nn/schedule.h>

#include <algorithm>
#include <numbers>

namespace tapehead {
namespace {

using detail::require_not_negative;
using detail::require_steps;

// f(t), t the step as a double.
template <class F>
RateSchedule schedule(const char* op, F f) {
  return [op, f](Index step) {
    detail::require_option(step >= 0, op, "step", step, "at least 0");
    return f(static_cast<double>(step));
  };
}

double share(double t, Index steps) { return std::min(t / static_cast<double>(steps), 1.0); }

void require_schedule(const char* op, const char* name, const RateSchedule& rate) {
  if (!rate) throw LogicError(op, std::string(name) + " is empty");
}

}  // namespace

RateSchedule constant_rate(double rate) {
  require_not_negative("constant_rate", "rate", rate);
  return schedule("constant_rate", [rate](double) { return rate; });
}

RateSchedule linear_rate(const LinearRate& options) {
  require_not_negative("linear_rate", "first", options.first);
  require_not_negative("linear_rate", "last", options.last);
  require_steps("linear_rate", "steps", options.steps);
  return schedule("linear_rate",
                  [o = options](double t) { return std::lerp(o.first, o.last, share(t, o.steps)); });
}

RateSchedule cosine_rate(const CosineRate& options) {
  require_not_negative("cosine_rate", "first", options.first);
  require_not_negative("cosine_rate", "last", options.last);
  require_steps("cosine_rate", "steps", options.steps);
  return schedule("cosine_rate", [o = options](double t) {
    return o.last + (o.first - o.last) * 0.5 * (1 + std::cos(std::numbers::pi * share(t, o.steps)));
  });
}

RateSchedule step_rate(const StepRate& options) {
  require_not_negative("step_rate", "first", options.first);
  require_not_negative("step_rate", "factor", options.factor);
  require_steps("step_rate", "every", options.every);
  return schedule("step_rate", [o = options](double t) {
    return o.first * std::pow(o.factor, std::floor(t / static_cast<double>(o.every)));
  });
}

RateSchedule exponential_rate(const ExponentialRate& options) {
  require_not_negative("exponential_rate", "first", options.first);
  require_not_negative("exponential_rate", "factor", options.factor);
  return schedule("exponential_rate", [o = options](double t) { return o.first * std::pow(o.factor, t); });
}

RateSchedule in_sequence(RateSchedule before, Index steps, RateSchedule after) {
  require_schedule("in_sequence", "before", before);
  require_schedule("in_sequence", "after", after);
  require_steps("in_sequence", "steps", steps);
  return [before = std::move(before), steps, after = std::move(after)](Index step) {
    return step < steps ? before(step) : after(step - steps);
  };
}

RateSchedule warm_up(const WarmUp& options, RateSchedule after) {
  require_schedule("warm_up", "after", after);
  require_not_negative("warm_up", "start", options.start);
  require_steps("warm_up", "steps", options.steps);
  const double peak = after(0);
  return in_sequence(linear_rate({.first = options.start * peak, .last = peak, .steps = options.steps}),
                     options.steps, std::move(after));
}

}  // namespace tapehead
