// Functions of one number in vector code against long double, at every vector level that the machine has.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "support/archs.h"

namespace tapehead::kernels {
namespace {

using Number = long double;

Number normal(Number x) { return std::erfc(-x / std::numbers::sqrt2_v<Number>) / 2; }
Number density(Number x) {
  return std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<Number> / std::numbers::sqrt2_v<Number>;
}
Number sigmoid(Number x) { return 1 / (1 + std::exp(-x)); }
constexpr Number cubic = 0.044715L;
Number twice_u(Number x) {
  return 2 * std::numbers::sqrt2_v<Number> * std::numbers::inv_sqrtpi_v<Number> * (x + cubic * x * x * x);
}
Number twice_u_slope(Number x) {
  return 2 * std::numbers::sqrt2_v<Number> * std::numbers::inv_sqrtpi_v<Number> * (1 + 3 * cubic * x * x);
}

template <class T>
using Function = std::function<void(const T*, Index, T*)>;

// There e^-x is 0 and e^x infinite.
template <class T>
constexpr T farthest = sizeof(T) == 4 ? T{104} : T{746};

// A function, its definition and how far off it may be, in units in the last place: of its value, or of 1 for
// a slope that passes through 0.
template <class T>
struct Case {
  std::string name;
  Function<T> f;
  Number (*exact)(Number);
  double units;
  bool absolute = false;
  T most = farthest<T>;  // beyond it e^-|x| has lost digits, and what is made of it has as well
};

// dx for dy = 1.
template <class T>
Function<T> slope_of(typename VectorKernels<T>::Vjp vjp) {
  return [vjp](const T* x, Index n, T* y) {
    const std::vector<T> ones(static_cast<std::size_t>(n), T{1});
    vjp(x, ones.data(), n, y);
  };
}

// exp: half a unit where 1 is added to e^r - 1, twice a quarter from r and the series. A sigmoid is a
// quotient and perhaps a product of that. The tail of the normal distribution is e^(-x^2 / 2) and a
// polynomial in u = 1 - 2 k / (x + k), whose three half units of rounding the polynomial hands on by 1.2: one
// unit each for the exponential and for 1 / (x + k), two for u, and half a unit each for polynomial, products
// and difference. Slopes pass through 0 and are held to units of 1: the tail is below 1/2, and so is x times
// the density. In gelu_tanh the exponent 2 u has four roundings, which x (1 - s) 2 u' < 1 and another such
// factor hand on.
template <class T>
std::vector<Case<T>> cases() {
  const VectorKernels<T>& k = vector_kernels<T>();
  return {
      {"exp", k.exp, [](Number x) { return std::exp(x); }, 1.05},
      {"tanh", k.tanh, [](Number x) { return std::tanh(x); }, 3},
      {"sigmoid", k.sigmoid, sigmoid, 3},
      {"silu", k.silu, [](Number x) { return x * sigmoid(x); }, 3.5, false, sizeof(T) == 4 ? T{85} : T{705}},
      {"gelu", k.gelu, [](Number x) { return x * normal(x); }, 8},
      {"silu slope", slope_of<T>(k.silu_vjp), [](Number x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }, 2,
       true},
      {"gelu slope", slope_of<T>(k.gelu_vjp), [](Number x) { return normal(x) + x * density(x); }, 3, true},
      {"gelu_tanh slope", slope_of<T>(k.gelu_tanh_vjp),
       [](Number x) { return sigmoid(twice_u(x)) * (1 + x * sigmoid(-twice_u(x)) * twice_u_slope(x)); }, 5,
       true},
  };
}

template <class T>
Number unit(Number of) {
  const T size = std::max(static_cast<T>(std::abs(of)), std::numeric_limits<T>::min());
  return static_cast<Number>(std::nextafter(size, std::numeric_limits<T>::infinity())) - size;
}

// Numbers on a fine grid around 0, and those of every size that T has up to `most`.
template <class T>
std::vector<T> numbers(T most) {
  std::vector<T> x;
  for (T size = std::numeric_limits<T>::denorm_min(); size < most; size *= T(1.7))
    x.push_back(size), x.push_back(-size);
  constexpr int steps = 2'000;
  for (int i = -steps; i <= steps; ++i) x.push_back(most * static_cast<T>(i) / T{steps});
  return x;
}

template <class T>
Number worst(const Case<T>& c, const std::vector<T>& x) {
  std::vector<T> y(x.size());
  c.f(x.data(), static_cast<Index>(x.size()), y.data());
  Number worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Number expected = c.exact(x[i]);
    if (std::abs(expected) > std::numeric_limits<T>::max()) {
      EXPECT_EQ(y[i], std::numeric_limits<T>::infinity()) << c.name << " at " << x[i];
      continue;
    }
    worst = std::max(worst, std::abs(y[i] - expected) / unit<T>(c.absolute ? 1 : expected));
  }
  return worst;
}

template <class T>
class VectorMaps : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(VectorMaps, Types);

TYPED_TEST(VectorMaps, AreWithinAFewUnitsOfLongDouble) {
  using T = TypeParam;
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    for (const Case<T>& c : cases<T>()) {
      for (const T most : {T{1}, T{15}, T{40}, c.most}) {
        EXPECT_LE(worst(c, numbers<T>(most)), c.units)
            << name_of(arch) << ", " << c.name << " up to " << most;
      }
    }
  }
}

