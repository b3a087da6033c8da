#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

constexpr double epsilon = std::numeric_limits<double>::epsilon();

// layer_norm and its gradients by the formulas, in long double, for the row of n numbers at x.
struct Row {
  using Number = long double;

  Row(const double* x, const double* gain, const double* dy, Index n, double eps) {
    const auto count = static_cast<Number>(n);
    Number mean = 0, variance = 0, mean_du = 0, mean_duu = 0;
    for (Index i = 0; i < n; ++i) mean += x[i] / count;
    for (Index i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean) / count;
    scale = 1 / std::sqrt(variance + eps);
    for (Index i = 0; i < n; ++i) {
      u.push_back((x[i] - mean) * scale);
      const Number du = static_cast<Number>(dy[i]) * gain[i];
      mean_du += du / count;
      mean_duu += du * u.back() / count;
      largest_x = std::max<Number>(largest_x, std::abs(x[i]));
      largest_u = std::max(largest_u, std::abs(u.back()));
      largest_du = std::max(largest_du, std::abs(du));
    }
    for (Index i = 0; i < n; ++i) {
      const Number du = static_cast<Number>(dy[i]) * gain[i];
      dx.push_back((du - mean_du - u[static_cast<std::size_t>(i)] * mean_duu) * scale);
    }
  }

  std::vector<Number> u, dx;
  Number scale = 0, largest_x = 0, largest_u = 0, largest_du = 0;
};

// An error of (n + 8) epsilon in the mean, relative to the largest x, reaches u times the scale, y times the
// gain and dx by every place where u stands.
TEST(LayerNorm, AgreesWithLongDoubleAtTwoHundredRandomShapes) {
  Generator generator(1);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const int rank = 1 + static_cast<int>(generator.below(4));
    std::vector<Index> extents;
    for (int i = 0; i < rank; ++i) extents.push_back(1 + generator.below(repeat % 10 == 0 ? 40 : 7));
    const Shape shape{std::span<const Index>(extents)};
    const Shape row = shape.last(1 + static_cast<int>(generator.below(rank)));
    const Index n = row.size(), rows = shape.size() / n;
    const double eps = repeat % 2 ? 1e-5 : 1e-2;
    const Array<double> x = generator.normal<double>(shape, repeat % 3), dy = generator.normal<double>(shape);
    const Array<double> gain = generator.normal<double>(row), bias = generator.normal<double>(row);

    Tape<double> tape;
    const std::vector<V> inputs = {tape.input(x), tape.input(gain), tape.input(bias)};
    const V y = layer_norm(inputs[0], inputs[1], inputs[2], eps);
    const auto d = gradient_values(y, inputs, V(dy));
    ASSERT_EQ(y.shape(), shape);
    const double rounding = static_cast<double>(n + 8) * epsilon;
    std::vector<long double> dgain(static_cast<std::size_t>(n)), dbias(dgain), bound_dgain(dgain),
        bound_dbias(dgain);
    for (Index r = 0; r < rows; ++r) {
      const Row expected(x.data() + r * n, gain.data(), dy.data() + r * n, n, eps);
      const auto error_u = rounding * (expected.largest_x * expected.scale + expected.largest_u);
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        const std::size_t at = static_cast<std::size_t>(r * n) + i;
        const long double g = gain.values()[i], b = bias.values()[i], up = dy.values()[at];
        ASSERT_LE(std::abs(y.value().values()[at] - (expected.u[i] * g + b)),
                  error_u * std::abs(g) + epsilon * (std::abs(expected.u[i] * g) + std::abs(b)))
            << to_string(shape) << to_string(row);
        ASSERT_LE(std::abs(d[0].values()[at] - expected.dx[i]),
                  expected.scale * expected.largest_du * (rounding + error_u) * (4 + 2 * expected.largest_u))
            << to_string(shape) << to_string(row);
        dgain[i] += up * expected.u[i];
        dbias[i] += up;
        bound_dgain[i] +=
            std::abs(up) * (error_u + static_cast<double>(rows) * epsilon * std::abs(expected.u[i]));
        bound_dbias[i] += std::abs(up) * static_cast<double>(rows) * epsilon;
      }
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      ASSERT_LE(std::abs(d[1].values()[i] - dgain[i]), bound_dgain[i]) << to_string(shape);
      ASSERT_LE(std::abs(d[2].values()[i] - dbias[i]), bound_dbias[i]) << to_string(shape);
    }
  }
}

