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

TEST(ScatterAdd, RepeatedIndicesAdd) {
  const V x = Array<double>::of({{1, 2}, {10, 20}, {100, 200}});
  EXPECT_SAME_NUMBERS(scatter_add(x, Array<Index>::of({2, 0, 2}), 4),
                      V(Array<double>::of({{10, 20}, {0, 0}, {101, 202}, {0, 0}})));
}

TEST(ScatterAdd, IsTheAdjointOfEmbedding) {
  Generator generator(2);
  const Array<Index> index = generator.integers({3, 4}, 5);
  const V table = generator.normal<double>({5, 2}), x = generator.normal<double>({3, 4, 2});
  const double left = sum(embedding(table, index) * x).item();
  const double right = sum(table * scatter_add(x, index, 5)).item();
  EXPECT_NEAR(left, right, 24 * 2.3e-16 * 24);  // 24 products of normals, summed in two orders
}

TEST(ScatterAdd, SumsOfNumbersAndOfNothing) {
  EXPECT_EQ(scatter_add(V(Array<double>::of({1, 2, 4})), Array<Index>::of({1, 1, 0}), 3).value().to_vector(),
            (std::vector<double>{4, 3, 0}));
  EXPECT_EQ(scatter_add(V(Array<double>::scalar(5)), Array<Index>::scalar(1), 2).value().to_vector(),
            (std::vector<double>{0, 5}));
  EXPECT_EQ(scatter_add(V(Array<double>::zeros({0, 2})), Array<Index>::zeros({0}), 3).value().to_vector(),
            std::vector<double>(6, 0));
}

TEST(ScatterAdd, WhatDoesNotFitIsNamed) {
  const Array<Index> index = Array<Index>::zeros({2, 3});
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        scatter_add(V(Array<double>::zeros({3, 2, 4})), index, 5);
      },
      {"scatter_add:", "x (3, 2, 4)", "index (2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { scatter_add(V(Array<double>::zeros({2})), index, 5); },
                                 {"scatter_add:", "x (2)", "index (2, 3)"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        scatter_add(V(Array<double>::zeros({1, 2})), Array<Index>::of({{0, 5}}), 5);
      },
      {"scatter_add:", "index 5", "position (0, 1)", "0 to 4"}));
}

}  // namespace
}  // namespace tapehead
