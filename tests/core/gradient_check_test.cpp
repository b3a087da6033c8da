// The checker is checked: what is right passes, and each way of being wrong gets its own verdict.

#include <tapehead/core/expect_gradients.h>
#include <tapehead/core/gradient_check.h>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/core/record.h>

#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Verdict = GradientVerdict;

// ---------------------------------------------------------------- ops that are wrong on purpose

// Y = X              dX = k dY, which is wrong unless k = 1
template <class T>
Var<T> leak(const Var<T>& x, T k) {
  return record("leak", x.value(), edge(x, [k](const Var<T>& dy) { return tiny::scale(dy, k); }));
}

// An op whose rule gives the right values; its derivative is off by the factors, through what the rule kept
// and through dy.
struct Rule {
  double kept = 1, dy = 1;
};

V square(const V& x, Rule off = {}) {
  return record("square", tiny::square(x.detach()).value(), edge(x, [x, off](const V& dy) {
                  return tiny::scale(tiny::mul(leak(x, off.kept), leak(dy, off.dy)), 2.0);
                }));
}
V exp(const V& x, Rule off = {}) {
  return record("exp", tiny::exp(x.detach()).value(), edge(x, [off](const V& y, const V& dy) {
                  return tiny::mul(leak(y, off.kept), leak(dy, off.dy));
                }));
}
V reciprocal(const V& x, Rule off = {}) {
  return record("reciprocal", tiny::reciprocal(x.detach()).value(), edge(x, [off](const V& y, const V& dy) {
                  return tiny::scale(tiny::mul(tiny::square(leak(y, off.kept)), leak(dy, off.dy)), -1.0);
                }));
}
V mul(const V& a, const V& b, Rule off = {}) {
  return record("mul", tiny::mul(a.detach(), b.detach()).value(),
                edge(a, [b](const V& dy) { return tiny::mul(dy, b); }),
                edge(b, [a, off](const V& dy) { return tiny::mul(leak(dy, off.dy), leak(a, off.kept)); }));
}

template <class T>
Var<T> relu(const Var<T>& x) {
  const Array<T> slope = tiny::map(x.value(), [](T v) { return v > 0 ? T{1} : T{0}; });
  return record("relu", tiny::zip("relu", x.value(), slope, [](T v, T s) { return s > 0 ? v : T{0}; }),
                edge(x, [slope](const Var<T>& dy) { return tiny::mul(dy, Var<T>(slope)); }));
}
V abs(const V& x) {
  const A slope = tiny::map(x.value(), [](double v) { return v > 0 ? 1.0 : v < 0 ? -1.0 : 0.0; });
  return record("abs", tiny::map(x.value(), [](double v) { return std::abs(v); }),
                edge(x, [slope](const V& dy) { return tiny::mul(dy, V(slope)); }));
}
// Any smooth function of each element, with its derivatives: a chain of ops that call each other.
V curve(const V& x, std::vector<std::function<double(double)>> derivatives) {
  auto f = derivatives.front();
  return record("curve", tiny::map(x.value(), f), edge(x, [x, derivatives](const V& dy) {
                  return tiny::mul(dy, curve(x, {derivatives.begin() + 1, derivatives.end()}));
                }));
}
double minus_sin(double x) { return -std::sin(x); }
V sin(const V& x) {
  const auto s = [](double v) { return std::sin(v); };
  const auto c = [](double v) { return std::cos(v); };
  return curve(x, {s, c, minus_sin, c});
}
V log(const V& x) {
  return curve(x, {[](double v) { return std::log(v); }, [](double v) { return 1 / v; },
                   [](double v) { return -1 / (v * v); }, [](double v) { return 2 / (v * v * v); }});
}

// Y = X (rows, n) + b (n), with a rule for b of one's own.
template <class Fit>
V plus_row(const V& x, const V& b, Fit fit) {
  A y = x.value();
  for (Index i = 0; i < y.size(); ++i)
    y.mutable_values()[static_cast<std::size_t>(i)] += b.value()(i % b.size());
  return record("plus_row", y, edge(x, [](const V& dy) { return dy; }), edge(b, fit));
}
V sum_of_rows(const V& dy, Index n, Index rows) {
  A sum = A::zeros({n});
  for (Index i = 0; i < rows * n; ++i) sum.set({i % n}, sum(i % n) + dy.value().data()[i]);
  return sum;
}

// ---------------------------------------------------------------- help

A numbers(std::uint64_t seed, const Shape& shape) { return Generator(seed).normal<double>(shape); }

