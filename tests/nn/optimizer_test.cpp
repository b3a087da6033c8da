#include <tapehead/nn/optimizer.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>
#include <tapehead/nn/safetensors.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/line_model.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using A = Array<double>;

// A rule of one's own: against the sign of a running sum, which it keeps.
class SignDescent : public Optimizer<double> {
 public:
  explicit SignDescent(std::vector<std::string> kept = {"total"})
      : Optimizer("SignDescent", 0.5, std::move(kept)) {}

 private:
  void update(const Elements& x) const override {
    for (std::size_t i = 0; i < x.parameter.size(); ++i) {
      x.kept[0][i] += x.gradient[i];
      x.parameter[i] -= rate() / static_cast<double>(steps()) * (x.kept[0][i] < 0 ? -1 : 1);
    }
  }
};

TEST(OwnRule, IsGivenItsKeptArraysAndTheNumberOfTheStep) {
  Single<double> model{A::of({0, 0})};
  SignDescent descent;
  descent.step(model, {A::of({-1, 2})});
  descent.step(model, {A::of({3, -1})});
  EXPECT_SAME_NUMBERS(model.weight, A::of({0.5 - 0.25, -0.5 - 0.25}));
  const auto state = descent.state(model);
  ASSERT_EQ(state.arrays.size(), 1u);
  EXPECT_EQ(state.arrays[0].first, "weight.total");
  EXPECT_SAME_NUMBERS(state.arrays[0].second, A::of({2, 1}));
  EXPECT_TRUE(raises<LogicError>([] { SignDescent({"a", "b", "c", "d", "e"}); }, {"SignDescent", "5", "4"}));
}

// ---- What all have in common

template <class Scalar>
struct PlainSgd {
  using T = Scalar;
  static Sgd<T> make() { return Sgd<T>({.rate = 0.1, .decay = 0.1}); }
  static constexpr const char* name = "Sgd";
  static std::vector<std::string> kept() { return {}; }
};
template <class Scalar>
struct Momentum {
  using T = Scalar;
  static Sgd<T> make() { return Sgd<T>({.rate = 0.1, .momentum = 0.9, .nesterov = true}); }
  static constexpr const char* name = "Sgd";
  static std::vector<std::string> kept() { return {"velocity"}; }
};
template <class Scalar>
struct PlainAdam {
  using T = Scalar;
  static Adam<T> make() { return Adam<T>({.rate = 0.1, .decay = 0.1}); }
  static constexpr const char* name = "Adam";
  static std::vector<std::string> kept() { return {"mean", "square"}; }
};
template <class Scalar>
struct DecoupledAdam {
  using T = Scalar;
  static AdamW<T> make() { return AdamW<T>({.rate = 0.1, .decay = 0.1}); }
  static constexpr const char* name = "AdamW";
  static std::vector<std::string> kept() { return {"mean", "square"}; }
};

template <class Kind>
class EveryOptimizer : public testing::Test {
 protected:
  using Real = typename Kind::T;

  static Line<Real> line(std::uint64_t seed) { return random_line<Real>(seed); }
  static std::vector<Array<Real>> gradients(std::uint64_t seed) { return random_line_gradients<Real>(seed); }
  static Array<Real> ones(const Shape& shape) { return Array<Real>::ones(shape); }

  // Steps with the gradients of seeds from `from` up to, but without, `to`.
  template <class Any>
  static void steps(Any& optimizer, Line<Real>& model, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t seed = from; seed < to; ++seed) optimizer.step(model, gradients(seed));
  }
  static void expect_same_bits(const Line<Real>& a, const Line<Real>& b) {
    EXPECT_TRUE(same_bits(a.slope.value(), b.slope.value()));
    EXPECT_TRUE(same_bits(a.offset.value(), b.offset.value()));
  }
};
using Kinds =
    testing::Types<PlainSgd<float>, PlainSgd<double>, Momentum<float>, Momentum<double>, PlainAdam<float>,
                   PlainAdam<double>, DecoupledAdam<float>, DecoupledAdam<double>>;
