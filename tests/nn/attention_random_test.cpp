// Attention against its formulas as loops, with options in random combination; and that the comparison finds
// a reference that is wrong by one thing.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention.h>
#include <tapehead/nn/attention_reference.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/rope.h>

#include "support/compare.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Options = AttentionOptions<double>;
using Numbers = AdditiveReference;  // all outputs and gradients, undefined where there is none

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// What is drawn is near 1, and so are the terms of every sum; the longest has 7 keys x 7 rows x 3 samples x
// 9 heads of them, which leaves some hundred roundings of 1.1e-16 in a number, and in one that they cancel
// to. So errors are relative to the largest number compared, or to 1 where that is larger.
constexpr double rounding = 1e-12;

// ---- a draw

struct Draw {
  A query, key, value;
  Options options;                                 // Vars that are not recorded
  std::optional<AdditiveScoring<double>> scoring;  // of additive attention
  AttentionOutputs upstream;
  std::vector<std::string> uses;  // names of options

  bool has(const std::string& name) const { return std::find(uses.begin(), uses.end(), name) != uses.end(); }
};

Shape scores_of(const Draw& draw) { return draw.query.shape().with(-1, draw.key.dim(-2)); }

class Drawing {
 public:
  explicit Drawing(std::uint64_t seed) : random_(seed) {}

  Draw draw() {
    draw_ = {};
    draw_inputs();
    draw_positions();
    draw_scores();
    draw_mask();
    draw_weights();
    draw_wanted();
    return draw_;
  }

 private:
  bool chance(double p) { return random_.uniform() < p; }
  // Whether an option is used, which is counted under its name.
  bool use(const std::string& name, double p) {
    const bool used = chance(p);
    if (used) draw_.uses.push_back(name);
    return used;
  }
  Index between(Index low, Index high) { return low + random_.below(high - low + 1); }
  A normal(const Shape& shape, double mean = 0) { return random_.normal<double>(shape, mean); }

