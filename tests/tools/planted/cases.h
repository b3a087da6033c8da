#pragma once
// Dumps with planted mistakes: the tensors and settings of one, what was planted, and what else would give
// the same numbers.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/planted/plantings.h"

namespace tapehead::planted {

using Name = std::pair<std::string, std::string>;  // id, variant
using Names = std::set<Name>;                      // that act together

struct Tensor {
  Array<double> numbers;
  std::string type;  // "f16", "bool", "i64"
};

// What of a call is dumped besides its inputs and output, and how.
struct Shown {
  bool weights = true, lse = true, gradients = true;
  std::string layout = "BHLD";
  bool layout_said = true;
};

struct Case {
  std::string shape, form;
  Type type = Type::f64;
  bool every_step = true;  // or float with rounded weights
  std::string family;
  Names truth;                 // empty: right
  std::set<Names> acceptable;  // all that fits as well, the truth among it
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> settings;

  std::string text() const;  // "scale-omitted (probe, plain; bf16, every step)"
};

// The tensors and settings of a call with these results.
void show(Case& dump, const Call& call, const Results& results, const Shown& shown);

// One mistake each, at most `limit` times for each form of a mistake; of one family, or of all.
std::vector<Case> single_mistakes(unsigned set, std::size_t limit, const std::string& family = {});
// A forward and a backward mistake; two forward ones of different families.
std::vector<Case> pairs_of_mistakes(unsigned set, std::size_t limit);
// Random right ones of every feature and type, two or three features together.
std::vector<Case> right_dumps(unsigned seed, std::size_t count);
// Forms that are equal on paper.
std::vector<Case> equal_forms(unsigned set);

// Whether a planting moves what is shown of a call far out of the noise of its type.
bool shows(const Call& call, const Planting& planting, const Shown& shown);

}  // namespace tapehead::planted
