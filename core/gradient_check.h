#pragma once
// check_gradients(): a function's gradients against differences of its values, to any order, with a reason
// when they disagree.
//
//   const GradientReport report = check_gradients([](const Var<double>& x) { return softmax(x); }, x);
//   if (!report.ok) std::cout << report;
//
// With GoogleTest: EXPECT_GRADIENTS(f, x), in <tapehead/core/expect_gradients.h>.

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include <tapehead/core/derivatives.h>

namespace tapehead {

struct GradientCheckOptions {
  // Order 1 checks the gradient; order k the gradient of <w, gradient of order k - 1>, w random.
  int order = 2;
  // Every element of the Jacobian, and not only one random direction an input.
  bool full = false;
  // f is of degree two at most in each input (linear, bilinear): one step of 1, or of the size of x where
  // that is larger, has no error from the curve, and the bound is rounding alone.
  bool quadratic = false;
  // An f that does not depend on an input is all right at order 1 too. Past it, it always is: the gradient of
  // a linear function is constant.
  bool allow_constant = false;
  std::uint64_t seed = 1;               // of the directions
  std::vector<Index> wanted = {};       // numbers of the inputs to check, the others are constants; none: all
  std::vector<std::string> names = {};  // of the inputs, for the report
};

enum class GradientVerdict {
  right,
  constant,        // f does not move with this input, and its gradient is 0
  wrong,           // the gradient is not what the differences converge to
  no_digits,       // the differences have too few digits in this type to tell
  not_repeatable,  // f gives different numbers when it is called twice
  kink,            // the slopes on the two sides converge, to different numbers
};
std::string_view to_string(GradientVerdict verdict);

// What was found about one input at one order.
struct GradientFinding {
  GradientVerdict verdict = GradientVerdict::right;
  int order = 1;
  Index input = -1;  // its number; past the inputs of f, the w of the orders before; -1 when not repeatable
  std::string name;  // of the input, "input 0" when none was given, or of the output that is not repeatable
  Shape shape;       // of it
  // The element that disagrees most, its place in `shape`; -1 when all is well: the numbers are then those of
  // the whole direction. With full, also the element of the outputs, counted through all of them.
  Index element = -1;
  Index output_element = -1;
  double by_rule = 0;        // when not repeatable, what the first call gave
  double by_difference = 0;  // and the second
  double bound = 0;          // how far apart the two may be
  double step = 0;
  std::array<double, 2> slopes = {};  // at a kink: on the left, on the right
  bool plain = false;                 // of gradient_values() alone; gradient() was right
  std::vector<std::string> ops;       // that lie between the input and the outputs, in tape order
};

struct GradientReport {
  bool ok = false;
  // An entry for each input and order; ends with the order that failed.
  std::vector<GradientFinding> findings;

  explicit operator bool() const { return ok; }
};

// One line for each finding; what failed is told in full.
std::string to_string(const GradientReport& report);
std::ostream& operator<<(std::ostream& stream, const GradientReport& report);

namespace detail {

template <class T>
GradientReport check_gradients(const ListFunction<T>& f, const std::vector<Array<T>>& x,
                               const GradientCheckOptions& options);

}  // namespace detail

// Checks gradient() and gradient_values() of f at x. f takes a Var for a single Array, otherwise Vars one by
// one or a list of them (derivatives.h), and gives one Var or several, which are weighed together. What is
// right is right to half of the digits of the type, 1.5e-8 in double and 3.5e-4 in float, of the derivative
// along a direction (with full, of the largest element of an output's Jacobian); so an error of one part in a
// thousand is found in both. Prefer double. Steps end at that part of 1 or of the smallest element of x: what
// f does on a finer scale is not seen. What f throws is passed on. Throws LogicError when there is no input
// or f gives none, for an order below 1 and a wanted input that does not exist; DomainError when x or f(x) is
// not finite.
template <class F>
GradientReport check_gradients(const F& f, const Array<float>& x, const GradientCheckOptions& options = {}) {
  return detail::check_gradients<float>(detail::of_one<float>(f), {x}, options);
}
template <class F>
GradientReport check_gradients(const F& f, const Array<double>& x, const GradientCheckOptions& options = {}) {
  return detail::check_gradients<double>(detail::of_one<double>(f), {x}, options);
}
template <class F>
GradientReport check_gradients(const F& f, const std::vector<Array<float>>& x,
                               const GradientCheckOptions& options = {}) {
  return detail::check_gradients<float>(detail::of_list<float>(f), x, options);
}
template <class F>
GradientReport check_gradients(const F& f, const std::vector<Array<double>>& x,
                               const GradientCheckOptions& options = {}) {
  return detail::check_gradients<double>(detail::of_list<double>(f), x, options);
}

}  // namespace tapehead
