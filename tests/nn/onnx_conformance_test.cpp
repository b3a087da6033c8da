// The node tests of the ONNX standard, from the folder that ATTENTION_CONFORMANCE_DIR names, through the
// public functions. The folder's README.md says what the data is; nothing of it is kept here.
//
//   ATTENTION_CONFORMANCE_DIR=../shared/onnx-conformance ctest -R onnx --verbose

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <tapehead/nn/attention.h>
#include <tapehead/nn/npy.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include "support/compare.h"

namespace tapehead {
namespace {

namespace fs = std::filesystem;

constexpr double infinity = std::numeric_limits<double>::infinity();

// One entry of the manifest. What is asked of it is remembered, so that an attribute or input that the test
// does not know cannot be passed over.
class Case {
 public:
  Case(fs::path folder, nlohmann::json entry) : folder_(std::move(folder)), entry_(std::move(entry)) {}

  std::string name() const { return entry_.at("case"); }
  std::string op() const { return entry_.at("op"); }

  bool has(const std::string& input) const { return entry_.at("inputs").contains(input); }
  std::string type(const std::string& input) const { return entry_.at("inputs").at(input).at("dtype"); }
  template <class T>
  Array<T> input(const std::string& name) const {
    asked_.insert(name);
    return read<T>(entry_.at("inputs").at(name));
  }

  std::vector<std::string> outputs() const {
    std::vector<std::string> names;
    for (const auto& [name, stored] : entry_.at("outputs").items()) names.push_back(name);
    return names;
  }
  Array<double> output(const std::string& name) const { return read<double>(entry_.at("outputs").at(name)); }
  bool in_half_precision(const std::string& output) const {
    return entry_.at("outputs").at(output).at("dtype") == "float16";
  }

  bool says(const std::string& attribute) const {
    asked_.insert(attribute);
    return entry_.at("attributes").contains(attribute);
  }
  template <class T>
  T attribute(const std::string& name, T otherwise) const {
    return says(name) ? entry_.at("attributes").at(name).get<T>() : otherwise;
  }

  std::string not_asked_for() const {
    std::string names;
    for (const char* kind : {"inputs", "attributes"}) {
      for (const auto& [name, value] : entry_.at(kind).items()) {
        if (!asked_.contains(name)) names += " " + name;
      }
    }
    return names;
  }

 private:
  template <class T>
  Array<T> read(const nlohmann::json& stored) const {
    const Array<T> array = read_npy<T>((folder_ / stored.at("file").get<std::string>()).string());
    const auto extents = stored.at("shape").get<std::vector<Index>>();
    EXPECT_EQ(array.shape(), Shape(std::span(extents))) << stored.at("file");
    return array;
  }