// The bounds see what the code takes care of.
TYPED_TEST(VectorMaps, WrittenPlainlyWouldBeFartherOff) {
  using T = TypeParam;
  auto each = [](T (*f)(T)) { return [f](const T* x, Index n, T* y) { std::transform(x, x + n, y, f); }; };
  const Case<T> plain[] = {
      {"1 + erf", each([](T x) { return x * (1 + std::erf(x / std::numbers::sqrt2_v<T>)) / 2; }),
       [](Number x) { return x * normal(x); }, 8},
      {"a rounded square", each([](T x) { return x * std::erfc(-x / std::numbers::sqrt2_v<T>) / 2; }),
       [](Number x) { return x * normal(x); }, 8},
      {"1 + tanh", each([](T x) { return (1 + std::tanh(x / 2)) / 2; }), sigmoid, 3},
      {"e^2x - 1", each([](T x) { return (std::exp(2 * x) - 1) / (std::exp(2 * x) + 1); }),
       [](Number x) { return std::tanh(x); }, 3},
  };
  for (const Case<T>& c : plain) EXPECT_GT(worst(c, numbers<T>(T{10})), 2 * c.units) << c.name;
}

TYPED_TEST(VectorMaps, GeluTanhIsNearItsFormula) {
  using T = TypeParam;
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    const std::vector<T> x = numbers<T>(T{45});
    std::vector<T> y(x.size());
    vector_kernels<T>().gelu_tanh(x.data(), static_cast<Index>(x.size()), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Number expected = x[i] * sigmoid(twice_u(x[i]));
      // Two roundings of a sigmoid and one each of the exponential and the product, and those of 2 u.
      const Number bound = 4 * unit<T>(expected) + 2 * unit<T>(x[i]);
      ASSERT_LE(std::abs(y[i] - expected), bound) << name_of(arch) << " at " << x[i];
    }
  }
}

TYPED_TEST(VectorMaps, FollowIeeeAtTheEdges) {
  using T = TypeParam;
  constexpr T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  constexpr T huge = std::numeric_limits<T>::max(), tiny = std::numeric_limits<T>::denorm_min();
  const std::vector<T> x = {-inf, -huge, -T{0}, T{0}, -tiny, tiny, huge, inf, nan};
  const std::map<std::string, std::vector<T>> expected = {
      {"exp", {0, 0, 1, 1, 1, 1, inf, inf}},
      {"tanh", {-1, -1, -T{0}, 0, -tiny, tiny, 1, 1}},
      {"sigmoid", {0, 0, T(0.5), T(0.5), T(0.5), T(0.5), 1, 1}},
      {"silu", {0, 0, -T{0}, 0, 0, 0, huge, inf}},
      {"gelu", {0, 0, -T{0}, 0, 0, tiny, huge, inf}},
      {"silu slope", {0, 0, T(0.5), T(0.5), T(0.5), T(0.5), 1, 1}},
      {"gelu slope", {0, 0, T(0.5), T(0.5), T(0.5), T(0.5), 1, 1}},
      {"gelu_tanh slope", {0, 0, T(0.5), T(0.5), T(0.5), T(0.5), 1, 1}},
  };
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    for (const Case<T>& c : cases<T>()) {
      std::vector<T> y(x.size());
      c.f(x.data(), static_cast<Index>(x.size()), y.data());
      const std::vector<T>& values = expected.at(c.name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(y[i], values[i]) << name_of(arch) << ", " << c.name << " of " << x[i];
        if (x[i] == 0) {
          EXPECT_EQ(std::signbit(y[i]), std::signbit(values[i])) << name_of(arch) << ", " << c.name;
        }
      }
      EXPECT_TRUE(std::isnan(y.back())) << name_of(arch) << ", " << c.name;
    }
  }
}

// Any length, in place or not: an element does not depend on where it stands, and nothing behind the last one
// is written.
TYPED_TEST(VectorMaps, TreatEachElementAlikeAndNoOther) {
  using T = TypeParam;
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    for (const Case<T>& c : cases<T>()) {
      for (Index n = 0; n <= 35; ++n) {
        std::vector<T> x(static_cast<std::size_t>(n + 1)), y(x.size(), T{7});
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = T(0.37) * static_cast<T>(i) - T{5};
        c.f(x.data(), n, y.data());
        for (std::size_t i = 0; i + 1 < x.size(); ++i) {
          T alone;
          c.f(&x[i], 1, &alone);
          ASSERT_EQ(y[i], alone) << name_of(arch) << ", " << c.name << ", " << i << " of " << n;
        }
        EXPECT_EQ(y.back(), T{7});
        x.back() = T{7};
        c.f(x.data(), n, x.data());
        EXPECT_EQ(x, y);
      }
    }
  }
}

TYPED_TEST(VectorMaps, GradientsAreSlopesTimesWhatComesIn) {
  using T = TypeParam;
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    const VectorKernels<T>& k = vector_kernels<T>();
    for (const auto vjp : {k.silu_vjp, k.gelu_vjp, k.gelu_tanh_vjp}) {
      std::vector<T> x(21), dy(21), slope(21), dx(21);
      for (std::size_t i = 0; i < 21; ++i) x[i] = T(i) / 4 - 3, dy[i] = T(i) - 8;
      slope_of<T>(vjp)(x.data(), 21, slope.data());
      vjp(x.data(), dy.data(), 21, dx.data());
      for (std::size_t i = 0; i < 21; ++i) EXPECT_EQ(dx[i], dy[i] * slope[i]) << name_of(arch);
      vjp(x.data(), dy.data(), 21, dy.data());
      EXPECT_EQ(dy, dx);
    }
  }
}

}  // namespace
}  // namespace tapehead::kernels
