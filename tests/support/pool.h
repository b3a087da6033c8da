#pragma once
// Tests of what the storage pool does skip themselves where it is off: under the address sanitizer.

#include <gtest/gtest.h>

#include <tapehead/core/memory.h>

namespace tapehead {

// Whether a block that was given back serves the next request.
inline bool pool_keeps_blocks() {
  detail::give_storage(detail::take_storage(320), 320);
  const auto before = memory_statistics().from_system;
  detail::give_storage(detail::take_storage(320), 320);
  return memory_statistics().from_system == before;
}

}  // namespace tapehead

#define NEEDS_THE_POOL() \
  if (!::tapehead::pool_keeps_blocks()) GTEST_SKIP() << "no pool under the address sanitizer"
