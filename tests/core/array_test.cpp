#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <sstream>
#include <type_traits>

#include <tapehead/core/array.h>
#include <tapehead/core/errors.h>
#include <tapehead/core/memory.h>

#include "support/expect_error.h"

namespace tapehead {
namespace {

using A = Array<double>;
using B = Array<bool>;
using I = Array<Index>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

bool aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % detail::storage_alignment == 0;
}

// Shape

TEST(Shape, HoldsRanksFromZeroToEight) {
  const Index extents[] = {2, 1, 3, 1, 2, 1, 1, 5};
  Index size = 1;
  for (int rank = 0; rank <= max_rank; ++rank) {
    const Shape shape(std::span(extents, static_cast<std::size_t>(rank)));
    EXPECT_EQ(shape.rank(), rank);
    EXPECT_EQ(shape.size(), size);
    if (rank < max_rank) size *= extents[rank];
  }
}

TEST(Shape, OfRankNineIsRefused) {
  EXPECT_TRUE(raises<ShapeError>([] { Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; }, {"Shape", "9", "8"}));
  EXPECT_TRUE(raises<ShapeError>([] { Shape({2, 3, 4, 5, 6}).followed_by({7, 8, 9, 10}); }, {"Shape"}));
}

TEST(Shape, RefusesNegativeExtents) {
  EXPECT_TRUE(raises<ShapeError>([] { Shape{2, -3}; }, {"Shape", "-3"}));
}

TEST(Shape, RefusesMoreThanTwoToThe62Elements) {
  const Index big = Index{1} << 31;
  EXPECT_EQ(Shape({big, big}).size(), Index{1} << 62);
  EXPECT_TRUE(raises<ShapeError>([&] { Shape{big, big, 2}; }, {"Shape", "2^62"}));
  // A product that wraps to a small number modulo 2^64.
  EXPECT_TRUE(raises<ShapeError>([&] { Shape{2 * big, 2 * big}; }, {"Shape"}));
  EXPECT_TRUE(raises<ShapeError>([] { Shape{std::numeric_limits<Index>::max()}; }, {"Shape"}));
}

TEST(Shape, ExtentZeroDoesNotHideAnOverflow) {
  const Index big = Index{1} << 32;
  EXPECT_TRUE(raises<ShapeError>([&] { Shape{0, big, big}; }, {"Shape"}));
  EXPECT_TRUE(raises<ShapeError>([&] { Shape{big, big, 0}; }, {"Shape"}));
  EXPECT_EQ(Shape({3, 0, 5}).size(), 0);
}

TEST(Shape, ComparesRanksAndExtents) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2, 3}), Shape({2, 3, 1}));
  EXPECT_NE(Shape({}), Shape({1}));
  EXPECT_NE(Shape({0}), Shape({0, 0}));
}

TEST(Shape, CountsAxesFromBothEndsAndChecksThem) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.dim(0), 2);
  EXPECT_EQ(shape.dim(-1), 5);
  EXPECT_EQ(shape.dim(-3), 2);
  EXPECT_TRUE(raises<ShapeError>([&] { shape.dim(3); }, {"axis 3", "(2, 3, 5)"}));
  EXPECT_TRUE(
      raises<ShapeError>([&] { axis_of("softmax", shape, -4); }, {"softmax", "axis -4", "(2, 3, 5)"}));
  EXPECT_TRUE(raises<ShapeError>([] { Shape{}.dim(0); }, {"()"}));
}

TEST(Shape, IsCutReplacedAndJoined) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.with(1, 7), Shape({2, 7, 5}));
  EXPECT_EQ(shape.without(0), Shape({3, 5}));
  EXPECT_EQ(shape.without(2), Shape({2, 3}));
  EXPECT_EQ(shape.first(2), Shape({2, 3}));
  EXPECT_EQ(shape.last(1), Shape({5}));
  EXPECT_EQ(shape.first(0), Shape({}));
  EXPECT_EQ(shape.followed_by({7}), Shape({2, 3, 5, 7}));
}

TEST(Shape, PrintsAsATuple) {
  EXPECT_EQ(to_string(Shape{}), "()");
  EXPECT_EQ(to_string(Shape{4}), "(4)");
  EXPECT_EQ(to_string(Shape{2, 0, 3}), "(2, 0, 3)");
}

