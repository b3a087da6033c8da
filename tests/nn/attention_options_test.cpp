// Every option of attention and additive attention, and everything that can be asked for, by differences of
// its values: the gradient and the gradient of the gradient. And what they and their references reject.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/expect_gradients.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention.h>
#include <tapehead/nn/attention_reference.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/masking.h>

#include "support/expect_error.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;
using Result = AttentionResult<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Options made of Vars of given shapes; Vars of all of them are differentiated, with query, key and value.
struct Case {
  std::string name;
  std::vector<Shape> own;
  std::function<Options(const std::vector<V>&)> options;
  Shape query = {2, 2, 3, 4}, key = {2, 2, 5, 4};
};

void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

std::function<Options(const std::vector<V>&)> constant(const Options& options) {
  return [options](const std::vector<V>&) { return options; };
}
std::function<Options(const std::vector<V>&)> masked(const Mask& mask) {
  Options options;
  options.mask = mask;
  return constant(options);
}
std::function<Options(const std::vector<V>&)> turned(const RopeOptions& rope, PerSample query_offset = 0) {
  Options options;
  options.rope = rope;
  options.query_offset = std::move(query_offset);
  return constant(options);
}
Options plus_bias(const V& bias, const A& constant_part) {
  Options options;
  options.bias = bias + V(constant_part);
  return options;
}

const Array<bool> some_keys = Array<bool>::of({{1, 0, 1, 1, 0}, {1, 1, 1, 0, 0}, {0, 1, 0, 1, 0}});
const Array<bool> no_key_for_row_1 = Array<bool>::of({{1, 0, 1, 1, 0}, {0, 0, 0, 0, 0}, {0, 1, 0, 1, 0}});
const Array<Index> by_sample = Array<Index>::of({1, 3});

// All that changes a number, together.
Options everything(const std::vector<V>& own) {
  Options options;
  options.norm = {own[0], own[1]};
  options.rope = RopeOptions{.start = 2, .width = 2};
  options.query_offset = by_sample;
  options.scale = own[2];
  options.softcap = 1.5;
  options.bias = own[3];
  options.slopes = own[4];
  options.mask = Mask::allowed(some_keys);
  options.sink = own[5];
  options.dropout = {0.3, Generator(5)};
  return options;
}
const std::vector<Shape> of_everything = {{4}, {4}, {2, 1, 1}, {3, 5}, {2}, {2}};

