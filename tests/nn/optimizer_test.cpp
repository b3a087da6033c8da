#include <tapehead/nn/optimizer.h>

#include <gtest/gtest.h>

#include <cmath>

#include <tapehead/core/errors.h>
#include <tapehead/core/memory.h>
#include <tapehead/nn/training.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/reduction.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/golden.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;

struct Line {
  V slope, offset;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("slope", self.slope), f("offset", self.offset);
  }
};

Line random_line(std::uint64_t seed) {
  Generator random(seed);
  Line line;
  line.slope = random.normal<double>({2, 3});
  line.offset = random.normal<double>({3});
  return line;
}
std::vector<A> random_gradients(std::uint64_t seed) {
  Generator random(seed);
  std::vector<A> gradients;
  gradients.push_back(random.normal<double>({2, 3}));
  gradients.push_back(random.normal<double>({3}));
  return gradients;
}

A copy_of(const V& x) { return A::from(x.value().values(), x.shape()); }

// Under the address sanitizer every block goes back to the system at once.
bool pool_keeps_blocks() {
  A::zeros({40});
  const auto before = memory_statistics().from_system;
  A::zeros({40});
  return memory_statistics().from_system == before;
}
#define NEEDS_THE_POOL() \
  if (!pool_keeps_blocks()) GTEST_SKIP() << "no pool under the address sanitizer"

struct Single {
  V weight;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("weight", self.weight);
  }
};

Adam<double>::Options options_of(const Golden& golden) {
  Adam<double>::Options options;
  options.rate = golden.number("lr");
  options.beta1 = golden.number("beta1");
  options.beta2 = golden.number("beta2");
  options.eps = golden.number("eps");
  if (golden.has_meta("weight_decay")) options.decay = golden.number("weight_decay");
  return options;
}

A step_of(const A& steps, Index i) {
  const Shape shape = steps.shape().without(0);
  const auto size = static_cast<std::size_t>(shape.size());
  return A::from(steps.values().subspan(static_cast<std::size_t>(i) * size, size), shape);
}

class AdamGolden : public testing::TestWithParam<const char*> {};

