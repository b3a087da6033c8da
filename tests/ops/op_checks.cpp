#include "ops/op_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/gradient_check.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"

namespace tapehead::table {
namespace {

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double epsilon = std::numeric_limits<double>::epsilon();

template <class T>
List<T> on_tape(Tape<T>& tape, const std::vector<Array<T>>& x) {
  List<T> inputs;
  for (const Array<T>& one : x) inputs.push_back(tape.input(one));
  return inputs;
}

Arrays values_of(const List<double>& y) {
  Arrays values;
  for (const Var<double>& one : y) values.push_back(one.value());
  return values;
}

List<double> random_seeds(const List<double>& y, Generator generator) {
  List<double> seeds;
  for (const Var<double>& one : y) seeds.push_back(generator.normal<double>(one.shape()));
  return seeds;
}

Arrays moved(const Arrays& x, const Arrays& direction, double step) {
  Arrays result = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::span<double> values = result[i].mutable_values();
    for (std::size_t k = 0; k < values.size(); ++k) values[k] += step * direction[i].values()[k];
  }
  return result;
}

// <a, b>, and what the terms sum to without their signs.
struct Product {
  double value = 0, size = 0;
  Index terms = 0;
};
Product inner(const Arrays& a, const Arrays& b) {
  Product result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < a[i].values().size(); ++k) {
      const double term = a[i].values()[k] * b[i].values()[k];
      result.value += term;
      result.size += std::abs(term);
      ++result.terms;
    }
  }
  return result;
}

// Bit by bit the same, except that any NaN is like any other.
template <class T>
bool identical(T a, T b) {
  return (a == b && std::signbit(a) == std::signbit(b)) || (std::isnan(a) && std::isnan(b));
}
AssertionResult identical_arrays(const Array<double>& actual, const Array<double>& expected) {
  const auto a = actual.values(), b = expected.values();
  if (actual.shape() == expected.shape() && std::equal(a.begin(), a.end(), b.begin(), identical<double>)) {
    return AssertionSuccess();
  }
  return AssertionFailure() << to_string(actual.shape()) << "\n"
                            << actual << "\nexpected " << to_string(expected.shape()) << "\n"
                            << expected;
}

// Both sweeps of f at x give `expected` when `compare(dx, expected)` says so.
template <class F>
AssertionResult both_sweeps(const List<double>& y, const List<double>& x, const List<double>& dy,
                            const Arrays& expected, F compare) {
  const Arrays plain = gradient_values(y, x, dy);
  const List<double> recorded = gradient(y, x, dy);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (const AssertionResult same = compare(plain[i], expected[i]); !same) {
      return AssertionFailure() << "gradient of input " << i << ", plain sweep: " << same.message();
    }
    if (const AssertionResult same = compare(recorded[i].value(), expected[i]); !same) {
      return AssertionFailure() << "gradient of input " << i << ", recorded sweep: " << same.message();
    }
  }
  return AssertionSuccess();
}

}  // namespace

Arrays values_at(const Function& f, const Arrays& x) {
  Tape<double> tape;
  return values_of(f(on_tape(tape, x)));
}

Arrays random_like(const Arrays& x, Generator& generator) {
  Arrays result;
  for (const Array<double>& one : x) result.push_back(generator.uniform<double>(one.shape(), -1, 1));
  return result;
}

// ---------------------------------------------------------------- derivatives

AssertionResult jacobian_agrees(const Function& f, const Arrays& x, Kind kind, int order, bool may_stay,
                                std::uint64_t seed) {
  GradientCheckOptions options;
  options.order = order;
  options.full = true;
  options.quadratic = kind == Kind::polynomial;
  options.allow_constant = may_stay;
  options.seed = seed;
  const GradientReport report = check_gradients(f, x, options);
  return report.ok ? AssertionSuccess() : AssertionFailure() << report;
}

