#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/paths.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include <tapehead/core/errors.h>

namespace tapehead {
namespace {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }  // nothing has no direction

// Where the largest magnitude is; 0 when there is none.
std::size_t largest_of(const std::vector<double>& x) {
  const auto found = std::ranges::max_element(x, {}, [](double v) { return std::abs(v); });
  return static_cast<std::size_t>(found - x.begin());
}

void measure(PathRow& row, const std::vector<double>& total) {
  const std::vector<double>& x = row.gradient->numbers;
  const double length = std::sqrt(dot(total, total)), along = dot(x, total);
  row.norm = std::sqrt(dot(x, x));
  row.share = ratio(along, length * length);
  row.cosine = ratio(along, row.norm * length);
  row.largest = 0;
  if (x.empty()) return;
  const std::size_t largest = largest_of(x);
  row.largest = std::abs(x[largest]);
  row.largest_at = position_of(row.gradient->shape, static_cast<Index>(largest));
}

double sum_error(const PathTable& table) {
  const std::vector<double>& total = table.total_numbers->numbers;
  double error = 0;
  for (std::size_t i = 0; i < total.size(); ++i) {
    double sum = 0;
    for (const PathRow& row : table.rows) sum += row.gradient->numbers[i];
    error = std::max(error, std::abs(sum - total[i]));
  }
  return total.empty() ? 0 : ratio(error, std::abs(total[largest_of(total)]));
}

// The scope of a row, "layer 1" of "layer 1/query".
std::string scope_of(const PathRow& row) {
  const std::size_t end = row.label.rfind('/');
  return end == std::string::npos ? std::string() : row.label.substr(0, end);
}

void add(ArrayNumbers& sum, const ArrayNumbers& term) {
  for (std::size_t i = 0; i < sum.numbers.size(); ++i) sum.numbers[i] += term.numbers[i];
}

// Rows of one key become one row of that name; an empty key leaves a row alone.
template <class KeyOf>
std::vector<PathRow> merged(const std::vector<PathRow>& rows, const char* what, KeyOf key_of) {
  std::vector<PathRow> result;
  std::map<std::string, std::size_t> places;
  std::vector<int> counts;
  for (const PathRow& row : rows) {
    const std::string key = key_of(row);
    const auto known = key.empty() ? places.end() : places.find(key);
    if (known == places.end()) {
      if (!key.empty()) places[key] = result.size();
      result.push_back(row);
      counts.push_back(1);
    } else {
      add(*result[known->second].gradient, *row.gradient);
      ++counts[known->second];
    }
  }
  for (const auto& [key, place] : places) {
    if (counts[place] > 1)
      result[place].name = result[place].label = fmt::format("{} ({} {})", key, counts[place], what);
  }
  return result;
}

}  // namespace

template <std::floating_point T>
PathTable inspect_paths(Tape<T>& tape, Index y, Index x, const AttentionPart& part) {
  const bool some = part.head || part.query_row;
  const std::vector<PathGate<T>> gates = some ? attention_gates(tape, part) : std::vector<PathGate<T>>();
  const PathsOfNode<T> paths = gradient_paths<T>(tape, y, x, gates);
  PathTable table;
  table.node = x;
  table.name = tape.label_path(tape.node(x).name ? tape.node(x).name : tape.node(x).label);
  if (table.name.empty()) table.name = fmt::format("%{}", x);
  table.total = summary_of(paths.gradient);
  table.total_numbers = numbers_of(paths.gradient);
  const std::vector<double>& total = table.total_numbers->numbers;
  for (const GradientPath<T>& path : paths.paths) {
    PathRow row{path.name, path.label, path.node};
    if (path.name == "direct") {
      row.label += fmt::format(" (%{} {}, argument {})", path.node, path.op, path.argument);
    }
    row.gradient = numbers_of(path.gradient);
    measure(row, total);
    table.rows.push_back(std::move(row));
  }
  table.sum_error = sum_error(table);
  if (!some) return table;
  table.head = part.head, table.query_row = part.query_row;
  const std::vector<double> whole = numbers_of(gradient_paths<T>(tape, y, x).gradient).numbers;
  table.share_of_gradient = ratio(dot(total, whole), dot(whole, whole));
  return table;
}

