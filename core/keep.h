#pragma once
// What a tape remembers of its nodes besides what rules need, for whoever looks at it.
//
//   tape.keep(KeepLevel::statistics);
//   ... ops and gradient_values(y, x) ...
//   tape.kept(i)->forward->summary.largest

#include <optional>

#include <tapehead/core/tape.h>

namespace tapehead {

// What can be said of an array without showing it.
struct ArraySummary {
  double least = 0, largest = 0;  // of what is finite; 0 when nothing is
  double mean = 0, spread = 0;    // of what is finite; spread is the standard deviation
  double norm = 0;                // Euclidean, of what is finite
  Index nans = 0, infinities = 0;
};

template <std::floating_point T>
ArraySummary summary_of(const Array<T>& x);

// The value of an op, or the gradient of its output, and when and how it came about. Seconds are of the clock
// on the wall; the time that keeping takes is in none of them.
template <std::floating_point T>
struct KeptArray {
  double start = 0;    // since the tape began to keep
  double seconds = 0;  // see below
  ArraySummary summary{};
  std::ptrdiff_t live_bytes = 0;  // of all arrays of this thread, right after
  Array<T> array{};               // at the level everything
};

// Forward seconds: from the node before on the tape, or from the last gradient if that was later, to this
// one. So they hold the op and whatever else the program did meanwhile, ops of constants included. An input
// takes none. Backward seconds: of its rules, and of adding what they give to the sums so far.
template <std::floating_point T>
struct KeptNode {
  std::optional<KeptArray<T>> forward, backward;
};

}  // namespace tapehead
