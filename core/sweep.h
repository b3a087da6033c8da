#pragma once
// The reverse sweep: adjoints walk from the end of the tape to its sources. Internal to core.

#include <vector>

#include <tapehead/core/record.h>
#include <tapehead/core/watch.h>

namespace tapehead::detail {

template <class T>
Var<T> accumulate(Var<T> sum, Var<T> term);

// Gives a variable another value while it lives.
template <class Value>
class Exchanged {
 public:
  Exchanged(Value& variable, Value value)
      : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Exchanged() { variable_ = before_; }
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;

 private:
  Value& variable_;
  Value before_;
};

// Adjoints of the nodes in [low, high]. Only nodes that depend on a source are visited.
template <class T>
class Sweep {
 public:
  Sweep(Tape<T>& tape, Index low, Index high)
      : tape_(tape),
        low_(low),
        watched_(tape.watched()),
        reached_(static_cast<std::size_t>(high - low + 1)),
        adjoint_(reached_.size()) {}

  // The tape is to keep the adjoints of this sweep, when it keeps any.
  void keep() { keeper_ = tape_.keeper_.get(); }

  bool covers(Index i) const { return i >= low_ && i - low_ < static_cast<Index>(reached_.size()); }
  bool reached(Index i) const { return covers(i) && reached_[at(i)]; }
  void add_source(Index i) { reached_[at(i)] = true; }

  // Marks what depends on the sources; a signal that meets a port ends there when `stop_at_ports`.
  void spread(bool stop_at_ports = false) {
    for (Index i = low_; covers(i); ++i) {
      if (reached_[at(i)]) continue;
      const Node<T>& node = tape_.node(i);
      if (!(node.port && stop_at_ports)) reached_[at(i)] = depends(node);
    }
  }
  bool depends(const Node<T>& node) const {
    for (std::uint32_t e = 0; e < node.edge_count; ++e) {
      if (reached(tape_.edge(node, e).input)) return true;
    }
    return false;
  }

  // Contributions to a node meet here, and only here.
  void add(Index i, Var<T> dy) {
    Var<T>& sum = adjoint_[at(i)];
    sum = sum.value().defined() ? accumulate(std::move(sum), std::move(dy)) : std::move(dy);
  }

  // Calls on_adjoint(i, dy) for each node from `from` down, when its adjoint is complete, and
  // on_contribution(i, edge, dx) for each gradient that a rule hands to an input.
  template <class OnAdjoint, class OnContribution>
  void run(Index from, OnAdjoint on_adjoint, OnContribution on_contribution) {
    walk<true>(from, on_adjoint, on_contribution);
  }
  template <class OnAdjoint>
  void run(Index from, OnAdjoint on_adjoint) {
    walk<false>(from, on_adjoint, [](Index, const Edge<T>&, const Var<T>&) {});
  }

 private:
  template <bool apart, class OnAdjoint, class OnContribution>
  void walk(Index from, OnAdjoint on_adjoint, OnContribution on_contribution) {
    const bool nested = tape_.in_sweep_, observed = watched_ || keeper_;
    const Exchanged in_sweep(tape_.in_sweep_, true);
    if (keeper_) keeper_->sweep_begins(nested);
    for (Index i = from; i >= low_; --i) {
      Var<T>& slot = adjoint_[at(i)];
      if (!slot.value().defined()) continue;
      Var<T> dy = std::exchange(slot, {});  // freed as soon as it is used up
      on_adjoint(i, dy);
      if (observed) [[unlikely]] {
        if (watched_) held_ = dy;
        if (keeper_) keeper_->rule_begins(i, dy.value());
      }
      propagate<apart>(i, std::move(dy), on_contribution);
      if (keeper_) [[unlikely]]
        keeper_->rule_done(i);
    }
    if (keeper_) keeper_->sweep_done(nested);
  }

  std::size_t at(Index i) const { return static_cast<std::size_t>(i - low_); }

