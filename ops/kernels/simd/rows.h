// Passes along rows. Sums run in double, whatever the type.
#pragma once

#include <tapehead/ops/kernels/simd/vector.h>

namespace tapehead::kernels {
namespace {

using Wide = Vector<double>;
constexpr int wide = width<double>;

// What is read or written at a time: as many numbers as a vector has doubles, or the first of them.
struct Whole {};
struct First {
  int count;
};

template <class T>
struct Few {
  typedef T Type __attribute__((vector_size(wide * sizeof(T))));
};

template <class T>
Wide load_wide(const T* x, Whole, double = 0) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return Wide(_mm512_cvtps_pd(_mm256_loadu_ps(x)));
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) return Wide(_mm256_cvtps_pd(_mm_loadu_ps(x)));
#endif
  typename Few<T>::Type y;
  __builtin_memcpy(&y, x, sizeof(y));
  return Wide(__builtin_convertvector(y, Wide::register_type));
}
template <class T>
Wide load_wide(const T* x, First first, double fill = 0) {
  alignas(64) double buffer[wide];
  for (int i = 0; i < wide; ++i) buffer[i] = i < first.count ? static_cast<double>(x[i]) : fill;
  return load(buffer);
}
template <class T>
void store_wide(T* y, const Wide& x, Whole) {
  const Wide::register_type from = x;
  const auto to = __builtin_convertvector(from, typename Few<T>::Type);
  __builtin_memcpy(y, &to, sizeof(to));
}
template <class T>
void store_wide(T* y, const Wide& x, First first) {
  alignas(64) double buffer[wide];
  store(buffer, x);
  for (int i = 0; i < first.count; ++i) y[i] = static_cast<T>(buffer[i]);
}

// f(i, part) for the parts of n numbers.
template <class F>
void for_parts(Index n, F f) {
  Index i = 0;
  for (; i + wide <= n; i += wide) f(i, Whole());
  if (i < n) f(i, First{static_cast<int>(n - i)});
}

inline double lanes_total(const Wide& x) {
  alignas(64) double lane[wide];
  store(lane, x);
  double total = 0;
  for (const double part : lane) total += part;
  return total;
}
template <class T>
Wide in_double(const Vector<T>& x) {
  alignas(64) T lane[width<T>];
  store(lane, x);
  Wide sum = load_wide(lane, Whole());
  for (int i = wide; i < width<T>; i += wide) sum = sum + load_wide(lane + i, Whole());
  return sum;
}

constexpr Index summed_at_once = 1024;  // bounds the error of doubles

template <class T>
double sum_of(const T* x, Index n) {
  double total = 0;
  for (Index first = 0; first < n; first += summed_at_once) {
    Wide sum(0);
    for_parts(least(summed_at_once, n - first),
              [&](Index i, auto part) { sum = sum + load_wide(x + first + i, part); });
    total += lanes_total(sum);
  }
  return total;
}

template <class T>
double dot_of(const T* x, const T* y, Index n) {
  Wide sum(0);
  for_parts(n, [&](Index i, auto part) {
    sum = multiply_add<double>(load_wide(x + i, part), load_wide(y + i, part), sum);
  });
  return lanes_total(sum);
}

// y[c] = sum over i < n of x[i stride + c] for c < columns.
template <class T>
void sum_columns(const T* x, Index n, Index stride, Index columns, T* y) {
  constexpr int parts = 8;
  Index c = 0;
  for (; c + parts * wide <= columns; c += parts * wide) {
    Several<Wide, parts> total;
    for (Wide& one : total) one = Wide(0);
    for (Index first = 0; first < n; first += summed_at_once) {
      Several<Wide, parts> sum;
      for (Wide& one : sum) one = Wide(0);
      for (Index i = first; i < least(n, first + summed_at_once); ++i) {
        for (int v = 0; v < parts; ++v) sum[v] = sum[v] + load_wide(x + i * stride + c + v * wide, Whole());
      }
      for (int v = 0; v < parts; ++v) total[v] = total[v] + sum[v];
    }
    for (int v = 0; v < parts; ++v) store_wide(y + c + v * wide, total[v], Whole());
  }
  for_parts(columns - c, [&](Index at, auto part) {
    Wide total(0);
    for (Index first = 0; first < n; first += summed_at_once) {
      Wide sum(0);
      for (Index i = first; i < least(n, first + summed_at_once); ++i) {
        sum = sum + load_wide(x + i * stride + c + at, part);
      }
      total = total + sum;
    }
    store_wide(y + c + at, total, part);
  });
}

