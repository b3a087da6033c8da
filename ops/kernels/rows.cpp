#include <tapehead/core/parallel.h>
#include <tapehead/ops/kernels/processor.h>
#include <tapehead/ops/kernels/room.h>
#include <tapehead/ops/kernels/rows.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tapehead::kernels {
namespace {

Index rows_to_a_piece(Index n) { return std::max<Index>(elementwise_grain / 4 / std::max<Index>(n, 1), 1); }

// f(row) for every row, many short rows to a piece.
template <class F>
void for_rows(Index rows, Index n, F f) {
  parallel_for(rows, rows_to_a_piece(n), [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) f(row);
  });
}

constexpr Index tile = 64;  // columns whose sums are carried at a time

template <class T>
double squares_about(double mean, const T* x, Index n) {
  double squares = 0;
  for (Index i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return squares;
}

}  // namespace

template <class T>
void sum(const T* x, Index outer, Index n, Index inner, T* y) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  if (inner == 1) {
    for_rows(outer, n, [&](Index row) { y[row] = static_cast<T>(kernels.sum(x + row * n, n)); });
    return;
  }
  const Index tiles = (inner + tile - 1) / tile;
  for_rows(outer * tiles, n * tile, [&](Index number) {
    const Index o = number / tiles, first = number % tiles * tile;
    kernels.sum_columns(x + o * n * inner + first, n, inner, std::min(tile, inner - first),
                        y + o * inner + first);
  });
}

template <class T>
void cumsum(const T* x, Index outer, Index n, Index inner, bool backwards, T* y) {
  const Index tiles = (inner + tile - 1) / tile;
  for_rows(outer * tiles, n * std::min(inner, tile), [&](Index number) {
    const Index first = number % tiles * tile, columns = std::min(tile, inner - first);
    const Index corner = number / tiles * n * inner + first;
    double total[tile] = {};
    for (Index i = 0; i < n; ++i) {
      const Index at = corner + (backwards ? n - 1 - i : i) * inner;
      for (Index c = 0; c < columns; ++c) y[at + c] = static_cast<T>(total[c] += x[at + c]);
    }
  });
}

template <class T>
void variance(const T* x, Index rows, Index n, double divisor, T* y) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  for_rows(rows, n, [&](Index row) {
    const T* in = x + row * n;
    y[row] = static_cast<T>(squares_about(kernels.sum(in, n) / static_cast<double>(n), in, n) / divisor);
  });
}

namespace {

// The first element that `before` puts ahead of the others; NaN is ahead of all.
template <class T, class Before>
void first_of_rows(const T* x, Index rows, Index n, T* y, Before before) {
  for_rows(rows, n, [&](Index row) {
    const T* in = x + row * n;
    T best = in[0];
    for (Index i = 1; i < n; ++i) best = before(in[i], best) || in[i] != in[i] ? in[i] : best;
    y[row] = best;
  });
}

}  // namespace

template <class T>
void largest(const T* x, Index rows, Index n, T* y) {
  first_of_rows(x, rows, n, y, [](T a, T b) { return a > b; });
}
template <class T>
void smallest(const T* x, Index rows, Index n, T* y) {
  first_of_rows(x, rows, n, y, [](T a, T b) { return a < b; });
}

template <class T>
void product(const T* x, Index rows, Index n, T* y) {
  for_rows(rows, n, [&](Index row) {
    double total = 1;
    for (Index i = 0; i < n; ++i) total *= x[row * n + i];
    y[row] = static_cast<T>(total);
  });
}

template <class T>
void logsumexp(const T* x, Index rows, Index n, T* y) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  for_rows(rows, n, [&](Index row) {
    const T* in = x + row * n;
    const T maximum = kernels.maximum(in, n);
    if (maximum == std::numeric_limits<T>::infinity()) {
      const bool nan = std::any_of(in, in + n, [](T one) { return one != one; });
      y[row] = nan ? std::numeric_limits<T>::quiet_NaN() : maximum;
      return;
    }
    const T shift = std::isinf(maximum) ? T{0} : maximum;  // inf - inf would be NaN
    y[row] = shift + static_cast<T>(std::log(kernels.exponentials(in, n, shift, T{1}, nullptr)));
  });
}

// A NaN, which the maximum looks past, shows in the sum of the exponentials.
template <class T>
void softmax(const T* s, Index rows, Index n, T* p) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  for_rows(rows, n, [&](Index row) {
    const T* x = s + row * n;
    T* y = p + row * n;
    const T scale = static_cast<T>(1 / kernels.exponentials(x, n, kernels.maximum(x, n), T{1}, y));
    for (Index i = 0; i < n; ++i) y[i] *= scale;
  });
}

template <class T>
void softmax_vjp(const T* p, const T* dp, Index rows, Index n, T* ds) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  for_rows(rows, n, [&](Index row) {
    const T *y = p + row * n, *dy = dp + row * n;
    const T mean = static_cast<T>(kernels.dot(y, dy, n));
    for (Index i = 0; i < n; ++i) ds[row * n + i] = y[i] * (dy[i] - mean);
  });
}

template <class T>
void log_softmax(const T* s, Index rows, Index n, T* y) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  for_rows(rows, n, [&](Index row) {
    const T* x = s + row * n;
    const T maximum = kernels.maximum(x, n);
    const T lse = static_cast<T>(std::log(kernels.exponentials(x, n, maximum, T{1}, nullptr)));
    for (Index i = 0; i < n; ++i) y[row * n + i] = x[i] - maximum - lse;
  });
}