TEST(LayerNorm, RowsHaveMeanZeroAndVarianceOne) {
  const V ones = Array<double>::ones({50}), zeros = Array<double>::zeros({50});
  const V y = layer_norm(V(Generator(2).normal<double>({4, 50}, 30, 7)), ones, zeros);
  for (const double m : mean(y, -1).value().to_vector()) EXPECT_NEAR(m, 0, 1e-14);
  // eps / variance is 2e-7
  for (const double v : mean(y * y, -1).value().to_vector()) EXPECT_NEAR(v, 1, 1e-6);
}

TEST(LayerNorm, AConstantRowBecomesTheBias) {
  const V gain = Array<double>::of({2, 3}), bias = Array<double>::of({5, 7});
  EXPECT_EQ(layer_norm(V(Array<double>::of({{4, 4}, {0, 0}})), gain, bias).value().to_vector(),
            (std::vector<double>{5, 7, 5, 7}));
}

TEST(LayerNorm, IsNotUpsetByALargeMean) {
  const Array<float> x = Generator(3).normal<float>({5, 64});
  Array<float> far = x;
  for (float& value : far.mutable_values()) value += 65536;  // multiples of 2^-7 remain
  const Var<float> ones = Array<float>::ones({64}), zeros = Array<float>::zeros({64});
  Array<float> near = far;
  for (float& value : near.mutable_values()) value -= 65536;  // exactly
  EXPECT_LE(absolute_error(layer_norm(Var<float>(far), ones, zeros).value(),
                           layer_norm(Var<float>(near), ones, zeros).value()),
            1e-6);
}

TEST(LayerNorm, GivesOnlyTheGradientsAskedFor) {
  Generator generator(4);
  const Array<double> values[] = {generator.normal<double>({3, 4}), generator.normal<double>({4}),
                                  generator.normal<double>({4})};
  const V seed = generator.normal<double>({3, 4});
  auto gradients = [&](unsigned recorded) {
    Tape<double> tape;
    std::vector<V> inputs, asked;
    for (unsigned i = 0; i < 3; ++i) {
      inputs.push_back(recorded >> i & 1u ? tape.input(values[i]) : V(values[i]));
      if (recorded >> i & 1u) asked.push_back(inputs.back());
    }
    const V y = layer_norm(inputs[0], inputs[1], inputs[2]);
    auto plain = gradient_values(y, asked, seed);
    const auto with_rules = gradient(y, asked, seed);
    for (std::size_t k = 0; k < asked.size(); ++k) EXPECT_NEAR_RELATIVE(with_rules[k], plain[k], 1e-14);
    return plain;
  };
  const auto all = gradients(7);
  for (unsigned recorded = 1; recorded < 7; ++recorded) {
    const auto some = gradients(recorded);
    std::size_t k = 0;
    for (unsigned i = 0; i < 3; ++i) {
      if (recorded >> i & 1u) {
        EXPECT_SAME_NUMBERS(some[k], all[i]);
        ++k;
      }
    }
  }
}

TEST(LayerNorm, GradientOfOneInputOutOfThreeRecorded) {
  Generator generator(5);
  Tape<double> tape;
  const V x = tape.input(generator.normal<double>({3, 4})), gain = tape.input(generator.normal<double>({4}));
  const V bias = tape.input(generator.normal<double>({4}));
  const V y = layer_norm(x, gain, bias), seed = generator.normal<double>({3, 4});
  const auto all = gradient_values(y, {x, gain, bias}, seed);
  EXPECT_SAME_NUMBERS(gradient_values(y, x, seed)[0], all[0]);
  EXPECT_SAME_NUMBERS(gradient_values(y, gain, seed)[0], all[1]);
  EXPECT_SAME_NUMBERS(gradient_values(y, bias, seed)[0], all[2]);
}

TEST(LayerNorm, OneVarInAllThreePlacesGetsTheSumOfTheThree) {
  const Array<double> value = Generator(6).normal<double>({5});
  const V seed = Generator(7).normal<double>({5});
  Tape<double> tape;
  const V x = tape.input(value), gain = tape.input(value), bias = tape.input(value);
  const auto apart = gradient_values(layer_norm(x, gain, bias), {x, gain, bias}, seed);
  const V together = V(apart[0]) + V(apart[1]) + V(apart[2]);
  EXPECT_NEAR_RELATIVE(gradient_values(layer_norm(x, x, x), x, seed)[0], together.value(), 1e-15);
}

TEST(LayerNorm, NanStaysInItsRow) {
  Array<double> x = Generator(8).normal<double>({3, 4});
  x.set({1, 2}, std::numeric_limits<double>::quiet_NaN());
  Tape<double> tape;
  const V in = tape.input(x), ones = Array<double>::ones({4}), zeros = Array<double>::zeros({4});
  const V y = layer_norm(in, ones, zeros);
  const Array<double> dx = gradient_values(y, in, V(Generator(9).normal<double>({3, 4})))[0];
  for (Index row = 0; row < 3; ++row) {
    for (Index i = 0; i < 4; ++i) {
      EXPECT_EQ(std::isnan(y.value()(row, i)), row == 1);
      EXPECT_EQ(std::isnan(dx(row, i)), row == 1);
    }
  }
}

