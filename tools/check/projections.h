#pragma once
// Projections as layers of other libraries keep them, brought to x, y, w_* and b_* of the format.

#include <string>
#include <utility>
#include <vector>

#include <tools/check/dump.h>
#include <tools/check/settings.h>

namespace tapehead::check {

// The dump with weights as (in, out), a packed in_proj_weight cut into its three, and the inputs of a layer,
// which its caller calls query, key and value, as x and y. Where key and value differ, y holds both side by
// side and the weights have rows of zeros; the gradients of those two weights are left out then. What was
// done is noted in `assumed`. Throws Unusable when a weight is no matrix that can be cut so.
Dump with_plain_projections(const Dump& dump, const Settings& settings,
                            std::vector<std::pair<std::string, std::string>>& assumed);

}  // namespace tapehead::check
