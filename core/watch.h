#pragma once
// Watching a tape for the first NaN or infinity that an op or a rule makes.
//
// An op makes a NaN when its value holds one and none of its arguments does, and an infinity likewise; so
// what came in as an argument, as the minus infinity of a mask, may be handed on. A rule is asked the same of
// the gradient it returns, with dy, y and whatever its op has seen. Looked at are ops that are recorded,
// rules as a whole and the sums of their gradients; what a rule computes on its way is not.

#include <span>

#include <tapehead/core/tape.h>

namespace tapehead {

// While it lives, the tape is watched as by watch_nonfinite(), or is not.
template <std::floating_point T>
class Watch {
 public:
  explicit Watch(Tape<T>& tape, bool on = true) : tape_(tape), before_(tape.watched()) {
    tape_.watch_nonfinite(on);
  }
  ~Watch() { tape_.watch_nonfinite(before_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  Tape<T>& tape_;
  bool before_;
};

// A number that an op was given beside its Vars, for record(): it counts as an argument.
struct Given {
  double number = 0;
};

namespace detail {

// Each throws DomainError for what was made; the first returns what its op has seen.
template <class T>
NonFinite watch_op(const Tape<T>& tape, OpName op, std::uint32_t label, bool in_sweep, const Array<T>& value,
                   std::span<const Var<T>* const> inputs, Given given);
template <class T>
void watch_rule(const Tape<T>& tape, Index i, const Edge<T>& edge, const Var<T>& y, const Var<T>& dy,
                const Var<T>& dx, const Var<T>& sum);  // dx is about to be added to this, if it is defined

}  // namespace detail
}  // namespace tapehead
