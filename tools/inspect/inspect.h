#pragma once
// inspect(): a tape as a table of plain numbers, which every writer of this folder takes.
//
//   tape.keep(KeepLevel::statistics);
//   ... ops and gradient_values(y, x) ...
//   write_table(std::cout, inspect(tape));

#include <string_view>

#include <tapehead/core/tape.h>
#include <tapehead/inspect/table.h>

namespace tapehead {

// What the tape holds, and what it kept by Tape::keep(): a row a node, totals by op and by label, and at the
// level everything the weights of every attention that was composed. What was not kept is left empty.
template <std::floating_point T>
TapeTable inspect(const Tape<T>& tape);

// The array widened to double.
template <std::floating_point T>
ArrayNumbers numbers_of(const Array<T>& x);

// The rows, attentions and paths whose label has `label` in it as a run of whole parts ("layer 1/query" and
// "layer 1" are runs of "layer 1/query"), and the totals of those rows. Throws DomainError when no row does.
TapeTable only_label(const TapeTable& table, std::string_view label);

// Whether a path of labels has such a run.
bool has_label(std::string_view path, std::string_view label);

// Makes the totals of the rows; a label's hold all that is inside it. In order of first appearance.
void add_totals(TapeTable& table);

}  // namespace tapehead
