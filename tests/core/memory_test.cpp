#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>

#include "support/pool.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;

using detail::give_storage;
using detail::take_storage;

TEST(Memory, BlocksAreAlignedAndDisjointInEverySizeClass) {
  struct Taken {
    void* block;
    std::size_t bytes;
  };
  std::vector<Taken> taken;
  for (std::size_t bytes = 1; bytes < 300000; bytes += 1 + bytes / 7) {
    for (const std::size_t size : {bytes, bytes + 1}) {
      void* block = take_storage(size);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % detail::storage_alignment, 0u) << size << " bytes";
      std::memset(block, static_cast<int>(taken.size() % 251), size);
      taken.push_back({block, size});
    }
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(taken[i].block);
    EXPECT_EQ(bytes[0], i % 251);
    EXPECT_EQ(bytes[taken[i].bytes - 1], i % 251);
    give_storage(taken[i].block, taken[i].bytes);
  }
}

TEST(Memory, BlockGivenBackServesTheNextRequestOfItsClass) {
  NEEDS_THE_POOL();
  for (const std::size_t bytes : {1u, 64u, 65u, 1000u, 1024u, 1025u, 2048u, 2049u, 5000u, 1u << 20}) {
    void* first = take_storage(bytes);
    give_storage(first, bytes);
    void* second = take_storage(bytes);
    EXPECT_EQ(second, first) << bytes << " bytes";
    give_storage(second, bytes);
  }
}

TEST(Memory, ClassesWasteAtMostAFifth) {
  NEEDS_THE_POOL();
  for (std::size_t bytes = 1025; bytes < (1u << 21); bytes += bytes / 5) {
    std::vector<void*> blocks;  // more than the pool can have kept of this class
    auto before = memory_statistics().from_system;
    while (memory_statistics().from_system == before) blocks.push_back(take_storage(bytes));
    before = memory_statistics().from_system;
    blocks.push_back(take_storage(bytes));
    const auto asked = static_cast<std::size_t>(memory_statistics().from_system - before);
    EXPECT_GE(asked, bytes);
    EXPECT_LE(asked, bytes + bytes / 4) << bytes << " bytes";
    for (void* block : blocks) give_storage(block, bytes);
  }
}

TEST(Memory, MoreThanThereIsIsBadAlloc) {
  const bool pooled = pool_keeps_blocks();
  const auto before = memory_statistics();
  EXPECT_THROW(take_storage(~std::size_t{0}), std::bad_alloc);
  if (pooled) {  // the sanitizer stops the program instead of returning null
    EXPECT_THROW(take_storage(std::size_t{1} << 61), std::bad_alloc);
  }
  EXPECT_EQ(memory_statistics().live, before.live);
  EXPECT_EQ(memory_statistics().from_system, before.from_system);
}

TEST(MemoryStatistics, CountsWhatIsLiveItsPeakAndTheLargest) {
  reset_memory_peak();
  const auto before = memory_statistics();
  EXPECT_EQ(before.peak, before.live);
  EXPECT_EQ(before.largest, 0);
  void* a = take_storage(3000);
  void* b = take_storage(500);
  give_storage(a, 3000);
  void* c = take_storage(700);
  EXPECT_EQ(memory_statistics().live - before.live, 1200);
  EXPECT_EQ(memory_statistics().peak - before.live, 3500);
  EXPECT_EQ(memory_statistics().largest, 3000);
  reset_memory_peak();
  EXPECT_EQ(memory_statistics().peak - before.live, 1200);
  EXPECT_EQ(memory_statistics().largest, 0);
  give_storage(b, 500);
  give_storage(c, 700);
  EXPECT_EQ(memory_statistics().live, before.live);
}

TEST(MemoryStatistics, AreOfTheCallingThread) {
  const auto before = memory_statistics();
  std::thread([] {
    EXPECT_EQ(memory_statistics().live, 0);
    const auto x = A::zeros({1000});
    EXPECT_GE(memory_statistics().live, 8000);
  }).join();
  EXPECT_EQ(memory_statistics().live, before.live);
  EXPECT_EQ(memory_statistics().from_system, before.from_system);
}

constexpr std::size_t odd_size = 777777;  // a class of its own

TEST(MemoryOfThreads, BlocksOfAThreadThatEndedAreUsedAgain) {
  NEEDS_THE_POOL();
  std::thread([] { give_storage(take_storage(odd_size), odd_size); }).join();
  std::thread([] {
    void* block = take_storage(odd_size);
    EXPECT_EQ(memory_statistics().from_system, 0);
    give_storage(block, odd_size);
  }).join();
}

TEST(MemoryOfThreads, BlocksGivenBackByAThreadThatTookNoneAreUsedAgain) {
  NEEDS_THE_POOL();
  auto round = [] {
    void* block = take_storage(odd_size);
    std::thread([block] { give_storage(block, odd_size); }).join();
  };
  round();
  const auto before = memory_statistics().from_system;
  for (int i = 0; i < 5; ++i) round();
  EXPECT_EQ(memory_statistics().from_system, before);
}

