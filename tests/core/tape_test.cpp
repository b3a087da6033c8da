#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>

#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using namespace tiny;

// Vars and recording

TEST(Tape, DoesNotMoveOrCopy) {
  EXPECT_FALSE(std::is_move_constructible_v<T>);
  EXPECT_FALSE(std::is_copy_constructible_v<T>);
  EXPECT_FALSE(std::is_copy_assignable_v<T>);
}

TEST(Tape, InputsAreRecordedAndKeepTheirValue) {
  T tape;
  EXPECT_EQ(tape.size(), 0);
  const auto value = A::arange(6).reshape({2, 3});
  const V x = tape.input(value, "x");
  EXPECT_TRUE(x.recorded());
  EXPECT_EQ(x.value().data(), value.data());
  EXPECT_EQ(x.shape(), Shape({2, 3}));
  EXPECT_EQ(x.rank(), 2);
  EXPECT_EQ(x.dim(-1), 3);
  EXPECT_EQ(x.size(), 6);
  EXPECT_EQ(tape.size(), 1);
  EXPECT_EQ(T::index_of("test", x), 0);
  EXPECT_EQ(&T::of("test", x), &tape);
  EXPECT_EQ(tape.label_path(tape.node(0).name), "x");
}

TEST(Tape, OpsOfConstantsAreComputedAndNotRecorded) {
  const V y = mul(V(A::of({2, 3})), V(A::of({5, 7})));
  EXPECT_FALSE(y.recorded());
  EXPECT_EQ(y.value().to_vector(), (std::vector<double>{10, 21}));
}

TEST(Tape, OpWithOneRecordedInputIsRecorded) {
  T tape;
  const V x = tape.input(A::of({2, 3}));
  const V y = mul(V(A::of({5, 7})), x);
  EXPECT_TRUE(y.recorded());
  ASSERT_EQ(tape.size(), 2);
  const auto& node = tape.node(1);
  EXPECT_EQ(node.op.text(), "mul");
  EXPECT_EQ(node.shape, Shape({2}));
  EXPECT_EQ(node.arguments, 2u);
  ASSERT_EQ(node.edge_count, 1u);
  EXPECT_EQ(tape.edge(node, 0).slot, 1u);
  EXPECT_EQ(tape.edge(node, 0).input, 0u);
}

TEST(Tape, DetachedVarIsAConstantOfTheSameStorage) {
  T tape;
  const V x = tape.input(A::of({2, 3}));
  const V c = x.detach();
  EXPECT_FALSE(c.recorded());
  EXPECT_EQ(c.value().data(), x.value().data());
  square(c);
  EXPECT_EQ(tape.size(), 1);
}

TEST(Tape, OutputIsKeptOnlyWhenARuleTakesIt) {
  T tape;
  const V x = tape.input(A::of({2, 3}));
  square(x);
  tiny::exp(x);
  EXPECT_FALSE(tape.node(0).output.defined());
  EXPECT_FALSE(tape.node(1).output.defined());
  EXPECT_TRUE(tape.node(2).output.defined());
}

TEST(Tape, FailedOpRecordsNothing) {
  T tape;
  const V a = tape.input(A::zeros({2}));
  const V b = tape.input(A::zeros({3}));
  EXPECT_TRUE(raises<ShapeError>([&] { add(a, b); }, {"add", "(2)", "(3)"}));
  EXPECT_EQ(tape.size(), 2);
}

TEST(Tape, PortIsAnIdentityNodeOfTheSameStorage) {
  T tape;
  const V x = tape.input(A::of({2, 3}));
  const V p = port(x, "query");
  EXPECT_EQ(p.value().data(), x.value().data());
  ASSERT_EQ(tape.size(), 2);
  EXPECT_TRUE(tape.node(1).port);
  EXPECT_EQ(tape.label_path(tape.node(1).name), "query");
  EXPECT_FALSE(port(x.detach(), "query").recorded());
  EXPECT_EQ(tape.size(), 2);
}

// Vars that lost their place

TEST(StaleVar, OfAClearedTapeCanBeReadButNotUsed) {
  T tape;
  const V x = tape.input(A::of({2, 3}));
  const V y = square(x);
  tape.clear();
  EXPECT_EQ(tape.size(), 0);
  EXPECT_EQ(y.value().to_vector(), (std::vector<double>{4, 9}));
  EXPECT_EQ(x.shape(), Shape({2}));
  EXPECT_TRUE(raises<LogicError>([&] { mul(x, x); }, {"mul", "stale", "cleared or rewound"}));
  EXPECT_TRUE(raises<LogicError>([&] { port(x, "query"); }, {"port", "stale"}));
  EXPECT_TRUE(raises<LogicError>([&] { Scope<double>(x, "layer"); }, {"Scope", "stale"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(y, x, {A::ones({2})}); }, {"gradient", "stale"}));
  EXPECT_EQ(square(x.detach()).value()(1), 9);
}

