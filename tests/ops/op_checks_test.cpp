// What checks the ops is itself checked: with rules, kernels and errors that are wrong on purpose.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/shaping.h>

#include "ops/op_checks.h"

namespace tapehead::table {
namespace {

using V = Var<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class F>
Function of_one(F f) {
  return [f](const List<double>& x) { return List<double>{f(x[0])}; };
}

const Arrays some_x = {Generator(3).normal<double>({3, 4})};

// ---------------------------------------------------------------- derivatives

// y = x^2 with a first derivative of 2 `first` x and a second of 2 `second`.
V square_with(const V& x, double first, double second);

V doubled_with(const V& x, const V& dy, double first, double second) {  // 2 first x dy
  auto y = (x * dy * (2 * first)).value();
  return record("doubled", std::move(y), edge(x, [dy, second](const V& d) { return d * dy * (2 * second); }),
                edge(dy, [x, first](const V& d) { return d * x * (2 * first); }));
}

V square_with(const V& x, double first, double second) {
  return record("square", (x * x).value(),
                edge(x, [x, first, second](const V& dy) { return doubled_with(x, dy, first, second); }));
}

struct Checker {
  std::string name;
  testing::AssertionResult (*check)(const Function& f, int order);
};
const Checker checkers[] = {
    {"jacobian",
     [](const Function& f, int order) { return jacobian_agrees(f, some_x, Kind::smooth, order, false, 1); }},
    {"jacobian_by_steps_of_one",
     [](const Function& f, int order) {
       return jacobian_agrees(f, some_x, Kind::polynomial, order, false, 1);
     }},
    {"adjoint",
     [](const Function& f, int order) { return adjoints_agree(f, some_x, Kind::smooth, order, 1); }},
    {"adjoint_by_steps_of_one",
     [](const Function& f, int order) { return adjoints_agree(f, some_x, Kind::polynomial, order, 1); }},
};
std::ostream& operator<<(std::ostream& stream, const Checker& checker) { return stream << checker.name; }

class DerivativeCheck : public testing::TestWithParam<Checker> {
 protected:
  template <class F>
  testing::AssertionResult check(F f, int order) {
    return GetParam().check(of_one(f), order);
  }
};

TEST_P(DerivativeCheck, AcceptsARightRule) {
  EXPECT_TRUE(check([](const V& x) { return square_with(x, 1, 1); }, 2));
}

TEST_P(DerivativeCheck, RefusesARuleWrongByOneInAThousand) {
  for (const double first : {1.001, 0.999}) {
    EXPECT_FALSE(check([first](const V& x) { return square_with(x, first, first); }, 1));
  }
}

TEST_P(DerivativeCheck, RefusesARuleWrongOnlyAtSecondOrder) {
  for (const double second : {1.001, 0.999}) {
    auto wrong = [second](const V& x) { return square_with(x, 1, second); };
    EXPECT_TRUE(check(wrong, 1));
    EXPECT_FALSE(check(wrong, 2));
  }
}

TEST_P(DerivativeCheck, RefusesARuleThatForgetsToDifferentiateWhatItKept) {
  auto constant = [](const V& x) {
    return record("square", (x * x).value(),
                  edge(x, [kept = x.detach()](const V& dy) { return dy * kept * 2.0; }));
  };
  EXPECT_TRUE(check(constant, 1));
  EXPECT_FALSE(check(constant, 2));
}

TEST_P(DerivativeCheck, RefusesOneWrongElementInAGradient) {
  auto one_off = [](const V& x) {
    return record("double", (x * 2.0).value(), edge(x, [](const V& dy) {
                    Array<double> dx = (dy * 2.0).value();
                    dx.mutable_values()[5] *= 1.001;
                    return V(dx);
                  }));
  };
  EXPECT_FALSE(check(one_off, 1));
}

INSTANTIATE_TEST_SUITE_P(, DerivativeCheck, testing::ValuesIn(checkers),
                         [](const auto& checker) { return checker.param.name; });

// 2 x, with a factor in the gradient that the rule makes of dy.
template <class F>
Function doubled_with_slope(F slope) {
  return of_one([slope](const V& x) {
    return record("double", (x * 2.0).value(), edge(x, [x, slope](const V& dy) { return slope(x, dy); }));
  });
}

TEST(SweepsAgree, RefusesAKernelThatDiffersFromItsFormula) {
  auto by = [](double plain) {
    return doubled_with_slope(
        [plain](const V& x, const V& dy) { return is_recording(x) ? dy * 2.0 : dy * plain; });
  };
  EXPECT_TRUE(sweeps_agree(by(2), some_x, 1));
  EXPECT_FALSE(sweeps_agree(by(2 + 1e-11), some_x, 1));
}

TEST(SweepsAgree, RefusesAnOpThatComputesOtherwiseWhenItRecords) {
  const Function other = of_one([](const V& x) { return x.recorded() ? x * 2.0 : x * (2.0 + 1e-15); });
  EXPECT_FALSE(sweeps_agree(other, some_x, 1));
}

// ---------------------------------------------------------------- views and float

TEST(ViewsAgree, RefusesAnOpThatReadsPastItsInput) {
  const Function whole = of_one([](const V& x) { return x * 2.0; });
  EXPECT_TRUE(views_agree(whole, some_x, 1));
  // Stands for one that mixes up strides: what it gives depends on where the numbers lie.
  Index calls = 0;
  const Function shifted = of_one([&calls](const V& x) {
    return ++calls == 2 ? slice(x, 1, {{}, {}, -1}) : x;
  });
  EXPECT_FALSE(views_agree(shifted, some_x, 1));
}

Call times(double of_double, float of_float, double of_gradient) {
  return [=]<class T>(const List<T>& x) {
    const double factor = std::is_same_v<T, double> ? of_double : static_cast<double>(of_float);
    const double slope = std::is_same_v<T, double> ? of_double : of_gradient;
    return record("times", (x[0] * factor).value(),
                  edge(x[0], [slope](const Var<T>& dy) { return dy * slope; }));
  };
}

TEST(FloatAgrees, RefusesWhatIsFurtherOffThanRounding) {
  EXPECT_TRUE(float_agrees(times(3, 3, 3), some_x, 1));
  EXPECT_FALSE(float_agrees(times(3, 3.0001F, 3), some_x, 1));
  EXPECT_FALSE(float_agrees(times(3, 3, 3.0001), some_x, 1));
}

// ---------------------------------------------------------------- numbers that are not finite

const Call half_of_double = [](const auto& x) { return x[0] * 2.0 / 2.0; };

TEST(SpecialValuesAgree, RefusesOtherInfinitiesNanAndOverflows) {
  const Call same = [](const auto& x) { return x[0] * 1.0; };
  const Each itself = [](const auto& x) { return x[0]; };
  EXPECT_TRUE(special_values_agree(same, itself, 1));
  EXPECT_FALSE(special_values_agree(half_of_double, itself, 1));  // overflows on the way
  const Call loses_nan = []<class T>(const List<T>& x) {
    return masked_fill(x[0], positive((x[0] * x[0] + 1.0).value()), 0);
  };
  EXPECT_FALSE(special_values_agree(loses_nan, itself, 1));
  const Call times_zero = [](const auto& x) { return x[0] + x[0] * 0.0; };  // NaN at infinity
  EXPECT_FALSE(special_values_agree(times_zero, itself, 1));
}

TEST(SweepsAgreeAtSpecialNumbers, RefusesASlopeThatOverflowsInOneOfThem) {
  auto slope = [](const V& x, const V& dy) { return is_recording(x) ? dy * 2.0 : dy * 2.0 + dy * x * 0.0; };
  EXPECT_TRUE(sweeps_agree(doubled_with_slope(slope), some_x, 1));
  EXPECT_FALSE(sweeps_agree_at_special_numbers(doubled_with_slope(slope), 1));
  EXPECT_TRUE(sweeps_agree_at_special_numbers(of_one([](const V& x) { return exp(x); }), 1));
}

TEST(SpecialNumbersTouchNoOther, RefusesALeakInValuesOrGradients) {
  const Arrays x = {Generator(4).normal<double>({11})};
  EXPECT_TRUE(special_numbers_touch_no_other(of_one([](const V& v) { return exp(v); }), x));
  auto sum_of = [](const V& v) { return sum_to(v, {}) * 0.0; };
  EXPECT_FALSE(special_numbers_touch_no_other(of_one([=](const V& v) { return v + sum_of(v.detach()); }), x));
  EXPECT_FALSE(special_numbers_touch_no_other(
      doubled_with_slope([=](const V& v, const V& dy) { return dy * 2.0 + sum_of(v); }), x));
}

// ---------------------------------------------------------------- given numbers

TEST(AgreesWithExample, RefusesOtherValuesAndGradients) {
  const Function twice = of_one([](const V& x) { return x * 2.0; });
  const Array<double> x = Array<double>::of({1, infinity}), y = Array<double>::of({2, infinity});
  EXPECT_TRUE(agrees(twice, Example{{x}, y, {Array<double>::of({2, 2})}}));
  EXPECT_FALSE(agrees(twice, Example{{x}, Array<double>::of({2, nan})}));
  EXPECT_FALSE(agrees(twice, Example{{x}, Array<double>::of({2.001, infinity})}));
  EXPECT_FALSE(agrees(twice, Example{{x}, y, {Array<double>::of({2, 2.001})}}));
}

TEST(AgreesWithGoldenCase, RefusesOtherValuesAndGradients) {
  const Function right = of_one([](const V& x) { return exp(x); });
  EXPECT_TRUE(agrees(right, GoldenCase{"exp"}));
  EXPECT_FALSE(agrees(right, GoldenCase{.name = "exp", .vanishing = true}));  // its gradients can be wrong
  EXPECT_FALSE(agrees(of_one([](const V& x) { return exp(x) * (1 + 1e-11); }), GoldenCase{"exp"}));
  const Function wrong_rule = of_one([](const V& x) {
    return record("exp", exp(x).value(),
                  edge(x, [](const V& y, const V& dy) { return dy * y * (1 + 1e-11); }));
  });
  EXPECT_FALSE(agrees(wrong_rule, GoldenCase{"exp"}));
}

TEST(Refuses, WantsTheRightErrorTheNameTheShapesAndTheTexts) {
  const Call sum = [](const auto& x) { return add(x[0], x[1]); };
  EXPECT_TRUE(refuses("add", sum, {.shapes = {{2, 3}, {3, 2}}, .texts = {"broadcast"}}));
  EXPECT_FALSE(refuses("add", sum, {.shapes = {{2, 3}, {1, 3}}}));  // no error
  EXPECT_FALSE(refuses("sub", sum, {.shapes = {{2, 3}, {3, 2}}}));
  EXPECT_FALSE(refuses("add", sum, {.shapes = {{2, 3}, {3, 2}}, .texts = {"axis"}}));
  EXPECT_FALSE(refuses("add", sum, {.shapes = {{2, 3}, {3, 2}}, .error = Refusal::Of::values}));
  const Call silent = [](const auto& x) {
    if (x[0].shape() != x[1].shape()) throw ShapeError("add", "shapes differ", {{"a", x[0].shape()}});
    return x[0];
  };
  EXPECT_FALSE(refuses("add", silent, {.shapes = {{2, 3}, {3, 2}}}));  // names one shape only
}

}  // namespace
}  // namespace tapehead::table
