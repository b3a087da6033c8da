#include <tapehead/inspect/command.h>

#include <gtest/gtest.h>

#include <cmath>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/files.h"
#include "support/golden.h"

namespace tapehead::tools {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

InspectSettings parsed(Words arguments) {
  InspectSettings settings;
  CLI::App command("inspect");
  describe_inspect(command, settings);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 has them
  command.parse(arguments);
  return settings;
}

struct Printed {
  int status;
  std::string text;
};
Printed run(const Words& arguments) {
  const InspectSettings settings = parsed(arguments);
  testing::internal::CaptureStdout();
  int status = -1;
  try {
    status = inspect_command(settings);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return {status, testing::internal::GetCapturedStdout()};
}
Json json_of(Words arguments) {
  arguments.push_back("--json");
  const Printed printed = run(arguments);
  EXPECT_EQ(printed.status, 0);
  EXPECT_EQ(printed.text.find('\n'), printed.text.size() - 1);
  return Json::parse(printed.text);
}

using InspectCommand = FilesTest;

TEST_F(InspectCommand, PathsOfXByJsonSumToItsGradient) {
  const Json json = json_of({"self-attention", "--paths", "x"});
  const Json& paths = json.at("paths").at(0);
  std::vector<double> sum(paths.at("gradient").at("numbers").size());
  Words names;
  for (const Json& row : paths.at("rows")) {
    names.push_back(row.at("name"));
    const auto numbers = row.at("gradient").at("numbers").get<std::vector<double>>();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += numbers.at(i);
  }
  EXPECT_EQ(names, (Words{"query", "key", "value"}));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_NEAR(sum[i], paths.at("gradient").at("numbers")[i].get<double>(), 1e-15);
  }
}

TEST_F(InspectCommand, PathsOfADumpByJsonAreThoseOfPyTorch) {
  const Golden golden("paths_self");
  const Json json = json_of({"--dump", TAPEHEAD_TEST_DATA "/golden/paths_self.safetensors", "--paths", "x"});
  for (const Json& row : json.at("paths").at(0).at("rows")) {
    const Array<double> expected = golden.array("grad_x_via_" + row.at("name").get<std::string>());
    ASSERT_EQ(row.at("gradient").at("shape"), Json({2, 3, 4}));
    for (Index i = 0; i < expected.size(); ++i) {
      const double number = row.at("gradient").at("numbers").at(static_cast<std::size_t>(i));
      EXPECT_NEAR(number, expected.data()[i], 1e-12) << row.at("name");
    }
  }
}

TEST_F(InspectCommand, WritesEveryFileItIsAskedFor) {
  const Printed printed = run({"block", "--layers", "2", "--causal", "--html", path("a.html"), "--dot",
                               path("a.dot"), "--trace", path("a.trace"), "--svg", path("a.svg")});
  EXPECT_EQ(printed.status, 0);
  EXPECT_NE(printed.text.find("layer 2/query"), std::string::npos);
  EXPECT_TRUE(get(path("a.dot")).starts_with("digraph tape {"));
  EXPECT_EQ(Json::parse(get(path("a.trace"))).at("displayTimeUnit"), "ns");
  EXPECT_NE(get(path("a.svg")).find("<svg"), std::string::npos);
  EXPECT_NE(get(path("a.html")).find("<html"), std::string::npos);
}

TEST_F(InspectCommand, LevelsKeepWhatTheySay) {
  const Json rules = json_of({"self-attention", "--level", "rules"}), usual = json_of({"self-attention"}),
             all = json_of({"self-attention", "--level", "everything"});
  const auto node = [](const Json& json) -> const Json& { return json.at("nodes").at(5); };
  EXPECT_EQ(rules.at("level"), "rules");
  EXPECT_FALSE(node(rules).contains("value") || node(rules).contains("forward_seconds"));
  EXPECT_EQ(usual.at("level"), "statistics");
  EXPECT_TRUE(node(usual).contains("value") && node(usual).contains("gradient"));
  EXPECT_FALSE(node(usual).contains("value_numbers"));
  EXPECT_TRUE(node(all).contains("value_numbers"));
  EXPECT_EQ(all.at("attention").size(), 1u);
}

TEST_F(InspectCommand, DiffExitsWithOneWhenSomethingChanged) {
  put(path("a.json"), run({"self-attention", "--json"}).text);
  put(path("b.json"), run({"self-attention", "--json", "--kernel", "fused"}).text);
  EXPECT_EQ(run({"--diff", path("a.json"), path("a.json")}).status, 0);
  const Printed changed = run({"--diff", path("a.json"), path("b.json")});
  EXPECT_EQ(changed.status, 1);
  EXPECT_NE(changed.text.find("fused_attention"), std::string::npos);
  const Printed json = run({"--diff", path("a.json"), path("b.json"), "--json"});
  EXPECT_EQ(json.status, 1);
  EXPECT_EQ(Json::parse(json.text).at("schema"), "tapehead-inspect-diff");
}

TEST_F(InspectCommand, OnlyAndSortChooseAndOrderRows) {
  const Json json = json_of({"block", "--layers", "2", "--only", "layer 2", "--sort", "bytes"});
  Index last = std::numeric_limits<Index>::max();
  for (const Json& node : json.at("nodes")) {
    EXPECT_EQ(node.at("scope"), "layer 2");
    EXPECT_LE(node.at("bytes").get<Index>(), last);
    last = node.at("bytes");
  }
  EXPECT_EQ(json.at("by_label").size(), 1u);
}

TEST_F(InspectCommand, StepsEndAtTheInputs) {
  const Printed printed = run({"self-attention", "--length", "2", "--width", "2", "--heads", "1", "--step"});
  EXPECT_NE(printed.text.find("step 1: %17 sum\n"), std::string::npos);
  EXPECT_NE(printed.text.find("    sum 3/3 "), std::string::npos);
  EXPECT_EQ(printed.text.find("by op"), std::string::npos);
}

TEST_F(InspectCommand, RefusesWhatMakesNoSense) {
  const std::pair<Words, const char*> cases[] = {
      {{}, "give one of self-attention"},
      {{"block", "--run", "x"}, "give one of self-attention"},
      {{"self-attention", "--layers", "2"}, "--layers and --hidden: only for block"},
      {{"self-attention", "--source", "2"}, "--source: only for cross-attention and additive"},
      {{"additive", "--heads", "2"}, "--heads: only for"},
      {{"additive", "--kernel", "fused"}, "--kernel fused: only for"},
      {{"--run", "x", "--causal"}, "--causal, --window and --valid: only for the examples"},
      {{"--run", "x", "--type", "f64"}, "--type: only for"},
      {{"self-attention", "--head", "0"}, "--head, --token and --expand: only for --paths"},
      {{"self-attention", "--step", "--paths", "x"}, "--step: only for a run without --paths"},
      {{"self-attention", "--level", "rules", "--trace", "t"}, "--level rules does not keep"},
      {{"self-attention", "--level", "rules", "--svg", "t"}, "only --level everything keeps"},
      {{"--diff", "a", "b", "--step"}, "takes no option but --json"},
      {{"self-attention", "--heads", "3"}, "3 heads do not divide the width 8"},
      {{"self-attention", "--paths", "z"}, "paths: no input, port or scope is called 'z'"},
      {{"self-attention", "--paths", "x", "--head", "2"}, "no attention has head 2"},
      {{"self-attention", "--paths", "x", "--expand", "z"}, "paths: no path is inside 'z'"},
      {{"self-attention", "--only", "z"}, "label: no node has 'z'"},
      {{"self-attention", "--valid", "9"}, "is beyond the keys"},
      {{"self-attention", "--dot", "/nonexistent/a"}, "/nonexistent/a: cannot be written"},
      {{"self-attention", "--svg", "a.svg", "--kernel", "fused"}, "no attention weights"},
  };
  for (const auto& one : cases) {
    EXPECT_TRUE(raises<Error>([&] { run(one.first); }, {one.second})) << testing::PrintToString(one.first);
  }
}

TEST_F(InspectCommand, RefusesNumbersThatAreNone) {
  for (const char* option : {"--batch", "--length", "--width", "--heads", "--window", "--head", "--seed"}) {
    for (const char* number : {"-1", "x", "1.5", "1x", "99999999999999999999", ""}) {
      EXPECT_THROW(parsed({"self-attention", option, number}), CLI::ParseError) << option << " " << number;
    }
  }
  EXPECT_THROW(parsed({"attention"}), CLI::ParseError);
  EXPECT_THROW(parsed({"self-attention", "--sort", "name"}), CLI::ParseError);
  EXPECT_THROW(parsed({"--diff", "a"}), CLI::ParseError);
  EXPECT_EQ(parsed({"block", "--seed", "18446744073709551615"}).seed, 18446744073709551615u);
  EXPECT_EQ(parsed({"block", "--paths", "x", "--paths", "%3"}).paths, (Words{"x", "%3"}));
}

}  // namespace
}  // namespace tapehead::tools
