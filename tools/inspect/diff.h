#pragma once
// What changed between two tapes: before and after a change of code.

#include <iosfwd>
#include <string>
#include <vector>

#include <tapehead/inspect/table.h>
#include <tapehead/inspect/text.h>

namespace tapehead {

// A node of one tape, of the other, or of both: an index of -1 is none.
struct NodeChange {
  Index before = -1, after = -1;
  std::string op, label;
  std::vector<std::string> what;  // of a node of both: "shape (2, 3) -> (2, 4)"; empty when nothing changed
};

struct TotalChange {
  std::string name;
  TapeTotal before, after;
};

struct TapeDiff {
  std::vector<NodeChange> nodes;  // those that came, went or changed, in order
  Index same = 0;                 // nodes of both in which nothing changed
  TotalChange all;
  std::vector<TotalChange> by_op;                  // of the ops of either
  bool differs() const { return !nodes.empty(); }  // times do not count: they always differ
};

// Nodes are matched in order by op and label, so that as many as possible are of both tapes. Compared are
// shapes, types, kernels, the nodes that are read, and, when both have them, range, mean and norm of values
// and gradients: these count as changed when they differ by more than `tolerance` of the larger one.
TapeDiff diff(const TapeTable& before, const TapeTable& after, double tolerance = 1e-9);

void write_diff(std::ostream& out, const TapeDiff& changes, const TextOptions& options = {});
void write_diff_json(std::ostream& out, const TapeDiff& changes);  // one document on one line

}  // namespace tapehead
