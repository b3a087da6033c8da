#include <cmath>

#include "tools/planted/plantings.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;

Planting planting(std::string id, std::string variant, std::string form, Make make) {
  return {std::move(id), std::move(variant), std::move(form), "position", false, std::move(make)};
}

Make turned(std::function<void(const Call&, WrongPositions&)> change) {
  return [change](const Call& call) -> std::optional<Wrong> {
    if (call.turn == Turn::none) return {};
    Wrong wrong;
    change(call, wrong.positions);
    return wrong;
  };
}

Make narrow(std::function<void(const Call&, WrongPositions&)> change) {  // when a part of the width is turned
  const Make any = turned(change);
  return [any](const Call& call) -> std::optional<Wrong> {
    if (call.turned_width() == call.D) return {};
    return any(call);
  };
}

Make normed(std::function<void(const Call&, WrongPositions&)> change) {
  return [change](const Call& call) -> std::optional<Wrong> {
    if (call.norm == Norm::none) return {};
    Wrong wrong;
    change(call, wrong.positions);
    return wrong;
  };
}

Turn other(Turn turn) { return turn == Turn::half ? Turn::neighbour : Turn::half; }

double place(Index start, Index i) { return static_cast<double>(start + i); }

// 2^(-8 (h + first) / H), by the plain geometric rule.
std::vector<double> geometric(Index heads, Index first) {
  std::vector<double> slopes;
  for (Index h = 0; h < heads; ++h)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h + first) / static_cast<double>(heads)));
  return slopes;
}

Make sloped(std::function<void(const Call&, Wrong&)> change) {
  return [change](const Call& call) -> std::optional<Wrong> {
    if (call.slopes.empty()) return {};
    Wrong wrong;
    change(call, wrong);
    return wrong;
  };
}

std::vector<double> negated(std::vector<double> x) {
  for (double& number : x) number = -number;
  return x;
}

}  // namespace

std::vector<Planting> position_plantings() {
  using C = const Call&;
  using W = WrongPositions&;
  using Table = WrongPositions::Table;
  return {
      planting("rope-pairing", "other", "", turned([](C c, W w) { w.turn = other(c.turn); })),
      planting("rope-pairing", "mixed", "",
               turned([](C c, W w) { w.table = c.turn == Turn::half ? Table::neighbour : Table::half; })),
      planting("rope-pairing", "mixed", "other rotation", turned([](C c, W w) {
                 w.turn = other(c.turn);
                 w.table = c.turn == Turn::half ? Table::half : Table::neighbour;
               })),
      planting("rope-missing", "", "", turned([](C, W w) { w.query = w.key = false; })),
      planting("rope-missing", "q-only", "", turned([](C, W w) { w.key = false; })),
      planting("rope-missing", "k-only", "", turned([](C, W w) { w.query = false; })),
      planting("rope-missing", "head-axis", "", turned([](C, W w) { w.by_head = true; })),
      planting("rope-position-wrong", "offset", "query from 0", turned([](C c, W w) {
                 if (c.query_positions.empty()) w.query_position = [](Index, Index i) { return place(0, i); };
               })),
      planting("rope-position-wrong", "offset", "positions not read",
               [](C call) -> std::optional<Wrong> {
                 if (call.turn == Turn::none || call.query_positions.empty()) return {};
                 Wrong wrong;
                 wrong.positions.query_position =
                     wrong.positions.key_position = [](Index, Index i) { return place(0, i); };
                 return wrong;
               }),
      planting("rope-position-wrong", "offset", "query one late", turned([](C c, W w) {
                 w.query_position = [c](Index b, Index i) { return c.query_position(b, i) + 1; };
               })),
      planting("rope-position-wrong", "per-sample", "", turned([](C c, W w) {
                 w.query_position = [c](Index b, Index i) {
                   return c.query_position(b, i) + static_cast<double>(b);
                 };
               })),
      planting("rope-position-wrong", "twice", "", turned([](C c, W w) {
                 w.key_position = [c](Index b, Index j) { return 2 * c.key_position(b, j); };
               })),
      planting("rope-partial-width", "", "exponent", narrow([](C c, W w) { w.exponent_width = c.D; })),
      planting("rope-partial-width", "", "partner", narrow([](C c, W w) {
                 if (c.turn == Turn::half) w.partner = c.D / 2;
               })),
      planting("rope-partial-width", "", "both", narrow([](C c, W w) {
                 w.exponent_width = c.D;
                 if (c.turn == Turn::half) w.partner = c.D / 2;
               })),
      planting("rope-partial-width", "base", "500000", turned([](C, W w) { w.base_of_table = 500000; })),
      planting("rope-partial-width", "base", "1000", turned([](C, W w) { w.base_of_table = 1000; })),
      planting("rope-sign", "", "", turned([](C, W w) { w.sign = -1; })),
      planting("alibi-slopes", "rule", "", sloped([](C c, Wrong& w) { w.slopes = geometric(c.H, 1); })),
      planting("alibi-slopes", "exponent", "", sloped([](C c, Wrong& w) { w.slopes = geometric(c.H, 0); })),
      planting("alibi-slopes", "sign", "", sloped([](C c, Wrong& w) { w.slopes = negated(c.slopes); })),
      planting("alibi-slopes", "non-causal", "", sloped([](C, Wrong& w) { w.signed_distance = true; })),
      planting("qknorm-wrong", "missing", "", normed([](C, W w) { w.norm_query = w.norm_key = false; })),
      planting("qknorm-wrong", "order", "", normed([](C, W w) { w.norm_after_turn = true; })),
      planting("qknorm-wrong", "tensors", "",
               [](C call) {
                 const auto wrong = normed([](C, W w) { w.norm_query = false, w.norm_value = true; })(call);
                 return call.D == call.E ? wrong : std::nullopt;
               }),
  };
}

}  // namespace tapehead::planted
