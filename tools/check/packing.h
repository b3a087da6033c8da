#pragma once
// Packed sequences, the layout THD. They are one sample whose documents are the sequences. Where sequences of
// queries and keys differ in length, and so in how rows and keys are aligned, they become samples of their
// own.

#include <vector>

#include <tools/check/shapes.h>

namespace tapehead::check {

// Where sequences begin, and the end: 0, ..., T.
struct Packing {
  std::vector<Index> queries, keys;
};

// From cu_seqlens_q and cu_seqlens_k, or query_lengths and key_lengths. Throws Unusable when they are missing
// or do not fill the rows.
Packing packing_of(const Shapes& shapes);

// (1, T): 1 for the rows of the first sequence, 2 for those of the second.
Array<double> document_numbers(const std::vector<Index>& starts);

// The call with a sample a sequence, filled up with rows that have no keys. Throws Unusable for a tensor that
// cannot be cut so.
Call call_by_sequences(Call call, const Packing& packing, const Settings& said, const Dump& dump);

}  // namespace tapehead::check
