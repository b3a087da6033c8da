#include <tapehead/nn/partial_attention.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <tapehead/core/expect_gradients.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Keys = Array<Index>;
using Options = AttentionOptions<double>;
using Partial = PartialAttention<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Sums of a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;
constexpr double clearly = 1e-2;  // numbers are near 1, so what is wrong is wrong by a tenth or so

constexpr Index B = 2, H = 4, L = 5, S = 9, D = 4, E = 3;

struct Inputs {
  A query, key, value;
};
Inputs random_inputs(std::uint64_t seed, Index key_heads = 2) {
  Generator random(seed);
  return {random.normal<double>({B, H, L, D}), random.normal<double>({B, key_heads, S, D}),
          random.normal<double>({B, key_heads, S, E})};
}

Partial part_of(const Inputs& in, const Keys& keys, const Options& options = {}) {
  return partial_attention(V(in.query), V(in.key), V(in.value), keys, options);
}

// A split of the S keys into parts, each in random order.
std::vector<Keys> random_split(Generator& random) {
  const std::vector<Index> order = random.permutation(S).to_vector();
  std::vector<Keys> parts;
  for (std::size_t first = 0; first < order.size();) {
    const std::size_t size =
        1 + static_cast<std::size_t>(random.below(static_cast<Index>(order.size() - first)));
    parts.push_back(
        Keys::from(std::vector<Index>(order.begin() + static_cast<std::ptrdiff_t>(first),
                                      order.begin() + static_cast<std::ptrdiff_t>(first + size))));
    first += size;
  }
  return parts;
}

// The parts merged two at a time, in random order: a random tree.
Partial merged(std::vector<Partial> parts, Generator& random) {
  while (parts.size() > 1) {
    const auto at = static_cast<std::size_t>(random.below(static_cast<Index>(parts.size())));
    std::swap(parts[at], parts.back());
    const Partial last = parts.back();
    parts.pop_back();
    const auto other = static_cast<std::size_t>(random.below(static_cast<Index>(parts.size())));
    parts[other] = random.uniform() < 0.5 ? merge(parts[other], last) : merge(last, parts[other]);
  }
  return parts.front();
}

void expect_parts(const Partial& actual, const Partial& expected) {
  EXPECT_EQ(actual.maximum.to_vector(), expected.maximum.to_vector());
  EXPECT_NEAR_RELATIVE(actual.sum, expected.sum, rounding);
  EXPECT_NEAR_RELATIVE(actual.weighted, expected.weighted, rounding);
  EXPECT_EQ(actual.has_key.to_vector(), expected.has_key.to_vector());
}

// ---- any split gives the dense result

struct Case {
  std::string name;
  std::function<void(Options&)> change;
  Index key_heads = 2;
};

PerSample each(Index a, Index b) { return PerSample(Array<Index>::of({a, b})); }

