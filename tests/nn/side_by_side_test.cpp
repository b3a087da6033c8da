// Heads that lie side by side in a row, read and written where they lie by the fused kernel, against the
// composition, which sets them apart.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/paths.h>
#include <tapehead/nn/multi_head_attention.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/model_gradients.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;
using Attention = MultiHeadAttention<double>;

// Sums of at most a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr Index B = 2, H = 4, Hk = 2, L = 5, width = 12;

Attention layer_of(Index key_heads = Hk) {
  Generator random(1);
  return with_random_parameters(Attention::initial(random, width, H, {.key_heads = key_heads, .bias = true}),
                                2, 0.5);
}

A random_array(std::uint64_t seed, const Shape& shape) { return Generator(seed).normal<double>(shape); }

Options masked_by(const Mask& mask) {
  Options options;
  options.mask = mask;
  return options;
}

// Output, its gradients in x and all parameters, and second derivatives along a direction.
std::vector<A> derivatives(const Attention& layer, const A& at, Options options, AttentionKernel kernel) {
  options.kernel = kernel;
  Tape<double> tape;
  const Attention recorded = on_tape(tape, layer);
  std::vector<V> inputs = parameters<double>(recorded);
  inputs.push_back(tape.input(at));
  const V y = recorded(inputs.back(), options).output;
  const V loss = sum(y * y);
  std::vector<A> results = gradient_values(Vars<double>(loss), Vars<double>(inputs));
  V along = V(A::scalar(0));
  std::uint64_t seed = 3;
  for (const V& d : gradient(Vars<double>(loss), Vars<double>(inputs))) {
    along = along + sum(d * V(random_array(seed++, d.shape())));
  }
  for (const A& d : gradient_values(Vars<double>(along), Vars<double>(inputs))) results.push_back(d);
  results.push_back(y.value());
  return results;
}

TEST(SideBySide, GivesWhatTheCompositionGivesOfHeadsSetApart) {
  Options everything = masked_by(Mask::causal(0) & Mask::lengths(Array<Index>::of({5, 3})));
  everything.bias = V(random_array(4, {H, L, L}));
  everything.slopes = V(alibi_slopes<double>(H));
  everything.sink = V(random_array(5, {H}));
  everything.softcap = 4;
  everything.dropout = Dropout{0.3, Generator(6)};
  Options with_empty_rows = masked_by(Mask::lengths(Array<Index>::of({5, 0})));
  with_empty_rows.empty_rows = EmptyRows::zero;
  const struct {
    Shape shape;
    Options options;
    Index key_heads;
  } cases[] = {{{L, width}, masked_by(Mask::causal(0)), H},
               {{B, L, width}, {}, H},
               {{B, L, width}, everything, Hk},
               {{B, L, width}, with_empty_rows, 1},
               {{3, B, L, width}, masked_by(Mask::causal(0)), Hk},
               {{B, 1, width}, {}, Hk}};
  for (const auto& [shape, options, key_heads] : cases) {
    const A x = random_array(7, shape);
    const auto fused = derivatives(layer_of(key_heads), x, options, AttentionKernel::fused);
    const auto composed = derivatives(layer_of(key_heads), x, options, AttentionKernel::composed);
    ASSERT_EQ(fused.size(), composed.size());
    // What is left of a gradient is rounded as the terms that cancel in it, a bias of the keys' most of all.
    double largest = 1;
    for (const A& one : composed) largest = std::max(largest, magnitude(one));
    for (std::size_t i = 0; i < fused.size(); ++i) {
      EXPECT_LE(absolute_error(fused[i], composed[i]), rounding * largest)
          << to_string(shape) << ", result " << i;
    }
  }
}

