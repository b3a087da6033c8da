#pragma once
// Numbers in which a formula is linear, solved for.

#include <optional>
#include <span>
#include <vector>

#include <tools/check/families/hypotheses.h>

namespace tapehead::check {

// The x nearest to sum of columns x = y; y (M), columns N times (M). By the normal equations, with
// refinement: a column of zeros gives 0. Takes N^2 (M + N) steps.
std::vector<double> least_squares(const std::vector<std::vector<double>>& columns, std::vector<double> y);

// Which of the terms y is nearest to the sum of: every set of a few is tried, more are solved for and
// rounded. Nothing when the numbers of y, each of so many bits, would fit some set by chance.
std::optional<std::vector<char>> nearest_sum(const std::vector<std::vector<double>>& terms,
                                             const std::vector<double>& y, int bits);

// As many numbers for each sample and key head, (B, Hk, count), as bring the gradients of query, key and
// value nearest to the candidate's. `with` must give a formula in which those gradients are linear in the
// numbers, and depend on those of their own sample and key head only. Nothing when the equations are too few
// or the work is too much.
std::optional<Numbers> solve_by_head(const Call& call, Index count,
                                     const std::function<Change(const Numbers&)>& with);

}  // namespace tapehead::check
