#include <tapehead/inspect/html.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include <tapehead/inspect/formulas.h>
#include <tapehead/inspect/heat_map.h>
#include <tapehead/inspect/layout.h>
#include <tapehead/inspect/page_data.h>

namespace tapehead {
namespace {

using Json = nlohmann::json;

// ---- Tables made by hand

TapeRow row_of(const std::string& op, const std::string& scope, std::vector<Index> arguments) {
  TapeRow row;
  row.op = op, row.scope = row.label = scope, row.type = "f64", row.shape = {2, 3};
  row.input = arguments.empty();
  for (const Index argument : arguments) row.arguments.push_back({argument});
  return row;
}

TapeTable table_of(std::vector<TapeRow> rows) {
  TapeTable table;
  for (TapeRow& row : rows)
    row.index = static_cast<Index>(table.rows.size()), table.rows.push_back(std::move(row));
  return table;
}

// x, then per layer: a weight entered outside that the layer reads, and three ops of which one skips.
TapeTable layers(int count) {
  std::vector<TapeRow> rows = {row_of("input", "", {})};
  Index x = 0;
  for (int layer = 1; layer <= count; ++layer) {
    const std::string scope = std::string("layer ").append(std::to_string(layer));
    const auto w = static_cast<Index>(rows.size());
    rows.push_back(row_of("input", "", {}));
    rows.push_back(row_of("matmul", scope + "/attention", {x, w}));
    rows.push_back(row_of("tanh", scope + "/attention", {w + 1}));
    rows.push_back(row_of("add", scope, {w + 2, x}));
    x = w + 3;
  }
  return table_of(std::move(rows));
}

ArrayNumbers array_of(const Shape& shape, double first = 0) {
  ArrayNumbers array{shape, {}};
  for (Index i = 0; i < shape.size(); ++i) array.numbers.push_back(std::sin(first + static_cast<double>(i)));
  return array;
}

AttentionTable attention_of(const ArrayNumbers& weights) {
  AttentionTable attention;
  attention.label = "layer 1/attention", attention.node = 2, attention.weights = weights;
  return attention;
}

PathTable path_table(Index node, const std::vector<std::pair<std::string, Index>>& paths) {
  PathTable table;
  table.node = node;
  for (const auto& [name, port] : paths) {
    table.rows.emplace_back();
    table.rows.back().name = name, table.rows.back().node = port;
  }
  return table;
}

std::string page_of(const TapeTable& table) {
  std::ostringstream page;
  write_html(page, table);
  return page.str();
}

Json data_of(const TapeTable& table) { return Json::parse(page_data(table)); }

// RFC 4648.
template <class Number>
std::vector<double> unpacked(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 255);
  }
  std::vector<double> numbers;
  for (std::size_t i = 0; i + sizeof(Number) <= bytes.size(); i += sizeof(Number)) {
    Number number;
    std::memcpy(&number, bytes.data() + i, sizeof number);
    numbers.push_back(static_cast<double>(number));
  }
  return numbers;
}

// ---- The layout

const LayoutItem* item_of(const LayoutScope& scope, LayoutItem::Kind kind, Index id) {
  const auto found = std::ranges::find_if(
      scope.items, [&](const LayoutItem& item) { return item.kind == kind && item.id == id; });
  return found == scope.items.end() ? nullptr : &*found;
}

std::size_t home_of(const std::vector<LayoutScope>& scopes, Index node) {
  for (std::size_t s = 0; s < scopes.size(); ++s) {
    if (item_of(scopes[s], LayoutItem::Kind::node, node)) return s;
  }
  return scopes.size();
}

bool overlap(const LayoutItem& a, const LayoutItem& b) {
  return std::abs(a.centre.x - b.centre.x) < (a.width + b.width) / 2 - 1e-6 &&
         std::abs(a.centre.y - b.centre.y) < (a.height + b.height) / 2 - 1e-6;
}

