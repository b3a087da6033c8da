#include <gtest/gtest.h>

#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

// Element (i, c) is 10 i + c.
Array<double> table_of(Index rows, Index width) {
  auto table = Array<double>::uninitialized({rows, width});
  for (Index i = 0; i < rows; ++i) {
    for (Index c = 0; c < width; ++c) table.set({i, c}, static_cast<double>(10 * i + c));
  }
  return table;
}

TEST(Embedding, TakesRowsByNumber) {
  const V y = embedding(V(table_of(4, 2)), Array<Index>::of({{3, 0, 3}, {1, 2, 0}}));
  EXPECT_SAME_NUMBERS(y.value(),
                      Array<double>::of({{{30, 31}, {0, 1}, {30, 31}}, {{10, 11}, {20, 21}, {0, 1}}}));
}

TEST(Embedding, RowsMayHaveAnyRankAndSoMayTheIndex) {
  const V table = Generator(1).normal<double>({5, 2, 3});
  const V one = embedding(table, Array<Index>::scalar(4));
  EXPECT_EQ(one.shape(), Shape({2, 3}));
  EXPECT_SAME_NUMBERS(one, slice(table, {{4, 5}}).value().reshape({2, 3}));
  const V numbers = embedding(V(Array<double>::of({5, 6, 7})), Array<Index>::of({2, 2, 0}));
  EXPECT_EQ(numbers.value().to_vector(), (std::vector<double>{7, 7, 5}));
  EXPECT_EQ(embedding(table, Array<Index>::zeros({2, 0})).shape(), Shape({2, 0, 2, 3}));
  EXPECT_EQ(embedding(V(Array<double>::zeros({5, 0})), Array<Index>::zeros({3})).shape(), Shape({3, 0}));
}

TEST(Embedding, ARepeatedRowGathersTheGradientsOfItsUses) {
  Tape<double> tape;
  const V table = tape.input(table_of(4, 2));
  const V y = embedding(table, Array<Index>::of({3, 1, 3, 3}));
  const V seed = Array<double>::of({{1, 2}, {10, 20}, {100, 200}, {1000, 2000}});
  const auto expected = Array<double>::of({{0, 0}, {10, 20}, {0, 0}, {1101, 2202}});
  EXPECT_SAME_NUMBERS(gradient_values(y, table, seed)[0], expected);
  EXPECT_SAME_NUMBERS(gradient(y, table, seed)[0], expected);
}

TEST(Embedding, TheCallersIndexMayChangeAfterwards) {
  Tape<double> tape;
  const V table = tape.input(table_of(3, 1));
  Array<Index> index = Array<Index>::of({2, 0});
  const V y = embedding(table, index);
  index.set({0}, 1);
  const auto dtable = gradient_values(y, table, V(Array<double>::of({{5}, {7}})))[0];
  EXPECT_EQ(dtable.to_vector(), (std::vector<double>{7, 0, 5}));
}

TEST(Embedding, AnIndexOutOfRangeIsNamedWithItsPosition) {
  const V table = table_of(4, 2);
  auto with = [&](const Array<Index>& index) { return [&table, index] { embedding(table, index); }; };
  EXPECT_TRUE(raises<DomainError>(with(Array<Index>::of({{0, 1, 2}, {3, 0, 4}})),
                                  {"embedding:", "index 4", "position (1, 2)", "0 to 3"}));
  EXPECT_TRUE(raises<DomainError>(with(Array<Index>::of({0, -1})), {"index -1", "position (1)"}));
  EXPECT_TRUE(raises<DomainError>(with(Array<Index>::scalar(9)), {"index 9", "position ()"}));
}

TEST(Embedding, TheFirstIndexOutOfRangeIsTheOneNamed) {
  const V table = table_of(4, 2);
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        embedding(table, Array<Index>::of({{1, 7}, {8, 9}}));
      },
      {"index 7", "position (0, 1)"}));
}

