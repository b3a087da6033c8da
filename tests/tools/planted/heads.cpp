#include "tools/planted/plantings.h"
#include "tools/planted/views.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;

Planting planting(std::string id, std::string variant, std::string form, Make make) {
  return {std::move(id), std::move(variant), std::move(form), "heads", false, std::move(make)};
}

// Query head h reads another key head, where that exists for every h.
Make reads(std::function<Index(const Call&, Index h)> key_head) {
  return [key_head](const Call& call) -> std::optional<Wrong> {
    if (call.H == call.Hk) return {};
    for (Index h = 0; h < call.H; ++h)
      if (key_head(call, h) >= call.Hk) return {};
    Wrong wrong;
    wrong.key_head = [call, key_head](Index h) { return key_head(call, h); };
    return wrong;
  };
}

// The same in the backward pass only.
Make adds_to(std::function<Index(const Call&, Index h)> key_head) {
  const Make forward = reads(key_head);
  return [forward](const Call& call) -> std::optional<Wrong> {
    const auto same = forward(call);
    if (!same) return {};
    Wrong wrong;
    wrong.backward.key_head = same->key_head;
    return wrong;
  };
}

Index by_group(const Call& c, Index h) { return h / (c.H / c.Hk); }

Make output_viewed(bool heads_lead) {
  return [heads_lead](const Call& call) -> std::optional<Wrong> {
    if (call.H == 1 || (heads_lead ? call.B : call.L) == 1) return {};
    return with_output_moved([heads_lead](const Grid& x) {
      return heads_lead ? samples_and_heads_swapped(x) : heads_merged_as_they_lie(x);
    });
  };
}

// Tiles of so many query heads read the key head of their first.
Make tiled(Index tile) {
  const Make any = reads([tile](const Call& c, Index h) { return by_group(c, h / tile * tile); });
  return [any, tile](const Call& call) { return tile < call.H ? any(call) : std::nullopt; };
}

std::optional<Wrong> inputs_viewed(const Call& call) {
  if (call.H == 1 || call.L == 1 || !call.x.empty()) return {};
  return with_inputs_moved(true, true, true, tokens_read_as_heads);
}

std::optional<Wrong> over_heads(const Call& call) {
  const bool anything = call.mask_kind != MaskKind::none || call.causal != Causal::none || call.window_left ||
                        !call.bias.empty() || !call.key_lengths.empty() || !call.query_segments.empty() ||
                        !call.slopes.empty() || !call.sink.empty() || call.train || !call.x.empty() ||
                        call.turn != Turn::none || !call.part_ends.empty() ||
                        !call.upstream_weights.empty() || !call.query_lengths.empty();
  if (anything || call.H != call.Hk || call.L != call.S || call.L == 1) return {};
  Wrong wrong;
  wrong.before = [](Call& c) {
    for (Grid* x : {&c.query, &c.key, &c.value, &c.upstream, &c.upstream_lse, &c.upstream_weights})
      if (!x->empty()) *x = axes_swapped(*x);
    std::swap(c.H, c.L), c.Hk = c.H, c.S = c.L;
  };
  wrong.after = [](Results& r) {
    for (Grid* x : {&r.output, &r.grad_query, &r.grad_key, &r.grad_value})
      if (!x->empty()) *x = axes_swapped(*x);
    r.weights = r.lse = Grid();  // of other shapes
  };
  return wrong;
}

std::optional<Wrong> other_cut(const Call& call) {
  if (call.projection.empty()) return {};
  Wrong wrong;
  wrong.before = [](Call& c) { c.cut_projection(!c.cut_by_head); };
  return wrong;
}

}  // namespace

std::vector<Planting> head_plantings() {
  using C = const Call&;
  std::vector<Planting> all = {
      planting("gqa-tile", "", "", reads([](C c, Index h) { return c.tiled ? by_group(c, h) : h % c.Hk; })),
      planting("gqa-wrong-index", "divisor", "h / Hk", reads([](C c, Index h) { return h / c.Hk; })),
      planting("gqa-wrong-index", "divisor", "h mod G", reads([](C c, Index h) { return h % (c.H / c.Hk); })),
      planting("gqa-wrong-index", "tile-boundary", "tiles of 2", tiled(2)),
      planting("gqa-wrong-index", "tile-boundary", "tiles of 4", tiled(4)),
      planting("gqa-wrong-index", "tile-boundary", "tiles of 8", tiled(8)),
      planting("gqa-wrong-index", "first", "", reads([](C, Index) { return Index{0}; })),
      planting("gqa-tile", "", "backward",
               adds_to([](C c, Index h) { return c.tiled ? by_group(c, h) : h % c.Hk; })),
      planting("gqa-wrong-index", "divisor", "h / Hk, backward",
               adds_to([](C c, Index h) { return h / c.Hk; })),
      planting("gqa-wrong-index", "divisor", "h mod G, backward",
               adds_to([](C c, Index h) { return h % (c.H / c.Hk); })),
      planting("heads-merge-no-transpose", "", "", output_viewed(false)),
      planting("heads-merge-no-transpose", "batch-swap", "", output_viewed(true)),
      planting("heads-split-no-transpose", "", "", inputs_viewed),
      planting("attend-over-heads", "", "", over_heads),
      planting("qkv-packing-order", "", "", other_cut),
  };
  for (Planting& p : all) p.backward = p.form.ends_with("backward");
  return all;
}

}  // namespace tapehead::planted
