#pragma once
// An array as a picture of few cells: rows by columns, each cell a number or the mean of a block of them.

#include <span>
#include <vector>

#include <tapehead/core/shape.h>

namespace tapehead {

struct HeatMap {
  Index rows = 0, columns = 0;              // of the picture
  Index block_rows = 1, block_columns = 1;  // of the array in one cell; the last ones may be smaller
  Index array_rows = 0, array_columns = 0;  // of the array
  std::vector<double> cells{};              // row-major
  bool exact() const { return block_rows == 1 && block_columns == 1; }
};

// The matrix with as few numbers in a cell as leave at most `side` rows and columns. NaN in a block gives
// NaN.
HeatMap heat_map(std::span<const double> numbers, Index rows, Index columns, Index side);

// The last axis as columns, all others as rows; a number is 1 by 1.
struct MatrixSize {
  Index rows = 1, columns = 1;
};
MatrixSize matrix_size(const Shape& shape);

}  // namespace tapehead