  fs::path folder_;
  nlohmann::json entry_;
  mutable std::set<std::string> asked_;
};

// The standard's rules, and wrong ones that give results of the same shape.
enum class Rule {
  standard,
  causal_to_the_last_key,  // j <= i + S - L
  past_not_counted,        // offset 0 with a past
  offset_not_below_zero,   // negative offsets taken for 0
  lengths_not_read,
  heads_tiled,                // query head h reads h mod Hk
  split_head_by_head,         // rank 3 read as (B, H, n, d)
  scale_times_the_usual_one,  // both
  softcap_after_the_mask,     // c tanh((s + mask) / c)
  mask_says_blocked,          // true = not seen
  mask_not_read,
  scores_of_the_mode_before,  // the output of one mode for another
  past_behind_the_new_keys,
  empty_rows_see_all,  // the mean of V
};

template <class T>
using Results = std::map<std::string, Array<T>>;

template <class T>
Var<T> with_heads(const Case& c, const std::string& input, const std::string& heads, Rule rule) {
  const Var<T> x = c.input<T>(input);
  if (x.rank() != 3) return x;
  const Index count = c.attribute<Index>(heads, 0);
  if (rule != Rule::split_head_by_head) return split_heads(x, count);
  return reshape(x, {x.dim(0), count, x.dim(1), x.dim(2) / count});
}

// The new keys or values behind the earlier ones.
template <class T>
Var<T> behind(const Case& c, const std::string& past, const Var<T>& x, Rule rule) {
  if (!c.has(past)) return x;
  const Var<T> earlier = c.input<T>(past);
  return rule == Rule::past_behind_the_new_keys ? concat({x, earlier}, -2) : concat({earlier, x}, -2);
}

// How many keys precede the first query, by sample.
PerSample causal_offset(const Case& c, Index queries, Index keys, Rule rule) {
  if (rule == Rule::causal_to_the_last_key) return keys - queries;
  if (c.has("past_key") && rule != Rule::past_not_counted) return c.input<double>("past_key").dim(-2);
  if (!c.has("nonpad_kv_seqlen")) return 0;
  Array<Index> offsets = c.input<Index>("nonpad_kv_seqlen");
  for (Index& offset : offsets.mutable_values()) {
    offset -= queries;
    if (rule == Rule::offset_not_below_zero) offset = std::max<Index>(offset, 0);
  }
  return offsets;
}

Array<bool> opposite(Array<bool> keys) {
  for (bool& key : keys.mutable_values()) key = !key;
  return keys;
}

template <class T>
AttentionOptions<T> options_of(const Case& c, Index queries, Index keys, Index width, Rule rule) {
  AttentionOptions<T> options{.empty_rows = EmptyRows::zero};
  if (c.says("scale")) {
    const double usual = rule == Rule::scale_times_the_usual_one ? std::sqrt(static_cast<double>(width)) : 1;
    options.scale = c.attribute("scale", 0.0) / usual;
  }
  options.softcap = c.attribute("softcap", 0.0);
  if (c.has("attn_mask") && c.type("attn_mask") == "bool") {
    const auto allowed = c.input<bool>("attn_mask");
    options.mask = Mask::allowed_prefix(rule == Rule::mask_says_blocked ? opposite(allowed) : allowed);
  } else if (c.has("attn_mask")) {
    const Var<T> bias = c.input<T>("attn_mask");
    options.bias = pad(bias, -1, {0, keys - bias.dim(-1)}, -infinity);
  }
  if (rule == Rule::mask_not_read) options.mask = {}, options.bias.reset();
  if (c.attribute<Index>("is_causal", 0) == 1) {
    options.mask = options.mask & Mask::causal(causal_offset(c, queries, keys, rule));
  }
  if (c.has("nonpad_kv_seqlen")) {
    const Mask filled = Mask::lengths(c.input<Index>("nonpad_kv_seqlen"));
    if (rule != Rule::lengths_not_read) options.mask = options.mask & filled;
  }
  // 1, 10, 11 and 16 are float32, float16, float64 and bfloat16; here a softmax has float at least.
  const std::set<Index> types{1, 10, 11, 16};
  EXPECT_TRUE(types.contains(c.attribute<Index>("softmax_precision", 1)));
  return options;
}

template <class T>
Var<T> output_with_softcap_after_mask(const Var<T>& q, const Var<T>& k, const Var<T>& v,
                                      AttentionOptions<T> options) {
  const double cap = options.softcap;
  options.softcap = 0;
  options.masked_scores = true;
  const Var<T> scores = *attention(q, k, v, options).masked_scores;
  return matmul(softmax(tanh(scores / cap) * cap), repeat_interleave(v, q.dim(1) / v.dim(1), 1));
}

template <class T>
Var<T> output_with_empty_rows_uniform(const Var<T>& weights, const Var<T>& v) {
  const Array<bool> rows = positive(sum(weights, -1, Keep::yes).value());
  const Var<T> filled = masked_fill(weights, rows, 1 / static_cast<double>(weights.dim(-1)));
  return matmul(filled, repeat_interleave(v, weights.dim(1) / v.dim(1), 1));
}

template <class T>
Var<T> output_by(Rule rule, const Var<T>& q, const Var<T>& k, const Var<T>& v,
                 const AttentionOptions<T>& options, const AttentionResult<T>& seen) {
  if (rule == Rule::softcap_after_the_mask && options.softcap > 0) {
    return output_with_softcap_after_mask(q, k, v, options);
  }
  if (rule == Rule::empty_rows_see_all) return output_with_empty_rows_uniform(*seen.weights, v);
  return seen.output;
}

template <class T>
Results<T> attention_of(const Case& c, Rule rule) {
  const bool by_token = c.input<T>("Q").rank() == 3;
  const Var<T> q = with_heads<T>(c, "Q", "q_num_heads", rule);
  Var<T> k = behind(c, "past_key", with_heads<T>(c, "K", "kv_num_heads", rule), rule);
  Var<T> v = behind(c, "past_value", with_heads<T>(c, "V", "kv_num_heads", rule), rule);
  Results<T> results{{"present_key", k.value()}, {"present_value", v.value()}};
  if (rule == Rule::heads_tiled) {
    Array<Index> heads = Array<Index>::arange(q.dim(1));
    for (Index& h : heads.mutable_values()) h %= k.dim(1);
    k = index_select(k, heads, 1), v = index_select(v, heads, 1);
  }
  AttentionOptions<T> options = options_of<T>(c, q.dim(-2), k.dim(-2), q.dim(-1), rule);
  auto as_q = [&](const Var<T>& y) { return (by_token ? merge_heads(y) : y).value(); };
  if (rule == Rule::standard) results["Y alone"] = as_q(attention(q, k, v, options).output);
  options.scaled_scores = options.capped_scores = options.masked_scores = options.weights = true;
  const AttentionResult<T> seen = attention(q, k, v, options);
  results["Y"] = as_q(output_by(rule, q, k, v, options, seen));
  const Var<T>* const scores[] = {&*seen.scaled_scores, &*seen.capped_scores, &*seen.masked_scores,
                                  &*seen.weights};
  const auto mode = c.attribute<std::size_t>("qk_matmul_output_mode", 0);
  results["qk_matmul_output"] =
      scores[rule == Rule::scores_of_the_mode_before && mode > 0 ? mode - 1 : mode]->value();
  return results;
}

template <class T>
Results<T> rotary_embedding(const Case& c) {
  Var<T> x = c.input<T>("input");
  const bool by_token = x.rank() == 3;
  if (by_token) x = split_heads(x, c.attribute<Index>("num_heads", 0));
  auto table = [&](const char* name) {
    const Var<T> cache = c.input<T>(name);
    const Var<T> rows = c.has("position_ids") ? embedding(cache, c.input<Index>("position_ids")) : cache;
    return reshape(rows, {x.dim(0), 1, x.dim(2), rows.dim(-1)}).value();  // the same for all heads
  };
  const bool neighbours = c.attribute<Index>("interleaved", 0) == 1;
  const Var<T> y =
      rope(x, table("cos_cache"), table("sin_cache"), neighbours ? Pairing::neighbours : Pairing::half,
           c.attribute<Index>("rotary_embedding_dim", 0));
  return {{"output", (by_token ? merge_heads(y) : y).value()}};
}

template <class T>
Results<T> layer_normalization(const Case& c) {
  const Var<T> x = c.input<T>("X");
  const double eps = c.attribute("epsilon", 1e-5);
  std::vector<int> normed;
  for (int axis = axis_of("onnx", x.shape(), c.attribute("axis", -1)); axis < x.rank(); ++axis) {
    normed.push_back(axis);
  }
  return {{"Y", layer_norm(x, Var<T>(c.input<T>("W")), Var<T>(c.input<T>("B")), eps).value()},
          {"Mean", mean(x, Axes(normed), Keep::yes).value()},
          {"InvStdDev", rsqrt(var(x, Axes(normed), Keep::yes) + eps).value()}};
}

template <class T>
Results<T> rms_normalization(const Case& c) {
  const Var<T> x = c.input<T>("X"), gain = c.input<T>("W");
  EXPECT_EQ(axis_of("onnx", x.shape(), c.attribute("axis", -1)), x.rank() - gain.rank());
  return {{"Y", rms_norm(x, gain, c.attribute("epsilon", 1e-5)).value()}};
}

template <class T>
Results<T> softmax_cross_entropy(const Case& c) {
  const Var<T> x = c.input<T>("x");
  const std::map<std::string, Reduction> reductions{
      {"mean", Reduction::mean}, {"sum", Reduction::sum}, {"none", Reduction::none}};
  CrossEntropyOptions<T> options{.reduction = reductions.at(c.attribute<std::string>("reduction", "mean")),
                                 .axis = 1};
  options.ignored = c.attribute("ignore_index", options.ignored);
  if (c.has("w")) options.weights = c.input<T>("w");
  return {{"z", cross_entropy(x, c.input<Index>("y"), options).value()},
          {"log_prob", log_softmax(x, 1).value()}};
}

template <class T>
Results<T> results_of(const Case& c, Rule rule) {
  if (c.op() == "Attention") return attention_of<T>(c, rule);
  if (c.op() == "RotaryEmbedding") return rotary_embedding<T>(c);
  if (c.op() == "LayerNormalization") return layer_normalization<T>(c);
  if (c.op() == "RMSNormalization") return rms_normalization<T>(c);
  if (c.op() == "SoftmaxCrossEntropyLoss") return softmax_cross_entropy<T>(c);
  if (c.op() == "Softmax") {
    return {{"y", softmax(Var<T>(c.input<T>("x")), c.attribute("axis", -1)).value()}};
  }
  if (c.op() == "Gelu") {
    const bool by_tanh = c.attribute<std::string>("approximate", "none") == "tanh";
    return {{"y", gelu(Var<T>(c.input<T>("x")), by_tanh ? Gelu::tanh : Gelu::exact).value()}};
  }
  throw std::runtime_error("no rule for the operator " + c.op());
}

// max |a - b|; infinite where either is no number or only one is infinite.
double distance_between(const Array<double>& a, const Array<double>& b) {
  for (const double x : a.values()) {
    if (std::isnan(x)) return infinity;
  }
  return absolute_error(a, b);
}

// The stored numbers are good to 1e-6 and those of half precision to a unit or two of its last place, 2^-10
// near 1; in float ours may be as far from the exact ones again, at values up to 10.
double tolerance(bool half, bool in_float) { return half ? 2e-3 : in_float ? 5e-6 : 1e-6; }

// The largest distance over that tolerance, of all outputs of the case; at most 1 when it passes. What is
// wanted besides Y decides how attention is computed, so it is looked at alone too.
template <class T>
double excess(const Case& c, Rule rule = Rule::standard) {
  const Results<T> results = results_of<T>(c, rule);
  double worst = 0;
  auto compare = [&](const std::string& result, const std::string& output) {
    const double distance = distance_between(results.at(result).template cast<double>(), c.output(output));
    worst = std::max(worst, distance / tolerance(c.in_half_precision(output), std::same_as<T, float>));
  };
  for (const std::string& output : c.outputs()) compare(output, output);
  if (results.contains("Y alone")) compare("Y alone", "Y");
  return worst;
}

TEST(ConformanceDistance, IsInfiniteForWhatIsNoNumberAndForAnInfinityInTheWrongPlace) {
  const Array<double> stored = Array<double>::of({1, -infinity});
  EXPECT_EQ(distance_between(Array<double>::of({1.5, -infinity}), stored), 0.5);
  EXPECT_EQ(distance_between(Array<double>::of({1, -1e300}), stored), infinity);
  EXPECT_EQ(distance_between(Array<double>::of({-infinity, -infinity}), stored), infinity);
  EXPECT_EQ(distance_between(Array<double>::of({1, infinity}), stored), infinity);
  const double nan = std::nan("");
  EXPECT_EQ(distance_between(Array<double>::of({nan, -infinity}), stored), infinity);
  EXPECT_EQ(distance_between(Array<double>::of({nan}), Array<double>::of({nan})), infinity);
  EXPECT_EQ(distance_between(Array<double>::of({1}), stored), infinity);
}

// A path that is not there from where the test runs is read from the project's root.
fs::path resolved(const fs::path& path) {
  const fs::path from_root = fs::path(TAPEHEAD_TEST_DATA) / ".." / ".." / path;
  return fs::exists(path) || !fs::exists(from_root) ? path : from_root;
}

class Conformance : public testing::Test {
 protected:
  void SetUp() override {
    const char* const variable = std::getenv("ATTENTION_CONFORMANCE_DIR");
    if (variable == nullptr) {
      GTEST_SKIP() << "no case ran: the environment variable ATTENTION_CONFORMANCE_DIR is not set";
    }
    const fs::path folder = resolved(variable);
    if (!fs::exists(folder / "manifest.json")) {
      GTEST_SKIP() << "no case ran: " << folder << " of ATTENTION_CONFORMANCE_DIR has no manifest.json";
    }
    std::ifstream file(folder / "manifest.json");
    for (const auto& entry : nlohmann::json::parse(file)) cases_.emplace_back(folder, entry);
    ASSERT_FALSE(cases_.empty());
  }