TEST_P(AdamGolden, FollowsPyTorchStepByStep) {
  const Golden golden(GetParam());
  const A gradients = golden.array("gradients"), trace = golden.array("trace");
  Single model{golden.array("start")};
  Adam<double> adam(options_of(golden));
  for (Index i = 0; i < gradients.dim(0); ++i) {
    adam.step(model, {step_of(gradients, i)});
    EXPECT_NEAR_RELATIVE(model.weight, step_of(trace, i), 1e-13) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AdamGolden, testing::Values("optim_adam", "optim_adamw"),
                         [](const auto& name) { return std::string(name.param); });

TEST(Adam, StepsByTheRateAtFirstWhateverTheSizeOfTheGradient) {
  Line model{A::zeros({2, 3}), A::zeros({3})};
  Adam<double> adam({.rate = 0.25});
  adam.step(model, {A::full({2, 3}, 1e4), A::full({3}, -1e-2)});
  // g / (|g| + eps), eps = 1e-8: at most 1e-6 less than a sign.
  EXPECT_NEAR_RELATIVE(model.slope, A::full({2, 3}, -0.25), 1e-11);
  EXPECT_NEAR_RELATIVE(model.offset, A::full({3}, 0.25), 1.1e-6);
}

TEST(Adam, DecaysByRateTimesDecayApartFromTheGradient) {
  Single model{A::full({5}, 2)};
  Adam<double> adam({.rate = 0.1, .decay = 0.5});
  adam.step(model, {A::zeros({5})});
  EXPECT_NEAR_RELATIVE(model.weight, A::full({5}, 2 * (1 - 0.1 * 0.5)), 1e-15);
}

TEST(Adam, OfARateOfZeroChangesNothing) {
  Line model = random_line(1);
  const A before = copy_of(model.slope);
  Adam<double> adam;
  adam.set_rate(0);
  adam.step(model, random_gradients(2));
  EXPECT_SAME_NUMBERS(model.slope, before);
}

TEST(Adam, UpdatesEachParameterFromItsOwnGradient) {
  Line both = random_line(1);
  Single slope{copy_of(both.slope)}, offset{copy_of(both.offset)};
  Adam<double> adam_both, adam_slope, adam_offset;
  for (std::uint64_t seed = 2; seed < 7; ++seed) {
    const auto gradients = random_gradients(seed);
    adam_both.step(both, gradients);
    adam_slope.step(slope, {gradients[0]});
    adam_offset.step(offset, {gradients[1]});
  }
  EXPECT_SAME_NUMBERS(both.slope, slope.weight);
  EXPECT_SAME_NUMBERS(both.offset, offset.weight);
}

TEST(Adam, UpdatesInPlaceWhatItOwnsAloneAndTakesNothingFromThePool) {
  Line model = random_line(1);
  const auto gradients = random_gradients(2);
  Adam<double> adam;
  const double *slope = model.slope.value().data(), *offset = model.offset.value().data();
  adam.step(model, gradients);  // takes the room of its two averages
  reset_memory_peak();
  const auto before = memory_statistics();
  for (int i = 0; i < 3; ++i) adam.step(model, gradients);
  EXPECT_EQ(model.slope.value().data(), slope);
  EXPECT_EQ(model.offset.value().data(), offset);
  EXPECT_EQ(memory_statistics().live, before.live);
  EXPECT_EQ(memory_statistics().peak, before.live);
}

TEST(Adam, LeavesAnotherCopyOfTheModelAsItIs) {
  Line model = random_line(1);
  const Line best = model;
  const A before = copy_of(best.slope);
  Adam<double> adam;
  adam.step(model, random_gradients(2));
  EXPECT_SAME_NUMBERS(best.slope, before);
  EXPECT_FALSE(model.slope.value().shares_storage_with(best.slope.value()));
  EXPECT_GT(absolute_error(model.slope.value(), before), 0);
}

TEST(Adam, LeavesWhatATapeHoldsAsItIs) {
  Line model = random_line(1);
  Tape<double> tape;
  const Line recorded = on_tape(tape, model);
  const V y = sum(recorded.slope * recorded.slope);
  const A before = copy_of(model.slope);
  Adam<double> adam;
  adam.step(model, random_gradients(2));
  EXPECT_SAME_NUMBERS(recorded.slope, before);
  EXPECT_SAME_NUMBERS(gradient_values(y, recorded.slope)[0], (V(before) * 2.0).value());
  EXPECT_GT(absolute_error(model.slope.value(), before), 0);
}

TEST(Adam, GivesTheSameNumbersInPlaceAndOnACopy) {
  Line in_place = random_line(1), copied = random_line(1);
  Adam<double> first, second;
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    const Line held = copied;
    first.step(in_place, random_gradients(seed));
    second.step(copied, random_gradients(seed));
  }
  EXPECT_SAME_NUMBERS(copied.slope, in_place.slope);
  EXPECT_SAME_NUMBERS(copied.offset, in_place.offset);
}

TEST(Adam, CopiedWithItsModelGoesOnByItself) {
  Line model = random_line(1);
  Adam<double> adam;
  adam.step(model, random_gradients(2));
  Line other_model = model;
  Adam<double> other = adam;
  other.step(other_model, random_gradients(3));
  const A expected = copy_of(other_model.slope);
  adam.step(model, random_gradients(3));
  EXPECT_SAME_NUMBERS(model.slope, expected);
}

TEST(Adam, OfAGradientOfAnotherShapeNamesTheParameter) {
  Line model = random_line(1);
  Adam<double> adam;
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        adam.step(model, {A::ones({2, 3}), A::ones({4})});
      },
      {"Adam", "offset", "(3)", "(4)"}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        adam.step(model, {A::ones({3, 2}), A::ones({3})});
      },
      {"Adam", "slope", "(2, 3)", "(3, 2)"}));
}

TEST(Adam, OfAGradientOfAnotherShapeChangesNothing) {
  Line model = random_line(1), expected = random_line(1);
  Adam<double> adam, fresh;
  EXPECT_TRUE(raises<ShapeError>([&] { adam.step(model, {A::ones({2, 3}), A::ones({4})}); }));
  EXPECT_SAME_NUMBERS(model.slope, expected.slope);
  adam.step(model, random_gradients(2));
  fresh.step(expected, random_gradients(2));
  EXPECT_SAME_NUMBERS(model.slope, expected.slope);
}

