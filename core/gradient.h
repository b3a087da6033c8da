#pragma once
// gradient(): derivatives are values that are returned, not fields that are filled.

#include <initializer_list>
#include <span>
#include <vector>

#include <tapehead/core/tape.h>

namespace tapehead {

// A list of Vars for a call: one Var, a braced list or a vector. Refers to them; not for keeping.
template <std::floating_point T>
class Vars {
 public:
  Vars() = default;
  Vars(const Var<T>& one) : list_(&one, 1) {}
  Vars(std::initializer_list<Var<T>> list) : list_(list.begin(), list.size()) {}
  Vars(const std::vector<Var<T>>& list) : list_(list) {}
  Vars(std::span<const Var<T>> list) : list_(list) {}
  operator std::span<const Var<T>>() const { return list_; }

 private:
  std::span<const Var<T>> list_;
};

// The gradients of sum_i <y_i, seed_i> with respect to each x, in order and of the same shapes. One y with a
// single element needs no seed. They are recorded on the tape of x, so that a gradient can be differentiated
// again. An x that no y depends on gets zeros. When a rule throws, the tape is left as it was. Throws
// LogicError for an x that is not recorded, a missing seed, a paused tape, stale Vars or two tapes;
// ShapeError when a seed or what a rule returns has the wrong shape.
std::vector<Var<float>> gradient(Vars<float> y, Vars<float> x, Vars<float> seeds = {});
std::vector<Var<double>> gradient(Vars<double> y, Vars<double> x, Vars<double> seeds = {});

// The same as plain arrays: nothing is recorded and every adjoint is freed as soon as it is used up.
std::vector<Array<float>> gradient_values(Vars<float> y, Vars<float> x, Vars<float> seeds = {});
std::vector<Array<double>> gradient_values(Vars<double> y, Vars<double> x, Vars<double> seeds = {});

}  // namespace tapehead
