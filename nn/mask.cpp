#include <tapehead/core/errors.h>
#include <tapehead/nn/mask.h>

#include <algorithm>

namespace tapehead {
namespace {

Array<bool> expand(const Mask::Causal& causal, const Shape& scores) {
  const Shape shape = scores.last(2);
  auto keys = Array<bool>::uninitialized(shape);
  bool* row = keys.mutable_values().data();
  const Index offset = std::clamp<Index>(causal.offset, -shape[0], shape[1]);  // further changes nothing
  for (Index i = 0; i < shape[0]; ++i, row += shape[1]) {
    const Index seen = std::clamp<Index>(i + offset + 1, 0, shape[1]);
    std::fill(std::fill_n(row, seen, true), row + shape[1], false);
  }
  return keys;
}

Array<bool> expand(const Mask::Allowed& allowed, const Shape& scores) {
  if (!broadcasts_to(allowed.keys.shape(), scores)) {
    throw ShapeError("attention", "the mask does not broadcast to the scores",
                     {{"mask", allowed.keys.shape()}, {"scores", scores}});
  }
  return allowed.keys;
}

Array<bool> both(const Array<bool>& a, const Array<bool>& b) {
  const Shape shape = broadcast_shapes("attention", "mask", a.shape(), "mask", b.shape());
  const Strides step_a(a.shape(), shape), step_b(b.shape(), shape), step(shape);
  auto keys = Array<bool>::uninitialized(shape);
  Index i = 0;
  for (bool& key : keys.mutable_values()) {
    Index at_a = 0, at_b = 0;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const Index index = i / step[axis] % shape[axis];
      at_a += index * step_a[axis];
      at_b += index * step_b[axis];
    }
    key = a.data()[at_a] && b.data()[at_b];
    ++i;
  }
  return keys;
}

}  // namespace

std::string place_of_row(const Shape& scores, Index row) {
  Index index[max_rank];
  const int rank = scores.rank() - 1;
  for (int axis = rank; axis-- > 0; row /= scores[axis]) index[axis] = row % scores[axis];
  std::string place;
  for (int axis = 0; axis < rank; ++axis) {
    const int from_row = rank - 1 - axis;
    const std::string name = from_row == 0                ? "row"
                             : from_row == 1 && rank >= 3 ? "head"
                             : from_row == rank - 1       ? "batch"
                                                          : "axis " + std::to_string(axis);
    place += (axis > 0 ? ", " : "") + name + " " + std::to_string(index[axis]);
  }
  return place;
}

Array<bool> Mask::expanded(const Shape& scores) const {
  if (scores.rank() < 2) throw ShapeError("Mask", "needs scores (..., L, S)", {{"scores", scores}});
  Array<bool> keys = Array<bool>::full({1, 1}, true);
  for (const Condition& condition : conditions_) {
    const Array<bool> part = std::visit([&](const auto& c) { return expand(c, scores); }, condition);
    keys = keys.size() == 1 && keys.item() ? part : both(keys, part);
  }
  return keys;
}

}  // namespace tapehead