TYPED_TEST_SUITE(EveryOptimizer, Kinds);

TYPED_TEST(EveryOptimizer, OfARateOfZeroChangesNothing) {
  auto model = this->line(1);
  const auto before = copy_of(model);
  auto optimizer = TypeParam::make();
  optimizer.set_rate(0);
  this->steps(optimizer, model, 2, 4);
  EXPECT_SAME_NUMBERS(model.slope, before.slope);
  EXPECT_SAME_NUMBERS(model.offset, before.offset);
}

TYPED_TEST(EveryOptimizer, UpdatesEachParameterFromItsOwnGradient) {
  using T = typename TypeParam::T;
  auto both = this->line(1);
  Single<T> slope{copy_of(both.slope)}, offset{copy_of(both.offset)};
  auto of_both = TypeParam::make(), of_slope = TypeParam::make(), of_offset = TypeParam::make();
  for (std::uint64_t seed = 2; seed < 7; ++seed) {
    const auto gradients = this->gradients(seed);
    of_both.step(both, gradients);
    of_slope.step(slope, {gradients[0]});
    of_offset.step(offset, {gradients[1]});
  }
  EXPECT_SAME_NUMBERS(both.slope, slope.weight);
  EXPECT_SAME_NUMBERS(both.offset, offset.weight);
}

TYPED_TEST(EveryOptimizer, UpdatesInPlaceWhatItOwnsAloneAndTakesNothingFromThePool) {
  auto model = this->line(1);
  const auto gradients = this->gradients(2);
  auto optimizer = TypeParam::make();
  const auto *slope = model.slope.value().data(), *offset = model.offset.value().data();
  optimizer.step(model, gradients);  // takes the room of what it keeps
  reset_memory_peak();
  const auto before = memory_statistics();
  for (int i = 0; i < 3; ++i) optimizer.step(model, gradients);
  EXPECT_EQ(model.slope.value().data(), slope);
  EXPECT_EQ(model.offset.value().data(), offset);
  EXPECT_EQ(memory_statistics().live, before.live);
  EXPECT_EQ(memory_statistics().peak, before.live);
}

TYPED_TEST(EveryOptimizer, LeavesAnotherCopyOfTheModelAsItIs) {
  auto model = this->line(1);
  const auto best = model;
  const auto before = copy_of(best);
  auto optimizer = TypeParam::make();
  optimizer.step(model, this->gradients(2));
  EXPECT_SAME_NUMBERS(best.slope, before.slope);
  EXPECT_FALSE(model.slope.value().shares_storage_with(best.slope.value()));
  EXPECT_GT(absolute_error(model.slope.value(), before.slope.value()), 0);
}

TYPED_TEST(EveryOptimizer, LeavesWhatATapeHoldsAsItIs) {
  using T = typename TypeParam::T;
  auto model = this->line(1);
  Tape<T> tape;
  const auto recorded = on_tape(tape, model);
  const Var<T> y = sum(recorded.slope * recorded.slope);
  const auto before = copy_of(model);
  auto optimizer = TypeParam::make();
  optimizer.step(model, this->gradients(2));
  EXPECT_SAME_NUMBERS(recorded.slope, before.slope);
  EXPECT_SAME_NUMBERS(gradient_values(y, recorded.slope)[0], before.slope * T{2});
  EXPECT_GT(absolute_error(model.slope.value(), before.slope.value()), 0);
}

TYPED_TEST(EveryOptimizer, TakesAGradientThatIsTheParameterItself) {
  using T = typename TypeParam::T;
  Single<T> shared{this->ones({5})}, apart{this->ones({5})};
  auto first = TypeParam::make(), second = TypeParam::make();
  first.step(shared, {shared.weight.value()});
  second.step(apart, {this->ones({5})});
  EXPECT_SAME_NUMBERS(shared.weight, apart.weight);
}

