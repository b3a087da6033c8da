#pragma once
// What the diagnosis says of a failing call.

#include <string>
#include <vector>

namespace tapehead::contract {

struct Explanation {
  std::string verdict;                // as `tapehead check` has it; empty: the diagnosis came to no end
  std::vector<std::string> mistakes;  // "scale-omitted", "grad-softmax-jacobian/no-delta"
  std::string text;                   // one line
};

// Of a dump. Throws what the check library throws.
Explanation explain(const std::string& dump);

}  // namespace tapehead::contract
