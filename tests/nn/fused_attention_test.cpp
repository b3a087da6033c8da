// The fused kernel as attention uses it, against the composition: the kernel's own loops are held to formulas
// in tests/ops.
#include <tapehead/nn/attention.h>

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>

#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/print.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/reduction.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Case {
  A query, key, value, upstream, upstream_lse;
  Options options;
};

Array<bool> some(Generator& random, const Shape& shape, Index of_ten) {
  auto keys = Array<bool>::uninitialized(shape);
  for (bool& key : keys.mutable_values()) key = random.below(10) < of_ten;
  return keys;
}

// Numbers for each sample, or one for all.
PerSample positions(Generator& random, Index samples, Index low, Index high) {
  if (random.below(2) == 0) return low + random.below(high - low + 1);
  auto each = Array<Index>::uninitialized({samples});
  for (Index& x : each.mutable_values()) x = low + random.below(high - low + 1);
  return each;
}

// Any options that the kernel takes, each in about a third of the draws; `used` counts them.
Case drawn(std::uint64_t seed, std::map<std::string, int>& used) {
  Generator random(seed);
  auto with = [&](const char* option) {
    const bool yes = random.below(3) == 0;
    used[option] += yes;
    return yes;
  };
  const Index B = 1 + random.below(3), Hk = 1 + random.below(3), H = Hk * (1 + random.below(3)),
              L = 1 + random.below(9), S = 1 + random.below(300), D = 1 + random.below(20),
              E = 1 + random.below(20);
  Case c;
  const bool one_head = with("rank 3");
  const Shape scores = one_head ? Shape{B, L, S} : Shape{B, H, L, S};
  const Index heads = one_head ? 1 : H;
  const Shape keys = one_head ? Shape{B} : Shape{B, Hk};
  c.query = random.normal<double>(scores.with(-1, D));
  c.key = random.normal<double>(keys.followed_by({S, D}));
  c.value = random.normal<double>(keys.followed_by({S, E}));
  c.upstream = random.normal<double>(scores.with(-1, E));
  c.upstream_lse = random.normal<double>(scores.without(-1));
  Options& o = c.options;
  o.empty_rows = EmptyRows::zero;
  if (with("scale")) o.scale = random.uniform();
  if (with("softcap")) o.softcap = 0.5 + 3 * random.uniform();
  if (with("bias")) {
    const Shape shapes[] = {scores, scores.with(0, 1), scores.with(-2, 1), scores.last(2), scores.last(1)};
    o.bias = V(random.normal<double>(shapes[random.below(5)]));
    if (with("infinite bias")) {
      A bias = o.bias->value();
      for (double& x : bias.mutable_values()) x = random.below(4) == 0 ? -infinity : x;
      o.bias = V(bias);
    }
  }
  if (with("slopes")) o.slopes = V(random.uniform<double>({heads}));
  if (with("sink")) o.sink = V(random.normal<double>({heads}));
  o.query_offset = positions(random, B, -2, 5);
  if (with("causal")) o.mask = o.mask & Mask::causal(positions(random, B, -2, S));
  if (with("window")) {
    o.mask = o.mask & Mask::window(random.below(S), random.below(2) ? Mask::unbounded : random.below(S),
                                   positions(random, B, 0, S));
  }
  if (with("lengths")) o.mask = o.mask & Mask::lengths(positions(random, B, 0, S));
  if (with("documents")) {
    o.mask = o.mask & Mask::documents(random.integers({B, L}, 2), random.integers({B, S}, 2));
  }
  if (with("allowed")) o.mask = o.mask & Mask::allowed(some(random, scores.with(0, 1), 8));
  if (with("allowed prefix")) o.mask = o.mask & Mask::allowed_prefix(some(random, {1 + random.below(S)}, 8));
  if (with("dropout")) o.dropout = Dropout{0.3, Generator(seed).split("dropout")};
  return c;
}

struct Evaluated {
  A output, lse;
  std::vector<A> gradients;  // of query, key, value, and of bias, slopes and sink when there are any
  std::string_view computed_by;
};

