#include <tapehead/inspect/text.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>

#include <tapehead/inspect/columns.h>
#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/paths.h>
#include <tapehead/inspect/step.h>
#include <tapehead/tapehead.h>

namespace tapehead {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Columns

std::string columns_text(std::vector<Column> columns, int width,
                         std::vector<std::string>* left_out = nullptr) {
  std::ostringstream out;
  const auto names = write_columns(out, std::move(columns), width);
  if (left_out) *left_out = names;
  return out.str();
}

const std::vector<Column> two_columns = {{"node", true, 9, 0, {"%0", "%10"}},
                                         {"label", false, 5, 6, {"x", "layer 1/attention"}}};

TEST(Columns, AreAlignedAndHoldNoBlanksAtTheEnd) {
  EXPECT_EQ(columns_text(two_columns, 0), "node  label\n  %0  x\n %10  layer 1/attention\n");
}

TEST(Columns, AreShortenedInTheMiddleAndThenLeftOut) {
  std::vector<std::string> left_out;
  EXPECT_EQ(columns_text(two_columns, 16, &left_out), "node  label\n  %0  x\n %10  laye..tion\n");
  EXPECT_TRUE(left_out.empty());
  EXPECT_EQ(columns_text(two_columns, 11, &left_out), "node\n  %0\n %10\n");
  EXPECT_EQ(left_out, (std::vector<std::string>{"label"}));
}

TEST(Columns, ThatHoldNothingAreNotThere) {
  std::vector<std::string> left_out;
  EXPECT_EQ(columns_text({{"a", false, 1, 0, {"1"}}, {"b", false, 1, 0, {""}}}, 0, &left_out), "a\n1\n");
  EXPECT_TRUE(left_out.empty());
}

TEST(Columns, CountCharactersAndNotBytes) {
  EXPECT_EQ(shortened("Wörter, längere", 9), "Wör..gere");
  EXPECT_EQ(shortened("äöü", 3), "äöü");
  EXPECT_EQ(shortened("abcdef", 2), "..");
  EXPECT_EQ(columns_text({{"a", false, 1, 0, {"äö", "abc"}}, {"b", false, 1, 0, {"1", "2"}}}, 0),
            "a    b\näö   1\nabc  2\n");
}

// Numbers

TEST(Numbers, HaveThreeDigitsAndAUnit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(1048575), "1.00 MiB");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(12345), "12.3 k");
  EXPECT_EQ(count_text(2e9), "2.00 G");
  EXPECT_EQ(seconds_text(1.234e-5), "12.3 us");
  EXPECT_EQ(seconds_text(9.99e-4), "999 us");
  EXPECT_EQ(seconds_text(2), "2.00 s");
}

// Tables

struct Case {
  Tape<double> tape;
  Var<double> x, loss;
  explicit Case(KeepLevel level) {
    tape.keep(level);
    x = tape.input(Array<double>::of({{1, 2}, {3, 4}}), "x");
    const Scope<double> scope(tape, "a layer with a name that is long");
    const auto seen = attention(x, x, x, {.kernel = AttentionKernel::composed});
    loss = sum(square(seen.output));
    gradient_values(loss, x);
  }
  TapeTable table() const {
    TapeTable result = inspect(tape);
    result.title = "";
    return result;
  }
};

std::string table_text(const TapeTable& table, const TextOptions& options = {}) {
  std::ostringstream out;
  write_table(out, table, options);
  return out.str();
}

TEST(TableText, HasALineForEachNodeAndItsColumnsStandUnderEachOther) {
  const TapeTable table = Case(KeepLevel::statistics).table();
  const std::string text = table_text(table);
  const auto lines = lines_of(text);
  for (const char* column :
       {"node", "op", "label", "inputs", "shape", "type", "bytes", "kept", "FLOPs", "forward", "backward",
        "range", "mean", "spread", "not finite", "|gradient|", "kernel"}) {
    EXPECT_NE(lines[0].find(column), std::string::npos) << column;
  }
  const std::size_t at = lines[0].find("shape"), inputs = lines[0].find("inputs");
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    EXPECT_EQ(lines[i + 1].substr(at, to_string(table.rows[i].shape).size()), to_string(table.rows[i].shape));
    EXPECT_EQ(lines[i + 1].find(fmt::format("%{}  {}", i, table.rows[i].op)), i < 10 ? 2u : 1u);
  }
  EXPECT_EQ(lines[5].substr(inputs, 6), "%1, %2");
  EXPECT_EQ(text.find("\x1b"), std::string::npos);
  EXPECT_NE(text.find("composed: asked for"), std::string::npos);
  EXPECT_NE(text.find("by op"), std::string::npos);
  EXPECT_NE(text.find("by label"), std::string::npos);
}

TEST(TableText, FitsTheWidthAndSaysWhatIsMissing) {
  const TapeTable table = Case(KeepLevel::statistics).table();
  for (const int width : {80, 100, 132, 160}) {
    const std::string text = table_text(table, {.width = width});
    const auto lines = lines_of(text);
    for (std::size_t i = 0; i <= table.rows.size(); ++i)
      EXPECT_LE(lines[i].size(), static_cast<std::size_t>(width));
    EXPECT_NE(text.find("Not shown for want of room: "), std::string::npos);
  }
  EXPECT_NE(table_text(table, {.width = 80}).find(".."), std::string::npos);
  EXPECT_EQ(table_text(table).find("Not shown"), std::string::npos);
}

