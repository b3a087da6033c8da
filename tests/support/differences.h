#pragma once
// Derivatives from values alone.

#include <utility>
#include <vector>

#include <tapehead/core/array.h>

namespace tapehead {

// (f(x + step) - f(x - step)) / (2 step) for each element of x in turn, f(x) a number. The error is about
// step^2 |f'''| / 6, from the curve, plus 1e-16 |f| / step, from rounding.
template <class F>
Array<double> central_differences(F f, const Array<double>& x, double step) {
  Array<double> derivative = Array<double>::uninitialized(x.shape());
  Array<double> moved = x;
  for (std::size_t i = 0; i < x.values().size(); ++i) {
    const double above = x.values()[i] + step, below = x.values()[i] - step;
    moved.mutable_values()[i] = above;
    const double f_above = f(moved);
    moved.mutable_values()[i] = below;
    const double f_below = f(moved);
    moved.mutable_values()[i] = x.values()[i];
    derivative.mutable_values()[i] = (f_above - f_below) / (above - below);
  }
  return derivative;
}

// The same for a number f({x, y, ...}), with respect to each of its arguments.
template <class F>
std::vector<Array<double>> central_differences(F f, const std::vector<Array<double>>& arguments,
                                               double step) {
  std::vector<Array<double>> derivatives;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto of_one = [&f, moved = arguments, i](const Array<double>& x) mutable {
      moved[i] = x;
      return f(std::as_const(moved));
    };
    derivatives.push_back(central_differences(of_one, arguments[i], step));
  }
  return derivatives;
}

}  // namespace tapehead
