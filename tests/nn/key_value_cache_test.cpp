#include <tapehead/nn/key_value_cache.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;
using Cache = KeyValueCache<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Sums of a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;

constexpr Index B = 2, T = 7, D = 4, E = 3;  // T tokens in all

struct Heads {
  Index query = 4, key = 2;
};
struct Inputs {
  A query, key, value;
};
Inputs random_inputs(std::uint64_t seed, Heads heads = {}) {
  Generator random(seed);
  return {random.normal<double>({B, heads.query, T, D}), random.normal<double>({B, heads.key, T, D}),
          random.normal<double>({B, heads.key, T, E})};
}

// Rows first to end - 1 of the tokens.
A rows(const A& x, Index first, Index end) { return slice(V(x), -2, {first, end}).value(); }
V block(const A& x, Index first, Index end) { return V(rows(x, first, end)); }
// Those rows of an array (..., T, T) of scores, and the keys before `end`.
V corner(const V& x, Index first, Index end) { return slice(slice(x, -2, {first, end}), -1, {0, end}); }
Array<bool> corner(const Array<bool>& x, Index first, Index end) {
  return corner(V(x.cast<double>()), first, end).value().cast<bool>();
}

// Options for queries first to end - 1 and keys 0 to end - 1, as somebody who decodes gives them; with (0, T)
// those of the full pass.
using MakeOptions = std::function<Options(Index first, Index end)>;
struct Case {
  std::string name;
  MakeOptions options;
  Heads heads{};
};

Options masked_by(Mask mask) {
  Options options;
  options.mask = std::move(mask);
  options.empty_rows = EmptyRows::zero;
  return options;
}
Case of_mask(std::string name, Mask mask) {
  return {std::move(name), [mask](Index, Index) { return masked_by(mask); }};
}
Case of_change(std::string name, std::function<void(Options&)> change, Heads heads = {}) {
  return {std::move(name),
          [change](Index, Index) {
            Options options = masked_by(Mask::causal(0));
            change(options);
            return options;
          },
          heads};
}

PerSample each(Index a, Index b) { return PerSample(Array<Index>::of({a, b})); }
Array<bool> random_mask(const Shape& shape) {
  Array<bool> mask = Array<bool>::uninitialized(shape);
  Generator random(91);
  for (bool& allowed : mask.mutable_values()) allowed = random.uniform() < 0.6;
  return mask;
}

std::vector<Case> mask_cases() {
  const Array<Index> ids = Array<Index>::of({{0, 0, 1, 1, 0, 2, 2}, {3, 3, 3, 3, 5, 5, 3}});
  auto tokens = [ids](Index first, Index end) {
    return slice(V(ids.cast<double>()), -1, {first, end}).value().cast<Index>();
  };
  std::vector<Case> cases = {
      of_mask("none", {}),
      of_mask("causal", Mask::causal(0)),
      of_mask("causal, ahead and behind by sample", Mask::causal(each(1, -2))),
      of_mask("window", Mask::window(2, 0)),
      of_mask("window to both sides", Mask::window(1, 1)),
      of_mask("window by sample", Mask::window(2, 1, each(-1, 1))),
      of_mask("window and causal", Mask::window(Mask::unbounded, 3) & Mask::causal(-1)),
      {"lengths",
       [](Index, Index end) { return masked_by(Mask::lengths(each(std::min<Index>(3, end), end))); }},
      {"documents",
       [tokens](Index first, Index end) {
         return masked_by(Mask::documents(tokens(first, end), tokens(0, end)));
       }},
      {"lengths, documents and causal", [tokens](Index first, Index end) {
         return masked_by(Mask::lengths(each(end, std::min<Index>(5, end))) &
                          Mask::documents(tokens(first, end), tokens(0, end)) & Mask::causal(0));
       }}};
  for (const Shape& shape : {Shape{T, T}, Shape{2 * 2, T, T}, Shape{B, 1, T, T}, Shape{B, 4, T, T}}) {
    const Array<bool> mask = random_mask(shape);
    cases.push_back({"allowed " + to_string(shape), [mask](Index first, Index end) {
                       return masked_by(Mask::allowed(corner(mask, first, end)));
                     }});
  }
  cases.push_back({"allowed, one row for all", [mask = random_mask({T})](Index, Index end) {
                     const V keys(mask.cast<double>());
                     return masked_by(Mask::allowed(slice(keys, -1, {0, end}).value().cast<bool>()));
                   }});
  return cases;
}

