#include <tapehead/inspect/attention_places.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <tapehead/core/errors.h>

namespace tapehead {
namespace {

template <class T>
bool is_op(const Tape<T>& tape, Index i, std::string_view op) {
  return i < tape.size() && tape.node(i).op.text() == op;
}

// The node that is the argument, when it is recorded.
template <class T>
std::optional<Index> argument(const Tape<T>& tape, Index i, std::uint32_t slot) {
  const detail::Node<T>& node = tape.node(i);
  for (std::uint32_t e = 0; e < node.edge_count; ++e) {
    const detail::Edge<T>& edge = tape.edge(node, e);
    if (edge.slot == slot) return edge.input;
  }
  return {};
}

template <class T>
bool follows(const Tape<T>& tape, Index i, std::string_view op) {  // the node after i is that op of i
  return is_op(tape, i + 1, op) && argument(tape, i + 1, 0) == i;
}

// Past the softmax, rows without a key lose their weights, and the column of an attention sink goes. Dropout,
// too, is a masked_fill, and is followed by a product.
template <class T>
Index weights_from(const Tape<T>& tape, Index softmax) {
  Index i = softmax;
  if (follows(tape, i, "masked_fill") && !follows(tape, i + 1, "mul")) ++i;
  return follows(tape, i, "slice") ? i + 1 : i;
}

template <class T>
void find_weights(const Tape<T>& tape, AttentionPlace& place) {
  for (Index i = place.ports.empty() ? place.output : place.ports.front(); i < place.output; ++i) {
    if (!is_op(tape, i, "softmax")) continue;
    place.weights = weights_from(tape, i);
    place.masked_scores = argument(tape, i, 0);
    if (place.masked_scores && is_op(tape, *place.masked_scores, "concat")) {
      place.masked_scores = argument(tape, *place.masked_scores, 0);
    }
    return;
  }
}

template <class T>
bool is_attention_port(const Tape<T>& tape, Index i) {
  const detail::Node<T>& node = tape.node(i);
  const std::string_view name = tape.label_name(node.name);
  return node.port && (name == "query" || name == "key" || name == "value");
}

void number_labels(std::vector<AttentionPlace>& places) {
  std::map<std::string, int> count, seen;
  for (const AttentionPlace& place : places) ++count[place.label];
  for (AttentionPlace& place : places) {
    if (count[place.label] == 1) continue;
    const int number = ++seen[place.label];
    place.label = fmt::format("{} ({})", place.label, number);
  }
}

// dy with 0 outside of the part.
template <class T>
Array<T> part_of(const Array<T>& dy, const AttentionPart& part) {
  const Shape shape = by_head(dy.shape());
  auto kept = Array<T>::zeros(dy.shape());
  T* const out = kept.mutable_values().data();
  for (Index row = 0; row < shape.size() / std::max<Index>(shape[3], 1); ++row) {
    const Index head = row / shape[2] % shape[1];
    if ((part.head && *part.head != head) || (part.query_row && *part.query_row != row % shape[2])) continue;
    std::copy_n(dy.data() + row * shape[3], shape[3], out + row * shape[3]);
  }
  return kept;
}

}  // namespace

Shape by_head(const Shape& shape) {
  const int rank = shape.rank();
  const Index rows = rank >= 2 ? shape.dim(-2) : 1, columns = rank >= 1 ? shape.dim(-1) : 1;
  return {shape.first(std::max(rank >= 4 ? rank - 3 : rank - 2, 0)).size(), rank >= 4 ? shape.dim(-3) : 1,
          rows, columns};
}

template <std::floating_point T>
std::vector<AttentionPlace> attention_places(const Tape<T>& tape) {
  std::vector<AttentionPlace> places;
  AttentionPlace next;
  for (Index i = 0; i < tape.size(); ++i) {
    if (is_attention_port(tape, i)) {
      // Ports of one name twice: what came before belongs to no attention that says so.
      const auto same = std::ranges::find_if(
          next.ports, [&](Index port) { return tape.node(port).name == tape.node(i).name; });
      if (same != next.ports.end()) next.ports.clear();
      next.ports.push_back(i);
    }
    const std::string_view remark = tape.remark_of(i);
    if (!remark.starts_with("composed") && !remark.starts_with("fused")) continue;
    next.output = i;
    next.label = tape.label_path(tape.node(i).label);
    if (next.label.empty()) next.label = "attention";
    next.heads_known = !remark.starts_with("fused") || tape.node(i).shape.rank() >= 4;
    find_weights(tape, next);
    places.push_back(std::exchange(next, {}));
  }
  number_labels(places);
  return places;
}

template <std::floating_point T>
std::vector<PathGate<T>> attention_gates(const Tape<T>& tape, const AttentionPart& part) {
  const std::vector<AttentionPlace> places = attention_places(tape);
  std::vector<PathGate<T>> gates;
  Index heads = 0, rows = 0;
  for (const AttentionPlace& place : places) {
    if (part.head && !place.heads_known) {
      throw DomainError("inspect_paths",
                        fmt::format("the heads of '{}' are not told apart, since the fused kernel "
                                    "ran on {}; ask for the composed attention",
                                    place.label, to_string(tape.node(place.output).shape)));
    }
    const Shape shape = by_head(tape.node(place.output).shape);
    heads = std::max(heads, shape[1]), rows = std::max(rows, shape[2]);
    if (part.head.value_or(0) >= shape[1] || part.query_row.value_or(0) >= shape[2]) continue;
    gates.push_back({place.output, place.ports, [part](const Array<T>& dy) { return part_of(dy, part); }});
  }
  const bool negative = part.head.value_or(0) < 0 || part.query_row.value_or(0) < 0;
  if (places.empty()) throw DomainError("inspect_paths", "there is no attention on the tape");
  if (!gates.empty() && !negative) return gates;
  const std::string head = part.head ? fmt::format("head {}", *part.head) : "",
                    row = part.query_row ? fmt::format("query row {}", *part.query_row) : "";
  throw DomainError("inspect_paths",
                    fmt::format("no attention has {}{}{}: there are heads 0 to {} and query rows 0 to {}",
                                head, part.head && part.query_row ? " and " : "", row, heads - 1, rows - 1));
}

#define TAPEHEAD_INSTANTIATE(T)                                          \
  template std::vector<AttentionPlace> attention_places(const Tape<T>&); \
  template std::vector<PathGate<T>> attention_gates(const Tape<T>&, const AttentionPart&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
