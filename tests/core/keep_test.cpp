#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include <tapehead/core/gradient.h>
#include <tapehead/core/keep.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/recompute.h>
#include <tapehead/core/steps.h>
#include <tapehead/core/watch.h>

#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using namespace tiny;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Summaries

TEST(ArraySummary, IsOfWhatIsFinite) {
  const ArraySummary s = summary_of(A::of({{1, nan, -3}, {infinity, 2, -infinity}}));
  EXPECT_EQ(s.least, -3);
  EXPECT_EQ(s.largest, 2);
  EXPECT_EQ(s.mean, 0);
  EXPECT_DOUBLE_EQ(s.spread, std::sqrt(14.0 / 3));
  EXPECT_DOUBLE_EQ(s.norm, std::sqrt(14.0));
  EXPECT_EQ(s.nans, 1);
  EXPECT_EQ(s.infinities, 2);
}

TEST(ArraySummary, OfNothingFiniteIsZero) {
  for (const A& x : {A::zeros({0}), A::of({nan, infinity})}) {
    const ArraySummary s = summary_of(x);
    EXPECT_EQ(s.least, 0);
    EXPECT_EQ(s.largest, 0);
    EXPECT_EQ(s.norm, 0);
    EXPECT_EQ(s.nans + s.infinities, x.size());
  }
}

TEST(ArraySummary, NeitherOverflowsNorCancels) {
  const ArraySummary huge = summary_of(A::of({1e308, -1e308, 1e308, 1e308}));
  EXPECT_DOUBLE_EQ(huge.mean, 5e307);
  EXPECT_EQ(huge.norm, infinity);  // 2e308 is no double
  EXPECT_DOUBLE_EQ(summary_of(A::of({3e200, 4e200})).norm, 5e200);
  // Around a large number: the sum of squares minus the square of the sum would leave nothing.
  EXPECT_DOUBLE_EQ(summary_of(A::of({1e9 - 1, 1e9, 1e9 + 1})).spread, std::sqrt(2.0 / 3));
}

// What is kept

TEST(Keep, IsNothingUnlessAskedFor) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  gradient_values(sum(square(x)), x);
  for (Index i = 0; i < tape.size(); ++i) EXPECT_EQ(tape.kept(i), nullptr);
  EXPECT_FALSE(tape.observed());
  tape.keep(KeepLevel::statistics);
  EXPECT_TRUE(tape.observed());
  EXPECT_FALSE(tape.watched());
  tape.keep(KeepLevel::rules);
  EXPECT_FALSE(tape.observed());
}

TEST(Keep, StatisticsAreOfValuesAndGradientsAndHoldNoArray) {
  T tape;
  tape.keep(KeepLevel::statistics);
  const V x = tape.input(A::of({1, -2, 4}), "x");
  const V y = sum(square(port(x, "query")));
  ASSERT_NE(tape.kept(0), nullptr);
  EXPECT_FALSE(tape.kept(0)->backward.has_value());
  gradient_values(y, x);
  // x, its port, the squares (1, 4, 16) and their sum; gradients (2, -4, 8), the same, ones and 1.
  const double largest[] = {4, 4, 16, 21}, gradient[] = {std::sqrt(84.0), std::sqrt(84.0), std::sqrt(3.0), 1};
  for (Index i = 0; i < 4; ++i) {
    const KeptNode<double>& kept = *tape.kept(i);
    EXPECT_EQ(kept.forward->summary.largest, largest[i]) << i;
    EXPECT_DOUBLE_EQ(kept.backward->summary.norm, gradient[i]) << i;
    EXPECT_FALSE(kept.forward->array.defined() || kept.backward->array.defined()) << i;
    EXPECT_GT(kept.forward->live_bytes, 0) << i;
  }
}

TEST(Keep, EverythingHoldsTheArraysWithoutACopy) {
  T tape;
  tape.keep(KeepLevel::everything);
  const V x = tape.input(A::of({1, -2, 4})), y = square(x);
  gradient_values(sum(y), x);
  EXPECT_TRUE(tape.kept(1)->forward->array.shares_storage_with(y.value()));
  EXPECT_EQ(values(tape.kept(0)->backward->array), (Values{2, -4, 8}));
  EXPECT_EQ(values(tape.kept(1)->backward->array), (Values{1, 1, 1}));
}