std::vector<Case> score_cases() {
  Generator random(92);
  const V head_numbers(random.normal<double>({4}));
  std::vector<Case> cases = {
      of_change("scale", [](Options& o) { o.scale = 0.3; }),
      of_change("scale by head", [s = V(random.uniform<double>({4, 1, 1}))](Options& o) { o.scale = s; }),
      of_change("softcap", [](Options& o) { o.softcap = 0.7; }),
      of_change("sink", [=](Options& o) { o.sink = head_numbers; }),
      of_change("slopes", [](Options& o) { o.slopes = V(alibi_slopes<double>(4)); }),
      of_change("slopes, offsets by sample",
                [](Options& o) {
                  o.slopes = V(alibi_slopes<double>(4));
                  o.query_offset = each(-2, 3);
                }),
      of_change("all of these", [=](Options& o) {
        o.scale = 0.8, o.softcap = 2, o.sink = head_numbers, o.slopes = V(alibi_slopes<double>(4));
        o.mask = Mask::causal(each(0, -1)) & Mask::window(3, 0);
      })};
  for (const Shape& shape : {Shape{T, T}, Shape{4, T, T}, Shape{B, 4, T, T}}) {
    A bias = random.normal<double>(shape);
    bias.mutable_values()[3] = bias.mutable_values()[T + 1] = -infinity;
    cases.push_back({"bias " + to_string(shape), [bias](Index first, Index end) {
                       Options options = masked_by(Mask::causal(0));
                       options.bias = corner(V(bias), first, end);
                       return options;
                     }});
  }
  return cases;
}

std::vector<Case> position_cases() {
  Generator random(93);
  const QueryKeyNorm<double> norm{V(random.normal<double>({D})), V(random.normal<double>({D}))};
  auto turned = [](RopeOptions rope) { return [rope](Options& o) { o.rope = rope; }; };
  return {of_change("rope, halves", turned({.pairing = Pairing::half, .start = 5})),
          of_change("rope, neighbours", turned({.pairing = Pairing::neighbours, .start = 5})),
          of_change("rope of a part", turned({.base = 100, .width = 2, .position_scale = 0.5})),
          of_change("rope, start by sample", turned({.start = each(-3, 4)})),
          of_change("rope, query offset by sample",
                    [](Options& o) {
                      o.rope = RopeOptions{.start = 2};
                      o.query_offset = each(2, -1);
                    }),
          of_change("norm", [=](Options& o) { o.norm = norm; }),
          of_change("norm, rope and slopes",
                    [=](Options& o) {
                      o.norm = norm, o.rope = RopeOptions{.start = 1}, o.query_offset = 2;
                      o.slopes = V(alibi_slopes<double>(4));
                    }),
          of_change("a key head for each", turned({}), {4, 4}),
          of_change("multi-query", turned({}), {4, 1}),
          of_change("one head", turned({}), {1, 1})};
}

// An array (..., T, end) of scores continued to T keys.
A continued(const V& scores, double fill) { return pad(scores, -1, {0, T - scores.dim(-1)}, fill).value(); }

Options with_all_outputs(Options options) {
  options.weights = options.log_sum_exp = options.masked_scores = true;
  return options;
}

// Decodes the tokens in blocks of the given sizes; every row must be that of a full pass in which a query
// sees no key behind its own block.
void expect_full_pass(const Case& c, const std::vector<Index>& sizes, bool on_a_tape = false) {
  const Inputs in = random_inputs(71, c.heads);
  Array<bool> until_block_ends = Array<bool>::full({T, T}, false);
  for (Index first = 0, i = 0; first < T; first += sizes[static_cast<std::size_t>(i++)]) {
    const Index end = first + sizes[static_cast<std::size_t>(i)];
    for (Index row = first; row < end; ++row) {
      for (Index key = 0; key < end; ++key) until_block_ends.set({row, key}, true);
    }
  }
  Options options = with_all_outputs(c.options(0, T));
  options.mask = options.mask & Mask::allowed(until_block_ends);
  const auto full = attention(V(in.query), V(in.key), V(in.value), options);

  Cache cache;
  Tape<double> tape;
  Index first = 0;
  for (const Index size : sizes) {
    const Index end = first + size;
    SCOPED_TRACE("tokens " + std::to_string(first) + " to " + std::to_string(end - 1));
    const auto part =
        attention(on_a_tape ? tape.input(rows(in.query, first, end)) : block(in.query, first, end),
                  block(in.key, first, end), block(in.value, first, end), cache,
                  with_all_outputs(c.options(first, end)));
    EXPECT_EQ(part.output.recorded(), on_a_tape);
    EXPECT_EQ(cache.length(), end);
    EXPECT_NEAR_RELATIVE(part.output, rows(full.output.value(), first, end), rounding);
    EXPECT_NEAR_RELATIVE(continued(*part.weights, 0), rows(full.weights->value(), first, end), rounding);
    EXPECT_NEAR_RELATIVE(continued(*part.masked_scores, -infinity),
                         rows(full.masked_scores->value(), first, end), rounding);
    EXPECT_NEAR_RELATIVE(*part.log_sum_exp, slice(*full.log_sum_exp, -1, {first, end}), rounding);
    first = end;
  }
}

std::vector<Index> random_sizes(Generator& random) {
  std::vector<Index> sizes;
  for (Index left = T; left > 0; left -= sizes.back()) sizes.push_back(1 + random.below(left));
  return sizes;
}

