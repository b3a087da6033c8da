#pragma once
// From a dump and its settings to a call: which layouts the shapes allow, and the call in one of them.

#include <string>
#include <utility>
#include <vector>

#include <tools/check/dump.h>
#include <tools/check/settings.h>

namespace tapehead::check {

// Setting (or tensor) and value, in the order of docs/dump-format.md.
using Assumed = std::vector<std::pair<std::string, std::string>>;

// Layouts in which all shapes fit together, the usual one first; just the one that is said, if one is. Throws
// Unusable, naming the tensor of the likeliest layout that does not fit, when there is none.
std::vector<Layout> possible_layouts(const Dump& dump, const Settings& settings);

// The call with everything that was dumped, in the layout BHLD. What was not said is noted in `assumed`.
// Throws Unusable for a tensor or setting that is missing, has another shape than the rest asks for or values
// out of range.
Call call_in_layout(const Dump& dump, const Settings& settings, Layout layout, Assumed& assumed);

// The names in the dump, `given` ones, that have no place in a call.
std::vector<std::string> unused_tensors(const Dump& dump);

}  // namespace tapehead::check
