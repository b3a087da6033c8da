#include <tools/check/check.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <tapehead/core/random.h>
#include <tools/check/infer.h>

#include "support/attention_loops.h"
#include "support/expect_error.h"
#include "support/golden.h"

namespace tapehead::check {
namespace {

using Place = std::vector<Index>;

// An array whose element at a place is f of it.
Array<double> made(const Shape& shape, const std::function<double(const Place&)>& f) {
  Array<double> x = Array<double>::zeros(shape);
  Place place(static_cast<std::size_t>(shape.rank()), 0);
  for (double& element : x.mutable_values()) {
    element = f(place);
    for (std::size_t axis = place.size(); axis-- > 0 && ++place[axis] == shape[static_cast<int>(axis)];) {
      place[axis] = 0;
    }
  }
  return x;
}

double some(Index b, Index h, Index i, Index d) {
  return std::sin(static_cast<double>(1 + b * 7919 + h * 104'729 + i * 31 + d * 1009));
}

// query, key, value and the right output of one call, (B, H, L, D) and so on.
struct Right {
  Array<double> query, key, value, output, weights, lse;
};

Right right(Index B, Index H, Index Hk, Index L, Index S, Index D, Index E, bool causal = false) {
  const auto at = [](Index seed) {
    return [seed](const Place& p) { return some(p[0] + seed, p[1], p[2], p[3]); };
  };
  Right r{made({B, H, L, D}, at(1)), made({B, Hk, S, D}, at(100)), made({B, Hk, S, E}, at(200)), {}, {}, {}};
  const Array<bool> allowed =
      made({B, H, L, S}, [&](const Place& p) { return !causal || p[3] <= p[2]; }).cast<bool>();
  const auto out = loops::AttentionLoops({r.query, r.key, r.value, Array<double>::zeros({B, H, L, S}),
                                          allowed, 1 / std::sqrt(static_cast<double>(D)), 0})
                       .outputs();
  r.output = out.output, r.weights = out.weights, r.lse = out.lse;
  return r;
}

// (B, H, L, D) as (B, L, H, D) and as (B, L, H D).
Array<double> length_first(const Array<double>& x) {
  return made({x.dim(0), x.dim(2), x.dim(1), x.dim(3)},
              [&](const Place& p) { return x(p[0], p[2], p[1], p[3]); });
}
Array<double> flat(const Array<double>& x) { return length_first(x).reshape({x.dim(0), x.dim(2), -1}); }

Dump dump_of_tensors(const std::map<std::string, Array<double>>& tensors,
                     std::map<std::string, std::string> settings = {}) {
  Dump dump;
  dump.origin = "dump";
  for (const auto& [name, numbers] : tensors) dump.add(name, numbers, "f64");
  dump.settings = std::move(settings);
  return dump;
}

using Change = std::function<Array<double>(const Array<double>&)>;

Dump dump_of_right(const Right& r, const Change& change, std::map<std::string, std::string> settings = {}) {
  return dump_of_tensors({{"query", change(r.query)},
                          {"key", change(r.key)},
                          {"value", change(r.value)},
                          {"output", change(r.output)}},
                         std::move(settings));
}

struct Made {
  Call call;
  std::map<std::string, std::string> assumed;
};
Made make(const Dump& dump, const CheckSettings& settings = {}) {
  Made result;
  Assumed assumed;
  result.call = make_call(dump, settings, assumed);
  result.assumed = {assumed.begin(), assumed.end()};
  return result;
}

void expect_same(const Array<double>& a, const Array<double>& b) {
  ASSERT_EQ(a.shape(), b.shape());
  EXPECT_EQ(a.to_vector(), b.to_vector());
}
void expect_call_of(const Right& r, const Call& call) {
  expect_same(call.inputs.at("query"), r.query);
  expect_same(call.inputs.at("key"), r.key);
  expect_same(call.inputs.at("value"), r.value);
  expect_same(call.candidate.at("output"), r.output);
}

Change as_it_is() {
  return [](const Array<double>& x) { return x; };
}

// ---- Layouts

TEST(CheckInfer, EachLayoutIsBroughtToHeadsFirst) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  const std::pair<std::string, Change> forms[] = {
      {"BHLD", as_it_is()}, {"BLHD", length_first}, {"BLD", flat}};
  for (const auto& [layout, change] : forms) {
    const Made m = make(dump_of_right(r, change, {{"layout", layout}, {"heads", "6"}}));
    const Call& c = m.call;
    EXPECT_EQ((Place{c.B, c.H, c.Hk, c.L, c.S, c.D, c.E}), (Place{2, 6, 2, 3, 7, 4, 5})) << layout;
    expect_call_of(r, c);
    EXPECT_EQ(m.assumed.count("layout"), 0u);
  }
}

TEST(CheckInfer, ShapesDecideTheLayoutWhereTheyCan) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  for (const Change& change : {as_it_is(), Change(length_first)}) {
    Dump dump = dump_of_right(r, change);
    const std::vector<Layout> layouts = possible_layouts(dump, {});
    ASSERT_EQ(layouts.size(), 1u);
    const Made m = make(dump);
    EXPECT_EQ(m.assumed.at("layout"), name_of(layouts[0]));
    expect_call_of(r, m.call);
  }
}

TEST(CheckInfer, NumbersDecideTheLayoutWhereShapesDoNot) {
  const Right r = right(2, 3, 3, 3, 3, 4, 4);
  const Dump heads = dump_of_right(r, as_it_is()), length = dump_of_right(r, length_first);
  EXPECT_EQ(possible_layouts(heads, {}).size(), 2u);
  EXPECT_EQ(make(heads).assumed.at("layout"), "BHLD");
  EXPECT_EQ(make(length).assumed.at("layout"), "BLHD");
  expect_call_of(r, make(length).call);
}

// The label is believed: what the numbers say against it is a mistake, attend-over-heads.
TEST(CheckInfer, ALayoutThatIsSaidIsTaken) {
  const Right r = right(2, 3, 3, 3, 3, 4, 4);
  const Dump length = dump_of_right(r, length_first, {{"layout", "BHLD"}});
  expect_same(make(length).call.inputs.at("query"), length_first(r.query));
}

TEST(CheckInfer, MoreAxesOfSamplesAreTakenTogether) {
  const Golden golden("sdpa_5d");
  const Made m = make(open_dump(std::string(TAPEHEAD_TEST_DATA) + "/golden/sdpa_5d.safetensors"));
  EXPECT_EQ(m.call.B, 4);
  expect_same(m.call.candidate.at("weights"), golden.array("weights").reshape({4, 3, 4, 6}));
}

TEST(CheckInfer, AnOutputWithMergedHeadsIsCut) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  Dump dump =
      dump_of_tensors({{"query", r.query}, {"key", r.key}, {"value", r.value}, {"output", flat(r.output)}});
  expect_call_of(r, make(dump).call);
}

TEST(CheckInfer, HeadsOfFlatTensorsComeFromTheWeights) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  Dump dump = dump_of_right(r, flat);
  dump.add("weights", r.weights, "f64");
  const Made m = make(dump);
  EXPECT_EQ(m.call.H, 6);
  EXPECT_EQ(m.call.Hk, 2);
  expect_call_of(r, m.call);
}

