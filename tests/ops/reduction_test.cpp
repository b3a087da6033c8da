#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<int> axes_of(unsigned mask, int rank) {
  std::vector<int> axes;
  for (int i = 0; i < rank; ++i) {
    if (mask >> i & 1u) axes.push_back(i);
  }
  return axes;
}

Shape with_ones(Shape shape, unsigned mask) {
  for (int i = 0; i < shape.rank(); ++i) {
    if (mask >> i & 1u) shape = shape.with(i, 1);
  }
  return shape;
}

// Where element `number` of `from` goes when the axes of the mask are summed.
Index target_of(Index number, const Shape& from, unsigned mask) {
  Index target = 0, step = 1;
  for (int axis = from.rank(); axis-- > 0; number /= from[axis]) {
    if (mask >> axis & 1u) continue;
    target += number % from[axis] * step;
    step *= from[axis];
  }
  return target;
}

struct Sums {
  Sums(const Array<double>& x, unsigned mask)
      : shape(with_ones(x.shape(), mask)), total(static_cast<std::size_t>(shape.size())), size(total) {
    for (Index i = 0; i < x.size(); ++i) {
      const auto at = static_cast<std::size_t>(target_of(i, x.shape(), mask));
      total[at] += x.data()[i];
      size[at] += std::abs(x.data()[i]);
    }
  }
  Shape shape;
  std::vector<long double> total, size;
};

// Sums of doubles run in double: n roundings, of which the blocks leave far fewer.
void expect_sums(const Array<double>& y, const Sums& sums, double divisor, Index n) {
  for (std::size_t i = 0; i < sums.total.size(); ++i) {
    const long double expected = sums.total[i] / divisor;
    ASSERT_LE(
        std::abs(y.values()[i] - expected),
        static_cast<long double>(n + 1) * std::numeric_limits<double>::epsilon() * sums.size[i] / divisor);
  }
}

