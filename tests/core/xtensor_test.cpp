// Array to xtensor and back, and the ways in which xtensor or careless code around it gives wrong numbers
// without a word. Those that only an op could meet are tested beside the op.

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#include <tapehead/core/xtensor.h>

#include <tapehead/core/errors.h>
#include <tapehead/core/random.h>
#include <xtensor-blas/xlinalg.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xtensor.hpp>
#include <xtensor/xview.hpp>

#include "support/expect_error.h"

namespace tapehead {
namespace {

template <class E>
std::vector<std::size_t> extents(const E& expression) {
  return {expression.shape().begin(), expression.shape().end()};
}

// Shapes of every rank that an Array can have, of pairwise different extents as far as that stays small.
std::vector<Shape> shapes_of_every_rank() {
  return {{},
          {4},
          {3, 5},
          {2, 3, 4},
          {2, 1, 3, 4},
          {2, 3, 1, 2, 5},
          {1, 2, 3, 1, 2, 2},
          {2, 1, 2, 3, 1, 2, 1},
          {1, 2, 1, 2, 2, 1, 3, 2}};
}

Array<double> counted(const Shape& shape) { return Array<double>::arange(shape.size()).reshape(shape); }

template <class T>
class XtensorAdapter : public testing::Test {};
using Elements = testing::Types<float, double, Index, bool>;
TYPED_TEST_SUITE(XtensorAdapter, Elements);

TYPED_TEST(XtensorAdapter, ReadsAnArrayWithoutACopy) {
  const auto a = Array<TypeParam>::eye(2, 3);
  const auto x = as_xtensor(a);
  EXPECT_EQ(x.data(), a.data());
  EXPECT_EQ(extents(x), (std::vector<std::size_t>{2, 3}));
  for (Index i = 0; i < 2; ++i) {
    for (Index j = 0; j < 3; ++j) EXPECT_EQ(x(i, j), a(i, j));
  }
}

TYPED_TEST(XtensorAdapter, TakesOverAContainerWithoutACopy) {
  xt::xarray<TypeParam> container = {{TypeParam{1}, TypeParam{0}, TypeParam{1}}};
  const TypeParam* elements = container.data();
  const Array<TypeParam> a = from_xtensor(std::move(container));
  EXPECT_EQ(a.data(), elements);
  EXPECT_EQ(a.shape(), Shape({1, 3}));
  EXPECT_EQ(a.to_vector(), (std::vector<TypeParam>{TypeParam{1}, TypeParam{0}, TypeParam{1}}));
}

TEST(Xtensor, EveryRankGoesThereAndBack) {
  for (const Shape& shape : shapes_of_every_rank()) {
    const Array<double> a = counted(shape);
    const auto x = as_xtensor(a);
    EXPECT_EQ(static_cast<int>(x.dimension()), shape.rank());
    EXPECT_TRUE(std::equal(shape.begin(), shape.end(), x.shape().begin(), x.shape().end()));
    xt::xarray<double> copy = x;
    const Array<double> back = from_xtensor(std::move(copy));
    EXPECT_EQ(back.shape(), shape);
    EXPECT_EQ(back.to_vector(), a.to_vector()) << to_string(shape);
  }
}

TEST(Xtensor, ArraysWithoutElementsGoThereAndBack) {
  for (const Shape& shape : {Shape{0}, Shape{3, 0}, Shape{0, 2, 4}}) {
    const auto a = Array<double>::zeros(shape);
    const auto x = as_xtensor(a);
    EXPECT_EQ(x.size(), 0u);
    xt::xarray<double> copy = x;
    EXPECT_EQ(from_xtensor(std::move(copy)).shape(), shape);
  }
}

TEST(Xtensor, MoreThanEightAxesAreAnError) {
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        xt::xarray<double> nine = xt::zeros<double>(std::vector<std::size_t>(9, 1));
        from_xtensor(std::move(nine));
      },
      {"rank 9"}));
}

TEST(Xtensor, AnExpressionBecomesItsValue) {
  const Array<double> a = counted({2, 3});
  const auto x = as_xtensor(a);
  const Array<double> y = from_xtensor(2.0 * x + 1.0);
  EXPECT_EQ(y.shape(), Shape({2, 3}));
  EXPECT_EQ(y.to_vector(), (std::vector<double>{1, 3, 5, 7, 9, 11}));
}

TEST(Xtensor, AViewBecomesItsElementsInRowMajorOrder) {
  const Array<double> a = counted({2, 3});
  const auto x = as_xtensor(a);
  const Array<double> transposed = from_xtensor(xt::transpose(x));
  EXPECT_EQ(transposed.shape(), Shape({3, 2}));
  EXPECT_EQ(transposed.to_vector(), (std::vector<double>{0, 3, 1, 4, 2, 5}));
  const Array<double> columns = from_xtensor(xt::view(x, xt::all(), xt::range(1, 3)));
  EXPECT_EQ(columns.shape(), Shape({2, 2}));
  EXPECT_EQ(columns.to_vector(), (std::vector<double>{1, 2, 4, 5}));
}