TEST(CheckInfer, OneHeadNeedsNoAxis) {
  const Right r = right(2, 1, 1, 3, 7, 4, 5);
  Dump dump = dump_of_right(r, flat);
  dump.add("weights", r.weights.reshape({2, 3, 7}), "f64");
  dump.add("lse", r.lse.reshape({2, 3}), "f64");
  const Call call = make(dump).call;
  expect_call_of(r, call);
  expect_same(call.candidate.at("weights"), r.weights);
  expect_same(call.candidate.at("lse"), r.lse);
}

// ---- Packed sequences

// Sequences of a (1, H, T, D) tensor, (T, H, D).
Array<double> packed(const Array<double>& x) {
  return length_first(x).reshape({x.dim(2), x.dim(1), x.dim(3)});
}

TEST(CheckInfer, PackedSequencesAreDocumentsOfOneSample) {
  const Right r = right(1, 6, 2, 9, 9, 4, 5);
  Dump dump = dump_of_right(r, packed, {{"causal", "bottom-right"}});
  dump.add("cu_seqlens_q", Array<double>::of({0, 3, 8, 9}), "i32");
  const Made m = make(dump);
  EXPECT_EQ(m.assumed.at("layout"), "THD");
  expect_call_of(r, m.call);
  expect_same(m.call.inputs.at("query_segments"), Array<double>::of({{1, 1, 1, 2, 2, 2, 2, 2, 3}}));
  expect_same(m.call.inputs.at("key_segments"), m.call.inputs.at("query_segments"));
  EXPECT_EQ(m.call.contract.causal, (std::vector<Index>{0}));
}

