#pragma once
// The three ways in which a call can be wrong. Every message has one form:
//   op: what disagreed: argument (shape), argument (shape)

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include <tapehead/core/shape.h>

namespace tapehead {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct NamedShape {
  std::string_view name;
  const Shape& shape;
};

// Shapes, ranks or axes that do not fit together.
struct ShapeError : Error {
  ShapeError(std::string_view op, std::string_view what, std::initializer_list<NamedShape> arguments = {});
};

// A value outside the domain of the operation: a row with no allowed key, an index out of range, a NaN scale.
struct DomainError : Error {
  DomainError(std::string_view op, std::string_view what);
};

// A call that cannot be meant: a handle of a dead tape, Vars of two tapes, a missing seed.
struct LogicError : Error {
  LogicError(std::string_view op, std::string_view what);
};

}  // namespace tapehead
