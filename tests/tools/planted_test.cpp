// The witness that plants mistakes is itself held to the reference, to differences and to the catalogue.

#include <gtest/gtest.h>
#include <tapehead/nn/attention_reference.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "support/compare.h"
#include "tools/planted/attention.h"
#include "tools/planted/cases.h"
#include "tools/planted/shapes.h"

namespace tapehead::planted {
namespace {

// ---- a call as the options of nn/attention.h

Array<double> list(const std::vector<double>& x) { return Array<double>::from(x); }
Array<Index> indices(const std::vector<Index>& x, const Shape& shape) { return Array<Index>::from(x, shape); }

Array<double> gain(const std::vector<double>& x, Index width) {
  return x.empty() ? Array<double>::ones({width}) : list(x);
}

Mask mask_of(const Call& c) {
  Mask mask;
  if (c.causal != Causal::none) mask = mask & Mask::causal(c.causal_offset());
  if (c.window_left || c.window_right)
    mask = mask & Mask::window(c.window_left.value_or(Mask::unbounded),
                               c.window_right.value_or(Mask::unbounded), c.causal_offset());
  if (!c.key_lengths.empty()) mask = mask & Mask::lengths(indices(c.key_lengths, {c.B}));
  if (!c.query_segments.empty())
    mask = mask & Mask::documents(indices(c.query_segments, {c.B, c.L}), indices(c.key_segments, {c.B, c.S}));
  if (!c.query_lengths.empty()) {
    Grid rows(c.B, 1, c.L, 1);
    each(rows, [&](Index b, Index h, Index i, Index j) { rows(b, h, i, j) = c.is_row(b, i) ? 1 : 0; });
    mask = mask & Mask::allowed(rows.array().cast<bool>());
  }
  if (c.mask_kind == MaskKind::allowed) mask = mask & Mask::allowed(c.mask.array().cast<bool>());
  if (c.mask_kind == MaskKind::blocked) {
    Grid allowed = c.mask;
    for (double& number : allowed.numbers) number = 1 - number;
    mask = mask & Mask::allowed(allowed.array().cast<bool>());
  }
  return mask;
}

AttentionOptions<double> options_of(const Call& c) {
  AttentionOptions<double> options;
  if (c.norm != Norm::none)
    options.norm = QueryKeyNorm<double>{gain(c.query_gain, c.D), gain(c.key_gain, c.D), c.norm_eps};
  if (c.turn != Turn::none)
    options.rope = RopeOptions{c.turn == Turn::half ? Pairing::half : Pairing::neighbours, c.base,
                               c.start_key, c.turned_width()};
  options.query_offset = c.start_query - c.start_key;
  options.scale = c.score_scale();
  options.softcap = c.softcap;
  if (c.mask_kind == MaskKind::additive) options.bias = Var<double>(c.mask.array());
  if (!c.bias.empty()) {
    Grid bias = c.bias;
    if (c.bias_before_scale)
      for (double& number : bias.numbers) number *= c.score_scale();
    options.bias = Var<double>(bias.array());
  }
  if (!c.slopes.empty()) options.slopes = Var<double>(list(c.slopes));
  if (!c.sink.empty()) options.sink = Var<double>(list(c.sink));
  options.mask = mask_of(c);
  options.empty_rows = EmptyRows::zero;
  if (c.train) options.dropout = Dropout{c.dropout, c.keep.array().cast<bool>()};
  return options;
}

AttentionReference reference(const Call& c) {
  AttentionOutputs upstream;
  if (!c.upstream.empty()) upstream.output = c.upstream.array();
  if (!c.upstream_weights.empty()) upstream.weights = c.upstream_weights.array();
  if (!c.upstream_lse.empty()) upstream.log_sum_exp = c.upstream_lse.array({c.B, c.H, c.L});
  return attention_reference(c.query.array(), c.key.array(), c.value.array(), options_of(c), upstream);
}

bool in_reference(const Call& c) {
  return c.norm != Norm::l2 && !c.tiled && !c.lse_base_2 && c.query_positions.empty();
}

TEST(Planted, RightResultsAreThoseOfTheReference) {
  std::set<std::string> seen;
  for (const unsigned set : {0U, 1U}) {
    for (const Call& call : calls(set)) {
      if (!in_reference(call)) continue;
      SCOPED_TRACE(call.shape);
      const Results r = attention(call);
      const AttentionReference expected = reference(call);
      // Sums of at most 24 products, forward and back; scores of up to 20,000 in "low scores" and 100 in
      // "large scores" lose as many digits.
      const double tolerance = call.shape.ends_with("low scores") ? 1e-10 : 1e-12;
      EXPECT_NEAR_RELATIVE(r.output.array(), expected.output, tolerance);
      EXPECT_NEAR_RELATIVE(r.weights.array(), expected.weights, tolerance);
      EXPECT_NEAR_RELATIVE(r.lse.array({call.B, call.H, call.L}), expected.log_sum_exp, tolerance);
      seen.insert(call.shape.substr(call.shape.find(',')));
      if (call.upstream.empty()) continue;
      EXPECT_NEAR_RELATIVE(r.grad_query.array(), expected.dquery, tolerance);
      EXPECT_NEAR_RELATIVE(r.grad_key.array(), expected.dkey, tolerance);
      EXPECT_NEAR_RELATIVE(r.grad_value.array(), expected.dvalue, tolerance);
      if (!call.sink.empty()) {
        EXPECT_NEAR_RELATIVE(r.grad_sink.array(Shape{call.H}), expected.dsink, tolerance);
      }
      if (call.bias.empty()) continue;
      Grid bias = r.grad_bias;
      if (call.bias_before_scale)
        for (double& number : bias.numbers) number /= call.score_scale();
      EXPECT_NEAR_RELATIVE(bias.array(), expected.dbias, tolerance);
    }
  }
  // all but l2 norms (two), tiled heads, base 2 and given positions (two)
  EXPECT_GE(seen.size() + 6, features().size());
}

// ---- gradients of a wrong forward pass are its derivatives

double loss(const Call& call, const Wrong& wrong) {
  Call forward = call;
  const Results r = attention(forward, wrong);
  double sum = 0;
  for (std::size_t n = 0; n < r.output.numbers.size(); ++n)
    sum += r.output.numbers[n] * call.upstream.numbers[n];
  return sum;
}

// Along one direction in query, key, value and bias: slope by differences, and by the gradients.
struct Slopes {
  double differences, gradients, size;
};

Slopes slopes(const Call& call, const Planting& planting) {
  std::mt19937 random(3);
  const auto moved = [&](const Call& from, double step, std::vector<Grid>& directions) {
    Call to = from;
    std::size_t n = 0;
    for (Grid* x : {&to.query, &to.key, &to.value, &to.bias}) {
      if (directions.size() <= n) {
        directions.push_back(x->like());
        for (double& number : directions[n].numbers) number = std::normal_distribution<double>()(random);
      }
      for (std::size_t i = 0; i < x->numbers.size(); ++i) x->numbers[i] += step * directions[n].numbers[i];
      ++n;
    }
    return to;
  };
  std::vector<Grid> directions;
  const double step = 1e-5;
  const Call up = moved(call, step, directions), down = moved(call, -step, directions);
  const Results r = attention(call, *planting.make(call));
  Slopes s{(loss(up, *planting.make(up)) - loss(down, *planting.make(down))) / (2 * step), 0, 0};
  const Grid* const gradients[] = {&r.grad_query, &r.grad_key, &r.grad_value, &r.grad_bias};
  for (std::size_t n = 0; n < 4; ++n) {
    for (std::size_t i = 0; i < gradients[n]->numbers.size(); ++i) {
      s.gradients += gradients[n]->numbers[i] * directions[n].numbers[i];
      s.size += std::abs(gradients[n]->numbers[i] * directions[n].numbers[i]);
    }
  }
  return s;
}

// Kernels that differentiate what they meant and not what they computed: a maximum taken for a constant, old
// sums, a floor, 2^z with the rule of e^z, scores that a large constant swallowed; and rows of NaN.
bool has_other_gradients(const Planting& p) {
  return p.backward || p.id == "online-softmax-state" || p.variant == "unshifted" || p.form == "floor" ||
         p.form == "gradients of e^z" || p.variant == "uniform" || p.form == "filled" ||
         p.id == "low-precision-overflow" || p.id == "nan-from-masked" || p.variant == "nan" ||
         p.id == "split-merge-weights" || p.id == "qkv-packing-order" || p.id == "dropout-mode";
}

TEST(Planted, GradientsOfAWrongFormulaAreItsDerivatives) {
  std::map<std::string, int> tried;
  std::vector<Call> both = calls(0);
  for (Call& call : calls(1)) both.push_back(std::move(call));
  for (const Call& call : both) {
    if (call.upstream.empty() || !call.x.empty() || !call.upstream_lse.empty() ||
        !call.upstream_weights.empty())
      continue;
    if (call.shape.find("large") != std::string::npos || call.shape.find("low scores") != std::string::npos ||
        call.shape.find("poisoned") != std::string::npos)
      continue;
    for (const Planting& planting : plantings()) {
      int& count = tried[planting.id + planting.variant + planting.form];
      if (has_other_gradients(planting) || count == 2 || !planting.make(call)) continue;
      SCOPED_TRACE(call.shape + ": " + planting.id + "/" + planting.variant + " [" + planting.form + "]");
      ++count;
      const Slopes s = slopes(call, planting);
      // Differences of step 1e-5 err by 1e-10 times the third derivative (hundreds, with several scores
      // of a size of 10) and by 1e-16 / 1e-5 times the loss.
      EXPECT_NEAR(s.gradients, s.differences, 3e-7 * (1 + s.size));
    }
  }
  for (const Planting& p : plantings()) {
    if (has_other_gradients(p) || p.only_alike) continue;
    EXPECT_GT((tried[p.id + p.variant + p.form]), 0) << p.id << "/" << p.variant << " " << p.form;
  }
}

// ---- the catalogue

TEST(Planted, EveryMistakeShowsUnderItsOwnConditions) {
  std::map<Name, int> shown;
  for (const Planting& planting : plantings()) shown[{planting.id, planting.variant}];
  for (const unsigned set : {0U, 1U}) {
    for (const Call& call : calls(set)) {
      for (const Planting& planting : plantings()) {
        int& count = shown[{planting.id, planting.variant}];
        if (count < 3) count += shows(call, planting, {}) ? 1 : 0;
      }
    }
  }
  for (const auto& [name, count] : shown) EXPECT_EQ(count, 3) << name.first << "/" << name.second;
}

// What the catalogue says cannot be seen, is not: the planted numbers are the right ones.
TEST(Planted, WhatCannotBeSeenIsNot) {
  const auto hidden = [](const std::string& id, const std::string& variant, const Sizes& n,
                         const std::vector<std::string>& asked, const std::string& form = "") {
    const auto call = make_call(n, asked, Type::f64, 1);
    for (const Planting& planting : plantings()) {
      if (planting.id != id || planting.variant != variant || !planting.form.starts_with(form)) continue;
      EXPECT_FALSE(shows(*call, planting, {})) << id << "/" << variant << " [" << planting.form << "]";
    }
  };
  const Sizes square{"square", 2, 4, 4, 5, 5, 4, 4}, decode{"decode", 2, 4, 2, 1, 5, 4, 4};
  const Sizes narrow{"narrow", 2, 2, 2, 3, 4, 1, 3}, alike{"alike", 2, 4, 2, 3, 5, 4, 4};
  const Sizes one{"one sample", 1, 3, 3, 4, 6, 4, 4};
  hidden("scale-omitted", "", narrow, {"plain"});
  hidden("scale-inverted", "", narrow, {"plain"});
  hidden("scale-wrong-dim", "heads", square, {"plain"});
  hidden("scale-wrong-dim", "value", square, {"plain"});
  hidden("causal-alignment-swapped", "", square, {"causal bottom-right"});
  hidden("mask-dropped", "causal", decode, {"causal bottom-right"});
  hidden("causal-off-by-one", "leak", decode, {"causal bottom-right"});
  hidden("mask-batch-head-order", "", one, {"mask of each sample"});
  hidden("mask-batch-head-order", "", square, {"mask of all"});
  hidden("gqa-wrong-index", "divisor", alike, {"plain"}, "h / Hk");
  hidden("rope-missing", "head-axis", one, {"plain"});
  hidden("heads-merge-no-transpose", "", decode, {"plain"});
  hidden("heads-merge-no-transpose", "batch-swap", one, {"plain"});
  hidden("rope-position-wrong", "per-sample", one, {"rope half"});
  hidden("qknorm-wrong", "order", alike, {"equal gains and rope"});
  hidden("alibi-slopes", "rule", alike, {"slopes"});
  hidden("alibi-slopes", "non-causal", alike, {"slopes and causal"});
  hidden("softcap-order", "after-bias", alike, {"cap"});
}

TEST(Planted, LookAlikesGiveTheSameNumbers) {
  const auto alike = [](const Sizes& n, const std::vector<std::string>& asked, const Name& truth,
                        const Name& other) {
    const auto call = make_call(n, asked, Type::f64, 2);
    std::vector<Results> results;
    for (const Name& name : {truth, other}) {
      for (const Planting& p : plantings()) {
        if (p.id != name.first || p.variant != name.second || results.size() == (name == truth ? 1 : 2))
          continue;
        if (const auto wrong = p.make(*call)) results.push_back(attention(*call, *wrong));
      }
    }
    ASSERT_EQ(results.size(), 2U) << truth.first << ", " << other.first;
    EXPECT_NEAR_RELATIVE(results[0].output.array(), results[1].output.array(), 1e-14);
    EXPECT_FALSE(agree(results[0].output.array(), attention(*call).output.array(), 1e-3));
  };
  alike({"H = d", 2, 4, 2, 3, 5, 4, 3}, {"plain"}, {"scale-wrong-dim", "model"}, {"scale-one-over-d", ""});
  alike({"equal heads", 2, 3, 3, 3, 5, 4, 3}, {"rope half"}, {"rope-missing", ""},
        {"rope-missing", "head-axis"});
  alike({"decode", 2, 2, 2, 1, 5, 4, 3}, {"causal top-left"}, {"mask-dropped", "causal"},
        {"causal-alignment-swapped", ""});
  alike({"views", 2, 3, 3, 4, 5, 4, 3}, {"plain"}, {"strides-ignored", "view"},
        {"heads-split-no-transpose", ""});
}

TEST(Planted, EqualFormsAreEqual) {
  std::map<std::string, int> seen;
  for (const Call& call : calls(0)) {
    for (const Planting& planting : equal_plantings()) {
      const auto wrong = planting.make(call);
      if (!wrong || ++seen[planting.form] > 40) continue;
      SCOPED_TRACE(call.shape + ": " + planting.form);
      Shown shown;
      shown.lse = !attention(call, *wrong).lse.empty();
      EXPECT_FALSE(shows(call, planting, shown));
    }
  }
  EXPECT_EQ(seen.size(), equal_plantings().size());
}

// ---- rounding

TEST(Planted, RoundsToTheNearestNumberOfAType) {
  EXPECT_EQ(rounded(1 + 1.0 / 2048, Type::f16), 1);              // a tie goes to even
  EXPECT_EQ(rounded(1 + 3.0 / 2048, Type::f16), 1 + 1.0 / 512);  // likewise
  EXPECT_EQ(rounded(65519, Type::f16), 65504);
  EXPECT_EQ(rounded(65520, Type::f16), INFINITY);
  EXPECT_EQ(rounded(std::ldexp(3, -26), Type::f16), std::ldexp(1, -24));  // below normal numbers
  EXPECT_EQ(rounded(1 + 1.0 / 256, Type::bf16), 1);
  EXPECT_EQ(rounded(-3.140625 - 1e-9, Type::bf16), -3.140625);
  EXPECT_EQ(rounded(1 + std::ldexp(1, -24), Type::f32), 1);
  EXPECT_EQ(rounded(0.1, Type::f64), 0.1);
}

TEST(Planted, BothWaysOfRoundingErrByTheirUnit) {
  for (const Type type : {Type::f32, Type::bf16, Type::f16}) {
    const auto call = make_call(sizes(0).front(), {"plain"}, type, 4);
    const Array<double> exact = attention(*call).output.array();
    const double all = relative_error(attention(*call, {}, {type, true}).output.array(), exact);
    const double few = relative_error(attention(*call, {}, {type, false}).output.array(), exact);
    const double unit = unit_roundoff(type);
    EXPECT_GT(all, unit / 8);
    EXPECT_GT(few, unit / 8);
    EXPECT_LT(all, 64 * unit);  // scores of up to 10, half a unit each for product, scale, difference
    EXPECT_LT(few, 4 * unit);   // weights and output once each; float leaves no trace in 16 bits
  }
}

}  // namespace
}  // namespace tapehead::planted
