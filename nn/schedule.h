#pragma once
// How the learning rate goes: a function of the step, and ways to put one after another.
//
//   const RateSchedule rate = warm_up({.steps = 100, .start = 0.1}, cosine_rate({.first = 1e-3, .steps =
//   900})); optimizer.set_rate(rate(optimizer.steps()));

#include <functional>

#include <tapehead/core/shape.h>

namespace tapehead {

// The rate of a step, steps counted from 0. It depends on nothing else, so a run can go on anywhere. The
// functions below make one; it throws DomainError for a negative step. Each of them throws DomainError,
// naming the option, unless rates and factors are finite and at least 0 and numbers of steps at least 1.
using RateSchedule = std::function<double(Index step)>;

RateSchedule constant_rate(double rate);

// first + (last - first) t / steps, and `last` from step `steps` on.
// PyTorch's LinearLR with first = base start_factor and last = base end_factor.
struct LinearRate {
  double first, last;
  Index steps;
};
RateSchedule linear_rate(const LinearRate& options);

// last + (first - last) (1 + cos(pi t / steps)) / 2, and `last` from step `steps` on. PyTorch's
// CosineAnnealingLR until there (that one rises again). Loshchilov and Hutter, "SGDR", 2017, equation 5.
struct CosineRate {
  double first, last = 0;
  Index steps;
};
RateSchedule cosine_rate(const CosineRate& options);

// first factor^(t / every), the quotient rounded down. PyTorch's StepLR.
struct StepRate {
  double first, factor;
  Index every;
};
RateSchedule step_rate(const StepRate& options);

// first factor^t. PyTorch's ExponentialLR.
struct ExponentialRate {
  double first, factor;
};
RateSchedule exponential_rate(const ExponentialRate& options);

// before(t) for the first `steps` steps, then after(t - steps). PyTorch's SequentialLR.
RateSchedule in_sequence(RateSchedule before, Index steps, RateSchedule after);

// A linear rise from `start` times the first rate of `after` to that rate, which step `steps` has, and from
// there `after`. PyTorch's SequentialLR of LinearLR and another.
struct WarmUp {
  Index steps;
  double start = 1.0 / 3;
};
RateSchedule warm_up(const WarmUp& options, RateSchedule after);

}  // namespace tapehead
