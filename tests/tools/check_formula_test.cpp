// The formula that the diagnosis starts from against the explicit formulas of nn, and against differences
// where those have no such option.

#include <gtest/gtest.h>

#include <support/compare.h>
#include <tapehead/nn/attention_reference.h>
#include <tests/tools/check_calls.h>

namespace tapehead::check {
namespace {

constexpr double rounding = 1e-13;  // sums of a few dozen products of size 1, in another order

Array<bool> bools(const Array<double>& x) { return x.cast<bool>(); }

// Everything that both know. `mask` is the call's in words of nn.
void expect_as_reference(const Call& call, AttentionOptions<double> options) {
  options.scale = call.contract.scale;
  options.empty_rows = EmptyRows::zero;
  options.softcap = call.contract.softcap;
  AttentionOutputs upstream;
  upstream.output = call.inputs.at("upstream");
  if (call.inputs.contains("upstream_weights")) upstream.weights = call.inputs.at("upstream_weights");
  if (call.inputs.contains("upstream_lse")) upstream.log_sum_exp = call.inputs.at("upstream_lse");
  const char* query = call.contract.norms != QueryKeyNorms::none ? "query_unnormed"
                      : call.contract.rope != Pairing::none      ? "query_unrotated"
                                                                 : "query";
  const std::string key = std::string("key") + (query + 5);
  const AttentionReference right = attention_reference(call.inputs.at(query), call.inputs.at(key),
                                                       call.inputs.at("value"), options, upstream);
  const Tensors got = evaluate(call, right_formula()).results;
  const auto expect = [&](const char* name, const Array<double>& expected) {
    if (!expected.defined()) return;
    EXPECT_NEAR_RELATIVE(got.at(name), expected, rounding) << name;
  };
  expect("output", right.output);
  expect("weights", right.weights);
  expect("lse", right.log_sum_exp);
  expect("grad_query", right.dquery);
  expect("grad_key", right.dkey);
  expect("grad_value", right.dvalue);
  expect("grad_bias", right.dbias);
  expect("grad_sink", right.dsink);
  expect("grad_slopes", right.dslopes);
  expect("grad_query_gain", right.dquery_gain);
  expect("grad_key_gain", right.dkey_gain);
}

TEST(RightFormula, IsThatOfTheReferencePlain) {
  Generator random(1);
  expect_as_reference(random_call(random), {});
  expect_as_reference(random_call(random, {1, 1, 1, 1, 1, 1, 1}), {});
  expect_as_reference(random_call(random, {1, 4, 1, 9, 4, 3, 2}, 5), {});
}

TEST(RightFormula, IsThatOfTheReferenceWithEveryMask) {
  Generator random(2);
  Call call = random_call(random, {2, 6, 2, 5, 7, 8, 5});
  call.contract.causal = {2, 1};
  call.contract.window_left = 3;
  call.contract.window_right = 1;
  call.inputs["mask"] = coins(random, {2, 1, 5, 7});
  call.inputs["key_lengths"] = Array<double>::of({7, 5});
  call.inputs["query_segments"] = Array<double>::of({{0, 0, 1, 1, 1}, {0, 1, 1, 2, 2}});
  call.inputs["key_segments"] = Array<double>::of({{0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 1, 1, 1, 1}});
  AttentionOptions<double> options;
  const auto whole = [&](const char* name) { return call.inputs.at(name).cast<Index>(); };
  const PerSample offset(Array<Index>::of({2, 1}));
  options.mask = Mask::allowed(bools(call.inputs["mask"])) & Mask::causal(offset) &
                 Mask::window(3, 1, offset) & Mask::lengths(PerSample(whole("key_lengths"))) &
                 Mask::documents(whole("query_segments"), whole("key_segments"));
  expect_as_reference(call, options);
}

TEST(RightFormula, IsThatOfTheReferenceWithWhatIsAddedToScores) {
  Generator random(3);
  Call call = random_call(random);
  const double infinity = std::numeric_limits<double>::infinity();
  call.inputs["bias"] = normal(random, {1, 6, 1, 7});
  call.inputs["bias"].set({0, 0, 0, 2}, -infinity);
  call.inputs["sink"] = normal(random, {6});
  call.inputs["slopes"] = normal(random, {6});
  call.inputs["upstream_lse"] = normal(random, {2, 6, 3});
  call.inputs["upstream_weights"] = normal(random, {2, 6, 3, 7});
  call.contract.softcap = 2;
  call.contract.rope_start_query = 3;
  AttentionOptions<double> options;
  options.bias = Var<double>(call.inputs["bias"]);
  options.sink = Var<double>(call.inputs["sink"]);
  options.slopes = Var<double>(call.inputs["slopes"]);
  options.query_offset = 3;
  expect_as_reference(call, options);
}

TEST(RightFormula, IsThatOfTheReferenceWithDropout) {
  Generator random(4);
  Call call = random_call(random);
  call.contract.training = true;
  call.contract.dropout = 0.25;
  call.inputs["dropout_keep"] = coins(random, {2, 6, 3, 7});
  AttentionOptions<double> options;
  options.dropout = Dropout{0.25, bools(call.inputs["dropout_keep"])};
  expect_as_reference(call, options);
}

TEST(RightFormula, IsThatOfTheReferenceWithRotationAndNorms) {
  for (const bool half : {true, false}) {
    Generator random(5);
    Call call = random_call(random);
    call.contract.norms = QueryKeyNorms::rms;
    call.contract.norm_eps = 1e-3;
    call.contract.rope = half ? Pairing::half : Pairing::neighbour;
    call.contract.rope_base = 100;
    call.contract.rope_width = 4;
    call.contract.rope_start_query = 11;
    call.contract.rope_start_key = 7;
    call.inputs["query_gain"] = normal(random, {8});
    call.inputs["key_gain"] = normal(random, {8});
    for (const std::string name : {"query", "key"}) {
      call.inputs[name + "_unnormed"] = call.inputs[name];
      call.inputs.erase(name);
    }
    AttentionOptions<double> options;
    options.norm = QueryKeyNorm<double>{Var<double>(call.inputs["query_gain"]),
                                        Var<double>(call.inputs["key_gain"]), 1e-3};
    options.rope = RopeOptions{};
    options.rope->pairing = half ? tapehead::Pairing::half : tapehead::Pairing::neighbours;
    options.rope->base = 100;
    options.rope->width = 4;
    options.rope->start = 7;
    options.query_offset = 4;
    expect_as_reference(call, options);
  }
}

// ---- what the reference of nn has not, by central differences of sum(results upstream)

double weighted_sum(const Call& call) {
  const Tensors results = evaluate(call, right_formula(), false).results;
  double sum = 0;
  const auto add = [&](const char* result, const char* upstream) {
    const auto given = call.inputs.find(upstream);
    if (given == call.inputs.end()) return;
    for (Index i = 0; i < given->second.size(); ++i) {
      sum += results.at(result).data()[i] * given->second.data()[i];
    }
  };
  add("output", "upstream");
  add("weights", "upstream_weights");
  add("lse", "upstream_lse");
  return sum;
}

// The error of differences with a step of 1e-5 is 1e-10 of the third derivative and 1e-11 of rounding.
void expect_gradient(const Call& call, const std::string& name) {
  const Array<double> got = evaluate(call, right_formula()).results.at("grad_" + name);
  Array<double> expected = Array<double>::zeros(got.shape());
  for (Index i = 0; i < got.size(); ++i) {
    double at[2];
    for (const int side : {0, 1}) {
      Call moved = call;
      moved.inputs[name].mutable_values()[static_cast<std::size_t>(i)] += side == 0 ? 1e-5 : -1e-5;
      at[side] = weighted_sum(moved);
    }
    expected.mutable_values()[static_cast<std::size_t>(i)] = (at[0] - at[1]) / 2e-5;
  }
  EXPECT_NEAR_RELATIVE(got, expected, 1e-8) << name;
}

TEST(RightFormula, GradientsThroughProjectionsAreThoseOfDifferences) {
  Generator random(6);
  Call call = call_of({2, 4, 2, 3, 5, 4, 3});
  call.contract.scale = 0.4;
  call.contract.tiled_heads = true;
  call.contract.norms = QueryKeyNorms::l2;
  call.contract.norm_eps = 0.01;
  call.contract.rope = Pairing::half;
  call.contract.rope_base = 50;
  const std::map<std::string, Shape> shapes{{"x", {2, 3, 6}},    {"y", {2, 5, 7}},    {"w_query", {6, 16}},
                                            {"b_query", {16}},   {"w_key", {7, 8}},   {"b_key", {8}},
                                            {"w_value", {7, 6}}, {"b_value", {6}},    {"w_out", {12, 5}},
                                            {"b_out", {5}},      {"query_gain", {4}}, {"key_gain", {4}}};
  for (const auto& [name, shape] : shapes) call.inputs[name] = normal(random, shape);
  call.inputs["upstream"] = normal(random, {2, 3, 5});
  for (const auto& [name, shape] : shapes) expect_gradient(call, name);
}

TEST(RightFormula, GradientsOfSelfAttentionMeetInX) {
  Generator random(7);
  Call call = call_of({1, 2, 1, 3, 3, 4, 4});
  call.contract.causal = {0};
  const std::map<std::string, Shape> shapes{
      {"x", {1, 3, 4}}, {"w_query", {4, 8}}, {"w_key", {4, 4}}, {"w_value", {4, 4}}};
  for (const auto& [name, shape] : shapes) call.inputs[name] = normal(random, shape);
  call.inputs["upstream"] = normal(random, {1, 2, 3, 4});
  for (const auto& [name, shape] : shapes) expect_gradient(call, name);
}

TEST(RightFormula, GradientOfAFusedProjectionIsThatOfDifferences) {
  Generator random(8);
  Call call = call_of({1, 4, 2, 3, 3, 2, 3});
  call.inputs["projection"] = normal(random, {1, 3, 4 * 2 + 2 * 2 + 2 * 3});
  call.inputs["upstream"] = normal(random, {1, 4, 3, 3});
  expect_gradient(call, "projection");
}

TEST(RightFormula, GradientsOfOtherConventionsAreThoseOfDifferences) {
  Generator random(9);
  Call call = random_call(random, {2, 4, 2, 3, 5, 4, 3});
  call.contract.bias_before_scale = true;
  call.contract.tiled_heads = true;
  call.contract.lse_base_2 = true;
  call.contract.softcap = 1;
  call.mask_is_additive = true;
  call.inputs["bias"] = normal(random, {4, 3, 1});
  call.inputs["mask"] = normal(random, {2, 1, 1, 5});
  call.inputs["upstream_lse"] = normal(random, {2, 4, 3});
  for (const char* name : {"query", "key", "value", "bias", "mask"}) expect_gradient(call, name);
}

TEST(RightFormula, ABlockedKeyThatHoldsNaNTakesNothing) {
  Generator random(10);
  Call call = random_call(random);
  call.contract.causal = {2};
  const Tensors right = evaluate(call, right_formula()).results;
  for (const char* name : {"key", "value"}) {
    for (Index e = 0; e < 5; ++e) call.inputs[name].set({0, 0, 6, e}, std::nan(""));
  }
  const Tensors got = evaluate(call, right_formula()).results;
  for (const char* name : {"output", "grad_query", "grad_key", "grad_value"}) {
    EXPECT_NEAR_RELATIVE(got.at(name), right.at(name), rounding) << name;
  }
}

// The tests can fail: one step off by a thousandth is seen.
TEST(RightFormula, AWrongStepIsSeen) {
  Generator random(11);
  const Call call = random_call(random);
  Formula wrong = right_formula();
  wrong.scale_backward = [right = wrong.scale_backward](Work& w) {
    right(w);
    for (double& d : w.dproducts.at) d *= 1.001;
  };
  const Tensors right = evaluate(call, right_formula()).results, got = evaluate(call, wrong).results;
  EXPECT_GT(relative_error(got.at("grad_query"), right.at("grad_query")), 5e-4);
  EXPECT_EQ(relative_error(got.at("grad_value"), right.at("grad_value")), 0);
}

}  // namespace
}  // namespace tapehead::check
