#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include <tapehead/core/gradient.h>
#include <tapehead/core/paths.h>

#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using namespace tiny;

// Contributions

TEST(Gradient, OfAnOpIsItsRule) {
  T tape;
  const V a = tape.input(A::of({2, 3})), b = tape.input(A::of({5, 7}));
  const auto d = gradient(sum(mul(a, b)), {a, b});
  ASSERT_EQ(d.size(), 2u);
  EXPECT_EQ(values(d[0]), (Values{5, 7}));
  EXPECT_EQ(values(d[1]), (Values{2, 3}));
}

TEST(Gradient, IsInSinglePrecisionForFloats) {
  Tape<float> tape;
  const Var<float> x = tape.input(Array<float>::of({1, -2, 4}));
  const auto dx = gradient(sum(mul(x, square(x))), x)[0];
  EXPECT_EQ(dx.value().to_vector(), (std::vector<float>{3, 12, 48}));
  EXPECT_EQ(gradient_values(sum(dx), x)[0].to_vector(), (std::vector<float>{6, -12, 24}));
}

TEST(Gradient, TheSameVarInBothSlotsCountsTwice) {  // x * x * x at 1: 3
  T tape;
  const V x = tape.input(A::scalar(1));
  EXPECT_EQ(gradient(mul(mul(x, x), x), x)[0].item(), 3);
}

TEST(Gradient, ANodeOnTwoPathsSendsItsGradientOnce) {  // the case of bug log B100: 24 a + 3 with b = 4 a
  T tape;
  const V a = tape.input(A::scalar(1));
  const V b = scale(a, 4.0);
  const V e = add(add(mul(b, b), scale(b, -2.0)), scale(a, 3.0));
  EXPECT_EQ(e.item(), 16 - 8 + 3);
  EXPECT_EQ(gradient(e, a)[0].item(), 2 * 16 - 8 + 3);
}

TEST(Gradient, ASecondCallStartsAfresh) {  // y = (2x)^2 at 1: 8 each time
  T tape;
  const V x = tape.input(A::scalar(1));
  const V y = square(scale(x, 2.0));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(gradient(y, x)[0].item(), 8);
    EXPECT_EQ(gradient_values(y, x)[0].item(), 8);
  }
}

TEST(Gradient, AValueUsedOneToTwelveTimesGetsEveryContribution) {
  for (std::size_t uses = 1; uses <= 12; ++uses) {
    T tape;
    const V x = tape.input(A::of({2, -3, 0.5}));
    V added = scale(x, 1.0), multiplied = x;
    for (std::size_t i = 2; i <= uses; ++i) {
      added = add(added, scale(x, static_cast<double>(i)));
      multiplied = mul(multiplied, x);
    }
    const auto n = static_cast<double>(uses);
    const V seed = A::ones({3});
    EXPECT_EQ(values(gradient(added, x, seed)[0]), Values(3, n * (n + 1) / 2));
    EXPECT_EQ(values(gradient(weighted_total(std::vector<V>(uses, x)), x, seed)[0]),
              Values(3, n * (n + 1) / 2));
    const A power = gradient_values(multiplied, x, seed)[0];
    for (Index i = 0; i < 3; ++i) EXPECT_EQ(power(i), n * std::pow(x.value()(i), n - 1)) << uses << " uses";
  }
}

TEST(Gradient, AValueUsedAtTwoDepthsGetsBothContributions) {
  T tape;
  const V x = tape.input(A::scalar(2));
  V deep = x;
  for (int i = 0; i < 20; ++i) deep = scale(deep, 0.5);
  EXPECT_EQ(gradient(mul(deep, x), x)[0].item(), 2 * 2 * 0x1p-20);
}

TEST(Gradient, ADiamondOfDepthSixtyIsSweptOnceANode) {
  T tape;
  const V x = tape.input(A::scalar(1));
  V y = x;
  for (int i = 0; i < 60; ++i) y = add(y, y);
  EXPECT_EQ(gradient_values(y, x)[0].item(), 0x1p60);
  const Index length = tape.size();
  EXPECT_EQ(gradient(y, x)[0].item(), 0x1p60);
  EXPECT_LE(tape.size() - length, 60);
}

