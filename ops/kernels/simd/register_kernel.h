// The one kernel under all products: a few rows times a few vectors of C stay in registers while k runs.
// The left factor is read element by element with any strides, so it is neither packed nor transposed; the
// right one by whole vectors along its rows.
#pragma once

#include <tapehead/ops/kernels/simd/vector.h>

namespace tapehead::kernels {
namespace {

// 24 sums of 32 registers, or 12 of 16: enough to hide the latency of the multiply-add.
constexpr int kernel_rows = 6;
#if defined(__AVX512F__)
constexpr int kernel_vectors = 4;
#else
constexpr int kernel_vectors = 2;
#endif
template <class T>
constexpr int kernel_columns = kernel_vectors* width<T>;

template <class Element, int count>
using Several = Element[static_cast<unsigned>(count)];

template <class T>
struct KernelCall {
  Index k;  // at least 1
  Strided<T> a;
  const T* b;
  Index b_row;
  T* c;
  Index c_row;
  const T* from;  // what A B is added to: C itself, or anything with rows `from_row` apart; null: nothing
  Index from_row;
  int last;  // columns of the last vector

  void add_to_c() { from = c, from_row = c_row; }
  void next(Index rows) {
    c += rows * c_row;
    if (from) from += rows * from_row;
  }
};

// `partial`: the last vector of B and C has call.last columns and not more is touched.
template <class T, int rows, int vectors, bool partial>
void multiply(const KernelCall<T>& call) {
  Several<Several<Vector<T>, vectors>, rows> sum;
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) sum[r][v] = Vector<T>(0);
  }
  if (call.from) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) __builtin_prefetch(call.c + r * call.c_row + v * width<T>, 1);
    }
  }
  const T *a = call.a.data, *b = call.b;
  const Index a_row = call.a.row, a_column = call.a.column, b_row = call.b_row;
  Index k = call.k;
  do {
    Several<Vector<T>, vectors> right;
    for (int v = 0; v < vectors; ++v) {
      const T* x = b + v * width<T>;
      right[v] = partial && v == vectors - 1 ? load_first(x, call.last) : load(x);
    }
    for (int r = 0; r < rows; ++r) {
      const Vector<T> left(a[r * a_row]);
      for (int v = 0; v < vectors; ++v) sum[r][v] = multiply_add<T>(left, right[v], sum[r][v]);
    }
    a += a_column;
    b += b_row;
  } while (--k > 0);
  T* c = call.c;
  const T* from = call.from;
  const Index c_row = call.c_row, from_row = call.from_row;
  const int last = call.last;
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      T* y = c + v * width<T>;
      const T* x = from + v * width<T>;
      if (partial && v == vectors - 1) {
        store_first(y, from ? sum[r][v] + load_first(x, last) : sum[r][v], last);
      } else {
        store(y, from ? sum[r][v] + load(x) : sum[r][v]);
      }
    }
    c += c_row;
    if (from) from += from_row;
  }
}

template <class T>
using Multiply = void (*)(const KernelCall<T>&);

template <class T>
struct KernelTable {
  Multiply<T> entry[2][kernel_rows][kernel_vectors];

  template <bool partial, int rows, int vectors>
  constexpr void fill() {
    entry[partial][rows - 1][vectors - 1] = multiply<T, rows, vectors, partial>;
    if constexpr (vectors > 1) {
      fill<partial, rows, vectors - 1>();
    } else if constexpr (rows > 1) {
      fill<partial, rows - 1, kernel_vectors>();
    }
  }
  constexpr KernelTable() : entry{} {
    fill<false, kernel_rows, kernel_vectors>();
    fill<true, kernel_rows, kernel_vectors>();
  }
};
template <class T>
constexpr KernelTable<T> kernels;

// Rows of the next piece when `left` are left; the last two share.
inline Index next_rows(Index left) {
  return left >= 2 * kernel_rows ? kernel_rows : left > kernel_rows ? (left + 1) / 2 : left;
}

// C (m, n) (+)= A (m, k) B (k, n), m at most kernel_rows and n at most kernel_columns.
template <class T>
void multiply_rows(Index m, Index n, KernelCall<T>& call) {
  const Index vectors = pieces(n, width<T>);
  call.last = static_cast<int>(n - (vectors - 1) * width<T>);
  kernels<T>.entry[call.last != width<T>][m - 1][vectors - 1](call);
}

// The same for any m. The call is moved along in place: a copy would read in one piece what was just written
// in several, which stalls.
template <class T>
void multiply_columns(Index m, Index n, KernelCall<T>& call) {
  for (Index rows; m > 0; m -= rows) {
    rows = next_rows(m);
    multiply_rows(rows, n, call);
    call.a.data += rows * call.a.row;
    call.next(rows);
  }
}