void expect_decoding(const std::vector<Case>& cases) {
  Generator random(94);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    expect_full_pass(c, std::vector<Index>(T, 1));
    expect_full_pass(c, {T});
    for (int draw = 0; draw < 4; ++draw) expect_full_pass(c, random_sizes(random), draw == 3);
  }
}

TEST(CachedAttention, EqualsTheFullPassUnderEveryMask) { expect_decoding(mask_cases()); }
TEST(CachedAttention, EqualsTheFullPassWithEveryOptionOfTheScores) { expect_decoding(score_cases()); }
TEST(CachedAttention, EqualsTheFullPassWithEveryOptionOfPositionsAndHeads) {
  expect_decoding(position_cases());
}

TEST(CachedAttention, EqualsTheFullPassInEveryRank) {
  Generator random(72);
  for (const Shape& leading : {Shape{}, Shape{3}, Shape{2, 1, 3}, Shape{0}}) {
    SCOPED_TRACE(to_string(leading));
    const A x = random.normal<double>(leading.followed_by({T, D}));
    const V full = attention(V(x), V(x), V(x), masked_by(Mask::causal(0))).output;
    Cache cache;
    for (Index i = 0; i < T; ++i) {
      const V token = block(x, i, i + 1);
      EXPECT_NEAR_RELATIVE(attention(token, token, token, cache, masked_by(Mask::causal(0))).output,
                           rows(full.value(), i, i + 1), rounding);
    }
  }
}

TEST(CachedAttention, OfFloatsEqualsTheFullPassOfFloats) {
  Generator random(73);
  const auto q = random.normal<float>({B, 4, T, D}), k = random.normal<float>({B, 2, T, D});
  AttentionOptions<float> options;
  options.mask = Mask::causal(0);
  options.rope = RopeOptions{.start = 3};
  const auto full = attention(Var<float>(q), Var<float>(k), Var<float>(k), options).output;
  KeyValueCache<float> cache;
  for (Index i = 0; i < T; ++i) {
    auto token = [&](const Array<float>& x) { return slice(Var<float>(x), -2, {i, i + 1}); };
    // Sums of a dozen products of numbers near 1, each rounded to 6e-8.
    EXPECT_NEAR_RELATIVE(attention(token(q), token(k), token(k), cache, options).output,
                         slice(full, -2, {i, i + 1}), 1e-6);
  }
}

// ---- what wrong decoding looks like

// Decoding without a cache, by plain attention to all keys so far: right as it stands, wrong in one place by
// choice.
struct ByHand {
  std::function<Index(Index before, Index L, Index S)> offset = [](Index before, Index, Index) {
    return before;
  };
  bool block_starts_at_its_position = true;
  bool neighbours_share = true;
};

// The output of queries first, ..., first + L - 1 after a block of n keys was added to the first `first`
// ones.
V decoded_by_hand(const Inputs& in, Index first, Index L, Index n, const ByHand& how) {
  const Index end = first + n, group = in.query.dim(1) / in.key.dim(1);
  const RopeOptions of_query{.start = first};
  const RopeOptions of_block{.start = how.block_starts_at_its_position ? first : 0};
  const V key = concat({rope(block(in.key, 0, first)), rope(block(in.key, first, end), of_block)}, -2);
  auto heads = [&](const V& x) {
    return how.neighbours_share ? repeat_interleave(x, group, 1)
                                : concat(std::vector<V>(static_cast<std::size_t>(group), x), 1);
  };
  return attention(rope(block(in.query, first, first + L), of_query), heads(key),
                   heads(block(in.value, 0, end)), masked_by(Mask::causal(how.offset(first, L, end))))
      .output;
}

V decoded_by_cache(const Inputs& in, Index first, Index L, Index n) {
  Options options = masked_by(Mask::causal(0));
  options.rope = RopeOptions{};
  Cache cache;
  attention(block(in.query, 0, first), block(in.key, 0, first), block(in.value, 0, first), cache, options);
  return attention(block(in.query, first, first + L), block(in.key, first, first + n),
                   block(in.value, first, first + n), cache, options)
      .output;
}

constexpr double clearly = 1e-2;  // numbers are near 1, so what is wrong is wrong by a tenth or so

TEST(CachedAttention, TakesTheOffsetFromTheCacheAndNotFromShapes) {
  const Inputs in = random_inputs(74);
  ByHand corner_of_the_scores;
  corner_of_the_scores.offset = [](Index, Index L, Index S) { return S - L; };
  // With as many queries as new keys the corner happens to be the right place.
  EXPECT_NEAR_RELATIVE(decoded_by_hand(in, 3, 2, 2, corner_of_the_scores), decoded_by_cache(in, 3, 2, 2),
                       rounding);
  // Two queries and three new keys: query 0 sits at 3, and the corner says 4.
  EXPECT_NEAR_RELATIVE(decoded_by_hand(in, 3, 2, 3, {}), decoded_by_cache(in, 3, 2, 3), rounding);
  EXPECT_FALSE(
      agree(decoded_by_hand(in, 3, 2, 3, corner_of_the_scores), decoded_by_cache(in, 3, 2, 3), clearly));
}