// The verdict of the first thing that is not right; right when all is.
Verdict verdict(const GradientReport& report) {
  for (const GradientFinding& finding : report.findings) {
    const bool fine = finding.verdict == Verdict::right ||
                      (finding.verdict == Verdict::constant && (report.ok || finding.order > 1));
    if (!fine) return finding.verdict;
  }
  EXPECT_TRUE(report.ok) << report;
  return Verdict::right;
}
const GradientFinding& last(const GradientReport& report) { return report.findings.back(); }

testing::AssertionResult is(Verdict expected, const GradientReport& report) {
  const Verdict found = verdict(report);
  if (found == expected && report.ok == (expected == Verdict::right)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << to_string(found) << ", expected " << to_string(expected) << "\n"
                                     << report;
}

// Step by step, with a step of 1 first, and all elements.
const std::vector<GradientCheckOptions> ways = {
    {}, {.quadratic = true}, {.full = true}, {.full = true, .quadratic = true}};

// ---------------------------------------------------------------- what is right

TEST(CheckGradients, AcceptsRightRulesWithAnySeed) {
  const A x = numbers(1, {2, 3}), y = numbers(2, {2, 3});
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (GradientCheckOptions options : ways) {
      options.seed = seed;
      options.order = 3;
      EXPECT_TRUE(is(Verdict::right, check_gradients([](const V& a) { return square(a); }, x, options)));
      EXPECT_TRUE(is(Verdict::right, check_gradients([](const V& a) { return exp(a); }, x, options)));
      EXPECT_TRUE(is(Verdict::right, check_gradients([](const V& a) { return reciprocal(a); }, x, options)));
      auto product = [](const V& a, const V& b) { return mul(exp(a), mul(b, b)); };
      EXPECT_TRUE(is(Verdict::right, check_gradients(product, {x, y}, options)));
    }
  }
}

TEST(CheckGradients, AcceptsRightRulesInFloat) {
  const auto x = Array<float>::of({0.7F, -1.2F, 0.4F}), y = Array<float>::of({1.5F, 0.3F, -0.8F});
  using F = Var<float>;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (GradientCheckOptions options : ways) {
      options.seed = seed;
      EXPECT_TRUE(is(Verdict::right, check_gradients([](const F& a) { return tiny::exp(a); }, x, options)));
      EXPECT_TRUE(is(Verdict::right, check_gradients([](const F& a, const F& b) { return tiny::mul(a, b); },
                                                     {x, y}, options)));
      auto wrong = [](const F& a) { return leak(tiny::exp(a), 1.001F); };
      EXPECT_TRUE(is(Verdict::wrong, check_gradients(wrong, x, options)));
    }
  }
}

TEST(CheckGradients, TakesVarsOneByOneOrAsAList) {
  const A x = numbers(3, {2}), y = numbers(4, {2}), z = numbers(5, {2});
  EXPECT_TRUE(check_gradients([](const V& a) { return exp(a); }, x));
  EXPECT_TRUE(check_gradients([](const auto& a) { return exp(a); }, x));
  EXPECT_TRUE(check_gradients([](V a, V b, V c) { return mul(mul(a, b), c); }, {x, y, z}));
  EXPECT_TRUE(check_gradients([](const auto& a, const auto& b) { return mul(a, b); }, {x, y}));
  EXPECT_TRUE(check_gradients([](const std::vector<V>& v) { return mul(v[0], v[1]); }, {x, y}));
  EXPECT_TRUE(check_gradients([](std::span<const V> v) { return mul(v[0], v[1]); }, {x, y}));
  EXPECT_TRUE(check_gradients([](const auto& v) { return mul(v[0], v[1]); }, {x, y}));
  EXPECT_TRUE(check_gradients([](const std::vector<V>& v) { return exp(v[0]); }, std::vector<A>{x}));
  EXPECT_TRUE(check_gradients([](const std::vector<V>& v) { return exp(v[0]); }, x));
}

TEST(CheckGradients, ChecksEveryOutput) {
  const A x = numbers(3, {2});
  const auto two = [](const V& a) { return std::vector<V>{exp(a), tiny::sum(square(a))}; };
  EXPECT_TRUE(check_gradients(two, x));
  EXPECT_TRUE(check_gradients(two, x, {.full = true}));
  const auto second_wrong = [](const V& a) {
    return std::vector<V>{exp(a), leak(tiny::sum(square(a)), 1.001)};
  };
  EXPECT_TRUE(is(Verdict::wrong, check_gradients(second_wrong, x)));
}

TEST(CheckGradients, AcceptsAnFThatAsksForGradients) {
  const auto slope = [](const V& a) { return gradient(tiny::sum(mul(a, exp(a))), a)[0]; };
  EXPECT_TRUE(check_gradients(slope, numbers(3, {3})));
}

