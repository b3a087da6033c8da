#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <tapehead/ops/rounding.h>
#include <tools/check/families/hypotheses.h>

namespace tapehead::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// ---- weights that sum to 1 over something else

// The number of the sum that a weight belongs to.
using Group = std::function<Index(const Call&, Index b, Index h, Index i, Index j)>;

template <class F>
void for_each_seen(const Work& w, const Group& group, F f) {
  std::size_t n = 0;
  for_each_row(*w.call, [&](Index b, Index h, Index i) {
    for (Index j = 0; j < w.call->S; ++j, ++n) {
      if (w.visible[n]) f(n, place(group(*w.call, b, h, i, j)));
    }
  });
}

Change over(const Group& group) {
  return [group](Formula& f) {
    f.whole = true;
    f.softmax = [right = f.softmax, group](Work& w) {
      right(w);
      std::vector<double> largest(w.scores.at.size(), -infinity), total(largest.size());
      for_each_seen(w, group,
                    [&](std::size_t n, std::size_t g) { largest[g] = std::max(largest[g], w.scores.at[n]); });
      for_each_seen(w, group, [&](std::size_t n, std::size_t g) {
        total[g] += w.weights.at[n] = std::exp(w.scores.at[n] - largest[g]);
      });
      for_each_seen(w, group, [&](std::size_t n, std::size_t g) { w.weights.at[n] /= total[g]; });
    };
    f.softmax_backward = [right = f.softmax_backward, group](Work& w) {
      right(w);
      std::vector<double> mean(w.scores.at.size());
      for_each_seen(w, group,
                    [&](std::size_t n, std::size_t g) { mean[g] += w.weights.at[n] * w.dweights.at[n]; });
      for_each_seen(w, group, [&](std::size_t n, std::size_t g) {
        w.dscores.at[n] = w.weights.at[n] * (w.dweights.at[n] - mean[g]);
      });
    };
  };
}

Change no_softmax() {
  return [](Formula& f) {
    f.softmax = after(f.softmax, [](Work& w) {
      for (std::size_t n = 0; n < w.scores.at.size(); ++n)
        w.weights.at[n] = w.visible[n] ? w.scores.at[n] : 0;
    });
    f.softmax_backward = after(f.softmax_backward, [](Work& w) {
      for (std::size_t n = 0; n < w.scores.at.size(); ++n)
        w.dscores.at[n] = w.visible[n] ? w.dweights.at[n] : 0;
    });
  };
}

std::vector<Hypothesis> wrong_axes(const Call& call) {
  using C = const Call&;
  const auto axis = [](std::string_view variant, const Group& group) {
    return hypothesis("softmax-wrong-axis", variant, over(group));
  };
  std::vector<Hypothesis> result = {
      axis("query", [](C c, Index b, Index h, Index, Index j) { return (b * c.H + h) * c.S + j; }),
      axis("head", [](C c, Index b, Index, Index i, Index j) { return (b * c.L + i) * c.S + j; }),
      axis("batch", [](C c, Index, Index h, Index i, Index j) { return (h * c.L + i) * c.S + j; }),
      axis("global", [](C, Index, Index, Index, Index) { return Index{0}; }),
      hypothesis("softmax-missing", "", no_softmax()),
  };
  if (call.L > 1)  // one row is normalised as it should be
    result.push_back(axis("global", [](C c, Index b, Index h, Index, Index) { return b * c.H + h; }));
  return result;
}

// ---- sinks

// The logits of the sinks, one a head, are these; their gradient is named only when the call has a sink.
Change sinks(std::vector<double> logits) {
  return [logits](Formula& f) {
    const bool all = logits.size() > 1;
    f.contract = after(f.contract, [logits, all](Work& w) {
      std::vector<double> of_heads(place(w.call->H), logits[0]);
      if (all) of_heads = logits;
      w.inputs["sink"] = Array<double>::from(of_heads);
    });
  };
}

// e^sigma counted n times: sigma + log n
Change counted(double times) {
  return [times](Formula& f) {
    f.contract = after(f.contract, [times](Work& w) {
      for (double& sigma : w.inputs["sink"].mutable_values()) sigma += std::log(times);
    });
  };
}

// total = sum e^(s - m) + e^sigma, m the largest score, of the sink too or not. The gradient of m is left
// out, as kernels do, or goes to the largest score, as it does on a tape.
enum class Largest { of_keys, of_sink_too };
enum class OfLargest { left_out, kept };

double largest_score(const Work& w, Index b, Index h, Index i) {
  double largest = -infinity;
  for (Index j = 0; j < w.call->S; ++j) {
    if (w.sees(b, h, i, j)) largest = std::max(largest, w.scores(b, h, i, j));
  }
  return largest;
}

