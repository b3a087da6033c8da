#pragma once
// Toy tasks whose every sequence is drawn at random, so that what was held out is never what was trained on.

#include <tapehead/core/random.h>

namespace tapehead {

inline constexpr Index no_target = -1;  // a position that is not asked about

// Reads key-value pairs, then the keys in another order, each followed by its value: to write a value, a
// model must find the place where its key stood before. Keys are tokens 0 to keys - 1, values those after
// them.
struct RecallTask {
  Index pairs = 8, keys = 16, values = 16;

  struct Batch {
    Array<Index> tokens;   // (B, length)
    Array<Index> targets;  // (B, length): the value at each repeated key, no_target elsewhere
  };
  Index vocabulary() const { return keys + values; }
  Index length() const { return 4 * pairs; }
  Batch draw(Generator& random, Index batch) const;  // throws DomainError for more pairs than keys
};

// Writes a sequence of symbols backwards. Symbols are tokens 0 to symbols - 1, the token after them starts
// the answer.
struct ReverseTask {
  Index length = 12, symbols = 16;

  struct Batch {
    Array<Index> source;   // (B, length)
    Array<Index> input;    // (B, length): start, then the answer but for its last symbol
    Array<Index> targets;  // (B, length): the source backwards
  };
  Index start() const { return symbols; }
  Index vocabulary() const { return symbols + 1; }
  Batch draw(Generator& random, Index batch) const;

  // For one causal model: the source, then the input, as one sequence (B, 2 length), asked for the answer
  // alone.
  struct Joined {
    Array<Index> tokens, targets;
  };
  static Joined joined(const Batch& batch);
};

}  // namespace tapehead