TEST(StaleVar, IsFoundAlsoWhenItsIndexIsTakenAgain) {
  T tape;
  const V old = tape.input(A::scalar(2));
  tape.clear();
  const V x = tape.input(A::scalar(3));
  EXPECT_TRUE(raises<LogicError>([&] { add(x, old); }, {"add", "stale"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(x, old); }, {"gradient", "stale"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(old, x); }, {"gradient", "stale"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient_values(x, x, old); }, {"gradient_values", "stale"}));
  EXPECT_EQ(tape.size(), 1);
}

TEST(StaleVar, OfARewoundTapeIsRefusedAndEarlierOnesAreNot) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V y = square(x);
  const V z = square(y);
  tape.rewind(2);
  EXPECT_EQ(tape.size(), 2);
  EXPECT_TRUE(raises<LogicError>([&] { square(z); }, {"square", "stale", "cleared or rewound"}));
  EXPECT_EQ(z.item(), 81);
  const V other = scale(y, 2.0);
  EXPECT_EQ(T::index_of("test", other), 2);
  EXPECT_TRUE(raises<LogicError>([&] { square(z); }, {"square", "stale"}));
  EXPECT_EQ(gradient_values(other, x)[0].item(), 12);
}

TEST(StaleVar, OfADeadTapeCanBeReadButNotUsed) {
  V x, y;
  {
    T tape;
    x = tape.input(A::scalar(3));
    y = square(x);
  }
  EXPECT_EQ(y.item(), 9);
  EXPECT_TRUE(raises<LogicError>([&] { square(x); }, {"square", "stale", "gone"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(y, x); }, {"gradient", "stale", "gone"}));
  EXPECT_EQ(square(x.detach()).item(), 9);
}

TEST(StaleVar, OfADeadTapeIsNotMistakenForALaterTapes) {
  V old;
  {
    T tape;
    old = tape.input(A::scalar(3));
  }
  std::array<T, 3> later;
  for (T& tape : later) {
    const V x = tape.input(A::scalar(5));
    EXPECT_TRUE(raises<LogicError>([&] { add(old, x); }, {"add", "stale"}));
    EXPECT_TRUE(raises<LogicError>([&] { square(old); }, {"square", "stale"}));
  }
}

TEST(Tape, VarsOfTwoTapesDoNotMeet) {
  T one, two;
  const V a = one.input(A::scalar(3)), b = two.input(A::scalar(5));
  EXPECT_TRUE(raises<LogicError>([&] { mul(a, b); }, {"mul", "two different tapes"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(a, b); }, {"gradient", "two different tapes"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient({a, b}, a, {a, b}); }, {"gradient", "two different tapes"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(a, a, b); }, {"gradient", "two different tapes"}));
  const Pause<double> pause_one(one), pause_two(two);
  EXPECT_TRUE(raises<LogicError>([&] { mul(a, b); }, {"mul", "two different tapes"}));
  EXPECT_EQ(one.size() + two.size(), 2);
}

TEST(Tape, RewindsToWhatItHasOnly) {
  T tape;
  tape.input(A::scalar(3));
  EXPECT_TRUE(raises<LogicError>([&] { tape.rewind(2); }, {"rewind", "2", "1"}));
  EXPECT_TRUE(raises<LogicError>([&] { tape.rewind(-1); }, {"rewind", "-1"}));
  const V x = tape.input(A::scalar(4));
  tape.rewind(2);
  EXPECT_EQ(square(x).item(), 16);
}

TEST(Tape, GrowsPastManyChunksAndBack) {
  T tape;
  const V x = tape.input(A::scalar(1));
  V y = x;
  for (int i = 0; i < 3000; ++i) y = scale(y, 1.0);
  tape.rewind(1025);
  for (int i = 0; i < 3000; ++i) y = scale(i == 0 ? x : y, 2.0 - i % 2);
  EXPECT_EQ(tape.size(), 4025);
  EXPECT_EQ(gradient_values(scale(y, 0x1p-1000), x)[0].item(), 0x1p500);
}

// Pausing

