#pragma once
// Var<T>: a value, and its place on a tape when it was recorded.

#include <concepts>
#include <utility>

#include <tapehead/core/array.h>

namespace tapehead {

template <std::floating_point T>
class Tape;

namespace detail {

// What a Var knows of its tape: shared by all Vars of the tape, never freed, so that a check of a stale Var
// is always a legal read. `epoch` rises whenever nodes are dropped.
template <class T>
struct TapeTag {
  Tape<T>* tape = nullptr;
  std::uint32_t epoch = 0;
  TapeTag* next_free = nullptr;
};

}  // namespace detail

// An immutable value, shared when copied. An op of a recorded Var is recorded on that Var's tape; an op of
// Vars that are not recorded is only computed. The value can be read when the tape is gone.
template <std::floating_point T>
class Var {
 public:
  Var() = default;
  Var(Array<T> value) : value_(std::move(value)) {}  // a constant

  const Array<T>& value() const& { return value_; }
  Array<T> value() && { return std::move(value_); }
  const Shape& shape() const { return value_.shape(); }
  int rank() const { return value_.rank(); }
  Index dim(int axis) const { return value_.dim(axis); }
  Index size() const { return value_.size(); }
  T item() const { return value_.item(); }

  bool recorded() const { return tag_ != nullptr; }
  Var detach() const { return Var(value_); }  // the same value, on no tape

 private:
  friend class Tape<T>;
  Var(Array<T> value, detail::TapeTag<T>* tag, std::uint32_t epoch, std::uint32_t index)
      : value_(std::move(value)), tag_(tag), epoch_(epoch), index_(index) {}

  Array<T> value_;
  detail::TapeTag<T>* tag_ = nullptr;
  std::uint32_t epoch_ = 0;
  std::uint32_t index_ = 0;
};

}  // namespace tapehead
