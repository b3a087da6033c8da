#include "tools/planted/cases.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "tools/planted/attention.h"
#include "tools/planted/shapes.h"

namespace tapehead::planted {
namespace {

enum class When { always, weights, lse, gradients };
constexpr std::pair<Grid Results::*, When> tensors_of_results[] = {
    {&Results::output, When::always},         {&Results::output_second, When::always},
    {&Results::partial_output, When::always}, {&Results::partial_lse, When::always},
    {&Results::weights, When::weights},       {&Results::lse, When::lse},
    {&Results::grad_query, When::gradients},  {&Results::grad_key, When::gradients},
    {&Results::grad_value, When::gradients},  {&Results::grad_bias, When::gradients},
    {&Results::grad_sink, When::gradients},   {&Results::grad_x, When::gradients},
    {&Results::grad_y, When::gradients},      {&Results::grad_w_query, When::gradients},
    {&Results::grad_w_key, When::gradients},  {&Results::grad_w_value, When::gradients},
};

bool is_shown(When when, const Shown& shown, const Call& call) {
  if (when == When::weights) return shown.weights && call.dropout == 0;
  return when == When::always || (when == When::lse ? shown.lse : shown.gradients);
}

double size_of(const Grid& x) {
  double largest = 0;
  for (const double number : x.numbers)
    if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
  return largest;
}

using Rows = std::vector<char>;  // (B,H,L): nobody reads them

// The largest difference; infinite for one of a number and what is none. What one lacks nobody sees.
double distance(const Grid& a, const Grid& b, const Rows& unread) {
  if (a.empty() || b.empty()) return 0;
  if (a.numbers.size() != b.numbers.size()) return INFINITY;
  double worst = 0;
  for (std::size_t n = 0; n < a.numbers.size(); ++n) {
    const double x = a.numbers[n], y = b.numbers[n];
    if (!unread.empty() && unread[n / static_cast<std::size_t>(a.extents[3])] != 0) continue;
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double difference = std::abs(x - y);
    worst = std::max(worst, std::isnan(difference) ? INFINITY : difference);
  }
  return worst;
}

// How far rounding moves each tensor of a right call, or of a planted one.
class Noise {
 public:
  Noise(const Call& call, const Shown& shown) : call_(call), shown_(shown) {
    each(Grid(call.B, call.H, call.L, 1), [&](Index b, Index h, Index i, Index) {
      bool any = false;
      for (Index j = 0; j < call.S; ++j) any = any || call.visible(b, h, i, j);
      padded_.push_back(!call.is_row(b, i)), empty_.push_back(!any);
    });
  }
  void of(const Wrong& wrong, const Results& exact) {
    for (const bool every_step : {true, false}) {
      const Results rough = attention(call_, wrong, {call_.type, every_step});
      for (std::size_t n = 0; n < std::size(tensors_of_results); ++n) {
        const auto member = tensors_of_results[n].first;
        const double moved = distance(rough.*member, exact.*member, unread(member));
        const double floor = 4 * unit_roundoff(call_.type) * size_of(exact.*member);
        sizes_[n] = std::max({sizes_[n], std::isfinite(moved) ? moved : 0, floor});
      }
    }
  }
  // Whether what is shown of two results differs by more than so many times the noise.
  bool between(const Results& a, const Results& b, double times) const {
    for (std::size_t n = 0; n < std::size(tensors_of_results); ++n) {
      const auto [member, when] = tensors_of_results[n];
      const bool shown = is_shown(when, shown_, call_);
      if (shown && distance(a.*member, b.*member, unread(member)) > times * sizes_[n]) return true;
    }
    return false;
  }

 private:
  // Of rows without keys an implementation may write any log-sum-exp.
  const Rows& unread(Grid Results::*tensor) const {
    static const Rows none;
    if (tensor == &Results::lse) return empty_;
    return tensor == &Results::output || tensor == &Results::weights ? padded_ : none;
  }

