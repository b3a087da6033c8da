#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 1  the explicit formulas

TEST(Claim01ExplicitFormulas, RectangularForwardAndGradients) {
  const Case c = rectangular();
  EXPECT_TRUE(agree(evaluated(attention_with(c.options), c.in), formulas(c.in, c.options), rounding));
}

TEST(Claim01ExplicitFormulas, CausalForwardAndGradients) {
  const Case c = causal_square();
  EXPECT_TRUE(agree(evaluated(attention_with(c.options), c.in), formulas(c.in, c.options), rounding));
}

TEST(Claim01ExplicitFormulas, CachedPrefixForwardAndGradients) {
  const Case c = cached_prefix();
  EXPECT_TRUE(agree(evaluated(attention_with(c.options), c.in), formulas(c.in, c.options), rounding));
}

TEST(Claim01ExplicitFormulas, SeeASoftmaxRuleWithoutTheMeanOfTheRow) {
  const Case c = rectangular();
  const Attend wrong = [](const V& query, const V& key, const V& value) {
    const V weights =
        softmax_with_rule(scores_of(query, key), [](const V& y, const V& dy) { return y * dy; });
    return weighted(weights, value);
  };
  EXPECT_FALSE(agree(evaluated(wrong, c.in), formulas(c.in, c.options), visible));
}

TEST(Claim01ExplicitFormulas, SeeARuleThatIsOffByOnePartInAMillion) {
  const Case c = rectangular();
  const Attend wrong = [](const V& query, const V& key, const V& value) {
    const V weights = softmax_with_rule(scores_of(query, key), [](const V& y, const V& dy) {
      return y * (dy - sum(dy * y, -1, Keep::yes)) * (1 + 1e-6);
    });
    return weighted(weights, value);
  };
  EXPECT_FALSE(agree(evaluated(wrong, c.in), formulas(c.in, c.options), rounding));
}

TEST(Claim01ExplicitFormulas, SeeAMissingScaleAndAMissingMask) {
  const Case plain = rectangular(), masked = cached_prefix();
  EXPECT_FALSE(
      agree(evaluated(attention_with(scaled_by(1)), plain.in), formulas(plain.in, plain.options), visible));
  EXPECT_FALSE(agree(evaluated(attention_with({}), masked.in), formulas(masked.in, masked.options), visible));
}

TEST(Claim01ExplicitFormulas, RowsSumToOne) {
  for (const Case& c : {rectangular(), causal_square(), cached_prefix()}) {
    EXPECT_TRUE(rows_sum_to_one(evaluated(attention_with(c.options), c.in).weights));
    EXPECT_TRUE(rows_sum_to_one(formulas(c.in, c.options).weights));
  }
}

TEST(Claim01ExplicitFormulas, RowsDoNotSumToOneWhenZeroedAfterSoftmax) {
  const Case c = causal_square();
  const V weights = softmax(scores_of(V(c.in.query), V(c.in.key)));
  EXPECT_FALSE(rows_sum_to_one(kept(weights, c.options.mask, 0).value()));
}

// ---- 1  and PyTorch's numbers

Options options_of(const Golden& golden) {
  Options options = scaled_by(golden.number("scale"));
  if (golden.has("mask")) options.mask = Mask::allowed(golden.mask("mask"));
  return options;
}

class Claim01PyTorchNumbers : public testing::TestWithParam<const char*> {};

TEST_P(Claim01PyTorchNumbers, AreThoseOfTheEngineAndOfTheFormulas) {
  const Golden golden(GetParam());
  const Inputs in = inputs_of(golden);
  EXPECT_TRUE(agree(evaluated(attention_with(options_of(golden)), in), numbers_of(golden), rounding));
  EXPECT_TRUE(agree(formulas(in, options_of(golden)), numbers_of(golden), rounding));
}

INSTANTIATE_TEST_SUITE_P(Golden, Claim01PyTorchNumbers,
                         testing::Values("sdpa_rect", "sdpa_batched_heads", "sdpa_5d", "sdpa_causal_square",
                                         "sdpa_cached_prefix", "sdpa_causal_top_left", "sdpa_decode_one",
                                         "sdpa_one_key", "sdpa_bool_mask", "sdpa_key_padding",
                                         "sdpa_sliding_window", "sdpa_documents", "sdpa_scale",
                                         "sdpa_large_scores"),
                         [](const auto& test) { return std::string(test.param); });

class Claim01PyTorchCausal : public testing::TestWithParam<std::pair<const char*, Index>> {};