  // A shape that broadcasts to the scores.
  Shape broadcasting() {
    Shape shape = scores_.last(static_cast<int>(between(0, scores_.rank())));
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (chance(0.3)) shape = shape.with(axis, 1);
    }
    return shape;
  }
  Array<bool> choices(const Shape& shape, double p) {
    Array<bool> result = Array<bool>::uninitialized(shape);
    for (bool& x : result.mutable_values()) x = chance(p);
    return result;
  }
  // One number, or one for each sample of up to `axes` leading axes.
  PerSample numbers(Index low, Index high, int axes) {
    const int rank = chance(0.5) ? 0 : static_cast<int>(between(0, axes));
    if (rank == 0) return between(low, high);
    draw_.uses.push_back("numbers of each sample");
    const A drawn =
        random_.uniform<double>(scores_.first(rank), static_cast<double>(low), static_cast<double>(high) + 1);
    Array<Index> each = Array<Index>::uninitialized(drawn.shape());
    std::transform(drawn.values().begin(), drawn.values().end(), each.mutable_values().begin(),
                   [](double x) { return static_cast<Index>(std::floor(x)); });
    return each;
  }
  int leading_axes() const { return scores_.rank() - 2; }

  void draw_inputs() {
    const int rank = static_cast<int>(between(2, 5));
    draw_.uses.push_back("rank " + std::to_string(rank));
    Shape samples;
    while (samples.rank() < (rank >= 4 ? rank - 3 : rank - 2)) samples = samples.followed_by({between(1, 3)});
    const Index key_heads = between(1, 3), group = rank >= 4 && use("grouped heads", 0.5) ? between(2, 3) : 1;
    const Shape queries = rank >= 4 ? samples.followed_by({key_heads * group}) : samples;
    const Shape keys = rank >= 4 ? samples.followed_by({key_heads}) : samples;
    const Index L = between(1, 7), S = between(1, 7), D = between(1, 7), E = between(1, 7);
    const bool additive = use("additive scoring", 0.2);
    const Index N = additive ? between(1, 7) : D;
    scores_ = queries.followed_by({L, S});
    heads_ = rank >= 4 ? key_heads * group : 1;
    shared_axes_ = rank >= 4 && group > 1 ? rank - 3 : rank - 2;
    draw_.query = normal(queries.followed_by({L, D}));
    draw_.key = normal(keys.followed_by({S, N}));
    draw_.value = normal(keys.followed_by({S, E}));
    if (!additive) return;
    const Index hidden = between(1, 4);
    draw_.scoring = {normal({D, hidden}), normal({N, hidden}), {}, normal({hidden})};
    if (use("additive b", 0.7)) draw_.scoring->b = normal({hidden});
  }

  void draw_positions() {
    Options& options = draw_.options;
    const Index narrowest = std::min(draw_.query.dim(-1), draw_.key.dim(-1));
    if (use("norm", 0.3)) {
      options.norm = {normal({draw_.query.dim(-1)}, 1), normal({draw_.key.dim(-1)}, 1)};
      if (chance(0.5)) options.norm->eps = 0.1;
    }
    if (narrowest >= 2 && use("rope", 0.4)) {
      RopeOptions rope;
      const bool even = draw_.query.dim(-1) % 2 == 0 && draw_.key.dim(-1) % 2 == 0;
      if (!even || use("rope width", 0.6)) rope.width = 2 * between(1, narrowest / 2);
      if (use("rope pairing", 0.5)) rope.pairing = Pairing::neighbours;
      if (use("rope base", 0.5)) rope.base = 3;
      if (use("rope start", 0.5)) rope.start = numbers(-5, 5, shared_axes_);
      if (use("rope position scale", 0.5)) rope.position_scale = 0.3;
      options.rope = rope;
    }
    const bool one_each = options.rope && !options.rope->start.same();
    if (use("query offset", 0.5)) options.query_offset = numbers(-4, 8, one_each ? 0 : leading_axes());
  }

  void draw_scores() {
    Options& options = draw_.options;
    if (use("scale number", 0.3)) {
      options.scale = random_.uniform() - 0.3;
    } else if (use("scale Var", 0.4)) {
      options.scale = V(random_.uniform<double>(broadcasting(), -0.3, 1));
    }
    if (use("softcap", 0.35)) options.softcap = 0.3 + random_.uniform();
    if (use("bias", 0.35)) {
      A bias = normal(chance(0.2) ? scores_ : broadcasting());
      if (use("infinite bias", 0.4)) {
        for (double& x : bias.mutable_values()) x = chance(0.2) ? -infinity : x;
      }
      options.bias = V(bias);
    }
    if (use("slopes", 0.35)) options.slopes = V(random_.uniform<double>({heads_}, -0.2, 0.6));
  }

  void draw_mask() {
    Mask& mask = draw_.options.mask;
    const Index L = scores_.dim(-2), S = scores_.dim(-1);
    if (use("causal", 0.25)) mask = mask & Mask::causal(numbers(-1, S, leading_axes()));
    if (use("window", 0.2)) {
      const Index left = chance(0.2) ? Mask::unbounded : between(0, 4), right = between(0, 4);
      mask = mask & Mask::window(left, right, numbers(-1, 3, leading_axes()));
    }
    if (use("lengths", 0.2)) mask = mask & Mask::lengths(numbers(chance(0.2) ? 0 : 1, S, leading_axes()));
    if (use("documents", 0.2)) {
      const Shape samples = scores_.first(static_cast<int>(between(0, leading_axes())));
      mask = mask & Mask::documents(random_.integers(samples.followed_by({L}), 2),
                                    random_.integers(samples.followed_by({S}), 2));
    }
    if (use("allowed", 0.25)) mask = mask & Mask::allowed(choices(broadcasting(), 0.75));
    if (use("allowed prefix", 0.15)) {
      const Shape shape = broadcasting();
      mask = mask &
             Mask::allowed_prefix(choices(shape.rank() > 0 ? shape.with(-1, between(1, S)) : Shape{S}, 0.8));
    }
  }

  void draw_weights() {
    Options& options = draw_.options;
    if (use("sink", 0.35)) options.sink = V(normal({heads_}));
    if (use("dropout", 0.35)) {
      const double rate = 0.8 * random_.uniform();
      if (use("dropout given", 0.4)) {
        options.dropout = {rate, choices(broadcasting(), 0.6)};
      } else {
        options.dropout = {rate, Generator(random_.bits())};
      }
    }
  }

  void draw_wanted() {
    Options& options = draw_.options;
    AttentionOutputs& up = draw_.upstream;
    up.output = normal(draw_.query.shape().with(-1, draw_.value.dim(-1)));
    auto want = [&](const char* name, bool& flag, std::initializer_list<A*> upstreams, const Shape& shape) {
      flag = use(name, 0.35);
      for (A* upstream : upstreams) {
        if (flag && chance(0.8)) *upstream = normal(shape);
      }
    };
    want("scaled scores", options.scaled_scores, {&up.scaled_scores}, scores_);
    want("capped scores", options.capped_scores, {&up.capped_scores}, scores_);
    want("masked scores", options.masked_scores, {&up.masked_scores}, scores_);
    want("log-sum-exp", options.log_sum_exp, {&up.log_sum_exp}, scores_.without(-1));
    want("weights", options.weights, {&up.weights}, scores_);
    want("statistics", options.statistics, {&up.entropy, &up.largest_score, &up.first_key_mass},
         scores_.first(leading_axes()));
    options.kept = options.dropout && chance(0.5);
  }

  Generator random_;
  Draw draw_;
  Shape scores_;
  Index heads_ = 1;
  int shared_axes_ = 0;  // leading axes of queries and keys that are the same
};