TEST(Shape, BroadcastsFromTheLastAxis) {
  auto both = [](const Shape& a, const Shape& b) { return broadcast_shapes("add", "a", a, "b", b); };
  EXPECT_EQ(both({2, 3}, {2, 3}), Shape({2, 3}));
  EXPECT_EQ(both({2, 1, 5}, {3, 1}), Shape({2, 3, 5}));
  EXPECT_EQ(both({3}, {2, 3}), Shape({2, 3}));
  EXPECT_EQ(both({}, {2, 3}), Shape({2, 3}));
  EXPECT_EQ(both({1}, {0}), Shape({0}));
  EXPECT_TRUE(raises<ShapeError>([&] { both({2, 3}, {2}); }, {"add", "a (2, 3)", "b (2)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { both({0}, {3}); }, {"add", "a (0)", "b (3)"}));
}

TEST(Shape, BroadcastsToOnlyWhatItFills) {
  EXPECT_TRUE(broadcasts_to({}, {2, 3}));
  EXPECT_TRUE(broadcasts_to({1, 3}, {2, 3}));
  EXPECT_TRUE(broadcasts_to({3}, {2, 3}));
  EXPECT_FALSE(broadcasts_to({2}, {2, 3}));
  EXPECT_FALSE(broadcasts_to({3}, {1}));
  EXPECT_FALSE(broadcasts_to({1, 1, 3}, {2, 3}));
}

TEST(Strides, AreRowMajorAndZeroWhereARepeatedAxisIsRead) {
  const Strides own(Shape{2, 3, 5});
  EXPECT_EQ(own[0], 15);
  EXPECT_EQ(own[1], 5);
  EXPECT_EQ(own[2], 1);
  const Strides repeated(Shape{3, 1}, Shape{2, 3, 5});
  EXPECT_EQ(repeated[0], 0);
  EXPECT_EQ(repeated[1], 1);
  EXPECT_EQ(repeated[2], 0);
}

// Making arrays

TEST(Array, IsOnePointer) { EXPECT_EQ(sizeof(A), sizeof(void*)); }

TEST(Array, MadeByDefaultIsEmpty) {
  const A x;
  EXPECT_FALSE(x.defined());
  EXPECT_EQ(x.shape(), Shape({0}));
  EXPECT_EQ(x.size(), 0);
  EXPECT_TRUE(x.values().empty());
  EXPECT_FALSE(x.sole_owner());
  EXPECT_FALSE(x.shares_storage_with(A()));
}

template <class T>
class ArrayOf : public testing::Test {};
using Elements = testing::Types<float, double, Index, bool>;
TYPED_TEST_SUITE(ArrayOf, Elements);

TYPED_TEST(ArrayOf, EveryRankIsRowMajorAndAligned) {
  using T = TypeParam;
  const Index extents[] = {2, 3, 1, 2, 1, 3, 1, 2};
  for (int rank = 0; rank <= max_rank; ++rank) {
    const Shape shape(std::span(extents, static_cast<std::size_t>(rank)));
    auto x = Array<T>::uninitialized(shape);
    EXPECT_TRUE(aligned(x.data()));
    EXPECT_EQ(x.bytes(), static_cast<std::size_t>(shape.size()) * sizeof(T));
    for (Index i = 0; i < x.size(); ++i)
      x.mutable_values()[static_cast<std::size_t>(i)] = static_cast<T>(i % 3);
    const Strides strides(shape);
    Index at[max_rank] = {}, offset = 0;
    for (int axis = 0; axis < rank; ++axis) {
      at[axis] = shape[axis] - 1 - axis % 2 * (shape[axis] > 2);
      offset += at[axis] * strides[axis];
    }
    EXPECT_EQ(x.at(std::span(at, static_cast<std::size_t>(rank))), static_cast<T>(offset % 3))
        << "rank " << rank;
  }
}

TYPED_TEST(ArrayOf, ConstantsFillTheShape) {
  using T = TypeParam;
  EXPECT_EQ(Array<T>::zeros({2, 3}).to_vector(), std::vector<T>(6, T{0}));
  EXPECT_EQ(Array<T>::ones({5}).to_vector(), std::vector<T>(5, T{1}));
  EXPECT_EQ(Array<T>::full({3, 1}, T{1}).shape(), Shape({3, 1}));
  EXPECT_EQ(Array<T>::scalar(T{1}).shape(), Shape({}));
  EXPECT_EQ(Array<T>::scalar(T{1}).item(), T{1});
  EXPECT_EQ(Array<T>::zeros({2, 0, 3}).size(), 0);
}

TYPED_TEST(ArrayOf, VectorsGoInAndComeBack) {
  using T = TypeParam;
  const std::vector<T> values = {T{1}, T{0}, T{1}, T{1}, T{0}, T{0}};
  EXPECT_EQ(Array<T>::from(values).shape(), Shape({6}));
  const auto x = Array<T>::from(values, {2, 3});
  EXPECT_EQ(x.to_vector(), values);
  EXPECT_EQ(x(0, 2), T{1});
  EXPECT_EQ(x(1, 1), T{0});
  EXPECT_EQ(Array<T>::from(std::vector<T>{}).size(), 0);
  EXPECT_TRUE(raises<ShapeError>([&] { Array<T>::from(values, {2, 2}); }, {"6", "(2, 2)"}));
}

TEST(Array, CopiesTheSpanThatItIsMadeFrom) {
  double values[] = {1, 2, 3, 4, 5, 6};
  const auto x = A::from(std::span<const double>(values), {3, 2});
  values[5] = 100;
  EXPECT_EQ(x(2, 1), 6);
  EXPECT_TRUE(raises<ShapeError>([&] { A::from(std::span<const double>(values), {4}); }, {"6", "(4)"}));
}

TEST(Array, ListOfNumbersIsNotAShape) {
  EXPECT_EQ(A::of({2, 3}).to_vector(), (std::vector<double>{2, 3}));
  EXPECT_EQ(A::zeros({2, 3}).size(), 6);
}

TEST(Array, NestedListsHaveARankALevel) {
  EXPECT_EQ(A::of(7).shape(), Shape({}));
  EXPECT_EQ(A::of({7}).shape(), Shape({1}));
  EXPECT_EQ(A::of({{7}}).shape(), Shape({1, 1}));
  EXPECT_EQ(A::of({{{{{{{{7}}}}}}}}).rank(), 8);
  EXPECT_EQ(A::of({1, 2, 3}).shape(), Shape({3}));
  EXPECT_EQ(A::of({{1, 2}}).shape(), Shape({1, 2}));
  EXPECT_EQ(A::of({{1}, {2}}).shape(), Shape({2, 1}));
  EXPECT_EQ(A::of({{1, 2}, {3, 4}}).shape(), Shape({2, 2}));
  const auto x = A::of({{{1, 2}, {3, 4}, {5, 6}}, {{7, 8}, {9, 10}, {11, 12}}});
  EXPECT_EQ(x.shape(), Shape({2, 3, 2}));
  for (Index i = 0; i < 12; ++i) EXPECT_EQ(x.data()[i], static_cast<double>(i + 1));
}

TEST(Array, NestedListsMayBeEmpty) {
  EXPECT_EQ(A::of({}).shape(), Shape({0}));
  EXPECT_EQ(A::of({{}, {}}).shape(), Shape({2, 0}));
}

TEST(Array, NestedListsConvertTheirNumbers) {
  EXPECT_EQ(A::of({{1, 2.5f}, {Index{3}, -4u + 8}})(0, 1), 2.5);
  EXPECT_EQ(I::of({1, -2}).to_vector(), (std::vector<Index>{1, -2}));
  EXPECT_EQ(B::of({{true, false}, {false, false}}).to_vector(),
            (std::vector<bool>{true, false, false, false}));
}

TEST(Array, RaggedListsAreRefused) {
  EXPECT_TRUE(raises<ShapeError>([] { A::of({{1, 2}, {3}}); }, {"Array::of", "length"}));
  EXPECT_TRUE(raises<ShapeError>([] { A::of({{1}, {2, 3}}); }, {"Array::of", "length"}));
  EXPECT_TRUE(raises<ShapeError>([] { A::of({{{1, 2}, {3, 4}}, {{5, 6}, {7}}}); }, {"Array::of", "length"}));
  EXPECT_TRUE(raises<ShapeError>([] { A::of({{}, {1}}); }, {"Array::of"}));
  EXPECT_TRUE(raises<ShapeError>([] { A::of({{1}, {}}); }, {"Array::of"}));
  EXPECT_TRUE(raises<ShapeError>([] { A::of({{1, 2}, 3}); }, {"Array::of", "depth"}));
  EXPECT_TRUE(raises<ShapeError>([] { A::of({1, {2, 3}}); }, {"Array::of", "depth"}));
}

TEST(Array, NestedListsOfDepthNineAreRefused) {
  EXPECT_TRUE(raises<ShapeError>([] { A::of({{{{{{{{{7}}}}}}}}}); }, {"Shape", "9"}));
}

TEST(Array, ArangeStopsBeforeItsEnd) {
  EXPECT_EQ(A::arange(4).to_vector(), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(I::arange(2, 11, 3).to_vector(), (std::vector<Index>{2, 5, 8}));
  EXPECT_EQ(I::arange(2, 12, 3).to_vector(), (std::vector<Index>{2, 5, 8, 11}));
  EXPECT_EQ(I::arange(3, -3, -2).to_vector(), (std::vector<Index>{3, 1, -1}));
  EXPECT_EQ(A::arange(0, 1, 0.25).to_vector(), (std::vector<double>{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(A::arange(5, 5).size(), 0);
  EXPECT_EQ(A::arange(5, 4).size(), 0);
}

TEST(Array, ArangeDoesNotAccumulateItsStep) {
  const auto x = A::arange(0, 1000, 0.1);
  ASSERT_EQ(x.size(), 10000);
  EXPECT_EQ(x(9999), 9999 * 0.1);
}

TEST(Array, ArangeRefusesWhatHasNoEnd) {
  EXPECT_TRUE(raises<DomainError>([] { A::arange(0, 1, 0); }, {"arange", "step"}));
  EXPECT_TRUE(raises<DomainError>([] { A::arange(0, 1, nan); }, {"arange", "step"}));
  EXPECT_TRUE(raises<DomainError>([] { A::arange(0, infinity); }, {"arange"}));
  EXPECT_TRUE(raises<DomainError>([] { A::arange(nan, 3); }, {"arange"}));
}

TEST(Array, ArangeOfTooManyElementsIsAnErrorNotAnEmptyArray) {
  EXPECT_ANY_THROW(A::arange(0, 1e300));
  EXPECT_ANY_THROW(A::arange(0, 1e19));
}

TEST(Array, ArangeOfIntegersIsExactBeyondTheReachOfDoubles) {
  const Index start = Index{1} << 53;
  EXPECT_EQ(I::arange(start, start + 3).to_vector(), (std::vector<Index>{start, start + 1, start + 2}));
}

TEST(Array, EyeMayBeRectangular) {
  EXPECT_EQ(A::eye(2).to_vector(), (std::vector<double>{1, 0, 0, 1}));
  EXPECT_EQ(I::eye(2, 3).to_vector(), (std::vector<Index>{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(A::eye(3, 2).to_vector(), (std::vector<double>{1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(A::eye(0).shape(), Shape({0, 0}));
  EXPECT_TRUE(raises<ShapeError>([] { A::eye(-1); }, {"-1"}));
}

TEST(Array, MoreThanTheMemoryHoldsIsBadAlloc) {
  EXPECT_THROW(A::uninitialized({Index{1} << 60}), std::bad_alloc);
  EXPECT_THROW(A::uninitialized({Index{1} << 62}), std::bad_alloc);
}

TEST(Array, CastsBetweenElementTypes) {
  const auto x = A::of({{1.75, -2.5}, {0, 1e10}});
  EXPECT_EQ(x.cast<Index>().to_vector(), (std::vector<Index>{1, -2, 0, 10000000000}));
  EXPECT_EQ(x.cast<float>()(0, 1), -2.5f);
  EXPECT_EQ(x.cast<bool>().to_vector(), (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(B::of({true, false}).cast<double>().to_vector(), (std::vector<double>{1, 0}));
  EXPECT_EQ(x.cast<float>().shape(), x.shape());
}

// Reading elements

TEST(Array, ChecksTheNumberOfIndices) {
  const auto x = A::zeros({2, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { x(1); }, {"1 indices", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x(0, 1, 0); }, {"3 indices", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x(); }, {"0 indices", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { A::scalar(1)(0); }, {"1 indices", "()"}));
}

TEST(Array, ChecksTheRangeOfEachIndex) {
  const auto x = A::zeros({2, 3});
  EXPECT_TRUE(raises<DomainError>([&] { x(0, 3); }, {"index 3", "axis 1", "(2, 3)"}));
  EXPECT_TRUE(raises<DomainError>([&] { x(2, 0); }, {"index 2", "axis 0", "(2, 3)"}));
  EXPECT_TRUE(raises<DomainError>([&] { x(-1, 0); }, {"index -1", "axis 0", "(2, 3)"}));
  EXPECT_TRUE(raises<DomainError>([&] { A::zeros({0})(0); }, {"(0)"}));
  EXPECT_TRUE(raises<DomainError>([] { A()(0); }, {"(0)"}));
}

TEST(Array, ScalarIsReadWithoutIndices) { EXPECT_EQ(A::scalar(2.5)(), 2.5); }

TEST(Array, ItemNeedsExactlyOneElement) {
  EXPECT_EQ(A::full({1, 1, 1}, 3).item(), 3);
  EXPECT_TRUE(raises<ShapeError>([] { A::zeros({1, 2}).item(); }, {"item", "(1, 2)"}));
  EXPECT_TRUE(raises<ShapeError>([] { A::zeros({3, 0}).item(); }, {"item", "(3, 0)"}));
  EXPECT_TRUE(raises<ShapeError>([] { A().item(); }, {"item", "(0)"}));
}

// Sharing

TEST(Array, CopiesShareAndTakeNoMemory) {
  const auto x = A::arange(1000);
  const auto before = memory_statistics();
  const A copy = x;
  const A other = copy;
  EXPECT_EQ(memory_statistics().live, before.live);
  EXPECT_EQ(copy.data(), x.data());
  EXPECT_TRUE(other.shares_storage_with(x));
  EXPECT_FALSE(x.sole_owner());
}

TEST(Array, AssignedToItselfIsStillThere) {
  auto x = A::of({1, 2});
  const A& self = x;
  x = self;
  EXPECT_EQ(x.to_vector(), (std::vector<double>{1, 2}));
  EXPECT_TRUE(x.sole_owner());
}

TEST(Array, MovedFromIsEmpty) {
  auto x = A::of({1, 2});
  const A y = std::move(x);
  EXPECT_FALSE(x.defined());
  EXPECT_TRUE(y.sole_owner());
}

TEST(Array, WritesInPlaceWhenItIsTheSoleOwner) {
  auto x = A::arange(3);
  const double* data = x.data();
  x.mutable_values()[1] = 7;
  x.set({2}, 9);
  EXPECT_EQ(x.data(), data);
  EXPECT_EQ(x.to_vector(), (std::vector<double>{0, 7, 9}));
}

TEST(Array, WritesToACopyWhenItShares) {
  auto x = A::arange(3);
  const A held = x;
  x.set({1}, 7);
  EXPECT_EQ(held.to_vector(), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(x.to_vector(), (std::vector<double>{0, 7, 2}));
  EXPECT_FALSE(x.shares_storage_with(held));
  EXPECT_TRUE(x.sole_owner());
  EXPECT_TRUE(held.sole_owner());
}

TEST(Array, SetOutOfRangeChangesAndCopiesNothing) {
  auto x = A::arange(3);
  const A held = x;
  EXPECT_TRUE(raises<DomainError>([&] { x.set({3}, 1); }, {"index 3", "(3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x.set({0, 0}, 1); }, {"2 indices", "(3)"}));
  EXPECT_TRUE(x.shares_storage_with(held));
}

TEST(Array, ReshapingCopiesNoElement) {
  const auto x = A::arange(6000);
  const auto before = memory_statistics();
  const auto y = x.reshape({30, -1});
  EXPECT_EQ(y.shape(), Shape({30, 200}));
  EXPECT_EQ(y.data(), x.data());
  EXPECT_LT(memory_statistics().live - before.live, 512);
  EXPECT_EQ(y(7, 11), 7 * 200 + 11);
}

TEST(Array, ReshapingToTheSameShapeIsACopyOfTheHandle) {
  const auto x = A::arange(6).reshape({2, 3});
  const auto before = memory_statistics().live;
  const auto y = x.reshape({2, -1}), z = x.reshape(x.shape());
  EXPECT_EQ(memory_statistics().live, before);
  EXPECT_EQ(y.data(), z.data());
}

TEST(Array, ReshapedViewOutlivesItsOrigin) {
  A view;
  {
    const auto x = A::arange(6);
    view = x.reshape({2, 3}).reshape({3, 2}).reshape({1, 6});
    EXPECT_FALSE(view.sole_owner());
  }
  EXPECT_EQ(view(0, 5), 5);
  EXPECT_TRUE(view.sole_owner());
  const double* data = view.data();
  view.set({0, 0}, 8);
  EXPECT_EQ(view.data(), data);
}

TEST(Array, WritingThroughAViewLeavesItsOriginAlone) {
  const auto x = A::arange(6);
  auto view = x.reshape({2, 3});
  view.set({1, 2}, 50);
  EXPECT_EQ(x(5), 5);
  EXPECT_EQ(view(1, 2), 50);
}

TEST(Array, WritingToTheOriginLeavesItsViewsAlone) {
  auto x = A::arange(6);
  const auto view = x.reshape({2, 3});
  x.set({5}, 50);
  EXPECT_EQ(view(1, 2), 5);
}

TEST(Array, ManyReshapesInARowGiveAllMemoryBack) {
  const auto before = memory_statistics().live;
  {
    auto x = A::arange(6);
    for (int i = 0; i < 100000; ++i) x = x.reshape({2 + i % 2, -1});
    EXPECT_EQ(x(2, 1), 5);
  }
  EXPECT_EQ(memory_statistics().live, before);
}

TEST(Array, ReshapeComputesTheExtentLeftOpen) {
  const auto x = A::arange(30);
  EXPECT_EQ(x.reshape({-1}).shape(), Shape({30}));
  EXPECT_EQ(x.reshape({2, -1, 5}).shape(), Shape({2, 3, 5}));
  EXPECT_EQ(x.reshape({-1, 30}).shape(), Shape({1, 30}));
  EXPECT_EQ(A::scalar(4).reshape({-1}).shape(), Shape({1}));
  EXPECT_EQ(A::full({1, 1}, 4).reshape({}).shape(), Shape({}));
  EXPECT_EQ(A::zeros({0, 4}).reshape({3, -1}).shape(), Shape({3, 0}));
  EXPECT_EQ(A().reshape({0, 5}).shape(), Shape({0, 5}));
  EXPECT_EQ(x.reshape({1, 1, 1, 2, 1, -1, 5, 1}).dim(5), 3);
}

TEST(Array, ReshapeRefusesWhatDoesNotFit) {
  const auto x = A::arange(30);
  EXPECT_TRUE(raises<ShapeError>([&] { x.reshape({4, 7}); }, {"reshape", "(30)", "(4, 7)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x.reshape(Shape{29}); }, {"reshape", "(30)", "(29)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x.reshape({4, -1}); }, {"reshape", "(4, -1)", "(30)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x.reshape({-1, 3, -1}); }, {"reshape", "more than one"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x.reshape({-2, -15}); }, {"-2"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x.reshape({-1, -2, -3}); }, {"-2"}));
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        A::zeros({0, 4}).reshape({0, -1});
      },
      {"reshape", "(0, -1)", "(0, 4)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { x.reshape({1, 1, 1, 1, 1, 1, 1, 1, -1}); }, {"reshape"}));
}

TEST(Array, ReshapeIsNotFooledByAProductThatWraps) {
  const Index big = Index{1} << 32;
  EXPECT_TRUE(raises<ShapeError>([&] { A::zeros({0}).reshape({big, big}); }));
  EXPECT_TRUE(raises<ShapeError>([&] { A::zeros({0}).reshape({-1, big, big}); }));
  // 2^64 + 2 wraps to 2.
  EXPECT_TRUE(raises<ShapeError>([] { A::arange(6).reshape({-1, 2, (Index{1} << 62) + 1, 2}); }));
}

TEST(Array, AdoptsForeignMemoryAndNeverWritesToIt) {
  auto owner = std::make_shared<std::vector<double>>(std::vector<double>{1, 2, 3, 4, 5, 6});
  const std::weak_ptr<std::vector<double>> alive = owner;
  {
    const auto before = memory_statistics();
    auto x = A::adopt(owner, owner->data(), {2, 3});
    EXPECT_LT(memory_statistics().live - before.live, 512);
    EXPECT_EQ(x.data(), owner->data());
    EXPECT_FALSE(x.sole_owner());
    const double* foreign = owner->data();
    owner.reset();
    EXPECT_EQ(x(1, 2), 6);

    auto view = x.reshape({3, 2});
    EXPECT_EQ(view.data(), foreign);
    view.set({0, 0}, 100);
    EXPECT_EQ(x(0, 0), 1);
    x = {};
    EXPECT_TRUE(alive.expired());
    EXPECT_EQ(view(2, 1), 6);
  }
}

TEST(Array, ViewKeepsTheOwnerOfAdoptedMemory) {
  auto owner = std::make_shared<std::vector<double>>(std::vector<double>{1, 2, 3, 4});
  const std::weak_ptr<std::vector<double>> alive = owner;
  A view = A::adopt(owner, owner->data(), {4}).reshape({2, 2});
  owner.reset();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(view(1, 0), 3);
  EXPECT_FALSE(view.sole_owner());
  view = {};
  EXPECT_TRUE(alive.expired());
}

// all_close

TEST(AllClose, ComparesShapesFirst) {
  EXPECT_FALSE(all_close(A::zeros({2, 3}), A::zeros({3})));
  EXPECT_FALSE(all_close(A::zeros({2, 3}), A::zeros({3, 2})));
  EXPECT_FALSE(all_close(A::scalar(1), A::ones({1})));
  EXPECT_FALSE(all_close(A::zeros({0, 3}), A::zeros({0})));
  EXPECT_TRUE(all_close(A::zeros({0, 3}), A::zeros({0, 3})));
}

TEST(AllClose, IsRelativeToTheSecondAndHasAnAbsolutePart) {
  EXPECT_TRUE(all_close(A::of({100.0, 1}), A::of({100.09, 1}), 1e-3, 0));
  EXPECT_FALSE(all_close(A::of({100.0, 1}), A::of({100.11, 1}), 1e-3, 0));
  EXPECT_TRUE(all_close(A::of({90}), A::of({100}), 0.1, 0));
  EXPECT_FALSE(all_close(A::of({100}), A::of({90}), 0.1, 0));
  EXPECT_FALSE(all_close(A::of({1e-7}), A::of({0}), 1, 0));
  EXPECT_TRUE(all_close(A::of({1e-7}), A::of({0}), 0, 1e-6));
  EXPECT_TRUE(all_close(A::of({-5}), A::of({-5}), 0, 0));
  EXPECT_FALSE(all_close(A::of({5}), A::of({-5})));
}

TEST(AllClose, FindsTheOneElementThatDiffers) {
  const auto x = Array<float>::zeros({2, 3, 5});
  for (Index i = 0; i < x.size(); ++i) {
    auto y = x;
    y.mutable_values()[static_cast<std::size_t>(i)] = 1e-3f;
    EXPECT_FALSE(all_close(x, y)) << "element " << i;
  }
  EXPECT_TRUE(all_close(x, x));
}

TEST(AllClose, NanIsCloseToNothing) {
  EXPECT_FALSE(all_close(A::of({nan}), A::of({nan})));
  EXPECT_FALSE(all_close(A::of({nan}), A::of({1}), infinity, infinity));
  EXPECT_FALSE(all_close(A::of({1}), A::of({nan})));
  const auto x = A::of({1, nan});
  EXPECT_FALSE(all_close(x, x));
}

TEST(AllClose, InfinitiesAreCloseToThemselvesAlone) {
  EXPECT_TRUE(all_close(A::of({infinity, -infinity}), A::of({infinity, -infinity})));
  EXPECT_FALSE(all_close(A::of({infinity}), A::of({-infinity})));
  EXPECT_FALSE(all_close(A::of({1}), A::of({infinity})));
  EXPECT_FALSE(all_close(A::of({1}), A::of({-infinity})));
  EXPECT_FALSE(all_close(A::of({infinity}), A::of({1e308})));
  EXPECT_FALSE(all_close(A::of({1}), A::of({infinity}), 0, 0));
}

// Printing

TEST(ArrayPrinting, OfRanksZeroToTwo) {
  EXPECT_EQ(to_string(A::scalar(-2.5)), "-2.5");
  EXPECT_EQ(to_string(A::of({1, 2.5, -3})), "[  1, 2.5,  -3]");
  EXPECT_EQ(to_string(A::of({{1, -2}, {30, 0.25}})),
            "[[   1,   -2],\n"
            " [  30, 0.25]]");
}

TEST(ArrayPrinting, IndentsEachLevel) {
  EXPECT_EQ(to_string(I::of({{{1, 2}, {3, 4}, {5, 6}}, {{7, 8}, {9, 10}, {11, -12}}})),
            "[[[  1,   2],\n"
            "  [  3,   4],\n"
            "  [  5,   6]],\n"
            " [[  7,   8],\n"
            "  [  9,  10],\n"
            "  [ 11, -12]]]");
}

TEST(ArrayPrinting, OfBooleansAndFloats) {
  EXPECT_EQ(to_string(B::of({{true, false}, {false, false}})),
            "[[ true, false],\n"
            " [false, false]]");
  EXPECT_EQ(to_string(Array<float>::of({0.1, 1e-10, 123456789})), "[        0.1,       1e-10, 1.23457e+08]");
}

TEST(ArrayPrinting, OfWhatIsNotFinite) {
  EXPECT_EQ(to_string(A::of({nan, infinity, -infinity, 1})), "[ nan,  inf, -inf,    1]");
}

TEST(ArrayPrinting, NanHasNoSign) {  // x86 sets it in the result of 0/0, other machines do not
  EXPECT_EQ(to_string(A::of({std::copysign(nan, -1.0), std::copysign(nan, 1.0)})), "[nan, nan]");
}

TEST(ArrayPrinting, OfNothingShowsTheShape) {
  EXPECT_EQ(to_string(A()), "[]  shape (0)");
  EXPECT_EQ(to_string(A::zeros({2, 0, 3})), "[]  shape (2, 0, 3)");
}

TEST(ArrayPrinting, ShortensLongAxesToTheirEnds) {
  EXPECT_EQ(to_string(I::arange(1001)), "[   0,    1,    2, ...,  998,  999, 1000]  shape (1001)");
  EXPECT_EQ(to_string(I::arange(1000)).find("..."), std::string::npos);
  EXPECT_EQ(to_string(I::arange(2002).reshape({2, 1001})),
            "[[   0,    1,    2, ...,  998,  999, 1000],\n"
            " [1001, 1002, 1003, ..., 1999, 2000, 2001]]  shape (2, 1001)");
  EXPECT_EQ(to_string(I::arange(1200).reshape({600, 2})),
            "[[   0,    1],\n"
            " [   2,    3],\n"
            " [   4,    5],\n"
            " ...,\n"
            " [1194, 1195],\n"
            " [1196, 1197],\n"
            " [1198, 1199]]  shape (600, 2)");
}

TEST(ArrayPrinting, AlignsToWhatIsShownOnly) {
  auto x = I::zeros({1001});
  x.set({500}, 123456);
  EXPECT_EQ(to_string(x), "[0, 0, 0, ..., 0, 0, 0]  shape (1001)");
}

TEST(ArrayPrinting, GoesToStreams) {
  std::ostringstream stream;
  stream << A::of({1, 2}) << " and " << Shape{2}.size();
  EXPECT_EQ(stream.str(), "[1, 2] and 2");
}

}  // namespace
}  // namespace tapehead