TEST(Axes, OfAllKeepsEveryAxisAndOfNoneSumsNothing) {
  const Var<double> x = Array<double>::of({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(sum(x, Axes::all(), Keep::yes).shape(), (Shape{1, 1}));
  EXPECT_EQ(sum(x, Axes::all(), Keep::yes).item(), 21);
  EXPECT_EQ(sum(x, {}).value().to_vector(), x.value().to_vector());  // an empty list is no axis, not all
  EXPECT_EQ(sum(Var<double>(Array<double>::scalar(7))).item(), 7);
}

TEST(Reduction, EverySubsetOfAxesAgreesWithALoop) {
  Generator generator(1);
  for (const Shape& shape : {Shape{2, 3, 4, 5}, Shape{3, 1, 4, 1}, Shape{2, 70, 3, 130}, Shape{7}, Shape{}}) {
    const V x = generator.normal<double>(shape);
    for (unsigned mask = 0; mask < 1u << shape.rank(); ++mask) {
      const std::vector<int> axes = axes_of(mask, shape.rank());
      SCOPED_TRACE(to_string(shape) + ", mask " + std::to_string(mask));
      const Sums sums(x.value(), mask);
      const Index n = shape.size() / sums.shape.size();
      const V kept = sum(x, axes, Keep::yes), gone = sum(x, axes);
      ASSERT_EQ(kept.shape(), sums.shape);
      ASSERT_EQ(gone.rank(), shape.rank() - static_cast<int>(axes.size()));
      expect_sums(kept.value(), sums, 1, n);
      EXPECT_SAME_NUMBERS(gone.value().reshape(kept.shape()), kept.value());
      const V mean_kept = mean(x, axes, Keep::yes);
      ASSERT_EQ(mean_kept.shape(), sums.shape);
      expect_sums(mean_kept.value(), sums, static_cast<double>(n), n);
      EXPECT_SAME_NUMBERS(mean(x, axes), V(mean_kept.value().reshape(gone.shape())));
      EXPECT_SAME_NUMBERS(sum_over(x.value(), mask), kept.value());
    }
  }
}

TEST(Reduction, AxesCountFromEitherEndInAnyOrder) {
  const V x = Generator(2).normal<double>({2, 3, 4});
  EXPECT_SAME_NUMBERS(sum(x, -1), sum(x, 2));
  EXPECT_SAME_NUMBERS(sum(x, {-1, 0}), sum(x, {0, 2}));
  EXPECT_SAME_NUMBERS(mean(x, {2, -3}, Keep::yes), mean(x, {0, 2}, Keep::yes));
  EXPECT_SAME_NUMBERS(sum(x), sum(x, {2, 1, 0}));
}

TEST(Reduction, OverNoAxisNothingIsSummed) {
  const V x = Generator(3).normal<double>({2, 3});
  EXPECT_SAME_NUMBERS(sum(x, std::vector<int>{}), x);
  EXPECT_SAME_NUMBERS(mean(x, std::vector<int>{}), x);
}

TEST(Reduction, ASumOfNothingIsZeroAndAMeanOfNothingIsNan) {
  const V x = Array<double>::zeros({3, 0});
  EXPECT_EQ(sum(x, 1).value().to_vector(), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(sum(x, 0).shape(), Shape({0}));
  EXPECT_EQ(sum(x).item(), 0);
  EXPECT_EQ(sum(V(Array<double>::zeros({0, 5})), 0).value().to_vector(), (std::vector<double>(5)));
  EXPECT_EQ(sum(V(Array<double>::zeros({2, 0, 3})), 1).value().to_vector(), (std::vector<double>(6)));
  EXPECT_TRUE(std::isnan(mean(x).item()));
  for (const double m : mean(x, 1).value().to_vector()) EXPECT_TRUE(std::isnan(m));
  EXPECT_EQ(mean(x, 0).shape(), Shape({0}));
}

TEST(Reduction, GradientOfASumOrMeanOfNothingIsEmpty) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::zeros({3, 0}));
  EXPECT_EQ(gradient_values(sum(x), x)[0].shape(), Shape({3, 0}));
  EXPECT_EQ(gradient_values(mean(x), x)[0].shape(), Shape({3, 0}));
}

// A running sum in float stops at 2^24. Along rows, and down columns, where it takes another loop.
TEST(Reduction, SumsOfMoreThanTwoToThe24FloatOnesAreExact) {
  constexpr Index rows = (Index{1} << 24) + (Index{1} << 20);
  const Var<float> ones = Array<float>::ones({rows, 2});
  static_assert(2 * rows > Index{1} << 25);
  EXPECT_EQ(sum(ones).item(), static_cast<float>(2 * rows));
  EXPECT_EQ(mean(ones).item(), 1);
  EXPECT_EQ(sum(reshape(ones, {Index{2}, rows}), 1).value()(0), static_cast<float>(rows));
  EXPECT_EQ(sum(ones, 0).value()(1), static_cast<float>(rows));
  EXPECT_EQ(mean(ones, 0).value()(0), 1);
}

// 1e8 in float swallows what is less than 4: single ones within a block of the sum, and the 3 of each later
// block.
TEST(Reduction, SmallFloatsAreNotLostBesideALargeOne) {
  constexpr Index rows = 104 * 256;
  Array<float> x = Array<float>::zeros({rows, 2});
  for (Index i = 0; i < rows; ++i) {
    if (i % 256 == 1) x.set({i, 0}, 3);
    if (i <= 1000) x.set({i, 1}, 1);
  }
  x.set({0, 0}, 1e8f);
  x.set({0, 1}, 1e8f);
  const float expected[] = {1e8f + 312, 1e8f + 1000};
  const Array<float> down = sum(Var<float>(x), 0).value(), along = sum(transpose(Var<float>(x)), 1).value();
  for (const Index column : {0, 1}) {
    EXPECT_EQ(down(column), expected[column]);
    EXPECT_EQ(along(column), expected[column]);
  }
}

TEST(Reduction, FollowsIeee) {
  const V x = Array<double>::of({{1, infinity}, {infinity, -infinity}, {std::nan(""), 1}, {1, 2}});
  const Array<double> y = sum(x, 1).value();
  EXPECT_EQ(y(0), infinity);
  EXPECT_TRUE(std::isnan(y(1)));
  EXPECT_TRUE(std::isnan(y(2)));
  EXPECT_EQ(y(3), 3);
  EXPECT_TRUE(std::isnan(sum(x, 0).value()(0)));
}

TEST(Reduction, AxesThatAreNotThereOrNamedTwiceAreErrors) {
  const V x = Array<double>::zeros({2, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { sum(x, 2); }, {"sum:", "axis 2", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { mean(x, {0, -3}); }, {"mean:", "axis -3", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { sum(x, {1, -1}); }, {"sum:", "axis -1", "twice", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([] { sum(V(Array<double>::scalar(1)), 0); }, {"sum:", "axis 0", "()"}));
}

TEST(Reduction, GradientIsRepeatedAlongWhatWasSummed) {
  Tape<double> tape;
  const V x = tape.input(Generator(4).normal<double>({2, 3, 2}));
  const V seed = Array<double>::of({10, 20, 30});
  const auto expected = Array<double>::of({{{10, 10}, {20, 20}, {30, 30}}, {{10, 10}, {20, 20}, {30, 30}}});
  EXPECT_SAME_NUMBERS(gradient_values(sum(x, {0, 2}), x, seed)[0], expected);
  const V dmean = gradient_values(mean(x, {0, 2}), x, seed)[0];
  EXPECT_SAME_NUMBERS(dmean * 4.0, V(expected));
}

// Reducers of xtensor that keep their axis read past their input inside such an expression.
TEST(Reduction, AKeptAxisBroadcastsBackInTheSameExpression) {
  const V x = Array<double>::of({{1, 2, 3}, {10, 20, 60}});
  EXPECT_SAME_NUMBERS(x - mean(x, 1, Keep::yes), V(Array<double>::of({{-1, 0, 1}, {-20, -10, 30}})));
  EXPECT_SAME_NUMBERS(x / sum(x, 0, Keep::yes) * 11.0,
                      V(Array<double>::of({{1, 1, 11 * (3 / 63.0)}, {10, 10, 11 * (60 / 63.0)}})));
}

TEST(Reduction, SliceOfAPermutationIsSummedByItsOwnAxes) {
  const V x = Generator(5).normal<double>({4, 3, 5});
  const V part = slice(permute(x, {2, 0, 1}), {{1, {}, 2}, {{}, {}, -1}, {}});
  const V copy = Array<double>::from(part.value().to_vector(), part.shape());
  for (unsigned mask = 0; mask < 8; ++mask)
    EXPECT_SAME_NUMBERS(sum(part, axes_of(mask, 3)), sum(copy, axes_of(mask, 3)));
}

TEST(Reduction, LargeSumsAreTheSameBitsOnAnyThreads) {
  Generator generator(6);
  const Array<float> x = generator.normal<float>({40, 50, 130});
  expect_same_bits_on_any_threads([&] {
    std::vector<Array<float>> results;
    for (unsigned mask = 0; mask < 8; ++mask) results.push_back(sum_over(x, mask));
    return results;
  });
}

// Every reduction but the sums, for one list of the elements it is over, in long double.
struct Reducer {
  std::string name;
  std::function<V(const V&, const Axes&, Keep)> of;
  std::function<long double(const std::vector<double>&)> exact;
};
std::vector<Reducer> reducers() {
  using Number = long double;
  using List = std::vector<double>;
  auto squares = [](const List& x) {
    Number mean = 0, total = 0;
    for (const double v : x) mean += v / static_cast<Number>(x.size());
    for (const double v : x) total += (v - mean) * (v - mean);
    return total;
  };
  return {
      {"var", [](const V& x, const Axes& axes, Keep keep) { return var(x, axes, keep); },
       [=](const List& x) { return squares(x) / static_cast<Number>(x.size()); }},
      {"var of a sample", [](const V& x, const Axes& axes, Keep keep) { return var(x, axes, keep, 1); },
       [=](const List& x) { return squares(x) / static_cast<Number>(x.size() - 1); }},
      {"amax", [](const V& x, const Axes& axes, Keep keep) { return amax(x, axes, keep); },
       [](const List& x) { return *std::max_element(x.begin(), x.end()); }},
      {"amin", [](const V& x, const Axes& axes, Keep keep) { return amin(x, axes, keep); },
       [](const List& x) { return *std::min_element(x.begin(), x.end()); }},
      {"prod", [](const V& x, const Axes& axes, Keep keep) { return prod(x, axes, keep); },
       [](const List& x) {
         return std::accumulate(x.begin(), x.end(), Number{1}, [](Number p, double v) { return p * v; });
       }},
      {"logsumexp", [](const V& x, const Axes& axes, Keep keep) { return logsumexp(x, axes, keep); },
       [](const List& x) {
         return std::log(std::accumulate(x.begin(), x.end(), Number{0}, [](Number sum, double v) {
           return sum + std::exp(static_cast<Number>(v));
         }));
       }},
  };
}

TEST(Reduction, EverySubsetOfAxesAgreesWithALoopForTheOthersToo) {
  Generator generator(7);
  for (const Shape& shape : {Shape{2, 3, 4, 5}, Shape{3, 1, 4, 1}, Shape{7}, Shape{}}) {
    const V x = generator.normal<double>(shape);
    for (unsigned mask = 0; mask < 1u << shape.rank(); ++mask) {
      const Shape kept_shape = with_ones(shape, mask);
      std::vector<std::vector<double>> groups(static_cast<std::size_t>(kept_shape.size()));
      for (Index i = 0; i < x.size(); ++i) {
        groups[static_cast<std::size_t>(target_of(i, shape, mask))].push_back(x.value().data()[i]);
      }
      const std::vector<int> axes = axes_of(mask, shape.rank());
      for (const Reducer& reducer : reducers()) {
        SCOPED_TRACE(reducer.name + to_string(shape) + ", mask " + std::to_string(mask));
        const V kept = reducer.of(x, axes, Keep::yes), gone = reducer.of(x, axes, Keep::no);
        ASSERT_EQ(kept.shape(), kept_shape);
        ASSERT_EQ(gone.rank(), shape.rank() - static_cast<int>(axes.size()));
        for (std::size_t i = 0; i < groups.size(); ++i) {
          const auto expected = static_cast<double>(reducer.exact(groups[i]));
          const double actual = kept.value().values()[i];
          EXPECT_EQ(gone.value().values()[i] == actual, !std::isnan(actual));
          // A rounding an element and one of the result; in logsumexp of x - m, less than 6 here.
          const double bound =
              static_cast<double>(groups[i].size() + 1) * std::numeric_limits<double>::epsilon();
          EXPECT_TRUE(std::isnan(expected)
                          ? std::isnan(actual)
                          : std::abs(actual - expected) <=
                                bound * std::max(std::abs(expected), reducer.name == "logsumexp" ? 6.0 : 0))
              << actual << ", expected " << expected;
        }
      }
    }
  }
}

TEST(Reduction, OverAllAxesIsTheSameAsOverEachNamed) {
  const V x = Generator(8).normal<double>({2, 3, 4});
  const Axes all = {0, 1, 2};
  EXPECT_SAME_NUMBERS(var(x), var(x, all));
  EXPECT_SAME_NUMBERS(amax(x), amax(x, all));
  EXPECT_SAME_NUMBERS(amin(x), amin(x, all));
  EXPECT_SAME_NUMBERS(prod(x), prod(x, all));
  EXPECT_SAME_NUMBERS(logsumexp(x), logsumexp(x, all));
}

// What is left of a mean of squares less the square of the mean, in float, is nothing.
TEST(Reduction, VarianceIsNotUpsetByALargeMean) {
  Array<float> far = Generator(9).normal<float>({3, 50});
  for (float& value : far.mutable_values()) value += 65536;  // multiples of 2^-7 remain
  Array<double> near = far.cast<double>();
  for (double& value : near.mutable_values()) value -= 65536;
  EXPECT_LE(relative_error(var(Var<float>(far), 1).value().cast<double>(), var(V(near), 1).value()), 0x1p-23);
}

TEST(Reduction, AProductOfFloatsPassesBeyondTheirRange) {
  const Var<float> x = Array<float>::of({{1e30f, 1e30f, 1e-30f, 1e-30f}, {1e-30f, 1e-30f, 1e30f, 1e30f}});
  for (const float y : prod(x, 1).value().to_vector()) EXPECT_NEAR(y, 1, 1e-6);
}

// Rows with none, one, two and three zeros, where a division by x_i would be 0 / 0.
TEST(Reduction, GradientOfAProductIsThatOfTheOthersWhateverTheZeros) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({{2, 3, 5}, {2, 0, 5}, {0, 3, 0}, {0, 0, 0}}));
  const V y = prod(x, 1), ones = Array<double>::ones({4});
  EXPECT_EQ(y.value().to_vector(), (std::vector<double>{30, 0, 0, 0}));
  const auto expected = Array<double>::of({{15, 10, 6}, {0, 10, 0}, {0, 0, 0}, {0, 0, 0}});
  const V dx = gradient(y, x, ones)[0];
  EXPECT_SAME_NUMBERS(dx, expected);
  EXPECT_SAME_NUMBERS(gradient_values(y, x, ones)[0], expected);
  // Of the sum of dx: the sums of the others of pairs. A row of two zeros has its first slope here.
  EXPECT_SAME_NUMBERS(gradient_values(dx, x, V(Array<double>::ones({4, 3})))[0],
                      Array<double>::of({{8, 7, 5}, {5, 7, 2}, {3, 0, 3}, {0, 0, 0}}));
}

TEST(Reduction, GradientOfAnExtremeIsSplitEvenlyAmongTies) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({{1, 3, 3}, {3, 3, 0}})), seed = Array<double>::scalar(8);
  EXPECT_SAME_NUMBERS(gradient_values(amax(x), x, seed)[0], Array<double>::of({{0, 2, 2}, {2, 2, 0}}));
  EXPECT_SAME_NUMBERS(gradient_values(amin(x), x, seed)[0], Array<double>::of({{0, 0, 0}, {0, 0, 8}}));
  const V infinite = Array<double>::scalar(infinity);  // and nothing to the others, not NaN
  EXPECT_EQ(gradient_values(amin(x), x, infinite)[0].to_vector(),
            (std::vector<double>{0, 0, 0, 0, 0, infinity}));
}

TEST(Reduction, LogsumexpOfLargeElementsDoesNotOverflow) {
  const V x = Array<double>::of({{1e300, 1e300}, {-1e300, -1e300}, {1e5, -1e5}});
  EXPECT_EQ(logsumexp(x, 1).value().to_vector(), (std::vector<double>{1e300, -1e300, 1e5}));
}

TEST(Reduction, RunningSumsAlongEveryAxisAgreeWithALoop) {
  for (const Shape& shape : {Shape{3, 4, 5}, Shape{2, 3, 130}, Shape{6}}) {
    const Array<double> x = Generator(10).normal<double>(shape);
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const Array<double> y = cumsum(V(x), axis).value();
      const Index step = Strides(shape)[axis];
      ASSERT_EQ(y.shape(), shape);
      for (Index i = 0; i < x.size(); ++i) {
        long double sum = 0, size = 0;
        for (Index k = i / step % shape[axis]; k >= 0; --k) {
          sum += x.data()[i - k * step];
          size += std::abs(x.data()[i - k * step]);
        }
        ASSERT_LE(std::abs(y.data()[i] - sum),
                  static_cast<double>(shape[axis]) * std::numeric_limits<double>::epsilon() * size)
            << to_string(shape) << " axis " << axis;
      }
      EXPECT_SAME_NUMBERS(cumsum(V(x), axis - shape.rank()), y);
    }
  }
}