TEST(TableText, OfWhatRulesKeepHasNoEmptyColumns) {
  const auto lines = lines_of(table_text(Case(KeepLevel::rules).table()));
  EXPECT_EQ(lines[0].find("forward"), std::string::npos);
  EXPECT_EQ(lines[0].find("range"), std::string::npos);
  EXPECT_NE(lines[0].find("FLOPs"), std::string::npos);
}

TEST(TableText, IsRedWhereANumberIsNone) {
  Tape<double> tape;
  tape.keep(KeepLevel::statistics);
  const auto x = tape.input(Array<double>::of({-1, 1}), "x");
  gradient_values(sum(log(x)), x);
  const std::string plain = table_text(inspect(tape)), colour = table_text(inspect(tape), {.colour = true});
  EXPECT_EQ(plain.find("\x1b"), std::string::npos);
  EXPECT_NE(colour.find("\x1b[31m  %1"), std::string::npos);
  EXPECT_EQ(colour.find("\x1b[31m  %0"), std::string::npos);
}

TEST(TableText, MarksFlopsThatAreAssumed) {
  Tape<double> tape;
  const auto x = tape.input(Array<double>::of({1, 2, 3}), "x");
  record("my_op", x.value(), edge(x, [](const Var<double>& dy) { return dy; }));
  const std::string text = table_text(inspect(tape));
  EXPECT_NE(text.find("~3"), std::string::npos);
  EXPECT_NE(text.find("not known: one is counted for each element of its output"), std::string::npos);
  EXPECT_EQ(table_text(Case(KeepLevel::rules).table()).find("~"), std::string::npos);
}

TEST(SortRows, PutsTheLargestFirst) {
  TapeTable table = Case(KeepLevel::statistics).table();
  sort_rows(table, SortBy::gradient);
  for (std::size_t i = 1; i < table.rows.size(); ++i) {
    EXPECT_GE(table.rows[i - 1].gradient->norm, table.rows[i].gradient->norm);
  }
  sort_rows(table, SortBy::time);
  for (std::size_t i = 1; i < table.rows.size(); ++i) {
    auto time = [&](std::size_t k) {
      return *table.rows[k].forward_seconds + *table.rows[k].backward_seconds;
    };
    EXPECT_GE(time(i - 1), time(i));
  }
  sort_rows(table, SortBy::bytes);
  EXPECT_EQ(table.rows.back().op, "sum");
  sort_rows(table, SortBy::tape);
  EXPECT_TRUE(std::ranges::is_sorted(table.rows, {}, &TapeRow::index));
}

TEST(PathText, SaysHowWellTheRowsSum) {
  const Case c(KeepLevel::rules);
  TapeTable table = c.table();
  table.paths.push_back(inspect_paths(c.loss, c.x));
  std::ostringstream out;
  write_paths(out, table);
  EXPECT_NE(out.str().find("Gradient of %0 x, by path:"), std::string::npos);
  EXPECT_NE(out.str().find("a layer with a name that is long/query"), std::string::npos);
  EXPECT_NE(out.str().find("The rows sum to the gradient, of norm"), std::string::npos);
  table.paths = {inspect_paths(c.loss, c.x, {0, {}})};
  std::ostringstream of_head;
  write_paths(of_head, table);
  EXPECT_NE(of_head.str().find("that came by head 0 of each attention"), std::string::npos);
  EXPECT_NE(of_head.str().find("It is 100.0 % of the whole gradient."), std::string::npos);
}

TEST(PathText, OfNothingSaysSo) {
  Tape<double> tape;
  const auto x = tape.input(Array<double>::of({1, 2})), y = tape.input(Array<double>::of({3}));
  TapeTable table = inspect(tape);
  table.paths.push_back(inspect_paths(sum(y), x));
  std::ostringstream out;
  write_paths(out, table);
  EXPECT_EQ(out.str(), "\nGradient of %0, by path:\n\nNothing came to it.\n");
}

TEST(StepText, ShowsContributionsAndPartialSums) {
  Tape<double> tape;
  const auto x = tape.input(Array<double>::of({3, 5}), "x");
  const auto y = sum(x * x);
  TapeTable table = inspect(tape);
  table.steps = inspect_steps<double>(table, y, x);
  std::ostringstream out;
  write_steps(out, table);
  EXPECT_EQ(out.str(),
            "step 1: %2 sum\n"
            "  gradient               1\n"
            "  to %1, argument 0\n"
            "    all of it            1          1\n"
            "step 2: %1 mul\n"
            "  gradient               1          1\n"
            "  to %0, argument 0\n"
            "    adds                 3          5\n"
            "    sum 1/2              3          5\n"
            "  to %0, argument 1\n"
            "    adds                 3          5\n"
            "    sum 2/2              6         10\n"
            "step 3: %0 input x\n"
            "  gradient               6         10\n"
            "  nothing behind it is asked for: this is its gradient\n");
}

TEST(OptionsFor, AFileAreThoseOfColumns) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const char* before = std::getenv("COLUMNS");
  const std::string kept = before ? before : "";
  ::unsetenv("COLUMNS");
  EXPECT_EQ(options_for(file).width, 0);
  EXPECT_FALSE(options_for(file).colour);
  ::setenv("COLUMNS", "123", 1);
  EXPECT_EQ(options_for(file).width, 123);
  for (const char* bad : {"", "x", "12x", "-3", "99999999999"}) {
    ::setenv("COLUMNS", bad, 1);
    EXPECT_EQ(options_for(file).width, 0) << bad;
  }
  before ? ::setenv("COLUMNS", kept.c_str(), 1) : ::unsetenv("COLUMNS");
  std::fclose(file);
}

}  // namespace
}  // namespace tapehead
