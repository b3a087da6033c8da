#pragma once
// The mask of a dump, whatever its convention was.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tools/check/shapes.h>

namespace tapehead::check {

// Broadcasts to (B, H, L, S), of rank 4: 1 is allowed, or added to the scores.
struct ReadMask {
  Array<double> numbers;
  bool additive = false;
};

// mask and key_padding_mask together; none when neither is there. Throws Unusable for numbers that a mask of
// this meaning cannot hold.
std::optional<ReadMask> mask_of(const Shapes& shapes, const Settings& said,
                                std::vector<std::pair<std::string, std::string>>& assumed);

// Score-like numbers at their place in (B, H, L, S), of rank 4.
Array<double> in_scores(const Shapes& shapes, const Array<double>& numbers);

}  // namespace tapehead::check
