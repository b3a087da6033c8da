#include <tapehead/nn/mask.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/random.h>

#include "support/expect_error.h"

namespace tapehead {
namespace {

using Keys = Array<bool>;

const Shape scores{2, 3, 5, 7};  // (B, H, L, S)
constexpr Index far = Index{1} << 62;
constexpr Index largest = std::numeric_limits<Index>::max(), smallest = std::numeric_limits<Index>::min();

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
  EXPECT_EQ((Mask::causal(0) & Mask::causal(1)).expanded(scores).shape(), (Shape{1, 1, 5, 7}));
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

// ---- each kind against its definition, of batch, head, query and key of scores (2, 3, 5, 7)

// Sums of three positions fit in its 64 bits of mantissa.
using Position = long double;

template <class Allows>
testing::AssertionResult follows(const Mask& mask, Allows allows, const Shape& shape = scores) {
  const std::vector<bool> keys = everywhere(mask, shape);
  Index n = 0;
  for (Index b = 0; b < shape[0]; ++b) {
    for (Index h = 0; h < shape[1]; ++h) {
      for (Index i = 0; i < shape[2]; ++i) {
        for (Index j = 0; j < shape[3]; ++j, ++n) {
          if (keys[static_cast<std::size_t>(n)] == allows(b, h, i, j)) continue;
          return testing::AssertionFailure() << "batch " << b << ", head " << h << ", query " << i << ", key "
                                             << j << ": allowed is " << keys[static_cast<std::size_t>(n)];
        }
      }
    }
  }
  return testing::AssertionSuccess();
}

// Numbers of two samples, and those of a head of a sample.
PerSample of_samples(Index a, Index b) { return Array<Index>::of({a, b}); }
const PerSample of_heads = Array<Index>::of({{0, 3, -1}, {2, 1, 6}});
Index of_head(Index b, Index h) { return of_heads.values()(b, h); }

TEST(CausalMask, FollowsItsDefinition) {
  for (const Index offset : {Index{0}, Index{1}, Index{-2}, Index{6}, far, -far, largest, smallest}) {
    EXPECT_TRUE(follows(Mask::causal(offset), [=](Index, Index, Index i, Index j) {
      return Position(j) <= Position(i) + Position(offset);
    })) << offset;
  }
  for (const auto& [a, b] : {std::pair{Index{0}, Index{3}}, {Index{-1}, Index{2}}, {far, -far}}) {
    const Index offsets[] = {a, b};
    EXPECT_TRUE(follows(Mask::causal(of_samples(a, b)),
                        [&](Index sample, Index, Index i, Index j) {
                          return Position(j) <= Position(i) + Position(offsets[sample]);
                        }))
        << a << ", " << b;
  }
  EXPECT_TRUE(follows(Mask::causal(of_heads),
                      [](Index b, Index h, Index i, Index j) { return j <= i + of_head(b, h); }));
}

TEST(CausalMask, FollowsNoOther) {
  const Index offsets[] = {0, 3};
  const Mask mask = Mask::causal(of_samples(0, 3));
  auto fails = [&](auto allows) { return !follows(mask, allows); };
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return j < i + offsets[b]; }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return j <= i + 1 + offsets[b]; }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return j <= i + offsets[1 - b]; }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return i <= j + offsets[b]; }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return j > i + offsets[b]; }));
  EXPECT_TRUE(fails([&](Index, Index, Index i, Index j) { return j <= i; }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return j <= i + 7 - 5 + offsets[b]; }));
  // To the last key is another corner than to the first, when the scores are not square.
  EXPECT_FALSE(follows(Mask::causal(0), [](Index, Index, Index i, Index j) { return j <= i + 7 - 5; }));
  EXPECT_TRUE(follows(Mask::causal(7 - 5), [](Index, Index, Index i, Index j) { return j <= i + 7 - 5; }));
}

// An open side stays open wherever the query is.
bool in_window(Index left, Index right, Index offset, Index i, Index j) {
  const Position at = Position(i) + Position(offset);
  return (left == Mask::unbounded || Position(j) >= at - Position(left)) &&
         (right == Mask::unbounded || Position(j) <= at + Position(right));
}