  template <bool apart, class OnContribution>
  void propagate(Index i, Var<T> dy, OnContribution on_contribution) {
    const Node<T>& node = tape_.node(i);
    std::uint32_t edges = node.edge_count;
    while (edges > 0 && !reached(tape_.edge(node, edges - 1).input)) --edges;
    if (edges == 0) return;
    const Var<T> y = node.output.defined() ? tape_.var_of(i, node.output) : Var<T>();
    auto deliver = [&](const Edge<T>& edge, Var<T> dx) {
      dx = fitted(node, edge, std::move(dx));
      if (watched_) [[unlikely]]
        watch_rule(tape_, i, edge, y, held_, dx, adjoint_[at(edge.input)]);
      on_contribution(i, edge, dx);
      add(edge.input, std::move(dx));
    };
    if (node.joint) {
      const std::unique_ptr<bool[]> wanted(new bool[node.arguments]());
      for (std::uint32_t e = 0; e < edges; ++e) {
        const Edge<T>& edge = tape_.edge(node, e);
        wanted[edge.slot] = reached(edge.input);
      }
      std::vector<Var<T>> dx(node.arguments);
      if (node.continues && !apart) {
        for (std::uint32_t e = 0; e < edges; ++e) {
          const Edge<T>& edge = tape_.edge(node, e);
          if (wanted[edge.slot]) dx[edge.slot] = std::exchange(adjoint_[at(edge.input)], {});
        }
      }
      (*node.joint)(y, dy, Wanted(wanted.get(), node.arguments), dx);
      for (std::uint32_t e = 0; e < edges; ++e) {
        const Edge<T>& edge = tape_.edge(node, e);
        if (!wanted[edge.slot] || (node.continues && !dx[edge.slot].value().defined())) continue;
        deliver(edge, std::move(dx[edge.slot]));
      }
      return;
    }
    for (std::uint32_t e = 0; e < edges; ++e) {
      const Edge<T>& edge = tape_.edge(node, e);
      if (!reached(edge.input)) continue;
      // The last rule may take over the storage of dy.
      deliver(edge, e + 1 < edges ? edge.rule(y, Var<T>(dy)) : edge.rule(y, std::move(dy)));
    }
  }

  Var<T> fitted(const Node<T>& node, const Edge<T>& edge, Var<T> dx) const {
    const Shape& shape = tape_.node(edge.input).shape;
    if (edge.fit && dx.shape() != shape) dx = edge.fit(dx, shape);
    if (dx.shape() != shape) {
      throw ShapeError(node.op,
                       "the rule of argument " + std::to_string(edge.slot) + " returned a wrong shape",
                       {{"dx", dx.shape()}, {"argument", shape}});
    }
    return dx;
  }

  Tape<T>& tape_;
  Index low_;
  bool watched_;
  Keeper<T>* keeper_ = nullptr;
  Var<T> held_;  // dy of the rule that runs, when watched
  std::vector<char> reached_;
  std::vector<Var<T>> adjoint_;
};

// What a call of gradient() or gradient_paths() asks for, checked.
template <class T>
struct Request {
  Tape<T>* tape = nullptr;
  std::vector<Index> x;                         // nodes
  std::vector<std::pair<Index, Var<T>>> seeds;  // of each recorded y
  Index low = 0, high = -1;                     // every node between an x and a y
};

template <class T>
Request<T> checked_request(std::string_view op, std::span<const Var<T>> y, std::span<const Var<T>> x,
                           std::span<const Var<T>> seeds);

// Nothing is recorded while it lives: the sweep wants values only.
template <class T>
class PlainSweep {
 public:
  explicit PlainSweep(Tape<T>& tape) : tape_(tape) { ++tape_.plain_sweeps_; }
  ~PlainSweep() { --tape_.plain_sweeps_; }
  PlainSweep(const PlainSweep&) = delete;
  PlainSweep& operator=(const PlainSweep&) = delete;

 private:
  Tape<T>& tape_;
};

}  // namespace tapehead::detail