TEST(Gradient, AValueUsedAHundredThousandTimes) {
  constexpr std::size_t uses = 100000;
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V y = weighted_total(std::vector<V>(uses, x));
  EXPECT_EQ(values(gradient_values(y, x, V(A::ones({2})))[0]), Values(2, uses * (uses + 1) / 2.0));
  V chained = x;
  for (std::size_t i = 1; i < uses; ++i) chained = add(chained, x);
  EXPECT_EQ(values(gradient(chained, x, V(A::ones({2})))[0]), Values(2, uses));
}

// Runs f on a thread with a stack of `bytes`. The thread-local storage of the libraries in the process, of
// which OpenBLAS alone has 61 KB, is carved out of it, so what does not start with `bytes` starts with as
// much again.
void with_small_stack(std::size_t bytes, std::function<void()> f) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  pthread_t thread;
  auto run = [](void* work) -> void* {
    (*static_cast<std::function<void()>*>(work))();
    return nullptr;
  };
  std::size_t with_storage = bytes;
  do {
    ASSERT_LE(with_storage, 4 * bytes);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, with_storage), 0);
    with_storage += bytes;
  } while (pthread_create(&thread, &attributes, run, &f) != 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(Gradient, AChainOfAMillionOpsNeedsNoDeepStack) {
  double slope = 0;
  Index length = 0;
  with_small_stack(std::size_t{64} << 10, [&] {
    T tape;
    const V x = tape.input(A::scalar(3));
    V y = x;
    for (int i = 0; i < 1000000; ++i) y = scale(y, i % 2 == 0 ? 2.0 : 0.5);
    length = tape.size();
    slope = gradient_values(y, x)[0].item();
  });
  EXPECT_EQ(length, 1000001);
  EXPECT_EQ(slope, 1);
}

TEST(Gradient, ALongRecordedSweepNeedsNoDeepStackEither) {
  double curvature = 0;
  with_small_stack(std::size_t{64} << 10, [&] {
    T tape;
    const V x = tape.input(A::scalar(3));
    V y = square(x);
    for (int i = 0; i < 100000; ++i) y = scale(y, i % 2 == 0 ? 2.0 : 0.5);
    curvature = gradient_values(gradient(y, x)[0], x)[0].item();
  });
  EXPECT_EQ(curvature, 2);
}

// What is asked for

TEST(Gradient, OfWhatDoesNotDependOnXIsZerosOfItsShape) {
  T tape;
  const V x = tape.input(A::zeros({2, 3})), other = tape.input(A::scalar(4));
  const V y = square(other);
  const V later = tape.input(A::zeros({5}));
  const auto d = gradient(y, {x, other, later});
  EXPECT_EQ(d[0].shape(), Shape({2, 3}));
  EXPECT_EQ(values(d[0]), Values(6, 0));
  EXPECT_EQ(d[1].item(), 8);
  EXPECT_EQ(values(d[2]), Values(5, 0));
  EXPECT_EQ(values(gradient_values(y, x)[0]), Values(6, 0));
}

TEST(Gradient, OfSeveralYMayHaveOneRecordedBeforeX) {
  T tape;
  const V early = tape.input(A::scalar(4));
  const V x = tape.input(A::scalar(3));
  EXPECT_EQ(gradient({early, square(x)}, x, {A::scalar(10), A::scalar(1)})[0].item(), 6);
  EXPECT_EQ(gradient_values({square(x), early}, x, {A::scalar(1), A::scalar(10)})[0].item(), 6);
}

TEST(Gradient, OfAConstantIsZeros) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  EXPECT_EQ(values(gradient(V(A::scalar(5)), x)[0]), Values(2, 0));
  EXPECT_EQ(values(gradient(sum(square(x.detach())), x)[0]), Values(2, 0));
}

TEST(Gradient, StopsAtDetach) {
  T tape;
  const V x = tape.input(A::scalar(3));
  EXPECT_EQ(gradient(mul(x, square(x).detach()), x)[0].item(), 9);
}

TEST(Gradient, OfYWithRespectToItselfIsTheSeed) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V y = square(x);
  EXPECT_EQ(values(gradient(y, y, V(A::of({5, 7})))[0]), (Values{5, 7}));
  const auto d = gradient(y, {y, x}, {A::of({5, 7})});
  EXPECT_EQ(values(d[0]), (Values{5, 7}));
  EXPECT_EQ(values(d[1]), (Values{10, 28}));
}

