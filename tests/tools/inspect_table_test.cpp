#include <tapehead/inspect/inspect.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tapehead/inspect/attention_places.h>
#include <tapehead/tapehead.h>

#include "support/compare.h"
#include "support/expect_error.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;

std::vector<double> numbers(const A& x) { return x.to_vector(); }

// softmax(x w + 1) in two scopes; x (2, 3), w (3, 2).
TapeTable small_table(KeepLevel level) {
  Tape<double> tape;
  tape.keep(level);
  const V x = tape.input(A::of({{1, 2, 3}, {-1, 0, 1}}), "x");
  const V w = tape.input(A::of({{1, 0}, {0, 1}, {1, 1}}), "w");
  const Scope<double> outer(tape, "layer 1");
  const V scores = matmul(x, w) + V(A::ones({2, 2}));
  const Scope<double> inner(tape, "head");
  gradient_values(sum(softmax(scores)), {x, w});
  return inspect(tape);
}

TEST(Inspect, ARowSaysWhatTheNodeIs) {
  const TapeTable table = small_table(KeepLevel::rules);
  ASSERT_EQ(table.rows.size(), 6u);
  EXPECT_EQ(table.level, "rules");
  const TapeRow &x = table.rows[0], &product = table.rows[2], &plus = table.rows[3], &p = table.rows[4];
  EXPECT_TRUE(x.input);
  EXPECT_EQ(x.label, "x");
  EXPECT_EQ(x.scope, "");
  EXPECT_EQ(product.op, "matmul");
  EXPECT_EQ(product.label, "layer 1");
  EXPECT_EQ(product.arguments[0].node, Index{0});
  EXPECT_EQ(product.arguments[1].node, Index{1});
  EXPECT_EQ(product.shape, (Shape{2, 2}));
  EXPECT_EQ(product.type, "f64");
  EXPECT_EQ(product.bytes, 32);
  EXPECT_EQ(product.kept_bytes, 0);
  EXPECT_EQ(product.flops, 2 * 2 * 3 * 2);
  ASSERT_EQ(plus.arguments.size(), 2u);
  EXPECT_FALSE(plus.arguments[1].node.has_value());  // a constant
  EXPECT_EQ(p.label, "layer 1/head");
  EXPECT_EQ(p.kept_bytes, 32);  // its rule takes y
  for (const TapeRow& row : table.rows) {
    EXPECT_FALSE(row.value || row.gradient || row.forward_seconds || row.value_numbers);
  }
}

TEST(Inspect, StatisticsAreOfValueAndGradient) {
  const TapeTable table = small_table(KeepLevel::statistics);
  EXPECT_EQ(table.level, "statistics");
  const TapeRow& product = table.rows[2];  // (4, 5), (0, 1)
  EXPECT_EQ(product.value->least, 0);
  EXPECT_EQ(product.value->largest, 5);
  EXPECT_EQ(product.value->mean, 2.5);
  EXPECT_TRUE(product.forward_seconds && product.backward_seconds && product.forward_start);
  EXPECT_GT(*product.live_bytes_forward, 0);
  EXPECT_EQ(table.rows[5].gradient->norm, 1);
  EXPECT_EQ(table.rows[4].gradient->norm, 2);  // four ones
  EXPECT_FALSE(product.value_numbers || product.gradient_numbers);
}

TEST(Inspect, EverythingHoldsTheNumbers) {
  const TapeTable table = small_table(KeepLevel::everything);
  EXPECT_EQ(table.level, "everything");
  EXPECT_EQ(table.rows[2].value_numbers->numbers, (std::vector<double>{4, 5, 0, 1}));
  EXPECT_EQ(table.rows[4].gradient_numbers->numbers, (std::vector<double>{1, 1, 1, 1}));
}

TEST(Inspect, TotalsAreOfOpsAndOfScopesWithAllInside) {
  const TapeTable table = small_table(KeepLevel::statistics);
  ASSERT_EQ(table.by_label.size(), 2u);
  EXPECT_EQ(table.by_label[0].name, "layer 1");
  EXPECT_EQ(table.by_label[0].nodes, 4);
  EXPECT_EQ(table.by_label[1].name, "layer 1/head");
  EXPECT_EQ(table.by_label[1].nodes, 2);
  EXPECT_EQ(table.by_label[1].kept_bytes, 32);
  EXPECT_EQ(table.by_op[0].name, "input");
  EXPECT_EQ(table.by_op[0].nodes, 2);
  double forward = 0, flops = 0;
  for (const TapeRow& row : table.rows) forward += *row.forward_seconds, flops += row.flops;
  double total_forward = 0, total_flops = 0;
  for (const TapeTotal& total : table.by_op)
    total_forward += total.forward_seconds, total_flops += total.flops;
  EXPECT_NEAR(total_forward, forward, 1e-12);  // seconds: the same numbers in another order
  EXPECT_EQ(total_flops, flops);
}

