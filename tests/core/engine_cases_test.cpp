// Cases of the engine in which several of its parts meet.

#include <gtest/gtest.h>

#include <vector>

#include <tapehead/core/gradient.h>

#include "support/compare.h"
#include "support/differences.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using namespace tiny;

TEST(EngineCases, TwoLossesOnOneTapeHaveTheirOwnGradients) {
  T tape;
  const V x = tape.input(A::of({1, 2})), w = tape.input(A::of({3, 5}));
  const V shared = mul(x, w);
  const V first = sum(square(shared)), second = sum(mul(shared, x));
  for (int i = 0; i < 2; ++i) {  // whatever was asked before, and whatever that recorded
    const auto of_first = gradient_values(first, {x, w});
    const auto of_second = gradient(second, {x, w});
    EXPECT_EQ(of_first[0].to_vector(), (std::vector<double>{18, 100}));         // 2 x w^2
    EXPECT_EQ(of_first[1].to_vector(), (std::vector<double>{6, 40}));           // 2 x^2 w
    EXPECT_EQ(of_second[0].value().to_vector(), (std::vector<double>{6, 20}));  // 2 x w
    EXPECT_EQ(of_second[1].value().to_vector(), (std::vector<double>{1, 4}));   // x^2
  }
}

TEST(EngineCases, DetachOnOneOfTwoPathsLeavesTheOther) {
  T tape;
  const V x = tape.input(A::scalar(0.5));
  const V inner = scale(x, 2.0);
  const V y = mul(inner, inner.detach());  // 2 x times a constant of 1
  EXPECT_EQ(gradient(y, x)[0].item(), 2);
  EXPECT_EQ(gradient(y, inner)[0].item(), 1);
  EXPECT_EQ(gradient(gradient(mul(y, x), x)[0], x)[0].item(), 4);  // 2 x^2
}

// The norm of a gradient in a loss, and the same of that loss: F = |dL/dx|^2 + L, G = |dF/dx|^2 + F.
V with_squared_slope(const V& loss, const V& x) {
  const V slope = gradient(loss, x)[0];
  return add(sum(square(slope)), loss);
}
V loss_of(const V& x) { return sum(mul(exp(scale(x, 0.5)), square(x))); }

TEST(EngineCases, GradientOfAGradientOfALossBuiltFromGradients) {
  const A start = A::of({0.5, -1, 0.25});
  auto f = [](const V& x) { return with_squared_slope(with_squared_slope(loss_of(x), x), x); };
  T tape;
  const V x = tape.input(start);
  const V dx = gradient(f(x), x)[0];
  const V v = A::of({1, -2, 0.5});
  const A ddx = gradient_values(dx, x, v)[0];

  // Their error goes with the square of the step and is 6e-10 here; rounding is a hundredth of that.
  auto value_at = [&](const A& at) {
    T own;
    return f(own.input(at)).item();
  };
  auto slope_at = [&](const A& at) {
    T own;
    const V y = own.input(at);
    return sum(mul(gradient(f(y), y)[0], v)).item();
  };
  EXPECT_NEAR_RELATIVE(dx, central_differences(value_at, start, 1e-5), 2e-9);
  EXPECT_NEAR_RELATIVE(ddx, central_differences(slope_at, start, 1e-5), 2e-9);
  EXPECT_GT(magnitude(ddx), 10);
}

}  // namespace
}  // namespace tapehead
