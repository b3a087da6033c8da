#include <tapehead/core/paths.h>
#include <tapehead/core/sweep.h>

#include <algorithm>

namespace tapehead {
namespace {

auto ignore = [](const auto&...) {};

template <class T>
class PathFinder {
 public:
  PathFinder(Tape<T>& tape, Index y, Index x, Var<T> seed)
      : tape_(tape), plain_(tape), y_(y), x_(x), seed_(std::move(seed)), free_(tape, x, std::max(x, y)) {
    free_.add_source(x_);
    free_.spread(/*stop_at_ports=*/true);
    for (Index i = x_ + 1; i <= y_; ++i) {
      if (tape_.node(i).port && free_.depends(tape_.node(i))) ports_.push_back(i);
    }
  }

  std::vector<GradientPath<T>> all() {
    std::vector<GradientPath<T>> result;
    add_direct(result);
    add_ports(result, adjoints(ports_));
    std::ranges::sort(result, {}, [](const auto& path) { return std::pair(path.node, path.argument); });
    return result;
  }

  Array<T> gradient() {
    const std::vector<Var<T>> dx = adjoints({x_});
    return dx[0].value().defined() ? dx[0].value() : zeros();
  }

  PathsOfNode<T> through(std::span<const PathGate<T>> gates) {
    std::vector<Var<T>> at_ports(ports_.size());
    std::vector<Index> nodes;
    for (const PathGate<T>& gate : gates) nodes.push_back(gate.node);
    const std::vector<Var<T>> at_gates = adjoints(nodes);
    for (std::size_t g = 0; g < gates.size(); ++g) {
      if (at_gates[g].value().defined() && !gates[g].ports.empty())
        open(gates[g], at_gates[g].value(), at_ports);
    }
    PathsOfNode<T> result{{}, zeros()};
    for (std::size_t k = 0; k < ports_.size(); ++k) {
      if (at_ports[k].value().defined()) free_.add(behind(ports_[k]), at_ports[k]);
    }
    free_.run(y_, [&](Index i, const Var<T>& dx) {
      if (i == x_) result.gradient = dx.value();
    });
    add_ports(result.paths, std::move(at_ports));
    return result;
  }

 private:
  Array<T> zeros() const { return Array<T>::zeros(tape_.node(x_).shape); }
  Index behind(Index port) const { return tape_.edge(tape_.node(port), 0).input; }

  GradientPath<T> path(Index i, std::string_view name, Index argument, Array<T> gradient) const {
    const detail::Node<T>& node = tape_.node(i);
    const std::string scope = tape_.label_path(node.label);
    return {std::string(name),
            scope + (scope.empty() ? "" : "/") + std::string(name),
            i,
            std::string(node.op.text()),
            argument,
            std::move(gradient)};
  }

  // The full adjoint of each of these nodes, in order on the tape, by whatever way; undefined where y does
  // not depend on it.
  std::vector<Var<T>> adjoints(const std::vector<Index>& nodes) {
    std::vector<Var<T>> result(nodes.size());
    if (nodes.empty() || nodes.front() > y_) return result;
    detail::Sweep<T> full(tape_, nodes.front(), y_);
    for (const Index i : nodes) {
      if (full.covers(i)) full.add_source(i);
    }
    full.spread();
    if (full.reached(y_)) full.add(y_, seed_);
    full.run(y_, [&](Index i, const Var<T>& dy) {
      const auto found = std::ranges::lower_bound(nodes, i);
      if (found != nodes.end() && *found == i) result[static_cast<std::size_t>(found - nodes.begin())] = dy;
    });
    return result;
  }

  // The direct paths: from y over the part that x reaches without meeting a port.
  void add_direct(std::vector<GradientPath<T>>& result) {
    if (!free_.reached(y_)) return;
    free_.add(y_, seed_);
    free_.run(y_, ignore, [&](Index i, const detail::Edge<T>& edge, const Var<T>& dx) {
      if (edge.input == x_) result.push_back(path(i, "direct", edge.slot, dx.value()));
    });
    if (y_ == x_) result.push_back(path(y_, "direct", 0, seed_.value()));
  }