TEST(CachedAttention, IsNotThatOfOffsetZero) {
  const Inputs in = random_inputs(75);
  ByHand from_the_start;
  from_the_start.offset = [](Index, Index, Index) { return 0; };
  EXPECT_NEAR_RELATIVE(decoded_by_hand(in, 4, 2, 2, {}), decoded_by_cache(in, 4, 2, 2), rounding);
  EXPECT_FALSE(agree(decoded_by_hand(in, 4, 2, 2, from_the_start), decoded_by_cache(in, 4, 2, 2), clearly));
}

TEST(CachedAttention, TurnsTheBlockByItsOwnPositions) {
  const Inputs in = random_inputs(76);
  ByHand from_the_start;
  from_the_start.block_starts_at_its_position = false;
  EXPECT_FALSE(agree(decoded_by_hand(in, 4, 2, 2, from_the_start), decoded_by_cache(in, 4, 2, 2), clearly));
}

TEST(CachedAttention, SharesAKeyHeadAmongNeighbours) {
  const Inputs in = random_inputs(77);
  ByHand tiled;
  tiled.neighbours_share = false;
  EXPECT_FALSE(agree(decoded_by_hand(in, 4, 2, 2, tiled), decoded_by_cache(in, 4, 2, 2), clearly));
}

TEST(CachedAttention, KeepsKeysAsTheyWereTurnedOnce) {
  const Inputs in = random_inputs(78);
  Options options = masked_by(Mask::causal(0));
  options.rope = RopeOptions{.start = 6};
  Cache cache;
  for (Index i = 0; i < T; ++i) {
    attention(block(in.query, i, i + 1), block(in.key, i, i + 1), block(in.value, i, i + 1), cache, options);
  }
  EXPECT_NEAR_RELATIVE(cache.keys(), rope(V(in.key), RopeOptions{.start = 6}), rounding);
  EXPECT_SAME_NUMBERS(cache.values(), in.value);
}

// ---- what is not finite, and what lies behind the end

TEST(CachedAttention, LeavesOutNaNInKeysThatNoRowMaySee) {
  Inputs in = random_inputs(79);
  for (Index d = 0; d < D; ++d) in.key.set({0, 1, 2, d}, nan);
  for (Index e = 0; e < E; ++e) in.value.set({0, 1, 2, e}, e == 0 ? infinity : nan);
  Array<bool> all_but_2 = Array<bool>::full({T}, true);
  all_but_2.set({2}, false);
  auto options = [&](Index end) {
    const V keys(all_but_2.cast<double>());
    return with_all_outputs(
        masked_by(Mask::causal(0) & Mask::allowed(slice(keys, -1, {0, end}).value().cast<bool>())));
  };
  const V full = attention(V(in.query), V(in.key), V(in.value), options(T)).output;
  ASSERT_FALSE(std::isnan(magnitude(full.value())));
  Cache cache;
  for (Index i = 0; i < T; ++i) {
    const auto part = attention(block(in.query, i, i + 1), block(in.key, i, i + 1), block(in.value, i, i + 1),
                                cache, options(i + 1));
    EXPECT_NEAR_RELATIVE(part.output, rows(full.value(), i, i + 1), rounding);
  }
}

// Key 4 of five, in a recorded second block, is seen by no row: what it holds reaches no gradient, nor the
// norm's.
TEST(CachedAttention, OfARecordedBlockLeavesOutNaNUnderANorm) {
  const Array<bool> all_but_4 = Array<bool>::of({true, true, true, true, false});
  auto gradients = [&](double held) {
    Inputs in = random_inputs(97);
    for (Index d = 0; d < D; ++d) in.key.set({0, 1, 4, d}, held);
    Cache cache;
    Tape<double> tape;
    const V query_gain = tape.input(A::full({D}, 1.5)), key_gain = tape.input(A::full({D}, 0.5));
    Options options = masked_by(Mask::allowed(all_but_4));
    options.norm = QueryKeyNorm<double>{query_gain, key_gain};
    Options first;
    first.norm = options.norm;
    attention(block(in.query, 0, 3), block(in.key, 0, 3), block(in.value, 0, 3), cache, first);
    const V query = tape.input(rows(in.query, 3, 5)), key = tape.input(rows(in.key, 3, 5));
    const V output = attention(query, key, block(in.value, 3, 5), cache, options).output;
    return gradient_values(sum(output * output), {query, key, query_gain, key_gain});
  };
  const auto clean = gradients(0), poisoned = gradients(nan);
  for (std::size_t i = 0; i < clean.size(); ++i) {
    EXPECT_GT(magnitude(clean[i]), 0) << i;
    EXPECT_SAME_NUMBERS(poisoned[i], clean[i]);
  }
}