TYPED_TEST(EveryOptimizer, GivesTheSameNumbersInPlaceAndOnACopy) {
  auto in_place = this->line(1), copied = this->line(1);
  auto first = TypeParam::make(), second = TypeParam::make();
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    const auto held = copied;
    first.step(in_place, this->gradients(seed));
    second.step(copied, this->gradients(seed));
  }
  this->expect_same_bits(copied, in_place);
}

TYPED_TEST(EveryOptimizer, CopiedWithItsModelGoesOnByItself) {
  auto model = this->line(1);
  auto optimizer = TypeParam::make();
  this->steps(optimizer, model, 2, 3);
  auto other_model = model;
  auto other = optimizer;
  this->steps(other, other_model, 3, 5);
  const auto expected = copy_of(other_model);
  this->steps(optimizer, model, 3, 5);
  this->expect_same_bits(model, expected);
}

TYPED_TEST(EveryOptimizer, IsTheSameOnAnyNumberOfThreads) {
  using T = typename TypeParam::T;
  expect_same_bits_on_any_threads([] {
    Generator random(1);
    Single<T> model{random.normal<T>({3, 50001})};
    auto optimizer = TypeParam::make();
    for (int i = 0; i < 3; ++i) optimizer.step(model, {random.normal<T>({3, 50001})});
    return std::vector<Array<T>>{model.weight.value()};
  });
}

// A long array is worked on in pieces; a short one holds the same numbers in one.
TYPED_TEST(EveryOptimizer, UpdatesEveryElementOfALongArray) {
  using T = typename TypeParam::T;
  constexpr std::size_t part = 1000, count = 100;
  Generator random(1);
  const auto start = random.normal<T>({part}), gradient = random.normal<T>({part});
  std::vector<T> starts, gradients;
  for (std::size_t i = 0; i < count; ++i) {
    starts.insert(starts.end(), start.values().begin(), start.values().end());
    gradients.insert(gradients.end(), gradient.values().begin(), gradient.values().end());
  }
  Single<T> once{start}, often{Array<T>::from(starts)};
  auto first = TypeParam::make(), second = TypeParam::make();
  for (int i = 0; i < 2; ++i) {
    first.step(once, {gradient});
    second.step(often, {Array<T>::from(gradients)});
  }
  for (std::size_t i = 0; i < part * count; ++i) {
    ASSERT_EQ(often.weight.value().values()[i], once.weight.value().values()[i % part]) << i;
  }
}

TYPED_TEST(EveryOptimizer, OfAGradientOfAnotherShapeNamesTheParameter) {
  auto model = this->line(1);
  auto optimizer = TypeParam::make();
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        optimizer.step(model, {this->ones({2, 3}), this->ones({4})});
      },
      {TypeParam::name, "offset", "(3)", "(4)"}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        optimizer.step(model, {this->ones({3, 2}), this->ones({3})});
      },
      {TypeParam::name, "slope", "(2, 3)", "(3, 2)"}));
}

TYPED_TEST(EveryOptimizer, OfAGradientOfAnotherShapeChangesNothing) {
  auto model = this->line(1), expected = this->line(1);
  auto optimizer = TypeParam::make(), fresh = TypeParam::make();
  EXPECT_TRUE(raises<ShapeError>([&] { optimizer.step(model, {this->ones({2, 3}), this->ones({4})}); }));
  EXPECT_EQ(optimizer.steps(), 0);
  this->expect_same_bits(model, expected);
  this->steps(optimizer, model, 2, 3);
  this->steps(fresh, expected, 2, 3);
  this->expect_same_bits(model, expected);
}

TYPED_TEST(EveryOptimizer, OfAnotherNumberOfGradientsIsAnError) {
  auto model = this->line(1);
  auto optimizer = TypeParam::make();
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        optimizer.step(model, {this->ones({2, 3})});
      },
      {TypeParam::name, "2 parameters", "1 gradients"}));
  EXPECT_TRUE(raises<LogicError>([&] { optimizer.step(model, {}); }, {TypeParam::name, "0 gradients"}));
}

