#pragma once
// The backward pass one node at a time, as rows of a table.

#include <tapehead/core/gradient.h>
#include <tapehead/inspect/table.h>

namespace tapehead {

// One row for each node between y and x, from the end of the tape on, with what its rules give and the
// partial sums. `table` is that of the tape. Throws as gradient() does.
template <std::floating_point T>
std::vector<StepRow> inspect_steps(const TapeTable& table, const Var<T>& y, Vars<T> x);

}  // namespace tapehead