TEST(CheckGradients, StaysInsideTheDomain) {
  // Steps that reach 0 give NaN or an infinity: smaller ones must tell.
  EXPECT_TRUE(check_gradients(log, A::of({1e-3, 2, 0.5}), {.order = 3}));
  EXPECT_TRUE(check_gradients(log, A::of({1e-6, 2e-6}), {.order = 2}));
  EXPECT_TRUE(check_gradients(log, A::of({1e-10, 2e-10}), {.order = 2}));
  EXPECT_TRUE(check_gradients([](const V& x) { return reciprocal(x); }, A::of({1e-3, -1e-2})));
}

TEST(CheckGradients, CopesWithLargeNumbersAndFastCurves) {
  EXPECT_TRUE(check_gradients(sin, A::of({1e4, -3e3, 2}), {.order = 2}));
  EXPECT_TRUE(check_gradients([](const V& x) { return sin(tiny::scale(x, 1e3)); }, A::of({0.3, -0.7})));
  EXPECT_TRUE(check_gradients([](const V& x) { return square(x); }, A::of({1e9, -2e9}), {.quadratic = true}));
}

TEST(CheckGradients, ChoosesStepsThatFitInFloat) {
  using F = Var<float>;
  // Too many digits are lost in the offset unless the step is large.
  const auto offset = [](const F& x) { return tiny::add(x, F(Array<float>::full(x.shape(), 100))); };
  EXPECT_TRUE(check_gradients(offset, Array<float>::of({0.5F, -0.7F}), {.order = 1}));
  // Steps of less than 1 do not move x.
  EXPECT_TRUE(check_gradients(tiny::square<float>, Array<float>::of({3e7F, -5e7F}), {.order = 1}));
  // x + h is rounded by up to 1e-3, so that the step is not the one that was meant.
  const auto wave = [](const F& x) {
    const auto slope = tiny::map(x.value(), [](float v) { return std::cos(v); });
    return record("sin", tiny::map(x.value(), [](float v) { return std::sin(v); }),
                  edge(x, [slope](const F& dy) { return tiny::mul(dy, F(slope)); }));
  };
  EXPECT_TRUE(check_gradients(wave, Array<float>::of({30000.3F, -20000.7F, 10000.1F}), {.order = 1}));
}

TEST(CheckGradients, TakesOneStepOf1WhenThatIsExact) {
  int calls = 0;
  const auto f = [&](const V& x) {
    ++calls;
    return square(x);
  };
  const GradientReport report = check_gradients(f, numbers(3, {4}), {.order = 1, .quadratic = true});
  EXPECT_EQ(calls, 4);  // twice at x, and on both sides
  EXPECT_EQ(last(report).step, 1);
  // The gradient is linear in its seed, whatever f is.
  EXPECT_EQ(last(check_gradients([](const V& x) { return exp(x); }, numbers(3, {4}))).step, 1);
}

TEST(CheckGradients, TakesARestOfRoundingForZero) {
  // x^2 / x: the second derivative is what rounding leaves of a difference.
  const auto f = [](const V& x) { return mul(square(x), reciprocal(x)); };
  EXPECT_TRUE(check_gradients(f, numbers(3, {7})));
  // x^2 / x - c x: the same at first order for c = 1, beside an element with a derivative.
  const auto g = [&](const V& x) { return tiny::add(f(x), mul(x, V(A::of({0, -1, -1, -1, -1})))); };
  EXPECT_TRUE(check_gradients(g, numbers(3, {5}), {.order = 1, .full = true}));
}

TEST(CheckGradients, AcceptsAnExtremum) {
  EXPECT_TRUE(check_gradients([](const V& x) { return square(x); }, A::zeros({3})));
  EXPECT_TRUE(check_gradients([](const V& x) { return square(x); }, A::zeros({3}), {.full = true}));
}

// ---------------------------------------------------------------- wrong rules

// Each op with a factor k in its rule, and with right values but a factor in the derivative of its rule.
struct Suspect {
  const char* name;
  std::function<std::vector<V>(const std::vector<V>&, double)> at_first;
  std::function<std::vector<V>(const std::vector<V>&, Rule)> at_second;
  int inputs;
};
const std::vector<Suspect> suspects = {
    {"square", [](auto& x, double k) { return std::vector{leak(square(x[0]), k)}; },
     [](auto& x, Rule off) { return std::vector{square(x[0], off)}; }, 1},
    {"exp", [](auto& x, double k) { return std::vector{leak(exp(x[0]), k)}; },
     [](auto& x, Rule off) { return std::vector{exp(x[0], off)}; }, 1},
    {"reciprocal", [](auto& x, double k) { return std::vector{leak(reciprocal(x[0]), k)}; },
     [](auto& x, Rule off) { return std::vector{reciprocal(x[0], off)}; }, 1},
    {"mul", [](auto& x, double k) { return std::vector{mul(x[0], leak(x[1], k))}; },
     [](auto& x, Rule off) { return std::vector{mul(x[0], x[1], off)}; }, 2},
};