TEST(CachedAttention, KeepsRowsWithoutKeysAtZeroBesideAValueThatIsNotANumber) {
  Inputs in = random_inputs(96);
  for (Index e = 0; e < E; ++e) in.value.set({0, 0, 3, e}, nan);
  Cache cache;
  cache.append(block(in.key, 0, 3), block(in.value, 0, 3));
  const Array<bool> second_only = Array<bool>::of({{0, 0, 0, 0, 0}, {1, 1, 1, 1, 1}});
  const A output = attention(block(in.query, 3, 5), block(in.key, 3, 5), block(in.value, 3, 5), cache,
                             masked_by(Mask::allowed(second_only)))
                       .output.value();
  EXPECT_EQ(output(0, 0, 0, 0), 0);
  EXPECT_TRUE(std::isnan(output(0, 0, 1, 0)));
}

TEST(CachedAttention, DoesNotReadBehindTheEnd) {
  const Inputs in = random_inputs(80);
  const V rubbish_key(A::full({B, 2, 20, D}, nan)), rubbish_value(A::full({B, 2, 20, E}, nan));
  Cache used, fresh;
  used.append(rubbish_key, rubbish_value);
  used.truncate(0);
  for (Cache* cache : {&used, &fresh}) cache->append(block(in.key, 0, 5), block(in.value, 0, 5));
  auto step = [&](Cache& cache) {
    return attention(block(in.query, 5, 6), block(in.key, 5, 6), block(in.value, 5, 6), cache).output;
  };
  EXPECT_SAME_NUMBERS(step(used), step(fresh));
}

// ---- on a tape

TEST(CachedAttention, OfARecordedBlockGivesTheGradientsOfTheSameWithConstantsBeforeIt) {
  const Inputs in = random_inputs(81);
  Generator random(82);
  const V upstream(random.normal<double>({B, 4, 2, E}));
  Options options = masked_by(Mask::causal(0));
  options.rope = RopeOptions{.start = 2};
  options.slopes = V(alibi_slopes<double>(4));

  Cache cache;
  attention(block(in.query, 0, 5), block(in.key, 0, 5), block(in.value, 0, 5), cache, options);
  Tape<double> tape;
  const V q = tape.input(rows(in.query, 5, T)), k = tape.input(rows(in.key, 5, T)),
          v = tape.input(rows(in.value, 5, T));
  const V output = attention(q, k, v, cache, options).output;
  const auto cached = gradient_values(output, {q, k, v}, upstream);

  Options whole = options;
  whole.mask = Mask::causal(5), whole.query_offset = 5;
  const V dense =
      attention(q, concat({block(in.key, 0, 5), k}, -2), concat({block(in.value, 0, 5), v}, -2), whole)
          .output;
  const auto expected = gradient_values(dense, {q, k, v}, upstream);
  EXPECT_NEAR_RELATIVE(output, dense, rounding);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR_RELATIVE(cached[i], expected[i], rounding);
  EXPECT_FALSE(cache.keys().recorded());
  EXPECT_SAME_NUMBERS(cache.values(), in.value);
}

TEST(CachedAttention, NamesThePathsOfASharedInput) {
  Generator random(83);
  Cache cache;
  const V before(random.normal<double>({3, D}));
  attention(before, before, before, cache, masked_by(Mask::causal(0)));
  Tape<double> tape;
  const V x = tape.input(random.normal<double>({2, D}), "X");
  Options options = masked_by(Mask::causal(0));
  options.rope = RopeOptions{};
  const V y = attention(x, x, x, cache, options).output;
  std::vector<std::string> names;
  for (const auto& path : gradient_paths(sum(y), x)) names.push_back(path.name);
  EXPECT_EQ(names, (std::vector<std::string>{"query", "key", "value"}));
}

TEST(CachedAttention, GivesAnOptionItsGradientWhenNothingElseIsRecorded) {
  const Inputs in = random_inputs(84);
  const V query = block(in.query, 5, T), upstream(Generator(85).normal<double>({B, 4, 2, E}));
  auto expect_gradient = [&](const A& x, auto set) {
    Tape<double> tape;
    const V option = tape.input(x);
    Options options;
    set(options, option);
    Cache cache;
    cache.append(block(in.key, 0, 5), block(in.value, 0, 5));
    const V y = attention(query, block(in.key, 5, T), block(in.value, 5, T), cache, options).output;
    options.query_offset = 5;
    const V dense = attention(query, V(in.key), V(in.value), options).output;
    const A expected = gradient_values(dense, option, upstream)[0];
    EXPECT_NEAR_RELATIVE(gradient_values(y, option, upstream)[0], expected, rounding);
    EXPECT_GT(magnitude(expected), clearly);
  };
  expect_gradient(A::zeros({2, T}), [](Options& o, const V& x) { o.bias = x; });
  expect_gradient(A::zeros({4}), [](Options& o, const V& x) { o.sink = x; });
  expect_gradient(A::ones({4}), [](Options& o, const V& x) { o.slopes = x; });
  expect_gradient(A::ones({}), [](Options& o, const V& x) { o.scale = x; });
}

