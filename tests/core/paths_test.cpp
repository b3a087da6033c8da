#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include <tapehead/core/paths.h>

#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using Names = std::vector<std::string>;

using namespace tiny;

template <class Paths>
Names names(const Paths& paths) {
  Names result;
  for (const auto& path : paths) result.push_back(path.name);
  return result;
}

template <class Paths>
Names labels(const Paths& paths) {
  Names result;
  for (const auto& path : paths) result.push_back(path.label);
  return result;
}

std::vector<double> values(const A& x) { return x.to_vector(); }

void expect_sum_to_gradient(const V& y, const V& x) {
  auto total = A::zeros(x.shape());
  for (const auto& path : gradient_paths(y, x)) {
    EXPECT_EQ(path.gradient.shape(), x.shape()) << path.label;
    total = tiny::zip("total", total, path.gradient, [](double p, double q) { return p + q; });
  }
  EXPECT_TRUE(all_close(total, gradient_values(y, x)[0], 1e-14, 0));
}

// A stand-in for attention: three ports on what it is given, and an op that treats them differently.
V tiny_attention(const V& q, const V& k, const V& v) {
  const V query = port(q, "query"), key = port(k, "key"), value = port(v, "value");
  return mul(exp(scale(mul(query, key), 0.25)), value);
}

TEST(GradientPaths, OfASharedInputAreQueryKeyAndValue) {
  T tape;
  const V x = tape.input(A::of({1, -2, 0.5}), "x");
  const V y = sum(tiny_attention(x, x, x));
  const auto paths = gradient_paths(y, x);
  EXPECT_EQ(names(paths), (Names{"query", "key", "value"}));
  EXPECT_EQ(labels(paths), (Names{"query", "key", "value"}));
  for (const auto& path : paths) {
    EXPECT_EQ(path.op, "port");
    EXPECT_EQ(path.argument, 0);
  }
  expect_sum_to_gradient(y, x);
}

TEST(GradientPaths, AreBitForBitTheGradientsOfSeparateInputs) {
  const A value = A::of({1, -2, 0.3, 0.7});
  T shared, separate;
  const V x = shared.input(value);
  const auto paths = gradient_paths(sum(tiny_attention(x, x, x)), x);
  const V q = separate.input(value), k = separate.input(value), v = separate.input(value);
  const auto d = gradient_values(sum(tiny_attention(q, k, v)), {q, k, v});
  ASSERT_EQ(paths.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(values(paths[i].gradient), values(d[i])) << paths[i].name;
}

TEST(GradientPaths, AreTheSameBehindOpsAheadOfThePorts) {
  T tape;
  const V x = tape.input(A::of({1, -2, 0.5}));
  const V normed = scale(mul(x, exp(scale(x, 0.5))), 0.1);  // consumes x twice, as a layer norm does
  const V y = sum(tiny_attention(normed, normed, normed));
  EXPECT_EQ(names(gradient_paths(y, x)), (Names{"query", "key", "value"}));
  expect_sum_to_gradient(y, x);
}

TEST(GradientPaths, OfProjectionsAndOfTiedQueryAndKey) {
  T tape;
  const V x = tape.input(A::of({1, -2, 0.5}));
  const V apart = sum(tiny_attention(scale(x, 2.0), scale(x, 3.0), scale(x, 5.0)));
  EXPECT_EQ(names(gradient_paths(apart, x)), (Names{"query", "key", "value"}));
  const V tied = scale(x, 2.0);
  const V y = sum(tiny_attention(tied, tied, scale(x, 5.0)));
  const auto paths = gradient_paths(y, x);
  EXPECT_EQ(names(paths), (Names{"query", "key", "value"}));
  EXPECT_EQ(values(paths[0].gradient), values(paths[1].gradient));
  expect_sum_to_gradient(y, x);
}

TEST(GradientPaths, HaveTheValuesOfTheirFormulas) {  // y = q k^2 v^3 with all three x: x^5, 2 x^5, 3 x^5
  T tape;
  const V x = tape.input(A::scalar(2));
  const V q = port(x, "q"), k = port(x, "k"), v = port(x, "v");
  const auto paths = gradient_paths(mul(mul(q, square(k)), mul(v, square(v))), x);
  ASSERT_EQ(names(paths), (Names{"q", "k", "v"}));
  EXPECT_EQ(paths[0].gradient.item(), 32);
  EXPECT_EQ(paths[1].gradient.item(), 64);
  EXPECT_EQ(paths[2].gradient.item(), 96);
}

TEST(GradientPaths, DirectOnesNameOpAndArgument) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V left = mul(x, scale(x, 2.0)), right = mul(V(A::scalar(5)), x);
  const V y = add(left, right);
  const auto paths = gradient_paths(y, x);
  ASSERT_EQ(names(paths), (Names{"direct", "direct", "direct"}));
  EXPECT_EQ(paths[0].op, "scale");
  EXPECT_EQ(paths[0].argument, 0);
  EXPECT_EQ(paths[0].gradient.item(), 6);
  EXPECT_EQ(paths[1].op, "mul");
  EXPECT_EQ(paths[1].argument, 0);
  EXPECT_EQ(paths[1].gradient.item(), 6);
  EXPECT_EQ(paths[2].op, "mul");
  EXPECT_EQ(paths[2].argument, 1);
  EXPECT_EQ(paths[2].gradient.item(), 5);
  EXPECT_EQ(paths[2].node, 3);
  expect_sum_to_gradient(y, x);
}

