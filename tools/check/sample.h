#pragma once
// Parts of a call that is too large to be evaluated at once or often.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tools/check/compare.h>

namespace tapehead::check {

// So many scores (B H L S) are evaluated at once.
inline constexpr Index many_scores = 1 << 15;

// Whether rows of a call can be looked at alone: it holds no projections, whose tokens belong together.
bool has_parts(const Call& call);

// The call for one sample and some of its rows, in rising order. Of the candidate it keeps what has rows.
Call part_of(const Call& call, Index sample, std::span<const Index> rows);

// The same for one key head, with its query heads, of such a part with all heads.
Call heads_of_part(const Call& part, Index key_head);

// Evenly spread rows, the last among them, of the first and the last sample: about `many_scores` in all, but
// no fewer than three rows.
std::vector<Call> sampled_parts(const Call& call);

// The call for one sample with all of its rows, and for one key head with its query heads or for all heads.
// Of the candidate it keeps what this part alone makes. Nothing when one of `names` is not of that kind.
std::optional<Call> part_with_all_rows(const Call& call, Index sample, std::optional<Index> key_head,
                                       const std::vector<std::string>& names);

// Along what a call is cut: a formula that confuses heads wants all of them at once.
enum class Cut { rows, rows_and_heads };

// evaluate(call, formula).results in blocks, which are added up; of a formula that is `whole`, at once. Of
// output, lse and what the candidate holds. Throws ShapeError when a number that was fitted to a part does
// not fit another.
Tensors evaluate_in_blocks(const Call& call, const Formula& formula, Cut along);

}  // namespace tapehead::check