// ---- memory

constexpr Index many_heads = 4, many = 4096, wide = 32;
constexpr std::size_t cache_bytes = many_heads * many * (wide + wide) * sizeof(double);

Cache full_cache() {
  Generator random(86);
  Cache cache;
  cache.reserve(many + 8);
  const V x(random.normal<double>({many_heads, many, wide}));
  cache.append(x, x);
  return cache;
}

// Bytes that f takes at once beyond what there was.
template <class F>
std::ptrdiff_t extra_bytes(F f) {
  reset_memory_peak();
  const std::ptrdiff_t before = memory_statistics().live;
  f();
  return memory_statistics().peak - before;
}

TEST(CachedAttention, CopiesNoCacheForAStep) {
  Cache cache = full_cache();
  const V token(A::ones({many_heads, 1, wide}));
  const double* const where = cache.key_rows(1).data();
  // Room for a tile of keys, whatever the length of the cache, and a few arrays of scores, 4 heads x 4096
  // keys.
  const auto step = extra_bytes([&] { attention(token, token, token, cache, masked_by(Mask::causal(0))); });
  EXPECT_LT(step, static_cast<std::ptrdiff_t>(cache_bytes / 8));
  EXPECT_EQ(cache.key_rows(1).data(), where);
  // A recorded block reads contiguous copies, and the same count sees it.
  Tape<double> tape;
  const V recorded = tape.input(token.value());
  const auto copied = extra_bytes([&] { attention(recorded, token, token, cache); });
  EXPECT_GT(copied, static_cast<std::ptrdiff_t>(cache_bytes));
}

TEST(CachedAttention, SaysWhatComputedIt) {
  const Inputs in = random_inputs(97);
  const V full = attention(V(in.query), V(in.key), V(in.value), masked_by(Mask::causal(0))).output;
  auto step = [&](Cache& cache, Index first, Index end, AttentionKernel kernel) {
    Options options = masked_by(Mask::causal(0));
    options.kernel = kernel;
    const auto result = attention(block(in.query, first, end), block(in.key, first, end),
                                  block(in.value, first, end), cache, options);
    EXPECT_NEAR_RELATIVE(result.output, rows(full.value(), first, end), rounding);
    return std::string(result.computed_by);
  };
  Cache cache;
  // The first block is contiguous, whatever is cached of it.
  EXPECT_EQ(step(cache, 0, 4, AttentionKernel::automatic), "fused");
  EXPECT_EQ(step(cache, 4, 5, AttentionKernel::automatic), "fused: the cache is read where it lies");
  EXPECT_EQ(step(cache, 5, 6, AttentionKernel::fused), "fused: the cache is read where it lies");
  EXPECT_EQ(step(cache, 6, 7, AttentionKernel::composed), "composed: the cache is read where it lies");
}

TEST(CachedAttention, OfManyHeadsHasTheSameBitsWithAnyNumberOfThreads) {
  Generator random(87);
  const V queries(random.normal<double>({many_heads, 4, wide}));
  expect_same_bits_on_any_threads([&] {
    Cache cache = full_cache();
    return std::vector<A>{attention(queries, queries, queries, cache).output.value()};
  });
}

// Tokens that growth copies when `count` come one by one; `before_each` may ask for room.
Index tokens_copied(Index count, const std::function<void(Cache&)>& before_each) {
  const V token(A::ones({1, 2}));
  Cache cache;
  Index copied = 0;
  for (Index i = 0; i < count; ++i) {
    const double* const where = i == 0 ? nullptr : cache.key_rows(0).data();
    before_each(cache);
    cache.append(token, token);
    if (where != cache.key_rows(0).data()) copied += i;
  }
  return copied;
}

TEST(KeyValueCache, GrowsWithoutQuadraticCopying) {
  for (const Index count : {10, 1000, 8193}) {
    EXPECT_LT(tokens_copied(count, [](Cache&) {}), 2 * count);
  }
  // Room for one more each time copies 0 + 1 + ... + 999.
  EXPECT_EQ(tokens_copied(1000, [](Cache& cache) { cache.reserve(cache.length() + 1); }),
            999 * 1000 / 2 - 120);
  EXPECT_EQ(tokens_copied(1000, [](Cache& cache) { cache.reserve(1000); }), 0);
}

