#pragma once
// Tape<T>: the list of what was computed, in the order in which it was computed, which is a topological
// order. Inputs are indices into it; walking it from the end is the whole backward pass.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tapehead/core/chunked_list.h>
#include <tapehead/core/closure.h>
#include <tapehead/core/var.h>

namespace tapehead {

// How much a tape keeps of its nodes: what rules need, also numbers about every value and gradient with their
// times, or the arrays themselves as well. See keep.h.
enum class KeepLevel { rules, statistics, everything };

template <std::floating_point T>
struct KeptNode;

// The name of an op. Only a string literal converts to it, so that a node can keep it without a copy.
class OpName {
 public:
  consteval OpName(const char* literal) : text_(literal) {}
  operator std::string_view() const { return text_; }
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

namespace detail {

// Brings the gradient of a broadcast operand back to the operand's shape.
template <class T>
using Fit = Var<T> (*)(const Var<T>& dy, const Shape& shape);

template <class T>
struct Edge {
  template <class... F>
  Edge(std::uint32_t from, std::uint32_t at, Fit<T> fitting, F&&... f)
      : input(from), slot(at), fit(fitting), rule(std::forward<F>(f)...) {}

  std::uint32_t input;  // a node recorded before this one
  std::uint32_t slot;   // which argument of the op it was
  Fit<T> fit;
  mutable Closure<Var<T>(const Var<T>& y, Var<T>&& dy)> rule;  // empty when the node has a joint rule
};

// One rule for all inputs of a node; `wanted` and `dx` have one entry an argument of the op.
template <class T>
using JointRule =
    Closure<void(const Var<T>& y, const Var<T>& dy, std::span<const bool> wanted, std::span<Var<T>> dx)>;

// What of it an array holds, as bits.
enum class NonFinite : std::uint8_t { no = 0, nan = 1, infinity = 2 };

template <class T>
struct Node {
  Node(OpName name_of_op, const Shape& shape_of_output) : op(name_of_op), shape(shape_of_output) {}

  OpName op;
  Shape shape;
  Array<T> output;  // kept when a rule takes y
  std::unique_ptr<JointRule<T>> joint;
  std::uint32_t epoch = 0;
  std::uint32_t label = 0;  // the scope it was recorded in
  std::uint32_t name = 0;   // label of an input or port; 0 is none
  std::uint32_t first_edge = 0;
  std::uint32_t edge_count = 0;
  std::uint32_t arguments = 0;  // recorded or not
  bool port = false;
  bool continues = false;  // the joint rule takes the sums so far as dx and adds to them itself
};

// Is told what happens on a tape that keeps more than rules need. Its one form is in keep.cpp.
template <class T>
class Keeper {
 public:
  virtual ~Keeper() = default;
  virtual void op_done(Index i, const Array<T>& value, bool computed) = 0;  // or entered, as an input is
  virtual void sweep_begins(bool nested) = 0;                 // nested: within a rule of another sweep
  virtual void rule_begins(Index i, const Array<T>& dy) = 0;  // dy is complete
  virtual void rule_done(Index i) = 0;
  virtual void sweep_done(bool nested) = 0;
  virtual void rewound(Index size) = 0;
  virtual const KeptNode<T>* node(Index i) const = 0;
};

template <class T>
class NodeWriter;
template <class T>
class Recomputation;
template <class T>
class Sweep;
template <class T>
class PlainSweep;

[[noreturn]] void throw_stale(std::string_view op, bool recorded, bool tape_alive);

}  // namespace detail

// An append-only list of nodes. Belongs to one thread at a time and does not move. Its Vars become stale when
// they are dropped by clear() or rewind(), or with the tape: their values can be read, recording with them is
// an error.
template <std::floating_point T>
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Enters a value that gradients can be asked for. Copies no element.
  Var<T> input(Array<T> value, std::string_view name = {});

  Index size() const { return static_cast<Index>(nodes_.size()); }
  void clear() { rewind(0); }  // the memory stays with the tape
  void rewind(Index size);     // drops the nodes past `size`; throws LogicError when there are fewer
  bool recording() const { return user_pauses_ == 0 && plain_sweeps_ == 0; }
  bool paused() const { return user_pauses_ > 0; }  // by a Pause, not by a sweep that wants values only

  // From now on the first op that is recorded, and in a gradient the first rule, that makes a NaN or an
  // infinity is a DomainError naming it, its node, label and inputs; see watch.h. Costs nothing when off.
  void watch_nonfinite(bool on = true) { observe(watching, on); }
  bool watched() const { return (observers_ & watching) != 0; }
  detail::NonFinite seen(Index i) const;  // of what is not finite, by the op while the tape was watched

  // From now on the table beside the nodes is filled: forward as ops are recorded, backward by the sweeps of
  // gradient() and gradient_values(), of which the last one counts. It is rewound with the tape. The level
  // rules empties it and costs nothing.
  void keep(KeepLevel level);
  const KeptNode<T>* kept(Index i) const {  // nullptr when nothing was kept of that node
    return keeps() ? keeper_->node(i) : nullptr;
  }
  bool keeps() const { return (observers_ & keeping) != 0; }  // more than rules need
  bool observed() const { return observers_ != 0; }           // watched, or keeps