Evaluated evaluated(const Case& c, AttentionKernel kernel, bool with_lse = true) {
  Tape<double> tape;
  Options o = c.options;
  o.kernel = kernel;
  o.log_sum_exp = with_lse;
  std::vector<V> sources = {tape.input(c.query), tape.input(c.key), tape.input(c.value)};
  for (auto* option : {&o.bias, &o.slopes, &o.sink}) {
    if (!*option) continue;
    *option = tape.input((*option)->value());
    sources.push_back(**option);
  }
  const auto result = attention(sources[0], sources[1], sources[2], o);
  Evaluated e{result.output.value(), {}, {}, result.computed_by};
  std::vector<V> outputs = {result.output}, upstream = {V(c.upstream)};
  if (with_lse) {
    e.lse = result.log_sum_exp->value();
    outputs.push_back(*result.log_sum_exp);
    upstream.push_back(V(c.upstream_lse));
  }
  e.gradients = gradient_values(Vars<double>(outputs), Vars<double>(sources), Vars<double>(upstream));
  return e;
}

// Scores reach a few dozen, and a unit in the last place of them is 4e-15 in every weight.
constexpr double rounding = 1e-12;

// A gradient of scores is a difference of terms of this size, and may be 0 (with one key it is).
double size_of_terms(const Case& c) {
  return magnitude(c.upstream) * magnitude(c.value) * std::max(magnitude(c.key), magnitude(c.query));
}

testing::AssertionResult near(const A& actual, const A& expected, double size) {
  const double error = absolute_error(actual, expected);
  if (error <= rounding * std::max(size, magnitude(expected))) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "off by " << error << "\n" << actual << "\nexpected\n" << expected;
}

TEST(FusedAttention, IsTheCompositionForAllOptionsItTakes) {
  std::map<std::string, int> used;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const Case c = drawn(seed, used);
    const bool with_lse = seed % 2 == 0;
    const Evaluated composed = evaluated(c, AttentionKernel::composed, with_lse);
    const Evaluated fused = evaluated(c, AttentionKernel::fused, with_lse);
    ASSERT_EQ(fused.computed_by, "fused");
    ASSERT_TRUE(near(fused.output, composed.output, 0)) << "draw " << seed;
    ASSERT_TRUE(near(fused.lse, composed.lse, 0)) << "draw " << seed;
    for (std::size_t i = 0; i < composed.gradients.size(); ++i) {
      ASSERT_TRUE(near(fused.gradients[i], composed.gradients[i], size_of_terms(c)))
          << "draw " << seed << ", gradient " << i;
    }
  }
  for (const auto& [option, count] : used) EXPECT_GT(count, 30) << option;
}

TEST(FusedAttention, HasTheSecondDerivativesOfTheComposition) {
  std::map<std::string, int> used;
  for (std::uint64_t seed = 1001; seed <= 1060; ++seed) {
    const Case c = drawn(seed, used);
    auto second = [&](AttentionKernel kernel) {
      Tape<double> tape;
      Options o = c.options;
      o.kernel = kernel;
      std::vector<V> x = {tape.input(c.query), tape.input(c.key), tape.input(c.value)};
      for (auto* option : {&o.bias, &o.slopes, &o.sink}) {
        if (!*option) continue;
        *option = tape.input((*option)->value());
        x.push_back(**option);
      }
      const V upstream = tape.input(c.upstream);
      const auto first = gradient(attention(x[0], x[1], x[2], o).output, Vars<double>(x), upstream);
      V along(A::scalar(0));
      for (const V& d : first) along = along + sum(sin(d));
      x.push_back(upstream);
      return gradient_values(along, Vars<double>(x));
    };
    const auto composed = second(AttentionKernel::composed), fused = second(AttentionKernel::fused);
    const double terms = size_of_terms(c);
    for (std::size_t i = 0; i < composed.size(); ++i) {
      ASSERT_TRUE(near(fused[i], composed[i], terms * terms)) << "draw " << seed << ", input " << i;
    }
  }
}

