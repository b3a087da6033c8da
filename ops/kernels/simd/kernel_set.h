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

// What a product is added to: a matrix with rows `row` apart, 0 for one row that is added to all; null:
// nothing.
template <class T>
struct Addend {
  const T* data = nullptr;
  Index row = 0;
  const T* at(Index i, Index j) const { return data ? data + i * row + j : nullptr; }
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

// Rows of n numbers to be normalised: u = (x - mean) / sqrt(variance + eps), y = u gain + bias. Not centred,
// the mean is 0 and the variance the mean of squares.
template <class T>
struct NormRows {
  const T *x, *gain, *bias;  // bias is null for none
  Index n;
  double eps;
  bool centred;
};

// The numbers of a step of Adam (remain = 1) or AdamW (decay = 0).
template <class T>
struct AdamStep {
  T beta1, rest1, beta2, rest2;
  T decay, remain;  // added to the gradient; left of the parameter
  T rate, root;     // rate / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
  T eps;
};

template <class T>
struct VectorKernels {
  // C (m, n) = A B + addend, rows of C `c_row` apart. `room` holds block_product_room(m, n, k, a, b)
  // elements. `packed` is what pack_product made of B, in packed_product_room elements for products of m
  // rows, or null.
  void (*block_product)(Index m, Index n, Index k, Strided<T> a, Strided<T> b, const Addend<T>& addend, T* c,
                        Index c_row, const T* packed, T* room);
  Index (*block_product_room)(Index m, Index n, Index k, Strided<T> a, Strided<T> b);
  void (*pack_product)(Index n, Index k, Strided<T> b, T* packed);
  Index (*packed_product_room)(Index m, Index n, Index k, Strided<T> a, Strided<T> b);

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

  // y = f(x), and dx = dy f'(x), for n numbers one behind the other. The result may take an argument's place.
  using Map = void (*)(const T* x, Index n, T* y);
  using Vjp = void (*)(const T* x, const T* dy, Index n, T* dx);
  Map exp, tanh, sigmoid, silu, gelu, gelu_tanh;
  Vjp silu_vjp, gelu_vjp, gelu_tanh_vjp;

  // Of n numbers. Sums run in double.
  double (*sum)(const T* x, Index n);
  double (*dot)(const T* x, const T* y, Index n);
  T (*maximum)(const T* x, Index n);  // of what is not NaN, minus infinity for nothing
  // The sum of e^(x - shift), x <= shift + 60, and y = factor e^(x - shift) unless y is null.
  double (*exponentials)(const T* x, Index n, T shift, T factor, T* y);
  // y[c] = sum over i < n of x[i stride + c] for c < columns
  void (*sum_columns)(const T* x, Index n, Index stride, Index columns, T* y);

  // Rows [begin, end). Forward makes the moments (rows, 2): the mean and 1 / sqrt(variance + eps). Backward
  // adds dy u and dy to sums (2, n), and makes dx unless it is null.
  void (*normalise)(const NormRows<T>&, Index begin, Index end, double* moments, T* y);
  void (*normalise_vjp)(const NormRows<T>&, const double* moments, const T* dy, Index begin, Index end, T* dx,
                        double* sums);

  // d = g + decay p,  m = beta1 m + rest1 d,  v = beta2 v + rest2 d^2,
  // p = remain p - rate m / (sqrt(v) root + eps), in this order and not fused: the same bits at each level.
  void (*adapt)(Index n, T* p, const T* g, T* m, T* v, const AdamStep<T>&);
};

struct KernelSet {
  VectorKernels<float> of_float;
  VectorKernels<double> of_double;
};
extern const KernelSet baseline_kernels, avx2_kernels, avx512_kernels;

}  // namespace tapehead::kernels
