#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

long double exact_gelu(long double x) {
  return x * std::erfc(-x * std::numbers::sqrt2_v<long double> / 2) / 2;
}
long double exact_gelu_tanh(long double x) {
  const long double slope = std::sqrt(2 * std::numbers::inv_pi_v<long double>);
  return x * (1 + std::tanh(slope * (x + 0.044715L * x * x * x))) / 2;
}

struct Map {
  std::string name;
  std::function<V(const V&)> in_double;
  std::function<Var<float>(const Var<float>&)> in_float;
  std::function<long double(long double)> exact;
  bool of_positive = false;
};

template <class F>
Map map(std::string name, F f, std::function<long double(long double)> exact, bool of_positive = false) {
  return {std::move(name), f, f, std::move(exact), of_positive};
}

std::vector<Map> maps() {
  using Number = long double;
  return {
      map(
          "exp", [](const auto& x) { return exp(x); }, [](Number x) { return std::exp(x); }),
      map(
          "log", [](const auto& x) { return log(x); }, [](Number x) { return std::log(x); }, true),
      map(
          "sqrt", [](const auto& x) { return sqrt(x); }, [](Number x) { return std::sqrt(x); }, true),
      map(
          "tanh", [](const auto& x) { return tanh(x); }, [](Number x) { return std::tanh(x); }),
      map(
          "erf", [](const auto& x) { return erf(x); }, [](Number x) { return std::erf(x); }),
      map(
          "relu", [](const auto& x) { return relu(x); }, [](Number x) { return x > 0 ? x : 0; }),
      map(
          "rsqrt", [](const auto& x) { return rsqrt(x); }, [](Number x) { return 1 / std::sqrt(x); }, true),
      map(
          "reciprocal", [](const auto& x) { return reciprocal(x); }, [](Number x) { return 1 / x; }),
      map(
          "square", [](const auto& x) { return square(x); }, [](Number x) { return x * x; }),
      map(
          "abs", [](const auto& x) { return abs(x); }, [](Number x) { return x < 0 ? -x : x; }),
      map(
          "sin", [](const auto& x) { return sin(x); }, [](Number x) { return std::sin(x); }),
      map(
          "cos", [](const auto& x) { return cos(x); }, [](Number x) { return std::cos(x); }),
      map(
          "sigmoid", [](const auto& x) { return sigmoid(x); },
          [](Number x) { return 1 / (1 + std::exp(-x)); }),
      map(
          "softplus", [](const auto& x) { return softplus(x); },
          [](Number x) { return std::log1p(std::exp(x)); }),
      map(
          "silu", [](const auto& x) { return silu(x); }, [](Number x) { return x / (1 + std::exp(-x)); }),
      map(
          "gelu", [](const auto& x) { return gelu(x); }, exact_gelu),
      map(
          "gelu_tanh", [](const auto& x) { return gelu(x, Gelu::tanh); }, exact_gelu_tanh),
  };
}

// The C library promises about one unit in the last place, and at most three more roundings follow an
// exponential; the argument of the distribution in gelu is rounded too, which its slope x phi(x), less than
// 0.3 |x|, hands on.
template <class T>
void expect_accurate(const Map& map, const Var<T>& x, const Var<T>& y) {
  constexpr long double epsilon = std::numeric_limits<T>::epsilon();
  ASSERT_EQ(y.shape(), x.shape());
  for (Index i = 0; i < x.size(); ++i) {
    const long double at = x.value().data()[i], expected = map.exact(at);
    const long double bound =
        map.name.starts_with("gelu") ? 4 * epsilon * std::abs(at) : 3 * epsilon * std::abs(expected);
    EXPECT_LE(std::abs(y.value().data()[i] - expected), bound)
        << map.name << " at " << static_cast<double>(at);
  }
}

TEST(Elementwise, ValuesAgreeWithLongDouble) {
  for (const Map& map : maps()) {
    Generator generator(7);
    const double low = map.of_positive ? 0 : -12;
    const V x = generator.uniform<double>({40, 10}, low, 12);
    expect_accurate(map, x, map.in_double(x));
    const Var<float> x_of_float = x.value().cast<float>();
    expect_accurate(map, x_of_float, map.in_float(x_of_float));
  }
}

// 1 + erf cancels there; the complement does not.
TEST(Elementwise, GeluKeepsItsRelativeAccuracyInTheNegativeTail) {
  for (const double x : {-3.0, -8.0, -20.0, -35.0}) {
    const long double expected = exact_gelu(x);
    const double bound =
        std::numeric_limits<double>::epsilon() * (x * x + 4);  // of the rounded argument, squared
    EXPECT_LE(std::abs(gelu(V(Array<double>::scalar(x))).item() / expected - 1), bound) << x;
  }
}

