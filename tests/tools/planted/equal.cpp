#include <algorithm>
#include <cmath>

#include "tools/planted/attention.h"
#include "tools/planted/plantings.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;

Planting planting(std::string form, Make make) {
  return {"", "", std::move(form), "equal", false, std::move(make)};
}

std::optional<Wrong> row_constant(const Call& call) {
  if (!call.sink.empty() || call.has_empty_row() || !call.part_ends.empty()) return {};
  Wrong wrong;
  wrong.added = [](Index b, Index h, Index i, Index) {
    return 0.5 + 0.25 * static_cast<double>(b + 2 * h + i);
  };
  wrong.after = [](Results& r) { r.lse = Grid(); };  // it moves by the constant
  return wrong;
}

std::optional<Wrong> key_index_slopes(const Call& call) {
  if (call.slopes.empty() || !call.query_positions.empty() ||
      call.causal_offset() != call.start_query - call.start_key || call.causal == Causal::none ||
      !call.sink.empty())
    return {};
  Wrong wrong;
  wrong.signed_distance = true;
  return wrong;
}

std::optional<Wrong> renormalised(const Call& call) {
  if (!call.sink.empty() || !call.part_ends.empty()) return {};
  Wrong wrong;
  wrong.visible = [](Index, Index, Index, Index) { return true; };
  wrong.dropped = [call](Index b, Index h, Index i, Index j) { return !call.visible(b, h, i, j); };
  wrong.renormalised = true;
  wrong.after = [](Results& r) { r.lse = Grid(); };
  return wrong;
}

// Where scores lie far from 0, the order in which they are rounded decides over digits of the weights.
bool far_off(const Call& c) {
  Call forward = c;
  forward.upstream = Grid();
  const Grid lse = attention(forward).lse;
  return std::any_of(lse.numbers.begin(), lse.numbers.end(),
                     [](double x) { return std::isfinite(x) && std::abs(x) > 30; });
}

std::optional<Wrong> delta_of_output(const Call& call) {
  if (call.upstream.empty() || !call.upstream_weights.empty() || call.train) return {};
  Wrong wrong;
  wrong.backward.visible = [call](Index b, Index h, Index i, Index j) { return call.visible(b, h, i, j); };
  return wrong;
}

std::optional<Wrong> all_later(const Call& call) {
  if (call.turn == Turn::none) return {};
  Wrong wrong;
  wrong.positions.query_position = [call](Index b, Index i) { return call.query_position(b, i) + 5; };
  wrong.positions.key_position = [call](Index b, Index j) { return call.key_position(b, j) + 5; };
  return wrong;
}

// Gains are equal inside a pair when all are.
bool equal_gains(const std::vector<double>& gain) {
  for (const double g : gain)
    if (g != gain.front()) return false;
  return true;
}

std::optional<Wrong> norm_later(const Call& call) {
  if (call.norm == Norm::none || call.turn == Turn::none || !equal_gains(call.query_gain) ||
      !equal_gains(call.key_gain))
    return {};
  Wrong wrong;
  wrong.positions.norm_after_turn = true;
  return wrong;
}

std::optional<Wrong> merged(const Call& call) {
  if (call.part_ends.empty() || !call.sink.empty()) return {};
  Wrong wrong;
  wrong.merge = Wrong::Merge::right;
  return wrong;
}

Grid widened(const Grid& x, Index more) {
  Grid y(x.extents[0], x.extents[1], x.extents[2], x.extents[3] + more);
  each(x, [&](Index a, Index b, Index c, Index d) { y(a, b, c, d) = x(a, b, c, d); });
  return y;
}
Grid narrowed(const Grid& x, Index less) {
  Grid y(x.extents[0], x.extents[1], x.extents[2], x.extents[3] - less);
  each(y, [&](Index a, Index b, Index c, Index d) { y(a, b, c, d) = x(a, b, c, d); });
  return y;
}

std::optional<Wrong> zero_padded(const Call& call) {
  if (call.turn != Turn::none || call.norm != Norm::none || !call.x.empty()) return {};
  Wrong wrong;
  wrong.before = [](Call& c) {
    c.scale = c.score_scale();
    c.query = widened(c.query, 3), c.key = widened(c.key, 3), c.value = widened(c.value, 3);
    if (!c.upstream.empty()) c.upstream = widened(c.upstream, 3);
    c.D += 3, c.E += 3;
  };
  wrong.after = [](Results& r) {
    for (Grid* x : {&r.output, &r.partial_output, &r.grad_query, &r.grad_key, &r.grad_value})
      if (!x->empty()) *x = narrowed(*x, 3);
  };
  return wrong;
}

// Query times one part of the scale and key times the other; their gradients likewise.
Make scale_on(double share_of_query) {
  return [share_of_query](const Call& call) -> std::optional<Wrong> {
    const double t = call.score_scale();
    if (call.turn != Turn::none || call.norm != Norm::none || !call.x.empty() || t <= 0 ||
        call.bias_before_scale)
      return {};
    const double of_query = std::pow(t, share_of_query), of_key = t / of_query;
    Wrong wrong;
    wrong.before = [=](Call& c) {
      for (double& number : c.query.numbers) number = rounded(number * of_query, c.type);
      for (double& number : c.key.numbers) number = rounded(number * of_key, c.type);
      c.scale = 1;
    };
    wrong.after = [=](Results& r) {
      for (double& number : r.grad_query.numbers) number *= of_query;
      for (double& number : r.grad_key.numbers) number *= of_key;
    };
    return wrong;
  };
}

}  // namespace

std::vector<Planting> equal_plantings() {
  std::vector<Planting> all = {
      planting("a constant added to each row", row_constant),
      planting("distance bias by the number of the key", key_index_slopes),
      planting("mask after the softmax, then renormalised", renormalised),
      planting("delta from output and upstream gradient", delta_of_output),
      planting("all positions 5 later", all_later),
      planting("norm after the rotation, equal gains", norm_later),
      planting("parts merged by e^lse", merged),
      planting("zero-padded in width", zero_padded),
      planting("scale on the query", scale_on(1)),
      planting("scale on the key", scale_on(0)),
      planting("scale as square roots", scale_on(0.5)),
  };
  for (Planting& p : all) {
    p.make = [make = p.make](const Call& call) {
      auto wrong = make(call);
      return wrong && far_off(call) ? std::nullopt : wrong;
    };
  }
  return all;
}

}  // namespace tapehead::planted
