#pragma once
// record(): how an op enters the tape. Each input stands beside its own rule, under the op's formula:
//
//   // Y = A B        dA = dY B^T      dB = A^T dY
//   return record("matmul", kernels::matmul(a.value(), b.value()),
//                 edge(a, [b](const Var<T>& dy) { return matmul_nt(dy, b); }),
//                 edge(b, [a](const Var<T>& dy) { return matmul_tn(a, dy); }));
//
// A rule of one argument gets dy. A rule of two gets (y, dy), and only then does the tape keep y; a rule must
// take y this way and never capture it, or the derivative through y is lost at second order. Rules are
// written in ops on Vars, so they can be differentiated again. A rule is stored only when its input is
// recorded.

#include <array>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/tape.h>
#include <tapehead/core/watch.h>

namespace tapehead {
namespace detail {

template <class T, class F>
inline constexpr bool takes_output = std::is_invocable_v<F&, const Var<T>&, Var<T>>;

template <class T, class F>
struct NewEdge {
  const Var<T>& input;
  F rule;
  Fit<T> fit;
};

// Appends the edges of a node and then the node; what was appended goes again if it is not finished.
template <class T>
class NodeWriter {
 public:
  NodeWriter(Tape<T>& tape, OpName op) : tape_(tape), op_(op), first_edge_(tape.edges_.size()) {}
  ~NodeWriter() {
    if (!finished_) tape_.edges_.truncate(first_edge_);
  }

  // The next argument of the op; an edge is stored when it is recorded.
  template <class F>
  void argument(const Var<T>& input, F&& rule, Fit<T> fit) {
    if (input.recorded()) {
      using Stored = std::remove_cvref_t<F>;
      static_assert(takes_output<T, Stored> || std::is_invocable_v<Stored&, Var<T>>,
                    "a rule takes dy, or y and dy");
      keep_output_ |= takes_output<T, Stored>;
      if constexpr (takes_output<T, Stored>) {
        append(input, fit, [f = std::forward<F>(rule)](const Var<T>& y, Var<T>&& dy) mutable {
          return f(y, std::move(dy));
        });
      } else {
        append(input, fit,
               [f = std::forward<F>(rule)](const Var<T>&, Var<T>&& dy) mutable { return f(std::move(dy)); });
      }
    }
    ++arguments_;
  }

  // The next argument of an op whose rule is joint.
  void argument(const Var<T>& input) {
    if (input.recorded()) append(input, nullptr);
    ++arguments_;
  }

  void keep_output() { keep_output_ = true; }

  // For an observed tape, right before the end; throws DomainError when the op of a watched one made a NaN or
  // an infinity.
  void observe(const Array<T>& value, std::span<const Var<T>* const> inputs, Given given = {}) {
    if (tape_.watched()) {
      const NonFinite seen = watch_op(tape_, op_, tape_.label_, tape_.in_sweep_, value, inputs, given);
      if (seen != NonFinite::no) tape_.seen_.emplace_back(tape_.size(), seen);
    }
    keep(value);
  }
  void keep(const Array<T>& value, bool computed = true) {
    if (tape_.keeps()) tape_.keeper_->op_done(tape_.size(), value, computed);
  }

  // Everything that can throw comes first; then the node is entered.
  template <class Joint>
  Var<T> finish_joint(Array<T> value, Joint&& rule, bool continues = false) {
    auto joint = std::make_unique<JointRule<T>>(std::forward<Joint>(rule));
    const Var<T> y = finish(std::move(value));
    Node<T>& node = tape_.nodes_[tape_.nodes_.size() - 1];
    node.joint = std::move(joint);
    node.continues = continues;
    return y;
  }
  Var<T> finish(Array<T> value, std::uint32_t name = 0, bool port = false) {
    Node<T>& node = tape_.nodes_.emplace_back(op_, value.shape());
    if (keep_output_) node.output = value;
    node.epoch = tape_.tag_->epoch;
    node.label = tape_.label_;
    node.name = name;
    node.first_edge = static_cast<std::uint32_t>(first_edge_);
    node.edge_count = static_cast<std::uint32_t>(tape_.edges_.size() - first_edge_);
    node.arguments = arguments_;
    node.port = port;
    finished_ = true;
    return tape_.var_of(tape_.size() - 1, std::move(value));
  }

  std::uint32_t name(std::string_view text) {
    return text.empty() ? 0 : tape_.child_label(tape_.label_, text);
  }

 private:
  template <class... F>
  void append(const Var<T>& input, Fit<T> fit, F&&... rule) {
    tape_.edges_.emplace_back(static_cast<std::uint32_t>(tape_.index_here(input)), arguments_, fit,
                              std::forward<F>(rule)...);
  }

