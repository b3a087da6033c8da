#pragma once
// What an op costs in floating-point operations, by its name and the shapes it was given.

#include <optional>
#include <span>
#include <string_view>

#include <tapehead/core/shape.h>

namespace tapehead {

struct FlopCount {
  double flops = 0;
  bool assumed = false;  // one for each element of the output, since nothing is known of the op
};

// Every addition, product, quotient, comparison and elementary function (exp, tanh, ...) counts one; moving
// and selecting count nothing. A product (M, N) (N, P) is 2 M N P, whatever it is transposed or skipped.
// fused_attention is its two products, 2 B H L S (D + E), of all keys. `arguments` holds the shape of each
// argument that is recorded; nothing is known of a constant. An op that the table has not, or of which too
// little is known, counts one for each element of its output.
FlopCount flops_of(std::string_view op, std::span<const std::optional<Shape>> arguments, const Shape& output);

}  // namespace tapehead