std::vector<Case> cases() {
  Generator random(31);
  const V gain(random.normal<double>({D})), sink(random.normal<double>({H})),
      bias(random.normal<double>({L, S}));
  A infinite = random.normal<double>({B, 1, L, S});
  for (std::size_t i = 0; i < 20; ++i) infinite.mutable_values()[i] = -infinity;  // rows 0 and 1 of sample 0
  Array<bool> allowed = Array<bool>::uninitialized({H, L, S});
  for (bool& seen : allowed.mutable_values()) seen = random.uniform() < 0.4;
  return {
      {"nothing", [](Options&) {}},
      {"a key head for each", [](Options&) {}, H},
      {"multi-query", [](Options&) {}, 1},
      {"scale", [](Options& o) { o.scale = -0.7; }},
      {"scale by key", [s = V(random.uniform<double>({S}))](Options& o) { o.scale = s; }},
      {"scale by head", [s = V(random.uniform<double>({H, 1, 1}))](Options& o) { o.scale = s; }},
      {"softcap", [](Options& o) { o.softcap = 0.8; }},
      {"bias", [=](Options& o) { o.bias = bias; }},
      {"bias by row", [b = V(random.normal<double>({L, 1}))](Options& o) { o.bias = b; }},
      {"bias with minus infinity", [=](Options& o) { o.bias = V(infinite); }},
      {"slopes", [](Options& o) { o.slopes = V(alibi_slopes<double>(H)); }},
      {"slopes, offset by sample",
       [](Options& o) { o.slopes = V(alibi_slopes<double>(H)), o.query_offset = each(-2, 6); }},
      {"causal", [](Options& o) { o.mask = Mask::causal(1); }},
      {"causal with empty rows", [](Options& o) { o.mask = Mask::causal(each(-2, 3)); }},
      {"window and lengths", [](Options& o) { o.mask = Mask::window(2, 1, 2) & Mask::lengths(each(S, 4)); }},
      {"documents",
       [](Options& o) {
         o.mask = Mask::documents(Keys::of({{0, 0, 1, 1, 4}, {1, 1, 1, 2, 2}}),
                                  Keys::of({{0, 1, 0, 1, 0, 1, 0, 1, 0}, {1, 1, 1, 1, 1, 2, 2, 2, 2}}));
       }},
      {"allowed", [=](Options& o) { o.mask = Mask::allowed(allowed); }},
      {"allowed by row",
       [](Options& o) {
         o.mask = Mask::allowed(Array<bool>::of({{1}, {0}, {1}, {1}, {1}}));
       }},
      {"norm",
       [=](Options& o) {
         o.norm = QueryKeyNorm<double>{gain, gain};
       }},
      {"rope", [](Options& o) { o.rope = RopeOptions{.start = 3}, o.query_offset = 4; }},
      {"sink", [=](Options& o) { o.sink = sink; }},
      {"sink and empty rows", [=](Options& o) { o.sink = sink, o.mask = Mask::causal(each(-2, 3)); }},
      {"all at once", [=](Options& o) {
         o.norm = QueryKeyNorm<double>{gain, gain}, o.rope = RopeOptions{.start = each(1, 2)};
         o.scale = 0.4, o.softcap = 3, o.bias = bias, o.slopes = V(alibi_slopes<double>(H));
         o.mask = Mask::causal(2) & Mask::allowed(allowed), o.sink = sink;
       }}};
}

Options options_of(const Case& c) {
  Options options;
  c.change(options);
  options.empty_rows = EmptyRows::zero;
  options.log_sum_exp = true;
  return options;
}

// The parts of a split, the sink one of them.
std::vector<Partial> parts_of(const V& query, const V& key, const V& value, const std::vector<Keys>& split,
                              Options options) {
  std::vector<Partial> parts;
  if (options.sink) parts.push_back(sink_part(*options.sink, query.shape().with(-1, value.dim(-1))));
  options.sink.reset();
  for (const Keys& keys : split) parts.push_back(partial_attention(query, key, value, keys, options));
  return parts;
}

TEST(PartialAttention, OfAnySplitInAnyOrderMergesToTheDenseResult) {
  Generator random(32);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Inputs in = random_inputs(33, c.key_heads);
    const Options options = options_of(c);
    const auto dense = attention(V(in.query), V(in.key), V(in.value), options);
    for (int draw = 0; draw < 8; ++draw) {
      const std::vector<Keys> split = random_split(random);
      const Partial all = merged(parts_of(V(in.query), V(in.key), V(in.value), split, options), random);
      EXPECT_NEAR_RELATIVE(all.output(EmptyRows::zero), dense.output, rounding);
      EXPECT_NEAR_RELATIVE(all.log_sum_exp(), *dense.log_sum_exp, rounding);
    }
  }
}

