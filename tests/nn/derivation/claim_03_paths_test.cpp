#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 3  projections and paths

// Self-attention on one X by the explicit formulas: the three paths to X, one by one, and the weights'
// gradients.
struct SelfAttentionFormulas {
  A output, dx_via_query, dx_via_key, dx_via_value, dw_query, dw_key, dw_value;
  A dx() const { return sum_of({dx_via_query, dx_via_key, dx_via_value}); }
};

SelfAttentionFormulas self_attention_formulas(const A& x, const MultiHeadAttention<double>& layer,
                                              const Options& options, const A& upstream) {
  const A w_query = layer.query.w.value(), w_key = layer.key.w.value(), w_value = layer.value.w.value();
  const AttentionReference r =
      attention_reference(product(x, w_query), product(x, w_key), product(x, w_value), options, {upstream});
  return {r.output,
          product(r.dquery, transposed(w_query)),
          product(r.dkey, transposed(w_key)),
          product(r.dvalue, transposed(w_value)),
          product_of_rows(x, r.dquery),
          product_of_rows(x, r.dkey),
          product_of_rows(x, r.dvalue)};
}

SelfAttentionCase golden_self_attention(const char* name) {
  const Golden golden(name);
  SelfAttentionCase c;
  c.x = golden.array("x");
  c.upstream = golden.array("upstream");
  c.layer.query.w = golden.array("w_query");
  c.layer.key.w = golden.array("w_key");
  c.layer.value.w = golden.array("w_value");
  c.options.mask = Mask::allowed(golden.mask("mask"));
  return c;
}

struct SelfAttentionNumbers {
  A output, dx, dw_query, dw_key, dw_value;
  std::vector<GradientPath<double>> paths;
};

SelfAttentionNumbers evaluated(const SelfAttentionCase& c) {
  Tape<double> tape;
  const V x = tape.input(c.x, "x");
  const MultiHeadAttention<double> layer = on_tape(tape, c.layer);
  const V output = layer(x, c.options).output;
  auto d = gradient_values(output, {x, layer.query.w, layer.key.w, layer.value.w}, V(c.upstream));
  return {output.value(), d[0], d[1], d[2], d[3], gradient_paths(output, x, V(c.upstream))};
}

TEST(Claim03Projections, GradientOfXIsTheSumOfThreePathsAndWeightsHaveTheirOwn) {
  for (const Mask& mask : {Mask(), causal(0)}) {
    const SelfAttentionCase c = random_self_attention(mask);
    const SelfAttentionNumbers n = evaluated(c);
    const SelfAttentionFormulas f = self_attention_formulas(c.x, c.layer, c.options, c.upstream);
    EXPECT_NEAR_RELATIVE(n.output, f.output, rounding);
    EXPECT_NEAR_RELATIVE(n.dx, f.dx(), rounding);
    EXPECT_NEAR_RELATIVE(n.dw_query, f.dw_query, rounding);
    EXPECT_NEAR_RELATIVE(n.dw_key, f.dw_key, rounding);
    EXPECT_NEAR_RELATIVE(n.dw_value, f.dw_value, rounding);
  }
}

TEST(Claim03Projections, WeightGradientsAreNotExchanged) {
  const SelfAttentionCase c = random_self_attention({});
  const SelfAttentionFormulas f = self_attention_formulas(c.x, c.layer, c.options, c.upstream);
  EXPECT_FALSE(agree(evaluated(c).dw_query, f.dw_key, visible));
  EXPECT_FALSE(agree(evaluated(c).dw_key, f.dw_query, visible));
}

TEST(Claim03Projections, LeavingOutAnyPathIsSeen) {
  for (const Mask& mask : {Mask(), causal(0)}) {
    const SelfAttentionCase c = random_self_attention(mask);
    const SelfAttentionFormulas f = self_attention_formulas(c.x, c.layer, c.options, c.upstream);
    const A dx = evaluated(c).dx;
    EXPECT_TRUE(agree(dx, sum_of({f.dx_via_query, f.dx_via_key, f.dx_via_value}), rounding));
    EXPECT_FALSE(agree(dx, sum_of({f.dx_via_key, f.dx_via_value}), visible));
    EXPECT_FALSE(agree(dx, sum_of({f.dx_via_query, f.dx_via_value}), visible));
    EXPECT_FALSE(agree(dx, sum_of({f.dx_via_query, f.dx_via_key}), visible));
  }
}