std::vector<Case> cases() {
  const A first_key_excluded = A::of({-infinity, 0, 0, 0, 0});
  return {
      {"Plain", {}, constant({})},
      {"RankTwo", {}, constant({}), {3, 4}, {5, 4}},
      {"RankThree", {}, constant({}), {2, 3, 4}, {2, 5, 4}},
      {"RankFive", {}, constant({}), {2, 1, 2, 3, 4}, {2, 1, 2, 5, 4}},
      {"GroupedHeads", {}, constant({}), {2, 4, 3, 4}, {2, 2, 5, 4}},
      {"OneKeyHead", {}, constant({}), {2, 3, 3, 4}, {2, 1, 5, 4}},
      {"ScaleNumber", {}, constant({.scale = 0.4})},
      {"ScaleVar", {{}}, [](const auto& own) { return Options{.scale = own[0]}; }},
      {"ScaleOfHeads", {{2, 1, 1}}, [](const auto& own) { return Options{.scale = own[0]}; }},
      {"Softcap", {}, constant({.softcap = 0.8})},
      {"BiasOfScores", {{2, 2, 3, 5}}, [](const auto& own) { return Options{.bias = own[0]}; }},
      {"BiasOfKeys", {{5}}, [](const auto& own) { return Options{.bias = own[0]}; }},
      {"BiasOfHeadsAndKeys", {{2, 1, 5}}, [](const auto& own) { return Options{.bias = own[0]}; }},
      {"BiasThatExcludes", {{5}}, [=](const auto& own) { return plus_bias(own[0], first_key_excluded); }},
      {"Slopes", {{2}}, [](const auto& own) { return Options{.query_offset = 2, .slopes = own[0]}; }},
      {"SlopesOfOneHead",
       {{1}},
       [](const auto& own) { return Options{.query_offset = by_sample, .slopes = own[0]}; },
       {2, 3, 4},
       {2, 5, 4}},
      {"Sink", {{2}}, [](const auto& own) { return Options{.sink = own[0]}; }},
      {"SinkAndEmptyRow",
       {{2}},
       [](const auto& own) {
         return Options{
             .mask = Mask::allowed(no_key_for_row_1), .empty_rows = EmptyRows::zero, .sink = own[0]};
       }},
      {"Causal", {}, masked(Mask::causal(1))},
      {"CausalBySample", {}, masked(Mask::causal(by_sample))},
      {"Window", {}, masked(Mask::window(1, 1, 1))},
      {"Lengths", {}, masked(Mask::lengths(by_sample))},
      {"Documents",
       {},
       masked(Mask::documents(Array<Index>::of({0, 1, 1}), Array<Index>::of({1, 0, 1, 2, 0})))},
      {"Allowed", {}, masked(Mask::allowed(some_keys))},
      {"AllowedPrefix", {}, masked(Mask::allowed_prefix(Array<bool>::of({1, 0, 1})))},
      {"EmptyRow", {}, constant({.mask = Mask::allowed(no_key_for_row_1), .empty_rows = EmptyRows::zero})},
      {"DropoutDrawn", {}, constant({.dropout = Dropout{0.4, Generator(3)}})},
      {"DropoutGiven", {}, constant({.dropout = Dropout{0.4, some_keys}})},
      {"RopeOfHalves", {}, turned({})},
      {"RopeOfNeighbours", {}, turned({.pairing = Pairing::neighbours, .base = 3})},
      {"RopeOfPart", {}, turned({.width = 2})},
      {"RopeStartAndOffset", {}, turned({.start = by_sample, .position_scale = 0.3}, 2)},
      {"Norm",
       {{4}, {4}},
       [](const auto& own) {
         return Options{.norm = {{own[0], own[1]}}};
       }},
      {"NormWithLargeEps",
       {{4}, {4}},
       [](const auto& own) {
         return Options{.norm = {{own[0], own[1], 0.5}}};
       }},
      {"Everything", of_everything, everything},
  };
}

constexpr std::size_t scoring_inputs = 4, hidden = 3;

// query, key, value, the Vars of the options and those of additive scoring.
std::vector<A> inputs_of(const Case& c, bool additive) {
  Generator random(11);
  std::vector<A> x = {random.normal<double>(c.query), random.normal<double>(c.key),
                      random.normal<double>(c.key.with(-1, 3))};
  for (const Shape& shape : c.own) x.push_back(random.uniform<double>(shape, 0.3, 1.2));
  if (additive) {
    for (const Shape& shape :
         {Shape{c.query.dim(-1), hidden}, Shape{c.key.dim(-1), hidden}, Shape{hidden}, Shape{hidden}}) {
      x.push_back(random.normal<double>(shape));
    }
  }
  return x;
}

Result result_of(const std::vector<V>& x, bool additive, const Options& options) {
  if (!additive) return attention(x[0], x[1], x[2], options);
  const V* scoring = x.data() + x.size() - scoring_inputs;
  return additive_attention(x[0], x[1], x[2], {scoring[0], scoring[1], scoring[2], scoring[3]}, options);
}

std::vector<V> own_of(const std::vector<V>& x, const Case& c) {
  return {x.begin() + 3, x.begin() + 3 + static_cast<std::ptrdiff_t>(c.own.size())};
}

// ---- options

class AttentionOptionsTest : public testing::TestWithParam<std::tuple<Case, bool>> {
 protected:
  const Case case_ = std::get<0>(GetParam());
  const bool additive_ = std::get<1>(GetParam());
};

