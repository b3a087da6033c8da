#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/rope.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;
constexpr Pairing pairings[] = {Pairing::half, Pairing::neighbours};

// Each pair of the width as a complex number, times e^(i angle).
Array<double> turned_numbers(const Array<double>& x, const RopeOptions& options) {
  Array<double> y = x;
  const Index all = x.dim(-1), length = x.dim(-2), width = options.width == 0 ? all : options.width;
  const Shape leading = x.shape().first(x.rank() - 2);
  const auto out = y.mutable_values();
  for (Index row = 0; row < leading.size() * length; ++row) {
    for (Index i = 0; i < width / 2; ++i) {
      const Index first = options.pairing == Pairing::half ? i : 2 * i;
      const Index second = options.pairing == Pairing::half ? i + width / 2 : 2 * i + 1;
      const auto one = static_cast<std::size_t>(row * all + first),
                 other = static_cast<std::size_t>(row * all + second);
      const Index start = options.start.of(leading, row / length);
      const double position = static_cast<double>(start + row % length) * options.position_scale;
      const double angle =
          position / std::pow(options.base, 2.0 * static_cast<double>(i) / static_cast<double>(width));
      const std::complex<double> number =
          std::complex<double>(x.values()[one], x.values()[other]) * std::polar(1.0, angle);
      out[one] = number.real();
      out[other] = number.imag();
    }
  }
  return y;
}

// At positions below 512: the first pair's angle has a rounding or none; the others, 51 at most, differ by
// five half units or so each way, and the sines and cosines by one.
constexpr double turned_rounding = 51 * 10 * 1.2e-16 + 1e-15;

TEST(Rope, TurnsPairsAsComplexNumbersDo) {
  Generator generator(1);
  for (const Pairing pairing : pairings) {
    for (const Shape& shape :
         {Shape{4, 6}, Shape{2, 5, 2}, Shape{2, 3, 1, 8}, Shape{3, 0, 4}, Shape{3, 4, 0}}) {
      for (const Index start : {0, 3, -7, 500}) {
        const RopeOptions options{.pairing = pairing, .base = start == 3 ? 100.0 : 10000.0, .start = start};
        const Array<double> x = generator.normal<double>(shape);
        EXPECT_NEAR_RELATIVE(rope(V(x), options).value(), turned_numbers(x, options), turned_rounding);
      }
    }
  }
}

TEST(Rope, PositionZeroStaysAndLengthsStay) {
  const V x = Generator(2).normal<double>({2, 5, 6});
  for (const Pairing pairing : pairings) {
    const V y = rope(x, {.pairing = pairing});
    EXPECT_SAME_NUMBERS(slice(y, 1, {0, 1}), slice(x, 1, {0, 1}));
    EXPECT_NEAR_RELATIVE(sum(y * y, -1).value(), sum(x * x, -1).value(), 1e-14);
    EXPECT_FALSE(agree(y, x, 1e-3));
  }
}

// Query and key (1, 1, 0, 0) one position apart: with neighbours one pair of length sqrt(2) turns by 1; with
// halves one pair of length 1 turns by 1 and the other by 0.01.
TEST(Rope, ThePairingsDifferInWhatTurnsTogether) {
  const V x = Array<double>::of({{1, 1, 0, 0}, {1, 1, 0, 0}});
  auto score = [&](Pairing pairing) {
    const V y = rope(x, {.pairing = pairing, .start = 4});
    return sum(slice(y, 0, {0, 1}) * slice(y, 0, {1, 2})).item();
  };
  EXPECT_NEAR(score(Pairing::neighbours), 2 * std::cos(1), 1e-14);
  EXPECT_NEAR(score(Pairing::half), std::cos(1) + std::cos(0.01), 1e-14);
}

TEST(Rope, TheOrderOfTheNumbersIsAllThatSetsThePairingsApart) {
  const V x = Generator(3).normal<double>({3, 4, 6});
  auto to_neighbours = [](const V& v) { return reshape(transpose(reshape(v, {3, 4, 2, 3})), {3, 4, 6}); };
  EXPECT_SAME_NUMBERS(rope(to_neighbours(x), {.pairing = Pairing::neighbours}), to_neighbours(rope(x)));
}

