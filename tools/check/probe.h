#pragma once
// Inputs on which mistakes that look the same on a dump give different results.

#include <optional>
#include <string>
#include <vector>

#include <tools/check/diagnosis.h>

namespace tapehead::check {

struct Separation {
  std::string input;  // in words: "head width D = 10 instead of 8"
  Call call;          // inputs without results
};

// The smallest change of the call's sizes, with random numbers, under which no two of these sets give the
// same results. Nothing when none was found.
std::optional<Separation> separation(const Call& call, const std::vector<std::vector<Finding>>& alternatives);

}  // namespace tapehead::check