TEST(KeyValueCache, CountsItsBytes) {
  Cache cache;
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_EQ(cache.bytes_in_use(), 0u);
  const auto held = extra_bytes([&] {
    cache.reserve(100);
    cache.append(V(A::ones({2, 3, 5, D})), V(A::ones({2, 3, 5, E})));
  });
  EXPECT_EQ(cache.length(), 5);
  EXPECT_EQ(cache.capacity(), 100);
  EXPECT_EQ(cache.bytes(), 2 * 3 * 100 * (D + E) * sizeof(double));
  EXPECT_EQ(cache.bytes_in_use(), 2 * 3 * 5 * (D + E) * sizeof(double));
  EXPECT_GE(held, static_cast<std::ptrdiff_t>(cache.bytes()));
  const std::ptrdiff_t live = memory_statistics().live;
  const auto bytes = static_cast<std::ptrdiff_t>(cache.bytes());
  cache.clear();
  EXPECT_LE(memory_statistics().live, live - bytes);
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST(KeyValueCache, AtLeastDoublesItsRoom) {
  Cache cache;
  std::vector<Index> capacities;
  for (Index i = 0; i < 200; ++i) {
    cache.append(V(A::ones({1, 2})), V(A::ones({1, 2})));
    if (capacities.empty() || capacities.back() != cache.capacity()) capacities.push_back(cache.capacity());
  }
  EXPECT_EQ(capacities, (std::vector<Index>{16, 32, 64, 128, 256}));
  cache.append(V(A::ones({1000, 2})), V(A::ones({1000, 2})));
  EXPECT_EQ(cache.capacity(), 1200);
}

// ---- the cache as a value

TEST(KeyValueCache, HoldsItsBlocksOneBehindTheOther) {
  const Inputs in = random_inputs(88);
  Generator random(89);
  for (int draw = 0; draw < 5; ++draw) {
    Cache cache;
    Index first = 0;
    for (const Index size : random_sizes(random)) {
      cache.append(block(in.key, first, first + size), block(in.value, first, first + size));
      first += size;
    }
    EXPECT_SAME_NUMBERS(cache.keys(), in.key);
    EXPECT_SAME_NUMBERS(cache.values(), in.value);
    const auto held = cache.value_rows(3);
    EXPECT_EQ(A::from(std::vector<double>(held.begin(), held.end()), {T, E}).to_vector(),
              slice(V(in.value), {{1, 2}, {1, 2}}).value().to_vector());
  }
}

TEST(KeyValueCache, ForgetsRejectedTokens) {
  const Inputs in = random_inputs(90), guessed = random_inputs(91);
  const Options options = masked_by(Mask::causal(0));
  Cache cache, straight;
  for (Cache* c : {&cache, &straight}) c->append(block(in.key, 0, 4), block(in.value, 0, 4));
  attention(block(guessed.query, 4, T), block(guessed.key, 4, T), block(guessed.value, 4, T), cache, options);
  cache.truncate(4);
  EXPECT_EQ(cache.length(), 4);
  auto rest = [&](Cache& c) {
    return attention(block(in.query, 4, T), block(in.key, 4, T), block(in.value, 4, T), c, options).output;
  };
  EXPECT_SAME_NUMBERS(rest(cache), rest(straight));
  EXPECT_SAME_NUMBERS(cache.keys(), in.key);
}

TEST(KeyValueCache, CopiesGoOnApart) {
  const Inputs in = random_inputs(92), other = random_inputs(93);
  Cache cache;
  cache.append(block(in.key, 0, 4), block(in.value, 0, 4));
  Cache branch = cache;
  EXPECT_EQ(branch.key_rows(0).data(), cache.key_rows(0).data());
  branch.append(block(other.key, 4, T), block(other.value, 4, T));
  cache.append(block(in.key, 4, T), block(in.value, 4, T));
  EXPECT_SAME_NUMBERS(cache.keys(), in.key);
  EXPECT_SAME_NUMBERS(branch.keys(), concat({block(in.key, 0, 4), block(other.key, 4, T)}, -2));
}

TEST(KeyValueCache, IsEmptyWhenMovedFromAndTakesAnyBlockAgain) {
  Cache cache;
  cache.append(V(A::ones({2, 3, D})), V(A::ones({2, 3, E})));
  const Cache moved = std::move(cache);
  EXPECT_EQ(moved.length(), 3);
  EXPECT_EQ(cache.length(), 0);  // NOLINT: what a moved cache is, is the point
  cache.append(V(A::ones({5, 1})), V(A::ones({5, 2})));
  EXPECT_EQ(cache.keys().shape(), (Shape{5, 1}));
  cache.truncate(0);
  cache.append(V(A::ones({4, 5, 1})), V(A::ones({4, 5, 2})));
  EXPECT_EQ(cache.keys().shape(), (Shape{4, 5, 1}));
}

// ---- what is rejected, and leaves the cache as it was

TEST(KeyValueCache, RejectsBlocksThatDoNotFitItOrEachOther) {
  Cache cache;
  auto rejects = [&](const Shape& key, const Shape& value, std::string_view what) {
    return raises<ShapeError>(
        [&] { cache.append(V(A::ones(key)), V(A::ones(value))); },
        {"KeyValueCache::append: ", what, "key " + to_string(key), "value " + to_string(value)});
  };
  EXPECT_TRUE(rejects({5}, {5}, "needs key (..., n, D)"));
  EXPECT_TRUE(rejects({2, 3, 4}, {3, 4}, "needs key"));
  EXPECT_TRUE(rejects({2, 3, 4}, {2, 5, 4}, "needs key"));
  EXPECT_TRUE(rejects({2, 3, 4}, {1, 3, 4}, "needs key"));
  cache.append(V(A::ones({2, 3, 4})), V(A::ones({2, 3, 5})));
  EXPECT_TRUE(rejects({2, 3, 5}, {2, 3, 5}, "cached keys (2, 3, 4)"));
  EXPECT_TRUE(rejects({2, 3, 4}, {2, 3, 4}, "cached values (2, 3, 5)"));
  EXPECT_TRUE(rejects({1, 3, 4}, {1, 3, 5}, "more than their length"));
  EXPECT_TRUE(rejects({1, 2, 3, 4}, {1, 2, 3, 5}, "more than their length"));
  EXPECT_EQ(cache.length(), 3);
}

TEST(KeyValueCache, RejectsWhatItDoesNotHold) {
  Cache cache;
  EXPECT_TRUE(raises<LogicError>([&] { cache.keys(); }, {"KeyValueCache::keys", "nothing"}));
  EXPECT_TRUE(raises<LogicError>([&] { cache.values(); }, {"KeyValueCache::values", "nothing"}));
  EXPECT_TRUE(raises<DomainError>([&] { cache.key_rows(0); }, {"KeyValueCache::key_rows", "0 of 0"}));
  EXPECT_TRUE(raises<DomainError>([&] { cache.truncate(1); }, {"KeyValueCache::truncate", "1", "0"}));
  EXPECT_TRUE(raises<DomainError>([&] { cache.reserve(-1); }, {"KeyValueCache::reserve", "-1"}));
  cache.append(V(A::ones({2, 3, 4})), V(A::ones({2, 3, 5})));
  EXPECT_TRUE(raises<DomainError>([&] { cache.truncate(4); }, {"KeyValueCache::truncate", "4", "3"}));
  EXPECT_TRUE(raises<DomainError>([&] { cache.truncate(-1); }, {"-1"}));
  EXPECT_TRUE(raises<DomainError>([&] { cache.value_rows(2); }, {"KeyValueCache::value_rows", "2 of 2"}));
}

TEST(CachedAttention, LeavesTheCacheAsItWasWhenItThrows) {
  const Inputs in = random_inputs(95);
  Cache cache;
  auto call = [&](const Shape& query, const Shape& key, const Shape& value, const Options& options = {}) {
    return [&cache, query, key, value, options] {
      attention(V(A::ones(query)), V(A::ones(key)), V(A::ones(value)), cache, options);
    };
  };
  auto unchanged = [&](Index length) {
    if (cache.length() != length) return false;
    return length == 0 || (same_numbers(cache.keys(), rows(in.key, 0, length)) &&
                           same_numbers(cache.values(), rows(in.value, 0, length)));
  };
  Options misfit;
  misfit.bias = V(A::ones({3, 3}));
  const Shape q{B, 4, 1, D}, k{B, 2, 1, D}, v{B, 2, 1, E};
  Options error;
  error.mask = Mask::causal(-100);

  EXPECT_TRUE(raises<ShapeError>(call({5, 1, D}, {5, 1, D}, {5, 1, E}, misfit), {"bias", "(3, 3)"}));
  EXPECT_TRUE(unchanged(0));
  cache.append(block(in.key, 0, 4), block(in.value, 0, 4));  // of other shapes than what was refused

  EXPECT_TRUE(
      raises<ShapeError>(call(q, {B, 2, 1, D + 1}, v), {"attention: ", "widths", "key (2, 2, 1, 5)"}));
  EXPECT_TRUE(raises<ShapeError>(call(q, k, {B, 2, 2, E}), {"attention: ", "lengths"}));
  EXPECT_TRUE(raises<ShapeError>(call(q, {B, 4, 1, D}, {B, 4, 1, E}),
                                 {"attention: ", "more than their length", "cached keys (2, 2, 4, 4)"}));
  EXPECT_TRUE(raises<ShapeError>(call(q, k, {B, 2, 1, E + 1}), {"cached values (2, 2, 4, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(call(q, k, v, misfit), {"attention: ", "scores (2, 4, 1, 5)"}));
  EXPECT_TRUE(raises<DomainError>(call(q, k, v, error), {"no key is allowed: batch 0, head 0, row 0"}));
  Options infinite;
  infinite.bias = V(A::full({1}, infinity));
  EXPECT_TRUE(raises<DomainError>(call(q, k, v, infinite), {"a score is infinite"}));
  EXPECT_TRUE(unchanged(4));

  const Cache other_owner = cache;
  EXPECT_TRUE(raises<DomainError>(call(q, k, v, infinite)));
  EXPECT_TRUE(unchanged(4));
}

}  // namespace
}  // namespace tapehead