TEST(CheckInfer, LengthsSayTheSameAsWhereSequencesBegin) {
  const Right r = right(1, 2, 2, 9, 9, 4, 4);
  Dump dump = dump_of_right(r, packed, {{"layout", "THD"}});
  dump.add("query_lengths", Array<double>::of({3, 5, 1}), "i64");
  const Call call = make(dump).call;
  expect_same(call.inputs.at("key_segments"), Array<double>::of({{1, 1, 1, 2, 2, 2, 2, 2, 3}}));
  EXPECT_EQ(call.inputs.count("query_lengths"), 0u);
}

// Rows of queries and keys are aligned in each sequence apart, which only samples of their own can say.
TEST(CheckInfer, PackedSequencesOfUnequalQueriesAndKeysBecomeSamples) {
  const Right r = right(1, 2, 1, 4, 7, 4, 5);
  Dump dump = dump_of_right(r, packed, {{"causal", "bottom-right"}});
  dump.add("lse", r.lse.reshape({2, 4}), "f64");
  dump.add("cu_seqlens_q", Array<double>::of({0, 3, 4}), "i64");
  dump.add("cu_seqlens_k", Array<double>::of({0, 2, 7}), "i64");
  const Call call = make(dump).call;
  EXPECT_EQ((Place{call.B, call.H, call.Hk, call.L, call.S}), (Place{2, 2, 1, 3, 5}));
  EXPECT_EQ(call.contract.causal, (std::vector<Index>{-1, 4}));
  expect_same(call.inputs.at("query_lengths"), Array<double>::of({3, 1}));
  expect_same(call.inputs.at("key_lengths"), Array<double>::of({2, 5}));
  for (Index h = 0; h < 2; ++h) {
    for (Index d = 0; d < 4; ++d) {
      EXPECT_EQ(call.inputs.at("query")(0, h, 2, d), r.query(0, h, 2, d));
      EXPECT_EQ(call.inputs.at("query")(1, h, 0, d), r.query(0, h, 3, d));
      EXPECT_EQ(call.inputs.at("query")(1, h, 1, d), 0);
      EXPECT_EQ(call.inputs.at("key")(1, 0, 4, d), r.key(0, 0, 6, d));
    }
    EXPECT_EQ(call.candidate.at("lse")(1, h, 0), r.lse(0, h, 3));
    EXPECT_EQ(call.candidate.at("lse")(1, h, 1), -std::numeric_limits<double>::infinity());
  }
}

// ---- Parts of the keys, rows in another order, positions

TEST(CheckInfer, PartsAreBroughtToHeadsFirstToo) {
  const Right r = right(2, 3, 3, 4, 4, 4, 5);
  const auto part = [](const Place& p) { return some(p[0], p[2], p[3], p[4]) + static_cast<double>(p[1]); };
  Dump dump = dump_of_right(r, length_first, {{"layout", "BLHD"}});
  dump.add("partial_output",
           made({2, 2, 4, 3, 5},
                [&](const Place& p) {
                  return part({p[0], p[1], p[3], p[2], p[4]});
                }),
           "f64");
  dump.add("partial_lse", Array<double>::ones({2, 2, 3, 4}), "f64");
  dump.add("partial_end", Array<double>::of({2, 4}), "i64");
  const Call call = make(dump).call;
  expect_same(call.inputs.at("partial_output"), made({2, 2, 3, 4, 5}, part));
  EXPECT_EQ(call.inputs.count("partial_lse") + call.inputs.count("partial_end"), 2u);
}

TEST(CheckInfer, TheLogSumMayHaveHeadsLast) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  Dump dump = dump_of_right(r, as_it_is());
  dump.add("lse", made({2, 3, 6}, [&](const Place& p) { return r.lse(p[0], p[2], p[1]); }), "f64");
  expect_same(make(dump).call.candidate.at("lse"), r.lse);
}