TEST_P(AttentionOptionsTest, HaveRightGradientsOfTwoOrders) {
  for (const AttentionKernel kernel : {AttentionKernel::composed, AttentionKernel::automatic}) {
    const auto output = [&](const std::vector<V>& x) {
      Options options = case_.options(own_of(x, case_));
      options.kernel = kernel;
      return result_of(x, additive_, options).output;
    };
    EXPECT_GRADIENTS(output, inputs_of(case_, additive_));
  }
}

class AttentionOptionsOfVarsTest : public AttentionOptionsTest {};

// The check finds it when the path to an option's own Vars is cut.
TEST_P(AttentionOptionsOfVarsTest, AreMissedWhenTheirGradientIs) {
  const auto cut = [&](const std::vector<V>& x) {
    std::vector<V> own = own_of(x, case_);
    for (V& var : own) var = var.detach();
    return result_of(x, additive_, case_.options(own)).output;
  };
  const GradientReport report = check_gradients(cut, inputs_of(case_, additive_), {.order = 1});
  for (std::size_t i = 0; i < report.findings.size(); ++i) {
    const bool own =
        report.findings[i].input >= 3 && report.findings[i].input < 3 + static_cast<Index>(case_.own.size());
    EXPECT_EQ(report.findings[i].verdict, own ? GradientVerdict::wrong : GradientVerdict::right) << i;
  }
  EXPECT_FALSE(report.ok);
}

std::string name_of(const testing::TestParamInfo<std::tuple<Case, bool>>& info) {
  return std::get<0>(info.param).name + (std::get<1>(info.param) ? "Additive" : "");
}

std::vector<Case> cases_of_vars() {
  std::vector<Case> all = cases();
  std::erase_if(all, [](const Case& c) { return c.own.empty(); });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Each, AttentionOptionsTest,
                         testing::Combine(testing::ValuesIn(cases()), testing::Bool()), name_of);
INSTANTIATE_TEST_SUITE_P(Each, AttentionOptionsOfVarsTest,
                         testing::Combine(testing::ValuesIn(cases_of_vars()), testing::Bool()), name_of);

// ---- what can be asked for

struct Wanted {
  std::string name;
  std::function<void(Options&)> ask;
  std::function<V(const Result&)> get;
};

void PrintTo(const Wanted& wanted, std::ostream* stream) { *stream << wanted.name; }

// Minus infinities are no numbers to take differences of.
V where_allowed(const V& scores) { return masked_fill(scores, some_keys, 0); }

std::vector<Wanted> all_wanted() {
  return {
      {"ScaledScores", [](Options& o) { o.scaled_scores = true; },
       [](const Result& r) { return *r.scaled_scores; }},
      {"CappedScores", [](Options& o) { o.capped_scores = true; },
       [](const Result& r) { return *r.capped_scores; }},
      {"MaskedScores", [](Options& o) { o.masked_scores = true; },
       [](const Result& r) { return where_allowed(*r.masked_scores); }},
      {"LogSumExp", [](Options& o) { o.log_sum_exp = true; }, [](const Result& r) { return *r.log_sum_exp; }},
      {"Weights", [](Options& o) { o.weights = true; }, [](const Result& r) { return *r.weights; }},
      {"Entropy", [](Options& o) { o.statistics = true; },
       [](const Result& r) { return r.statistics->entropy; }},
      {"LargestScore", [](Options& o) { o.statistics = true; },
       [](const Result& r) { return r.statistics->largest_score; }},
      {"FirstKeyMass", [](Options& o) { o.statistics = true; },
       [](const Result& r) { return r.statistics->first_key_mass; }},
  };
}

// 0 plain, 1 with every option and a mask, 2 the same with a row without a key.
class AttentionOutputsTest : public testing::TestWithParam<std::tuple<Wanted, int, bool>> {
 protected:
  Case wanted_case() const {
    const int kind = std::get<1>(GetParam());
    if (kind == 0) return {"Plain", {}, constant({})};
    return {"Everything", of_everything, [kind](const std::vector<V>& own) {
              Options options = everything(own);
              if (kind == 2) options.mask = Mask::allowed(no_key_for_row_1);
              options.empty_rows = EmptyRows::zero;
              return options;
            }};
  }
};

