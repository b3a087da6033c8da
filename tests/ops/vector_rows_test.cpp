// Passes along rows and updates in vector code against plain loops, at every vector level that the machine
// has.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <tapehead/core/random.h>

#include "support/archs.h"

namespace tapehead::kernels {
namespace {

using Number = long double;

template <class T>
class VectorRows : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(VectorRows, Types);

template <class T>
std::vector<T> normal(std::uint64_t seed, Index n, double mean = 0) {
  Generator random(seed);
  return random.normal<T>({n}, mean).to_vector();
}

constexpr Number epsilon = std::numeric_limits<double>::epsilon();
constexpr Index lengths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1025};

TYPED_TEST(VectorRows, SumsRunInDouble) {
  using T = TypeParam;
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    const VectorKernels<T>& k = vector_kernels<T>();
    EXPECT_EQ(k.sum(nullptr, 0), 0);
    for (const Index n : lengths) {
      const std::vector<T> x = normal<T>(1, n, 3), y = normal<T>(2, n);
      Number sum = 0, dot = 0, sum_of_sizes = 0, dot_of_sizes = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum += x[i], sum_of_sizes += std::abs(x[i]);
        dot += static_cast<Number>(x[i]) * y[i], dot_of_sizes += std::abs(static_cast<Number>(x[i]) * y[i]);
      }
      const auto rounding = static_cast<Number>(n) * epsilon;
      EXPECT_LE(std::abs(k.sum(x.data(), n) - sum), rounding * sum_of_sizes) << name_of(arch) << ", " << n;
      EXPECT_LE(std::abs(k.dot(x.data(), y.data(), n) - dot), rounding * dot_of_sizes)
          << name_of(arch) << ", " << n;
    }
  }
}

TYPED_TEST(VectorRows, ColumnsAreSummedBesideEachOther) {
  using T = TypeParam;
  constexpr Index n = 5, stride = 150;
  const std::vector<T> x = normal<T>(3, n * stride);
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    for (const Index columns : {1, 3, 8, 16, 31, 32, 64, 65, 100, 150}) {
      std::vector<T> y(static_cast<std::size_t>(columns + 1), T{7});
      vector_kernels<T>().sum_columns(x.data(), n, stride, columns, y.data());
      for (Index c = 0; c < columns; ++c) {
        double sum = 0;
        for (Index i = 0; i < n; ++i) sum += static_cast<double>(x[static_cast<std::size_t>(i * stride + c)]);
        EXPECT_EQ(y[static_cast<std::size_t>(c)], static_cast<T>(sum))
            << name_of(arch) << ", " << c << " of " << columns;
      }
      EXPECT_EQ(y.back(), T{7});
    }
  }
}

TYPED_TEST(VectorRows, MaximumLooksPastNan) {
  using T = TypeParam;
  constexpr T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    const VectorKernels<T>& k = vector_kernels<T>();
    EXPECT_EQ(k.maximum(nullptr, 0), -inf);
    for (const Index n : lengths) {
      for (Index at = 0; at < std::min<Index>(n, 40); ++at) {
        std::vector<T> x(static_cast<std::size_t>(n), T{-2});
        x[static_cast<std::size_t>(at)] = T{-1};
        EXPECT_EQ(k.maximum(x.data(), n), T{-1}) << name_of(arch) << ", " << at << " of " << n;
        x[static_cast<std::size_t>(n - 1 - at)] = nan;
        if (n - 1 != 2 * at) {
          EXPECT_EQ(k.maximum(x.data(), n), T{-1}) << name_of(arch) << ", " << at << " of " << n;
        }
        x[static_cast<std::size_t>(at)] = inf;
        EXPECT_EQ(k.maximum(x.data(), n), inf);
      }
      const std::vector<T> nothing(static_cast<std::size_t>(n), nan);
      EXPECT_EQ(k.maximum(nothing.data(), n), -inf);
    }
  }
}