TEST(WindowMask, FollowsItsDefinition) {
  const Index sides[] = {0, 1, 3, 9, far, Mask::unbounded};
  for (const Index left : sides) {
    for (const Index right : sides) {
      for (const Index offset : {Index{0}, Index{2}, Index{-3}, Index{9}, far, -far, -far - 6, smallest}) {
        EXPECT_TRUE(
            follows(Mask::window(left, right, offset),
                    [=](Index, Index, Index i, Index j) { return in_window(left, right, offset, i, j); }))
            << left << ", " << right << ", " << offset;
      }
      EXPECT_TRUE(follows(
          Mask::window(left, right, of_heads),
          [=](Index b, Index h, Index i, Index j) { return in_window(left, right, of_head(b, h), i, j); }))
          << left << ", " << right;
    }
  }
}

TEST(WindowMask, FollowsNoOther) {
  const Index offsets[] = {1, 3};
  const Mask mask = Mask::window(2, 1, of_samples(1, 3));
  auto fails = [&](Index left, Index right, auto offset) {
    return !follows(
        mask, [=](Index b, Index, Index i, Index j) { return in_window(left, right, offset(b), i, j); });
  };
  auto own = [&](Index b) { return offsets[b]; };
  EXPECT_FALSE(fails(2, 1, own));
  EXPECT_TRUE(fails(1, 2, own));
  EXPECT_TRUE(fails(3, 1, own));
  EXPECT_TRUE(fails(1, 1, own));
  EXPECT_TRUE(fails(2, 0, own));
  EXPECT_TRUE(fails(2, 2, own));
  EXPECT_TRUE(fails(2, 1, [&](Index b) { return offsets[1 - b]; }));
  EXPECT_TRUE(fails(2, 1, [](Index) { return Index{0}; }));
  EXPECT_TRUE(fails(2, 1, [&](Index b) { return -offsets[b]; }));
}

TEST(WindowMask, OpenToOneSideIsACausalMaskOrItsOpposite) {
  EXPECT_EQ(everywhere(Mask::window(Mask::unbounded, 0, 2), scores), everywhere(Mask::causal(2), scores));
  std::vector<bool> later = everywhere(Mask::causal(1), scores);
  later.flip();
  EXPECT_EQ(everywhere(Mask::window(0, Mask::unbounded, 2), scores), later);
  EXPECT_EQ(everywhere(Mask::window(Mask::unbounded, Mask::unbounded, -9), scores),
            everywhere(Mask(), scores));
}

TEST(WindowMask, WithANegativeSideIsAnError) {
  EXPECT_TRUE(
      raises<DomainError>([] { Mask::window(-1, 2); }, {"Mask::window: ", "left -1", "right 2", "negative"}));
  EXPECT_TRUE(raises<DomainError>([] { Mask::window(0, -3); }, {"Mask::window: ", "left 0", "right -3"}));
}

TEST(LengthsMask, FollowsItsDefinition) {
  for (const Index length : {0, 1, 4, 7}) {
    EXPECT_TRUE(follows(Mask::lengths(length), [=](Index, Index, Index, Index j) { return j < length; }))
        << length;
  }
  const Index lengths[] = {7, 2};
  EXPECT_TRUE(follows(Mask::lengths(of_samples(7, 2)),
                      [&](Index b, Index, Index, Index j) { return j < lengths[b]; }));
  const auto each = Array<Index>::of({{0, 3, 7}, {2, 1, 6}});
  EXPECT_TRUE(follows(Mask::lengths(each), [&](Index b, Index h, Index, Index j) { return j < each(b, h); }));
}

TEST(LengthsMask, FollowsNoOther) {
  const Index lengths[] = {4, 2};
  auto fails = [&](auto allows) { return !follows(Mask::lengths(of_samples(4, 2)), allows); };
  EXPECT_TRUE(fails([&](Index b, Index, Index, Index j) { return j <= lengths[b]; }));
  EXPECT_TRUE(fails([&](Index b, Index, Index, Index j) { return j < lengths[1 - b]; }));
  EXPECT_TRUE(fails([&](Index b, Index, Index, Index j) { return j >= lengths[b]; }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index) { return i < lengths[b]; }));
}