TEST(Rope, ProductsDependOnHowFarApartTheRowsAre) {
  Generator generator(4);
  const V query = generator.normal<double>({1, 8}), key = generator.normal<double>({1, 8});
  for (const Pairing pairing : pairings) {
    auto score = [&](Index at_query, Index at_key) {
      return sum(rope(query, {.pairing = pairing, .start = at_query}) *
                 rope(key, {.pairing = pairing, .start = at_key}))
          .item();
    };
    const double expected = score(5, 2);
    for (const Index shift : {-9, -2, 1, 40}) {
      EXPECT_NEAR(score(5 + shift, 2 + shift), expected, 1e-13) << shift;
    }
    EXPECT_GT(std::abs(score(5, 3) - expected), 1e-3);
  }
}

// A second call must not use the angles of the first.
TEST(Rope, AStartIsWhereALongerSequenceIs) {
  const V x = Generator(5).normal<double>({2, 9, 4});
  for (const Pairing pairing : pairings) {
    const V whole = rope(x, {.pairing = pairing, .start = 2});
    for (Index first = 0; first < 9; ++first) {
      const V part = slice(x, 1, {first, first + 1});
      EXPECT_SAME_NUMBERS(rope(part, {.pairing = pairing, .start = 2 + first}),
                          slice(whole, 1, {first, first + 1}));
    }
  }
}

TEST(Rope, OfAWidthLeavesWhatLiesPastItAsItIs) {
  const Array<double> x = Generator(12).normal<double>({2, 3, 4, 8});
  for (const Pairing pairing : pairings) {
    for (const Index width : {2, 4, 6, 8}) {
      const RopeOptions options{.pairing = pairing, .base = 100, .start = 3, .width = width};
      const V y = rope(V(x), options);
      EXPECT_NEAR_RELATIVE(y.value(), turned_numbers(x, options), turned_rounding);
      EXPECT_SAME_NUMBERS(slice(y, -1, {width, {}}), slice(V(x), -1, {width, {}}));
      // The part alone is turned likewise: angles and pairs are those of the width, not of the whole.
      const V part = slice(V(x), -1, {0, width});
      EXPECT_SAME_NUMBERS(slice(y, -1, {0, width}),
                          rope(part, {.pairing = pairing, .base = 100, .start = 3}));
    }
    const V whole = rope(V(x), {.pairing = pairing, .base = 100, .start = 3});
    const V half = rope(V(x), {.pairing = pairing, .base = 100, .start = 3, .width = 4});
    EXPECT_FALSE(agree(slice(whole, -1, {0, 4}), slice(half, -1, {0, 4}), 1e-3));
    EXPECT_SAME_NUMBERS(rope(V(x), {.pairing = pairing, .base = 100, .start = 3, .width = 8}), whole);
  }
}

TEST(Rope, ScaledPositionsAreReadLikeFewer) {
  const Array<double> x = Generator(13).normal<double>({2, 5, 6});
  for (const Pairing pairing : pairings) {
    for (const double scale : {0.25, 0.3, 2.0}) {
      const RopeOptions options{.pairing = pairing, .start = 7, .position_scale = scale};
      EXPECT_NEAR_RELATIVE(rope(V(x), options).value(), turned_numbers(x, options), turned_rounding);
    }
    const V row = slice(V(x), 1, {0, 1});
    const V quarter = rope(row, {.pairing = pairing, .start = 8, .position_scale = 0.25});
    EXPECT_SAME_NUMBERS(quarter, rope(row, {.pairing = pairing, .start = 2}));
    EXPECT_FALSE(agree(quarter, rope(row, {.pairing = pairing, .start = 8}), 1e-3));
    EXPECT_FALSE(agree(quarter, rope(row, {.pairing = pairing, .start = 32}), 1e-3));
  }
}

TEST(Rope, AStartForEachSampleIsThatOfEachAlone) {
  const Array<double> x = Generator(14).normal<double>({2, 3, 4, 6});
  const auto of_samples = Array<Index>::of({5, -2});
  const auto of_heads = Array<Index>::of({{5, 0, 1}, {-2, 400, 7}});
  for (const Pairing pairing : pairings) {
    for (const Array<Index>& start : {of_samples, of_heads}) {
      const RopeOptions options{.pairing = pairing, .start = start, .width = 4, .position_scale = 0.5};
      const V y = rope(V(x), options);
      EXPECT_NEAR_RELATIVE(y.value(), turned_numbers(x, options), turned_rounding);
      for (Index b = 0; b < 2; ++b) {
        for (Index h = 0; h < 3; ++h) {
          const Index own = start.rank() == 1 ? start(b) : start(b, h);
          auto alone = [&](const V& v) { return slice(v, {{b, b + 1}, {h, h + 1}}); };
          const RopeOptions one{.pairing = pairing, .start = own, .width = 4, .position_scale = 0.5};
          EXPECT_SAME_NUMBERS(alone(y), rope(alone(V(x)), one));
        }
      }
    }
    const V y = rope(V(x), {.pairing = pairing, .start = of_samples});
    EXPECT_FALSE(agree(y, rope(V(x), {.pairing = pairing, .start = Array<Index>::of({-2, 5})}), 1e-3));
    EXPECT_FALSE(agree(y, rope(V(x), {.pairing = pairing, .start = 5}), 1e-3));
  }
}

