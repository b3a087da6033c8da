#include <tools/check/report.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

namespace tapehead::check {
namespace {

using Json = nlohmann::json;

constexpr Mistake omitted{"scale-omitted", "", "scale", "The scores were not scaled.", "z = q.k", "", "", "",
                          "the kernel"};
constexpr Mistake variant{
    "softcap-order", "after-bias", "scale", "The cap came last.", "c tanh((z+b)/c)", "", "", "", ""};

Report explained() {
  Report report;
  report.file = "dump.safetensors";
  report.diagnosis.verdict = Verdict::explained;
  report.diagnosis.mistakes = {{&omitted, {{"scale", 1}, {"expected", 0.25}, {"ratio", 4}}, 0.99999}};
  report.diagnosis.tensors = {{"output", false, 0.1, 0.03, 1e-7, {0, 1, 2, 3}, 0.5, 0.4, {0, 0, 1, 0}},
                              {"lse", true, 0, 0, 1e-7, {}, 0, 0, {}}};
  report.assumed = {{"layout", "BHLD"}, {"scale", "0.25"}, {"heads", "6"}};
  report.renamed = {{"query", "q"}};
  return report;
}

TEST(CheckReport, JsonIsOneLineOfTheSchema) {
  const std::string text = report_json(explained());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const Json expected = Json::parse(R"({
    "schema": 1, "file": "dump.safetensors", "verdict": "explained",
    "mistakes": [{"id": "scale-omitted", "variant": "", "family": "scale",
                  "sentence": "The scores were not scaled.", "formula": "z = q.k",
                  "fitted": {"scale": 1.0, "expected": 0.25, "ratio": 4.0}, "explains": 0.99999}],
    "alternatives": [], "separate": "", "equivalent": [],
    "assumed": {"layout": "BHLD", "scale": 0.25, "heads": 6, "query": "q"},
    "tensors": [{"name": "output", "ok": false, "max_abs": 0.1, "relative": 0.03, "plain_relative": 1e-7,
                 "worst": [0, 1, 2, 3], "got": 0.5, "expected": 0.4},
                {"name": "lse", "ok": true, "max_abs": 0.0, "relative": 0.0, "plain_relative": 1e-7,
                 "worst": [], "got": 0.0, "expected": 0.0}],
    "next": ""})");
  EXPECT_EQ(Json::parse(text), expected);
}

TEST(CheckReport, JsonKeepsTheOrderOfTheSchema) {
  const std::string text = report_json(explained());
  std::size_t at = 0;
  for (const char* key : {"\"schema\"", "\"file\"", "\"verdict\"", "\"mistakes\"", "\"alternatives\"",
                          "\"separate\"", "\"equivalent\"", "\"assumed\"", "\"tensors\"", "\"next\""}) {
    const std::size_t found = text.find(key);
    EXPECT_NE(found, std::string::npos) << key;
    EXPECT_GE(found, at) << key;
    at = found;
  }
}

TEST(CheckReport, SetsThatFitAsWellAreListsOfIds) {
  Report report = explained();
  report.diagnosis.verdict = Verdict::ambiguous;
  report.diagnosis.alternatives = {
      {{&omitted, {}, 0.9}}, {{&variant, {}, 0.9}}, {{&omitted, {}, 0.9}, {&variant, {}, 0.9}}};
  report.diagnosis.separate = "a cap";
  const Json json = Json::parse(report_json(report));
  EXPECT_EQ(json["verdict"], "ambiguous");
  EXPECT_EQ(
      json["alternatives"],
      Json::parse(
          R"([["scale-omitted"], ["softcap-order/after-bias"], ["scale-omitted", "softcap-order/after-bias"]])"));
  EXPECT_EQ(json["separate"], "a cap");
  const std::string text = report_text(report);
  for (const char* part : {"cannot tell", "scale-omitted", "or, just as well, softcap-order/after-bias",
                           "scale-omitted and softcap-order/after-bias", "a cap"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("just as well, scale-omitted:"), std::string::npos) << "it is there already";
}

TEST(CheckReport, NumbersThatAreNotFiniteAreNull) {
  Report report = explained();
  report.diagnosis.tensors[0].got = std::nan("");
  report.diagnosis.tensors[0].max_abs = std::numeric_limits<double>::infinity();
  const Json json = Json::parse(report_json(report));
  EXPECT_TRUE(json["tensors"][0]["got"].is_null());
  EXPECT_TRUE(json["tensors"][0]["max_abs"].is_null());
}

TEST(CheckReport, ANameThatIsNotUtf8IsStillJson) {
  Report report = explained();
  report.file = "a\xFF\n";
  EXPECT_TRUE(Json::parse(report_json(report))["file"].is_string());
  EXPECT_EQ(report_text(report).rfind("a\xFF\\x0a: ", 0), 0u);
}

TEST(CheckReport, TextSaysWhatWasFoundAndWhatWasAssumed) {
  Report report = explained();
  report.unused = {"other"};
  report.notes = {"layout: both"};
  report.diagnosis.next = "dump the weights";
  const std::string text = report_text(report);
  for (const char* part :
       {"dump.safetensors: explained", "scale-omitted: The scores were not scaled.", "computed: z = q.k",
        "fitted: scale 1, expected 0.25, ratio 4", "99.999 %", "where to look: the kernel",
        "(0, 1, 2, 3): got 0.5, expected 0.4", "first off at (0, 0, 1, 0)",
        "assumed: layout BHLD, scale 0.25, heads 6", "names: query is q", "not used: other", "layout: both",
        "next: dump the weights"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(Json::parse(report_json(report))["next"], "dump the weights; layout: both");
}

TEST(CheckReport, EachVerdictHasAWordAndACode) {
  const std::pair<Verdict, const char*> words[] = {{Verdict::agrees, "agrees"},
                                                   {Verdict::explained, "explained"},
                                                   {Verdict::partly, "partly"},
                                                   {Verdict::unexplained, "unexplained"},
                                                   {Verdict::ambiguous, "ambiguous"}};
  for (const auto& [verdict, word] : words) {
    Report report;
    report.diagnosis.verdict = verdict;
    EXPECT_EQ(Json::parse(report_json(report))["verdict"], word);
    EXPECT_EQ(exit_code(report), verdict == Verdict::agrees ? 0 : 1);
  }
}

TEST(CheckReport, AnUnusableDumpHasTheSameKeys) {
  const Json json = Json::parse(unusable_json("dump", "no query")),
             whole = Json::parse(report_json(explained()));
  EXPECT_EQ(json["verdict"], "unusable");
  EXPECT_EQ(json["next"], "no query");
  EXPECT_EQ(json.size(), whole.size());
  for (const auto& [key, value] : whole.items()) {
    EXPECT_TRUE(json.contains(key)) << key;
    EXPECT_EQ(json[key].type(), value.type()) << key;
  }
}

}  // namespace
}  // namespace tapehead::check
