#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include <tapehead/core/random.h>
#include <tapehead/ops/rounding.h>

#include "support/compare.h"

namespace tapehead {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// A format of 16 bits: sign, exponent, fraction.
struct Format {
  Precision precision;
  int exponent_bits, fraction_bits;
};
constexpr Format f16{Precision::f16, 5, 10}, bf16{Precision::bf16, 8, 7};

// IEEE 754-2019, section 3.4, word by word.
double decoded(const Format& format, unsigned bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1, all_ones = (1 << format.exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> format.fraction_bits) & all_ones;
  const unsigned fraction = bits & ((1u << format.fraction_bits) - 1);
  const double sign = bits >> 15 ? -1 : 1, part = std::ldexp(fraction, -format.fraction_bits);
  if (exponent == all_ones) return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * infinity;
  return exponent == 0 ? sign * std::ldexp(part, 1 - bias) : sign * std::ldexp(1 + part, exponent - bias);
}

// The bits of infinity; all below are finite, in order.
unsigned bits_of_infinity(const Format& format) {
  return ((1u << format.exponent_bits) - 1) << format.fraction_bits;
}

// What would follow the largest finite number, so that rounding past it has a neighbour to be nearer to.
double above(const Format& format, unsigned bits) {
  if (bits + 1 < bits_of_infinity(format)) return decoded(format, bits + 1);
  return 2 * decoded(format, bits_of_infinity(format) - (1u << format.fraction_bits));
}

template <class T>
using Round = std::function<T(T)>;

template <class T>
Round<T> rounding_to(Precision precision) {
  return [=](T x) { return round_to(x, precision); };
}

template <class T>
bool same(T a, T b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// Each of the 65,536 is itself.
template <class T>
testing::AssertionResult keeps_its_numbers(const Format& format, const Round<T>& round) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const T x = static_cast<T>(decoded(format, bits));
    if (!same(round(x), x)) return testing::AssertionFailure() << x << " becomes " << round(x);
  }
  return testing::AssertionSuccess();
}

// Between each two neighbours of both signs: what is a T past either side of the middle goes to that side,
// the middle to the even one.
template <class T>
testing::AssertionResult rounds_to_nearest_even(const Format& format, const Round<T>& round) {
  for (unsigned bits = 0; bits < bits_of_infinity(format); ++bits) {
    const T low = static_cast<T>(decoded(format, bits));
    const T middle = static_cast<T>((decoded(format, bits) + above(format, bits)) / 2);
    const T high = static_cast<T>(decoded(format, bits + 1));  // infinity after the largest
    const std::pair<T, T> cases[] = {{std::nextafter(middle, T{0}), low},
                                     {middle, bits % 2 == 0 ? low : high},
                                     {std::nextafter(middle, static_cast<T>(infinity)), high}};
    for (const auto& [x, expected] : cases) {
      for (const T sign : {T{1}, T{-1}}) {
        if (!same(round(sign * x), sign * expected)) {
          return testing::AssertionFailure()
                 << sign * x << " becomes " << round(sign * x) << ", expected " << sign * expected;
        }
      }
    }
  }
  return testing::AssertionSuccess();
}

// A finite x in units of the last place of a 16-bit format, made whole by `whole`: the frame of wrong rules.
double by_units(const Format& format, double x, const std::function<double(double)>& whole) {
  if (!std::isfinite(x) || x == 0) return x;
  const int lowest = 2 - (1 << (format.exponent_bits - 1));
  const double unit = std::ldexp(1, std::max(std::ilogb(x), lowest) - format.fraction_bits);
  const double y = whole(x / unit) * unit;
  return std::abs(y) >= above(format, bits_of_infinity(format) - 1) ? std::copysign(infinity, x) : y;
}

template <class T>
class RoundTo : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RoundTo, Types);

TYPED_TEST(RoundTo, KeepsEveryNumberOfTheFormat) {
  EXPECT_TRUE(keeps_its_numbers<TypeParam>(f16, rounding_to<TypeParam>(Precision::f16)));
  EXPECT_TRUE(keeps_its_numbers<TypeParam>(bf16, rounding_to<TypeParam>(Precision::bf16)));
  EXPECT_FALSE(keeps_its_numbers<TypeParam>(f16, rounding_to<TypeParam>(Precision::bf16)));
  EXPECT_FALSE(keeps_its_numbers<TypeParam>(bf16, rounding_to<TypeParam>(Precision::f16)));
}

