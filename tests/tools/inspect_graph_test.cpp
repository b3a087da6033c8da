#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/inspect/dot.h>
#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/trace.h>
#include <tapehead/tapehead.h>

#include "support/expect_error.h"
#include "support/files.h"

namespace tapehead {
namespace {

using Json = nlohmann::json;

TapeTable layered(KeepLevel level, const std::string& name = "x") {
  Tape<double> tape;
  tape.keep(level);
  const Var<double> x = tape.input(Array<double>::of({{1, 2}, {3, 4}}), name);
  const Scope<double> outer(tape, "layer 1");
  const Var<double> y = x * x;
  const Scope<double> inner(tape, "atten\"tion\\");
  gradient_values(sum(attention(y, y, y, {.kernel = AttentionKernel::composed}).output), x);
  return inspect(tape);
}

std::string dot_of(const TapeTable& table) {
  std::ostringstream out;
  write_dot(out, table);
  return out.str();
}

TEST(Dot, HasNodesEdgesAndAClusterInAnother) {
  const std::string text = dot_of(layered(KeepLevel::rules));
  EXPECT_NE(text.find("n0 [label=\"%0 x\\n(2, 2)\""), std::string::npos);
  EXPECT_NE(text.find("n2 [label=\"%2 port query\\n(2, 2)\""), std::string::npos);
  EXPECT_NE(text.find("  n0 -> n1;\n  n0 -> n1;\n  n1 -> n2;\n"), std::string::npos);  // x twice
  const std::size_t outer = text.find("subgraph \"cluster layer 1\""),
                    inner = text.find("subgraph \"cluster layer 1/atten\\\"tion\\\\\"");
  ASSERT_NE(outer, std::string::npos);
  ASSERT_NE(inner, std::string::npos);
  EXPECT_LT(outer, inner);
  EXPECT_LT(text.find("n1 ["), inner);
  EXPECT_GT(text.find("n2 ["), inner);
}

using Graphviz = FilesTest;

TEST_F(Graphviz, AcceptsIt) {
  if (std::system("dot -V 2>/dev/null") != 0) GTEST_SKIP() << "Graphviz is not here";
  put(path("tape.dot"), dot_of(layered(KeepLevel::rules, "a \"name\" \\ with <b>&</b>\nand a line")));
  ASSERT_EQ(std::system(fmt::format("dot -Tsvg '{}' >'{}'", path("tape.dot"), path("tape.svg")).c_str()), 0);
  const std::string svg = get(path("tape.svg"));
  EXPECT_NE(svg.find("atten&quot;tion\\"), std::string::npos);
  EXPECT_NE(svg.find("&lt;b&gt;"), std::string::npos);
}

Json trace_of(const TapeTable& table) {
  std::ostringstream out;
  write_trace(out, table);
  return Json::parse(out.str());
}

TEST(Trace, HasForwardAndBackwardEventsThatDoNotOverlapAndMemory) {
  const TapeTable table = layered(KeepLevel::statistics);
  const Json trace = trace_of(table);
  std::map<int, double> end;  // of the last event on each line
  std::map<std::string, std::size_t> counts;
  double time = 0;
  for (const Json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "M") continue;
    EXPECT_GE(event.at("ts").get<double>(), time);  // in order
    time = event.at("ts");
    if (phase == "C") {
      ++counts["memory"];
      EXPECT_GT(event.at("args").at("live bytes").get<double>(), 0);
      continue;
    }
    ASSERT_EQ(phase, "X");
    ++counts[event.at("cat").get<std::string>()];
    const int line = event.at("tid");
    EXPECT_GE(event.at("ts").get<double>(), end[line] - 1e-3);  // microseconds, rounded
    end[line] = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
  EXPECT_EQ(counts["forward"], table.rows.size());
  EXPECT_EQ(counts["backward"], table.rows.size());
  EXPECT_EQ(counts["memory"], 2 * table.rows.size());
}

TEST(Trace, TimesAreThoseOfTheTable) {
  const TapeTable table = layered(KeepLevel::statistics);
  for (const Json& event : trace_of(table).at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("cat") != "backward") continue;
    const TapeRow& row = table.rows.at(event.at("args").at("node").get<std::size_t>());
    EXPECT_EQ(event.at("name"), row.op);
    EXPECT_DOUBLE_EQ(event.at("ts").get<double>(), *row.backward_start * 1e6);
    EXPECT_DOUBLE_EQ(event.at("dur").get<double>(), *row.backward_seconds * 1e6);
  }
}

TEST(Trace, WithoutTimesIsRefused) {
  EXPECT_TRUE(raises<LogicError>([] { trace_of(layered(KeepLevel::rules)); },
                                 {"write_trace: the tape kept no times"}));
}

}  // namespace
}  // namespace tapehead
