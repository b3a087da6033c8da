// Gradients, where the forward pass is right.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <tapehead/core/errors.h>
#include <tools/check/families/hypotheses.h>
#include <tools/check/families/least_squares.h>
#include <tools/check/number_types.h>

namespace tapehead::check {
namespace {

void add(Hypotheses& to, const char* id, const char* variant, Change change,
         std::map<std::string, double> fitted = {}) {
  to.push_back(backward_hypothesis(id, variant, std::move(change), std::move(fitted)));
}

// Gradients to judge, of a forward pass that is about right: else its mistake comes first.
bool to_judge(const Call& call) {
  if (std::none_of(call.candidate.begin(), call.candidate.end(),
                   [](const auto& tensor) { return tensor.first.starts_with("grad_"); })) {
    return false;
  }
  const std::vector<double> off = residual(call, {}, Part::results);
  constexpr double about = 0.05;  // of the largest number; bf16 may be off by this
  return sum_of_squares(off) <= about * about * static_cast<double>(off.size());
}

// Those of the formulas that come nearest to the candidate's gradients.
void add_nearest(const Call& call, Hypotheses& to, const char* id, const char* variant,
                 const std::vector<Change>& changes,
                 const std::function<std::map<std::string, double>(std::size_t)>& fitted) {
  if (const auto best = nearest(call, changes, Part::gradients))
    add(to, id, variant, changes[*best], fitted(*best));
}

void fill(Numbers& x, double number) { std::fill(x.at.begin(), x.at.end(), number); }

// ---- softmax

// One row: weights, their gradients, gradient of the log-sum-exp, gradients of the scores. Returns what the
// gradient of the sink takes its share of, when the sink follows the mistake.
using Row = std::function<double(const double* p, const double* dp, double dlse, double* ds)>;

Change scores_gradient(Row row, bool sink_too) {
  return [=](Formula& f) {
    f.softmax_backward = after(f.softmax_backward, [=](Work& w) {
      const Array<double>* upstream = find(w.inputs, "upstream_lse");
      const double unit = w.contract.lse_base_2 ? 1 / std::log(2.0) : 1;
      if (sink_too) std::fill(w.dsink.begin(), w.dsink.end(), 0);
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        if (w.row_is_empty(b, h, i)) return;
        const Index n = (b * w.call->H + h) * w.call->L + i, at = n * w.call->S;
        const double dlse = upstream ? upstream->data()[n] * unit : 0;
        const double rest =
            row(w.weights.at.data() + at, w.dweights.at.data() + at, dlse, w.dscores.at.data() + at);
        if (sink_too) w.dsink[place(h)] += w.sink_share(b, h, i) * rest;
      });
    });
  };
}

// dS = p (dP - delta_j + dlse), with any delta
template <class Delta>
Row with_delta(Index keys, Delta delta) {
  return [=](const double* p, const double* dp, double dlse, double* ds) {
    for (Index j = 0; j < keys; ++j) ds[j] = p[j] == 0 ? 0 : p[j] * (dp[j] - delta(p, dp, j) + dlse);
    return dlse - delta(p, dp, 0);
  };
}

Row no_delta(Index keys) {
  return with_delta(keys, [](const double*, const double*, Index) { return 0.0; });
}

// The row sum that is subtracted covers a part of the keys: for all keys the first or last so many, or for
// each the block that it lies in.
enum class Covered { first, rest, own_block };
Row partial_delta(Index keys, Index block, Covered covered) {
  return with_delta(keys, [=](const double* p, const double* dp, Index j) {
    const Index from = covered == Covered::own_block ? j / block * block
                       : covered == Covered::rest    ? block
                                                     : 0;
    const Index to = covered == Covered::rest ? keys : std::min(from + block, keys);
    double delta = 0;
    for (Index k = from; k < to; ++k) delta += p[k] == 0 ? 0 : p[k] * dp[k];
    return delta;
  });
}

