#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

struct Binary {
  std::string name;
  std::function<V(const V&, const V&)> op;
  std::function<double(double, double)> of_numbers;
};
std::vector<Binary> binaries() {
  return {{"add", [](const V& a, const V& b) { return a + b; }, [](double a, double b) { return a + b; }},
          {"sub", [](const V& a, const V& b) { return a - b; }, [](double a, double b) { return a - b; }},
          {"mul", [](const V& a, const V& b) { return a * b; }, [](double a, double b) { return a * b; }},
          {"div", [](const V& a, const V& b) { return a / b; }, [](double a, double b) { return a / b; }},
          {"pow", [](const V& a, const V& b) { return pow(a, b); },
           [](double a, double b) { return a < 0 ? std::nan("") : std::pow(a, b); }},
          {"maximum", [](const V& a, const V& b) { return maximum(a, b); },
           [](double a, double b) { return a < b ? b : a; }},
          {"minimum", [](const V& a, const V& b) { return minimum(a, b); },
           [](double a, double b) { return a < b ? a : b; }}};
}

// (2, 3, 4) with the axes of `ones` shrunk to 1 and `dropped` leading axes taken away.
Shape shrunk(unsigned ones, int dropped) {
  Shape shape{2, 3, 4};
  for (int i = 0; i < 3; ++i) {
    if (ones >> i & 1u) shape = shape.with(i, 1);
  }
  return shape.last(3 - dropped);
}

// Where element (i, j, k) of the broadcast shape comes from.
double element(const Array<double>& x, Index i, Index j, Index k) {
  const Index position[] = {i, j, k};
  std::vector<Index> own;
  for (int axis = 0; axis < x.rank(); ++axis) {
    own.push_back(x.shape()[axis] == 1 ? 0 : position[3 - x.rank() + axis]);
  }
  return x.at(own);
}

TEST(Arithmetic, BroadcastsEveryPairOfShapesByNumPysRule) {
  Generator generator(1);
  for (const Binary& binary : binaries()) {
    for (unsigned ones = 0; ones < 64; ++ones) {
      for (int dropped = 0; dropped <= 3; ++dropped) {
        // One side keeps its rank; swapping the sides below puts the shorter one on either.
        const Array<double> p = generator.normal<double>(shrunk(ones & 7u, 0));
        const Array<double> q = generator.normal<double>(shrunk(ones >> 3, dropped));
        for (const auto& [a, b] : {std::pair(p, q), std::pair(q, p)}) {
          const Array<double> y = binary.op(a, b).value();
          ASSERT_EQ(y.rank(), 3);
          for (Index i = 0; i < y.dim(0); ++i) {
            for (Index j = 0; j < y.dim(1); ++j) {
              for (Index k = 0; k < y.dim(2); ++k) {
                const double expected = binary.of_numbers(element(a, i, j, k), element(b, i, j, k));
                ASSERT_TRUE(y(i, j, k) == expected || (std::isnan(y(i, j, k)) && std::isnan(expected)))
                    << binary.name << to_string(a.shape()) << to_string(b.shape());
              }
            }
          }
        }
      }
    }
  }
}

TEST(Arithmetic, ScalarsAndArraysWithoutElementsBroadcastToo) {
  const V two = Array<double>::scalar(2), three = Array<double>::scalar(3);
  EXPECT_EQ((two * three).shape(), Shape{});
  EXPECT_EQ((two * three).item(), 6);
  EXPECT_EQ((two + V(Array<double>::zeros({3, 0}))).shape(), Shape({3, 0}));
  EXPECT_EQ((V(Array<double>::zeros({3, 1})) + V(Array<double>::zeros({1, 0}))).shape(), Shape({3, 0}));
}