TEST_P(AttentionOutputsTest, HaveRightGradientsOfTwoOrders) {
  const auto& [wanted, kind, additive] = GetParam();
  const Case c = wanted_case();
  const auto both = [&, a = additive, k = kind](const std::vector<V>& x) {
    Options options = c.options(own_of(x, c));
    std::get<0>(GetParam()).ask(options);
    const Result r = result_of(x, a, options);
    V y = std::get<0>(GetParam()).get(r);
    if (k == 2 && r.log_sum_exp) y = masked_fill(y, Array<bool>::of({true, false, true}), 0);
    if (k == 2 && r.masked_scores) y = masked_fill(y, no_key_for_row_1, 0);
    return std::vector<V>{r.output, y};
  };
  EXPECT_GRADIENTS(both, inputs_of(c, additive));
}

// The check finds it when what was asked for has no gradient.
TEST_P(AttentionOutputsTest, AreMissedWhenTheirGradientIs) {
  const auto& [wanted, kind, additive] = GetParam();
  const Case c = wanted_case();
  const auto cut = [&, a = additive](const std::vector<V>& x) {
    Options options = c.options(own_of(x, c));
    std::get<0>(GetParam()).ask(options);
    const Result r = result_of(x, a, options);
    V y = std::get<0>(GetParam()).get(r).detach();
    if (r.log_sum_exp) y = masked_fill(y, Array<bool>::of({true, false, true}), 0);
    if (r.masked_scores) y = masked_fill(y, no_key_for_row_1, 0);
    return std::vector<V>{r.output, y};
  };
  const GradientReport report = check_gradients(cut, inputs_of(c, additive), {.order = 1});
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.findings[0].verdict, GradientVerdict::wrong);
}

std::string name_of_wanted(const testing::TestParamInfo<std::tuple<Wanted, int, bool>>& info) {
  const char* const kinds[] = {"", "WithEverything", "WithAnEmptyRow"};
  return std::get<0>(info.param).name + kinds[std::get<1>(info.param)] +
         (std::get<2>(info.param) ? "Additive" : "");
}

INSTANTIATE_TEST_SUITE_P(Each, AttentionOutputsTest,
                         testing::Combine(testing::ValuesIn(all_wanted()), testing::Values(0, 1, 2),
                                          testing::Bool()),
                         name_of_wanted);

// ---- what is rejected

struct Bad {
  std::string name;
  Options options;
  std::string_view text;  // in the message of both
};

template <class E>
void expect_rejected(const Bad& bad) {
  SCOPED_TRACE(bad.name);
  const Case c = {"", {}, constant({})};
  const std::vector<A> x = inputs_of(c, true);
  const AdditiveScoring<double> scoring{V(x[3]), V(x[4]), V(x[5]), V(x[6])};
  EXPECT_TRUE(raises<E>([&] { attention(V(x[0]), V(x[1]), V(x[2]), bad.options); }, {bad.text}));
  EXPECT_TRUE(
      raises<E>([&] { additive_attention(V(x[0]), V(x[1]), V(x[2]), scoring, bad.options); }, {bad.text}));
  EXPECT_TRUE(raises<E>([&] { attention_reference(x[0], x[1], x[2], bad.options); }, {bad.text}));
  EXPECT_TRUE(
      raises<E>([&] { additive_attention_reference(x[0], x[1], x[2], scoring, bad.options); }, {bad.text}));
}

V ones(const Shape& shape) { return A::ones(shape); }