TEST(PartialAttention, OfAnySplitHasTheDenseGradients) {
  Generator random(34);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Inputs in = random_inputs(35, c.key_heads);
    Tape<double> tape;
    const V q = tape.input(in.query), k = tape.input(in.key), v = tape.input(in.value);
    Options options = options_of(c);
    std::vector<V> inputs = {q, k, v};
    auto recorded = [&](const V& x) { return inputs.emplace_back(tape.input(x.value())); };
    if (options.bias) options.bias = recorded(*options.bias);
    if (options.slopes) options.slopes = recorded(*options.slopes);
    if (options.sink) options.sink = recorded(*options.sink);
    if (options.scale.var()) options.scale = recorded(*options.scale.var());
    const V d_output(random.normal<double>({B, H, L, E})), d_lse(random.normal<double>({B, H, L}));
    const auto dense = attention(q, k, v, options);
    const auto expected = gradient_values({dense.output, *dense.log_sum_exp}, inputs, {d_output, d_lse});
    const Partial all = merged(parts_of(q, k, v, random_split(random), options), random);
    const auto actual =
        gradient_values({all.output(EmptyRows::zero), all.log_sum_exp()}, inputs, {d_output, d_lse});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      SCOPED_TRACE("input " + std::to_string(i));
      EXPECT_NEAR_RELATIVE(actual[i], expected[i], rounding);
    }
  }
}

TEST(PartialAttention, HasRightDerivativesToSecondOrder) {
  Generator random(36);
  auto draw = [&](const Shape& shape) { return random.normal<double>(shape); };
  auto in_three_parts = [](const V& query, const V& key, const V& value, const V& sink) {
    Options options;
    options.mask = Mask::causal(0);
    const Partial first = partial_attention(query, key, value, Keys::of({2, 0}), options);
    const Partial last = partial_attention(query, key, value, KeyRange{1, 2}, options);
    return merge(merge(first, last), sink_part(sink, first.weighted.shape())).output();
  };
  EXPECT_GRADIENTS(in_three_parts, {draw({2, 3, 2}), draw({2, 3, 2}), draw({2, 3, 2}), draw({1})});
}

// ---- what a part is

// The three sums of one row by loops.
TEST(PartialAttention, HoldsMaximumSumAndWeightedValuesOfItsKeys) {
  const Inputs in = random_inputs(37);
  const Partial part = part_of(in, Keys::of({7, 2, 4}));
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < L; ++i) {
        double score[3] = {}, largest = -infinity, sum = 0, weighted[E] = {};
        const Index keys[3] = {7, 2, 4};
        for (int j = 0; j < 3; ++j) {
          for (Index d = 0; d < D; ++d) score[j] += in.query(b, h, i, d) * in.key(b, h / 2, keys[j], d) / 2;
          largest = std::max(largest, score[j]);
        }
        for (int j = 0; j < 3; ++j) {
          sum += std::exp(score[j] - largest);
          for (Index e = 0; e < E; ++e) {
            weighted[e] += std::exp(score[j] - largest) * in.value(b, h / 2, keys[j], e);
          }
        }
        EXPECT_NEAR(part.maximum(b, h, i), largest, 1e-14 * 10);
        EXPECT_NEAR(part.sum.value()(b, h, i), sum, 1e-14 * 10);
        for (Index e = 0; e < E; ++e) EXPECT_NEAR(part.weighted.value()(b, h, i, e), weighted[e], 1e-14 * 10);
      }
    }
  }
}

TEST(PartialAttention, OfARangeIsThatOfTheListOfItsKeys) {
  const Inputs in = random_inputs(38);
  auto range = [&](Index first, Index last) {
    return partial_attention(V(in.query), V(in.key), V(in.value), KeyRange{first, last});
  };
  expect_parts(range(3, 6), part_of(in, Keys::of({3, 4, 5})));
  expect_parts(range(0, S), part_of(in, Keys::arange(S)));
  EXPECT_NEAR_RELATIVE(range(0, S).output(), attention(V(in.query), V(in.key), V(in.value)).output, rounding);
}

