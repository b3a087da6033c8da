#pragma once
// The explicit formulas of attention, forward and backward, as plain loops in double: what the composition is
// held to, and what others can hold theirs to. Shares no code with the engine, its ops or the expansion of
// masks.

#include <tapehead/nn/attention.h>

namespace tapehead {

struct AttentionReference {
  Array<double> output;   // (..., L, E)
  Array<double> weights;  // (..., L, S)
  // With an upstream gradient of output:
  Array<double> dquery, dkey, dvalue;
  Array<double> dscores;  // of the scaled and masked scores: exactly 0 where masked
  double dscale = 0;      // of a scale that is one number
};

// query (..., L, D)   key (..., S, D)   value (..., S, E)   upstream (..., L, E), or nothing for forward
// only. A scale given as a Var must be a single number here. Throws as attention() does.
AttentionReference attention_reference(const Array<double>& query, const Array<double>& key,
                                       const Array<double>& value,
                                       const AttentionOptions<double>& options = {},
                                       const Array<double>& upstream = {});

}  // namespace tapehead