void expect_sound(const std::vector<LayoutScope>& scopes, Index nodes) {
  std::multiset<Index> homes;
  for (std::size_t s = 0; s < scopes.size(); ++s) {
    const LayoutScope& scope = scopes[s];
    EXPECT_EQ(scope.parent.has_value(), s > 0);
    if (scope.parent) {
      EXPECT_LT(*scope.parent, s) << "outer before inner";
    }
    for (std::size_t i = 0; i < scope.items.size(); ++i) {
      const LayoutItem& item = scope.items[i];
      if (item.kind == LayoutItem::Kind::node) homes.insert(item.id);
      EXPECT_GE(item.centre.x - item.width / 2, -1e-6);
      EXPECT_LE(item.centre.x + item.width / 2, scope.width + 1e-6);
      EXPECT_GE(item.centre.y - item.height / 2, -1e-6);
      EXPECT_LE(item.centre.y + item.height / 2, scope.height + 1e-6);
      for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(overlap(item, scope.items[j])) << "in " << scope.name;
    }
  }
  EXPECT_EQ(std::ssize(homes), nodes);
  EXPECT_EQ(std::set<Index>(homes.begin(), homes.end()).size(), homes.size()) << "a node stands twice";
}

TEST(Layout, PutsEachNodeOnceAndNothingOnTopOfAnother) {
  const TapeTable table = layers(3);
  expect_sound(layout(table), std::ssize(table.rows));
  EXPECT_TRUE(
      overlap({.centre = {0, 0}, .width = 10, .height = 10}, {.centre = {9, 9}, .width = 10, .height = 10}));
}

TEST(Layout, PutsAnInputWhereItIsRead) {
  const auto scopes = layout(layers(2));
  EXPECT_EQ(home_of(scopes, 0), home_of(scopes, 4))
      << "x is read by the attention of layer 1, and by layer 1";
  EXPECT_EQ(scopes[home_of(scopes, 0)].label, "layer 1");
  EXPECT_EQ(scopes[home_of(scopes, 1)].label, "layer 1/attention");
  EXPECT_EQ(scopes[home_of(scopes, 5)].label, "layer 2/attention");
}

TEST(Layout, LeavesAnInputThatManyReadAndPutsNoOpElsewhere) {
  TapeTable table = layers(2);
  table.rows[8].arguments.push_back({0});  // the add of layer 2 reads x, too
  const auto scopes = layout(table);
  EXPECT_EQ(home_of(scopes, 0), 0u);
  EXPECT_EQ(scopes[home_of(scopes, 2)].label, "layer 1/attention");
}

// Of each use: an edge where both meet, and one to a border in every scope that it goes through.
TEST(Layout, DrawsEachUseInEveryScopeThatItGoesThrough) {
  const TapeTable table = layers(2);
  const auto scopes = layout(table);
  for (Index to = 0; to < std::ssize(table.rows); ++to) {
    for (const TapeArgument& argument : table.rows[static_cast<std::size_t>(to)].arguments) {
      std::set<std::size_t> above, drawn, around;
      for (std::size_t s = home_of(scopes, *argument.node);; s = *scopes[s].parent) {
        above.insert(s);
        if (s == 0) break;
      }
      std::size_t meeting = home_of(scopes, to);
      for (; !above.contains(meeting); meeting = *scopes[meeting].parent) around.insert(meeting);
      for (std::size_t s = home_of(scopes, *argument.node); s != meeting; s = *scopes[s].parent)
        around.insert(s);
      around.insert(meeting);
      for (std::size_t s = 0; s < scopes.size(); ++s) {
        for (const LayoutEdge& edge : scopes[s].edges) {
          for (const LayoutUse& use : edge.uses) {
            if (use.from == *argument.node && use.to == to) drawn.insert(s);
          }
        }
      }
      EXPECT_EQ(drawn, around) << "from " << *argument.node << " to " << to;
    }
  }
}

TEST(Layout, DrawsDownwardsFromBorderToBorder) {
  const auto scopes = layout(layers(2));
  for (const LayoutScope& scope : scopes) {
    for (const LayoutEdge& edge : scope.edges) {
      const LayoutItem &from = scope.items[edge.from], &to = scope.items[edge.to];
      EXPECT_LT(from.centre.y, to.centre.y) << "in " << scope.name;
      ASSERT_GE(edge.curve.size(), 4u);
      EXPECT_EQ(edge.curve.size() % 3, 1u);
      const LayoutPoint start = edge.curve.front(), end = edge.curve.back();
      EXPECT_LE(std::abs(start.x - from.centre.x), from.width / 2 + 1);
      EXPECT_LE(std::abs(start.y - from.centre.y), from.height / 2 + 1);
      EXPECT_LE(std::abs(end.x - to.centre.x), to.width / 2 + 1);
      EXPECT_LE(std::abs(end.y - to.centre.y), to.height / 2 + 1);
    }
  }
}