TEST(LengthsMask, ThatIsNegativeOrBeyondTheKeysIsAnError) {
  EXPECT_TRUE(raises<DomainError>([] { Mask::lengths(-1); }, {"Mask::lengths: ", "-1"}));
  EXPECT_TRUE(raises<DomainError>([] { Mask::lengths(of_samples(3, -2)); }, {"Mask::lengths: ", "-2"}));
  EXPECT_NO_THROW(Mask::lengths(7).expanded(scores));
  EXPECT_TRUE(raises<ShapeError>([] { Mask::lengths(8).expanded(scores); },
                                 {"attention: ", "length", "8", "beyond the keys", "scores (2, 3, 5, 7)"}));
  EXPECT_TRUE(raises<ShapeError>([] { Mask::lengths(of_samples(7, largest)).expanded(scores); },
                                 {std::to_string(largest), "scores (2, 3, 5, 7)"}));
}

TEST(DocumentsMask, FollowsItsDefinition) {
  Generator random(20);
  const Array<Index> q = random.integers({5}, 3), k = random.integers({7}, 3);
  EXPECT_TRUE(follows(Mask::documents(q, k), [&](Index, Index, Index i, Index j) { return q(i) == k(j); }));
  const Array<Index> qs = random.integers({2, 5}, 3), ks = random.integers({2, 7}, 3);
  EXPECT_TRUE(follows(Mask::documents(qs, ks),
                      [&](Index b, Index, Index i, Index j) { return qs(b, i) == ks(b, j); }));
  const Array<Index> qh = random.integers({2, 3, 5}, 3), kh = random.integers({2, 3, 7}, 3);
  EXPECT_TRUE(follows(Mask::documents(qh, kh),
                      [&](Index b, Index h, Index i, Index j) { return qh(b, h, i) == kh(b, h, j); }));
}

TEST(DocumentsMask, FollowsNoOther) {
  Generator random(21);
  const Shape square{2, 1, 5, 5};
  const Array<Index> q = random.integers({2, 5}, 3), k = random.integers({2, 5}, 3);
  auto fails = [&](auto allows) { return !follows(Mask::documents(q, k), allows, square); };
  EXPECT_FALSE(fails([&](Index b, Index, Index i, Index j) { return q(b, i) == k(b, j); }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return q(b, j) == k(b, i); }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return q(1 - b, i) == k(b, j); }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return q(b, i) == k(1 - b, j); }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return q(b, i) == q(b, j); }));
  EXPECT_TRUE(fails([&](Index b, Index, Index i, Index j) { return q(b, i) >= k(b, j); }));
}