TEST(Inspect, NonFiniteNumbersAreCounted) {
  Tape<float> tape;
  tape.keep(KeepLevel::statistics);
  const Var<float> x = tape.input(Array<float>::of({-1, 0, 4}));
  gradient_values(sum(log(x)), x);
  const TapeTable table = inspect(tape);
  EXPECT_EQ(table.rows[0].type, "f32");
  EXPECT_EQ(table.rows[1].value->nans, 1);
  EXPECT_EQ(table.rows[1].value->infinities, 1);
  EXPECT_EQ(table.rows[0].gradient->infinities, 1);  // 1 / 0
}

TEST(OnlyLabel, KeepsRunsOfWholeParts) {
  EXPECT_TRUE(has_label("layer 1/head", "layer 1"));
  EXPECT_TRUE(has_label("layer 1/head", "head"));
  EXPECT_TRUE(has_label("a/layer 1/head", "layer 1/head"));
  EXPECT_FALSE(has_label("layer 11/head", "layer 1"));
  EXPECT_FALSE(has_label("layer 1/header", "head"));
  EXPECT_TRUE(has_label("ab/b", "b"));  // the second place fits
  const TapeTable table = small_table(KeepLevel::rules), only = only_label(table, "head");
  EXPECT_EQ(only.rows.size(), 2u);
  EXPECT_EQ(only.by_op.size(), 2u);
  EXPECT_EQ(only.by_label[0].nodes, 2);
  EXPECT_TRUE(raises<DomainError>([&] { only_label(table, "layer"); },
                                  {"label: no node has 'layer'; the first labels are layer 1"}));
}

// Attention on the tape

struct Options {
  Index heads = 2, key_heads = 2;
  bool sink = false;
  double dropout = 0;
};

AttentionResult<double> attend(Tape<double>& tape, const Options& options) {
  Generator random(3);
  auto entered = [&](const char* name, const Shape& shape) {
    return tape.input(random.normal<double>(shape), name);
  };
  const V q = entered("q", {2, options.heads, 3, 4}), k = entered("k", {2, options.key_heads, 5, 4}),
          v = entered("v", {2, options.key_heads, 5, 6});
  AttentionOptions<double> with{.mask = Mask::causal(2), .masked_scores = true, .weights = true};
  if (options.sink) with.sink = entered("sink", {options.heads});
  if (options.dropout > 0) with.dropout = Dropout{options.dropout, Generator(1)};
  return attention(q, k, v, with);
}

TEST(InspectAttention, ShowsTheWeightsTheScoresAndTheGradientOfTheWeights) {
  for (const Options& options : {Options{}, Options{4, 2, false, 0}, Options{2, 2, true, 0},
                                 Options{2, 1, false, 0.5}, Options{2, 2, true, 0.5}}) {
    Tape<double> tape;
    tape.keep(KeepLevel::everything);
    const AttentionResult<double> result = attend(tape, options);
    const V loss = sum(square(result.output));
    const A expected = gradient_values(loss, *result.weights)[0];
    const TapeTable table = inspect(tape);
    ASSERT_EQ(table.attention.size(), 1u);
    const AttentionTable& attention = table.attention[0];
    EXPECT_EQ(attention.label, "attention");
    EXPECT_EQ(attention.weights.shape, (Shape{2, options.heads, 3, 5}));
    EXPECT_EQ(attention.weights.numbers, numbers(result.weights->value()));
    EXPECT_EQ(attention.scores->numbers, numbers(result.masked_scores->value()));
    EXPECT_EQ(attention.weight_gradient->numbers, numbers(expected));
    EXPECT_EQ(attention.scores->numbers[3],
              -std::numeric_limits<double>::infinity());  // query 0 sees keys 0 to 2
  }
}

TEST(InspectAttention, OfTheFusedKernelHasNoWeightsButAPlace) {
  Tape<double> tape;
  tape.keep(KeepLevel::everything);
  const V x = tape.input(Generator(1).normal<double>({1, 2, 3, 4}));
  const Scope<double> scope(tape, "layer 1");
  attention(x, x, x, {.kernel = AttentionKernel::fused});
  EXPECT_TRUE(inspect(tape).attention.empty());
  const auto places = attention_places(tape);
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0].label, "layer 1");
  EXPECT_EQ(places[0].ports, (std::vector<Index>{1, 2, 3}));
  EXPECT_EQ(places[0].output, 4);
  EXPECT_EQ(inspect(tape).rows[4].remark, "fused");
}

TEST(InspectAttention, SeveralInOneScopeAreNumbered) {
  Tape<double> tape;
  const V x = tape.input(A::of({{1, 2}, {3, 4}}));
  attention(attention(x, x, x).output, x, x);
  const auto places = attention_places(tape);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].label, "attention (1)");
  EXPECT_EQ(places[1].label, "attention (2)");
}

TEST(InspectAttention, AxesBecomeBatchHeadsAndTheTwoOfTheWeights) {
  EXPECT_EQ(by_head({3, 5}), (Shape{1, 1, 3, 5}));
  EXPECT_EQ(by_head({2, 3, 5}), (Shape{2, 1, 3, 5}));
  EXPECT_EQ(by_head({2, 4, 3, 5}), (Shape{2, 4, 3, 5}));
  EXPECT_EQ(by_head({2, 7, 4, 3, 5}), (Shape{14, 4, 3, 5}));
}

}  // namespace
}  // namespace tapehead