TEST(Gradient, WithRespectToAnIntermediateValue) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const V z = square(x);
  const V y = mul(z, mul(z, x));
  const auto d = gradient(y, {z, x});
  EXPECT_EQ(d[0].item(), 2 * 4 * 2);
  EXPECT_EQ(d[1].item(), 5 * 16);
}

TEST(Gradient, WithRespectToTheSameXTwiceIsGivenTwice) {
  T tape;
  const V x = tape.input(A::scalar(2)), z = tape.input(A::scalar(5));
  const auto d = gradient(mul(square(x), z), {x, z, x});
  EXPECT_EQ(d[0].item(), 20);
  EXPECT_EQ(d[1].item(), 4);
  EXPECT_EQ(d[2].item(), 20);
}

TEST(Gradient, OfSeveralYIsTheSumOverThem) {
  T tape;
  const V x = tape.input(A::of({1, 2, 3}));
  const V y = square(x), z = sum(x);
  EXPECT_EQ(values(gradient({y, z}, x, {A::of({1, 10, 100}), A::scalar(7)})[0]), (Values{9, 47, 607}));
  EXPECT_EQ(values(gradient({z, z}, x, {A::scalar(2), A::scalar(3)})[0]), Values(3, 5));
  const auto d = gradient({z, y, V(A::scalar(1))}, {y, x}, {A::scalar(7), A::ones({3}), A::scalar(1)});
  EXPECT_EQ(values(d[0]), Values(3, 1));
  EXPECT_EQ(values(d[1]), (Values{9, 11, 13}));
}

TEST(Gradient, OfNothingOrWithRespectToNothing) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  EXPECT_TRUE(gradient(sum(x), std::vector<V>{}).empty());
  EXPECT_TRUE(gradient_values(sum(x), std::vector<V>{}).empty());
  EXPECT_EQ(values(gradient(std::vector<V>{}, x)[0]), Values(2, 0));
}

TEST(Gradient, OfOneElementOfAnyRankNeedsNoSeed) {
  T tape;
  const V x = tape.input(A::full({1, 1, 1}, 3));
  EXPECT_EQ(gradient(square(x), x)[0].shape(), Shape({1, 1, 1}));
  EXPECT_EQ(gradient(square(x), x)[0].item(), 6);
}

TEST(Gradient, OfEmptyArraysIsEmpty) {
  T tape;
  const V x = tape.input(A::zeros({0, 3}));
  const V y = square(x);
  EXPECT_EQ(gradient(sum(y), x)[0].shape(), Shape({0, 3}));
  EXPECT_EQ(gradient_values(y, x, y)[0].shape(), Shape({0, 3}));
}

// Errors of a call

TEST(Gradient, RefusesWhatIsNotRecorded) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const V constant = A::scalar(3);
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        gradient(square(x), {x, constant});
      },
      {"gradient", "x 1", "not recorded"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient_values(x, constant); }, {"gradient_values", "x 0"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient_paths(x, constant); }, {"gradient_paths", "x 0"}));
}

TEST(Gradient, MissingSeedNamesTheShapeOfY) {
  T tape;
  const V x = tape.input(A::zeros({2, 3}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(x, x); }, {"gradient", "missing seed", "(2, 3)"}));
  EXPECT_TRUE(
      raises<LogicError>([&] { gradient_values(x, x); }, {"gradient_values", "missing seed", "(2, 3)"}));
  EXPECT_TRUE(
      raises<LogicError>([&] { gradient_paths(x, x); }, {"gradient_paths", "missing seed", "(2, 3)"}));
  const V y = sum(x);
  EXPECT_TRUE(raises<LogicError>([&] { gradient({y, y}, x); }, {"gradient", "missing seed", "2 y"}));
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        gradient({y, y}, x, {A::scalar(1)});
      },
      {"gradient", "2 y", "1 seeds"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(y, x, {y, y}); }, {"gradient", "1 y", "2 seeds"}));
}

