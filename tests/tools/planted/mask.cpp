#include <utility>

#include "tools/planted/plantings.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;
using Condition = std::function<bool(const Call&)>;
using Seen = std::function<bool(const Call&, Index b, Index h, Index i, Index j)>;

Planting planting(std::string id, std::string variant, std::string form, Make make) {
  return {std::move(id), std::move(variant), std::move(form), "mask", false, std::move(make)};
}

bool has_mask(const Call& c) { return c.mask_kind != MaskKind::none; }
bool has_boolean_mask(const Call& c) {
  return c.mask_kind == MaskKind::allowed || c.mask_kind == MaskKind::blocked;
}
bool has_causal(const Call& c) { return c.causal != Causal::none; }
bool has_window(const Call& c) { return c.window_left || c.window_right; }
bool has_lengths(const Call& c) { return !c.key_lengths.empty(); }
bool has_segments(const Call& c) { return !c.query_segments.empty(); }
// A mask that says the same for every row: padding.
bool has_padding_mask(const Call& c) { return has_boolean_mask(c) && c.mask.extents[2] == 1; }
bool blocks(const Call& c) {
  return has_mask(c) || has_causal(c) || has_window(c) || has_lengths(c) || has_segments(c);
}

// Other keys are visible.
Make sees(Condition applies, Seen seen) {
  return [applies, seen](const Call& call) -> std::optional<Wrong> {
    if (!applies(call)) return {};
    Wrong wrong;
    wrong.visible = [call, seen](Index b, Index h, Index i, Index j) { return seen(call, b, h, i, j); };
    return wrong;
  };
}

// The call with something about it changed decides which keys are visible.
Make sees_as(Condition applies, std::function<void(Call&)> change) {
  return [applies, change](const Call& call) -> std::optional<Wrong> {
    if (!applies(call)) return {};
    Call other = call;
    change(other);
    Wrong wrong;
    wrong.visible = [other](Index b, Index h, Index i, Index j) { return other.visible(b, h, i, j); };
    wrong.finite_mask_ignored = other.mask_kind == MaskKind::none;
    return wrong;
  };
}

void forget_mask(Call& c) { c.mask_kind = MaskKind::none; }
bool rest_allows(const Call& c, Index b, Index, Index i, Index j) {
  return c.causal_allows(i, j) && c.window_allows(i, j) && c.length_allows(b, j) && c.segment_allows(b, i, j);
}

bool seen_but_for_causal(const Call& c, Index b, Index h, Index i, Index j) {
  return c.mask_allows(b, h, i, j) && c.window_allows(i, j) && c.length_allows(b, j) &&
         c.segment_allows(b, i, j);
}

// The mask's truth values are added to scores: true is 1, in the convention of the mask, or the other.
Make truth_added(bool of_truth_values, bool of_blocked) {
  return [=](const Call& call) -> std::optional<Wrong> {
    if (!has_boolean_mask(call) || (of_truth_values && call.mask_in_numbers)) return {};
    Wrong wrong;
    wrong.visible = [call](Index b, Index h, Index i, Index j) { return rest_allows(call, b, h, i, j); };
    wrong.added = [call, of_blocked](Index b, Index h, Index i, Index j) {
      const double one = call.mask.numbers[call.mask.repeated(b, h, i, j)];
      return of_blocked ? 1 - one : one;
    };
    return wrong;
  };
}

// The truth values of all conditions together.
std::optional<Wrong> all_truth_added(const Call& call) {
  if (!blocks(call) || call.mask_kind == MaskKind::additive) return {};
  Wrong wrong;
  wrong.visible = [](Index, Index, Index, Index) { return true; };
  wrong.added = [call](Index b, Index h, Index i, Index j) { return call.visible(b, h, i, j) ? 1 : 0; };
  return wrong;
}

std::optional<Wrong> numbers_as_truth(const Call& call) {
  if (call.mask_kind != MaskKind::additive) return {};
  Wrong wrong;
  wrong.finite_mask_ignored = true;
  wrong.visible = [call](Index b, Index h, Index i, Index j) {
    return rest_allows(call, b, h, i, j) && call.mask.numbers[call.mask.repeated(b, h, i, j)] == 0;
  };
  return wrong;
}

