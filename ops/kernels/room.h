#pragma once
// Room for a kernel to work in, from the pool and given back at the end of the scope.

#include <tapehead/core/memory.h>
#include <tapehead/core/shape.h>

namespace tapehead::kernels {

template <class T>
class WorkRoom {
 public:
  explicit WorkRoom(Index count) : bytes_(static_cast<std::size_t>(count) * sizeof(T)) {
    if (count > 0) data_ = static_cast<T*>(tapehead::detail::take_storage(bytes_));
  }
  ~WorkRoom() {
    if (data_) tapehead::detail::give_storage(data_, bytes_);
  }
  WorkRoom(const WorkRoom&) = delete;
  WorkRoom& operator=(const WorkRoom&) = delete;
  T* data() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_ = nullptr;
};

}  // namespace tapehead::kernels