TYPED_TEST(VectorRows, ExponentialsAreSummedInDoubleAndKeptWhenWanted) {
  using T = TypeParam;
  constexpr Number unit = std::numeric_limits<T>::epsilon();
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    for (const Index n : lengths) {
      const std::vector<T> x = normal<T>(5, n);
      std::vector<T> y(x.size() + 1, T{7});
      const double sum = vector_kernels<T>().exponentials(x.data(), n, T{4}, T{3}, y.data());
      Number expected = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Number e = std::exp(static_cast<Number>(x[i] - T{4}));
        EXPECT_LE(std::abs(y[i] - 3 * e), 2 * unit * 3 * e) << name_of(arch) << ", " << i << " of " << n;
        expected += e;
      }
      EXPECT_LE(std::abs(sum - expected), (1.1L * unit + static_cast<Number>(n) * epsilon) * expected);
      EXPECT_EQ(y.back(), T{7});
      EXPECT_EQ(vector_kernels<T>().exponentials(x.data(), n, T{4}, T{3}, nullptr), sum);
    }
  }
}

// Rows whose first number, about which the moments are taken, is far from the others, or far from 0 with
// them.
TYPED_TEST(VectorRows, MomentsDoNotDependOnTheFirstNumber) {
  using T = TypeParam;
  constexpr Index n = 37;
  const std::vector<T> gain(n, T{1});
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    for (const T first : {T{0}, T{1e6}, T(-3e10)}) {
      for (const double level : {0.0, 65536.0}) {
        std::vector<T> x = normal<T>(6, n, level), y(n);
        if (first != 0) x[0] = first;
        double moments[2];
        vector_kernels<T>().normalise({x.data(), gain.data(), nullptr, n, 1e-5, true}, 0, 1, moments,
                                      y.data());
        Number mean = 0, variance = 0, largest = 0;
        for (const T one : x) mean += one / Number{n}, largest = std::max(largest, std::abs(Number{one}));
        for (const T one : x) variance += (one - mean) * (one - mean) / Number{n};
        EXPECT_LE(std::abs(moments[0] - mean), 4 * epsilon * largest) << name_of(arch);
        if (level > 0 && first == 0) {  // about 0, six digits would be lost
          double sum = 0, squares = 0;
          for (const T one : x) sum += double{one}, squares += double{one} * double{one};
          EXPECT_GT(std::abs((squares / n - sum / n * (sum / n)) / variance - 1), 1e-9);
        }
        // n epsilon for the difference of squares, and what an error of the mean does to a deviation.
        const Number scale = 1 / std::sqrt(variance + 1e-5L);
        EXPECT_LE(std::abs(moments[1] / scale - 1), n * epsilon + 4 * epsilon * largest * scale)
            << name_of(arch);
      }
    }
  }
}

// Not fused, so the same bits as the formula element by element, at every level.
TYPED_TEST(VectorRows, AnAdamStepIsItsFormulaToTheBit) {
  using T = TypeParam;
  AdamStep<T> s;
  s.beta1 = T(0.9), s.rest1 = T(0.1), s.beta2 = T(0.999), s.rest2 = T(0.001);
  s.decay = T(0.01), s.remain = T(0.99), s.rate = T(0.002), s.root = T(1.5), s.eps = T(1e-8);
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    for (const Index n : lengths) {
      std::vector<T> p = normal<T>(7, n + 1), g = normal<T>(8, n), m = normal<T>(9, n + 1),
                     v = normal<T>(10, n + 1);
      for (T& one : v) one = std::abs(one);
      std::vector<T> p0 = p, m0 = m, v0 = v;
      vector_kernels<T>().adapt(n, p.data(), g.data(), m.data(), v.data(), s);
      for (std::size_t i = 0; i < g.size(); ++i) {
        const T d = g[i] + s.decay * p0[i];
        m0[i] = s.beta1 * m0[i] + s.rest1 * d;
        v0[i] = s.beta2 * v0[i] + s.rest2 * d * d;
        p0[i] = s.remain * p0[i] - s.rate * m0[i] / (std::sqrt(v0[i]) * s.root + s.eps);
      }
      EXPECT_EQ(p, p0) << name_of(arch) << ", " << n;  // one behind the last included
      EXPECT_EQ(m, m0) << name_of(arch) << ", " << n;
      EXPECT_EQ(v, v0) << name_of(arch) << ", " << n;
    }
  }
}

}  // namespace
}  // namespace tapehead::kernels
