#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <tools/check/families/hypotheses.h>

namespace tapehead::check {
namespace {

// ---- which key head a query head reads

using HeadMap = std::vector<Index>;

template <class F>
HeadMap map_of(const Call& call, F f) {
  HeadMap map;
  for (Index h = 0; h < call.H; ++h) map.push_back(f(h));
  return map;
}

HeadMap right_map(const Call& call) {
  return map_of(call,
                [&](Index h) { return call.contract.tiled_heads ? h % call.Hk : h / (call.H / call.Hk); });
}

Change reads(HeadMap map) {
  return [map](Formula& f) { f.inputs = after(f.inputs, [map](Work& w) { w.key_head = map; }); };
}

// The backward pass reads and adds to other key heads than the forward pass.
Change reads_backward(HeadMap map) {
  return [map](Formula& f) {
    f.before_backward = after(f.before_backward, [map](Work& w) { w.key_head = map; });
  };
}

// It reads the right ones, and adds to others.
Change adds_to(HeadMap map) {
  const auto with_map = [map](const Step& step) {
    return [map, step](Work& w) {
      const HeadMap right = std::exchange(w.key_head, map);
      step(w);
      w.key_head = right;
    };
  };
  return [with_map](Formula& f) {
    f.values_backward = [right = f.values_backward, wrong = with_map(f.values_backward)](Work& w) {
      wrong(w);
      Numbers dvalue = std::move(w.dvalue);
      right(w);
      w.dvalue = std::move(dvalue);
    };
    f.products_backward = [right = f.products_backward, wrong = with_map(f.products_backward)](Work& w) {
      wrong(w);
      Numbers dkey = std::move(w.dkey);
      right(w);
      w.dkey = std::move(dkey);
    };
  };
}

// For each query head, the key head that fits its output best.
std::optional<HeadMap> fitted_map(const Call& call) {
  const Array<double>* got = find(call.candidate, "output");
  if (!got || got->rank() != 4) return std::nullopt;
  HeadMap map(place(call.H), 0);
  std::vector<double> least(place(call.H), std::numeric_limits<double>::infinity());
  for (Index g = 0; g < call.Hk; ++g) {
    Formula f = formula_of(call);
    reads(HeadMap(place(call.H), g))(f);
    const Work work = evaluate(call, f, false);
    if (work.output.shape != got->shape()) return std::nullopt;
    std::vector<double> left(place(call.H));
    for (Index n = 0; n < got->size(); ++n) {
      const double off = got->data()[n] - work.output.at[place(n)];
      if (std::isfinite(off)) left[place(n / (call.L * call.E) % call.H)] += off * off;
    }
    for (std::size_t h = 0; h < left.size(); ++h) {
      if (left[h] < least[h]) least[h] = left[h], map[h] = g;
    }
  }
  return map;
}

class HeadMaps {
 public:
  explicit HeadMaps(const Call& call) : call_(call), right_(right_map(call)) {}

  void add(std::string_view id, std::string_view variant, const HeadMap& map) {
    const bool exists = std::all_of(map.begin(), map.end(), [&](Index g) { return g >= 0 && g < call_.Hk; });
    if (!exists || map == right_) return;
    named_.push_back(map);
    found_.push_back(hypothesis(id, variant, reads(map)));
    if (id == "gqa-tile") return;
    found_.push_back(backward_hypothesis(id, variant, reads_backward(map)));
    found_.push_back(backward_hypothesis(id, variant, adds_to(map)));
  }
  void add_fitted() {
    const auto map = fitted_map(call_);
    if (!map || *map == right_ || std::find(named_.begin(), named_.end(), *map) != named_.end()) return;
    std::map<std::string, double> numbers;
    for (std::size_t h = 0; h < map->size(); ++h) {
      numbers[fmt::format("key head of head {}", h)] = static_cast<double>((*map)[h]);
    }
    found_.push_back(hypothesis("gqa-wrong-index", "divisor", reads(*map), numbers));
    found_.back().generic = true;
  }
  std::vector<Hypothesis> take() { return std::move(found_); }

