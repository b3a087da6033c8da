#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

// ---------------------------------------------------------------- the definition, as loops

// An operand as matrices: a vector is one row on the left and one column on the right.
template <class T>
struct Operand {
  Operand(const Array<T>& of, bool left, bool transposed) : x(of), is_transposed(transposed) {
    vector = x.rank() == 1;
    batch = x.shape().first(vector ? 0 : x.rank() - 2);
    const Index length = x.dim(-1);
    rows = vector ? (left ? 1 : length) : x.dim(transposed ? -1 : -2);
    columns = vector ? (left ? length : 1) : x.dim(transposed ? -2 : -1);
  }
  // Element (i, j) of the matrix that stands at `position` of the broadcast leading axes `all`.
  T operator()(Index position, const Shape& all, Index i, Index j) const {
    Index at = 0, step = 1, rest = position;
    for (int axis = all.rank(); axis-- > 0; rest /= all[axis]) {
      const int own = axis - (all.rank() - batch.rank());
      if (own < 0) continue;
      if (batch[own] != 1) at += rest % all[axis] * step;
      step *= batch[own];
    }
    const Index inside = is_transposed ? j * rows + i : i * columns + j;
    return x.data()[at * rows * columns + inside];
  }

  Array<T> x;
  bool is_transposed, vector = false;
  Shape batch;
  Index rows = 0, columns = 0;
};

// Each element within (n + 2) epsilon of the sum of the sizes of its n terms.
template <class T>
void expect_product(const Array<T>& a, const Array<T>& b, bool ta, bool tb, const Array<T>& y) {
  const Operand<T> left(a, true, ta), right(b, false, tb);
  ASSERT_EQ(left.columns, right.rows);
  const Shape batch = broadcast_shapes("test", "a", left.batch, "b", right.batch);
  Shape shape = batch;
  if (!left.vector) shape = shape.followed_by({left.rows});
  if (!right.vector) shape = shape.followed_by({right.columns});
  ASSERT_EQ(y.shape(), shape);
  const Index m = left.rows, n = left.columns, p = right.columns;
  const double unit = static_cast<double>(n + 2) * std::numeric_limits<T>::epsilon();
  for (Index position = 0; position < batch.size(); ++position) {
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < p; ++j) {
        long double sum = 0, size = 0;
        for (Index k = 0; k < n; ++k) {
          const long double term =
              static_cast<long double>(left(position, batch, i, k)) * right(position, batch, k, j);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_LE(std::abs(y.data()[(position * m + i) * p + j] - sum), unit * size)
            << to_string(a.shape()) << (ta ? "^T" : "") << " " << to_string(b.shape()) << (tb ? "^T" : "")
            << " at " << position << ", " << i << ", " << j;
      }
    }
  }
}

template <class T>
void expect_random_product(const Shape& a, const Shape& b, bool ta, bool tb, Generator& generator) {
  const Array<T> left = generator.normal<T>(a), right = generator.normal<T>(b);
  expect_product(left, right, ta, tb, matmul(Var<T>(left), Var<T>(right), ta, tb).value());
}

Shape matrix(Index rows, Index columns, bool transposed) {
  return transposed ? Shape{columns, rows} : Shape{rows, columns};
}

// Blocks of the pool that hold NaN, so that a kernel that reads its output before writing it is seen.
void leave_nan_behind() {
  std::vector<Array<double>> blocks;
  for (Index size = 1; size < 5000; size = size * 3 / 2 + 1) {
    for (int i = 0; i < 3; ++i) blocks.push_back(Array<double>::full({size}, std::nan("")));
  }
}

// ---------------------------------------------------------------- shapes

TEST(Matmul, EveryFormOfShapesAndFlagsAgreesWithTheDefinition) {
  // Leading axes of either side, in every pair that broadcasts.
  const std::vector<Shape> leading = {{}, {1}, {2}, {3, 2}, {3, 1}, {1, 2}, {1, 1}, {4, 3, 2}, {0}, {3, 0}};
  Generator generator(1);
  int products = 0;
  for (const Shape& lead_a : leading) {
    for (const Shape& lead_b : leading) {
      const bool fit = broadcasts_to(lead_a, lead_b) || broadcasts_to(lead_b, lead_a) ||
                       (lead_a == Shape{3, 1} && lead_b == Shape{1, 2}) ||
                       (lead_a == Shape{1, 2} && lead_b == Shape{3, 1});
      if (!fit) continue;
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
          expect_random_product<double>(lead_a.followed_by(matrix(4, 3, ta)),
                                        lead_b.followed_by(matrix(3, 5, tb)), ta, tb, generator);
          ++products;
        }
      }
    }
  }
  EXPECT_GT(products, 200);
}

