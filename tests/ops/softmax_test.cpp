#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// The rows of an array along an axis: the offsets of their elements.
std::vector<std::vector<std::size_t>> rows_along(const Shape& shape, int axis) {
  const Index inner = shape.last(shape.rank() - axis - 1).size(), n = shape[axis];
  std::vector<std::vector<std::size_t>> rows;
  for (Index outer = 0; outer < shape.first(axis).size(); ++outer) {
    for (Index i = 0; i < inner; ++i) {
      rows.emplace_back();
      for (Index k = 0; k < n; ++k)
        rows.back().push_back(static_cast<std::size_t>((outer * n + k) * inner + i));
    }
  }
  return rows;
}

// One row in long double.
struct Row {
  using Number = long double;

  template <class T>
  Row(const Array<T>& s, const Array<T>& dy, const std::vector<std::size_t>& row) {
    Number largest = -infinity, sum = 0;
    for (const std::size_t i : row) largest = std::max<Number>(largest, s.values()[i]);
    for (const std::size_t i : row) sum += std::exp(s.values()[i] - largest);
    for (const std::size_t i : row) {
      p.push_back(std::exp(s.values()[i] - largest) / sum);
      log_p.push_back(s.values()[i] - largest - std::log(sum));
      spread = std::max(spread, largest - s.values()[i]);
      dot += p.back() * dy.values()[i];
      size_of_dot += p.back() * std::abs(dy.values()[i]);
      total += dy.values()[i];
      size_of_total += std::abs(dy.values()[i]);
    }
  }

  std::vector<Number> p, log_p;
  Number spread = 0, dot = 0, size_of_dot = 0, total = 0, size_of_total = 0;
};

// s - m is rounded once, by at most half its size in epsilon, which the exponential turns into a relative
// error; the sum of n and the division add n + 4. The gradients multiply that with the terms they are made
// of.
template <class T>
void expect_softmax(const Array<T>& s, const Array<T>& dy, int axis) {
  Tape<T> tape;
  const Var<T> x = tape.input(s);
  const Var<T> p = softmax(x, axis), log_p = log_softmax(x, axis);
  const Array<T> dp = gradient_values(p, x, Var<T>(dy))[0], dlog_p = gradient_values(log_p, x, Var<T>(dy))[0];
  for (const std::vector<std::size_t>& row : rows_along(s.shape(), axis)) {
    const Row expected(s, dy, row);
    const long double rounding =
        (static_cast<long double>(row.size()) + 4 + expected.spread) * std::numeric_limits<T>::epsilon();
    for (std::size_t k = 0; k < row.size(); ++k) {
      const std::size_t i = row[k];
      const long double up = dy.values()[i], weight = expected.p[k];
      ASSERT_LE(std::abs(p.value().values()[i] - weight), rounding * weight);
      ASSERT_LE(std::abs(log_p.value().values()[i] - expected.log_p[k]), rounding);
      ASSERT_LE(std::abs(dp.values()[i] - weight * (up - expected.dot)),
                3 * rounding * weight * (std::abs(up) + expected.size_of_dot));
      ASSERT_LE(std::abs(dlog_p.values()[i] - (up - weight * expected.total)),
                3 * rounding * (std::abs(up) + weight * expected.size_of_total));
    }
  }
}

template <class T>
class SoftmaxOf : public testing::Test {};
using Numbers = testing::Types<float, double>;
TYPED_TEST_SUITE(SoftmaxOf, Numbers);

TYPED_TEST(SoftmaxOf, AgreesWithLongDoubleAtTwoHundredRandomShapes) {
  Generator generator(1);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const int rank = 1 + static_cast<int>(generator.below(4));
    std::vector<Index> extents;
    for (int i = 0; i < rank; ++i) extents.push_back(1 + generator.below(repeat % 10 == 0 ? 30 : 7));
    const Shape shape{std::span<const Index>(extents)};
    const int axis = static_cast<int>(generator.below(rank));
    const double spread = repeat % 3 == 0 ? 10 : 1, shift = repeat % 5 == 0 ? 1000 : 0;
    const auto s = generator.normal<TypeParam>(shape, shift, spread), dy = generator.normal<TypeParam>(shape);
    SCOPED_TRACE(to_string(shape) + " along " + std::to_string(axis));
    expect_softmax(s, dy, axis);
  }
}

TYPED_TEST(SoftmaxOf, EveryAxisFromEitherEnd) {
  Generator generator(2);
  const auto s = generator.normal<TypeParam>({2, 3, 4, 5}), dy = generator.normal<TypeParam>({2, 3, 4, 5});
  for (int axis = 0; axis < 4; ++axis) {
    expect_softmax(s, dy, axis);
    EXPECT_SAME_NUMBERS(softmax(Var<TypeParam>(s), axis), softmax(Var<TypeParam>(s), axis - 4));
    EXPECT_SAME_NUMBERS(log_softmax(Var<TypeParam>(s), axis), log_softmax(Var<TypeParam>(s), axis - 4));
  }
}