TEST_P(Claim01PyTorchCausal, MaskIsTheOneOfThisOffset) {
  const auto [name, offset] = GetParam();
  const Golden golden(name);
  const Inputs in = inputs_of(golden);
  EXPECT_TRUE(agree(evaluated(attention_with(masked_by(causal(offset))), in), numbers_of(golden), rounding));
  EXPECT_TRUE(agree(formulas(in, masked_by(causal(offset))), numbers_of(golden), rounding));
  EXPECT_FALSE(
      agree(evaluated(attention_with(masked_by(causal(offset + 1))), in), numbers_of(golden), visible));
  EXPECT_FALSE(agree(formulas(in, masked_by(causal(offset + 1))), numbers_of(golden), visible));
}

INSTANTIATE_TEST_SUITE_P(Golden, Claim01PyTorchCausal,
                         testing::Values(std::pair("sdpa_causal_square", 0),
                                         std::pair("sdpa_cached_prefix", 3),
                                         std::pair("sdpa_causal_top_left", 0)),
                         [](const auto& test) { return std::string(test.param.first); });

TEST(Claim01PyTorchNumbers, OneQueryAgainstACacheSeesAllOfIt) {
  const Golden golden("sdpa_decode_one");
  const Inputs in = inputs_of(golden);
  EXPECT_TRUE(agree(evaluated(attention_with(masked_by(causal(5))), in), numbers_of(golden), rounding));
  EXPECT_FALSE(agree(evaluated(attention_with(masked_by(causal(4))), in), numbers_of(golden), visible));
}

// Weights of shifted scores are all but one-hot, so dz = w (dw - sum of w dw) is the small difference of
// numbers near 1, and a gradient is a sum of terms a million times its own size. In exact arithmetic
// PyTorch's own dquery is off by 4e-9 of its largest element; what rounding leaves is relative to the terms,
// and so is this bound.
testing::AssertionResult agree_relative_to_terms(const Numbers& actual, const Golden& golden) {
  const Numbers expected = numbers_of(golden);
  const A dw = matmul(V(golden.array("upstream")), V(golden.array("value")), false, true).value();
  const double dz_terms = golden.number("scale") * magnitude(dw);
  const double query_terms = dz_terms * magnitude(golden.array("key")) / magnitude(expected.dquery);
  const double key_terms = dz_terms * magnitude(golden.array("query")) / magnitude(expected.dkey);
  const testing::AssertionResult results[] = {agree(actual.output, expected.output, rounding),
                                              agree(actual.weights, expected.weights, rounding),
                                              agree(actual.dquery, expected.dquery, rounding * query_terms),
                                              agree(actual.dkey, expected.dkey, rounding * key_terms),
                                              agree(actual.dvalue, expected.dvalue, rounding)};
  for (const testing::AssertionResult& result : results) {
    if (!result) return result;
  }
  return testing::AssertionSuccess();
}

TEST(Claim01PyTorchNumbers, OfShiftedScoresAreThoseOfTheEngineAndOfTheFormulas) {
  const Golden golden("sdpa_shifted_scores");
  const Inputs in = inputs_of(golden);
  EXPECT_TRUE(agree_relative_to_terms(evaluated(attention_with(options_of(golden)), in), golden));
  EXPECT_TRUE(agree_relative_to_terms(formulas(in, options_of(golden)), golden));
  Numbers wrong = formulas(in, options_of(golden));
  wrong.dquery = scaled(wrong.dquery, 1.001);
  EXPECT_FALSE(agree_relative_to_terms(wrong, golden));
}

TEST(Claim01PyTorchNumbers, SeeAScaleThatIsOffByOnePartInABillion) {
  const Golden golden("sdpa_rect");
  const Options wrong = scaled_by(golden.number("scale") * (1 + 1e-9));
  EXPECT_FALSE(agree(evaluated(attention_with(wrong), inputs_of(golden)), numbers_of(golden), rounding));
  EXPECT_FALSE(agree(formulas(inputs_of(golden), wrong), numbers_of(golden), rounding));
}

// Scores of 27,000 to 38,000, exact in double, that lie within a few units of each other (tests/data/made).
class Claim01NearlyTiedLargeScores : public testing::TestWithParam<const char*> {};

TEST_P(Claim01NearlyTiedLargeScores, AgreeWithPyTorch) {
  const Golden golden(GetParam(), "made");
  const Inputs in = inputs_of(golden);
  EXPECT_TRUE(agree(evaluated(attention_with(options_of(golden)), in), numbers_of(golden), rounding));
  EXPECT_TRUE(agree(formulas(in, options_of(golden)), numbers_of(golden), rounding));
}