TEST(Xtensor, AColumnMajorContainerKeepsItsIndices) {
  xt::xarray<double, xt::layout_type::column_major> x = {{1, 2, 3}, {4, 5, 6}};
  EXPECT_EQ(from_xtensor(std::move(x)).to_vector(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
}

TEST(Xtensor, AFixedRankContainerKeepsItsRank) {
  const xt::xtensor<double, 3> x = xt::ones<double>({2, 3, 4});
  EXPECT_EQ(from_xtensor(x).shape(), Shape({2, 3, 4}));
}

TEST(Xtensor, ANamedContainerIsCopiedAndStaysItsOwner) {
  xt::xarray<double> container = {1, 2, 3};
  const Array<double> a = from_xtensor(container);
  EXPECT_NE(a.data(), container.data());
  container(0) = 7;
  EXPECT_EQ(a(0), 1);
}

TEST(Xtensor, TheArrayKeepsTheContainerAlive) {
  Array<double> reshaped;
  {
    Array<double> a;
    {
      xt::xarray<double> container = xt::arange<double>(1000);
      a = from_xtensor(std::move(container));
    }
    reshaped = a.reshape({10, 100});
  }
  double total = 0;
  for (const double x : reshaped.values()) total += x;
  EXPECT_EQ(total, 999 * 1000 / 2);
}

TEST(Xtensor, AdoptedElementsAreNeverWrittenThroughAnArray) {
  xt::xarray<double> container = {1, 2, 3};
  const double* elements = container.data();
  const Array<double> kept = from_xtensor(std::move(container));
  Array<double> written = kept.reshape({3, 1});
  EXPECT_FALSE(kept.sole_owner());
  written.mutable_values()[0] = 7;
  EXPECT_EQ(written(0, 0), 7);
  EXPECT_EQ(elements[0], 1);

  Array<double> alone = from_xtensor(xt::xarray<double>({4, 5}));
  const double* adopted = alone.data();
  const Array<double> watching = alone;  // keeps the elements alive for the look below
  alone.set({1}, 9);
  EXPECT_NE(alone.data(), adopted);
  EXPECT_EQ(adopted[1], 5);
}

template <class A>
concept Adaptable = requires(A&& array) {
  as_xtensor(std::forward<A>(array));
};

TEST(Xtensor, ATemporaryArrayCannotBeReadAsAnExpressionThatOutlivesIt) {
  static_assert(Adaptable<const Array<double>&> && Adaptable<Array<double>&>);
  static_assert(!Adaptable<Array<double>>);
}

// xtensor's type of an evaluated dynamic expression: 4 axes, whatever the expression, without the cure in
// core/xtensor.h under g++ 12, C++20 and xtensor 0.24.
TEST(XtensorTraps, AnEvaluatedExpressionHasItsOwnRank) {
  const xt::xarray<double> a = {{1, 2, 3}, {4, 5, 6}}, b = {{6, 5, 4}, {3, 2, 1}};
  const auto sum = xt::eval(a + b);
  static_assert(std::is_same_v<std::decay_t<decltype(sum)>, xt::xarray<double>>);
  EXPECT_EQ(extents(sum), (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(sum, xt::xarray<double>({{7, 7, 7}, {7, 7, 7}}));
  EXPECT_EQ(extents(xt::eval(xt::transpose(a))), (std::vector<std::size_t>{3, 2}));
  EXPECT_EQ(extents(xt::eval(xt::sum(a, {1}))), (std::vector<std::size_t>{2}));
  const Array<double> array = counted({2, 3});
  const auto x = as_xtensor(array);
  EXPECT_EQ(extents(xt::eval(x + x)), (std::vector<std::size_t>{2, 3}));
}

TEST(XtensorTraps, ImmediateReducersAndMomentsWork) {
  const xt::xarray<double> a = {{1, 2, 3}, {4, 5, 9}};
  const xt::xarray<double> sums = xt::sum(a, {1}, xt::evaluation_strategy::immediate);
  EXPECT_EQ(sums, xt::xarray<double>({6, 18}));
  const xt::xarray<double> spread = xt::variance(a, {1});
  EXPECT_EQ(spread.dimension(), 1u);
  EXPECT_DOUBLE_EQ(spread(0), 2.0 / 3);
  EXPECT_DOUBLE_EQ(spread(1), 14.0 / 3);
}

TEST(XtensorTraps, MatrixProductsOfAdaptedArraysAreRight) {
  const Array<double> a = counted({2, 3}), b = counted({3, 2});
  const auto x = as_xtensor(a);
  const auto y = as_xtensor(b);
  const Array<double> product = from_xtensor(xt::linalg::dot(x, y));
  EXPECT_EQ(product.shape(), Shape({2, 2}));
  EXPECT_EQ(product.to_vector(), (std::vector<double>{10, 13, 28, 40}));
}

// A number missing or too much is an error, where xtensor reads some other element.
TEST(XtensorTraps, AWrongNumberOfIndicesIsAnError) {
  const Array<double> a = counted({2, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { a(1); }, {"1 indices", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { a(0, 1, 2); }, {"3 indices", "(2, 3)"}));
  EXPECT_TRUE(raises<DomainError>([&] { a(1, 3); }, {"index 3", "axis 1"}));
}

TEST(XtensorTraps, ClosenessComparesShapesFirst) {
  const auto one_row = Array<double>::of({1, 2, 3}), two_rows = Array<double>::of({{1, 2, 3}, {1, 2, 3}});
  EXPECT_FALSE(all_close(two_rows, one_row));
  EXPECT_FALSE(all_close(one_row, Array<double>::of({{1, 2, 3}})));
  EXPECT_FALSE(all_close(Array<double>::zeros({0}), Array<double>::zeros({0, 3})));
}

TEST(XtensorTraps, ABracedListOfExtentsIsAShapeAndNotElements) {
  EXPECT_EQ(Array<double>::zeros({2, 3}).shape(), Shape({2, 3}));
  EXPECT_EQ(Array<double>::of({2, 3}).shape(), Shape({2}));
}

TEST(XtensorTraps, RandomNumbersAreDrawnOnce) {
  Generator generator(5);
  const Array<double> x = generator.normal<double>({4});
  EXPECT_EQ(x.to_vector(), x.to_vector());
  EXPECT_EQ(x(2), x(2));
}

}  // namespace
}  // namespace tapehead