  // From each port to x over that part, one by one.
  void add_ports(std::vector<GradientPath<T>>& result, std::vector<Var<T>> adjoint) {
    for (std::size_t k = 0; k < ports_.size(); ++k) {
      if (!adjoint[k].value().defined()) continue;  // y does not depend on this port
      const std::string_view name = tape_.label_name(tape_.node(ports_[k]).name);
      free_.add(behind(ports_[k]), std::move(adjoint[k]));
      free_.run(behind(ports_[k]), [&](Index i, const Var<T>& dy) {
        if (i == x_) result.push_back(path(ports_[k], name, 0, dy.value()));
      });
    }
  }

  // What comes to the ports of a gate from its part of dy.
  void open(const PathGate<T>& gate, const Array<T>& dy, std::vector<Var<T>>& at_ports) {
    Array<T> part = gate.part(dy);
    if (part.shape() != dy.shape()) {
      throw ShapeError("gradient_paths", "the part of a gate has not the shape of its gradient",
                       {{"part", part.shape()}, {"gradient", dy.shape()}});
    }
    detail::Sweep<T> local(tape_, gate.ports.front(), gate.node);
    for (const Index port : gate.ports) local.add_source(port);
    local.spread();
    if (local.reached(gate.node)) local.add(gate.node, std::move(part));
    local.run(gate.node, [&](Index i, const Var<T>& adjoint) {
      const auto found = std::ranges::lower_bound(ports_, i);
      if (found == ports_.end() || *found != i || !std::ranges::count(gate.ports, i)) return;
      at_ports[static_cast<std::size_t>(found - ports_.begin())] = adjoint;
    });
  }

  Tape<T>& tape_;
  const detail::PlainSweep<T> plain_;
  Index y_, x_;
  Var<T> seed_;
  detail::Sweep<T> free_;     // of what x reaches without meeting a port
  std::vector<Index> ports_;  // at which that part ends
};

template <class T>
std::vector<GradientPath<T>> paths(const Var<T>& y, const Var<T>& x, std::span<const Var<T>> seed) {
  const detail::Request<T> request =
      detail::checked_request<T>("gradient_paths", std::span(&y, 1), std::span(&x, 1), seed);
  if (request.low > request.high) return {};
  const auto& [from_y, y_seed] = request.seeds.front();
  return PathFinder<T>(*request.tape, from_y, request.low, y_seed).all();
}

}  // namespace

std::vector<GradientPath<float>> gradient_paths(const Var<float>& y, const Var<float>& x, Vars<float> seed) {
  return paths<float>(y, x, seed);
}
std::vector<GradientPath<double>> gradient_paths(const Var<double>& y, const Var<double>& x,
                                                 Vars<double> seed) {
  return paths<double>(y, x, seed);
}

template <std::floating_point T>
PathsOfNode<T> gradient_paths(Tape<T>& tape, Index y, Index x, std::span<const PathGate<T>> gates) {
  for (const Index i : {y, x}) {
    if (i < 0 || i >= tape.size()) {
      throw LogicError("gradient_paths", "there is no node " + std::to_string(i) + " on a tape of " +
                                             std::to_string(tape.size()));
    }
  }
  if (tape.node(y).shape.size() != 1) {
    throw LogicError("gradient_paths", "y is not one number: " + to_string(tape.node(y).shape));
  }
  if (x > y) return {{}, Array<T>::zeros(tape.node(x).shape)};
  PathFinder<T> finder(tape, y, x, Array<T>::ones(tape.node(y).shape));
  if (!gates.empty()) return finder.through(gates);
  std::vector<GradientPath<T>> all = finder.all();
  return {std::move(all), finder.gradient()};
}

template PathsOfNode<float> gradient_paths(Tape<float>&, Index, Index, std::span<const PathGate<float>>);
template PathsOfNode<double> gradient_paths(Tape<double>&, Index, Index, std::span<const PathGate<double>>);

}  // namespace tapehead
