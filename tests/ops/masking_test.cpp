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
  EXPECT_EQ(dx.to_vector(), y.value().to_vector());
  EXPECT_NEAR_RELATIVE(dx, Array<double>::of({std::exp(1.0), 0, std::exp(3.0)}), 1e-15);
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

Shape shrunk(const Shape& full, unsigned ones, int dropped) {
  Shape shape = full;
  for (int i = 0; i < full.rank(); ++i) {
    if (ones >> i & 1u) shape = shape.with(i, 1);
  }
  return shape.last(full.rank() - dropped);
}

// Where element (i, j, k) of a broadcast result comes from.
template <class T>
T element(const Array<T>& x, Index i, Index j, Index k) {
  const Index position[] = {i, j, k};
  std::vector<Index> own;
  for (int axis = 0; axis < x.rank(); ++axis) {
    own.push_back(x.shape()[axis] == 1 ? 0 : position[3 - x.rank() + axis]);
  }
  return x.at(own);
}

TEST(Where, AllThreeBroadcast) {
  Generator generator(3);
  const Shape full{2, 3, 4};
  for (int number = 0; number < 400; ++number) {
    auto shape = [&] {
      return shrunk(full, static_cast<unsigned>(generator.below(8)), static_cast<int>(generator.below(4)));
    };
    Array<bool> condition = Array<bool>::uninitialized(shape());
    for (bool& holds : condition.mutable_values()) holds = generator.below(2) == 0;
    const Array<double> x = generator.normal<double>(shape()), y = generator.normal<double>(shape());
    const Array<double> z = where(condition, V(x), V(y)).value();
    const Shape expected = *broadcast(condition.shape(), *broadcast(x.shape(), y.shape()));
    ASSERT_EQ(z.shape(), expected);
    const Array<double> all = broadcast_to(V(z), full).value();
    for (Index i = 0; i < 2; ++i) {
      for (Index j = 0; j < 3; ++j) {
        for (Index k = 0; k < 4; ++k) {
          ASSERT_EQ(all(i, j, k), element(condition, i, j, k) ? element(x, i, j, k) : element(y, i, j, k))
              << to_string(condition.shape()) << to_string(x.shape()) << to_string(y.shape());
        }
      }
    }
  }
}

TEST(Where, WhatIsNotSelectedGetsZeroWhateverComesIn) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({1, nan, infinity})), y = tape.input(Array<double>::scalar(nan));
  const auto condition = Array<bool>::of({true, false, true});
  const V z = where(condition, x, y), seed = Array<double>::of({nan, 3, infinity});
  for (const auto& d :
       {gradient_values(z, {x, y}, seed),
        std::vector{gradient(z, {x, y}, seed)[0].value(), gradient(z, {x, y}, seed)[1].value()}}) {
    EXPECT_TRUE(std::isnan(d[0](0)));
    EXPECT_EQ(d[0](1), 0);
    EXPECT_EQ(d[0](2), infinity);
    EXPECT_EQ(d[1].item(), 3);
  }
}

// x <= 0 ? exp(x) : 1 + x at x = 100 in float: the exponential overflows, and 0 times its slope would be NaN.
// At second order as well.
TEST(Where, SelectingTheArgumentTooKeepsAnOverflowingBranchOut) {
  Tape<float> tape;
  const Var<float> x = tape.input(Array<float>::of({100, -1}));
  const auto below = Array<bool>::of({false, true});
  const Var<float> zero = Array<float>::scalar(0);
  const Var<float> y = where(below, exp(where(below, x, zero)), x + 1.0);
  const Var<float> ones = Array<float>::ones({2});
  const std::vector<Var<float>> dx = gradient(y, x, ones);
  for (const Array<float>& d : {gradient_values(y, x, ones)[0], dx[0].value()}) {
    EXPECT_EQ(d(0), 1);
    EXPECT_FLOAT_EQ(d(1), std::exp(-1.0f));
  }
  const Array<float> second = gradient_values(dx[0], x, ones)[0];
  EXPECT_EQ(second(0), 0);
  EXPECT_FLOAT_EQ(second(1), std::exp(-1.0f));
}

TEST(Where, OneVarInBothBranchesGetsAll) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({1, 2, 3})), seed = Array<double>::of({5, 6, 7});
  const V y = where(Array<bool>::of({true, false, true}), x, x);
  EXPECT_SAME_NUMBERS(gradient_values(y, x, seed)[0], seed);
}

TEST(Where, TheCallersConditionMayChangeAfterwards) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({1, 2})), y = tape.input(Array<double>::of({3, 4}));
  Array<bool> condition = Array<bool>::of({true, false});
  const V z = where(condition, x, y);
  condition.set({0}, false);
  const auto d = gradient_values(z, {x, y}, V(Array<double>::ones({2})));
  EXPECT_EQ(d[0].to_vector(), (std::vector<double>{1, 0}));
  EXPECT_EQ(d[1].to_vector(), (std::vector<double>{0, 1}));
}

TEST(Where, LargeArraysAreTheSameBitsOnAnyThreads) {
  Generator generator(4);
  const Array<double> x = generator.normal<double>({300, 4, 100}), y = generator.normal<double>({4, 1});
  Array<bool> condition = Array<bool>::ones({300, 1, 100});
  for (Index i = 0; i < 300; ++i) condition.set({i, 0, i % 100}, false);
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const std::vector<V> inputs = {tape.input(x), tape.input(y)};
    const V z = where(condition, inputs[0], inputs[1]);
    auto results = gradient_values(z, inputs, V(x));
    results.push_back(z.value());
    return results;
  });
}

TEST(Positive, IsFalseForZeroAndNan) {
  const auto x = Array<double>::of({1, 0, -0.0, -1, nan, infinity, -infinity});
  EXPECT_EQ(positive(x).to_vector(), (std::vector<bool>{true, false, false, false, false, true, false}));
  EXPECT_EQ(positive(Array<float>::zeros({2, 0})).shape(), Shape({2, 0}));
}

}  // namespace
}  // namespace tapehead