  const Call& call_;
  const Shown& shown_;
  Rows padded_, empty_;
  double sizes_[std::size(tensors_of_results)] = {};
};

// Ten times what rounding does is seen by anybody; six times is not told apart from more of it.
constexpr double clear = 10, unclear = 6;

Shown shown_for(const Call& call, bool gradients, std::size_t n) {
  Shown shown;
  shown.weights = n % 5 == 0 || n % 5 == 3;
  shown.lse = n % 5 == 0 || n % 5 == 2 || n % 5 == 4;
  shown.gradients = !call.upstream.empty() && (gradients || n % 5 != 1);
  const char* const layouts[] = {"BHLD", "BLHD", "BHLD", "BLD"};
  if (call.part_ends.empty()) shown.layout = layouts[n % 4];
  const bool decided = call.H != call.L && call.Hk != call.S && shown.layout == "BHLD";
  shown.layout_said = !decided || n % 2 == 0;
  return shown;
}

// What a mistake with a free number can be fitted to: a scale is any constant, and n in 1 / sqrt(n) a padded
// width if it is a wide one; an exponent over another width is another base, theta^(r / d); empty columns are
// a sink of ln m, and one of
// 0 an empty column; a constant for blocked scores is seen in rows without keys.
std::vector<Name> fitted_alike(const Planting& planting, const Call& call, const Wrong& wrong) {
  const std::string &id = planting.id, &variant = planting.variant;
  if (wrong.scale) {
    std::vector<Name> names{{"scale-custom-ignored", ""}};
    const double n = 1 / (*wrong.scale * *wrong.scale), nearest = std::round(n);
    const auto width = static_cast<Index>(std::min(nearest, 1e6));
    const bool wide = width > call.D && (width % 8 == 0 || (width & (width - 1)) == 0);
    if (wide && std::abs(n - nearest) < 1e-9 * n) names.emplace_back("scale-padded-dim", "");
    return names;
  }
  if (id == "scale-exp2-without-log2e") return {{"scale-custom-ignored", ""}};
  if (id == "rope-partial-width" && planting.form == "exponent") return {{id, "base"}};
  if (id == "softcap-after-mask" || id == "mask-zero-logit") return {{"sentinel-leak", ""}};
  if (id == "sentinel-leak" && call.has_empty_row()) return {{"allmasked-row", "uniform"}};
  if (id == "sink-mishandled" && planting.form == "of 0") return {{"extent-wrong", "tail"}};
  if (id == "extent-wrong" && variant == "tail")
    return {{"sink-mishandled", call.sink.empty() ? "present" : "split"}};
  return {};
}

// A call that gives its scale has it ignored, whatever is used instead.
bool planted_where_named(const Planting& p, const Call& call) {
  return !call.scale || !p.id.starts_with("scale-") || p.id == "scale-custom-ignored" ||
         p.id == "scale-exp2-without-log2e";
}

// The plantings of one call, computed when they are asked for.
class Bench {
 public:
  explicit Bench(const Call& call) : call_(call), right_(attention(call)) {}

  const Call& call() const { return call_; }
  const Results& right() const { return right_; }
  const std::optional<Wrong>& wrong(std::size_t n) {
    fill();
    return wrongs_[n];
  }
  const Results& exact(std::size_t n) {
    fill();
    if (!exact_[n]) exact_[n] = attention(call_, *wrongs_[n]);
    return *exact_[n];
  }

  // All that is within noise of these results.
  std::set<Name> equals(const Results& results, const Noise& noise) {
    fill();
    std::set<Name> names;
    for (std::size_t n = 0; n < wrongs_.size(); ++n) {
      if (!wrongs_[n] || noise.between(exact(n), results, unclear)) continue;
      const Planting& planting = plantings()[n];
      names.emplace(planting.id, planting.variant);
    }
    return names;
  }

  // All that together with the planting `given` is within noise of these results.
  std::set<Name> equals_beside(std::size_t given, bool backward, const Results& results, const Noise& noise);

 private:
  void fill() {
    if (!wrongs_.empty()) return;
    for (const Planting& planting : plantings()) wrongs_.push_back(planting.make(call_));
    exact_.resize(wrongs_.size());
  }

