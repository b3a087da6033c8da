#include <tapehead/inspect/columns.h>
#include <tapehead/inspect/diff.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tapehead {
namespace {

using Json = nlohmann::ordered_json;

// The pairs (i, j) of a longest common subsequence. Myers, "An O(ND) difference algorithm and its
// variations", 1986: cheap when little changed. Where much did, what is left past `most` differences is
// matched greedily.
class Matching {
 public:
  Matching(const std::vector<TapeRow>& a, const std::vector<TapeRow>& b) : a_(a), b_(b) {}

  std::vector<std::pair<Index, Index>> pairs() {
    const Index n = std::ssize(a_), m = std::ssize(b_);
    std::vector<std::vector<Index>> rounds;
    std::vector<Index> reach(static_cast<std::size_t>(2 * (n + m) + 3), 0);
    const Index zero = n + m + 1;
    auto at = [&](Index k) -> Index& { return reach[static_cast<std::size_t>(zero + k)]; };
    for (Index d = 0; d <= std::min(n + m, most); ++d) {
      for (Index k = -d; k <= d; k += 2) {
        Index i = k == -d || (k != d && at(k - 1) < at(k + 1)) ? at(k + 1) : at(k - 1) + 1;
        while (i < n && i - k < m && same(i, i - k)) ++i;
        at(k) = i;
        if (i < n || i - k < m) continue;
        rounds.push_back(window(reach, zero, d));
        return walked_back(rounds, n, m);
      }
      rounds.push_back(window(reach, zero, d));
    }
    return next_alike();
  }

 private:
  static constexpr Index most = 1000;

  bool same(Index i, Index j) const {
    const TapeRow &p = a_[static_cast<std::size_t>(i)], &q = b_[static_cast<std::size_t>(j)];
    return p.op == q.op && p.label == q.label;
  }

  std::vector<std::pair<Index, Index>> next_alike() const {
    constexpr Index ahead = 256;
    std::vector<std::pair<Index, Index>> pairs;
    Index next = 0;
    for (Index i = 0; i < std::ssize(a_); ++i) {
      const Index end = std::min(std::ssize(b_), next + ahead);
      Index j = next;
      while (j < end && !same(i, j)) ++j;
      if (j == end) continue;
      pairs.emplace_back(i, j);
      next = j + 1;
    }
    return pairs;
  }

  // The reach of round d: only k from -d to d was touched.
  static std::vector<Index> window(const std::vector<Index>& reach, Index zero, Index d) {
    return {reach.begin() + zero - d, reach.begin() + zero + d + 1};
  }

  std::vector<std::pair<Index, Index>> walked_back(const std::vector<std::vector<Index>>& rounds, Index i,
                                                   Index j) const {
    std::vector<std::pair<Index, Index>> pairs;
    for (Index d = std::ssize(rounds) - 1; d > 0; --d) {
      const std::vector<Index>& before = rounds[static_cast<std::size_t>(d - 1)];
      auto reach = [&](Index k) {
        return std::abs(k) < d ? before[static_cast<std::size_t>(k + d - 1)] : -1;
      };
      const Index k = i - j;
      const bool down = k == -d || (k != d && reach(k - 1) < reach(k + 1));
      const Index from_k = down ? k + 1 : k - 1, from_i = reach(from_k), from_j = from_i - from_k;
      while (i > from_i && j > from_j) pairs.emplace_back(--i, --j);
      i = from_i, j = from_j;
    }
    while (i > 0 && j > 0) pairs.emplace_back(--i, --j);
    std::ranges::reverse(pairs);
    return pairs;
  }

