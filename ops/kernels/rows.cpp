#include <tapehead/core/parallel.h>
#include <tapehead/ops/kernels/rows.h>

#include <cmath>
#include <limits>

namespace tapehead::kernels {
namespace {

// f(row) for every row, many short rows to a piece.
template <class F>
void for_rows(Index rows, Index n, F f) {
  parallel_for(rows, std::max<Index>(elementwise_grain / 4 / std::max<Index>(n, 1), 1),
               [&](Index begin, Index end) {
                 for (Index row = begin; row < end; ++row) f(row);
               });
}

// Independent partial sums, which the compiler can keep in vector registers; blocks bound the error of
// doubles.
template <class T>
double row_sum(const T* x, Index n) {
  constexpr Index lanes = 8, block = 1024;
  double total = 0;
  for (Index first = 0; first < n; first += block) {
    const Index last = std::min(n, first + block);
    double lane[lanes] = {};
    Index i = first;
    for (; i + lanes <= last; i += lanes) {
      for (Index k = 0; k < lanes; ++k) lane[k] += x[i + k];
    }
    double rest = 0;
    for (; i < last; ++i) rest += x[i];
    for (const double part : lane) rest += part;
    total += rest;
  }
  return total;
}

constexpr Index tile = 64;  // columns whose sums are carried at a time

template <class T>
void column_sums(const T* x, Index n, Index stride, Index columns, T* y) {
  constexpr Index block = 256;
  double total[tile] = {};
  for (Index first = 0; first < n; first += block) {
    double part[tile] = {};
    for (Index i = first; i < std::min(n, first + block); ++i) {
      for (Index c = 0; c < columns; ++c) part[c] += x[i * stride + c];
    }
    for (Index c = 0; c < columns; ++c) total[c] += part[c];
  }
  for (Index c = 0; c < columns; ++c) y[c] = static_cast<T>(total[c]);
}

// Written so that a NaN does not hide what is larger; a NaN then shows in the sum of the exponentials.
template <class T>
T row_maximum(const T* x, Index n) {
  T maximum = -std::numeric_limits<T>::infinity();
  for (Index i = 0; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  return maximum;
}

template <class T>
T log_sum_exp(const T* x, Index n, T maximum) {
  double total = 0;
  for (Index i = 0; i < n; ++i) total += std::exp(x[i] - maximum);
  return static_cast<T>(std::log(total));
}

struct Moments {
  double mean, inverse_deviation;
};

template <class T>
double squares_about(double mean, const T* x, Index n) {
  double squares = 0;
  for (Index i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return squares;
}

// What a normalisation subtracts before it scales.
enum class Centre { mean, zero };

template <Centre centre, class T>
Moments moments(const T* x, Index n, double eps) {
  const double mean = centre == Centre::mean ? row_sum(x, n) / static_cast<double>(n) : 0;
  return {mean, 1 / std::sqrt(squares_about(mean, x, n) / static_cast<double>(n) + eps)};
}

template <Centre centre, class T>
void normalise(const T* x, const T* gain, const T* bias, double eps, Index rows, Index n, T* y) {
  for_rows(rows, n, [&](Index row) {
    const T* in = x + row * n;
    T* out = y + row * n;
    const auto [mean, scale] = moments<centre>(in, n, eps);
    for (Index i = 0; i < n; ++i) {
      T value = static_cast<T>((in[i] - mean) * scale);
      if (gain) value *= gain[i];
      out[i] = bias ? value + bias[i] : value;
    }
  });
}

}  // namespace

template <class T>
void sum(const T* x, Index outer, Index n, Index inner, T* y) {
  if (inner == 1) {
    for_rows(outer, n, [&](Index row) { y[row] = static_cast<T>(row_sum(x + row * n, n)); });
    return;
  }
  const Index tiles = (inner + tile - 1) / tile;
  for_rows(outer * tiles, n * tile, [&](Index number) {
    const Index o = number / tiles, first = number % tiles * tile;
    column_sums(x + o * n * inner + first, n, inner, std::min(tile, inner - first), y + o * inner + first);
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
  for_rows(rows, n, [&](Index row) {
    const T* in = x + row * n;
    y[row] = static_cast<T>(squares_about(row_sum(in, n) / static_cast<double>(n), in, n) / divisor);
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
  for_rows(rows, n, [&](Index row) {
    const T maximum = row_maximum(x + row * n, n);
    const T shift = std::isinf(maximum) ? T{0} : maximum;  // inf - inf would be NaN
    y[row] = shift + log_sum_exp(x + row * n, n, shift);
  });
}

template <class T>
void softmax(const T* s, Index rows, Index n, T* p) {
  for_rows(rows, n, [&](Index row) {
    const T* x = s + row * n;
    T* y = p + row * n;
    const T maximum = row_maximum(x, n);
    for (Index i = 0; i < n; ++i) y[i] = std::exp(x[i] - maximum);
    const T scale = static_cast<T>(1 / row_sum(y, n));
    for (Index i = 0; i < n; ++i) y[i] *= scale;
  });
}

template <class T>
void softmax_vjp(const T* p, const T* dp, Index rows, Index n, T* ds) {
  for_rows(rows, n, [&](Index row) {
    const T *y = p + row * n, *dy = dp + row * n;
    double dot = 0;
    for (Index i = 0; i < n; ++i) dot += static_cast<double>(y[i]) * static_cast<double>(dy[i]);
    const T mean = static_cast<T>(dot);
    for (Index i = 0; i < n; ++i) ds[row * n + i] = y[i] * (dy[i] - mean);
  });
}

template <class T>
void log_softmax(const T* s, Index rows, Index n, T* y) {
  for_rows(rows, n, [&](Index row) {
    const T* x = s + row * n;
    const T maximum = row_maximum(x, n);
    const T lse = log_sum_exp(x, n, maximum);
    for (Index i = 0; i < n; ++i) y[row * n + i] = x[i] - maximum - lse;
  });
}

template <class T>
void log_softmax_vjp(const T* y, const T* dy, Index rows, Index n, T* ds) {
  for_rows(rows, n, [&](Index row) {
    const T total = static_cast<T>(row_sum(dy + row * n, n));
    for (Index i = row * n; i < (row + 1) * n; ++i) ds[i] = dy[i] - std::exp(y[i]) * total;
  });
}

template <class T>
void layer_norm(const T* x, const T* gain, const T* bias, double eps, Index rows, Index n, T* y) {
  normalise<Centre::mean>(x, gain, bias, eps, rows, n, y);
}

template <class T>
void rms_norm(const T* x, const T* gain, double eps, Index rows, Index n, T* y) {
  normalise<Centre::zero>(x, gain, static_cast<const T*>(nullptr), eps, rows, n, y);
}

namespace {

constexpr Index rows_per_piece = 128;

}  // namespace

Index layer_norm_pieces(Index rows) { return (rows + rows_per_piece - 1) / rows_per_piece; }

namespace {

// With u = (x - mean) / deviation and du = dy gain:
//   dx = (du - mean(du) - u mean(du u)) / deviation      dgain = sum of dy u      dbias = sum of dy
// Without a mean that is subtracted there is no mean(du).
template <Centre centre, class T>
void normalise_vjp(const T* x, const T* gain, const T* dy, double eps, Index rows, Index n, T* dx, T* dgain,
                   T* dbias, double* partial) {
  parallel_for(rows, rows_per_piece, [&](Index begin, Index end) {
    double* sum_dyu = partial + begin / rows_per_piece * 2 * n;
    double* sum_dy = sum_dyu + n;
    std::fill_n(sum_dyu, 2 * n, 0.0);
    for (Index row = begin; row < end; ++row) {
      const T *in = x + row * n, *up = dy + row * n;
      const auto [mean, scale] = moments<centre>(in, n, eps);
      double mean_du = 0, mean_duu = 0;
      for (Index i = 0; i < n; ++i) {
        const double u = (in[i] - mean) * scale;
        const double du = gain ? static_cast<double>(up[i]) * gain[i] : up[i];
        mean_du += du;
        mean_duu += du * u;
        sum_dyu[i] += up[i] * u;
        sum_dy[i] += up[i];
      }
      if (!dx) continue;
      mean_du = centre == Centre::mean ? mean_du / static_cast<double>(n) : 0;
      mean_duu /= static_cast<double>(n);
      for (Index i = 0; i < n; ++i) {
        const double u = (in[i] - mean) * scale;
        const double du = gain ? static_cast<double>(up[i]) * gain[i] : up[i];
        dx[row * n + i] = static_cast<T>((du - mean_du - u * mean_duu) * scale);
      }
    }
  });
  for (Index i = 0; i < n; ++i) {
    double total_dyu = 0, total_dy = 0;
    for (Index piece = 0; piece < layer_norm_pieces(rows); ++piece) {
      total_dyu += partial[piece * 2 * n + i];
      total_dy += partial[piece * 2 * n + n + i];
    }
    if (dgain) dgain[i] = static_cast<T>(total_dyu);
    if (dbias) dbias[i] = static_cast<T>(total_dy);
  }
}

}  // namespace

template <class T>
void layer_norm_vjp(const T* x, const T* gain, const T* dy, double eps, Index rows, Index n, T* dx, T* dgain,
                    T* dbias, double* partial) {
  normalise_vjp<Centre::mean>(x, gain, dy, eps, rows, n, dx, dgain, dbias, partial);
}

template <class T>
void rms_norm_vjp(const T* x, const T* gain, const T* dy, double eps, Index rows, Index n, T* dx, T* dgain,
                  double* partial) {
  normalise_vjp<Centre::zero>(x, gain, dy, eps, rows, n, dx, dgain, static_cast<T*>(nullptr), partial);
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
void cross_entropy(const T* x, const CrossEntropyRows<T>& rows, T* loss) {
  const Index n = rows.classes;
  for_rows(static_cast<Index>(rows.targets.size()), n, [&](Index row) {
    const Index target = rows.targets[static_cast<std::size_t>(row)];
    if (target == rows.ignored) {
      loss[row] = T{0};
      return;
    }
    const T* in = x + row * n;
    const T maximum = row_maximum(in, n);
    const double lse = static_cast<double>(maximum) + static_cast<double>(log_sum_exp(in, n, maximum));
    double total = (1 - rows.smoothing) * class_weight(rows, target) * (lse - in[target]);
    if (rows.smoothing > 0) {
      for (Index c = 0; c < n; ++c) total += even_weight(rows, c) * (lse - in[c]);
    }
    loss[row] = static_cast<T>(total);
  });
}

template <class T>
void cross_entropy_vjp(const T* x, const CrossEntropyRows<T>& rows, const T* dloss, T* dx) {
  const Index n = rows.classes;
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
    const T* in = x + row * n;
    const T maximum = row_maximum(in, n);
    for (Index c = 0; c < n; ++c) out[c] = std::exp(in[c] - maximum);
    const T scale = static_cast<T>(total * dloss[row] / row_sum(out, n));
    for (Index c = 0; c < n; ++c) out[c] *= scale;
    if (rows.smoothing > 0) {
      for (Index c = 0; c < n; ++c) out[c] -= static_cast<T>(even_weight(rows, c) * dloss[row]);
    }
    out[target] -= static_cast<T>((1 - rows.smoothing) * class_weight(rows, target) * dloss[row]);
  });
}

#define TAPEHEAD_INSTANTIATE(T)                                                                          \
  template void sum(const T*, Index, Index, Index, T*);                                                  \
  template void cumsum(const T*, Index, Index, Index, bool, T*);                                         \
  template void variance(const T*, Index, Index, double, T*);                                            \
  template void largest(const T*, Index, Index, T*);                                                     \
  template void smallest(const T*, Index, Index, T*);                                                    \
  template void product(const T*, Index, Index, T*);                                                     \
  template void logsumexp(const T*, Index, Index, T*);                                                   \
  template void rms_norm(const T*, const T*, double, Index, Index, T*);                                  \
  template void rms_norm_vjp(const T*, const T*, const T*, double, Index, Index, T*, T*, double*);       \
  template void softmax(const T*, Index, Index, T*);                                                     \
  template void softmax_vjp(const T*, const T*, Index, Index, T*);                                       \
  template void log_softmax(const T*, Index, Index, T*);                                                 \
  template void log_softmax_vjp(const T*, const T*, Index, Index, T*);                                   \
  template void layer_norm(const T*, const T*, const T*, double, Index, Index, T*);                      \
  template void layer_norm_vjp(const T*, const T*, const T*, double, Index, Index, T*, T*, T*, double*); \
  template void cross_entropy(const T*, const CrossEntropyRows<T>&, T*);                                 \
  template void cross_entropy_vjp(const T*, const CrossEntropyRows<T>&, const T*, T*);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead::kernels
