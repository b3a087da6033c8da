#pragma once
// Derivatives of a function of Vars, all of them built on gradient().
//
//   auto f = [](const Var<double>& a, const Var<double>& b) { return sum(a * exp(b)); };
//   hvp(f, {a, b}, {u, v})[0];
//
// A function takes its arguments one by one (up to 8) or as a list, a std::vector or a std::span of Vars, and
// gives one Var or several. Called with a single Var, these functions take one and give one; a generic lambda
// of one parameter is then given the Var, and otherwise the list. When an argument is recorded on a tape that
// records, so are the results, and they can be differentiated again; otherwise the results are constants and
// nothing stays behind. A derivative is with respect to the arguments as f sees them, even when one of them
// was computed from another. What f throws is passed on, and the tape left as it was.

#include <functional>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>

namespace tapehead {
namespace detail {

template <class T>
using ListFunction = std::function<std::vector<Var<T>>(const std::vector<Var<T>>&)>;

template <class T, class Result>
std::vector<Var<T>> as_list(Result&& result) {
  if constexpr (std::is_convertible_v<Result&&, Var<T>>) {
    return {std::forward<Result>(result)};
  } else {
    static_assert(std::ranges::range<Result>, "a function of Vars gives one Var, or a list of them");
    return std::vector<Var<T>>(std::ranges::begin(result), std::ranges::end(result));
  }
}

template <class T, std::size_t>
using One = const Var<T>&;

template <class T, class F, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return std::is_invocable_v<F&, One<T, I>...>;
}

[[noreturn]] void throw_argument_count(std::size_t takes, std::size_t given);

// F takes `count` Vars one by one, or more.
template <class T, std::size_t count, class F>
ListFunction<T> of_arguments(F f) {
  static_assert(count <= 8, "a function of Vars takes a list of them, or 1 to 8 one by one");
  if constexpr (takes<T, F>(std::make_index_sequence<count>())) {
    return [f = std::move(f)](const std::vector<Var<T>>& x) mutable {
      if (x.size() != count) throw_argument_count(count, x.size());
      return [&]<std::size_t... I>(std::index_sequence<I...>) { return as_list<T>(f(x[I]...)); }
      (std::make_index_sequence<count>());
    };
  } else {
    return of_arguments<T, count + 1>(std::move(f));
  }
}

// A generic lambda of one parameter is called with the list here, with the Var in of_one().
template <class T, class F>
ListFunction<T> of_list(F f) {
  if constexpr (std::is_invocable_v<F&, const std::vector<Var<T>>&>) {
    return [f = std::move(f)](const std::vector<Var<T>>& x) mutable { return as_list<T>(f(x)); };
  } else {
    return of_arguments<T, 1>(std::move(f));
  }
}
template <class T, class F>
ListFunction<T> of_one(F f) {
  if constexpr (std::is_invocable_v<F&, const Var<T>&>) {
    return of_arguments<T, 1>(std::move(f));
  } else {
    return of_list<T>(std::move(f));
  }
}

template <class T>
std::vector<Var<T>> vjp(const ListFunction<T>& f, std::span<const Var<T>> x, std::span<const Var<T>> w);
template <class T>
std::vector<Var<T>> jvp(const ListFunction<T>& f, std::span<const Var<T>> x, std::span<const Var<T>> v);
template <class T>
std::vector<Var<T>> hvp(const ListFunction<T>& f, std::span<const Var<T>> x, std::span<const Var<T>> v);
template <class T>
std::vector<std::vector<Array<T>>> jacobian(const ListFunction<T>& f, std::span<const Var<T>> x);
template <class T>
std::vector<std::vector<Array<T>>> hessian(const ListFunction<T>& f, std::span<const Var<T>> x);

template <class T>
std::span<const Var<T>> only(const Var<T>& one) {
  return {&one, 1};
}
// What a function of one Var gave, which must be one.
template <class Value>
Value only_result(std::string_view op, std::vector<Value> values) {
  if (values.size() != 1) {
    throw LogicError(op, "f gives " + std::to_string(values.size()) + " Vars; call it with lists");
  }
  return std::move(values[0]);
}

}  // namespace detail

