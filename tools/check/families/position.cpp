// Rotation, slopes and norms of query and key.

#include <algorithm>
#include <cmath>
#include <set>

#include <tools/check/families/hypotheses.h>

namespace tapehead::check {
namespace {

bool begins_before(const Call& call, const char* stage) {
  return find(call.inputs, "projection") || find(call.inputs, "w_query") || find(call.inputs, "w_key") ||
         find(call.inputs, std::string("query") + stage) || find(call.inputs, std::string("key") + stage);
}
bool rotates(const Call& call) {
  return call.contract.rope != Pairing::none &&
         (begins_before(call, "_unrotated") || begins_before(call, "_unnormed"));
}
bool norms(const Call& call) {
  return call.contract.norms != QueryKeyNorms::none && begins_before(call, "_unnormed");
}

// ---- rotation with other settings

// Both directions of the rotation with contract and positions changed.
Change rotation_with(std::function<void(Work&)> change) {
  return [change = std::move(change)](Formula& f) {
    f.rotation = within(change, f.rotation);
    f.rotation_backward = within(change, f.rotation_backward);
  };
}

using Position = std::function<double(const Work&, Index b, Index row)>;

Position query_position() {
  return [](const Work& w, Index b, Index i) { return w.query_position(b, i); };
}
Position key_position() {
  return [](const Work& w, Index b, Index j) { return w.key_position(b, j); };
}

Array<double> positions(const Work& work, Index rows, const Position& position) {
  auto result = Array<double>::uninitialized({work.call->B, rows});
  double* out = result.mutable_values().data();
  for (Index b = 0; b < work.call->B; ++b) {
    for (Index i = 0; i < rows; ++i) *out++ = position(work, b, i);
  }
  return result;
}

Change rotation_at(Position of_query, Position of_key) {
  return rotation_with([=](Work& work) {
    const Array<double> queries = positions(work, work.call->L, of_query);
    const Array<double> keys = positions(work, work.call->S, of_key);
    work.inputs["query_positions"] = queries;
    work.inputs["key_positions"] = keys;
  });
}

Position constant(double at) {
  return [at](const Work&, Index, Index) { return at; };
}
Position scaled(Position position, double factor, Index first_rows) {
  return [=](const Work& w, Index b, Index i) { return position(w, b, i) * (i < first_rows ? factor : 1); };
}
Position shifted(Position position, std::vector<Index> by) {
  return [=](const Work& w, Index b, Index i) {
    return position(w, b, i) + static_cast<double>(by[by.size() == 1 ? 0 : place(b)]);
  };
}

// ---- rotations of another make

// Channels that turn together, the rate of each of the two, and where rows stand.
struct Pair {
  Index one, two;
  double rate_one, rate_two;
};
using Place = std::function<double(const Work&, Index b, Index h, Index i)>;

// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; or its transpose
void turn(const Work& work, Numbers& x, const std::vector<Pair>& pairs, const Place& at, bool transposed) {
  for (Index b = 0; b < x.shape[0]; ++b) {
    for (Index h = 0; h < x.shape[1]; ++h) {
      for (Index i = 0; i < x.shape[2]; ++i) {
        const double p = at(work, b, h, i);
        for (const Pair& pair : pairs) {
          double &one = x(b, h, i, pair.one), &two = x(b, h, i, pair.two);
          const double cos1 = std::cos(p * pair.rate_one), sin1 = std::sin(p * pair.rate_one);
          const double cos2 = std::cos(p * pair.rate_two), sin2 = std::sin(p * pair.rate_two);
          const double y1 = transposed ? one * cos1 + two * sin2 : one * cos1 - two * sin1;
          two = transposed ? two * cos2 - one * sin1 : two * cos2 + one * sin2;
          one = y1;
        }
      }
    }
  }
}

Change rotation_by(std::vector<Pair> pairs, Place of_query, Place of_key) {
  return [=](Formula& f) {
    f.rotation = [=](Work& work) {
      work.query = work.query_unrotated, work.key = work.key_unrotated;
      turn(work, work.query, pairs, of_query, false);
      turn(work, work.key, pairs, of_key, false);
    };
    f.rotation_backward = [=](Work& work) {
      work.dquery_unrotated = work.dquery, work.dkey_unrotated = work.dkey;
      turn(work, work.dquery_unrotated, pairs, of_query, true);
      turn(work, work.dkey_unrotated, pairs, of_key, true);
    };
  };
}
Change rotation_by(std::vector<Pair> pairs) {
  return rotation_by(
      std::move(pairs), [](const Work& w, Index b, Index, Index i) { return w.query_position(b, i); },
      [](const Work& w, Index b, Index, Index j) { return w.key_position(b, j); });
}

double rate(double base, Index pair, Index width) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
}

// Pairs as asked for, with the angle of channel c taken from a table laid out for the other pairing.
std::vector<Pair> mixed_pairs(bool half, Index width, double base) {
  std::vector<Pair> pairs;
  for (Index n = 0; n < width / 2; ++n) {
    const Index one = half ? n : 2 * n, two = half ? n + width / 2 : 2 * n + 1;
    const auto in_table = [&](Index c) { return rate(base, half ? c / 2 : c % (width / 2), width); };
    pairs.push_back({one, two, in_table(one), in_table(two)});
  }
  return pairs;
}

std::vector<Pair> pairs_of(bool half, Index turned, Index distance, Index exponent_width, double base) {
  std::vector<Pair> pairs;
  for (Index n = 0; n < turned / 2; ++n) {
    const double r = rate(base, n, exponent_width);
    pairs.push_back({half ? n : 2 * n, half ? n + distance : 2 * n + 1, r, r});
  }
  return pairs;
}

Index width_of(const Call& call) { return call.contract.rope_width == 0 ? call.D : call.contract.rope_width; }

// ---- fits

// Sum of squares of what is left in each sample.
std::vector<double> left_by_sample(const Call& call, const Change& change) {
  Formula formula = formula_of(call);
  if (change) change(formula);
  const Work work = evaluate(call, formula, false);
  std::vector<double> left(place(call.B), 0);
  for (const auto& [name, got] : call.candidate) {
    const Array<double>* ours = find(work.results, name);
    if (!ours || ours->size() != got.size() || call.B == 0) continue;
    for (Index i = 0; i < got.size(); ++i) {
      const double difference = ours->data()[i] - got.data()[i];
      if (std::isfinite(difference)) left[place(i / (got.size() / call.B))] += difference * difference;
    }
  }
  return left;
}

// Counting from 0 instead of the start, one more or less, a length too many.
std::set<Index> usual_offsets(const Call& call) {
  const Index start = call.contract.rope_start_query;
  return {-start, start, -1, 1, call.S, -call.S, call.L, -call.L, call.S - call.L, call.L - call.S};
}

// What a count of positions may go wrong by: near ones, and those made of lengths and starts.
std::set<Index> likely_offsets(const Call& call) {
  constexpr Index near = 32;
  std::set<Index> offsets;
  for (Index n = 1; n <= near; ++n) offsets.insert({n, -n});
  const Contract& c = call.contract;
  for (const Index from : {call.L, call.S, call.S - call.L, c.rope_start_query, c.rope_start_key,
                           c.rope_start_query - c.rope_start_key}) {
    for (const Index n : {from - 1, from, from + 1}) offsets.insert({n, -n});
  }
  offsets.erase(0);
  return offsets;
}

void add_offsets(const Call& call, Hypotheses& to) {
  std::vector<Index> best(place(call.B), 0);
  std::vector<double> least = left_by_sample(call, {});
  for (const Index n : likely_offsets(call)) {
    const auto left = left_by_sample(call, rotation_at(shifted(query_position(), {n}), key_position()));
    for (std::size_t b = 0; b < best.size(); ++b) {
      if (left[b] < least[b]) least[b] = left[b], best[b] = n;
    }
  }
  if (std::all_of(best.begin(), best.end(), [](Index n) { return n == 0; })) return;
  const bool same = std::all_of(best.begin(), best.end(), [&](Index n) { return n == best[0]; });
  std::map<std::string, double> fitted;
  for (std::size_t b = 0; b < best.size(); ++b) {
    fitted[same ? "query offset" : "query offset in sample " + std::to_string(b)] =
        static_cast<double>(best[b]);
  }
  to.push_back(hypothesis("rope-position-wrong", same ? "offset" : "per-sample",
                          rotation_at(shifted(query_position(), best), key_position()), fitted));
  const std::set<Index> usual = usual_offsets(call);
  to.back().generic = std::none_of(best.begin(), best.end(), [&](Index n) { return usual.contains(n); });
}

// Given positions are not read: rows count from the start.
void add_counted_positions(const Call& call, Hypotheses& to) {
  const bool of_query = find(call.inputs, "query_positions"), of_key = find(call.inputs, "key_positions");
  const auto counted = [](bool query) -> Position {
    return [query](const Work& w, Index, Index i) {
      return static_cast<double>(query ? w.contract.rope_start_query + w.row(i)
                                       : w.contract.rope_start_key + i);
    };
  };
  const auto add = [&](bool query, bool key) {
    to.push_back(hypothesis(
        "rope-position-wrong", "offset",
        rotation_at(query ? counted(true) : query_position(), key ? counted(false) : key_position()),
        {{"query positions counted", query}, {"key positions counted", key}}));
  };
  if (of_query) add(true, false);
  if (of_key) add(false, true);
  if (of_query && of_key) add(true, true);
}

void add_base(const Call& call, Hypotheses& to) {
  if (width_of(call) <= 2) return;
  std::vector<double> starts;
  for (double exponent = 1; exponent <= 8; exponent += 0.125) starts.push_back(exponent * std::log(10.0));
  const auto with_base = [](double log_base) {
    return rotation_with([=](Work& work) { work.contract.rope_base = std::exp(log_base); });
  };
  const auto found = fit(call, with_base, starts, Part::results, true);
  if (!found) return;
  const double rounded = std::log(std::round(std::exp(found->number)));
  const double log_base = exact_if_as_good(call, with_base, *found, rounded, Part::results);
  const double base = log_base == rounded ? std::round(std::exp(rounded)) : std::exp(log_base);
  to.push_back(hypothesis("rope-partial-width", "base", with_base(log_base),
                          {{"base", base}, {"expected", call.contract.rope_base}}));
  const double exponent = std::log10(base), five = std::log10(base / 5);  // models have 10^n and 5 10^n
  to.back().generic = exponent != std::round(exponent) && five != std::round(five);
}

// ---- the three groups

void add_width(const Call& call, Hypotheses& to) {
  const Index width = width_of(call), whole = call.D - call.D % 2;
  const double base = call.contract.rope_base;
  if (width >= whole) return;
  const bool half = call.contract.rope == Pairing::half;
  const auto add = [&](Index turned, Index distance, Index exponent_width) {
    to.push_back(hypothesis("rope-partial-width", "",
                            rotation_by(pairs_of(half, turned, distance, exponent_width, base)),
                            {{"channels turned", static_cast<double>(turned)},
                             {"expected", static_cast<double>(width)},
                             {"partner at distance", static_cast<double>(half ? distance : 1)},
                             {"width in the exponent", static_cast<double>(exponent_width)}}));
  };
  add(width, width / 2, whole);
  if (half) {
    add(width, whole / 2, width);
    add(width, whole / 2, whole);
  }
  add(whole, whole / 2, whole);
}

void add_rotation(const Call& call, Hypotheses& to) {
  const bool half = call.contract.rope == Pairing::half;
  const Index width = width_of(call);
  const auto add = [&](const char* id, const char* variant, Change change) {
    to.push_back(hypothesis(id, variant, std::move(change)));
  };
  const auto other = [=](Work& w) { w.contract.rope = half ? Pairing::neighbour : Pairing::half; };
  add("rope-pairing", "other", rotation_with(other));
  add("rope-pairing", "mixed", rotation_by(mixed_pairs(half, width, call.contract.rope_base)));
  add("rope-pairing", "mixed", rotation_by(mixed_pairs(!half, width, call.contract.rope_base)));
  add("rope-missing", "", rotation_with([](Work& w) { w.contract.rope = Pairing::none; }));
  add("rope-missing", "q-only", rotation_at(query_position(), constant(0)));
  add("rope-missing", "k-only", rotation_at(constant(0), key_position()));
  const auto head = [](const Work& w, Index, Index h, Index) {
    return static_cast<double>(w.call->heads.empty() ? h : w.call->heads[place(h)]);
  };
  const auto key_head = [](const Work&, Index, Index g, Index) { return static_cast<double>(g); };
  add("rope-missing", "head-axis",
      rotation_by(pairs_of(half, width, width / 2, width, call.contract.rope_base), head, key_head));
  add("rope-position-wrong", "twice", rotation_at(query_position(), scaled(key_position(), 2, call.S)));
  if (call.S > call.L) {
    add("rope-position-wrong", "twice",
        rotation_at(query_position(), scaled(key_position(), 2, call.S - call.L)));
  }
  add("rope-sign", "", rotation_at(scaled(query_position(), -1, call.L), scaled(key_position(), -1, call.S)));
  add_offsets(call, to);
  add_counted_positions(call, to);
  add_width(call, to);
  add_base(call, to);
}

// ---- slopes

// 2^(-8 (h + first) / n) for h = 0, 1, ...
void add_geometric(std::vector<double>& to, Index count, Index step, double first, Index n) {
  for (Index h = 0; h < count; ++h) {
    to.push_back(std::exp2(-8 * (static_cast<double>(h * step) + first) / static_cast<double>(n)));
  }
}

std::vector<double> plain_slopes(Index heads, double first) {
  std::vector<double> slopes;
  add_geometric(slopes, heads, 1, first, heads);
  return slopes;
}

// The published rule: of the next lower power of two, then every second one of its double.
std::vector<double> published_slopes(Index heads, double first) {
  Index power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  add_geometric(slopes, power, 1, first, power);
  add_geometric(slopes, heads - power, 2, first, 2 * power);
  return slopes;
}

Change slopes_of(const std::vector<double>& slopes) {
  return [slopes](Formula& f) {
    f.contract = after(f.contract, [slopes](Work& w) { w.inputs["slopes"] = Array<double>::from(slopes); });
  };
}

std::map<std::string, double> by_head(const std::vector<double>& slopes, std::span<const double> expected) {
  std::map<std::string, double> fitted;
  for (std::size_t h = 0; h < slopes.size(); ++h) {
    fitted["slope of head " + std::to_string(h)] = slopes[h];
    fitted["expected of head " + std::to_string(h)] = expected[h];
  }
  return fitted;
}

// Each head by itself, first the others as asked for, then as fitted: their errors hide small ones.
void add_fitted_slopes(const Call& call, std::span<const double> asked, Hypotheses& to) {
  std::vector<double> slopes(asked.begin(), asked.end());
  bool any = false;
  for (std::size_t n = 0; n < 2 * slopes.size(); ++n) {
    const std::size_t h = n % slopes.size();
    std::vector<double> starts = {slopes[h], 0};
    for (double slope = 1.0 / 512; slope <= 2; slope *= std::sqrt(2.0))
      starts.insert(starts.end(), {slope, -slope});
    const auto with = [&](double slope) {
      std::vector<double> changed = slopes;
      changed[h] = slope;
      return slopes_of(changed);
    };
    if (const auto found = fit_on_all_heads(call, with, starts, Part::results, true))
      slopes[h] = found->number, any = true;
  }
  if (!any) return;
  to.push_back(hypothesis("alibi-slopes", "rule", slopes_of(slopes), by_head(slopes, asked)));
  to.back().generic = true;
}

// s = z + slope j, or slope (j - i): the same but for a constant in each row, which only a sink and the
// log-sum-exp show.
Change rising_with_key(bool from_query) {
  return [=](Formula& f) {
    f.bias = after(f.bias, [=](Work& w) {
      const double* slopes = find(w.inputs, "slopes")->data();
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        for (Index j = 0; j < w.call->S; ++j) {
          const double key = w.key_position(b, j), query = w.query_position(b, i);
          w.scores(b, h, i, j) += slopes[h] * (std::abs(query - key) + key - (from_query ? query : 0));
        }
      });
    });
  };
}