TEST(GradientPaths, OfOneOpThatTakesXTwiceAreTwo) {
  T tape;
  const V x = tape.input(A::of({2, 5}));
  const auto paths = gradient_paths(sum(mul(x, x)), x);
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(paths[0].node, paths[1].node);
  EXPECT_EQ(paths[0].argument, 0);
  EXPECT_EQ(paths[1].argument, 1);
  EXPECT_EQ(values(paths[0].gradient), (std::vector<double>{2, 5}));
  EXPECT_EQ(values(paths[1].gradient), (std::vector<double>{2, 5}));
}

TEST(GradientPaths, OfAResidualBlockAreItsPortsAndOneDirect) {
  T tape;
  const V x = tape.input(A::of({1, -2, 0.5}));
  V y;
  {
    const Scope<double> scope(tape, "block");
    y = sum(add(x, tiny_attention(scale(x, 0.1), scale(x, 0.2), scale(x, 0.3))));
  }
  const auto paths = gradient_paths(y, x);
  EXPECT_EQ(labels(paths), (Names{"block/query", "block/key", "block/value", "block/direct"}));
  EXPECT_EQ(paths[3].op, "add");
  EXPECT_EQ(paths[3].argument, 0);
  EXPECT_EQ(values(paths[3].gradient), std::vector<double>(3, 1));
  expect_sum_to_gradient(y, x);
}

TEST(GradientPaths, OfNestedPortsAreNamedByTheFirstAfterX) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V outer = port(scale(x, 2.0), "near");
  const V y = add(square(port(square(outer), "far")), port(x, "other"));
  const auto paths = gradient_paths(y, x);
  ASSERT_EQ(names(paths), (Names{"near", "other"}));
  EXPECT_EQ(paths[0].gradient.item(), 16 * 4 * 27);
  EXPECT_EQ(paths[1].gradient.item(), 1);
  expect_sum_to_gradient(y, x);
}

TEST(GradientPaths, OfAPortReachedBothDirectlyAndThroughAnother) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V first = port(x, "first");
  const V second = port(add(x, first), "second");  // 2 x, half of it by way of "first"
  const V y = square(second);
  const auto paths = gradient_paths(y, x);
  ASSERT_EQ(names(paths), (Names{"first", "second"}));
  EXPECT_EQ(paths[0].gradient.item(), 12);
  EXPECT_EQ(paths[1].gradient.item(), 12);
  expect_sum_to_gradient(y, x);
}

TEST(GradientPaths, OfResidualLayersReachTheLaterPortsPastTheEarlierOnes) {
  T tape;
  const V x = tape.input(A::of({0.5, -0.25}));
  V h = x;
  for (const char* name : {"layer 0", "layer 1"}) {
    const Scope<double> layer(tape, name);
    const Scope<double> attention(tape, "attention");
    h = add(h, tiny_attention(h, h, h));
  }
  const V y = sum(h);
  EXPECT_EQ(labels(gradient_paths(y, x)),
            (Names{"layer 0/attention/query", "layer 0/attention/key", "layer 0/attention/value",
                   "layer 0/attention/direct", "layer 1/attention/query", "layer 1/attention/key",
                   "layer 1/attention/value"}));
  expect_sum_to_gradient(y, x);
}

TEST(GradientPaths, LeaveOutPortsThatYDoesNotDependOn) {
  T tape;
  const V x = tape.input(A::scalar(3));
  square(port(x, "unused"));
  const V y = square(port(x, "used"));
  square(port(x, "later"));
  const auto paths = gradient_paths(y, x);
  ASSERT_EQ(names(paths), Names{"used"});
  EXPECT_EQ(paths[0].gradient.item(), 6);
}

TEST(GradientPaths, AreNoneWhenYDoesNotDependOnX) {
  T tape;
  const V early = tape.input(A::scalar(1));
  const V x = tape.input(A::scalar(3));
  port(x, "unused");
  EXPECT_TRUE(gradient_paths(square(tape.input(A::scalar(2))), x).empty());
  EXPECT_TRUE(gradient_paths(early, x).empty());
  EXPECT_TRUE(gradient_paths(V(A::scalar(2)), x).empty());
}

TEST(GradientPaths, FromXToItselfIsOneDirectPathOfTheSeed) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V seed = A::of({5, 7});
  const auto paths = gradient_paths(x, x, seed);
  ASSERT_EQ(names(paths), Names{"direct"});
  EXPECT_EQ(paths[0].node, 0);
  EXPECT_EQ(values(paths[0].gradient), (std::vector<double>{5, 7}));
}

