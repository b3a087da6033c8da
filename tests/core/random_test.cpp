#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/random.h>

#include "support/expect_error.h"

namespace tapehead {
namespace {

// Statistics are of fixed seeds, so a bound that holds once holds always; each is about four standard
// deviations.

std::vector<std::uint64_t> words(Generator generator, int count) {
  std::vector<std::uint64_t> result;
  for (int i = 0; i < count; ++i) result.push_back(generator.bits());
  return result;
}

TEST(Philox, GivesThePublishedAnswerForCounterZeroAndKeyZero) {
  // 6627e8d5 e169c58d bc57ac4c 9b00dbd8 of Random123's known answers, two 32-bit words to each, the low one
  // first.
  EXPECT_EQ(words(Generator(0), 2), (std::vector<std::uint64_t>{0xe169c58d6627e8d5, 0x9b00dbd8bc57ac4c}));
}

// From a second implementation, in Python, that reproduces all three published answers.
TEST(Philox, CountsAndTakesAKeyOf64Bits) {
  EXPECT_EQ(words(Generator(0), 5),
            (std::vector<std::uint64_t>{0xe169c58d6627e8d5, 0x9b00dbd8bc57ac4c, 0x5cb200dbf8e4cca4,
                                        0x097eff67b1a574eb, 0x51c732a604faa329}));
  EXPECT_EQ(words(Generator(0xfedcba9876543210), 5),
            (std::vector<std::uint64_t>{0x0559bf7fba4b834c, 0x349c2ad4f35d3e34, 0x061121ec29fcc21d,
                                        0xcf798377300a371d, 0x1159e2be55cd7c40}));
}

// Likewise from Python; the normal numbers to the last bit are this library's own.
TEST(Generator, GivesTheSameNumbersOnEveryMachine) {
  Generator generator(42);
  EXPECT_EQ(generator.uniform(), 0.4685865183391049);
  EXPECT_EQ(generator.uniform(), 0.34086154938517876);
  EXPECT_EQ(generator.uniform(), 0.32706338120338474);
  EXPECT_EQ(generator.uniform(), 0.4543156017348883);
  EXPECT_EQ(generator.normal(), 0.40787023580530962);
  EXPECT_EQ(generator.normal(), 0.75070430676856359);
  EXPECT_EQ(generator.normal(), 0.44168067726230109);
  EXPECT_EQ(generator.normal(), -0.30777684757770579);
  EXPECT_EQ(generator.integers({6}, 10).to_vector(), (std::vector<Index>{2, 7, 1, 0, 2, 7}));
  EXPECT_EQ(generator.permutation(8).to_vector(), (std::vector<Index>{4, 5, 6, 0, 3, 2, 7, 1}));
  EXPECT_EQ(Generator(42).split(3).bits(), 0x055605bf07782515u);
  EXPECT_EQ(Generator(42).split("dropout").bits(), 0x76b37165303c470cu);
}

TEST(Generator, FillsArraysWithTheNumbersOfItsStream) {
  Generator one(42), other(42);
  const auto x = one.uniform<double>({2, 3}, -1, 3);
  const auto y = one.normal<float>({3, 1}, 5, 0.5);
  EXPECT_EQ(x.shape(), Shape({2, 3}));
  EXPECT_EQ(y.shape(), Shape({3, 1}));
  for (const double value : x.values()) EXPECT_EQ(value, -1 + 4 * other.uniform());
  for (const float value : y.values()) EXPECT_EQ(value, static_cast<float>(5 + 0.5 * other.normal()));
  EXPECT_EQ(one.bits(), other.bits());
}

TEST(Generator, EmptyShapesDrawNothing) {
  Generator generator(9);
  EXPECT_EQ(generator.normal<double>({3, 0}).size(), 0);
  EXPECT_EQ(generator.permutation(0).size(), 0);
  EXPECT_EQ(generator.bits(), Generator(9).bits());
}

TEST(Generator, CopyContinuesTheSameStream) {
  Generator generator(3);
  generator.bits();  // an odd position, in the middle of a counter
  const Generator copy = generator;
  EXPECT_EQ(words(generator, 9), words(copy, 9));
}

TEST(Generator, SplitDependsOnKeyAndNameNotOnPosition) {
  Generator generator(11);
  const auto fresh = words(generator.split("weights"), 4);
  generator.bits();
  EXPECT_EQ(words(generator.split("weights"), 4), fresh);
  EXPECT_NE(words(generator.split("bias"), 4), fresh);
  EXPECT_NE(words(Generator(12).split("weights"), 4), fresh);
  EXPECT_NE(words(generator.split(1).split(2), 4), words(generator.split(2).split(1), 4));
}

TEST(Generator, SplitDrawsNothingFromItsParent) {
  Generator generator(11);
  generator.split(5).bits();
  EXPECT_EQ(generator.bits(), Generator(11).bits());
}

TEST(Generator, SplitStreamsHaveNoNumberInCommon) {
  const Generator root(0);
  std::set<std::uint64_t> seen;
  std::size_t count = 0;
  auto add = [&](Generator stream) {
    for (const std::uint64_t word : words(stream, 100)) seen.insert(word), ++count;
  };
  add(root);
  for (std::uint64_t name = 0; name < 50; ++name) {
    add(root.split(name));
    add(root.split(name).split(name));
    add(Generator(name + 1));
  }
  EXPECT_EQ(seen.size(), count);
}

TEST(Generator, SplitStreamsAreUncorrelated) {
  constexpr Index n = 100000;
  const Generator root(5);
  std::vector<Array<double>> streams;
  for (std::uint64_t name = 0; name < 3; ++name) streams.push_back(root.split(name).normal<double>({n}));
  streams.push_back(Generator(root).normal<double>({n}));
  for (std::size_t a = 0; a < streams.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      double product = 0;
      for (Index i = 0; i < n; ++i) product += streams[a].data()[i] * streams[b].data()[i];
      EXPECT_LT(std::abs(product / n), 4 / std::sqrt(double{n})) << a << " and " << b;
    }
  }
}

TEST(Generator, UniformNumbersFillTheUnitIntervalEvenly) {
  constexpr int n = 640000, bins = 64;
  Generator generator(1);
  std::vector<double> count(bins);
  double sum = 0, square = 0, lagged = 0, last = 0.5;
  for (int i = 0; i < n; ++i) {
    const double u = generator.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++count[static_cast<std::size_t>(u * bins)];
    sum += u;
    square += (u - 0.5) * (u - 0.5);
    lagged += (u - 0.5) * (last - 0.5);
    last = u;
  }
  EXPECT_NEAR(sum / n, 0.5, 4 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(square / n, 1.0 / 12, 4 * std::sqrt(1.0 / 180 / n));
  EXPECT_NEAR(lagged / n, 0, 4 * std::sqrt(1.0 / 144 / n));
  double chi_square = 0;
  for (const double c : count) chi_square += (c - n / bins) * (c - n / bins) / (n / bins);
  EXPECT_NEAR(chi_square, bins - 1, 4 * std::sqrt(2.0 * (bins - 1)));
}

// The first 25 bits of this seed's first word are ones: the largest float below 1 is nearer to 1 than that.
TEST(Generator, UniformFloatsStayBelowTheUpperBound) {
  ASSERT_GT(Generator(34408659).uniform(), 1 - 0x1p-25);
  EXPECT_LT(Generator(34408659).uniform<float>({})(), 1.0f);
  EXPECT_LT(Generator(34408659).uniform<float>({}, -3, 7)(), 7.0f);
}

TEST(Generator, NormalNumbersHaveTheMomentsAndTailsOfTheDistribution) {
  constexpr int n = 1000000;
  Generator generator(2);
  double moment[5] = {};
  int beyond_2 = 0, beyond_4 = 0;
  for (int i = 0; i < n; ++i) {
    const double z = generator.normal();
    double power = 1;
    for (int k = 1; k <= 4; ++k) moment[k] += power *= z;
    beyond_2 += std::abs(z) > 2;
    beyond_4 += std::abs(z) > 4;
  }
  EXPECT_NEAR(moment[1] / n, 0, 4 * std::sqrt(1.0 / n));
  EXPECT_NEAR(moment[2] / n, 1, 4 * std::sqrt(2.0 / n));
  EXPECT_NEAR(moment[3] / n, 0, 4 * std::sqrt(15.0 / n));
  EXPECT_NEAR(moment[4] / n, 3, 4 * std::sqrt(96.0 / n));
  EXPECT_NEAR(beyond_2 / double{n}, 0.0455002639, 4 * std::sqrt(0.0455 / n));
  EXPECT_NEAR(beyond_4 / double{n}, 6.33424836e-5, 4 * std::sqrt(6.33e-5 / n));
}

TEST(Generator, BelowReachesExactlyTheNumbersBelowItsLimit) {
  constexpr int n = 100000, limit = 7;
  Generator generator(3);
  std::vector<int> count(limit);
  for (int i = 0; i < n; ++i) ++count.at(static_cast<std::size_t>(generator.below(limit)));
  const double expected = double{n} / limit;
  for (const int c : count) EXPECT_NEAR(c, expected, 4 * std::sqrt(expected));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(generator.below(1), 0);
}

// Of 64 random bits modulo 3 * 2^61, three quarters lie below 2^62, where two thirds belong.
TEST(Generator, BelowIsUnbiasedForLargeLimits) {
  constexpr int n = 40000;
  Generator generator(4);
  int low = 0;
  for (int i = 0; i < n; ++i) {
    const Index x = generator.below(3 * (Index{1} << 61));
    ASSERT_GE(x, 0);
    low += x < Index{1} << 62;
  }
  EXPECT_NEAR(low / double{n}, 2.0 / 3, 4 * std::sqrt(2.0 / 9 / n));
}

TEST(Generator, BelowRefusesLimitsWithoutNumbers) {
  Generator generator(1);
  EXPECT_TRUE(raises<DomainError>([&] { generator.below(0); }, {"below", "0"}));
  EXPECT_TRUE(raises<DomainError>([&] { generator.below(-5); }, {"below", "-5"}));
  EXPECT_TRUE(raises<DomainError>([&] { generator.integers({2}, 0); }, {"below", "0"}));
}

TEST(Generator, PermutationHasEveryNumberOnce) {
  Generator generator(6);
  for (const Index count : {1, 2, 3, 100, 1000}) {
    auto sorted = generator.permutation(count).to_vector();
    std::ranges::sort(sorted);
    EXPECT_EQ(sorted, Array<Index>::arange(count).to_vector());
  }
}

TEST(Generator, EveryPermutationIsEquallyLikely) {
  constexpr int n = 60000;
  Generator generator(7);
  std::vector<int> count(27);
  for (int i = 0; i < n; ++i) {
    const auto p = generator.permutation(3);
    ++count[static_cast<std::size_t>(9 * p(0) + 3 * p(1) + p(2))];
  }
  int kinds = 0;
  for (const int c : count) {
    if (c == 0) continue;
    ++kinds;
    EXPECT_NEAR(c, n / 6.0, 4 * std::sqrt(n / 6.0));
  }
  EXPECT_EQ(kinds, 6);
}

// p and statistics.NormalDist().inv_cdf(p) of Python 3, within 5e-16 of the value to 60 digits.
constexpr double quantiles[][2] = {
    {1e-300, -37.0470962993612},
    {1e-100, -21.27345356096532},
    {1e-20, -9.262340089798405},
    {1.1102230246251565e-16, -8.209536151601386},
    {1e-12, -7.034483825301132},
    {1.3887943864964021e-11, -6.6579046435011024},
    {1.4e-11, -6.656723091518184},
    {1e-09, -5.9978070150076865},
    {1e-06, -4.753424308822899},
    {0.001, -3.090232306167813},
    {0.01, -2.3263478740408408},
    {0.05, -1.6448536269514726},
    {0.074, -1.4466320671589785},
    {0.075, -1.4395314709384557},
    {0.0751, -1.4388253927525398},
    {0.1, -1.2815515655446008},
    {0.2, -0.8416212335729142},
    {0.25, -0.6744897501960817},
    {0.3, -0.5244005127080407},
    {0.4, -0.2533471031357998},
    {0.45, -0.125661346855074},
    {0.49, -0.025068908258711057},
    {0.499999, -2.5066282745665597e-06},
    {0.500001, 2.5066282747057056e-06},
    {0.6, 0.2533471031357998},
    {0.75, 0.6744897501960817},
    {0.9, 1.2815515655446008},
    {0.925, 1.439531470938456},
    {0.926, 1.4466320671589785},
    {0.95, 1.6448536269514715},
    {0.975, 1.9599639845400536},
    {0.99, 2.3263478740408408},
    {0.999, 3.090232306167813},
    {0.999999, 4.753424308817089},
    {0.999999999, 5.997807019601638},
    {0.9999999999990905, 7.047700256664409},
    {0.9999999999999999, 8.209536151601386},
};

TEST(NormalQuantile, AgreesWithPython) {
  for (const auto& [p, x] : quantiles) EXPECT_NEAR(normal_quantile(p), x, 1e-15 * std::abs(x)) << "p = " << p;
  EXPECT_EQ(normal_quantile(0.5), 0);
}

TEST(NormalQuantile, InvertsTheDistributionFunction) {
  for (double p = 1e-15; p < 0.5; p *= 1.7) {
    const double x = normal_quantile(p);
    // The quantile, the root and the quotient are rounded, which moves the tail by up to x^2 times as much.
    EXPECT_NEAR(std::erfc(-x / std::sqrt(2.0)) / 2, p, 8e-16 * (1 + x * x) * p) << "p = " << p;
  }
}

TEST(NormalQuantile, RisesEverywhereAlsoWhereItsFormulaChanges) {
  for (const double seam : {0.075, 0.5, 0.925, std::exp(-25.0)}) {
    double last = normal_quantile(seam * (1 - 1e-13 * 51));
    for (int i = -50; i <= 50; ++i) {
      const double x = normal_quantile(seam * (1 + 1e-13 * i));
      EXPECT_GT(x, last) << "near " << seam;
      last = x;
    }
  }
}

TEST(NormalQuantile, RefusesWhatIsNoProbability) {
  for (const double p : {0.0, 1.0, -0.25, 1.25, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(raises<DomainError>([p] { normal_quantile(p); }, {"normal_quantile"})) << "p = " << p;
  }
}

}  // namespace
}  // namespace tapehead