void weigh_unshifted(Work& w, const Step& right, double unasked, Largest of) {
  const Tensors inputs = w.inputs;
  const Array<double>* sink = find(inputs, "sink");
  w.inputs.erase("sink");
  right(w);
  w.inputs = inputs;
  for_each_row(*w.call, [&](Index b, Index h, Index i) {
    if (w.row_is_empty(b, h, i)) return;
    const double sigma = sink ? sink->data()[h] : unasked, of_keys = w.log_sum_exp(b, h, i);
    double m = largest_score(w, b, h, i);
    if (of == Largest::of_sink_too) m = std::max(m, sigma);
    const double keys = std::exp(of_keys - m), total = keys + std::exp(sigma);
    for (Index j = 0; j < w.call->S; ++j) w.weights(b, h, i, j) *= keys / total;
    w.sink_share(b, h, i) = std::exp(sigma) / total;
    w.log_sum_exp(b, h, i) = m + std::log(total);
  });
}

// What m takes: the sum of dS, with the opposite sign.
void add_gradient_of_largest(Work& w) {
  for_each_row(*w.call, [&](Index b, Index h, Index i) {
    if (w.row_is_empty(b, h, i)) return;
    const double m = largest_score(w, b, h, i);
    double sum = 0;
    for (Index j = 0; j < w.call->S; ++j) sum += w.dscores(b, h, i, j);
    for (Index j = 0; j < w.call->S; ++j) {
      if (!w.sees(b, h, i, j) || w.scores(b, h, i, j) != m) continue;
      w.dscores(b, h, i, j) -= sum;
      return;
    }
  });
}

Change unshifted(double unasked, Largest of, OfLargest gradient) {
  return [=](Formula& f) {
    f.softmax = [right = f.softmax, unasked, of](Work& w) { weigh_unshifted(w, right, unasked, of); };
    if (gradient == OfLargest::kept) f.softmax_backward = after(f.softmax_backward, add_gradient_of_largest);
  };
}

// sigma = lambda + log(1 / rho - 1) for each head, where output = rho times the right one: over the rows,
// each weighted by how well it tells. Nothing when some head does not tell.
std::optional<std::vector<double>> fitted_sinks(const Call& call) {
  const Array<double>* got = find(call.candidate, "output");
  if (!got || got->rank() != 4) return std::nullopt;
  const Work right = evaluate(call, formula_of(call), false);
  if (find(right.results, "output")->shape() != got->shape()) return std::nullopt;
  std::vector<double> sum(place(call.H)), weight(sum.size());
  for_each_row(call, [&](Index b, Index h, Index i) {
    double along = 0, length = 0;
    for (Index e = 0; e < call.E; ++e) {
      const double x = right.output(b, h, i, e);
      along += x * got->data()[((b * call.H + h) * call.L + i) * call.E + e];
      length += x * x;
    }
    const double rho = along / length;
    if (!(rho > 1e-6 && rho < 1 - 1e-6)) return;
    const double telling = rho * (1 - rho) * rho * (1 - rho) * length;
    sum[place(h)] += telling * (right.log_sum_exp(b, h, i) + std::log(1 / rho - 1));
    weight[place(h)] += telling;
  });
  for (std::size_t h = 0; h < sum.size(); ++h) {
    if (weight[h] == 0) return std::nullopt;
    sum[h] /= weight[h];
  }
  return sum;
}

std::vector<Hypothesis> wrong_sinks(const Call& call) {
  const char* id = "sink-mishandled";
  std::vector<Hypothesis> result;
  const bool asked = find(call.inputs, "sink") != nullptr;
  for (const OfLargest gradient : {OfLargest::left_out, OfLargest::kept}) {
    result.push_back(hypothesis(id, "unshifted", unshifted(0, Largest::of_keys, gradient)));
    if (asked) result.push_back(hypothesis(id, "unshifted", unshifted(0, Largest::of_sink_too, gradient)));
  }
  if (asked) {
    result.push_back(hypothesis(id, "absent", sinks({-infinity})));
    std::vector<Change> changes;
    for (int n = 2; n <= 16; ++n) changes.push_back(counted(n));
    if (const auto n = nearest(call, changes, Part::results)) {
      result.push_back(hypothesis(id, "split", changes[*n], {{"times", static_cast<double>(*n + 2)}}));
    }
    return result;
  }
  result.push_back(hypothesis(id, "present", sinks({0}), {{"sink", 0}}));
  const auto logits = fitted_sinks(call);
  if (!logits) return result;
  std::map<std::string, double> numbers;
  for (std::size_t h = 0; h < logits->size(); ++h) numbers[fmt::format("sink of head {}", h)] = (*logits)[h];
  result.push_back(hypothesis(id, "present", sinks(*logits), numbers));
  result.back().generic = true;
  return result;
}

