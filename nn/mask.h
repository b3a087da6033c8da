#pragma once
// Mask: which keys a query may see, kept as what was said and expanded only where it is used.

#include <string>
#include <variant>
#include <vector>

#include <tapehead/core/array.h>

namespace tapehead {

// True means allowed. Masks combine with &: a key is seen when each of them allows it. A default one allows
// all.
class Mask {
 public:
  // Query i sees key j when j <= i + offset. With P keys cached before the first query, the offset is P.
  struct Causal {
    Index offset;
  };
  // (..., L, S), broadcast to the scores.
  struct Allowed {
    Array<bool> keys;
  };
  using Condition = std::variant<Causal, Allowed>;

  Mask() = default;
  static Mask causal(Index offset) { return Mask(Causal{offset}); }
  static Mask allowed(Array<bool> keys) { return Mask(Allowed{std::move(keys)}); }
  friend Mask operator&(Mask a, const Mask& b) {
    a.conditions_.insert(a.conditions_.end(), b.conditions_.begin(), b.conditions_.end());
    return a;
  }

  bool allows_all() const { return conditions_.empty(); }
  const std::vector<Condition>& conditions() const { return conditions_; }

  // The mask as an array that broadcasts to scores (..., L, S). Throws ShapeError when a part of it does not.
  Array<bool> expanded(const Shape& scores) const;

 private:
  explicit Mask(Condition condition) : conditions_{std::move(condition)} {}
  std::vector<Condition> conditions_;
};

// Where the row of that number lies in scores (..., L, S), in words: "batch 1, head 0, row 3".
std::string place_of_row(const Shape& scores, Index row);

}  // namespace tapehead