// Bound, relative to the sizes of the terms: rounding costs an epsilon for each term, and as many as there
// are terms, and 8, inside the op; the difference divides that by the step. The five-point formula leaves h^4
// / 30 of the fifth derivative: at h = 1e-4, 1e-10 allows it 3e7 times the function, and 3e5 suffice for 1 /
// x^3 at 0.5, the worst here.
AssertionResult adjoint_agrees(const Function& f, const Arrays& x, const Arrays& w, const Arrays& u,
                               Kind kind) {
  Tape<double> tape;
  const List<double> inputs = on_tape(tape, x), y = f(inputs);
  const List<double> seeds(w.begin(), w.end());
  const Product by_rule = inner(gradient_values(y, inputs, seeds), u);

  const bool exact = kind == Kind::polynomial;
  const double h = exact ? 1 : 1e-4;
  double by_difference = 0, size = 0;
  auto add_difference = [&](double step, double weight) {  // weight (f(step) - f(-step)) / step
    const Product above = inner(values_at(f, moved(x, u, step)), w),
                  below = inner(values_at(f, moved(x, u, -step)), w);
    by_difference += weight * (above.value - below.value) / step;
    size += std::abs(weight) * (above.size + below.size) / step;
  };
  add_difference(h, exact ? 1.0 / 2 : 2.0 / 3);
  if (!exact) add_difference(2 * h, -1.0 / 6);
  const Product at_x = inner(values_of(y), w);
  const double terms = static_cast<double>(by_rule.terms + at_x.terms + 8);
  const double truncation = exact ? 0 : 1e-10 * (by_rule.size + at_x.size);
  const double bound = terms * epsilon * (by_rule.size + size) + truncation;
  if (std::abs(by_rule.value - by_difference) <= bound) return AssertionSuccess();
  return AssertionFailure() << "rule " << by_rule.value << ", difference " << by_difference << ", bound "
                            << bound;
}

AssertionResult adjoints_agree(const Function& f, const Arrays& x, Kind kind, int order, std::uint64_t seed) {
  Generator generator = Generator(seed).split("order").split(static_cast<std::uint64_t>(order));
  const Arrays w = random_like(values_at(f, x), generator), u = random_like(x, generator);
  if (const AssertionResult here = adjoint_agrees(f, x, w, u, kind); !here) {
    return AssertionFailure() << "order " << order << " from the end: " << here.message();
  }
  if (order == 1) return AssertionSuccess();
  const Function vjp = [f, count = x.size()](const List<double>& x_and_w) {
    const auto split = x_and_w.begin() + static_cast<std::ptrdiff_t>(count);
    const List<double> here(x_and_w.begin(), split), cotangents(split, x_and_w.end());
    return gradient(f(here), here, cotangents);
  };
  Arrays x_and_w = x;
  x_and_w.insert(x_and_w.end(), w.begin(), w.end());
  return adjoints_agree(vjp, x_and_w, kind, order - 1, seed);
}

// An op may take a kernel in the one sweep and its formula in the other; they do a few roundings a term
// differently, far from 1e-13 of the largest element at the sizes here.
AssertionResult sweeps_agree(const Function& f, const Arrays& x, std::uint64_t seed) {
  Tape<double> tape;
  const List<double> inputs = on_tape(tape, x), y = f(inputs);
  const List<double> seeds = random_seeds(y, Generator(seed).split("sweeps"));
  const Arrays plain = gradient_values(y, inputs, seeds);
  const List<double> recorded = gradient(y, inputs, seeds);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double scale = std::max({magnitude(plain[i]), magnitude(recorded[i].value()), 1e-3});
    const double error = absolute_error(plain[i], recorded[i].value());
    if (!(error <= 1e-13 * scale)) {
      return AssertionFailure() << "input " << i << ": the sweeps differ by " << error / scale;
    }
  }
  const List<double> unrecorded = f(List<double>(x.begin(), x.end()));
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (unrecorded[i].recorded()) return AssertionFailure() << "recorded of inputs that are not";
    const AssertionResult same = identical_arrays(unrecorded[i].value(), y[i].value());
    if (!same) return AssertionFailure() << "unrecorded: " << same.message();
  }
  return AssertionSuccess();
}