TEST(CheckInfer, StartsOfPositionsCountForSlopesToo) {
  Dump dump = dump_of_right(right(2, 6, 2, 3, 7, 4, 5), as_it_is(), {{"rope_start_query", "4"}});
  dump.add("slopes", Array<double>::ones({6}), "f64");
  const Made m = make(dump);
  EXPECT_EQ(m.call.contract.rope_start_query, 4);
  EXPECT_EQ(m.assumed.at("rope_start_key"), "0");
}

TEST(CheckInfer, KeysShareTheDocumentsOfQueries) {
  Dump dump = dump_of_right(right(1, 2, 2, 4, 4, 4, 5), as_it_is());
  dump.add("query_segments", Array<double>::of({{1, 1, 2, 2}}), "i64");
  const Made m = make(dump);
  expect_same(m.call.inputs.at("key_segments"), Array<double>::of({{1, 1, 2, 2}}));
  EXPECT_EQ(m.assumed.at("key_segments"), "query_segments");
}

// A result in a narrower type than the rest was computed like the rest, and rounded once more.
TEST(CheckInfer, AResultMayBeKeptInANarrowerType) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  Dump dump = dump_of_right(r, as_it_is());
  dump.add("lse", r.lse, "f32");
  const Call call = make(dump).call;
  EXPECT_EQ(call.contract.computed_in, NumberType::f64);
  EXPECT_EQ(call.kept_in.at("lse"), NumberType::f32);
  EXPECT_EQ(call.kept_in.count("output"), 0u);
}

// ---- Masks

Dump with_mask(const Array<double>& mask, const std::string& type,
               std::map<std::string, std::string> settings = {}) {
  Dump dump = dump_of_right(right(2, 6, 2, 3, 7, 4, 5), as_it_is(), std::move(settings));
  dump.add("mask", mask, type);
  return dump;
}

TEST(CheckInfer, TruthValuesAreAllowedAndOtherNumbersAreAdded) {
  const Array<double> mask = made({3, 7}, [](const Place& p) { return p[1] <= p[0] ? 1.0 : 0.0; });
  const Made truth = make(with_mask(mask, "bool"));
  EXPECT_EQ(truth.assumed.at("mask_means"), "allowed");
  EXPECT_FALSE(truth.call.mask_is_additive);
  expect_same(truth.call.inputs.at("mask"), mask.reshape({1, 1, 3, 7}));
  EXPECT_FALSE(make(with_mask(mask, "i64")).call.mask_is_additive);
  EXPECT_TRUE(make(with_mask(mask, "f32")).call.mask_is_additive);
  EXPECT_EQ(make(with_mask(mask, "f32")).assumed.at("mask_means"), "additive");
}

TEST(CheckInfer, BlockedIsTurnedToAllowed) {
  const Array<double> mask = made({3, 7}, [](const Place& p) { return p[1] > p[0] ? 1.0 : 0.0; });
  const Made m = make(with_mask(mask, "bool", {{"mask_means", "blocked"}}));
  EXPECT_EQ(m.assumed.count("mask_means"), 0u);
  const Array<double> turned = made({1, 1, 3, 7}, [](const Place& p) { return p[3] > p[2] ? 0.0 : 1.0; });
  expect_same(m.call.inputs.at("mask"), turned);
}

TEST(CheckInfer, MasksMayHaveFewerAxesOrFoldTheirHeads) {
  const auto shape = [](const Shape& given) {
    return make(with_mask(Array<double>::ones(given), "bool")).call.inputs.at("mask").shape();
  };
  EXPECT_EQ(shape({7}), (Shape{1, 1, 1, 7}));
  EXPECT_EQ(shape({6, 3, 7}), (Shape{1, 6, 3, 7}));
  EXPECT_EQ(shape({12, 3, 7}), (Shape{2, 6, 3, 7}));
  EXPECT_EQ(shape({2, 3, 7}), (Shape{2, 1, 3, 7}));
  EXPECT_EQ(shape({2, 7}), (Shape{2, 1, 1, 7}));
  EXPECT_EQ(shape({2, 1, 1, 7}), (Shape{2, 1, 1, 7}));
}