// A dense bias taken for a Boolean mask: nearly everything is blocked.
std::optional<Wrong> bias_as_truth(const Call& call) {
  if (call.bias.empty()) return {};
  Wrong wrong;
  wrong.visible = [call](Index b, Index h, Index i, Index j) {
    return call.visible(b, h, i, j) && call.bias.numbers[call.bias.repeated(b, h, i, j)] == 0;
  };
  return wrong;
}

// Blocked scores are 0: of all that blocks, or of the mask alone.
Make zero_logit(bool of_mask_only) {
  return [of_mask_only](const Call& call) -> std::optional<Wrong> {
    if (of_mask_only ? !has_boolean_mask(call) : !blocks(call)) return {};
    Wrong wrong;
    wrong.visible = [call, of_mask_only](Index b, Index h, Index i, Index j) {
      return !of_mask_only || rest_allows(call, b, h, i, j);
    };
    wrong.fixed = [call, of_mask_only](Index b, Index h, Index i, Index j) -> std::optional<double> {
      const bool seen = of_mask_only ? call.mask_allows(b, h, i, j) : call.visible(b, h, i, j);
      if (seen) return {};
      return 0.0;
    };
    return wrong;
  };
}

Make after_softmax(bool of_mask_only) {
  return [of_mask_only](const Call& call) -> std::optional<Wrong> {
    if (of_mask_only ? !has_boolean_mask(call) : !blocks(call)) return {};
    Wrong wrong;
    wrong.visible = [call, of_mask_only](Index b, Index h, Index i, Index j) {
      return !of_mask_only || rest_allows(call, b, h, i, j);
    };
    wrong.dropped = [call](Index b, Index h, Index i, Index j) { return !call.visible(b, h, i, j); };
    return wrong;
  };
}

// Row r = b H + h reads the mask of sample r mod B; or heads lead, r = h B + b, and it reads that of r / H.
Make other_samples_mask(bool heads_lead) {
  const auto sample = [heads_lead](const Call& c, Index b, Index h) {
    return heads_lead ? (h * c.B + b) / c.H : (b * c.H + h) % c.B;
  };
  return sees(
      [](const Call& c) {
        return c.B > 1 && c.H > 1 && ((has_boolean_mask(c) && c.mask.extents[0] > 1) || has_lengths(c));
      },
      [sample](const Call& c, Index b, Index h, Index i, Index j) {
        const Index other = sample(c, b, h);
        const Index of_mask = has_mask(c) && c.mask.extents[0] > 1 ? other : b;
        return c.mask_allows(of_mask, h, i, j) && c.length_allows(other, j) && c.causal_allows(i, j) &&
               c.window_allows(i, j) && c.segment_allows(b, i, j);
      });
}

// Of several masks one is left.
Make only(Condition has, Seen allows) {
  return sees(
      [has](const Call& c) {
        const int masks = has_mask(c) + has_causal(c) + has_window(c) + has_lengths(c) + has_segments(c);
        return masks > 1 && has(c);
      },
      allows);
}

// Causal in the other corner; a window goes with it, or stays where it was.
Make moved_corner(Causal to) {
  return sees_as([to](const Call& c) { return has_causal(c) && c.causal != to; },
                 [to](Call& c) { c.causal = to; });
}
Make moved_corner_only(Causal to) {
  return sees([to](const Call& c) { return has_causal(c) && has_window(c) && c.causal != to; },
              [to](const Call& c, Index b, Index h, Index i, Index j) {
                Call other = c;
                other.causal = to;
                return other.causal_allows(i, j) && seen_but_for_causal(c, b, h, i, j);
              });
}

// By one key; the window stays where it was, or goes with it.
Make moved_offset(Index by) {
  return sees([](const Call& c) { return has_causal(c); },
              [by](const Call& c, Index b, Index h, Index i, Index j) {
                return c.mask_allows(b, h, i, j) && j <= i + c.causal_offset() + by &&
                       c.window_allows(i, j) && c.length_allows(b, j) && c.segment_allows(b, i, j);
              });
}

Make moved_with_window(Index by) {
  return sees_as([](const Call& c) { return has_causal(c) && has_window(c); },
                 [by](Call& c) { c.offset = c.causal_offset() + by, c.causal = Causal::offset; });
}

