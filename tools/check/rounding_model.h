#pragma once
// What rounding alone does to a formula: plain implementations of it in a type, and how far they are from it.

#include <map>
#include <string>

#include <tools/check/formula.h>

namespace tapehead::check {

// How a plain implementation rounds.
enum class Rounding {
  every_step,  // what each step writes is rounded to the type
  weights,     // everything is in float, but the weights and what is written at the end
  shaken,      // each number that a step writes is off by up to an ulp, at random
};

// The formula in that type. `seed` is for shaken.
Formula rounded(const Formula& formula, NumberType type, Rounding rounding, unsigned seed = 0);

struct Noise {
  double max = 0, rms = 0;
};

// The largest error of plain implementations in the type of the call, for each tensor of `results`, those of
// the formula. It is at least the error of rounding the tensor once.
std::map<std::string, Noise, std::less<>> noise_of(const Call& call, const Formula& formula,
                                                   const Tensors& results);

}  // namespace tapehead::check