// dx_i = sum_o (dy_o/dx_i)^T w_o         x_i (...)   w_o of the shape of y_o   dx_i of the shape of x_i
// Throws LogicError when f gives another number of Vars than there are w, ShapeError when shapes differ.
template <class F>
std::vector<Var<float>> vjp(const F& f, Vars<float> x, Vars<float> w) {
  return detail::vjp<float>(detail::of_list<float>(f), x, w);
}
template <class F>
std::vector<Var<double>> vjp(const F& f, Vars<double> x, Vars<double> w) {
  return detail::vjp<double>(detail::of_list<double>(f), x, w);
}
template <class F, std::floating_point T>
Var<T> vjp(const F& f, const Var<T>& x, const Var<T>& w) {
  return detail::vjp<T>(detail::of_one<T>(f), detail::only(x), detail::only(w)).front();
}

// dy_o = sum_i (dy_o/dx_i) v_i           v_i of the shape of x_i   dy_o of the shape of y_o
// The vjp is linear in w; this is its gradient with respect to w, so it costs two sweeps.
// Throws LogicError when there are more or fewer v than x, ShapeError when shapes differ.
template <class F>
std::vector<Var<float>> jvp(const F& f, Vars<float> x, Vars<float> v) {
  return detail::jvp<float>(detail::of_list<float>(f), x, v);
}
template <class F>
std::vector<Var<double>> jvp(const F& f, Vars<double> x, Vars<double> v) {
  return detail::jvp<double>(detail::of_list<double>(f), x, v);
}
template <class F, std::floating_point T>
Var<T> jvp(const F& f, const Var<T>& x, const Var<T>& v) {
  return detail::only_result("jvp", detail::jvp<T>(detail::of_one<T>(f), detail::only(x), detail::only(v)));
}

// The Hessian of a number f(x) times v:  h_i = sum_j (d^2 f / dx_i dx_j) v_j      of the shapes of x
// Throws ShapeError when f gives no single number, and as jvp() does.
template <class F>
std::vector<Var<float>> hvp(const F& f, Vars<float> x, Vars<float> v) {
  return detail::hvp<float>(detail::of_list<float>(f), x, v);
}
template <class F>
std::vector<Var<double>> hvp(const F& f, Vars<double> x, Vars<double> v) {
  return detail::hvp<double>(detail::of_list<double>(f), x, v);
}
template <class F, std::floating_point T>
Var<T> hvp(const F& f, const Var<T>& x, const Var<T>& v) {
  return detail::hvp<T>(detail::of_one<T>(f), detail::only(x), detail::only(v)).front();
}

// dy_o/dx_i at [o][i], of the shape of y_o followed by that of x_i: a sweep for each element of y. Plain
// arrays. Throws ShapeError when the ranks sum to more than 8.
template <class F>
std::vector<std::vector<Array<float>>> jacobian(const F& f, Vars<float> x) {
  return detail::jacobian<float>(detail::of_list<float>(f), x);
}
template <class F>
std::vector<std::vector<Array<double>>> jacobian(const F& f, Vars<double> x) {
  return detail::jacobian<double>(detail::of_list<double>(f), x);
}
template <class F, std::floating_point T>
Array<T> jacobian(const F& f, const Var<T>& x) {
  auto rows = detail::jacobian<T>(detail::of_one<T>(f), detail::only(x));
  return detail::only_result("jacobian", std::move(rows)).front();
}

// d^2 f / dx_i dx_j of a number f(x) at [i][j], of the shape of x_i followed by that of x_j.
// Throws ShapeError when f gives no single number, and as jacobian() does.
template <class F>
std::vector<std::vector<Array<float>>> hessian(const F& f, Vars<float> x) {
  return detail::hessian<float>(detail::of_list<float>(f), x);
}
template <class F>
std::vector<std::vector<Array<double>>> hessian(const F& f, Vars<double> x) {
  return detail::hessian<double>(detail::of_list<double>(f), x);
}
template <class F, std::floating_point T>
Array<T> hessian(const F& f, const Var<T>& x) {
  return detail::hessian<T>(detail::of_one<T>(f), detail::only(x)).front().front();
}

}  // namespace tapehead