TEST(SideBySide, SetsNoHeadApartAndSaysWhatComputedIt) {
  auto recorded_by = [](const Options& options) {
    Tape<double> tape;
    const V x = tape.input(random_array(8, {B, L, width}));
    const auto result = layer_of()(x, options);
    std::vector<std::string> ops;
    std::string remark;
    for (Index i = 0; i < tape.size(); ++i) {
      ops.emplace_back(tape.node(i).op);
      remark += tape.remark_of(i);
    }
    EXPECT_EQ(remark, result.computed_by);
    return std::pair(ops, remark);
  };
  const auto [ops, remark] = recorded_by(masked_by(Mask::causal(0)));
  EXPECT_EQ(ops, (std::vector<std::string>{"input", "projection", "projection", "projection", "port", "port",
                                           "port", "fused_attention", "projection"}));
  EXPECT_EQ(remark, "fused");
  const auto [more_ops, why] = recorded_by({.weights = true});
  EXPECT_EQ(std::count(more_ops.begin(), more_ops.end(), "transpose"), 4);
  EXPECT_EQ(why, "composed: the weights are wanted");
}

TEST(SideBySide, NamesThePathsOfAnInput) {
  Tape<double> tape;
  const V x = tape.input(random_array(9, {B, L, width}));
  const V loss = sum(layer_of()(x).output);
  std::vector<std::string> names;
  A total = A::zeros(x.shape());
  for (const auto& path : gradient_paths(loss, x)) {
    names.push_back(path.name);
    total = (V(total) + V(path.gradient)).value();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"query", "key", "value"}));
  EXPECT_NEAR_RELATIVE(total, gradient_values(loss, x)[0], rounding);
}

// Row 1 of the second sample may see nothing, and holds NaN: nothing of it reaches the others.
TEST(SideBySide, LeavesOutARowWithoutAKeyWhateverItHolds) {
  auto gradients = [](double held) {
    Array<bool> allowed = Array<bool>::full({B, 1, L, L}, true);
    for (Index j = 0; j < L; ++j) allowed.set({1, 0, 1, j}, false);
    Options options = masked_by(Mask::allowed(allowed));
    options.empty_rows = EmptyRows::zero;
    const Attention layer = layer_of();
    A query = random_array(10, {B, L, width});
    for (Index i = 0; i < width; ++i) query.set({1, 1, i}, held);
    const V source = random_array(11, {B, L, width});
    Attention bare = layer;
    bare.out.reset();
    Tape<double> tape;
    const V x = tape.input(query), y = tape.input(source.value());
    const V output = bare(x, y, options).output;
    for (Index i = 0; i < width; ++i) EXPECT_EQ(output.value()(1, 1, i), 0);
    A seed = random_array(12, output.shape());
    for (Index i = 0; i < width; ++i) seed.set({1, 1, i}, held);
    return gradient_values(output, y, V(seed))[0];
  };
  EXPECT_SAME_NUMBERS(gradients(nan), gradients(0));
}

TEST(SideBySide, NamesARowAsTheCompositionDoes) {
  for (const AttentionKernel kernel : {AttentionKernel::fused, AttentionKernel::composed}) {
    Options options = masked_by(Mask::lengths(Array<Index>::of({3, 0})));
    options.kernel = kernel;
    EXPECT_TRUE(raises<DomainError>(
        [&] {
          layer_of()(V(random_array(13, {B, L, width})), options);
        },
        {"attention", "no key is allowed", "batch 1"}));
  }
}

TEST(SideBySide, GivesTheSameBitsOnAnyNumberOfThreads) {
  Generator random(14);
  const auto layer = MultiHeadAttention<float>::initial(random, 32, 4, {.bias = true});
  const Array<float> x = random.normal<float>({3, 70, 32});
  expect_same_bits_on_any_threads([&] {
    Tape<float> tape;
    const MultiHeadAttention<float> recorded = on_tape(tape, layer);
    const Var<float> in = tape.input(x);
    AttentionOptions<float> options;
    options.mask = Mask::causal(0);
    const Var<float> y = recorded(in, options).output;
    std::vector<Var<float>> inputs = parameters<float>(recorded);
    inputs.push_back(in);
    auto results = gradient_values(Vars<float>(sum(y * y)), Vars<float>(inputs));
    results.push_back(y.value());
    return results;
  });
}

}  // namespace
}  // namespace tapehead