TEST(Matmul, AVectorIsARowOnTheLeftAndAColumnOnTheRight) {
  Generator generator(2);
  expect_random_product<double>({3}, {3}, false, false, generator);
  for (const bool flag : {false, true}) {
    for (const Shape& lead : {Shape{}, Shape{2}, Shape{1}, Shape{2, 4}, Shape{0}}) {
      expect_random_product<double>({3}, lead.followed_by(matrix(3, 5, flag)), false, flag, generator);
      expect_random_product<double>(lead.followed_by(matrix(5, 3, flag)), {3}, flag, false, generator);
    }
  }
}

template <class T>
class MatmulOf : public testing::Test {};
using Numbers = testing::Types<float, double>;
TYPED_TEST_SUITE(MatmulOf, Numbers);

TYPED_TEST(MatmulOf, SizesOfNothingOneAndPrimes) {
  Generator generator(3);
  const Index sizes[] = {0, 1, 2, 7, 13, 31};
  for (const Index m : sizes) {
    for (const Index n : sizes) {
      for (const Index p : sizes) {
        for (const bool ta : {false, true}) {
          for (const bool tb : {false, true}) {
            expect_random_product<TypeParam>(matrix(m, n, ta), matrix(n, p, tb), ta, tb, generator);
          }
        }
        expect_random_product<TypeParam>({2, m, n}, {2, n, p}, false, false, generator);
        expect_random_product<TypeParam>({2, m, n}, {n, p}, false, false, generator);
      }
    }
  }
}

// 2^20 multiply-adds are shared among threads, by rows of a tall result and by columns of a wide one; a
// batch, from 2^18 on, by its matrices.
TYPED_TEST(MatmulOf, SizesAboveTheThresholdsOfTheThreads) {
  Generator generator(4);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      expect_random_product<TypeParam>(matrix(331, 61, ta), matrix(61, 67, tb), ta, tb, generator);
      expect_random_product<TypeParam>(matrix(67, 61, ta), matrix(61, 331, tb), ta, tb, generator);
      expect_random_product<TypeParam>(Shape{7}.followed_by(matrix(41, 61, ta)),
                                       Shape{7}.followed_by(matrix(61, 53, tb)), ta, tb, generator);
    }
  }
  expect_random_product<TypeParam>({11, 31, 61}, {61, 67}, false, false, generator);
  expect_random_product<TypeParam>({1 << 11, 521}, {521}, false, false, generator);
  expect_random_product<TypeParam>({521}, {521, 1 << 11}, false, false, generator);
}

TYPED_TEST(MatmulOf, LargeProductsAreTheSameBitsOnAnyThreads) {
  Generator generator(5);
  const std::pair<Shape, Shape> shapes[] = {{{331, 97}, {97, 67}},
                                            {{67, 97}, {97, 331}},
                                            {{9, 41, 61}, {9, 61, 53}},
                                            {{9, 41, 61}, {61, 53}},
                                            {{9, 41, 61}, {61}}};
  for (const auto& [shape_a, shape_b] : shapes) {
    const auto a = generator.normal<TypeParam>(shape_a), b = generator.normal<TypeParam>(shape_b);
    expect_same_bits_on_any_threads([&, of_a = a, of_b = b] {
      Tape<TypeParam> tape;
      const auto left = tape.input(of_a), right = tape.input(of_b);
      const auto y = matmul(left, right);
      auto results = gradient_values(y, {left, right}, y.detach());
      results.push_back(y.value());
      return results;
    });
  }
}

// ---------------------------------------------------------------- where products go wrong in silence

// xt::linalg::dot takes a product of equal addresses, one of them transposed, for a symmetric one.
TEST(MatmulTraps, TilesOfOneBufferWithTheSameAddress) {
  const auto buffer = std::make_shared<const Array<double>>(Generator(6).normal<double>({6, 4}));
  auto tile = [&](Index first, Index rows) {
    return Array<double>::adopt(buffer, buffer->data() + first * 4, {rows, 4});
  };
  for (const Index rows : {1, 2, 5, 6}) {
    for (const Index first : {Index{0}, 6 - rows}) {
      const Array<double> part = tile(first, rows);
      ASSERT_TRUE(first > 0 || part.shares_storage_with(*buffer));
      expect_product(part, *buffer, false, true, matmul(V(part), V(*buffer), false, true).value());
      expect_product(*buffer, part, false, true, matmul(V(*buffer), V(part), false, true).value());
    }
  }
  const Array<double> whole = *buffer, reshaped = whole.reshape({4, 6});
  expect_product(whole, whole, true, false, matmul(V(whole), V(whole), true, false).value());
  expect_product(whole, reshaped, false, false, matmul(V(whole), V(reshaped)).value());
  expect_product(whole, reshaped, true, true, matmul(V(whole), V(reshaped), true, true).value());
}

