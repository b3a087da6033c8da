// Different mistakes that look the same: each pair of the catalogue's list is answered with the set, and
// those that equal the right result are no mistakes.

#include <gtest/gtest.h>

#include "tools/planted/attention.h"
#include "tools/planted/judge.h"
#include "tools/planted/shapes.h"

namespace tapehead::planted {
namespace {

const Planting& planting_of(const Name& name, const std::string& form = "") {
  for (const Planting& p : plantings())
    if (p.id == name.first && p.variant == name.second && (form.empty() || p.form == form)) return p;
  throw std::out_of_range(name.first);
}

struct Answer {
  check::Verdict verdict;
  std::set<Name> names;  // of single mistakes
};

Answer answer_to(const Call& call, const Wrong& wrong, const Shown& shown) {
  Case dump;
  show(dump, call, attention(call, wrong), shown);
  const check::Diagnosis diagnosis = check::check(dump_of(dump)).diagnosis;
  Answer answer{diagnosis.verdict, {}};
  auto sets = diagnosis.alternatives;
  sets.push_back(diagnosis.mistakes);
  for (const auto& findings : sets) {
    if (findings.size() != 1) continue;
    const check::Mistake& mistake = *findings.front().mistake;
    answer.names.emplace(std::string(mistake.id), std::string(mistake.variant));
  }
  return answer;
}

std::string text(const std::set<Name>& names) {
  std::string line;
  for (const Name& name : names) line.append(name.first).append("/").append(name.second).append(" ");
  return line;
}

constexpr const char* plain = "plain";

class CheckLookAlikes : public testing::Test {
 protected:
  // `planted` is answered with a set that holds all of `expected`.
  void expect_set(const Sizes& n, const std::vector<std::string>& asked, const Name& planted,
                  const std::set<Name>& expected, const Shown& shown = {}, const std::string& form = "") {
    const auto call = make_call(n, asked, Type::f64, 21);
    const auto wrong = planting_of(planted, form).make(*call);
    ASSERT_TRUE(wrong) << planted.first;
    const Answer answer = answer_to(*call, *wrong, shown);
    EXPECT_EQ(answer.verdict, check::Verdict::ambiguous) << planted.first << ": " << text(answer.names);
    for (const Name& name : expected)
      EXPECT_TRUE(answer.names.count(name) > 0)
          << planted.first << ": no " << name.first << "/" << name.second << " in " << text(answer.names);
  }

  void expect_agreement(const Sizes& n, const std::vector<std::string>& asked, const Name& planted,
                        const std::string& form = "") {
    const auto call = make_call(n, asked, Type::f64, 22);
    const auto wrong = planting_of(planted, form).make(*call);
    ASSERT_TRUE(wrong) << planted.first;
    EXPECT_EQ(answer_to(*call, *wrong, {}).verdict, check::Verdict::agrees) << planted.first;
  }

  const Shown output_only_{false, false, false};
};

TEST_F(CheckLookAlikes, ScaleTwiceAndOneOverTheWidth) {
  expect_set({"H = D", 2, 4, 2, 3, 5, 4, 3}, {plain}, {"scale-wrong-dim", "model"},
             {{"scale-wrong-dim", "model"}, {"scale-one-over-d", ""}});
}

TEST_F(CheckLookAlikes, HeadsAsManyAsTheyAreWide) {
  expect_agreement({"H = D", 2, 4, 2, 3, 5, 4, 3}, {plain}, {"scale-wrong-dim", "heads"});
}

TEST_F(CheckLookAlikes, PowersOfTwoAndAScale) {
  expect_set({"any", 2, 2, 2, 3, 5, 6, 3}, {plain}, {"scale-exp2-without-log2e", ""},
             {{"scale-exp2-without-log2e", ""}, {"scale-custom-ignored", ""}}, output_only_);
}

TEST_F(CheckLookAlikes, RotationByHeadAndNone) {
  expect_set({"equal heads", 2, 3, 3, 4, 4, 6, 3}, {"rope half"}, {"rope-missing", "head-axis"},
             {{"rope-missing", "head-axis"}, {"rope-missing", ""}});
}

TEST_F(CheckLookAlikes, StridesAndViews) {
  expect_set({"views", 2, 3, 3, 4, 5, 4, 3}, {plain}, {"strides-ignored", "view"},
             {{"strides-ignored", "view"}, {"heads-split-no-transpose", ""}});
}

TEST_F(CheckLookAlikes, CausalWithOneRow) {
  const Sizes decode{"decode", 2, 2, 2, 1, 5, 4, 3};
  expect_set(decode, {"causal top-left"}, {"mask-dropped", "causal"},
             {{"mask-dropped", "causal"}, {"causal-alignment-swapped", ""}});
  expect_agreement(decode, {"causal bottom-right"}, {"causal-off-by-one", "leak"});
}

TEST_F(CheckLookAlikes, DivisorOfAsManyGroupsAsHeads) {
  expect_agreement({"G = Hk", 2, 4, 2, 3, 5, 6, 3}, {plain}, {"gqa-wrong-index", "divisor"}, "h / Hk");
}

TEST_F(CheckLookAlikes, ACapOfFiftyHidesItsLeak) {
  auto call = make_call({"cap", 2, 2, 2, 3, 5, 6, 3}, {"cap and mask"}, Type::f64, 23);
  call->softcap = 50;
  const auto wrong = planting_of({"softcap-after-mask", ""}).make(*call);
  EXPECT_EQ(answer_to(*call, *wrong, {}).verdict, check::Verdict::agrees);
}

TEST_F(CheckLookAlikes, EmptyRowsOfOneConstant) {
  const auto call = make_call({"empty", 2, 2, 2, 4, 6, 6, 3}, {"empty rows"}, Type::f64, 24);
  const auto wrong = planting_of({"sentinel-leak", ""}, "replaced by -10000").make(*call);
  const Answer answer = answer_to(*call, *wrong, output_only_);
  EXPECT_TRUE(answer.names.count({"allmasked-row", "uniform"}) > 0) << text(answer.names);
}

TEST_F(CheckLookAlikes, TwiceIsOneFactorForAllGradients) {
  const auto call = make_call({"any", 2, 2, 2, 3, 5, 6, 3}, {plain}, Type::f64, 25);
  const auto wrong = planting_of({"grad-uniform-factor", ""}, "2").make(*call);
  const Answer answer = answer_to(*call, *wrong, {});
  EXPECT_TRUE(answer.names.count({"grad-uniform-factor", ""}) > 0) << text(answer.names);
}

}  // namespace
}  // namespace tapehead::planted