TEST(CheckInfer, PaddingJoinsTheMask) {
  const Array<double> mask = made({3, 7}, [](const Place& p) { return p[1] <= p[0] + 4 ? 1.0 : 0.0; });
  Dump dump = with_mask(mask, "bool");
  dump.add("key_padding_mask",
           made({2, 7}, [](const Place& p) { return p[0] == 1 && p[1] == 0 ? 1.0 : 0.0; }), "bool");
  const Made m = make(dump);
  EXPECT_EQ(m.assumed.at("key_padding_mask"), "blocked");
  const Array<double> joined = made(
      {2, 1, 3, 7}, [](const Place& p) { return p[3] <= p[2] + 4 && !(p[0] == 1 && p[3] == 0) ? 1.0 : 0.0; });
  expect_same(m.call.inputs.at("mask"), joined);
}

// ---- Projections

// What torch.nn.MultiheadAttention computed is what x, y and weights as (in, out) give.
TEST(CheckInfer, ALayerOfPyTorchBecomesProjections) {
  const Golden golden("mha_causal_blocked_mask");
  const Made m =
      make(open_dump(std::string(TAPEHEAD_TEST_DATA) + "/golden/mha_causal_blocked_mask.safetensors"));
  const Array<double> packed_weight = golden.array("param.in_proj_weight");
  const auto part = [&](Index first) {
    return made({8, 8}, [&](const Place& p) { return packed_weight(first + p[1], p[0]); });
  };
  EXPECT_EQ((Place{m.call.H, m.call.D}), (Place{2, 4}));
  expect_same(m.call.inputs.at("x"), golden.array("query"));
  expect_same(m.call.inputs.at("w_query"), part(0));
  expect_same(m.call.inputs.at("w_value"), part(16));
  expect_same(m.call.candidate.at("grad_x"), golden.array("grad_query"));
  EXPECT_EQ(m.call.inputs.count("query"), 0u);
  EXPECT_EQ(m.call.inputs.at("mask")(0, 0, 0, 0), 1);
}

TEST(CheckInfer, KeysAndValuesOfOtherWidthsLieSideBySide) {
  const Golden golden("mha_cross_widths");
  const Made m = make(open_dump(std::string(TAPEHEAD_TEST_DATA) + "/golden/mha_cross_widths.safetensors"));
  const Array<double> y = m.call.inputs.at("y"), w = m.call.inputs.at("w_value");
  EXPECT_EQ(y.shape(), (Shape{2, 6, 11}));
  EXPECT_EQ(y(1, 2, 4), golden.array("key")(1, 2, 4));
  EXPECT_EQ(y(1, 2, 5), golden.array("value")(1, 2, 0));
  EXPECT_EQ(w(4, 3), 0);
  EXPECT_EQ(w(5, 3), golden.array("param.v_proj_weight")(3, 0));
  EXPECT_EQ(m.call.candidate.at("grad_y")(0, 1, 10), golden.array("grad_value")(0, 1, 5));
  EXPECT_EQ(m.call.candidate.count("grad_w_key"), 0u);
}

TEST(CheckInfer, AFusedProjectionIsOneSourceOfHeads) {
  const Right r = right(2, 3, 3, 5, 5, 4, 4);
  Dump dump = dump_of_tensors({{"projection", Array<double>::ones({2, 5, 36})}, {"output", flat(r.output)}},
                              {{"heads", "3"}});
  const Call call = make(dump).call;
  EXPECT_EQ((Place{call.H, call.Hk, call.L, call.D, call.E}), (Place{3, 3, 5, 4, 4}));
  expect_same(call.candidate.at("output"), r.output);
}

// The formula of every case that is one attention is the contract's; the others are refused by their kind.
TEST(CheckInfer, GoldenCasesAreCallsOrRefused) {
  const std::string folder = std::string(TAPEHEAD_TEST_DATA) + "/golden/";
  for (const char* name :
       {"sdpa_documents", "sdpa_gqa_causal", "sdpa_sliding_window", "sdpa_softcap", "mha_self",
        "mha_self_nobias", "mha_cross_widths", "mha_causal_blocked_mask", "paths_cross", "paths_self",
        "second_order_sdpa", "sdpa_5d", "sdpa_bias_and_mask"}) {
    const Call call = make(open_dump(folder + name + ".safetensors")).call;
    const Work work = evaluate(call, right_formula());
    for (const auto& [tensor, numbers] : call.candidate) {
      const Array<double> expected = work.results.at(tensor);
      EXPECT_TRUE(all_close(numbers, expected, 1e-12, 1e-13)) << name << " " << tensor;
    }
  }
  for (const char* name :
       {"additive_attention", "encoder_layer_pre_relu", "decoder_layer_pre", "training_run"}) {
    EXPECT_TRUE(
        raises<Unusable>([&] { make(open_dump(folder + name + ".safetensors")); }, {name, "expected"}));
  }
}

