#pragma once
// Cells under each other: what every table of text is set in.

#include <iosfwd>
#include <string>
#include <vector>

namespace tapehead {

struct Column {
  std::string name;
  bool right = false;     // numbers stand to the right
  int importance = 0;     // when they do not all fit, the least important goes first
  std::size_t least = 0;  // cells may be shortened in the middle to so many characters; 0: never
  std::vector<std::string> cells{};
};

struct Styles {
  bool colour = false;
  std::vector<bool> alarming{};  // rows to be shown in red
};

// Writes the columns side by side within `width` characters (0: any width), and gives the names of those that
// were left out. A column whose every cell is empty is not written and not named. Columns of the highest
// importance stay, whatever the width.
std::vector<std::string> write_columns(std::ostream& out, std::vector<Column> columns, int width,
                                       const Styles& styles = {});

// The text within so many characters: its start, "..", its end. Characters of UTF-8 count one.
std::string shortened(const std::string& text, std::size_t width);

}  // namespace tapehead
