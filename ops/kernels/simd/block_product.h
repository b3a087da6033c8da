// C = A B (+ C) for matrices of any size and order. B is packed to panels as wide as the register kernel when
// it is stored transposed or too large to be read where it lies, A when many panels will read it again (Goto
// and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008).
#pragma once

#include <tapehead/ops/kernels/simd/register_kernel.h>

namespace tapehead::kernels {
namespace {

// Depth, rows and columns that are worked on at once: a panel of B and a block of A stay in the second-level
// cache.
constexpr Index block_depth = 256, block_rows = 192, block_columns = 1024;

template <class T>
bool takes_dot_products(Index m, Index k, Strided<T> a, Strided<T> b) {
  return m <= few_rows && k >= 4 * width<T> && b.column != 1 && a.column == 1;
}
template <class T>
bool packs_right(Index m, Index n, Index k, Strided<T> b) {
  return b.column != 1 || (m > 4 * kernel_rows && n > kernel_columns<T> && n * k > 16384);
}
template <class T>
bool packs_left(Index m, Index n, Index k) {
  return n > 4 * kernel_columns<T> && m * k > Index{1} << 19;
}

// Panels of kernel_columns columns, each `depth` rows; what is beyond n is not read by anyone.
template <class T>
void pack_right(Index depth, Index n, Strided<T> b, T* y) {
  constexpr Index columns = kernel_columns<T>;
  for (Index j = 0; j < n; j += columns) {
    const Index count = least(columns, n - j);
    const T* x = b.data + j * b.column;
    if (b.column != 1) {
      transpose<T>(count, depth, x, b.column, T(1), y, columns);
    } else {
      for (Index p = 0; p < depth; ++p) {
        for (Index i = 0; i < count; ++i) y[p * columns + i] = x[p * b.row + i];
      }
    }
    y += depth * columns;
  }
}

// Groups of kernel_rows rows, each `depth` columns.
template <class T>
void pack_left(Index m, Index depth, Strided<T> a, T* y) {
  for (Index i = 0; i < m; i += kernel_rows) {
    const Index count = least(kernel_rows, m - i);
    const T* x = a.data + i * a.row;
    if (a.column == 1) {
      transpose<T>(count, depth, x, a.row, T(1), y, kernel_rows);
    } else {
      for (Index p = 0; p < depth; ++p) {
        for (Index r = 0; r < count; ++r) y[p * kernel_rows + r] = x[r * a.row + p * a.column];
      }
    }
    y += depth * kernel_rows;
  }
}

template <class T>
void multiply_packed_left(Index m, Index n, KernelCall<T>& call) {
  for (Index i = 0; i < m; i += kernel_rows) {
    multiply_rows(least(kernel_rows, m - i), n, call);
    call.a.data += call.k * kernel_rows;
    call.next(kernel_rows);
  }
}

template <class T>
void multiply_where_it_lies(Index m, Index n, Index k, Strided<T> a, Strided<T> b, const Addend<T>& addend,
                            T* c, Index c_row) {
  for (Index j = 0; j < n; j += kernel_columns<T>) {
    KernelCall<T> call{k, a, b.data + j, b.row, c + j, c_row, addend.at(0, j), addend.row, 0};
    multiply_columns(m, least(kernel_columns<T>, n - j), call);
  }
}

// Calls f(j, columns, p, depth, y) for the blocks of B, y where the panels of a block stand among all of
// them.
template <class T, class F>
void for_right_blocks(Index n, Index k, F f) {
  for (Index j = 0; j < n; j += block_columns) {
    const Index columns = least(block_columns, n - j);
    const Index padded_columns = pieces(columns, kernel_columns<T>) * kernel_columns<T>;
    for (Index p = 0; p < k; p += block_depth) {
      f(j, columns, p, least(block_depth, k - p), j * k + p * padded_columns);
    }
  }
}

template <class T>
Strided<T> part_at(Strided<T> x, Index row, Index column) {
  return {x.data + row * x.row + column * x.column, x.row, x.column};
}

// All panels of B, for products that share it; their room, 0 when such a product of m rows reads B where it
// lies.
template <class T>
void pack_product(Index n, Index k, Strided<T> b, T* panels) {
  for_right_blocks<T>(n, k, [&](Index j, Index columns, Index p, Index depth, Index at) {
    pack_right(depth, columns, part_at(b, p, j), panels + at);
  });
}
template <class T>
Index packed_product_room(Index m, Index n, Index k, Strided<T> a, Strided<T> b) {
  if (m == 0 || takes_dot_products(m, k, a, b) || !packs_right(m, n, k, b)) return 0;
  return pieces(n, kernel_columns<T>) * kernel_columns<T> * k;
}

template <class T>
struct PackedProduct {
  Index m, n, k;
  Strided<T> a, b;
  Addend<T> addend;
  bool left;
  T* c;
  Index c_row;
  const T* packed;  // panels of all of B, or null
  T *panels, *groups;

