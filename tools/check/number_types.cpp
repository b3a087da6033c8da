#include <tools/check/number_types.h>

#include <cmath>

namespace tapehead::check {
namespace {

bool has_bits(double x, int bits) {
  int exponent = 0;
  return is_whole(std::ldexp(std::frexp(x, &exponent), bits));
}

bool fits_in(double x, NumberType type) {
  const bool in_range = type == NumberType::f16 ? std::abs(x) <= 65504 && is_whole(std::ldexp(x, 24))
                                                : static_cast<double>(static_cast<float>(x)) == x;
  return in_range && has_bits(x, significand_bits(type));
}

bool shows(const Array<double>& numbers, NumberType type) {
  constexpr std::size_t enough = 32;
  std::size_t count = 0, full = 0;
  for (const double x : numbers.values()) {
    if (!std::isfinite(x) || x == 0) continue;
    if (!fits_in(x, type)) return false;
    ++count;
    if (!has_bits(x, significand_bits(type) - 1)) ++full;
  }
  return count >= enough && 4 * full > count;
}

}  // namespace

std::string_view name_of(NumberType type) {
  constexpr std::string_view names[] = {"f64", "f32", "f16", "bf16"};
  return names[static_cast<std::size_t>(type)];
}

std::optional<NumberType> number_type(std::string_view name) {
  for (const NumberType type : {NumberType::f64, NumberType::f32, NumberType::bf16, NumberType::f16}) {
    if (name_of(type) == name) return type;
  }
  return std::nullopt;
}

int significand_bits(NumberType type) {
  constexpr int bits[] = {53, 24, 11, 8};
  return bits[static_cast<std::size_t>(type)];
}

double unit_roundoff(NumberType type) { return std::ldexp(1, -significand_bits(type)); }

bool is_whole(double x) { return x == std::floor(x) && std::abs(x) <= 0x1p53; }

std::optional<NumberType> narrower_type(const Array<double>& numbers, NumberType kept_in) {
  for (const NumberType type : {NumberType::bf16, NumberType::f16, NumberType::f32}) {
    const bool is_narrower = significand_bits(type) < significand_bits(kept_in);
    if (is_narrower && kept_in != NumberType::f16 && shows(numbers, type)) return type;
  }
  return std::nullopt;
}

}  // namespace tapehead::check