TEST(Keep, ChangesNoNumber) {
  auto gradients = [](KeepLevel level) {
    T tape;
    tape.keep(level);
    const V x = tape.input(A::of({1, -2, 0.3})), z = mul(exp(x), square(x));
    return values(gradient_values(sum(mul(z, exp(z))), x)[0]);
  };
  const Values bare = gradients(KeepLevel::rules);
  EXPECT_EQ(gradients(KeepLevel::statistics), bare);
  EXPECT_EQ(gradients(KeepLevel::everything), bare);
}

TEST(Keep, IsRewoundWithTheTape) {
  T tape;
  tape.keep(KeepLevel::everything);
  const V x = tape.input(A::of({1, 2}));
  const std::ptrdiff_t live = memory_statistics().live;
  square(square(x));
  EXPECT_GT(memory_statistics().live, live);
  tape.rewind(1);
  EXPECT_EQ(memory_statistics().live, live);
  EXPECT_NE(tape.kept(0), nullptr);
  EXPECT_EQ(tape.kept(1), nullptr);
  square(x);
  EXPECT_EQ(tape.kept(1)->forward->summary.largest, 4);
  tape.clear();
  EXPECT_EQ(tape.kept(0), nullptr);
}

TEST(Keep, TheLastGradientCounts) {
  T tape;
  tape.keep(KeepLevel::statistics);
  const V x = tape.input(A::of({1, 2})), a = square(x), b = exp(x);
  gradient_values(sum(a), x);
  ASSERT_TRUE(tape.kept(1)->backward.has_value());
  gradient_values(sum(b), x);
  EXPECT_FALSE(tape.kept(1)->backward.has_value());  // nothing came by it
  EXPECT_DOUBLE_EQ(tape.kept(0)->backward->summary.largest, std::exp(2));
}

TEST(Keep, AGradientPathIsNoGradient) {
  T tape;
  tape.keep(KeepLevel::statistics);
  const V x = tape.input(A::of({1, 2})), y = sum(mul(port(x, "query"), port(x, "key")));
  gradient_values(y, x);
  const double norm = tape.kept(0)->backward->summary.norm;
  gradient_paths(y, x);
  EXPECT_EQ(tape.kept(0)->backward->summary.norm, norm);
}

TEST(Keep, HoldsWhatARecordedGradientRecords) {
  T tape;
  tape.keep(KeepLevel::statistics);
  const V x = tape.input(A::of({1, 2}));
  const V dx = gradient(sum(square(x)), x)[0];
  const Index last = T::index_of("test", dx);
  EXPECT_EQ(tape.kept(last)->forward->summary.largest, 4);
  EXPECT_FALSE(tape.kept(last)->backward.has_value());
  gradient_values(sum(square(dx)), x);
  EXPECT_EQ(tape.kept(last)->backward->summary.largest, 8);
}

TEST(Keep, NodesFromBeforeHaveGradientsOnly) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  tape.keep(KeepLevel::statistics);
  gradient_values(sum(square(x)), x);
  EXPECT_FALSE(tape.kept(0)->forward.has_value());
  EXPECT_EQ(tape.kept(0)->backward->summary.largest, 4);
}

TEST(Keep, AnOpThatThrowsLeavesNothing) {
  T tape;
  tape.keep(KeepLevel::statistics);
  tape.watch_nonfinite();
  const V x = tape.input(A::of({800, 1}));
  EXPECT_THROW(exp(x), DomainError);
  EXPECT_EQ(tape.kept(1), nullptr);
  square(x);
  EXPECT_EQ(tape.kept(1)->forward->summary.largest, 640000);
}