TEST(Gradient, SeedOfAWrongShapeNamesBoth) {
  T tape;
  const V x = tape.input(A::zeros({2, 3}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        gradient(x, x, {A::zeros({3, 2})});
      },
      {"gradient", "(3, 2)", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { gradient(x, x, {A::scalar(1)}); }, {"gradient", "()", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        gradient_values({sum(x), x}, x, {A::scalar(1), A::zeros({3})});
      },
      {"gradient_values", "(3)", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { gradient_paths(x, x, {A::zeros({6})}); },
                                 {"gradient_paths", "(6)", "(2, 3)"}));
}

TEST(Gradient, OnAPausedTapeIsAnError) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V y = square(x);
  const Pause<double> pause(tape);
  EXPECT_TRUE(raises<LogicError>([&] { gradient(y, x); }, {"gradient", "paused"}));
  EXPECT_EQ(gradient_values(y, x)[0].item(), 6);
  EXPECT_TRUE(tape.paused());
}

// y was computed while nothing was recorded: zeros would be a silent wrong answer.
TEST(Gradient, OfWhatWasComputedInThePauseIsAnErrorNotZeros) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const Pause<double> pause(tape);
  EXPECT_TRUE(
      raises<LogicError>([&] { gradient_values(square(x), x); }, {"gradient_values", "not recorded"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient_paths(square(x), x); }, {"gradient_paths", "not recorded"}));
}

// Values only

TEST(GradientValues, RecordNothing) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V y = sum(mul(exp(x), square(x)));
  const Index length = tape.size();
  const A dx = gradient_values(y, x)[0];
  EXPECT_EQ(tape.size(), length);
  EXPECT_TRUE(tape.recording());
  EXPECT_TRUE(square(x).recorded());
  EXPECT_EQ(values(dx), values(gradient(y, x)[0]));
}

TEST(GradientValues, AreNotDisturbedByWhatIsRecordedLater) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V y = square(x);
  for (int i = 0; i < 1000; ++i) scale(y, 2.0);
  EXPECT_EQ(gradient_values(y, x)[0].item(), 6);
}

// Higher orders

TEST(HigherOrder, OfAPowerAgreeWithItsClosedForm) {
  T tape;
  const V x = tape.input(A::of({2, -3, 0.5}));
  const V y = mul(square(x), mul(square(x), x));
  const V ones = A::ones({3});
  V d = y;
  double factor = 1;
  for (int order = 1; order <= 5; ++order) {
    d = gradient(d, x, ones)[0];
    factor *= 6 - order;
    for (Index i = 0; i < 3; ++i) {
      EXPECT_DOUBLE_EQ(d.value()(i), factor * std::pow(x.value()(i), 5 - order)) << "order " << order;
    }
  }
  EXPECT_EQ(values(gradient(d, x, ones)[0]), Values(3, 0));
}

TEST(HigherOrder, OfRulesThatTakeTheirOutput) {
  T tape;
  const V x = tape.input(A::scalar(0.75));
  const V y = exp(x), z = reciprocal(x);
  V dy = y, dz = z;
  double power = 1 / 0.75;
  for (int order = 1; order <= 4; ++order) {
    dy = gradient(dy, x)[0];
    dz = gradient(dz, x)[0];
    power *= -order / 0.75;
    EXPECT_NEAR(dy.item(), std::exp(0.75), 1e-14);
    EXPECT_NEAR(dz.item(), power, 1e-14 * std::abs(power)) << "order " << order;
  }
}

// f = exp(a^2 b): every partial derivative up to the third, from either order of differentiation.
TEST(HigherOrder, MixedPartialsOfACompositionAgreeWithTheirClosedForms) {
  T tape;
  const double p = 0.5, q = 0.75, f = std::exp(p * p * q);
  const V a = tape.input(A::scalar(p)), b = tape.input(A::scalar(q));
  const V y = exp(mul(square(a), b));
  const auto d = gradient(y, {a, b});
  EXPECT_NEAR(d[0].item(), 2 * p * q * f, 1e-15);
  EXPECT_NEAR(d[1].item(), p * p * f, 1e-15);
  const auto da = gradient(d[0], {a, b}), db = gradient(d[1], {a, b});
  EXPECT_NEAR(da[0].item(), (2 * q + 4 * p * p * q * q) * f, 1e-14);
  EXPECT_NEAR(da[1].item(), (2 * p + 2 * p * p * p * q) * f, 1e-14);
  EXPECT_NEAR(db[0].item(), da[1].item(), 1e-14);
  EXPECT_NEAR(db[1].item(), p * p * p * p * f, 1e-14);
  const double aab = (2 + 10 * p * p * q + 4 * p * p * p * p * q * q) * f;
  EXPECT_NEAR(gradient_values(da[0], b)[0].item(), aab, 1e-13);
  EXPECT_NEAR(gradient_values(da[1], a)[0].item(), aab, 1e-13);
  EXPECT_NEAR(gradient_values(db[0], a)[0].item(), aab, 1e-13);
}

