#pragma once
// Work cut into chunks and shared among threads. How it is cut depends on its size alone, so results are the
// same bits for any number of threads.

#include <algorithm>

#include <tapehead/core/shape.h>

namespace tapehead {

// Threads that kernels may use, at least 1: at first what the environment variable TAPEHEAD_THREADS says,
// otherwise what the machine has.
int thread_count();
void set_thread_count(int count);

namespace detail {

// A function to be called for chunk numbers 0 to count - 1, without owning or allocating.
struct ChunkTask {
  void (*call)(void* context, Index chunk);
  void* context;
};
void run_chunks(Index count, ChunkTask task);

}  // namespace detail

// Calls f(begin, end) for consecutive pieces of [0, count) of `grain` elements each, in any order, perhaps at
// once. The first exception that a piece throws is thrown here when all have ended.
template <class F>
void parallel_for(Index count, Index grain, F&& f) {
  grain = std::max<Index>(grain, 1);
  if (count <= grain) {
    if (count > 0) f(Index{0}, count);
    return;
  }
  auto piece = [&](Index chunk) { f(chunk * grain, std::min(count, (chunk + 1) * grain)); };
  using Piece = decltype(piece);
  detail::run_chunks((count + grain - 1) / grain,
                     {[](void* context, Index chunk) { (*static_cast<Piece*>(context))(chunk); }, &piece});
}

inline constexpr Index elementwise_grain = 1 << 15;  // elements to a piece of simple arithmetic

}  // namespace tapehead