TEST(DocumentsMask, ThatDoesNotFitIsAnError) {
  auto ids = [](const Shape& shape) { return Array<Index>::zeros(shape); };
  EXPECT_TRUE(raises<ShapeError>([&] { Mask::documents(ids({}), ids({7})); },
                                 {"Mask::documents: ", "queries ()", "keys (7)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { Mask::documents(ids({5}), ids({})); }, {"queries (5)", "keys ()"}));
  for (const auto& [queries, keys] : {std::pair{Shape{7}, Shape{5}},
                                      {Shape{5}, Shape{6}},
                                      {Shape{4}, Shape{7}},
                                      {Shape{2, 5}, Shape{7}},
                                      {Shape{5}, Shape{2, 7}},
                                      {Shape{3, 5}, Shape{3, 7}},
                                      {Shape{2, 5}, Shape{3, 7}},
                                      {Shape{1, 5}, Shape{1, 7}},
                                      {Shape{2, 3, 1, 5}, Shape{2, 3, 1, 7}}}) {
    EXPECT_TRUE(raises<ShapeError>(
        [&, q = queries, k = keys] { Mask::documents(ids(q), ids(k)).expanded(scores); },
        {"attention: the documents of the mask do not fit the scores", "queries " + to_string(queries),
         "keys " + to_string(keys), "scores (2, 3, 5, 7)"}));
  }
}

TEST(PrefixMask, ShowsNoKeyAfterItsEnd) {
  for (const Shape& shape : {Shape{4}, Shape{1}, Shape{0}, Shape{7}, Shape{5, 3}, Shape{1, 3}, Shape{3, 5, 6},
                             Shape{2, 1, 1, 2}, Shape{2, 3, 5, 1}, Shape{1, 3, 1, 4}}) {
    const Keys keys = some_keys(shape, 22);
    const Index held = shape.dim(-1);
    EXPECT_TRUE(follows(Mask::allowed_prefix(keys), [&](Index b, Index h, Index i, Index j) {
      return j < held && broadcast_element(keys, {b, h, i, j});
    })) << to_string(shape);
  }
}

// One key is one key and not repeated to all, as in an array that broadcasts.
TEST(PrefixMask, OfOneKeyIsNotTheSameAsAllowed) {
  const Keys one = Keys::of({true});
  EXPECT_EQ(everywhere(Mask::allowed(one), {2, 3}), std::vector<bool>(6, true));
  EXPECT_EQ(Mask::allowed_prefix(one).expanded({2, 3}).to_vector(), Keys::of({{1, 0, 0}}).to_vector());
}

TEST(PrefixMask, ThatIsLongerThanTheKeysOrDoesNotBroadcastIsAnError) {
  for (const Shape& shape : {Shape{8}, Shape{5, 9}, Shape{4, 3}, Shape{2, 5, 3}, Shape{1, 1, 1, 1, 3}}) {
    EXPECT_TRUE(raises<ShapeError>([&] { Mask::allowed_prefix(Keys::zeros(shape)).expanded(scores); },
                                   {"attention: the mask does not broadcast to the scores",
                                    "mask " + to_string(shape), "scores (2, 3, 5, 7)"}))
        << to_string(shape);
  }
  EXPECT_TRUE(raises<ShapeError>([] { Mask::allowed_prefix(Keys::zeros({})); },
                                 {"Mask::allowed_prefix: ", "keys ()"}));
}

TEST(MaskBySample, ThatDoesNotFitTheScoresIsAnError) {
  for (const Shape& shape :
       {Shape{3}, Shape{1}, Shape{2, 1}, Shape{3, 2}, Shape{2, 3, 1}, Shape{2, 3, 5, 7}, Shape{0}}) {
    const PerSample numbers = Array<Index>::zeros(shape);
    const std::string came = " " + to_string(shape);
    for (const Mask& mask : {Mask::causal(numbers), Mask::window(1, 1, numbers)}) {
      EXPECT_TRUE(raises<ShapeError>([&] { mask.expanded(scores); },
                                     {"attention: offsets of the mask are not one for each sample",
                                      "offsets" + came, "scores (2, 3, 5, 7)"}));
    }
    EXPECT_TRUE(raises<ShapeError>([&] { Mask::lengths(numbers).expanded(scores); },
                                   {"attention: lengths of the mask are not one for each sample",
                                    "lengths" + came, "scores (2, 3, 5, 7)"}));
  }
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        Mask::causal(of_samples(0, 1)).expanded({5, 7});
      },
      {"offsets (2)", "(5, 7)"}));
}

TEST(Mask, RequireFitsRefusesWhatExpandedRefuses) {
  EXPECT_NO_THROW((Mask::causal(of_samples(0, 1)) & Mask::lengths(7)).require_fits(scores));
  EXPECT_TRUE(raises<ShapeError>([] { Mask().require_fits({7}); }, {"Mask: ", "scores (7)"}));
  EXPECT_TRUE(raises<ShapeError>([] { (Mask::causal(0) & Mask::lengths(8)).require_fits(scores); }, {"8"}));
  EXPECT_TRUE(raises<ShapeError>([] { Mask::allowed(Keys::ones({5})).require_fits(scores); }, {"mask (5)"}));
}

// ---- how large, and of which rank

