#pragma once
// The contract that settings make for a call of given sizes.

#include <string>
#include <utility>
#include <vector>

#include <tools/check/shapes.h>

namespace tapehead::check {

// All but the type. What was not said is noted in `assumed`. Throws Unusable for settings that do not go with
// the tensors or the sizes.
Contract contract_of(const Shapes& shapes, const Settings& said,
                     std::vector<std::pair<std::string, std::string>>& assumed);

}  // namespace tapehead::check
