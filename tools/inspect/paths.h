#pragma once
// Gradient paths as a table: which way a gradient came, and how much of it.

#include <string>

#include <tapehead/core/tape.h>
#include <tapehead/inspect/attention_places.h>
#include <tapehead/inspect/table.h>

namespace tapehead {

// One row for each path from y to x, as gradient_paths() has them, with its norm, its share of the gradient,
// its cosine with it and its largest element; the rows sum to the gradient to rounding, and sum_error says
// how well. y has one element. With a head or a query row: what came by that part of each attention's output
// alone, where a path belongs to the attention whose port it meets first after leaving x, and what the signal
// did behind that output does not matter. So the tables of all heads (or of all query rows) sum to the
// gradient that came by attention; what came directly is in none of them. Throws as gradient_paths() does,
// and DomainError when no attention on the tape has that head or row.
template <std::floating_point T>
PathTable inspect_paths(const Var<T>& y, const Var<T>& x, const AttentionPart& part = {});
// The same of nodes by number.
template <std::floating_point T>
PathTable inspect_paths(Tape<T>& tape, Index y, Index x, const AttentionPart& part = {});

// Which node is meant by a name: "%12" the node of that number; else the input or port of that label; else
// the input whose label ends in it; else, for a scope, the last node inside, which is what it gives. Throws
// DomainError when there is none, or more than one.
Index node_called(const TapeTable& table, const std::string& name);

// The nodes that a page shows the paths of: inputs, and the last node of each scope, that are read at least
// twice; the first ones on the tape, at most so many.
std::vector<Index> shared_values(const TapeTable& table, std::size_t most = 8);

// At most so many rows: when there are more, those of one scope become one, and when there still are more,
// the smallest become one. The scope `expand` stays open. Sums, norms, shares and cosines are those of the
// sums. Throws DomainError when no row is inside `expand`.
PathTable grouped(const PathTable& table, const std::string& expand = {}, std::size_t most = 40);

}  // namespace tapehead