Row diagonal(Index keys, bool lse_too) {
  return [=](const double* p, const double* dp, double dlse, double* ds) {
    for (Index j = 0; j < keys; ++j)
      ds[j] = p[j] == 0 ? 0 : p[j] * ((1 - p[j]) * dp[j] + (lse_too ? dlse : 0));
    return 0.0;
  };
}

// A part whose keys nobody sees is no delta at all.
void add_partial_delta(const Call& call, Hypotheses& to, bool sink_too) {
  std::vector<Change> changes = {scores_gradient(no_delta(call.S), sink_too)};
  std::vector<Index> ends = {0};
  constexpr Index all_up_to = 64;
  for (Index n = 1; n < call.S; n = call.S <= all_up_to ? n + 1 : 2 * n) {
    for (const Covered covered : {Covered::first, Covered::rest, Covered::own_block}) {
      if (covered == Covered::own_block && (n == 1 || sink_too))
        continue;  // the diagonal; a sink is in no block
      changes.push_back(scores_gradient(partial_delta(call.S, n, covered), sink_too));
      ends.push_back(n);
    }
  }
  const auto best = nearest(call, changes, Part::gradients);
  if (best && *best > 0) {
    add(to, "grad-softmax-jacobian", "partial-delta", changes[*best],
        {{"keys in a block", static_cast<double>(ends[*best])}});
  }
}

void add_softmax(const Call& call, Hypotheses& to) {
  add(to, "grad-softmax-jacobian", "diagonal", scores_gradient(diagonal(call.S, true), false));
  if (find(call.inputs, "upstream_lse")) {
    add(to, "grad-softmax-jacobian", "diagonal", scores_gradient(diagonal(call.S, false), false));
  }
  for (const bool sink_too : {false, true}) {
    if (sink_too && !find(call.inputs, "sink")) continue;
    add(to, "grad-softmax-jacobian", "no-delta", scores_gradient(no_delta(call.S), sink_too));
    add_partial_delta(call, to, sink_too);
  }
}

// ---- scale and cap

void add_scale(const Call& call, Hypotheses& to) {
  if (call.contract.scale == 1 || call.contract.scale == 0) return;
  for (const double factor : {call.contract.scale, 1 / call.contract.scale}) {
    for (const int which : {1, 2, 3}) {
      const double of_query = which & 1 ? factor : 1, of_key = which & 2 ? factor : 1;
      add(to, "grad-scale", "",
          [=](Formula& f) {
            f.products_backward = after(f.products_backward, [=](Work& w) {
              for (double& d : w.dquery.at) d *= of_query;
              for (double& d : w.dkey.at) d *= of_key;
            });
          },
          {{"factor of grad_query", of_query}, {"factor of grad_key", of_key}});
    }
  }
}

void without_cap(Formula& f) {
  f.cap_backward = [](Work& w) { w.dcapped = w.dscores; };
}

// ---- heads

// Gradients of key and value from each query head times its weight. Weights by query head.
void share(Work& w, const std::vector<Index>& key_head, const std::vector<double>& weight, bool key,
           bool value) {
  const Call& call = *w.call;
  if (key) fill(w.dkey, 0);
  if (value) fill(w.dvalue, 0);
  for_each_row(call, [&](Index b, Index h, Index i) {
    const Index g = key_head[place(h)];
    const double factor = weight[place(h)];
    for (Index j = 0; factor != 0 && j < call.S; ++j) {
      const double ds = factor * w.dproducts(b, h, i, j), p = factor * w.dropped(b, h, i, j);
      for (Index d = 0; key && ds != 0 && d < call.D; ++d) w.dkey(b, g, j, d) += ds * w.query(b, h, i, d);
      for (Index e = 0; value && p != 0 && e < call.E; ++e) w.dvalue(b, g, j, e) += p * w.doutput(b, h, i, e);
    }
  });
}

Change shares(std::function<double(Index in_group, Index group)> weight, bool key, bool value) {
  return [=](Formula& f) {
    f.products_backward = after(f.products_backward, [=](Work& w) {
      std::vector<Index> seen(place(w.call->Hk), 0);
      std::vector<double> weights;
      const Index group = w.call->H / w.call->Hk;
      for (const Index g : w.key_head) weights.push_back(weight(seen[place(g)]++, group));
      share(w, w.key_head, weights, key, value);
    });
  };
}

