// Gradients of other masks, or of another dropout, than the forward pass had.

#include <algorithm>
#include <cmath>

#include <tools/check/families/backward.h>
#include <tools/check/families/least_squares.h>
#include <tools/check/number_types.h>

namespace tapehead::check {
namespace {

// ---- masks

enum class Remade { from_lse, from_lse_with_right_delta, with_softmax };

// Without what an additive mask blocks; numbers that it adds stay.
void scores_without_mask(Work& w, const Step& bias) {
  Work without = w;
  without.inputs.erase("mask");
  bias(without);
  for (std::size_t n = 0; n < w.scores.at.size(); ++n) {
    if (!std::isfinite(w.scores.at[n])) w.scores.at[n] = without.scores.at[n];
  }
}

// The weights of the backward pass made again under another mask.
Change other_mask(std::function<void(Work&)> change, Conditions conditions, Remade how) {
  return [=](Formula& f) {
    f.before_backward =
        after(f.before_backward, [=, softmax = f.softmax, dropout = f.dropout, bias = f.bias](Work& w) {
          Work other = w;
          if (change) change(other);
          find_visible(other, conditions);
          if (!conditions.mask && w.call->mask_is_additive) scores_without_mask(other, bias);
          if (how == Remade::with_softmax) {
            softmax(other);
          } else {
            for_each_row(*w.call, [&](Index b, Index h, Index i) {
              for (Index j = 0; j < w.call->S; ++j) {
                const bool counts = other.sees(b, h, i, j) && !w.row_is_empty(b, h, i);
                other.weights(b, h, i, j) =
                    counts ? std::exp(other.scores(b, h, i, j) - w.log_sum_exp(b, h, i)) : 0;
              }
            });
          }
          dropout(other);
          w.visible = other.visible, w.weights = other.weights, w.dropped = other.dropped;
        });
    if (how != Remade::from_lse_with_right_delta) return;
    // delta from the output of the forward pass: the row sum of dO * O
    const Step right = f.softmax_backward;
    f.softmax_backward = [=](Work& w) {
      right(w);
      const Array<double>* upstream = find(w.inputs, "upstream_lse");
      const double unit = w.contract.lse_base_2 ? 1 / std::log(2.0) : 1;
      std::fill(w.dsink.begin(), w.dsink.end(), 0);
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        if (w.row_is_empty(b, h, i)) return;
        double delta = 0;
        for (Index e = 0; e < w.call->E; ++e) delta += w.doutput(b, h, i, e) * w.output(b, h, i, e);
        const double dlse = upstream ? upstream->data()[(b * w.call->H + h) * w.call->L + i] * unit : 0;
        for (Index j = 0; j < w.call->S; ++j) {
          const double p = w.weights(b, h, i, j);
          w.dscores(b, h, i, j) = p == 0 ? 0 : p * (w.dweights(b, h, i, j) - delta + dlse);
        }
        w.dsink[place(h)] += w.sink_share(b, h, i) * (dlse - delta);
      });
    };
  };
}

void add_mask(Hypotheses& to, const std::function<void(Work&)>& change, Conditions conditions,
              std::map<std::string, double> fitted) {
  for (const Remade how : {Remade::from_lse, Remade::from_lse_with_right_delta, Remade::with_softmax}) {
    add(to, "grad-mask-differs", "", other_mask(change, conditions, how), fitted);
  }
}

// A side that another mistake has opened stays open.
void widen(std::optional<Index>& side, Index by) {
  if (side) *side += by;
}

}  // namespace

