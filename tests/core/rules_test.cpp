// Rules: those that fail, those that differentiate, joint ones, those of broadcast arguments; and that no sum
// of what they return is written over what somebody holds.

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <stdexcept>

#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/paths.h>

#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using namespace tiny;

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