TEST(Keep, WhatIsRecomputedIsOneNode) {
  T tape;
  tape.keep(KeepLevel::statistics);
  const V x = tape.input(A::of({1, 2}));
  const V y = recompute([](const std::vector<V>& in) { return square(exp(in[0])); }, {x});
  gradient_values(sum(y), x);
  EXPECT_EQ(tape.size(), 3);
  EXPECT_DOUBLE_EQ(tape.kept(1)->forward->summary.largest, std::exp(4));
  EXPECT_DOUBLE_EQ(tape.kept(0)->backward->summary.largest, 2 * std::exp(4));
}

// Times: bounds that hold on a machine of any speed.

// Y = X, after at least 2 ms, and dX = dY after as much.
V slow(const V& x) {
  auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  wait();
  return record("slow", x.value(), edge(x, [wait](const V& dy) {
                  wait();
                  return dy;
                }));
}

TEST(Keep, ATimeIsThatOfItsNode) {
  T tape;
  tape.keep(KeepLevel::statistics);
  const V x = tape.input(A::of({1, 2}));
  const V y = slow(square(x));
  gradient_values(sum(y), x);
  const KeptNode<double>& node = *tape.kept(2);
  EXPECT_GE(node.forward->seconds, 2e-3);
  EXPECT_GE(node.backward->seconds, 2e-3);
  EXPECT_GE(tape.kept(1)->backward->start, node.backward->start + 2e-3);
  EXPECT_GE(tape.kept(3)->forward->start, node.forward->start + 2e-3);
}

TEST(Keep, AnOpAfterAGradientDoesNotPayForIt) {
  T tape;
  tape.keep(KeepLevel::statistics);
  const V x = tape.input(A::of({1, 2}));
  const V y = slow(x);
  gradient_values(sum(y), x);
  const double begun = tape.kept(1)->backward->start;
  square(x);
  EXPECT_GE(tape.kept(tape.size() - 1)->forward->start, begun + 2e-3);
}

TEST(Keep, TheTimeOfWhatIsRecomputedHoldsItsRuns) {
  T tape;
  tape.keep(KeepLevel::statistics);
  const V x = tape.input(A::of({1, 2}));
  const V y = recompute([](const std::vector<V>& in) { return slow(in[0]); }, {x});
  gradient_values(sum(y), x);
  EXPECT_GE(tape.kept(1)->forward->seconds, 2e-3);
  EXPECT_GE(tape.kept(1)->backward->seconds, 4e-3);  // runs again, and then its rule
}

// Steps

TEST(BackwardSteps, ArePartialSumsThatEndInTheGradient) {
  T tape;
  const V x = tape.input(A::of({1, -2, 0.3}), "x");
  const V y = sum(add(square(x), mul(exp(x), x)));
  std::vector<BackwardStep<double>> steps;
  backward_steps(y, x, [&](const BackwardStep<double>& step) { steps.push_back(step); });
  ASSERT_EQ(steps.size(), 6u);  // sum, add, mul, exp, square, x
  EXPECT_EQ(steps.front().node, 5);
  EXPECT_EQ(values(steps.front().dy), (Values{1}));
  EXPECT_EQ(steps.back().node, 0);
  EXPECT_TRUE(steps.back().contributions.empty());
  EXPECT_EQ(values(steps.back().dy), values(gradient_values(y, x)[0]));
  // x is given by mul (argument 1), by exp and by square; each sum is the one before and the contribution.
  std::vector<Values> sums;
  for (const auto& step : steps) {
    for (const auto& contribution : step.contributions) {
      if (contribution.to != 0) continue;
      const Values before = sums.empty() ? Values(3) : sums.back(), dx = values(contribution.dx);
      sums.push_back(values(contribution.sum));
      for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(sums.back()[i], before[i] + dx[i]);
    }
  }
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_EQ(sums.back(), values(steps.back().dy));
}

TEST(BackwardSteps, LeaveOutWhatLeadsToNoX) {
  T tape;
  const V x = tape.input(A::of({1, 2})), other = tape.input(A::of({3, 4}));
  const V y = sum(mul(x, exp(other)));
  std::vector<Index> nodes;
  backward_steps(y, x, [&](const BackwardStep<double>& step) { nodes.push_back(step.node); });
  EXPECT_EQ(nodes, (std::vector<Index>{4, 3, 0}));
}

}  // namespace
}  // namespace tapehead