// Looks past NaN, which does not hide what is larger; minus infinity for n = 0.
template <class T>
T maximum_of(const T* x, Index n) {
  Vector<T> most(-infinity<T>);
  Index i = 0;
  for (; i + width<T> <= n; i += width<T>) most = xsimd::max(load(x + i), most);
  alignas(64) T lane[width<T>];
  store(lane, most);
  T maximum = -infinity<T>;
  for (const T one : lane) maximum = one > maximum ? one : maximum;
  for (; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  return maximum;
}

// The sum of e^(x - shift), x <= shift + 60, and y = factor e^(x - shift) unless y is null.
template <class T>
double exponentials(const T* x, Index n, T shift, T factor, T* y) {
  Wide sum(0);
  Index i = 0;
  for (; i + width<T> <= n; i += width<T>) {
    const Vector<T> e = exp_of<T>(load(x + i) - Vector<T>(shift));
    sum = sum + in_double<T>(e);
    if (y) store(y + i, e * Vector<T>(factor));
  }
  double total = lanes_total(sum);
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const Vector<T> e = exp_of<T>(load_first(x + i, rest) - Vector<T>(shift));
    alignas(64) T lane[width<T>];
    store(lane, e);
    for (int r = 0; r < rest; ++r) total += static_cast<double>(lane[r]);
    if (y) store_first(y + i, e * Vector<T>(factor), rest);
  }
  return total;
}

// The mean of a row and the factor of what is left, as NormRows has them; and the same of its gradient.
struct RowMoments {
  double mean, scale;
};
inline RowMoments moments_at(const double* moments, Index row) {
  return {moments[2 * row], moments[2 * row + 1]};
}

// One pass, about the first number of the row: its distance from the mean is at most sqrt(n) deviations, so
// that the difference of squares loses less than a factor n.
template <class T>
RowMoments moments_of(const NormRows<T>& p, const T* x) {
  const double shift = p.centred ? static_cast<double>(x[0]) : 0, count = static_cast<double>(p.n);
  Wide sum(0), squares(0);
  for_parts(p.n, [&](Index i, auto part) {
    const Wide d = load_wide(x + i, part, shift) - Wide(shift);
    sum = sum + d;
    squares = multiply_add<double>(d, d, squares);
  });
  const double offset = p.centred ? lanes_total(sum) / count : 0;
  const double variance = lanes_total(squares) / count - offset * offset;
  return {shift + offset, 1 / __builtin_sqrt((variance < 0 ? 0 : variance) + p.eps)};
}

template <class T>
void normalise(const NormRows<T>& p, Index begin, Index end, double* moments, T* y) {
  for (Index row = begin; row < end; ++row) {
    const T* x = p.x + row * p.n;
    const RowMoments m = moments_of(p, x);
    moments[2 * row] = m.mean, moments[2 * row + 1] = m.scale;
    const Wide mean(m.mean), scale(m.scale);
    for_parts(p.n, [&](Index i, auto part) {
      const Wide u = (load_wide(x + i, part) - mean) * scale,
                 bias = p.bias ? load_wide(p.bias + i, part) : Wide(0);
      store_wide(y + row * p.n + i, multiply_add<double>(u, load_wide(p.gain + i, part), bias), part);
    });
  }
}

// With u = (x - mean) scale and du = dy gain:  dx = (du - mean(du) - u mean(du u)) scale, no mean(du) without
// a centre. dgain and dbias of a row are dy u and dy.
template <class T>
RowMoments slope_moments(const NormRows<T>& p, const T* x, const T* dy, const RowMoments& m) {
  const Wide mean(m.mean), scale(m.scale);
  Wide sum_du(0), sum_duu(0);
  for_parts(p.n, [&](Index i, auto part) {
    const Wide du = load_wide(dy + i, part) * load_wide(p.gain + i, part);
    sum_du = sum_du + du;
    sum_duu = multiply_add<double>(du, (load_wide(x + i, part) - mean) * scale, sum_duu);
  });
  const double count = static_cast<double>(p.n);
  return {p.centred ? lanes_total(sum_du) / count : 0, lanes_total(sum_duu) / count};
}

template <class T>
void normalise_vjp(const NormRows<T>& p, const double* moments, const T* dy, Index begin, Index end, T* dx,
                   double* sums) {
  constexpr Index together = 4;  // rows that a part of the sums is carried through
  for (Index first = begin; first < end; first += together) {
    const Index rows = least(together, end - first);
    RowMoments slope[together];
    for (Index r = 0; dx && r < rows; ++r) {
      const Index at = (first + r) * p.n;
      slope[r] = slope_moments(p, p.x + at, dy + at, moments_at(moments, first + r));
    }
    for_parts(p.n, [&](Index i, auto part) {
      const Wide gain = load_wide(p.gain + i, part);
      Wide sum_dyu = load_wide(sums + i, part), sum_dy = load_wide(sums + p.n + i, part);
      for (Index r = 0; r < rows; ++r) {
        const Index at = (first + r) * p.n + i;
        const RowMoments m = moments_at(moments, first + r);
        const Wide u = (load_wide(p.x + at, part, m.mean) - Wide(m.mean)) * Wide(m.scale);
        const Wide up = load_wide(dy + at, part);
        sum_dyu = multiply_add<double>(up, u, sum_dyu);
        sum_dy = sum_dy + up;
        if (!dx) continue;
        const Wide du = up * gain - Wide(slope[r].mean);
        store_wide(dx + at, subtract_product<double>(u, Wide(slope[r].scale), du) * Wide(m.scale), part);
      }
      store_wide(sums + i, sum_dyu, part);
      store_wide(sums + p.n + i, sum_dy, part);
    });
  }
}

}  // namespace
}  // namespace tapehead::kernels
