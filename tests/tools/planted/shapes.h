#pragma once
// Calls to plant mistakes in: sizes crossed with what the call asks for, in all types, with random numbers.

#include <string>
#include <vector>

#include "tools/planted/call.h"

namespace tapehead::planted {

struct Sizes {
  std::string name;
  Index B, H, Hk, L, S, D, E;
};

std::vector<Sizes> sizes(unsigned set);  // 0, or 1: others that nothing was tried on

// What a call can be asked for: "plain", "causal bottom-right", ..., "everything".
std::vector<std::string> features();

// With random numbers rounded to the type; nothing where a feature does not fit the sizes.
std::optional<Call> make_call(const Sizes& sizes, const std::vector<std::string>& features, Type type,
                              unsigned seed);

// All that fit, with the types in turn.
std::vector<Call> calls(unsigned set);

}  // namespace tapehead::planted