// ---------------------------------------------------------------- views

namespace {

// Something larger in which an array of a shape is a slice of a permutation.
struct Surroundings {
  explicit Surroundings(const Shape& shape) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const Index n = shape[axis];
      larger = larger.followed_by({n + 2});
      order.insert(order.begin(), axis);
      parts.push_back(axis == 0 ? Slice{n, 0, -1} : Slice{1, n + 1, 1});
    }
  }
  Var<double> view(const Var<double>& z) const {
    return slice(permute(z, order), std::span<const Slice>(parts));
  }
  Array<double> around(const Array<double>& x, double rest) const {
    Array<double> z = unslice(Var<double>(x), larger, parts).value();
    const Array<double> inside = unslice(Var<double>(Array<double>::ones(x.shape())), larger, parts).value();
    for (std::size_t i = 0; i < z.values().size(); ++i) {
      if (inside.values()[i] == 0) z.mutable_values()[i] = rest;
    }
    return permute(Var<double>(z), order).value();
  }

  Shape larger;
  std::vector<int> order;
  std::vector<Slice> parts;
};

}  // namespace

AssertionResult views_agree(const Function& f, const Arrays& x, std::uint64_t seed) {
  Tape<double> tape;
  const List<double> inputs = on_tape(tape, x), y = f(inputs);
  std::vector<Surroundings> surroundings;
  List<double> larger, views;
  for (const Array<double>& one : x) {
    surroundings.emplace_back(one.shape());
    larger.push_back(tape.input(surroundings.back().around(one, nan)));
    views.push_back(surroundings.back().view(larger.back()));
  }
  const List<double> of_views = f(views);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const AssertionResult same = identical_arrays(of_views[i].value(), y[i].value());
    if (!same) return AssertionFailure() << "values: " << same.message();
  }
  const List<double> dy = random_seeds(y, Generator(seed).split("views"));
  const Arrays dx = gradient_values(y, inputs, dy), dz = gradient_values(of_views, larger, dy);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const AssertionResult same = same_numbers(dz[i], surroundings[i].around(dx[i], 0));
    if (!same) return AssertionFailure() << "gradient of input " << i << ": " << same.message();
  }
  return AssertionSuccess();
}

// ---------------------------------------------------------------- float

// With u = 2^-24 the rounding of one operation, n elements of input feed at most n products and n sums into
// one of output or gradient, and 16 operations more lie in the formula of the longest op: each may err by u
// of the largest number in play.
AssertionResult float_agrees(const Call& call, const Arrays& x, std::uint64_t seed) {
  Tape<float> tape;
  Tape<double> exact_tape;
  List<float> inputs;
  List<double> exact_inputs;
  double operations = 16, largest = 1;
  for (const Array<double>& one : x) {
    inputs.push_back(tape.input(one.cast<float>()));
    exact_inputs.push_back(exact_tape.input(inputs.back().value().cast<double>()));
    operations += 2 * static_cast<double>(one.size());
    largest = std::max(largest, magnitude(one));
  }
  const Var<float> y = call.in_float(inputs);
  const Var<double> exact_y = call.in_double(exact_inputs);
  const double bound = operations * 0x1p-24;
  largest = std::max(largest, magnitude(exact_y.value()));
  const double error = absolute_error(y.value().cast<double>(), exact_y.value()) / largest;
  if (!(error <= bound)) return AssertionFailure() << "values differ by " << error << " > " << bound;

  const Array<float> dy = Generator(seed).normal<float>(y.shape());
  const auto dx = gradient_values(y, inputs, Var<float>(dy));
  const auto exact_dx = gradient_values(exact_y, exact_inputs, Var<double>(dy.cast<double>()));
  for (std::size_t i = 0; i < dx.size(); ++i) {
    const double scale = std::max({largest, magnitude(dy), magnitude(exact_dx[i])});
    const double of_gradient = absolute_error(dx[i].cast<double>(), exact_dx[i]) / scale;
    if (of_gradient <= bound) continue;
    return AssertionFailure() << "gradients of input " << i << " differ by " << of_gradient << " > " << bound;
  }
  return AssertionSuccess();
}

