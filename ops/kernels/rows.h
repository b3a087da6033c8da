#pragma once
// Kernels that work along rows: reductions, softmax, normalisation, cross entropy. Sums run in double, in
// blocks, so that 2^25 float ones sum to 2^25.

#include <span>

#include <tapehead/core/shape.h>
#include <tapehead/ops/kernels/simd/kernel_set.h>

namespace tapehead::kernels {

// y (outer, inner) = sum over n of x (outer, n, inner)
template <class T>
void sum(const T* x, Index outer, Index n, Index inner, T* y);

// y (outer, n, inner) = running sums over n of x, from the first on, or backwards from the last
template <class T>
void cumsum(const T* x, Index outer, Index n, Index inner, bool backwards, T* y);

// Rows of n, a number each; products run in double, too.
template <class T>
void variance(const T* x, Index rows, Index n, double divisor, T* y);  // sum (x - mean)^2 / divisor
template <class T>
void largest(const T* x, Index rows, Index n, T* y);  // NaN when the row holds one; n >= 1
template <class T>
void smallest(const T* x, Index rows, Index n, T* y);
template <class T>
void product(const T* x, Index rows, Index n, T* y);
template <class T>
void logsumexp(const T* x, Index rows, Index n, T* y);  // minus infinity for n = 0

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

// y (rows, n) and moments (rows, 2): what is subtracted and the scale of each row.
template <class T>
void normalise(const NormRows<T>& x, Index rows, double* moments, T* y);
// With u = (x - mean) scale and du = dy gain:  dx = (du - mean(du) - u mean(du u)) scale, without mean(du)
// where no mean is subtracted.  dgain (n) = sum of dy u   dbias (n) = sum of dy   Each unless null.
template <class T>
void normalise_vjp(const NormRows<T>& x, const double* moments, const T* dy, Index rows, T* dx, T* dgain,
                   T* dbias);

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
// `sums` (rows, 2) gets the maximum m of each row and the sum of exp(x - m).
template <class T>
void cross_entropy(const T* x, const CrossEntropyRows<T>& rows, T* loss, double* sums);
// dx = (softmax(x) sum_c a_c - a) dloss, one pass with the sums of the forward one
template <class T>
void cross_entropy_vjp(const T* x, const CrossEntropyRows<T>& rows, const double* sums, const T* dloss,
                       T* dx);

}  // namespace tapehead::kernels
