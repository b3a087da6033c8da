#include <tapehead/inspect/flops.h>

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include <tapehead/inspect/inspect.h>
#include <tapehead/tapehead.h>

namespace tapehead {
namespace {

using Arguments = std::vector<std::optional<Shape>>;

double known(std::string_view op, const Arguments& arguments, const Shape& output) {
  const FlopCount count = flops_of(op, arguments, output);
  EXPECT_FALSE(count.assumed) << op;
  return count.flops;
}

// (2, 3) (3, 5): 30 products of which groups of 3 are added, 2 * 30 by the usual count.
TEST(Flops, OfAProductAreTwoForEachOfItsTerms) {
  EXPECT_EQ(known("matmul", {Shape{2, 3}, Shape{3, 5}}, {2, 5}), 60);
  EXPECT_EQ(known("matmul", {Shape{7, 2, 3}, Shape{3, 5}}, {7, 2, 5}), 420);
  EXPECT_EQ(known("matmul", {Shape{3}, Shape{3, 5}}, {5}), 30);
  EXPECT_EQ(known("matmul", {Shape{2, 3}, Shape{3}}, {2}), 12);
  EXPECT_EQ(known("matmul", {Shape{3}, Shape{3}}, {}), 6);
}

TEST(Flops, OfAProductDoNotDependOnHowItsOperandsAreStoredOrWhichIsConstant) {
  const Shape y{2, 5};
  for (const Shape& a : {Shape{2, 3}, Shape{3, 2}}) {
    for (const Shape& b : {Shape{3, 5}, Shape{5, 3}}) {
      EXPECT_EQ(known("matmul", {a, b}, y), 60);
      EXPECT_EQ(known("matmul", {a, {}}, y), 60);
      EXPECT_EQ(known("matmul", {{}, b}, y), 60);
    }
  }
  EXPECT_EQ(known("matmul", {Shape{2, 3}, {}}, {2}), 12);  // a constant column
  EXPECT_EQ(known("matmul", {{}, Shape{3, 5}}, {5}), 30);  // a constant row
}

TEST(Flops, OfAProjection) {
  EXPECT_EQ(known("projection", {Shape{4, 2, 3}, Shape{3, 5}}, {4, 2, 5}), 240);
  EXPECT_EQ(known("projection", {{}, Shape{3, 5}, Shape{5}}, {4, 2, 5}), 280);
  EXPECT_EQ(known("projection", {Shape{4, 2, 3}, {}, {}}, {4, 2, 5}), 280);
}

// B 2, H 3, L 4, S 5, D 6, E 7: scores 2 * 2*3*4*5*6 = 1440, values 2 * 2*3*4*5*7 = 1680.
TEST(Flops, OfFusedAttentionAreThoseOfItsTwoProducts) {
  const Shape q{2, 3, 4, 6}, k{2, 3, 5, 6}, v{2, 3, 5, 7}, y{2, 3, 4, 7};
  EXPECT_EQ(known("fused_attention", {q, k, v, {}, {}, {}}, y), 3120);
  EXPECT_EQ(known("fused_attention", {q, k, v, {}, {}, {}}, y.with(-1, 8)), 3120);  // with log-sum-exp
  EXPECT_EQ(known("fused_attention", {{}, k, {}, {}, {}, {}}, y), 3120);
  // The same heads side by side; and with one head of keys and values for all three.
  EXPECT_EQ(
      known("fused_attention", {Shape{2, 4, 18}, Shape{2, 5, 18}, Shape{2, 5, 21}, {}, {}, {}}, {2, 4, 21}),
      3120);
  EXPECT_EQ(
      known("fused_attention", {Shape{2, 4, 18}, Shape{2, 5, 6}, Shape{2, 5, 7}, {}, {}, {}}, {2, 4, 21}),
      3120);
  const FlopCount nothing = flops_of("fused_attention", Arguments{{}, {}, {}, Shape{4, 5}, {}, {}}, y);
  EXPECT_TRUE(nothing.assumed);
  EXPECT_EQ(nothing.flops, 168);
}

TEST(Flops, OfOtherOpsByElement) {
  EXPECT_EQ(known("softmax", {Shape{2, 3}}, {2, 3}), 30);
  EXPECT_EQ(known("sum", {Shape{2, 3}}, {}), 6);
  EXPECT_EQ(known("mean", {Shape{2, 3}}, {2}), 8);
  EXPECT_EQ(known("layer_norm", {Shape{2, 3}, {}, {}}, {2, 3}), 42);
  EXPECT_EQ(known("mul", {Shape{2, 1}, Shape{1, 3}}, {2, 3}), 6);
  EXPECT_EQ(known("reshape", {Shape{2, 3}}, {6}), 0);
}

TEST(Flops, OfAnUnknownOpAreOneForEachElementOfItsOutputAndSaidToBe) {
  const FlopCount count = flops_of("my_op", Arguments{Shape{9, 9}}, {2, 3});
  EXPECT_EQ(count.flops, 6);
  EXPECT_TRUE(count.assumed);
}

// The composed attention as a whole, counted by hand: the two products, a scale and five for each weight.
TEST(Flops, OfComposedAttentionAddUp) {
  Tape<double> tape;
  const Var<double> q = tape.input(Array<double>::ones({2, 3, 4, 6})),
                    k = tape.input(Array<double>::ones({2, 3, 5, 6})),
                    v = tape.input(Array<double>::ones({2, 3, 5, 7}));
  attention(q, k, v, {.kernel = AttentionKernel::composed});
  double sum = 0;
  for (const TapeRow& row : inspect(tape).rows) sum += row.flops;
  EXPECT_EQ(sum, 3120 + 120 + 5 * 120);
}

// No op of the library is left to the guess. What a model with its gradient records stands for all of them.
TEST(Flops, OfEveryOpOfAModelAndItsGradientAreKnown) {
  Tape<double> tape;
  Generator random(1);
  TransformerOptions sizes;
  sizes.width = 8, sizes.hidden = 8, sizes.layers = 1, sizes.vocabulary = 5, sizes.context = 4;
  const auto model = on_tape(tape, CausalModel<double>::initial(random, sizes));
  const Array<Index> tokens = Array<Index>::of({{1, 2, 3, 4}});
  const Var<double> loss = cross_entropy(model(tokens), tokens);
  gradient(loss, parameters<double>(model));
  std::set<std::string> unknown;
  for (const TapeRow& row : inspect(tape).rows) {
    if (row.flops_assumed) unknown.insert(row.op);
  }
  EXPECT_EQ(unknown, std::set<std::string>{});
}

}  // namespace
}  // namespace tapehead