// ---- What is not said

TEST(CheckInfer, DefaultsAreThoseOfTheFormatAndNoted) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  const Made m = make(dump_of_right(r, as_it_is()));
  EXPECT_EQ(m.call.contract.scale, 0.5);
  EXPECT_FALSE(m.call.contract.causal || m.call.contract.window_left);
  EXPECT_EQ(m.call.contract.computed_in, NumberType::f64);
  const std::map<std::string, std::string> expected = {
      {"layout", "BHLD"},           {"scale", "0.5"},
      {"causal", "none"},           {"softcap", "none"},
      {"window_left", "unlimited"}, {"window_right", "unlimited"},
      {"head_map", "grouped"},      {"empty_rows", "zero"},
      {"computed_in", "f64"}};
  EXPECT_EQ(m.assumed, expected);
}

TEST(CheckInfer, WhatIsSaidIsTakenAndFlagsComeFirst) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  CheckSettings flags;
  flags.settings = {{"scale", "0.75"}, {"window_left", "2"}};
  const Made m = make(
      dump_of_right(r, as_it_is(), {{"scale", "0.25"}, {"window", "7"}, {"causal", "bottom-right"}}), flags);
  EXPECT_EQ(m.call.contract.scale, 0.75);
  EXPECT_EQ(m.call.contract.causal, (std::vector<Index>{4}));
  EXPECT_EQ(m.call.contract.window_left, 2);
  EXPECT_EQ(m.assumed.count("scale") + m.assumed.count("causal"), 0u);
}

// bf16 numbers in a float file were computed in bf16; numbers that need more bits, or far fewer, say nothing.
TEST(CheckInfer, TheTypeOfComputationShowsInTheNumbers) {
  const Right r = right(2, 3, 3, 5, 5, 4, 4);
  const auto type = [&](double unit) {
    Dump dump = dump_of_tensors({{"query", r.query}, {"key", r.key}, {"value", r.value}});
    const auto rounded = [&](const Place& p) {
      int exponent = 0;
      const double significand = std::frexp(r.output(p[0], p[1], p[2], p[3]), &exponent);
      return std::ldexp(std::nearbyint(significand / unit) * unit, exponent);
    };
    dump.add("output", made(r.output.shape(), rounded), "f32");
    return make(dump).call.contract.computed_in;
  };
  EXPECT_EQ(type(0x1p-24), NumberType::f32);
  EXPECT_EQ(type(0x1p-11), NumberType::f16);
  EXPECT_EQ(type(0x1p-8), NumberType::bf16);
  EXPECT_EQ(type(0x1p-3), NumberType::f32) << "too coarse to tell";
}

TEST(CheckInfer, GradientsWithoutUpstreamAreNotJudged) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  Dump dump = dump_of_right(r, as_it_is());
  dump.add("grad_query", r.query, "f64");
  const Made m = make(dump);
  EXPECT_EQ(m.call.candidate.count("grad_query"), 0u);
  EXPECT_EQ(m.assumed.at("grad_query"), "not judged, without upstream");
}

TEST(CheckInfer, WeightsAloneNeedNoValue) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  const Made m =
      make(dump_of_tensors({{"query", r.query}, {"key", r.key}, {"weights", r.weights}, {"lse", r.lse}}));
  EXPECT_EQ(m.call.inputs.at("value").shape(), (Shape{2, 2, 7, 1}));
  EXPECT_EQ(m.assumed.at("value"), "zeros");
}

TEST(CheckInfer, TensorsWithoutAPlaceAreListed) {
  Dump dump = dump_of_right(right(2, 6, 2, 3, 7, 4, 5), as_it_is());
  dump.tensors.push_back({"", "something", "f64", {2}, [] { return Array<double>::zeros({2}); }});
  EXPECT_EQ(unused_tensors(dump), std::vector<std::string>{"something"});
}

