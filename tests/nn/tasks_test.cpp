#include <tapehead/nn/tasks.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <tapehead/core/errors.h>

#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using Row = std::vector<Index>;

Row row_of(const Array<Index>& matrix, Index b) {
  const auto length = static_cast<std::size_t>(matrix.dim(1));
  const auto row = matrix.values().subspan(static_cast<std::size_t>(b) * length, length);
  return {row.begin(), row.end()};
}

constexpr Index sequences = 200;

TEST(RecallTask, HasDistinctKeysEachFollowedByAValue) {
  const RecallTask task{.pairs = 5, .keys = 7, .values = 3};
  Generator random(1);
  const auto batch = task.draw(random, sequences);
  ASSERT_EQ(batch.tokens.shape(), Shape({sequences, 20}));
  for (Index b = 0; b < sequences; ++b) {
    std::set<Index> keys;
    for (Index i = 0; i < 5; ++i) {
      const Index key = batch.tokens(b, 2 * i), value = batch.tokens(b, 2 * i + 1);
      EXPECT_TRUE(key >= 0 && key < 7) << key;
      EXPECT_TRUE(value >= 7 && value < 10) << value;
      keys.insert(key);
    }
    EXPECT_EQ(keys.size(), 5u);
  }
}

TEST(RecallTask, RepeatsEveryKeyOnceWithTheValueThatStoodBehindIt) {
  const RecallTask task;
  Generator random(2);
  const auto batch = task.draw(random, sequences);
  for (Index b = 0; b < sequences; ++b) {
    std::map<Index, Index> value_of, repeated;
    for (Index i = 0; i < task.pairs; ++i) {
      value_of[batch.tokens(b, 2 * i)] = batch.tokens(b, 2 * i + 1);
      const Index at = 2 * (task.pairs + i);
      repeated[batch.tokens(b, at)] = batch.tokens(b, at + 1);
    }
    EXPECT_EQ(repeated.size(), 8u);
    EXPECT_EQ(repeated, value_of);
  }
}

TEST(RecallTask, AsksForTheValueAtEachRepeatedKeyAndNowhereElse) {
  const RecallTask task{.pairs = 3, .keys = 4, .values = 5};
  Generator random(3);
  const auto batch = task.draw(random, sequences);
  ASSERT_EQ(batch.targets.shape(), batch.tokens.shape());
  for (Index b = 0; b < sequences; ++b) {
    for (Index t = 0; t < task.length(); ++t) {
      const bool repeated_key = t >= 2 * task.pairs && t % 2 == 0;
      EXPECT_EQ(batch.targets(b, t), repeated_key ? batch.tokens(b, t + 1) : no_target) << b << ", " << t;
    }
  }
}

TEST(RecallTask, RepeatsTheKeysInAnotherOrder) {
  const RecallTask task;  // the same order once in 8! = 40320 sequences
  Generator random(4);
  const auto batch = task.draw(random, sequences);
  std::set<Row> orders;
  for (Index b = 0; b < sequences; ++b) {
    Row order;
    for (Index i = 0; i < task.pairs; ++i) {
      const Row row = row_of(batch.tokens, b);
      const auto first = std::ranges::find(row, row[static_cast<std::size_t>(2 * (task.pairs + i))]);
      order.push_back((first - row.begin()) / 2);
    }
    EXPECT_FALSE(std::ranges::is_sorted(order)) << "sequence " << b;
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 190u) << "orders should hardly ever come twice";
}

TEST(RecallTask, DrawsEveryKeyAndEveryValue) {
  const RecallTask task;
  Generator random(5);
  const auto batch = task.draw(random, sequences);
  const std::set<Index> seen(batch.tokens.values().begin(), batch.tokens.values().end());
  EXPECT_EQ(std::ssize(seen), task.vocabulary());
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 31);
}

