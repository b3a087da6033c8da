#include <cmath>
#include <random>

#include "tools/planted/attention.h"
#include "tools/planted/plantings.h"

namespace tapehead::planted {
namespace {

using Make = std::function<std::optional<Wrong>(const Call&)>;
using Condition = std::function<bool(const Call&)>;

Planting planting(std::string id, std::string variant, std::string form, Make make) {
  return {std::move(id), std::move(variant), std::move(form), "backward", true, std::move(make)};
}

Make when(Condition applies, std::function<void(const Call&, WrongBackward&)> change) {
  return [applies, change](const Call& call) -> std::optional<Wrong> {
    if (call.upstream.empty() || !applies(call)) return {};
    Wrong wrong;
    change(call, wrong.backward);
    return wrong;
  };
}

bool always(const Call&) { return true; }
bool grouped(const Call& c) { return c.H > c.Hk; }
bool causal(const Call& c) { return c.causal != Causal::none; }
bool dropped(const Call& c) { return c.train && !c.keep.empty(); }
bool projected(const Call& c) { return !c.x.empty(); }
bool cross_projected(const Call& c) { return projected(c) && !c.y.empty(); }
bool self_projected(const Call& c) { return projected(c) && c.y.empty(); }
bool plain_inputs(const Call& c) { return c.turn == Turn::none && c.norm == Norm::none && !projected(c); }

// The results of a right backward pass, changed.
Make results(Condition applies, std::function<void(const Call&, Results&)> change) {
  return [applies, change](const Call& call) -> std::optional<Wrong> {
    if (call.upstream.empty() || !applies(call)) return {};
    Wrong wrong;
    wrong.after = [call, change](Results& r) { change(call, r); };
    return wrong;
  };
}

template <class F>
void each_gradient(Results& r, F f) {
  for (Grid* x : {&r.grad_query, &r.grad_key, &r.grad_value, &r.grad_bias, &r.grad_sink, &r.grad_x, &r.grad_y,
                  &r.grad_w_query, &r.grad_w_key, &r.grad_w_value})
    f(*x);
}

void multiply(Grid& x, double factor) {
  for (double& number : x.numbers) number *= factor;
}

Make all_times(std::function<double(const Call&)> factor) {
  return results(always, [factor](const Call& call, Results& r) {
    each_gradient(r, [&](Grid& x) { multiply(x, factor(call)); });
  });
}

// What an earlier pass of the same call left, with another gradient fed into it.
std::optional<Wrong> not_zeroed(const Call& call) {
  if (call.upstream.empty()) return {};
  Call earlier = call;
  std::mt19937 random(7);
  for (double& number : earlier.upstream.numbers) number = 0.5 * std::normal_distribution<double>()(random);
  earlier.upstream_weights = earlier.upstream_lse = Grid();
  Results old = attention(earlier);
  Wrong wrong;
  wrong.after = [old](Results& r) mutable {
    std::vector<const Grid*> rest;
    each_gradient(old, [&](Grid& x) { rest.push_back(&x); });
    std::size_t n = 0;
    each_gradient(r, [&](Grid& x) {
      for (std::size_t i = 0; i < x.numbers.size(); ++i) x.numbers[i] += rest[n]->numbers[i];
      ++n;
    });
  };
  return wrong;
}

// The backward pass under another mask.
Make masked(Condition applies, std::function<void(Call&)> change) {
  return when(applies, [change](const Call& call, WrongBackward& w) {
    Call other = call;
    change(other);
    w.visible = [other](Index b, Index h, Index i, Index j) { return other.visible(b, h, i, j); };
  });
}

void forget_all(Call& c) {
  c.mask_kind = MaskKind::none, c.causal = Causal::none;
  c.window_left.reset(), c.window_right.reset();
  c.key_lengths.clear(), c.query_segments.clear();
}

bool anything_blocks(const Call& c) {
  return c.mask_kind != MaskKind::none || causal(c) || c.window_left || !c.key_lengths.empty() ||
         !c.query_segments.empty();
}

Grid another_keep(const Call& call) {
  std::mt19937 random(11);
  Grid keep = call.keep;
  for (double& number : keep.numbers)
    number = std::uniform_real_distribution<double>()(random) < call.dropout ? 0 : 1;
  return keep;
}

Grid doubled(Grid x) {
  multiply(x, 2);
  return x;
}

// Query, key or value is changed in place after the forward pass, and the backward pass reads it.
Make mutated(Grid Call::*input, Grid WrongBackward::*used, Grid Results::*after) {
  return [=](const Call& call) -> std::optional<Wrong> {
    if (call.upstream.empty() || !plain_inputs(call)) return {};
    Wrong wrong;
    const Grid now = doubled(call.*input);
    wrong.backward.*used = now;
    wrong.after = [now, after](Results& r) { r.*after = now; };
    return wrong;
  };
}

bool expanded_bias(const Call& c) {
  return !c.bias.empty() && static_cast<Index>(c.bias.numbers.size()) < c.B * c.H * c.L * c.S;
}
double copies(const Call& c) {
  return static_cast<double>(c.B * c.H * c.L * c.S) / static_cast<double>(c.bias.numbers.size());
}
bool has_sink(const Call& c) { return !c.sink.empty(); }

double tokens(const Call& c) { return static_cast<double>(c.B * c.L); }

}  // namespace

std::vector<Planting> backward_plantings() {
  using C = const Call&;
  using W = WrongBackward&;
  using R = Results&;
  using J = WrongBackward::Jacobian;
  using Share = WrongBackward::Share;
  using Drop = WrongBackward::Drop;
  return {
      planting("grad-softmax-jacobian", "diagonal", "",
               when(always, [](C, W w) { w.jacobian = J::diagonal; })),
      planting("grad-softmax-jacobian", "no-delta", "",
               when(always, [](C, W w) { w.jacobian = J::without_delta; })),
      planting("grad-softmax-jacobian", "partial-delta", "half of the keys",
               when([](C c) { return c.S > 1; },
                    [](C c, W w) { w.jacobian = J::delta_of_some, w.delta_keys = (c.S + 1) / 2; })),
      planting(
          "grad-softmax-jacobian", "partial-delta", "4 keys",
          when([](C c) { return c.S > 4; }, [](C, W w) { w.jacobian = J::delta_of_some, w.delta_keys = 4; })),
      planting("grad-softmax-jacobian", "partial-delta", "of its own 2 keys",
               when([](C c) { return c.S > 2; },
                    [](C, W w) { w.jacobian = J::delta_of_own_block, w.delta_keys = 2; })),
      planting("grad-softmax-jacobian", "partial-delta", "of its own 4 keys",
               when([](C c) { return c.S > 4; },
                    [](C, W w) { w.jacobian = J::delta_of_own_block, w.delta_keys = 4; })),
      planting("grad-scale", "", "dq t", when(always, [](C c, W w) { w.query_factor = c.score_scale(); })),
      planting("grad-scale", "", "dq / t",
               when(always, [](C c, W w) { w.query_factor = 1 / c.score_scale(); })),
      planting("grad-scale", "", "dk t", when(always, [](C c, W w) { w.key_factor = c.score_scale(); })),
      planting("grad-scale", "", "dk / t",
               when(always, [](C c, W w) { w.key_factor = 1 / c.score_scale(); })),
      planting("grad-scale", "", "both t",
               when(always, [](C c, W w) { w.query_factor = w.key_factor = c.score_scale(); })),
      planting("grad-scale", "", "both / t",
               when(always, [](C c, W w) { w.query_factor = w.key_factor = 1 / c.score_scale(); })),
      planting("grad-softcap-missing", "", "",
               when([](C c) { return c.softcap > 0; }, [](C, W w) { w.cap_slope = false; })),
      planting("grad-gqa-not-summed", "", "first", when(grouped, [](C, W w) { w.share = Share::first; })),
      planting("grad-gqa-not-summed", "", "last", when(grouped, [](C, W w) { w.share = Share::last; })),
      planting("grad-gqa-not-summed", "mean", "", when(grouped, [](C, W w) { w.share = Share::mean; })),
      planting("grad-gqa-not-summed", "", "first, of keys",
               when(grouped, [](C, W w) { w.share = Share::first, w.share_value = false; })),
      planting("grad-gqa-not-summed", "mean", "of keys",
               when(grouped, [](C, W w) { w.share = Share::mean, w.share_value = false; })),
      planting("grad-gqa-not-summed", "mean", "of values",
               when(grouped, [](C, W w) { w.share = Share::mean, w.share_key = false; })),
      planting("grad-mask-differs", "", "top-left",
               masked([](C c) { return causal(c) && !c.window_left; },
                      [](Call& c) { c.causal = Causal::top_left; })),
      planting("grad-mask-differs", "", "bottom-right",
               masked([](C c) { return causal(c) && !c.window_left; },
                      [](Call& c) { c.causal = Causal::bottom_right; })),
      planting("grad-mask-differs", "", "no mask", masked(anything_blocks, forget_all)),
      planting("grad-mask-differs", "", "no window",
               masked([](C c) { return c.window_left.has_value(); },
                      [](Call& c) {
                        c.window_left.reset();
                        c.window_right.reset();
                      })),
      planting("grad-dropout-differs", "", "not in dP",
               when(dropped, [](C, W w) { w.drop = Drop::not_in_weights_gradient; })),
      planting("grad-dropout-differs", "", "another mask",
               when(dropped, [](C c, W w) { w.keep = another_keep(c); })),
      planting("grad-dropout-differs", "", "dropped weights",
               when(dropped, [](C, W w) { w.drop = Drop::dropped_weights; })),
      planting("grad-dropout-differs", "", "dropped weights, also in delta",
               when(dropped, [](C, W w) { w.drop = Drop::dropped_weights_and_delta; })),
      planting("saved-tensor-mutated", "", "weights, but not in delta",
               when(dropped, [](C, W w) { w.drop = Drop::dropped_weights; })),
      planting("grad-path-missing", "q", "dq",
               results([](C c) { return !projected(c); }, [](C, R r) { multiply(r.grad_query, 0); })),
      planting("grad-path-missing", "k", "dk",
               results([](C c) { return !projected(c); }, [](C, R r) { multiply(r.grad_key, 0); })),
      planting("grad-path-missing", "v", "dv",
               results([](C c) { return !projected(c); }, [](C, R r) { multiply(r.grad_value, 0); })),
      planting("grad-path-missing", "q", "dx", when(projected, [](C, W w) { w.path_query = 0; })),
      planting("grad-path-missing", "k", "dx", when(projected, [](C, W w) { w.path_key = 0; })),
      planting("grad-path-missing", "v", "dx", when(projected, [](C, W w) { w.path_value = 0; })),
      planting("grad-path-missing", "severed", "",
               results([](C c) { return !projected(c); },
                       [](C, R r) {
                         for (Grid* x : {&r.grad_query, &r.grad_key, &r.grad_bias, &r.grad_sink})
                           multiply(*x, 0);
                       })),
      planting("grad-path-missing", "lse", "",
               when([](C c) { return !c.upstream_lse.empty(); }, [](C, W w) { w.lse_path = false; })),
      planting("grad-path-missing", "off-tape", "",
               results(always, [](C, R r) { each_gradient(r, [](Grid& x) { multiply(x, 0); }); })),
      planting("grad-path-missing", "off-tape", "weights",
               when([](C c) { return !c.upstream_weights.empty(); }, [](C, W w) { w.weights_path = false; })),
      planting("grad-fanout", "gather", "", when(grouped, [](C, W w) { w.share = Share::last; })),
      planting("grad-fanout", "overwrite", "value last, key first",
               when(cross_projected, [](C, W w) { w.path_key = 0; })),
      planting("grad-fanout", "overwrite", "key last, value first",
               when(cross_projected, [](C, W w) { w.path_value = 0; })),
      planting("grad-fanout", "twice", "y, value first",
               when(cross_projected, [](C, W w) { w.path_value = 2; })),
      planting("grad-fanout", "twice", "y, key first", when(cross_projected, [](C, W w) { w.path_key = 2; })),
      planting("grad-fanout", "overwrite", "value last",
               when(self_projected, [](C, W w) { w.path_query = w.path_key = 0; })),
      planting("grad-fanout", "overwrite", "query last",
               when(self_projected, [](C, W w) { w.path_value = w.path_key = 0; })),
      planting("grad-fanout", "twice", "query first",
               when(self_projected, [](C, W w) { w.path_query = 3, w.path_key = 2; })),
      planting("grad-fanout", "twice", "value first",
               when(self_projected, [](C, W w) { w.path_value = 3, w.path_key = 2; })),
      planting("grad-broadcast", "", "bias 0",
               results(expanded_bias, [](C, R r) { multiply(r.grad_bias, 0); })),
      planting("grad-broadcast", "", "bias averaged",
               results(expanded_bias, [](C c, R r) { multiply(r.grad_bias, 1 / copies(c)); })),
      planting("grad-broadcast", "", "bias by the wrong count",
               results([](C c) { return expanded_bias(c) && c.B > 1 && c.bias.extents[0] == 1; },
                       [](C c, R r) { multiply(r.grad_bias, static_cast<double>(c.B)); })),
      planting("grad-broadcast", "", "sink 0", results(has_sink, [](C, R r) { multiply(r.grad_sink, 0); })),
      planting("grad-broadcast", "", "sink averaged",
               results(has_sink, [](C c, R r) { multiply(r.grad_sink, 1 / tokens(c)); })),
      planting("grad-rope", "", "",
               [](C call) -> std::optional<Wrong> {
                 if (call.upstream.empty() || call.turn == Turn::none) return {};
                 Wrong wrong;
                 wrong.positions.back = WrongPositions::Back::same_direction;
                 return wrong;
               }),
      planting("grad-uniform-factor", "", "2", all_times([](C) { return 2; })),
      planting("grad-uniform-factor", "", "1 / N", all_times([](C c) { return 1 / tokens(c); })),
      planting("grad-uniform-factor", "", "N", all_times([](C c) { return tokens(c); })),
      planting("grad-uniform-factor", "", "loss scale", all_times([](C) { return 1024; })),
      planting("grad-uniform-factor", "not-zeroed", "", not_zeroed),
      planting("saved-tensor-mutated", "", "value",
               mutated(&Call::value, &WrongBackward::value, &Results::value_after)),
      planting("saved-tensor-mutated", "", "key",
               mutated(&Call::key, &WrongBackward::key, &Results::key_after)),
      planting("saved-tensor-mutated", "", "query",
               mutated(&Call::query, &WrongBackward::query, &Results::query_after)),
      planting("saved-tensor-mutated", "", "weights",
               when(dropped, [](C, W w) { w.drop = Drop::dropped_weights_and_delta; })),
  };
}

}  // namespace tapehead::planted
