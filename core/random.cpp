#include <tapehead/core/errors.h>
#include <tapehead/core/random.h>

#include <array>
#include <bit>
#include <cmath>

namespace tapehead {
namespace {

std::array<std::uint64_t, 2> philox(std::uint64_t key, std::uint64_t counter) {
  constexpr std::uint64_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t golden_ratio = 0x9E3779B9, sqrt3_minus_1 = 0xBB67AE85;
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  auto x0 = static_cast<std::uint32_t>(counter), x1 = static_cast<std::uint32_t>(counter >> 32);
  std::uint32_t x2 = 0, x3 = 0;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = multiplier0 * x0, p1 = multiplier1 * x2;
    const std::uint32_t y0 = static_cast<std::uint32_t>(p1 >> 32) ^ x1 ^ k0;
    const std::uint32_t y2 = static_cast<std::uint32_t>(p0 >> 32) ^ x3 ^ k1;
    x0 = y0, x1 = static_cast<std::uint32_t>(p1), x2 = y2, x3 = static_cast<std::uint32_t>(p0);
    k0 += golden_ratio, k1 += sqrt3_minus_1;
  }
  return {x0 | std::uint64_t{x1} << 32, x2 | std::uint64_t{x3} << 32};
}

// Natural logarithm from IEEE arithmetic alone, to about 2e-16 relative away from 1:
// x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(s) with s = (m - 1) / (m + 1), |s| < 0.172.
double portable_log(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) m *= 2, --exponent;
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double series = 0;
  for (int k = 21; k >= 1; k -= 2) series = series * s2 + 1.0 / k;
  return exponent * 0.69314718055994531 + 2 * s * series;
}

template <std::size_t N>
double polynomial(const double (&c)[N], double x) {
  double sum = 0;
  for (std::size_t i = N; i-- > 0;) sum = sum * x + c[i];
  return sum;
}

// Coefficients of AS 241, PPND16: numerator and denominator, lowest power first.
constexpr double centre_p[] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                               1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                               3.3430575583588128105e4, 2.5090809287301226727e3};
constexpr double centre_q[] = {1.0,
                               4.2313330701600911252e1,
                               6.8718700749205790830e2,
                               5.3941960214247511077e3,
                               2.1213794301586595867e4,
                               3.9307895800092710610e4,
                               2.8729085735721942674e4,
                               5.2264952788528545610e3};
constexpr double middle_p[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                               3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                               2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double middle_q[] = {1.0,
                               2.05319162663775882187e0,
                               1.67638483018380384940e0,
                               6.89767334985100004550e-1,
                               1.48103976427480074590e-1,
                               1.51986665636164571966e-2,
                               5.47593808499534494600e-4,
                               1.05075007164441684324e-9};
constexpr double tail_p[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                             2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                             2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr double tail_q[] = {1.0,
                             5.99832206555887937690e-1,
                             1.36929880922735805310e-1,
                             1.48753612908506148525e-2,
                             7.86869131145613259100e-4,
                             1.84631831751005468180e-5,
                             1.42151175831644588870e-7,
                             2.04426310338993978564e-15};

}  // namespace

double normal_quantile(double p) {
  if (!(p > 0 && p < 1)) throw DomainError("normal_quantile", "p is not between 0 and 1");
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(centre_p, r) / polynomial(centre_q, r);
  }
  const double r = std::sqrt(-portable_log(q < 0 ? p : 1 - p));
  const double x = r <= 5 ? polynomial(middle_p, r - 1.6) / polynomial(middle_q, r - 1.6)
                          : polynomial(tail_p, r - 5) / polynomial(tail_q, r - 5);
  return q < 0 ? -x : x;
}

Generator Generator::split(std::uint64_t name) const {
  // Enciphered twice, so that no number drawn from this stream is the key of another.
  return Generator(philox(philox(key_, name)[0] ^ key_, ~name)[1]);
}

Generator Generator::split(std::string_view name) const {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return split(hash);
}

std::uint64_t Generator::bits() {
  const std::uint64_t word = philox(key_, position_ / 2)[position_ % 2];
  ++position_;
  return word;
}

double Generator::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

double Generator::normal() { return normal_quantile((static_cast<double>(bits() >> 12) + 0.5) * 0x1p-52); }

Index Generator::below(Index limit) {
  if (limit < 1) throw DomainError("Generator::below", "limit " + std::to_string(limit) + " is not positive");
  const auto range = static_cast<std::uint64_t>(limit);
  const std::uint64_t reject_below = (0 - range) % range;  // 2^64 mod range
  std::uint64_t word;
  do word = bits();
  while (word < reject_below);
  return static_cast<Index>(word % range);
}

template <std::floating_point T>
Array<T> Generator::uniform(const Shape& shape, double low, double high) {
  auto result = Array<T>::uninitialized(shape);
  const T end = static_cast<T>(high), last = std::nextafter(end, static_cast<T>(low));
  for (T& x : result.mutable_values()) {
    x = static_cast<T>(low + (high - low) * uniform());
    if (x == end) x = last;  // rounded up
  }
  return result;
}

template <std::floating_point T>
Array<T> Generator::normal(const Shape& shape, double mean, double deviation) {
  auto result = Array<T>::uninitialized(shape);
  for (T& x : result.mutable_values()) x = static_cast<T>(mean + deviation * normal());
  return result;
}

Array<Index> Generator::integers(const Shape& shape, Index limit) {
  auto result = Array<Index>::uninitialized(shape);
  for (Index& x : result.mutable_values()) x = below(limit);
  return result;
}

Array<Index> Generator::permutation(Index count) {
  auto result = Array<Index>::arange(count);
  const std::span<Index> x = result.mutable_values();
  for (std::size_t i = x.size(); i-- > 1;) {
    std::swap(x[i], x[static_cast<std::size_t>(below(static_cast<Index>(i) + 1))]);
  }
  return result;
}

template Array<float> Generator::uniform(const Shape&, double, double);
template Array<double> Generator::uniform(const Shape&, double, double);
template Array<float> Generator::normal(const Shape&, double, double);
template Array<double> Generator::normal(const Shape&, double, double);

}  // namespace tapehead
