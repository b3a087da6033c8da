#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include <tapehead/core/gradient.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/recompute.h>
#include <tapehead/core/watch.h>

#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using namespace tiny;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Y = log X          dX = dY / X
V log(const V& x) {
  return record("log", tiny::map(x.value(), [](double v) { return std::log(v); }),
                edge(x, [x](const V& dy) { return mul(dy, reciprocal(x)); }));
}

// Y = sqrt X         dX = dY / 2 Y
V sqrt(const V& x) {
  return record("sqrt", tiny::map(x.value(), [](double v) { return std::sqrt(v); }),
                edge(x, [](const V& y, const V& dy) { return scale(mul(dy, reciprocal(y)), 0.5); }));
}

// A and B with a joint rule     dA = dY * B          dB = dY * A
V joint_mul(const V& a, const V& b) {
  return record_joint("joint_mul", mul(a.detach(), b.detach()).value(), std::array{&a, &b},
                      [a, b](const V& dy, Wanted) -> std::array<V, 2> {
                        return {mul(dy, b), mul(dy, a)};
                      });
}

bool holds_nan(const A& x) {
  for (const double v : x.values()) {
    if (std::isnan(v)) return true;
  }
  return false;
}

// Forward

TEST(Watch, NamesTheFirstOpThatMakesANaN) {
  T tape;
  tape.watch_nonfinite();
  const Scope<double> layer(tape, "layer 1");
  const V x = tape.input(A::of({{1, -0.5, 3}, {0.25, -2, 4}}), "x");
  const V y = scale(x, 2.0);
  const Scope<double> part(tape, "attention");
  EXPECT_TRUE(raises<DomainError>(
      [&] { exp(log(y)); },
      {"log: made NaN at node %2 in layer 1/attention: y (2, 3) from -0.693147 to 2.07944, "
       "2 NaN, argument 0 %1 (2, 3) from -4 to 8"}));
  EXPECT_EQ(tape.size(), 2);
  EXPECT_EQ(gradient_values(sum(square(y)), x)[0](1, 2), 32);
}

TEST(Watch, NamesTheFirstOpThatMakesAnInfinity) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({800, 1})), large = A::of({1e308, 7});
  EXPECT_TRUE(
      raises<DomainError>([&] { scale(exp(x), 0.5); },
                          {"exp: made an infinity at node %1: y (2) from 2.71828 to 2.71828, 1 infinite, "
                           "argument 0 %0 (2) from 1 to 800"}));
  EXPECT_TRUE(raises<DomainError>([&] { mul(x, large); }, {"mul: made an infinity", "argument 0 %0 (2)",
                                                           "argument 1 (2) from 7 to 1e+308"}));
  EXPECT_TRUE(
      raises<DomainError>([&] { joint_mul(large, x); }, {"joint_mul: made an infinity", "argument 1 %0"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        tiny::weighted_total(std::vector<V>{x, large, large});
      },
      {"weighted_total: made an infinity", "argument 2 (2) from 7 to 1e+308"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        log(tape.input(A::of({-1, 0})));
      },
      {"log: made NaN and infinities", "1 NaN, 1 infinite"}));
  EXPECT_EQ(tape.size(), 2);
}

TEST(Watch, LetsPassWhatCameInAsAnArgument) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({-infinity, 1})), bias = A::of({0, infinity});
  EXPECT_EQ(add(x, bias).value()(1), infinity);
  EXPECT_EQ(exp(scale(x, 2.0)).value()(0), 0);
  const V broken = tape.input(A::of({nan, 1}));
  EXPECT_TRUE(holds_nan(scale(broken, 2.0).value()));
  EXPECT_TRUE(holds_nan(joint_mul(broken, broken).value()));
}

TEST(Watch, NamesAnOpThatMakesNaNOfInfinities) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({-infinity, infinity}));
  EXPECT_TRUE(raises<DomainError>([&] { add(x, scale(x, -1.0)); },
                                  {"add: made NaN", "y (2), 2 NaN", "argument 0 %0 (2), 2 infinite"}));
  EXPECT_TRUE(raises<DomainError>([&] { mul(x, V(A::zeros({2}))); }, {"mul: made NaN"}));
}

// Y = X, and `fill` at its end        dX = dY, and 0 there
V filled(const V& x, double fill) {
  A y = x.value();
  y.set({x.dim(0) - 1}, fill);
  return record("filled", y, Given{fill}, edge(x, [](const V& dy) { return filled(dy, 0); }));
}