void add_masks(const Call& call, Hypotheses& to) {
  const Contract& c = call.contract;
  const auto without = [&](bool Conditions::*condition, const char* name) {
    Conditions rest;
    rest.*condition = false;
    add_mask(to, {}, rest, {{name, 0}});
  };
  const bool mask = find(call.inputs, "mask"), lengths = find(call.inputs, "key_lengths");
  const bool segments = find(call.inputs, "query_segments"), window = c.window_left || c.window_right;
  if (mask) without(&Conditions::mask, "mask");
  if (lengths) without(&Conditions::key_lengths, "key lengths");
  if (segments) without(&Conditions::segments, "segments");
  if (window) without(&Conditions::window, "window");
  if (c.causal) {
    without(&Conditions::causal, "causal");
    const Index asked = c.causal->front();
    for (const Index offset : {Index{0}, call.S - call.L, asked - 1, asked + 1}) {
      if (offset == asked) continue;
      add_mask(to, [=](Work& w) { w.contract.causal = std::vector<Index>{offset}; }, {},
               {{"causal offset", static_cast<double>(offset)}, {"expected", static_cast<double>(asked)}});
    }
  } else {
    for (const Index offset : {Index{0}, call.S - call.L}) {
      add_mask(to, [=](Work& w) { w.contract.causal = std::vector<Index>{offset}; }, {},
               {{"causal offset", static_cast<double>(offset)}});
    }
  }
  for (const Index by : {-1, 1}) {
    if (c.window_left) {
      add_mask(to, [=](Work& w) { widen(w.contract.window_left, by); }, {},
               {{"window left", static_cast<double>(*c.window_left + by)},
                {"expected", static_cast<double>(*c.window_left)}});
    }
    if (c.window_right) {
      add_mask(to, [=](Work& w) { widen(w.contract.window_right, by); }, {},
               {{"window right", static_cast<double>(*c.window_right + by)},
                {"expected", static_cast<double>(*c.window_right)}});
    }
  }
  if (mask + lengths + segments + window + c.causal.has_value() > 1) {
    add_mask(to, {}, {false, false, false, false, false, false}, {{"masks", 0}});
  }
}

namespace {

// ---- dropout

// Both products with the weights, in the backward pass, as if dropout had kept what `keep` says.
Change dropout_of(std::function<Array<double>(const Work&)> keep) {
  return [=](Formula& f) {
    const auto change = [=](Work& w) { w.inputs["dropout_keep"] = keep(w); };
    f.before_backward = after(f.before_backward, within(change, f.dropout));
    f.dropout_backward = within(change, f.dropout_backward);
  };
}

template <class F>
Array<double> by_place(const Work& w, F number) {
  Numbers x({w.call->B, w.call->H, w.call->L, w.call->S});
  const Array<double>& keep = *find(w.inputs, "dropout_keep");
  const auto kept = [&](Index b, Index h, Index i, Index j) {
    return broadcast_at(keep, x.shape, b, h, i, j);
  };
  for_each_row(*w.call, [&](Index b, Index h, Index i) {
    for (Index j = 0; j < w.call->S; ++j) x(b, h, i, j) = number(kept, b, h, i, j);
  });
  return x.array();
}

// The mask that the gradients were made with, when they tell. The gradient of a query is a sum of one term
// for each key that was kept; that of a value, for each row in which it was.
class MaskOfGradients {
 public:
  explicit MaskOfGradients(const Call& call)
      : call_(call), key_head_(evaluate(call, formula_of(call), false).key_head) {}

  std::optional<Array<double>> by_rows() const {
    return solved(
        "grad_query", call_.S, [](Index, Index, Index, Index j) { return j; }, call_.H, call_.L);
  }
  std::optional<Array<double>> by_keys() const {
    const Index group = call_.H / call_.Hk;
    std::vector<Index> seen(place(call_.Hk), 0), in_group;
    for (const Index g : key_head_) in_group.push_back(seen[place(g)]++);
    const auto term = [=, L = call_.L](Index, Index h, Index i, Index) { return in_group[place(h)] * L + i; };
    return solved("grad_value", group * call_.L, term, call_.Hk, call_.S);
  }

 private:
  using TermOf =
      std::function<Index(Index b, Index h, Index i, Index j)>;  // number of a place of the mask in its sum

  Array<double> gradient(const char* name, const TermOf& term_of, Index term) const {
    Formula formula = formula_of(call_);
    dropout_of([&](const Work& w) {
      return by_place(w, [&](auto, Index b, Index h, Index i, Index j) {
        return term_of(b, h, i, j) == term ? 1.0 : 0.0;
      });
    })(formula);
    return evaluate(call_, formula).results.at(name);
  }