TEST(PartialAttention, OfOneKeyIsItsValue) {
  const Inputs in = random_inputs(39, H);
  const V value = slice(V(in.value), -2, {4, 5});
  EXPECT_NEAR_RELATIVE(part_of(in, Keys::of({4})).output(), broadcast_to(value, Shape{B, H, L, E}), rounding);
}

TEST(PartialAttention, OfLargeScoresStaysFinite) {
  Inputs in = random_inputs(40);
  for (double& x : in.query.mutable_values()) x *= 1e4;
  const Partial all = merge(part_of(in, Keys::of({0, 3, 5, 7})), part_of(in, Keys::of({1, 2, 4, 6, 8})));
  EXPECT_GT(magnitude(all.maximum), 710);  // exp of it overflows
  EXPECT_NEAR_RELATIVE(all.output(), attention(V(in.query), V(in.key), V(in.value)).output, rounding);
}

TEST(PartialAttention, OfFloatsMergesToTheDenseResultOfFloats) {
  Generator random(41);
  const Var<float> q(random.normal<float>({B, L, D})), k(random.normal<float>({B, S, D})),
      v(random.normal<float>({B, S, E}));
  const auto all =
      merge(partial_attention(q, k, v, KeyRange{0, 4}), partial_attention(q, k, v, KeyRange{4, S}));
  // Sums of a dozen products of numbers near 1, each rounded to 6e-8.
  EXPECT_NEAR_RELATIVE(all.output(), attention(q, k, v).output, 1e-6);
}

TEST(PartialAttention, NamesThePathsOfASharedInputPartByPart) {
  Tape<double> tape;
  const V x = tape.input(Generator(42).normal<double>({S, D}), "X");
  const Partial all =
      merge(partial_attention(x, x, x, KeyRange{0, 4}), partial_attention(x, x, x, KeyRange{4, S}));
  std::vector<std::string> names;
  A total = A::zeros({S, D});
  for (const auto& path : gradient_paths(sum(square(all.output())), x)) {
    names.push_back(path.name);
    total = (V(total) + V(path.gradient)).value();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"query", "key", "value", "query", "key", "value"}));
  Tape<double> other;
  const V y = other.input(x.value());
  EXPECT_NEAR_RELATIVE(total, gradient_values(sum(square(attention(y, y, y).output)), y)[0], rounding);
}

// ---- merge

TEST(Merge, IsCommutativeAndAssociativeUpToRounding) {
  const Inputs in = random_inputs(43);
  const Options options = options_of(cases()[13]);  // some rows see nothing in some parts
  const Partial a = part_of(in, Keys::of({5, 1}), options), b = part_of(in, Keys::of({0, 8, 2}), options),
                c = part_of(in, Keys::of({3, 4, 6, 7}), options);
  expect_parts(merge(a, b), merge(b, a));
  expect_parts(merge(merge(a, b), c), merge(a, merge(b, c)));
}

TEST(Merge, WithAPartOfNoKeysChangesNothing) {
  const Inputs in = random_inputs(44);
  const Partial part = part_of(in, Keys::of({2, 6})), none = part_of(in, Keys::from(std::vector<Index>{}));
  EXPECT_EQ(none.maximum.to_vector(), A::full({B, H, L}, -infinity).to_vector());
  for (const Partial& same : {merge(part, none), merge(none, part)}) {
    EXPECT_SAME_NUMBERS(same.maximum, part.maximum);
    EXPECT_SAME_NUMBERS(same.sum, part.sum);
    EXPECT_SAME_NUMBERS(same.weighted, part.weighted);
  }
  EXPECT_SAME_NUMBERS(merge(none, none).output(EmptyRows::zero), A::zeros({B, H, L, E}));
}

