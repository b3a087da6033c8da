#pragma once
// Losses.

#include <limits>

#include <tapehead/core/var.h>

namespace tapehead {

enum class Reduction { mean, sum, none };

template <std::floating_point T>
struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  Index ignored = std::numeric_limits<Index>::min();  // a target that counts for nothing
  double smoothing = 0;  // this much of the target is spread evenly over the classes
  Array<T> weights{};    // (C), of each class; not given: all 1
};

// l = sum_c a_c (log sum exp(x) - x_c) for each row,  a_c = (1 - smoothing) w_t [c = t] + smoothing / C w_c
// dx = (softmax(x) sum_c a_c - a) dl
// x (I..., C) logits   targets (I...) classes   l (I...), or its sum, or its mean: the sum over that of w_t
// Throws ShapeError when targets are not the leading axes of x, DomainError naming the position of a target
// that is no class, for a smoothing outside [0, 1], and for a mean of which every target is ignored.
template <std::floating_point T>
Var<T> cross_entropy(const Var<T>& x, const Array<Index>& targets,
                     const CrossEntropyOptions<T>& options = {});

}  // namespace tapehead
