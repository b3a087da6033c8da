#include <tapehead/ops/rounding.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapehead {
namespace {

struct Format {
  int fraction_bits, lowest_exponent, highest_exponent;  // of normal numbers
};

Format format_of(Precision precision) {
  switch (precision) {
    case Precision::f16:
      return {10, -14, 15};
    case Precision::bf16:
      return {7, -126, 127};
    case Precision::f32:
      return {23, -126, 127};
    case Precision::f64:
      break;
  }
  return {52, -1022, 1023};
}

// In units of the last place that the format has at the exponent of x, a number of the format is whole.
// Multiplying by a power of two is exact here, both ways, so the one rounding is that to a whole number.
double rounded(double x, const Format& format) {
  if (!std::isfinite(x)) return x;
  const int unit = std::max(std::ilogb(x), format.lowest_exponent) - format.fraction_bits;
  const double y = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  const bool beyond = y != 0 && std::ilogb(y) > format.highest_exponent;
  return beyond ? std::copysign(std::numeric_limits<double>::infinity(), x) : y;
}

}  // namespace

template <std::floating_point T>
T round_to(T x, Precision precision) {
  return static_cast<T>(rounded(static_cast<double>(x), format_of(precision)));
}

template <std::floating_point T>
Array<T> round_to(const Array<T>& x, Precision precision) {
  auto y = Array<T>::uninitialized(x.shape());
  std::transform(x.values().begin(), x.values().end(), y.mutable_values().begin(),
                 [=](T value) { return round_to(value, precision); });
  return y;
}

#define TAPEHEAD_INSTANTIATE(T)      \
  template T round_to(T, Precision); \
  template Array<T> round_to(const Array<T>&, Precision);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