// ---------------------------------------------------------------- numbers that are not finite

namespace {

// Every combination of the special numbers, as an array an input.
template <class T>
std::vector<Array<T>> specials(std::size_t inputs) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> numbers = {0, 1, Limits::min(), Limits::denorm_min(), Limits::max(), Limits::infinity()};
  for (std::size_t i = 0, signless = numbers.size(); i < signless; ++i) numbers.push_back(-numbers[i]);
  numbers.push_back(Limits::quiet_NaN());
  const auto n = std::ssize(numbers);
  Index size = 1;
  for (std::size_t i = 0; i < inputs; ++i) size *= n;
  std::vector<Array<T>> result;
  for (Index repeat = 1; result.size() < inputs; repeat *= n) {
    auto x = Array<T>::uninitialized({size});
    for (Index i = 0; i < size; ++i) {
      x.mutable_values()[static_cast<std::size_t>(i)] = numbers[static_cast<std::size_t>(i / repeat % n)];
    }
    result.push_back(x);
  }
  return result;
}

template <class T>
std::string arguments_text(const std::vector<Array<T>>& x, std::size_t k) {
  std::ostringstream text;
  for (const Array<T>& one : x) text << one.values()[k] << " ";
  return text.str();
}

// Op and reference do a few roundings each, of numbers as small as the smallest.
template <class T, class Op, class Reference>
AssertionResult special_values_agree_in(const Op& op, const Reference& each, std::size_t inputs) {
  const std::vector<Array<T>> x = specials<T>(inputs);
  const Array<T> y = op(List<T>(x.begin(), x.end())).value();
  for (std::size_t k = 0; k < y.values().size(); ++k) {
    std::vector<T> arguments;
    for (const Array<T>& one : x) arguments.push_back(one.values()[k]);
    const T expected = each(arguments), actual = y.values()[k];
    const T bound = 16 * std::max(std::numeric_limits<T>::denorm_min(),
                                  std::numeric_limits<T>::epsilon() * std::abs(expected));
    const bool right =
        std::isfinite(expected) ? std::abs(actual - expected) <= bound : identical(actual, expected);
    if (right) continue;
    return AssertionFailure() << "of " << arguments_text(x, k) << ": " << actual << ", expected " << expected
                              << " in " << (std::is_same_v<T, float> ? "float" : "double");
  }
  return AssertionSuccess();
}

}  // namespace

AssertionResult special_values_agree(const Call& call, const Each& each, std::size_t inputs) {
  const AssertionResult in_double = special_values_agree_in<double>(call.in_double, each.in_double, inputs);
  return in_double ? special_values_agree_in<float>(call.in_float, each.in_float, inputs) : in_double;
}

// The two may be a few roundings apart.
AssertionResult sweeps_agree_at_special_numbers(const Function& f, std::size_t inputs) {
  const Arrays values = specials<double>(inputs);
  Tape<double> tape;
  const List<double> x = on_tape(tape, values), y = f(x);
  const Var<double> dy = Array<double>::ones(y[0].shape());
  const Arrays plain = gradient_values(y, x, dy);
  const List<double> recorded = gradient(y, x, dy);
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t k = 0; k < values[i].values().size(); ++k) {
      const double a = plain[i].values()[k], b = recorded[i].value().values()[k];
      if (std::isfinite(b) ? std::abs(a - b) <= 16 * epsilon * std::abs(b) : identical(a, b)) continue;
      return AssertionFailure() << a << " in the plain sweep, " << b << " in the recorded, input " << i
                                << " of " << arguments_text(values, k);
    }
  }
  return AssertionSuccess();
}