TEST(Claim03Projections, APathLeftOutOfTheGraphIsSeen) {
  const SelfAttentionCase c = random_self_attention({});
  const A expected = self_attention_formulas(c.x, c.layer, c.options, c.upstream).dx();
  auto dx_without = [&](int path) {
    Tape<double> tape;
    const V x = tape.input(c.x), cut = x.detach();
    const V output = attention(projection(path == 0 ? cut : x, c.layer.query.w),
                               projection(path == 1 ? cut : x, c.layer.key.w),
                               projection(path == 2 ? cut : x, c.layer.value.w))
                         .output;
    return gradient_values(output, x, V(c.upstream))[0];
  };
  for (const int path : {0, 1, 2}) EXPECT_FALSE(agree(dx_without(path), expected, visible)) << path;
  EXPECT_TRUE(agree(dx_without(-1), expected, rounding));
}

TEST(Claim03Projections, EachPathIsItsOwnFormulaAndNoOther) {
  for (const Mask& mask : {Mask(), causal(0)}) {
    const SelfAttentionCase c = random_self_attention(mask);
    const SelfAttentionFormulas f = self_attention_formulas(c.x, c.layer, c.options, c.upstream);
    const auto paths = evaluated(c).paths;
    const std::pair<const char*, A> expected[] = {
        {"query", f.dx_via_query}, {"key", f.dx_via_key}, {"value", f.dx_via_value}};
    ASSERT_EQ(paths.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(paths[i].name, expected[i].first);
      EXPECT_NEAR_RELATIVE(paths[i].gradient, expected[i].second, rounding);
      EXPECT_FALSE(agree(paths[i].gradient, expected[(i + 1) % 3].second, visible));
    }
  }
}

class Claim03PyTorchPaths : public testing::TestWithParam<const char*> {};

TEST_P(Claim03PyTorchPaths, AreThoseOfTheEngineAndOfTheFormulas) {
  const Golden golden(GetParam());
  const SelfAttentionCase c = golden_self_attention(GetParam());
  const SelfAttentionNumbers n = evaluated(c);
  const SelfAttentionFormulas f = self_attention_formulas(c.x, c.layer, c.options, c.upstream);
  EXPECT_NEAR_RELATIVE(n.output, golden.array("output"), rounding);
  EXPECT_NEAR_RELATIVE(f.output, golden.array("output"), rounding);
  EXPECT_NEAR_RELATIVE(n.dx, golden.array("grad_x"), rounding);
  EXPECT_NEAR_RELATIVE(f.dx(), golden.array("grad_x"), rounding);
  EXPECT_NEAR_RELATIVE(n.dw_query, golden.array("grad_w_query"), rounding);
  EXPECT_NEAR_RELATIVE(f.dw_query, golden.array("grad_w_query"), rounding);
  EXPECT_NEAR_RELATIVE(n.dw_key, golden.array("grad_w_key"), rounding);
  EXPECT_NEAR_RELATIVE(f.dw_key, golden.array("grad_w_key"), rounding);
  EXPECT_NEAR_RELATIVE(n.dw_value, golden.array("grad_w_value"), rounding);
  EXPECT_NEAR_RELATIVE(f.dw_value, golden.array("grad_w_value"), rounding);
  ASSERT_EQ(n.paths.size(), 3u);
  for (const auto& path : n.paths) {
    EXPECT_NEAR_RELATIVE(path.gradient, golden.array("grad_x_via_" + path.name), rounding);
  }
  EXPECT_NEAR_RELATIVE(f.dx_via_query, golden.array("grad_x_via_query"), rounding);
  EXPECT_NEAR_RELATIVE(f.dx_via_key, golden.array("grad_x_via_key"), rounding);
  EXPECT_NEAR_RELATIVE(f.dx_via_value, golden.array("grad_x_via_value"), rounding);
}

