#include <tapehead/inspect/scope_tree.h>

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

namespace tapehead {
namespace {

constexpr std::size_t most_items = 100, items_of_part = 50;

}  // namespace

// What is directly in a scope: a node, or another scope.
struct ScopeTree::Item {
  Index first;  // node
  bool is_scope;
  std::size_t id;
};

ScopeTree::ScopeTree(const TapeTable& table) : scopes_(1), home_(table.rows.size()) {
  enter(table);
  // Inputs come after, so that each goes to the part that reads it.
  cut_long_scopes(table, Which::ops);
  place_inputs(table);
  cut_long_scopes(table, Which::all);
}

std::size_t ScopeTree::common(std::size_t a, std::size_t b) const {
  while (a != b) {
    std::size_t& deeper = scopes_[a].depth >= scopes_[b].depth ? a : b;
    deeper = scopes_[deeper].parent;
  }
  return a;
}

std::size_t ScopeTree::child(std::size_t parent, std::string_view name, std::string_view label) {
  const auto [found, is_new] = children_.try_emplace({parent, std::string(name)}, scopes_.size());
  if (is_new) scopes_.push_back({std::string(name), std::string(label), parent});
  return found->second;
}

std::size_t ScopeTree::of_label(std::string_view label) {
  std::size_t scope = 0;
  for (std::size_t start = 0; start < label.size();) {
    const std::size_t end = std::min(label.find('/', start), label.size());
    scope = child(scope, label.substr(start, end - start), label.substr(0, end));
    start = end + 1;
  }
  return scope;
}

void ScopeTree::enter(const TapeTable& table) {
  for (std::size_t i = 0; i < home_.size(); ++i) home_[i] = of_label(table.rows[i].scope);
  note_nodes();
  note_depths();
}

void ScopeTree::place_inputs(const TapeTable& table) {
  std::vector<std::optional<std::size_t>> read_in(home_.size());
  for (std::size_t i = 0; i < home_.size(); ++i) {
    for (const TapeArgument& argument : table.rows[i].arguments) {
      if (!argument.node) continue;
      auto& scope = read_in[static_cast<std::size_t>(*argument.node)];
      scope = scope ? common(*scope, home_[i]) : home_[i];
    }
  }
  for (std::size_t i = 0; i < home_.size(); ++i) {
    const bool inward = read_in[i] && common(*read_in[i], home_[i]) == home_[i];
    if (table.rows[i].input && inward) home_[i] = *read_in[i];
  }
  note_nodes();
}

void ScopeTree::cut_long_scopes(const TapeTable& table, Which which) {
  for (bool again = true; again;) {
    again = false;
    std::vector<std::vector<Item>> inside(scopes_.size());
    for (std::size_t s = 1; s < scopes_.size(); ++s) {
      inside[scopes_[s].parent].push_back({scopes_[s].first, true, s});
    }
    for (std::size_t i = 0; i < home_.size(); ++i) {
      if (which == Which::ops && table.rows[i].input) continue;
      inside[home_[i]].push_back({static_cast<Index>(i), false, i});
    }
    for (std::size_t s = 0; s < inside.size(); ++s) {
      if (inside[s].size() <= most_items) continue;
      std::ranges::sort(inside[s], {}, &Item::first);
      cut(table, s, inside[s]);
      again = true;
    }
    note_nodes();
    note_depths();
  }
}

void ScopeTree::cut(const TapeTable& table, std::size_t scope, const std::vector<Item>& items) {
  for (std::size_t start = 0; start < items.size(); start += items_of_part) {
    const Item& first = items[start];
    const std::size_t end = std::min(start + items_of_part, items.size());
    const std::size_t part = scopes_.size();
    scopes_.push_back({part_name(table, first, items[end - 1]), scopes_[scope].label, scope, 0, true});
    for (std::size_t i = start; i < end; ++i) {
      (items[i].is_scope ? scopes_[items[i].id].parent : home_[items[i].id]) = part;
    }
  }
}

std::string ScopeTree::part_name(const TapeTable& table, const Item& first, const Item& last) const {
  auto labelled = [&](const Item& item) { return item.is_scope && !scopes_[item.id].part; };
  if (labelled(first) && labelled(last)) {
    return fmt::format("{} to {}", scopes_[first.id].name, scopes_[last.id].name);
  }
  const Index end = last.is_scope ? scopes_[last.id].last : last.first;
  auto number = [&](Index place) { return table.rows[static_cast<std::size_t>(place)].index; };
  return fmt::format("%{} to %{}", number(first.first), number(end));
}

void ScopeTree::note_nodes() {
  for (Scope& scope : scopes_) scope.first = std::numeric_limits<Index>::max(), scope.last = 0;
  for (std::size_t i = 0; i < home_.size(); ++i) {
    for (std::size_t s = home_[i];; s = scopes_[s].parent) {
      scopes_[s].first = std::min(scopes_[s].first, static_cast<Index>(i));
      scopes_[s].last = static_cast<Index>(i);
      if (s == 0) break;
    }
  }
}

void ScopeTree::note_depths() {
  for (std::size_t s = 0; s < scopes_.size(); ++s) {
    scopes_[s].depth = 0;
    for (std::size_t up = s; up != 0; up = scopes_[up].parent) ++scopes_[s].depth;
  }
}

}  // namespace tapehead
