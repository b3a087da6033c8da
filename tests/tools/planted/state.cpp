#include <random>

#include "tools/planted/attention.h"
#include "tools/planted/plantings.h"

namespace tapehead::planted {
namespace {

Planting planting(std::string id, std::string variant, std::string form,
                  std::function<std::optional<Wrong>(const Call&)> make) {
  return {std::move(id), std::move(variant), std::move(form), "state", false, std::move(make)};
}

Grid random_keep(const Call& call, unsigned seed) {
  std::mt19937 random(seed);
  Grid keep(call.B, call.H, call.L, call.S);
  for (double& number : keep.numbers)
    number = std::uniform_real_distribution<double>()(random) < call.dropout ? 0 : 1;
  return keep;
}

// In evaluation, with a rate: a second call gives another output.
std::optional<Wrong> active(const Call& call) {
  if (call.train || call.dropout == 0) return {};
  Wrong second;
  second.keep = random_keep(call, 5);
  Call forward = call;
  forward.upstream = Grid();
  const Grid output = attention(forward, second).output;
  Wrong wrong;
  wrong.keep = random_keep(call, 3);
  wrong.after = [output](Results& r) { r.output_second = output; };
  return wrong;
}

std::optional<Wrong> stuck_off(const Call& call) {
  if (!call.train || call.keep.empty()) return {};
  Wrong wrong;
  wrong.no_dropout = true;
  return wrong;
}

}  // namespace

std::vector<Planting> state_plantings() {
  return {planting("dropout-mode", "active", "", active),
          planting("dropout-mode", "stuck-off", "", stuck_off)};
}

}  // namespace tapehead::planted
