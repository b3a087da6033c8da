#include "tools/planted/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/planted/positions.h"

namespace tapehead::planted {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

class Loops {
 public:
  Loops(const Call& call, const Wrong& wrong, const Rounding& rounding)
      : c_(call), w_(wrong), r_(rounding), positions_(call, wrong.positions, rounding) {}

  Results results() {
    q_ = positions_.query(), k_ = positions_.key(), v_ = positions_.value();
    score_all();
    normalise();
    drop();
    Results out;
    out.output = products(w_kept_);
    out.weights = p_;
    if (has_lse()) out.lse = lse_;
    if (!c_.part_ends.empty()) parts(out);
    if (!c_.upstream.empty()) backward(out);
    return out;
  }

 private:
  using Axis = Wrong::Axis;
  Grid scores_like() const { return {c_.B, c_.H, c_.L, c_.S}; }
  Index key_head(Index h) const { return w_.key_head ? w_.key_head(h) : c_.key_head(h); }
  bool visible(Index b, Index h, Index i, Index j) const {
    return w_.visible ? c_.is_row(b, i) && w_.visible(b, h, i, j) : c_.visible(b, h, i, j);
  }
  // Log-sum-exps are of rows.
  bool has_lse() const { return w_.axis == Axis::key; }

  double bias(Index b, Index h, Index i, Index j) const {
    return c_.bias.empty() ? 0 : c_.bias.numbers[c_.bias.repeated(b, h, i, j)];
  }
  double unlearned_bias(Index b, Index h, Index i, Index j) const {
    double sum = w_.added ? w_.added(b, h, i, j) : 0;
    if (c_.mask_kind == MaskKind::additive && !w_.finite_mask_ignored) {
      const double m = c_.mask.numbers[c_.mask.repeated(b, h, i, j)];
      if (std::isfinite(m)) sum += m;
    }
    const std::vector<double>& slopes = w_.slopes.empty() ? c_.slopes : w_.slopes;
    if (!slopes.empty()) {
      const double distance = c_.key_position(b, j) - c_.query_position(b, i);
      sum += slopes[static_cast<std::size_t>(h)] * (w_.signed_distance ? distance : -std::abs(distance));
    }
    return sum;
  }

  // A score with its derivatives by the raw product and by the bias.
  struct Score {
    double value, slope, bias_slope, slope_without_cap;
  };

  double bounded(double x) const { return r_.step(c_.softcap * std::tanh(r_.step(x / c_.softcap))); }
  double bounded_slope(double x) const {
    const double t = std::tanh(x / c_.softcap);
    return 1 - t * t;
  }

  Score score(double raw, double learned, double unlearned) const {
    using Cap = Wrong::Cap;
    const double t = w_.scale.value_or(c_.score_scale());
    const double bias = learned + unlearned;
    const Cap cap = c_.softcap == 0 ? Cap::omitted : w_.cap;
    const bool before_scale = w_.bias_before_scale != c_.bias_before_scale;
    const double z = before_scale ? r_.step(t * r_.step(raw + learned)) : r_.step(t * raw);
    const double rest = before_scale ? unlearned : bias;
    const double bias_slope = before_scale ? t : 1;
    switch (cap) {
      case Cap::right:
        return {r_.step(bounded(z) + rest), t * bounded_slope(z), before_scale ? t * bounded_slope(z) : 1, t};
      case Cap::with_bias: {
        const double s = r_.step(z + rest);
        return {bounded(s), t * bounded_slope(s), bias_slope * bounded_slope(s), t};
      }
      case Cap::before_scale:
        return {r_.step(r_.step(t * bounded(raw)) + rest), t * bounded_slope(raw), 1, t};
      case Cap::without_bound: {
        const double u = std::tanh(z / c_.softcap);
        return {r_.step(r_.step(z * r_.step(u)) + rest), t * (u + z * (1 - u * u) / c_.softcap), 1, t};
      }
      default:
        return {r_.step(z + rest), t, bias_slope, t};
    }
  }