TEST(Rope, GradientIsTheRotationBack) {
  Tape<double> tape;
  const V x = tape.input(Generator(6).normal<double>({2, 4, 6}));
  for (const Pairing pairing : pairings) {
    for (const Index width : {0, 2}) {
      const V y = rope(x, {.pairing = pairing, .start = Array<Index>::of({3, -9}), .width = width});
      EXPECT_NEAR_RELATIVE(gradient_values(y, x, y.detach())[0], x.value(), 1e-15);
    }
  }
}

// <A x, y> = <x, A^T y> with small integers, exactly; numbers that are no cosine and sine of one angle.
TEST(Rope, GivenCosinesAndSinesNeedBelongToNoAngle) {
  Generator generator(7);
  auto whole = [&](const Shape& shape) { return generator.integers(shape, 19).cast<double>(); };
  for (const Pairing pairing : pairings) {
    for (const Shape& table :
         {Shape{4, 3}, Shape{2, 1, 4, 3}, Shape{5, 4, 3}, Shape{4, 1}, Shape{3}, Shape{1}, Shape{}}) {
      const Array<double> cosines = whole(table), sines = whole(table);
      Tape<double> tape;
      const V x = tape.input(whole({2, 5, 4, 6}));
      const V y = rope(x, cosines, sines, pairing);
      const V w = whole(y.shape());
      EXPECT_EQ(sum(y * w).item(), sum(x * V(gradient_values(y, x, w)[0])).item());
    }
  }
}

TEST(Rope, GivenCosinesAndSinesAreReadWhereTheyBelong) {
  const V x = Generator(8).normal<double>({2, 3, 4, 6});
  const Shape whole{2, 3, 4, 3};
  for (const Pairing pairing : pairings) {
    for (const Shape& table : {Shape{4, 3}, Shape{2, 1, 4, 3}, Shape{3, 1, 3}, Shape{4, 1}, Shape{}}) {
      Generator generator(9);
      const V cosines = generator.normal<double>(table), sines = generator.normal<double>(table);
      const V c = broadcast_to(cosines, whole), s = broadcast_to(sines, whole);
      const Slice first = pairing == Pairing::half ? Slice{0, 3} : Slice{0, {}, 2};
      const Slice second = pairing == Pairing::half ? Slice{3, 6} : Slice{1, {}, 2};
      const V x1 = slice(x, -1, first), x2 = slice(x, -1, second);
      const V y = rope(x, cosines.value(), sines.value(), pairing);
      EXPECT_NEAR_RELATIVE(slice(y, -1, first), x1 * c - x2 * s, 1e-15);
      EXPECT_NEAR_RELATIVE(slice(y, -1, second), x1 * s + x2 * c, 1e-15);
    }
  }
}

TEST(Rope, GivenCosinesAndSinesTurnTheWidthOnly) {
  Generator generator(15);
  const V x = generator.normal<double>({2, 3, 4, 8});
  const Array<double> cosines = generator.normal<double>({4, 3}), sines = generator.normal<double>({4, 3});
  for (const Pairing pairing : pairings) {
    const V y = rope(x, cosines, sines, pairing, 6);
    EXPECT_SAME_NUMBERS(slice(y, -1, {6, 8}), slice(x, -1, {6, 8}));
    EXPECT_SAME_NUMBERS(slice(y, -1, {0, 6}), rope(slice(x, -1, {0, 6}), cosines, sines, pairing));
  }
}

TEST(Rope, FloatKeepsItsDigitsAtFarPositions) {
  const Array<float> x = Generator(10).normal<float>({3, 8});
  for (const Index start : {Index{0}, Index{1000000}}) {
    const Array<float> y = rope(Var<float>(x), {.start = start}).value();
    const Array<double> exact = rope(V(x.cast<double>()), {.start = start}).value();
    // A cosine and a sine, two products and a sum, each rounded once.
    EXPECT_LE(absolute_error(y.cast<double>(), exact), 6 * 0x1p-24 * magnitude(exact) * std::sqrt(2.0))
        << start;
  }
}