TEST(HigherOrder,
     HessianTimesVectorAgreesWithItsClosedForm) {  // y = (sum x^2)^2: H v = 8 x <x, v> + 4 |x|^2 v
  T tape;
  const V x = tape.input(A::of({1, -2, 3}));
  const V v = A::of({0.5, 4, -1});
  const V dx = gradient(square(sum(square(x))), x)[0];
  const A hv = gradient_values(dx, x, v)[0];
  for (Index i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(hv(i), 8 * x.value()(i) * -10.5 + 4 * 14 * v.value()(i));
}

TEST(HigherOrder, SharedContributionsAreDifferentiatedAgain) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const V y = add(mul(square(x), x), add(square(x), exp(x)));
  const V d = gradient(gradient(y, x)[0], x)[0];
  EXPECT_NEAR(d.item(), 12 + 2 + std::exp(2.0), 1e-14);
  EXPECT_NEAR(gradient(d, x)[0].item(), 6 + std::exp(2.0), 1e-14);
}

TEST(HigherOrder, SeedsAreVarsWithGradientsOfTheirOwn) {
  T tape;
  const V x = tape.input(A::of({1, 2, 3}));
  const V seed = tape.input(A::of({5, 7, 11}));
  const V dx = gradient(square(x), x, seed)[0];
  EXPECT_EQ(values(dx), (Values{10, 28, 66}));
  const auto d = gradient(sum(dx), {seed, x});
  EXPECT_EQ(values(d[0]), (Values{2, 4, 6}));
  EXPECT_EQ(values(d[1]), (Values{10, 14, 22}));
  EXPECT_EQ(values(gradient(gradient(x, x, seed)[0], seed, x)[0]), (Values{1, 2, 3}));
}

TEST(HigherOrder, SeedMayDependOnX) {  // y = x^2 seeded with x^2 itself: 2 x^3, then 6 x^2
  T tape;
  const V x = tape.input(A::of({1, 2, 3}));
  const V y = square(x);
  const V dx = gradient(y, x, y)[0];
  EXPECT_EQ(values(dx), (Values{2, 16, 54}));
  EXPECT_EQ(values(gradient(sum(dx), x)[0]), (Values{6, 24, 54}));
}

TEST(HigherOrder, GradientsRecordedAreLabelled) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V y = square(x);
  const Index length = tape.size();
  {
    const Scope<double> scope(tape, "training");
    gradient(y, x);
  }
  ASSERT_GT(tape.size(), length);
  for (Index i = length; i < tape.size(); ++i) {
    EXPECT_EQ(tape.label_path(tape.node(i).label), "training/gradient");
  }
  square(x);
  EXPECT_EQ(tape.label_path(tape.node(tape.size() - 1).label), "");
}

// The mistake that a rule of (y, dy) avoids: first order is right, second is not.
V exp_that_captures_its_output(const V& x) {
  const A value = exp(x.detach()).value();
  const V y = value;
  return record("exp", value, edge(x, [y](const V& dy) { return mul(y, dy); }));
}

TEST(HigherOrder, RuleThatCapturesItsOutputIsSeenToBeWrong) {
  T tape;
  const V x = tape.input(A::scalar(0.75));
  const V wrong = gradient(exp_that_captures_its_output(x), x)[0];
  EXPECT_EQ(wrong.item(), std::exp(0.75));
  EXPECT_EQ(gradient(wrong, x)[0].item(), 0);
  const V right = gradient(exp(x), x)[0];
  EXPECT_EQ(right.item(), std::exp(0.75));
  EXPECT_EQ(gradient(right, x)[0].item(), std::exp(0.75));
}

}  // namespace
}  // namespace tapehead
