#include <tapehead/core/memory.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

// The pool would hide overflows and uses after free from the address sanitizer.
#if defined(__SANITIZE_ADDRESS__)
#define TAPEHEAD_POOL 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TAPEHEAD_POOL 0
#endif
#endif
#ifndef TAPEHEAD_POOL
#define TAPEHEAD_POOL 1
#endif

namespace tapehead {
namespace {

// Classes: multiples of 64 bytes up to 1 KiB, then four steps to each doubling, so at most a fifth is lost.
constexpr std::size_t step = detail::storage_alignment;
constexpr std::size_t linear_limit = 1024;
constexpr int linear_classes = linear_limit / step;
constexpr int class_count = linear_classes + 4 * 53;

struct SizeClass {
  int number;
  std::size_t bytes;
};

SizeClass size_class(std::size_t bytes) {
  if (bytes <= linear_limit) {
    const std::size_t steps = std::max<std::size_t>((bytes + step - 1) / step, 1);
    return {static_cast<int>(steps) - 1, steps * step};
  }
  const auto doubling = static_cast<int>(std::bit_width(bytes - 1)) - 1;  // 2^doubling <= bytes - 1
  const std::size_t quarter = std::size_t{1} << (doubling - 2);
  const std::size_t quarters = (bytes - 1) / quarter + 1;  // 5 to 8
  return {linear_classes + 4 * (doubling - 10) + static_cast<int>(quarters) - 5, quarters * quarter};
}

struct FreeBlock {
  FreeBlock* next;
};

struct Pool {
  FreeBlock* free[class_count];
  MemoryStatistics statistics;
  bool owned;  // has an heir
};

// Blocks of threads that ended, for whoever runs out first.
struct Orphans {
  std::mutex mutex;
  FreeBlock* free[class_count] = {};
};

Orphans& orphans() {
  static Orphans& leaked_so_that_late_threads_can_use_it = *new Orphans;
  return leaked_so_that_late_threads_can_use_it;
}

constinit thread_local Pool pool{};

struct PoolOwner {
  ~PoolOwner() {
    Orphans& heir = orphans();
    const std::lock_guard lock(heir.mutex);
    for (int c = 0; c < class_count; ++c) {
      while (FreeBlock* block = pool.free[c]) {
        pool.free[c] = block->next;
        block->next = heir.free[c];
        heir.free[c] = block;
      }
    }
  }
};

// A thread that only gives blocks back has a pool to bequeath as well.
void own_pool() {
  thread_local PoolOwner owner;
  static_cast<void>(owner);
  pool.owned = true;
}

void* from_system(const SizeClass& size) {
  if (!pool.owned) own_pool();
  if (TAPEHEAD_POOL) {
    Orphans& heir = orphans();
    const std::lock_guard lock(heir.mutex);
    if (FreeBlock* block = heir.free[size.number]) {
      heir.free[size.number] = block->next;
      return block;
    }
  }
  void* block = std::aligned_alloc(detail::storage_alignment, size.bytes);
  if (!block) throw std::bad_alloc();
  pool.statistics.from_system += static_cast<std::ptrdiff_t>(size.bytes);
  return block;
}

}  // namespace

MemoryStatistics memory_statistics() { return pool.statistics; }

void reset_memory_peak() {
  pool.statistics.peak = pool.statistics.live;
  pool.statistics.largest = 0;
}

namespace detail {

void* take_storage(std::size_t bytes) {
  if (bytes > std::size_t{1} << 62) throw std::bad_alloc();
  const SizeClass size = size_class(bytes);
  void* block = pool.free[size.number];
  if (block) {
    pool.free[size.number] = static_cast<FreeBlock*>(block)->next;
  } else {
    block = from_system(size);
  }
  MemoryStatistics& s = pool.statistics;
  const auto taken = static_cast<std::ptrdiff_t>(bytes);
  s.live += taken;
  s.peak = std::max(s.peak, s.live);
  s.largest = std::max(s.largest, taken);
  return block;
}

void give_storage(void* block, std::size_t bytes) noexcept {
  pool.statistics.live -= static_cast<std::ptrdiff_t>(bytes);
  if (!TAPEHEAD_POOL) {
    std::free(block);
    return;
  }
  if (!pool.owned) [[unlikely]]
    own_pool();
  const int number = size_class(bytes).number;
  auto* entry = static_cast<FreeBlock*>(block);
  entry->next = pool.free[number];
  pool.free[number] = entry;
}

}  // namespace detail
}  // namespace tapehead
