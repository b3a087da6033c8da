#pragma once
// PerSample: an index that is the same for all samples of a batch, or one for each.

#include <algorithm>
#include <limits>

#include <tapehead/core/array.h>

namespace tapehead {

// a + b, or the end of the range of an Index beyond which it lies: positions are compared, and none exists
// out there.
inline Index saturated_sum(Index a, Index b) {
  using Limits = std::numeric_limits<Index>;
  return b > 0 ? std::min(a, Limits::max() - b) + b : std::max(a, Limits::min() - b) + b;
}

// A shape with extents of 1 behind it, up to a rank: of the first axes of something, as it broadcasts to all.
inline Shape with_ones(Shape shape, int rank) {
  while (shape.rank() < rank) shape = shape.followed_by({1});
  return shape;
}

// One number, or an array of them whose shape is that of the first axes of what they belong to: (B) for
// scores (B, H, L, S).
class PerSample {
 public:
  PerSample(Index same = 0) : values_(Array<Index>::scalar(same)) {}
  PerSample(Array<Index> each) : values_(std::move(each)) {}

  bool same() const { return values_.rank() == 0; }
  const Array<Index>& values() const { return values_; }

  bool fits(const Shape& leading) const {
    return values_.rank() <= leading.rank() && leading.first(values_.rank()) == values_.shape();
  }
  // Of the sample that entry `i` of leading axes which it fits belongs to.
  Index of(const Shape& leading, Index i) const {
    return values_.data()[same() ? 0 : i / (leading.size() / values_.size())];
  }

  // Each increased by `step`.
  friend PerSample operator+(PerSample positions, Index step) {
    for (Index& x : positions.values_.mutable_values()) x = saturated_sum(x, step);
    return positions;
  }

 private:
  Array<Index> values_;
};

}  // namespace tapehead
