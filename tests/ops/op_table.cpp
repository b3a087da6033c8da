#include "ops/op_table.h"

#include <algorithm>
#include <sstream>

namespace tapehead::table {

Array<double> Input::draw(Generator& generator, std::size_t number) const {
  if (fixed.defined()) return fixed;
  if (from == From::anywhere) return generator.normal<double>(shape);
  Array<double> x = generator.uniform<double>(shape, 0.5, 2);
  const std::span<double> values = x.mutable_values();
  if (from == From::around_zero) {
    for (double& value : values) value = generator.below(2) == 0 ? value : -value;
  } else if (from == From::apart) {
    const Array<Index> order = generator.permutation(x.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto step = static_cast<double>(order.values()[i] - x.size() / 2);
      values[i] = 0.4 * step + 0.1 * static_cast<double>(number) + 0.05;
    }
  } else if (from == From::weights) {
    const std::size_t row = shape.rank() == 0 ? 1 : static_cast<std::size_t>(shape.dim(-1));
    for (std::size_t begin = 0; begin < values.size(); begin += row) {
      double sum = 0;
      for (const double value : values.subspan(begin, row)) sum += value;
      for (double& value : values.subspan(begin, row)) value /= sum;
    }
  }
  return x;
}

std::vector<Sample> alone(From from) {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{2, 3, 5}, Shape{4, 1, 3}, Shape{7}, Shape{}, Shape{2, 0, 3}}) {
    samples.push_back({Input(from, shape)});
  }
  return samples;
}

std::vector<Sample> pairs(From left, From right) {
  std::vector<Sample> samples;
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{2, 3, 5}, {2, 3, 5}}, {{3, 1}, {3, 5}}, {{2, 3}, {1, 3}},      {{2, 1, 5}, {3, 1}},
      {{5}, {2, 3, 5}},       {{}, {2, 3}},     {{2, 3}, {}},          {{}, {}},
      {{1, 1}, {4}},          {{2, 0}, {1}},    {{3, 0, 2}, {3, 1, 2}}};
  for (const auto& [a, b] : shapes) samples.push_back({Input(left, a), Input(right, b)});
  return samples;
}

std::vector<Sample> rows_of(int rank, From from) {
  constexpr Index different[max_rank] = {2, 3, 5, 4, 6, 7, 8, 9};
  const Shape shape(std::span<const Index>(different, static_cast<std::size_t>(rank)));
  std::vector<Sample> samples = {{Input(from, shape)}};
  for (const Index extent : {1, 0}) {
    for (int axis = 0; axis < rank; ++axis) samples.push_back({Input(from, shape.with(axis, extent))});
  }
  return samples;
}

std::ostream& operator<<(std::ostream& stream, const Row& row) { return stream << row.name(); }

namespace {
std::vector<Row>& table() {
  static std::vector<Row> rows;
  return rows;
}
}  // namespace

Rows::Rows(std::initializer_list<Row> rows) {
  table().insert(table().end(), rows.begin(), rows.end());
  std::sort(table().begin(), table().end(), [](const Row& a, const Row& b) { return a.name() < b.name(); });
}

const std::vector<Row>& all_rows() { return table(); }

std::vector<int> integers_in(const Golden& golden, const std::string& name) {
  std::vector<int> result;
  std::istringstream stream(golden.meta(name));
  for (std::string part; std::getline(stream, part, ',');) result.push_back(std::stoi(part));
  return result;
}

Shape shape_in(const Golden& golden, const std::string& name) {
  const std::vector<int> integers = integers_in(golden, name);
  const std::vector<Index> extents(integers.begin(), integers.end());
  return Shape(std::span<const Index>(extents));
}

int axis_in(const Golden& golden) { return std::stoi(golden.meta("axis")); }

}  // namespace tapehead::table