// The same, where a head's number in its group is that of the right map.
Change shares_by_number(std::function<double(Index in_group, Index group)> weight) {
  return [=](Formula& f) {
    f.products_backward = after(f.products_backward, [=](Work& w) {
      const Index group = w.call->H / w.call->Hk;
      std::vector<double> weights;
      for (Index h = 0; h < w.call->H; ++h)
        weights.push_back(weight(w.contract.tiled_heads ? h / w.call->Hk : h % group, group));
      share(w, w.key_head, weights, true, true);
    });
  };
}

Change head_map(std::function<Index(Index)> map) {
  return [=](Formula& f) {
    f.products_backward = after(f.products_backward, [=](Work& w) {
      std::vector<Index> key_head;
      for (Index h = 0; h < w.call->H; ++h) key_head.push_back(map(h));
      share(w, key_head, std::vector<double>(place(w.call->H), 1), true, true);
    });
  };
}

void add_heads(const Call& call, Hypotheses& to) {
  const Index group = call.H / call.Hk;
  if (group < 2) return;
  for (const auto& [key, value] : {std::pair{true, true}, {true, false}, {false, true}}) {
    std::vector<Change> one;
    for (Index n = 0; n < group; ++n) {
      one.push_back(shares([n](Index in_group, Index) { return in_group == n ? 1.0 : 0.0; }, key, value));
    }
    const auto which = [](std::size_t n) {
      return std::map<std::string, double>{{"query head of the group", static_cast<double>(n)}};
    };
    add_nearest(call, to, "grad-gqa-not-summed", "", one, which);
    if (key && value) add(to, "grad-fanout", "gather", one.back(), which(one.size() - 1));
    add(to, "grad-gqa-not-summed", "mean",
        shares([](Index, Index of) { return 1 / static_cast<double>(of); }, key, value));
  }
  for (Index n = 0; call.found && n < group; ++n) {
    add(to, "grad-gqa-not-summed", "",
        shares_by_number([n](Index in_group, Index) { return in_group == n ? 1.0 : 0.0; }));
  }
  const Index Hk = call.Hk;
  if (call.contract.tiled_heads) {
    add(to, "gqa-tile", "", head_map([=](Index h) { return h / group; }));
  } else if (Hk > 1) {
    add(to, "gqa-tile", "", head_map([=](Index h) { return h % Hk; }));
  }
  if (group <= Hk && Hk > 1)
    add(to, "gqa-wrong-index", "divisor", head_map([=](Index h) { return h % group; }));
  if (group <= Hk && Hk > 1) add(to, "gqa-wrong-index", "divisor", head_map([=](Index h) { return h / Hk; }));
  if (Hk > 1) add(to, "gqa-wrong-index", "first", head_map([](Index) { return Index{0}; }));
}

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

// ---- paths

Change before_inputs(Step change) {
  return [=](Formula& f) { f.products_backward = after(f.products_backward, change); };
}

void add_paths(const Call& call, Hypotheses& to) {
  add(to, "grad-path-missing", "q", before_inputs([](Work& w) { fill(w.dquery, 0); }));
  add(to, "grad-path-missing", "k", before_inputs([](Work& w) { fill(w.dkey, 0); }));
  add(to, "grad-path-missing", "v", before_inputs([](Work& w) { fill(w.dvalue, 0); }));
  add(to, "grad-path-missing", "severed", [](Formula& f) {
    f.softmax_backward = after(f.softmax_backward, [](Work& w) {
      fill(w.dscores, 0);
      std::fill(w.dsink.begin(), w.dsink.end(), 0);
    });
  });
  if (find(call.inputs, "bias") || find(call.inputs, "sink")) {
    add(to, "grad-path-missing", "severed",
        before_inputs([](Work& w) { fill(w.dquery, 0), fill(w.dkey, 0); }));
  }
  const auto ignored = [&](const char* upstream, const char* variant, Step Formula::*step) {
    if (!find(call.inputs, upstream)) return;
    add(to, "grad-path-missing", variant,
        [=](Formula& f) { f.*step = within([=](Work& w) { w.inputs.erase(upstream); }, f.*step); });
  };
  ignored("upstream_lse", "lse", &Formula::softmax_backward);
  ignored("upstream_weights", "off-tape", &Formula::dropout_backward);
}

