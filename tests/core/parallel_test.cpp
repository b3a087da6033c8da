#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <tapehead/core/parallel.h>

#include "support/expect_error.h"

namespace tapehead {
namespace {

// The tests of this file change the number of threads; each leaves it as it was.
class Parallel : public testing::Test {
 protected:
  ~Parallel() override { set_thread_count(before_); }

 private:
  int before_ = thread_count();
};

using Visits = std::vector<std::atomic<int>>;

bool each_once(const Visits& visits) {
  for (const std::atomic<int>& visit : visits) {
    if (visit != 1) return false;
  }
  return true;
}

void visit(Visits& visits, Index begin, Index end) {
  for (Index i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
}

TEST_F(Parallel, VisitsEveryIndexExactlyOnce) {
  for (const int threads : {1, 2, 3, 5, 16}) {
    set_thread_count(threads);
    for (const Index count : {0, 1, 2, 7, 64, 1000, 4097}) {
      for (const Index grain : {1, 2, 3, 16, 999, 5000}) {
        Visits visits(static_cast<std::size_t>(count));
        parallel_for(count, grain, [&](Index begin, Index end) { visit(visits, begin, end); });
        EXPECT_TRUE(each_once(visits)) << count << " by " << grain << " on " << threads << " threads";
      }
    }
  }
}

TEST_F(Parallel, PiecesAreWholeGrainsWhateverTheNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    for (const Index count : {1, 6, 7, 100, 101}) {
      constexpr Index grain = 7;
      std::atomic<int> misfits = 0;
      parallel_for(count, grain, [&](Index begin, Index end) {
        if (begin % grain != 0 || end != std::min(count, begin + grain)) ++misfits;
      });
      EXPECT_EQ(misfits, 0) << count << " on " << threads << " threads";
    }
  }
}

TEST_F(Parallel, NothingToDoCallsNothing) {
  bool called = false;
  parallel_for(0, 4, [&](Index, Index) { called = true; });
  EXPECT_FALSE(called);
}

TEST_F(Parallel, ThreadCountIsAtLeastOne) {
  for (const int count : {-3, 0, 1}) {
    set_thread_count(count);
    EXPECT_EQ(thread_count(), 1);
  }
  set_thread_count(4);
  EXPECT_EQ(thread_count(), 4);
}

TEST_F(Parallel, OneThreadMeansTheCallingThread) {
  set_thread_count(1);
  std::vector<std::thread::id> ids(10);
  parallel_for(
      10, 1, [&](Index begin, Index) { ids[static_cast<std::size_t>(begin)] = std::this_thread::get_id(); });
  for (const std::thread::id& id : ids) EXPECT_EQ(id, std::this_thread::get_id());
}

// Each piece waits for the other to have begun, which pieces done one after another never see.
TEST_F(Parallel, TwoPiecesRunAtOnceOnTwoThreads) {
  set_thread_count(2);
  std::atomic<int> begun = 0, met = 0;
  parallel_for(2, 1, [&](Index, Index) {
    ++begun;
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (begun < 2 && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
    met += begun == 2;
  });
  EXPECT_EQ(met, 2);
}

TEST_F(Parallel, NestedCallsVisitEveryPairOnce) {
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    constexpr Index rows = 37, columns = 53;
    Visits visits(rows * columns);
    parallel_for(rows, 2, [&](Index first, Index last) {
      for (Index row = first; row < last; ++row) {
        parallel_for(columns, 5, [&](Index begin, Index end) {
          visit(visits, row * columns + begin, row * columns + end);
        });
      }
    });
    EXPECT_TRUE(each_once(visits)) << threads << " threads";
  }
}

TEST_F(Parallel, AnExceptionReachesTheCallerWithItsTypeAndText) {
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    for (const Index bad : {0, 17, 99}) {
      EXPECT_TRUE(raises<std::domain_error>(
          [&] {
            parallel_for(100, 1, [&](Index begin, Index) {
              if (begin == bad) throw std::domain_error("piece " + std::to_string(begin));
            });
          },
          {"piece " + std::to_string(bad)}))
          << threads << " threads";
    }
  }
}

TEST_F(Parallel, NoPieceIsStillRunningWhenTheExceptionArrives) {
  set_thread_count(5);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<int> running = 0;
    auto piece = [&](Index begin, Index) {
      ++running;
      if (begin % 3 == 0) {
        --running;
        throw std::runtime_error("a third of the pieces");
      }
      std::this_thread::yield();
      --running;
    };
    EXPECT_THROW(parallel_for(30, 1, piece), std::runtime_error);
    EXPECT_EQ(running, 0);
  }
}

