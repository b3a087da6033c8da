#include <tapehead/inspect/columns.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <ostream>

namespace tapehead {
namespace {

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::size_t length(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

// Where in the text that character begins.
std::size_t place(const std::string& text, std::size_t character) {
  std::size_t at = 0, seen = 0;
  for (; at < text.size(); ++at) {
    if (begins_character(text[at]) && seen++ == character) break;
  }
  return at;
}

std::size_t width_of(const Column& column) {
  std::size_t width = length(column.name);
  for (const std::string& cell : column.cells) width = std::max(width, length(cell));
  return width;
}

constexpr std::size_t gap = 2;

std::size_t total_of(const std::vector<std::size_t>& widths) {
  std::size_t total = 0;
  for (const std::size_t width : widths) total += width + gap;
  return total - std::min(total, gap);
}

std::size_t least_width(const Column& column) {
  const std::size_t width = width_of(column);
  return column.least == 0 ? width : std::min(width, std::max(column.least, length(column.name)));
}

// Narrows the columns that may be shortened, the widest first, until the line fits or none can give.
void narrow(const std::vector<Column>& columns, std::vector<std::size_t>& widths, std::size_t room) {
  while (total_of(widths) > room) {
    std::size_t widest = columns.size();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const bool gives = widths[c] > least_width(columns[c]);
      if (gives && (widest == columns.size() || widths[c] > widths[widest])) widest = c;
    }
    if (widest == columns.size()) return;
    --widths[widest];
  }
}

// Takes in one column after another, the most important first, when it fits at its least width. Gives the
// names of the others.
std::vector<std::string> drop_what_does_not_fit(std::vector<Column>& columns, std::size_t room) {
  std::vector<std::size_t> order(columns.size());
  for (std::size_t c = 0; c < order.size(); ++c) order[c] = c;
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t c) { return columns[c].importance; });
  std::vector<bool> taken(columns.size());
  std::size_t total = 0;
  for (const std::size_t c : order) {
    const std::size_t with = total + (total > 0 ? gap : 0) + least_width(columns[c]);
    taken[c] = with <= room || columns[c].importance == columns[order[0]].importance;
    if (taken[c]) total = with;
  }
  std::vector<std::string> left_out;
  std::vector<Column> kept;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (taken[c]) {
      kept.push_back(std::move(columns[c]));
    } else {
      left_out.push_back(columns[c].name);
    }
  }
  columns = std::move(kept);
  return left_out;
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string padding(width - std::min(width, length(text)), ' ');
  return right ? padding + text : text + padding;
}

void write_line(std::ostream& out, const std::vector<std::string>& cells, const char* style) {
  std::string line;
  for (std::size_t c = 0; c < cells.size(); ++c) line += (c > 0 ? std::string(gap, ' ') : "") + cells[c];
  line.erase(line.find_last_not_of(' ') + 1);
  out << style << line << (*style ? "\x1b[0m" : "") << "\n";
}

}  // namespace

std::string shortened(const std::string& text, std::size_t width) {
  const std::size_t size = length(text);
  if (size <= width) return text;
  if (width <= 2) return std::string("..").substr(0, width);
  const std::size_t front = (width - 2) / 2, back = width - 2 - front;
  return text.substr(0, place(text, front)) + ".." + text.substr(place(text, size - back));
}

std::vector<std::string> write_columns(std::ostream& out, std::vector<Column> columns, int width,
                                       const Styles& styles) {
  std::erase_if(columns, [](const Column& column) {
    return std::ranges::all_of(column.cells, [](const std::string& cell) { return cell.empty(); });
  });
  const std::size_t room =
      width > 0 ? static_cast<std::size_t>(width) : std::numeric_limits<std::size_t>::max();
  std::vector<std::string> left_out = drop_what_does_not_fit(columns, room);
  std::vector<std::size_t> widths;
  for (const Column& column : columns) widths.push_back(width_of(column));
  narrow(columns, widths, room);
  std::vector<std::string> cells(columns.size());
  for (std::size_t c = 0; c < columns.size(); ++c) {
    cells[c] = padded(columns[c].name, widths[c], columns[c].right);
  }
  write_line(out, cells, styles.colour ? "\x1b[1m" : "");
  for (std::size_t row = 0; !columns.empty() && row < columns[0].cells.size(); ++row) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      cells[c] = padded(shortened(columns[c].cells[row], widths[c]), widths[c], columns[c].right);
    }
    const bool alarm = styles.colour && row < styles.alarming.size() && styles.alarming[row];
    write_line(out, cells, alarm ? "\x1b[31m" : "");
  }
  return left_out;
}

}  // namespace tapehead