// What query, key and value bring to the gradient of x, or of y.
std::array<Array<double>, 3> terms(const Work& w, const Step& inputs_backward, const std::string& name) {
  std::array<Array<double>, 3> result;
  for (std::size_t path = 0; path < 3; ++path) {
    Work one = w;
    one.results.clear();
    if (path != 0) fill(one.dquery_unnormed, 0);
    if (path != 1) fill(one.dkey_unnormed, 0);
    if (path != 2) fill(one.dvalue, 0);
    inputs_backward(one);
    if (const auto* term = find(one.results, name)) result[path] = *term;
  }
  return result;
}

using Times = std::array<double, 3>;  // how often query's, key's and value's term is counted

Change counted(const std::string& name, Times times) {
  return [=](Formula& f) {
    f.inputs_backward = [=, right = f.inputs_backward](Work& w) {
      right(w);
      const auto parts = terms(w, right, name);
      Array<double> sum = Array<double>::zeros(w.results.at(name).shape());
      double* out = sum.mutable_values().data();
      for (std::size_t path = 0; path < 3; ++path) {
        for (Index i = 0; i < parts[path].size(); ++i) out[i] += times[path] * parts[path].data()[i];
      }
      w.results[name] = sum;
    };
  };
}

// The gradient of x is known to be a sum of these terms: every way in which few of them are lost or counted
// again, of which the nearest is a hypothesis.
void add_terms(const Call& call, Hypotheses& to, const std::string& name) {
  if (!find(call.candidate, name)) return;
  const bool has_query = name == "grad_x", only_query = has_query && find(call.inputs, "y");
  if (only_query) return add(to, "grad-path-missing", "q", counted(name, {0, 0, 0}));
  const auto add_times = [&](const char* id, const char* variant, Times times) {
    std::map<std::string, double> fitted = {{"times key", times[1]}, {"times value", times[2]}};
    if (has_query) fitted["times query"] = times[0];
    add(to, id, variant, counted(name, times), fitted);
  };
  if (has_query) add_times("grad-path-missing", "q", {0, 1, 1});
  add_times("grad-path-missing", "k", {1, 0, 1});
  add_times("grad-path-missing", "v", {1, 1, 0});
  if (has_query) add_times("grad-fanout", "overwrite", {1, 0, 0});
  add_times("grad-fanout", "overwrite", {0, 1, 0});
  add_times("grad-fanout", "overwrite", {0, 0, 1});
  std::vector<Change> again;
  std::vector<Times> times;
  for (double q = 1; q <= (has_query ? 4 : 1); ++q) {
    for (double k = 1; k <= 4; ++k) {
      for (double v = 1; v <= 4; ++v) {
        const bool all_alike = (!has_query || q == k) && k == v;
        if (!all_alike) times.push_back({q, k, v}), again.push_back(counted(name, times.back()));
      }
    }
  }
  if (const auto best = nearest(call, again, Part::gradients))
    add_times("grad-fanout", "twice", times[*best]);
}

// ---- sums over what is repeated

struct Slice {
  int axis;  // of the scores
  Index at;
};

// 0 outside of the slice.
void keep_only(Numbers& x, Slice slice) {
  const Strides stride(x.shape);
  for (std::size_t n = 0; n < x.at.size(); ++n) {
    const Index along = static_cast<Index>(n) / stride[slice.axis] % x.shape[slice.axis];
    if (along != slice.at) x.at[n] = 0;
  }
}