void add_slopes(const Call& call, Hypotheses& to) {
  const Array<double>& given = *find(call.inputs, "slopes");
  const std::vector<double> asked = given.to_vector();
  std::vector<double> negated = asked;
  for (double& slope : negated) slope = -slope;
  to.push_back(hypothesis("alibi-slopes", "sign", slopes_of(negated)));
  to.push_back(hypothesis("alibi-slopes", "non-causal", rising_with_key(false)));
  to.push_back(hypothesis("alibi-slopes", "non-causal", rising_with_key(true)));
  if (!call.heads.empty()) return;  // rules count all heads
  const auto add = [&](const char* variant, const std::vector<double>& slopes) {
    const bool same = std::equal(slopes.begin(), slopes.end(), asked.begin(),
                                 [](double a, double b) { return std::abs(a - b) <= 1e-3 * std::abs(b); });
    if (!same) to.push_back(hypothesis("alibi-slopes", variant, slopes_of(slopes), by_head(slopes, asked)));
    return same;
  };
  const bool power_of_two = (call.H & (call.H - 1)) == 0;
  const bool plain = add("rule", plain_slopes(call.H, 1));
  if (!power_of_two && plain) add("rule", published_slopes(call.H, 1));
  add("exponent", plain_slopes(call.H, 0));
  if (!power_of_two) add("exponent", published_slopes(call.H, 0));
  add_fitted_slopes(call, asked, to);
}

