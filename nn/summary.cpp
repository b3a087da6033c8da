#include <tapehead/nn/summary.h>

#include <algorithm>
#include <array>
#include <ostream>

namespace tapehead {
namespace {

using Row = std::array<std::string, 4>;

// Words to the left, numbers to the right.
std::string line_of(const Row& row, const std::array<std::size_t, 4>& width) {
  std::string line;
  for (std::size_t c = 0; c < row.size(); ++c) {
    const std::string padding(width[c] - row[c].size(), ' ');
    line += (c == 0 ? "" : "  ") + (c < 2 ? row[c] + padding : padding + row[c]);
  }
  return line + "\n";
}

}  // namespace

std::string to_string(const ModelSummary& summary) {
  std::vector<Row> rows = {{"name", "shape", "count", "bytes"}};
  for (const auto& [name, shape, count, bytes] : summary.parameters) {
    rows.push_back({name, to_string(shape), std::to_string(count), std::to_string(bytes)});
  }
  rows.push_back({"total", "", std::to_string(summary.count), std::to_string(summary.bytes)});
  std::array<std::size_t, 4> width{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) text += line_of(row, width);
  return text;
}

std::ostream& operator<<(std::ostream& stream, const ModelSummary& summary) {
  return stream << to_string(summary);
}

}  // namespace tapehead
