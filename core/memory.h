#pragma once
// Storage for arrays: 64-byte aligned blocks from a pool of size classes, so that a second training step
// touches no fresh page. First touch of a fresh page is the largest single cost of a small tape.

#include <cstddef>

namespace tapehead {

// What the calling thread took from the pool. A block given back by another thread counts there.
struct MemoryStatistics {
  std::ptrdiff_t live = 0;         // bytes taken and not given back
  std::ptrdiff_t peak = 0;         // largest value of `live` since reset_memory_peak()
  std::ptrdiff_t largest = 0;      // largest single request since reset_memory_peak()
  std::ptrdiff_t from_system = 0;  // bytes that the pool had to ask the system for, in total
};

MemoryStatistics memory_statistics();
void reset_memory_peak();

namespace detail {

inline constexpr std::size_t storage_alignment = 64;

// Throws std::bad_alloc. The contents are not initialised.
void* take_storage(std::size_t bytes);
void give_storage(void* block, std::size_t bytes) noexcept;  // `bytes` as it was taken

}  // namespace detail
}  // namespace tapehead