TEST(Layout, OfLayersThatAreAlikeIsAlike) {
  const auto scopes = layout(layers(4));
  const auto second = std::ranges::find(scopes, "layer 2", &LayoutScope::label);
  const auto third = std::ranges::find(scopes, "layer 3", &LayoutScope::label);
  ASSERT_EQ(second->items.size(), third->items.size());
  for (std::size_t i = 0; i < second->items.size(); ++i) {
    EXPECT_EQ(second->items[i].centre.x, third->items[i].centre.x);
    EXPECT_EQ(second->items[i].centre.y, third->items[i].centre.y);
  }
}

TEST(Layout, CutsALongScopeIntoPartsOfConsecutiveNodes) {
  std::vector<TapeRow> rows = {row_of("input", "", {})};
  for (Index i = 1; i < 5000; ++i) rows.push_back(row_of("tanh", "", {i - 1}));
  const auto scopes = layout(table_of(std::move(rows)));
  expect_sound(scopes, 5000);
  for (const LayoutScope& scope : scopes) {
    const auto own = std::ranges::count_if(scope.items, [](const LayoutItem& item) {
      return item.kind == LayoutItem::Kind::node || item.kind == LayoutItem::Kind::scope;
    });
    EXPECT_LE(own, 100) << scope.name;
  }
  const LayoutScope& home = scopes[home_of(scopes, 100)];
  EXPECT_EQ(home.name, "%51 to %100") << "the first part begins with %1, the first op";
  EXPECT_TRUE(item_of(home, LayoutItem::Kind::source, 50));
  EXPECT_TRUE(item_of(home, LayoutItem::Kind::target, 100));
}

TEST(Layout, OfAnEmptyTapeIsOneEmptyScope) {
  const auto scopes = layout({});
  ASSERT_EQ(scopes.size(), 1u);
  EXPECT_TRUE(scopes[0].items.empty());
}

// ---- Pictures of arrays

TEST(HeatMap, OfASmallArrayIsTheArray) {
  const ArrayNumbers array = array_of({4, 5});
  const HeatMap map = heat_map(array.numbers, 4, 5, 8);
  EXPECT_TRUE(map.exact());
  EXPECT_EQ(map.cells, array.numbers);
}

TEST(HeatMap, OfALargeOneHoldsMeansOfBlocks) {
  const ArrayNumbers array = array_of({7, 9});
  const HeatMap map = heat_map(array.numbers, 7, 9, 4);
  EXPECT_EQ(map.block_rows, 2);
  EXPECT_EQ(map.block_columns, 3);
  ASSERT_EQ(map.rows * map.columns, 4 * 3);
  for (Index i = 0; i < 4; ++i) {
    for (Index j = 0; j < 3; ++j) {
      double sum = 0, count = 0;
      for (Index r = 2 * i; r < 2 * i + 2 && r < 7; ++r) {
        for (Index c = 3 * j; c < 3 * j + 3; ++c)
          sum += array.numbers[static_cast<std::size_t>(9 * r + c)], ++count;
      }
      // A mean of at most six numbers below 1, in one order or another.
      EXPECT_NEAR(map.cells[static_cast<std::size_t>(3 * i + j)], sum / count, 1e-15);
    }
  }
}

TEST(HeatMap, ShowsOneNanInABlock) {
  ArrayNumbers array = array_of({4, 4});
  array.numbers[5] = NAN;
  const HeatMap map = heat_map(array.numbers, 4, 4, 2);
  EXPECT_TRUE(std::isnan(map.cells[0]));
  EXPECT_FALSE(std::isnan(map.cells[3]));
}