TEST(MemoryOfThreads, ArraysSharedByThreadsAreFreedOnce) {
  const auto before = memory_statistics().live;
  {
    const auto x = A::arange(1000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([x] {
        for (int i = 0; i < 20000; ++i) {
          const A copy = x;
          ASSERT_EQ(copy.data(), x.data());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(x(999), 999);
  }
  EXPECT_EQ(memory_statistics().live, before);
}

// What a tape keeps

constexpr Index elements = 8192;
constexpr std::ptrdiff_t array_bytes = elements * 8;

// Bytes of live arrays beyond `before`, in arrays of `elements`.
double arrays_beyond(std::ptrdiff_t before, std::ptrdiff_t now) {
  return static_cast<double>(now - before) / array_bytes;
}

TEST(MemoryOfTapes, EnteringAPortAndDetachingCopyNothing) {
  Tape<double> tape;
  const auto value = A::arange(elements);
  const auto before = memory_statistics();
  const V x = tape.input(value);
  const V named = port(x, "query");
  const V constant = named.detach();
  EXPECT_EQ(x.value().data(), value.data());
  EXPECT_EQ(named.value().data(), value.data());
  EXPECT_EQ(constant.value().data(), value.data());
  EXPECT_EQ(memory_statistics().live, before.live);
}

TEST(MemoryOfTapes, ValuesThatNoRuleNeedsAreDropped) {
  Tape<double> tape;
  const auto before = memory_statistics().live;
  V y = tape.input(A::ones({elements}));
  for (int i = 0; i < 50; ++i) y = tiny::scale(y, 1.5);
  EXPECT_LT(arrays_beyond(before, memory_statistics().live), 1.5);
}

TEST(MemoryOfTapes, OutputsThatRulesTakeAreKept) {
  Tape<double> tape;
  const auto before = memory_statistics().live;
  V y = tape.input(A::zeros({elements}));
  for (int i = 0; i < 10; ++i) y = tiny::scale(tiny::exp(y), 0.1);
  EXPECT_NEAR(arrays_beyond(before, memory_statistics().live), 11, 0.5);
  tape.clear();
  EXPECT_NEAR(arrays_beyond(before, memory_statistics().live), 1, 0.5);
}

TEST(MemoryOfTapes, ValuesOfUnrecordedOpsAreNotKept) {
  const auto before = memory_statistics().live;
  V y = A::zeros({elements});
  for (int i = 0; i < 10; ++i) y = tiny::exp(tiny::scale(y, 0.1));
  EXPECT_LT(arrays_beyond(before, memory_statistics().live), 1.5);
}

TEST(MemoryOfTapes, PlainSweepFreesAdjointsAsItGoes) {
  Tape<double> tape;
  const V x = tape.input(A::zeros({elements}));
  V y = x;
  for (int i = 0; i < 50; ++i) y = tiny::scale(tiny::exp(y), 0.1);
  const V seed = A::ones({elements});
  reset_memory_peak();
  const auto before = memory_statistics().live;
  const auto dx = gradient_values(y, x, seed);
  EXPECT_LT(arrays_beyond(before, memory_statistics().peak), 5.5);
  EXPECT_NEAR(arrays_beyond(before, memory_statistics().live), 1, 0.5);
}

TEST(MemoryOfTapes, SharedInputIsAccumulatedInPlace) {
  Tape<double> tape;
  const V x = tape.input(A::ones({elements}));
  const V y = tiny::weighted_total(std::vector<V>(200, x));
  const V seed = A::ones({elements});
  reset_memory_peak();
  const auto before = memory_statistics().live;
  EXPECT_EQ(gradient_values(y, x, seed)[0](7), 200 * 201 / 2);
  EXPECT_LT(arrays_beyond(before, memory_statistics().peak), 4.5);
}

TEST(MemoryOfTapes, StaysConstantOverTenThousandSteps) {
  const bool pooled = pool_keeps_blocks();
  const auto start = memory_statistics().live;
  {
    Tape<double> tape;
    const auto parameter = A::of({0.5, -0.25, 1.5});
    auto step = [&] {
      const Scope<double> scope(tape, "step");
      const V x = tape.input(parameter, "x");
      const V y = tiny::sum(tiny::mul(tiny::exp(x), tiny::square(x)));
      const V slope = gradient(y, x)[0];
      const auto values = gradient_values(tiny::sum(tiny::square(slope)), x);
      EXPECT_GT(values[0](2), 0);
      tape.clear();
    };
    for (int i = 0; i < 3; ++i) step();
    const auto before = memory_statistics();
    for (int i = 0; i < 10000; ++i) step();
    EXPECT_EQ(memory_statistics().live, before.live);
    if (pooled) {
      EXPECT_EQ(memory_statistics().from_system, before.from_system);
    }
  }
  EXPECT_EQ(memory_statistics().live, start);
}

TEST(MemoryOfTapes, RecordedGradientsKeptInALoopMakeNoCycle) {
  const auto before = memory_statistics().live;
  for (int i = 0; i < 100; ++i) {
    Tape<double> tape;
    const V x = tape.input(A::ones({elements}));
    const V y = tiny::exp(tiny::square(x));
    const V dx = gradient(y, x, V(A::ones({elements})))[0];
    const V ddx = gradient(dx, x, dx)[0];
    EXPECT_TRUE(ddx.recorded());
  }
  EXPECT_EQ(memory_statistics().live, before);
}

}  // namespace
}  // namespace tapehead
