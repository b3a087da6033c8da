#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>

#include <tapehead/core/memory.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/random.h>
#include <tapehead/core/recompute.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using namespace tiny;
using List = std::vector<V>;

// Uses x in four places and w in two, and rules that take their output.
const auto composition = [](const auto& x, const auto& w) {
  const auto a = mul(exp(scale(x, 0.3)), w);
  const auto b = add(mul(a, x), reciprocal(add(square(w), exp(x))));
  return add(mul(b, x), a);
};

// f itself, or recomputed.
struct Plainly {
  template <class F>
  V operator()(F f, const List& in) const {
    return detail::only_result("f", detail::of_list<double>(f)(in));
  }
};
struct Again {
  template <class F>
  V operator()(F f, const List& in) const {
    return recompute(f, in);
  }
};

// x and w are used before, after and in two recomputed parts, so that their gradients are sums of many terms,
// which round in another way in another order.
template <class Run>
V network(Run run, const V& x, const V& w) {
  const V before = mul(x, w);
  const V first = run(composition, {x, w});
  const V between = add(mul(first, x), before);
  const V second = run(composition, {between, w});
  return sum(add(mul(second, x), mul(square(w), first)));
}

A drawn(std::uint64_t seed, const Shape& shape = {50}) { return Generator(seed).normal<double>(shape); }

TEST(Recompute, GivesTheSameBitsInAPlainSweep) {
  T tape;
  const V x = tape.input(drawn(1)), w = tape.input(drawn(2));
  const V expected = network(Plainly(), x, w), actual = network(Again(), x, w);
  EXPECT_TRUE(same_bits(actual.value(), expected.value()));
  const auto a = gradient_values(actual, {x, w}), e = gradient_values(expected, {x, w});
  EXPECT_TRUE(same_bits(a[0], e[0]));
  EXPECT_TRUE(same_bits(a[1], e[1]));
  EXPECT_TRUE(same_bits(gradient_values(actual, w)[0], e[1]));
}

TEST(Recompute, GivesTheSameBitsInARecordedSweep) {
  T tape;
  const V x = tape.input(drawn(1)), w = tape.input(drawn(2));
  const V expected = network(Plainly(), x, w), actual = network(Again(), x, w);
  const auto a = gradient(actual, {x, w}), e = gradient(expected, {x, w});
  EXPECT_TRUE(same_bits(a[0].value(), e[0].value()));
  EXPECT_TRUE(same_bits(a[1].value(), e[1].value()));
}

TEST(Recompute, GivesTheSameBitsForOneVarInTwoPlaces) {
  T tape;
  const V x = tape.input(drawn(3));
  const auto twice = [](const auto& p, const auto& q) { return sum(mul(composition(p, q), p)); };
  EXPECT_TRUE(same_bits(gradient_values(recompute(twice, {x, x}), x)[0], gradient_values(twice(x, x), x)[0]));
}

TEST(Recompute, IsRightAtSecondAndThirdOrder) {
  auto derivatives = [](auto run) {
    T tape;
    const V x = tape.input(drawn(1)), w = tape.input(drawn(2));
    const V u = drawn(4), v = drawn(5);
    const V dw = gradient(network(run, x, w), {x, w})[1];
    const auto second = gradient(dw, {x, w}, u);
    const auto third = gradient_values({second[0], second[1]}, {x, w}, {v, u});
    return std::vector<A>{second[0].value(), second[1].value(), third[0], third[1]};
  };
  const auto expected = derivatives(Plainly()), actual = derivatives(Again());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR_RELATIVE(actual[i], expected[i], 1e-13);
}

TEST(Recompute, OfAPowerHasItsClosedFormToFifthOrder) {  // x^5
  T tape;
  const V x = tape.input(A::of({2, -3, 0.5}));
  V d = recompute(
      [](const V& v) { return mul(square(v), recompute([](const V& u) { return mul(square(u), u); }, v)); },
      x);
  const V ones = A::ones({3});
  double factor = 1;
  for (int order = 1; order <= 5; ++order) {
    d = gradient(d, x, ones)[0];
    factor *= 6 - order;
    for (Index i = 0; i < 3; ++i) {
      EXPECT_DOUBLE_EQ(d.value()(i), factor * std::pow(x.value()(i), 5 - order)) << "order " << order;
    }
  }
}