TEST(Elementwise, TheTwoGelusAreNear) {
  const V x = Array<double>::arange(-6, 6, 0.25);
  EXPECT_LE(absolute_error(gelu(x).value(), gelu(x, Gelu::tanh).value()), 1e-3);
}

TEST(Elementwise, FollowsIeeeAtTheEdges) {
  auto at = [](auto f, double x) { return f(V(Array<double>::scalar(x))).item(); };
  EXPECT_EQ(at(exp<double>, -infinity), 0);
  EXPECT_EQ(at(exp<double>, infinity), infinity);
  EXPECT_EQ(at(exp<double>, 1000), infinity);
  EXPECT_EQ(at(log<double>, 0), -infinity);
  EXPECT_EQ(at(log<double>, infinity), infinity);
  EXPECT_TRUE(std::isnan(at(log<double>, -1)));
  EXPECT_EQ(at(sqrt<double>, 0), 0);
  EXPECT_TRUE(std::isnan(at(sqrt<double>, -1)));
  EXPECT_EQ(at(tanh<double>, infinity), 1);
  EXPECT_EQ(at(tanh<double>, -infinity), -1);
  EXPECT_EQ(at(erf<double>, -infinity), -1);
  EXPECT_EQ(at(relu<double>, infinity), infinity);
  EXPECT_EQ(at(relu<double>, -infinity), 0);
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    auto curve = [kind](const V& x) { return gelu(x, kind); };
    EXPECT_EQ(at(curve, infinity), infinity);
    EXPECT_EQ(at(curve, -infinity), 0);
    EXPECT_EQ(at(curve, 0), 0);
  }
}

TEST(Elementwise, NanStaysNan) {
  const V x = Array<double>::of({1, nan, 2});
  for (const Map& map : maps()) {
    const Array<double> y = map.in_double(x).value();
    EXPECT_TRUE(std::isfinite(y(0)) && std::isnan(y(1)) && std::isfinite(y(2))) << map.name;
  }
}

// Both sweeps: they take different ways to the slope.
std::vector<Array<double>> slopes(const std::function<V(const V&)>& f, const Array<double>& at) {
  Tape<double> tape;
  const V x = tape.input(at);
  const V y = f(x), ones = Array<double>::ones(at.shape());
  return {gradient_values(y, x, ones)[0], gradient(y, x, ones)[0].value()};
}

TEST(Elementwise, ReluHasSlopeZeroAtZero) {
  for (const Array<double>& dx : slopes(relu<double>, Array<double>::of({-1, -0.0, 0, 1e-300, 2}))) {
    EXPECT_EQ(dx.to_vector(), (std::vector<double>{0, 0, 0, 1, 1}));
  }
}

TEST(Elementwise, GradientOfReluIsZeroBelowZeroWhateverComesIn) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({-1, 1}));
  const V seed = Array<double>::of({nan, 3});
  EXPECT_EQ(gradient_values(relu(x), x, seed)[0].to_vector(), (std::vector<double>{0, 3}));
  EXPECT_EQ(gradient(relu(x), x, seed)[0].value().to_vector(), (std::vector<double>{0, 3}));
}

TEST(Elementwise, SlopeOfGeluReachesItsLimitsFarOut) {
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    auto curve = [kind](const V& x) { return gelu(x, kind); };
    for (const Array<double>& dx : slopes(curve, Array<double>::of({-1e100, -60, 60, 1e100}))) {
      EXPECT_EQ(dx.to_vector(), (std::vector<double>{0, 0, 1, 1}));
    }
  }
}

TEST(Elementwise, SlopeOfGeluAtInfinityIsTheSameInBothSweeps) {
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    auto curve = [kind](const V& x) { return gelu(x, kind); };
    for (const Array<double>& dx : slopes(curve, Array<double>::of({-infinity, infinity}))) {
      EXPECT_EQ(dx.to_vector(), (std::vector<double>{0, 1}));
    }
  }
}

TEST(Elementwise, SlopesOfSaturatedCurvesAreZero) {
  for (const Array<double>& dx : slopes(tanh<double>, Array<double>::of({-infinity, -400, 400, infinity}))) {
    EXPECT_EQ(dx.to_vector(), (std::vector<double>{0, 0, 0, 0}));
  }
  for (const Array<double>& dx : slopes(erf<double>, Array<double>::of({-infinity, 400}))) {
    EXPECT_EQ(dx.to_vector(), (std::vector<double>{0, 0}));
  }
  for (const Array<double>& dx : slopes(exp<double>, Array<double>::of({-infinity, -1000}))) {
    EXPECT_EQ(dx.to_vector(), (std::vector<double>{0, 0}));
  }
}