// ---- A call as a dump again

TEST(CheckInfer, ADumpOfACallIsThatCall) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  Dump dump = dump_of_right(r, length_first,
                            {{"layout", "BLHD"},
                             {"causal", "bottom-right"},
                             {"softcap", "20"},
                             {"window_left", "3"},
                             {"head_map", "tiled"},
                             {"rope", "half"}});
  dump.add("mask", made({2, 1, 1, 7}, [](const Place& p) { return p[3] < 5 ? 1.0 : 0.0; }), "bool");
  const Call call = make(dump).call;
  Dump again = dump_of(call);
  again.add("output", r.output, "f64");
  const Call second = make(again).call;
  EXPECT_EQ(second.contract.causal, call.contract.causal);
  EXPECT_EQ(second.contract.window_left, call.contract.window_left);
  EXPECT_EQ(second.contract.softcap, 20);
  EXPECT_TRUE(second.contract.tiled_heads);
  EXPECT_EQ(second.contract.rope, Pairing::half);
  for (const auto& [name, numbers] : call.inputs) expect_same(second.inputs.at(name), numbers);
}

// ---- What does not fit

struct Misfit {
  const char* name;                              // of the case
  std::map<std::string, Array<double>> tensors;  // replace those of a right dump; an undefined one removes
  std::map<std::string, std::string> settings;
  std::vector<std::string_view> texts;
};
void PrintTo(const Misfit& misfit, std::ostream* stream) { *stream << misfit.name; }

class Misfits : public testing::TestWithParam<Misfit> {};

TEST_P(Misfits, AreOneLineThatNamesWhatAndWhy) {
  const Right r = right(2, 6, 2, 3, 7, 4, 5);
  std::map<std::string, Array<double>> tensors = {
      {"query", r.query}, {"key", r.key}, {"value", r.value}, {"output", r.output}};
  for (const auto& [name, numbers] : GetParam().tensors) {
    numbers.defined() ? tensors[name] = numbers, 0 : static_cast<int>(tensors.erase(name));
  }
  const Dump dump = dump_of_tensors(tensors, GetParam().settings);
  try {
    make(dump);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Unusable& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind("dump: ", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string_view text : GetParam().texts)
      EXPECT_NE(message.find(text), std::string::npos) << message;
  }
}

Array<double> ones(const Shape& shape) { return Array<double>::ones(shape); }
const Array<double> none;

