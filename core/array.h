#pragma once
// Array<T>: a shape and shared, immutable, contiguous, row-major storage. T is float, double, int64 or bool.

#include <atomic>
#include <concepts>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tapehead/core/shape.h>

namespace tapehead {

template <class T>
concept Element =
    std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, Index> || std::same_as<T, bool>;

namespace detail {

// One reference-counted header; the elements follow it, or belong to `base`, or to somebody outside.
struct Block {
  std::atomic<std::int32_t> references{1};
  Shape shape;
  Index size = 0;
  void* data = nullptr;
  std::size_t bytes = 0;                           // taken from the pool, header included
  Block* base = nullptr;                           // owns the elements that this header reads
  std::shared_ptr<const void>* outside = nullptr;  // likewise

  static Block* with_room(const Shape& shape, std::size_t element_bytes);
  static Block* over(Block* base, const Shape& shape);
  static Block* adopting(std::shared_ptr<const void> owner, const void* data, const Shape& shape);
  void destroy() noexcept;

  void retain() { references.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    // A sole owner needs no atomic decrement: nobody else can hold a reference to count.
    if (references.load(std::memory_order_acquire) == 1 ||
        references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      destroy();
    }
  }
};

const Shape& empty_shape();  // (0)
Index range_length(double start, double stop, double step);
Index range_length(Index start, Index stop, Index step);

// A number, or a list of such: what a nested braced list converts to. Lives as long as the full expression.
template <class T>
class NestedList {
 public:
  template <class U>
  requires std::convertible_to<U, T> NestedList(U value) : value_(static_cast<T>(value)) {}
  NestedList(std::initializer_list<NestedList> list) : list_(list), is_list_(true) {}

  bool is_list() const { return is_list_; }
  std::initializer_list<NestedList> list() const { return list_; }
  T value() const { return value_; }

 private:
  T value_{};
  std::initializer_list<NestedList> list_;
  bool is_list_ = false;
};

}  // namespace detail

// A handle of one pointer; copying it copies no element. A default-constructed Array has shape (0).
template <Element T>
class Array {
 public:
  using value_type = T;

  Array() = default;
  Array(const Array& other) : block_(other.block_) {
    if (block_) block_->retain();
  }
  Array(Array&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Array& operator=(Array other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Array() {
    if (block_) block_->release();
  }

  static Array uninitialized(const Shape& shape) { return Array(detail::Block::with_room(shape, sizeof(T))); }
  static Array zeros(const Shape& shape) { return full(shape, T{}); }
  static Array ones(const Shape& shape) { return full(shape, T{1}); }
  static Array full(const Shape& shape, T value);
  static Array scalar(T value) { return full({}, value); }
  // start, start + step, ... up to but without `stop`; computed as start + i * step.
  // Throws DomainError for a step of 0 and for bounds that are not finite.
  template <class = void>  // a template, so that Array<bool> can be instantiated as a whole
  static Array arange(T start, T stop, T step = T{1}) {
    static_assert(!std::same_as<T, bool>, "there is no range of bool");
    using Wide = std::conditional_t<std::floating_point<T>, double, Index>;
    const Wide from = static_cast<Wide>(start), to = static_cast<Wide>(stop), by = static_cast<Wide>(step);
    Array result = uninitialized({detail::range_length(from, to, by)});
    Index i = 0;
    for (T& x : result.mutable_values()) x = static_cast<T>(start + static_cast<T>(i++) * step);
    return result;
  }
  template <class = void>
  static Array arange(Index count) {  // 0, 1, ..., count - 1
    return arange(T{}, static_cast<T>(count), T{1});
  }
  static Array eye(Index rows) { return eye(rows, rows); }
  static Array eye(Index rows, Index columns);

  // Nested lists, a rank a level: Array<double>::of({{1, 2}, {3, 4}}) has shape (2, 2).
  // Throws ShapeError when the lists of one level differ in length.
  static Array of(detail::NestedList<T> list);

  // Copies. Throws ShapeError when the count is not the size of the shape.
  static Array from(std::span<const T> values, const Shape& shape);
  static Array from(const std::vector<T>& values, const Shape& shape);
  static Array from(const std::vector<T>& values) {
    return from(values, {static_cast<Index>(values.size())});
  }
  std::vector<T> to_vector() const { return std::vector<T>(values().begin(), values().end()); }

  // Reads memory of somebody else without a copy and keeps `owner` alive; never written through an Array.
  static Array adopt(std::shared_ptr<const void> owner, const T* data, const Shape& shape) {
    return Array(detail::Block::adopting(std::move(owner), data, shape));
  }

  const Shape& shape() const { return block_ ? block_->shape : detail::empty_shape(); }
  int rank() const { return shape().rank(); }
  Index dim(int axis) const { return shape().dim(axis); }
  Index size() const { return block_ ? block_->size : 0; }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * sizeof(T); }
  bool defined() const { return block_ != nullptr; }

  const T* data() const { return block_ ? static_cast<const T*>(block_->data) : nullptr; }
  std::span<const T> values() const { return {data(), static_cast<std::size_t>(size())}; }

  // One index an axis; throws ShapeError for a wrong count and DomainError for one out of range.
  template <std::convertible_to<Index>... I>
  T operator()(I... indices) const {
    const Index list[sizeof...(I) + 1] = {static_cast<Index>(indices)..., 0};
    return data()[offset_of(std::span<const Index>(list, sizeof...(I)))];
  }
  T at(std::span<const Index> indices) const { return data()[offset_of(indices)]; }
  T item() const;  // the only element; throws ShapeError when there is not exactly one

  // Copy on write: in place when this handle owns its elements alone, otherwise on a copy that it then owns.
  std::span<T> mutable_values();
  void set(std::initializer_list<Index> indices, T value);
  bool sole_owner() const;
  bool shares_storage_with(const Array& other) const { return defined() && data() == other.data(); }

  // The same elements under another shape, without a copy; one extent may be -1 and is then computed.
  Array reshape(const Shape& shape) const;
  Array reshape(std::initializer_list<Index> extents) const;

  template <Element U>
  Array<U> cast() const {
    auto result = Array<U>::uninitialized(shape());
    U* out = result.mutable_values().data();
    for (const T x : values()) *out++ = static_cast<U>(x);
    return result;
  }

 private:
  explicit Array(detail::Block* block) : block_(block) {}
  Index offset_of(std::span<const Index> indices) const;

  detail::Block* block_ = nullptr;
};

// True when the shapes are equal and |a - b| <= absolute + relative * |b| everywhere. NaN is close to
// nothing.
template <std::floating_point T>
bool all_close(const Array<T>& a, const Array<T>& b, double relative = 1e-5, double absolute = 1e-8);

// Rows in brackets, columns aligned, long axes shortened to their ends.
template <Element T>
std::string to_string(const Array<T>& array);
template <Element T>
std::ostream& operator<<(std::ostream& stream, const Array<T>& array);

}  // namespace tapehead
