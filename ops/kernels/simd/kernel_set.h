// The functions that exist once for each processor level, as a table of pointers. The table and the structs
// it speaks of are all that the rest of the library knows of the vector code.
#pragma once

#include <tapehead/ops/kernels/fused_attention.h>

namespace tapehead::kernels {

// A matrix whose element (i, j) lies at data[i * row + j * column].
template <class T>
struct Strided {
  const T* data;
  Index row, column;
};

// Queries that are worked on together, one a lane: rows [row, row + count) of the heads / key_heads query
// heads of one key head laid end to end.
struct AttentionBlock {
  static constexpr Index most_rows = 64;
  Index batch, key_head, row, count;
};

struct BackwardBlock {
  double* dslopes = nullptr;  // (batches, heads, queries) what each row adds to its head's gradient
  double* dsinks = nullptr;
  // Called before a block adds to dk and dv of the keys of a tile, and after: blocks take turns in order.
  void (*enter)(void* turns, Index tile) = nullptr;
  void (*leave)(void* turns, Index tile) = nullptr;
  void* turns = nullptr;
};

template <class T>
struct VectorKernels {
  // C = A B, or C += A B. C (m, n) has rows `c_row` apart. `room` holds block_product_room(m, n, k, a, b)
  // elements.
  void (*block_product)(Index m, Index n, Index k, Strided<T> a, Strided<T> b, bool add, T* c, Index c_row,
                        T* room);
  Index (*block_product_room)(Index m, Index n, Index k, Strided<T> a, Strided<T> b);

  // A block's rows from all keys; or, in parts, from keys [begin, end) each into a state of its own, which
  // are then merged in order. `state` has attention_state elements, `room` forward_room.
  void (*attention_block)(const AttentionProblem<T>&, const AttentionBlock&, HeadRows<T> output, double* lse,
                          AttentionRows* report, T* state, T* room);
  void (*attention_part)(const AttentionProblem<T>&, const AttentionBlock&, Index begin, Index end, T* state,
                         T* room);
  void (*attention_merge)(const AttentionProblem<T>&, const AttentionBlock&, T* states, Index count,
                          HeadRows<T> output, double* lse, AttentionRows* report);
  Index (*attention_state)(const AttentionProblem<T>&);
  Index (*forward_room)(const AttentionProblem<T>&);

  void (*backward_block)(const AttentionProblem<T>&, const AttentionGradients<T>&, const AttentionBlock&,
                         const BackwardBlock&, T* room);
  Index (*backward_room)(const AttentionProblem<T>&);
  Index backward_tile;  // keys to a tile

  void (*exp)(const T* x, Index n, T* y);  // x <= 60
  void (*tanh)(const T* x, Index n, T* y);
};

struct KernelSet {
  VectorKernels<float> of_float;
  VectorKernels<double> of_double;
};
extern const KernelSet baseline_kernels, avx2_kernels, avx512_kernels;

}  // namespace tapehead::kernels
