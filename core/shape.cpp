#include <tapehead/core/errors.h>
#include <tapehead/core/shape.h>

#include <algorithm>

namespace tapehead {

Shape::Shape(std::span<const Index> extents) {
  if (extents.size() > max_rank) {
    throw ShapeError("Shape",
                     "rank " + std::to_string(extents.size()) + " is more than " + std::to_string(max_rank));
  }
  constexpr Index limit = Index{1} << 62;
  Index product = 1;
  for (const Index extent : extents) {
    if (extent < 0) throw ShapeError("Shape", "negative extent " + std::to_string(extent));
    // An extent of 0 must not hide an overflow of the others, which a reshape could bring back.
    if (extent > 0 && product > limit / extent) throw ShapeError("Shape", "more than 2^62 elements");
    product *= std::max<Index>(extent, 1);
    extents_[rank_++] = extent;
  }
}

Index Shape::size() const {
  Index product = 1;
  for (int i = 0; i < rank_; ++i) product *= extents_[i];
  return product;
}

Index Shape::dim(int axis) const { return extents_[axis_of("Shape", *this, axis)]; }

Shape Shape::with(int axis, Index extent) const {
  Index extents[max_rank];
  std::copy(begin(), end(), extents);
  extents[axis_of("Shape", *this, axis)] = extent;
  return Shape(std::span<const Index>(extents, static_cast<std::size_t>(rank_)));
}

Shape Shape::without(int axis) const {
  axis = axis_of("Shape", *this, axis);
  return first(axis).followed_by(last(rank_ - axis - 1));
}

Shape Shape::first(int count) const { return Shape(extents().first(static_cast<std::size_t>(count))); }

Shape Shape::last(int count) const { return Shape(extents().last(static_cast<std::size_t>(count))); }

Shape Shape::followed_by(const Shape& tail) const {
  Index both[2 * max_rank];
  std::copy(tail.begin(), tail.end(), std::copy(begin(), end(), both));
  return Shape(std::span<const Index>(both, static_cast<std::size_t>(rank_ + tail.rank_)));
}

namespace {

std::string in_parentheses(std::span<const Index> numbers) {
  std::string text = "(";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(numbers[i]);
  }
  return text + ")";
}

}  // namespace

std::string to_string(const Shape& shape) { return in_parentheses({shape.begin(), shape.end()}); }

std::vector<Index> position_of(const Shape& shape, Index i) {
  std::vector<Index> position(static_cast<std::size_t>(shape.rank()));
  for (int axis = shape.rank(); axis-- > 0; i /= shape[axis]) {
    position[static_cast<std::size_t>(axis)] = i % shape[axis];
  }
  return position;
}

std::string position_text(const Shape& shape, Index i) { return in_parentheses(position_of(shape, i)); }

Strides::Strides(const Shape& shape) {
  Index next = 1;
  for (int i = shape.rank(); i-- > 0;) {
    step[i] = next;
    next *= shape[i];
  }
}

Strides::Strides(const Shape& shape, const Shape& to) {
  const Strides own(shape);
  const int lead = to.rank() - shape.rank();
  for (int i = 0; i < shape.rank(); ++i) step[lead + i] = shape[i] == 1 ? 0 : own[i];
}

int axis_of(std::string_view op, const Shape& shape, int axis) {
  const int rank = shape.rank();
  if (axis < -rank || axis >= rank) {
    throw ShapeError(op, "axis " + std::to_string(axis) + " is out of range", {{"x", shape}});
  }
  return axis < 0 ? axis + rank : axis;
}

Shape reshaped(std::string_view op, const Shape& from, std::span<const Index> extents) {
  Index known = 1;
  Index open = -1;
  std::string text;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(extents[i]);
    if (extents[i] != -1) {
      if (__builtin_mul_overflow(known, extents[i], &known)) known = 0;  // fits nothing
    } else if (open < 0) {
      open = static_cast<Index>(i);
    } else {
      throw ShapeError(op, "more than one extent is -1 in (" + text + ")");
    }
  }
  if (open < 0) {
    const Shape to(extents);
    if (to.size() != from.size()) throw ShapeError(op, "sizes differ", {{"x", from}, {"to", to}});
    return to;
  }
  if (extents.size() > max_rank || known <= 0 || from.size() % known != 0) {
    throw ShapeError(op, "no extent for -1 in (" + text + ") fits", {{"x", from}});
  }
  Index complete[max_rank];
  std::copy(extents.begin(), extents.end(), complete);
  complete[open] = from.size() / known;
  return Shape(std::span<const Index>(complete, extents.size()));
}

bool broadcasts_to(const Shape& from, const Shape& to) {
  const int lead = to.rank() - from.rank();
  if (lead < 0) return false;
  for (int i = 0; i < from.rank(); ++i) {
    if (from[i] != to[lead + i] && from[i] != 1) return false;
  }
  return true;
}

std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  if (a == b) return a;
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  const int lead = longer.rank() - shorter.rank();
  Shape result = longer;
  for (int i = 0; i < shorter.rank(); ++i) {
    const Index p = longer[lead + i], q = shorter[i];
    if (p != q && p != 1 && q != 1) return std::nullopt;
    if (p == 1) result = result.with(lead + i, q);
  }
  return result;
}

Shape broadcast_shapes(std::string_view op, std::string_view name_a, const Shape& a, std::string_view name_b,
                       const Shape& b) {
  const std::optional<Shape> shape = broadcast(a, b);
  if (!shape) throw ShapeError(op, "shapes do not broadcast", {{name_a, a}, {name_b, b}});
  return *shape;
}

}  // namespace tapehead
