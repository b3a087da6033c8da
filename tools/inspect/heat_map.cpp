#include <tapehead/inspect/heat_map.h>

#include <algorithm>
#include <limits>

namespace tapehead {
namespace {

double mean_of_block(std::span<const double> numbers, Index columns, Index row, Index row_end, Index column,
                     Index column_end) {
  double sum = 0;
  Index count = 0;
  for (Index i = row; i < row_end; ++i) {
    for (Index j = column; j < column_end; ++j) {
      const double x = numbers[static_cast<std::size_t>(i * columns + j)];
      if (x != -std::numeric_limits<double>::infinity()) sum += x, ++count;
    }
  }
  return count > 0 ? sum / static_cast<double>(count) : -std::numeric_limits<double>::infinity();
}

Index parts(Index length, Index block) { return (length + block - 1) / block; }

}  // namespace

HeatMap heat_map(std::span<const double> numbers, Index rows, Index columns, Index side) {
  HeatMap map{.array_rows = rows, .array_columns = columns};
  map.block_rows = std::max<Index>(parts(rows, side), 1);
  map.block_columns = std::max<Index>(parts(columns, side), 1);
  map.rows = parts(rows, map.block_rows);
  map.columns = parts(columns, map.block_columns);
  for (Index i = 0; i < rows; i += map.block_rows) {
    for (Index j = 0; j < columns; j += map.block_columns) {
      map.cells.push_back(mean_of_block(numbers, columns, i, std::min(i + map.block_rows, rows), j,
                                        std::min(j + map.block_columns, columns)));
    }
  }
  return map;
}

MatrixSize matrix_size(const Shape& shape) {
  if (shape.rank() == 0) return {};
  const Index columns = shape.dim(-1);
  return {columns == 0 ? 0 : shape.size() / columns, columns};
}

}  // namespace tapehead