  void score_all() {
    s_ = slope_ = bias_slope_ = slope_without_cap_ = scores_like();
    seen_.assign(s_.numbers.size(), false);
    const Index channels = w_.channels > 0 ? w_.channels : c_.D;
    each(s_, [&](Index b, Index h, Index i, Index j) {
      double raw = 0;
      for (Index d = 0; d < channels; ++d) raw = r_.sum(raw + q_(b, h, i, d) * k_(b, key_head(h), j, d));
      raw = r_.step(raw);
      if (w_.largest_product > 0 && std::abs(raw) > w_.largest_product) raw = std::copysign(infinity, raw);
      Score s = score(raw, bias(b, h, i, j), unlearned_bias(b, h, i, j));
      if (w_.power_of_two) {
        const double ln2 = std::log(2.0), slope = w_.power_slope ? ln2 : 1;
        s = {s.value * ln2, s.slope * slope, s.bias_slope * slope, s.slope_without_cap * slope};
      }
      if (w_.fixed) {
        if (const auto instead = w_.fixed(b, h, i, j)) s = {*instead, 0, 0, 0};
      }
      s_(b, h, i, j) = s.value, slope_(b, h, i, j) = s.slope;
      bias_slope_(b, h, i, j) = s.bias_slope, slope_without_cap_(b, h, i, j) = s.slope_without_cap;
      seen_[s_.place(b, h, i, j)] = visible(b, h, i, j);
    });
  }

  // ---- softmax: groups of scores whose weights sum to 1

  Index group(Index b, Index h, Index i, Index j) const {
    switch (w_.axis) {
      case Axis::query:
        return (b * c_.H + h) * c_.S + j;
      case Axis::head:
        return (b * c_.L + i) * c_.S + j;
      case Axis::batch:
        return (h * c_.L + i) * c_.S + j;
      case Axis::matrix:
        return b * c_.H + h;
      case Axis::all:
        return 0;
      default:
        return (b * c_.H + h) * c_.L + i;
    }
  }
  template <class F>
  void each_seen(F f) const {
    each(s_, [&](Index b, Index h, Index i, Index j) {
      if (seen_[s_.place(b, h, i, j)]) f(b, h, i, j, static_cast<std::size_t>(group(b, h, i, j)));
    });
  }

  void normalise() {
    p_ = scores_like();
    lse_ = Grid(c_.B, c_.H, c_.L, 1, -infinity);
    if (w_.axis == Axis::none) {
      each_seen([&](Index b, Index h, Index i, Index j, std::size_t) { p_(b, h, i, j) = s_(b, h, i, j); });
      return;
    }
    std::vector<double> largest(s_.numbers.size() + 1, -infinity), total(largest.size(), 0);
    each_seen([&](Index b, Index h, Index i, Index j, std::size_t g) {
      largest[g] = std::max(largest[g], s_(b, h, i, j));
      if (std::isnan(s_(b, h, i, j))) largest[g] = s_(b, h, i, j);
    });
    if (w_.axis == Axis::key) raise_for_sink(largest);
    if (w_.online == Wrong::Online::start)
      for (double& m : largest) m = m > -infinity ? std::max(m, w_.start) : m;
    if (w_.largest_power > 0)
      for (double& m : largest) m = m > -infinity ? 0 : m;
    each_seen([&](Index b, Index h, Index i, Index j, std::size_t g) {
      p_(b, h, i, j) = exponential(s_(b, h, i, j) - largest[g]);
      total[g] = r_.sum(total[g] + p_(b, h, i, j));
    });
    if (w_.axis == Axis::key) add_without_key(largest, total);
    largest_ = largest;
    each_seen([&](Index b, Index h, Index i, Index j, std::size_t g) {
      const bool nothing = total[g] == 0 && w_.guarded;
      p_(b, h, i, j) = nothing ? 0 : r_.step(p_(b, h, i, j) / r_.step(total[g]));
    });
    if (w_.axis == Axis::key) {
      note_lse(largest, total);
      online();
      merge();
      fill_empty_rows();
    }
  }

  double exponential(double x) const {
    double e = r_.step(std::exp(r_.step(x)));
    if (w_.largest_power > 0 && e > w_.largest_power) e = infinity;
    return w_.floor > 0 ? std::max(e, w_.floor) : e;
  }

  const std::vector<double>& sink() const { return w_.other_sink ? w_.sink : c_.sink; }
  double sink_term(Index h, double largest) const {
    if (sink().empty()) return 0;
    const double sigma = sink()[static_cast<std::size_t>(h)];
    return w_.sink_count * std::exp(w_.sink_unshifted ? sigma : sigma - largest);
  }