TEST(Recompute, TakesTheInputsOneByOneOrAsAList) {
  T tape;
  const V x = tape.input(A::scalar(2)), w = tape.input(A::scalar(5));
  EXPECT_EQ(recompute([](const V& v) { return square(v); }, x).item(), 4);
  EXPECT_EQ(recompute([](const V& a, const V& b) { return mul(a, b); }, {x, w}).item(), 10);
  EXPECT_EQ(recompute([](std::span<const V> in) { return mul(in[0], in[1]); }, {x, w}).item(), 10);
  const List list(20, x);
  const V y = recompute([](const List& in) { return tiny::weighted_total(in); }, list);
  EXPECT_EQ(gradient_values(y, x)[0].item(), 210);
  Tape<float> floats;
  const Var<float> z = floats.input(Array<float>::of({1, -2}));
  EXPECT_EQ(gradient_values(recompute([](const auto& v) { return sum(square(v)); }, z), z)[0].to_vector(),
            (std::vector<float>{2, -4}));
}

TEST(Recompute, OfSeveralResultsIsRefused) {
  T tape;
  const V x = tape.input(A::scalar(2));
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        recompute([](const V& v) { return List{v, v}; }, x);
      },
      {"recompute", "2 Vars"}));
  EXPECT_EQ(tape.size(), 1);
}

TEST(Recompute, IsOneNode) {
  T tape;
  const V x = tape.input(A::scalar(2)), w = tape.input(A::scalar(5));
  const V y = recompute(composition, {x, w});
  ASSERT_EQ(tape.size(), 3);
  EXPECT_EQ(tape.node(2).op.text(), "recompute");
  EXPECT_EQ(tape.node(2).arguments, 2u);
  EXPECT_FALSE(tape.node(2).output.defined());
  gradient_values(y, {x, w});
  EXPECT_EQ(tape.size(), 3);
}

TEST(Recompute, OfConstantsOrInAPauseIsF) {
  const auto f = [](const V& v) { return square(v); };
  EXPECT_FALSE(recompute(f, V(A::scalar(3))).recorded());
  EXPECT_EQ(recompute(f, V(A::scalar(3))).item(), 9);
  T tape;
  const V x = tape.input(A::scalar(3));
  const V y = recompute(f, x);
  const Pause<double> pause(tape);
  EXPECT_FALSE(recompute(f, x).recorded());
  EXPECT_EQ(gradient_values(y, x)[0].item(), 6);
  EXPECT_TRUE(tape.paused());
  EXPECT_EQ(tape.size(), 2);
}

TEST(Recompute, OfRecordedAndConstantInputs) {
  T tape;
  const V x = tape.input(A::scalar(3)), c = A::scalar(7);
  const V y = recompute([](const V& a, const V& b, const V& d) { return mul(mul(a, b), d); }, {c, x, c});
  EXPECT_EQ(gradient_values(y, x)[0].item(), 49);
  EXPECT_EQ(gradient(y, x)[0].item(), 49);
}

TEST(Recompute, OfAnInputThatIsComputedFromAnotherCountsItOnce) {
  T tape;
  const V w = tape.input(A::scalar(3));
  const V x = square(w);
  const V y = recompute([](const V& a, const V& b) { return mul(a, b); }, {x, w});
  EXPECT_EQ(gradient_values(y, w)[0].item(), 27);
  EXPECT_EQ(gradient(y, w)[0].item(), 27);
  EXPECT_EQ(gradient(y, {w, x})[1].item(), 3);
}

TEST(Recompute, GivesZerosWhereFDoesNotDependOnAnInput) {
  T tape;
  const V x = tape.input(A::scalar(3)), w = tape.input(A::of({1, 2}));
  const V y = recompute([](const V& a, const V&) { return square(a); }, {x, w});
  EXPECT_EQ(gradient_values(y, {x, w})[1].to_vector(), (std::vector<double>{0, 0}));
  const V fixed = recompute([](const V&) { return V(A::scalar(4)); }, x);
  EXPECT_EQ(fixed.item(), 4);
  EXPECT_EQ(gradient_values(add(fixed, x), x)[0].item(), 1);
  const V same = recompute([](const V&, const V& b) { return b; }, {x, w});
  EXPECT_EQ(gradient_values(mul(same, same), w, w)[0].to_vector(), (std::vector<double>{2, 8}));
  EXPECT_EQ(gradient(mul(same, same), w, w)[0].value().to_vector(), (std::vector<double>{2, 8}));
}

TEST(Recompute, MayDifferentiateInside) {  // the square of the slope of x^3: 9 x^4, then 36 x^3
  T tape;
  const V x = tape.input(A::scalar(2));
  const auto f = [](const V& v) { return square(gradient(mul(square(v), v), v)[0]); };
  const V y = recompute(f, x);
  EXPECT_EQ(y.item(), 144);
  EXPECT_EQ(gradient_values(y, x)[0].item(), 288);
  EXPECT_EQ(gradient(y, x)[0].item(), 288);
}

