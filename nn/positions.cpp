#include <tapehead/core/errors.h>
#include <tapehead/nn/positions.h>

#include <cmath>

namespace tapehead {
namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw DomainError("sinusoidal_positions", what);
}

}  // namespace

template <std::floating_point T>
Array<T> sinusoidal_positions(Index length, Index width, double base, Index start) {
  require(length >= 0, "the length " + std::to_string(length) + " is negative");
  require(width > 0 && width % 2 == 0, "the width " + std::to_string(width) + " is not positive and even");
  require(base > 0 && std::isfinite(base),
          "the base " + std::to_string(base) + " is not positive and finite");
  auto positions = Array<T>::uninitialized({length, width});
  T* const out = positions.mutable_values().data();
  // In double also for float: far positions would otherwise lose the digits of their angle.
  for (Index i = 0; i < width; i += 2) {
    const double turn = std::pow(base, -static_cast<double>(i) / static_cast<double>(width));
    for (Index row = 0; row < length; ++row) {
      const double angle = (static_cast<double>(start) + static_cast<double>(row)) * turn;
      out[row * width + i] = static_cast<T>(std::sin(angle));
      out[row * width + i + 1] = static_cast<T>(std::cos(angle));
    }
  }
  return positions;
}

template Array<float> sinusoidal_positions(Index, Index, double, Index);
template Array<double> sinusoidal_positions(Index, Index, double, Index);

}  // namespace tapehead
