#pragma once
// The gradients of a whole model, parameter by parameter, against differences of its loss.

#include <gtest/gtest.h>

#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/model.h>

#include "support/compare.h"
#include "support/differences.h"

namespace tapehead {

// Every parameter drawn anew, so that none is 0 or 1 and a gain or bias that is left out shows.
template <class Model>
Model with_random_parameters(Model model, std::uint64_t seed, double deviation = 0.7) {
  Generator random(seed);
  for_each_parameter(model, [&](const std::string&, Var<double>& parameter) {
    parameter = random.normal<double>(parameter.shape(), 0.3, deviation);
  });
  return model;
}

// loss(model) gives a Var of one element. With a step of 1e-5 the differences are off by 1e-11 |loss| from
// rounding and by 2e-11 |loss'''| from the curve; the third derivatives of these small losses stay below 1e3.
template <class Model, class Loss>
void expect_gradients_of_differences(const Model& model, Loss loss, double tolerance = 2e-8) {
  Tape<double> tape;
  const Model recorded = on_tape(tape, model);
  const auto gradients =
      gradient_values(Vars<double>(loss(recorded)), Vars<double>(parameters<double>(recorded)));
  Model moved = model;
  std::size_t i = 0;
  for_each_parameter(moved, [&](const std::string& name, Var<double>& parameter) {
    const Array<double> start = parameter.value();
    auto loss_at = [&](const Array<double>& x) {
      parameter = x;
      return loss(moved).item();
    };
    const Array<double> expected = central_differences(loss_at, start, 1e-5);
    parameter = start;
    ASSERT_LT(i, gradients.size());
    EXPECT_LE(absolute_error(gradients[i], expected), tolerance) << name << "\n"
                                                                 << gradients[i] << "\nby differences\n"
                                                                 << expected;
    EXPECT_GT(magnitude(expected), 100 * tolerance) << name << " has no gradient to speak of";
    ++i;
  });
  EXPECT_EQ(i, gradients.size());
}

}  // namespace tapehead