TEST(GradientPaths, EndingInAPort) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V y = port(x, "only");
  const auto paths = gradient_paths(y, x, V(A::of({5, 7})));
  ASSERT_EQ(names(paths), Names{"only"});
  EXPECT_EQ(values(paths[0].gradient), (std::vector<double>{5, 7}));
}

TEST(GradientPaths, FromAPortOnwardsDoNotNameThatPort) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V p = port(x, "behind");
  const V y = mul(p, port(p, "ahead"));
  const auto paths = gradient_paths(y, p);
  ASSERT_EQ(names(paths), (Names{"ahead", "direct"}));
  EXPECT_EQ(paths[0].gradient.item(), 3);
  EXPECT_EQ(paths[1].gradient.item(), 3);
  EXPECT_EQ(names(gradient_paths(y, x)), Names{"behind"});
}

TEST(GradientPaths, OfAnIntermediateValueIgnoreWhatLiesBehindIt) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V z = square(port(x, "behind"));
  const auto paths = gradient_paths(mul(x, scale(z, 2.0)), z);
  ASSERT_EQ(names(paths), Names{"direct"});
  EXPECT_EQ(paths[0].op, "scale");
  EXPECT_EQ(paths[0].gradient.item(), 6);
}

TEST(GradientPaths, ComeInTapeOrder) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V b = port(x, "b");
  const V doubled = scale(x, 2.0);
  const V a = port(x, "a");
  const V y = add(add(a, b), add(x, doubled));
  const auto paths = gradient_paths(y, x);
  EXPECT_EQ(names(paths), (Names{"b", "direct", "a", "direct"}));
  for (std::size_t i = 1; i < paths.size(); ++i) EXPECT_LT(paths[i - 1].node, paths[i].node);
}

TEST(GradientPaths, OfPortsOfOneNameAreKeptApart) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V left = scale(port(x, "key"), 2.0), right = scale(port(x, "key"), 5.0);
  const V y = add(left, right);
  const auto paths = gradient_paths(y, x);
  ASSERT_EQ(names(paths), (Names{"key", "key"}));
  EXPECT_EQ(paths[0].gradient.item(), 2);
  EXPECT_EQ(paths[1].gradient.item(), 5);
}

TEST(GradientPaths, TakeASeed) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V y = mul(port(x, "left"), port(x, "right"));
  const auto paths = gradient_paths(y, x, {A::of({10, 100})});
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(values(paths[0].gradient), (std::vector<double>{10, 200}));
  EXPECT_EQ(values(paths[1].gradient), (std::vector<double>{10, 200}));
}

TEST(GradientPaths, HoldTheirOwnArrays) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const V y = sum(add(add(x, x), add(port(x, "p"), port(x, "q"))));
  const auto paths = gradient_paths(y, x);
  ASSERT_EQ(paths.size(), 4u);
  for (const auto& path : paths) EXPECT_EQ(values(path.gradient), std::vector<double>(2, 1)) << path.name;
}

TEST(GradientPaths, ThroughAJointRuleNameItsArguments) {
  T tape;
  const V x = tape.input(A::scalar(3)), c = tape.input(A::scalar(7));
  const std::array<const V*, 3> inputs = {&c, &x, &x};
  const V y =
      record_joint("triple", A::scalar(63), inputs, [c, x](const V& dy, Wanted wanted) -> std::array<V, 3> {
        EXPECT_FALSE(wanted[0]);
        return {V(), scale(dy, 10.0), scale(dy, 20.0)};
      });
  const auto paths = gradient_paths(y, x);
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(paths[0].op, "triple");
  EXPECT_EQ(paths[0].argument, 1);
  EXPECT_EQ(paths[0].gradient.item(), 10);
  EXPECT_EQ(paths[1].argument, 2);
  EXPECT_EQ(paths[1].gradient.item(), 20);
}

TEST(GradientPaths, RecordNothingAndWorkWhilePaused) {
  T tape;
  const V x = tape.input(A::of({1, -2}));
  const V y = sum(tiny_attention(x, x, x));
  const Index length = tape.size();
  const Pause<double> pause(tape);
  EXPECT_EQ(gradient_paths(y, x).size(), 3u);
  EXPECT_EQ(tape.size(), length);
  EXPECT_TRUE(tape.paused());
}

TEST(GradientPaths, AreInSinglePrecisionForFloats) {
  Tape<float> tape;
  const Var<float> x = tape.input(Array<float>::scalar(3));
  const auto paths = gradient_paths(mul(port(x, "left"), x), x);
  EXPECT_EQ(names(paths), (Names{"left", "direct"}));
  EXPECT_EQ(paths[0].gradient.item(), 3.0f);
}

TEST(GradientPaths, OfAStaleVarAreRefused) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V y = square(x);
  tape.clear();
  EXPECT_TRUE(raises<LogicError>([&] { gradient_paths(y, x); }, {"gradient_paths", "stale"}));
}

}  // namespace
}  // namespace tapehead