// ---- by loops, and by the composition

Numbers by_loops(const Draw& d, const Options& options, const AttentionOutputs& upstream) {
  if (d.scoring) return additive_attention_reference(d.query, d.key, d.value, *d.scoring, options, upstream);
  Numbers r;
  static_cast<AttentionReference&>(r) = attention_reference(d.query, d.key, d.value, options, upstream);
  return r;
}
Numbers by_loops(const Draw& d) { return by_loops(d, d.options, d.upstream); }

// Puts everything on a tape and remembers where its gradient belongs.
class Recorded {
 public:
  explicit Recorded(const Draw& draw) : draw_(draw) {
    query_ = record(draw_.query, numbers_.dquery);
    key_ = record(draw_.key, numbers_.dkey);
    value_ = record(draw_.value, numbers_.dvalue);
    Options& options = draw_.options;
    if (options.norm) {
      options.norm->query_gain = record(options.norm->query_gain.value(), numbers_.dquery_gain);
      options.norm->key_gain = record(options.norm->key_gain.value(), numbers_.dkey_gain);
    }
    if (options.scale.var()) options.scale = record(options.scale.var()->value(), numbers_.dscale);
    record(options.bias, numbers_.dbias);
    record(options.slopes, numbers_.dslopes);
    record(options.sink, numbers_.dsink);
    if (!draw_.scoring) return;
    draw_.scoring->w_query = record(draw_.scoring->w_query.value(), numbers_.dw_query);
    draw_.scoring->w_key = record(draw_.scoring->w_key.value(), numbers_.dw_key);
    record(draw_.scoring->b, numbers_.db);
    draw_.scoring->v = record(draw_.scoring->v.value(), numbers_.dv);
  }

  // By ops, or by the fused kernel where it can.
  Numbers numbers(AttentionKernel kernel) {
    draw_.options.kernel = kernel;
    const AttentionResult<double> r =
        draw_.scoring ? additive_attention(query_, key_, value_, *draw_.scoring, draw_.options)
                      : attention(query_, key_, value_, draw_.options);
    fused_ = r.computed_by == "fused";
    const AttentionOutputs& up = draw_.upstream;
    output(r.output, numbers_.output, up.output);
    output(r.weights, numbers_.weights, up.weights);
    output(r.scaled_scores, numbers_.scaled_scores, up.scaled_scores);
    output(r.capped_scores, numbers_.capped_scores, up.capped_scores);
    output(r.masked_scores, numbers_.masked_scores, up.masked_scores);
    output(r.log_sum_exp, numbers_.log_sum_exp, up.log_sum_exp);
    if (r.statistics) {
      output(r.statistics->entropy, numbers_.entropy, up.entropy);
      output(r.statistics->largest_score, numbers_.largest_score, up.largest_score);
      output(r.statistics->first_key_mass, numbers_.first_key_mass, up.first_key_mass);
    }
    if (r.kept) numbers_.kept = *r.kept;
    const std::vector<A> d = gradient_values(y_, x_, seeds_);
    for (std::size_t i = 0; i < d.size(); ++i) *gradients_[i] = d[i];
    return numbers_;
  }

  bool fused() const { return fused_; }

 private:
  V record(const A& x, A& gradient) {
    x_.push_back(tape_.input(x));
    gradients_.push_back(&gradient);
    return x_.back();
  }
  void record(std::optional<V>& x, A& gradient) {
    if (x) x = record(x->value(), gradient);
  }
  void output(const std::optional<V>& y, A& number, const A& upstream) {
    if (y) number = y->value();
    if (!y || !upstream.defined()) return;
    y_.push_back(*y);
    seeds_.push_back(V(upstream));
  }

  Tape<double> tape_;
  Draw draw_;
  Numbers numbers_;
  V query_, key_, value_;
  std::vector<V> x_, y_, seeds_;
  std::vector<A*> gradients_;
  bool fused_ = false;
};

Numbers by_composition(const Draw& draw) { return Recorded(draw).numbers(AttentionKernel::composed); }

// Nothing when the kernel cannot.
std::optional<Numbers> by_kernel(const Draw& draw) {
  Recorded recorded(draw);
  const Numbers numbers = recorded.numbers(AttentionKernel::automatic);
  return recorded.fused() ? std::optional(numbers) : std::nullopt;
}

struct Field {
  const char* name;
  A Numbers::*number;
};
const std::vector<Field> outputs = {{"output", &Numbers::output},
                                    {"weights", &Numbers::weights},
                                    {"scaled_scores", &Numbers::scaled_scores},
                                    {"capped_scores", &Numbers::capped_scores},
                                    {"masked_scores", &Numbers::masked_scores},
                                    {"log_sum_exp", &Numbers::log_sum_exp},
                                    {"entropy", &Numbers::entropy},
                                    {"largest_score", &Numbers::largest_score},
                                    {"first_key_mass", &Numbers::first_key_mass}};
