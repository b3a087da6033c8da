#include <algorithm>
#include <limits>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <tools/check/mistake.h>

#include "tools/check_calls.h"

namespace tapehead::check {
namespace {

std::string name_of(const Mistake& m) {
  return std::string(m.id) + (m.variant.empty() ? "" : "/") + std::string(m.variant);
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(list)};
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

TEST(CheckMistakes, SixtyInNineFamiliesEachRowOnce) {
  std::set<std::string> names, ids, in_order;
  std::vector<std::string> order;
  for (const Mistake& m : mistakes()) {
    EXPECT_TRUE(names.insert(name_of(m)).second) << name_of(m) << " stands twice";
    ids.insert(std::string(m.id));
    if (in_order.insert(std::string(m.family)).second) order.emplace_back(m.family);
  }
  EXPECT_EQ(ids.size(), 60U);
  EXPECT_EQ(order, (std::vector<std::string>{"scale", "mask", "softmax", "heads", "position", "backward",
                                             "numeric", "layout", "state"}));
}

TEST(CheckMistakes, RowsOfAFamilyAndOfAnIdStandTogether) {
  std::set<std::string> families_before, ids_before;
  std::string_view family, id;
  for (const Mistake& m : mistakes()) {
    const bool new_family = m.family != family, new_id = m.id != id;
    EXPECT_TRUE(!new_family || families_before.insert(std::string(m.family)).second) << m.family;
    EXPECT_TRUE(!new_id || ids_before.insert(std::string(m.id)).second) << m.id;
    family = m.family, id = m.id;
  }
}

TEST(CheckMistakes, EveryFieldIsFilledAndSentencesAreSentences) {
  for (const Mistake& m : mistakes()) {
    SCOPED_TRACE(name_of(m));
    EXPECT_FALSE(m.id.empty() || m.family.empty());
    EXPECT_FALSE(m.formula.empty() || m.exposed_by.empty() || m.hidden_when.empty() || m.look_here.empty());
    ASSERT_FALSE(m.sentence.empty());
    EXPECT_TRUE(m.sentence.front() >= 'A' && m.sentence.front() <= 'Z');
    EXPECT_EQ(m.sentence.back(), '.');
    EXPECT_EQ(m.sentence.find(". "), std::string_view::npos) << "one sentence";
  }
}

TEST(CheckMistakes, LookAlikesExistAndAreOthers) {
  for (const Mistake& m : mistakes()) {
    for (const std::string& look_alike : split(m.look_alikes)) {
      const auto named = [&](const Mistake& other) {
        return name_of(other) == look_alike || other.id == look_alike;
      };
      EXPECT_TRUE(std::any_of(mistakes().begin(), mistakes().end(), named))
          << name_of(m) << ": " << look_alike;
      EXPECT_NE(look_alike, name_of(m));
    }
  }
}

TEST(CheckMistakes, FoundByIdAndVariantOnly) {
  for (const Mistake& m : mistakes()) EXPECT_EQ(find_mistake(m.id, m.variant), &m);
  EXPECT_EQ(find_mistake("scale-omitted", "twice"), nullptr);
  EXPECT_EQ(find_mistake("rope-pairing"), nullptr) << "it has variants only";
  EXPECT_EQ(find_mistake(""), nullptr);
}

// ---- each row is proposed by some family

// The right gradients, or all results, times a factor, and something random: fits find something.
Call with_random_candidate(Call call, bool gradients_only, double factor, Generator& random) {
  call.candidate = evaluate(call, right_formula()).results;
  for (auto& [name, x] : call.candidate) {
    if (gradients_only && !name.starts_with("grad_")) continue;
    for (double& v : x.mutable_values()) v = factor * v + 0.1 * random.normal();
  }
  return call;
}

Call masked_call(Generator& random, const CallSize& n) {
  Call call = random_call(random, n);
  call.contract.causal = std::vector<Index>{n.S - n.L};
  call.contract.window_left = 3, call.contract.window_right = 2;
  call.contract.softcap = 2;
  call.inputs["mask"] = coins(random, {n.B, 1, n.L, n.S});
  for (Index j = 0; j < n.S; ++j) call.inputs["mask"].set({0, 0, 0, j}, 0);  // a row without keys
  call.inputs["key_lengths"] = Array<double>::full({n.B}, static_cast<double>(n.S - 1));
  call.inputs["query_segments"] = coins(random, {n.B, n.L}, 0.5);
  call.inputs["key_segments"] = coins(random, {n.B, n.S}, 0.5);
  call.inputs["bias"] = normal(random, {1, n.H, n.L, n.S});
  call.inputs["sink"] = normal(random, {n.H});
  call.inputs["upstream_lse"] = normal(random, {n.B, n.H, n.L});
  call.inputs["upstream_weights"] = normal(random, {n.B, n.H, n.L, n.S});
  call.inputs["value_after"] = normal(random, {n.B, n.Hk, n.S, n.E});
  return call;
}

Call positioned_call(Generator& random, const CallSize& n) {
  Call call = random_call(random, n);
  for (const std::string name : {"query", "key"}) {
    call.inputs[name + "_unnormed"] = call.inputs[name];
    call.inputs[name + "_gain"] = normal(random, {n.D});
    call.inputs.erase(name);
  }
  call.contract.rope = Pairing::half;
  call.contract.rope_width = 4;
  call.contract.rope_start_query = 11;
  call.contract.norms = QueryKeyNorms::rms;
  call.inputs["slopes"] = normal(random, {n.H});
  return call;
}

Call projected_call(Generator& random) {
  Call call = random_call(random, {2, 4, 2, 5, 5, 4, 4});
  call.inputs["x"] = normal(random, {2, 5, 6});
  call.inputs["w_query"] = normal(random, {6, 16});
  for (const char* name : {"w_key", "w_value"}) call.inputs[name] = normal(random, {6, 8});
  for (const char* name : {"query", "key", "value"}) call.inputs.erase(name);
  return call;
}

Call packed_call(Generator& random) {
  Call call = random_call(random, {2, 3, 3, 5, 5, 4, 4});
  call.inputs["projection"] = normal(random, {2, 5, 36});
  for (const char* name : {"query", "key", "value"}) call.inputs.erase(name);
  return call;
}

// Results of another call, judged by this one.
Call judged_by(Call call, const Call& other) {
  call.candidate = evaluate(other, right_formula()).results;
  return call;
}

std::vector<Call> suitable_calls(Generator& random) {
  std::vector<Call> calls;
  const auto add = [&](const Call& call) {
    for (const bool gradients_only : {false, true}) {
      for (const double factor : {0.5, 1.7}) {
        calls.push_back(with_random_candidate(call, gradients_only, factor, random));
      }
    }
  };
  add(masked_call(random, {}));
  add(masked_call(random, {2, 4, 2, 5, 5, 4, 4}));
  add(positioned_call(random, {2, 6, 2, 3, 7, 8, 8}));
  add(projected_call(random));
  add(packed_call(random));
  Call call = random_call(random, {2, 4, 2, 5, 5, 4, 4});  // an additive mask
  call.mask_is_additive = true;
  call.inputs["mask"] = normal(random, {2, 1, 5, 5});
  call.inputs["mask"].set({0, 0, 1, 1}, -std::numeric_limits<double>::infinity());
  add(call);
  call = random_call(random, {2, 4, 2, 4, 6, 4, 4});  // dropout in training; dropped in evaluation
  call.contract.training = true;
  call.contract.dropout = 0.25;
  call.inputs["dropout_keep"] = coins(random, {2, 4, 4, 6});
  add(call);
  Call evaluation = call;
  evaluation.contract.training = false;
  calls.push_back(judged_by(evaluation, call));
  call = positioned_call(random, {2, 6, 2, 3, 7, 8, 8});  // another start, for all samples
  call.inputs.erase("slopes");
  Call other = call;
  other.contract.rope_start_query = 12;
  calls.push_back(judged_by(call, other));
  other.inputs["query_positions"] = Array<double>::of({{11, 12, 13}, {9, 10, 11}});  // and for one only
  other.contract.rope_start_query = 11;
  calls.push_back(judged_by(call, other));
  call = random_call(random, {2, 4, 4, 5, 5, 4, 4});  // gradients of two passes; a mask in numbers; parts
  other = call;
  for (double& x : other.inputs["upstream"].mutable_values()) x += random.normal();
  calls.push_back(judged_by(call, other));
  call.inputs["mask"] = coins(random, {2, 1, 5, 5});
  call.mask_in_numbers = true;
  call.inputs["sink"] = normal(random, {4});
  call.inputs["partial_end"] = Array<double>::of({2, 5});
  add(call);
  call = random_call(random, {});  // NaN in a blocked place, in a narrow type, and in the results
  call.contract.causal = std::vector<Index>{-1};
  call.contract.computed_in = NumberType::f16;
  call.inputs["value"].set({0, 0, 6, 0}, std::numeric_limits<double>::quiet_NaN());
  add(call);
  for (auto& [name, x] : calls.back().candidate)
    x.mutable_values().back() = std::numeric_limits<double>::quiet_NaN();
  return calls;
}

TEST(CheckMistakes, EachRowIsProposedBySomeFamily) {
  Generator random(1);
  std::set<std::string> proposed;
  for (const Call& call : suitable_calls(random)) {
    for (const Family family : families()) {
      for (const Hypothesis& h : family(call)) proposed.insert(name_of(*h.mistake));
    }
  }
  const std::set<std::string> elsewhere = {
      "stale-table",  // needs two dumps: tools/check/against
  };
  for (const Mistake& m : mistakes()) {
    EXPECT_NE(proposed.contains(name_of(m)), elsewhere.contains(name_of(m))) << name_of(m);
  }
}

}  // namespace
}  // namespace tapehead::check