TEST(Embedding, ATableWithoutRowsIsOfUseToNobodyOrAnError) {
  EXPECT_EQ(embedding(V(Array<double>::zeros({0, 3})), Array<Index>::zeros({0})).shape(), Shape({0, 3}));
  EXPECT_THROW(embedding(V(Array<double>::zeros({0, 3})), Array<Index>::zeros({1})), DomainError);
  EXPECT_TRUE(raises<ShapeError>([] { embedding(V(Array<double>::scalar(1)), Array<Index>::zeros({1})); },
                                 {"embedding:", "table ()"}));
}

TEST(Embedding, AnErrorLeavesTheTapeAsItWas) {
  Tape<double> tape;
  const V table = tape.input(table_of(4, 2));
  EXPECT_THROW(embedding(table, Array<Index>::of({4})), DomainError);
  EXPECT_EQ(tape.size(), 1);
}

// ---------------------------------------------------------------- index_select and index_add

TEST(IndexSelect, AlongEveryAxisWithAnIndexOfAnyRank) {
  Generator generator(5);
  const V x = generator.normal<double>({4, 3, 5});
  for (int axis = 0; axis < 3; ++axis) {
    for (const Shape& shape : {Shape{}, Shape{7}, Shape{2, 6}, Shape{0}, Shape{2, 1, 2}}) {
      const Array<Index> index = generator.integers(shape, x.dim(axis));
      const V y = index_select(x, index, axis);
      EXPECT_SAME_NUMBERS(index_select(x, index, axis - 3), y);
      ASSERT_EQ(y.shape(), x.shape().first(axis).followed_by(shape).followed_by(x.shape().last(2 - axis)));
      const Array<double> parts = y.value().reshape(
          x.shape().first(axis).followed_by({index.size()}).followed_by(x.shape().last(2 - axis)));
      for (Index k = 0; k < index.size(); ++k) {
        const Index i = index.data()[k];
        EXPECT_SAME_NUMBERS(slice(V(parts), axis, {k, k + 1}), slice(x, axis, {i, i + 1}));
      }
    }
  }
}

TEST(IndexSelect, AlongTheFirstAxisIsEmbedding) {
  Generator generator(6);
  const V table = generator.normal<double>({5, 2, 3});
  const Array<Index> index = generator.integers({4, 2}, 5);
  EXPECT_SAME_NUMBERS(index_select(table, index, 0), embedding(table, index));
}

TEST(IndexSelect, WhatDoesNotFitIsNamed) {
  const V x = table_of(4, 2);
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        index_select(x, Array<Index>::of({{0, 1}, {1, 2}}), 1);
      },
      {"index_select:", "index 2", "position (1, 1)", "0 to 1"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        index_select(x, Array<Index>::of({0, 1, -1}), 0);
      },
      {"index_select:", "index -1", "position (2)", "0 to 3"}));
  EXPECT_TRUE(raises<ShapeError>([&] { index_select(x, Array<Index>::zeros({1}), 2); },
                                 {"index_select:", "axis 2", "(4, 2)"}));
}

TEST(IndexAdd, RepeatedIndicesAdd) {
  const V x = Array<double>::of({{1, 2}, {10, 20}, {100, 200}});
  EXPECT_SAME_NUMBERS(index_add(x, Array<Index>::of({2, 0, 2}), 0, 4),
                      V(Array<double>::of({{10, 20}, {0, 0}, {101, 202}, {0, 0}})));
  EXPECT_SAME_NUMBERS(index_add(x, Array<Index>::of({1, 1}), -1, 3),
                      V(Array<double>::of({{0, 3, 0}, {0, 30, 0}, {0, 300, 0}})));
}

// Small integers, so that sums are exact in any order.
Array<double> whole_numbers(Generator& generator, const Shape& shape) {
  Array<double> x = generator.integers(shape, 19).cast<double>();
  for (double& value : x.mutable_values()) value -= 9;
  return x;
}

