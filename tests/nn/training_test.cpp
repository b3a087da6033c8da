#include <tapehead/nn/training.h>

#include <gtest/gtest.h>

#include <cmath>

#include <tapehead/core/errors.h>
#include <tapehead/core/memory.h>
#include <tapehead/nn/clip.h>
#include <tapehead/nn/schedule.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/reduction.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/line_model.h"
#include "support/pool.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;

// Points of a line that a Line can meet exactly, and how far from them another one is.
class TrainingStep : public testing::Test {
 protected:
  V loss(const Line<double>& line) const {
    const V difference = projection(x_, line.slope, line.offset) - y_;
    return mean(difference * difference);
  }
  auto loss_function() const {
    return [this](const Line<double>& line) { return loss(line); };
  }
  std::vector<A> gradients(const Line<double>& line) const {
    Tape<double> tape;
    const Line<double> recorded = on_tape(tape, line);
    return gradient_values(Vars<double>(loss(recorded)), Vars<double>(parameters<double>(recorded)));
  }

  Line<double> model_ = random_line<double>(2);
  Tape<double> tape_;

 private:
  const Line<double> line_ = random_line<double>(1);
  const V x_ = Generator(9).normal<double>({7, 2});
  const V y_ = projection(x_, line_.slope, line_.offset);
};

TEST_F(TrainingStep, LowersTheLossOfATinyProblemToNothingWithAnyOptimizer) {
  Adam<double> adam({.rate = 0.05});
  AdamW<double> adamw({.rate = 0.05, .decay = 1e-6});
  Sgd<double> sgd({.rate = 0.1, .momentum = 0.9, .nesterov = true});
  for (Optimizer<double>* optimizer :
       {static_cast<Optimizer<double>*>(&adam), static_cast<Optimizer<double>*>(&adamw),
        static_cast<Optimizer<double>*>(&sgd)}) {
    model_ = random_line<double>(2);
    const double first = training_step(tape_, model_, *optimizer, loss_function());
    double last = first;
    for (int i = 0; i < 400; ++i) last = training_step(tape_, model_, *optimizer, loss_function());
    EXPECT_GT(first, 0.1);
    EXPECT_LT(last, 1e-4 * first);
  }
}

TEST_F(TrainingStep, GivesTheLossBeforeTheStepAndMovesAgainstTheGradient) {
  const Line<double> before = copy_of(model_);
  const auto d = gradients(before);
  Sgd<double> sgd({.rate = 0.25});
  EXPECT_EQ(training_step(tape_, model_, sgd, loss_function()), loss(before).item());
  EXPECT_NEAR_RELATIVE(model_.slope, (before.slope - 0.25 * V(d[0])).value(), 1e-15);
  EXPECT_NEAR_RELATIVE(model_.offset, (before.offset - 0.25 * V(d[1])).value(), 1e-15);
}

TEST_F(TrainingStep, StepsWithWhatIsLeftOfTheGradientsBetween) {
  const Line<double> before = copy_of(model_);
  auto d = gradients(before);
  const double expected_norm = clip_global_norm(d, 0.1);
  Sgd<double> sgd({.rate = 1});
  double norm = 0;
  training_step(tape_, model_, sgd, loss_function(),
                [&](std::vector<A>& gradients) { norm = clip_global_norm(gradients, 0.1); });
  EXPECT_GT(expected_norm, 0.2);
  EXPECT_EQ(norm, expected_norm);
  EXPECT_NEAR_RELATIVE(model_.slope, (before.slope - V(d[0])).value(), 1e-15);
  EXPECT_NEAR_RELATIVE(model_.offset, (before.offset - V(d[1])).value(), 1e-15);
}

TEST_F(TrainingStep, OfAFailureBetweenLeavesTheModelAndCanBeRepeated) {
  const Line<double> before = copy_of(model_);
  Adam<double> adam;
  auto spoilt = [](std::vector<A>& gradients) {
    gradients[1].set({0}, std::nan(""));
    clip_global_norm(gradients, 1);
  };
  EXPECT_TRUE(raises<DomainError>([&] { training_step(tape_, model_, adam, loss_function(), spoilt); },
                                  {"clip_global_norm", "gradient 1"}));
  EXPECT_EQ(adam.steps(), 0);
  EXPECT_SAME_NUMBERS(model_.slope, before.slope);
  EXPECT_EQ(training_step(tape_, model_, adam, loss_function()), loss(before).item());
}