const std::vector<Field> gradients = {{"dquery", &Numbers::dquery},
                                      {"dkey", &Numbers::dkey},
                                      {"dvalue", &Numbers::dvalue},
                                      {"dquery_gain", &Numbers::dquery_gain},
                                      {"dkey_gain", &Numbers::dkey_gain},
                                      {"dscale", &Numbers::dscale},
                                      {"dbias", &Numbers::dbias},
                                      {"dslopes", &Numbers::dslopes},
                                      {"dsink", &Numbers::dsink},
                                      {"dw_query", &Numbers::dw_query},
                                      {"dw_key", &Numbers::dw_key},
                                      {"db", &Numbers::db},
                                      {"dv", &Numbers::dv}};

double error(const A& actual, const A& expected) {
  return absolute_error(actual, expected) / std::max(1.0, magnitude(expected));
}

struct Difference {
  double error = 0;
  const char* name = "";
};

// The worst of what both have.
Difference difference(const Numbers& actual, const Numbers& expected) {
  Difference worst;
  for (const auto* fields : {&outputs, &gradients}) {
    for (const Field& field : *fields) {
      const A &a = actual.*field.number, &b = expected.*field.number;
      if (!a.defined() || !b.defined()) continue;
      const double e = error(a, b);
      if (e > worst.error) worst = {e, field.name};
    }
  }
  return worst;
}

Numbers outputs_of(const Numbers& r) {
  Numbers result;
  static_cast<AttentionOutputs&>(result) = r;
  return result;
}

// ---- keys that no row sees

// Writes NaN into the key and value of every key that no row sees, by the masked scores of the reference, and
// into the query of every row without a key. Returns whether there was one.
bool hide_nan(Draw& draw, const A& masked) {
  const Index keys = masked.dim(-1);
  const Index key_entries = draw.key.size() / draw.key.dim(-1) / keys;
  const Index rows_a_key = masked.size() / keys / key_entries;
  bool any = false;
  auto hide = [&](A& x, Index row) {
    any = true;
    for (Index d = 0; d < x.dim(-1); ++d)
      x.mutable_values()[static_cast<std::size_t>(row * x.dim(-1) + d)] = nan;
  };
  for (Index entry = 0; entry < key_entries; ++entry) {
    for (Index j = 0; j < keys; ++j) {
      bool seen = false;
      for (Index i = 0; i < rows_a_key; ++i) {
        seen |= masked.data()[(entry * rows_a_key + i) * keys + j] > -infinity;
      }
      if (seen) continue;
      hide(draw.key, entry * keys + j);
      hide(draw.value, entry * keys + j);
    }
  }
  for (Index row = 0; row < masked.size() / keys; ++row) {
    bool sees = false;
    for (Index j = 0; j < keys; ++j) sees |= masked.data()[row * keys + j] > -infinity;
    if (!sees) hide(draw.query, row);
  }
  return any;
}

// ---- the comparison

constexpr int draw_count = 2000;

struct Tally {
  std::map<std::string, int> uses;
  double worst = 0;

  // A draw with hidden NaN is one that was counted before.
  void count(const Draw& draw, double error) {
    worst = std::max(worst, error);
    for (const std::string& name : draw.uses) {
      if (name == "hidden NaN" || !draw.has("hidden NaN")) ++uses[name];
    }
  }
};

// A draw whose rows all have a key, or whose empty rows are zero: first both must say which row is empty.
Draw with_rows_settled(Draw draw) {
  try {
    by_loops(draw);
    if (draw.query.dim(-2) % 2 == 0) draw.options.empty_rows = EmptyRows::zero;  // changes nothing
  } catch (const DomainError& empty) {
    const std::string message = empty.what();
    const std::string place = message.substr(message.find("no key is allowed: "));
    try {
      by_composition(draw);
      ADD_FAILURE() << "only the reference says " << message;
    } catch (const DomainError& same) {
      EXPECT_NE(std::string(same.what()).find(place), std::string::npos) << same.what() << ", not " << place;
    }
    draw.options.empty_rows = EmptyRows::zero;
    draw.uses.push_back("empty rows");
  }
  return draw;
}

void expect_same(const Draw& draw, Tally& tally) {
  const Numbers actual = by_composition(draw), expected = by_loops(draw);
  const Difference found = difference(actual, expected);
  EXPECT_LE(found.error, rounding) << found.name;
  for (const Field& field : gradients) {
    const bool number = field.number == &Numbers::dscale && !draw.options.scale.var();
    if (number) continue;
    EXPECT_EQ((actual.*field.number).defined(), (expected.*field.number).defined()) << field.name;
  }
  EXPECT_TRUE(!draw.options.kept || same_numbers(actual.kept, expected.kept));
  if (draw.options.bias && draw.options.bias->shape() == scores_of(draw)) {
    EXPECT_LE(error(actual.dbias, expected.dscores), rounding);
    ++tally.uses["bias of every score"];
  }
  tally.count(draw, found.error);
}

