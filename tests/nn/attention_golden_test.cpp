// Every case sdpa_* of tests/data/golden, and additive_attention: PyTorch's output, weights and gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/nn/attention.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/golden.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();

// Sums of a few dozen products of numbers near 1, each rounded to 1.1e-16.
constexpr double rounding = 1e-12;
// What a mistake must differ by to count as seen.
constexpr double visible = 1e-3;

struct Case {
  const char* name;
  Mask mask = {};   // what the Boolean array of the file says, in words
  Mask wrong = {};  // its nearest neighbour
};
void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

const auto document_ids = Array<Index>::of({7, 7, 3, 3});
const auto wrong_document_ids = Array<Index>::of({7, 3, 3, 3});
// Keys 0 1 2 4 of the first sample and 0 2 3 4 5 of the second.
const auto padded_keys = Array<bool>::of({{{{1, 1, 1, 0, 1, 0}}}, {{{1, 0, 1, 1, 1, 1}}}});

const std::vector<Case> cases = {
    {.name = "sdpa_rect"},
    {.name = "sdpa_batched_heads"},
    {.name = "sdpa_5d"},
    {.name = "sdpa_causal_square", .mask = Mask::causal(0), .wrong = Mask::causal(1)},
    {.name = "sdpa_cached_prefix", .mask = Mask::causal(3), .wrong = Mask::causal(0)},
    {.name = "sdpa_causal_top_left", .mask = Mask::causal(0), .wrong = Mask::causal(3)},
    {.name = "sdpa_decode_one", .mask = Mask::causal(5), .wrong = Mask::causal(0)},
    {.name = "sdpa_one_key"},
    {.name = "sdpa_bool_mask"},
    {.name = "sdpa_key_padding",
     .mask = Mask::allowed(padded_keys),
     .wrong = Mask::lengths(Array<Index>::of({4, 5}))},
    {.name = "sdpa_sliding_window",
     .mask = Mask::window(1, Mask::unbounded) & Mask::causal(0),
     .wrong = Mask::window(2, Mask::unbounded) & Mask::causal(0)},
    {.name = "sdpa_documents",
     .mask = Mask::documents(document_ids, document_ids) & Mask::causal(0),
     .wrong = Mask::documents(document_ids, wrong_document_ids) & Mask::causal(0)},
    {.name = "sdpa_bias_full"},
    {.name = "sdpa_bias_broadcast_heads"},
    {.name = "sdpa_bias_broadcast_rows"},
    {.name = "sdpa_bias_and_mask", .mask = Mask::causal(0), .wrong = Mask::causal(1)},
    {.name = "sdpa_alibi", .mask = Mask::causal(0), .wrong = Mask::causal(1)},
    {.name = "sdpa_scale"},
    {.name = "sdpa_softcap"},
    {.name = "sdpa_gqa"},
    {.name = "sdpa_gqa_causal", .mask = Mask::causal(0), .wrong = Mask::causal(1)},
    {.name = "sdpa_mqa"},
    {.name = "sdpa_large_scores"},
    {.name = "sdpa_shifted_scores"},
};

std::vector<Case> cases_with_mask_in_words() {
  std::vector<Case> some;
  for (const Case& c : cases) {
    if (!c.mask.allows_all()) some.push_back(c);
  }
  return some;
}
std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }

Options options_of(const Golden& golden) {
  Options options{.scale = golden.number("scale"), .weights = true};
  if (golden.meta("softcap") != "none") options.softcap = golden.number("softcap");
  if (golden.has("bias")) options.bias = golden.array("bias");
  if (golden.has("mask")) options.mask = Mask::allowed(golden.mask("mask"));
  return options;
}

// Of each tensor of the file that attention makes: its name and what it is here.
using Numbers = std::vector<std::pair<std::string, A>>;

Numbers evaluated(const Golden& golden, Options options) {
  Tape<double> tape;
  std::vector<std::string> names = {"query", "key", "value"};
  std::vector<V> inputs;
  for (const std::string& name : names) inputs.push_back(tape.input(golden.array(name)));
  if (options.bias) {
    options.bias = tape.input(options.bias->value());
    inputs.push_back(*options.bias);
    names.push_back("bias");
  }
  const auto result = attention(inputs[0], inputs[1], inputs[2], options);
  const auto d = gradient_values(result.output, inputs, V(golden.array("upstream")));
  Numbers numbers = {{"output", result.output.value()}};
  if (result.weights) numbers.emplace_back("weights", result.weights->value());
  for (std::size_t i = 0; i < d.size(); ++i) numbers.emplace_back("grad_" + names[i], d[i]);
  return numbers;
}

