#include <algorithm>
#include <cmath>

#include "tools/planted/plantings.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;

Planting planting(std::string id, std::string variant, std::string form, Make make) {
  return {std::move(id), std::move(variant), std::move(form), "numeric", false, std::move(make)};
}

bool blocks(const Call& c) {
  return c.mask_kind != MaskKind::none || c.causal != Causal::none || c.window_left ||
         !c.key_lengths.empty() || !c.query_segments.empty();
}

bool anything(Index, Index, Index, Index) { return true; }

// Blocked scores are M, or get M added.
Make sentinel(double M, bool added) {
  return [=](const Call& call) -> std::optional<Wrong> {
    if (!blocks(call)) return {};
    Wrong wrong;
    wrong.visible = anything;
    if (added) {
      wrong.added = [=](Index b, Index h, Index i, Index j) { return call.visible(b, h, i, j) ? 0 : M; };
    } else {
      wrong.fixed = [=](Index b, Index h, Index i, Index j) -> std::optional<double> {
        if (call.visible(b, h, i, j)) return {};
        return M;
      };
    }
    return wrong;
  };
}

// No exponential falls below the floor: blocked scores are so low that theirs is the floor.
Make floored(double floor) {
  return [=](const Call& call) -> std::optional<Wrong> {
    const auto low = sentinel(-1000, false)(call);
    if (!low || call.has_empty_row()) return {};
    Wrong wrong = *low;
    wrong.floor = floor;
    return wrong;
  };
}

bool in_f16(const Call& c) { return c.type == Type::f16; }

// What overflows makes the row empty, and that makes it NaN.
Make empty_rows(std::function<bool(const Call&)> applies, bool filled) {
  return [applies, filled](const Call& call) -> std::optional<Wrong> {
    if (!call.has_empty_row() || !applies(call)) return {};
    Wrong wrong;
    wrong.empty = Wrong::Empty::nan, wrong.filled = filled;
    return wrong;
  };
}

// Two lowest numbers, one from each of two masks, are added to every score of a row without keys.
bool blocked_twice(const Call& c) {
  bool all = true;
  each(Grid(c.B, c.H, c.L, 1), [&](Index b, Index h, Index i, Index) {
    bool any = !c.is_row(b, i), twice = true;
    for (Index j = 0; j < c.S; ++j) {
      any = any || c.visible(b, h, i, j);
      const int blocks = !c.mask_allows(b, h, i, j) + !c.causal_allows(i, j) + !c.window_allows(i, j) +
                         !c.length_allows(b, j) + !c.segment_allows(b, i, j);
      twice = twice && blocks > 1;
    }
    all = all && (any || twice);
  });
  return all;
}

std::optional<Wrong> products_overflow(const Call& call) {
  if (call.type != Type::f16) return {};
  Wrong wrong;
  wrong.largest_product = 65504;
  return wrong;
}

std::optional<Wrong> powers_overflow(const Call& call) {
  if (call.type == Type::f64) return {};
  Wrong wrong;
  wrong.largest_power = call.type == Type::f16 ? 65504 : 3.4028234663852886e38;
  return wrong;
}

bool poisoned(const Call& c) {
  return std::any_of(c.value.numbers.begin(), c.value.numbers.end(), [](double x) { return std::isnan(x); });
}

Make nan_from_masked(bool forward) {
  return [forward](const Call& call) -> std::optional<Wrong> {
    if (!poisoned(call)) return {};
    Wrong wrong;
    wrong.zero_weight_meets_nan = forward;
    wrong.backward.zero_weight_meets_nan = true;
    return wrong;
  };
}

}  // namespace

std::vector<Planting> numeric_plantings() {
  std::vector<Planting> all = {
      planting("sentinel-leak", "", "replaced by -2", sentinel(-2, false)),
      planting("sentinel-leak", "", "replaced by -5", sentinel(-5, false)),
      planting("sentinel-leak", "", "-3 added", sentinel(-3, true)),
      planting("sentinel-leak", "", "replaced by -10000", sentinel(-10000, false)),
      planting("sentinel-leak", "", "floor", floored(0.02)),
      planting("low-precision-overflow", "mask-sum", "", empty_rows(blocked_twice, false)),
      planting("low-precision-overflow", "mask-sum", "without a gradient", empty_rows(blocked_twice, true)),
      planting("low-precision-overflow", "constant", "added", empty_rows(in_f16, false)),
      planting("low-precision-overflow", "constant", "filled in", empty_rows(in_f16, true)),
      planting("low-precision-overflow", "scores", "products", products_overflow),
      planting("low-precision-overflow", "scores", "exponentials", powers_overflow),
      planting("nan-from-masked", "forward", "", nan_from_masked(true)),
      planting("nan-from-masked", "where", "", nan_from_masked(false)),
  };
  all.back().backward = true;
  return all;
}

}  // namespace tapehead::planted
