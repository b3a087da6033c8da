#include <tapehead/inspect/columns.h>
#include <tapehead/inspect/paths.h>
#include <tapehead/inspect/text.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ostream>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace tapehead {
namespace {

constexpr int always = 100;

// Three digits and a unit: 12.3 k.
std::string in_units(double number, double step, std::initializer_list<const char*> units) {
  auto unit = units.begin();
  while (std::abs(number) >= step * 0.9995 && unit + 1 != units.end()) number /= step, ++unit;
  const bool whole = unit == units.begin() && number == std::floor(number);
  std::string text = whole ? fmt::format("{:.0f}", number)
                           : fmt::format("{:.{}f}", number,
                                         number < 9.995   ? 2
                                         : number < 99.95 ? 1
                                                          : 0);
  return **unit ? text + " " + *unit : text;
}

std::string number_text(double number) { return fmt::format("{:.3g}", number); }

std::string arguments_text(const TapeRow& row) {
  std::string text;
  for (const TapeArgument& argument : row.arguments) {
    text += text.empty() ? "" : ", ";
    text += argument.node ? fmt::format("%{}", *argument.node) : "-";
  }
  return text;
}

std::string optional_seconds(const std::optional<double>& seconds) {
  return seconds ? seconds_text(*seconds) : "";
}

Index nonfinite_in(const std::optional<ArraySummary>& summary) {
  return summary ? summary->nans + summary->infinities : 0;
}

std::string nonfinite_text(const TapeRow& row) {
  if (!row.value && !row.gradient) return "";
  const Index value = nonfinite_in(row.value), gradient = nonfinite_in(row.gradient);
  return gradient > 0 ? fmt::format("{}, {} in gradient", value, gradient) : fmt::format("{}", value);
}

// A table of rows, column by column.
template <class Row>
class Sheet {
 public:
  explicit Sheet(const std::vector<Row>& rows) : rows_(rows) {}
  template <class TextOf>
  void add(const char* name, bool right, int importance, TextOf text_of, std::size_t least = 0) {
    Column column{name, right, importance, least};
    for (const Row& row : rows_) column.cells.push_back(text_of(row));
    columns_.push_back(std::move(column));
  }
  std::vector<std::string> write(std::ostream& out, const TextOptions& options,
                                 std::vector<bool> alarming = {}) && {
    return write_columns(out, std::move(columns_), options.width, {options.colour, std::move(alarming)});
  }