TEST(Elementwise, ScalarsAndArraysWithoutElementsKeepTheirShape) {
  for (const Map& map : maps()) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{2, 0, 3}, Shape{1, 1}}) {
      EXPECT_EQ(map.in_double(V(Array<double>::ones(shape))).shape(), shape) << map.name;
    }
  }
}

TEST(Elementwise, TheArgumentIsNotWritten) {
  const Array<double> x = Array<double>::of({-1, 2});
  for (const Map& map : maps()) map.in_double(V(x));
  EXPECT_EQ(x.to_vector(), (std::vector<double>{-1, 2}));
}

TEST(Elementwise, SliceOfAPermutationGivesTheSameAsItsElements) {
  const V x = Generator(3).normal<double>({3, 4, 5});
  const V part = slice(permute(x, {2, 0, 1}), {{1, 4}, {{}, {}, -1}, {{}, {}, 2}});
  const V flat = Array<double>::from(part.value().to_vector());
  for (const Map& map : maps()) {
    if (map.of_positive) continue;
    EXPECT_SAME_NUMBERS(map.in_double(part).value().reshape({-1}), map.in_double(flat).value());
  }
}

TEST(Elementwise, LargeArraysAreTheSameBitsOnAnyThreads) {
  Generator generator(5);
  const Array<double> at =
      generator.uniform<double>({3 * elementwise_grain / 4 + 5}, 0.1, 3);  // pieces and a rest
  for (const Map& map : maps()) {
    expect_same_bits_on_any_threads([&] {
      Tape<double> tape;
      const V x = tape.input(at);
      const V y = map.in_double(x);
      return std::vector{y.value(), gradient_values(y, x, V(at))[0]};
    });
  }
}

// 1 / (1 + exp(-x)) would give 0 and log(1 + exp(x)) 0 or infinity long before their values do.
TEST(Elementwise, SigmoidAndItsKinKeepTheirRelativeAccuracyInTheTails) {
  for (const double x : {-708.0, -500.0, -40.0, -1e-10, 1e-10, 40.0, 708.0}) {
    const long double e = std::exp(static_cast<long double>(x));
    const V at = Array<double>::scalar(x);
    constexpr long double bound = 3 * std::numeric_limits<double>::epsilon();
    EXPECT_LE(std::abs(sigmoid(at).item() / (e / (1 + e)) - 1), bound) << x;
    EXPECT_LE(std::abs(softplus(at).item() / std::log1p(e) - 1), bound) << x;
    EXPECT_LE(std::abs(silu(at).item() / (x * (e / (1 + e))) - 1), bound) << x;
  }
}

TEST(Elementwise, SlopeOfSiluKeepsItsRelativeAccuracyInTheNegativeTail) {
  for (const double x : {-700.0, -100.0, -40.0, -10.0}) {
    const long double e = std::exp(static_cast<long double>(x)), s = e / (1 + e);
    const long double expected = s * (1 + x / (1 + e));
    for (const Array<double>& dx : slopes(silu<double>, Array<double>::of({x}))) {
      // Each sigmoid is good to 2 epsilon, the product, the sum and the product to one half each.
      EXPECT_LE(std::abs(dx(0) / expected - 1), 6 * std::numeric_limits<double>::epsilon()) << x;
    }
  }
}

TEST(Elementwise, NothingOverflowsAtAThousand) {
  const V in_double = Array<double>::of({-1000, 1000});
  const Var<float> in_float = Array<float>::of({-1000, 1000});
  std::feclearexcept(FE_OVERFLOW | FE_INVALID);
  for (const auto& f : {sigmoid<double>, softplus<double>, silu<double>}) slopes(f, in_double.value());
  for (const auto& f : {sigmoid<float>, softplus<float>, silu<float>}) f(in_float);
  EXPECT_EQ(std::fetestexcept(FE_OVERFLOW | FE_INVALID), 0);
}

// What the rules leave at infinities, in both sweeps.
TEST(Elementwise, SlopesAtTheEdges) {
  auto expect = [](std::function<V(const V&)> f, double x, double slope) {
    for (const Array<double>& dx : slopes(f, Array<double>::of({x}))) {
      EXPECT_TRUE(std::isnan(slope) ? std::isnan(dx(0)) : dx(0) == slope) << "at " << x << ": " << dx(0);
    }
  };
  expect(rsqrt<double>, 0, -infinity);
  expect(rsqrt<double>, infinity, 0);
  expect(rsqrt<double>, -1, nan);
  expect(reciprocal<double>, 0, -infinity);
  expect(reciprocal<double>, -infinity, 0);
  expect(square<double>, -infinity, -infinity);
  expect(square<double>, nan, nan);
  expect(abs<double>, -infinity, -1);
  expect(abs<double>, nan, 0);
  expect(sin<double>, infinity, nan);
  expect(cos<double>, -infinity, nan);
}

}  // namespace
}  // namespace tapehead
