#pragma once
// Losses.

#include <limits>

#include <tapehead/core/var.h>

namespace tapehead {

enum class Reduction { mean, sum, none };

// l = (x - target)^2          dx = 2 (x - target) dl          dtarget = -dx
// x and target (...)   l (...), or its sum, or its mean over all elements
// Throws ShapeError when the shapes differ.
template <std::floating_point T>
Var<T> mse(const Var<T>& x, const Var<T>& target, Reduction reduction = Reduction::mean);

// l = sum_c p_c (log p_c - log q_c) for each distribution along the axis, nothing for p_c = 0
// dlog_q = -p dl          dp = (log p + 1 - log_q) dl, 0 where p is 0
// log_q and p (I..., C), or with the classes along another axis; log_q as log_softmax gives it
// l (I...), or its sum, or its mean over the distributions
// Kullback and Leibler, "On information and sufficiency", 1951. Throws ShapeError when the shapes differ.
template <std::floating_point T>
Var<T> kl_div(const Var<T>& log_q, const Var<T>& p, Reduction reduction = Reduction::mean, int axis = -1);

template <std::floating_point T>
struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  Index ignored = std::numeric_limits<Index>::min();  // a target that counts for nothing
  double smoothing = 0;  // this much of the target is spread evenly over the classes
  Array<T> weights{};    // (C), of each class; not given: all 1
  int axis = -1;         // of the classes
};

// l = sum_c a_c (log sum exp(x) - x_c) for each row,  a_c = (1 - smoothing) w_t [c = t] + smoothing / C w_c
// dx = (softmax(x) sum_c a_c - a) dl
// x (I..., C) logits, or with the classes along another axis   targets (I...) classes, the other axes of x
// l (I...), or its sum, or its mean: the sum over that of w_t
// Throws ShapeError when targets are not the other axes of x, DomainError naming the position of a target
// that is no class, for a smoothing outside [0, 1], and for a mean of which every target is ignored.
template <std::floating_point T>
Var<T> cross_entropy(const Var<T>& x, const Array<Index>& targets,
                     const CrossEntropyOptions<T>& options = {});

}  // namespace tapehead
