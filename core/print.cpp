#include <tapehead/core/print.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <vector>

namespace tapehead {
namespace {

using Row = std::array<std::string, 6>;

std::string node_name(Index i) { return std::to_string(i).insert(0, 1, '%'); }

template <class T>
Row row_of(const Tape<T>& tape, Index i) {
  const detail::Node<T>& node = tape.node(i);
  std::vector<std::string> arguments(node.arguments, "-");
  for (std::uint32_t e = 0; e < node.edge_count; ++e) {
    arguments[tape.edge(node, e).slot] = node_name(tape.edge(node, e).input);
  }
  std::string inputs;
  for (const std::string& argument : arguments) inputs += (inputs.empty() ? "" : ", ") + argument;
  return {node_name(i), std::string(node.op.text()), tape.label_path(node.name ? node.name : node.label),
          inputs,       to_string(node.shape),       std::string(tape.remark_of(i))};
}

}  // namespace

template <std::floating_point T>
std::string to_string(const Tape<T>& tape) {
  std::vector<Row> rows = {{"node", "op", "label", "inputs", "shape", ""}};
  Index inputs = 0, kept = 0;
  std::size_t kept_bytes = 0;
  for (Index i = 0; i < tape.size(); ++i) {
    rows.push_back(row_of(tape, i));
    inputs += tape.node(i).arguments == 0;
    kept += tape.node(i).output.defined();
    kept_bytes += tape.node(i).output.bytes();
  }
  std::array<std::size_t, 6> width{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(width[c] - row[c].size(), ' ');
      line += c == 0 ? padding + row[c] : "  " + row[c] + padding;  // numbers to the right, words to the left
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text + std::to_string(tape.size()) + " nodes: " + std::to_string(inputs) + " inputs, " +
         std::to_string(tape.size() - inputs) + " ops; " + std::to_string(kept) +
         " outputs kept for rules, " + std::to_string(kept_bytes) + " bytes\n";
}

template <std::floating_point T>
std::ostream& operator<<(std::ostream& stream, const Tape<T>& tape) {
  return stream << to_string(tape);
}

template <std::floating_point T>
void print(const Tape<T>& tape) {
  std::cout << to_string(tape) << std::flush;
}

template std::string to_string(const Tape<float>&);
template std::string to_string(const Tape<double>&);
template std::ostream& operator<<(std::ostream&, const Tape<float>&);
template std::ostream& operator<<(std::ostream&, const Tape<double>&);
template void print(const Tape<float>&);
template void print(const Tape<double>&);

}  // namespace tapehead