// Scores (2, 2, 3, 5), width 4.
TEST(AttentionOptionsReject, WhatDoesNotFitTheScores) {
  const Array<Index> three = Array<Index>::of({1, 1, 1});
  const std::vector<Bad> all = {
      {"scale", {.scale = ones({5, 3})}, "scale"},
      {"bias", {.bias = ones({3, 3})}, "bias"},
      {"slopes", {.slopes = ones({3})}, "slopes"},
      {"slopes of rank 0", {.slopes = ones({})}, "slopes"},
      {"sink", {.sink = ones({1})}, "sink"},
      {"causal", {.mask = Mask::causal(three)}, "offset"},
      {"window", {.mask = Mask::window(1, 1, three)}, "offset"},
      {"lengths", {.mask = Mask::lengths(three)}, "lengths"},
      {"length", {.mask = Mask::lengths(6)}, "length"},
      {"documents", {.mask = Mask::documents(three, three)}, "documents"},
      {"allowed", {.mask = Mask::allowed(Array<bool>::ones({4}))}, "mask"},
      {"allowed prefix", {.mask = Mask::allowed_prefix(Array<bool>::ones({6}))}, "mask"},
      {"dropout", {.dropout = Dropout{0.5, Array<bool>::ones({4})}}, "dropout"},
      {"query offset", {.query_offset = three, .slopes = ones({2})}, "query_offset"},
      {"rope start", {.rope = RopeOptions{.start = three}}, "start"},
      {"rope width", {.rope = RopeOptions{.width = 6}}, "width"},
      {"odd rope width", {.rope = RopeOptions{.width = 3}}, "width"},
      {"query gain", {.norm = {{ones({3}), ones({4})}}}, "gain"},
      {"key gain", {.norm = {{ones({4}), ones({5})}}}, "gain"},
  };
  for (const Bad& bad : all) expect_rejected<ShapeError>(bad);
}

TEST(AttentionOptionsReject, WhatIsOutOfRange) {
  const std::vector<Bad> all = {
      {"scale", {.scale = infinity}, "scale"},
      {"scale Var", {.scale = V(A::of({nan, 1, 1, 1, 1}))}, "scale"},
      {"negative softcap", {.softcap = -1}, "softcap"},
      {"infinite softcap", {.softcap = infinity}, "softcap"},
      {"NaN softcap", {.softcap = nan}, "softcap"},
      {"slopes", {.slopes = V(A::of({1, nan}))}, "slope"},
      {"sink", {.sink = V(A::of({1, -infinity}))}, "sink"},
      {"dropout of all", {.dropout = Dropout{1, Generator(1)}}, "rate"},
      {"negative dropout", {.dropout = Dropout{-0.1, Generator(1)}}, "rate"},
      {"rope base", {.rope = RopeOptions{.base = 0}}, "base"},
      {"rope position scale", {.rope = RopeOptions{.position_scale = -1}}, "position scale"},
      {"positions of each sample twice",
       {.rope = RopeOptions{.start = by_sample}, .query_offset = by_sample},
       "rope.start or query_offset"},
      {"an empty row",
       {.mask = Mask::allowed(no_key_for_row_1)},
       "no key is allowed: batch 0, head 0, row 1"},
      {"an empty row beside a sink",
       {.mask = Mask::allowed(no_key_for_row_1), .sink = ones({2})},
       "no key is allowed: batch 0, head 0, row 1"},
      {"a bias that excludes all", {.bias = V(A::full({3, 1}, -infinity))}, "no key is allowed"},
      {"an infinite bias", {.bias = V(A::full({5}, infinity))}, "infinite"},
  };
  for (const Bad& bad : all) expect_rejected<DomainError>(bad);
}

TEST(AttentionReference, RejectsAnUpstreamGradientOfAnotherShape) {
  const std::vector<A> x = inputs_of({"", {}, constant({})}, false);
  const A wrong = A::ones({2, 2, 3, 1});
  A AttentionOutputs::*const all[] = {
      &AttentionOutputs::output,        &AttentionOutputs::weights,       &AttentionOutputs::scaled_scores,
      &AttentionOutputs::capped_scores, &AttentionOutputs::masked_scores, &AttentionOutputs::log_sum_exp,
      &AttentionOutputs::entropy,       &AttentionOutputs::largest_score, &AttentionOutputs::first_key_mass};
  for (const auto member : all) {
    AttentionOutputs upstream;
    upstream.*member = wrong;
    EXPECT_TRUE(raises<ShapeError>([&] { attention_reference(x[0], x[1], x[2], {}, upstream); },
                                   {"upstream (2, 2, 3, 1)"}));
  }
}

}  // namespace
}  // namespace tapehead
