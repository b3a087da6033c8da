#pragma once
// Arrays as a foreign kernel gets them: at an address, with strides, in memory that shows what was touched.

#include <algorithm>
#include <cstring>
#include <vector>

#include <tools/contract/memory.h>
#include <tools/contract/tapehead_kernel.h>

namespace tapehead::contract {

// (i0, i1, i2, i3) of elements T, in the order of a placement. An input's gaps hold no number; a result's
// hold a mark, its elements what the placement says.
template <class T>
class Placed {
 public:
  static constexpr unsigned char no_number = 0xFF, mark = 0xA5;

  Placed(const char* name, const Shape& shape, const Placement& placement)
      : shape_(shape), step_(shape), room_(name, sizeof(T) * arranged(placement), placement.guard) {}

  void hold(const Array<double>& numbers) {
    std::memset(room_.whole().data(), no_number, room_.whole().size());
    Index n = 0;
    for (const double x : numbers.values()) element(n++) = static_cast<T>(x);
    before_.assign(room_.whole().begin(), room_.whole().end());
  }
  void expect_result(double found) {
    std::memset(room_.whole().data(), mark, room_.whole().size());
    for (Index n = 0; n < shape_.size(); ++n) element(n) = static_cast<T>(found);
  }

  Array<double> numbers() const {
    auto result = Array<double>::uninitialized(shape_);
    Index n = 0;
    for (double& x : result.mutable_values()) x = static_cast<double>(element(n++));
    return result;
  }

  // Whether an input holds what it held.
  bool unchanged() const { return std::memcmp(before_.data(), room_.whole().data(), before_.size()) == 0; }
  // Bytes of a result's surroundings that lost their mark.
  Index marks_lost() const {
    std::vector<std::byte> now(room_.whole().begin(), room_.whole().end());
    for (Index n = 0; n < shape_.size(); ++n) {
      const auto at = reinterpret_cast<const std::byte*>(&element(n)) - room_.whole().data();
      std::memset(now.data() + at, mark, sizeof(T));
    }
    return std::count_if(now.begin(), now.end(), [](std::byte b) { return b != std::byte{mark}; });
  }

  const std::string& name() const { return room_.name(); }
  T* data() const { return reinterpret_cast<T*>(room_.data()); }

  tapehead_input as_input() const { return described(tapehead_input{data(), {}, {}}); }
  tapehead_output as_output() const { return described(tapehead_output{data(), {}, {}}); }

 private:
  // Elements that it takes; sets the strides.
  std::size_t arranged(const Placement& placement) {
    dense_ = placement.order == Placement::Order::row_major;
    if (dense_) return static_cast<std::size_t>(shape_.size());
    constexpr Index gap = 3;
    const Index pitch = shape_[3] + gap;
    step_.step[0] = shape_[2] * shape_[1] * pitch, step_.step[1] = pitch, step_.step[2] = shape_[1] * pitch;
    return static_cast<std::size_t>(shape_[0] * step_.step[0]);
  }
  T& element(Index n) const {
    if (dense_) return data()[n];
    const Index column = n % shape_[3], row = n / shape_[3];
    return data()[column + row % shape_[2] * step_[2] + row / shape_[2] % shape_[1] * step_[1] +
                  row / (shape_[2] * shape_[1]) * step_[0]];
  }
  template <class Tensor>
  Tensor described(Tensor tensor) const {
    for (int axis = 0; axis < 4; ++axis) tensor.shape[axis] = shape_[axis], tensor.stride[axis] = step_[axis];
    return tensor;
  }

  Shape shape_;
  Strides step_;
  bool dense_ = true;
  GuardedRoom room_;
  std::vector<std::byte> before_;
};

}  // namespace tapehead::contract