INSTANTIATE_TEST_SUITE_P(
    CheckInfer, Misfits,
    testing::Values(
        Misfit{"NoResult", {{"output", none}}, {}, {"nothing to judge", "output"}},
        Misfit{"NoQuery", {{"query", none}}, {}, {"no query"}},
        Misfit{"NoKey", {{"key", none}}, {}, {"no key"}},
        Misfit{"NoValue", {{"value", none}}, {}, {"no value"}},
        Misfit{"Empty", {{"query", Array<double>::zeros({2, 6, 0, 4})}}, {}, {"query", "(2, 6, 0, 4)"}},
        Misfit{"HeadsNoMultiple",
               {{"key", ones({2, 4, 7, 4})}, {"value", ones({2, 4, 7, 5})}},
               {{"layout", "BHLD"}},
               {"multiple of the 4 key heads", "6"}},
        Misfit{"WidthsDiffer",
               {{"key", ones({2, 2, 7, 8})}},
               {{"layout", "BHLD"}},
               {"key", "(2, 2, 7, 4)", "(2, 2, 7, 8)"}},
        Misfit{"SamplesDiffer", {{"key", ones({3, 2, 7, 4})}}, {{"layout", "BHLD"}}, {"key", "(3, 2, 7, 4)"}},
        Misfit{"ValueLength", {{"value", ones({2, 2, 6, 5})}}, {}, {"value", "(2, 2, 7, 5)", "(2, 2, 6, 5)"}},
        Misfit{
            "OutputShape", {{"output", ones({2, 6, 3, 4})}}, {}, {"output", "(2, 6, 3, 5)", "(2, 6, 3, 4)"}},
        Misfit{"RankOfQuery", {{"query", ones({4})}}, {}, {"query"}},
        Misfit{"RankOfKey", {{"key", ones({})}}, {}, {"key"}},
        Misfit{"MaskShape", {{"mask", ones({3, 6})}}, {}, {"mask", "(2, 6, 3, 7)", "(3, 6)"}},
        Misfit{"MaskNumbers",
               {{"mask", Array<double>::full({3, 7}, 0.5)}},
               {{"mask_means", "allowed"}},
               {"mask", "0 and 1", "0.5"}},
        Misfit{
            "Lengths", {{"key_lengths", Array<double>::of({7, 8})}}, {}, {"key_lengths", "from 0 to 7", "8"}},
        Misfit{"NegativeLengths", {{"key_lengths", Array<double>::of({7, -1})}}, {}, {"key_lengths", "-1"}},
        Misfit{"LengthsInPart", {{"key_lengths", Array<double>::of({7, 2.5})}}, {}, {"key_lengths", "2.5"}},
        Misfit{"LengthsNotANumber",
               {{"key_lengths", Array<double>::full({2}, std::nan(""))}},
               {},
               {"key_lengths", "nan"}},
        Misfit{"CountOfLengths", {{"key_lengths", ones({3})}}, {}, {"key_lengths", "(2)", "(3)"}},
        Misfit{"Sink", {{"sink", ones({2})}}, {}, {"sink", "(6)", "(2)"}},
        Misfit{"Segments", {{"query_segments", ones({2, 3})}}, {}, {"no key_segments"}},
        Misfit{"Keep",
               {{"dropout_keep", Array<double>::full({2, 6, 3, 7}, 2)}},
               {},
               {"dropout_keep", "0 and 1"}},
        Misfit{"KeepMissing", {}, {{"mode", "train"}, {"dropout", "0.5"}}, {"no dropout_keep"}},
        Misfit{"LseShape", {{"lse", ones({2, 6, 7})}}, {}, {"lse", "(2, 6, 3)", "(2, 6, 7)"}},
        Misfit{"Heads", {}, {{"heads", "3"}}, {"heads", "6", "3"}},
        Misfit{"KeyHeads", {}, {{"kv_heads", "3"}}, {"kv_heads", "2", "3"}},
        Misfit{"UpstreamShape", {{"upstream", ones({2, 6, 3, 4})}}, {}, {"upstream", "(2, 6, 3, 5)"}},
        Misfit{"OnlyGradients", {{"output", none}, {"grad_query", ones({2, 6, 3, 4})}}, {}, {"no upstream"}},
        Misfit{"Unrotated", {{"query_unrotated", ones({2, 6, 3, 4})}}, {}, {"rope", "query_unrotated"}},
        Misfit{"Unnormed", {{"query_unnormed", ones({2, 6, 3, 4})}}, {}, {"qk_norm", "query_unnormed"}},
        Misfit{"RopeWidth", {}, {{"rope", "half"}, {"rope_width", "6"}}, {"rope_width", "4", "6"}},
        Misfit{"PackedWithoutLengths", {}, {{"layout", "THD"}}, {"THD"}},
        Misfit{"WrongLayout", {}, {{"layout", "BLHD"}}, {"BLHD"}},
        Misfit{"FlatLayout", {}, {{"layout", "BLD"}}, {"query", "BLD"}},
        Misfit{"NotASetting", {}, {{"sacle", "1"}}, {"sacle"}}),
    [](const auto& misfit) { return std::string(misfit.param.name); });

TEST(CheckInfer, PackedSequencesMustFillTheRows) {
  const Right r = right(1, 2, 2, 9, 9, 4, 4);
  const auto message = [&](const Array<double>& starts) {
    Dump dump = dump_of_right(r, packed);
    dump.add("cu_seqlens_q", starts, "i64");
    return [dump] { make(dump); };
  };
  const std::initializer_list<std::string_view> texts = {"cu_seqlens_q", "fill the 9 rows"};
  EXPECT_TRUE(raises<Unusable>(message(Array<double>::of({0, 3, 8})), texts));
  EXPECT_TRUE(raises<Unusable>(message(Array<double>::of({1, 3, 9})), texts));
  EXPECT_TRUE(raises<Unusable>(message(Array<double>::of({0, 8, 3, 9})), texts));
  EXPECT_TRUE(raises<Unusable>(message(Array<double>::of({0, 3.5, 9})), {"cu_seqlens_q", "3.5"}));
}

}  // namespace
}  // namespace tapehead::check