TEST(Mask, IsExpandedOnlyAlongTheAxesThatItDependsOn) {
  const Array<Index> two = Array<Index>::of({0, 1});
  auto ids = [](const Shape& shape) { return Array<Index>::zeros(shape); };
  const std::pair<Mask, Shape> expected[] = {
      {Mask(), {1, 1, 1, 1}},
      {Mask::causal(1), {1, 1, 5, 7}},
      {Mask::causal(two), {2, 1, 5, 7}},
      {Mask::causal(of_heads), {2, 3, 5, 7}},
      {Mask::window(1, 1), {1, 1, 5, 7}},
      {Mask::window(1, 1, two), {2, 1, 5, 7}},
      {Mask::lengths(3), {1, 1, 1, 7}},
      {Mask::lengths(two), {2, 1, 1, 7}},
      {Mask::documents(ids({5}), ids({7})), {1, 1, 5, 7}},
      {Mask::documents(ids({2, 5}), ids({2, 7})), {2, 1, 5, 7}},
      {Mask::allowed(Keys::ones({})), {1, 1, 1, 1}},
      {Mask::allowed(Keys::ones({7})), {1, 1, 1, 7}},
      {Mask::allowed(Keys::ones({3, 1, 1})), {1, 3, 1, 1}},
      {Mask::allowed_prefix(Keys::ones({2})), {1, 1, 1, 7}},
      {Mask::allowed_prefix(Keys::ones({2, 1, 1, 3})), {2, 1, 1, 7}},
      {Mask::causal(0) & Mask::lengths(two), {2, 1, 5, 7}},
      {Mask::lengths(3) & Mask::allowed(Keys::ones({3, 1, 1})), {1, 3, 1, 7}},
  };
  for (const auto& [mask, shape] : expected)
    EXPECT_EQ(mask.expanded(scores).shape(), shape) << mask.explain(scores);
}

TEST(Mask, TakesScoresOfAnyRank) {
  const Mask mask = Mask::causal(1) & Mask::lengths(4);
  const std::vector<bool> one = everywhere(mask, {5, 7});
  for (const Shape& shape : {Shape{3, 5, 7}, Shape{2, 1, 3, 5, 7}, Shape{1, 2, 1, 2, 1, 2, 5, 7}}) {
    const std::vector<bool> all = everywhere(mask, shape);
    EXPECT_EQ(mask.expanded(shape).rank(), shape.rank());
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], one[i % one.size()]) << to_string(shape);
  }
  EXPECT_EQ(Mask::lengths(0).expanded({3, 0}).shape(), (Shape{1, 0}));
  EXPECT_EQ(Mask::causal(0).expanded({0, 7}).shape(), (Shape{0, 7}));
  EXPECT_EQ(Mask::causal(of_samples(0, 1)).expanded({2, 5, 7}).shape(), (Shape{2, 5, 7}));
}

TEST(CombinedMasks, OfEveryKindFollowTheirDefinitions) {
  const Index offsets[] = {1, 4}, lengths[] = {5, 7};
  const Array<Index> queries = Array<Index>::of({1, 1, 2, 2, 2}),
                     keys = Array<Index>::of({1, 1, 1, 2, 2, 2, 2});
  const Keys heads = some_keys({3, 1, 7}, 23);
  const Mask mask = Mask::causal(of_samples(1, 4)) & Mask::window(3, Mask::unbounded, of_samples(1, 4)) &
                    Mask::lengths(of_samples(5, 7)) & Mask::documents(queries, keys) & Mask::allowed(heads);
  EXPECT_TRUE(follows(mask, [&](Index b, Index h, Index i, Index j) {
    return j <= i + offsets[b] && j >= i + offsets[b] - 3 && j < lengths[b] && queries(i) == keys(j) &&
           heads(h, 0, j);
  }));
  const std::vector<bool> seen = everywhere(mask, scores);
  EXPECT_GT(std::count(seen.begin(), seen.end(), true), 20);
}

// ---- later queries