TYPED_TEST(EveryOptimizer, OfAnotherModelThanThatOfItsStateIsAnError) {
  using T = typename TypeParam::T;
  if (TypeParam::kept().empty()) return;  // a rule that keeps nothing fits any model
  auto model = this->line(1);
  auto optimizer = TypeParam::make();
  this->steps(optimizer, model, 2, 3);
  Single<T> fewer{this->ones({2, 3})};
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        optimizer.step(fewer, {this->ones({2, 3})});
      },
      {TypeParam::name, "1 parameters"}));
  EXPECT_TRUE(raises<LogicError>([&] { optimizer.state(fewer); }, {TypeParam::name}));
  Line<T> smaller{this->ones({2, 2}), this->ones({3})};
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        optimizer.step(smaller, {this->ones({2, 2}), this->ones({3})});
      },
      {TypeParam::name, "slope", "(2, 2)", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { optimizer.state(smaller); }, {TypeParam::name, "slope", "(2, 2)"}));
  EXPECT_EQ(optimizer.steps(), 1);
}

TYPED_TEST(EveryOptimizer, RefusesARateThatIsNegativeOrNotFinite) {
  auto optimizer = TypeParam::make();
  for (const double rate : {-1e-3, HUGE_VAL, std::nan("")}) {
    EXPECT_TRUE(raises<DomainError>([&] { optimizer.set_rate(rate); }, {TypeParam::name, "rate"}));
  }
  EXPECT_EQ(optimizer.rate(), 0.1);
}

// ---- The state

TYPED_TEST(EveryOptimizer, NamesItsStateAfterParametersInTheirOrder) {
  auto model = this->line(1);
  auto optimizer = TypeParam::make();
  this->steps(optimizer, model, 2, 5);
  const auto before = memory_statistics().live;
  const auto state = optimizer.state(model);
  EXPECT_EQ(memory_statistics().live, before);  // no array was copied
  EXPECT_EQ(state.steps, 3);
  std::vector<std::pair<std::string, Shape>> expected, actual;
  for (const auto& kept : TypeParam::kept()) expected.emplace_back("slope." + kept, Shape{2, 3});
  for (const auto& kept : TypeParam::kept()) expected.emplace_back("offset." + kept, Shape{3});
  for (const auto& [name, array] : state.arrays) actual.emplace_back(name, array.shape());
  EXPECT_EQ(actual, expected);
}

TYPED_TEST(EveryOptimizer, GoesOnFromItsStateWithTheSameBits) {
  auto model = this->line(1);
  auto optimizer = TypeParam::make();
  this->steps(optimizer, model, 2, 5);
  const auto state = optimizer.state(model);
  auto resumed_model = copy_of(model), forgetful_model = copy_of(model);
  auto resumed = TypeParam::make(), forgetful = TypeParam::make();
  resumed.load(resumed_model, state);
  EXPECT_EQ(resumed.steps(), 3);
  this->steps(optimizer, model, 5, 8);
  this->steps(resumed, resumed_model, 5, 8);
  this->expect_same_bits(resumed_model, model);
  if (TypeParam::kept().empty()) return;
  this->steps(forgetful, forgetful_model, 5, 8);
  EXPECT_FALSE(same_numbers(forgetful_model.slope, model.slope));
}

TYPED_TEST(EveryOptimizer, KeepsAStateThatWasTakenAsItWas) {
  auto model = this->line(1);
  auto optimizer = TypeParam::make();
  this->steps(optimizer, model, 2, 4);
  const auto state = optimizer.state(model);
  auto early_model = copy_of(model), late_model = copy_of(model);
  auto early = TypeParam::make(), late = TypeParam::make();
  early.load(early_model, state);
  this->steps(early, early_model, 5, 7);
  this->steps(optimizer, model, 8, 12);
  late.load(late_model, state);
  this->steps(late, late_model, 5, 7);
  this->expect_same_bits(late_model, early_model);
}