TEST(IndexAdd, IsTheAdjointOfIndexSelect) {
  Generator generator(2);
  for (int axis = -3; axis < 3; ++axis) {
    const V x = whole_numbers(generator, {4, 3, 5});
    const Index count = x.dim(axis);
    const Array<Index> index = generator.integers({2, 6}, count);
    const V y = index_select(x, index, axis), w = whole_numbers(generator, y.shape());
    const V back = index_add(w, index, axis, count);
    ASSERT_EQ(back.shape(), x.shape());
    EXPECT_EQ(sum(y * w).item(), sum(x * back).item());
  }
}

TEST(IndexAdd, SumsOfNumbersAndOfNothing) {
  EXPECT_EQ(index_add(V(Array<double>::of({1, 2, 4})), Array<Index>::of({1, 1, 0}), 0, 3).value().to_vector(),
            (std::vector<double>{4, 3, 0}));
  EXPECT_EQ(index_add(V(Array<double>::scalar(5)), Array<Index>::scalar(1), 0, 2).value().to_vector(),
            (std::vector<double>{0, 5}));
  EXPECT_EQ(index_add(V(Array<double>::zeros({0, 2})), Array<Index>::zeros({0}), 0, 3).value().to_vector(),
            std::vector<double>(6, 0));
  EXPECT_EQ(index_add(V(Array<double>::zeros({0, 2})), Array<Index>::zeros({0}), 0, 0).shape(),
            Shape({0, 2}));
}

// Strips of columns are shared out; each adds the rows in their order.
TEST(IndexAdd, OfWideRowsIsThatOfALoop) {
  constexpr Index rows = 700, count = 3, width = 150;
  const Array<double> x = Generator(10).normal<double>({2, rows, width});
  const Array<Index> index = Generator(11).integers({rows}, count);
  std::vector<double> expected(2 * count * width);
  for (Index part = 0; part < 2; ++part) {
    for (Index i = 0; i < rows; ++i) {
      for (Index c = 0; c < width; ++c) {
        expected[static_cast<std::size_t>((part * count + index(i)) * width + c)] += x(part, i, c);
      }
    }
  }
  EXPECT_EQ(index_add(V(x), index, 1, count).value().to_vector(), expected);
  expect_same_bits_on_any_threads([&] { return std::vector{index_add(V(x), index, 1, count).value()}; });
}

