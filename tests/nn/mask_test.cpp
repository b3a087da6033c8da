#include <tapehead/nn/mask.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/random.h>

#include "support/expect_error.h"

namespace tapehead {
namespace {

using Keys = Array<bool>;

const Shape scores{2, 3, 5, 7};  // (B, H, L, S)

// A mask of this shape that allows about four keys of five.
Keys some_keys(const Shape& shape, std::uint64_t seed) {
  return Generator(seed).integers(shape, 5).cast<bool>();
}

// The element of an array that is broadcast to the shape of `index`, from the last axis to the first.
bool broadcast_element(const Keys& keys, const std::vector<Index>& index) {
  std::vector<Index> own;
  const std::size_t skipped = index.size() - static_cast<std::size_t>(keys.rank());
  for (int axis = 0; axis < keys.rank(); ++axis) {
    own.push_back(keys.dim(axis) == 1 ? 0 : index[skipped + static_cast<std::size_t>(axis)]);
  }
  return keys.at(own);
}

// What each query may see of each key, with nothing left to broadcast.
std::vector<bool> everywhere(const Keys& keys, const Shape& shape) {
  std::vector<bool> result;
  std::vector<Index> index(static_cast<std::size_t>(shape.rank()), 0);
  for (Index i = 0; i < shape.size(); ++i) {
    Index rest = i;
    for (int axis = shape.rank(); axis-- > 0; rest /= shape[axis]) {
      index[static_cast<std::size_t>(axis)] = rest % shape[axis];
    }
    result.push_back(broadcast_element(keys, index));
  }
  return result;
}
std::vector<bool> everywhere(const Mask& mask, const Shape& shape) {
  return everywhere(mask.expanded(shape), shape);
}

TEST(Mask, ByDefaultAllowsEverything) {
  EXPECT_TRUE(Mask().allows_all());
  EXPECT_FALSE(Mask::causal(0).allows_all());
  const Keys keys = Mask().expanded(scores);
  EXPECT_TRUE(broadcasts_to(keys.shape(), scores));
  EXPECT_EQ(everywhere(keys, scores), std::vector<bool>(static_cast<std::size_t>(scores.size()), true));
}

TEST(CausalMask, ShowsAQueryTheKeysUpToItsPositionPlusTheOffset) {
  for (const Index offset : {-2, -1, 0, 1, 3, 5}) {
    const Keys keys = Mask::causal(offset).expanded({3, 5});
    ASSERT_EQ(keys.shape(), (Shape{3, 5}));
    for (Index i = 0; i < 3; ++i) {
      for (Index j = 0; j < 5; ++j)
        EXPECT_EQ(keys(i, j), j <= i + offset) << offset << ": " << i << ", " << j;
    }
  }
}

TEST(CausalMask, OfACachedPrefixShowsThePrefixToAll) {
  EXPECT_EQ(Mask::causal(3).expanded({2, 5}).to_vector(),
            Keys::of({{1, 1, 1, 1, 0}, {1, 1, 1, 1, 1}}).to_vector());
  EXPECT_EQ(Mask::causal(0).expanded({2, 5}).to_vector(),
            Keys::of({{1, 0, 0, 0, 0}, {1, 1, 0, 0, 0}}).to_vector());
}

TEST(CausalMask, MayHideAllKeysOrNone) {
  EXPECT_EQ(everywhere(Mask::causal(-5), {5, 7}), std::vector<bool>(35, false));
  EXPECT_EQ(everywhere(Mask::causal(6), {5, 7}), std::vector<bool>(35, true));
}

TEST(CausalMask, TakesAnyOffset) {
  constexpr Index largest = std::numeric_limits<Index>::max(), smallest = std::numeric_limits<Index>::min();
  EXPECT_EQ(everywhere(Mask::causal(largest), {2, 3}), std::vector<bool>(6, true));
  EXPECT_EQ(everywhere(Mask::causal(smallest), {2, 3}), std::vector<bool>(6, false));
}

TEST(CausalMask, IsTheSameForEachBatchAndHead) {
  const std::vector<bool> all = everywhere(Mask::causal(1), scores);
  const std::vector<bool> one = everywhere(Mask::causal(1), {5, 7});
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], one[i % one.size()]) << i;
}

TEST(AllowedMask, OfEveryRankAndRepeatedAxisIsBroadcastToTheScores) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{1}, Shape{5, 7}, Shape{5, 1}, Shape{1, 7},
                             Shape{3, 5, 7}, Shape{3, 1, 7}, Shape{3, 1, 1}, Shape{2, 3, 5, 7},
                             Shape{2, 1, 1, 7}, Shape{2, 1, 5, 7}, Shape{1, 3, 5, 1}, Shape{2, 1, 1, 1}}) {
    const Keys keys = some_keys(shape, 1);
    EXPECT_EQ(everywhere(Mask::allowed(keys), scores), everywhere(keys, scores)) << to_string(shape);
  }
}