// dot of xtensor forgets where a view of three axes begins.
TEST(MatmulTraps, BatchesThatBeginInTheMiddleOfABuffer) {
  const auto buffer = std::make_shared<const Array<double>>(Generator(7).normal<double>({6, 3, 4}));
  auto batch = [&](Index first, const Shape& shape) {
    return Array<double>::adopt(buffer, buffer->data() + first * 12, shape);
  };
  for (const Index first : {0, 1, 3}) {
    const Array<double> a = batch(first, {2, 3, 4}), b = batch(first + 1, {2, 4, 3});
    expect_product(a, b, false, false, matmul(V(a), V(b)).value());
    expect_product(a, a, false, true, matmul(V(a), V(a), false, true).value());
    expect_product(a, a, true, false, matmul(V(a), V(a), true, false).value());
  }
  const V x = *buffer;
  const V sliced = slice(x, {{2, 5}});
  expect_product(sliced.value(), sliced.value(), false, true, matmul(sliced, sliced, false, true).value());
}

// Heads of a packed projection are column ranges, which dot of xtensor refuses.
TEST(MatmulTraps, ColumnSlicesForEachHead) {
  const Index length = 5, heads = 3, width = 2;
  const Array<double> packed = Generator(8).normal<double>({length, 3 * heads * width});
  for (Index head = 0; head < heads; ++head) {
    const Index query = head * width, key = (heads + head) * width;
    const V q = slice(V(packed), 1, {query, query + width}), k = slice(V(packed), 1, {key, key + width});
    const Array<double> scores = matmul(q, k, false, true).value();
    ASSERT_EQ(scores.shape(), Shape({length, length}));
    for (Index i = 0; i < length; ++i) {
      for (Index j = 0; j < length; ++j) {
        double expected = 0;
        for (Index c = 0; c < width; ++c) expected += packed(i, query + c) * packed(j, key + c);
        EXPECT_NEAR(scores(i, j), expected, 1e-14);
      }
    }
  }
}

TEST(MatmulTraps, SteppedReversedAndPermutedOperands) {
  Generator generator(9);
  const V x = generator.normal<double>({4, 6, 5}), w = generator.normal<double>({3, 9});
  const V rows = slice(permute(x, {1, 2, 0}), {{{}, {}, -2}, {4, {}, -2}, {1, {}}});  // (3, 3, 3)
  const V columns = slice(w, {{{}, {}, -1}, {8, {}, -3}});                            // (3, 3)
  expect_product(rows.value(), columns.value(), false, false, matmul(rows, columns).value());
  expect_product(rows.value(), columns.value(), true, true, matmul(rows, columns, true, true).value());
  const V column = reshape(slice(w, 1, {2, 3}), {3});
  expect_product(rows.value(), column.value(), false, false, matmul(rows, column).value());
}

// BLAS writes nothing then, and the memory is whatever it was.
TEST(MatmulTraps, AnInnerSizeOfZeroGivesZeros) {
  leave_nan_behind();
  auto zeros = [](const Shape& shape) { return V(Array<double>::zeros(shape)); };
  EXPECT_SAME_NUMBERS(matmul(zeros({3, 0}), zeros({0})), zeros({3}));
  EXPECT_SAME_NUMBERS(matmul(zeros({0}), zeros({0, 3})), zeros({3}));
  EXPECT_SAME_NUMBERS(matmul(zeros({0}), zeros({0})), zeros({}));
  EXPECT_SAME_NUMBERS(matmul(zeros({3, 0}), zeros({0, 4})), zeros({3, 4}));
  EXPECT_SAME_NUMBERS(matmul(zeros({2, 3, 0}), zeros({2, 0, 4})), zeros({2, 3, 4}));
  EXPECT_SAME_NUMBERS(matmul(zeros({2, 3, 0}), zeros({0, 4})), zeros({2, 3, 4}));
  EXPECT_SAME_NUMBERS(projection(zeros({3, 0}), zeros({0, 2}), V(Array<double>::of({5, 6}))),
                      V(Array<double>::of({{5, 6}, {5, 6}, {5, 6}})));
}

