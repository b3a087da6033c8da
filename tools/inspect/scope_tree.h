#pragma once
// Which scope each node of a tape is drawn in.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tapehead/inspect/table.h>

namespace tapehead {

// The scopes of a tape; number 0 is the tape itself. An input is put into the innermost scope that holds all
// who read it. Nodes are places in the rows, arguments too. A scope of more than 100 nodes and scopes is cut
// into parts of consecutive ones.
class ScopeTree {
 public:
  struct Scope {
    std::string name;        // the last part of the label, "%50 to %99" or "layer 1 to layer 40"
    std::string label;       // the path of scopes; of a part of a scope, that of the whole
    std::size_t parent = 0;  // of number 0 itself
    std::size_t depth = 0;
    bool part = false;          // of a long scope
    Index first = 0, last = 0;  // place in the rows of a node in it or in a scope of it
  };

  explicit ScopeTree(const TapeTable& table);

  std::size_t size() const { return scopes_.size(); }
  const Scope& operator[](std::size_t scope) const { return scopes_[scope]; }
  std::size_t home(Index node) const { return home_[static_cast<std::size_t>(node)]; }
  std::size_t common(std::size_t a, std::size_t b) const;  // the innermost scope around both

 private:
  struct Item;
  enum class Which { ops, all };
  std::size_t child(std::size_t parent, std::string_view name, std::string_view label);
  std::size_t of_label(std::string_view label);
  void enter(const TapeTable& table);
  void place_inputs(const TapeTable& table);
  void cut_long_scopes(const TapeTable& table, Which which);
  void cut(const TapeTable& table, std::size_t scope, const std::vector<Item>& items);
  std::string part_name(const TapeTable& table, const Item& first, const Item& last) const;
  void note_nodes();
  void note_depths();

  std::vector<Scope> scopes_;
  std::vector<std::size_t> home_;  // of each node
  std::map<std::pair<std::size_t, std::string>, std::size_t> children_;
};

}  // namespace tapehead