TEST(Recompute, IsOneOpToGradientPaths) {
  T tape;
  const V x = tape.input(A::scalar(2));
  const V y = mul(
      recompute([](const V& a, const V& b) { return mul(port(a, "inside"), square(b)); }, {x, square(x)}), x);
  const auto paths = gradient_paths(y, x);
  ASSERT_EQ(paths.size(), 3u);  // of x * (x^2)^2 * x
  EXPECT_EQ(paths[0].op, "square");
  EXPECT_EQ(paths[0].gradient.item(), 4 * 32);
  EXPECT_EQ(paths[1].op, "recompute");
  EXPECT_EQ(paths[1].gradient.item(), 32);
  EXPECT_EQ(paths[2].op, "mul");
  EXPECT_EQ(paths[2].gradient.item(), 32);
}

// A rule may give back what it captured.
TEST(Recompute, GivesValuesInAPlainSweepWhateverARuleReturns) {
  T tape;
  const V x = tape.input(A::of({1, 2}));
  const auto half_of_squares = [](const V& v) {
    return record("half_of_squares", scale(sum(square(v.detach())), 0.5).value(),
                  edge(v, [v](const V& dy) { return dy.item() == 1 ? v : scale(v, dy.item()); }));
  };
  const V y = add(recompute(half_of_squares, x), sum(x));
  EXPECT_EQ(gradient_values(y, x)[0].to_vector(), (std::vector<double>{2, 3}));
}

// Memory

TEST(Recompute, KeepsItsInputsAndNothingElse) {
  constexpr Index elements = 8192;
  auto arrays = [before = memory_statistics().live] {
    return static_cast<double>(memory_statistics().live - before) / (8.0 * elements);
  };
  T tape;
  const V x = tape.input(drawn(1, {elements}));
  const auto deep = [](V v) {
    for (int i = 0; i < 10; ++i) v = scale(exp(v), 0.1);
    return v;
  };
  const V y = recompute(deep, x);
  EXPECT_NEAR(arrays(), 2, 0.5);
  const A dx = gradient_values(y, x, x)[0];
  EXPECT_NEAR(arrays(), 3, 0.5);
  deep(x);
  EXPECT_NEAR(arrays(), 13, 0.5);
}

// Random numbers

// Zero or twice the element, as the generator says.
V dropout(Generator& generator, const V& x) {
  A kept = A::uninitialized(x.shape());
  for (double& k : kept.mutable_values()) k = generator.uniform() < 0.5 ? 0 : 2;
  return mul(x, V(kept));
}

TEST(Recompute, DrawsTheSameNumbersFromACapturedGenerator) {
  T tape;
  const V x = tape.input(drawn(1));
  const auto f = [generator = Generator(7)](const V& v) mutable {
    return dropout(generator, exp(dropout(generator, v)));
  };
  auto once = f;
  const V expected = once(x), actual = recompute(f, x);
  EXPECT_TRUE(same_bits(actual.value(), expected.value()));
  const V seed = drawn(2);
  const A dx = gradient_values(expected, x, seed)[0];
  EXPECT_GT(magnitude(dx), 1);
  for (int sweep = 0; sweep < 2; ++sweep) {
    EXPECT_TRUE(same_bits(gradient_values(actual, x, seed)[0], dx));
    EXPECT_TRUE(same_bits(gradient(actual, x, seed)[0].value(), dx));
  }
}

TEST(Recompute, ThatDoesNotRepeatIsAnErrorNotAWrongGradient) {
  T tape;
  const V x = tape.input(drawn(1));
  Generator outside(7);
  const V y = recompute([&outside](const V& v) { return exp(dropout(outside, v)); }, x);
  const Index length = tape.size();
  EXPECT_TRUE(raises<LogicError>([&] { gradient_values(y, x, x); }, {"recompute", "Generator", "by value"}));
  EXPECT_TRUE(raises<LogicError>([&] { gradient(y, x, x); }, {"recompute", "Generator", "by value"}));
  EXPECT_EQ(tape.size(), length);
  EXPECT_TRUE(tape.recording());
}

// What f captured

