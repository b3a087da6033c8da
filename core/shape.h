#pragma once
// Shape: the extents of an array, held inline, and the arithmetic on extents that every op needs.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tapehead {

using Index = std::int64_t;

inline constexpr int max_rank = 8;

// Extents of a row-major array of rank 0 (a scalar) to 8. Extents may be 0.
class Shape {
 public:
  constexpr Shape() = default;
  // Throws ShapeError for more than 8 extents, a negative one, or a product beyond 2^62.
  Shape(std::initializer_list<Index> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const Index> extents);

  int rank() const { return rank_; }
  Index size() const;                                          // product of the extents
  Index operator[](int axis) const { return extents_[axis]; }  // 0 <= axis < rank, unchecked
  Index dim(int axis) const;                                   // checked; -1 is the last axis
  const Index* begin() const { return extents_; }
  const Index* end() const { return extents_ + rank_; }
  std::span<const Index> extents() const { return {extents_, static_cast<std::size_t>(rank_)}; }

  Shape with(int axis,
             Index extent) const;  // the same with one extent replaced; axis checked, -1 is the last
  Shape without(int axis) const;   // the same with one axis removed; likewise
  Shape first(int count) const;    // the leading `count` extents, 0 <= count <= rank, unchecked
  Shape last(int count) const;     // the trailing `count` extents, likewise
  Shape followed_by(const Shape& tail) const;

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a.extents_[i] != b.extents_[i]) return false;
    }
    return true;
  }

 private:
  Index extents_[max_rank] = {};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "(2, 3)", "()" for a scalar

// Where element number `i` of an array lies: "(1, 0, 2)".
std::string position_text(const Shape& shape, Index i);
std::vector<Index> position_of(const Shape& shape, Index i);  // the same as numbers

// Distance, in elements, between neighbours along each axis of a row-major array.
struct Strides {
  explicit Strides(const Shape& shape);
  // Strides with which an array of `shape` is read as if it had shape `to`: 0 where it repeats.
  Strides(const Shape& shape, const Shape& to);
  Index operator[](int axis) const { return step[axis]; }
  Index step[max_rank] = {};
};

// The axis counted from the front. Throws ShapeError when it is not in [-rank, rank).
int axis_of(std::string_view op, const Shape& shape, int axis);

// The shape both broadcast to, aligned at the last axis, extents of 1 repeating (NumPy's rule), if there is
// one.
std::optional<Shape> broadcast(const Shape& a, const Shape& b);
// The same. Throws ShapeError naming both when there is none.
Shape broadcast_shapes(std::string_view op, std::string_view name_a, const Shape& a, std::string_view name_b,
                       const Shape& b);

// `extents` as the shape of an array of shape `from`, with at most one -1 standing for what is left.
// Throws ShapeError when the sizes cannot agree.
Shape reshaped(std::string_view op, const Shape& from, std::span<const Index> extents);

// True when an array of shape `from` can be repeated to fill `to` without changing `to`.
bool broadcasts_to(const Shape& from, const Shape& to);

}  // namespace tapehead
