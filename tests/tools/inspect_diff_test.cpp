#include <tapehead/inspect/diff.h>

#include <gtest/gtest.h>

#include <sstream>

#include <nlohmann/json.hpp>

#include <tapehead/inspect/inspect.h>
#include <tapehead/tapehead.h>

namespace tapehead {
namespace {

using V = Var<double>;

// A tape of x -> exp -> a middle -> sum.
template <class Middle>
TapeTable table_of(Middle middle, const Array<double>& x = Array<double>::of({1, 2})) {
  Tape<double> tape;
  tape.keep(KeepLevel::statistics);
  const V in = tape.input(x, "x");
  gradient_values(sum(middle(exp(in))), in);
  return inspect(tape);
}

V same(const V& x) { return square(x); }

std::string text_of(const TapeDiff& changes) {
  std::ostringstream out;
  write_diff(out, changes);
  return out.str();
}

TEST(TapeDiff, OfTheSameComputationIsEmptyWhateverItsTimes) {
  const TapeDiff changes = diff(table_of(same), table_of(same));
  EXPECT_FALSE(changes.differs());
  EXPECT_EQ(changes.same, 4);
  EXPECT_NE(text_of(changes).find("4 nodes the same, 0 changed, 0 gone, 0 new"), std::string::npos);
}

TEST(TapeDiff, NamesWhatCameAndWentAndWhatReadsIt) {
  const TapeDiff changes = diff(table_of(same), table_of([](const V& x) { return tanh(neg(x)); }));
  ASSERT_EQ(changes.nodes.size(), 6u);
  EXPECT_EQ(changes.same, 0);  // the gradients are others, too
  EXPECT_EQ(changes.nodes[2].op, "square");
  EXPECT_EQ(changes.nodes[2].after, -1);
  EXPECT_EQ(changes.nodes[3].op, "neg");
  EXPECT_EQ(changes.nodes[3].before, -1);
  EXPECT_EQ(changes.nodes[3].after, 2);
  EXPECT_EQ(changes.nodes[5].op, "sum");
  EXPECT_EQ(changes.nodes[5].before, 3);
  EXPECT_EQ(changes.nodes[5].after, 4);
  EXPECT_EQ(changes.nodes[5].what[0], "reads other nodes");
  const std::string text = text_of(changes);
  EXPECT_NE(text.find("- %2 square\n"), std::string::npos);
  EXPECT_NE(text.find("+ %2 neg\n"), std::string::npos);
  EXPECT_NE(text.find("  %3 -> %4 sum: reads other nodes, "), std::string::npos);
}

TEST(TapeDiff, FindsAnInsertionWithoutBlamingWhatFollows) {
  const TapeDiff changes = diff(table_of(same), table_of([](const V& x) { return square(reshape(x, {2})); }));
  ASSERT_EQ(changes.nodes.size(), 2u);
  EXPECT_EQ(changes.nodes[0].op, "reshape");
  EXPECT_EQ(changes.nodes[1].op, "square");
  EXPECT_EQ(changes.nodes[1].what, (std::vector<std::string>{"reads other nodes"}));
  EXPECT_EQ(changes.same, 3);
}

TEST(TapeDiff, SaysHowShapesKernelsAndNumbersChanged) {
  const TapeDiff shapes = diff(table_of(same), table_of(same, Array<double>::of({{1, 2}})));
  EXPECT_EQ(shapes.nodes[0].what, (std::vector<std::string>{"shape (2) -> (1, 2)"}));
  const TapeDiff numbers = diff(table_of(same), table_of(same, Array<double>::of({1, 2.5})));
  EXPECT_EQ(numbers.nodes[0].what[0], "value largest 2 -> 2.5");
  EXPECT_FALSE(diff(table_of(same), table_of(same, Array<double>::of({1, 2 + 1e-12}))).differs());
  auto with = [](AttentionKernel kernel) {
    Tape<double> tape;
    const V x = tape.input(Array<double>::of({{1, 2}, {3, 4}}), "x");
    attention(x, x, x, {.kernel = kernel});
    return inspect(tape);
  };
  const TapeDiff kernels = diff(with(AttentionKernel::composed), with(AttentionKernel::fused));
  EXPECT_EQ(kernels.same, 4);  // x and its ports
  EXPECT_EQ(kernels.nodes.back().op, "fused_attention");
  EXPECT_EQ(kernels.by_op.size(), 6u);
}

TEST(TapeDiff, OfTapesThatHaveNothingInCommonEnds) {
  TapeTable a, b;
  for (Index i = 0; i < 4000; ++i) {
    TapeRow row;
    row.index = i;
    row.op = "a";
    a.rows.push_back(row);
    row.op = i == 17 ? "a" : "b";
    b.rows.push_back(row);
  }
  const TapeDiff changes = diff(a, b);
  EXPECT_EQ(changes.same, 1);
  EXPECT_EQ(changes.nodes.size(), 7998u);
  EXPECT_NE(text_of(changes).find("and 7958 more"), std::string::npos);
}

TEST(TapeDiff, IsOneLineOfJson) {
  std::ostringstream out;
  write_diff_json(out, diff(table_of(same), table_of(same, Array<double>::of({1, 3}))));
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(out.str().find('\n'), out.str().size() - 1);
  EXPECT_EQ(json.at("schema"), "tapehead-inspect-diff");
  EXPECT_EQ(json.at("nodes")[0].at("before"), 0);
  EXPECT_EQ(json.at("nodes")[0].at("what")[0], "value largest 2 -> 3");
  EXPECT_EQ(json.at("by_op").size(), 4u);
}

}  // namespace
}  // namespace tapehead
