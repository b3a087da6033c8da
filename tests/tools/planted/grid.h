#pragma once
// Numbers by four indices, row-major: what the loops of planted mistakes work on.

#include <cstddef>
#include <vector>

#include <tapehead/core/array.h>

namespace tapehead::planted {

struct Grid {
  Grid() = default;
  Grid(Index a, Index b, Index c, Index d, double number = 0)
      : extents{a, b, c, d}, numbers(static_cast<std::size_t>(a * b * c * d), number) {}

  std::size_t place(Index a, Index b, Index c, Index d) const {
    return static_cast<std::size_t>(((a * extents[1] + b) * extents[2] + c) * extents[3] + d);
  }
  double& operator()(Index a, Index b, Index c, Index d) { return numbers[place(a, b, c, d)]; }
  double operator()(Index a, Index b, Index c, Index d) const { return numbers[place(a, b, c, d)]; }

  // Where it stands when the grid is repeated along its axes of extent 1.
  std::size_t repeated(Index a, Index b, Index c, Index d) const {
    return place(a % extents[0], b % extents[1], c % extents[2], d % extents[3]);
  }

  bool empty() const { return numbers.empty(); }
  Grid like() const { return {extents[0], extents[1], extents[2], extents[3]}; }  // zeros
  Array<double> array(const Shape& shape) const { return Array<double>::from(numbers, shape); }
  Array<double> array() const { return array({extents[0], extents[1], extents[2], extents[3]}); }

  Index extents[4] = {0, 0, 0, 0};
  std::vector<double> numbers;
};

template <class F>
void each(const Grid& grid, F f) {
  for (Index a = 0; a < grid.extents[0]; ++a) {
    for (Index b = 0; b < grid.extents[1]; ++b) {
      for (Index c = 0; c < grid.extents[2]; ++c) {
        for (Index d = 0; d < grid.extents[3]; ++d) f(a, b, c, d);
      }
    }
  }
}

}  // namespace tapehead::planted