TEST(LayerNorm, WithoutRowsOrWithoutColumns) {
  for (const Shape& shape : {Shape{0, 4}, Shape{3, 0}}) {
    Tape<double> tape;
    const Shape row = shape.last(1);
    const std::vector<V> inputs = {tape.input(Array<double>::zeros(shape)),
                                   tape.input(Array<double>::ones(row)),
                                   tape.input(Array<double>::zeros(row))};
    const V y = layer_norm(inputs[0], inputs[1], inputs[2]);
    const auto d = gradient_values(y, inputs, V(Array<double>::zeros(shape)));
    EXPECT_EQ(y.shape(), shape);
    EXPECT_EQ(d[0].shape(), shape);
    EXPECT_SAME_NUMBERS(d[1], Array<double>::zeros(row));
    EXPECT_SAME_NUMBERS(d[2], Array<double>::zeros(row));
  }
}

TEST(LayerNorm, ShapesThatDoNotFitAreNamed) {
  auto norm = [](const Shape& x, const Shape& gain, const Shape& bias) {
    return [=] {
      layer_norm(V(Array<double>::zeros(x)), V(Array<double>::zeros(gain)), V(Array<double>::zeros(bias)));
    };
  };
  EXPECT_TRUE(
      raises<ShapeError>(norm({2, 3}, {2}, {2}), {"layer_norm:", "x (2, 3)", "gain (2)", "bias (2)"}));
  EXPECT_TRUE(raises<ShapeError>(norm({2, 3}, {3}, {1}), {"layer_norm:", "gain (3)", "bias (1)"}));
  EXPECT_TRUE(raises<ShapeError>(norm({3}, {2, 3}, {2, 3}), {"layer_norm:", "x (3)", "gain (2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(norm({3}, {}, {}), {"layer_norm:", "gain ()"}));
}

TEST(LayerNorm, ManyRowsAreTheSameBitsOnAnyThreads) {
  Generator generator(10);
  const Array<double> x = generator.normal<double>({5, 131, 33}), dy = generator.normal<double>({5, 131, 33});
  const Array<double> gain = generator.normal<double>({33}), bias = generator.normal<double>({33});
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const std::vector<V> inputs = {tape.input(x), tape.input(gain), tape.input(bias)};
    const V y = layer_norm(inputs[0], inputs[1], inputs[2]);
    auto results = gradient_values(y, inputs, V(dy));
    results.push_back(y.value());
    return results;
  });
}

TEST(LayerNorm, SliceOfAPermutationIsNormalisedByItsOwnRows) {
  Generator generator(11);
  const V x = generator.normal<double>({4, 3, 5}), gain = generator.normal<double>({2});
  const V bias = generator.normal<double>({2});
  const V part = slice(permute(x, {2, 0, 1}), {{}, {}, {0, 3, 2}});
  const V copy = part.value().reshape({20, 2});
  EXPECT_SAME_NUMBERS(layer_norm(part, gain, bias).value().reshape({20, 2}),
                      layer_norm(copy, gain, bias).value());
}

// rms_norm by its formula, in long double: an error of (n + 4) epsilon in the mean of squares is half of that
// in u, and reaches dx by every place where u and the scale stand.
TEST(RmsNorm, AgreesWithLongDoubleAtRandomShapes) {
  Generator generator(20);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Shape shape{1 + generator.below(3), 1 + generator.below(4), 1 + generator.below(7)};
    const Shape row = shape.last(1 + static_cast<int>(generator.below(3)));
    const Index n = row.size(), rows = shape.size() / n;
    const double eps = repeat % 2 ? 1e-6 : 1e-2;
    const Array<double> x = generator.normal<double>(shape, repeat % 3), dy = generator.normal<double>(shape);
    const Array<double> gain = generator.normal<double>(row);
    Tape<double> tape;
    const std::vector<V> inputs = {tape.input(x), tape.input(gain)};
    const V y = rms_norm(inputs[0], inputs[1], eps);
    const auto d = gradient_values(y, inputs, V(dy));
    const double rounding = static_cast<double>(n + 4) * epsilon;
    std::vector<long double> dgain(static_cast<std::size_t>(n)), size(dgain);
    for (Index r = 0; r < rows; ++r) {
      long double squares = 0, mean_duu = 0, size_duu = 0;
      for (Index i = 0; i < n; ++i) squares += std::pow(static_cast<long double>(x.data()[r * n + i]), 2);
      const long double scale = 1 / std::sqrt(squares / static_cast<long double>(n) + eps);
      for (Index i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const long double u = x.data()[r * n + i] * scale, up = dy.data()[r * n + i], g = gain.data()[i];
        ASSERT_LE(std::abs(y.value().data()[r * n + i] - u * g), rounding * std::abs(u * g))
            << to_string(shape);
        mean_duu += up * g * u / static_cast<long double>(n);
        size_duu += std::abs(up * g * u) / static_cast<long double>(n);
        dgain[at] += up * u;
        size[at] += std::abs(up * u);
      }
      for (Index i = 0; i < n; ++i) {
        const long double u = x.data()[r * n + i] * scale;
        const long double du = static_cast<long double>(dy.data()[r * n + i]) * gain.data()[i];
        ASSERT_LE(std::abs(d[0].data()[r * n + i] - (du - u * mean_duu) * scale),
                  4 * rounding * scale * (std::abs(du) + std::abs(u) * size_duu))
            << to_string(shape);
      }
    }
    for (std::size_t i = 0; i < dgain.size(); ++i) {
      ASSERT_LE(std::abs(d[1].values()[i] - dgain[i]),
                (rounding + static_cast<double>(rows) * epsilon) * size[i])
          << to_string(shape);
    }
  }
}

