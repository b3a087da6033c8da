#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <stdexcept>

#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/paths.h>

#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using T = Tape<double>;

using tiny::add;
using tiny::exp;
using tiny::mul;
using tiny::reciprocal;
using tiny::scale;
using tiny::square;
using tiny::sum;
using tiny::weighted_total;

std::vector<double> values(const V& x) { return x.value().to_vector(); }
std::vector<double> values(const A& x) { return x.to_vector(); }
using Values = std::vector<double>;

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

// Rules that fail

V with_rule(const V& x, std::function<V(const V&)> rule) {
  return record("faulty", x.value(), edge(x, [rule](const V& dy) { return rule(dy); }));
}

TEST(FaultyRule, ReturningAWrongShapeNamesOpArgumentAndBothShapes) {
  T tape;
  const V x = tape.input(A::zeros({2, 3}));
  const V seed = A::ones({2, 3});
  for (const A& wrong : {A::zeros({3, 2}), A::zeros({3}), A::scalar(1), A::zeros({1, 2, 3}), A()}) {
    const V y = with_rule(x, [wrong](const V&) { return V(wrong); });
    const std::string shape = to_string(wrong.shape());
    auto check = [&](auto call) {
      EXPECT_TRUE(raises<ShapeError>(call, {"faulty", "argument 0", "dx " + shape, "(2, 3)"}));
    };
    check([&] { gradient(y, x, seed); });
    check([&] { gradient_values(y, x, seed); });
    check([&] { gradient_paths(y, x, seed); });
  }
}

TEST(FaultyRule, OfTheSecondArgumentIsNamedAsSuch) {
  T tape;
  const V x = tape.input(A::zeros({2}));
  const V y = record("faulty", A::zeros({2}), edge(V(A::zeros({3})), [](const V& dy) { return dy; }),
                     edge(x, [](const V& dy) { return sum(dy); }));
  EXPECT_TRUE(
      raises<ShapeError>([&] { gradient(y, x, {A::ones({2})}); }, {"faulty", "argument 1", "()", "(2)"}));
}

TEST(FaultyRule, ThatThrowsLeavesTheTapeAsItWas) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V y = with_rule(square(x), [&](const V& dy) -> V {
    const Scope<double> scope(tape, "inside");
    square(square(dy));
    const Scratch<double> scratch(tape);
    square(tape.input(A::scalar(1)));
    const Pause<double> pause(tape);
    throw std::runtime_error("no gradient today");
  });
  const V z = sum(scale(mul(y, square(x)), 3.0));
  const Index length = tape.size();
  const auto live = memory_statistics().live;
  const Scope<double> outer(tape, "outer");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(raises<std::runtime_error>([&] { gradient(z, x); }, {"no gradient today"}));
    EXPECT_TRUE(raises<std::runtime_error>([&] { gradient_values(z, x); }));
    EXPECT_TRUE(raises<std::runtime_error>([&] { gradient_paths(z, x); }));
    EXPECT_EQ(tape.size(), length);
    EXPECT_TRUE(tape.recording());
    EXPECT_FALSE(tape.paused());
    EXPECT_EQ(memory_statistics().live, live);
  }
  const V again = square(x);
  EXPECT_EQ(tape.label_path(tape.node(tape.size() - 1).label), "outer");
  EXPECT_EQ(values(gradient(again, x, x)[0]), (Values{2, 8}));
  EXPECT_EQ(values(gradient_values(z, y, {})[0]), (Values{3, 12}));
}

TEST(FaultyRule, ThatThrowsInsideAPauseLeavesThePause) {
  T tape;
  const V x = tape.input(A::scalar(1));
  const V y = with_rule(x, [](const V&) -> V { throw std::runtime_error("no"); });
  const Pause<double> pause(tape);
  EXPECT_THROW(gradient_values(y, x), std::runtime_error);
  EXPECT_TRUE(tape.paused());
}

TEST(FaultyRule, InAnInnerGradientCanBeCaughtByTheOuterRule) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const V bad = with_rule(x, [](const V& dy) -> V {
    square(dy);
    throw std::runtime_error("no");
  });
  const V y = with_rule(x, [&](const V& dy) {
    EXPECT_THROW(gradient(square(bad), x), std::runtime_error);
    return scale(dy, 5.0);
  });
  EXPECT_EQ(gradient(y, x)[0].item(), 5);
  EXPECT_EQ(gradient(square(y), x)[0].item(), 20);
}

// gradient() inside rules

