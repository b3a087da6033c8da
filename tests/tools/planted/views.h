#pragma once
// Memory read in another order than it was written in, as moves of numbers within a grid (B,H,L,D).

#include <functional>

#include "tools/planted/wrong.h"

namespace tapehead::planted {

using Move = std::function<Grid(const Grid&)>;

// (B,H,L,D) in memory taken for (B,L,H,D): what a merge of heads without its transpose reads.
Grid heads_merged_as_they_lie(const Grid& x);
// (B,L,H,D) in memory taken for (B,H,L,D): the inverse of it.
Grid tokens_read_as_heads(const Grid& x);
// (H,B,...) in memory taken for (B,H,...), and the inverse.
Grid samples_and_heads_swapped(const Grid& x);
Grid samples_and_heads_swapped_back(const Grid& x);
// (B,H,L,D) with the second and third axis exchanged.
Grid axes_swapped(const Grid& x);

// Right attention whose output is moved; its upstream gradient is moved back by the inverse.
Wrong with_output_moved(const Move& move);
// Right attention of inputs that are moved; gradients are moved back by the inverse.
Wrong with_inputs_moved(bool query, bool key, bool value, const Move& move);

}  // namespace tapehead::planted
