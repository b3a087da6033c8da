#pragma once
// Numbers that steps of a formula read and change. Copies share them until one is changed, so that the keys
// and values of a large call are not copied for each formula that is tried on a few of its rows.

#include <atomic>
#include <utility>

#include <tapehead/core/array.h>

namespace tapehead::check {

// As many as there are, in a row. A pointer to what can be changed is good until the next copy.
class SharedNumbers {
 public:
  SharedNumbers() = default;
  explicit SharedNumbers(Array<double> numbers) : numbers_(std::move(numbers)), first_(numbers_.data()) {}
  SharedNumbers(const SharedNumbers& other) : SharedNumbers(other.array()) {}
  SharedNumbers(SharedNumbers&& other) noexcept { swap(other); }
  SharedNumbers& operator=(SharedNumbers other) noexcept {
    swap(other);
    return *this;
  }
  ~SharedNumbers() = default;

  std::size_t size() const { return static_cast<std::size_t>(numbers_.size()); }
  bool empty() const { return size() == 0; }
  const double* data() const { return first_; }
  const double* begin() const { return first_; }
  const double* end() const { return first_ + size(); }
  const double& operator[](std::size_t n) const { return first_[n]; }
  double* data() {
    double* const own = own_.load(std::memory_order_relaxed);
    return own ? own : make_own();
  }
  double* begin() { return data(); }
  double* end() { return data() + size(); }
  double& operator[](std::size_t n) { return data()[n]; }

  const Array<double>& array() const {
    own_.store(nullptr, std::memory_order_relaxed);
    return numbers_;
  }

 private:
  double* make_own() {
    double* const own = numbers_.mutable_values().data();
    first_ = own;
    own_.store(own, std::memory_order_relaxed);
    return own;
  }
  void swap(SharedNumbers& other) noexcept {
    std::swap(numbers_, other.numbers_);
    std::swap(first_, other.first_);
    other.own_.store(own_.exchange(other.own_.load(std::memory_order_relaxed), std::memory_order_relaxed),
                     std::memory_order_relaxed);
  }

  Array<double> numbers_;
  const double* first_ = nullptr;
  mutable std::atomic<double*> own_{nullptr};  // where this is the only one that holds them
};

// (B, H, L, S) and the like, row-major.
struct Numbers {
  Shape shape;
  SharedNumbers at;

  Numbers() = default;
  explicit Numbers(const Shape& shape_, double number = 0)
      : shape(shape_), at(Array<double>::full(shape_, number)) {}
  explicit Numbers(const Array<double>& x) : shape(x.shape()), at(x) {}

  // Of rank 4 and rank 3.
  double& operator()(Index a, Index b, Index c, Index d) { return at[place(a, b, c, d)]; }
  double operator()(Index a, Index b, Index c, Index d) const { return at[place(a, b, c, d)]; }
  double& operator()(Index a, Index b, Index c) { return at[place(0, a, b, c)]; }
  double operator()(Index a, Index b, Index c) const { return at[place(0, a, b, c)]; }

  Array<double> array() const { return at.array().shape() == shape ? at.array() : at.array().reshape(shape); }
  bool empty() const { return at.empty(); }

 private:
  std::size_t place(Index a, Index b, Index c, Index d) const {
    const int r = shape.rank();
    return static_cast<std::size_t>(((a * shape[r - 3] + b) * shape[r - 2] + c) * shape[r - 1] + d);
  }
};

}  // namespace tapehead::check
