#include <tapehead/core/paths.h>
#include <tapehead/core/sweep.h>

#include <algorithm>

namespace tapehead {
namespace {

template <class T>
GradientPath<T> path_through(const Tape<T>& tape, Index i, std::string_view name, Index argument,
                             Array<T> gradient) {
  const detail::Node<T>& node = tape.node(i);
  const std::string scope = tape.label_path(node.label);
  return {std::string(name),
          scope + (scope.empty() ? "" : "/") + std::string(name),
          i,
          std::string(node.op.text()),
          argument,
          std::move(gradient)};
}

template <class T>
std::vector<GradientPath<T>> paths(const Var<T>& y, const Var<T>& x, std::span<const Var<T>> seed) {
  const detail::Request<T> request =
      detail::checked_request<T>("gradient_paths", std::span(&y, 1), std::span(&x, 1), seed);
  std::vector<GradientPath<T>> result;
  if (request.low > request.high) return result;
  Tape<T>& tape = *request.tape;
  const detail::PlainSweep<T> plain(tape);
  const Index from_x = request.low, from_y = request.high;
  const auto& [y_node, y_seed] = request.seeds.front();

  // What x reaches without meeting a port, and the ports at which it ends.
  detail::Sweep<T> free(tape, from_x, from_y);
  free.add_source(from_x);
  free.spread(/*stop_at_ports=*/true);
  std::vector<Index> ports;
  for (Index i = from_x + 1; i <= from_y; ++i) {
    if (tape.node(i).port && free.depends(tape.node(i))) ports.push_back(i);
  }

  // The direct paths: from y over that free part alone.
  if (free.reached(y_node)) {
    free.add(y_node, y_seed);
    auto ignore = [](Index, const Var<T>&) {};
    free.run(from_y, ignore, [&](Index i, const detail::Edge<T>& edge, const Var<T>& dx) {
      if (edge.input == from_x) result.push_back(path_through(tape, i, "direct", edge.slot, dx.value()));
    });
    if (y_node == from_x) result.push_back(path_through(tape, y_node, "direct", 0, y_seed.value()));
  }

  // The full adjoint at each of the ports, by whatever way; then from each port to x over the free part.
  if (!ports.empty()) {
    detail::Sweep<T> full(tape, ports.front(), from_y);
    for (const Index i : ports) full.add_source(i);
    full.spread();
    if (full.reached(y_node)) full.add(y_node, y_seed);
    std::vector<Var<T>> adjoint(ports.size());
    std::size_t next = ports.size();
    full.run(from_y, [&](Index i, const Var<T>& dy) {
      while (next > 0 && ports[next - 1] > i) --next;
      if (next > 0 && ports[next - 1] == i) adjoint[next - 1] = dy;
    });
    for (std::size_t k = 0; k < ports.size(); ++k) {
      if (!adjoint[k].value().defined()) continue;  // y does not depend on this port
      const detail::Node<T>& port = tape.node(ports[k]);
      const Index behind = tape.edge(port, 0).input;
      free.add(behind, std::move(adjoint[k]));
      free.run(behind, [&](Index i, const Var<T>& dy) {
        if (i == from_x)
          result.push_back(path_through(tape, ports[k], tape.label_name(port.name), 0, dy.value()));
      });
    }
  }
  std::ranges::sort(result, {}, [](const auto& path) { return std::pair(path.node, path.argument); });
  return result;
}

}  // namespace

std::vector<GradientPath<float>> gradient_paths(const Var<float>& y, const Var<float>& x, Vars<float> seed) {
  return paths<float>(y, x, seed);
}
std::vector<GradientPath<double>> gradient_paths(const Var<double>& y, const Var<double>& x,
                                                 Vars<double> seed) {
  return paths<double>(y, x, seed);
}

}  // namespace tapehead