// The gradient of a running sum runs backwards.
TEST(Reduction, GradientOfARunningSumIsTheSumOfWhatFollows) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::zeros({2, 3})),
          seed = Array<double>::of({{1, 10, 100}, {2, 20, 200}});
  EXPECT_SAME_NUMBERS(gradient_values(cumsum(x, 1), x, seed)[0],
                      Array<double>::of({{111, 110, 100}, {222, 220, 200}}));
  EXPECT_SAME_NUMBERS(gradient_values(cumsum(x, 0), x, seed)[0],
                      Array<double>::of({{3, 30, 300}, {2, 20, 200}}));
}

TEST(Reduction, RunningSumsOfFloatsRunInDouble) {
  constexpr Index n = (Index{1} << 24) + 1000;
  const Array<float> y = cumsum(Var<float>(Array<float>::ones({n})), 0).value();
  EXPECT_EQ(y(n - 1), static_cast<float>(n));
}

TEST(Reduction, LargeReductionsAreTheSameBitsOnAnyThreads) {
  const Array<double> at = Generator(11).uniform<double>({40, 50, 130}, 0.9, 1.1);
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const V x = tape.input(at);
    std::vector<Array<double>> results;
    for (const V& y :
         {var(x, {0, 2}), amax(x, 1), amin(x, 0), prod(x, 2), logsumexp(x, {1, 2}), cumsum(x, 1)}) {
      results.push_back(y.value());
      results.push_back(gradient_values(y, x, V(Array<double>::ones(y.shape())))[0]);
    }
    return results;
  });
}

}  // namespace
}  // namespace tapehead