TEST(MatmulTraps, WhatTheResultsMemoryHeldDoesNotMatter) {
  Generator generator(10);
  const V a = generator.normal<double>({3, 17, 13}), b = generator.normal<double>({3, 13, 19});
  const V w = generator.normal<double>({13, 19}), v = generator.normal<double>({13});
  leave_nan_behind();
  expect_product(a.value(), b.value(), false, false, matmul(a, b).value());
  expect_product(a.value(), w.value(), false, false, matmul(a, w).value());
  expect_product(a.value(), v.value(), false, false, matmul(a, v).value());
}

TEST(Matmul, NanAndInfinityReachWhatTheyAreMultipliedInto) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Array<double> a = Array<double>::ones({3, 2});
  a.set({1, 0}, infinity);
  a.set({2, 1}, std::nan(""));
  const Array<double> y = matmul(V(a), V(Array<double>::of({{0, 1}, {1, 1}}))).value();
  EXPECT_EQ(y(0, 0), 1);
  EXPECT_TRUE(std::isnan(y(1, 0)));  // infinity times 0
  EXPECT_EQ(y(1, 1), infinity);
  EXPECT_TRUE(std::isnan(y(2, 0)) && std::isnan(y(2, 1)));
}

// ---------------------------------------------------------------- gradients of shapes

TEST(Matmul, GradientsWithNothingInOneOfTheSizesAreZerosOfTheRightShape) {
  const std::pair<Shape, Shape> shapes[] = {{{3, 0}, {0, 5}},    {{0, 4}, {4, 5}},       {{3, 4}, {4, 0}},
                                            {{2, 3, 0}, {0, 5}}, {{2, 0, 4}, {4, 5}},    {{2, 3, 4}, {4, 0}},
                                            {{0, 3, 4}, {4, 5}}, {{0, 3, 4}, {1, 4, 5}}, {{0}, {0}}};
  for (const auto& [shape_a, shape_b] : shapes) {
    SCOPED_TRACE(to_string(shape_a) + to_string(shape_b));
    Tape<double> tape;
    const V a = tape.input(Array<double>::ones(shape_a)), b = tape.input(Array<double>::ones(shape_b));
    const V y = matmul(a, b);
    std::vector<Array<double>> d;
    ASSERT_NO_THROW(d = gradient_values(y, {a, b}, V(Array<double>::ones(y.shape()))));
    EXPECT_SAME_NUMBERS(d[0], Array<double>::zeros(shape_a));
    EXPECT_SAME_NUMBERS(d[1], Array<double>::zeros(shape_b));
  }
}

TEST(Matmul, AMatrixSharedByABatchGetsTheSumOverIt) {
  Generator generator(11);
  const Array<double> x = generator.normal<double>({3, 4, 5}), w = generator.normal<double>({5, 2});
  const Array<double> dy = generator.normal<double>({3, 4, 2});
  Tape<double> tape;
  const V shared = tape.input(w);
  const auto dw = gradient_values(matmul(V(x), shared), shared, V(dy))[0];
  expect_product(x.reshape({12, 5}), dy.reshape({12, 2}), true, false, dw);
}

// ---------------------------------------------------------------- projection

TEST(Projection, IsTheProductAndTheBias) {
  Generator generator(12);
  for (const Shape& x_shape : {Shape{4}, Shape{3, 4}, Shape{2, 3, 4}, Shape{2, 1, 3, 4}, Shape{0, 4}}) {
    const V x = generator.normal<double>(x_shape), w = generator.normal<double>({4, 5}),
            b = generator.normal<double>({5});
    const V product = matmul(x, w);
    EXPECT_NEAR_RELATIVE(projection(x, w), product.value(), 1e-15);
    EXPECT_NEAR_RELATIVE(projection(x, w, b), (product + b).value(), 4e-15);
  }
}

TEST(Projection, GradientsWithNothingInOneOfTheSizesAreZerosOfTheRightShape) {
  for (const auto& [rows, n, p] : {std::tuple<Index, Index, Index>{0, 4, 5}, {3, 0, 5}, {3, 4, 0}}) {
    SCOPED_TRACE(std::to_string(rows) + ", " + std::to_string(n) + ", " + std::to_string(p));
    Tape<double> tape;
    const V x = tape.input(Array<double>::ones({rows, n})), w = tape.input(Array<double>::ones({n, p}));
    const V y = projection(x, w);
    std::vector<Array<double>> d;
    ASSERT_NO_THROW(d = gradient_values(y, {x, w}, V(Array<double>::ones(y.shape()))));
    EXPECT_SAME_NUMBERS(d[0], Array<double>::zeros({rows, n}));
    EXPECT_SAME_NUMBERS(d[1], Array<double>::zeros({n, p}));
  }
}