TEST(Adam, OfAnotherNumberOfGradientsIsAnError) {
  Line model = random_line(1);
  Adam<double> adam;
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        adam.step(model, {A::ones({2, 3})});
      },
      {"Adam", "2 parameters", "1 gradients"}));
  EXPECT_TRUE(raises<LogicError>([&] { adam.step(model, {}); }, {"Adam", "0 gradients"}));
}

TEST(Adam, OfAnotherModelThanThatOfItsStateIsAnError) {
  Line model = random_line(1);
  Adam<double> adam;
  adam.step(model, random_gradients(2));
  Single fewer{A::ones({2, 3})};
  EXPECT_TRUE(raises<LogicError>([&] { adam.step(fewer, {A::ones({2, 3})}); }, {"Adam", "1 parameters"}));
  Line smaller{A::ones({2, 2}), A::ones({3})};
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        adam.step(smaller, {A::ones({2, 2}), A::ones({3})});
      },
      {"Adam", "slope", "(2, 2)", "(2, 3)"}));
}

TEST(Adam, IsTheSameOnAnyNumberOfThreads) {
  expect_same_bits_on_any_threads([] {
    Generator random(1);
    Single model{random.normal<double>({3, 50001})};
    Adam<double> adam({.decay = 0.1});
    for (int i = 0; i < 3; ++i) adam.step(model, {random.normal<double>({3, 50001})});
    return std::vector<A>{model.weight.value()};
  });
}

TEST(CosineRate, RisesLinearlyToItsPeak) {
  for (Index step = 0; step < 4; ++step) {
    EXPECT_DOUBLE_EQ(cosine_rate(step, 20, 2.0, 0.5, 4), 2.0 * static_cast<double>(step + 1) / 4);
  }
}

TEST(CosineRate, WithoutWarmupIsThatOfPyTorch) {
  const A expected = Golden("optim_schedules").array("cosine");
  for (Index step = 0; step < expected.dim(0); ++step) {
    EXPECT_NEAR(cosine_rate(step, 20, 1.0, 0.1, 0), expected(step), 1e-14) << "step " << step;
  }
}

TEST(CosineRate, IsHalfWayInTheMiddleAndLastAtTheEndAndBeyond) {
  EXPECT_DOUBLE_EQ(cosine_rate(4, 20, 2.0, 0.5, 4), 2.0);
  EXPECT_DOUBLE_EQ(cosine_rate(12, 20, 2.0, 0.5, 4), 1.25);
  EXPECT_DOUBLE_EQ(cosine_rate(20, 20, 2.0, 0.5, 4), 0.5);
  EXPECT_DOUBLE_EQ(cosine_rate(1000, 20, 2.0, 0.5, 4), 0.5);
}

TEST(CosineRate, NeverRisesAfterTheWarmup) {
  for (Index step = 5; step < 30; ++step) {
    EXPECT_LE(cosine_rate(step, 30, 1.0, 0.01, 5), cosine_rate(step - 1, 30, 1.0, 0.01, 5))
        << "step " << step;
  }
}

TEST(CosineRate, OfAWarmupAsLongAsTheRunIsFinite) {
  EXPECT_DOUBLE_EQ(cosine_rate(2, 3, 1.5, 0.1, 3), 1.5);
  EXPECT_TRUE(std::isfinite(cosine_rate(3, 3, 1.5, 0.1, 3)));
  EXPECT_DOUBLE_EQ(cosine_rate(0, 1, 1.5, 0.1, 1), 1.5);
}

// Points of a line that a Line can meet exactly.
struct Points {
  V x, y;
};
Points points_on(const Line& line) {
  Generator random(9);
  const V x = random.normal<double>({7, 2});
  return {x, projection(x, line.slope, line.offset)};
}
V squares(const Line& line, const Points& points) {
  const V difference = projection(points.x, line.slope, line.offset) - points.y;
  return mean(difference * difference);
}