// Y = X^3; its rule differentiates a composition, recorded or, when only values are wanted, on a stretch of
// scratch.
V cube(const V& x) {
  auto forward = [](const V& v) { return mul(square(v), v); };
  return record("cube", forward(x.detach()).value(), edge(x, [x, forward](const V& dy) {
                  T& tape = T::of("cube", x);
                  if (tape.recording()) return gradient(forward(x), x, dy)[0];
                  const Scratch<double> scratch(tape);
                  const V again = tape.input(x.value());
                  return V(gradient_values(forward(again), again, dy)[0]);
                }));
}

TEST(GradientInsideARule, GivesValuesInAPlainSweep) {
  T tape;
  const V x = tape.input(A::of({1, -2, 3}));
  const V y = sum(square(cube(scale(x, 2.0))));
  const Index length = tape.size();
  const A dx = gradient_values(y, x)[0];
  EXPECT_EQ(tape.size(), length);
  EXPECT_TRUE(tape.recording());
  for (Index i = 0; i < 3; ++i) EXPECT_EQ(dx(i), 64 * 6 * std::pow(x.value()(i), 5));
}

TEST(GradientInsideARule, IsDifferentiatedAgainInARecordedSweep) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const V first = gradient(cube(cube(x)), x)[0];
  EXPECT_EQ(first.item(), 9 * 256);
  const V second = gradient(first, x)[0];
  EXPECT_EQ(second.item(), 72 * 128);
  EXPECT_EQ(gradient_values(second, x)[0].item(), 504 * 64);
}

TEST(GradientInsideARule, WorksWhileTheUserPauses) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const V y = cube(x);
  const Pause<double> pause(tape);
  EXPECT_EQ(gradient_values(y, x)[0].item(), 12);
  EXPECT_TRUE(tape.paused());
}

TEST(GradientInsideARule, OfWhatAPlainSweepDidNotRecordIsAnErrorNotZeros) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const V y = with_rule(x, [x](const V& dy) { return gradient(square(x), x, dy)[0]; });
  EXPECT_EQ(gradient(y, x)[0].item(), 4);
  EXPECT_TRUE(raises<LogicError>([&] { gradient_values(y, x); }, {"gradient", "not recorded"}));
  EXPECT_TRUE(tape.recording());
}

TEST(GradientInsideARule, MayAskAboutNodesOfTheOuterSweep) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V z = square(x);
  const V y = with_rule(z, [x, z](const V& dy) { return mul(dy, V(gradient_values(z, x)[0])); });
  EXPECT_EQ(gradient_values(y, x)[0].item(), 36);
  EXPECT_EQ(gradient(y, x)[0].item(), 36);
}

// Joint rules

struct Asked {
  int calls = 0;
  std::vector<bool> wanted;
};

// Y = A / B          dA = dY / B          dB = -Y dA
V quotient(const V& a, const V& b, Asked* asked = nullptr) {
  const A value = tiny::zip("quotient", a.value(), b.value(), [](double p, double q) { return p / q; });
  return record_joint("quotient", value, std::array{&a, &b},
                      [b, asked](const V& y, const V& dy, Wanted wanted) -> std::array<V, 2> {
                        if (asked) *asked = {asked->calls + 1, {wanted.begin(), wanted.end()}};
                        const V da = mul(dy, reciprocal(b));
                        return {wanted[0] ? da : V(), wanted[1] ? scale(mul(y, da), -1.0) : V()};
                      });
}

TEST(JointRule, GivesAllGradientsInOneCall) {
  T tape;
  const V a = tape.input(A::of({3, 5})), b = tape.input(A::of({2, 4}));
  Asked asked;
  const auto d = gradient(sum(quotient(a, b, &asked)), {a, b});
  EXPECT_EQ(values(d[0]), (Values{0.5, 0.25}));
  EXPECT_EQ(values(d[1]), (Values{-0.75, -0.3125}));
  EXPECT_EQ(asked.calls, 1);
  EXPECT_EQ(asked.wanted, (std::vector<bool>{true, true}));
}

TEST(JointRule, IsToldWhatIsWantedAndMayLeaveTheRestEmpty) {
  T tape;
  const V a = tape.input(A::of({3, 5})), b = tape.input(A::of({2, 4}));
  Asked asked;
  const V y = sum(quotient(a, b, &asked));
  EXPECT_EQ(values(gradient_values(y, a)[0]), (Values{0.5, 0.25}));
  EXPECT_EQ(asked.wanted, (std::vector<bool>{true, false}));
  EXPECT_EQ(values(gradient_values(y, b)[0]), (Values{-0.75, -0.3125}));
  EXPECT_EQ(asked.wanted, (std::vector<bool>{false, true}));
  EXPECT_EQ(asked.calls, 2);
}

