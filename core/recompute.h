#pragma once
// recompute(): a part of the forward pass that keeps its inputs and nothing in between.

#include <tapehead/core/derivatives.h>

namespace tapehead {
namespace detail {

template <class T>
Var<T> recompute(ListFunction<T> f, std::span<const Var<T>> inputs);

}  // namespace detail

// y = f(inputs) as one op, whose rule runs f again, differentiates it and forgets what it computed.
//
//   const Var<T> y = recompute([](const Var<T>& x, const Var<T>& w) { return gelu(matmul(x, w)); }, {x, w});
//
// f is a composition of ops and takes the inputs one by one or as a list, as in derivatives.h. Every recorded
// Var that it needs is an input, and f uses the one it is handed. It runs once for the value and once for
// each sweep, each time as a copy of what it was: random numbers come from a Generator captured by value, so
// that every run draws the same. The gradients are those of f without recompute(), bit for bit. In a recorded
// sweep what f computes is recorded, and its gradients have gradients. gradient_paths() sees one op. Throws
// LogicError when f reads a recorded Var that it was not handed or does not give one Var, and, from a
// gradient, when f does not give the same value again; the tape is left as it was.
template <class F>
Var<float> recompute(F f, Vars<float> inputs) {
  return detail::recompute<float>(detail::of_list<float>(std::move(f)), inputs);
}
template <class F>
Var<double> recompute(F f, Vars<double> inputs) {
  return detail::recompute<double>(detail::of_list<double>(std::move(f)), inputs);
}
template <class F, std::floating_point T>
Var<T> recompute(F f, const Var<T>& input) {
  return detail::recompute<T>(detail::of_one<T>(std::move(f)), detail::only(input));
}

}  // namespace tapehead