TEST(IndexAdd, WhatDoesNotFitIsNamed) {
  const Array<Index> index = Array<Index>::zeros({2, 3});
  auto with = [&](const Shape& x, int axis) {
    return [=] { index_add(V(Array<double>::zeros(x)), index, axis, 5); };
  };
  EXPECT_TRUE(raises<ShapeError>(with({3, 2, 4}, 0), {"index_add:", "x (3, 2, 4)", "index (2, 3)"}));
  EXPECT_TRUE(
      raises<ShapeError>(with({2, 3, 4}, 1), {"index_add:", "axis 1", "x (2, 3, 4)", "index (2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(with({2, 3, 4}, 2), {"index_add:", "axis 2"}));
  EXPECT_TRUE(raises<ShapeError>(with({2, 3, 4}, -3), {"index_add:", "axis -3"}));
  EXPECT_TRUE(raises<ShapeError>(with({2}, 0), {"index_add:", "x (2)", "index (2, 3)"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        index_add(V(Array<double>::zeros({1, 2})), Array<Index>::of({{0, 5}}), 0, 5);
      },
      {"index_add:", "index 5", "position (0, 1)", "0 to 4"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        index_add(V(Array<double>::zeros({2, 3})), index, 0, -1);
      },
      {"index_add:", "count -1"}));
}

// ---------------------------------------------------------------- gather and scatter_add

TEST(Gather, AlongEveryAxisAlsoWithLessOfTheOthers) {
  Generator generator(7);
  const V x = generator.normal<double>({4, 3, 5});
  const std::vector<std::vector<Shape>> shapes = {{{4, 3, 5}, {7, 3, 5}, {2, 1, 4}, {0, 3, 5}},
                                                  {{4, 3, 5}, {4, 8, 5}, {3, 2, 1}, {4, 3, 0}},
                                                  {{4, 3, 5}, {4, 3, 9}, {1, 2, 6}, {4, 0, 5}}};
  for (int axis = 0; axis < 3; ++axis) {
    for (const Shape& shape : shapes[static_cast<std::size_t>(axis)]) {
      const Array<Index> index = generator.integers(shape, x.dim(axis));
      const Array<double> y = gather(x, index, axis).value();
      EXPECT_SAME_NUMBERS(gather(x, index, axis - 3).value(), y);
      ASSERT_EQ(y.shape(), shape);
      for (Index i = 0; i < shape[0]; ++i) {
        for (Index j = 0; j < shape[1]; ++j) {
          for (Index k = 0; k < shape[2]; ++k) {
            const Index taken = index(i, j, k);
            ASSERT_EQ(y(i, j, k), axis == 0   ? x.value()(taken, j, k)
                                  : axis == 1 ? x.value()(i, taken, k)
                                              : x.value()(i, j, taken));
          }
        }
      }
    }
  }
}

TEST(Gather, ARepeatedElementGathersTheGradientsOfItsUses) {
  Tape<double> tape;
  const V x = tape.input(table_of(2, 3));
  const Array<Index> index = Array<Index>::of({{2, 2, 0, 2}, {1, 0, 1, 0}});
  const V y = gather(x, index, 1);
  EXPECT_SAME_NUMBERS(y, V(Array<double>::of({{2, 2, 0, 2}, {11, 10, 11, 10}})));
  const V seed = Array<double>::of({{1, 10, 100, 1000}, {2, 20, 200, 2000}});
  EXPECT_SAME_NUMBERS(gradient_values(y, x, seed)[0], Array<double>::of({{100, 0, 1011}, {2020, 202, 0}}));
}

TEST(Gather, TheCallersIndexMayChangeAfterwards) {
  Tape<double> tape;
  const V x = tape.input(table_of(1, 3));
  Array<Index> index = Array<Index>::of({{2, 0}});
  const V y = gather(x, index, 1);
  index.set({0, 0}, 1);
  EXPECT_EQ(gradient_values(y, x, V(Array<double>::of({{5, 7}})))[0].to_vector(),
            (std::vector<double>{7, 0, 5}));
}

TEST(Gather, WhatDoesNotFitIsNamed) {
  const V x = table_of(4, 2);
  auto with = [&](const Array<Index>& index, int axis) {
    return [&x, index, axis] { gather(x, index, axis); };
  };
  EXPECT_TRUE(raises<DomainError>(with(Array<Index>::of({{0, 1}, {3, 4}}), 0),
                                  {"gather:", "index 4", "position (1, 1)", "0 to 3"}));
  EXPECT_TRUE(raises<DomainError>(with(Array<Index>::of({{0, -1}}), 1), {"index -1", "position (0, 1)"}));
  EXPECT_TRUE(raises<ShapeError>(with(Array<Index>::zeros({4}), 0), {"gather:", "x (4, 2)", "index (4)"}));
  EXPECT_TRUE(raises<ShapeError>(with(Array<Index>::zeros({4, 3}), 0),
                                 {"gather:", "axis 0", "x (4, 2)", "index (4, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(with(Array<Index>::zeros({4, 2}), 2), {"gather:", "axis 2", "(4, 2)"}));
}

TEST(ScatterAdd, IsTheAdjointOfGather) {
  Generator generator(8);
  for (int axis = -3; axis < 3; ++axis) {
    const V x = whole_numbers(generator, {4, 3, 5});
    const Shape shape = Shape{2, 3, 4}.with(axis, 7);
    const Array<Index> index = generator.integers(shape, x.dim(axis));
    const V w = whole_numbers(generator, shape), back = scatter_add(w, index, axis, x.shape());
    ASSERT_EQ(back.shape(), x.shape());
    EXPECT_EQ(sum(gather(x, index, axis) * w).item(), sum(x * back).item());
  }
}

TEST(ScatterAdd, RepeatedPlacesAddAndTheRestIsZero) {
  const V x = Array<double>::of({{1, 2}, {10, 20}, {100, 200}});
  EXPECT_SAME_NUMBERS(scatter_add(x, Array<Index>::of({{1, 0}, {1, 3}, {0, 0}}), 0, {4, 3}),
                      V(Array<double>::of({{100, 202, 0}, {11, 0, 0}, {0, 0, 0}, {0, 20, 0}})));
  EXPECT_SAME_NUMBERS(scatter_add(V(Array<double>::zeros({2, 0})), Array<Index>::zeros({2, 0}), 1, {3, 2}),
                      V(Array<double>::zeros({3, 2})));
}

TEST(ScatterAdd, WhatDoesNotFitIsNamed) {
  const V x = table_of(2, 3);
  const Array<Index> index = Array<Index>::zeros({2, 3});
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        scatter_add(x, Array<Index>::zeros({3, 2}), 0, {4, 3});
      },
      {"scatter_add:", "x (2, 3)", "index (3, 2)"}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        scatter_add(x, index, 0, {4, 2});
      },
      {"scatter_add:", "axis 0", "to (4, 2)", "index (2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { scatter_add(x, index, 0, {4}); }, {"scatter_add:", "to (4)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { scatter_add(x, index, 2, {4, 3}); }, {"scatter_add:", "axis 2"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        scatter_add(x, Array<Index>::of({{0, 0, 0}, {0, 7, 0}}), 1, {2, 7});
      },
      {"scatter_add:", "index 7", "position (1, 1)", "0 to 6"}));
}

// ---------------------------------------------------------------- all of them

TEST(Indexing, AnAxisOfNothingHasNoIndex) {
  const V x = Array<double>::zeros({0, 3});
  EXPECT_EQ(gather(x, Array<Index>::zeros({0, 3}), 0).shape(), Shape({0, 3}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        gather(x, Array<Index>::zeros({1, 3}), 0);
      },
      {"gather:", "index 0"}));
  EXPECT_TRUE(raises<DomainError>([&] { index_select(x, Array<Index>::zeros({1}), 0); }, {"index 0"}));
}

TEST(Indexing, ErrorsLeaveTheTapeAsItWas) {
  Tape<double> tape;
  const V x = tape.input(table_of(4, 2));
  EXPECT_THROW(gather(x, Array<Index>::of({{4, 0}}), 0), DomainError);
  EXPECT_THROW(index_select(x, Array<Index>::of({4}), 0), DomainError);
  EXPECT_THROW(index_add(x, Array<Index>::of({0, 1, 2, 9}), 0, 9), DomainError);
  EXPECT_THROW(scatter_add(x, Array<Index>::zeros({2, 4}), 0, {4, 4}), ShapeError);
  EXPECT_EQ(tape.size(), 1);
}

TEST(Indexing, LargeArraysAreTheSameBitsOnAnyThreads) {
  Generator generator(9);
  const V x = generator.normal<double>({40, 50, 60});
  const Array<Index> index = generator.integers({90}, 50), each = generator.integers({40, 45, 55}, 50);
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const V in = tape.input(x.value());
    const V some = index_select(in, index, 1), taken = gather(in, each, 1);
    return std::vector{some.value(), gradient_values(some, in, some.detach())[0], taken.value(),
                       gradient_values(taken, in, taken.detach())[0]};
  });
}

}  // namespace
}  // namespace tapehead