INSTANTIATE_TEST_SUITE_P(Golden, Claim03PyTorchPaths, testing::Values("paths_self", "paths_self_causal"),
                         [](const auto& test) { return std::string(test.param); });

struct CrossAttentionCase {
  A x, y, upstream;
  MultiHeadAttention<double> layer;
};

CrossAttentionCase golden_cross_attention() {
  const Golden golden("paths_cross");
  CrossAttentionCase c{golden.array("x"), golden.array("y"), golden.array("upstream"), {}};
  c.layer.query.w = golden.array("w_query");
  c.layer.key.w = golden.array("w_key");
  c.layer.value.w = golden.array("w_value");
  c.layer.out = Projection<double>{golden.array("w_out")};
  return c;
}

TEST(Claim03CrossAttention, AgreesWithPyTorch) {
  const Golden golden("paths_cross");
  const CrossAttentionCase c = golden_cross_attention();
  Tape<double> tape;
  const V x = tape.input(c.x), y = tape.input(c.y);
  const MultiHeadAttention<double> layer = on_tape(tape, c.layer);
  const V output = layer(x, y).output;
  const auto d =
      gradient_values(output, {x, y, layer.query.w, layer.key.w, layer.value.w, layer.out->w}, V(c.upstream));
  EXPECT_NEAR_RELATIVE(output, golden.array("output"), rounding);
  const char* const names[] = {"grad_x",     "grad_y",       "grad_w_query",
                               "grad_w_key", "grad_w_value", "grad_w_out"};
  for (std::size_t i = 0; i < d.size(); ++i)
    EXPECT_TRUE(agree(d[i], golden.array(names[i]), rounding)) << names[i];
}

TEST(Claim03CrossAttention, QueriesAndSourceHaveGradientsApartAndTheSourceHasTwoContributions) {
  const CrossAttentionCase c = golden_cross_attention();
  Tape<double> tape;
  const V x = tape.input(c.x), y = tape.input(c.y);
  const V output = c.layer(x, y).output;
  const A w_query = c.layer.query.w.value(), w_key = c.layer.key.w.value(), w_value = c.layer.value.w.value();
  const AttentionReference r =
      attention_reference(product(c.x, w_query), product(c.y, w_key), product(c.y, w_value), {},
                          {product(c.upstream, transposed(c.layer.out->w.value()))});
  const A via_query = product(r.dquery, transposed(w_query)), via_key = product(r.dkey, transposed(w_key)),
          via_value = product(r.dvalue, transposed(w_value));

  const auto of_x = gradient_paths(output, x, V(c.upstream)), of_y = gradient_paths(output, y, V(c.upstream));
  ASSERT_EQ(of_x.size(), 1u);
  EXPECT_EQ(of_x[0].name, "query");
  EXPECT_NEAR_RELATIVE(of_x[0].gradient, via_query, rounding);
  ASSERT_EQ(of_y.size(), 2u);
  EXPECT_EQ(of_y[0].name, "key");
  EXPECT_EQ(of_y[1].name, "value");
  EXPECT_NEAR_RELATIVE(of_y[0].gradient, via_key, rounding);
  EXPECT_NEAR_RELATIVE(of_y[1].gradient, via_value, rounding);

  const A dy = gradient_values(output, y, V(c.upstream))[0];
  EXPECT_TRUE(agree(dy, sum_of({via_key, via_value}), rounding));
  EXPECT_FALSE(agree(dy, via_key, visible));
  EXPECT_FALSE(agree(dy, via_value, visible));
}

