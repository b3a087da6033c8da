#pragma once
// Forms that are equal on paper: other numbers on the way, the same attention. They are named, never reported
// as mistakes.

#include <string>
#include <vector>

#include <tools/check/search.h>

namespace tapehead::check {

// What the log-sum-exp of a candidate shows when all else agrees: another base, or a constant added to each
// row of scores. Empty when it shows neither, or something else is wrong.
std::vector<std::string> equivalent_forms(const Call& call, const Search& search);

}  // namespace tapehead::check