 private:
  const std::vector<Row>& rows_;
  std::vector<Column> columns_;
};

void write_nodes(std::ostream& out, const TapeTable& table, const TextOptions& options) {
  Sheet<TapeRow> sheet(table.rows);
  auto summary = [&](const char* name, int importance, auto member) {
    sheet.add(name, true, importance,
              [=](const TapeRow& row) { return row.value ? number_text((*row.value).*member) : ""; });
  };
  sheet.add("node", true, always, [](const TapeRow& row) { return fmt::format("%{}", row.index); });
  sheet.add(
      "op", false, always, [](const TapeRow& row) { return row.op; }, 12);
  sheet.add(
      "label", false, always, [](const TapeRow& row) { return row.label; }, 16);
  sheet.add("inputs", false, 90, arguments_text, 10);
  sheet.add("shape", false, 95, [](const TapeRow& row) { return to_string(row.shape); });
  sheet.add("type", false, 5, [](const TapeRow& row) { return row.type; });
  sheet.add("bytes", true, 50, [](const TapeRow& row) { return bytes_text(static_cast<double>(row.bytes)); });
  sheet.add("kept", true, 10, [](const TapeRow& row) {
    return row.kept_bytes > 0 ? bytes_text(static_cast<double>(row.kept_bytes)) : "";
  });
  sheet.add("FLOPs", true, 55, [](const TapeRow& row) {
    return fmt::format("{}{}", row.flops_assumed ? "~" : "", count_text(row.flops));
  });
  sheet.add("forward", true, 80, [](const TapeRow& row) { return optional_seconds(row.forward_seconds); });
  sheet.add("backward", true, 75, [](const TapeRow& row) { return optional_seconds(row.backward_seconds); });
  sheet.add("range", false, 45, [](const TapeRow& row) {
    return row.value ? fmt::format("{:.3g} to {:.3g}", row.value->least, row.value->largest) : "";
  });
  summary("mean", 31, &ArraySummary::mean);
  summary("spread", 30, &ArraySummary::spread);
  sheet.add("not finite", true, 40, nonfinite_text);
  sheet.add("|gradient|", true, 70,
            [](const TapeRow& row) { return row.gradient ? number_text(row.gradient->norm) : ""; });
  sheet.add(
      "kernel", false, 60, [](const TapeRow& row) { return row.remark; }, 20);
  std::vector<bool> alarming;
  for (const TapeRow& row : table.rows) {
    alarming.push_back(nonfinite_in(row.gradient) > 0 || (row.value && row.value->nans > 0));
  }
  const std::vector<std::string> left_out = std::move(sheet).write(out, options, std::move(alarming));
  if (!left_out.empty()) {
    out << "Not shown for want of room: ";
    for (std::size_t i = 0; i < left_out.size(); ++i) out << (i > 0 ? ", " : "") << left_out[i];
    out << ".\n";
  }
  if (std::ranges::any_of(table.rows, &TapeRow::flops_assumed)) {
    out << "~ The FLOPs of this op are not known: one is counted for each element of its output.\n";
  }
}

void write_sum(std::ostream& out, const TapeTable& table) {
  TapeTotal sum;
  for (const TapeTotal& total : table.by_op) {
    sum.nodes += total.nodes, sum.bytes += total.bytes, sum.kept_bytes += total.kept_bytes;
    sum.flops += total.flops;
    sum.forward_seconds += total.forward_seconds, sum.backward_seconds += total.backward_seconds;
  }
  out << fmt::format("{} nodes: outputs {}, of them kept for rules {}; {} FLOPs forward", sum.nodes,
                     bytes_text(static_cast<double>(sum.bytes)),
                     bytes_text(static_cast<double>(sum.kept_bytes)), count_text(sum.flops));
  if (table.level != "rules") {
    out << fmt::format("; forward {}, backward {}", seconds_text(sum.forward_seconds),
                       seconds_text(sum.backward_seconds));
  }
  out << "\n";
}

void write_totals(std::ostream& out, const char* title, const std::vector<TapeTotal>& totals, bool timed,
                  const TextOptions& options) {
  if (totals.empty()) return;
  out << "\n";
  Sheet<TapeTotal> sheet(totals);
  sheet.add(
      title, false, always, [](const TapeTotal& total) { return total.name; }, 12);
  sheet.add("nodes", true, always, [](const TapeTotal& total) { return fmt::format("{}", total.nodes); });
  sheet.add("bytes", true, 60, [](const TapeTotal& t) { return bytes_text(static_cast<double>(t.bytes)); });
  sheet.add("kept", true, 50,
            [](const TapeTotal& t) { return bytes_text(static_cast<double>(t.kept_bytes)); });
  sheet.add("FLOPs", true, 70, [](const TapeTotal& total) { return count_text(total.flops); });
  if (timed) {
    sheet.add("forward", true, 90, [](const TapeTotal& t) { return seconds_text(t.forward_seconds); });
    sheet.add("backward", true, 80, [](const TapeTotal& t) { return seconds_text(t.backward_seconds); });
  }
  std::move(sheet).write(out, options);
}

std::string at_text(const std::vector<Index>& at) {
  std::string text;
  for (const Index i : at) text += fmt::format("{}{}", text.empty() ? "" : ", ", i);
  return fmt::format("({})", text);
}

std::string part_text(const PathTable& table) {
  std::string text;
  if (table.head) text += fmt::format(" head {}", *table.head);
  if (table.query_row) text += fmt::format("{} query row {}", text.empty() ? "" : " and", *table.query_row);
  return text;
}

void write_path_table(std::ostream& out, const PathTable& all, const TextOptions& options) {
  const PathTable table = grouped(all, options.expand);
  const std::string part = part_text(table);
  const std::string number = fmt::format("%{}", table.node);
  out << fmt::format("\nGradient of {}{}{}, by path:\n\n", number,
                     table.name == number ? "" : " " + table.name,
                     part.empty() ? "" : " that came by" + part + " of each attention");
  if (table.rows.empty()) {
    out << "Nothing came to it.\n";
    return;
  }
  Sheet<PathRow> sheet(table.rows);
  sheet.add(
      "path", false, always, [](const PathRow& row) { return row.label; }, 16);
  sheet.add("norm", true, 90, [](const PathRow& row) { return fmt::format("{:.4g}", row.norm); });
  sheet.add("share", true, 95, [](const PathRow& row) { return fmt::format("{:.1f} %", 100 * row.share); });
  sheet.add("cosine", true, 80, [](const PathRow& row) { return fmt::format("{:.3f}", row.cosine); });
  sheet.add("largest", true, 70, [](const PathRow& row) { return fmt::format("{:.4g}", row.largest); });
  sheet.add("at", false, 60, [](const PathRow& row) { return at_text(row.largest_at); });
  std::move(sheet).write(out, options);
  if (table.rows.size() < all.rows.size()) {
    out << fmt::format("{} paths in {} rows; --expand LABEL opens the rows of a label.\n", all.rows.size(),
                       table.rows.size());
  }
  out << fmt::format("The rows sum to the gradient{}, of norm {:.4g}, to {:.1e} of its largest element.\n",
                     part.empty() ? "" : " of that part", table.total.norm, table.sum_error);
  if (!part.empty()) {
    out << fmt::format("It is {:.1f} % of the whole gradient.\n", 100 * table.share_of_gradient);
  }
}

// Small arrays in full, row by row; of others what can be said in a line.
std::string array_text(const ArrayNumbers& array, const std::string& indent) {
  constexpr std::size_t most = 36;
  double squares = 0;
  for (const double x : array.numbers) squares += x * x;
  if (array.numbers.size() > most) {
    return fmt::format("{} of norm {:.4g}", to_string(array.shape), std::sqrt(squares));
  }
  const auto width = static_cast<std::size_t>(array.shape.rank() > 0 ? array.shape.dim(-1) : 1);
  std::string text;
  for (std::size_t i = 0; i < array.numbers.size(); ++i) {
    if (i > 0) text += i % width == 0 ? "\n" + indent : " ";
    text += fmt::format("{:10.4g}", array.numbers[i]);
  }
  return text;
}

}  // namespace