  // A remark about the node of a recorded Var, for whoever reads the tape; `literal` is a string literal, or
  // lives as long as the tape. Does nothing when x is not recorded.
  static void remark(const Var<T>& x, std::string_view literal);
  std::string_view remark_of(Index i) const;  // empty when there is none

  // For reading a tape: what a node is, and the path of labels of a scope or a name, "layer 1/query".
  const detail::Node<T>& node(Index i) const { return nodes_[static_cast<std::size_t>(i)]; }
  const detail::Edge<T>& edge(const detail::Node<T>& node, std::uint32_t i) const {
    return edges_[node.first_edge + i];
  }
  std::string label_path(std::uint32_t label) const;
  std::string_view label_name(std::uint32_t label) const { return labels_[label].name; }

  // The tape of a recorded Var, and its node. Throws LogicError, in the name of `op`, when the Var is stale.
  static Tape& of(std::string_view op, const Var<T>& x);
  static Index index_of(std::string_view op, const Var<T>& x) { return of(op, x).index_here(x); }

 private:
  template <class>
  friend class detail::NodeWriter;
  template <class>
  friend class detail::Recomputation;
  template <std::floating_point>
  friend class Scope;
  template <std::floating_point>
  friend class Pause;
  template <std::floating_point>
  friend class Scratch;
  template <class>
  friend class detail::Sweep;
  template <class>
  friend class detail::PlainSweep;

  struct Label {
    explicit Label(std::string text = {}, std::uint32_t above = 0) : name(std::move(text)), parent(above) {}
    std::string name;
    std::uint32_t parent = 0;
  };

  static constexpr std::uint8_t watching = 1, keeping = 2;
  void observe(std::uint8_t what, bool on) {
    observers_ = static_cast<std::uint8_t>(on ? observers_ | what : observers_ & ~what);
  }

  Index index_here(const Var<T>& x) const { return x.index_; }
  std::uint32_t child_label(std::uint32_t parent, std::string_view name);
  Var<T> var_of(Index i, Array<T> value) const {
    return Var<T>(std::move(value), tag_, node(i).epoch, static_cast<std::uint32_t>(i));
  }

  detail::ChunkedList<detail::Node<T>> nodes_;
  detail::ChunkedList<detail::Edge<T>> edges_;
  std::deque<Label> labels_ = std::deque<Label>(1);
  std::map<std::pair<std::uint32_t, std::string_view>, std::uint32_t> label_numbers_;  // of (parent, name)
  std::uint32_t label_ = 0;
  int user_pauses_ = 0;
  int plain_sweeps_ = 0;
  std::uint8_t observers_ = 0;
  bool in_sweep_ = false;  // what is recorded now is recorded by rules
  detail::TapeTag<T>* tag_;
  std::vector<std::pair<Index, std::string_view>> remarks_;
  std::vector<std::pair<Index, detail::NonFinite>> seen_;  // by watched ops, of those that saw something
  std::unique_ptr<detail::Keeper<T>> keeper_;
};

// Names what is recorded while it lives; scopes nest: "layer 1/attention".
template <std::floating_point T>
class Scope {
 public:
  Scope(Tape<T>& tape, std::string_view name);
  Scope(const Var<T>& x, std::string_view name);  // on the tape of x; does nothing when x is not recorded
  ~Scope() {
    if (tape_) tape_->label_ = outer_;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Tape<T>* tape_ = nullptr;
  std::uint32_t outer_ = 0;
};

// While it lives, nothing is recorded on the tape: ops give constants.
template <std::floating_point T>
class Pause {
 public:
  explicit Pause(Tape<T>& tape) : tape_(tape) { ++tape_.user_pauses_; }
  ~Pause() { --tape_.user_pauses_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  Tape<T>& tape_;
};

// Recording that is forgotten: the tape records while this lives, also inside a plain sweep or a pause, and
// is then rewound to the length it had. A rule that redoes part of the forward pass works on such a stretch;
// it must return values (gradient_values, or detach()), since what was recorded here is stale afterwards.
template <std::floating_point T>
class Scratch {
 public:
  explicit Scratch(Tape<T>& tape)
      : tape_(tape),
        size_(tape.size()),
        user_pauses_(std::exchange(tape.user_pauses_, 0)),
        plain_sweeps_(std::exchange(tape.plain_sweeps_, 0)) {}
  ~Scratch() {
    tape_.user_pauses_ = user_pauses_;
    tape_.plain_sweeps_ = plain_sweeps_;
    tape_.rewind(std::min(size_, tape_.size()));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  Tape<T>& tape_;
  Index size_;
  int user_pauses_;
  int plain_sweeps_;
};

// Checked on every op of a recorded Var, hence inline.
template <std::floating_point T>
Tape<T>& Tape<T>::of(std::string_view op, const Var<T>& x) {
  Tape* tape = x.tag_ ? x.tag_->tape : nullptr;
  if (tape && x.index_ < tape->nodes_.size() && tape->nodes_[x.index_].epoch == x.epoch_) return *tape;
  detail::throw_stale(op, x.tag_ != nullptr, tape != nullptr);
}

}  // namespace tapehead