TEST(Pause, MakesConstantsUntilItEnds) {
  T tape;
  const V x = tape.input(A::scalar(3));
  {
    const Pause<double> outer(tape);
    EXPECT_FALSE(tape.recording());
    EXPECT_TRUE(tape.paused());
    {
      const Pause<double> inner(tape);
      EXPECT_FALSE(square(x).recorded());
    }
    const V y = square(x);
    EXPECT_FALSE(y.recorded());
    EXPECT_EQ(y.item(), 9);
    EXPECT_FALSE(port(x, "query").recorded());
    EXPECT_TRUE(raises<LogicError>([&] { tape.input(A::scalar(1)); }, {"input", "paused"}));
  }
  EXPECT_TRUE(tape.recording());
  EXPECT_EQ(tape.size(), 1);
  EXPECT_TRUE(square(x).recorded());
}

TEST(Pause, IsEndedByAnException) {
  T tape;
  const V x = tape.input(A::zeros({2}));
  EXPECT_THROW(
      {
        const Pause<double> pause(tape);
        add(x, V(A::zeros({3})));
      },
      ShapeError);
  EXPECT_TRUE(tape.recording());
}

TEST(Pause, OfOneTapeLeavesAnotherRecording) {
  T one, two;
  const V x = two.input(A::scalar(3));
  const Pause<double> pause(one);
  EXPECT_TRUE(square(x).recorded());
}

// Scratch

TEST(Scratch, ForgetsWhatWasRecordedWhileItLived) {
  T tape;
  const V x = tape.input(A::scalar(3));
  V forgotten;
  {
    const Scratch<double> scratch(tape);
    forgotten = square(x);
    EXPECT_TRUE(forgotten.recorded());
    EXPECT_EQ(gradient(forgotten, x)[0].item(), 6);
  }
  EXPECT_EQ(tape.size(), 1);
  EXPECT_EQ(forgotten.item(), 9);
  EXPECT_TRUE(raises<LogicError>([&] { square(forgotten); }, {"square", "stale"}));
  EXPECT_EQ(gradient_values(square(x), x)[0].item(), 6);
}

TEST(Scratch, RecordsInsideAPauseWhichThenGoesOn) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const Pause<double> first(tape), second(tape);
  {
    const Scratch<double> scratch(tape);
    EXPECT_TRUE(tape.recording());
    EXPECT_FALSE(tape.paused());
    const V fresh = tape.input(A::scalar(5));
    EXPECT_EQ(gradient(mul(x, fresh), fresh)[0].item(), 3);
    const Pause<double> third(tape);
    EXPECT_FALSE(square(x).recorded());
  }
  EXPECT_TRUE(tape.paused());
  EXPECT_FALSE(square(x).recorded());
  EXPECT_EQ(tape.size(), 1);
}

TEST(Scratch, Nests) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const Scratch<double> outer(tape);
  const V y = square(x);
  {
    const Scratch<double> inner(tape);
    square(square(y));
    EXPECT_EQ(tape.size(), 4);
  }
  EXPECT_EQ(tape.size(), 2);
  EXPECT_EQ(gradient_values(y, x)[0].item(), 6);
}

TEST(Scratch, IsRewoundByAnException) {
  T tape;
  const V x = tape.input(A::zeros({2}));
  const Pause<double> pause(tape);
  EXPECT_THROW(
      {
        const Scratch<double> scratch(tape);
        add(square(x), V(A::zeros({3})));
      },
      ShapeError);
  EXPECT_EQ(tape.size(), 1);
  EXPECT_TRUE(tape.paused());
}

// Scopes

std::string label_of_last(const T& tape) { return tape.label_path(tape.node(tape.size() - 1).label); }

TEST(Scope, NamesWhatIsRecordedAndNests) {
  T tape;
  const V x = tape.input(A::scalar(3));
  EXPECT_EQ(label_of_last(tape), "");
  {
    const Scope<double> layer(tape, "layer 1");
    square(x);
    EXPECT_EQ(label_of_last(tape), "layer 1");
    {
      const Scope<double> attention(x, "attention");
      square(x);
      EXPECT_EQ(label_of_last(tape), "layer 1/attention");
      tape.input(A::scalar(1), "bias");
      EXPECT_EQ(tape.label_path(tape.node(tape.size() - 1).name), "layer 1/attention/bias");
    }
    square(x);
    EXPECT_EQ(label_of_last(tape), "layer 1");
  }
  square(x);
  EXPECT_EQ(label_of_last(tape), "");
}

TEST(Scope, OfTheSameNameIsOneLabel) {
  T tape;
  const V x = tape.input(A::scalar(3));
  std::set<std::uint32_t> labels;
  for (int i = 0; i < 3; ++i) {
    const Scope<double> outer(tape, i < 2 ? "a" : "b");
    const Scope<double> inner(tape, "c");
    square(x);
    labels.insert(tape.node(tape.size() - 1).label);
  }
  EXPECT_EQ(labels.size(), 2u);
}

