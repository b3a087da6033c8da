#pragma once
// Sums and means over any axes.

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
  // Bit i is set for axis i. Throws ShapeError when one is out of range or named twice.
  unsigned mask(std::string_view op, const Shape& shape) const;

 private:
  std::vector<int> axes_;
};

// What becomes of a reduced axis: it goes, or stays with extent 1.
enum class Keep { no, yes };

// y = sum of x over the axes            dx = dy repeated along them
template <std::floating_point T>
Var<T> sum(const Var<T>& x, const Axes& axes, Keep keep = Keep::no);
template <std::floating_point T>
Var<T> sum(const Var<T>& x);  // over all axes

// y = sum / number of elements summed   dx = dy / number, repeated. A mean over no element is NaN.
template <std::floating_point T>
Var<T> mean(const Var<T>& x, const Axes& axes, Keep keep = Keep::no);
template <std::floating_point T>
Var<T> mean(const Var<T>& x);

// x summed over the axes whose bit is set, which stay with extent 1; plain values.
template <std::floating_point T>
Array<T> sum_over(const Array<T>& x, unsigned axes);

}  // namespace tapehead