// The draw without what the fused kernel never computes.
Draw for_kernel(Draw draw) {
  Options& o = draw.options;
  o.weights = o.scaled_scores = o.capped_scores = o.masked_scores = o.statistics = o.kept = false;
  AttentionOutputs upstream;
  upstream.output = draw.upstream.output;
  upstream.log_sum_exp = draw.upstream.log_sum_exp;
  draw.upstream = upstream;
  std::erase_if(draw.uses, [](const std::string& name) {
    return name == "weights" || name == "statistics" || name.ends_with(" scores");
  });
  return draw;
}

void expect_same_by_kernel(const Draw& draw, Tally& tally) {
  const std::optional<Numbers> actual = by_kernel(draw);
  if (!actual) return;
  const Difference found = difference(*actual, by_loops(draw));
  EXPECT_LE(found.error, rounding) << found.name;
  tally.count(draw, found.error);
}

void print(const Tally& tally) {
  std::cout << draw_count << " draws, largest difference " << tally.worst << "; draws that used\n";
  for (const auto& [name, count] : tally.uses) std::cout << "  " << name << " " << count << "\n";
}

// By loops, nothing changes but the scores of what was hidden, and what was asked of them by a gradient.
void expect_untouched(const Draw& hidden, const Draw& clean) {
  Numbers with = by_loops(hidden), without = by_loops(clean);
  with.scaled_scores = with.capped_scores = A();
  if (clean.upstream.scaled_scores.defined() || clean.upstream.capped_scores.defined())
    with = outputs_of(with);
  const Difference found = difference(with, without);
  EXPECT_EQ(found.error, 0) << found.name;
}

// Calls `expect` with each draw, and again with NaN where no row looks, until something fails.
template <class F>
void for_each_draw(std::uint64_t seed, F expect) {
  Drawing drawing(seed);
  for (int i = 0; i < draw_count && !testing::Test::HasFailure(); ++i) {
    const Draw draw = with_rows_settled(drawing.draw());
    std::string names = "draw " + std::to_string(i) + ":";
    for (const std::string& name : draw.uses) names += " " + name + ",";
    SCOPED_TRACE(names + " scores " + to_string(scores_of(draw)));
    expect(draw);
    Draw hidden = draw;
    if (hide_nan(hidden, by_loops(draw).masked_scores)) {
      SCOPED_TRACE("with NaN where no row looks");
      hidden.uses.push_back("hidden NaN");
      expect(hidden);
      expect_untouched(hidden, draw);
    }
  }
}

TEST(AttentionRandom, OptionsInAnyCombinationAgreeWithTheFormulas) {
  Tally tally;
  for_each_draw(1, [&](const Draw& draw) { expect_same(draw, tally); });
  print(tally);
  for (const auto& [name, count] : tally.uses) EXPECT_GT(count, 100) << name;
  EXPECT_EQ(tally.uses.size(), 40u);
}

TEST(AttentionRandom, TheFusedKernelAgreesWithThemWhereItCan) {
  Tally tally;
  for_each_draw(3, [&](const Draw& draw) { expect_same_by_kernel(for_kernel(draw), tally); });
  print(tally);
  for (const auto& [name, count] : tally.uses) EXPECT_GT(count, 50) << name;
  EXPECT_EQ(tally.uses.size(), 30u);
}

// ---- references that are wrong by one thing

struct Wrong {
  const char* name;
  std::vector<std::string> needs;  // options of a draw
  std::function<std::optional<Numbers>(Draw)> numbers;
};

// What the reference gives for a draw that was changed.
template <class Change>
std::function<std::optional<Numbers>(Draw)> changed(Change change) {
  return [change](Draw draw) -> std::optional<Numbers> {
    draw.options.empty_rows = EmptyRows::zero;
    change(draw);
    return by_loops(draw);
  };
}

// Output and weights when the masked scores are f(options, scaled score, capped score, masked score).
template <class F>
std::function<std::optional<Numbers>(Draw)> rescored(F f) {
  return [f](const Draw& draw) -> std::optional<Numbers> {
    const Numbers right = by_loops(draw);
    A scores = right.masked_scores;
    for (std::size_t i = 0; i < scores.values().size(); ++i) {
      scores.mutable_values()[i] = f(draw.options, right.scaled_scores.values()[i],
                                     right.capped_scores.values()[i], right.masked_scores.values()[i]);
    }
    Options options;
    options.bias = V(scores);
    options.empty_rows = EmptyRows::zero;
    options.sink = draw.options.sink;
    options.dropout = draw.options.dropout;
    const auto r = attention_reference(A::zeros(draw.query.shape().with(-1, 1)),
                                       A::zeros(draw.key.shape().with(-1, 1)), draw.value, options);
    Numbers result;
    result.output = r.output;
    result.weights = r.weights;
    return result;
  };
}

