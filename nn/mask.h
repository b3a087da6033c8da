#pragma once
// Mask: which keys a query may see, kept as what was said and expanded only where it is used.

#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <tapehead/core/per_sample.h>

namespace tapehead {

// True means allowed. Masks combine with &: a key is seen when each of them allows it. A default one allows
// all.
class Mask {
 public:
  // The position of query i, counted from the first key, is i + offset. With P keys cached before the first
  // query, the offset is P; it may be negative, and a number for each sample.
  struct Causal {
    PerSample offset;
  };
  struct Window {
    Index left, right;
    PerSample offset;
  };
  struct Lengths {
    PerSample lengths;
  };
  struct Documents {
    Array<Index> queries, keys;
  };
  struct Allowed {
    Array<bool> keys;
    bool prefix;
  };
  using Condition = std::variant<Causal, Window, Lengths, Documents, Allowed>;

  static constexpr Index unbounded = std::numeric_limits<Index>::max();

  Mask() = default;
  // Query i sees key j when j <= i + offset.
  static Mask causal(PerSample offset = 0);
  // Query i sees key j when i + offset - left <= j <= i + offset + right; unbounded is for an open side.
  // Throws DomainError when left or right is negative. Beltagy and others, "Longformer", 2020, section 3.1.
  static Mask window(Index left, Index right, PerSample offset = 0);
  // Key j is seen when j < length of the sample. Throws DomainError for a negative length.
  static Mask lengths(PerSample lengths);
  // A query sees the keys of its own document. queries (..., L) and keys (..., S) hold the document each
  // belongs to; what stands before L and S are the first axes of the scores. Several documents packed in one
  // row: Krell and others, "Efficient sequence packing without cross-contamination", 2021.
  static Mask documents(Array<Index> queries, Array<Index> keys);
  // Any array that broadcasts to the scores: (S), (L, S), (B, 1, L, S), ...
  static Mask allowed(Array<bool> keys);
  // The same, where the last axis may hold fewer keys than there are: those after its end are not seen.
  static Mask allowed_prefix(Array<bool> keys);

  friend Mask operator&(Mask a, const Mask& b) {
    a.conditions_.insert(a.conditions_.end(), b.conditions_.begin(), b.conditions_.end());
    return a;
  }

  bool allows_all() const { return conditions_.empty(); }
  const std::vector<Condition>& conditions() const { return conditions_; }

  // The mask for queries that begin `steps` positions later.
  Mask later(Index steps) const;

  // Throws ShapeError when a part of the mask does not fit scores (..., L, S).
  void require_fits(const Shape& scores) const;

  // The mask as an array that broadcasts to scores (..., L, S), and has their rank. Throws as require_fits.
  Array<bool> expanded(const Shape& scores) const;

  // The number of the first row of scores (..., L, S) without a key, counted over all leading axes, if there
  // is one. place_of_row says where that is.
  std::optional<Index> first_empty_row(const Shape& scores) const;

  // The conditions in words and a picture of the mask for scores (..., L, S), '#' where a key is seen.
  std::string explain(const Shape& scores) const;

 private:
  explicit Mask(Condition condition) : conditions_{std::move(condition)} {}
  std::vector<Condition> conditions_;
};

// Where the row of that number lies in scores (..., L, S), in words: "batch 1, head 0, row 3".
std::string place_of_row(const Shape& scores, Index row);

}  // namespace tapehead