  const Call& call_;
  Results right_;
  std::vector<std::optional<Wrong>> wrongs_;
  std::vector<std::optional<Results>> exact_;
};

std::vector<Call> shuffled_calls(unsigned set) {
  std::vector<Call> all = calls(set);
  std::mt19937 random(set + 1);
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

// In a narrow type every step may overflow where float does not.
bool every_step_fits(const Call& call, const Results& right) {
  const Results rough = attention(call, {}, {call.type, true});
  for (std::size_t n = 0; n < right.output.numbers.size(); ++n)
    if (std::isfinite(right.output.numbers[n]) != std::isfinite(rough.output.numbers[n])) return false;
  return true;
}

bool all_finite(const Grid& x) {
  return std::all_of(x.numbers.begin(), x.numbers.end(), [](double number) { return std::isfinite(number); });
}

// Where all is 0, or numbers are lost for another reason than the mistake, nobody can say why.
bool says_something(const Planting& p, const Results& r) {
  const auto& x = r.output.numbers;
  const auto lost = [](double number) { return number == 0 || !std::isfinite(number); };
  if (std::all_of(x.begin(), x.end(), lost)) return false;
  const bool of_nan = p.id == "nan-from-masked" || p.id == "low-precision-overflow" || p.variant == "nan" ||
                      p.variant == "init";
  return of_nan || (all_finite(r.output) && all_finite(r.grad_query) && all_finite(r.grad_key));
}

bool single(Bench& bench, std::size_t n, std::size_t turn, Case& dump) {
  const Planting& planting = plantings()[n];
  if (planting.only_alike || !bench.wrong(n) || !planted_where_named(planting, bench.call())) return false;
  const Call& call = bench.call();
  const Shown shown = shown_for(call, planting.backward, turn);
  dump.every_step = turn % 2 == 0 && every_step_fits(call, bench.right());
  const Wrong& wrong = *bench.wrong(n);
  const Results results = attention(call, wrong, {call.type, dump.every_step});
  Noise noise(call, shown);
  noise.of({}, bench.right());
  if (!noise.between(results, bench.right(), clear) || !says_something(planting, results)) return false;
  noise.of(wrong, bench.exact(n));
  const Name name{planting.id, planting.variant};
  dump.form = planting.form, dump.family = planting.family, dump.truth = {name};
  dump.acceptable = {dump.truth};
  for (const Name& other : bench.equals(bench.exact(n), noise)) dump.acceptable.insert({other});
  for (const Name& other : fitted_alike(planting, call, wrong)) dump.acceptable.insert({other});
  show(dump, call, results, shown);
  return true;
}

// ---- two at once

bool pairs_well(const Planting& p) {
  if (p.only_alike) return false;
  if (p.backward)
    return p.id != "grad-mask-differs" && p.family == "backward" && p.variant != "off-tape" &&
           p.variant != "not-zeroed";
  static const std::set<std::string> ids = {
      "scale-omitted", "scale-one-over-d",         "scale-wrong-dim",   "softcap-omitted", "softcap-order",
      "mask-dropped",  "causal-alignment-swapped", "causal-off-by-one", "window-bounds",   "packed-docs-leak",
      "gqa-tile",      "gqa-wrong-index",          "rope-pairing",      "rope-missing",    "rope-sign",
      "alibi-slopes",  "mask-polarity-inverted"};
  return ids.count(p.id) > 0 || (p.id == "sink-mishandled" && p.variant == "absent");
}

// The knobs of b's family join those of a.
Wrong both(const Wrong& a, const Wrong& b, const Planting& of_b) {
  Wrong w = a;
  if (of_b.backward) {
    w.backward = b.backward, w.positions.back = b.positions.back;
    w.after = b.after;
  } else if (of_b.family == "mask") {
    w.visible = b.visible, w.finite_mask_ignored = b.finite_mask_ignored;
    w.added = b.added, w.fixed = b.fixed, w.dropped = b.dropped;
  } else if (of_b.family == "softmax") {
    w.other_sink = b.other_sink, w.sink = b.sink;
  } else if (of_b.family == "heads") {
    w.key_head = b.key_head;
  } else if (of_b.family == "position") {
    w.positions = b.positions, w.slopes = b.slopes, w.signed_distance = b.signed_distance;
  }
  return w;
}

std::set<Name> Bench::equals_beside(std::size_t given, bool backward, const Results& results,
                                    const Noise& noise) {
  std::set<Name> names;
  const Planting& known = plantings()[given];
  for (std::size_t n = 0; n < wrongs_.size(); ++n) {
    const Planting& other = plantings()[n];
    if (!wrongs_[n] || other.backward != backward || other.family == known.family) continue;
    const bool last = backward || other.family == "mask";
    const Wrong together =
        last ? both(*wrongs_[given], *wrongs_[n], other) : both(*wrongs_[n], *wrongs_[given], known);
    if (!noise.between(attention(call_, together), results, unclear)) names.emplace(other.id, other.variant);
  }
  return names;
}

bool pair(Bench& bench, std::size_t first, std::size_t second, std::size_t turn, Case& dump) {
  const Planting &a = plantings()[first], &b = plantings()[second];
  const Call& call = bench.call();
  if (!bench.wrong(first) || !bench.wrong(second) || !planted_where_named(a, call) ||
      !planted_where_named(b, call))
    return false;
  const Shown shown = shown_for(call, b.backward, turn);
  dump.every_step = turn % 2 == 0 && every_step_fits(call, bench.right());
  const Wrong wrong = both(*bench.wrong(first), *bench.wrong(second), b);
  const Results exact = attention(call, wrong);
  Noise noise(call, shown);
  noise.of({}, bench.right()), noise.of(wrong, exact);
  for (const Results* alone : {&bench.exact(first), &bench.exact(second)})
    if (!noise.between(exact, *alone, clear) || !noise.between(bench.right(), *alone, clear)) return false;
  if (!says_something(a, exact)) return false;
  dump.form = a.form.empty() || b.form.empty() ? a.form + b.form : a.form + "; " + b.form;
  dump.family = b.backward ? "forward and backward" : "two forward";
  const Name one{a.id, a.variant}, two{b.id, b.variant};
  dump.truth = {one, two};
  for (const Name& other : bench.equals(exact, noise)) dump.acceptable.insert({other});
  auto ones = bench.equals(bench.exact(first), noise), twos = bench.equals(bench.exact(second), noise);
  for (const Name& other : fitted_alike(a, call, *bench.wrong(first))) ones.insert(other);
  for (const Name& other : fitted_alike(b, call, *bench.wrong(second))) twos.insert(other);
  for (const Name& x : ones)
    for (const Name& y : twos) dump.acceptable.insert({x, y});
  for (const Name& x : bench.equals_beside(second, false, exact, noise)) dump.acceptable.insert({x, two});
  for (const Name& y : bench.equals_beside(first, b.backward, exact, noise)) dump.acceptable.insert({one, y});
  dump.acceptable.insert(dump.truth);
  show(dump, call, attention(call, wrong, {call.type, dump.every_step}), shown);
  return true;
}

}  // namespace

bool shows(const Call& call, const Planting& planting, const Shown& shown) {
  const auto wrong = planting.make(call);
  if (!wrong) return false;
  const Results right = attention(call);
  Noise noise(call, shown);
  noise.of({}, right);
  return noise.between(attention(call, *wrong), right, clear);
}

std::vector<Case> single_mistakes(unsigned set, std::size_t limit, const std::string& family) {
  std::vector<Case> all;
  std::vector<std::size_t> planted(plantings().size(), 0);
  std::size_t turn = 0;
  for (const Call& call : shuffled_calls(set)) {
    Bench bench(call);
    for (std::size_t n = 0; n < planted.size(); ++n) {
      Case dump;
      if (planted[n] == limit || (!family.empty() && plantings()[n].family != family)) continue;
      if (!single(bench, n, n + turn, dump)) continue;
      ++planted[n];
      all.push_back(std::move(dump));
    }
    ++turn;
  }
  return all;
}

std::vector<Case> pairs_of_mistakes(unsigned set, std::size_t limit) {
  std::vector<Case> all;
  std::mt19937 random(set + 77);
  std::size_t forward = 0, backward = 0;
  const auto any = [&] {
    return std::uniform_int_distribution<std::size_t>(0, plantings().size() - 1)(random);
  };
  for (int round = 0; round < 40 && (forward < limit || backward < limit); ++round) {
    for (const Call& call : shuffled_calls(set)) {
      if (forward >= limit && backward >= limit) break;
      Bench bench(call);
      const std::size_t first = any(), second = any();
      const Planting &a = plantings()[first], &b = plantings()[second];
      if (a.backward || a.family == b.family || !pairs_well(a) || !pairs_well(b)) continue;
      std::size_t& count = b.backward ? backward : forward;
      Case dump;
      if (count >= limit || !pair(bench, first, second, random(), dump)) continue;
      ++count;
      all.push_back(std::move(dump));
    }
  }
  return all;
}

std::vector<Case> right_dumps(unsigned seed, std::size_t count) {
  std::vector<Case> all;
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  const std::vector<std::string> names = features();
  while (all.size() < count) {
    const std::vector<Sizes> some = sizes(static_cast<unsigned>(below(2)));
    std::vector<std::string> chosen{names[all.size() % names.size()]};
    for (std::size_t more = below(3); more-- > 0;) chosen.push_back(names[below(names.size())]);
    const auto call = make_call(some[below(some.size())], chosen, static_cast<Type>(below(4)),
                                static_cast<unsigned>(random()));
    if (!call) continue;
    Case dump;
    dump.every_step = below(2) == 0 && every_step_fits(*call, attention(*call));
    show(dump, *call, attention(*call, {}, {call->type, dump.every_step}),
         shown_for(*call, false, below(20)));
    all.push_back(std::move(dump));
  }
  return all;
}

std::vector<Case> equal_forms(unsigned set) {
  std::vector<Case> all;
  std::size_t turn = 0;
  for (const Call& call : calls(set)) {
    for (const Planting& planting : equal_plantings()) {
      const auto wrong = planting.make(call);
      if (!wrong || ++turn % 3 != 0) continue;
      Case dump;
      dump.form = planting.form, dump.family = "equal";
      dump.every_step = turn % 2 == 0 && every_step_fits(call, attention(call));
      show(dump, call, attention(call, *wrong, {call.type, dump.every_step}), shown_for(call, true, turn));
      all.push_back(std::move(dump));
    }
  }
  return all;
}

}  // namespace tapehead::planted