TEST(LaterMask, HasTheRowsOfALongerOne) {
  const Mask masks[] = {Mask::causal(-1),
                        Mask::causal(of_samples(0, 2)),
                        Mask::window(2, 1),
                        Mask::window(1, Mask::unbounded, of_samples(-2, 3)),
                        Mask::lengths(of_samples(3, 6)),
                        Mask::allowed(some_keys({2, 1, 1, 7}, 24)),
                        Mask::causal(1) & Mask::window(2, 2, of_samples(1, 0)) & Mask::lengths(5)};
  for (const Mask& mask : masks) {
    for (const Index steps : {0, 1, 3}) {
      EXPECT_TRUE(
          follows(mask.later(steps),
                  [&](Index b, Index h, Index i, Index j) {
                    return broadcast_element(mask.expanded({2, 3, 5 + steps, 7}), {b, h, i + steps, j});
                  }))
          << mask.explain(scores) << steps;
      EXPECT_EQ(everywhere(mask.later(steps).later(-steps), scores), everywhere(mask, scores));
    }
  }
  EXPECT_NE(everywhere(masks[0].later(1), scores), everywhere(masks[0], scores));
  EXPECT_EQ(everywhere(Mask::causal(largest).later(2), scores), everywhere(Mask(), scores));
}

// ---- rows without a key

std::optional<Index> first_empty_by_loop(const Mask& mask, const Shape& shape) {
  const std::vector<bool> keys = everywhere(mask, shape);
  const auto columns = static_cast<std::ptrdiff_t>(shape.dim(-1));
  for (Index row = 0; row < shape.size() / shape.dim(-1); ++row) {
    const auto first = keys.begin() + row * columns;
    if (std::find(first, first + columns, true) == first + columns) return row;
  }
  return std::nullopt;
}

TEST(FirstEmptyRow, IsThatOfALoopForEveryRepeatedAxis) {
  Index found = 0, at_a_repeated_axis = 0;
  for (unsigned repeated = 0; repeated < 16; ++repeated) {
    Shape shape = scores;
    for (int axis = 0; axis < 4; ++axis) shape = (repeated >> axis & 1u) != 0 ? shape.with(axis, 1) : shape;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      // About two keys of three blocked, so that some row of some arrays has none.
      Keys keys = Generator(seed + 100 * repeated).integers(shape, 3).cast<bool>();
      for (bool& key : keys.mutable_values()) key = !key;
      const Mask mask = Mask::allowed(keys) & Mask::lengths(6);
      const auto row = mask.first_empty_row(scores);
      EXPECT_EQ(row, first_empty_by_loop(mask, scores)) << to_string(shape) << ", seed " << seed;
      found += row.has_value();
      at_a_repeated_axis += row.has_value() && *row > 0 && shape.size() < scores.size();
    }
  }
  EXPECT_GT(found, 50);
  EXPECT_LT(found, 320);
  EXPECT_GT(at_a_repeated_axis, 20);
}

TEST(FirstEmptyRow, IsThatOfALoopForEveryKind) {
  const Mask masks[] = {
      Mask::causal(0),
      Mask::causal(-2),
      Mask::causal(of_samples(0, -1)),
      Mask::causal(of_heads),
      Mask::window(1, 0, of_samples(0, 4)),
      Mask::lengths(of_samples(3, 0)),
      Mask::documents(Array<Index>::of({1, 1, 4, 1, 5}), Array<Index>::of({1, 1, 1, 2, 2, 3, 3})),
      Mask::allowed_prefix(Keys::zeros({2})),
      Mask::lengths(3) & Mask::window(0, 0)};
  Index found = 0;
  for (const Mask& mask : masks) {
    const auto row = mask.first_empty_row(scores);
    EXPECT_EQ(row, first_empty_by_loop(mask, scores)) << mask.explain(scores);
    found += row.has_value();
  }
  EXPECT_EQ(found, 8);
  EXPECT_EQ(Mask().first_empty_row(scores), std::nullopt);
  EXPECT_EQ(Mask::lengths(of_samples(3, 0)).first_empty_row(scores), 3 * 5);
}

TEST(PlaceOfRow, NamesBatchHeadAndRow) {
  EXPECT_EQ(place_of_row({5, 7}, 3), "row 3");
  EXPECT_EQ(place_of_row({2, 5, 7}, 8), "batch 1, row 3");
  EXPECT_EQ(place_of_row(scores, 0), "batch 0, head 0, row 0");
  EXPECT_EQ(place_of_row(scores, 2 * 3 * 5 - 1), "batch 1, head 2, row 4");
  EXPECT_EQ(place_of_row(scores, 3 * 5 + 2 * 5 + 1), "batch 1, head 2, row 1");
  EXPECT_EQ(place_of_row({2, 4, 3, 5, 7}, 4 * 15 + 3 * 15 + 5), "batch 1, axis 1 3, head 1, row 0");
}

