#pragma once
// A tape as text: aligned tables for a terminal or a file.

#include <cstdio>
#include <iosfwd>
#include <string>

#include <tapehead/inspect/table.h>

namespace tapehead {

enum class SortBy { tape, time, bytes, gradient };

struct TextOptions {
  int width = 0;  // columns that a line may take; 0: as many as it needs
  bool colour = false;
  std::string expand{};  // the scope whose gradient paths are not grouped
};

// For what is written to this stream: the width of its terminal, and colour unless NO_COLOR is set. What is
// no terminal is as wide as COLUMNS says, or needs, and has no colour.
TextOptions options_for(std::FILE* stream);

// The nodes, the totals by op and by label, and the paths. Labels that do not fit are shortened in the
// middle; when that is not enough, columns are left out, and a line says which. What no node has gets no
// column.
void write_table(std::ostream& out, const TapeTable& table, const TextOptions& options = {});

// The gradient paths alone.
void write_paths(std::ostream& out, const TapeTable& table, const TextOptions& options = {});

// The backward pass one node at a time, and the sum of each gradient as it grows.
void write_steps(std::ostream& out, const TapeTable& table, const TextOptions& options = {});

// The rows in another order, the largest first: by time forward and backward, bytes of the output, or norm of
// the gradient. What has none comes last.
void sort_rows(TapeTable& table, SortBy by);

// Numbers as the tables have them: "1.50 KiB", "2.00 M", "12.3 us", "(2, 3)".
std::string bytes_text(double bytes);
std::string count_text(double count);
std::string seconds_text(double seconds);

}  // namespace tapehead