TEST(Softmax, RowsSumToOneAndTheirGradientsToZero) {
  Generator generator(3);
  Tape<double> tape;
  const V s = tape.input(generator.normal<double>({20, 33}, 0, 5));
  const V p = softmax(s);
  const V ds = gradient_values(p, s, V(generator.normal<double>({20, 33})))[0];
  for (const double total : sum(p, -1).value().to_vector()) EXPECT_NEAR(total, 1, 33 * 2.3e-16);
  for (const double total : sum(ds, -1).value().to_vector()) EXPECT_NEAR(total, 0, 33 * 2.3e-16);
}

TEST(Softmax, OneElementHasAllTheWeightAndNoGradient) {
  Tape<double> tape;
  const V s = tape.input(Array<double>::of({{-1e300}, {3}}));
  EXPECT_EQ(softmax(s).value().to_vector(), (std::vector<double>{1, 1}));
  EXPECT_EQ(log_softmax(s).value().to_vector(), (std::vector<double>{0, 0}));
  const auto ds = gradient_values(softmax(s), s, V(Array<double>::of({{5}, {7}})))[0];
  EXPECT_EQ(ds.to_vector(), (std::vector<double>{0, 0}));
}

TEST(Softmax, AConstantAddedToARowChangesNothing) {
  const Array<double> s = Array<double>::of({{1, 2.5, -3}, {0, 0.25, 8}});  // exact when shifted by 2^k
  for (const double shift : {1.0, 1024.0, -0x1p40}) {
    EXPECT_SAME_NUMBERS(softmax(V(s) + shift), softmax(V(s)));
    EXPECT_SAME_NUMBERS(log_softmax(V(s) + shift), log_softmax(V(s)));
  }
}

TEST(Softmax, ScoresOfAnySizeStayFinite) {
  const V s = Array<double>::of({{1e4, -1e4, 9990}, {1e308, -1e308, 0}, {-1e308, -1e308, -1e308}});
  for (const double p : softmax(s).value().to_vector()) EXPECT_TRUE(p >= 0 && p <= 1);
  EXPECT_NEAR(softmax(s).value()(0, 2), std::exp(-10.0) / (1 + std::exp(-10.0)), 1e-20);
  EXPECT_DOUBLE_EQ(softmax(s).value()(2, 1), 1.0 / 3);
  EXPECT_DOUBLE_EQ(log_softmax(s).value()(2, 1), -std::log(3.0));
}

TEST(Softmax, MinusInfinityHasNoWeightAndNoGradient) {
  Tape<double> tape;
  const V s = tape.input(Array<double>::of({0, -infinity, 0}));
  const V p = softmax(s), log_p = log_softmax(s);
  EXPECT_EQ(p.value().to_vector(), (std::vector<double>{0.5, 0, 0.5}));
  EXPECT_EQ(log_p.value()(1), -infinity);
  const V dy = Array<double>::of({1, 100, 3});
  for (const Array<double>& ds : {gradient_values(p, s, dy)[0], gradient(p, s, dy)[0].value()}) {
    EXPECT_EQ(ds.to_vector(), (std::vector<double>{-0.5, 0, 0.5}));
  }
  const V only_finite = Array<double>::of({1, 0, 3});
  for (const Array<double>& ds :
       {gradient_values(log_p, s, only_finite)[0], gradient(log_p, s, only_finite)[0].value()}) {
    EXPECT_NEAR_RELATIVE(ds, Array<double>::of({-1, 0, 1}), 1e-15);
  }
}

TEST(Softmax, RowsThatAreNotFiniteFollowIeeeAndTouchNoOther) {
  const Array<double> rows = Array<double>::of({{-infinity, -infinity, -infinity},
                                                {0, infinity, 1},
                                                {infinity, infinity, -infinity},
                                                {0, nan, 1},
                                                {nan, infinity, -infinity},
                                                {0, 0, 0}});
  for (const int axis : {1, 0}) {
    const V s = axis == 1 ? V(rows) : transpose(V(rows));
    const V p = axis == 1 ? softmax(s, 1) : transpose(softmax(s, 0));
    const V log_p = axis == 1 ? log_softmax(s, 1) : transpose(log_softmax(s, 0));
    for (Index row = 0; row < 5; ++row) {
      for (Index i = 0; i < 3; ++i) {
        EXPECT_TRUE(std::isnan(p.value()(row, i))) << row;
        EXPECT_TRUE(std::isnan(log_p.value()(row, i))) << row;
      }
    }
    EXPECT_DOUBLE_EQ(p.value()(5, 0), 1.0 / 3);
    EXPECT_DOUBLE_EQ(log_p.value()(5, 0), -std::log(3.0));
  }
}