TEST(Scope, OfAConstantDoesNothing) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const Scope<double> scope(x.detach(), "layer 1");
  square(x);
  EXPECT_EQ(label_of_last(tape), "");
}

TEST(Scope, IsLeftByAnException) {
  T tape;
  const V x = tape.input(A::zeros({2}));
  EXPECT_THROW(
      {
        const Scope<double> outer(tape, "outer");
        const Scope<double> inner(tape, "inner");
        add(x, V(A::zeros({3})));
      },
      ShapeError);
  square(x);
  EXPECT_EQ(label_of_last(tape), "");
}

TEST(Scope, StaysOpenOverAClear) {
  T tape;
  const Scope<double> scope(tape, "step");
  tape.input(A::scalar(1));
  tape.clear();
  tape.input(A::scalar(2), "x");
  EXPECT_EQ(label_of_last(tape), "step");
  EXPECT_EQ(tape.label_path(tape.node(0).name), "step/x");
}

TEST(Scope, CanBeOpenedAgainAfterAClear) {
  T tape;
  for (int step = 0; step < 3; ++step) {
    const Scope<double> layer(tape, "layer " + std::to_string(step));
    tape.input(A::scalar(1), "w");
    EXPECT_EQ(tape.label_path(tape.node(0).name), "layer " + std::to_string(step) + "/w");
    tape.clear();
  }
  tape.clear();
  tape.input(A::scalar(1), "w");
  EXPECT_EQ(tape.label_path(tape.node(0).name), "w");
}

// Closures

// Knows where each of its kind lives, so that none is destroyed twice, moved bytewise, or forgotten.
template <std::size_t Bytes>
struct Tracked {
  explicit Tracked(std::set<const void*>& alive_objects) : alive(&alive_objects) { born(); }
  Tracked(const Tracked& other) : alive(other.alive) { born(); }
  Tracked(Tracked&& other) noexcept : alive(other.alive) { born(); }
  Tracked& operator=(const Tracked&) = delete;
  ~Tracked() { EXPECT_EQ(alive->erase(this), 1u); }
  void born() { EXPECT_TRUE(alive->insert(this).second); }

  std::set<const void*>* alive;
  std::array<std::byte, Bytes> padding{};
};

template <class Captured>
V through(const V& x, const Captured& captured) {
  return record("through", x.value(), edge(x, [captured](const V& dy) {
                  EXPECT_TRUE(captured.alive->contains(&captured));
                  return dy;
                }));
}

template <class Captured>
class ClosureOf : public testing::Test {};
using Sizes = testing::Types<Tracked<8>, Tracked<40>, Tracked<48>, Tracked<56>, Tracked<57>, Tracked<500>>;
TYPED_TEST_SUITE(ClosureOf, Sizes);

TYPED_TEST(ClosureOf, CapturesLiveOnceOnTheTapeAndDieOnce) {
  std::set<const void*> alive;
  const auto before = memory_statistics().live;
  {
    const TypeParam captured(alive);
    T tape;
    const V x = tape.input(A::scalar(3));
    V y = through(x, captured);
    EXPECT_EQ(alive.size(), 2u);
    y = through(y, captured);
    EXPECT_EQ(alive.size(), 3u);
    EXPECT_EQ(gradient_values(y, x)[0].item(), 1);
    EXPECT_EQ(gradient(y, x)[0].item(), 1);
    EXPECT_EQ(alive.size(), 3u);
    tape.rewind(2);
    EXPECT_EQ(alive.size(), 2u);
    tape.clear();
    EXPECT_EQ(alive.size(), 1u);
    through(tape.input(A::scalar(3)), captured);
  }
  EXPECT_TRUE(alive.empty());
  EXPECT_EQ(memory_statistics().live, before);
}

TYPED_TEST(ClosureOf, RulesOfConstantsAreNotStored) {
  std::set<const void*> alive;
  const TypeParam captured(alive);
  T tape;
  const V x = tape.input(A::scalar(3));
  through(x.detach(), captured);
  EXPECT_EQ(alive.size(), 1u);
  const Pause<double> pause(tape);
  through(x, captured);
  EXPECT_EQ(alive.size(), 1u);
}

TYPED_TEST(ClosureOf, JointRulesLiveOnceAndDieOnce) {
  std::set<const void*> alive;
  const auto before = memory_statistics().live;
  {
    const TypeParam captured(alive);
    T tape;
    const V x = tape.input(A::scalar(3));
    const V y = record_joint<double>("joint", x.value(), std::array{&x},
                                     [captured](const V& dy, Wanted) { return std::array<V, 1>{dy}; });
    EXPECT_EQ(alive.size(), 2u);
    EXPECT_EQ(gradient_values(y, x)[0].item(), 1);
    tape.clear();
    EXPECT_EQ(alive.size(), 1u);
  }
  EXPECT_TRUE(alive.empty());
  EXPECT_EQ(memory_statistics().live, before);
}

