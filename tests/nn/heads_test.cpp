// Heads of queries that share those of keys: neighbours share, and a shared head gets the gradient of all.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;

// Sums of a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;
// What a mistake must differ by to count as seen.
constexpr double visible = 1e-3;

// Output and the gradients of query, key and value.
struct Numbers {
  A output, dquery, dkey, dvalue;
};

testing::AssertionResult agree(const Numbers& actual, const Numbers& expected, double tolerance) {
  const std::pair<const char*, A Numbers::*> parts[] = {{"output", &Numbers::output},
                                                        {"dquery", &Numbers::dquery},
                                                        {"dkey", &Numbers::dkey},
                                                        {"dvalue", &Numbers::dvalue}};
  for (const auto& [name, part] : parts) {
    const auto result = agree(actual.*part, expected.*part, tolerance);
    if (!result) return testing::AssertionFailure() << name << ": " << result.message();
  }
  return testing::AssertionSuccess();
}

struct Inputs {
  A query, key, value, upstream;
};
Inputs random_inputs(const Shape& batch, Index heads, Index key_heads) {
  Generator random(1);
  auto draw = [&](Index h, Index rows, Index columns) {
    return random.normal<double>(batch.followed_by({h, rows, columns}));
  };
  return {draw(heads, 4, 5), draw(key_heads, 6, 5), draw(key_heads, 6, 3), draw(heads, 4, 3)};
}

Numbers grouped(const Inputs& in, const Options& options) {
  Tape<double> tape;
  const V query = tape.input(in.query), key = tape.input(in.key), value = tape.input(in.value);
  const V output = attention(query, key, value, options).output;
  const auto d = gradient_values(output, {query, key, value}, V(in.upstream));
  return {output.value(), d[0], d[1], d[2]};
}

// Query head h in a call of its own, with the key head that `reads` says. A mask, bias or number a head is
// cut by `options_of`.
template <class Reads, class OptionsOf>
Numbers head_by_head(const Inputs& in, Reads reads, OptionsOf options_of) {
  Tape<double> tape;
  const V query = tape.input(in.query), key = tape.input(in.key), value = tape.input(in.value);
  std::vector<V> outputs;
  for (Index h = 0; h < in.query.dim(-3); ++h) {
    auto one = [](const V& x, Index head) { return slice(x, -3, {head, head + 1}); };
    outputs.push_back(
        attention(one(query, h), one(key, reads(h)), one(value, reads(h)), options_of(h)).output);
  }
  const V output = concat(outputs, -3);
  const auto d = gradient_values(output, {query, key, value}, V(in.upstream));
  return {output.value(), d[0], d[1], d[2]};
}

TEST(GroupedHeads, AreThoseOfCallsHeadByHead) {
  for (const Shape& batch : {Shape{2}, Shape{1}, Shape{2, 3}, Shape{2, 1, 2, 1}}) {
    for (const auto& [heads, key_heads] : {std::pair<Index, Index>{6, 6}, {6, 3}, {6, 2}, {6, 1}, {1, 1}}) {
      const Inputs in = random_inputs(batch, heads, key_heads);
      const Index group = heads / key_heads;
      for (const Options& options : {Options{}, Options{.mask = Mask::causal(1)}}) {
        const Numbers numbers = grouped(in, options);
        auto same = [&](Index) { return options; };
        auto neighbours = [group](Index h) { return h / group; };
        auto tiled = [count = in.key.dim(-3)](Index h) { return h % count; };
        EXPECT_TRUE(agree(numbers, head_by_head(in, neighbours, same), rounding))
            << to_string(batch) << ", " << heads << " on " << key_heads;
        const bool other = group > 1 && key_heads > 1;
        EXPECT_EQ(static_cast<bool>(agree(numbers, head_by_head(in, tiled, same), visible)), !other);
      }
    }
  }
}