  // Sums are the rows of the gradient (B, heads, rows, width), of so many terms each.
  std::optional<Array<double>> solved(const char* name, Index count, const TermOf& term_of, Index heads,
                                      Index rows) const {
    const Array<double>* got = find(call_.candidate, name);
    constexpr Index most = 64;
    if (!got || got->rank() != 4 || count > most) return std::nullopt;
    const Array<double> none = gradient(name, term_of, -1);
    std::vector<Array<double>> with;
    for (Index term = 0; term < count; ++term) with.push_back(gradient(name, term_of, term));
    const Index width = got->dim(3);
    std::vector<std::vector<char>> kept;
    for (Index row = 0; row < call_.B * heads * rows; ++row) {
      const auto less_none = [&](const Array<double>& x) {
        std::vector<double> result(place(width));
        for (Index d = 0; d < width; ++d)
          result[place(d)] = x.data()[row * width + d] - none.data()[row * width + d];
        return result;
      };
      std::vector<std::vector<double>> terms;
      for (const Array<double>& x : with) terms.push_back(less_none(x));
      auto sum = nearest_sum(terms, less_none(*got), significand_bits(call_.contract.computed_in));
      if (!sum) return std::nullopt;
      kept.push_back(std::move(*sum));
    }
    Numbers mask({call_.B, call_.H, call_.L, call_.S});
    const bool by_rows = rows == call_.L && heads == call_.H && count == call_.S;
    for_each_row(call_, [&](Index b, Index h, Index i) {
      for (Index j = 0; j < call_.S; ++j) {
        const Index row = by_rows ? (b * heads + h) * rows + i : (b * heads + key_head_[place(h)]) * rows + j;
        mask(b, h, i, j) = kept[place(row)][place(term_of(b, h, i, j))];
      }
    });
    return mask.array();
  }

  const Call& call_;
  std::vector<Index> key_head_;
};

}  // namespace

void add_dropout(const Call& call, Hypotheses& to) {
  if (!call.contract.training || call.contract.dropout == 0 || !find(call.inputs, "dropout_keep")) return;
  const auto add_form = [&](Change change) { add(to, "grad-dropout-differs", "", std::move(change)); };
  const auto off = [](Work& w) { w.contract.training = false; };
  add_form([=](Formula& f) { f.dropout_backward = within(off, f.dropout_backward); });
  add_form([=](Formula& f) { f.before_backward = after(f.before_backward, within(off, f.dropout)); });
  add_form([=](Formula& f) {
    f.before_backward = after(f.before_backward, within(off, f.dropout));
    f.dropout_backward = within(off, f.dropout_backward);
  });
  const Change changed_in_place = [](Formula& f) {
    f.before_backward = after(f.before_backward, [](Work& w) { w.weights = w.dropped; });
  };
  add_form(changed_in_place);
  add(to, "saved-tensor-mutated", "", changed_in_place);
  const Change changed_but_for_delta = [](Formula& f) {
    f.softmax_backward = after(f.softmax_backward, [](Work& w) {
      for (std::size_t n = 0; n < w.dscores.at.size(); ++n) {
        if (w.weights.at[n] != 0) w.dscores.at[n] *= w.dropped.at[n] / w.weights.at[n];
      }
    });
  };
  add_form(changed_but_for_delta);
  add(to, "saved-tensor-mutated", "", changed_but_for_delta);
  const MaskOfGradients masks(call);
  for (const auto& keep : {masks.by_rows(), masks.by_keys()}) {
    if (keep) add_form(dropout_of([keep](const Work&) { return *keep; }));
  }
  const Index B = call.B, H = call.H, L = call.L, S = call.S;
  add_form(dropout_of([](const Work& w) {
    return by_place(w, [](auto kept, Index b, Index h, Index i, Index j) { return 1 - kept(b, h, i, j); });
  }));
  const auto moved = [&](Index by_b, Index by_h, Index by_i, Index by_j) {
    add_form(dropout_of([=](const Work& w) {
      return by_place(w, [&](auto kept, Index b, Index h, Index i, Index j) {
        return kept((b + by_b) % B, (h + by_h) % H, (i + by_i) % L, (j + by_j) % S);
      });
    }));
  };
  for (const Index one : {Index{1}, Index{-1}}) {
    if (B > 1) moved((B + one) % B, 0, 0, 0);
    if (H > 1) moved(0, (H + one) % H, 0, 0);
    if (L > 1) moved(0, 0, (L + one) % L, 0);
    if (S > 1) moved(0, 0, 0, (S + one) % S);
  }
  if (L == S) {
    add_form(dropout_of([](const Work& w) {
      return by_place(w, [](auto kept, Index b, Index h, Index i, Index j) { return kept(b, h, j, i); });
    }));
  }
}

namespace {}  // namespace

}  // namespace tapehead::check