TEST(FusedAttention, OfOneVarAsAllThreeHasTheGradientOfEachPlace) {
  const A x = Generator(2).normal<double>({2, 5, 3}), upstream = Generator(3).normal<double>({2, 5, 3});
  auto derivatives = [&](AttentionKernel kernel) {
    Tape<double> tape;
    const V v = tape.input(x);
    const V output = attention(v, v, v, {.mask = Mask::causal(), .kernel = kernel}).output;
    const V first = gradient(output, v, V(upstream))[0];
    return std::array{first.value(), gradient_values(sum(first * first), v)[0]};
  };
  const auto composed = derivatives(AttentionKernel::composed), fused = derivatives(AttentionKernel::fused);
  EXPECT_NEAR_RELATIVE(fused[0], composed[0], rounding);
  EXPECT_NEAR_RELATIVE(fused[1], composed[1], rounding);
}

TEST(FusedAttention, KeepsTheNamesOfThePaths) {
  Tape<double> tape;
  const V x = tape.input(Generator(4).normal<double>({5, 3}));
  std::vector<std::string> names;
  for (const auto& path : gradient_paths(sum(attention(x, x, x).output), x)) names.push_back(path.name);
  EXPECT_EQ(names, (std::vector<std::string>{"query", "key", "value"}));
}

// ---- Which one ran, and why

struct Chosen {
  std::string_view computed_by, remark;
};
Chosen chosen(const Options& options, const Shape& leading = {2, 2}) {
  Tape<double> tape;
  const A x = Generator(5).normal<double>(leading.followed_by({3, 4}));
  const V q = tape.input(x);
  const auto result = attention(q, V(x), V(x), options);
  return {result.computed_by, tape.remark_of(Tape<double>::index_of("test", result.output))};
}

TEST(AttentionKernelChoice, IsOnTheTapeWithItsReason) {
  const Dropout given{0.5, Array<bool>::ones({3, 3})};
  const std::pair<Options, const char*> cases[] = {
      {{}, "fused"},
      {{.kernel = AttentionKernel::fused}, "fused"},
      {{.log_sum_exp = true}, "fused"},
      {{.kernel = AttentionKernel::composed}, "composed: asked for"},
      {{.weights = true}, "composed: the weights are wanted"},
      {{.masked_scores = true}, "composed: scores are wanted"},
      {{.statistics = true}, "composed: statistics are wanted"},
      {{.scale = V(A::ones({1}))}, "composed: the scale is a Var"},
      {{.dropout = given}, "composed: the mask of dropout is given or wanted"},
      {{.mask = Mask::documents(Array<Index>::zeros({3}), Array<Index>::zeros({3})) &
                Mask::documents(Array<Index>::zeros({3}), Array<Index>::zeros({3}))},
       "composed: the mask has two sets of documents"},
  };
  for (const auto& [options, why] : cases) {
    EXPECT_EQ(chosen(options).computed_by, why);
    EXPECT_EQ(chosen(options).remark, why);
  }
  const Options uneven{.bias = V(A::zeros({2, 1, 1, 3, 3}))};
  EXPECT_EQ(chosen(uneven, {2, 2, 2}).computed_by,
            "composed: the bias repeats along some of several leading axes");
  const Options allowed{.mask = Mask::allowed(Array<bool>::ones({2, 1, 2, 3, 3}))};
  EXPECT_EQ(chosen(allowed, {2, 2, 2}).computed_by,
            "composed: a mask repeats along some of several leading axes");
}

TEST(AttentionKernelChoice, IsPrintedWithTheTape) {
  Tape<double> tape;
  const V x = tape.input(Generator(5).normal<double>({3, 4}));
  attention(x, x, x, {.weights = true});
  EXPECT_NE(to_string(tape).find("composed: the weights are wanted"), std::string::npos);
}

TEST(AttentionKernelChoice, OfTheKernelForWhatItCannotDoIsAnErrorThatSaysWhy) {
  EXPECT_TRUE(raises<DomainError>([] { chosen({.weights = true, .kernel = AttentionKernel::fused}); },
                                  {"attention", "fused kernel", "the weights are wanted"}));
}

// ---- What is not finite