TEST(HeatMap, OfNothingIsEmpty) {
  EXPECT_TRUE(heat_map({}, 0, 5, 4).cells.empty());
  EXPECT_EQ(matrix_size({}).rows * matrix_size({}).columns, 1);
  EXPECT_EQ(matrix_size({2, 3, 4}).rows, 6);
  EXPECT_EQ(matrix_size({3, 0}).rows, 0);
}

// ---- Formulas

// The ops under a heading of their own in docs/ops.md, and those that only the engine records.
std::set<std::string> ops() {
  std::set<std::string> names = {"accumulate", "argument", "fused_attention", "input", "port", "recompute"};
  std::ifstream page(TAPEHEAD_TEST_DATA "/../../docs/ops.md");
  EXPECT_TRUE(page);
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("### ") && std::islower(line[4])) names.insert(line.substr(4));
  }
  for (const char* plain : {"positive", "sum_over", "round_to"}) names.erase(plain);  // of plain values
  return names;
}

TEST(Formulas, AreThereForEveryOp) {
  const std::set<std::string> names = ops();
  EXPECT_GT(names.size(), 60u);
  for (const std::string& op : names) {
    const OpFormula* formula = formula_of(op);
    ASSERT_TRUE(formula) << op;
    EXPECT_EQ(formula->op, op);
    EXPECT_FALSE(formula->formula.empty() || formula->gradient.empty() || formula->words.empty()) << op;
  }
}

TEST(Formulas, OfAnOpOfYourOwnAreNotThere) {
  for (const char* name : {"", "my_op", "zzz", "softma", "softmaxx"}) EXPECT_FALSE(formula_of(name)) << name;
}

// ---- The page

