#include <tapehead/core/errors.h>

namespace tapehead {
namespace {

std::string message(std::string_view op, std::string_view what, std::initializer_list<NamedShape> arguments) {
  std::string text;
  text.append(op).append(": ").append(what);
  const char* separator = ": ";
  for (const auto& [name, shape] : arguments) {
    text.append(separator).append(name).append(" ").append(to_string(shape));
    separator = ", ";
  }
  return text;
}

}  // namespace

ShapeError::ShapeError(std::string_view op, std::string_view what,
                       std::initializer_list<NamedShape> arguments)
    : Error(message(op, what, arguments)) {}
DomainError::DomainError(std::string_view op, std::string_view what) : Error(message(op, what, {})) {}
LogicError::LogicError(std::string_view op, std::string_view what) : Error(message(op, what, {})) {}

}  // namespace tapehead