  // A sink is a score as well, unless it is added without the shift.
  void raise_for_sink(std::vector<double>& largest) const {
    if (sink().empty() || w_.sink_unshifted) return;
    each(lse_, [&](Index b, Index h, Index i, Index) {
      double& m = largest[static_cast<std::size_t>((b * c_.H + h) * c_.L + i)];
      if (m > -infinity) m = std::max(m, sink()[static_cast<std::size_t>(h)]);
    });
  }

  // What joins the sum of a row that sees a key: sink, empty columns, the floor of blocked keys.
  void add_without_key(const std::vector<double>& largest, std::vector<double>& total) const {
    each(lse_, [&](Index b, Index h, Index i, Index) {
      const auto g = static_cast<std::size_t>((b * c_.H + h) * c_.L + i);
      if (largest[g] == -infinity) return;
      double more = sink_term(h, largest[g]);
      if (w_.extra_columns > 0) more += w_.extra_columns * std::exp(-largest[g]);
      total[g] = r_.sum(total[g] + more);
    });
  }

  void note_lse(const std::vector<double>& largest, const std::vector<double>& total) {
    each(lse_, [&](Index b, Index h, Index i, Index) {
      const auto g = static_cast<std::size_t>((b * c_.H + h) * c_.L + i);
      if (largest[g] != -infinity) lse_(b, h, i, 0) = largest[g] + std::log(total[g]);
    });
  }

  // Tiles of keys with a running maximum, whose rise leaves old sums as they are.
  void online() {
    using Online = Wrong::Online;
    if (w_.online == Online::right || w_.online == Online::start) return;
    each(lse_, [&](Index b, Index h, Index i, Index) {
      double largest = -infinity;
      std::vector<double> stale(static_cast<std::size_t>(c_.S), 0), fresh = stale;
      for (Index first = 0; first < c_.S; first += w_.tile) {
        const Index end = std::min(first + w_.tile, c_.S);
        for (Index j = first; j < end; ++j)
          if (seen_[s_.place(b, h, i, j)]) largest = std::max(largest, s_(b, h, i, j));
        for (Index j = first; j < end; ++j)
          if (seen_[s_.place(b, h, i, j)])
            stale[static_cast<std::size_t>(j)] = std::exp(s_(b, h, i, j) - largest);
      }
      for (Index j = 0; j < c_.S; ++j)
        if (seen_[s_.place(b, h, i, j)])
          fresh[static_cast<std::size_t>(j)] = std::exp(s_(b, h, i, j) - largest);
      const auto& above = w_.online == Online::no_rescale_of_sum ? fresh : stale;
      const auto& below = w_.online == Online::no_rescale_of_output ? fresh : stale;
      double total = sink_term(h, largest);
      for (const double e : below) total += e;
      if (largest == -infinity) return;
      for (Index j = 0; j < c_.S; ++j) p_(b, h, i, j) = r_.step(above[static_cast<std::size_t>(j)] / total);
      lse_(b, h, i, 0) = largest + std::log(total);
    });
  }

  // ---- parts of the keys

  struct Part {
    Index first, end;
  };
  std::vector<Part> split() const {
    std::vector<Part> all;
    Index first = 0;
    for (const Index end : c_.part_ends) all.push_back({first, end}), first = end;
    return all;
  }
  double part_lse(Index b, Index h, Index i, const Part& part) const {
    double largest = -infinity, total = 0;
    for (Index j = part.first; j < part.end; ++j)
      if (seen_[s_.place(b, h, i, j)]) largest = std::max(largest, s_(b, h, i, j));
    if (largest == -infinity) return -infinity;
    for (Index j = part.first; j < part.end; ++j)
      if (seen_[s_.place(b, h, i, j)]) total += std::exp(s_(b, h, i, j) - largest);
    return largest + std::log(total);
  }

  void merge() {
    if (w_.merge == Wrong::Merge::not_split) return;
    each(lse_, [&](Index b, Index h, Index i, Index) {
      std::vector<double> shares;
      double total = 0;
      for (const Part& part : split()) {
        const double lambda = part_lse(b, h, i, part), row = lse_(b, h, i, 0);
        double share = std::exp(lambda - row);
        if (w_.merge == Wrong::Merge::base_2) share = std::exp((lambda - row) / std::log(2.0));
        if (w_.merge == Wrong::Merge::mean) share = 1;
        if (w_.merge == Wrong::Merge::counts) share = static_cast<double>(part.end - part.first);
        shares.push_back(lambda > -infinity ? share : 0), total += shares.back();
      }
      for (std::size_t n = 0; n < shares.size(); ++n) {
        const Part part = split()[n];
        const double lambda = part_lse(b, h, i, part);
        for (Index j = part.first; j < part.end; ++j)
          if (seen_[s_.place(b, h, i, j)])
            p_(b, h, i, j) = r_.step(std::exp(s_(b, h, i, j) - lambda) * shares[n] / total);
      }
    });
  }