// Model, optimizer and schedule as they would be written to a file after some steps: the rest is the same.
TEST_F(TrainingStep, GoesOnAfterAnInterruptionWithTheSameBits) {
  const RateSchedule rate = warm_up({.steps = 5}, cosine_rate({.first = 0.1, .steps = 15}));
  auto run = [&](Line<double>& model, Optimizer<double>& optimizer, Index until) {
    Tape<double> tape;
    std::vector<double> losses;
    while (optimizer.steps() < until) {
      optimizer.set_rate(rate(optimizer.steps()));
      losses.push_back(training_step(tape, model, optimizer, loss_function(),
                                     [](std::vector<A>& gradients) { clip_global_norm(gradients, 1); }));
    }
    return losses;
  };
  Line<double> interrupted = copy_of(model_);
  AdamW<double> whole, first;
  const auto expected = run(model_, whole, 20);
  run(interrupted, first, 8);
  const auto state = first.state(interrupted);
  Line<double> resumed = copy_of(interrupted);
  AdamW<double> second;
  second.load(resumed, state);
  const auto losses = run(resumed, second, 20);
  EXPECT_EQ(losses, std::vector<double>(expected.begin() + 8, expected.end()));
  EXPECT_SAME_NUMBERS(resumed.slope, model_.slope);
  EXPECT_SAME_NUMBERS(resumed.offset, model_.offset);
}

TEST_F(TrainingStep, UpdatesTheModelInPlaceAndLeavesItUnrecorded) {
  Adam<double> adam;
  const double* slope = model_.slope.value().data();
  for (int i = 0; i < 3; ++i) training_step(tape_, model_, adam, loss_function());
  EXPECT_EQ(model_.slope.value().data(), slope);
  EXPECT_FALSE(model_.slope.recorded());
  EXPECT_EQ(tape_.size(), 0);
}

TEST(TrainingStepOfAModel, TakesNothingFromTheSystemAfterTheFirst) {
  NEEDS_THE_POOL();
  Generator random(1);
  auto model = CausalModel<float>::initial(
      random, {.vocabulary = 7, .context = 6, .width = 12, .heads = 3, .layers = 2, .hidden = 20});
  Tape<float> tape;
  Adam<float> adam;
  auto step = [&] {
    const Array<Index> tokens = random.integers({5, 6}, 7), targets = random.integers({5, 6}, 7);
    training_step(
        tape, model, adam, [&](const auto& m) { return cross_entropy(m(tokens), targets); },
        [](auto& gradients) { clip_global_norm(gradients, 0.1); });
  };
  step();
  const auto before = memory_statistics();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(memory_statistics().from_system, before.from_system);
  EXPECT_EQ(memory_statistics().live, before.live);
}

TEST_F(TrainingStep, OfALossThatThrowsLeavesTheModelAndCanBeRepeated) {
  const Line<double> before = copy_of(model_);
  Adam<double> adam;
  auto failing = [&](const Line<double>& line) -> V {
    loss(line);
    throw DomainError("test", "no loss");
  };
  EXPECT_TRUE(raises<DomainError>([&] { training_step(tape_, model_, adam, failing); }, {"no loss"}));
  EXPECT_SAME_NUMBERS(model_.slope, before.slope);
  EXPECT_EQ(training_step(tape_, model_, adam, loss_function()), loss(before).item());
  EXPECT_GT(absolute_error(model_.slope.value(), before.slope.value()), 0);
}

TEST_F(TrainingStep, OfALossOfSeveralElementsIsAnError) {
  Adam<double> adam;
  EXPECT_TRUE(raises<ShapeError>(
      [&] { training_step(tape_, model_, adam, [](const Line<double>& line) { return line.offset; }); },
      {"(3)"}));
}

}  // namespace
}  // namespace tapehead