template <class T>
void log_softmax_vjp(const T* y, const T* dy, Index rows, Index n, T* ds) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  for_rows(rows, n, [&](Index row) {
    const T total = static_cast<T>(kernels.sum(dy + row * n, n));
    kernels.exponentials(y + row * n, n, T{0}, total, ds + row * n);
    for (Index i = row * n; i < (row + 1) * n; ++i) ds[i] = dy[i] - ds[i];
  });
}

template <class T>
void normalise(const NormRows<T>& x, Index rows, double* moments, T* y) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  parallel_for(rows, rows_to_a_piece(x.n),
               [&](Index begin, Index end) { kernels.normalise(x, begin, end, moments, y); });
}

template <class T>
void normalise_vjp(const NormRows<T>& x, const double* moments, const T* dy, Index rows, T* dx, T* dgain,
                   T* dbias) {
  constexpr Index rows_to_a_sum = 128;
  const Index n = x.n, pieces = (rows + rows_to_a_sum - 1) / rows_to_a_sum;
  const VectorKernels<T>& kernels = vector_kernels<T>();
  WorkRoom<double> room(2 * n * pieces);
  double* const sums = room.data();
  parallel_for(rows, rows_to_a_sum, [&](Index begin, Index end) {
    double* const own = sums + begin / rows_to_a_sum * 2 * n;
    std::fill_n(own, 2 * n, 0.0);
    kernels.normalise_vjp(x, moments, dy, begin, end, dx, own);
  });
  auto add_up = [&](const double* first, T* y) {
    for (Index i = 0; y && i < n; ++i) {
      double total = 0;
      for (Index piece = 0; piece < pieces; ++piece) total += first[piece * 2 * n + i];
      y[i] = static_cast<T>(total);
    }
  };
  add_up(sums, dgain);
  add_up(sums + n, dbias);
}

namespace {

// The total weight a row puts on its classes.
template <class T>
double class_weight(const CrossEntropyRows<T>& rows, Index c) {
  return rows.weights.empty() ? 1.0 : static_cast<double>(rows.weights[static_cast<std::size_t>(c)]);
}

template <class T>
double even_weight(const CrossEntropyRows<T>& rows, Index c) {
  return rows.smoothing / static_cast<double>(rows.classes) * class_weight(rows, c);
}

}  // namespace

template <class T>
void cross_entropy(const T* x, const CrossEntropyRows<T>& rows, T* loss, double* sums) {
  const Index n = rows.classes;
  const VectorKernels<T>& kernels = vector_kernels<T>();
  for_rows(static_cast<Index>(rows.targets.size()), n, [&](Index row) {
    const Index target = rows.targets[static_cast<std::size_t>(row)];
    if (target == rows.ignored) {
      loss[row] = T{0};
      return;
    }
    const T* in = x + row * n;
    const T maximum = kernels.maximum(in, n);
    const double sum = kernels.exponentials(in, n, maximum, T{1}, nullptr);
    sums[2 * row] = static_cast<double>(maximum), sums[2 * row + 1] = sum;
    const double lse = static_cast<double>(maximum) + std::log(sum);
    double total = (1 - rows.smoothing) * class_weight(rows, target) * (lse - in[target]);
    if (rows.smoothing > 0) {
      for (Index c = 0; c < n; ++c) total += even_weight(rows, c) * (lse - in[c]);
    }
    loss[row] = static_cast<T>(total);
  });
}

template <class T>
void cross_entropy_vjp(const T* x, const CrossEntropyRows<T>& rows, const double* sums, const T* dloss,
                       T* dx) {
  const Index n = rows.classes;
  const VectorKernels<T>& kernels = vector_kernels<T>();
  for_rows(static_cast<Index>(rows.targets.size()), n, [&](Index row) {
    T* out = dx + row * n;
    const Index target = rows.targets[static_cast<std::size_t>(row)];
    if (target == rows.ignored) {
      std::fill_n(out, n, T{0});
      return;
    }
    double total = (1 - rows.smoothing) * class_weight(rows, target);
    if (rows.smoothing > 0) {
      for (Index c = 0; c < n; ++c) total += even_weight(rows, c);
    }
    const T scale = static_cast<T>(total * dloss[row] / sums[2 * row + 1]);
    kernels.exponentials(x + row * n, n, static_cast<T>(sums[2 * row]), scale, out);
    if (rows.smoothing > 0) {
      for (Index c = 0; c < n; ++c) out[c] -= static_cast<T>(even_weight(rows, c) * dloss[row]);
    }
    out[target] -= static_cast<T>((1 - rows.smoothing) * class_weight(rows, target) * dloss[row]);
  });
}

#define TAPEHEAD_INSTANTIATE(T)                                                                \
  template void sum(const T*, Index, Index, Index, T*);                                        \
  template void cumsum(const T*, Index, Index, Index, bool, T*);                               \
  template void variance(const T*, Index, Index, double, T*);                                  \
  template void largest(const T*, Index, Index, T*);                                           \
  template void smallest(const T*, Index, Index, T*);                                          \
  template void product(const T*, Index, Index, T*);                                           \
  template void logsumexp(const T*, Index, Index, T*);                                         \
  template void softmax(const T*, Index, Index, T*);                                           \
  template void softmax_vjp(const T*, const T*, Index, Index, T*);                             \
  template void log_softmax(const T*, Index, Index, T*);                                       \
  template void log_softmax_vjp(const T*, const T*, Index, Index, T*);                         \
  template void normalise(const NormRows<T>&, Index, double*, T*);                             \
  template void normalise_vjp(const NormRows<T>&, const double*, const T*, Index, T*, T*, T*); \
  template void cross_entropy(const T*, const CrossEntropyRows<T>&, T*, double*);              \
  template void cross_entropy_vjp(const T*, const CrossEntropyRows<T>&, const double*, const T*, T*);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead::kernels
