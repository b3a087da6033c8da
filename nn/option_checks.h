#pragma once
// What is said of a numeric option outside its domain. Internal: included by .cpp files only.

#include <cmath>
#include <sstream>
#include <string_view>

#include <tapehead/core/errors.h>

namespace tapehead::detail {

// DomainError "op: name is 1.5, must be ..." unless ok.
template <class Number>
void require_option(bool ok, std::string_view op, std::string_view name, Number value,
                    std::string_view domain) {
  if (ok) return;
  std::ostringstream text;
  text << name << " is " << value << ", must be " << domain;
  throw DomainError(op, text.str());
}

inline void require_not_negative(std::string_view op, std::string_view name, double value) {
  require_option(std::isfinite(value) && value >= 0, op, name, value, "finite and at least 0");
}

inline void require_fraction(std::string_view op, std::string_view name, double value) {
  require_option(value >= 0 && value < 1, op, name, value, "in [0, 1)");
}

inline void require_steps(std::string_view op, std::string_view name, Index value) {
  require_option(value >= 1, op, name, value, "at least 1");
}

}  // namespace tapehead::detail