class WrongRule : public testing::TestWithParam<Suspect> {
 protected:
  template <class F, class Factor>
  GradientReport check(const F& f, Factor factor, GradientCheckOptions options) const {
    std::vector<A> x;
    for (int i = 0; i < GetParam().inputs; ++i)
      x.push_back(numbers(20 + static_cast<std::uint64_t>(i), {2, 3}));
    return check_gradients([&](const std::vector<V>& v) { return f(v, factor); }, x, options);
  }
};

TEST_P(WrongRule, OfOnePartInAThousandIsWrong) {
  for (const GradientCheckOptions& options : ways) {
    for (const double k : {1.001, 0.999, 1 + 1e-6}) {
      EXPECT_TRUE(is(Verdict::wrong, check(GetParam().at_first, k, options))) << k;
    }
    EXPECT_TRUE(is(Verdict::right, check(GetParam().at_first, 1, options)));
  }
}

TEST_P(WrongRule, OfOnePartInAThousandAtSecondOrderIsWrongThere) {
  for (GradientCheckOptions options : ways) {
    for (const Rule& off : {Rule{1.001, 1}, Rule{0.999, 1}, Rule{1, 1.001}, Rule{1, 0.999}}) {
      options.order = 2;
      const GradientReport report = check(GetParam().at_second, off, options);
      EXPECT_TRUE(is(Verdict::wrong, report));
      EXPECT_EQ(last(report).order, 2);
      options.order = 1;
      EXPECT_TRUE(is(Verdict::right, check(GetParam().at_second, off, options)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, WrongRule, testing::ValuesIn(suspects),
                         [](const auto& suspect) { return std::string(suspect.param.name); });

TEST(CheckGradients, FindsARuleWrongOnlyAtThirdOrder) {
  // The derivative of the derivative of the rule is what is off.
  const auto f = [](const V& x) {
    return record("square", tiny::square(x.detach()).value(), edge(x, [x](const V& dy) {
                    const V slope =
                        record("slope", tiny::scale(x.detach(), 2.0).value(), edge(x, [x](const V& d) {
                                 const V bent = tiny::add(leak(tiny::square(x), 1.001),
                                                          tiny::scale(tiny::square(x), -1.0));
                                 return tiny::add(tiny::scale(d, 2.0), tiny::mul(d, bent));
                               }));
                    return tiny::mul(slope, dy);
                  }));
  };
  const A x = numbers(7, {3});
  EXPECT_TRUE(is(Verdict::right, check_gradients(f, x, {.order = 2})));
  const GradientReport report = check_gradients(f, x, {.order = 3});
  EXPECT_TRUE(is(Verdict::wrong, report));
  EXPECT_EQ(last(report).order, 3);
}

TEST(CheckGradients, FindsASumThatABroadcastLacks) {
  const A x = numbers(7, {2, 3}), b = numbers(8, {3});
  const auto right = [](const V& v, const V& w) {
    return plus_row(v, w, [](const V& dy) { return sum_of_rows(dy, 3, 2); });
  };
  EXPECT_TRUE(check_gradients(right, {x, b}, {.order = 1}));
  const auto first_row = [](const V& v, const V& w) {
    return plus_row(v, w, [](const V& dy) { return sum_of_rows(dy, 3, 1); });
  };
  const GradientReport report = check_gradients(first_row, {x, b}, {.order = 1, .names = {"x", "bias"}});
  EXPECT_TRUE(is(Verdict::wrong, report));
  EXPECT_EQ(report.findings.at(0).verdict, Verdict::right);
  EXPECT_EQ(report.findings.at(1).name, "bias");
  const auto whole = [](const V& v, const V& w) { return plus_row(v, w, [](const V& dy) { return dy; }); };
  EXPECT_TRUE(raises<ShapeError>([&] { check_gradients(whole, {x, b}); }, {"plus_row", "(2, 3)", "(3)"}));
}

TEST(CheckGradients, FindsAPathLeftOut) {
  for (const GradientCheckOptions& options : ways) {
    const auto f = [](const V& x) { return mul(exp(x), square(x.detach())); };
    EXPECT_TRUE(is(Verdict::wrong, check_gradients(f, numbers(7, {3}), options)));
  }
}

TEST(CheckGradients, FindsARuleThatCapturesItsOwnOutput) {
  const auto f = [](const V& x) {
    const V y = tiny::exp(x.detach());
    return record("exp", y.value(), edge(x, [y](const V& dy) { return tiny::mul(y, dy); }));
  };
  EXPECT_TRUE(is(Verdict::right, check_gradients(f, numbers(7, {3}), {.order = 1})));
  const GradientReport report = check_gradients(f, numbers(7, {3}));
  EXPECT_TRUE(is(Verdict::wrong, report));
  EXPECT_EQ(last(report).order, 2);
}

TEST(CheckGradients, NamesTheWorstElement) {
  const auto f = [](const V& x) {
    return record("double", tiny::scale(x.detach(), 2.0).value(), edge(x, [](const V& dy) {
                    A dx = tiny::scale(dy, 2.0).value();
                    dx.mutable_values()[5] *= 1.001;
                    return V(dx);
                  }));
  };
  for (const GradientCheckOptions& options : ways) {
    const GradientReport report = check_gradients(f, numbers(3, {3, 4}), options);
    EXPECT_TRUE(is(Verdict::wrong, report));
    const GradientFinding& finding = last(report);
    EXPECT_EQ(finding.element, 5);
    EXPECT_NEAR(finding.by_rule / finding.by_difference, 1.001, 1e-9);
    EXPECT_GT(finding.step, 0);
    const std::string text = to_string(report);
    for (const char* part : {"not right", "order 1", "input 0 (3, 4): wrong", "(1, 1)", "double"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
  }
}

TEST(CheckGradients, NamesTheWorstElementBesideOneWithMoreCurve) {
  using F = Var<float>;
  const auto f = [](const F& x) {
    return record("exp", tiny::exp(x.detach()).value(), edge(x, [](const F& y, const F& dy) {
                    Array<float> dx = tiny::mul(y, dy).value();
                    dx.mutable_values()[1] *= 1.1F;
                    return F(dx);
                  }));
  };
  const GradientReport report = check_gradients(f, Array<float>::of({5.5F, 0.1F}));
  EXPECT_TRUE(is(Verdict::wrong, report));
  EXPECT_EQ(last(report).element, 1);
  // A central difference of step h is off by h^2 / 6, which the number shown is not.
  const GradientReport one = check_gradients([](const F& x) { return leak(tiny::exp(x), 1.003F); },
                                             Array<float>::of({0.1F}), {.order = 1});
  EXPECT_GE(last(one).step, 0x1p-5);
  EXPECT_NEAR(last(one).by_rule / last(one).by_difference, 1.003, 5e-5);
}

TEST(CheckGradients, NamesTheElementOfTheOutputsWhenItLooksAtAll) {
  // y_1 = x_0 x_1 with a wrong derivative by x_0; the others are right.
  const auto f = [](const V& x) {
    const double p = x.value()(0), q = x.value()(1);
    return record("pair", A::of({p, p * q}), edge(x, [p, q](const V& dy) {
                    return V(A::of({dy.value()(0) + dy.value()(1) * q * 1.001, dy.value()(1) * p}));
                  }));
  };
  const GradientReport report = check_gradients(f, A::of({0.8, -1.5}), {.order = 1, .full = true});
  EXPECT_TRUE(is(Verdict::wrong, report));
  EXPECT_EQ(last(report).element, 0);
  EXPECT_EQ(last(report).output_element, 1);
  EXPECT_NE(to_string(report).find("(0) for element 1 of the outputs"), std::string::npos) << report;
}

TEST(CheckGradients, LooksAtAllElementsWhenADirectionCouldMissThem) {
  // Off by 1e-9 of the largest element in one that is 1e-4 of it: the direction is right to 1.5e-8.
  const auto f = [](const V& x) {
    return record("weighted", tiny::zip("weighted", x.value(), A::of({1e4, 1}), std::multiplies<>()),
                  edge(x, [](const V& dy) {
                    return V(tiny::zip("weighted", dy.value(), A::of({1e4, 1 + 1e-5}), std::multiplies<>()));
                  }));
  };
  const GradientReport report = check_gradients(f, A::of({0.5, 0.7}), {.order = 1, .full = true});
  EXPECT_TRUE(is(Verdict::wrong, report));
  EXPECT_EQ(last(report).element, 1);
}

TEST(CheckGradients, HoldsBothSweepsToTheDifferences) {
  const auto two_faced = [](bool recorded_is_wrong) {
    return [recorded_is_wrong](const V& x) {
      return record("double", tiny::scale(x.detach(), 2.0).value(),
                    edge(x, [x, recorded_is_wrong](const V& dy) {
                      return tiny::scale(dy, is_recording(x) == recorded_is_wrong ? 2.002 : 2.0);
                    }));
    };
  };
  const GradientReport plain = check_gradients(two_faced(false), numbers(3, {3}));
  EXPECT_TRUE(is(Verdict::wrong, plain));
  EXPECT_TRUE(last(plain).plain);
  const GradientReport recorded = check_gradients(two_faced(true), numbers(3, {3}));
  EXPECT_TRUE(is(Verdict::wrong, recorded));
  EXPECT_FALSE(last(recorded).plain);
  // Where f does not move, a gradient of 0 that only the recorded sweep gives is not enough.
  const auto still = [](const V& x) {
    return record("still", A::ones(x.shape()),
                  edge(x, [x](const V& dy) { return tiny::scale(dy, is_recording(x) ? 0.0 : 1.0); }));
  };
  EXPECT_TRUE(is(Verdict::wrong, check_gradients(still, numbers(3, {3}), {.allow_constant = true})));
}

TEST(CheckGradients, CallsAGradientThatIsNotFiniteWrong) {
  const auto f = [](const V& x) {
    return record("exp", tiny::exp(x.detach()).value(), edge(x, [](const V& y, const V& dy) {
                    A dx = tiny::mul(y, dy).value();
                    dx.mutable_values()[1] = std::numeric_limits<double>::quiet_NaN();
                    return V(dx);
                  }));
  };
  const GradientReport report = check_gradients(f, numbers(3, {3}));
  EXPECT_TRUE(is(Verdict::wrong, report));
  EXPECT_EQ(last(report).element, 1);
  const double slope = std::exp(numbers(3, {3})(1));  // times a w of 0.5 to 1 with either sign
  EXPECT_GT(std::abs(last(report).by_difference), 0.499 * slope);
  EXPECT_LT(std::abs(last(report).by_difference), 1.001 * slope);
  // At the end of the domain there is nothing to hold it to.
  const auto root = [](const V& x) {
    return record("sqrt", tiny::map(x.value(), [](double v) { return std::sqrt(v); }),
                  edge(x, [](const V& y, const V& dy) {
                    return tiny::scale(tiny::mul(tiny::reciprocal(y), dy), 0.5);
                  }));
  };
  EXPECT_TRUE(is(Verdict::no_digits, check_gradients(root, A::of({0, 4}))));
  EXPECT_TRUE(is(Verdict::right, check_gradients(root, A::of({1, 4}))));
}

// ---------------------------------------------------------------- kinks

TEST(CheckGradients, SeesAKink) {
  const A x = A::of({{1, -2}, {0, 3}});
  const GradientReport at_relu = check_gradients(relu<double>, x);
  EXPECT_TRUE(is(Verdict::kink, at_relu));
  EXPECT_EQ(last(at_relu).element, 2);
  EXPECT_EQ(std::abs(last(at_relu).slopes[0] * last(at_relu).slopes[1]), 0);  // one side is flat
  EXPECT_NE(last(at_relu).slopes[0], last(at_relu).slopes[1]);
  // A rule that takes the mean of both slopes agrees with central differences at every step.
  EXPECT_TRUE(is(Verdict::kink, check_gradients(abs, x)));
  EXPECT_TRUE(is(Verdict::kink, check_gradients(abs, x, {.full = true})));
  EXPECT_TRUE(is(Verdict::kink, check_gradients([](const V& v) { return mul(exp(v), relu(v)); }, x)));
  EXPECT_TRUE(is(Verdict::kink, check_gradients(relu<float>, x.cast<float>())));
}

TEST(CheckGradients, ToleratesAKinkNearby) {
  for (const double distance : {1e-1, 1e-2, 1e-3, 1e-4, 1e-5}) {
    const A x = A::of({distance, -distance, 2, -0.3});
    EXPECT_TRUE(is(Verdict::right, check_gradients(relu<double>, x))) << distance;
    EXPECT_TRUE(is(Verdict::right, check_gradients(abs, x, {.full = true}))) << distance;
    auto wrong = [](const V& v) { return leak(mul(relu(v), exp(v)), 1.001); };
    EXPECT_TRUE(is(Verdict::wrong, check_gradients(wrong, x))) << distance;
  }
}

// ---------------------------------------------------------------- no digits, not repeatable, constant

TEST(CheckGradients, SaysWhenTheTypeHasTooFewDigits) {
  // In float, 1 + 1e-4^2 is 1 and so are its neighbours as far as the slope of 2e-4 goes.
  const auto near_one = [](const auto& x) {
    using T = std::remove_cvref_t<decltype(x.item())>;
    return tiny::add(tiny::square(x), Var<T>(Array<T>::ones(x.shape())));
  };
  EXPECT_TRUE(is(Verdict::no_digits, check_gradients(near_one, Array<float>::of({1e-4F, 2e-4F}))));
  EXPECT_TRUE(is(Verdict::right, check_gradients(near_one, A::of({1e-4, 2e-4}))));
  // 1 + 1e-9 x in float does not move at all; that need not be the fault of the rule.
  const auto frozen = [](const Var<float>& x) {
    return tiny::add(tiny::scale(x, 1e-9F), Var<float>(Array<float>::ones(x.shape())));
  };
  EXPECT_TRUE(is(Verdict::no_digits, check_gradients(frozen, Array<float>::of({0.5F, 2}))));
  // Squares that vanish in float.
  EXPECT_TRUE(
      is(Verdict::no_digits, check_gradients(tiny::square<float>, Array<float>::of({1e-20F, 2e-20F}))));
  EXPECT_TRUE(is(Verdict::right, check_gradients([](const V& x) { return square(x); }, A::of({1e-7, 2e-7}))));
}

TEST(CheckGradients, CallsADifferenceOfLargeNumbersInsideFNoDigitsAndNotWrong) {
  const auto through = [](double large) {
    return [large](const V& x) {
      const V c = A::full(x.shape(), large), minus_c = A::full(x.shape(), -large);
      return tiny::add(tiny::add(exp(x), c), minus_c);
    };
  };
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const A x = numbers(seed, {4});
    EXPECT_TRUE(is(Verdict::right, check_gradients(through(1e3), x, {.order = 1, .seed = seed})));
    EXPECT_TRUE(is(Verdict::no_digits, check_gradients(through(1e13), x, {.order = 1, .seed = seed})));
    const GradientReport between = check_gradients(through(1e8), x, {.order = 1, .seed = seed});
    EXPECT_NE(verdict(between), Verdict::wrong) << between;
    // An error that stands far above that noise is still seen.
    const auto wrong = [&](const V& v) { return leak(through(1e8)(v), 1.1); };
    EXPECT_TRUE(is(Verdict::wrong, check_gradients(wrong, x, {.order = 1, .seed = seed})));
  }
}

TEST(CheckGradients, SaysWhenFIsNotRepeatable) {
  Generator generator(5);
  const auto noisy = [&](const V& x) {
    return tiny::add(exp(x), V(generator.normal<double>(x.shape(), 0, 1e-14)));
  };
  const GradientReport report = check_gradients(noisy, numbers(3, {4}));
  EXPECT_TRUE(is(Verdict::not_repeatable, report));
  EXPECT_EQ(report.findings.size(), 1u);
  EXPECT_NE(last(report).by_rule, last(report).by_difference);
  EXPECT_NE(to_string(report).find("output 0 (4): not repeatable"), std::string::npos) << report;
  // The values repeat, the gradients do not.
  const auto noisy_rule = [&](const V& x) {
    return record("noisy", x.value(),
                  edge(x, [&](const V& dy) { return tiny::scale(dy, 1 + 1e-14 * generator.normal()); }));
  };
  const GradientReport of_gradient = check_gradients(noisy_rule, numbers(3, {4}));
  EXPECT_TRUE(is(Verdict::not_repeatable, of_gradient));
  EXPECT_EQ(last(of_gradient).order, 2);
  // A generator that f copies starts anew each time.
  EXPECT_TRUE(
      check_gradients([](const V& x) { return tiny::add(exp(x), V(Generator(5).normal<double>(x.shape()))); },
                      numbers(3, {4})));
}

TEST(CheckGradients, NeverPassesAConstant) {
  const A x = numbers(3, {4});
  const auto constant = [](const V&) { return V(A::of({1, 2})); };
  for (GradientCheckOptions options : ways) {
    EXPECT_TRUE(is(Verdict::constant, check_gradients(constant, x, options)));
    options.allow_constant = true;
    EXPECT_TRUE(check_gradients(constant, x, options));
  }
  // Detached: the gradient is 0 and the differences are not.
  EXPECT_TRUE(is(Verdict::wrong, check_gradients([](const V& v) { return exp(v).detach(); }, x)));
  EXPECT_TRUE(is(Verdict::wrong, check_gradients([](const V& v) { return exp(v).detach(); }, x,
                                                 {.quadratic = true, .allow_constant = true})));
  // No element to move.
  EXPECT_TRUE(is(Verdict::constant, check_gradients([](const V& v) { return exp(v); }, A::zeros({2, 0}))));
  EXPECT_TRUE(check_gradients([](const V& v) { return exp(v); }, A::zeros({2, 0}), {.allow_constant = true}));
}

TEST(CheckGradients, AsksForTheWantedInputsOnly) {
  const A x = numbers(3, {4}), y = numbers(4, {4});
  const auto first = [](const V& a, const V&) { return exp(a); };
  const GradientReport both = check_gradients(first, {x, y});
  EXPECT_TRUE(is(Verdict::constant, both));
  EXPECT_EQ(both.findings.at(0).verdict, Verdict::right);
  EXPECT_EQ(both.findings.at(1).input, 1);
  EXPECT_TRUE(check_gradients(first, {x, y}, {.wanted = {0}}));
  const auto second_wrong = [](const V& a, const V& b) { return mul(a, leak(b, 1.001)); };
  EXPECT_TRUE(is(Verdict::wrong, check_gradients(second_wrong, {x, y}, {.wanted = {1}})));
  const GradientReport only_first = check_gradients(second_wrong, {x, y}, {.order = 1, .wanted = {0}});
  EXPECT_TRUE(only_first);
  EXPECT_EQ(only_first.findings.size(), 1u);
}

TEST(CheckGradients, AcceptsThatTheGradientOfALinearFunctionIsConstant) {
  const GradientReport report =
      check_gradients([](const V& x) { return tiny::scale(x, 3.0); }, numbers(3, {4}));
  EXPECT_TRUE(report);
  ASSERT_EQ(report.findings.size(), 3u);
  EXPECT_EQ(report.findings[1].verdict, Verdict::constant);
  EXPECT_EQ(report.findings[2].verdict, Verdict::right);  // and linear in its seed
  EXPECT_EQ(report.findings[2].name, "the seed of output 0");
}

// ---------------------------------------------------------------- the report, errors

TEST(CheckGradients, NamesOpsAndInputs) {
  const auto f = [](const V& a, const V& b) { return tiny::add(exp(leak(a, 1.01)), mul(exp(b), b)); };
  const GradientReport report = check_gradients(f, {numbers(1, {2}), numbers(2, {2})}, {.names = {"a"}});
  EXPECT_EQ(report.findings.at(0).name, "a");
  EXPECT_EQ(report.findings.at(0).ops, (std::vector<std::string>{"leak", "exp", "add"}));
  EXPECT_EQ(report.findings.at(1).name, "input 1");
  EXPECT_EQ(report.findings.at(1).ops, (std::vector<std::string>{"exp", "mul", "add"}));
}

TEST(CheckGradients, RefusesWhatItCannotUse) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto f = [](const V& x) { return exp(x); };
  const auto none = [](const V&) { return std::vector<V>(); };
  const A x = A::of({1, 2});
  EXPECT_TRUE(
      raises<LogicError>([&] { check_gradients(f, std::vector<A>()); }, {"check_gradients", "no inputs"}));
  EXPECT_TRUE(raises<LogicError>([&] { check_gradients(none, x); }, {"f gives no Var"}));
  EXPECT_TRUE(raises<LogicError>([&] { check_gradients(f, x, {.order = 0}); }, {"order 0"}));
  EXPECT_TRUE(raises<LogicError>([&] { check_gradients(f, x, {.wanted = {1}}); }, {"input 1 of 1"}));
  EXPECT_TRUE(raises<LogicError>([&] { check_gradients(f, {x, x}); }, {"takes 1 Vars, given 2"}));
  EXPECT_TRUE(raises<DomainError>([&] { check_gradients(f, A::of({1, infinity})); }, {"input 0", "(1)"}));
  EXPECT_TRUE(raises<DomainError>([&] { check_gradients(f, A::of({1, 1e4})); }, {"output 0", "(1)"}));
  const auto throws = [](const V&) -> V { throw std::out_of_range("mine"); };
  EXPECT_TRUE(raises<std::out_of_range>([&] { check_gradients(throws, x); }, {"mine"}));
}

TEST(ExpectGradients, PassesAndFailsWithTheReport) {
  const A x = A::of({1, 2}), y = A::of({3, -1});
  EXPECT_GRADIENTS([](const V& a) { return exp(a); }, x);
  EXPECT_GRADIENTS([](const V& a, const V& b) { return mul(a, b); }, {x, y}, {.quadratic = true});
  EXPECT_NONFATAL_FAILURE(EXPECT_GRADIENTS([](const V& a) { return leak(exp(a), 1.001); }, A::of({1, 2})),
                          "input 0 (2): wrong");
}

}  // namespace
}  // namespace tapehead