TEST(Arithmetic, NumbersStandOnEitherSide) {
  const V x = Array<double>::of({1, 2, 4});
  auto values = [](const V& y) { return y.value().to_vector(); };
  using Numbers = std::vector<double>;
  EXPECT_EQ(values(x + 1.5), Numbers({2.5, 3.5, 5.5}));
  EXPECT_EQ(values(1.5 + x), Numbers({2.5, 3.5, 5.5}));
  EXPECT_EQ(values(x - 0.5), Numbers({0.5, 1.5, 3.5}));
  EXPECT_EQ(values(0.5 - x), Numbers({-0.5, -1.5, -3.5}));
  EXPECT_EQ(values(x * -2.0), Numbers({-2, -4, -8}));
  EXPECT_EQ(values(-2.0 * x), Numbers({-2, -4, -8}));
  EXPECT_EQ(values(x / 4.0), Numbers({0.25, 0.5, 1}));
  EXPECT_EQ(values(2.0 / x), Numbers({2, 1, 0.5}));
  EXPECT_EQ(values(-x), Numbers({-1, -2, -4}));
}

TEST(Arithmetic, FollowsIeee) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const V x = Array<double>::of({0, 1, -1, infinity, -infinity});
  const V zero = Array<double>::scalar(0);
  const Array<double> quotient = (x / zero).value();
  EXPECT_TRUE(std::isnan(quotient(0)));
  EXPECT_EQ(quotient(1), infinity);
  EXPECT_EQ(quotient(2), -infinity);
  EXPECT_TRUE(std::isnan((x - x).value()(3)));
  EXPECT_TRUE(std::isnan((x * zero).value()(4)));
  EXPECT_TRUE(std::signbit((-zero).item()));
  EXPECT_EQ((1.0 / x).value()(0), infinity);
}

TEST(Arithmetic, ShapesThatDoNotBroadcastAreNamed) {
  const V a = Array<double>::zeros({2, 3}), b = Array<double>::zeros({3, 2});
  for (const Binary& binary : binaries()) {
    EXPECT_TRUE(raises<ShapeError>([&] { binary.op(a, b); }, {binary.name + ":", "a (2, 3)", "b (3, 2)"}));
  }
  EXPECT_THROW(a + V(Array<double>::zeros({2})), ShapeError);
  EXPECT_THROW(a + V(Array<double>::zeros({0})), ShapeError);
  EXPECT_THROW(a + V(Array<double>::zeros({4, 3, 3})), ShapeError);
}

TEST(Arithmetic, AnErrorLeavesTheTapeAsItWas) {
  Tape<double> tape;
  const V a = tape.input(Array<double>::zeros({2, 3}));
  EXPECT_THROW(a + V(Array<double>::zeros({4})), ShapeError);
  EXPECT_EQ(tape.size(), 1);
}

TEST(Arithmetic, GradientOfABroadcastOperandIsTheSumOverItsRepeats) {
  Tape<double> tape;
  const V row = tape.input(Array<double>::of({1, 2, 3})),
          column = tape.input(Array<double>::of({{10}, {20}}));
  const V seed = Array<double>::of({{1, 10, 100}, {2, 20, 200}});
  const auto d = gradient_values(row * column, {row, column}, seed);
  EXPECT_EQ(d[0].shape(), Shape({3}));
  EXPECT_EQ(d[0].to_vector(), (std::vector<double>{10 + 40, 100 + 400, 1000 + 4000}));
  EXPECT_EQ(d[1].shape(), Shape({2, 1}));
  EXPECT_EQ(d[1].to_vector(), (std::vector<double>{321, 642}));
}

// In-place addition in xtensor would let the sum take the larger shape.
TEST(Arithmetic, ContributionsOfBroadcastAndPlainUsesKeepTheShapeOfTheInput) {
  for (const bool broadcast_first : {true, false}) {
    Tape<double> tape;
    const V x = tape.input(Array<double>::of({1, 2, 3}));
    const V matrix = Array<double>::of({{1, 1, 1}, {2, 2, 2}});
    V y;
    if (broadcast_first) {
      const V repeated = x * matrix;
      y = repeated + x * x;
    } else {
      const V squared = x * x;
      y = squared + x * matrix;
    }
    const V ones = Array<double>::ones({2, 3});
    for (const Array<double>& dx : {gradient_values(y, x, ones)[0], gradient(y, x, ones)[0].value()}) {
      EXPECT_EQ(dx.shape(), Shape({3}));
      EXPECT_EQ(dx.to_vector(), (std::vector<double>{3 + 4, 3 + 8, 3 + 12}));
    }
  }
}

