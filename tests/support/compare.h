#pragma once
// Comparing arrays: one number that says how far apart they are, and an expectation that shows where.
//
//   EXPECT_NEAR_RELATIVE(actual, expected, 1e-12);
//   EXPECT_FALSE(agree(wrong, expected, 1e-3));

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include <tapehead/core/array.h>
#include <tapehead/core/var.h>

namespace tapehead {
namespace detail {

// |a - b|; 0 for the same infinity and for two NaN, infinite when only one of them is that.
inline double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double difference = std::abs(a - b);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

template <class T>
const Array<T>& array_of(const Array<T>& x) {
  return x;
}
template <class T>
const Array<T>& array_of(const Var<T>& x) {
  return x.value();
}

}  // namespace detail

// max |a - b|; infinite for shapes that differ.
template <std::floating_point T>
double absolute_error(const Array<T>& a, const Array<T>& b) {
  if (a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < a.values().size(); ++i) {
    worst = std::max(
        worst, detail::distance(static_cast<double>(a.values()[i]), static_cast<double>(b.values()[i])));
  }
  return worst;
}

// The largest finite |b|.
template <std::floating_point T>
double magnitude(const Array<T>& b) {
  double largest = 0;
  for (const T x : b.values()) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  return largest;
}

// max |a - b| / max |b|, over the whole arrays: what rounding does to one element is relative to the terms
// that it was summed from, not to what is left of them. 0 when both are all zero, infinite when only b is.
template <std::floating_point T>
double relative_error(const Array<T>& a, const Array<T>& b) {
  const double error = absolute_error(a, b);
  return error == 0 ? 0 : error / magnitude(b);
}

// Whether relative_error(actual, expected) <= tolerance, of Arrays or Vars; if not, where it is worst.
template <class A, class B>
testing::AssertionResult agree(const A& actual, const B& expected, double tolerance) {
  const auto& a = detail::array_of(actual);
  const auto& b = detail::array_of(expected);
  if (a.shape() != b.shape()) {
    return testing::AssertionFailure()
           << "shape " << to_string(a.shape()) << ", expected " << to_string(b.shape());
  }
  const double error = relative_error(a, b);
  if (error <= tolerance) return testing::AssertionSuccess();
  std::size_t worst = 0;
  double largest = -1;
  for (std::size_t i = 0; i < a.values().size(); ++i) {
    const double difference =
        detail::distance(static_cast<double>(a.values()[i]), static_cast<double>(b.values()[i]));
    if (difference > largest) largest = difference, worst = i;
  }
  const Strides step(a.shape());
  std::ostringstream text;
  text << "shape " << to_string(a.shape()) << ", relative error " << error << " > " << tolerance
       << ", worst at (";
  for (int axis = 0; axis < a.rank(); ++axis) {
    text << (axis > 0 ? ", " : "") << static_cast<Index>(worst) / step[axis] % a.dim(axis);
  }
  text.precision(17);
  text << "): " << a.values()[worst] << ", expected " << b.values()[worst];
  return testing::AssertionFailure() << text.str();
}

// Whether they have the same shape and, element by element, a == b.
template <class A, class B>
testing::AssertionResult same_numbers(const A& actual, const B& expected) {
  const auto& a = detail::array_of(actual);
  const auto& b = detail::array_of(expected);
  if (a.shape() == b.shape() && std::equal(a.values().begin(), a.values().end(), b.values().begin())) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "shape " << to_string(a.shape()) << ", expected "
                                     << to_string(b.shape()) << "\n"
                                     << a << "\nexpected\n"
                                     << b;
}

namespace detail {

template <class A, class B>
testing::AssertionResult near_relative(const char* actual, const char* expected, const char*, const A& a,
                                       const B& b, double tolerance) {
  const testing::AssertionResult result = agree(a, b, tolerance);
  return result
             ? result
             : testing::AssertionFailure() << actual << " against " << expected << ": " << result.message();
}
template <class A, class B>
testing::AssertionResult same(const char* actual, const char* expected, const A& a, const B& b) {
  const testing::AssertionResult result = same_numbers(a, b);
  return result
             ? result
             : testing::AssertionFailure() << actual << " against " << expected << ": " << result.message();
}

}  // namespace detail

// The same as expectations that also show what was compared.
#define EXPECT_NEAR_RELATIVE(actual, expected, tolerance) \
  EXPECT_PRED_FORMAT3(::tapehead::detail::near_relative, actual, expected, tolerance)
#define EXPECT_SAME_NUMBERS(actual, expected) EXPECT_PRED_FORMAT2(::tapehead::detail::same, actual, expected)

}  // namespace tapehead