TEST_F(Parallel, WorksAsBeforeAfterAnException) {
  set_thread_count(3);
  for (int repeat = 0; repeat < 50; ++repeat) {
    auto fail = [](Index, Index) { throw std::runtime_error("every piece"); };
    EXPECT_THROW(parallel_for(64, 1, fail), std::runtime_error);
    Visits visits(64);
    parallel_for(64, 1, [&](Index begin, Index end) { visit(visits, begin, end); });
    EXPECT_TRUE(each_once(visits));
  }
}

TEST_F(Parallel, AnExceptionOfANestedCallReachesTheOuterCaller) {
  set_thread_count(3);
  auto inner = [](Index begin, Index) {
    if (begin == 3) throw std::out_of_range("inside");
  };
  auto outer = [&](Index, Index) { parallel_for(8, 1, inner); };
  EXPECT_THROW(parallel_for(8, 1, outer), std::out_of_range);
}

TEST_F(Parallel, TwoCallersAtOnceEachGetTheirOwnWorkDone) {
  set_thread_count(3);
  std::atomic<int> failures = 0;
  auto caller = [&](Index count) {
    for (int repeat = 0; repeat < 100; ++repeat) {
      Visits visits(static_cast<std::size_t>(count));
      parallel_for(count, 3, [&](Index begin, Index end) { visit(visits, begin, end); });
      if (!each_once(visits)) ++failures;
    }
  };
  std::thread one(caller, 100), other(caller, 257);
  one.join();
  other.join();
  EXPECT_EQ(failures, 0);
}

TEST_F(Parallel, AnExceptionGoesToItsOwnCallerOnly) {
  set_thread_count(3);
  int wrong = 0, right = 0;
  std::thread careful([&] {
    for (int repeat = 0; repeat < 100; ++repeat) {
      try {
        parallel_for(40, 1, [](Index, Index) {});
      } catch (...) {
        ++wrong;
      }
    }
  });
  std::thread careless([&] {
    for (int repeat = 0; repeat < 100; ++repeat) {
      try {
        parallel_for(40, 1, [](Index, Index) { throw std::runtime_error("mine"); });
      } catch (const std::runtime_error&) {
        ++right;
      }
    }
  });
  careful.join();
  careless.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(right, 100);
}

TEST_F(Parallel, TheNumberOfThreadsMayChangeBetweenCalls) {
  for (const int threads : {2, 5, 1, 3, 8, 2}) {
    set_thread_count(threads);
    Visits visits(500);
    parallel_for(500, 7, [&](Index begin, Index end) { visit(visits, begin, end); });
    EXPECT_TRUE(each_once(visits));
  }
}

// A sum in pieces: its bits depend on how the terms are grouped, hence on nothing but count and grain.
TEST_F(Parallel, SameBitsForAnyNumberOfThreads) {
  constexpr Index count = 100'003, grain = 1'000;
  auto sum_in_pieces = [&](int threads) {
    set_thread_count(threads);
    std::vector<float> part(count / grain + 1);
    parallel_for(count, grain, [&](Index begin, Index end) {
      float total = 0;
      for (Index i = begin; i < end; ++i) total += 1.0f / static_cast<float>(i + 1);
      part[static_cast<std::size_t>(begin / grain)] = total;
    });
    return part;
  };
  const std::vector<float> expected = sum_in_pieces(1);
  for (const int threads : {2, 3, 5}) EXPECT_EQ(sum_in_pieces(threads), expected) << threads << " threads";
}

}  // namespace
}  // namespace tapehead