  // Runs all of them and says how many there were.
  template <class T>
  void expect_every_case(const char* type) const {
    std::size_t ran = 0;
    std::map<std::string, int> passed;
    std::map<std::string, double> worst;
    for (const Case& c : cases_) {
      double found = infinity;
      EXPECT_NO_THROW(found = excess<T>(c)) << c.name();
      EXPECT_LE(found, 1) << c.name();
      EXPECT_EQ(c.not_asked_for(), "") << c.name();
      worst[c.op()] = std::max(worst[c.op()], found);
      passed[c.op()] += found <= 1;
      ++ran;
    }
    EXPECT_EQ(ran, cases_.size());
    std::cout << ran << " of " << cases_.size() << " cases ran in " << type << ":\n";
    for (const auto& [op, count] : passed) {
      std::cout << "  " << op << ": " << count << " passed, at most " << worst[op] << " of the tolerance\n";
    }
  }

  std::vector<std::string> noticed_by(Rule rule) const {
    std::vector<std::string> names;
    for (const Case& c : cases_) {
      if (c.op() == "Attention" && excess<double>(c, rule) > 1) names.push_back(c.name());
    }
    return names;
  }

  std::vector<Case> cases_;
};

TEST_F(Conformance, EveryCaseInFloat) { expect_every_case<float>("float"); }
TEST_F(Conformance, EveryCaseInDouble) { expect_every_case<double>("double"); }

// A wrong rule and the least number of cases that it fails.
TEST_F(Conformance, WrongRulesAreNoticed) {
  struct Wrong {
    const char* name;
    Rule rule;
    std::size_t least;
  };
  for (const Wrong& wrong : {Wrong{"causal to the last key", Rule::causal_to_the_last_key, 13},
                             {"past not counted", Rule::past_not_counted, 3},
                             {"offset not below zero", Rule::offset_not_below_zero, 1},
                             {"lengths not read", Rule::lengths_not_read, 1},
                             {"heads tiled", Rule::heads_tiled, 10},
                             {"split head by head", Rule::split_head_by_head, 20},
                             {"scale times the usual one", Rule::scale_times_the_usual_one, 5},
                             {"softcap after the mask", Rule::softcap_after_the_mask, 2},
                             {"mask says blocked", Rule::mask_says_blocked, 6},
                             {"mask not read", Rule::mask_not_read, 30},
                             {"scores of the mode before", Rule::scores_of_the_mode_before, 10},
                             {"past behind the new keys", Rule::past_behind_the_new_keys, 20},
                             {"empty rows see all", Rule::empty_rows_see_all, 6}}) {
    const std::vector<std::string> names = noticed_by(wrong.rule);
    EXPECT_GE(names.size(), wrong.least) << wrong.name;
    std::cout << wrong.name << ": noticed by " << names.size() << "\n";
  }
}

}  // namespace
}  // namespace tapehead
