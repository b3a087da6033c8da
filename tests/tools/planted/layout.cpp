#include "tools/planted/plantings.h"
#include "tools/planted/views.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;

Planting planting(std::string id, std::string variant, std::string form, Make make) {
  return {std::move(id), std::move(variant), std::move(form), "layout", false, std::move(make)};
}

Make viewed(bool query, bool key, bool value) {
  return [=](const Call& call) -> std::optional<Wrong> {
    if (call.H == 1 || call.L == 1 || !call.x.empty()) return {};
    return with_inputs_moved(query, key, value, tokens_read_as_heads);
  };
}

// Rows of the mask lie `pitch` apart and are read as if they lay S apart; what fills the pitch blocks, or
// allows.
Make pitched(Index more, bool fill) {
  return [more, fill](const Call& call) -> std::optional<Wrong> {
    const bool boolean = call.mask_kind == MaskKind::allowed || call.mask_kind == MaskKind::blocked;
    if (!boolean || call.mask.extents[2] == 1 || call.mask.extents[3] == 1) return {};
    Wrong wrong;
    wrong.visible = [call, more, fill](Index b, Index h, Index i, Index j) {
      const Index place = i * call.S + j, row = place / (call.S + more), column = place % (call.S + more);
      const bool allowed = column < call.S ? call.mask_allows(b, h, row, column) : fill;
      return allowed && call.causal_allows(i, j) && call.window_allows(i, j) && call.length_allows(b, j) &&
             call.segment_allows(b, i, j);
    };
    return wrong;
  };
}

Make tail(Index tile) {
  return [tile](const Call& call) -> std::optional<Wrong> {
    const Index more = (tile - call.S % tile) % tile;
    if (more == 0 || call.has_empty_row()) return {};
    Wrong wrong;
    wrong.extra_columns = static_cast<double>(more);
    return wrong;
  };
}

Make channels(std::function<Index(const Call&)> count) {
  return [count](const Call& call) -> std::optional<Wrong> {
    if (count(call) <= 0 || count(call) >= call.D) return {};
    Wrong wrong;
    wrong.channels = count(call);
    return wrong;
  };
}

}  // namespace

std::vector<Planting> layout_plantings() {
  std::vector<Planting> all = {
      planting("strides-ignored", "view", "query, key and value", viewed(true, true, true)),
      planting("strides-ignored", "view", "query", viewed(true, false, false)),
      planting("strides-ignored", "view", "key", viewed(false, true, false)),
      planting("strides-ignored", "view", "value", viewed(false, false, true)),
      planting("strides-ignored", "mask", "1 more", pitched(1, false)),
      planting("strides-ignored", "mask", "3 more", pitched(3, false)),
      planting("extent-wrong", "tail", "tiles of 4", tail(4)),
      planting("extent-wrong", "tail", "tiles of 8", tail(8)),
      planting("extent-wrong", "tail", "tiles of 16", tail(16)),
      planting("extent-wrong", "head-dim", "half", channels([](const Call& c) { return c.D / 2; })),
      planting("extent-wrong", "head-dim", "one less", channels([](const Call& c) { return c.D - 1; })),
  };
  all.push_back(planting("extent-wrong", "tail", "one column", [](const Call& call) -> std::optional<Wrong> {
    if (call.has_empty_row()) return {};
    Wrong wrong;
    wrong.extra_columns = 1;
    return wrong;
  }));
  all.back().only_alike = true;
  for (const Index more : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const bool fill : {false, true}) {
      all.push_back(planting("strides-ignored", "mask", "any", pitched(more, fill)));
      all.back().only_alike = true;
    }
  }
  return all;
}

}  // namespace tapehead::planted