TEST(FusedAttention, NamesARowAsTheCompositionDoes) {
  const A x = Generator(6).normal<double>({2, 3, 4, 5});
  auto message = [&](const A& query, const Mask& mask, AttentionKernel kernel) -> std::string {
    try {
      attention(V(query), V(x), V(x), {.mask = mask, .kernel = kernel});
    } catch (const DomainError& error) {
      return error.what();
    }
    return "no error";
  };
  A nan = x, large = x;
  nan.set({1, 2, 3, 0}, std::numeric_limits<double>::quiet_NaN());
  large.set({1, 0, 2, 4}, infinity);
  for (const auto& [query, mask] :
       {std::pair(x, Mask::causal(-1)), std::pair(nan, Mask()), std::pair(large, Mask())}) {
    const std::string expected = message(query, mask, AttentionKernel::composed);
    EXPECT_NE(expected, "no error");
    EXPECT_EQ(message(query, mask, AttentionKernel::fused), expected);
  }
}

// Key 2 is seen by no row: hidden by a mask, by a length, or by a bias.
TEST(FusedAttention, IsNotTouchedByWhatAKeyThatNoRowSeesHolds) {
  Generator random(7);
  A x = random.normal<double>({1, 2, 3, 4});
  A bias = A::zeros({3});
  bias.set({2}, -infinity);
  const Array<bool> keys = Array<bool>::of({true, true, false});
  for (const Options& hidden :
       {Options{.mask = Mask::allowed(keys)}, Options{.mask = Mask::lengths(2)}, Options{.bias = V(bias)}}) {
    auto results = [&](double held) {
      A key = x, value = x;
      for (Index h = 0; h < 2; ++h) {
        for (Index d = 0; d < 4; ++d) key.set({0, h, 2, d}, held), value.set({0, h, 2, d}, held);
      }
      Tape<double> tape;
      Options o = hidden;
      o.kernel = AttentionKernel::fused;
      const std::vector<V> in = {tape.input(x), tape.input(key), tape.input(value)};
      const V output = attention(in[0], in[1], in[2], o).output;
      auto all = gradient_values(sum(output * output), Vars<double>(in));
      all.push_back(output.value());
      return all;
    };
    const auto clean = results(0);
    for (const double held : {std::numeric_limits<double>::quiet_NaN(), infinity}) {
      const auto poisoned = results(held);
      for (std::size_t i = 0; i < clean.size(); ++i) EXPECT_TRUE(same_bits(poisoned[i], clean[i])) << i;
    }
  }
}

// ---- Memory

// Bytes that forward and backward take beside inputs, output and gradients.
double extra_bytes(Index length, AttentionKernel kernel) {
  Generator random(8);
  Tape<float> tape;
  std::vector<Var<float>> x;
  for (int i = 0; i < 3; ++i) x.push_back(tape.input(random.normal<float>({length, 64})));
  const Var<float> upstream(random.normal<float>({length, 64}));
  reset_memory_peak();
  const auto live = memory_statistics().live;
  const auto output = attention(x[0], x[1], x[2], {.mask = Mask::causal(), .kernel = kernel}).output;
  const auto d = gradient_values(output, Vars<float>(x), upstream);
  return static_cast<double>(memory_statistics().peak - live) - 4.0 * static_cast<double>(d[0].bytes());
}

TEST(FusedAttention, TakesMemoryThatIsLinearInTheLength) {
  const double scores = 1024 * 1024 * sizeof(float);
  EXPECT_GT(extra_bytes(1024, AttentionKernel::composed), scores);
  EXPECT_LT(extra_bytes(1024, AttentionKernel::fused), scores / 16);
  EXPECT_LT(extra_bytes(2048, AttentionKernel::fused), scores / 8);  // of scores four times as many
}

// ---- Threads

TEST(FusedAttention, GivesTheSameBitsOnAnyNumberOfThreads) {
  std::map<std::string, int> used;
  for (std::uint64_t seed = 11; seed <= 13; ++seed) {
    const Case c = drawn(seed, used);
    auto on = [&](int threads) {
      const Threads count(threads);
      return evaluated(c, AttentionKernel::fused);
    };
    const Evaluated one = on(1);
    for (const int threads : {2, 3}) {
      const Evaluated several = on(threads);
      EXPECT_TRUE(same_bits(several.output, one.output));
      for (std::size_t i = 0; i < one.gradients.size(); ++i) {
        EXPECT_TRUE(same_bits(several.gradients[i], one.gradients[i])) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tapehead