TEST(Recompute, OfARecordedVarThatFCapturedIsAnErrorThatNamesIt) {
  T tape;
  const V x = tape.input(A::of({1, 2}), "x"), w = tape.input(A::of({3, 4}), "w");
  const Index length = tape.size();
  auto check = [&](auto f, std::initializer_list<std::string_view> texts) {
    EXPECT_TRUE(raises<LogicError>([&] { recompute(f, x); }, texts));
    EXPECT_EQ(tape.size(), length);
  };
  check([&](const V& v) { return mul(v, w); },
        {"recompute", "argument 1 of mul is node %1, w, (2)", "input", "detach"});
  check([&](const V& v) { return add(v, exp(w)); }, {"argument 0 of exp is node %1, w"});
  check([&](const V& v) { return mul(v, x); }, {"argument 1 of mul is node %0, x"});
  check([&](const V&) { return w; }, {"its value is node %1, w"});
  check(
      [&](const V& v) {
        return recompute([](const V& a, const V& b) { return mul(a, b); }, {v, w});
      },
      {"argument 1 of recompute is node %1, w"});
  check([&](const V& v) { return recompute([&](const V& a) { return mul(a, w); }, v); },
        {"argument 1 of mul", "w"});
  const V y = recompute([&](const V& v) { return mul(v, w.detach()); }, x);
  EXPECT_EQ(gradient_values(y, x, x)[0].to_vector(), (std::vector<double>{3, 8}));
}

TEST(Recompute, OfACapturedVarIsAnErrorAlsoWhenNoInputIsRecorded) {
  T tape;
  const V w = tape.input(A::scalar(3));
  EXPECT_TRUE(raises<LogicError>([&] { recompute([&](const V& v) { return mul(v, w); }, V(A::scalar(2))); },
                                 {"recompute", "none of its inputs is recorded"}));
}

TEST(Recompute, OfAVarOfAnotherTapeIsAnError) {
  T tape, other;
  const V x = tape.input(A::scalar(3)), w = other.input(A::scalar(3));
  EXPECT_TRUE(raises<LogicError>([&] { recompute([&](const V& v) { return mul(v, w); }, x); },
                                 {"mul", "two different tapes"}));
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        recompute(composition, {x, w});
      },
      {"recompute", "two different tapes"}));
  EXPECT_TRUE(raises<LogicError>([&] { recompute([&](const V&) { return w; }, x); },
                                 {"recompute", "two different tapes"}));
  EXPECT_EQ(tape.size(), 1);
}

// An f that fails

TEST(Recompute, OfAnFThatThrowsLeavesTheTapeAsItWas) {
  T tape;
  const V x = tape.input(drawn(1));
  const auto live = memory_statistics().live;
  const auto runs_left = std::make_shared<int>(0);
  const auto f = [runs_left, &tape](const V& v) {
    const Scope<double> scope(tape, "inside");
    const V y = exp(square(v));
    if ((*runs_left)-- == 0) throw std::runtime_error("no more");
    return y;
  };
  EXPECT_THROW(recompute(f, x), std::runtime_error);
  EXPECT_EQ(tape.size(), 1);
  EXPECT_EQ(memory_statistics().live, live);

  *runs_left = 1;
  const V y = square(recompute(f, x));
  const Index length = tape.size();
  const auto with_y = memory_statistics().live;
  const Scope<double> outer(tape, "outer");
  for (int i = 0; i < 2; ++i) {
    *runs_left = 0;
    EXPECT_TRUE(raises<std::runtime_error>([&] { gradient_values(y, x, x); }, {"no more"}));
    *runs_left = 0;
    EXPECT_TRUE(raises<std::runtime_error>([&] { gradient(y, x, x); }, {"no more"}));
    EXPECT_EQ(tape.size(), length);
    EXPECT_EQ(memory_statistics().live, with_y);
    EXPECT_TRUE(tape.recording());
  }
  *runs_left = 1;
  EXPECT_TRUE(same_bits(gradient_values(y, x, x)[0], gradient_values(square(exp(square(x))), x, x)[0]));
  EXPECT_EQ(tape.label_path(tape.node(tape.size() - 1).label), "outer");
}

TEST(Recompute, RunsUnderTheLabelOfItsFirstRun) {
  T tape;
  const V x = tape.input(A::scalar(2));
  std::vector<std::string> labels;
  V y;
  {
    const Scope<double> scope(tape, "layer 1");
    y = recompute(
        [&](const V& v) {
          const V z = square(v);
          labels.push_back(tape.label_path(tape.node(tape.size() - 1).label));
          return z;
        },
        x);
  }
  const Scope<double> other(tape, "step");
  gradient_values(y, x);
  EXPECT_EQ(labels, (std::vector<std::string>{"layer 1", "layer 1"}));
  square(x);
  EXPECT_EQ(tape.label_path(tape.node(tape.size() - 1).label), "step");
}

}  // namespace
}  // namespace tapehead
