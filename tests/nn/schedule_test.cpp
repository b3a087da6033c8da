#include <tapehead/nn/schedule.h>

#include <gtest/gtest.h>

#include <cmath>

#include <tapehead/core/errors.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/golden.h"

namespace tapehead {
namespace {

using A = Array<double>;

A rates_of(const RateSchedule& rate, Index steps) {
  std::vector<double> rates;
  for (Index step = 0; step < steps; ++step) rates.push_back(rate(step));
  return A::from(rates);
}

// ---- Against PyTorch

struct Reference {
  const char *tensor, *name, *folder;
  RateSchedule rate;
};
std::ostream& operator<<(std::ostream& stream, const Reference& r) { return stream << r.tensor; }

std::vector<Reference> references() {
  const char *given = "optim_schedules", *made = "optim_rates";
  return {
      {"cosine", given, "golden", cosine_rate({.first = 1, .last = 0.1, .steps = 20})},
      {"step", given, "golden", step_rate({.first = 1, .factor = 0.5, .every = 5})},
      {"linear_warmup", given, "golden", linear_rate({.first = 0.1, .last = 1, .steps = 5})},
      {"exponential", given, "golden", exponential_rate({.first = 1, .factor = 0.9})},
      {"linear_down", made, "made", linear_rate({.first = 0.5, .last = 0.1, .steps = 12})},
      {"warm_up_cosine", made, "made",
       warm_up({.steps = 6, .start = 0.1}, cosine_rate({.first = 0.5, .last = 0.02, .steps = 24}))},
      {"warm_up_step", made, "made",
       warm_up({.steps = 6, .start = 0.1}, step_rate({.first = 0.5, .factor = 0.3, .every = 7}))},
      {"exponential_then_step", made, "made",
       in_sequence(exponential_rate({.first = 0.5, .factor = 0.8}), 10,
                   step_rate({.first = 0.5, .factor = 0.5, .every = 4}))},
  };
}

class ScheduleGolden : public testing::TestWithParam<Reference> {};

TEST_P(ScheduleGolden, IsThatOfPyTorch) {
  const auto& [tensor, name, folder, rate] = GetParam();
  const A expected = Golden(name, folder).array(tensor);
  EXPECT_NEAR_RELATIVE(rates_of(rate, expected.dim(0)), expected, 1e-13);
}

// Off by one in the step, which every schedule but a constant one shows.
TEST_P(ScheduleGolden, CountedFromOneFailsTheSameCheck) {
  const auto& [tensor, name, folder, rate] = GetParam();
  const A expected = Golden(name, folder).array(tensor);
  const RateSchedule late = [rate = rate](Index step) { return rate(step + 1); };
  EXPECT_FALSE(agree(rates_of(late, expected.dim(0)), expected, 1e-3));
}

INSTANTIATE_TEST_SUITE_P(Cases, ScheduleGolden, testing::ValuesIn(references()),
                         [](const auto& reference) { return std::string(reference.param.tensor); });

// ---- Where each is at its ends

TEST(ConstantRate, IsAlwaysTheSame) {
  const auto rate = constant_rate(0.3);
  EXPECT_EQ(rate(0), 0.3);
  EXPECT_EQ(rate(1'000'000'000'000), 0.3);
}

TEST(LinearRate, IsLastFromItsEndOn) {
  const auto rate = linear_rate({.first = 2, .last = 0.7, .steps = 3});
  EXPECT_EQ(rate(0), 2);
  EXPECT_EQ(rate(3), 0.7);
  EXPECT_EQ(rate(1000), 0.7);
  EXPECT_EQ(linear_rate({.first = 0.3, .last = 1e-18, .steps = 3})(3), 1e-18);  // not 0.3 + (1e-18 - 0.3)
}

TEST(CosineRate, IsHalfWayInTheMiddleAndLastAtTheEndAndBeyond) {
  const auto rate = cosine_rate({.first = 2, .last = 0.5, .steps = 16});
  EXPECT_DOUBLE_EQ(rate(0), 2);
  EXPECT_DOUBLE_EQ(rate(8), 1.25);
  EXPECT_DOUBLE_EQ(rate(16), 0.5);
  EXPECT_DOUBLE_EQ(rate(1000), 0.5);
}

TEST(CosineRate, NeverRises) {
  const auto rate = cosine_rate({.first = 1, .last = 0.01, .steps = 25});
  for (Index step = 1; step < 60; ++step) EXPECT_LE(rate(step), rate(step - 1)) << "step " << step;
}

TEST(CosineRate, FallsToNothingWhenNothingIsSaid) { EXPECT_EQ(cosine_rate({.first = 1, .steps = 4})(4), 0); }

TEST(StepRate, ChangesAtTheMultiplesAlone) {
  const auto rate = step_rate({.first = 8, .factor = 0.5, .every = 3});
  EXPECT_SAME_NUMBERS(rates_of(rate, 8), A::of({8, 8, 8, 4, 4, 4, 2, 2}));
}

TEST(ExponentialRate, OfAFactorOfZeroIsZeroAfterTheFirstStep) {
  EXPECT_SAME_NUMBERS(rates_of(exponential_rate({.first = 2, .factor = 0}), 3), A::of({2, 0, 0}));
}

TEST(WarmUp, RisesByEqualStepsToTheFirstRateOfWhatFollows) {
  const auto after = exponential_rate({.first = 3, .factor = 0.5});
  const auto rate = warm_up({.steps = 4, .start = 0}, after);
  EXPECT_SAME_NUMBERS(rates_of(rate, 7), A::of({0, 0.75, 1.5, 2.25, 3, 1.5, 0.75}));
}

TEST(WarmUp, BeginsAtAThirdAsThatOfPyTorchWhenNothingIsSaid) {
  EXPECT_DOUBLE_EQ(warm_up({.steps = 4}, constant_rate(3))(0), 1);
}

TEST(InSequence, CanBeNested) {
  const auto rate =
      in_sequence(constant_rate(1), 2,
                  in_sequence(linear_rate({.first = 5, .last = 6, .steps = 2}), 3, constant_rate(9)));
  EXPECT_SAME_NUMBERS(rates_of(rate, 7), A::of({1, 1, 5, 5.5, 6, 9, 9}));
}

TEST(RateSchedule, DependsOnTheStepAlone) {
  const auto rate = warm_up({.steps = 3}, cosine_rate({.first = 1, .steps = 9}));
  const auto copy = rate;
  const A forward = rates_of(rate, 12);
  for (Index step = 12; step-- > 0;) EXPECT_EQ(copy(step), forward(step));
}

// ---- What is refused

TEST(RateSchedule, OfANegativeStepIsAnError) {
  for (const auto& reference : references()) {
    EXPECT_TRUE(raises<DomainError>([&] { reference.rate(-1); }, {"step is -1"})) << reference.tensor;
  }
  EXPECT_TRUE(raises<DomainError>([] { constant_rate(1)(-3); }, {"constant_rate", "step is -3"}));
}

TEST(RateSchedule, NamesTheOptionThatIsWrong) {
  const double infinity = HUGE_VAL, nan = std::nan("");
  auto refused = [](auto make, std::initializer_list<std::string_view> texts) {
    EXPECT_TRUE(raises<DomainError>(make, texts));
  };
  refused([&] { constant_rate(nan); }, {"constant_rate", "rate"});
  refused([&] { linear_rate({.first = -1, .last = 1, .steps = 2}); }, {"linear_rate", "first is -1"});
  refused([&] { linear_rate({.first = 1, .last = nan, .steps = 2}); }, {"linear_rate", "last"});
  refused([&] { linear_rate({.first = 1, .last = 1, .steps = 0}); }, {"linear_rate", "steps is 0"});
  refused([&] { cosine_rate({.first = infinity, .steps = 2}); }, {"cosine_rate", "first is inf"});
  refused([&] { cosine_rate({.first = 1, .last = -1, .steps = 2}); }, {"cosine_rate", "last is -1"});
  refused([&] { cosine_rate({.first = 1, .steps = -4}); },
          {"cosine_rate", "steps is -4, must be at least 1"});
  refused([&] { step_rate({.first = nan, .factor = 1, .every = 2}); }, {"step_rate", "first"});
  refused([&] { step_rate({.first = 1, .factor = -1, .every = 2}); }, {"step_rate", "factor is -1"});
  refused([&] { step_rate({.first = 1, .factor = 1, .every = 0}); }, {"step_rate", "every is 0"});
  refused([&] { exponential_rate({.first = -2, .factor = 1}); }, {"exponential_rate", "first is -2"});
  refused([&] { exponential_rate({.first = 1, .factor = infinity}); }, {"exponential_rate", "factor is inf"});
  refused([&] { in_sequence(constant_rate(1), 0, constant_rate(1)); }, {"in_sequence", "steps is 0"});
  refused([&] { warm_up({.steps = 0}, constant_rate(1)); }, {"warm_up", "steps is 0"});
  refused([&] { warm_up({.steps = 2, .start = -1}, constant_rate(1)); }, {"warm_up", "start is -1"});
}

TEST(RateSchedule, ThatIsEmptyIsAnError) {
  EXPECT_TRUE(raises<LogicError>([] { in_sequence({}, 1, constant_rate(1)); }, {"in_sequence", "before"}));
  EXPECT_TRUE(raises<LogicError>([] { in_sequence(constant_rate(1), 1, {}); }, {"in_sequence", "after"}));
  EXPECT_TRUE(raises<LogicError>([] { warm_up({.steps = 1}, {}); }, {"warm_up", "after"}));
}

}  // namespace
}  // namespace tapehead