Index group_of(const Draw& draw) { return draw.query.rank() < 4 ? 1 : draw.query.dim(-3) / draw.key.dim(-3); }

// A key head for each query head: 0, 0, 1, 1, 2, 2, or 0, 1, 2, 0, 1, 2 when tiled.
A heads_repeated(const A& x, Index heads, bool tiled) {
  A result = A::uninitialized(x.shape().with(-3, heads));
  const Index head = x.dim(-2) * x.dim(-1), own = x.dim(-3);
  for (Index h = 0; h < result.size() / head; ++h) {
    const Index from = tiled ? h % heads % own : h % heads / (heads / own);
    std::copy_n(x.data() + (h / heads * own + from) * head, head, result.mutable_values().data() + h * head);
  }
  return result;
}

Numbers with_heads_repeated(Draw draw, bool tiled) {
  const Index heads = draw.query.dim(-3);
  draw.key = heads_repeated(draw.key, heads, tiled);
  draw.value = heads_repeated(draw.value, heads, tiled);
  return outputs_of(by_loops(draw));
}

// For each head the mean of f(row of weights), over all rows or those with a key.
template <class F>
A mean_over_rows(const A& weights, bool all, F f) {
  const Index S = weights.dim(-1), L = weights.dim(-2);
  A result = A::zeros(weights.shape().first(weights.rank() - 2));
  for (Index head = 0; head < result.size(); ++head) {
    double sum = 0, count = 0;
    for (Index i = 0; i < L; ++i) {
      const std::span<const double> row(weights.data() + (head * L + i) * S, static_cast<std::size_t>(S));
      sum += f(row);
      count += all || std::accumulate(row.begin(), row.end(), 0.0) > 0 ? 1 : 0;
    }
    result.mutable_values()[static_cast<std::size_t>(head)] = sum / std::max(count, 1.0);
  }
  return result;
}

double entropy_of_keys(std::span<const double> row) {
  double sum = 0;
  for (const double w : row) sum -= w > 0 ? w * std::log(w) : 0;
  return sum;
}

Numbers sink_with_the_value_of_key_0(const Draw& draw) {
  Numbers result = outputs_of(by_loops(draw));
  const Index S = draw.key.dim(-2), E = draw.value.dim(-1);
  for (Index row = 0; row < result.weights.size() / S; ++row) {
    const double* w = result.weights.data() + row * S;
    const double share = 1 - std::accumulate(w, w + S, 0.0);
    const double* value = draw.value.data() + row / draw.query.dim(-2) / group_of(draw) * S * E;
    double* out = result.output.mutable_values().data() + row * E;
    for (Index e = 0; e < E; ++e) out[e] += share * value[e];
  }
  return result;
}

// Query and key turned here, and normed before, or after by attention.
std::optional<Numbers> turned_outside(Draw draw, bool normed_before) {
  const RopeOptions rope_options = *draw.options.rope;
  if (!rope_options.start.same() || !draw.options.query_offset.same()) return std::nullopt;
  RopeOptions of_query = rope_options;
  of_query.start = of_query.start + draw.options.query_offset.values().item();
  const QueryKeyNorm<double> norm = *draw.options.norm;
  auto before = [&](const A& x, const V& gain) {
    return normed_before ? rms_norm(V(x), gain, norm.eps) : V(x);
  };
  draw.query = rope(before(draw.query, norm.query_gain), of_query).value();
  draw.key = rope(before(draw.key, norm.key_gain), rope_options).value();
  draw.options.rope.reset();
  if (normed_before) draw.options.norm.reset();
  return outputs_of(by_loops(draw));
}

bool is_excluded(double score) { return score == -infinity; }

