#pragma once
// What each op computes and how its gradient comes about, in words: what the page says of a node.

#include <string_view>

namespace tapehead {

struct OpFormula {
  std::string_view op;
  std::string_view formula;   // y, or Y where the shape matters
  std::string_view gradient;  // dx for each input x, from dy
  std::string_view words;     // both, in a sentence or two
};

// Of an op by the name that a tape shows; nullptr of one that is not the library's own.
const OpFormula* formula_of(std::string_view op);

}  // namespace tapehead