TEST(TrainingStep, LowersTheLossOfATinyProblemToNothing) {
  const Points points = points_on(random_line(1));
  Line model = random_line(2);
  Tape<double> tape;
  Adam<double> adam({.rate = 0.05});
  auto loss = [&](const Line& line) { return squares(line, points); };
  const double first = training_step(tape, model, adam, loss);
  double last = first;
  for (int i = 0; i < 400; ++i) last = training_step(tape, model, adam, loss);
  EXPECT_GT(first, 0.1);
  EXPECT_LT(last, 1e-4 * first);
}

TEST(TrainingStep, GivesTheLossBeforeTheStepAndMovesAgainstTheGradient) {
  const Points points = points_on(random_line(1));
  Line model = random_line(2);
  const Line before{copy_of(model.slope), copy_of(model.offset)};
  Tape<double> tape;
  Adam<double> adam({.rate = 1e-3});
  const double loss =
      training_step(tape, model, adam, [&](const Line& line) { return squares(line, points); });
  EXPECT_EQ(loss, squares(before, points).item());
  const Line recorded = on_tape(tape, before);
  const A d = gradient_values(squares(recorded, points), recorded.slope)[0];
  for (std::size_t i = 0; i < 6; ++i) {  // the first step of Adam is the rate, against the sign
    const double moved = model.slope.value().values()[i] - before.slope.value().values()[i];
    EXPECT_NEAR(moved, d.values()[i] > 0 ? -1e-3 : 1e-3, 1e-8);
  }
}

TEST(TrainingStep, UpdatesTheModelInPlaceAndLeavesItUnrecorded) {
  const Points points = points_on(random_line(1));
  Line model = random_line(2);
  Tape<double> tape;
  Adam<double> adam;
  const double* slope = model.slope.value().data();
  for (int i = 0; i < 3; ++i)
    training_step(tape, model, adam, [&](const Line& line) { return squares(line, points); });
  EXPECT_EQ(model.slope.value().data(), slope);
  EXPECT_FALSE(model.slope.recorded());
  EXPECT_EQ(tape.size(), 0);
}

TEST(TrainingStep, TakesNothingFromTheSystemAfterTheSecond) {
  NEEDS_THE_POOL();
  Generator random(1);
  auto model = CausalModel<float>::initial(
      random, {.vocabulary = 7, .context = 6, .width = 12, .heads = 3, .layers = 2, .hidden = 20});
  Tape<float> tape;
  Adam<float> adam;
  auto step = [&] {
    const Array<Index> tokens = random.integers({5, 6}, 7), targets = random.integers({5, 6}, 7);
    training_step(tape, model, adam, [&](const auto& m) { return cross_entropy(m(tokens), targets); });
  };
  step(), step();
  const auto before = memory_statistics();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(memory_statistics().from_system, before.from_system);
  EXPECT_EQ(memory_statistics().live, before.live);
}

TEST(TrainingStep, OfALossThatThrowsLeavesTheModelAndCanBeRepeated) {
  const Points points = points_on(random_line(1));
  Line model = random_line(2);
  const A before = copy_of(model.slope);
  Tape<double> tape;
  Adam<double> adam;
  auto failing = [&](const Line& line) -> V {
    squares(line, points);
    throw DomainError("test", "no loss");
  };
  EXPECT_TRUE(raises<DomainError>([&] { training_step(tape, model, adam, failing); }, {"no loss"}));
  EXPECT_SAME_NUMBERS(model.slope, before);
  const double loss =
      training_step(tape, model, adam, [&](const Line& line) { return squares(line, points); });
  EXPECT_TRUE(std::isfinite(loss));
  EXPECT_GT(absolute_error(model.slope.value(), before), 0);
}

TEST(TrainingStep, OfALossOfSeveralElementsIsAnError) {
  Line model = random_line(2);
  Tape<double> tape;
  Adam<double> adam;
  EXPECT_TRUE(raises<ShapeError>(
      [&] { training_step(tape, model, adam, [](const Line& line) { return line.offset; }); }, {"(3)"}));
}

}  // namespace
}  // namespace tapehead