TEST(RecallTask, OfAsManyPairsAsKeysUsesThemAll) {
  const RecallTask task{.pairs = 4, .keys = 4, .values = 2};
  Generator random(6);
  Row tokens = row_of(task.draw(random, 1).tokens, 0), keys;
  for (std::size_t i = 0; i < 8; i += 2) keys.push_back(tokens[i]);
  std::ranges::sort(keys);
  EXPECT_EQ(keys, (Row{0, 1, 2, 3}));
}

TEST(RecallTask, OfMorePairsThanKeysIsAnError) {
  const RecallTask task{.pairs = 5, .keys = 4, .values = 3};
  Generator random(7);
  EXPECT_TRUE(raises<DomainError>([&] { task.draw(random, 2); }, {"RecallTask", "5", "4"}));
}

TEST(RecallTask, OfTheSameSeedIsTheSameAndOfAnotherAnother) {
  const RecallTask task;
  auto drawn = [&](std::uint64_t seed) {
    Generator random(seed);
    return task.draw(random, 3);
  };
  const auto first = drawn(1), again = drawn(1), other = drawn(2);
  EXPECT_TRUE(same_bits(first.tokens, again.tokens));
  EXPECT_TRUE(same_bits(first.targets, again.targets));
  EXPECT_FALSE(same_bits(first.tokens, other.tokens));
}

TEST(RecallTask, DrawsOtherSequencesEachTime) {
  const RecallTask task;
  Generator random(8);
  const auto first = task.draw(random, 3), second = task.draw(random, 3);
  EXPECT_FALSE(same_bits(first.tokens, second.tokens));
  EXPECT_NE(row_of(first.tokens, 0), row_of(first.tokens, 1));
}

TEST(ReverseTask, AsksForTheSourceBackwards) {
  const ReverseTask task{.length = 7, .symbols = 5};
  Generator random(1);
  const auto batch = task.draw(random, sequences);
  ASSERT_EQ(batch.source.shape(), Shape({sequences, 7}));
  for (Index b = 0; b < sequences; ++b) {
    Row source = row_of(batch.source, b);
    std::ranges::reverse(source);
    EXPECT_EQ(row_of(batch.targets, b), source);
  }
}

TEST(ReverseTask, ReadsStartAndThenTheAnswerButForItsLastSymbol) {
  const ReverseTask task{.length = 4, .symbols = 9};
  Generator random(2);
  const auto batch = task.draw(random, sequences);
  for (Index b = 0; b < sequences; ++b) {
    Row expected = row_of(batch.targets, b);
    expected.insert(expected.begin(), 9);
    expected.pop_back();
    EXPECT_EQ(row_of(batch.input, b), expected);
  }
}

TEST(ReverseTask, DrawsEverySymbolButNeverTheStart) {
  const ReverseTask task;
  Generator random(3);
  const auto batch = task.draw(random, sequences);
  const std::set<Index> seen(batch.source.values().begin(), batch.source.values().end());
  EXPECT_EQ(std::ssize(seen), task.symbols);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), task.start());
  EXPECT_EQ(task.vocabulary(), task.symbols + 1);
}

TEST(ReverseTask, OfTheSameSeedIsTheSameAndOfAnotherAnother) {
  const ReverseTask task;
  auto drawn = [&](std::uint64_t seed) {
    Generator random(seed);
    return task.draw(random, 3);
  };
  const auto first = drawn(1), again = drawn(1), other = drawn(2);
  EXPECT_TRUE(same_bits(first.source, again.source));
  EXPECT_TRUE(same_bits(first.input, again.input));
  EXPECT_TRUE(same_bits(first.targets, again.targets));
  EXPECT_FALSE(same_bits(first.source, other.source));
}

TEST(ReverseTask, OfOneSymbolReadsOnlyTheStart) {
  const ReverseTask task{.length = 1, .symbols = 2};
  Generator random(4);
  const auto batch = task.draw(random, 3);
  EXPECT_EQ(batch.input.to_vector(), (Row{2, 2, 2}));
  EXPECT_TRUE(same_bits(batch.targets, batch.source));
}

}  // namespace
}  // namespace tapehead
