#include <tapehead/inspect/attention_places.h>
#include <tapehead/inspect/flops.h>
#include <tapehead/inspect/inspect.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <tapehead/core/errors.h>

namespace tapehead {
namespace {

template <class T>
void add_kept(TapeRow& row, const KeptNode<T>& kept) {
  if (kept.forward) {
    row.forward_start = kept.forward->start;
    row.forward_seconds = kept.forward->seconds;
    row.value = kept.forward->summary;
    row.live_bytes_forward = kept.forward->live_bytes;
    if (kept.forward->array.defined()) row.value_numbers = numbers_of(kept.forward->array);
  }
  if (kept.backward) {
    row.backward_start = kept.backward->start;
    row.backward_seconds = kept.backward->seconds;
    row.gradient = kept.backward->summary;
    row.live_bytes_backward = kept.backward->live_bytes;
    if (kept.backward->array.defined()) row.gradient_numbers = numbers_of(kept.backward->array);
  }
}

template <class T>
TapeRow row_of(const Tape<T>& tape, Index i) {
  const detail::Node<T>& node = tape.node(i);
  TapeRow row;
  row.index = i;
  row.op = node.op.text();
  row.scope = tape.label_path(node.label);
  row.label = node.name ? tape.label_path(node.name) : row.scope;
  row.port = node.port;
  row.input = row.op == "input";
  row.arguments.resize(node.arguments);
  std::vector<std::optional<Shape>> shapes(node.arguments);
  for (std::uint32_t e = 0; e < node.edge_count; ++e) {
    const detail::Edge<T>& edge = tape.edge(node, e);
    row.arguments[edge.slot].node = edge.input;
    shapes[edge.slot] = tape.node(edge.input).shape;
  }
  row.shape = node.shape;
  row.type = sizeof(T) == sizeof(float) ? "f32" : "f64";
  row.bytes = node.shape.size() * static_cast<Index>(sizeof(T));
  row.kept_bytes = static_cast<Index>(node.output.bytes());
  const FlopCount count = flops_of(row.op, shapes, node.shape);
  row.flops = count.flops;
  row.flops_assumed = count.assumed;
  row.remark = tape.remark_of(i);
  if (const KeptNode<T>* kept = tape.kept(i)) add_kept(row, *kept);
  return row;
}

template <class T>
const Array<T>* kept_value(const Tape<T>& tape, Index i) {
  const KeptNode<T>* kept = tape.kept(i);
  return kept && kept->forward && kept->forward->array.defined() ? &kept->forward->array : nullptr;
}

// As (B, H, L, S), without what lies past the S of `like`: the score of an attention sink.
template <class T>
ArrayNumbers heads_of(const Array<T>& x, const Shape& like) {
  ArrayNumbers heads{by_head(x.shape()).with(-1, like.dim(-1)), {}};
  heads.numbers.reserve(static_cast<std::size_t>(heads.shape.size()));
  for (Index row = 0; row < x.size() / x.dim(-1); ++row) {
    const T* from = x.data() + row * x.dim(-1);
    heads.numbers.insert(heads.numbers.end(), from, from + like.dim(-1));
  }
  return heads;
}

template <class T>
std::optional<AttentionTable> attention_table(const Tape<T>& tape, const AttentionPlace& place) {
  const Array<T>* weights = place.weights ? kept_value(tape, *place.weights) : nullptr;
  if (!weights || weights->size() == 0) return {};
  AttentionTable table{place.label, *place.weights, heads_of(*weights, weights->shape()), {}, {}, {}, {}};
  if (const Array<T>* scores = place.masked_scores ? kept_value(tape, *place.masked_scores) : nullptr) {
    table.scores = heads_of(*scores, weights->shape());
  }
  const KeptNode<T>* kept = tape.kept(*place.weights);
  if (kept->backward && kept->backward->array.defined()) {
    table.weight_gradient = heads_of(kept->backward->array, weights->shape());
  }
  return table;
}

// The totals of one list, found by name.
class Totals {
 public:
  explicit Totals(std::vector<TapeTotal>& list) : list_(list) { list_.clear(); }
  void add(const std::string& name, const TapeRow& row) {
    const auto [found, fresh] = places_.try_emplace(name, list_.size());
    if (fresh) list_.push_back({name});
    TapeTotal& total = list_[found->second];
    ++total.nodes;
    total.bytes += row.bytes;
    total.kept_bytes += row.kept_bytes;
    total.flops += row.flops;
    total.forward_seconds += row.forward_seconds.value_or(0);
    total.backward_seconds += row.backward_seconds.value_or(0);
  }

 private:
  std::vector<TapeTotal>& list_;
  std::map<std::string, std::size_t> places_;
};

}  // namespace

template <std::floating_point T>
ArrayNumbers numbers_of(const Array<T>& x) {
  return {x.shape(), std::vector<double>(x.values().begin(), x.values().end())};
}

template <std::floating_point T>
TapeTable inspect(const Tape<T>& tape) {
  TapeTable table;
  table.title = "tape";
  table.rows.reserve(static_cast<std::size_t>(tape.size()));
  for (Index i = 0; i < tape.size(); ++i) table.rows.push_back(row_of(tape, i));
  auto any = [&](auto has) { return std::ranges::any_of(table.rows, has); };
  table.level = any([](const TapeRow& row) { return row.value_numbers || row.gradient_numbers; })
                    ? "everything"
                : any([](const TapeRow& row) { return row.value || row.gradient; }) ? "statistics"
                                                                                    : "rules";
  add_totals(table);
  if (table.level != "everything") return table;
  for (const AttentionPlace& place : attention_places(tape)) {
    if (auto attention = attention_table(tape, place)) table.attention.push_back(std::move(*attention));
  }
  return table;
}

void add_totals(TapeTable& table) {
  Totals ops(table.by_op), labels(table.by_label);
  for (const TapeRow& row : table.rows) {
    ops.add(row.op, row);
    for (std::size_t end = row.scope.empty() ? std::string::npos : 0; end != std::string::npos;) {
      end = row.scope.find('/', end + 1);
      labels.add(row.scope.substr(0, end), row);
    }
  }
}

bool has_label(std::string_view path, std::string_view label) {
  for (std::size_t at = path.find(label); at != std::string_view::npos; at = path.find(label, at + 1)) {
    const std::size_t end = at + label.size();
    if ((at == 0 || path[at - 1] == '/') && (end == path.size() || path[end] == '/')) return true;
  }
  return false;
}

TapeTable only_label(const TapeTable& table, std::string_view label) {
  TapeTable only = table;
  auto other = [&](const auto& part) { return label.empty() || !has_label(part.label, label); };
  std::erase_if(only.rows, other);
  std::erase_if(only.attention, other);
  if (only.rows.empty()) {
    std::string first;
    for (std::size_t i = 0; i < std::min<std::size_t>(table.by_label.size(), 5); ++i) {
      first += (i > 0 ? ", " : "") + table.by_label[i].name;
    }
    throw DomainError("label",
                      fmt::format("no node has '{}'; {}", label,
                                  first.empty() ? "no scope was named" : "the first labels are " + first));
  }
  add_totals(only);
  return only;
}

#define TAPEHEAD_INSTANTIATE(T)                      \
  template ArrayNumbers numbers_of(const Array<T>&); \
  template TapeTable inspect(const Tape<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
