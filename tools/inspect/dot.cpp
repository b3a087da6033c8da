#include <tapehead/inspect/dot.h>

#include <map>
#include <ostream>
#include <set>

#include <fmt/format.h>

namespace tapehead {
namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    const bool control = static_cast<unsigned char>(c) < 0x20;
    result += control ? ' ' : c;
  }
  return result + "\"";
}

// The scopes as they contain each other.
struct Cluster {
  std::map<std::string, Cluster> inner;
  std::vector<const TapeRow*> rows;
};

std::string name_of(const TapeRow& row) {
  if (row.label == row.scope) return {};
  return row.scope.empty() ? row.label : row.label.substr(row.scope.size() + 1);
}

std::string_view fill_of(const TapeRow& row) {
  if (row.input) return "#e8eef7";
  if (row.port) return "#fdebc8";
  return row.op == "softmax" || row.op == "fused_attention" ? "#dcefe0" : "#ffffff";
}

class Writer {
 public:
  explicit Writer(std::ostream& out) : out_(out) {}

  void write(const std::string& name, const Cluster& cluster, int depth) {
    const std::string indent(2 * static_cast<std::size_t>(depth), ' ');
    for (const TapeRow* row : cluster.rows) write_node(*row, indent);
    for (const auto& [inner_name, inner] : cluster.inner) {
      const std::string path = name.empty() ? inner_name : name + "/" + inner_name;
      out_ << fmt::format(
          "{}subgraph {} {{\n{}  label={}; style=rounded; color=\"#8a94a6\"; fontcolor=\"#4a5568\";\n",
          indent, quoted("cluster " + path), indent, quoted(inner_name));
      write(path, inner, depth + 1);
      out_ << indent << "}\n";
    }
  }

 private:
  void write_node(const TapeRow& row, const std::string& indent) {
    const std::string name = name_of(row);
    const std::string first = row.input && !name.empty() ? name : row.op + (name.empty() ? "" : " " + name);
    std::string label = quoted(fmt::format("%{} {}", row.index, first));
    label.insert(label.size() - 1, "\\n" + to_string(row.shape));
    out_ << fmt::format("{}n{} [label={}, fillcolor=\"{}\"{}];\n", indent, row.index, label, fill_of(row),
                        row.input ? ", shape=ellipse" : "");
  }

  std::ostream& out_;
};

}  // namespace

void write_dot(std::ostream& out, const TapeTable& table) {
  Cluster root;
  std::set<Index> shown;
  for (const TapeRow& row : table.rows) {
    Cluster* cluster = &root;
    for (std::size_t begin = 0, end; begin < row.scope.size(); begin = end + 1) {
      end = std::min(row.scope.find('/', begin), row.scope.size());
      cluster = &cluster->inner[row.scope.substr(begin, end - begin)];
    }
    cluster->rows.push_back(&row);
    shown.insert(row.index);
  }
  out << "digraph tape {\n"
         "  graph [rankdir=TB, nodesep=0.25, ranksep=0.35, fontname=\"Helvetica\", fontsize=12];\n"
         "  node [shape=box, style=\"filled,rounded\", fontname=\"Helvetica\", fontsize=11, height=0.4, "
         "color=\"#5b6472\"];\n"
         "  edge [color=\"#5b6472\", arrowsize=0.7];\n";
  Writer(out).write("", root, 1);
  for (const TapeRow& row : table.rows) {
    for (const TapeArgument& argument : row.arguments) {
      if (argument.node && shown.count(*argument.node) > 0) {
        out << fmt::format("  n{} -> n{};\n", *argument.node, row.index);
      }
    }
  }
  out << "}\n";
}

}  // namespace tapehead