  Tape<T>& tape_;
  OpName op_;
  std::size_t first_edge_;
  std::uint32_t arguments_ = 0;
  bool keep_output_ = false;
  bool finished_ = false;
};

[[noreturn]] void throw_two_tapes(std::string_view op);

// The tape that an op of these inputs is recorded on, or nullptr. Throws LogicError for a stale Var or two
// tapes.
template <class T, class Inputs>
Tape<T>* recording_tape(OpName op, const Inputs& inputs) {
  Tape<T>* tape = nullptr;
  for (const Var<T>* input : inputs) {
    if (!input->recorded()) continue;
    Tape<T>& own = Tape<T>::of(op, *input);
    if (tape && tape != &own) throw_two_tapes(op);
    tape = &own;
  }
  return tape && tape->recording() ? tape : nullptr;
}

template <class T, class... F>
Var<T> record(OpName op, Array<T>&& value, Given given, NewEdge<T, F>&... edges) {
  const Var<T>* const inputs[] = {&edges.input...};
  Tape<T>* tape = recording_tape<T>(op, inputs);
  if (!tape) return Var<T>(std::move(value));
  NodeWriter<T> node(*tape, op);
  (node.argument(edges.input, std::move(edges.rule), edges.fit), ...);
  if (tape->observed()) [[unlikely]]
    node.observe(value, inputs, given);
  return node.finish(std::move(value));
}

}  // namespace detail

// An argument of an op and the rule for its gradient. `fit` brings a gradient of another shape than the
// input's back to it: the sum over broadcast axes.
template <class T, class F>
detail::NewEdge<T, F> edge(const Var<T>& input, F rule, detail::Fit<T> fit = nullptr) {
  return {input, std::move(rule), fit};
}

// The Var of an op's value, recorded when an input is. Throws LogicError when inputs are stale or of two
// tapes.
template <class T, class... F>
Var<T> record(OpName op, Array<T> value, detail::NewEdge<T, F>... edges) {
  return detail::record(op, std::move(value), Given(), edges...);
}

// The same of an op with a number that may be infinite, like the fill of a mask.
template <class T, class... F>
Var<T> record(OpName op, Array<T> value, Given given, detail::NewEdge<T, F>... edges) {
  return detail::record(op, std::move(value), given, edges...);
}

// The same for a number of inputs known at run time; rule_for(i) makes the rule of input i.
template <class T, class RuleFor>
Var<T> record_each(OpName op, Array<T> value, std::span<const Var<T>> inputs, RuleFor rule_for) {
  std::vector<const Var<T>*> pointers;
  for (const Var<T>& input : inputs) pointers.push_back(&input);
  Tape<T>* tape = detail::recording_tape<T>(op, pointers);
  if (!tape) return Var<T>(std::move(value));
  detail::NodeWriter<T> node(*tape, op);
  for (std::size_t i = 0; i < inputs.size(); ++i) node.argument(inputs[i], rule_for(i), nullptr);
  if (tape->observed()) [[unlikely]]
    node.observe(value, pointers);
  return node.finish(std::move(value));
}

// Which gradients a joint rule is asked for, in the order of the op's inputs.
using Wanted = std::span<const bool>;

// An op whose input gradients come out of one pass: rule(dy, wanted) or rule(y, dy, wanted) returns them in
// order as a std::array of Vars; one that is not wanted may be left empty.
template <class T, std::size_t N, class F>
Var<T> record_joint(OpName op, Array<T> value, const std::array<const Var<T>*, N>& inputs, F rule) {
  Tape<T>* tape = detail::recording_tape<T>(op, inputs);
  if (!tape) return Var<T>(std::move(value));
  detail::NodeWriter<T> node(*tape, op);
  if (tape->observed()) [[unlikely]]
    node.observe(value, inputs);
  for (const Var<T>* input : inputs) node.argument(*input);
  constexpr bool takes_output = std::is_invocable_v<F&, const Var<T>&, const Var<T>&, Wanted>;
  if (takes_output) node.keep_output();
  auto adapted = [f = std::move(rule)](const Var<T>& y, const Var<T>& dy, Wanted wanted,
                                       std::span<Var<T>> dx) mutable {
    std::array<Var<T>, N> result;
    if constexpr (takes_output) {
      result = f(y, dy, wanted);
    } else {
      static_cast<void>(y);
      result = f(dy, wanted);
    }
    std::move(result.begin(), result.end(), dx.begin());
  };
  return node.finish_joint(std::move(value), std::move(adapted));
}

// Whether an op of these would be recorded now. A rule with a fast kernel takes it in a plain sweep, where
// nobody will differentiate the result, and its formula in ops otherwise.
template <std::floating_point T, std::same_as<Var<T>>... Rest>
bool is_recording(const Var<T>& x, const Rest&... rest) {
  const Var<T>* const all[] = {&x, &rest...};
  return detail::recording_tape<T>("record", all) != nullptr;
}

// An identity node that names the path by which a gradient comes: attention passes q, k and v through ports
// called query, key and value. Shares the value.
template <std::floating_point T>
Var<T> port(const Var<T>& x, std::string_view name);

}  // namespace tapehead
