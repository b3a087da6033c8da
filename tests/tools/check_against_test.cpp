#include <tools/check/against.h>

#include <cmath>
#include <map>
#include <string>

#include "support/attention_loops.h"
#include "support/files.h"
#include "tools/check_calls.h"

namespace tapehead::check {
namespace {

// ---- Where two calls part

Call some_call() {
  Generator random(3);
  Call call = random_call(random);
  call.candidate["output"] = normal(random, {2, 6, 3, 5});
  call.candidate["lse"] = normal(random, {2, 6, 3});
  call.candidate["grad_query"] = normal(random, {2, 6, 3, 8});
  return call;
}

TEST(CheckParting, EqualCallsAreRepeatable) {
  const Parting parting = parting_of(some_call(), some_call());
  EXPECT_EQ(parting.kind, Parting::Kind::equal);
  EXPECT_NE(parting.sentence.find("bit for bit"), std::string::npos);
}

TEST(CheckParting, TheFirstTensorInTheOrderOfComputationIsNamed) {
  const Call one = some_call();
  Call other = one;
  other.candidate["grad_query"].set({0, 0, 0, 0}, 9);
  other.candidate["output"].set({1, 2, 0, 3}, 7);
  other.candidate["output"].set({1, 5, 2, 4}, 8);
  const Parting parting = parting_of(one, other);
  EXPECT_EQ(parting.kind, Parting::Kind::results_differ);
  EXPECT_EQ(parting.tensor, "output");
  EXPECT_EQ(parting.place, (std::vector<Index>{1, 2, 0, 3}));
  EXPECT_EQ(parting.other, 7);
  EXPECT_EQ(parting.one, one.candidate.at("output")(1, 2, 0, 3));
  EXPECT_NE(parting.sentence.find("output parts at (1, 2, 0, 3)"), std::string::npos);
}

// A rounding does not hide what comes after it.
TEST(CheckParting, ARoundingIsNoDifference) {
  const Call one = some_call();
  Call other = one;
  const double x = one.candidate.at("lse")(0, 0, 0);
  other.candidate["lse"].set({0, 0, 0}, std::nextafter(x, 10));
  EXPECT_EQ(parting_of(one, other).kind, Parting::Kind::within_rounding);
  EXPECT_EQ(parting_of(one, other).tensor, "lse");
  other.candidate["output"].set({0, 1, 0, 0}, std::nan(""));
  EXPECT_EQ(parting_of(one, other).kind, Parting::Kind::results_differ);
  EXPECT_EQ(parting_of(one, other).tensor, "output");
}

TEST(CheckParting, TheSameNanIsNoDifference) {
  Call one = some_call();
  one.candidate["output"].set({0, 1, 0, 0}, std::nan(""));
  EXPECT_EQ(parting_of(one, one).kind, Parting::Kind::equal);
}

TEST(CheckParting, OtherInputsAreTwoCalls) {
  const Call one = some_call();
  Call other = one;
  other.candidate["output"].set({0, 0, 0, 0}, 9);
  other.inputs["key"].set({1, 1, 6, 7}, 9);
  EXPECT_EQ(parting_of(one, other).kind, Parting::Kind::inputs_differ);
  EXPECT_EQ(parting_of(one, other).tensor, "key");
  Call scaled = one;
  scaled.contract.scale *= 2;
  EXPECT_EQ(parting_of(one, scaled).kind, Parting::Kind::inputs_differ);
  EXPECT_EQ(parting_of(one, scaled).tensor, "scale");
}

// ---- Two files

class CheckAgainst : public FilesTest {
 protected:
  using Settings = std::map<std::string, std::string>;

