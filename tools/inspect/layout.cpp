#include <tapehead/inspect/layout.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include <fmt/format.h>
#include <graphviz/gvc.h>

#include <tapehead/core/errors.h>
#include <tapehead/inspect/scope_tree.h>

namespace tapehead {
namespace {

using Kind = LayoutItem::Kind;

// ---- How large things are, for text of 12 pixels

constexpr double letter = 7.2, node_height = 42, closed_scope_height = 46, end_height = 20;

// Even, since Graphviz stands boxes on whole points.
double width_for(std::size_t letters, double least) {
  return 2 * std::ceil(std::clamp(letter * static_cast<double>(letters) + 28, least, 260.0) / 2);
}

double width_of_node(const TapeRow& row) {
  const std::size_t first_line = row.op.size() + fmt::formatted_size("%{}", row.index) + 2;
  const bool named = row.input || row.port;
  const std::size_t name = named ? row.label.size() - (row.label.rfind('/') + 1) : 0;
  return width_for(std::max({first_line, name, to_string(row.shape).size()}), 84);
}

// ---- What stands in each scope, and what reads what there

// Fills the items and edges of all scopes.
class Contents {
 public:
  Contents(const TapeTable& table, const ScopeTree& tree, std::vector<LayoutScope>& scopes,
           const std::vector<std::size_t>& place_of)
      : table_(table), tree_(tree), scopes_(scopes), place_of_(place_of) {
    for (Index i = 0; i < std::ssize(table.rows); ++i) {
      item(tree.home(i), Kind::node, i);
      for (const TapeArgument& argument : table.rows[static_cast<std::size_t>(i)].arguments) {
        if (argument.node) use({*argument.node, i});
      }
    }
  }

 private:
  // A use is an edge in the innermost scope around both nodes, and one to the border in each scope between.
  void use(const LayoutUse& use) {
    const std::size_t from = tree_.home(use.from), to = tree_.home(use.to), meeting = tree_.common(from, to);
    edge(meeting, toward(meeting, use.from), toward(meeting, use.to), use);
    for (std::size_t s = from; s != meeting; s = tree_[s].parent) {
      edge(s, toward(s, use.from), item(s, Kind::target, use.from), use);
    }
    for (std::size_t s = to; s != meeting; s = tree_[s].parent) {
      edge(s, item(s, Kind::source, use.from), toward(s, use.to), use);
    }
  }

  // The item of the scope that is the node or holds it.
  std::size_t toward(std::size_t scope, Index node) {
    std::size_t inner = tree_.home(node);
    if (inner == scope) return item(scope, Kind::node, node);
    while (tree_[inner].parent != scope) inner = tree_[inner].parent;
    return item(scope, Kind::scope, static_cast<Index>(place_of_[inner]));
  }

  std::size_t item(std::size_t scope, Kind kind, Index id) {
    std::vector<LayoutItem>& items = scopes_[place_of_[scope]].items;
    const auto [found, is_new] = items_.try_emplace({scope, kind, id}, items.size());
    if (is_new) items.push_back(sized(kind, id));
    return found->second;
  }

  LayoutItem sized(Kind kind, Index id) const {
    const auto place = static_cast<std::size_t>(id);
    switch (kind) {
      case Kind::node:
        return {kind, id, {}, width_of_node(table_.rows[place]), node_height};
      case Kind::scope:
        return {kind, id, {}, width_for(scopes_[place].name.size() + 3, 120), closed_scope_height};
      default:
        return {kind, id, {}, width_for(fmt::formatted_size("%{}", table_.rows[place].index), 0), end_height};
    }
  }

  void edge(std::size_t scope, std::size_t from, std::size_t to, const LayoutUse& use) {
    std::vector<LayoutEdge>& edges = scopes_[place_of_[scope]].edges;
    const auto [found, is_new] = edges_.try_emplace({scope, from, to}, edges.size());
    if (is_new) edges.push_back({from, to, {}, {}});
    edges[found->second].uses.push_back(use);
  }