template <std::floating_point T>
PathTable inspect_paths(const Var<T>& y, const Var<T>& x, const AttentionPart& part) {
  Tape<T>& tape = Tape<T>::of("inspect_paths", x);
  if (&Tape<T>::of("inspect_paths", y) != &tape) {
    throw LogicError("inspect_paths", "x and y are recorded on two different tapes");
  }
  return inspect_paths(tape, Tape<T>::index_of("inspect_paths", y), Tape<T>::index_of("inspect_paths", x),
                       part);
}

Index node_called(const TapeTable& table, const std::string& name) {
  if (name.starts_with('%')) {
    Index number = -1;
    const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
    const bool fits = error == std::errc() && end == name.data() + name.size() && number >= 0 &&
                      number < static_cast<Index>(table.rows.size());
    if (fits) return number;
    throw DomainError("paths", fmt::format("there is no node '{}': the last one is %{}", name,
                                           static_cast<Index>(table.rows.size()) - 1));
  }
  std::vector<Index> exact, ending, inside;
  for (const TapeRow& row : table.rows) {
    const bool named = (row.input || row.port) && row.label != row.scope;
    if (named && row.label == name) exact.push_back(row.index);
    if (named && row.label.ends_with("/" + name)) ending.push_back(row.index);
    if (row.scope == name || row.scope.starts_with(name + "/")) inside.push_back(row.index);
  }
  for (const std::vector<Index>* found : {&exact, &ending}) {
    if (found->size() == 1) return found->front();
    if (found->size() > 1) {
      throw DomainError("paths", fmt::format("{} nodes are called '{}', %{} and %{} among them; say which",
                                             found->size(), name, (*found)[0], (*found)[1]));
    }
  }
  if (!inside.empty()) return inside.back();
  throw DomainError("paths", fmt::format("no input, port or scope is called '{}'", name));
}

std::vector<Index> shared_values(const TapeTable& table, std::size_t most) {
  std::map<Index, int> readers;
  std::map<std::string, Index> last_of_scope;
  for (const TapeRow& row : table.rows) {
    for (const TapeArgument& argument : row.arguments) {
      if (argument.node) ++readers[*argument.node];
    }
    if (!row.scope.empty()) last_of_scope[row.scope] = row.index;
  }
  std::vector<Index> shared;
  for (const TapeRow& row : table.rows) {
    const bool gives = !row.scope.empty() && last_of_scope[row.scope] == row.index;
    if ((row.input || gives) && readers[row.index] > 1 && shared.size() < most) shared.push_back(row.index);
  }
  return shared;
}

PathTable grouped(const PathTable& table, const std::string& expand, std::size_t most) {
  auto open = [&](const PathRow& row) {
    const std::string scope = scope_of(row);
    return !expand.empty() && (scope == expand || scope.starts_with(expand + "/"));
  };
  if (!expand.empty() && std::ranges::none_of(table.rows, open)) {
    throw DomainError("paths", fmt::format("no path is inside '{}'", expand));
  }
  if (table.rows.size() <= most) return table;
  PathTable result = table;
  result.rows = merged(table.rows, "paths",
                       [&](const PathRow& row) { return open(row) ? std::string() : scope_of(row); });
  const std::vector<double>& total = result.total_numbers->numbers;
  for (PathRow& row : result.rows) measure(row, total);
  const auto closed =
      std::stable_partition(result.rows.begin(), result.rows.end(), open) - result.rows.begin();
  const std::size_t kept = std::max(most, static_cast<std::size_t>(closed) + 1) - 1;
  if (result.rows.size() > most) {
    std::ranges::stable_sort(result.rows.begin() + closed, result.rows.end(), std::greater(), &PathRow::norm);
    const std::string others = "smaller ones";
    std::size_t place = 0;
    result.rows = merged(result.rows, "labels",
                         [&](const PathRow&) { return place++ < kept ? std::string() : others; });
    for (PathRow& row : result.rows) measure(row, total);
  }
  std::ranges::stable_sort(result.rows, {}, &PathRow::node);
  return result;
}

#define TAPEHEAD_INSTANTIATE(T)                                                         \
  template PathTable inspect_paths(const Var<T>&, const Var<T>&, const AttentionPart&); \
  template PathTable inspect_paths(Tape<T>&, Index, Index, const AttentionPart&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