// The gradient of one tensor from one repetition of it only.
Change one_slice(const std::string& name, Slice slice) {
  return [=](Formula& f) {
    f.gradients = [=, right = f.gradients, softmax = f.softmax_backward,
                   inputs = f.inputs_backward](Work& w) {
      right(w);
      Work part = w;
      part.results.clear();
      if (name == "grad_sink") {
        keep_only(part.dweights, slice);
        Numbers dlse({w.call->B, w.call->H, w.call->L});
        if (const auto* upstream = find(w.inputs, "upstream_lse")) dlse = Numbers(*upstream);
        keep_only(dlse, slice);
        part.inputs["upstream_lse"] = dlse.array();
        softmax(part);
      }
      for (Numbers* x :
           {&part.dscores, &part.dproducts, &part.dquery_unnormed, &part.dkey_unnormed, &part.dvalue}) {
        keep_only(*x, slice);
      }
      inputs(part);
      right(part);
      if (const auto* found = find(part.results, name)) w.results[name] = *found;
    };
  };
}

Change times_factor(const std::string& name, double factor) {
  return [=](Formula& f) {
    f.gradients = after(f.gradients, [=](Work& w) {
      const auto found = w.results.find(name);
      if (found == w.results.end()) return;
      for (double& x : found->second.mutable_values()) x *= factor;
    });
  };
}

// Least-squares ratio of a candidate's tensor to the right one; nothing when that is 0.
std::optional<double> ratio(const Array<double>& got, const Array<double>& right) {
  double along = 0, length = 0;
  for (Index i = 0; i < std::min(got.size(), right.size()); ++i) {
    const double x = got.data()[i], y = right.data()[i];
    if (std::isfinite(x) && std::isfinite(y)) along += x * y, length += y * y;
  }
  return length > 0 ? std::optional(along / length) : std::nullopt;
}

// A number that is nearly one of these becomes it.
double snapped(double x, const std::vector<double>& to) {
  constexpr double near = 5e-3;  // bf16 carries 8 bits, a sum of many of them more
  for (const double exact : to) {
    if (std::abs(x - exact) <= near * std::abs(exact)) return exact;
  }
  return std::abs(x) <= near ? 0 : x;
}

// Over how many numbers the gradient of a tensor sums, by axis of the scores.
std::vector<std::pair<int, Index>> expanded(const Call& call, const std::string& name) {
  const std::array<Index, 4> extents = {call.B, call.H, call.L, call.S};
  std::vector<std::pair<int, Index>> result;
  const auto take = [&](int axis) {
    if (extents[place(axis)] > 1) result.emplace_back(axis, extents[place(axis)]);
  };
  if (name == "grad_bias") {
    const Shape& shape = find(call.inputs, "bias")->shape();
    for (int axis = 0; axis < 4; ++axis) {
      const int of_bias = axis - (4 - shape.rank());
      if (of_bias < 0 || shape[of_bias] == 1) take(axis);
    }
  } else {
    take(0);
    if (name.ends_with("_gain")) take(1);
    take(2);
  }
  return result;
}

std::vector<double> products_of(const std::vector<std::pair<int, Index>>& axes) {
  std::vector<double> products = {1};
  for (const auto& [axis, extent] : axes) {
    for (std::size_t n = products.size(); n-- > 0;)
      products.push_back(products[n] * static_cast<double>(extent));
  }
  for (std::size_t n = products.size(); n-- > 0;) products.push_back(1 / products[n]);
  return products;
}

void add_repeated(const Call& call, const Work& right, Hypotheses& to, const std::string& name) {
  const Array<double>*got = find(call.candidate, name), *ours = find(right.results, name);
  if (!got || !ours) return;
  const auto axes = expanded(call, name);
  if (const auto factor = ratio(*got, *ours)) {
    const double exact = snapped(*factor, products_of(axes));
    if (exact != 1 && (exact == 0 || !axes.empty())) {
      add(to, "grad-broadcast", "", times_factor(name, exact), {{"factor of " + name, exact}});
    }
  }
  for (const auto& [axis, extent] : axes) {
    for (const Index at : {Index{0}, extent - 1}) {
      const std::map<std::string, double> fitted = {
          {"only number " + std::to_string(at) + " of axis", static_cast<double>(axis)}};
      add(to, "grad-broadcast", "", one_slice(name, {axis, at}), fitted);
    }
  }
  if (name == "grad_bias" && got->size() > ours->size()) {
    add(to, "grad-broadcast", "", [](Formula& f) {
      f.gradients = after(f.gradients, [](Work& w) { w.results["grad_bias"] = w.dscores.array(); });
    });
  }
}

