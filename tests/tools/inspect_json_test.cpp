#include <tapehead/inspect/json.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>

#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/paths.h>
#include <tapehead/inspect/step.h>
#include <tapehead/tapehead.h>

#include "support/expect_error.h"
#include "support/files.h"

namespace tapehead {
namespace {

using Json = nlohmann::json;

TapeTable full_table() {
  Tape<double> tape;
  tape.keep(KeepLevel::everything);
  const Var<double> x = tape.input(Array<double>::of({{1, 2}, {3, 4}, {0, -1}}), "x \"quoted\" </script>");
  const Scope<double> scope(tape, "layer 1");
  const Var<double> loss =
      sum(square(attention(x, x, x, {.mask = Mask::causal(0), .kernel = AttentionKernel::composed}).output));
  gradient_values(loss, x);
  TapeTable table = inspect(tape);
  table.title = "a title";
  table.paths.push_back(inspect_paths(loss, x));
  table.paths.push_back(inspect_paths(loss, x, {0, 1}));
  table.steps = inspect_steps<double>(table, loss, x);
  return table;
}

std::string written(const TapeTable& table) {
  std::ostringstream out;
  write_json(out, table);
  return out.str();
}

TEST(InspectJson, IsOneLineWithASchemaAndAVersion) {
  const std::string text = written(full_table());
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const Json json = Json::parse(text);
  EXPECT_EQ(json.at("schema"), "tapehead-inspect");
  EXPECT_EQ(json.at("version"), 1);
  EXPECT_EQ(json.at("title"), "a title");
  EXPECT_EQ(json.at("level"), "everything");
  EXPECT_EQ(json.at("nodes").size(), 11u);
  EXPECT_EQ(json.at("nodes")[4].at("op"), "matmul");
  EXPECT_EQ(json.at("nodes")[4].at("inputs"), Json({1, 2}));
  EXPECT_EQ(json.at("nodes")[5].at("inputs"), Json::parse("[4]"));
  EXPECT_EQ(json.at("nodes")[0].at("input"), true);
  EXPECT_EQ(json.at("nodes")[0].at("label"), "x \"quoted\" </script>");
  EXPECT_EQ(json.at("nodes")[8].at("kernel"), "composed: asked for");
}

TEST(InspectJson, HoldsTheNumbers) {
  const TapeTable table = full_table();
  const Json json = Json::parse(written(table));
  const Json& paths = json.at("paths")[0];
  EXPECT_EQ(paths.at("rows")[0].at("name"), "query");
  EXPECT_EQ(paths.at("rows")[0].at("gradient").at("numbers"), Json(table.paths[0].rows[0].gradient->numbers));
  EXPECT_EQ(paths.at("rows")[0].at("gradient").at("shape"), Json({3, 2}));
  EXPECT_EQ(json.at("paths")[1].at("head"), 0);
  EXPECT_EQ(json.at("paths")[1].at("query_row"), 1);
  EXPECT_EQ(json.at("attention")[0].at("scores").at("numbers")[1], "-inf");  // query 0, key 1
  EXPECT_EQ(json.at("steps").size(), table.steps.size());
  EXPECT_EQ(json.at("steps")[0].at("contributions")[0].at("of"), 1);
}

using InspectJsonFile = FilesTest;

// What is read is what was written: written again, it is the same text. Steps are not read.
TEST_F(InspectJsonFile, IsReadAsItWasWritten) {
  TapeTable table = full_table();
  table.steps.clear();
  table.rows[1].value->mean = std::numeric_limits<double>::quiet_NaN();
  table.rows[1].value->largest = std::numeric_limits<double>::infinity();
  put(path("a.json"), written(table));
  EXPECT_EQ(written(read_json(path("a.json"))), written(table));
  EXPECT_TRUE(std::isnan(read_json(path("a.json")).rows[1].value->mean));
}

TEST_F(InspectJsonFile, IsRefusedWhenItCannotBeRead) {
  auto refused = [&](const std::string& text, std::initializer_list<std::string_view> parts) {
    put(path("a.json"), text);
    return raises<FileError>([&] { read_json(path("a.json")); }, parts);
  };
  EXPECT_TRUE(raises<FileError>([&] { read_json(path("none")); }, {"none: cannot be read"}));
  EXPECT_TRUE(refused("", {"a.json: ", "parse error"}));
  EXPECT_TRUE(refused("[1, 2]", {"no schema 'tapehead-inspect'"}));
  EXPECT_TRUE(refused(R"({"schema": "other"})", {"no schema"}));
  EXPECT_TRUE(refused(R"({"schema": 3})", {"a.json: "}));
  EXPECT_TRUE(refused(R"({"schema": "tapehead-inspect"})", {"version"}));
  EXPECT_TRUE(
      refused(R"({"schema": "tapehead-inspect", "version": 2})", {"version 2 of the schema, and only 1"}));
  const std::string good = written(full_table());
  auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_TRUE(refused(with("\"nodes\":[", "\"nodes\":[3,"), {"a.json: "}));
  EXPECT_TRUE(refused(with("\"op\":", "\"no\":"), {"'op' not found"}));
  EXPECT_TRUE(refused(with("\"shape\":[3,2]", "\"shape\":[3,-2]"), {"a.json: "}));
  EXPECT_TRUE(refused(with("\"numbers\":[1.0,", "\"numbers\":["), {"5 numbers for the shape (3, 2)"}));
  EXPECT_TRUE(refused(with("\"least\":-1.0", "\"least\":\"low\""), {"a number is 'low'"}));
}

}  // namespace
}  // namespace tapehead
