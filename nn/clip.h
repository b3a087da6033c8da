#pragma once
// Clipping gradients by the norm of all of them together.

#include <vector>

#include <tapehead/core/array.h>

namespace tapehead {

// sqrt of the sum of the squares of all elements of all arrays, summed in double.
template <std::floating_point T>
double global_norm(const std::vector<Array<T>>& arrays);

struct ClipOptions {
  bool allow_nonfinite = false;
};

// Multiplies every gradient by min(1, most / (norm + 1e-6)), norm = global_norm(gradients) before, which is
// returned. Arrays that nobody else holds are scaled in place; none is touched when the factor is 1.
// Throws DomainError for a norm that is not finite, naming the first gradient to blame, and changes nothing
// then; with `allow_nonfinite` the factor is 0 for an infinite norm and NaN for NaN. Throws DomainError for
// `most` unless finite and at least 0. The numbers of PyTorch's clip_grad_norm_.
// Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013, section 3.2.
template <std::floating_point T>
double clip_global_norm(std::vector<Array<T>>& gradients, double most, const ClipOptions& options = {});

}  // namespace tapehead
