#include <tapehead/core/array.h>
#include <tapehead/core/errors.h>
#include <tapehead/core/memory.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <new>
#include <ostream>

namespace tapehead {
namespace detail {
namespace {

constexpr std::size_t header_bytes =
    (sizeof(Block) + storage_alignment - 1) / storage_alignment * storage_alignment;

}  // namespace

Block* Block::with_room(const Shape& shape, std::size_t element_bytes) {
  const Index size = shape.size();
  if (size > (Index{1} << 56)) throw std::bad_alloc();
  const std::size_t bytes = header_bytes + static_cast<std::size_t>(size) * element_bytes;
  void* memory = take_storage(bytes);
  Block* block = new (memory) Block;
  block->shape = shape;
  block->size = size;
  block->data = static_cast<std::byte*>(memory) + header_bytes;
  block->bytes = bytes;
  return block;
}

Block* Block::over(Block* base, const Shape& shape) {
  Block* owner = base->base ? base->base : base;  // one level only, so that release never recurses deeply
  Block* block = new (take_storage(header_bytes)) Block;
  block->shape = shape;
  block->size = shape.size();
  block->data = base->data;
  block->bytes = header_bytes;
  owner->retain();
  block->base = owner;
  return block;
}

Block* Block::adopting(std::shared_ptr<const void> owner, const void* data, const Shape& shape) {
  auto outside = std::make_unique<std::shared_ptr<const void>>(std::move(owner));
  Block* block = new (take_storage(header_bytes)) Block;
  block->shape = shape;
  block->size = shape.size();
  block->data = const_cast<void*>(data);  // never written: sole_owner() is false for adopted storage
  block->bytes = header_bytes;
  block->outside = outside.release();
  return block;
}

const Shape& empty_shape() {
  static const Shape shape{0};
  return shape;
}

Index range_length(double start, double stop, double step) {
  if (step == 0 || step != step) throw DomainError("arange", "the step is 0 or not a number");
  const double length = std::ceil((stop - start) / step);
  if (!std::isfinite(length)) throw DomainError("arange", "the bounds are not finite");
  if (length > 0x1p62) throw DomainError("arange", "the bounds are more than 2^62 steps apart");
  return length > 0 ? static_cast<Index>(length) : 0;
}

Index range_length(Index start, Index stop, Index step) {
  if (step == 0) throw DomainError("arange", "the step is 0 or not a number");
  if (start == stop || (stop > start) != (step > 0)) return 0;
  const auto from = static_cast<std::uint64_t>(start), to = static_cast<std::uint64_t>(stop);
  const auto by = static_cast<std::uint64_t>(step);
  return static_cast<Index>(step > 0 ? (to - from - 1) / by + 1 : (from - to - 1) / (0 - by) + 1);
}

void Block::destroy() noexcept {
  if (base) base->release();
  delete outside;
  const std::size_t taken = bytes;
  this->~Block();
  give_storage(this, taken);
}

}  // namespace detail

template <Element T>
Array<T> Array<T>::full(const Shape& shape, T value) {
  Array result = uninitialized(shape);
  std::ranges::fill(result.mutable_values(), value);
  return result;
}

template <Element T>
Array<T> Array<T>::eye(Index rows, Index columns) {
  Array result = zeros({rows, columns});
  T* x = result.mutable_values().data();
  for (Index i = 0; i < std::min(rows, columns); ++i) x[i * columns + i] = T{1};
  return result;
}

namespace {

template <class T>
void require_even(const detail::NestedList<T>& list, const std::vector<Index>& extents, std::size_t depth) {
  if (list.is_list() != (depth < extents.size())) {
    throw ShapeError("Array::of", "lists of one level differ in depth");
  }
  if (!list.is_list()) return;
  if (static_cast<Index>(list.list().size()) != extents[depth]) {
    throw ShapeError("Array::of", "lists of one level differ in length");
  }
  for (const auto& one : list.list()) require_even(one, extents, depth + 1);
}

template <class T>
T* flatten(const detail::NestedList<T>& list, T* out) {
  if (!list.is_list()) {
    *out = list.value();
    return out + 1;
  }
  for (const auto& one : list.list()) out = flatten(one, out);
  return out;
}

}  // namespace

template <Element T>
Array<T> Array<T>::of(detail::NestedList<T> list) {
  std::vector<Index> extents;
  for (const auto* level = &list; level->is_list(); level = level->list().begin()) {
    extents.push_back(static_cast<Index>(level->list().size()));
    if (level->list().size() == 0) break;
  }
  require_even(list, extents, 0);
  Array result = uninitialized(Shape(std::span<const Index>(extents)));
  flatten(list, result.mutable_values().data());
  return result;
}

namespace {

void require_count(std::size_t count, const Shape& shape) {
  if (static_cast<Index>(count) != shape.size()) {
    throw ShapeError("Array::from", std::to_string(count) + " values do not fill the shape",
                     {{"shape", shape}});
  }
}

}  // namespace

template <Element T>
Array<T> Array<T>::from(std::span<const T> values, const Shape& shape) {
  require_count(values.size(), shape);
  Array result = uninitialized(shape);
  std::ranges::copy(values, result.mutable_values().begin());
  return result;
}

template <Element T>
Array<T> Array<T>::from(const std::vector<T>& values, const Shape& shape) {
  require_count(values.size(), shape);
  Array result = uninitialized(shape);
  std::copy(values.begin(), values.end(), result.mutable_values().begin());  // vector<bool> is no span
  return result;
}

template <Element T>
T Array<T>::item() const {
  if (size() != 1) throw ShapeError("item", "needs exactly one element", {{"array", shape()}});
  return *data();
}

template <Element T>
bool Array<T>::sole_owner() const {
  if (!block_ || block_->outside || block_->references.load(std::memory_order_acquire) != 1) return false;
  const detail::Block* base = block_->base;
  return !base || (!base->outside && base->references.load(std::memory_order_acquire) == 1);
}

template <Element T>
std::span<T> Array<T>::mutable_values() {
  if (block_ && !sole_owner()) *this = from(values(), shape());
  return {const_cast<T*>(data()), static_cast<std::size_t>(size())};
}

template <Element T>
void Array<T>::set(std::initializer_list<Index> indices, T value) {
  const Index offset = offset_of(std::span<const Index>(indices.begin(), indices.size()));
  mutable_values()[static_cast<std::size_t>(offset)] = value;
}

template <Element T>
Array<T> Array<T>::reshape(const Shape& to) const {
  if (to == shape()) return *this;
  if (to.size() != size()) throw ShapeError("reshape", "sizes differ", {{"x", shape()}, {"to", to}});
  if (!block_) return uninitialized(to);
  return Array(detail::Block::over(block_, to));
}

template <Element T>
Array<T> Array<T>::reshape(std::initializer_list<Index> extents) const {
  return reshape(reshaped("reshape", shape(), std::span(extents.begin(), extents.size())));
}

template <Element T>
Index Array<T>::offset_of(std::span<const Index> indices) const {
  const Shape& s = shape();
  if (static_cast<int>(indices.size()) != s.rank()) {
    throw ShapeError("Array", std::to_string(indices.size()) + " indices given", {{"array", s}});
  }
  Index offset = 0;
  for (int axis = 0; axis < s.rank(); ++axis) {
    const Index i = indices[static_cast<std::size_t>(axis)];
    if (i < 0 || i >= s[axis]) {
      throw DomainError("Array", "index " + std::to_string(i) + " of axis " + std::to_string(axis) +
                                     " is outside shape " + to_string(s));
    }
    offset = offset * s[axis] + i;
  }
  return offset;
}

template <std::floating_point T>
bool all_close(const Array<T>& a, const Array<T>& b, double relative, double absolute) {
  if (a.shape() != b.shape()) return false;
  for (Index i = 0; i < a.size(); ++i) {
    const double p = a.data()[i], q = b.data()[i];
    if (p == q) continue;  // equal infinities, whose difference is NaN
    if (!(std::abs(p - q) <= absolute + relative * std::abs(q))) return false;
    if (std::isinf(q)) return false;  // the bound itself is infinite
  }
  return true;
}

namespace {

constexpr Index edge_items = 3;        // shown at each end of an axis that is shortened
constexpr Index shown_in_full = 1000;  // elements

template <class T>
std::string element_text(T x) {
  if constexpr (std::same_as<T, bool>) {
    return x ? "true" : "false";
  } else if constexpr (std::same_as<T, Index>) {
    return std::to_string(x);
  } else {
    if (x != x) return "nan";  // whose sign differs between machines
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", static_cast<double>(x));
    return text;
  }
}

// Calls f(i) for the shown indices of an axis, and f(-1) once where some are left out.
template <class F>
void for_each_shown(Index extent, bool shorten, F f) {
  if (!shorten || extent <= 2 * edge_items) {
    for (Index i = 0; i < extent; ++i) f(i);
    return;
  }
  for (Index i = 0; i < edge_items; ++i) f(i);
  f(-1);
  for (Index i = extent - edge_items; i < extent; ++i) f(i);
}

template <class T>
struct Printer {
  explicit Printer(const Array<T>& array) : data(array.data()), shape(array.shape()) {}

