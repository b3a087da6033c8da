#pragma once
// The types of numbers that a dump may hold.

#include <optional>
#include <string_view>

#include <tools/check/call.h>

namespace tapehead::check {

std::string_view name_of(NumberType type);                     // "f32"
std::optional<NumberType> number_type(std::string_view name);  // none for integers and the rest
int significand_bits(NumberType type);                         // 24 for f32

// Half the distance from 1 to the next number of the type: 2^-24 for f32.
double unit_roundoff(NumberType type);

// The type that numbers were computed in, where it is narrower than the one they are kept in and they show
// it: all of them fit, and more than a quarter has a last bit that is set. A few numbers, or coarse ones,
// prove nothing.
std::optional<NumberType> narrower_type(const Array<double>& numbers, NumberType kept_in);

bool is_whole(double x);  // and exactly so: up to 2^53

}  // namespace tapehead::check