// Rows that come next; the processor's own prefetcher does not follow several rows at once.
template <class T>
void prefetch_rows(const T* x, Index row, Index rows, Index columns) {
  for (Index r = 0; r < rows; ++r) {
    for (Index d = 0; d < columns; d += 64 / static_cast<Index>(sizeof(T)))
      __builtin_prefetch(x + r * row + d);
  }
}

// C (m, n) (+)= A B for m up to few_rows, which would leave most lanes of a register block idle, and B stored
// transposed: dot products along k, as many as make a vector at a time. A and `bt` (n, k) have whole rows, C
// strides of c_row and c_column; rows beyond the last repeat it.
constexpr Index few_rows = 8;

template <class T, int rows>
void multiply_some(Index m, Index n, Index k, Strided<T> a, Strided<T> bt, bool add, T* c, Index c_row,
                   Index c_column) {
  constexpr int step = width<T> / rows;  // columns at a time
  const Index whole = k / width<T> * width<T>;
  const int rest = static_cast<int>(k - whole);
  for (Index j = 0; j < n; j += step) {
    prefetch_rows(bt.data + (j + 4 * step) * bt.row, bt.row, least(n - j - 4 * step, step), k);
    Several<const T*, rows> left;
    Several<const T*, step> right;
    Several<Vector<T>, width<T>> sum;
    for (int r = 0; r < rows; ++r) left[r] = a.data + least(r, m - 1) * a.row;
    for (int i = 0; i < step; ++i) right[i] = bt.data + least(j + i, n - 1) * bt.row;
#pragma GCC unroll 16
    for (int i = 0; i < width<T>; ++i) sum[i] = Vector<T>(0);
    for (Index p = 0; p < whole; p += width<T>) {
#pragma GCC unroll 16
      for (int i = 0; i < width<T>; ++i) {
        sum[i] = multiply_add<T>(load(left[i % rows] + p), load(right[i / rows] + p), sum[i]);
      }
    }
    for (int i = 0; rest > 0 && i < width<T>; ++i) {
      const Vector<T> x = load_first(left[i % rows] + whole, rest);
      sum[i] = multiply_add<T>(x, load_first(right[i / rows] + whole, rest), sum[i]);
    }
    alignas(64) T dot[width<T>];
    store(dot, sums_of<T>(sum));
    for (int i = 0; i < least(step, n - j); ++i) {
      for (int r = 0; r < least(rows, m); ++r) {
        T& y = c[r * c_row + (j + i) * c_column];
        y = add ? y + dot[i * rows + r] : dot[i * rows + r];
      }
    }
  }
}
template <class T>
void multiply_few(Index m, Index n, Index k, Strided<T> a, Strided<T> bt, bool add, T* c, Index c_row,
                  Index c_column) {
  constexpr int some = width<T> < 4 ? width<T> : 4;
  for (Index i = 0; i < m; i += some) {
    const Strided<T> rows{a.data + i * a.row, a.row, 1};
    if (m - i == 1) {
      multiply_some<T, 1>(1, n, k, rows, bt, add, c + i * c_row, c_row, c_column);
    } else {
      multiply_some<T, some>(m - i, n, k, rows, bt, add, c + i * c_row, c_row, c_column);
    }
  }
}

// y[j y_row + i] = factor x[i x_row + j] for i < rows, j < columns.
template <class T>
void transpose(Index rows, Index columns, const T* x, Index x_row, T factor, T* y, Index y_row) {
  constexpr int side = 16 / sizeof(T);
  typedef T Quad __attribute__((vector_size(16)));
  Index i = 0;
  for (; i + side <= rows; i += side) {
    Index j = 0;
    for (; j + side <= columns; j += side) {
      Quad in[4], out[4];
      for (int r = 0; r < side; ++r) __builtin_memcpy(&in[r], x + (i + r) * x_row + j, 16);
      if constexpr (side == 4) {
        const Quad a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
        const Quad b = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
        const Quad c = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
        const Quad d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
        out[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
        out[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
        out[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
        out[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
      } else {
        out[0] = __builtin_shufflevector(in[0], in[1], 0, 2);
        out[1] = __builtin_shufflevector(in[0], in[1], 1, 3);
      }
      for (int r = 0; r < side; ++r) {
        out[r] *= factor;
        __builtin_memcpy(y + (j + r) * y_row + i, &out[r], 16);
      }
    }
    for (; j < columns; ++j) {
      for (int r = 0; r < side; ++r) y[j * y_row + i + r] = factor * x[(i + r) * x_row + j];
    }
  }
  for (; i < rows; ++i) {
    for (Index j = 0; j < columns; ++j) y[j * y_row + i] = factor * x[i * x_row + j];
  }
}

}  // namespace
}  // namespace tapehead::kernels