TEST(Watch, CountsANumberThatWasGivenAsAnArgument) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({1, 2}));
  const V y = filled(x, -infinity);
  EXPECT_EQ(y.value()(1), -infinity);
  EXPECT_EQ(gradient_values(sum(exp(y)), x)[0](1), 0);
  EXPECT_TRUE(holds_nan(filled(x, nan).value()));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        filled(tape.input(A::of({1, 2})), nan), exp(scale(x, 800.0));
      },
      {"exp"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        record("made", A::of({infinity, nan}), Given{infinity}, edge(x, [](const V& dy) { return dy; }));
      },
      {"made: made NaN"}));
}

TEST(Watch, LooksAtWhatIsRecordedOnly) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({-1, 2}));
  EXPECT_TRUE(holds_nan(log(x.detach()).value()));
  const Pause<double> pause(tape);
  EXPECT_TRUE(holds_nan(log(x).value()));
}

TEST(Watch, IsOffUntilItIsAskedForAndAgainAfterwards) {
  T tape;
  EXPECT_FALSE(tape.watched());
  const V x = tape.input(A::of({-1, 2}));
  auto is_watched = [&] { return bool(raises<DomainError>([&] { log(x); }, {"log"})); };
  EXPECT_FALSE(is_watched());
  tape.watch_nonfinite();
  EXPECT_TRUE(is_watched());
  tape.watch_nonfinite(false);
  EXPECT_FALSE(is_watched());
  {
    const Watch<double> watch(tape);
    EXPECT_TRUE(is_watched());
    {
      const Watch<double> not_here(tape, false);
      EXPECT_FALSE(is_watched());
    }
    EXPECT_TRUE(is_watched());
  }
  EXPECT_FALSE(is_watched());
}

TEST(Watch, IsInSinglePrecisionForFloats) {
  Tape<float> tape;
  tape.watch_nonfinite();
  const Var<float> x = tape.input(Array<float>::of({1e20f, 1}));
  EXPECT_TRUE(raises<DomainError>([&] { square(x); }, {"square: made an infinity", "from 1 to 1e+20"}));
}

// Backward

TEST(WatchOfRules, NamesTheFirstRuleThatMakesAnInfinity) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({0, 4}), "x");
  V y;
  {
    const Scope<double> scope(tape, "layer 2");
    y = sqrt(x);
  }
  const V z = sum(scale(y, 3.0));
  const Index length = tape.size();
  const std::string_view text =
      "sqrt: the rule of argument 0 made an infinity at node %1 in layer 2: dx of %0 (2) from 0.75 to 0.75, "
      "1 "
      "infinite, dy (2) from 3 to 3, y (2) from 0 to 2";
  EXPECT_TRUE(raises<DomainError>([&] { gradient_values(z, x); }, {text}));
  EXPECT_TRUE(raises<DomainError>([&] { gradient(z, x); }, {text}));
  EXPECT_TRUE(raises<DomainError>([&] { gradient_paths(z, x); }, {text}));
  EXPECT_EQ(tape.size(), length);
  tape.watch_nonfinite(false);
  EXPECT_EQ(gradient_values(z, x)[0](0), infinity);
}

TEST(WatchOfRules, NamesTheArgument) {
  T tape;
  tape.watch_nonfinite();
  const V a = tape.input(A::of({1e-200, 1})), b = tape.input(A::of({1e-200, 1}));
  const V seed = A::of({1, 1e300});
  const V y = mul(a, scale(b, 1e10)), z = joint_mul(a, scale(b, 1e10));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        gradient_values(y, {a, b}, seed);
      },
      {"mul: the rule of argument 0 made an infinity"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        gradient_values(z, {a, b}, seed);
      },
      {"joint_mul: the rule of argument 0"}));
  EXPECT_TRUE(raises<DomainError>([&] { gradient_values(y, b, seed); },
                                  {"scale: the rule of argument 0", "dy (2) from 1e-200 to 1e+300"}));
}

TEST(WatchOfRules, LetsPassWhatCameInAsAnArgument) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({-infinity, 1})), w = tape.input(A::of({2, 3}));
  const auto d = gradient_values(mul(x, w), {x, w}, V(A::ones({2})));
  EXPECT_EQ(d[1](0), -infinity);
  const V y = square(w);
  EXPECT_EQ(gradient_values(y, w, V(A::of({infinity, 1})))[0](0), infinity);
  EXPECT_TRUE(holds_nan(gradient_values(y, w, V(A::of({nan, 1})))[0]));
  EXPECT_EQ(gradient_values({y, y}, w, {V(A::of({infinity, 1})), V(A::of({1, 1}))})[0](0), infinity);
}