// ---- tiles with a running maximum

enum class Stale { both, sum, output };  // what is not rescaled when the maximum rises

void weigh_without_rescaling(Work& w, Index tile, Stale stale) {
  const Index S = w.call->S;
  std::vector<double> old(place(S)), right(place(S));
  for_each_row(*w.call, [&](Index b, Index h, Index i) {
    if (w.row_is_empty(b, h, i)) return;
    const double largest = largest_score(w, b, h, i), sink = w.sink_share(b, h, i);
    const double of_sink = sink > 0 ? std::exp(w.log_sum_exp(b, h, i) - largest) * sink : 0;
    double running = -infinity, sum = of_sink;
    for (Index first = 0; first < S; first += tile) {
      const Index end = std::min(first + tile, S);
      for (Index j = first; j < end; ++j) {
        if (w.sees(b, h, i, j)) running = std::max(running, w.scores(b, h, i, j));
      }
      for (Index j = first; j < end; ++j) {
        const bool seen = w.sees(b, h, i, j);
        old[place(j)] = seen ? std::exp(w.scores(b, h, i, j) - running) : 0;
        right[place(j)] = seen ? std::exp(w.scores(b, h, i, j) - largest) : 0;
        sum += stale == Stale::output ? right[place(j)] : old[place(j)];
      }
    }
    for (Index j = 0; j < S; ++j) {
      w.weights(b, h, i, j) = (stale == Stale::sum ? right[place(j)] : old[place(j)]) / sum;
    }
    w.sink_share(b, h, i) = of_sink / sum;
    w.log_sum_exp(b, h, i) = largest + std::log(sum);
  });
}

Change no_rescale(Index tile, Stale stale) {
  return [tile, stale](Formula& f) {
    f.softmax = after(f.softmax, [tile, stale](Work& w) { weigh_without_rescaling(w, tile, stale); });
  };
}

NumberType exponentials_in(NumberType type) { return type == NumberType::bf16 ? NumberType::f32 : type; }

// m = max(start, s): exponentials below the smallest number of the type are lost, and 0 / 0 is NaN or 0.
void weigh_from(Work& w, double start, bool guarded) {
  const NumberType type = exponentials_in(w.contract.computed_in);
  for_each_row(*w.call, [&](Index b, Index h, Index i) {
    if (w.row_is_empty(b, h, i) || !(largest_score(w, b, h, i) < start)) return;
    double total = 0;
    for (Index j = 0; j < w.call->S; ++j) {
      double& p = w.weights(b, h, i, j);
      p = w.sees(b, h, i, j) ? round_to(std::exp(w.scores(b, h, i, j) - start), type) : 0;
      total += p;
    }
    const double sink = w.sink_share(b, h, i);
    const double of_sink = sink > 0 ? std::exp(w.log_sum_exp(b, h, i) - start) * sink : 0;
    total += of_sink;
    w.log_sum_exp(b, h, i) = start + std::log(total);
    if (total == 0 && guarded) total = 1;
    w.sink_share(b, h, i) = of_sink / total;
    for (Index j = 0; j < w.call->S; ++j) {
      if (w.sees(b, h, i, j)) w.weights(b, h, i, j) /= total;
    }
  });
}

Change started_at(double start, bool guarded) {
  return [start, guarded](Formula& f) {
    f.softmax = after(f.softmax, [start, guarded](Work& w) { weigh_from(w, start, guarded); });
    f.softmax_backward = after(f.softmax_backward, [](Work& w) {
      for (std::size_t n = 0; n < w.weights.at.size(); ++n) {
        if (std::isnan(w.weights.at[n])) w.dscores.at[n] = w.weights.at[n];
      }
    });
  };
}

std::vector<Hypothesis> wrong_tiles(const Call& call) {
  const char* id = "online-softmax-state";
  std::vector<Hypothesis> result;
  for (const Stale stale : {Stale::both, Stale::sum, Stale::output}) {
    std::vector<Change> changes;
    std::vector<Index> tiles;
    for (Index tile = 1; tile < call.S; tile = tile < 16 ? tile + 1 : tile * 2) {
      changes.push_back(no_rescale(tile, stale));
      tiles.push_back(tile);
    }
    const auto best = nearest(call, changes, Part::results);
    if (!best) continue;
    result.push_back(
        hypothesis(id, "no-rescale", changes[*best], {{"tile", static_cast<double>(tiles[*best])}}));
  }
  for (const bool guarded : {false, true}) {
    result.push_back(hypothesis(id, "init", started_at(0, guarded), {{"start", 0}}));
  }
  return result;
}