TYPED_TEST(EveryOptimizer, OfNoStepHasAStateThatMeansAFreshOne) {
  auto model = this->line(1), other_model = this->line(1);
  auto fresh = TypeParam::make(), used = TypeParam::make();
  const auto state = fresh.state(model);
  EXPECT_EQ(state.steps, 0);
  EXPECT_EQ(state.arrays.size(), 2 * TypeParam::kept().size());
  for (const auto& [name, array] : state.arrays) EXPECT_EQ(magnitude(array), 0) << name;
  auto scratch = this->line(3);
  this->steps(used, scratch, 2, 4);
  used.load(other_model, state);
  this->steps(fresh, model, 5, 7);
  this->steps(used, other_model, 5, 7);
  this->expect_same_bits(other_model, model);
}

// As a program would do it: the arrays under their names, the steps as metadata; the file has its own order.
TYPED_TEST(EveryOptimizer, GoesOnFromAFileWithTheSameBits) {
  using T = typename TypeParam::T;
  auto model = this->line(1);
  auto optimizer = TypeParam::make();
  this->steps(optimizer, model, 2, 5);
  const std::string path = testing::TempDir() + "tapehead-optimizer-" + std::to_string(getpid());
  {
    const auto state = optimizer.state(model);
    SafetensorsWriter writer;
    writer.metadata("steps", std::to_string(state.steps));
    writer.add("unrelated", Array<bool>::ones({1}));
    for (auto it = state.arrays.rbegin(); it != state.arrays.rend(); ++it) writer.add(it->first, it->second);
    writer.write(path);
  }
  auto resumed_model = copy_of(model);
  auto resumed = TypeParam::make();
  {
    const SafetensorsFile file(path);
    OptimizerState<T> state{std::stol(file.metadata().at("steps")), {}};
    for (const std::string& name : file.names()) {
      if (name != "unrelated") state.arrays.emplace_back(name, file.read<T>(name));
    }
    resumed.load(resumed_model, state);
  }
  this->steps(optimizer, model, 5, 8);
  this->steps(resumed, resumed_model, 5, 8);
  this->expect_same_bits(resumed_model, model);
  std::remove(path.c_str());
}

TYPED_TEST(EveryOptimizer, RefusesANegativeNumberOfSteps) {
  const auto model = this->line(1);
  auto optimizer = TypeParam::make();
  auto state = optimizer.state(model);
  state.steps = -1;
  EXPECT_TRUE(raises<DomainError>([&] { optimizer.load(model, state); }, {TypeParam::name, "steps is -1"}));
}

TEST(OptimizerState, ThatForgetsTheStepsGoesElsewhere) {
  auto model = random_line<double>(1);
  Adam<double> adam, resumed;
  for (std::uint64_t seed = 2; seed < 5; ++seed) adam.step(model, random_line_gradients<double>(seed));
  auto state = adam.state(model);
  auto resumed_model = copy_of(model);
  state.steps = 0;
  resumed.load(resumed_model, state);
  adam.step(model, random_line_gradients<double>(5));
  resumed.step(resumed_model, random_line_gradients<double>(5));
  EXPECT_FALSE(agree(resumed_model.slope, model.slope, 1e-6));
}

TEST(OptimizerState, OfWrongNamesListsThemAll) {
  const auto model = random_line<double>(1);
  Adam<double> adam;
  auto state = adam.state(model);
  state.arrays[0].first = "slop.mean";
  state.arrays[3].first = "offset.mean";
  EXPECT_TRUE(raises<LogicError>(
      [&] { adam.load(model, state); },
      {"Adam", "missing slope.mean, offset.square", "unexpected slop.mean", "twice offset.mean"}));
  state.arrays.clear();
  EXPECT_TRUE(raises<LogicError>([&] { adam.load(model, state); },
                                 {"Adam", "missing slope.mean, slope.square, offset.mean, offset.square"}));
}

