#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(MaskedFill, KeepsWhereTrueAndFillsElsewhere) {
  const V x = Array<double>::of({{1, 2, 3}, {4, 5, 6}});
  const auto kept = Array<bool>::of({{true, false, true}, {false, false, true}});
  EXPECT_EQ(masked_fill(x, kept, -7).value().to_vector(), (std::vector<double>{1, -7, 3, -7, -7, 6}));
  EXPECT_EQ(masked_fill(x, kept, -infinity).value()(1, 0), -infinity);
}

// (2, 3, 4) with any of its axes of extent 1 or left out, against the element that each comes from.
TEST(MaskedFill, TheMaskBroadcasts) {
  const Array<double> x = Generator(1).normal<double>({2, 3, 4});
  for (unsigned ones = 0; ones < 8; ++ones) {
    for (int dropped = 0; dropped <= 3; ++dropped) {
      Shape shape = x.shape();
      for (int i = 0; i < 3; ++i) {
        if (ones >> i & 1u) shape = shape.with(i, 1);
      }
      shape = shape.last(3 - dropped);
      Array<bool> kept = Array<bool>::uninitialized(shape);
      Index number = 0;
      for (bool& keep : kept.mutable_values()) keep = number++ % 3 != 1;
      const Array<double> y = masked_fill(V(x), kept, 9).value();
      for (Index i = 0; i < 2; ++i) {
        for (Index j = 0; j < 3; ++j) {
          for (Index k = 0; k < 4; ++k) {
            const Index position[] = {i, j, k};
            std::vector<Index> own;
            for (int axis = dropped; axis < 3; ++axis) own.push_back(ones >> axis & 1u ? 0 : position[axis]);
            ASSERT_EQ(y(i, j, k), kept.at(own) ? x(i, j, k) : 9) << to_string(shape);
          }
        }
      }
    }
  }
}

TEST(MaskedFill, WhatIsNotKeptDoesNotMatterEvenWhenItIsNotFinite) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({1, nan, infinity}));
  const auto kept = Array<bool>::of({true, false, false});
  const V y = masked_fill(x, kept, 0);
  EXPECT_EQ(y.value().to_vector(), (std::vector<double>{1, 0, 0}));
  const V seed = Array<double>::of({2, nan, infinity});
  EXPECT_EQ(gradient_values(y, x, seed)[0].to_vector(), (std::vector<double>{2, 0, 0}));
  EXPECT_EQ(gradient(y, x, seed)[0].value().to_vector(), (std::vector<double>{2, 0, 0}));
}

TEST(MaskedFill, AnInfiniteFillGivesNoNanGradient) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({1, 2, 3}));
  const V y = exp(masked_fill(x, Array<bool>::of({true, false, true}), -infinity));
  const auto dx = gradient_values(y, x, V(Array<double>::ones({3})))[0];
  EXPECT_EQ(dx.to_vector(), (std::vector<double>{std::exp(1.0), 0, std::exp(3.0)}));
}

// x <= 0 ? exp(x) : 1 + x at x = 100, where exp overflows in float: selecting first keeps the branch not
// taken out of the gradient.
TEST(MaskedFill, SelectingBeforeAndAfterKeepsAnOverflowingBranchOut) {
  Tape<float> tape;
  const Var<float> x = tape.input(Array<float>::of({100, -1}));
  const auto below = Array<bool>::of({false, true}), above = Array<bool>::of({true, false});
  const Var<float> y = masked_fill(exp(masked_fill(x, below, 0)), below, 0) + masked_fill(x + 1.0, above, 0);
  const Var<float> ones = Array<float>::ones({2});
  for (const Array<float>& dx : {gradient_values(y, x, ones)[0], gradient(y, x, ones)[0].value()}) {
    EXPECT_EQ(dx(0), 1);
    EXPECT_FLOAT_EQ(dx(1), std::exp(-1.0f));
  }
}

TEST(MaskedFill, TheCallersMaskMayChangeAfterwards) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({1, 2}));
  Array<bool> kept = Array<bool>::of({true, false});
  const V y = masked_fill(x, kept, 0);
  kept.set({0}, false);
  EXPECT_EQ(gradient_values(y, x, V(Array<double>::ones({2})))[0].to_vector(), (std::vector<double>{1, 0}));
}

TEST(MaskedFill, AMaskThatDoesNotBroadcastToXIsNamed) {
  const V x = Array<double>::zeros({2, 3});
  for (const Shape& shape : {Shape{3, 3}, Shape{2}, Shape{1, 2, 3}, Shape{0}}) {
    EXPECT_TRUE(raises<ShapeError>([&] { masked_fill(x, Array<bool>::zeros(shape), 0); },
                                   {"masked_fill:", "x (2, 3)", "kept " + to_string(shape)}));
  }
  EXPECT_THROW(masked_fill(V(Array<double>::zeros({1, 3})), Array<bool>::ones({2, 3}), 0), ShapeError);
}

TEST(MaskedFill, ScalarsAndArraysWithoutElements) {
  EXPECT_EQ(masked_fill(V(Array<double>::scalar(3)), Array<bool>::scalar(false), 5).item(), 5);
  EXPECT_EQ(masked_fill(V(Array<double>::zeros({2, 0})), Array<bool>::ones({2, 1}), 5).shape(),
            Shape({2, 0}));
}

TEST(MaskedFill, LargeArraysAreTheSameBitsOnAnyThreads) {
  const Array<double> x = Generator(2).normal<double>({300, 4, 100});
  Array<bool> kept = Array<bool>::ones({300, 1, 100});
  for (Index i = 0; i < 300; ++i) kept.set({i, 0, i % 100}, false);
  expect_same_bits_on_any_threads([&] { return std::vector{masked_fill(V(x), kept, -1).value()}; });
}

TEST(Positive, IsFalseForZeroAndNan) {
  const auto x = Array<double>::of({1, 0, -0.0, -1, nan, infinity, -infinity});
  EXPECT_EQ(positive(x).to_vector(), (std::vector<bool>{true, false, false, false, false, true, false}));
  EXPECT_EQ(positive(Array<float>::zeros({2, 0})).shape(), Shape({2, 0}));
}

}  // namespace
}  // namespace tapehead