  void parts(Results& out) const {
    const std::vector<Part> all = split();
    const auto count = static_cast<Index>(all.size());
    out.partial_output = Grid(count * c_.B, c_.H, c_.L, c_.E);
    out.partial_lse = Grid(count * c_.B, c_.H, c_.L, 1, -infinity);
    for (Index n = 0; n < count; ++n) {
      const Part part = all[static_cast<std::size_t>(n)];
      each(lse_, [&](Index b, Index h, Index i, Index) {
        const double lambda = part_lse(b, h, i, part);
        out.partial_lse(n * c_.B + b, h, i, 0) = c_.lse_base_2 ? lambda / std::log(2.0) : lambda;
        for (Index j = part.first; j < part.end; ++j) {
          if (!seen_[s_.place(b, h, i, j)]) continue;
          for (Index e = 0; e < c_.E; ++e)
            out.partial_output(n * c_.B + b, h, i, e) +=
                std::exp(s_(b, h, i, j) - lambda) * v_(b, key_head(h), j, e);
        }
      });
    }
  }

  // ---- rows without keys

  void fill_empty_rows() {
    if (w_.empty == Wrong::Empty::zero) return;
    each(lse_, [&](Index b, Index h, Index i, Index) {
      bool any = false;
      for (Index j = 0; j < c_.S; ++j) any = any || seen_[s_.place(b, h, i, j)];
      if (any) return;
      double largest = -infinity, total = 0;
      for (Index j = 0; j < c_.S; ++j) largest = std::max(largest, s_(b, h, i, j));
      for (Index j = 0; j < c_.S; ++j) total += std::exp(s_(b, h, i, j) - largest);
      for (Index j = 0; j < c_.S; ++j) {
        double& p = p_(b, h, i, j);
        if (w_.empty == Wrong::Empty::nan) p = std::nan("");
        if (w_.empty == Wrong::Empty::uniform) p = r_.step(1 / static_cast<double>(c_.S));
        if (w_.empty == Wrong::Empty::unmasked) p = r_.step(std::exp(s_(b, h, i, j) - largest) / total);
      }
    });
  }

  // ---- weights to output

  double kept(Index b, Index h, Index i, Index j) const {
    if (!w_.keep.empty()) return w_.keep(b, h, i, j) / (1 - c_.dropout);
    if (!c_.train || c_.keep.empty() || w_.no_dropout) return 1;
    return c_.keep(b, h, i, j) / (1 - c_.dropout);
  }

  void drop() {
    if (w_.dropped) {
      unmasked_ = p_;
      each(p_, [&](Index b, Index h, Index i, Index j) {
        if (w_.dropped(b, h, i, j)) p_(b, h, i, j) = 0;
      });
      if (w_.renormalised) renormalise();
    }
    w_kept_ = p_;
    each(p_, [&](Index b, Index h, Index i, Index j) {
      w_kept_(b, h, i, j) = r_.stored(r_.step(p_(b, h, i, j) * kept(b, h, i, j)));
    });
  }

  void renormalise() {
    const Grid p = p_;
    each(p, [&](Index b, Index h, Index i, Index j) {
      double total = 0;
      for (Index other = 0; other < c_.S; ++other) total += p(b, h, i, other);
      if (total > 0) p_(b, h, i, j) = r_.step(p(b, h, i, j) / total);
    });
  }

  Grid products(const Grid& weights) const {
    Grid o(c_.B, c_.H, c_.L, c_.E);
    each(o, [&](Index b, Index h, Index i, Index e) {
      double sum = 0;
      for (Index j = 0; j < c_.S; ++j) {
        if (weights(b, h, i, j) == 0 && !poisoned_by_zero()) continue;
        sum = r_.sum(sum + weights(b, h, i, j) * v_(b, key_head(h), j, e));
      }
      o(b, h, i, e) = sum;
    });
    return o;
  }
  bool poisoned_by_zero() const { return w_.zero_weight_meets_nan; }

  // ---- backward:   dp = do v (kept)      dz = p (dp - delta + dlse)      dq += dz k t      dk += dz q t