TEST(RmsNorm, OfCentredRowsIsLayerNorm) {
  const V raw = Generator(21).normal<double>({4, 50}, 3, 7), gain = Generator(22).normal<double>({50});
  const V x = raw - mean(raw, -1, Keep::yes);
  EXPECT_NEAR_RELATIVE(rms_norm(x, gain, 1e-5), layer_norm(x, gain, V(Array<double>::zeros({50})), 1e-5),
                       1e-14);
}

TEST(RmsNorm, ARowOfZerosStaysZeroAndHasASlope) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::zeros({1, 2})), gain = Array<double>::of({2, 3});
  const V y = rms_norm(x, gain, 0.25), seed = Array<double>::of({{1, 10}});
  EXPECT_EQ(y.value().to_vector(), (std::vector<double>{0, 0}));
  for (const Array<double>& dx : {gradient_values(y, x, seed)[0], gradient(y, x, seed)[0].value()}) {
    EXPECT_EQ(dx.to_vector(), (std::vector<double>{2 / 0.5, 30 / 0.5}));
  }
}

TEST(RmsNorm, GivesOnlyTheGradientsAskedFor) {
  Generator generator(23);
  Tape<double> tape;
  const V x = tape.input(generator.normal<double>({3, 4})), gain = tape.input(generator.normal<double>({4}));
  const V y = rms_norm(x, gain), seed = generator.normal<double>({3, 4});
  const auto both = gradient_values(y, {x, gain}, seed);
  EXPECT_SAME_NUMBERS(gradient_values(y, x, seed)[0], both[0]);
  EXPECT_SAME_NUMBERS(gradient_values(y, gain, seed)[0], both[1]);
  EXPECT_SAME_NUMBERS(gradient_values(rms_norm(x.detach(), gain), gain, seed)[0], both[1]);
  EXPECT_SAME_NUMBERS(gradient_values(rms_norm(x, gain.detach()), x, seed)[0], both[0]);
}

TEST(RmsNorm, NanStaysInItsRow) {
  Array<double> x = Generator(24).normal<double>({3, 4});
  x.set({1, 2}, std::numeric_limits<double>::quiet_NaN());
  Tape<double> tape;
  const V in = tape.input(x), y = rms_norm(in, V(Array<double>::ones({4})));
  const Array<double> dx = gradient_values(y, in, V(Array<double>::ones({3, 4})))[0];
  for (Index row = 0; row < 3; ++row) {
    for (Index i = 0; i < 4; ++i) {
      EXPECT_EQ(std::isnan(y.value()(row, i)), row == 1);
      EXPECT_EQ(std::isnan(dx(row, i)), row == 1);
    }
  }
}

TEST(RmsNorm, ManyRowsAreTheSameBitsOnAnyThreads) {
  Generator generator(25);
  const Array<double> x = generator.normal<double>({5, 131, 33}), dy = generator.normal<double>({5, 131, 33});
  const Array<double> gain = generator.normal<double>({33});
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const std::vector<V> inputs = {tape.input(x), tape.input(gain)};
    const V y = rms_norm(inputs[0], inputs[1]);
    auto results = gradient_values(y, inputs, V(dy));
    results.push_back(y.value());
    return results;
  });
}

}  // namespace
}  // namespace tapehead