// How many times its own size the terms of a gradient of query or key are. The weights of sdpa_shifted_scores
// are all but one-hot, so dz = w (dw - sum of w dw) is a small difference of numbers near 1 and a gradient a
// sum of terms a million times its size; PyTorch's dquery is off by 4e-9 of its largest element. What
// rounding leaves is relative to the terms.
double terms(const Golden& golden, const std::string& name, const A& gradient) {
  const A dw = matmul(V(golden.array("upstream")), V(golden.array("value")), false, true).value();
  const A factor = golden.array(name == "grad_query" ? "key" : "query");
  return golden.number("scale") * magnitude(dw) * magnitude(factor) / magnitude(gradient);
}

testing::AssertionResult agree(const Golden& golden, const Numbers& numbers, double tolerance, bool cancels) {
  for (const auto& [name, actual] : numbers) {
    const A expected = golden.array(name);
    const bool of_terms = cancels && (name == "grad_query" || name == "grad_key");
    const auto result =
        agree(actual, expected, of_terms ? tolerance * terms(golden, name, expected) : tolerance);
    if (!result) return testing::AssertionFailure() << name << ": " << result.message();
  }
  return testing::AssertionSuccess();
}
// What is wanted besides the output decides how it is computed, so it is looked at with and without the
// weights.
testing::AssertionResult agree(const Golden& golden, Options options, double tolerance,
                               bool cancels = false) {
  const auto result = agree(golden, evaluated(golden, options), tolerance, cancels);
  options.weights = false;
  const auto alone = agree(golden, evaluated(golden, options), tolerance, cancels);
  if (static_cast<bool>(result) == static_cast<bool>(alone)) return result;
  return testing::AssertionFailure() << (result ? "without weights: " : "with weights: ")
                                     << (result ? alone : result).message();
}

class AttentionGolden : public testing::TestWithParam<Case> {};

// Whether the scale changes nothing: one key, or one that takes all weight.
bool one_hot(const Golden& golden) {
  const A weights = golden.array("weights");
  return std::all_of(weights.values().begin(), weights.values().end(),
                     [](double w) { return w == 0 || w == 1; });
}

TEST_P(AttentionGolden, NumbersAreThose) {
  const Golden golden(GetParam().name);
  const bool cancels = std::string(GetParam().name) == "sdpa_shifted_scores";
  EXPECT_TRUE(agree(golden, options_of(golden), rounding, cancels));
  Options off = options_of(golden);
  off.scale = golden.number("scale") * 1.001;
  EXPECT_EQ(static_cast<bool>(agree(golden, off, rounding, cancels)), one_hot(golden));
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionGolden, testing::ValuesIn(cases), name_of);

TEST(AttentionGoldenCases, AreAllHere) {
  std::set<std::string> files, here;
  for (const Case& c : cases) here.insert(c.name);
  for (const auto& file : std::filesystem::directory_iterator(TAPEHEAD_TEST_DATA "/golden")) {
    const std::string name = file.path().stem().string();
    if (name.starts_with("sdpa_")) files.insert(name);
  }
  EXPECT_EQ(here, files);
}

class AttentionGoldenMask : public testing::TestWithParam<Case> {};

TEST_P(AttentionGoldenMask, InWordsIsThatOfTheFile) {
  const Golden golden(GetParam().name);
  const Shape scores = golden.array("weights").shape();
  auto everywhere = [&](const Mask& mask) {
    return (Mask::allowed(Array<bool>::ones(scores)) & mask).expanded(scores).to_vector();
  };
  EXPECT_EQ(everywhere(GetParam().mask), everywhere(Mask::allowed(golden.mask("mask"))));
  EXPECT_NE(everywhere(GetParam().wrong), everywhere(Mask::allowed(golden.mask("mask"))));
}

TEST_P(AttentionGoldenMask, InWordsGivesTheNumbers) {
  const Golden golden(GetParam().name);
  Options options = options_of(golden);
  options.mask = GetParam().mask;
  EXPECT_TRUE(agree(golden, options, rounding));
  options.mask = GetParam().wrong;
  EXPECT_FALSE(agree(golden, options, visible));
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionGoldenMask, testing::ValuesIn(cases_with_mask_in_words()), name_of);

// A mask as the bias that excludes, with gradient 0 where it does.
TEST_P(AttentionGoldenMask, AsABiasOfMinusInfinityGivesTheNumbers) {
  const Golden golden(GetParam().name);
  Options options = options_of(golden);
  const Shape scores = golden.array("weights").shape();
  const V bias = options.bias ? *options.bias : V(A::zeros({1, 1}));
  const Array<bool> seen = GetParam().mask.expanded(scores);
  options.bias = where(seen, bias, V(A::scalar(-infinity)));
  options.mask = {};
  for (const auto& [name, actual] : evaluated(golden, options)) {
    if (name == "grad_bias") continue;  // summed over other axes there
    EXPECT_TRUE(agree(actual, golden.array(name), rounding)) << name;
  }
}

