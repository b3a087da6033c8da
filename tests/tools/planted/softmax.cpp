#include <cmath>

#include "tools/planted/plantings.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;

Planting planting(std::string id, std::string variant, std::string form, Make make) {
  return {std::move(id), std::move(variant), std::move(form), "softmax", false, std::move(make)};
}

Make over(Wrong::Axis axis) {
  return [axis](const Call& call) -> std::optional<Wrong> {
    if (!call.sink.empty()) return {};
    Wrong wrong;
    wrong.axis = axis;
    return wrong;
  };
}

std::optional<Wrong> no_sink(const Call& call) {
  if (call.sink.empty()) return {};
  Wrong wrong;
  wrong.other_sink = true;
  return wrong;
}

Make unasked_sink(double sigma, double more_a_head, bool unshifted) {
  return [=](const Call& call) -> std::optional<Wrong> {
    if (!call.sink.empty()) return {};
    Wrong wrong;
    wrong.other_sink = true;
    for (Index h = 0; h < call.H; ++h) wrong.sink.push_back(sigma + more_a_head * static_cast<double>(h));
    wrong.sink_unshifted = unshifted;
    return wrong;
  };
}

std::optional<Wrong> unshifted_sink(const Call& call) {
  if (call.sink.empty()) return {};
  Wrong wrong;
  wrong.sink_unshifted = true;
  return wrong;
}

Make counted(double times) {
  return [times](const Call& call) -> std::optional<Wrong> {
    if (call.sink.empty()) return {};
    Wrong wrong;
    wrong.sink_count = times;
    return wrong;
  };
}

Make tiles(Index tile, Wrong::Online online) {
  return [=](const Call& call) -> std::optional<Wrong> {
    if (call.S <= tile) return {};
    Wrong wrong;
    wrong.online = online, wrong.tile = tile;
    return wrong;
  };
}

// Rows whose scores all lie far below the start lose every exponential.
Make started(double start, bool guarded) {
  return [=](const Call& call) -> std::optional<Wrong> {
    if (call.bias.empty()) return {};
    Wrong wrong;
    wrong.online = Wrong::Online::start, wrong.start = start, wrong.guarded = guarded;
    return wrong;
  };
}

Make merged(Wrong::Merge merge) {
  return [merge](const Call& call) -> std::optional<Wrong> {
    if (call.part_ends.empty()) return {};
    Wrong wrong;
    wrong.merge = merge;
    return wrong;
  };
}

}  // namespace

std::vector<Planting> softmax_plantings() {
  using Axis = Wrong::Axis;
  using Online = Wrong::Online;
  return {
      planting("softmax-wrong-axis", "query", "", over(Axis::query)),
      planting("softmax-wrong-axis", "head", "", over(Axis::head)),
      planting("softmax-wrong-axis", "batch", "", over(Axis::batch)),
      planting("softmax-wrong-axis", "global", "of a head", over(Axis::matrix)),
      planting("softmax-wrong-axis", "global", "of everything", over(Axis::all)),
      planting("softmax-missing", "", "", over(Axis::none)),
      planting("sink-mishandled", "absent", "", no_sink),
      planting("sink-mishandled", "present", "of 0", unasked_sink(0, 0, false)),
      planting("sink-mishandled", "present", "a number a head", unasked_sink(-0.7, 0.45, false)),
      planting("sink-mishandled", "unshifted", "", unshifted_sink),
      planting("sink-mishandled", "unshifted", "unasked", unasked_sink(0, 0, true)),
      planting("sink-mishandled", "split", "2", counted(2)),
      planting("sink-mishandled", "split", "5", counted(5)),
      planting("online-softmax-state", "no-rescale", "tiles of 2", tiles(2, Online::no_rescale)),
      planting("online-softmax-state", "no-rescale", "tiles of 4", tiles(4, Online::no_rescale)),
      planting("online-softmax-state", "no-rescale", "the sum", tiles(2, Online::no_rescale_of_sum)),
      planting("online-softmax-state", "no-rescale", "the output", tiles(4, Online::no_rescale_of_output)),
      planting("online-softmax-state", "init", "0", started(0, false)),
      planting("online-softmax-state", "init", "guarded", started(0, true)),
      planting("split-merge-weights", "base2", "", merged(Wrong::Merge::base_2)),
      planting("split-merge-weights", "plain", "", merged(Wrong::Merge::mean)),
      planting("split-merge-weights", "counts", "", merged(Wrong::Merge::counts)),
  };
}

}  // namespace tapehead::planted