  // The weights as the backward pass has them.
  Grid weights_again() const {
    const WrongBackward& wrong = w_.backward;
    if (!wrong.visible) return w_.dropped && !w_.renormalised ? unmasked_ : p_;
    Grid p = scores_like();
    each(p, [&](Index b, Index h, Index i, Index j) {
      const double lambda = lse_(b, h, i, 0);
      if (wrong.visible(b, h, i, j) && lambda > -infinity) p(b, h, i, j) = std::exp(s_(b, h, i, j) - lambda);
    });
    return p;
  }

  double kept_backward(Index b, Index h, Index i, Index j) const {
    const WrongBackward& wrong = w_.backward;
    if (wrong.drop == WrongBackward::Drop::not_in_weights_gradient) return 1;
    if (!wrong.keep.empty()) return wrong.keep(b, h, i, j) / (1 - c_.dropout);
    return kept(b, h, i, j);
  }

  void weights_backward() {
    const Grid& v = w_.backward.value.empty() ? v_ : w_.backward.value;
    dp_ = scores_like();
    each(dp_, [&](Index b, Index h, Index i, Index j) {
      double sum = 0;
      for (Index e = 0; e < c_.E; ++e) sum = r_.sum(sum + c_.upstream(b, h, i, e) * v(b, key_head(h), j, e));
      sum = r_.step(r_.step(sum) * kept_backward(b, h, i, j));
      if (w_.dropped && w_.dropped(b, h, i, j)) sum = 0;
      if (!c_.upstream_weights.empty() && w_.backward.weights_path)
        sum = r_.step(sum + c_.upstream_weights(b, h, i, j));
      dp_(b, h, i, j) = sum;
    });
  }

  // sum of p dp over what was normalised together; of rows, with a mask of its own, from the output instead.
  std::vector<double> deltas(const Grid& p, const Grid& output) const {
    using Jacobian = WrongBackward::Jacobian;
    const WrongBackward& wrong = w_.backward;
    std::vector<double> delta(s_.numbers.size() + 1, 0);
    if (wrong.jacobian == Jacobian::without_delta) return delta;
    each(p, [&](Index b, Index h, Index i, Index j) {
      if (wrong.jacobian == Jacobian::delta_of_some && j >= wrong.delta_keys) return;
      auto& sum = delta[static_cast<std::size_t>(group(b, h, i, j))];
      double weight = p(b, h, i, j);
      if (wrong.drop == WrongBackward::Drop::dropped_weights_and_delta) weight *= kept(b, h, i, j);
      if (weight != 0 || wrong.zero_weight_meets_nan) sum = r_.sum(sum + weight * dp_(b, h, i, j));
    });
    if (!wrong.visible) return delta;
    each(lse_, [&](Index b, Index h, Index i, Index) {
      double sum = 0;
      for (Index e = 0; e < c_.E; ++e) sum += output(b, h, i, e) * c_.upstream(b, h, i, e);
      delta[static_cast<std::size_t>(group(b, h, i, 0))] = sum;
    });
    return delta;
  }

  double delta_for(const Grid& p, const std::vector<double>& delta, Index b, Index h, Index i,
                   Index j) const {
    if (w_.backward.jacobian != WrongBackward::Jacobian::delta_of_own_block)
      return delta[static_cast<std::size_t>(group(b, h, i, j))];
    const Index first = j / w_.backward.delta_keys * w_.backward.delta_keys;
    double sum = 0;
    for (Index n = first; n < std::min(first + w_.backward.delta_keys, c_.S); ++n)
      if (p(b, h, i, n) != 0) sum += p(b, h, i, n) * dp_(b, h, i, n);
    return sum;
  }

  void scores_backward(const Grid& p, const std::vector<double>& delta) {
    const bool lse_path = !c_.upstream_lse.empty() && w_.backward.lse_path;
    const double unit = c_.lse_base_2 ? 1 / std::log(2.0) : 1;
    ds_ = scores_like();
    each(ds_, [&](Index b, Index h, Index i, Index j) {
      const double dp = dp_(b, h, i, j), weight = p(b, h, i, j);
      double& ds = ds_(b, h, i, j);
      if (w_.axis == Axis::none) {
        ds = seen_[s_.place(b, h, i, j)] ? dp : 0;
      } else if (w_.backward.jacobian == WrongBackward::Jacobian::diagonal) {
        ds = r_.step(weight * (1 - weight) * dp);
      } else if (weight != 0 || w_.backward.zero_weight_meets_nan) {
        double inside = r_.step(dp - delta_for(p, delta, b, h, i, j));
        if (lse_path) inside += c_.upstream_lse(b, h, i, 0) * unit;
        double factor = weight;
        if (w_.backward.drop >= WrongBackward::Drop::dropped_weights) factor *= kept(b, h, i, j);
        ds = r_.step(factor * inside);
      }
      if (w_.filled && !seen_[s_.place(b, h, i, j)]) ds = 0;
    });
  }