 private:
  const Call& call_;
  HeadMap right_;
  std::vector<HeadMap> named_;
  std::vector<Hypothesis> found_;
};

std::vector<Hypothesis> wrong_maps(const Call& call) {
  if (call.H == call.Hk) return {};
  HeadMaps maps(call);
  const Index Hk = call.Hk, G = call.H / call.Hk;
  const bool tiled = call.contract.tiled_heads;
  maps.add("gqa-tile", "", map_of(call, [=](Index h) { return tiled ? h / G : h % Hk; }));
  maps.add("gqa-wrong-index", "divisor", map_of(call, [=](Index h) { return h / Hk; }));
  maps.add("gqa-wrong-index", "divisor", map_of(call, [=](Index h) { return h % G; }));
  for (Index tile = 2; tile < call.H; tile *= 2) {
    if (G % tile == 0) continue;  // no tile crosses a group
    maps.add("gqa-wrong-index", "tile-boundary", map_of(call, [=](Index h) { return h / tile * tile / G; }));
  }
  maps.add("gqa-wrong-index", "first", map_of(call, [](Index) { return Index{0}; }));
  maps.add_fitted();
  return maps.take();
}

// ---- numbers in another order

// y[n] = x[from[n]]
using Order = std::vector<std::size_t>;
void reorder(Numbers& x, const Order& from) {
  const SharedNumbers old = x.at;
  for (std::size_t n = 0; n < from.size(); ++n) x.at[n] = old[from[n]];
}
void order_back(Numbers& dy, const Order& from) {
  const SharedNumbers old = dy.at;
  for (std::size_t n = 0; n < from.size(); ++n) dy.at[from[n]] = old[n];
}

// (B, H, L, E) in memory, read as (B, L, H, E)
Order merged_as_it_lies(const Shape& s) {
  Order from;
  for (Index b = 0; b < s[0]; ++b) {
    for (Index h = 0; h < s[1]; ++h) {
      for (Index i = 0; i < s[2]; ++i) {
        for (Index e = 0; e < s[3]; ++e) from.push_back(place(((b * s[2] + i) * s[1] + h) * s[3] + e));
      }
    }
  }
  return from;
}

// (B, L, H, D) in memory, read as (B, H, L, D): place n of memory is token n / (H D), head n / D mod H.
Order split_as_it_lies(const Shape& s) {
  Order from;
  for (Index b = 0; b < s[0]; ++b) {
    for (Index n = 0; n < s[1] * s[2]; ++n) {
      const Index head = n % s[1], token = n / s[1];
      for (Index d = 0; d < s[3]; ++d) from.push_back(place(((b * s[1] + head) * s[2] + token) * s[3] + d));
    }
  }
  return from;
}

// Row r = b H + h of (B H) holds what belongs to sample r mod B, head r / B.
Order swapped_samples(const Shape& s) {
  Order from;
  for (Index r = 0; r < s[0] * s[1]; ++r) {
    const Index b = r % s[0], h = r / s[0];
    for (Index n = 0; n < s[2] * s[3]; ++n) from.push_back(place((b * s[1] + h) * s[2] * s[3] + n));
  }
  return from;
}

Order reversed(const Order& order) {
  Order back(order.size());
  for (std::size_t n = 0; n < order.size(); ++n) back[order[n]] = n;
  return back;
}

using OrderOf = std::function<Order(const Shape&)>;

Change output_in(const OrderOf& order) {
  return [order](Formula& f) {
    f.whole = true;
    f.values = after(f.values, [order](Work& w) { reorder(w.output, order(w.output.shape)); });
    f.output_backward =
        after(f.output_backward, [order](Work& w) { order_back(w.doutput, order(w.doutput.shape)); });
  };
}

Change inputs_in(const OrderOf& order) {
  return [order](Formula& f) {
    f.whole = true;
    f.inputs = after(f.inputs, [order](Work& w) {
      for (Numbers* x : {&w.query_unnormed, &w.key_unnormed, &w.value}) reorder(*x, order(x->shape));
    });
    f.norms_backward = after(f.norms_backward, [order](Work& w) {
      for (Numbers* x : {&w.dquery_unnormed, &w.dkey_unnormed, &w.dvalue}) order_back(*x, order(x->shape));
    });
  };
}

// ---- attention over the heads of each token

Array<double> axes_swapped(const Array<double>& x) {
  Numbers y({x.dim(0), x.dim(2), x.dim(1), x.dim(3)});
  const Numbers from(x);
  for (Index b = 0; b < x.dim(0); ++b) {
    for (Index h = 0; h < x.dim(1); ++h) {
      for (Index i = 0; i < x.dim(2); ++i) {
        for (Index d = 0; d < x.dim(3); ++d) y(b, i, h, d) = from(b, h, i, d);
      }
    }
  }
  return y.array();
}

constexpr const char* of_queries_and_keys[] = {
    "query",           "key",           "query_unnormed", "key_unnormed",
    "query_unrotated", "key_unrotated", "value",          "upstream"};

// The inputs are those of the work where nothing happens to them before the scores, so that what rounding
// does to them reaches the results.
Call over_heads(const Work& w) {
  const Call& call = *w.call;
  Call swapped = call;
  std::swap(swapped.H, swapped.L);
  swapped.Hk = swapped.H;
  swapped.S = swapped.L;
  swapped.candidate.clear();
  swapped.inputs.clear();
  for (const char* name : of_queries_and_keys) {
    if (const auto* x = find(call.inputs, name)) swapped.inputs[name] = axes_swapped(*x);
  }
  for (const char* name : {"query_gain", "key_gain"}) {
    if (const auto* x = find(call.inputs, name)) swapped.inputs[name] = *x;
  }
  if (find(call.inputs, "query")) swapped.inputs["query"] = axes_swapped(w.query.array());
  if (find(call.inputs, "key")) swapped.inputs["key"] = axes_swapped(w.key.array());
  return swapped;
}

Change attends_over_heads() {
  return [](Formula& f) {
    f.whole = true;
    const Step swap = [](Work& w) {
      const Call swapped = over_heads(w);
      const Tensors results = evaluate(swapped, right_formula()).results;
      for (const char* name : {"output", "grad_query", "grad_key", "grad_value"}) {
        if (const auto* x = find(results, name)) w.results[name] = axes_swapped(*x);
      }
    };
    f.results = after(f.results, swap);
    f.gradients = after(f.gradients, swap);
  };
}

bool can_attend_over_heads(const Call& call) {
  const auto* output = find(call.candidate, "output");
  const bool cut = find(call.inputs, "query") && find(call.inputs, "key") && find(call.inputs, "value");
  return call.H == call.Hk && call.L == call.S && (call.H > 1 || call.L > 1) && !find(call.inputs, "x") &&
         (cut || !find(call.inputs, "projection")) && (!output || output->rank() == 4) && call.rows.empty();
}

// ---- fused projections

// The column of the fused projection where a channel of a head of query (0), key (1) or value (2) lies.
using Column = std::function<Index(const Call&, int which, Index head, Index channel)>;

// Blocks of all queries, all keys, all values.
Index column_of_blocks(const Call& c, int which, Index head, Index channel) {
  const Index first = which == 0 ? 0 : which == 1 ? c.H * c.D : (c.H + c.Hk) * c.D;
  return first + head * (which == 2 ? c.E : c.D) + channel;
}

// Groups of G queries, a key and a value.
Index column_of_groups(const Call& c, int which, Index head, Index channel) {
  const Index G = c.H / c.Hk, width = (G + 1) * c.D + c.E;
  if (which == 0) return head / G * width + head % G * c.D + channel;
  return head * width + (which == 1 ? G : G + 1) * c.D + channel;
}

// Channels of query, key and value side by side.
Index column_of_channels(const Call& c, int which, Index head, Index channel) {
  return (head * c.D + channel) * 3 + which;
}

template <class F>
void for_each_packed(Work& w, const Column& column, Numbers* const of[3], F f) {
  const Index N = find(w.inputs, "projection")->dim(-1);
  for (int which = 0; which < 3; ++which) {
    Numbers& x = *of[which];
    for (Index b = 0; b < x.shape[0]; ++b) {
      for (Index h = 0; h < x.shape[1]; ++h) {
        for (Index i = 0; i < x.shape[2]; ++i) {
          for (Index d = 0; d < x.shape[3]; ++d) {
            f(x(b, h, i, d), (b * x.shape[2] + i) * N + column(*w.call, which, h, d));
          }
        }
      }
    }
  }
}

Change packed_by(const Column& column) {
  return [column](Formula& f) {
    f.contract = after(f.contract, [](Work& w) {
      for (const std::string name : {"query", "key", "value"}) {
        for (const char* stage : {"", "_unnormed", "_unrotated"}) w.inputs.erase(name + stage);
      }
    });
    f.inputs = after(f.inputs, [column](Work& w) {
      Numbers* const of[] = {&w.query_unnormed, &w.key_unnormed, &w.value};
      const double* const from = find(w.inputs, "projection")->data();
      for_each_packed(w, column, of, [&](double& x, Index n) { x = from[n]; });
    });
    f.inputs_backward = after(f.inputs_backward, [column](Work& w) {
      Numbers* const of[] = {&w.dquery_unnormed, &w.dkey_unnormed, &w.dvalue};
      double* const to = w.results["grad_projection"].mutable_values().data();
      for_each_packed(w, column, of, [&](double& x, Index n) { to[n] = x; });
    });
  };
}

}  // namespace

std::vector<Hypothesis> head_mistakes(const Call& call) {
  std::vector<Hypothesis> result = wrong_maps(call);
  const auto add = [&](std::string_view id, std::string_view variant, Change change) {
    result.push_back(hypothesis(id, variant, std::move(change)));
  };
  if (call.H > 1 && call.L > 1) add("heads-merge-no-transpose", "", output_in(merged_as_it_lies));
  if (call.H > 1 && call.B > 1) {
    add("heads-merge-no-transpose", "batch-swap", output_in(swapped_samples));
    add("heads-merge-no-transpose", "batch-swap",
        output_in([](const Shape& s) { return reversed(swapped_samples(s)); }));
  }
  if (call.H > 1 && (call.L > 1 || call.S > 1)) {
    add("heads-split-no-transpose", "", inputs_in(split_as_it_lies));
  }
  if (can_attend_over_heads(call)) add("attend-over-heads", "", attends_over_heads());
  if (find(call.inputs, "projection")) {
    add("qkv-packing-order", "", packed_by(column_of_blocks));
    add("qkv-packing-order", "", packed_by(column_of_groups));
    if (call.H == call.Hk && call.D == call.E) add("qkv-packing-order", "", packed_by(column_of_channels));
  }
  return result;
}

}  // namespace tapehead::check
