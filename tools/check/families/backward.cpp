// Gradients, where the forward pass is right.

#include <algorithm>
#include <cmath>

#include <tools/check/families/backward.h>

namespace tapehead::check {
namespace {

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
  add_sums(call, right, result);
  if (rotates(call)) add(result, "grad-rope", "", rotated_forward);
  add_changed(call, result);
  return result;
}

}  // namespace tapehead::check