  // dsink = sum over rows of p_sink (dlse - delta), p_sink = n e^(sink - lse)
  void sink_backward(Results& out, const std::vector<double>& delta) const {
    if (c_.sink.empty()) return;
    const double unit = c_.lse_base_2 ? 1 / std::log(2.0) : 1;
    out.grad_sink = Grid(1, c_.H, 1, 1);
    if (w_.axis != Axis::key || sink().empty()) return;
    each(lse_, [&](Index b, Index h, Index i, Index) {
      if (lse_(b, h, i, 0) == -infinity) return;
      const double largest = largest_[static_cast<std::size_t>(group(b, h, i, 0))];
      const double share = sink_term(h, largest) / std::exp(lse_(b, h, i, 0) - largest);
      const double dlse = c_.upstream_lse.empty() || !w_.backward.lse_path ? 0 : c_.upstream_lse(b, h, i, 0);
      out.grad_sink(0, h, 0, 0) += share * (dlse * unit - delta[static_cast<std::size_t>(group(b, h, i, 0))]);
    });
  }
  // Whether, and how often, the gradient from query head h reaches its key head.
  double share(Index h) const {
    using Share = WrongBackward::Share;
    const Index group = c_.H / c_.Hk, number = c_.tiled ? h / c_.Hk : h % group;
    switch (w_.backward.share) {
      case Share::first:
        return number == 0 ? 1 : 0;
      case Share::last:
        return number == group - 1 ? 1 : 0;
      case Share::mean:
        return 1 / static_cast<double>(group);
      default:
        return 1;
    }
  }
  Index key_head_backward(Index h) const {
    return w_.backward.key_head ? w_.backward.key_head(h) : key_head(h);
  }

  void backward(Results& out) {
    weights_backward();
    const Grid p = weights_again();
    const std::vector<double> delta = deltas(p, out.output);
    scores_backward(p, delta);
    sink_backward(out, delta);
    bias_backward(out);
    Grid dz = ds_;
    each(dz, [&](Index b, Index h, Index i, Index j) {
      const Grid& slope = w_.backward.cap_slope ? slope_ : slope_without_cap_;
      dz(b, h, i, j) = ds_(b, h, i, j) == 0 ? 0 : r_.step(ds_(b, h, i, j) * slope(b, h, i, j));
    });
    query_backward(out, dz);
    key_backward(out, dz);
    value_backward(out, p);
  }

  void bias_backward(Results& out) const {
    if (c_.bias.empty()) return;
    out.grad_bias = c_.bias.like();
    each(ds_, [&](Index b, Index h, Index i, Index j) {
      double& sum = out.grad_bias.numbers[c_.bias.repeated(b, h, i, j)];
      if (ds_(b, h, i, j) != 0) sum = r_.sum(sum + ds_(b, h, i, j) * bias_slope_(b, h, i, j));
    });
  }

  void query_backward(Results& out, const Grid& dz) const {
    const Grid& k = w_.backward.key.empty() ? k_ : w_.backward.key;
    const Index channels = w_.channels > 0 ? w_.channels : c_.D;
    Grid dq = q_.like();
    each(dz, [&](Index b, Index h, Index i, Index j) {
      if (dz(b, h, i, j) == 0) return;
      for (Index d = 0; d < channels; ++d)
        dq(b, h, i, d) =
            r_.sum(dq(b, h, i, d) + dz(b, h, i, j) * w_.backward.query_factor * k(b, key_head(h), j, d));
    });
    out.grad_query = positions_.query_backward(stepped(dq));
  }

  void key_backward(Results& out, const Grid& dz) const {
    const Grid& q = w_.backward.query.empty() ? q_ : w_.backward.query;
    const Index channels = w_.channels > 0 ? w_.channels : c_.D;
    Grid dk = k_.like();
    each(dz, [&](Index b, Index h, Index i, Index j) {
      const double factor = dz(b, h, i, j) * (w_.backward.share_key ? share(h) : 1) * w_.backward.key_factor;
      if (factor == 0) return;
      const Index of = key_head_backward(h);
      for (Index d = 0; d < channels; ++d) dk(b, of, j, d) = r_.sum(dk(b, of, j, d) + factor * q(b, h, i, d));
    });
    out.grad_key = positions_.key_backward(stepped(dk));
  }