// Slopes: key 0 stands at distance 1 from query 1, so its bias there is minus the slope. Their gradient is
// that of the bias times minus the distances.
struct Alibi {
  Golden golden{"sdpa_alibi"};
  A slopes = A::zeros({3}), dslopes = A::zeros({3});
  Alibi() {
    const A bias = golden.array("bias"), dbias = golden.array("grad_bias");
    for (Index h = 0; h < 3; ++h) {
      slopes.set({h}, -bias(h, 1, 0));
      double sum = 0;
      for (Index i = 0; i < 4; ++i) {
        for (Index j = 0; j < 4; ++j) sum -= dbias(h, i, j) * static_cast<double>(std::abs(i - j));
      }
      dslopes.set({h}, sum);
    }
  }
};

TEST(AttentionGoldenAlibi, BySlopesAreTheNumbersOfTheBias) {
  const Alibi alibi;
  Options options = options_of(alibi.golden);
  options.bias.reset();
  options.slopes = alibi.slopes;
  options.mask = Mask::causal(0);
  EXPECT_TRUE(agree(alibi.golden, options, rounding));
  options.slopes = V(alibi.slopes) * -1.0;
  EXPECT_FALSE(agree(alibi.golden, options, visible));
  options.slopes = flip(V(alibi.slopes), 0);
  EXPECT_FALSE(agree(alibi.golden, options, visible));
}

TEST(AttentionGoldenAlibi, SlopesHaveTheGradientOfTheBias) {
  const Alibi alibi;
  Tape<double> tape;
  Options options = options_of(alibi.golden);
  options.bias.reset();
  options.slopes = tape.input(alibi.slopes);
  const V output = attention(V(alibi.golden.array("query")), V(alibi.golden.array("key")),
                             V(alibi.golden.array("value")), options)
                       .output;
  const A dslopes = gradient_values(output, *options.slopes, V(alibi.golden.array("upstream")))[0];
  EXPECT_NEAR_RELATIVE(dslopes, alibi.dslopes, rounding);
}

TEST(AttentionGoldenHeads, TiledInsteadOfGroupedAreOtherNumbers) {
  for (const char* name : {"sdpa_gqa", "sdpa_gqa_causal"}) {
    const Golden golden(name);
    const Index group = golden.array("query").dim(1) / golden.array("key").dim(1);
    auto repeated = [&](const char* input, bool tiled) {
      const V x(golden.array(input));
      return tiled ? concat(std::vector<V>(static_cast<std::size_t>(group), x), 1)
                   : repeat_interleave(x, group, 1);
    };
    auto output = [&](bool tiled) {
      return attention(V(golden.array("query")), repeated("key", tiled), repeated("value", tiled),
                       options_of(golden))
          .output;
    };
    EXPECT_NEAR_RELATIVE(output(false), golden.array("output"), rounding);
    EXPECT_FALSE(agree(output(true), golden.array("output"), visible));
  }
}

TEST(AttentionGoldenSoftcap, LeftOutOrOfAnotherSizeIsSeen) {
  const Golden golden("sdpa_softcap");
  Options options = options_of(golden);
  EXPECT_EQ(options.softcap, 5);
  for (const double wrong : {0.0, 4.0, 1e6}) {
    options.softcap = wrong;
    EXPECT_FALSE(agree(golden, options, visible)) << wrong;
  }
}

// ---- additive scoring

struct Additive {
  Golden golden{"additive_attention"};
  std::vector<std::string> names = {"query", "key", "value", "w_query", "w_key", "b", "v"};
  std::vector<V> x;

  explicit Additive(Tape<double>& tape) {
    for (const std::string& name : names) x.push_back(tape.input(golden.array(name)));
  }
  V output(const Options& options = {}) const {
    return additive_attention(x[0], x[1], x[2], {x[3], x[4], x[5], x[6]}, options).output;
  }
};

TEST(AdditiveAttentionGolden, OutputAndAllGradientsAreThose) {
  Tape<double> tape;
  const Additive additive(tape);
  const V output = additive.output();
  EXPECT_NEAR_RELATIVE(output, additive.golden.array("output"), rounding);
  const auto d = gradient_values(output, additive.x, V(additive.golden.array("upstream")));
  for (std::size_t i = 0; i < d.size(); ++i) {
    EXPECT_TRUE(agree(d[i], additive.golden.array("grad_" + additive.names[i]), rounding))
        << additive.names[i];
  }
}

TEST(AdditiveAttentionGolden, SeesTheScaleOfDotProductsAndAMissingB) {
  Tape<double> tape;
  const Additive additive(tape);
  EXPECT_FALSE(
      agree(additive.output({.scale = 1 / std::sqrt(5.0)}), additive.golden.array("output"), visible));
  const auto& x = additive.x;
  const V without_b = additive_attention(x[0], x[1], x[2], {x[3], x[4], {}, x[6]}).output;
  EXPECT_FALSE(agree(without_b, additive.golden.array("output"), visible));
}

}  // namespace
}  // namespace tapehead
