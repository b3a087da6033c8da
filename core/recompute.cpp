#include <tapehead/core/recompute.h>
#include <tapehead/core/sweep.h>

#include <algorithm>
#include <cstring>

namespace tapehead::detail {
namespace {

// Of the bits of the elements: the same for the same value, and for others as good as never.
template <class T>
std::uint64_t fingerprint(const Array<T>& x) {
  std::uint64_t print = static_cast<std::uint64_t>(x.size());
  for (const T& value : x.values()) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    print = (print ^ bits) * 0x9e3779b97f4a7c15u;
    print ^= print >> 29;
  }
  return print;
}

// By a copy of f, which leaves no trace in the next run.
template <class T>
Var<T> value_of(ListFunction<T> f, const std::vector<Var<T>>& inputs) {
  return only_result("recompute", f(inputs));
}

}  // namespace

template <class T>
class Recomputation {
 public:
  Recomputation(Tape<T>& tape, ListFunction<T> f, std::span<const Var<T>> inputs)
      : tape_(tape), f_(std::move(f)), inputs_(inputs.begin(), inputs.end()), label_(tape.label_) {
    // One Var in two places is one input: its gradient is summed in the order in which f uses it.
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      std::size_t same = k;
      for (std::size_t j = 0; inputs_[k].recorded() && j < k; ++j) {
        if (inputs_[j].recorded() && index_of(inputs_[j]) == index_of(inputs_[k])) {
          same = j;
          break;
        }
      }
      same_as_.push_back(same);
    }
  }

  static Var<T> recorded(Tape<T>& tape, ListFunction<T> f, std::span<const Var<T>> inputs) {
    Recomputation self(tape, std::move(f), inputs);
    Array<T> y = self.first_value();
    NodeWriter<T> node(tape, "recompute");
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      node.argument(self.same_as_[k] == k ? inputs[k] : Var<T>());
    }
    node.keep(y);
    return node.finish_joint(
        std::move(y),
        [self = std::move(self)](const Var<T>&, const Var<T>& dy, Wanted wanted, std::span<Var<T>> dx) {
          self.differentiate(dy, wanted, dx);
        },
        /*continues=*/true);
  }

 private:
  // One run of f on the tape: from `first` on the inputs, each behind an identity where the sweep ends, and
  // from `begin` on what f recorded.
  struct Run {
    std::vector<Var<T>> inputs;
    Index first = 0, begin = 0;
    Var<T> y;
  };

  Index index_of(const Var<T>& x) const { return Tape<T>::index_of("recompute", x); }

  Run run() const {
    Run run;
    run.first = tape_.size();
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      const Var<T>& x = inputs_[k];
      run.inputs.push_back(same_as_[k] != k
                               ? run.inputs[same_as_[k]]
                               : record("recompute", x.value(), edge(x, [](Var<T> dy) { return dy; })));
    }
    run.begin = tape_.size();
    run.y = value_of(f_, run.inputs);
    return run;
  }

  // Runs f on a stretch of tape that is forgotten.
  Array<T> first_value() {
    const Scratch<T> scratch(tape_);
    const Run run = this->run();
    for (Index i = run.begin; i < tape_.size(); ++i) {
      const Node<T>& node = tape_.node(i);
      for (std::uint32_t e = 0; e < node.edge_count; ++e) {
        const Edge<T>& edge = tape_.edge(node, e);
        if (edge.input < run.first) {
          throw_captured("argument " + std::to_string(edge.slot) + " of " + std::string(node.op.text()),
                         edge.input);
        }
      }
    }
    if (run.y.recorded() && &Tape<T>::of("recompute", run.y) != &tape_) throw_two_tapes("recompute");
    if (run.y.recorded() && index_of(run.y) < run.first) throw_captured("its value", index_of(run.y));
    fingerprint_ = fingerprint(run.y.value());
    return run.y.value();
  }

  [[noreturn]] void throw_captured(const std::string& what, Index i) const {
    const Node<T>& node = tape_.node(i);
    const std::string name = tape_.label_path(node.name ? node.name : node.label);
    throw LogicError("recompute", "f read a recorded Var that it was not handed: " + what + " is node %" +
                                      std::to_string(i) + (name.empty() ? "" : ", " + name) + ", " +
                                      to_string(node.shape) +
                                      "; make it an input and use the Var that f is given, or detach() it");
  }

  void differentiate(const Var<T>& dy, Wanted wanted, std::span<Var<T>> dx) const {
    if (tape_.recording()) return sweep(run(), dy, wanted, dx);
    const Scratch<T> scratch(tape_);
    const Exchanged label(tape_.label_, label_);
    const Run again = run();
    const PlainSweep<T> plain(tape_);
    sweep(again, dy, wanted, dx);
    for (Var<T>& one : dx) one = one.detach();
  }

  // Goes on with the sums in dx where the surrounding sweep left them.
  void sweep(const Run& run, const Var<T>& dy, Wanted wanted, std::span<Var<T>> dx) const {
    if (fingerprint(run.y.value()) != fingerprint_) {
      throw LogicError("recompute",
                       "f gave another value the second time; it must depend on its inputs alone, and draw "
                       "random numbers from a Generator that it captured by value");
    }
    if (!run.y.recorded()) return;
    const Index last = std::max(index_of(run.y), run.begin - 1);
    Sweep<T> sweep(tape_, run.first, last);
    std::vector<std::size_t> input_at(static_cast<std::size_t>(run.begin - run.first));
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      if (!wanted[k]) continue;
      const Index i = index_of(run.inputs[k]);
      sweep.add_source(i);
      input_at[static_cast<std::size_t>(i - run.first)] = k;
    }
    sweep.spread();
    if (sweep.reached(index_of(run.y))) sweep.add(index_of(run.y), dy);
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      if (wanted[k] && dx[k].value().defined()) sweep.add(index_of(run.inputs[k]), std::exchange(dx[k], {}));
    }
    sweep.run(last, [&](Index i, const Var<T>& sum) {
      if (i < run.begin) dx[input_at[static_cast<std::size_t>(i - run.first)]] = sum;
    });
  }

  Tape<T>& tape_;
  ListFunction<T> f_;
  std::vector<Var<T>> inputs_;
  std::vector<std::size_t> same_as_;  // the first input that is the same Var
  std::uint32_t label_;
  std::uint64_t fingerprint_ = 0;
};

template <class T>
Var<T> recompute(ListFunction<T> f, std::span<const Var<T>> inputs) {
  std::vector<const Var<T>*> pointers;
  for (const Var<T>& input : inputs) pointers.push_back(&input);
  if (Tape<T>* tape = recording_tape<T>("recompute", pointers)) {
    return Recomputation<T>::recorded(*tape, std::move(f), inputs);
  }
  const Var<T> y = value_of(f, std::vector<Var<T>>(inputs.begin(), inputs.end()));
  if (y.recorded()) {
    throw LogicError(
        "recompute",
        "f read a recorded Var, and none of its inputs is recorded; make it an input and use the "
        "Var that f is given, or detach() it");
  }
  return y;
}

template Var<float> recompute(ListFunction<float>, std::span<const Var<float>>);
template Var<double> recompute(ListFunction<double>, std::span<const Var<double>>);

}  // namespace tapehead::detail