TEST(Closure, SmallCapturesTakeNothingFromThePool) {
  T tape;
  const V x = tape.input(A::scalar(3));
  const V a = x.detach(), b = x.detach();
  const auto value = x.value();
  const auto before = memory_statistics().live;
  record("two Vars", value, edge(x, [a, b](const V& dy) { return mul(mul(dy, a), b); }));
  EXPECT_EQ(memory_statistics().live, before);
}

TEST(Closure, LargeCapturesComeBackWhole) {
  T tape;
  const V x = tape.input(A::scalar(2));
  std::array<V, 6> factors;
  std::array<double, 20> weights;
  for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = A::scalar(static_cast<double>(i + 1));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i) + 0.5;
  const V y = record("large", x.value(), edge(x, [factors, weights](const V& dy) {
                       V dx = dy;
                       for (const V& factor : factors) dx = mul(dx, factor);
                       double total = 0;
                       for (const double weight : weights) total += weight;
                       return scale(dx, total);
                     }));
  EXPECT_EQ(gradient_values(y, x)[0].item(), 720 * 200);
}

TEST(Closure, RuleMayBeMoveOnly) {
  T tape;
  const V x = tape.input(A::scalar(2));
  auto factor = std::make_unique<double>(7);
  const V y =
      record("owning", x.value(), edge(x, [f = std::move(factor)](const V& dy) { return scale(dy, *f); }));
  EXPECT_EQ(gradient_values(y, x)[0].item(), 7);
}

// Its copies and moves fail from the n-th on.
template <std::size_t Bytes>
struct Fragile {
  explicit Fragile(int& moves_left) : left(&moves_left) {}
  Fragile(const Fragile& other) : left(other.left), value(other.value) { spend(); }
  Fragile(Fragile&& other) : left(other.left), value(std::move(other.value)) { spend(); }
  void spend() {
    if ((*left)-- == 0) throw std::runtime_error("fragile");
  }

  int* left;
  A value = A::ones({5});
  std::array<std::byte, Bytes> padding{};
};

template <class Captured>
class RuleThatFailsToMove : public testing::Test {};
using FragileSizes = testing::Types<Fragile<1>, Fragile<300>>;
TYPED_TEST_SUITE(RuleThatFailsToMove, FragileSizes);

TYPED_TEST(RuleThatFailsToMove, LeavesTheTapeAsItWas) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const auto before = memory_statistics().live;
  int failures = 0;
  const auto held = std::make_shared<int>();
  for (int moves = 0;; ++moves) {
    int left = 1000;
    const TypeParam captured(left);
    auto rule = [captured](const V& dy) { return dy; };
    left = moves;
    try {
      record("fragile", x.value(), edge(x, [held](const V& dy) { return dy; }), edge(x, std::move(rule)));
      break;
    } catch (const std::runtime_error&) {
      ++failures;
    }
    ASSERT_EQ(tape.size(), 1);
    EXPECT_EQ(held.use_count(), 1);
    const V y = mul(x, square(x));
    EXPECT_EQ(gradient_values(y, x)[0].item(), 12);
    tape.rewind(1);
  }
  EXPECT_GT(failures, 1);
  EXPECT_EQ(tape.size(), 2);
  EXPECT_EQ(tape.node(1).edge_count, 2u);
  tape.rewind(1);
  EXPECT_EQ(memory_statistics().live, before);
}

TYPED_TEST(RuleThatFailsToMove, OfAJointOpLeavesTheTapeAsItWas) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const auto before = memory_statistics().live;
  int failures = 0;
  for (int moves = 0;; ++moves) {
    int left = 1000;
    const TypeParam captured(left);
    auto rule = [captured](const V& dy, Wanted) { return std::array<V, 1>{dy}; };
    left = moves;
    try {
      record_joint<double>("fragile", x.value(), std::array{&x}, std::move(rule));
      break;
    } catch (const std::runtime_error&) {
      ++failures;
    }
    ASSERT_EQ(tape.size(), 1);
    EXPECT_EQ(gradient_values(mul(x, square(x)), x)[0].item(), 12);
    tape.rewind(1);
  }
  EXPECT_GT(failures, 1);
  tape.rewind(1);
  EXPECT_EQ(memory_statistics().live, before);
}

}  // namespace
}  // namespace tapehead