// One row, values 1 and 3, keys with these scores.
Partial one_score(double score, double value) {
  Options options;
  options.scale = 1;
  return partial_attention(V(A::ones({1, 1})), V(A::full({1, 1}, score)), V(A::full({1, 1}, value)),
                           KeyRange{0, 1}, options);
}
// A merge that adds the sums as they are.
double unscaled(const Partial& a, const Partial& b) {
  return ((a.weighted + b.weighted) / (a.sum + b.sum)).item();
}
double softmax_of_two(double s, double x, double t, double y) {
  return (std::exp(s) * x + std::exp(t) * y) / (std::exp(s) + std::exp(t));
}

TEST(Merge, ThatForgetsToRescaleIsWrongWhenTheMaximumRises) {
  const Partial before = one_score(0, 1), risen = one_score(2, 3);
  EXPECT_NEAR(merge(before, risen).output().item(), softmax_of_two(0, 1, 2, 3), rounding);
  EXPECT_NEAR(unscaled(before, risen), 2, rounding);  // the mean, whatever the scores
  EXPECT_GT(std::abs(unscaled(before, risen) - softmax_of_two(0, 1, 2, 3)), 0.7);
}

TEST(Merge, ThatForgetsToRescaleGoesUnnoticedWhenTheMaximumStays) {
  const Partial before = one_score(2, 1), level = one_score(2, 3);
  EXPECT_NEAR(unscaled(before, level), merge(before, level).output().item(), rounding);
}

// The usual loop: new keys are weighed against the maximum so far, and the old sums are rescaled when it
// rises; `rescale` off forgets that.
double online(const std::vector<double>& scores, const std::vector<double>& values, bool rescale) {
  double maximum = -infinity, sum = 0, weighted = 0;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const double higher = std::max(maximum, scores[j]);
    const double old = rescale ? std::exp(maximum - higher) : 1;
    sum = sum * old + std::exp(scores[j] - higher);
    weighted = weighted * old + std::exp(scores[j] - higher) * values[j];
    maximum = higher;
  }
  return weighted / sum;
}

TEST(Merge, OneKeyAtATimeIsTheOnlineLoopAndNotTheOneThatForgets) {
  const std::vector<double> rising = {-1, 0.5, 2, 3}, falling = {3, 2, 0.5, -1}, values = {1, -2, 4, 0.5};
  auto by_merging = [&](const std::vector<double>& scores) {
    Partial all = one_score(scores[0], values[0]);
    for (std::size_t j = 1; j < scores.size(); ++j) all = merge(all, one_score(scores[j], values[j]));
    return all.output().item();
  };
  EXPECT_NEAR(by_merging(rising), online(rising, values, true), rounding);
  EXPECT_NEAR(by_merging(falling), online(falling, values, true), rounding);
  // Forgotten rescaling shows with a rising maximum, and not with one that the first key sets.
  EXPECT_GT(std::abs(online(rising, values, false) - by_merging(rising)), clearly);
  EXPECT_NEAR(online(falling, values, false), by_merging(falling), rounding);
}

TEST(Merge, RejectsPartsOfDifferentRows) {
  const V q(A::ones({2, 3, 4})), k(A::ones({2, 5, 4}));
  const Partial a = partial_attention(q, k, k, KeyRange{0, 2});
  const Partial b = partial_attention(slice(q, -2, {0, 2}), k, k, KeyRange{0, 2});
  EXPECT_TRUE(raises<ShapeError>([&] { merge(a, b); }, {"merge: ", "a (2, 3, 4)", "b (2, 2, 4)"}));
}

// ---- rows without keys, and what is not finite

