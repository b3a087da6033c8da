#include <tools/train/attention.h>

#include <gtest/gtest.h>

#include <sstream>

#include <tools/train/report.h>

#include "support/compare.h"

namespace tapehead::tools {
namespace {

TransformerOptions small(Index vocabulary, Index context) {
  TransformerOptions sizes;
  sizes.vocabulary = vocabulary, sizes.context = context;
  sizes.width = 8, sizes.heads = 2, sizes.hidden = 12;
  return sizes;
}

Array<double> array_of(const ArrayNumbers& numbers) {
  return Array<double>::from(numbers.numbers, numbers.shape);
}

TEST(Words, NameTheTokensOfATask) {
  const auto recalled = Array<Index>::of({{3, 16, 31}, {0, 0, 0}});
  EXPECT_EQ(words_of(RecallTask(), recalled), (Words{"k3", "v0", "v15"}));
  const auto reversed = Array<Index>::of({{16, 0, 15}});
  EXPECT_EQ(words_of(ReverseTask(), reversed), (Words{"<s>", "a", "p"}));
}

// The weights that attention itself gives, layer by layer.
TEST(AttentionOfAModel, HoldsTheWeightsOfEachLayerOnTheFirstSequence) {
  Generator random(1);
  const auto model = CausalModel<float>::initial(random, small(10, 5));
  const auto tokens = Array<Index>::of({{1, 2, 3, 4, 5}, {9, 9, 9, 9, 9}});
  const auto tables = attention_of(model, tokens, {"1", "2", "3", "4", "5"});
  ASSERT_EQ(tables.size(), 2u);
  Var<float> x = model.embedding(Array<Index>::of({{1, 2, 3, 4, 5}}));
  for (std::size_t i = 0; i < 2; ++i) {
    const auto seen = model.layers[i].attended(x, {.mask = Mask::causal(0), .weights = true});
    x = model.layers[i].fed(seen.output);
    // The same ops on the same numbers.
    EXPECT_NEAR_RELATIVE(array_of(tables[i].weights), seen.weights->value().cast<double>(), 1e-6);
    EXPECT_EQ(tables[i].label, std::string("layer ").append(std::to_string(i + 1)));
    EXPECT_EQ(tables[i].key_tokens.size(), 5u);
  }
  EXPECT_FALSE(agree(array_of(tables[0].weights), array_of(tables[1].weights), 1e-3));
}

TEST(AttentionOfAModel, OfADecoderLooksAtItselfAndAtTheSource) {
  Generator random(2);
  const auto model = EncoderDecoder<float>::initial(random, small(10, 6));
  const auto tables = attention_of(model, Array<Index>::of({{1, 2, 3, 4}}), {"1", "2", "3", "4"},
                                   Array<Index>::of({{9, 4, 3}}), {"<s>", "4", "3"});
  ASSERT_EQ(tables.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const bool cross = i % 2 == 1;
    EXPECT_EQ(tables[i].weights.shape, (cross ? Shape{1, 2, 3, 4} : Shape{1, 2, 3, 3}));
    EXPECT_EQ(tables[i].query_tokens, (Words{"<s>", "4", "3"}));
    EXPECT_EQ(tables[i].key_tokens.front(), cross ? "1" : "<s>");
    double sum = 0;
    for (const double x : tables[i].weights.numbers) sum += x;
    EXPECT_NEAR(sum, 6, 1e-5) << "six rows of floats that sum to 1";
    EXPECT_EQ(tables[i].weights.numbers[1] == 0, !cross)
        << "the first query sees the first key, or all of the source";
  }
}

TEST(Pictures, OfAReportShowItsLossesAndItsAttention) {
  Generator random(3);
  const auto model = CausalModel<float>::initial(random, small(10, 3));
  TrainReport report;
  report.task = "recall";
  report.losses = {3, 2, 1};
  report.attention = attention_of(model, Array<Index>::of({{1, 2, 3}}), {"one", "two", "three"});
  std::ostringstream loss, attention;
  write_loss_picture(loss, report);
  write_attention_picture(attention, report);
  EXPECT_NE(loss.str().find("recall: training loss by step"), std::string::npos);
  EXPECT_NE(loss.str().find("class=\"curve\""), std::string::npos);
  for (const char* text : {"recall", ">layer 1: 3 queries by 3 keys", ">layer 2:", ">head 1<", ">three<"}) {
    EXPECT_NE(attention.str().find(text), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tapehead::tools