  Report against(const Dump& dump, const Dump& other, const Settings& settings = {}) {
    write_dump(path("one.safetensors"), dump);
    write_dump(path("other.safetensors"), other);
    return check(open_dump(path("one.safetensors")), {settings, {}, path("other.safetensors")});
  }
};

// Slopes of 1/2 to 1/64, or as they are said, and the right output with slopes that may be others.
struct Sloped {
  Call call;
  Dump dump;
};

Sloped sloped(unsigned seed, double slope, double computed_with) {
  Generator random(seed);
  Sloped result{random_call(random, {2, 6, 6, 7, 7, 8, 5}), {}};
  const auto slopes = [](double first) {
    Array<double> x = Array<double>::zeros({6});
    for (Index h = 0; h < 6; ++h) x.set({h}, first * std::exp2(-static_cast<double>(h)));
    return x;
  };
  Array<double> bias = Array<double>::zeros({2, 6, 7, 7});
  const Array<double> used = slopes(computed_with);
  for (Index n = 0; n < bias.size(); ++n) {
    const Index j = n % 7, i = n / 7 % 7, h = n / 49 % 6, b = n / 294;
    bias.set({b, h, i, j}, -used(h) * std::abs(static_cast<double>(i - j)));
  }
  const loops::AttentionOutputs out =
      loops::AttentionLoops({result.call.inputs.at("query"), result.call.inputs.at("key"),
                             result.call.inputs.at("value"), bias, Array<bool>::ones({2, 6, 7, 7}),
                             result.call.contract.scale, 0})
          .outputs();
  for (const char* name : {"query", "key", "value"})
    result.dump.add(name, result.call.inputs.at(name), "f64");
  result.dump.add("slopes", slopes(slope), "f64");
  result.dump.add("output", out.output, "f64");
  return result;
}

TEST_F(CheckAgainst, ARightDumpThatIsRepeatedAgrees) {
  const Report report = against(sloped(1, 0.5, 0.5).dump, sloped(1, 0.5, 0.5).dump);
  EXPECT_EQ(report.diagnosis.verdict, Verdict::agrees);
  EXPECT_NE(report.notes.back().find("repeatable"), std::string::npos);
}

TEST_F(CheckAgainst, ADumpThatIsNotRepeatedDoesNotAgree) {
  const Report report = against(sloped(1, 0.5, 0.5).dump, sloped(1, 0.5, 0.3).dump);
  EXPECT_EQ(report.diagnosis.verdict, Verdict::unexplained);
  EXPECT_NE(report.diagnosis.next.find("output parts at (0, 0, 0, 0)"), std::string::npos);
}

TEST_F(CheckAgainst, SlopesOfAnEarlierCallAreAStaleTable) {
  const Dump earlier = sloped(1, 0.7, 0.7).dump;
  const Report stale = against(sloped(2, 0.5, 0.7).dump, earlier);
  EXPECT_EQ(stale.diagnosis.verdict, Verdict::explained);
  ASSERT_EQ(stale.diagnosis.mistakes.size(), 1u);
  EXPECT_EQ(stale.diagnosis.mistakes[0].mistake->id, "stale-table");
  const Report right = against(sloped(2, 0.5, 0.5).dump, earlier);
  EXPECT_EQ(right.diagnosis.verdict, Verdict::agrees);
  const Report other = against(sloped(2, 0.5, 0.6).dump, earlier);  // fits neither
  for (const Finding& finding : other.diagnosis.mistakes) EXPECT_NE(finding.mistake->id, "stale-table");
}

// Dropout with another mask each time, though the mode is eval.
TEST_F(CheckAgainst, DropoutLeftOnShowsInTheSecondOutput) {
  Generator random(4);
  const Call call = random_call(random, {2, 6, 6, 7, 7, 8, 5});
  const auto dump = [&](unsigned seed) {
    Generator coin(seed);
    const loops::AttentionOutputs out =
        loops::AttentionLoops({call.inputs.at("query"), call.inputs.at("key"), call.inputs.at("value"),
                               Array<double>::zeros({2, 6, 7, 7}), Array<bool>::ones({2, 6, 7, 7}),
                               call.contract.scale, 0})
            .outputs();
    const Array<double> keep = coins(coin, {2, 6, 7, 7}, 0.75);
    Array<double> output = Array<double>::zeros({2, 6, 7, 5});
    for (Index n = 0; n < output.size(); ++n) {
      const Index e = n % 5, i = n / 5 % 7, h = n / 35 % 6, b = n / 210;
      double sum = 0;
      for (Index j = 0; j < 7; ++j) {
        sum += keep(b, h, i, j) / 0.75 * out.weights(b, h, i, j) * call.inputs.at("value")(b, h, j, e);
      }
      output.set({b, h, i, e}, sum);
    }
    Dump result;
    for (const char* name : {"query", "key", "value"}) result.add(name, call.inputs.at(name), "f64");
    result.add("output", output, "f64");
    result.settings = {{"dropout", "0.25"}};
    return result;
  };
  const Report report = against(dump(1), dump(2));
  ASSERT_FALSE(report.diagnosis.mistakes.empty());
  EXPECT_EQ(report.diagnosis.mistakes[0].mistake->id, "dropout-mode");
  EXPECT_EQ(report.diagnosis.mistakes[0].mistake->variant, "active");
}

TEST_F(CheckAgainst, TheOtherDumpIsReadAsStrictly) {
  write_dump(path("one.safetensors"), sloped(1, 0.5, 0.5).dump);
  const Dump dump = open_dump(path("one.safetensors"));
  EXPECT_THROW(check(dump, {{}, {}, path("missing")}), FileError);
  Dump empty;
  empty.add("query", Array<double>::ones({2}), "f64");
  write_dump(path("two.safetensors"), empty);
  EXPECT_THROW(check(dump, {{}, {}, path("two.safetensors")}), Unusable);
}

}  // namespace
}  // namespace tapehead::check
