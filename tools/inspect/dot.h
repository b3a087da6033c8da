#pragma once
// A tape as a graph for Graphviz: `dot -Tsvg tape.dot > tape.svg`.

#include <iosfwd>

#include <tapehead/inspect/table.h>

namespace tapehead {

// Nodes with op, name and shape, a cluster for each scope, an edge from each input to the op that takes it.
void write_dot(std::ostream& out, const TapeTable& table);

}  // namespace tapehead