// ---- in words and as a picture

TEST(ExplainedMask, ShowsOnePictureWhereAllAreAlike) {
  EXPECT_EQ(Mask::causal(1).explain({3, 5}),
            "causal, offset 1\n"
            "a row a query, a column a key, # where it is seen\n"

            "##...\n"
            "###..\n"
            "####.\n");
  EXPECT_EQ(Mask().explain({2, 3}),
            "every key\n"
            "a row a query, a column a key, # where it is seen\n"

            "###\n"
            "###\n");
  EXPECT_EQ((Mask::window(1, 0, 2) & Mask::lengths(4)).explain({2, 3, 3, 5}),
            "window, left 1, right 0, offset 2 and lengths 4\n"
            "a row a query, a column a key, # where it is seen\n"

            "every batch, every head\n"
            ".##..\n"
            "..##.\n"
            "...#.\n");
}

TEST(ExplainedMask, ShowsAPictureForEachSampleThatDiffers) {
  EXPECT_EQ((Mask::causal(0) & Mask::lengths(of_samples(2, 3))).explain({2, 4, 3, 3}),
            "causal, offset 0 and lengths by sample 2 3\n"
            "a row a query, a column a key, # where it is seen\n"

            "batch 0, every head\n"
            "#..\n"
            "##.\n"
            "##.\n"
            "batch 1, every head\n"
            "#..\n"
            "##.\n"
            "###\n");
  EXPECT_EQ(Mask::allowed(Keys::of({{{1, 0}}, {{0, 1}}})).explain({1, 2, 1, 2}),
            "allowed (2, 1, 2)\n"
            "a row a query, a column a key, # where it is seen\n"

            "batch 0, head 0\n"
            "#.\n"
            "batch 0, head 1\n"
            ".#\n");
}

TEST(ExplainedMask, NamesOpenSidesDocumentsAndPrefixes) {
  EXPECT_EQ(Mask::window(0, Mask::unbounded, of_samples(-1, 1)).explain({2, 2, 3}),
            "window, left 0, right unbounded, offset by sample -1 1\n"
            "a row a query, a column a key, # where it is seen\n"

            "batch 0\n"
            "###\n"
            "###\n"
            "batch 1\n"
            ".##\n"
            "..#\n");
  EXPECT_EQ((Mask::documents(Array<Index>::of({1, 2}), Array<Index>::of({1, 1, 2})) &
             Mask::allowed_prefix(Keys::of({{1, 1}})))
                .explain({2, 3}),
            "documents, queries (2), keys (3) and allowed (1, 2), and no key after its end\n"
            "a row a query, a column a key, # where it is seen\n"
            "##.\n"
            "...\n");
}

TEST(ExplainedMask, LeavesOutWhatDoesNotFitOnAScreen) {
  const std::string picture = "a row a query, a column a key, # where it is seen\n";
  const std::string wide = Mask::lengths(65).explain({1, 67});
  EXPECT_EQ(wide, "lengths 65\n" + picture + std::string(64, '#') + "  and 3 keys more\n");
  const std::string high = Mask::lengths(1).explain({66, 2});
  EXPECT_EQ(std::count(high.begin(), high.end(), '\n'), 2 + 64 + 1);
  EXPECT_TRUE(high.ends_with("#.\nand 2 queries more\n"));
  const std::string many = Mask::lengths(Array<Index>::ones({10})).explain({10, 1, 2});
  EXPECT_TRUE(many.starts_with("lengths by sample 1 1 1 1 1 1 1 1 ...\n" + picture + "batch 0\n#.\n"));
  EXPECT_TRUE(many.ends_with("batch 7\n#.\nand 2 pictures more\n"));
}

TEST(ExplainedMask, ThatDoesNotFitIsAnError) {
  EXPECT_TRUE(raises<ShapeError>([] { Mask::lengths(8).explain(scores); }, {"8", "scores (2, 3, 5, 7)"}));
}

}  // namespace
}  // namespace tapehead