TEST(AllowedMask, IsNotCopiedWhenItStandsAlone) {
  const Keys keys = some_keys({2, 1, 5, 7}, 2);
  EXPECT_TRUE(Mask::allowed(keys).expanded(scores).shares_storage_with(keys));
  EXPECT_TRUE((Mask() & Mask::allowed(keys)).expanded(scores).shares_storage_with(keys));
}

TEST(AllowedMask, ThatDoesNotBroadcastIsAnError) {
  for (const Shape& shape : {Shape{5}, Shape{7, 5}, Shape{2, 5, 7}, Shape{3, 3, 5, 7}, Shape{5, 0}, Shape{0},
                             Shape{1, 2, 3, 5, 7}, Shape{1, 1, 1, 1, 1}}) {
    const Mask mask = Mask::allowed(Keys::zeros(shape));
    EXPECT_TRUE(raises<ShapeError>([&] { mask.expanded(scores); },
                                   {"mask " + to_string(shape), "scores " + to_string(scores)}))
        << to_string(shape);
    EXPECT_TRUE(raises<ShapeError>([&] { (Mask::causal(0) & mask).expanded(scores); })) << to_string(shape);
    EXPECT_TRUE(raises<ShapeError>([&] { (mask & Mask::causal(0)).expanded(scores); })) << to_string(shape);
  }
}

TEST(Mask, NeedsScoresOfQueriesAndKeys) {
  EXPECT_TRUE(raises<ShapeError>([] { Mask::causal(0).expanded({7}); }, {"Mask", "(7)"}));
  EXPECT_TRUE(raises<ShapeError>([] { Mask().expanded(Shape{}); }, {"Mask", "()"}));
}

TEST(CombinedMasks, AllowWhatEachOfThemAllowsInAnyOrder) {
  const Keys parts[] = {some_keys({7}, 3), some_keys({2, 1, 1, 7}, 4), some_keys({3, 5, 1}, 5),
                        some_keys({2, 3, 5, 7}, 6)};
  std::vector<bool> expected = everywhere(Mask::causal(2), scores);
  for (const Keys& part : parts) {
    const std::vector<bool> allowed = everywhere(part, scores);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = expected[i] && allowed[i];
  }
  ASSERT_GT(std::count(expected.begin(), expected.end(), true), 20);
  ASSERT_GT(std::count(expected.begin(), expected.end(), false), 20);

  std::vector<Mask> masks = {Mask::causal(2)};
  for (const Keys& part : parts) masks.push_back(Mask::allowed(part));
  std::vector<std::size_t> order(masks.size());
  std::iota(order.begin(), order.end(), 0u);
  do {
    Mask all;
    for (const std::size_t i : order) all = all & masks[i];
    EXPECT_EQ(everywhere(all, scores), expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(CombinedMasks, GroupAsTheyLike) {
  const Mask a = Mask::causal(1), b = Mask::allowed(some_keys({3, 1, 7}, 7)),
             c = Mask::allowed(some_keys({2, 1, 5, 1}, 8));
  EXPECT_EQ(everywhere((a & b) & c, scores), everywhere(a & (b & c), scores));
  EXPECT_EQ(everywhere(a & a & b & b, scores), everywhere(a & b, scores));
  EXPECT_EQ(everywhere(Mask() & a & Mask(), scores), everywhere(a, scores));
}

TEST(CombinedMasks, AreOnlyAsLargeAsTheirPartsNeed) {
  const Mask padding = Mask::allowed(some_keys({2, 1, 1, 7}, 9));
  EXPECT_EQ((Mask::causal(0) & padding).expanded(scores).shape(), (Shape{2, 1, 5, 7}));
  EXPECT_EQ((Mask::causal(0) & Mask::causal(1)).expanded(scores).shape(), (Shape{5, 7}));
}

TEST(CombinedMasks, OfTwoCausalOnesAreTheStricter) {
  EXPECT_EQ(everywhere(Mask::causal(2) & Mask::causal(0), {5, 7}), everywhere(Mask::causal(0), {5, 7}));
}

TEST(CombinedMasks, LeaveTheirPartsAsTheyWere) {
  const Mask a = Mask::causal(1), b = Mask::allowed(some_keys({7}, 10));
  const Mask both = a & b;
  EXPECT_EQ(a.conditions().size(), 1u);
  EXPECT_EQ(b.conditions().size(), 1u);
  EXPECT_EQ(both.conditions().size(), 2u);
}

}  // namespace
}  // namespace tapehead
