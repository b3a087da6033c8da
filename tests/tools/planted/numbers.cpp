#include "tools/planted/numbers.h"

#include <cmath>
#include <limits>

namespace tapehead::planted {
namespace {

double rounded(double x, int digits, int lowest_exponent, double largest) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int unit = std::max(exponent - digits, lowest_exponent);
  const double y = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::abs(y) <= largest ? y : std::copysign(std::numeric_limits<double>::infinity(), x);
}

}  // namespace

std::string name_of(Type type) {
  const char* const names[] = {"f64", "f32", "bf16", "f16"};
  return names[static_cast<int>(type)];
}

double rounded(double x, Type type) {
  switch (type) {
    case Type::f32:
      return static_cast<double>(static_cast<float>(x));
    case Type::bf16:
      return rounded(x, 8, -133, std::ldexp(255.0, 120));
    case Type::f16:
      return rounded(x, 11, -24, 65504);
    default:
      return x;
  }
}

double unit_roundoff(Type type) {
  const int digits[] = {53, 24, 8, 11};
  return std::ldexp(1.0, -digits[static_cast<int>(type)]);
}

}  // namespace tapehead::planted