std::string bytes_text(double bytes) { return in_units(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"}); }
std::string count_text(double count) { return in_units(count, 1000, {"", "k", "M", "G", "T", "P"}); }
std::string seconds_text(double seconds) { return in_units(seconds * 1e9, 1000, {"ns", "us", "ms", "s"}); }

TextOptions options_for(std::FILE* stream) {
  TextOptions options;
  const int file = fileno(stream);
  winsize window{};
  if (isatty(file) == 1) {
    const bool known = ioctl(file, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    options.width = known ? window.ws_col : 80;
    const char* plain = std::getenv("NO_COLOR");
    options.colour = !plain || *plain == '\0';
  } else if (const char* columns = std::getenv("COLUMNS")) {
    const std::string_view text(columns);
    int width = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
    if (error == std::errc() && end == text.data() + text.size() && width > 0) options.width = width;
  }
  return options;
}

void write_table(std::ostream& out, const TapeTable& table, const TextOptions& options) {
  if (!table.title.empty()) out << table.title << "\n\n";
  write_nodes(out, table, options);
  write_sum(out, table);
  const bool timed = table.level != "rules";
  write_totals(out, "by op", table.by_op, timed, options);
  write_totals(out, "by label", table.by_label, timed, options);
  write_paths(out, table, options);
}

void write_paths(std::ostream& out, const TapeTable& table, const TextOptions& options) {
  for (const PathTable& paths : table.paths) write_path_table(out, paths, options);
}

void write_steps(std::ostream& out, const TapeTable& table, const TextOptions& options) {
  const char *bold = options.colour ? "\x1b[1m" : "", *plain = options.colour ? "\x1b[0m" : "";
  for (std::size_t s = 0; s < table.steps.size(); ++s) {
    const StepRow& step = table.steps[s];
    out << fmt::format("{}step {}: %{} {}{}{}{}\n", bold, s + 1, step.node, step.op,
                       step.label.empty() ? "" : " ", step.label, plain);
    out << "  gradient      " << array_text(step.gradient, std::string(16, ' ')) << "\n";
    for (const StepRow::Contribution& contribution : step.contributions) {
      const std::string indent(16, ' ');
      const bool alone = contribution.of == 1;
      out << fmt::format("  to %{}, argument {}\n    {:<12}{}\n", contribution.to, contribution.argument,
                         alone ? "all of it" : "adds", array_text(contribution.dx, indent));
      if (alone) continue;
      out << fmt::format("    sum {:<8}{}\n", fmt::format("{}/{}", contribution.number, contribution.of),
                         array_text(contribution.sum, indent));
    }
    if (step.contributions.empty()) out << "  nothing behind it is asked for: this is its gradient\n";
  }
}

void sort_rows(TapeTable& table, SortBy by) {
  auto key = [by](const TapeRow& row) {
    switch (by) {
      case SortBy::time:
        return row.forward_seconds.value_or(0) + row.backward_seconds.value_or(0);
      case SortBy::bytes:
        return static_cast<double>(row.bytes);
      case SortBy::gradient:
        return row.gradient ? row.gradient->norm : -1;
      case SortBy::tape:
        break;
    }
    return -static_cast<double>(row.index);
  };
  std::ranges::stable_sort(table.rows, std::greater(), key);
}

}  // namespace tapehead