TEST(PartialAttention, OfRowsWithoutKeysIsAnErrorOrZeroAtTheOutputOnly) {
  const Inputs in = random_inputs(45);
  Options options;
  options.mask = Mask::causal(-1);  // row 0 sees nothing, row 1 key 0
  const Partial late = part_of(in, Keys::of({1, 2, 3}), options), early = part_of(in, Keys::of({0}), options);
  EXPECT_TRUE(raises<DomainError>([&] { late.output(); }, {"no key is allowed: batch 0, head 0, row 0"}));
  for (const Index row : {0, 1}) {
    EXPECT_EQ(late.maximum(1, 2, row), -infinity);
    EXPECT_EQ(late.sum.value()(1, 2, row), 0);
    EXPECT_EQ(late.weighted.value()(1, 2, row, 0), 0);
    EXPECT_FALSE(late.has_key(1, 2, row));
  }
  const Partial both = merge(late, early);
  EXPECT_TRUE(raises<DomainError>([&] { both.output(); }, {"no key is allowed: batch 0, head 0, row 0"}));
  const A output = both.output(EmptyRows::zero).value(), lse = both.log_sum_exp().value();
  for (Index e = 0; e < E; ++e) {
    EXPECT_EQ(output(0, 0, 0, e), 0);
    EXPECT_NEAR(output(1, 3, 1, e), in.value(1, 1, 0, e), rounding);
  }
  EXPECT_EQ(lse(0, 0, 0), -infinity);
  EXPECT_TRUE(std::isfinite(lse(0, 0, 1)));
}

TEST(PartialAttention, LeavesOutNaNInKeysThatNoRowMaySee) {
  Inputs in = random_inputs(46);
  for (Index h = 0; h < 2; ++h) in.key.set({0, h, 8, 0}, nan), in.value.set({0, h, 8, 1}, nan);
  Options options;
  options.mask = Mask::lengths(8);
  const Partial all =
      merge(part_of(in, Keys::of({8, 2, 4, 6}), options), part_of(in, Keys::of({7, 0, 1, 3, 5}), options));
  EXPECT_NEAR_RELATIVE(all.output(), attention(V(in.query), V(in.key), V(in.value), options).output,
                       rounding);
}

TEST(PartialAttention, KeepsRowsWithoutKeysAtZeroBesideAValueThatIsNotANumber) {
  Inputs in = random_inputs(51);
  for (Index e = 0; e < E; ++e) in.value.set({0, 0, 0, e}, nan);
  Options options;
  options.mask = Mask::causal(-1);
  const Partial part = part_of(in, Keys::of({0, 1}), options);
  const A output = merge(part, part_of(in, Keys::of({2, 3}), options)).output(EmptyRows::zero).value();
  EXPECT_EQ(output(0, 0, 0, 0), 0);
  EXPECT_TRUE(std::isnan(output(0, 0, 1, 0)));
}

TEST(PartialAttention, RejectsScoresThatAreNotFinite) {
  Inputs in = random_inputs(47);
  in.key.set({1, 0, 3, 0}, nan);
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        part_of(in, Keys::of({2, 3}));
      },
      {"not a number", "batch 1, head 0, row 0"}));
  EXPECT_NO_THROW(part_of(in, Keys::of({2, 4})));
}

// ---- what is rejected

TEST(PartialAttention, RejectsKeysThatDoNotExistOrComeTwice) {
  const Inputs in = random_inputs(48);
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        part_of(in, Keys::of({0, 9}));
      },
      {"partial_attention: ", "key 9 of 9"}));
  EXPECT_TRUE(raises<DomainError>([&] { part_of(in, Keys::of({-1})); }, {"key -1 of 9"}));
  EXPECT_TRUE(raises<DomainError>([&] { part_of(in, Keys::of({3, 1, 3})); }, {"key 3", "twice"}));
  EXPECT_TRUE(raises<ShapeError>([&] { part_of(in, Keys::of({{3}, {1}})); }, {"a list", "keys (2, 1)"}));
  for (const KeyRange range : {KeyRange{-1, 3}, KeyRange{3, 2}, KeyRange{3, 10}}) {
    EXPECT_TRUE(raises<DomainError>(
        [&] { partial_attention(V(in.query), V(in.key), V(in.value), range); },
        {"keys " + std::to_string(range.first) + " to before " + std::to_string(range.last) + " of 9"}));
  }
}