// Everything that is one a query head, with shared keys.
TEST(GroupedHeads, HaveTheirOwnMaskBiasSlopesScaleAndSink) {
  const Inputs in = random_inputs({2}, 6, 2);
  Generator random(2);
  const V bias = random.normal<double>({6, 4, 6}), slopes = random.uniform<double>({6}),
          sink = random.normal<double>({6}), scale = random.uniform<double>({6, 1, 1}, 0.2, 0.8);
  Array<bool> allowed = random.integers({6, 4, 6}, 3).cast<bool>();
  for (Index row = 0; row < 24; ++row) allowed.mutable_values()[static_cast<std::size_t>(6 * row)] = true;
  auto head = [](const auto& x, Index h) { return slice(x, 0, {h, h + 1}); };
  const V kept(allowed.cast<double>());
  auto of_head = [&](Index h) {
    return Options{.scale = head(scale, h),
                   .bias = head(bias, h),
                   .slopes = head(slopes, h),
                   .mask = Mask::allowed(head(kept, h).value().cast<bool>()),
                   .sink = head(sink, h)};
  };
  const Options all{
      .scale = scale, .bias = bias, .slopes = slopes, .mask = Mask::allowed(allowed), .sink = sink};
  auto reads = [](Index h) { return h / 3; };
  EXPECT_TRUE(agree(grouped(in, all), head_by_head(in, reads, of_head), rounding));
  auto shifted = [&](Index h) { return of_head((h + 1) % 6); };
  EXPECT_FALSE(agree(grouped(in, all), head_by_head(in, reads, shifted), visible));
}

TEST(GroupedHeads, AreRepeatedNeighbours) {
  const Inputs in = random_inputs({2}, 6, 2);
  Tape<double> tape;
  const V key = tape.input(in.key);
  const V repeated =
      attention(V(in.query), repeat_interleave(key, 3, 1), repeat_interleave(V(in.value), 3, 1)).output;
  const Numbers numbers = grouped(in, {});
  EXPECT_NEAR_RELATIVE(repeated, numbers.output, rounding);
  EXPECT_NEAR_RELATIVE(gradient_values(repeated, key, V(in.upstream))[0], numbers.dkey, rounding);
}

TEST(GroupedHeads, ThatDoNotDivideAreAnError) {
  for (const auto& [heads, key_heads] : {std::pair<Index, Index>{6, 4}, {2, 6}, {6, 0}, {1, 2}}) {
    const Shape query{2, heads, 4, 5}, key{2, key_heads, 6, 5}, value{2, key_heads, 6, 3};
    EXPECT_TRUE(raises<ShapeError>([&] { attention(V(A::ones(query)), V(A::ones(key)), V(A::ones(value))); },
                                   {"attention: the heads", "query " + to_string(query),
                                    "key " + to_string(key), "value " + to_string(value)}))
        << heads << ", " << key_heads;
  }
}

TEST(OneHead, OfRankThreeIsThatOfRankFour) {
  const Inputs in = random_inputs({2}, 1, 1);
  auto flat = [](const A& x) { return x.reshape({2, x.dim(-2), x.dim(-1)}); };
  const Inputs three{flat(in.query), flat(in.key), flat(in.value), flat(in.upstream)};
  const Options options{.slopes = V(A::of({0.3})), .mask = Mask::causal(1), .sink = V(A::of({0.2}))};
  const Numbers a = grouped(in, options), b = grouped(three, options);
  EXPECT_SAME_NUMBERS(flat(a.output), b.output);
  EXPECT_SAME_NUMBERS(flat(a.dkey), b.dkey);
}

// (B, L, H D) holds the heads of a token one after another; cut as if it were (B, H, L, D) it is another
// layer.
TEST(SplitHeads, GoTokenByToken) {
  Generator random(3);
  const V query = random.normal<double>({2, 4, 6 * 5}), key = random.normal<double>({2, 6, 2 * 5}),
          value = random.normal<double>({2, 6, 2 * 3});
  const V joined =
      merge_heads(attention(split_heads(query, 6), split_heads(key, 2), split_heads(value, 2)).output);
  for (Index h = 0; h < 6; ++h) {
    const Index g = h / 3;
    auto columns = [](const V& x, Index head, Index width) {
      return slice(x, -1, {head * width, (head + 1) * width});
    };
    const V one = attention(columns(query, h, 5), columns(key, g, 5), columns(value, g, 3)).output;
    EXPECT_NEAR_RELATIVE(columns(joined, h, 3), one, rounding);
  }
  const V wrong =
      attention(reshape(query, {2, 6, 4, 5}), reshape(key, {2, 2, 6, 5}), reshape(value, {2, 2, 6, 3}))
          .output;
  EXPECT_FALSE(agree(merge_heads(wrong), joined, visible));
}

}  // namespace
}  // namespace tapehead