TYPED_TEST(RoundTo, GoesToTheNearestAndFromTheMiddleToTheEvenOne) {
  using T = TypeParam;
  for (const Format& format : {f16, bf16}) {
    EXPECT_TRUE(rounds_to_nearest_even<T>(format, rounding_to<T>(format.precision)));
    auto wrong = [&](double (*whole)(double)) {
      return rounds_to_nearest_even<T>(
          format, [=](T x) { return static_cast<T>(by_units(format, static_cast<double>(x), whole)); });
    };
    EXPECT_TRUE(wrong([](double x) { return std::nearbyint(x); }));  // the frame is not what is wrong
    EXPECT_FALSE(wrong([](double x) { return std::trunc(x); }));
    EXPECT_FALSE(wrong([](double x) { return std::round(x); }));  // middles away from zero
  }
}

// 1 + 2^-11 + 2^-40 lies past the middle between 1 and 1 + 2^-10. By way of float it falls on that middle.
TEST(RoundToOfDouble, RoundsOnce) {
  const double x = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(round_to(x, Precision::f16), 1 + 0x1p-10);
  EXPECT_EQ(round_to(round_to(x, Precision::f32), Precision::f16), 1);
  const Round<double> twice = [](double y) { return round_to(round_to(y, Precision::f32), Precision::f16); };
  EXPECT_FALSE(rounds_to_nearest_even<double>(f16, twice));
  EXPECT_TRUE(keeps_its_numbers<double>(f16, twice));
}

TEST(RoundToOfDouble, ToFloatIsWhatTheProcessorDoes) {
  Generator random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto x = std::bit_cast<double>(random.bits());  // every exponent: overflow, subnormal, NaN
    const auto near = std::ldexp(1 + random.uniform(), static_cast<int>(random.below(300)) - 155);
    EXPECT_TRUE(same(round_to(x, Precision::f32), static_cast<double>(static_cast<float>(x)))) << x;
    EXPECT_EQ(round_to(near, Precision::f32), static_cast<double>(static_cast<float>(near))) << near;
  }
}

TEST(RoundToOfDouble, KnownNumbers) {
  const auto to_f16 = rounding_to<double>(Precision::f16), to_bf16 = rounding_to<double>(Precision::bf16);
  EXPECT_EQ(to_f16(65519.999), 65504);
  EXPECT_EQ(to_f16(65520), infinity);
  EXPECT_EQ(to_f16(-1e300), -infinity);
  EXPECT_EQ(to_f16(0.1), 0.0999755859375);
  EXPECT_EQ(to_f16(0x1p-24), 0x1p-24);  // the smallest
  EXPECT_EQ(to_f16(0x1p-25), 0);
  EXPECT_EQ(to_f16(0x1.8p-25), 0x1p-24);
  EXPECT_TRUE(std::signbit(to_f16(-1e-300)));
  EXPECT_EQ(to_f16(std::numeric_limits<double>::denorm_min()), 0);
  EXPECT_EQ(to_bf16(0.1), 0.10009765625);
  EXPECT_EQ(to_bf16(257), 256);
  EXPECT_EQ(to_bf16(65520), 65536);
  EXPECT_EQ(to_bf16(0x1.FFp127), infinity);  // the middle between the largest and 2^128
  EXPECT_EQ(to_bf16(std::nextafter(0x1.FFp127, 0)), 0x1.FEp127);
  EXPECT_TRUE(std::isnan(to_f16(std::nan(""))));
}

TYPED_TEST(RoundTo, OfAnArrayIsThatOfEachElement) {
  using T = TypeParam;
  const Array<T> x = Generator(2).normal<T>({3, 1, 5}, 0, 1e4);
  for (const Precision precision : {Precision::f64, Precision::f32, Precision::f16, Precision::bf16}) {
    Array<T> expected = x;
    for (T& v : expected.mutable_values()) v = round_to(v, precision);
    EXPECT_SAME_NUMBERS(round_to(x, precision), expected);
  }
  EXPECT_FALSE(same_numbers(round_to(x, Precision::f16), x));
  EXPECT_EQ(round_to(Array<T>::zeros({0, 2}), Precision::f16).shape(), (Shape{0, 2}));
  EXPECT_EQ(round_to(Array<T>::scalar(T{257}), Precision::bf16).item(), T{256});
}

// Every float is a number of f32 and f64, every double one of f64.
TYPED_TEST(RoundTo, AFormatAsWideAsTheTypeChangesNothing) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  Array<T> x = Generator(3).normal<T>({100});
  x.set({0}, Limits::denorm_min()), x.set({1}, 3 * Limits::denorm_min()), x.set({2}, Limits::min());
  x.set({3}, Limits::max()), x.set({4}, -Limits::infinity()), x.set({5}, std::nextafter(T{1}, T{0}));
  EXPECT_SAME_NUMBERS(round_to(x, Precision::f64), x);
  EXPECT_EQ(static_cast<bool>(same_numbers(round_to(x, Precision::f32), x)), (std::same_as<T, float>));
}

}  // namespace
}  // namespace tapehead