// The aligned position of the window stays where the causal offset put it.
Make other_window(std::optional<Index> more_left, std::optional<Index> right) {
  return sees([](const Call& c) { return c.window_left.has_value(); },
              [=](const Call& c, Index b, Index h, Index i, Index j) {
                const Index position = i + c.causal_offset();
                const bool left = !more_left || position - (*c.window_left + *more_left) <= j;
                const auto end = right ? right : c.window_right;
                return left && (!end || j <= position + *end) && c.causal_allows(i, j) &&
                       c.mask_allows(b, h, i, j) && c.length_allows(b, j) && c.segment_allows(b, i, j);
              });
}

// The bounds (W - 1, ...) became (W - 1 + more, W).
Make open_right(Index more_left) {
  return sees([](const Call& c) { return c.window_left.has_value(); },
              [more_left](const Call& c, Index b, Index h, Index i, Index j) {
                const Index position = i + c.causal_offset();
                return position - (*c.window_left + more_left) <= j && j <= position + *c.window_left + 1 &&
                       c.causal_allows(i, j) && c.mask_allows(b, h, i, j) && c.length_allows(b, j) &&
                       c.segment_allows(b, i, j);
              });
}

Make both_sides(Index more_left, Index more_right) {
  return sees(
      [](const Call& c) { return c.window_left && c.window_right && *c.window_right > 0 && !has_causal(c); },
      [=](const Call& c, Index b, Index h, Index i, Index j) {
        return i - (*c.window_left + more_left) <= j && j <= i + *c.window_right + more_right &&
               c.mask_allows(b, h, i, j) && c.length_allows(b, j) && c.segment_allows(b, i, j);
      });
}

Make empty_row(Wrong::Empty empty, bool filled) {
  return [empty, filled](const Call& call) -> std::optional<Wrong> {
    if (!call.has_empty_row()) return {};
    Wrong wrong;
    wrong.empty = empty, wrong.filled = filled;
    return wrong;
  };
}

bool any_allowed(const Call& c, Index b, Index i) {  // query i counts as a token of its sample
  if (has_lengths(c)) return c.length_allows(b, i);
  return c.mask_allows(b, 0, 0, i);
}

}  // namespace