  const TapeTable& table_;
  const ScopeTree& tree_;
  std::vector<LayoutScope>& scopes_;
  const std::vector<std::size_t>& place_of_;
  std::map<std::tuple<std::size_t, Kind, Index>, std::size_t> items_;
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, std::size_t> edges_;
};

// ---- Where it stands

constexpr double points_an_inch = 72;

// One for the whole program: a context reads a list of plugins that it does not give back.
GVC_t* graphviz() {
  static GVC_t* const context = gvContext();
  return context;
}

// Graphviz takes what it does not change as char*.
char* text(const char* literal) { return const_cast<char*>(literal); }

// One layout of dot. The graph is freed with it, positions included.
class DotGraph {
 public:
  explicit DotGraph(const LayoutScope& scope) : graph_(agopen(text("scope"), Agstrictdirected, nullptr)) {
    agattr(graph_, AGRAPH, text("newrank"), text("true"));  // the other way of ranking leaks
    agattr(graph_, AGRAPH, text("nodesep"), text("0.22"));
    agattr(graph_, AGRAPH, text("ranksep"), text("0.38"));
    agattr(graph_, AGNODE, text("shape"), text("box"));
    agattr(graph_, AGNODE, text("label"), text(""));
    agattr(graph_, AGNODE, text("fixedsize"), text("true"));
    agattr(graph_, AGNODE, text("width"), text("1"));
    agattr(graph_, AGNODE, text("height"), text("1"));
    agattr(graph_, AGEDGE, text("dir"), text("none"));
    add(scope);
  }
  ~DotGraph() {
    gvFreeLayout(graphviz(), graph_);
    agclose(graph_);
  }
  DotGraph(const DotGraph&) = delete;
  DotGraph& operator=(const DotGraph&) = delete;

  // Fills in where everything is.
  void lay_out(LayoutScope& scope) {
    if (gvLayout(graphviz(), graph_, "dot") != 0) {
      throw LogicError("layout", "Graphviz has no layout called dot; its plugins are missing");
    }
    const boxf bounds = GD_bb(graph_);
    scope.width = bounds.UR.x, scope.height = bounds.UR.y;
    auto point = [&](const pointf& p) { return LayoutPoint{p.x, bounds.UR.y - p.y}; };
    for (std::size_t i = 0; i < nodes_.size(); ++i) scope.items[i].centre = point(ND_coord(nodes_[i]));
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      const splines* curves = ED_spl(edges_[i]);
      if (!curves || curves->size == 0) continue;
      const bezier& curve = curves->list[0];
      for (decltype(curve.size) k = 0; k < curve.size; ++k) {
        scope.edges[i].curve.push_back(point(curve.list[k]));
      }
    }
  }

 private:
  void add(const LayoutScope& scope) {
    Agraph_t* const top = border("source");
    Agraph_t* const bottom = border("sink");
    for (const LayoutItem& item : scope.items) {
      nodes_.push_back(agnode(graph_, nullptr, 1));
      agset(nodes_.back(), text("width"), fmt::format("{:.3f}", item.width / points_an_inch).data());
      agset(nodes_.back(), text("height"), fmt::format("{:.3f}", item.height / points_an_inch).data());
      if (item.kind == Kind::source) agsubnode(top, nodes_.back(), 1);
      if (item.kind == Kind::target) agsubnode(bottom, nodes_.back(), 1);
    }
    for (const LayoutEdge& edge : scope.edges) {
      edges_.push_back(agedge(graph_, nodes_[edge.from], nodes_[edge.to], nullptr, 1));
    }
  }
  Agraph_t* border(const char* rank) {
    Agraph_t* const group = agsubg(graph_, text(rank), 1);
    agsafeset(group, text("rank"), text(rank), text(""));
    return group;
  }

  Agraph_t* graph_;
  std::vector<Agnode_t*> nodes_;
  std::vector<Agedge_t*> edges_;
};

// What a layout depends on; the layers of a model are alike.
std::string form_of(const LayoutScope& scope) {
  std::string form;
  for (const LayoutItem& item : scope.items) {
    form += fmt::format("{} {} {};", static_cast<int>(item.kind), item.width, item.height);
  }
  for (const LayoutEdge& edge : scope.edges) form += fmt::format("{}>{};", edge.from, edge.to);
  return form;
}

void copy_places(const LayoutScope& from, LayoutScope& to) {
  to.width = from.width, to.height = from.height;
  for (std::size_t i = 0; i < to.items.size(); ++i) to.items[i].centre = from.items[i].centre;
  for (std::size_t i = 0; i < to.edges.size(); ++i) to.edges[i].curve = from.edges[i].curve;
}

}  // namespace

std::vector<LayoutScope> layout(const TapeTable& table) {
  const ScopeTree tree(table);
  std::vector<std::size_t> order(tree.size()), place_of(tree.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t s) { return tree[s].depth; });
  std::vector<LayoutScope> scopes;
  for (const std::size_t s : order) {
    place_of[s] = scopes.size();
    scopes.push_back({tree[s].name, tree[s].label});
    if (s != 0) scopes.back().parent = place_of[tree[s].parent];
  }
  Contents(table, tree, scopes, place_of);

  static std::mutex one_at_a_time;  // Graphviz is not made for threads
  const std::scoped_lock lock(one_at_a_time);
  std::map<std::string, std::size_t> done;
  for (std::size_t s = 0; s < scopes.size(); ++s) {
    const auto [same, is_new] = done.try_emplace(form_of(scopes[s]), s);
    if (is_new) {
      DotGraph(scopes[s]).lay_out(scopes[s]);
    } else {
      copy_places(scopes[same->second], scopes[s]);
    }
  }
  return scopes;
}

}  // namespace tapehead
