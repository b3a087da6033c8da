#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/kernels/gemm.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>

namespace tapehead {
namespace {

using kernels::Matrix;

template <class T>
Index rows_of(const Var<T>& x) {
  return x.shape().first(x.rank() - 1).size();
}

// Rows of all leading axes one below the other.
template <class T>
Var<T> folded(const Var<T>& x) {
  return reshape(x, Shape{rows_of(x), x.dim(-1)});
}

// The leading axes of both, broadcast.
template <class T>
Shape batch_of(const Var<T>& a, const Var<T>& b) {
  const std::optional<Shape> batch = broadcast(a.shape().first(a.rank() - 2), b.shape().first(b.rank() - 2));
  if (!batch)
    throw ShapeError("matmul", "leading axes do not broadcast", {{"a", a.shape()}, {"b", b.shape()}});
  return *batch;
}

// One product for each pair of matrices that the leading axes bring together.
template <class T>
void batched(const Var<T>& a, const Var<T>& b, bool ta, bool tb, Array<T>& y) {
  const Index m = y.dim(-2), p = y.dim(-1), n = a.dim(ta ? -2 : -1);
  const Shape batch = y.shape().first(y.rank() - 2);
  const Strides step_a(a.shape().first(a.rank() - 2), batch), step_b(b.shape().first(b.rank() - 2), batch);
  const Index matrix_a = m * n, matrix_b = n * p;
  T* out = y.mutable_values().data();
  constexpr Index work_of_a_piece = Index{1} << 18;  // multiply-adds
  const Index grain = std::max<Index>(work_of_a_piece / std::max<Index>(m * n * p, 1), 1);
  parallel_for(batch.size(), grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      Index at_a = 0, at_b = 0;
      for (Index rest = i, axis = batch.rank(); axis-- > 0;) {
        const Index extent = batch[static_cast<int>(axis)];
        at_a += rest % extent * step_a[static_cast<int>(axis)];
        at_b += rest % extent * step_b[static_cast<int>(axis)];
        rest /= extent;
      }
      kernels::gemm<T>(m, p, n, {a.value().data() + at_a * matrix_a, ta ? m : n, ta},
                       {b.value().data() + at_b * matrix_b, tb ? n : p, tb}, 0, out + i * m * p, p);
    }
  });
}

template <class T>
Var<T> product_with_vector(const Var<T>& a, const Var<T>& b, bool ta, bool tb) {
  const bool row = a.rank() == 1, column = b.rank() == 1;
  const Var<T> y =
      matmul(row ? reshape(a, {1, a.size()}) : a, column ? reshape(b, {b.size(), 1}) : b, ta, tb);
  Shape shape = y.shape();
  if (column) shape = shape.without(shape.rank() - 1);
  if (row) shape = shape.without(shape.rank() - (column ? 1 : 2));
  return reshape(y, shape);
}

}  // namespace

template <std::floating_point T>
Var<T> matmul(const Var<T>& a, const Var<T>& b, bool ta, bool tb) {
  const bool scalar = a.rank() == 0 || b.rank() == 0;
  if (scalar || (a.rank() == 1 && ta) || (b.rank() == 1 && tb)) {
    throw ShapeError("matmul", scalar ? "a scalar is no matrix" : "a vector has no transpose",
                     {{"a", a.shape()}, {"b", b.shape()}});
  }
  const Index inner_a = a.dim(a.rank() == 1 || !ta ? -1 : -2), inner_b = b.dim(b.rank() == 1 || tb ? -1 : -2);
  if (inner_a != inner_b) {
    std::string what = "inner dimensions differ";
    if (ta) what += ", a transposed";
    if (tb) what += ", b transposed";
    throw ShapeError("matmul", what, {{"a", a.shape()}, {"b", b.shape()}});
  }
  if (a.rank() == 1 || b.rank() == 1) return product_with_vector(a, b, ta, tb);

  const Shape batch = batch_of(a, b);
  const Index m = a.dim(ta ? -1 : -2), p = b.dim(tb ? -2 : -1);
  auto y = Array<T>::uninitialized(batch.followed_by({m, p}));
  auto da = [b, ta, tb](const Var<T>& dy) {
    return ta ? matmul(b, dy, tb, true) : matmul(dy, b, false, !tb);
  };
  if (b.rank() == 2 && a.rank() > 2 && !ta) {  // one product of all rows, and dB one product too
    kernels::gemm<T>(rows_of(a), p, inner_a, {a.value().data(), inner_a},
                     {b.value().data(), tb ? inner_a : p, tb}, 0, y.mutable_values().data(), p);
    return record("matmul", std::move(y), edge(a, da), edge(b, [a, tb](const Var<T>& dy) {
                    return tb ? matmul(folded(dy), folded(a), true, false)
                              : matmul(folded(a), folded(dy), true, false);
                  }));
  }
  batched(a, b, ta, tb, y);
  return record(
      "matmul", std::move(y), edge(a, da, sum_to),
      edge(
          b,
          [a, ta, tb](const Var<T>& dy) { return tb ? matmul(dy, a, true, ta) : matmul(a, dy, !ta, false); },
          sum_to));
}

namespace {

template <class T>
Array<T> projected(const Var<T>& x, const Var<T>& w, const Var<T>* b) {
  const bool fits = x.rank() >= 1 && w.rank() == 2 && x.dim(-1) == w.dim(0);
  if (!fits)
    throw ShapeError("projection", "x (..., N) and w (N, P) do not fit",
                     {{"x", x.shape()}, {"w", w.shape()}});
  const Index rows = rows_of(x), n = w.dim(0), p = w.dim(1);
  if (b && b->shape() != Shape{p}) {
    throw ShapeError("projection", "w (N, P) and b (P) do not fit", {{"w", w.shape()}, {"b", b->shape()}});
  }
  auto y = Array<T>::uninitialized(x.shape().with(x.rank() - 1, p));
  kernels::gemm<T>(rows, p, n, {x.value().data(), n}, {w.value().data(), p}, 0, y.mutable_values().data(), p,
                   b ? b->value().data() : nullptr);
  return y;
}

template <class T>
auto projection_dx(const Var<T>& w) {
  return [w](const Var<T>& dy) { return matmul(dy, w, false, true); };
}
template <class T>
auto projection_dw(const Var<T>& x) {
  return [x](const Var<T>& dy) { return matmul(folded(x), folded(dy), true, false); };
}

}  // namespace

template <std::floating_point T>
Var<T> projection(const Var<T>& x, const Var<T>& w) {
  return record("projection", projected<T>(x, w, nullptr), edge(x, projection_dx(w)),
                edge(w, projection_dw(x)));
}

template <std::floating_point T>
Var<T> projection(const Var<T>& x, const Var<T>& w, const Var<T>& b) {
  return record("projection", projected(x, w, &b), edge(x, projection_dx(w)), edge(w, projection_dw(x)),
                edge(
                    b, [](Var<T> dy) { return dy; }, sum_to));
}

#define TAPEHEAD_INSTANTIATE(T)                                     \
  template Var<T> matmul(const Var<T>&, const Var<T>&, bool, bool); \
  template Var<T> projection(const Var<T>&, const Var<T>&);         \
  template Var<T> projection(const Var<T>&, const Var<T>&, const Var<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