TEST(Page, HoldsNothingThatAsksTheNetwork) {
  const std::string page = page_of(layers(1));
  EXPECT_EQ(page.substr(0, 15), "<!DOCTYPE html>");
  for (const char* loader : {"<link rel=\"stylesheet", " src=", "@import", "fetch(", "XMLHttpRequest",
                             "innerHTML", "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_EQ(page.find(loader), page.npos) << loader;
  }
  // The one address is the name of SVG's elements.
  for (std::size_t at = page.find("http"); at != page.npos; at = page.find("http", at + 1)) {
    EXPECT_TRUE(page.substr(at).starts_with("http://www.w3.org/2000/svg") ||
                page.substr(at).starts_with("http-equiv"))
        << page.substr(at, 60);
  }
}

TEST(Page, KeepsNamesFromEndingItsData) {
  TapeTable table = layers(1);
  table.title = "</script><script>alert(1)</script>";
  table.rows[0].label = "<!--<script>";
  table.rows[1].remark = "\xFF\xC0 not UTF-8";
  const std::string text = page_data(table);
  EXPECT_EQ(text.find('<'), text.npos);
  const Json data = Json::parse(text);
  EXPECT_EQ(data["title"], table.title) << "it reads back";
  EXPECT_EQ(data["rows"][0]["label"], table.rows[0].label);
  const std::string page = page_of(table);
  std::size_t ends = 0;
  for (std::size_t at = page.find("</script"); at != page.npos; at = page.find("</script", at + 1)) ++ends;
  EXPECT_EQ(ends, 2u) << "of the data and of the program";
}

TEST(Page, GivesSmallArraysInFullAndOthersAsPictures) {
  TapeTable table = layers(1);
  table.rows[0].value_numbers = array_of({4, 5}), table.rows[0].value_numbers->numbers[7] = -INFINITY;
  table.rows[1].value_numbers = array_of({3, 100, 70});
  const Json rows = data_of(table)["rows"];
  EXPECT_EQ(unpacked<double>(rows[0]["values"]["f64"]), table.rows[0].value_numbers->numbers);
  const Json& picture = rows[1]["values"];
  EXPECT_EQ(picture["array"], Json({300, 70}));
  EXPECT_LE(picture["rows"], 64);
  EXPECT_LE(picture["columns"], 64);
  const HeatMap map = heat_map(table.rows[1].value_numbers->numbers, 300, 70, 64);
  std::vector<double> expected;
  for (const double x : map.cells) expected.push_back(static_cast<double>(static_cast<float>(x)));
  EXPECT_EQ(unpacked<float>(picture["f32"]), expected);
}

TEST(Page, RoundsStatisticsToSixDigits) {
  TapeTable table = layers(1);
  table.rows[0].value =
      ArraySummary{.least = -1.23456789e-8, .largest = 2.0 / 3, .mean = 0, .spread = 1, .norm = 5e-324};
  const Json value = data_of(table)["rows"][0]["value"];
  EXPECT_EQ(value["least"], -1.23457e-8);
  EXPECT_EQ(value["largest"], 0.666667);
  EXPECT_EQ(value["norm"], 4.94066e-324) << "the smallest number there is";
}

// Two layers of a model that is not small, everything kept, with two attentions of 8 heads and 512 tokens.
TEST(Page, OfATwoLayerModelStaysBelowTwoMegabytes) {
  TapeTable table = layers(40);
  for (TapeRow& row : table.rows) {
    row.shape = {16, 32, 64};
    row.value = row.gradient = ArraySummary{};
    row.value_numbers = row.gradient_numbers = array_of(row.shape);
  }
  for (int k = 0; k < 2; ++k) {
    const ArrayNumbers weights = array_of({1, 4, 256, 256});
    AttentionTable attention = attention_of(weights);
    attention.scores = attention.weight_gradient = weights;
    table.attention.push_back(attention);
  }
  EXPECT_LT(page_of(table).size(), 2'000'000u);
  const Json data = data_of(table);
  EXPECT_TRUE(data["rows"][100]["values"].contains("f32")) << "the pictures are smaller, but there";
  EXPECT_GT(data["attention"][0]["rows"], 30);
}

TEST(Page, WithoutRoomForArraysSaysSo) {
  TapeTable table = layers(1200);
  for (TapeRow& row : table.rows) row.value_numbers = row.gradient_numbers = array_of({16, 16});
  const Json data = data_of(table);
  EXPECT_TRUE(data.value("noArrays", false));
  EXPECT_FALSE(data["rows"][0].contains("values"));
  EXPECT_FALSE(data_of(layers(1)).contains("noArrays"));
}

TEST(Page, HoldsEachHeadOfEachSample) {
  TapeTable table = layers(1);
  AttentionTable attention = attention_of(array_of({2, 3, 4, 5}));
  attention.scores = array_of({2, 3, 4, 5}, 1);
  attention.scores->numbers[3] = -INFINITY;
  table.attention.push_back(attention);
  const Json data = data_of(table)["attention"][0];
  EXPECT_EQ(data["heads"], 3);
  const std::vector<double> weights = unpacked<float>(data["weights"]),
                            scores = unpacked<float>(data["scores"]);
  ASSERT_EQ(weights.size(), 120u);
  for (std::size_t i = 0; i < 120; ++i) {
    EXPECT_EQ(weights[i], static_cast<float>(attention.weights.numbers[i]));
    EXPECT_EQ(scores[i], static_cast<float>(attention.scores->numbers[i]));
  }
}

// Rows of a part of the tape keep their numbers, and point to places in the page.
TEST(Page, OfAPartOfATapeKeepsTheNumbersOfItsNodes) {
  TapeTable table = layers(3);
  table.paths = {path_table(8, {{"query", 10}, {"key", 2}}), path_table(0, {})};
  std::erase_if(table.rows,
                [](const TapeRow& row) { return !row.scope.starts_with("layer 3") && row.index != 8; });
  const Json data = data_of(table);
  EXPECT_EQ(data["partial"], true);
  ASSERT_EQ(data["rows"].size(), 4u);
  EXPECT_EQ(data["rows"][1]["number"], 10);
  EXPECT_EQ(data["rows"][1]["inputs"], Json({0, nullptr})) << "%8, and a weight that was left out";
  EXPECT_EQ(data["rows"][3]["inputs"], Json({2, 0}));
  ASSERT_EQ(data["paths"].size(), 1u);
  EXPECT_EQ(data["paths"][0]["node"], 0);
  ASSERT_EQ(data["paths"][0]["rows"].size(), 1u);
  EXPECT_EQ(data["paths"][0]["rows"][0]["node"], 1);
}

TEST(Page, OfAnEmptyTapeIsAPage) { EXPECT_NE(page_of({}).find("</html>"), std::string::npos); }

}  // namespace
}  // namespace tapehead