// A place on the tape whose op saw an infinity may be taken by one that did not.
TEST(WatchOfRules, ExcusesNoOpForAnotherThatWasRewound) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({0, 4})), other = tape.input(A::of({infinity, 4}));
  scale(x, 1.0);
  sqrt(other);
  tape.rewind(2);
  scale(x, 1.0);
  const V y = sqrt(x);
  EXPECT_TRUE(
      raises<DomainError>([&] { gradient_values(y, x, V(A::ones({2}))); }, {"sqrt: the rule of argument 0"}));
  sqrt(other);
  tape.rewind(4);
  tape.watch_nonfinite(false);
  const V z = sqrt(x);
  tape.watch_nonfinite();
  EXPECT_TRUE(
      raises<DomainError>([&] { gradient_values(z, x, V(A::ones({2}))); }, {"sqrt: the rule of argument 0"}));
}

TEST(WatchOfRules, NamesTheValueWhoseGradientsSumToAnInfinity) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({0.25, 0.5}), "x");
  const V y = add(scale(x, 1e308), scale(x, 1.5e308));
  const V seed = A::of({1, 0.5});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(
        raises<DomainError>([&] { i == 0 ? void(gradient_values(y, x, seed)) : void(gradient(y, x, seed)); },
                            {"input: the sum of its gradients made an infinity at node %0 in x",
                             "sum (2) from 1.25e+308 to 1.25e+308, 1 infinite", "from 7.5e+307 to 1.5e+308",
                             "from 5e+307 to 1e+308"}));
  }
}

// What a rule computes on its way may be infinite where it is then left out.
V careful(const V& x) {
  return record("careful", x.value(),
                edge(x, [x](const V& dy) { return filled(mul(dy, exp(scale(x, 1000.0))), 0); }));
}

TEST(WatchOfRules, LooksAtWhatARuleReturnsOnly) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({0, 2}));
  const V y = careful(x), ones = A::ones({2});
  EXPECT_EQ(gradient_values(y, x, ones)[0].to_vector(), (std::vector<double>{1, 0}));
  const V dx = gradient(y, x, ones)[0];
  EXPECT_EQ(dx.value().to_vector(), (std::vector<double>{1, 0}));
  EXPECT_TRUE(raises<DomainError>([&] { exp(scale(x, 1000.0)); }, {"exp: made an infinity"}));
}

TEST(WatchOfRules, GoesOnAtSecondOrder) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({1e-110, 1}));
  const V dx = gradient(log(x), x, V(A::ones({2})))[0];
  EXPECT_EQ(dx.value()(1), 1);
  const V ddx = gradient(dx, x, V(A::ones({2})))[0];  // -1e220
  EXPECT_TRUE(raises<DomainError>([&] { gradient(ddx, x, V(A::ones({2}))); },
                                  {"the rule of argument", "made an infinity"}));
}

// Inside recompute()

TEST(WatchOfRecompute, NamesTheOpInside) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({-1, 4}));
  const Scope<double> scope(tape, "layer 3");
  EXPECT_TRUE(raises<DomainError>([&] { recompute([](const V& v) { return sqrt(square(log(v))); }, x); },
                                  {"log: made NaN", "in layer 3", "from -1 to 4"}));
  EXPECT_EQ(tape.size(), 1);
}

TEST(WatchOfRecompute, NamesTheRuleInside) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({0, 4}));
  V y;
  {
    const Scope<double> scope(tape, "layer 3");
    y = recompute([](const V& v) { return scale(sqrt(v), 2.0); }, x);
  }
  const Index length = tape.size();
  EXPECT_TRUE(raises<DomainError>([&] { gradient_values(y, x, V(A::ones({2}))); },
                                  {"sqrt: the rule of argument 0 made an infinity", "in layer 3"}));
  EXPECT_TRUE(
      raises<DomainError>([&] { gradient(y, x, V(A::ones({2}))); }, {"sqrt: the rule of argument 0"}));
  EXPECT_EQ(tape.size(), length);
}

TEST(WatchOfRecompute, LetsPassWhatPassesInside) {
  T tape;
  tape.watch_nonfinite();
  const V x = tape.input(A::of({1, 2})), w = tape.input(A::of({3, 4}));
  const auto f = [](const V& v, const V& u) { return mul(filled(v, infinity), u); };
  const V y = recompute(f, {x, w});
  EXPECT_EQ(y.value()(1), infinity);
  EXPECT_EQ(gradient_values(y, {x, w}, V(A::ones({2})))[1](1), infinity);
  EXPECT_EQ(gradient(y, {x, w}, V(A::ones({2})))[1].value()(1), infinity);
  EXPECT_EQ(exp(scale(filled(y, 0), 1e-3)).value()(1), 1);
}

}  // namespace
}  // namespace tapehead