// ---- parts of the keys, merged

enum class Merge { base_2, mean, mean_of_all, counts, counts_of_visible };

double lambda_of(const Work& w, Index b, Index h, Index i, Index first, Index end) {
  double largest = -infinity, total = 0;
  for (Index j = first; j < end; ++j) {
    if (w.sees(b, h, i, j)) largest = std::max(largest, w.scores(b, h, i, j));
  }
  if (largest == -infinity) return -infinity;
  for (Index j = first; j < end; ++j) {
    if (w.sees(b, h, i, j)) total += std::exp(w.scores(b, h, i, j) - largest);
  }
  return largest + std::log(total);
}

// e^(lambda / ln 2), 1, or a number of keys; lambda is of the part, less that of the row
double share_of(Merge merge, double lambda, Index keys, Index visible) {
  if (merge == Merge::mean_of_all) return 1;
  if (lambda == -infinity) return 0;
  switch (merge) {
    case Merge::base_2:
      return std::exp(lambda / std::log(2.0));
    case Merge::counts:
      return static_cast<double>(keys);
    case Merge::counts_of_visible:
      return static_cast<double>(visible);
    default:
      return 1;
  }
}

void merge_row(Work& w, const std::vector<Index>& ends, Merge merge, Index b, Index h, Index i) {
  std::vector<double> shares, lambdas;
  double total = 0;
  Index first = 0;
  for (const Index end : ends) {
    Index visible = 0;
    for (Index j = first; j < end; ++j) visible += w.sees(b, h, i, j);
    const double lambda = lambda_of(w, b, h, i, first, end);
    lambdas.push_back(lambda);
    shares.push_back(share_of(merge, lambda - w.log_sum_exp(b, h, i), end - first, visible));
    total += shares.back();
    first = end;
  }
  first = 0;
  for (std::size_t n = 0; n < ends.size(); first = ends[n++]) {
    for (Index j = first; j < ends[n]; ++j) {
      if (w.sees(b, h, i, j)) {
        w.weights(b, h, i, j) = std::exp(w.scores(b, h, i, j) - lambdas[n]) * shares[n] / total;
      }
    }
  }
}

Change merged(std::vector<Index> ends, Merge merge) {
  return [ends, merge](Formula& f) {
    f.softmax = after(f.softmax, [ends, merge](Work& w) {
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        if (!w.row_is_empty(b, h, i)) merge_row(w, ends, merge, b, h, i);
      });
    });
  };
}

std::vector<Index> equal_parts(Index keys, Index count) {
  const Index size = (keys + count - 1) / count;
  std::vector<Index> ends;
  for (Index end = size; end < keys; end += size) ends.push_back(end);
  ends.push_back(keys);
  return ends;
}

// The ends of parts as dumped, or some that an implementation may have chosen.
std::vector<std::vector<Index>> possible_ends(const Call& call) {
  if (const auto* given = find(call.inputs, "partial_end")) {
    std::vector<Index> ends;
    for (const double end : given->values()) ends.push_back(static_cast<Index>(end));
    return {ends};
  }
  std::vector<std::vector<Index>> all;
  for (Index count = 2; count <= std::min<Index>(call.S, 8); ++count)
    all.push_back(equal_parts(call.S, count));
  return all;
}

std::vector<Hypothesis> wrong_merges(const Call& call) {
  const auto ends = possible_ends(call);
  const bool known = find(call.inputs, "partial_end") != nullptr;
  std::vector<Hypothesis> result;
  const auto add = [&](std::string_view variant, Merge merge) {
    std::vector<Change> changes;
    for (const auto& parts : ends) changes.push_back(merged(parts, merge));
    const auto best = nearest(call, changes, Part::results);
    if (!best) return;
    result.push_back(hypothesis("split-merge-weights", variant, changes[*best],
                                {{"parts", static_cast<double>(ends[*best].size())}}));
    result.back().generic = !known;
  };
  add("base2", Merge::base_2);
  for (const Merge merge : {Merge::mean, Merge::mean_of_all}) add("plain", merge);
  for (const Merge merge : {Merge::counts, Merge::counts_of_visible}) add("counts", merge);
  return result;
}

}  // namespace

std::vector<Hypothesis> softmax_mistakes(const Call& call) {
  std::vector<Hypothesis> result = wrong_axes(call);
  for (auto more : {wrong_sinks(call), wrong_tiles(call), wrong_merges(call)}) {
    std::move(more.begin(), more.end(), std::back_inserter(result));
  }
  return result;
}

}  // namespace tapehead::check
