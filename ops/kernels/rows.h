#pragma once
// Kernels that work along rows: reductions, softmax, normalisation, cross entropy. Sums run in double, in
// blocks, so that 2^25 float ones sum to 2^25.

#include <span>

#include <tapehead/core/shape.h>

namespace tapehead::kernels {

// y (outer, inner) = sum over n of x (outer, n, inner)
template <class T>
void sum(const T* x, Index outer, Index n, Index inner, T* y);

// Rows of n:  P = exp(S - m) / sum exp(S - m), m the row's maximum
template <class T>
void softmax(const T* s, Index rows, Index n, T* p);
// dS = P (dP - sum(dP P))
template <class T>
void softmax_vjp(const T* p, const T* dp, Index rows, Index n, T* ds);
// Y = S - m - log sum exp(S - m)
template <class T>
void log_softmax(const T* s, Index rows, Index n, T* y);
// dS = dY - exp(Y) sum(dY)
template <class T>
void log_softmax_vjp(const T* y, const T* dy, Index rows, Index n, T* ds);

// Y = (X - mean) / sqrt(variance + eps) * gain + bias
template <class T>
void layer_norm(const T* x, const T* gain, const T* bias, double eps, Index rows, Index n, T* y);
// dX, dgain and dbias of it, each unless null. `partial` has room for 2 n layer_norm_pieces(rows) numbers.
template <class T>
void layer_norm_vjp(const T* x, const T* gain, const T* dy, double eps, Index rows, Index n, T* dx, T* dgain,
                    T* dbias, double* partial);
Index layer_norm_pieces(Index rows);

// What a row of cross entropy is held to: class t of the row gets weight (1 - smoothing) w_t, and every class
// c smoothing / classes w_c. `weights` is empty for all ones. A row whose target is `ignored` has loss and
// gradient 0.
template <class T>
struct CrossEntropyRows {
  std::span<const Index> targets;
  std::span<const T> weights;
  double smoothing;
  Index ignored;
  Index classes;
};
// loss (rows) = sum_c a_c (log sum exp(x) - x_c), a_c the weight of class c
template <class T>
void cross_entropy(const T* x, const CrossEntropyRows<T>& rows, T* loss);
// dx = (softmax(x) sum_c a_c - a) dloss
template <class T>
void cross_entropy_vjp(const T* x, const CrossEntropyRows<T>& rows, const T* dloss, T* dx);

}  // namespace tapehead::kernels