TEST_P(Claim01NearlyTiedLargeScores, HaveSpreadWeightsAndGradients) {
  const Numbers numbers = numbers_of(Golden(GetParam(), "made"));
  EXPECT_LT(magnitude(numbers.weights), 0.8);
  for (const A& d : {numbers.dquery, numbers.dkey, numbers.dvalue}) EXPECT_GT(magnitude(d), 0.1);
}

TEST_P(Claim01NearlyTiedLargeScores, SeeASoftmaxThatIsNotShiftedByTheMaximum) {
  const Golden golden(GetParam(), "made");
  const Attend wrong = [options = options_of(golden)](const V& query, const V& key, const V& value) {
    V e = exp(scores_of(query, key));
    if (!options.mask.allows_all()) e = kept(e, options.mask, 0);
    return weighted(e / sum(e, -1, Keep::yes), value);
  };
  EXPECT_FALSE(agree(evaluated(wrong, inputs_of(golden)), numbers_of(golden), visible));
}

TEST_P(Claim01NearlyTiedLargeScores, SeeScoresRoundedToSinglePrecision) {
  const Golden golden(GetParam(), "made");
  const Attend wrong = [options = options_of(golden)](const V& query, const V& key, const V& value) {
    const V scores = scores_of(query, key);
    const A coarse = scores.value().cast<float>().cast<double>();
    V z = record("round", coarse, edge(scores, [](const V& dy) { return dy; }));
    if (!options.mask.allows_all()) z = kept(z, options.mask, -infinity);
    return weighted(softmax(z), value);
  };
  EXPECT_FALSE(agree(evaluated(wrong, inputs_of(golden)), numbers_of(golden), 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Made, Claim01NearlyTiedLargeScores,
                         testing::Values("attention_nearly_tied", "attention_nearly_tied_cached"),
                         [](const auto& test) { return std::string(test.param); });

// ---- 2  central differences

// Every coordinate of the three gradients lies within 1e-7 of the difference quotient of <output, upstream>.
testing::AssertionResult gradients_are_differences(const Numbers& numbers, const Case& c, double step) {
  auto objective = [&](const std::vector<A>& x) {
    const V output = attention(V(x[0]), V(x[1]), V(x[2]), c.options).output;
    return dot(output.value().values(), c.in.upstream.values());
  };
  const auto d = central_differences(objective, {c.in.query, c.in.key, c.in.value}, step);
  const double error = std::max({absolute_error(numbers.dquery, d[0]), absolute_error(numbers.dkey, d[1]),
                                 absolute_error(numbers.dvalue, d[2])});
  if (error <= 1e-7) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "off by " << error << " at step " << step;
}

class Claim02CentralDifferences : public testing::TestWithParam<std::tuple<const char*, Case (*)()>> {};

TEST_P(Claim02CentralDifferences, OfEveryCoordinateOfQueryKeyAndValueAgree) {
  const Case c = std::get<1>(GetParam())();
  for (const double step : steps) {
    EXPECT_TRUE(gradients_are_differences(evaluated(attention_with(c.options), c.in), c, step));
    EXPECT_TRUE(gradients_are_differences(formulas(c.in, c.options), c, step));
  }
}

TEST_P(Claim02CentralDifferences, SeeAnyOneGradientThatIsOffByOnePartInAThousand) {
  const Case c = std::get<1>(GetParam())();
  const Numbers right = evaluated(attention_with(c.options), c.in);
  for (A Numbers::*part : {&Numbers::dquery, &Numbers::dkey, &Numbers::dvalue}) {
    Numbers wrong = right;
    wrong.*part = scaled(right.*part, 1.001);
    for (const double step : steps) EXPECT_FALSE(gradients_are_differences(wrong, c, step));
  }
}

TEST_P(Claim02CentralDifferences, SeeASingleWrongCoordinate) {
  const Case c = std::get<1>(GetParam())();
  Numbers wrong = evaluated(attention_with(c.options), c.in);
  wrong.dkey.mutable_values()[4] += 1e-6;
  for (const double step : steps) EXPECT_FALSE(gradients_are_differences(wrong, c, step));
}

INSTANTIATE_TEST_SUITE_P(Cases, Claim02CentralDifferences,
                         testing::Values(std::tuple("rectangular", &rectangular),
                                         std::tuple("causal", &causal_square),
                                         std::tuple("cached_prefix", &cached_prefix)),
                         [](const auto& test) { return std::string(std::get<0>(test.param)); });

}  // namespace
}  // namespace tapehead::derivation
