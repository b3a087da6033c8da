#pragma once
// Rounding a double to the numbers of a narrower type, and the two ways in which plain implementations round.

#include <string>

namespace tapehead::planted {

enum class Type { f64, f32, bf16, f16 };

std::string name_of(Type type);  // "bf16"

// The nearest number of the type, ties to even; infinity past its largest.
double rounded(double x, Type type);

// Half the distance between 1 and the next number of the type.
double unit_roundoff(Type type);

struct Rounding {
  Type type = Type::f64;
  bool every_step = true;  // else only the weights and the results are rounded to the type, the rest to float

  double stored(double x) const { return rounded(x, type); }  // a result, or a weight before it meets values
  double sum(double x) const { return rounded(x, type == Type::f64 ? type : Type::f32); }  // a running sum
  double step(double x) const { return every_step ? stored(x) : sum(x); }
};

}  // namespace tapehead::planted