TEST(Projection, LargeOnesAreTheSameBitsOnAnyThreads) {
  Generator generator(13);
  const Array<double> x = generator.normal<double>({5, 70, 61}), w = generator.normal<double>({61, 59});
  const Array<double> b = generator.normal<double>({59});
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const std::vector<V> inputs = {tape.input(x), tape.input(w), tape.input(b)};
    const V y = projection(inputs[0], inputs[1], inputs[2]);
    auto results = gradient_values(y, inputs, y.detach());
    results.push_back(y.value());
    return results;
  });
}

// ---------------------------------------------------------------- errors

template <class F>
auto on(F f, const Shape& a, const Shape& b) {
  return [=] { f(V(Array<double>::zeros(a)), V(Array<double>::zeros(b))); };
}

TEST(Matmul, ShapesThatDoNotFitAreNamed) {
  auto plain = [](const V& a, const V& b) { matmul(a, b); };
  auto both = [](const V& a, const V& b) { matmul(a, b, true, true); };
  auto left = [](const V& a, const V& b) { matmul(a, b, true, false); };
  auto right = [](const V& a, const V& b) { matmul(a, b, false, true); };
  EXPECT_TRUE(raises<ShapeError>(on(plain, {3, 4}, {5, 6}), {"matmul:", "inner", "a (3, 4)", "b (5, 6)"}));
  EXPECT_TRUE(
      raises<ShapeError>(on(left, {3, 4}, {4, 6}), {"matmul:", "a transposed", "a (3, 4)", "b (4, 6)"}));
  EXPECT_TRUE(
      raises<ShapeError>(on(right, {3, 4}, {4, 6}), {"matmul:", "b transposed", "a (3, 4)", "b (4, 6)"}));
  EXPECT_TRUE(raises<ShapeError>(on(both, {3, 4}, {4, 6}), {"matmul:", "a (3, 4)", "b (4, 6)"}));
  EXPECT_TRUE(raises<ShapeError>(on(plain, {3}, {4}), {"matmul:", "a (3)", "b (4)"}));
  EXPECT_TRUE(raises<ShapeError>(on(plain, {3}, {2, 4, 3}), {"matmul:", "a (3)", "b (2, 4, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(on(plain, {}, {3, 3}), {"matmul:", "scalar", "a ()", "b (3, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(on(plain, {3, 3}, {}), {"matmul:", "scalar", "a (3, 3)", "b ()"}));
  EXPECT_TRUE(raises<ShapeError>(on(left, {3}, {3, 3}), {"matmul:", "vector", "a (3)", "b (3, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(on(right, {3, 3}, {3}), {"matmul:", "vector", "a (3, 3)", "b (3)"}));
}

TEST(Matmul, LeadingAxesThatDoNotBroadcastAreNamedWithTheWholeShapes) {
  auto plain = [](const V& a, const V& b) { matmul(a, b); };
  EXPECT_TRUE(raises<ShapeError>(on(plain, {2, 3, 4}, {5, 4, 6}), {"matmul:", "(2, 3, 4)", "(5, 4, 6)"}));
}

TEST(Matmul, AnErrorLeavesTheTapeAsItWas) {
  Tape<double> tape;
  const V a = tape.input(Array<double>::zeros({2, 3, 4}));
  EXPECT_THROW(matmul(a, V(Array<double>::zeros({3}))), ShapeError);
  EXPECT_THROW(matmul(a, V(Array<double>::zeros({5, 4, 6}))), ShapeError);
  EXPECT_EQ(tape.size(), 1);
}

TEST(Projection, ShapesThatDoNotFitAreNamed) {
  auto plain = [](const V& x, const V& w) { projection(x, w); };
  auto biased = [](const V& w, const V& b) { projection(V(Array<double>::zeros({2, 3})), w, b); };
  EXPECT_TRUE(raises<ShapeError>(on(plain, {2, 3}, {4, 5}), {"projection:", "x (2, 3)", "w (4, 5)"}));
  EXPECT_TRUE(raises<ShapeError>(on(plain, {2, 3}, {3}), {"projection:", "x (2, 3)", "w (3)"}));
  EXPECT_TRUE(raises<ShapeError>(on(plain, {2, 3}, {2, 3, 4}), {"projection:", "w (2, 3, 4)"}));
  EXPECT_TRUE(raises<ShapeError>(on(plain, {}, {1, 2}), {"projection:", "x ()", "w (1, 2)"}));
  EXPECT_TRUE(raises<ShapeError>(on(biased, {3, 4}, {3}), {"projection:", "w (3, 4)", "b (3)"}));
  EXPECT_TRUE(raises<ShapeError>(on(biased, {3, 4}, {1, 4}), {"projection:", "w (3, 4)", "b (1, 4)"}));
}

}  // namespace
}  // namespace tapehead
