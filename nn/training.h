#pragma once
// One step of training, and how the learning rate goes.

#include <algorithm>
#include <cmath>
#include <numbers>

#include <tapehead/core/gradient.h>
#include <tapehead/nn/optimizer.h>

namespace tapehead {

// Records loss(model on the tape), differentiates it and lets the optimizer step; gives the loss. The tape is
// cleared first, so a tape that lives through the training keeps its memory, and after the sweep, so that the
// parameters are updated in place.
template <std::floating_point T, class Model, class Loss>
double training_step(Tape<T>& tape, Model& model, Adam<T>& optimizer, Loss loss) {
  tape.clear();
  std::vector<Array<T>> gradients;
  double value;
  {
    const Model recorded = on_tape(tape, model);
    const Var<T> y = loss(recorded);
    value = static_cast<double>(y.item());
    gradients = gradient_values(Vars<T>(y), Vars<T>(parameters<T>(recorded)));
  }
  tape.clear();
  optimizer.step(model, gradients);
  return value;
}

// A linear rise to `peak` over the first `warmup` steps, then half a cosine down towards `last`, which step
// number `steps`, one past the final one, would have.
inline double cosine_rate(Index step, Index steps, double peak, double last, Index warmup) {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double done =
      static_cast<double>(step - warmup) / static_cast<double>(std::max<Index>(steps - warmup, 1));
  return last + (peak - last) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(done, 1.0)));
}

}  // namespace tapehead