TEST(Rope, LargeArraysAreTheSameBitsOnAnyThreads) {
  const V x = Generator(11).normal<double>({6, 300, 64});
  expect_same_bits_on_any_threads([&] {
    return std::vector{rope(x).value(), rope(x, {.pairing = Pairing::neighbours, .start = 5}).value()};
  });
}

TEST(Rope, WhatDoesNotFitIsNamed) {
  const V x = Array<double>::ones({2, 4, 6});
  EXPECT_TRUE(raises<ShapeError>([] { rope(V(Array<double>::ones({2, 5}))); }, {"rope:", "x (2, 5)"}));
  EXPECT_TRUE(raises<ShapeError>([] { rope(V(Array<double>::ones({4}))); }, {"rope:", "x (4)"}));
  EXPECT_TRUE(raises<ShapeError>([] { rope(V(Array<double>::scalar(1))); }, {"rope:", "x ()"}));
  auto with = [&](const Shape& cosines, const Shape& sines) {
    return [=] { rope(x, Array<double>::ones(cosines), Array<double>::ones(sines)); };
  };
  EXPECT_TRUE(
      raises<ShapeError>(with({4, 6}, {4, 6}), {"rope:", "x (2, 4, 6)", "cosines (4, 6)", "sines (4, 6)"}));
  EXPECT_TRUE(raises<ShapeError>(with({4, 3}, {3}), {"rope:", "cosines (4, 3)", "sines (3)"}));
  EXPECT_TRUE(raises<ShapeError>(with({5, 3}, {5, 3}), {"rope:", "cosines (5, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(with({1, 2, 4, 3}, {1, 2, 4, 3}), {"rope:", "cosines (1, 2, 4, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        rope(V(Array<double>::ones({2, 5})), Array<double>::ones({2}), Array<double>::ones({2}));
      },
      {"rope:", "x (2, 5)"}));
}

TEST(Rope, AWidthThatIsNotOneOfPairsOfTheLastAxisIsAnError) {
  const V x = Array<double>::ones({2, 4, 6});
  const Array<double> table = Array<double>::ones({1});
  for (const Index width : {1, 3, 5}) {
    const std::string named = "width " + std::to_string(width);
    EXPECT_TRUE(
        raises<ShapeError>([&] { rope(x, {.width = width}); }, {"rope:", named, "pairs", "x (2, 4, 6)"}));
    EXPECT_TRUE(
        raises<ShapeError>([&] { rope(x, table, table, Pairing::half, width); }, {"rope:", named, "pairs"}));
  }
  for (const Index width : {-2, 7, 8}) {
    const std::string named = "width " + std::to_string(width);
    EXPECT_TRUE(raises<ShapeError>([&] { rope(x, {.width = width}); }, {"rope:", named, "x (2, 4, 6)"}));
    EXPECT_TRUE(raises<ShapeError>([&] { rope(x, table, table, Pairing::half, width); }, {"rope:", named}));
  }
  EXPECT_NO_THROW(rope(V(Array<double>::ones({2, 5})), {.width = 4}));  // an odd last axis, pairs of it
}

TEST(Rope, AStartThatIsNotOneForEachSampleIsAnError) {
  const V x = Array<double>::ones({2, 3, 4, 6});
  for (const Shape& shape : {Shape{3}, Shape{1}, Shape{0}, Shape{3, 2}, Shape{2, 1}, Shape{2, 3, 4}}) {
    EXPECT_TRUE(raises<ShapeError>([&] { rope(x, {.start = Array<Index>::zeros(shape)}); },
                                   {"rope:", "x (2, 3, 4, 6)", "start " + to_string(shape)}))
        << to_string(shape);
  }
}

TEST(Rope, APositionScaleThatGivesNoAngleIsAnError) {
  const V x = Array<double>::ones({2, 4});
  for (const double scale : {0.0, -0.25, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(raises<DomainError>([&] { rope(x, {.position_scale = scale}); }, {"rope:", "position scale"}))
        << scale;
  }
}

TEST(Rope, ABaseThatGivesNoAngleIsAnError) {
  const V x = Array<double>::ones({2, 4});
  for (const double base : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(raises<DomainError>([&] { rope(x, {.base = base}); }, {"rope:", "base"})) << base;
  }
}

}  // namespace
}  // namespace tapehead