std::vector<Planting> mask_plantings() {
  using C = const Call&;
  const auto lengths_or_padding = [](C c) { return has_lengths(c) || has_padding_mask(c); };
  std::vector<Planting> all = {
      planting("mask-polarity-inverted", "", "the mask",
               sees(has_boolean_mask,
                    [](C c, Index b, Index h, Index i, Index j) {
                      return !c.mask_allows(b, h, i, j) && rest_allows(c, b, h, i, j);
                    })),
      planting("mask-polarity-inverted", "", "all that blocks",
               sees(blocks, [](C c, Index b, Index h, Index i, Index j) { return !c.visible(b, h, i, j); })),
      planting("mask-dtype-confused", "bool-added", "", truth_added(true, false)),
      planting("mask-dtype-confused", "bool-added", "the other truth", truth_added(true, true)),
      planting("mask-dtype-confused", "zero-one", "", truth_added(false, false)),
      planting("mask-dtype-confused", "zero-one", "the other truth", truth_added(false, true)),
      planting("mask-dtype-confused", "zero-one", "of all that blocks", all_truth_added),
      planting("mask-dtype-confused", "bool-added", "of all that blocks",
               [](const Call& c) { return c.mask_in_numbers ? std::nullopt : all_truth_added(c); }),
      planting("mask-dtype-confused", "float-as-bool", "", numbers_as_truth),
      planting("mask-dtype-confused", "float-as-bool", "of the bias", bias_as_truth),
      planting("mask-zero-logit", "", "all that blocks", zero_logit(false)),
      planting("mask-zero-logit", "", "the mask", zero_logit(true)),
      planting("mask-after-softmax", "", "all that blocks", after_softmax(false)),
      planting("mask-after-softmax", "", "the mask", after_softmax(true)),
      planting("mask-dropped", "all", "",
               sees_as(blocks,
                       [](Call& c) {
                         forget_mask(c), c.causal = Causal::none;
                         c.window_left.reset(), c.window_right.reset();
                         c.key_lengths.clear(), c.query_segments.clear();
                       })),
      planting("mask-dropped", "causal", "", sees(has_causal, seen_but_for_causal)),
      planting("mask-dropped", "padding", "lengths",
               sees_as(has_lengths, [](Call& c) { c.key_lengths.clear(); })),
      planting("mask-dropped", "padding", "mask", sees_as(has_padding_mask, forget_mask)),
      planting("mask-dropped", "replaced", "mask by causal",
               sees_as([](C c) { return has_mask(c) && has_causal(c); }, forget_mask)),
      planting("mask-dropped", "replaced", "causal by mask",
               sees([](C c) { return has_mask(c) && has_causal(c); }, seen_but_for_causal)),
      planting("mask-dropped", "replaced", "by causal",
               only(has_causal, [](C c, Index, Index, Index i, Index j) { return c.causal_allows(i, j); })),
      planting("mask-dropped", "replaced", "by the mask", only(has_mask, &Call::mask_allows)),
      planting("mask-dropped", "replaced", "by lengths",
               only(has_lengths, [](C c, Index b, Index, Index, Index j) { return c.length_allows(b, j); })),
      planting("mask-dropped", "replaced", "by the window",
               only(has_window, [](C c, Index, Index, Index i, Index j) { return c.window_allows(i, j); })),
      planting("mask-dropped", "replaced", "by segments",
               only(has_segments,
                    [](C c, Index b, Index, Index i, Index j) { return c.segment_allows(b, i, j); })),
      planting("mask-query-axis", "", "",
               sees([lengths_or_padding](C c) { return c.L == c.S && lengths_or_padding(c); },
                    [](C c, Index b, Index h, Index i, Index j) {
                      return any_allowed(c, b, i) && (has_padding_mask(c) || c.mask_allows(b, h, i, j)) &&
                             c.causal_allows(i, j) && c.window_allows(i, j) && c.segment_allows(b, i, j);
                    })),
      planting("mask-batch-head-order", "", "tiled", other_samples_mask(false)),
      planting("mask-batch-head-order", "", "heads lead", other_samples_mask(true)),
      planting("causal-alignment-swapped", "", "top-left", moved_corner(Causal::top_left)),
      planting("causal-alignment-swapped", "", "bottom-right", moved_corner(Causal::bottom_right)),
      planting("causal-alignment-swapped", "", "top-left, but the window",
               moved_corner_only(Causal::top_left)),
      planting("causal-off-by-one", "leak", "", moved_offset(1)),
      planting("causal-off-by-one", "strict", "", moved_offset(-1)),
      planting("causal-off-by-one", "leak", "window too", moved_with_window(1)),
      planting("causal-off-by-one", "strict", "window too", moved_with_window(-1)),
      planting("window-bounds", "off-by-one", "left + 1", other_window(1, {})),
      planting("window-bounds", "off-by-one", "left - 1", other_window(-1, {})),
      planting("window-bounds", "off-by-one", "both + 1", both_sides(1, 1)),
      planting("window-bounds", "off-by-one", "both - 1", both_sides(-1, -1)),
      planting("window-bounds", "off-by-one", "right + 1", both_sides(0, 1)),
      planting("window-bounds", "wrong-sides", "left open", other_window({}, {})),
      planting("window-bounds", "wrong-sides", "right bound W", open_right(0)),
      planting("window-bounds", "wrong-sides", "both bounds W", open_right(1)),
      planting("packed-docs-leak", "", "", sees_as(has_segments, [](Call& c) { c.query_segments.clear(); })),
      planting("allmasked-row", "nan", "added", empty_row(Wrong::Empty::nan, false)),
      planting("allmasked-row", "nan", "filled", empty_row(Wrong::Empty::nan, true)),
      planting("allmasked-row", "uniform", "added", empty_row(Wrong::Empty::uniform, false)),
      planting("allmasked-row", "uniform", "filled", empty_row(Wrong::Empty::uniform, true)),
      planting("allmasked-row", "unmasked", "", empty_row(Wrong::Empty::unmasked, false)),
  };
  for (Planting& p : all) p.only_alike = p.form == "by the window" || p.form == "by segments";
  return all;
}

}  // namespace tapehead::planted