AssertionResult special_numbers_touch_no_other(const Function& f, const Arrays& x) {
  const std::size_t at = x[0].values().size() / 3;
  Tape<double> tape;
  const List<double> inputs = on_tape(tape, x), y = f(inputs);
  const List<double> dy = random_seeds(y, Generator(7));
  const Arrays dx = gradient_values(y, inputs, dy);
  // What may be touched is made equal first.
  auto untouched = [at](Array<double> a, Array<double> b) {
    a.mutable_values()[at] = b.mutable_values()[at] = 0;
    return agree(a, b, 4 * epsilon);  // the recorded sweep may round otherwise
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (const double special : {infinity, -infinity, nan}) {
      Arrays with = x;
      with[i].mutable_values()[at] = special;
      const List<double> touched = on_tape(tape, with), z = f(touched);
      AssertionResult same = untouched(z[0].value(), y[0].value());
      if (same) same = both_sweeps(z, touched, dy, dx, untouched);
      if (!same) return AssertionFailure() << special << " in input " << i << ": " << same.message();
    }
  }
  return AssertionSuccess();
}

// ---------------------------------------------------------------- given numbers

AssertionResult agrees(const Function& f, const Example& example) {
  Tape<double> tape;
  const List<double> x = on_tape(tape, example.inputs), y = f(x);
  auto near = [](const Array<double>& a, const Array<double>& b) { return agree(a, b, 4 * epsilon); };
  const AssertionResult values = near(y[0].value(), example.y);
  if (!values || example.gradients.empty()) return values;
  return both_sweeps(y, x, {Array<double>::ones(y[0].shape())}, example.gradients, near);
}

// Both sides compute in float64: to 1e-12 of the largest element.
AssertionResult agrees(const Function& f, const GoldenCase& of_case) {
  const Golden golden("op_" + of_case.name, of_case.folder);
  Arrays values, expected;
  double largest = 0;
  for (const std::string& name : of_case.inputs) {
    values.push_back(golden.array(name));
    expected.push_back(golden.array("grad_" + name));
    largest = std::max(largest, magnitude(expected.back()));
  }
  Tape<double> tape;
  const List<double> x = on_tape(tape, values);
  const List<double> y = of_case.call ? List<double>{of_case.call(golden, x)} : f(x);
  if (const AssertionResult same = agree(y[0], golden.array("output"), 1e-12); !same) return same;

  // Gradients that are next to nothing agree with any, when they are held to their own size or not.
  if ((largest < 1e-3) != of_case.vanishing) return AssertionFailure() << "gradients of " << largest;
  const Array<double> upstream = golden.array("upstream");
  const double scale = of_case.vanishing ? magnitude(upstream) : 0;
  return both_sweeps(y, x, {upstream}, expected, [scale](const Array<double>& a, const Array<double>& b) {
    return absolute_error(a, b) <= 1e-12 * scale ? AssertionSuccess() : agree(a, b, 1e-12);
  });
}

AssertionResult refuses(std::string_view op, const Call& call, const Refusal& refusal) {
  std::vector<std::string> texts = refusal.texts;
  List<double> x;
  for (const Shape& shape : refusal.shapes) {
    x.push_back(Array<double>::zeros(shape));
    if (refusal.error == Refusal::Of::shapes) texts.push_back(to_string(shape));
  }
  std::string message;
  try {
    (refusal.call.in_double ? refusal.call : call).in_double(x);
    return AssertionFailure() << "no error was thrown";
  } catch (const ShapeError& error) {
    if (refusal.error != Refusal::Of::shapes) return AssertionFailure() << "a ShapeError: " << error.what();
    message = error.what();
  } catch (const DomainError& error) {
    if (refusal.error != Refusal::Of::values) return AssertionFailure() << "a DomainError: " << error.what();
    message = error.what();
  }
  texts.push_back(std::string(op) + ": ");
  if (!message.starts_with(texts.back())) return AssertionFailure() << "not of " << op << ": " << message;
  for (const std::string& text : texts) {
    if (message.find(text) == std::string::npos) {
      return AssertionFailure() << "\"" << text << "\" is not in \"" << message << "\"";
    }
  }
  return AssertionSuccess();
}

}  // namespace tapehead::table