  void value_backward(Results& out, const Grid& p) const {
    Grid dv = v_.like();
    each(p, [&](Index b, Index h, Index i, Index j) {
      double weight = w_kept_(b, h, i, j);
      if (w_.backward.visible) weight = r_.stored(p(b, h, i, j));
      if (!w_.backward.keep.empty())
        weight = r_.stored(p(b, h, i, j) * w_.backward.keep(b, h, i, j) / (1 - c_.dropout));
      if (w_.backward.share_value) weight *= share(h);
      if (weight == 0) return;
      const Index of = key_head_backward(h);
      for (Index e = 0; e < c_.E; ++e)
        dv(b, of, j, e) = r_.sum(dv(b, of, j, e) + weight * c_.upstream(b, h, i, e));
    });
    out.grad_value = positions_.value_backward(stepped(dv));
  }

  Grid stepped(Grid x) const {
    for (double& number : x.numbers) number = r_.step(number);
    return x;
  }

  const Call& c_;
  const Wrong& w_;
  const Rounding& r_;
  Positions positions_;
  Grid q_, k_, v_;
  Grid s_, slope_, bias_slope_, slope_without_cap_, p_, unmasked_, w_kept_, lse_, dp_, ds_;
  std::vector<bool> seen_;
  std::vector<double> largest_;  // what exponentials were shifted by, of groups
};

// ---- query, key and value as products of x and y: what reaches them by each path

// d (B,heads,rows,width) back to the input: dx = d w^T, and dw = x^T d.
void product_backward(const Grid& d, const Grid& x, const Grid& w, double times, Grid& dx, Grid& dw) {
  each(d, [&](Index b, Index h, Index i, Index n) {
    const Index column = h * d.extents[3] + n;
    for (Index m = 0; m < x.extents[3]; ++m) {
      dx(b, 0, i, m) += times * d(b, h, i, n) * w(0, 0, m, column);
      dw(0, 0, m, column) += d(b, h, i, n) * x(b, 0, i, m);
    }
  });
}

void projections_backward(const Call& call, const WrongBackward& wrong, Results& out) {
  if (call.x.empty() || call.upstream.empty()) return;
  out.grad_x = call.x.like(), out.grad_y = call.y.like();
  out.grad_w_query = call.w_query.like(), out.grad_w_key = call.w_key.like();
  out.grad_w_value = call.w_value.like();
  const bool self = call.y.empty();
  const Grid& source = self ? call.x : call.y;
  Grid& dsource = self ? out.grad_x : out.grad_y;
  product_backward(out.grad_query, call.x, call.w_query, wrong.path_query, out.grad_x, out.grad_w_query);
  product_backward(out.grad_key, source, call.w_key, wrong.path_key, dsource, out.grad_w_key);
  product_backward(out.grad_value, source, call.w_value, wrong.path_value, dsource, out.grad_w_value);
}

void store(Grid& x, const Rounding& rounding) {
  for (double& number : x.numbers) number = rounding.stored(number);
}

}  // namespace

Results attention(const Call& call, const Wrong& wrong, const Rounding& rounding) {
  Call asked = call;
  if (wrong.before) wrong.before(asked);
  Results out = Loops(asked, wrong, rounding).results();
  if (call.lse_base_2)
    for (double& number : out.lse.numbers) number /= std::log(2.0);
  projections_backward(asked, wrong.backward, out);
  if (wrong.after) wrong.after(out);
  for (Grid* x :
       {&out.output, &out.weights, &out.grad_query, &out.grad_key, &out.grad_value, &out.grad_bias,
        &out.grad_sink, &out.partial_output, &out.grad_x, &out.grad_y, &out.grad_w_query, &out.grad_w_key,
        &out.grad_w_value, &out.query_after, &out.key_after, &out.value_after, &out.output_second})
    store(*x, rounding);
  const Rounding wide{rounding.type == Type::f64 ? Type::f64 : Type::f32, true};
  for (Grid* x : {&out.lse, &out.partial_lse}) store(*x, wide);
  return out;
}

}  // namespace tapehead::planted
