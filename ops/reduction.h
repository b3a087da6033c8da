#pragma once
// Sums, means, products and extremes over any axes.

#include <initializer_list>
#include <vector>

#include <tapehead/core/var.h>

namespace tapehead {

// A list of axes, negative ones counted from the end: 1, or {0, -1}.
class Axes {
 public:
  Axes(int axis) : axes_{axis} {}
  Axes(std::initializer_list<int> axes) : axes_(axes) {}
  Axes(std::vector<int> axes) : axes_(std::move(axes)) {}
  static Axes all() {  // whatever the rank
    Axes axes(std::vector<int>{});
    axes.all_ = true;
    return axes;
  }
  // Bit i is set for axis i. Throws ShapeError when one is out of range or named twice.
  unsigned mask(std::string_view op, const Shape& shape) const;

 private:
  std::vector<int> axes_;
  bool all_ = false;
};

// What becomes of a reduced axis: it goes, or stays with extent 1.
enum class Keep { no, yes };

// y = sum of x over the axes            dx = dy repeated along them
template <std::floating_point T>
Var<T> sum(const Var<T>& x, const Axes& axes = Axes::all(), Keep keep = Keep::no);

// y = sum / number of elements summed   dx = dy / number, repeated. A mean over no element is NaN.
template <std::floating_point T>
Var<T> mean(const Var<T>& x, const Axes& axes = Axes::all(), Keep keep = Keep::no);

// y = sum (x - mean)^2 / (n - correction), n the number of elements over the axes
// dx = dy 2 (x - mean) / (n - correction)
// The correction is 0, or 1 for the estimate from a sample. NaN when n <= correction. Throws DomainError for
// another correction.
template <std::floating_point T>
Var<T> var(const Var<T>& x, const Axes& axes = Axes::all(), Keep keep = Keep::no, int correction = 0);

// y = the largest over the axes         dx = dy / count at each of the `count` that are it, 0 elsewhere
// A NaN gives NaN, and NaN as the gradients of what it was compared with. Throws ShapeError over no element.
template <std::floating_point T>
Var<T> amax(const Var<T>& x, const Axes& axes = Axes::all(), Keep keep = Keep::no);
// y = the smallest over the axes        dx, NaN and errors as amax has them
template <std::floating_point T>
Var<T> amin(const Var<T>& x, const Axes& axes = Axes::all(), Keep keep = Keep::no);

// y = product over the axes             dx_i = dy times the product of all but x_i
// Formed without a division, so it is right with any number of zeros, at every order. Over no element: 1.
template <std::floating_point T>
Var<T> prod(const Var<T>& x, const Axes& axes = Axes::all(), Keep keep = Keep::no);

// y = m + log sum exp(x - m), m the largest over the axes          dx = dy exp(x - y)
// Minus infinities alone, or no element, give minus infinity; a plus infinity gives plus infinity. Where y is
// infinite, its elements of the same sign have gradient NaN.
template <std::floating_point T>
Var<T> logsumexp(const Var<T>& x, const Axes& axes = Axes::all(), Keep keep = Keep::no);

// y_i = x_0 + ... + x_i along the axis          dx_i = dy_i + dy_(i+1) + ... to the end
template <std::floating_point T>
Var<T> cumsum(const Var<T>& x, int axis);

// x summed over the axes whose bit is set, which stay with extent 1; plain values.
template <std::floating_point T>
Array<T> sum_over(const Array<T>& x, unsigned axes);

}  // namespace tapehead