TEST(PartialAttention, RefusesWhatNoPartHas) {
  const Inputs in = random_inputs(49);
  auto refuses = [&](std::function<void(Options&)> change, std::string_view what) {
    Options options;
    change(options);
    return raises<LogicError>([&] { part_of(in, Keys::of({0}), options); }, {"partial_attention: ", what});
  };
  EXPECT_TRUE(refuses([](Options& o) { o.sink = V(A::zeros({H})); }, "sink_part"));
  EXPECT_TRUE(refuses([](Options& o) { o.dropout = Dropout{0.1, Generator(1)}; }, "dropout"));
  EXPECT_TRUE(refuses([](Options& o) { o.kept = true; }, "dropout"));
  EXPECT_TRUE(refuses([](Options& o) { o.weights = true; }, "weights"));
  EXPECT_TRUE(refuses([](Options& o) { o.statistics = true; }, "statistics"));
  EXPECT_TRUE(refuses([](Options& o) { o.scaled_scores = true; }, "scores"));
  EXPECT_TRUE(refuses([](Options& o) { o.capped_scores = true; }, "scores"));
  EXPECT_TRUE(refuses([](Options& o) { o.masked_scores = true; }, "scores"));
  EXPECT_TRUE(refuses([](Options& o) { o.kernel = AttentionKernel::fused; }, "composed of ops"));
}

TEST(PartialAttention, RejectsOptionsThatDoNotFitAllTheKeys) {
  const Inputs in = random_inputs(50);
  auto rejects = [&](std::function<void(Options&)> change, std::string_view what) {
    Options options;
    change(options);
    // Of 3 keys, so that what fits the part only is seen to be rejected.
    return raises<ShapeError>(
        [&] {
          part_of(in, Keys::of({0, 1, 2}), options);
        },
        {what, "scores (2, 4, 5, 9)"});
  };
  EXPECT_TRUE(rejects([](Options& o) { o.bias = V(A::zeros({L, 3})); }, "bias"));
  EXPECT_TRUE(rejects([](Options& o) { o.scale = V(A::ones({3})); }, "scale"));
  EXPECT_TRUE(rejects([](Options& o) { o.slopes = V(A::ones({2})); }, "slopes"));
  EXPECT_TRUE(rejects([](Options& o) { o.mask = Mask::allowed(Array<bool>::full({3}, true)); }, "mask"));
  EXPECT_TRUE(rejects(
      [](Options& o) {
        o.slopes = V(A::ones({H}));
        o.query_offset = PerSample(Array<Index>::of({1, 2, 3}));
      },
      "query_offset"));
}

TEST(PartialAttention, RejectsShapesAsAttentionDoes) {
  const V q(A::ones({2, 3, 4}));
  auto rejects = [&](const Shape& key, const Shape& value, std::string_view what) {
    return raises<ShapeError>(
        [&] {
          partial_attention(q, V(A::ones(key)), V(A::ones(value)), KeyRange{0, 1});
        },
        {"partial_attention: ", what, "query (2, 3, 4)", "key " + to_string(key)});
  };
  EXPECT_TRUE(rejects({2, 5, 3}, {2, 5, 3}, "widths"));
  EXPECT_TRUE(rejects({2, 5, 4}, {2, 6, 4}, "lengths"));
  EXPECT_TRUE(rejects({3, 5, 4}, {3, 5, 4}, "leading axes"));
}

TEST(SinkPart, IsRejectedWhenItDoesNotFitOrIsNotFinite) {
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        sink_part(V(A::ones({3})), {2, 4, 5, 6});
      },
      {"sink_part: ", "sink (3)", "output (2, 4, 5, 6)"}));
  EXPECT_TRUE(raises<ShapeError>([] { sink_part(V(A::ones({2})), {2, 5, 6}); }, {"sink (2)"}));
  EXPECT_TRUE(raises<DomainError>([] { sink_part(V(A::full({1}, infinity)), {2, 5, 6}); }, {"not finite"}));
}

}  // namespace
}  // namespace tapehead