TEST(Softmax, GradientOfARowThatIsNotFiniteTouchesNoOther) {
  Tape<double> tape;
  const V s = tape.input(Array<double>::of({{0, nan}, {0, 0}}));
  const V dy = Array<double>::of({{1, 2}, {1, 3}});
  for (const V& y : {softmax(s), log_softmax(s)}) {
    for (const Array<double>& ds : {gradient_values(y, s, dy)[0], gradient(y, s, dy)[0].value()}) {
      EXPECT_TRUE(std::isnan(ds(0, 0)));
      EXPECT_TRUE(std::isfinite(ds(1, 0)) && std::isfinite(ds(1, 1)));
    }
  }
}

TEST(Softmax, LogSoftmaxKeepsWhatTheLogarithmOfSoftmaxLoses) {
  const V s = Array<double>::of({0, -1000});
  EXPECT_EQ(log(softmax(s)).value()(1), -infinity);
  EXPECT_EQ(log_softmax(s).value()(1), -1000);
  EXPECT_NEAR_RELATIVE(exp(log_softmax(s)), softmax(s).value(), 1e-15);
}

// Reducers of xtensor that keep their axis read past their input inside an expression; so would a softmax
// written with them.
TEST(Softmax, TheTextbookExpressionInOpsGivesTheSame) {
  const V s = Generator(4).normal<double>({3, 4, 5});
  for (const int axis : {0, 1, 2}) {
    const V e = exp(s - mean(s, axis, Keep::yes));
    EXPECT_NEAR_RELATIVE(softmax(s, axis), (e / sum(e, axis, Keep::yes)).value(), 1e-15);
  }
}

TEST(Softmax, SliceOfAPermutationGivesTheSameAsItsElements) {
  const V s = Generator(5).normal<double>({4, 3, 5});
  const V part = slice(permute(s, {2, 0, 1}), {{1, 5, 2}, {{}, {}, -1}, {}});
  const V copy = Array<double>::from(part.value().to_vector(), part.shape());
  for (const int axis : {0, 1, 2}) EXPECT_SAME_NUMBERS(softmax(part, axis), softmax(copy, axis));
}

TEST(Softmax, OfNothing) {
  for (const Shape& shape : {Shape{0}, Shape{3, 0}, Shape{0, 3}}) {
    EXPECT_EQ(softmax(V(Array<double>::zeros(shape))).shape(), shape);
    EXPECT_EQ(log_softmax(V(Array<double>::zeros(shape)), 0).shape(), shape);
  }
}

TEST(Softmax, AnAxisThatIsNotThereIsNamed) {
  const V s = Array<double>::zeros({2, 3});
  for (const int axis : {2, -3}) {
    EXPECT_TRUE(raises<ShapeError>([&] { softmax(s, axis); }, {"softmax:", std::to_string(axis), "(2, 3)"}));
    EXPECT_TRUE(
        raises<ShapeError>([&] { log_softmax(s, axis); }, {"log_softmax:", std::to_string(axis), "(2, 3)"}));
  }
  EXPECT_TRUE(raises<ShapeError>([] { softmax(V(Array<double>::scalar(1))); }, {"softmax:", "()"}));
}

TEST(Softmax, BackwardOfALongRowTakesNoMoreThanAFewRows) {
  constexpr Index n = 4096;
  Tape<double> tape;
  const V s = tape.input(Generator(6).normal<double>({1, n}));
  const V p = softmax(s), dp = Generator(7).normal<double>({1, n});
  reset_memory_peak();
  gradient_values(p, s, dp);
  gradient(p, s, dp);
  EXPECT_LE(memory_statistics().largest, static_cast<std::ptrdiff_t>(2 * n * sizeof(double)));
}

TEST(Softmax, ManyRowsAreTheSameBitsOnAnyThreads) {
  Generator generator(8);
  const Array<double> s = generator.normal<double>({10, 60, 53}), dy = generator.normal<double>({10, 60, 53});
  for (const int axis : {0, 1, 2}) {
    expect_same_bits_on_any_threads([&] {
      Tape<double> tape;
      const V x = tape.input(s);
      const V p = softmax(x, axis), log_p = log_softmax(x, axis);
      return std::vector{p.value(), log_p.value(), gradient_values(p, x, V(dy))[0],
                         gradient_values(log_p, x, V(dy))[0]};
    });
  }
}

}  // namespace
}  // namespace tapehead