void add_all_repeated(const Call& call, const Work& right, Hypotheses& to) {
  std::vector<std::string> names = {"grad_bias", "grad_sink"};
  for (const char* part : {"query", "key", "value", "out"}) names.push_back(std::string("grad_b_") + part);
  for (const char* part : {"query", "key"}) names.push_back(std::string("grad_") + part + "_gain");
  for (const std::string& name : names) add_repeated(call, right, to, name);
  for (const char* part : {"query", "key", "value", "out"}) {
    const std::string name = std::string("grad_w_") + part;
    if (find(call.candidate, name))
      add(to, "grad-path-missing", "off-tape", times_factor(name, 0), {{name, 0}});
  }
}

// ---- rotation

bool rotates(const Call& call) {
  return call.contract.rope != Pairing::none && find(call.inputs, "query") == nullptr;
}

// R dq, by turning forward twice what is then turned back.
void rotated_forward(Formula& f) {
  f.rotation_backward = [rotation = f.rotation](Work& w) {
    Work turned = w;
    turned.query_unrotated = w.dquery, turned.key_unrotated = w.dkey;
    rotation(turned);
    w.dquery_unrotated = turned.query, w.dkey_unrotated = turned.key;
  };
}

// ---- all gradients

Change all_times(double factor) {
  return [=](Formula& f) {
    f.gradients = after(f.gradients, [=](Work& w) {
      for (auto& [name, x] : w.results) {
        if (!name.starts_with("grad_")) continue;
        for (double& d : x.mutable_values()) d *= factor;
      }
    });
  };
}

void add_uniform(const Call& call, const Work& right, Hypotheses& to) {
  double along = 0, length = 0;
  for (const auto& [name, got] : call.candidate) {
    const Array<double>* ours = find(right.results, name);
    if (!name.starts_with("grad_") || !ours || ours->size() != got.size()) continue;
    double norm = 0;
    for (const double x : ours->values()) norm += std::isfinite(x) ? x * x : 0;
    const auto factor = ratio(got, *ours);
    if (factor && norm > 0) along += *factor, length += 1;  // tensors count alike
  }
  if (length == 0) return;
  std::vector<double> exact = products_of({{0, call.B}, {1, call.H}, {2, call.L}, {3, call.E}});
  for (int k = 1; k <= 24; ++k) exact.insert(exact.end(), {std::exp2(k), std::exp2(-k)});
  const double factor = snapped(along / length, exact);
  if (factor == 0) add(to, "grad-path-missing", "off-tape", all_times(0), {{"factor", 0}});
  if (factor != 0 && factor != 1) add(to, "grad-uniform-factor", "", all_times(factor), {{"factor", factor}});
}

// What was fitted to one call says nothing of another part of it.
void require_same(const char* name, const Shape& here, const Shape& there) {
  if (here != there)
    throw ShapeError("formula", "fitted to another part of the call", {{name, here}, {"then", there}});
}

