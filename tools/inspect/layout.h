#pragma once
// Where the nodes of a tape stand in a drawing: by Graphviz's dot, one scope at a time.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <tapehead/inspect/table.h>

namespace tapehead {

struct LayoutPoint {
  double x = 0, y = 0;  // pixels from the upper left corner of the scope, y downwards
};

// What stands in a scope, as a box around its centre.
struct LayoutItem {
  enum class Kind {
    node,
    scope,   // a scope inside, as it is while it is closed
    source,  // a node outside whose value is read inside
    target,  // a node inside whose value is read outside
  };
  Kind kind = Kind::node;
  Index id = 0;  // place of the node in the rows, or of the scope in the list
  LayoutPoint centre{};
  double width = 0, height = 0;
};

// One node reads another: `from` is an argument of `to`.
struct LayoutUse {
  Index from = 0, to = 0;
};

// A curve from one item of the scope to another, for all the uses that cross there.
struct LayoutEdge {
  std::size_t from = 0, to = 0;      // places in the items of the scope
  std::vector<LayoutPoint> curve{};  // cubic Bezier: an end, then two control points and an end a piece
  std::vector<LayoutUse> uses{};
};

struct LayoutScope {
  std::string name;                     // the last part of the label, or "%50 to %99"
  std::string label;                    // the path of scopes; of a part of a scope, that of the whole
  std::optional<std::size_t> parent{};  // in the list
  double width = 0, height = 0;
  std::vector<LayoutItem> items{};
  std::vector<LayoutEdge> edges{};
};

// The scopes of a tape as a ScopeTree has them, outer before inner; the first is the tape itself. A row's
// arguments are places in the rows. Throws
// LogicError when Graphviz has no dot. Gansner, Koutsofios, North, Vo, "A technique for drawing directed
// graphs", 1993.
std::vector<LayoutScope> layout(const TapeTable& table);

}  // namespace tapehead