// ---- norms

// Norm after rotation: R x, then the norm; back in the reverse order.
void norm_last(Formula& f) {
  const Step rotation = f.rotation, norm = f.norms;
  f.rotation = [rotation, norm](Work& w) {
    w.query_unrotated = w.query_unnormed, w.key_unrotated = w.key_unnormed;
    rotation(w);
    Work turned = w;
    turned.query_unnormed = w.query, turned.key_unnormed = w.key;
    norm(turned);
    w.query = turned.query_unrotated, w.key = turned.key_unrotated;
  };
  f.norms = {};
  f.rotation_backward = [rotation, norm = f.norms_backward, turn_back = f.rotation_backward](Work& w) {
    Work turned = w;
    rotation(turned);
    turned.query_unnormed = turned.query, turned.key_unnormed = turned.key;
    turned.dquery_unrotated = w.dquery, turned.dkey_unrotated = w.dkey;
    norm(turned);
    w.results = turned.results;
    w.dquery = turned.dquery_unnormed, w.dkey = turned.dkey_unnormed;
    turn_back(w);
  };
  f.norms_backward = [](Work& w) {
    w.dquery_unnormed = w.dquery_unrotated, w.dkey_unnormed = w.dkey_unrotated;
  };
}

// The norm of the key, of another tensor and with another gain (none: "").
void with_gain(Work& work, const std::string& gain) {
  const Array<double>* numbers = find(work.inputs, gain);
  const Array<double> kept = numbers ? *numbers : Array<double>();
  numbers ? void(work.inputs["key_gain"] = kept) : void(work.inputs.erase("key_gain"));
}

