#pragma once
// The backward pass one node at a time, with the partial sums of each gradient: what gradient() does, slowly.

#include <functional>
#include <vector>

#include <tapehead/core/gradient.h>

namespace tapehead {

// What a rule gives to one input of its node.
template <std::floating_point T>
struct StepContribution {
  Index to = 0;        // the node
  Index argument = 0;  // which argument of the op it is
  Array<T> dx;
  Array<T> sum;  // of all that this node has been given so far
};

// One node whose gradient is complete, and what its rules make of it.
template <std::floating_point T>
struct BackwardStep {
  Index node = 0;
  Array<T> dy;
  std::vector<StepContribution<T>> contributions;
};

// Calls on_step for each node between y and x, from the end of the tape to its start, in the order in which
// gradient_values(y, x) takes them and with the sums that it forms, bit for bit. Records nothing. Throws as
// gradient() does.
void backward_steps(const Var<float>& y, Vars<float> x,
                    const std::function<void(const BackwardStep<float>&)>& on_step);
void backward_steps(const Var<double>& y, Vars<double> x,
                    const std::function<void(const BackwardStep<double>&)>& on_step);

}  // namespace tapehead