TEST(JointRule, DoesNotWantTheGradientsOfConstants) {
  T tape;
  const V b = tape.input(A::of({2, 4}));
  Asked asked;
  const V y = sum(quotient(V(A::of({3, 5})), b, &asked));
  EXPECT_EQ(values(gradient_values(y, b)[0]), (Values{-0.75, -0.3125}));
  EXPECT_EQ(asked.wanted, (std::vector<bool>{false, true}));
}

TEST(JointRule, IsNotCalledWhenNothingIsWanted) {
  T tape;
  const V a = tape.input(A::scalar(3)), other = tape.input(A::scalar(1));
  Asked asked;
  const V y = add(quotient(a, a, &asked), other);
  EXPECT_EQ(gradient_values(y, other)[0].item(), 1);
  EXPECT_EQ(asked.calls, 0);
}

TEST(JointRule, OfTheSameVarTwiceGetsBothContributions) {
  T tape;
  const V x = tape.input(A::of({2, 4}));
  EXPECT_EQ(values(gradient(sum(quotient(square(x), x)), x)[0]), Values(2, 1));
  EXPECT_EQ(values(gradient(sum(quotient(x, x)), x)[0]), Values(2, 0));
}

TEST(JointRule, IsRightAtSecondAndThirdOrder) {  // y = a / b
  T tape;
  const V a = tape.input(A::scalar(3)), b = tape.input(A::scalar(2));
  const auto d = gradient(quotient(a, b), {a, b});
  const auto db = gradient(d[1], {a, b});
  EXPECT_DOUBLE_EQ(gradient(d[0], b)[0].item(), -0.25);
  EXPECT_DOUBLE_EQ(db[0].item(), -0.25);
  EXPECT_DOUBLE_EQ(db[1].item(), 2 * 3 / 8.0);
  const auto ddb = gradient_values(db[1], {a, b});
  EXPECT_DOUBLE_EQ(ddb[0].item(), 2 / 8.0);
  EXPECT_DOUBLE_EQ(ddb[1].item(), -6 * 3 / 16.0);
}

TEST(JointRule, OfOneArgumentKeepsNoOutput) {
  T tape;
  const V a = tape.input(A::scalar(3)), b = tape.input(A::scalar(2));
  const V y = record_joint("product", mul(a.detach(), b.detach()).value(), std::array{&a, &b},
                           [a, b](const V& dy, Wanted) -> std::array<V, 2> {
                             return {mul(dy, b), mul(dy, a)};
                           });
  EXPECT_FALSE(tape.node(2).output.defined());
  const auto d = gradient(y, {a, b});
  EXPECT_EQ(d[0].item(), 2);
  EXPECT_EQ(d[1].item(), 3);
  EXPECT_EQ(gradient_values(d[0], b)[0].item(), 1);
}

TEST(JointRule, ThatLeavesAWantedGradientEmptyIsAnError) {
  T tape;
  const V a = tape.input(A::zeros({3})), b = tape.input(A::zeros({3}));
  const V y =
      record_joint("half", A::zeros({3}), std::array{&a, &b}, [](const V& dy, Wanted) -> std::array<V, 2> {
        return {dy, V()};
      });
  const V seed = A::ones({3});
  EXPECT_EQ(values(gradient(y, a, seed)[0]), Values(3, 1));
  EXPECT_TRUE(raises<ShapeError>([&] { gradient(y, b, seed); }, {"half", "argument 1", "(3)"}));
}

// Gradients of another shape than the argument's

int fits = 0;

V summed(const V& dy, const Shape& shape) {
  ++fits;
  const V total = sum(dy);
  return record("reshape", total.value().reshape(shape), edge(total, [](const V& ddx) {
                  return record("reshape", ddx.value().reshape(Shape{}),
                                edge(ddx, [](const V& d) { return d; }));
                }));
}

// Y = A * B, where A may have one element      dA = sum of dY * B      dB = A * dY
V broadcast_mul(const V& a, const V& b) {
  auto product = [](const V& p, const V& q) {
    const V& one = p.size() == 1 ? p : q;
    return tiny::map(p.size() == 1 ? q.value() : p.value(), [s = one.item()](double v) { return s * v; });
  };
  if (a.shape() == b.shape()) return mul(a, b);
  return record("broadcast_mul", product(a, b),
                edge(
                    a, [b](const V& dy) { return mul(dy, b); }, summed),
                edge(
                    b, [a](const V& dy) { return broadcast_mul(a, dy); }, summed));
}

TEST(Fit, BringsTheGradientOfABroadcastArgumentBackToItsShape) {
  T tape;
  const V a = tape.input(A::full({1}, 3)), b = tape.input(A::of({{1, 2}, {4, 8}, {16, 32}}));
  fits = 0;
  const auto d = gradient(sum(broadcast_mul(a, b)), {a, b});
  EXPECT_EQ(fits, 1);
  EXPECT_EQ(d[0].shape(), Shape({1}));
  EXPECT_EQ(d[0].item(), 63);
  EXPECT_EQ(values(d[1]), Values(6, 3));
  EXPECT_EQ(values(gradient(d[0], b)[0]), Values(6, 1));
}