// (1 / N) sum (output - target)^2 over all N numbers of output: its upstream gradient has the factor 2 / N.
TEST(Claim03MeanLoss, IsNormalisedOnce) {
  const Case c = cached_prefix();
  const A target = c.in.upstream;
  auto loss_of = [&](const V& query) {
    const V error = attention(query, V(c.in.key), V(c.in.value), c.options).output - V(target);
    return mean(error * error);
  };
  Tape<double> tape;
  const V query = tape.input(c.in.query);
  const A dquery = gradient_values(loss_of(query), query)[0];

  auto dquery_with = [&](double factor) {
    Inputs in = c.in;
    in.upstream = sum_of({formulas(c.in, c.options).output, scaled(target, -1)});
    in.upstream = scaled(in.upstream, factor);
    return formulas(in, c.options).dquery;
  };
  const auto N = static_cast<double>(target.size());
  EXPECT_TRUE(agree(dquery, dquery_with(2 / N), rounding));
  EXPECT_FALSE(agree(dquery, dquery_with(2), visible));            // not at all
  EXPECT_FALSE(agree(dquery, dquery_with(2 / (N * N)), visible));  // twice
  EXPECT_FALSE(
      agree(dquery, dquery_with(2 / static_cast<double>(target.dim(-1))), visible));  // by the row only

  auto loss = [&](const A& q) { return loss_of(V(q)).item(); };
  for (const double step : steps)
    EXPECT_LE(absolute_error(dquery, central_differences(loss, c.in.query, step)), 1e-7);
}

TEST(Claim03MeanLoss, OfTokensIsNormalisedOnceByTheirNumber) {
  const Case c = rectangular();
  const auto targets = Array<Index>::of({{0, 1, 1}, {1, 0, 1}});
  auto dvalue_with = [&](Reduction reduction) {
    Tape<double> tape;
    const V value = tape.input(c.in.value);
    const V logits = attention(V(c.in.query), V(c.in.key), value).output;
    CrossEntropyOptions<double> options;
    options.reduction = reduction;
    return gradient_values(cross_entropy(logits, targets, options), value)[0];
  };
  const A of_mean = dvalue_with(Reduction::mean), of_sum = dvalue_with(Reduction::sum);
  EXPECT_TRUE(agree(of_mean, scaled(of_sum, 1.0 / 6), rounding));
  EXPECT_FALSE(agree(of_mean, of_sum, visible));
  EXPECT_FALSE(agree(of_mean, scaled(of_sum, 1.0 / 36), visible));
}

// Whether dz is exactly 0 where the mask forbids and nowhere else.
bool is_zero_exactly_where_masked(const A& dz, const Array<bool>& allowed) {
  return std::equal(dz.values().begin(), dz.values().end(), allowed.values().begin(),
                    [](double d, bool seen) { return (d != 0) == seen; });
}

TEST(Claim03Masked, GradientOfTheScoresIsExactlyZeroThere) {
  const Index L = 3, S = 5, E = 2;
  Generator random(32);
  const A z = random.normal<double>({L, S}), value = random.normal<double>({S, E}),
          upstream = random.normal<double>({L, E});
  for (const Mask& mask :
       {causal(1), Mask::allowed(Array<bool>::of({true, false, true, true, false})),
        causal(2) & Mask::allowed(Array<bool>::of({{1, 1, 0, 1, 1}, {0, 1, 1, 1, 0}, {1, 1, 1, 0, 1}}))}) {
    Array<bool> allowed = Array<bool>::uninitialized({L, S});
    const A kept_ones = kept(V(A::ones({L, S})), mask, 0).value();
    std::transform(kept_ones.values().begin(), kept_ones.values().end(), allowed.mutable_values().begin(),
                   [](double one) { return one == 1; });

    auto right = [&](const V& scores) { return attention_on(scores, V(value), mask).output; };
    auto wrong = [&](const V& scores) { return matmul(kept(softmax(scores), mask, 0), V(value)); };
    EXPECT_TRUE(is_zero_exactly_where_masked(dz_of(right, z, upstream), allowed));
    EXPECT_FALSE(is_zero_exactly_where_masked(dz_of(wrong, z, upstream), allowed));
    EXPECT_TRUE(is_zero_exactly_where_masked(
        attention_reference(z, A::eye(S), value, scaled_by(1, mask), {upstream}).dscores, allowed));
  }
}

}  // namespace
}  // namespace tapehead::derivation
