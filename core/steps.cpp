#include <tapehead/core/steps.h>
#include <tapehead/core/sweep.h>

#include <map>

namespace tapehead {
namespace {

template <class T>
void steps(const Var<T>& y, std::span<const Var<T>> x,
           const std::function<void(const BackwardStep<T>&)>& on_step) {
  const auto request = detail::checked_request<T>("backward_steps", std::span(&y, 1), x, {});
  if (request.low > request.high) return;
  const detail::PlainSweep<T> plain(*request.tape);
  detail::Sweep<T> sweep(*request.tape, request.low, request.high);
  for (const Index i : request.x) {
    if (sweep.covers(i)) sweep.add_source(i);
  }
  sweep.spread();
  const auto& [y_node, seed] = request.seeds.front();
  if (!sweep.reached(y_node)) return;
  sweep.add(y_node, seed);
  std::map<Index, Var<T>> sums;
  BackwardStep<T> step;
  bool begun = false;
  sweep.run(
      y_node,
      [&](Index i, const Var<T>& dy) {
        if (begun) on_step(step);
        step = {i, dy.value(), {}};
        begun = true;
        sums.erase(i);
      },
      [&](Index, const detail::Edge<T>& edge, const Var<T>& dx) {
        Var<T>& sum = sums[edge.input];
        sum = sum.value().defined() ? detail::accumulate(sum.detach(), dx.detach()) : dx.detach();
        step.contributions.push_back({edge.input, edge.slot, dx.value(), sum.value()});
      });
  if (begun) on_step(step);
}

}  // namespace

void backward_steps(const Var<float>& y, Vars<float> x,
                    const std::function<void(const BackwardStep<float>&)>& on_step) {
  steps<float>(y, x, on_step);
}
void backward_steps(const Var<double>& y, Vars<double> x,
                    const std::function<void(const BackwardStep<double>&)>& on_step) {
  steps<double>(y, x, on_step);
}

}  // namespace tapehead
