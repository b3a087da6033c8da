#include <tapehead/nn/summary.h>

#include <gtest/gtest.h>

#include <sstream>

#include <tapehead/nn/transformer.h>

namespace tapehead {
namespace {

template <std::floating_point T>
struct Pair {
  Var<T> weights;
  std::vector<Var<T>> more{};

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("weights", self.weights), f("more", self.more);
  }
};

template <class T>
Pair<T> pair() {
  return {Array<T>::ones({20, 30}), {Array<T>::ones({}), Array<T>::ones({1, 2, 3}), Array<T>::ones({0, 5})}};
}

TEST(Summary, HasARowForEachParameterAndTheTotals) {
  const ModelSummary table = summary(pair<double>());
  ASSERT_EQ(table.parameters.size(), 4u);
  EXPECT_EQ(table.parameters[0].name, "weights");
  EXPECT_EQ(table.parameters[0].shape, Shape({20, 30}));
  EXPECT_EQ(table.parameters[0].count, 600);
  EXPECT_EQ(table.parameters[0].bytes, 4800u);
  EXPECT_EQ(table.parameters[1].name, "more.0");
  EXPECT_EQ(table.parameters[1].shape, Shape({}));
  EXPECT_EQ(table.parameters[1].count, 1);
  EXPECT_EQ(table.parameters[3].count, 0);
  EXPECT_EQ(table.parameters[3].bytes, 0u);
  EXPECT_EQ(table.count, 607);
  EXPECT_EQ(table.bytes, 607u * 8);
}

TEST(Summary, AsTextIsATableWithNumbersToTheRight) {
  EXPECT_EQ(to_string(summary(pair<float>())),
            "name     shape      count  bytes\n"
            "weights  (20, 30)     600   2400\n"
            "more.0   ()             1      4\n"
            "more.1   (1, 2, 3)      6     24\n"
            "more.2   (0, 5)         0      0\n"
            "total                 607   2428\n");
}

TEST(Summary, OfNoParametersIsAHeadAndATotal) {
  const std::vector<Pair<float>> none;
  std::ostringstream text;
  text << summary(none);
  EXPECT_EQ(text.str(),
            "name   shape  count  bytes\n"
            "total             0      0\n");
}

TEST(Summary, OfATransformerCountsEveryParameter) {
  Generator random(1);
  const auto model = CausalModel<float>::initial(
      random, {.vocabulary = 5, .context = 3, .width = 4, .heads = 2, .layers = 2, .hidden = 6});
  const ModelSummary table = summary(model);
  EXPECT_EQ(table.count, parameter_count(model));
  EXPECT_EQ(table.bytes, 4 * static_cast<std::size_t>(parameter_count(model)));
  EXPECT_EQ(table.parameters.front().name, "embedding.tokens.table");
  EXPECT_EQ(table.parameters.back().name, "vocabulary.w");
}

}  // namespace
}  // namespace tapehead