  const std::vector<TapeRow>&a_, &b_;
};

bool close(double a, double b, double tolerance) {
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

void compare(NodeChange& change, const char* of, const std::optional<ArraySummary>& a,
             const std::optional<ArraySummary>& b, double tolerance) {
  if (!a || !b) return;
  // What cancels is small by chance: it is held to the size of what is summed.
  const double scale =
      std::max({std::abs(a->least), std::abs(a->largest), std::abs(b->least), std::abs(b->largest)});
  auto number = [&](const char* name, double p, double q, double slack) {
    if (close(p, q, tolerance) || std::abs(p - q) <= slack) return;
    change.what.push_back(fmt::format("{} {} {:.6g} -> {:.6g}", of, name, p, q));
  };
  number("least", a->least, b->least, tolerance * scale);
  number("largest", a->largest, b->largest, tolerance * scale);
  number("mean", a->mean, b->mean, tolerance * scale);
  number("norm", a->norm, b->norm, 0);
  if (a->nans != b->nans) change.what.push_back(fmt::format("{} NaN {} -> {}", of, a->nans, b->nans));
  if (a->infinities != b->infinities) {
    change.what.push_back(fmt::format("{} infinite {} -> {}", of, a->infinities, b->infinities));
  }
}

std::string named(const std::string& remark) { return remark.empty() ? "none" : remark; }

TapeTotal sum_of(const TapeTable& table) {
  TapeTotal sum{"all"};
  for (const TapeTotal& total : table.by_op) {
    sum.nodes += total.nodes, sum.bytes += total.bytes, sum.kept_bytes += total.kept_bytes;
    sum.flops += total.flops;
    sum.forward_seconds += total.forward_seconds, sum.backward_seconds += total.backward_seconds;
  }
  return sum;
}

std::vector<TotalChange> totals_of(const TapeTable& before, const TapeTable& after) {
  std::vector<TotalChange> changes;
  std::map<std::string, std::size_t> places;
  auto add = [&](const std::vector<TapeTotal>& totals, TapeTotal TotalChange::*side) {
    for (const TapeTotal& total : totals) {
      const auto [found, fresh] = places.try_emplace(total.name, changes.size());
      if (fresh) changes.push_back({total.name, {total.name}, {total.name}});
      changes[found->second].*side = total;
    }
  };
  add(before.by_op, &TotalChange::before);
  add(after.by_op, &TotalChange::after);
  return changes;
}

std::string both(const std::string& before, const std::string& after) {
  return before == after ? before : before + " -> " + after;
}

Json json_of(const TapeTotal& total) {
  return {{"nodes", total.nodes},
          {"bytes", total.bytes},
          {"flops", total.flops},
          {"forward_seconds", total.forward_seconds},
          {"backward_seconds", total.backward_seconds}};
}

}  // namespace

TapeDiff diff(const TapeTable& before, const TapeTable& after, double tolerance) {
  TapeDiff result;
  const auto pairs = Matching(before.rows, after.rows).pairs();
  std::vector<Index> counterpart(before.rows.size(), -1);  // rows by place, not by index
  for (const auto& [i, j] : pairs) counterpart[static_cast<std::size_t>(i)] = j;
  std::map<Index, Index> row_before, row_after;  // place of a node
  for (std::size_t i = 0; i < before.rows.size(); ++i)
    row_before[before.rows[i].index] = static_cast<Index>(i);
  for (std::size_t j = 0; j < after.rows.size(); ++j) row_after[after.rows[j].index] = static_cast<Index>(j);
  auto reads_other = [&](const TapeRow& a, const TapeRow& b) {
    if (a.arguments.size() != b.arguments.size()) return true;
    for (std::size_t k = 0; k < a.arguments.size(); ++k) {
      const auto &p = a.arguments[k].node, &q = b.arguments[k].node;
      if (p.has_value() != q.has_value()) return true;
      if (!p || !row_before.count(*p) || !row_after.count(*q)) continue;
      if (counterpart[static_cast<std::size_t>(row_before[*p])] != row_after[*q]) return true;
    }
    return false;
  };
  auto one_sided = [&](const std::vector<TapeRow>& rows, Index from, Index to, Index NodeChange::*side) {
    for (Index i = from; i < to; ++i) {
      const TapeRow& row = rows[static_cast<std::size_t>(i)];
      NodeChange change{-1, -1, row.op, row.label, {}};
      change.*side = row.index;
      result.nodes.push_back(std::move(change));
    }
  };
  Index next_before = 0, next_after = 0;
  for (const auto& [i, j] : pairs) {
    one_sided(before.rows, next_before, i, &NodeChange::before);
    one_sided(after.rows, next_after, j, &NodeChange::after);
    next_before = i + 1, next_after = j + 1;
    const TapeRow &a = before.rows[static_cast<std::size_t>(i)], &b = after.rows[static_cast<std::size_t>(j)];
    NodeChange change{a.index, b.index, a.op, a.label, {}};
    if (a.shape != b.shape)
      change.what.push_back("shape " + to_string(a.shape) + " -> " + to_string(b.shape));
    if (a.type != b.type) change.what.push_back("type " + a.type + " -> " + b.type);
    if (a.remark != b.remark) change.what.push_back("kernel " + named(a.remark) + " -> " + named(b.remark));
    if (reads_other(a, b)) change.what.push_back("reads other nodes");
    compare(change, "value", a.value, b.value, tolerance);
    compare(change, "gradient", a.gradient, b.gradient, tolerance);
    if (change.what.empty()) {
      ++result.same;
    } else {
      result.nodes.push_back(std::move(change));
    }
  }
  one_sided(before.rows, next_before, std::ssize(before.rows), &NodeChange::before);
  one_sided(after.rows, next_after, std::ssize(after.rows), &NodeChange::after);
  result.all = {"all", sum_of(before), sum_of(after)};
  result.by_op = totals_of(before, after);
  return result;
}

void write_diff(std::ostream& out, const TapeDiff& changes, const TextOptions& options) {
  constexpr Index most = 40;
  Index gone = 0, fresh = 0, changed = 0, shown = 0;
  for (const NodeChange& node : changes.nodes) {
    ++(node.after < 0 ? gone : node.before < 0 ? fresh : changed);
    if (shown++ >= most) continue;
    const char* colour = !options.colour   ? ""
                         : node.after < 0  ? "\x1b[31m"
                         : node.before < 0 ? "\x1b[32m"
                                           : "";
    const std::string place = node.after < 0    ? fmt::format("- %{}", node.before)
                              : node.before < 0 ? fmt::format("+ %{}", node.after)
                                                : fmt::format("  %{} -> %{}", node.before, node.after);
    out << colour << place << " " << node.op << (node.label.empty() ? "" : " ") << node.label;
    for (std::size_t i = 0; i < node.what.size(); ++i) out << (i > 0 ? ", " : ": ") << node.what[i];
    out << (*colour ? "\x1b[0m" : "") << "\n";
  }
  if (shown > most) out << fmt::format("and {} more, which --json lists\n", shown - most);
  out << fmt::format("{} nodes the same, {} changed, {} gone, {} new\n\n", changes.same, changed, gone,
                     fresh);
  std::vector<TotalChange> rows = changes.by_op;
  rows.push_back(changes.all);
  std::vector<Column> columns;
  auto add = [&](const char* name, bool right, int importance, auto text_of) {
    Column column{name, right, importance};
    for (const TotalChange& row : rows) column.cells.push_back(text_of(row));
    columns.push_back(std::move(column));
  };
  add("by op", false, 9, [](const TotalChange& row) { return row.name; });
  add("nodes", true, 9, [](const TotalChange& row) {
    return both(std::to_string(row.before.nodes), std::to_string(row.after.nodes));
  });
  add("FLOPs", true, 7,
      [](const TotalChange& row) { return both(count_text(row.before.flops), count_text(row.after.flops)); });
  auto seconds = [](double TapeTotal::*member) {
    return [member](const TotalChange& row) {
      return both(seconds_text(row.before.*member), seconds_text(row.after.*member));
    };
  };
  if (changes.all.before.forward_seconds + changes.all.after.forward_seconds > 0) {
    add("forward", true, 8, seconds(&TapeTotal::forward_seconds));
    add("backward", true, 8, seconds(&TapeTotal::backward_seconds));
  }
  write_columns(out, std::move(columns), options.width, {options.colour});
}

void write_diff_json(std::ostream& out, const TapeDiff& changes) {
  Json nodes = Json::array(), by_op = Json::array();
  auto place = [](Index i) { return i < 0 ? Json(nullptr) : Json(i); };
  for (const NodeChange& node : changes.nodes) {
    nodes.push_back({{"before", place(node.before)},
                     {"after", place(node.after)},
                     {"op", node.op},
                     {"label", node.label},
                     {"what", node.what}});
  }
  for (const TotalChange& total : changes.by_op) {
    by_op.push_back(
        {{"name", total.name}, {"before", json_of(total.before)}, {"after", json_of(total.after)}});
  }
  const Json json = {
      {"schema", "tapehead-inspect-diff"},
      {"version", 1},
      {"same", changes.same},
      {"nodes", nodes},
      {"all", {{"before", json_of(changes.all.before)}, {"after", json_of(changes.all.after)}}},
      {"by_op", by_op}};
  out << json.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace tapehead