std::vector<Wrong> wrong_scores() {
  return {
      {"softcap after bias",
       {"softcap", "bias"},
       rescored([](const Options& o, double s, double c, double z) {
         return is_excluded(z) ? z : o.softcap * std::tanh((s + z - c) / o.softcap);
       })},
      {"mask before softcap", {"softcap", "causal"}, rescored([](const Options& o, double, double, double z) {
         return is_excluded(z) ? -o.softcap : z;
       })},
      {"scale after softcap",
       {"softcap", "scale number"},
       rescored([](const Options& o, double s, double c, double z) {
         const double scale = o.scale.number(1);
         return is_excluded(z) ? z : scale * o.softcap * std::tanh(s / scale / o.softcap) + z - c;
       })},
      {"bias scaled", {"bias", "scale number"}, rescored([](const Options& o, double, double c, double z) {
         return is_excluded(z) ? z : c + o.scale.number(1) * (z - c);
       })},
      {"minus infinity as a large finite number",
       {"causal"},
       rescored([](const Options&, double, double, double z) { return is_excluded(z) ? -5 : z; })},
      {"slope added", {"slopes"}, changed([](Draw& d) {
         A slopes = d.options.slopes->value();
         for (double& slope : slopes.mutable_values()) slope = -slope;
         d.options.slopes = V(slopes);
       })},
      {"slopes without the query offset", {"slopes", "query offset"}, changed([](Draw& d) {
         d.options.query_offset = 0;
       })},
      {"scale 1 / D",
       {},
       [](Draw d) -> std::optional<Numbers> {
         if (d.scoring || d.has("scale Var") || d.has("scale number")) return std::nullopt;
         d.options.scale = 1 / static_cast<double>(d.query.dim(-1));
         return by_loops(d);
       }},
      {"additive scores over the root of D", {"additive scoring"}, changed([](Draw& d) {
         if (!d.has("scale Var") && !d.has("scale number"))
           d.options.scale = 1 / std::sqrt(static_cast<double>(d.query.dim(-1)));
       })},
      {"additive without b", {"additive b"}, changed([](Draw& d) { d.scoring->b.reset(); })},
  };
}

std::vector<Wrong> wrong_positions_and_masks() {
  return {
      {"heads tiled instead of grouped",
       {"grouped heads"},
       [](const Draw& d) { return std::optional(with_heads_repeated(d, true)); }},
      {"causal aligned to the last key", {"causal"}, changed([](Draw& d) {
         d.options.mask = d.options.mask.later(d.key.dim(-2) - d.query.dim(-2));
       })},
      {"causal without the own position", {"causal"}, changed([](Draw& d) {
         d.options.mask = d.options.mask.later(-1);
       })},
      {"window mirrored", {"window"}, changed([](Draw& d) {
         const auto conditions = d.options.mask.conditions();
         const auto* window = std::get_if<Mask::Window>(&conditions.front());
         if (window && conditions.size() == 1)
           d.options.mask = Mask::window(window->right, window->left, window->offset);
       })},
      {"lengths ignored", {"lengths"}, changed([](Draw& d) { d.options.mask = {}; })},
      {"rope start ignored for queries",
       {"rope start"},
       [](Draw d) -> std::optional<Numbers> {
         const PerSample start = d.options.rope->start;
         if (!start.same() || d.options.slopes) return std::nullopt;
         d.options.query_offset = d.options.query_offset + -start.values().item();
         return by_loops(d);
       }},
      {"rope of the other pairing", {"rope"}, changed([](Draw& d) {
         Pairing& pairing = d.options.rope->pairing;
         pairing = pairing == Pairing::half ? Pairing::neighbours : Pairing::half;
       })},
      {"rope without position scale", {"rope position scale"}, changed([](Draw& d) {
         d.options.rope->position_scale = 1;
       })},
      {"rope without its base", {"rope base"}, changed([](Draw& d) { d.options.rope->base = 10000; })},
      {"norm after rope", {"norm", "rope"}, [](const Draw& d) { return turned_outside(d, false); }},
      {"key norm with the gain of queries",
       {"norm"},
       [](Draw d) -> std::optional<Numbers> {
         if (d.key.dim(-1) != d.query.dim(-1)) return std::nullopt;
         d.options.norm->key_gain = d.options.norm->query_gain;
         return by_loops(d);
       }},
  };
}

std::vector<Wrong> wrong_weights() {
  return {
      {"sink with a value", {"sink"}, sink_with_the_value_of_key_0},
      {"sink left out of the sum", {"sink"}, changed([](Draw& d) { d.options.sink.reset(); })},
      {"dropout not rescaled", {"dropout"}, changed([](Draw& d) {
         d.options.dropout = {0, by_loops(d).kept};
       })},
      {"weights after dropout",
       {"dropout", "weights"},
       [](const Draw& d) -> std::optional<Numbers> {
         Numbers r = outputs_of(by_loops(d));
         const Array<bool> kept = by_loops(d).kept;
         for (Index i = 0; i < kept.size(); ++i) {
           if (!kept.data()[i]) r.weights.mutable_values()[static_cast<std::size_t>(i)] = 0;
         }
         return r;
       }},
      {"log-sum-exp without the sink",
       {"sink", "log-sum-exp"},
       [](Draw d) -> std::optional<Numbers> {
         d.options.sink.reset();
         Numbers r;
         r.log_sum_exp = by_loops(d).log_sum_exp;
         return r;
       }},
      {"entropy without the sink",
       {"sink", "statistics"},
       [](const Draw& d) -> std::optional<Numbers> {
         Numbers r;
         r.entropy = mean_over_rows(by_loops(d).weights, false, entropy_of_keys);
         return r;
       }},
      {"statistics over all rows",
       {"statistics"},
       [](const Draw& d) -> std::optional<Numbers> {
         Numbers r;
         r.first_key_mass = mean_over_rows(by_loops(d).weights, true, [](auto row) { return row[0]; });
         return r;
       }},
      {"largest score before the mask",
       {"causal", "statistics"},
       [](Draw d) -> std::optional<Numbers> {
         d.options.mask = {};
         Numbers r;
         r.largest_score = by_loops(d).largest_score;
         return r;
       }},
  };
}