Change norm_key_and_value(const std::string& gain_of_key, const std::string& gain_of_value) {
  return [=](Formula& f) {
    f.norms = [=, norm = f.norms](Work& w) {
      Work key = w, value = w;
      with_gain(key, gain_of_key), with_gain(value, gain_of_value);
      value.key_unnormed = w.value;
      norm(key), norm(value);
      w.query_unrotated = w.query_unnormed;
      w.key_unrotated = key.key_unrotated;
      w.value = value.key_unrotated;
    };
    f.norms_backward = [=, norm = f.norms_backward, begin = f.inputs](Work& w) {
      Work key = w, value = w;
      begin(value);
      with_gain(key, gain_of_key), with_gain(value, gain_of_value);
      value.key_unnormed = value.value;
      value.dkey_unrotated = w.dvalue;
      norm(key), norm(value);
      w.dquery_unnormed = w.dquery_unrotated;
      w.dkey_unnormed = key.dkey_unnormed;
      w.dvalue = value.dkey_unnormed;
    };
  };
}

void add_norms(const Call& call, Hypotheses& to) {
  to.push_back(hypothesis("qknorm-wrong", "missing", [](Formula& f) {
    const auto none = [](Work& w) { w.contract.norms = QueryKeyNorms::none; };
    f.norms = within(none, f.norms);
    f.norms_backward = within(none, f.norms_backward);
  }));
  if (rotates(call)) to.push_back(hypothesis("qknorm-wrong", "order", norm_last));
  for (const char* gain_of_key : {"key_gain", "query_gain"}) {
    for (const char* gain_of_value : {"", "key_gain", "query_gain"}) {
      const Array<double>* gain = find(call.inputs, gain_of_value);
      if (gain && gain->size() != call.E) continue;
      to.push_back(hypothesis("qknorm-wrong", "tensors", norm_key_and_value(gain_of_key, gain_of_value)));
    }
  }
}

}  // namespace

Hypotheses position_mistakes(const Call& call) {
  Hypotheses result;
  if (rotates(call)) add_rotation(call, result);
  if (find(call.inputs, "slopes")) add_slopes(call, result);
  if (norms(call)) add_norms(call, result);
  return result;
}

}  // namespace tapehead::check