  const T* data;
  const Shape& shape;
  const Strides strides{shape};
  const bool shorten = shape.size() > shown_in_full;
  std::size_t width = 0;
  std::string text;

  template <class F>
  void walk(int axis, Index offset, F f) {
    if (axis == shape.rank()) return f(offset);
    for_each_shown(shape[axis], shorten, [&](Index i) {
      if (i >= 0) walk(axis + 1, offset + i * strides[axis], f);
    });
  }

  void print(int axis, Index offset) {
    if (axis == shape.rank()) {
      const std::string one = element_text(data[offset]);
      text.append(width - one.size(), ' ').append(one);
      return;
    }
    const bool innermost = axis == shape.rank() - 1;
    text += '[';
    bool first = true;
    for_each_shown(shape[axis], shorten, [&](Index i) {
      if (!first) {
        text += innermost ? ", " : ",\n";
        if (!innermost) text.append(static_cast<std::size_t>(axis) + 1, ' ');
      }
      first = false;
      if (i < 0) {
        text += "...";
      } else {
        print(axis + 1, offset + i * strides[axis]);
      }
    });
    text += ']';
  }
};

}  // namespace

template <Element T>
std::string to_string(const Array<T>& array) {
  Printer<T> printer(array);
  if (array.size() > 0) {
    printer.walk(0, 0, [&](Index i) {
      printer.width = std::max(printer.width, element_text(array.data()[i]).size());
    });
    printer.print(0, 0);
  } else {
    printer.text = "[]";
  }
  if (printer.shorten || array.size() == 0) printer.text += "  shape " + to_string(array.shape());
  return printer.text;
}

template <Element T>
std::ostream& operator<<(std::ostream& stream, const Array<T>& array) {
  return stream << to_string(array);
}

#define TAPEHEAD_INSTANTIATE(T)                    \
  template class Array<T>;                         \
  template std::string to_string(const Array<T>&); \
  template std::ostream& operator<<(std::ostream&, const Array<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
TAPEHEAD_INSTANTIATE(Index)
TAPEHEAD_INSTANTIATE(bool)
#undef TAPEHEAD_INSTANTIATE
template bool all_close(const Array<float>&, const Array<float>&, double, double);
template bool all_close(const Array<double>&, const Array<double>&, double, double);

}  // namespace tapehead
