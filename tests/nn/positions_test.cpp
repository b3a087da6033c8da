#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>

#include <tapehead/core/errors.h>
#include <tapehead/nn/positions.h>
#include <tapehead/ops/rope.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"

namespace tapehead {
namespace {

// The imaginary and real parts of e^(i angle), in long double; with `halves`, all sines before all cosines,
// as the paper's program had them and its formula has not.
template <class T>
Array<T> formula(Index length, Index width, long double base, Index start, bool halves = false) {
  auto p = Array<T>::uninitialized({length, width});
  for (Index l = 0; l < length; ++l) {
    for (Index i = 0; i < width / 2; ++i) {
      const long double exponent = 2 * static_cast<long double>(i) / static_cast<long double>(width);
      const auto turned = std::polar(1.0L, static_cast<long double>(start + l) / std::pow(base, exponent));
      p.set({l, halves ? i : 2 * i}, static_cast<T>(turned.imag()));
      p.set({l, halves ? i + width / 2 : 2 * i + 1}, static_cast<T>(turned.real()));
    }
  }
  return p;
}

template <class T>
class SinusoidalPositions : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(SinusoidalPositions, Types);

TYPED_TEST(SinusoidalPositions, AreTheFormula) {
  using T = TypeParam;
  for (const Index width : {2, 6, 64}) {
    for (const Index start : {0, 5, -7, 1000}) {
      for (const double base : {10000.0, 50.0}) {
        const Array<T> p = sinusoidal_positions<T>(17, width, base, start);
        // Angles are at most 1016; those of the first pair are exact. Power and product round the others, of
        // 762 at most, by half a unit each; where the exponent is rounded too, angles are below 280 and it
        // counts log(base) times at most. Storing rounds a number below 1 by half of a unit of T.
        const double tolerance = 3 * 1016 * 1.2e-16 + 1.2 * std::numeric_limits<T>::epsilon() / 2;
        EXPECT_NEAR_RELATIVE(p, formula<T>(17, width, base, start), tolerance);
        EXPECT_EQ(static_cast<bool>(agree(p, formula<T>(17, width, base, start, true), 1e-3)), width == 2);
        EXPECT_FALSE(agree(p, formula<T>(17, width, base, start + 1), 1e-3));
      }
    }
  }
}

TEST(SinusoidalPositionsOf, WidthFourByHand) {
  EXPECT_NEAR_RELATIVE(
      sinusoidal_positions<double>(3, 4),
      Array<double>::of({{0, 1, 0, 1},
                         {0.8414709848078965, 0.5403023058681398, 0.009999833334166665,
                          0.9999500004166653},  // sines and cosines of 1 and 1/100
                         {0.9092974268256817, -0.4161468365471424, 0.01999866669333308, 0.9998000066665778}}),
      1e-15);
}

// Turning (0, 1) by minus the angle gives its sine and cosine: the same numbers by another op.
TEST(SinusoidalPositionsOf, AnyWidthAreTheTurnsOfRope) {
  const Index length = 9, width = 10, start = 4;
  Array<double> first = Array<double>::zeros({length, width});
  for (Index l = 0; l < length; ++l) {
    for (Index i = 1; i < width; i += 2) first.set({l, i}, 1);
  }
  auto turned = [&](Pairing pairing) {
    const RopeOptions options{.pairing = pairing, .start = -(start + length - 1)};
    return flip(rope(Var<double>(first), options), 0);
  };
  const Array<double> p = sinusoidal_positions<double>(length, width, 10000, start);
  EXPECT_NEAR_RELATIVE(turned(Pairing::neighbours).value(), p, 1e-15);
  EXPECT_FALSE(agree(turned(Pairing::half).value(), p, 1e-3));
}

TEST(SinusoidalPositionsOf, AStartAreTheLaterRows) {
  const Var<double> all(sinusoidal_positions<double>(12, 6));
  EXPECT_SAME_NUMBERS(sinusoidal_positions<double>(7, 6, 10000, 5), slice(all, 0, {5, 12}).value());
  EXPECT_EQ(sinusoidal_positions<double>(0, 6).shape(), (Shape{0, 6}));
}

TEST(SinusoidalPositionsOf, WrongArgumentsAreErrors) {
  auto call = [](Index length, Index width, double base) {
    return [=] { sinusoidal_positions<double>(length, width, base); };
  };
  EXPECT_TRUE(raises<DomainError>(call(3, 5, 10000), {"sinusoidal_positions", "width 5"}));
  EXPECT_TRUE(raises<DomainError>(call(3, 0, 10000), {"width 0"}));
  EXPECT_TRUE(raises<DomainError>(call(3, -2, 10000), {"width -2"}));
  EXPECT_TRUE(raises<DomainError>(call(-1, 4, 10000), {"length -1"}));
  for (const double base : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_TRUE(raises<DomainError>(call(3, 4, base), {"sinusoidal_positions", "the base", "positive"}));
  }
}

}  // namespace
}  // namespace tapehead
