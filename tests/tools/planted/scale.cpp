#include <cmath>

#include "tools/planted/plantings.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;

Planting planting(std::string id, std::string variant, std::string form, Make make) {
  return {std::move(id), std::move(variant), std::move(form), "scale", false, std::move(make)};
}

// z = t' q.k, where a product of the wrong scale only is asked for
Make scaled(std::function<std::optional<double>(const Call&)> scale) {
  return [scale](const Call& call) -> std::optional<Wrong> {
    const auto t = scale(call);
    if (!t) return {};
    Wrong wrong;
    wrong.scale = *t;
    return wrong;
  };
}

double root(Index n) { return std::sqrt(static_cast<double>(n)); }

Make padded(Index unit) {  // 1 / sqrt of the next width; 0: the next power of two
  return scaled([unit](const Call& call) -> std::optional<double> {
    Index width = unit == 0 ? 1 : unit;
    while (width < call.D) width += unit == 0 ? width : unit;
    return 1 / root(width);
  });
}

Make capped(Wrong::Cap cap) {
  return [cap](const Call& call) -> std::optional<Wrong> {
    if (call.softcap == 0) return {};
    Wrong wrong;
    wrong.cap = cap;
    return wrong;
  };
}

std::optional<Wrong> capped_after_mask(const Call& call) {
  if (call.softcap == 0) return {};
  Wrong wrong;
  wrong.cap = Wrong::Cap::with_bias;
  wrong.visible = [](Index, Index, Index, Index) { return true; };
  wrong.fixed = [call](Index b, Index h, Index i, Index j) -> std::optional<double> {
    if (call.visible(b, h, i, j)) return {};
    return -call.softcap;
  };
  return wrong;
}

Make power_of_two(bool slope) {
  return [slope](const Call&) -> std::optional<Wrong> {
    Wrong wrong;
    wrong.power_of_two = true, wrong.power_slope = slope;
    return wrong;
  };
}

std::optional<Wrong> bias_first(const Call& call) {
  if (call.bias.empty() || call.softcap > 0 || call.bias_before_scale) return {};
  Wrong wrong;
  wrong.bias_before_scale = true;
  return wrong;
}

}  // namespace

std::vector<Planting> scale_plantings() {
  const auto custom = [](auto f) {
    return scaled([f](const Call& call) -> std::optional<double> {
      if (!call.scale) return {};
      return f(call);
    });
  };
  using C = const Call&;
  return {
      planting("scale-omitted", "", "", scaled([](C) { return 1.0; })),
      planting("scale-one-over-d", "", "", scaled([](C c) { return 1 / static_cast<double>(c.D); })),
      planting("scale-inverted", "", "", scaled([](C c) { return root(c.D); })),
      planting("scale-wrong-dim", "model", "", scaled([](C c) { return 1 / root(c.H * c.D); })),
      planting("scale-wrong-dim", "heads", "", scaled([](C c) { return 1 / root(c.H); })),
      planting("scale-wrong-dim", "value", "", scaled([](C c) { return 1 / root(c.E); })),
      planting("scale-padded-dim", "", "power of two", padded(0)),
      planting("scale-padded-dim", "", "multiple of 8", padded(8)),
      planting("scale-padded-dim", "", "multiple of 16", padded(16)),
      planting("scale-padded-dim", "", "multiple of 32", padded(32)),
      planting("scale-custom-ignored", "", "default used", custom([](C c) { return 1 / root(c.D); })),
      planting("scale-custom-ignored", "", "another constant",
               custom([](C c) { return 1.37 * c.score_scale(); })),
      planting("scale-exp2-without-log2e", "", "gradients of 2^z", power_of_two(true)),
      planting("scale-exp2-without-log2e", "", "gradients of e^z", power_of_two(false)),
      planting("bias-before-scale", "", "", bias_first),
      planting("softcap-omitted", "", "", capped(Wrong::Cap::omitted)),
      planting("softcap-after-mask", "", "", capped_after_mask),
      planting("softcap-order", "after-bias", "", capped(Wrong::Cap::with_bias)),
      planting("softcap-order", "before-scale", "", capped(Wrong::Cap::before_scale)),
      planting("softcap-order", "wrong-form", "", capped(Wrong::Cap::without_bound)),
  };
}

}  // namespace tapehead::planted