TEST(Arithmetic, AVarInSeveralPlacesGetsEveryContribution) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::scalar(1));
  EXPECT_EQ(gradient_values(x * x * x, x)[0].item(), 3);
  EXPECT_EQ(gradient_values(x + x, x)[0].item(), 2);
  EXPECT_EQ(gradient_values(x - x, x)[0].item(), 0);
  EXPECT_EQ(gradient_values(x / x, x)[0].item(), 0);
}

// add hands dy through to both inputs without a copy.
TEST(Arithmetic, GradientsThatShareStorageDoNotChangeTogether) {
  Tape<double> tape;
  const V a = tape.input(Array<double>::zeros({3})), b = tape.input(Array<double>::zeros({3}));
  const V seed = Array<double>::ones({3});
  auto d = gradient_values(a + b, {a, b}, seed);
  d[0].mutable_values()[0] = 7;
  EXPECT_EQ(d[1].to_vector(), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(seed.value().to_vector(), (std::vector<double>{1, 1, 1}));
}

TEST(Arithmetic, OperandsAreNotWritten) {
  const Array<double> a = Array<double>::of({{1, 2}, {3, 4}}), b = Array<double>::of({5, 6});
  V x = a;
  x = x + V(b);
  x = transpose(x);
  EXPECT_EQ(x.value().to_vector(), (std::vector<double>{6, 8, 8, 10}));
  EXPECT_EQ(a.to_vector(), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(b.to_vector(), (std::vector<double>{5, 6}));
}

TEST(Arithmetic, LargeArraysAreRightAndTheSameBitsOnAnyThreads) {
  Generator generator(4);
  const Shape shape{400, 257};  // three pieces of elementwise_grain, with a rest
  ASSERT_GT(shape.size(), 3 * elementwise_grain);
  const Array<double> a = generator.normal<double>(shape);
  const Array<double> others[] = {generator.normal<double>(shape), generator.normal<double>({257}),
                                  generator.normal<double>({400, 1}), generator.normal<double>({})};
  for (const Array<double>& b : others) {
    expect_same_bits_on_any_threads([&] {
      Tape<double> tape;
      const V x = tape.input(a), y = tape.input(b);
      const V quotient = -(x * y - y) / (y * y + 1.0);
      auto results = gradient_values(quotient, {x, y}, V(a));
      results.push_back(quotient.value());
      return results;
    });
    const Array<double> sum = (V(a) + V(b)).value();
    const Array<double> all_of_b = broadcast_to(V(b), shape).value();
    for (Index i = 0; i < sum.size(); ++i) ASSERT_EQ(sum.data()[i], a.data()[i] + all_of_b.data()[i]);
  }
}

// d2 (a^b) / da db = a^(b - 1) (1 + b log a), which is 1 / a for b = 0: da is 0 there, but not its
// derivative.
TEST(Arithmetic, MixedSecondDerivativesOfAPowerAgreeInEitherOrderAlsoAtExponentZero) {
  for (const double exponent : {0.0, 2.5}) {
    Tape<double> tape;
    const V a = tape.input(Array<double>::of({2, 0.5})), b = tape.input(Array<double>::full({2}, exponent));
    const V y = pow(a, b), ones = Array<double>::ones({2});
    const V da = gradient(y, a, ones)[0], db = gradient(y, b, ones)[0];
    Array<double> expected = a.value();
    for (double& x : expected.mutable_values()) {
      x = std::pow(x, exponent - 1) * (1 + exponent * std::log(x));
    }
    EXPECT_NEAR_RELATIVE(gradient_values(da, b, ones)[0], expected, 1e-15) << exponent;
    EXPECT_NEAR_RELATIVE(gradient_values(db, a, ones)[0], expected, 1e-15) << exponent;
  }
}

// 0 times the infinite slope that is not taken would be NaN.
TEST(Arithmetic, SecondDerivativesOfAPowerOfZeroAreNotNan) {
  Tape<double> tape;
  const V a = tape.input(Array<double>::zeros({3})), b = tape.input(Array<double>::of({0, 1, 2}));
  const V ones = Array<double>::ones({3});
  const std::vector<V> d = gradient(pow(a, b), {a, b}, ones);
  EXPECT_EQ(gradient_values(d[0], a, ones)[0].to_vector(), (std::vector<double>{0, 0, 2}));
  EXPECT_EQ(gradient_values(d[1], b, ones)[0].to_vector(), (std::vector<double>{0, 0, 0}));
}

TEST(Arithmetic, PowersWithANumberHaveTheSlopesOfPyTorchAtZero) {
  const std::vector<std::pair<double, double>> slope_at_zero = {
      {0, 0}, {1, 1}, {2, 0}, {0.5, std::numeric_limits<double>::infinity()}, {3, 0}};
  for (const auto& [exponent, slope] : slope_at_zero) {
    Tape<double> tape;
    const V x = tape.input(Array<double>::scalar(0));
    EXPECT_EQ(gradient_values(pow(x, exponent), x)[0].item(), slope) << exponent;
  }
}

TEST(Arithmetic, WhatIsNotTheExtremeGetsZeroWhateverComesIn) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  Tape<double> tape;
  const V a = tape.input(Array<double>::of({1, 2})), b = tape.input(Array<double>::of({2, 1}));
  const V seed = Array<double>::of({nan, std::numeric_limits<double>::infinity()});
  const std::vector<std::pair<V, bool>> cases = {{maximum(a, b), true}, {minimum(a, b), false}};
  for (const auto& [y, b_first] : cases) {
    const std::vector<V> recorded = gradient(y, {a, b}, seed);
    for (const auto& d : {gradient_values(y, {a, b}, seed), {recorded[0].value(), recorded[1].value()}}) {
      const Array<double>&takes_first = d[b_first ? 1 : 0], &takes_second = d[b_first ? 0 : 1];
      EXPECT_TRUE(std::isnan(takes_first(0)));
      EXPECT_EQ(takes_first(1), 0);
      EXPECT_EQ(takes_second(0), 0);
      EXPECT_EQ(takes_second(1), std::numeric_limits<double>::infinity());
    }
  }
}

TEST(Arithmetic, BothSidesOfATieTogetherGetWhatComesIn) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({3, -1}));
  const V seed = Array<double>::of({0.3, 7});
  EXPECT_EQ(gradient_values(maximum(x, x), x, seed)[0].to_vector(), (std::vector<double>{0.3, 7}));
  EXPECT_EQ(gradient_values(minimum(x, x), x, seed)[0].to_vector(), (std::vector<double>{0.3, 7}));
}

TEST(Arithmetic, ABoundOfClampMayBeInfiniteOrBothTheSame) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const V x = Array<double>::of({-3, 0, 5});
  EXPECT_EQ(clamp(x, 0, infinity).value().to_vector(), (std::vector<double>{0, 0, 5}));
  EXPECT_EQ(clamp(x, -infinity, 1).value().to_vector(), (std::vector<double>{-3, 0, 1}));
  EXPECT_EQ(clamp(x, 2, 2).value().to_vector(), (std::vector<double>{2, 2, 2}));
}

TEST(Arithmetic, LargePowersAndExtremesAreTheSameBitsOnAnyThreads) {
  Generator generator(5);
  const Array<double> a = generator.uniform<double>({400, 257}, 0.1, 2), b = generator.normal<double>({257});
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const V x = tape.input(a), y = tape.input(b);
    const V z = pow(x, y) + maximum(x, y) * minimum(y, x) + clamp(x, 0.5, 1);
    auto results = gradient_values(z, {x, y}, V(a));
    results.push_back(z.value());
    return results;
  });
}

}  // namespace
}  // namespace tapehead