TEST(OptimizerState, OfAnotherRuleIsAnError) {
  const auto model = random_line<double>(1);
  Adam<double> adam;
  Sgd<double> sgd({.momentum = 0.9}), plain;
  EXPECT_TRUE(raises<LogicError>([&] { sgd.load(model, adam.state(model)); },
                                 {"Sgd", "missing slope.velocity", "unexpected"}));
  EXPECT_TRUE(raises<LogicError>([&] { plain.load(model, sgd.state(model)); },
                                 {"Sgd", "unexpected offset.velocity, slope.velocity"}));
}

TEST(OptimizerState, OfAnotherShapeNamesTheArrayAndLeavesTheOptimizerAsItWas) {
  auto model = random_line<double>(1), expected = random_line<double>(1);
  Adam<double> adam, same;
  adam.step(model, random_line_gradients<double>(2));
  same.step(expected, random_line_gradients<double>(2));
  auto state = adam.state(model);
  state.steps = 7;
  state.arrays[3].second = A::ones({4});
  EXPECT_TRUE(raises<ShapeError>([&] { adam.load(model, state); }, {"Adam", "offset.square", "(3)", "(4)"}));
  EXPECT_EQ(adam.steps(), 1);
  adam.step(model, random_line_gradients<double>(3));
  same.step(expected, random_line_gradients<double>(3));
  EXPECT_SAME_NUMBERS(model.slope, expected.slope);
}

// ---- Options

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

// Every field of the list must be refused with its name, and with that of the rule.
template <class O>
void expect_refused(std::initializer_list<std::pair<typename O::Options, const char*>> list,
                    std::string_view rule) {
  for (const auto& entry : list) {
    EXPECT_TRUE(raises<DomainError>([&] { O{entry.first}; }, {rule, entry.second})) << entry.second;
  }
}

TEST(OptimizerOptions, OfSgdAreNamedWhenTheyAreWrong) {
  expect_refused<Sgd<double>>({{{.rate = -1}, "rate is -1"},
                               {{.rate = infinity}, "rate is inf"},
                               {{.rate = nan}, "rate"},
                               {{.momentum = -0.1}, "momentum is -0.1"},
                               {{.momentum = nan}, "momentum"},
                               {{.momentum = 0, .nesterov = true}, "momentum is 0"},
                               {{.decay = -1}, "decay is -1"},
                               {{.decay = infinity}, "decay"}},
                              "Sgd");
}

template <class O>
void expect_refused_of_adam(std::string_view rule) {
  expect_refused<O>({{{.rate = -1}, "rate is -1"},
                     {{.rate = nan}, "rate"},
                     {{.beta1 = 1}, "beta1 is 1"},
                     {{.beta1 = -0.1}, "beta1"},
                     {{.beta1 = nan}, "beta1"},
                     {{.beta2 = 1}, "beta2 is 1, must be in [0, 1)"},
                     {{.beta2 = -0.1}, "beta2"},
                     {{.eps = -1e-9}, "eps is -1e-09"},
                     {{.eps = infinity}, "eps"},
                     {{.decay = -0.01}, "decay is -0.01"}},
                    rule);
}

TEST(OptimizerOptions, OfAdamAreNamedWhenTheyAreWrong) {
  expect_refused_of_adam<Adam<double>>("Adam:");
  expect_refused_of_adam<AdamW<double>>("AdamW:");
}

TEST(OptimizerOptions, AtTheEdgesOfTheirDomainsAreTaken) {
  Single<double> model{A::full({3}, 2)};
  Adam<double> adam({.rate = 0.5, .beta1 = 0, .beta2 = 0, .eps = 0});  // g / |g|
  adam.step(model, {A::of({-3, 7, 1e-3})});
  EXPECT_NEAR_RELATIVE(model.weight, A::of({2.5, 1.5, 1.5}), 1e-15);
  Sgd<double> heavy({.rate = 1, .momentum = 1.5});  // PyTorch takes it as well
  heavy.step(model, {A::zeros({3})});
  EXPECT_NEAR_RELATIVE(model.weight, A::of({2.5, 1.5, 1.5}), 1e-15);
}

}  // namespace
}  // namespace tapehead