  void run() {
    for_right_blocks<T>(n, k, [&](Index j, Index columns, Index p, Index depth, Index at) {
      if (!packed) pack_right(depth, columns, part_at(b, p, j), panels);
      const Index step = left ? block_rows : m;
      for (Index i = 0; i < m; i += step) {
        multiply_block(i, least(step, m - i), j, columns, p, depth, packed ? packed + at : panels);
      }
    });
  }

  void multiply_block(Index i, Index rows, Index j, Index columns, Index p, Index depth, const T* right) {
    const Strided<T> from = part_at(a, i, p);
    if (left) pack_left(rows, depth, from, groups);
    for (Index panel = 0; panel < columns; panel += kernel_columns<T>) {
      const Index count = least(kernel_columns<T>, columns - panel);
      KernelCall<T> call{depth,
                         left ? Strided<T>{groups, 1, kernel_rows} : from,
                         right + panel * depth,
                         kernel_columns<T>,
                         c + i * c_row + j + panel,
                         c_row,
                         addend.at(i, j + panel),
                         addend.row,
                         0};
      if (p > 0) call.add_to_c();
      if (left) {
        multiply_packed_left(rows, count, call);
      } else {
        multiply_columns(rows, count, call);
      }
    }
  }
};

// Elements of the packed panels of a block of B.
template <class T>
Index panels_room(Index n, Index k) {
  return least(k, block_depth) * pieces(least(n, block_columns), kernel_columns<T>) * kernel_columns<T>;
}
template <class T>
Index block_product_room(Index m, Index n, Index k, Strided<T> a, Strided<T> b) {
  if (takes_dot_products(m, k, a, b) || !packs_right(m, n, k, b)) return 0;
  const Index groups = packs_left<T>(m, n, k) ? pieces(least(m, block_rows), kernel_rows) * kernel_rows : 0;
  return panels_room<T>(n, k) + least(k, block_depth) * groups;
}

template <class T>
void block_product(Index m, Index n, Index k, Strided<T> a, Strided<T> b, const Addend<T>& addend, T* c,
                   Index c_row, const T* packed, T* room) {
  if (takes_dot_products(m, k, a, b)) {
    for (Index i = 0; addend.data && addend.data != c && i < m; ++i) {
      for (Index j = 0; j < n; ++j) c[i * c_row + j] = *addend.at(i, j);
    }
    return multiply_few(m, n, k, a, Strided<T>{b.data, b.column, 1}, addend.data != nullptr, c, c_row, 1);
  }
  if (!packs_right(m, n, k, b)) return multiply_where_it_lies(m, n, k, a, b, addend, c, c_row);
  PackedProduct<T>{
      m, n, k, a, b, addend, packs_left<T>(m, n, k), c, c_row, packed, room, room + panels_room<T>(n, k)}
      .run();
}

}  // namespace
}  // namespace tapehead::kernels