// Old gradients of the same call, fed with another upstream: it is solved for.
void add_not_zeroed(const Call& call, Hypotheses& to) {
  const Array<double>* upstream = find(call.inputs, "upstream");
  const Index group = call.H / call.Hk, each = call.L * call.E;
  if (!upstream || upstream->size() != call.B * call.H * each) return;
  const auto with = [=, upstream_shape = upstream->shape()](const Numbers& numbers) {
    return [=](Formula& f) {
      f.before_backward = after(f.before_backward, [=](Work& w) {
        require_same("upstream", find(w.inputs, "upstream")->shape(), upstream_shape);
        std::vector<Index> seen(place(w.call->B * w.call->Hk), 0);
        double* out = w.inputs["upstream"].mutable_values().data();
        for (Index n = 0; n < w.call->B * w.call->H; ++n, out += each) {
          const Index of = n / w.call->H * w.call->Hk + w.key_head[place(n % w.call->H)];
          const double* from = numbers.at.data() + of * group * each + seen[place(of)]++ * each;
          for (Index i = 0; i < each; ++i) out[i] += from[i];
        }
      });
    };
  };
  const auto earlier = solve_by_head(call, group * each, with);
  constexpr double explained = 1e-3;  // of the squares: numbers that fit by chance leave a third or more
  const double before = sum_of_squares(residual(call, {}, Part::gradients));
  if (!earlier || sum_of_squares(residual(call, with(*earlier), Part::gradients)) > explained * before)
    return;
  add(to, "grad-uniform-factor", "not-zeroed", with(*earlier));
  to.back().generic = true;
}

// ---- tensors changed after the forward pass

enum class Reused { weights, log_sum_exp, nothing };

// A tensor of a call as it was dumped again afterwards; null when it was not.
const Array<double>* dumped_again(const Call& call, const std::string& name) {
  const Array<double>* then = find(call.inputs, name + "_after");
  return then ? then : find(call.candidate, name + "_after");
}

struct Changed {
  std::string name;
  Numbers Work::*field;
};

Change with_changed(std::vector<Changed> changed, Reused reused) {
  return [=](Formula& f) {
    f.before_backward = after(f.before_backward, [=, formula = f](Work& w) {
      for (const auto& [name, field] : changed) {
        w.*field = Numbers(dumped_again(*w.call, name)->reshape((w.*field).shape));
      }
      if (reused == Reused::weights) return;
      Work again = w;
      for (const Step* step :
           {&formula.products, &formula.scale, &formula.cap, &formula.bias, &formula.softmax}) {
        (*step)(again);
      }
      w.scaled = again.scaled;
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        for (Index j = 0; j < w.call->S; ++j) {
          const double p = reused == Reused::nothing ? again.weights(b, h, i, j)
                           : w.sees(b, h, i, j) ? std::exp(again.scores(b, h, i, j) - w.log_sum_exp(b, h, i))
                                                : 0;
          w.weights(b, h, i, j) = p;
        }
      });
      formula.dropout(w);
    });
  };
}

void add_changed(const Call& call, Hypotheses& to) {
  std::vector<Changed> changed;
  const auto take = [&](const std::string& name, Numbers Work::*field) {
    const Array<double>* before = find(call.inputs, name);
    const Array<double>* then = dumped_again(call, name);
    if (before && then && then->size() == before->size() &&
        !std::equal(then->values().begin(), then->values().end(), before->values().begin())) {
      changed.push_back({name, field});
    }
  };
  take("query", &Work::query), take("key", &Work::key), take("value", &Work::value);
  for (const Reused reused : {Reused::weights, Reused::log_sum_exp, Reused::nothing}) {
    if (!changed.empty()) add(to, "saved-tensor-mutated", "", with_changed(changed, reused));
    for (std::size_t n = 0; changed.size() > 1 && n < changed.size(); ++n) {
      add(to, "saved-tensor-mutated", "", with_changed({changed[n]}, reused));
    }
  }
}

}  // namespace

Hypotheses backward_mistakes(const Call& call) {
  Hypotheses result;
  if (!to_judge(call)) return result;
  const Work right = evaluate(call, formula_of(call));
  add_softmax(call, result);
  add_scale(call, result);
  if (call.contract.softcap != 0) add(result, "grad-softcap-missing", "", without_cap);
  add_heads(call, result);
  add_masks(call, result);
  add_dropout(call, result);
  add_paths(call, result);
  add_terms(call, result, "grad_x");
  add_terms(call, result, "grad_y");
  add_all_repeated(call, right, result);
  if (rotates(call)) add(result, "grad-rope", "", rotated_forward);
  add_uniform(call, right, result);
  add_not_zeroed(call, result);
  add_changed(call, result);
  return result;
}

}  // namespace tapehead::check