// Right forward, wrong backward.
std::vector<Wrong> wrong_gradients() {
  return {
      {"gradient of values without dropout",
       {"dropout"},
       [](Draw d) -> std::optional<Numbers> {
         d.options.dropout.reset();
         Numbers r;
         r.dvalue = by_loops(d).dvalue;
         return r;
       }},
      {"gradient of values from the first head of a group",
       {"grouped heads"},
       [](Draw d) -> std::optional<Numbers> {
         const Index head = d.query.dim(-2) * d.value.dim(-1);
         for (Index i = 0; i < d.upstream.output.size(); ++i) {
           if (i / head % group_of(d) != 0)
             d.upstream.output.mutable_values()[static_cast<std::size_t>(i)] = 0;
         }
         Numbers r;
         r.dvalue = by_loops(d).dvalue;
         return r;
       }},
      {"gradient of log-sum-exp left out", {"log-sum-exp"}, changed([](Draw& d) {
         d.upstream.log_sum_exp = {};
       })},
      {"gradient of entropy left out", {"statistics"}, changed([](Draw& d) { d.upstream.entropy = {}; })},
      {"gradient of weights left out", {"weights"}, changed([](Draw& d) { d.upstream.weights = {}; })},
      {"gradient of the sink with the other sign",
       {"sink"},
       [](const Draw& d) -> std::optional<Numbers> {
         Numbers r = by_loops(d);
         for (double& x : r.dsink.mutable_values()) x = -x;
         return r;
       }},
  };
}

// What the wrong ones above are made with, without the mistake.
std::vector<Wrong> right_ones() {
  return {
      {"changed in nothing", {}, changed([](Draw&) {})},
      {"its own masked scores as a bias", {}, rescored([](const Options&, double, double, double z) {
         return z;
       })},
      {"a key head for each query head",
       {"grouped heads"},
       [](const Draw& d) { return std::optional(with_heads_repeated(d, false)); }},
      {"norm and rope outside", {"norm", "rope"}, [](const Draw& d) { return turned_outside(d, true); }},
      {"mass of the first key over the rows with a key",
       {"statistics"},
       [](const Draw& d) -> std::optional<Numbers> {
         Numbers r;
         r.first_key_mass = mean_over_rows(by_loops(d).weights, false, [](auto row) { return row[0]; });
         return r;
       }},
      {"entropy of the keys where there is no sink",
       {"statistics"},
       [](const Draw& d) -> std::optional<Numbers> {
         if (d.options.sink) return std::nullopt;
         Numbers r;
         r.entropy = mean_over_rows(by_loops(d).weights, false, entropy_of_keys);
         return r;
       }},
  };
}

class WrongReferences : public testing::Test {
 protected:
  WrongReferences() {
    Drawing drawing(2);
    for (int i = 0; i < 200; ++i) {
      draws_.push_back(with_rows_settled(drawing.draw()));
      right_.push_back(by_composition(draws_.back()));
    }
  }

  // The first draw in which attention differs from it, and in what; empty when there is none.
  std::string found(const Wrong& wrong, int& applied) const {
    for (std::size_t i = 0; i < draws_.size(); ++i) {
      const Draw& draw = draws_[i];
      const bool applies = std::all_of(wrong.needs.begin(), wrong.needs.end(),
                                       [&](const std::string& name) { return draw.has(name); });
      const auto numbers = applies ? wrong.numbers(draw) : std::nullopt;
      applied += numbers ? 1 : 0;
      const Difference there = numbers ? difference(right_[i], *numbers) : Difference{};
      if (there.error <= rounding) continue;
      return "draw " + std::to_string(i) + ", " + there.name + " by " + std::to_string(there.error);
    }
    return "";
  }

  std::vector<Draw> draws_;
  std::vector<Numbers> right_;
};

TEST_F(WrongReferences, AreFound) {
  for (const auto& some : {wrong_scores(), wrong_positions_and_masks(), wrong_weights(), wrong_gradients()}) {
    for (const Wrong& wrong : some) {
      int applied = 0;
      const std::string where = found(wrong, applied);
      std::cout << "  " << wrong.name << ": " << where << "\n";
      EXPECT_FALSE(where.empty()) << wrong.name;
    }
  }
}

TEST_F(WrongReferences, WithoutTheMistakeAreNot) {
  for (const Wrong& right : right_ones()) {
    int applied = 0;
    EXPECT_EQ(found(right, applied), "") << right.name;
    EXPECT_GT(applied, 10) << right.name;
  }
}

}  // namespace
}  // namespace tapehead