TEST(Fit, ThatReturnsAWrongShapeIsNamedWithItsOp) {
  T tape;
  const V x = tape.input(A::zeros({2}));
  const V y = record("stretched", A::zeros({3}),
                     edge(
                         x, [](const V& dy) { return dy; }, +[](const V& dy, const Shape&) { return dy; }));
  EXPECT_TRUE(raises<ShapeError>([&] { gradient(y, x, {A::ones({3})}); }, {"stretched", "(3)", "(2)"}));
}

// What somebody holds is never written to

TEST(Accumulation, ChangesNoSeed) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const A seed = A::of({5, 7});
  EXPECT_EQ(values(gradient_values({x, scale(x, 2.0), x}, x, {seed, seed, seed})[0]), (Values{20, 28}));
  EXPECT_EQ(values(seed), (Values{5, 7}));
}

TEST(Accumulation, ChangesNoSeedThatTheCallAloneHolds) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  std::vector<V> seeds = {A::of({5, 7}), A::of({50, 70})};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(values(gradient_values({x, x}, x, seeds)[0]), (Values{55, 77}));
    EXPECT_EQ(values(seeds[0]), (Values{5, 7}));
    EXPECT_EQ(values(seeds[1]), (Values{50, 70}));
  }
}

TEST(Accumulation, ChangesNothingThatARuleReturnsAndKeeps) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V constant = A::of({10, 20});
  auto fixed = [&] { return with_rule(x, [constant](const V&) { return constant; }); };
  const V y = add(fixed(), add(fixed(), square(x)));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(values(gradient_values(y, x, {A::ones({2})})[0]), (Values{22, 44}));
    EXPECT_EQ(values(constant), (Values{10, 20}));
  }
}

TEST(Accumulation, ChangesNoGradientOfAnIntermediateThatIsReturned) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V z = scale(x, 1.0);
  auto pass = [](const V& v) { return with_rule(v, [](const V& dy) { return dy; }); };
  const V y = add(pass(z), x);
  const V seed = A::of({5, 7});
  const auto plain = gradient_values(y, {z, y, x}, seed);
  EXPECT_EQ(values(plain[0]), (Values{5, 7}));
  EXPECT_EQ(values(plain[1]), (Values{5, 7}));
  EXPECT_EQ(values(plain[2]), (Values{10, 14}));
  EXPECT_EQ(values(seed), (Values{5, 7}));
}

TEST(Accumulation, ChangesNoValueReadThroughAReshape) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const A held = A::of({{10, 20}});
  const V y = add(with_rule(x, [&](const V&) { return V(held.reshape({2})); }), scale(x, 3.0));
  EXPECT_EQ(values(gradient_values(y, x, {A::ones({2})})[0]), (Values{13, 23}));
  EXPECT_EQ(values(held), (Values{10, 20}));
}

TEST(Accumulation, ChangesNoAdoptedMemory) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  double foreign[] = {10, 20};
  const V y = add(with_rule(x, [&](const V&) { return V(A::adopt(nullptr, foreign, {2})); }), scale(x, 3.0));
  EXPECT_EQ(values(gradient_values(y, x, {A::ones({2})})[0]), (Values{13, 23}));
  EXPECT_EQ(foreign[0], 10);
  EXPECT_EQ(foreign[1], 20);
}

TEST(Accumulation, OfWritingInAValueAfterwardsChangesNoSavedOne) {  // bug log B110
  T tape;
  V y = exp(tape.input(A::of({0, 1}), "x"));
  A held = y.value();
  held.set({0}, 100);
  EXPECT_EQ(y.value()(0), 1);
  A parameter = A::of({3, 5});
  const V x = tape.input(parameter);
  const V z = sum(square(x));
  parameter.set({0}, 100);
  EXPECT_EQ(values(gradient_values(z, x)[0]), (Values{6, 10}));
}

TEST(Accumulation, OfRecordedGradientsChangesNothingThatIsRecorded) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V y = add(mul(x, x), add(scale(x, 3.0), x));
  const V seed = tape.input(A::of({5, 7}));
  const V dx = gradient(y, x, seed)[0];
  EXPECT_EQ(values(dx), (Values{5 * 6, 7 * 8}));
  EXPECT_EQ(values(seed), (Values{5, 7}));
  EXPECT_EQ(values(gradient(dx, seed, {A::ones({2})})[0]), (Values{6, 8}));
}

}  // namespace
}  // namespace tapehead
