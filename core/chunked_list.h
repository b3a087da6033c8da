#pragma once
// A list that grows and shrinks at its end, whose elements never move and whose memory stays with it: rules
// append to the tape while the sweep reads it.

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace tapehead::detail {

template <class Element>
class ChunkedList {
 public:
  ChunkedList() = default;
  ChunkedList(const ChunkedList&) = delete;
  ChunkedList& operator=(const ChunkedList&) = delete;
  ~ChunkedList() { truncate(0); }

  std::size_t size() const { return size_; }
  Element& operator[](std::size_t i) { return *std::launder(at(i)); }
  const Element& operator[](std::size_t i) const { return *std::launder(at(i)); }

  template <class... Arguments>
  Element& emplace_back(Arguments&&... arguments) {
    if (size_ == chunks_.size() * chunk) chunks_.push_back(std::make_unique_for_overwrite<Slot[]>(chunk));
    Element* element = new (at(size_)) Element(std::forward<Arguments>(arguments)...);
    ++size_;
    return *element;
  }

  void truncate(std::size_t size) noexcept {
    while (size_ > size) (*this)[--size_].~Element();
  }

 private:
  static constexpr std::size_t chunk = 256;
  struct Slot {
    alignas(Element) std::byte bytes[sizeof(Element)];
  };

  Element* at(std::size_t i) const { return reinterpret_cast<Element*>(chunks_[i / chunk][i % chunk].bytes); }

  std::vector<std::unique_ptr<Slot[]>> chunks_;
  std::size_t size_ = 0;
};

}  // namespace tapehead::detail
