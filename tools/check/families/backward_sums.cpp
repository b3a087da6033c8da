// Gradients whose sums have lost terms, or counted them again.

#include <algorithm>
#include <array>
#include <cmath>

#include <tapehead/core/errors.h>
#include <tools/check/families/backward.h>
#include <tools/check/families/least_squares.h>

namespace tapehead::check {
namespace {

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

}  // namespace

void add_sums(const Call& call, const Work& right, Hypotheses& to) {
  add_paths(call, to);
  add_terms(call, to, "grad_x");
  add_terms(call, to, "grad_y");
  add_all_repeated(call, right, to);
  add_uniform(call, right, to);
  add_not_zeroed(call, to);
}

}  // namespace tapehead::check
