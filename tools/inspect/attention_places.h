#pragma once
// Where on a tape attention was computed: found by its ports, its softmax and the remark on its output.

#include <optional>
#include <string>
#include <vector>

#include <tapehead/core/paths.h>

namespace tapehead {

struct AttentionPlace {
  std::string label;                   // its scope, numbered when a scope has several
  std::vector<Index> ports;            // of query, key and value, those that are recorded
  Index output = 0;                    // (..., H, L, E), or (..., L, H E) when a fused layer made it
  bool heads_known = true;             // not in that last case: the tape does not say how many there are
  std::optional<Index> weights;        // (..., H, L, S); nothing when the fused kernel ran
  std::optional<Index> masked_scores;  // likewise, when recorded; with an attention sink they have a key more
};

// In order on the tape. What is inside recompute() leaves no nodes and is not found.
template <std::floating_point T>
std::vector<AttentionPlace> attention_places(const Tape<T>& tape);

// One head, one query row, or both; everything when neither is said.
struct AttentionPart {
  std::optional<Index> head, query_row;
};

// Gates that let pass that part of the gradient of each attention's output, of those that have it. Throws
// DomainError when no attention has such a head and row, and for a head of an attention whose heads are not
// known.
template <std::floating_point T>
std::vector<PathGate<T>> attention_gates(const Tape<T>& tape, const AttentionPart& part);

// B, H, L, S of an array (..., H, L, S): axes in front of the heads as one; below rank 4 there is one head.
Shape by_head(const Shape& shape);

}  // namespace tapehead
