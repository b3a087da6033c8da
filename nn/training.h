#pragma once
// One step of training.

#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/nn/optimizer.h>

namespace tapehead {

// Records loss(model on the tape), differentiates it and lets the optimizer step; gives the loss. The tape is
// cleared first, so a tape that lives through the training keeps its memory, and after the sweep, so that the
// parameters are updated in place. between(gradients), when given, looks at the gradients or changes them
// ahead of the step:
//
//   training_step(tape, model, optimizer, loss, [&](auto& gradients) { norm = clip_global_norm(gradients, 1);
//   });
template <std::floating_point T, class Model, class Loss, class Between>
double training_step(Tape<T>& tape, Model& model, Optimizer<T>& optimizer, Loss loss, Between between) {
  tape.clear();
  optimizer.prepare(model);
  std::vector<Array<T>> gradients;
  double value;
  {
    const Model recorded = on_tape(tape, model);
    const Var<T> y = loss(recorded);
    value = static_cast<double>(y.item());
    gradients = gradient_values(Vars<T>(y), Vars<T>(parameters<T>(recorded)));
  }
  tape.clear();
  between(gradients);
  optimizer.step(model, gradients);
  return value;
}

template <std::floating_point T, class Model, class Loss>
double training_step(Tape<T>& tape, Model& model, Optimizer<T>& optimizer, Loss loss) {
  return training_step(tape, model, optimizer, loss, [](const std::vector<Array<T>>&) {});
}

}  // namespace tapehead
