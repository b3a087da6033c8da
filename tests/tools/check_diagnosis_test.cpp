// The way from a candidate's numbers to a verdict. Candidates come from the loops below, which share nothing
// with the formulas of the diagnosis; each mistake of the table is planted elsewhere (planted/).

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include <support/compare.h>
#include <tapehead/core/errors.h>
#include <tapehead/ops/rounding.h>
#include <tests/tools/check_calls.h>
#include <tools/check/diagnosis.h>
#include <tools/check/probe.h>
#include <tools/check/sample.h>
#include <tools/check/search.h>

namespace tapehead::check {
namespace {

// ---- attention of one key head a query head, plain, each number rounded as it is made

struct Plain {
  double scale = 1;
  bool causal = false;      // from the top left corner
  double shift_of_row = 0;  // added to all scores of a row
  Precision type = Precision::f64;
  Precision weights = Precision::f64;  // what weights are rounded to, besides

  double r(double x) const { return round_to(x, type); }
};

// output, lse and, with an upstream gradient, grad_query, grad_key, grad_value
Tensors plain_attention(const Call& call, const Plain& p) {
  const Numbers q(call.inputs.at("query")), k(call.inputs.at("key")), v(call.inputs.at("value"));
  const Numbers up(call.inputs.at("upstream"));
  Numbers o(up.shape), lse({call.B, call.H, call.L}), dq(q.shape), dk(k.shape), dv(v.shape);
  const auto in_type = [&](double& sum, double more) { sum = p.r(sum + p.r(more)); };
  for (Index b = 0; b < call.B; ++b) {
    for (Index h = 0; h < call.H; ++h) {
      for (Index i = 0; i < call.L; ++i) {
        const Index keys = p.causal ? std::min(i + 1, call.S) : call.S;
        std::vector<double> w(static_cast<std::size_t>(keys)), dp(w.size());
        double largest = -1e300, total = 0, delta = 0;
        for (Index j = 0; j < keys; ++j) {
          double s = 0;
          for (Index d = 0; d < call.D; ++d) in_type(s, q(b, h, i, d) * k(b, h, j, d));
          w[static_cast<std::size_t>(j)] = p.r(p.r(s * p.scale) + p.shift_of_row);
          largest = std::max(largest, w[static_cast<std::size_t>(j)]);
        }
        for (double& x : w) in_type(total, x = p.r(std::exp(p.r(x - largest))));
        for (double& x : w) x = round_to(p.r(x / total), p.weights);
        lse(b, h, i) = p.r(largest + p.r(std::log(total)));
        for (Index j = 0; j < keys; ++j) {
          const double x = w[static_cast<std::size_t>(j)];
          for (Index e = 0; e < call.E; ++e) {
            in_type(o(b, h, i, e), x * v(b, h, j, e));
            in_type(dv(b, h, j, e), x * up(b, h, i, e));
            in_type(dp[static_cast<std::size_t>(j)], up(b, h, i, e) * v(b, h, j, e));
          }
          in_type(delta, x * dp[static_cast<std::size_t>(j)]);
        }
        for (Index j = 0; j < keys; ++j) {
          const std::size_t n = static_cast<std::size_t>(j);
          const double ds = p.r(p.r(w[n] * p.r(dp[n] - delta)) * p.scale);
          for (Index d = 0; d < call.D; ++d) {
            in_type(dq(b, h, i, d), ds * k(b, h, j, d));
            in_type(dk(b, h, j, d), ds * q(b, h, i, d));
          }
        }
      }
    }
  }
  Tensors results{{"output", o.array()}, {"lse", lse.array()}};
  results["grad_query"] = dq.array(), results["grad_key"] = dk.array(), results["grad_value"] = dv.array();
  return results;
}

Call sized_call(unsigned seed, const CallSize& n, double size = 1) {
  Generator random(seed);
  return random_call(random, n, size);
}

constexpr CallSize usual{2, 3, 3, 5, 6, 8, 4};

Plain right_of(const Call& call) {
  Plain p;
  p.scale = call.contract.scale;
  p.causal = call.contract.causal.has_value();
  return p;
}

std::string name_of(const Finding& f) {
  return std::string(f.mistake->id) +
         (f.mistake->variant.empty() ? "" : "/" + std::string(f.mistake->variant));
}

std::vector<std::string> names_of(const std::vector<Finding>& set) {
  std::vector<std::string> names;
  for (const Finding& f : set) names.push_back(name_of(f));
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

// ---- noise

struct Type {
  NumberType type;
  Precision precision;
};
constexpr Type types[] = {{NumberType::f64, Precision::f64},
                          {NumberType::f32, Precision::f32},
                          {NumberType::bf16, Precision::bf16},
                          {NumberType::f16, Precision::f16}};

Call in_type(Call call, const Type& type) {
  call.contract.computed_in = type.type;
  for (auto& [name, x] : call.inputs) x = round_to(x, type.precision);
  return call;
}

Tensors rounded_results(Tensors results, Precision precision) {
  for (auto& [name, x] : results) x = round_to(x, precision);
  return results;
}

// Both models; inputs of size 1 to 6 make scores up to about 30 and rows near ties.
TEST(Diagnosis, NoiseIsNotReported) {
  for (const Type& type : types) {
    for (const double size : {1.0, 3.0, 6.0}) {
      for (unsigned seed = 1; seed <= 3; ++seed) {
        Call call = in_type(sized_call(seed, usual, std::sqrt(size)), type);
        Plain every = right_of(call), weights = every;
        every.type = type.precision;
        weights.type = type.type == NumberType::f64 ? Precision::f64 : Precision::f32;
        weights.weights = type.precision;
        for (const Plain& p : {every, weights}) {
          call.candidate = rounded_results(plain_attention(call, p), type.precision);
          EXPECT_EQ(diagnose(call).verdict, Verdict::agrees)
              << "type " << static_cast<int>(type.type) << ", size " << size << ", seed " << seed;
        }
      }
    }
  }
}

// The test above can fail: the noise of a type is not that of a narrower one.
TEST(Diagnosis, NoiseOfANarrowerTypeIsReported) {
  for (std::size_t n = 0; n < 2; ++n) {  // f64 with numbers of f32, f32 with numbers of bf16
    Call call = in_type(sized_call(1, usual), types[n]);
    Plain narrow = right_of(call);
    narrow.type = types[n + 1].precision;
    call.candidate = plain_attention(call, narrow);
    EXPECT_NE(diagnose(call).verdict, Verdict::agrees);
  }
}

// ---- mistakes

TEST(Diagnosis, NamesAWrongScaleWithItsRatio) {
  Call call = sized_call(2, usual);
  Plain wrong = right_of(call);
  wrong.scale = 1;
  call.candidate = plain_attention(call, wrong);
  const Diagnosis d = diagnose(call);
  ASSERT_EQ(d.verdict, Verdict::explained);
  EXPECT_EQ(names_of(d.mistakes), Names{"scale-omitted"});
  EXPECT_NEAR(d.mistakes[0].fitted.at("ratio"), std::sqrt(8.0), 1e-12);
  EXPECT_GT(d.mistakes[0].explains, 1 - 1e-9);
}

TEST(Diagnosis, FitsAScaleThatHasNoName) {
  Call call = sized_call(3, usual);
  Plain wrong = right_of(call);
  wrong.scale = 0.41;
  call.candidate = plain_attention(call, wrong);
  const Diagnosis d = diagnose(call);
  ASSERT_EQ(d.verdict, Verdict::explained);
  EXPECT_EQ(names_of(d.mistakes), Names{"scale-custom-ignored"});
  EXPECT_NEAR(d.mistakes[0].fitted.at("scale"), 0.41, 1e-9);
}

TEST(Diagnosis, AWrongForwardPassMayHaveTheRightGradients) {
  Call call = sized_call(4, usual);
  Plain wrong = right_of(call);
  wrong.scale = 1;
  call.candidate = plain_attention(call, right_of(call));
  const Tensors forward = plain_attention(call, wrong);
  call.candidate["output"] = forward.at("output");
  call.candidate["lse"] = forward.at("lse");
  const Diagnosis d = diagnose(call);
  ASSERT_EQ(d.verdict, Verdict::explained);
  EXPECT_EQ(names_of(d.mistakes), Names{"scale-omitted"});
}

TEST(Diagnosis, NamesTwoForwardMistakes) {
  Call call = sized_call(5, usual);
  call.contract.causal = {0};
  Plain wrong;
  wrong.scale = std::sqrt(8.0);
  call.candidate = plain_attention(call, wrong);
  const Diagnosis d = diagnose(call);
  ASSERT_EQ(d.verdict, Verdict::explained);
  EXPECT_EQ(names_of(d.mistakes), (Names{"mask-dropped/causal", "scale-inverted"}));
}

TEST(Diagnosis, NamesAForwardAndABackwardMistake) {
  Call call = sized_call(6, usual);
  call.contract.causal = {0};
  Plain wrong = right_of(call);
  wrong.causal = false;
  call.candidate = plain_attention(call, wrong);
  for (double& x : call.candidate["grad_query"].mutable_values()) x *= call.contract.scale;
  const Diagnosis d = diagnose(call);
  ASSERT_EQ(d.verdict, Verdict::explained);
  EXPECT_EQ(names_of(d.mistakes), (Names{"grad-scale", "mask-dropped/causal"}));
}

// ---- look-alikes

TEST(Diagnosis, ReportsAllThatGiveTheseNumbersAndWhatSeparatesThem) {
  Call call = sized_call(7, {1, 8, 8, 4, 5, 8, 4});
  Plain wrong = right_of(call);
  wrong.scale = 1.0 / 8;  // 1 / D, and 1 / sqrt(H D)
  call.candidate = plain_attention(call, wrong);
  const Diagnosis d = diagnose(call);
  ASSERT_EQ(d.verdict, Verdict::ambiguous);
  Names sets;
  for (const auto& set : d.alternatives) sets.push_back(names_of(set).front());
  EXPECT_EQ(sets, (Names{"scale-one-over-d", "scale-wrong-dim/model"}));
  EXPECT_EQ(d.separate, "a head width of D = 10 instead of 8");

  Call probe = separating_probe(call, d.alternatives);
  ASSERT_EQ(probe.D, 10);
  Plain one_over_d;
  one_over_d.scale = 1.0 / 10;
  probe.candidate = plain_attention(probe, one_over_d);
  const Diagnosis again = diagnose(probe);
  EXPECT_EQ(again.verdict, Verdict::explained);
  EXPECT_EQ(names_of(again.mistakes), Names{"scale-one-over-d"});
}

// ---- equal on paper

TEST(Diagnosis, AConstantAddedToRowsIsNoMistake) {
  Call call = sized_call(8, usual);
  Plain shifted = right_of(call);
  shifted.shift_of_row = 3;
  call.candidate = plain_attention(call, shifted);
  const Diagnosis d = diagnose(call);
  EXPECT_EQ(d.verdict, Verdict::agrees);
  EXPECT_EQ(d.equivalent, Names{"row-constant shift"});
}

TEST(Diagnosis, AnotherBaseOfTheLogSumExpIsNoMistake) {
  Call call = sized_call(9, usual);
  call.candidate = plain_attention(call, right_of(call));
  for (double& x : call.candidate["lse"].mutable_values()) x /= std::log(2.0);
  const Diagnosis d = diagnose(call);
  EXPECT_EQ(d.verdict, Verdict::agrees);
  EXPECT_EQ(d.equivalent, Names{"log-sum-exp in base 2"});
}

TEST(Diagnosis, WithASinkAShiftIsAMistake) {
  Call call = sized_call(10, usual);
  call.inputs["sink"] = Array<double>::zeros({3});
  Call other = call;
  other.inputs["bias"] = Array<double>::full({1, 1, 1, 1}, 3);
  call.candidate = evaluate(other, right_formula()).results;
  EXPECT_NE(diagnose(call).verdict, Verdict::agrees);
}

// ---- what cannot be explained

TEST(Diagnosis, SaysWhereWhatItCannotExplainIsFirstOff) {
  Call call = sized_call(11, usual);
  call.candidate = plain_attention(call, right_of(call));
  Generator random(12);
  for (Index e = 0; e < 4; ++e) call.candidate["output"].set({1, 0, 3, e}, random.normal());
  const Diagnosis d = diagnose(call);
  EXPECT_EQ(d.verdict, Verdict::unexplained);
  const auto output = std::find_if(d.tensors.begin(), d.tensors.end(),
                                   [](const TensorError& t) { return t.name == "output"; });
  ASSERT_NE(output, d.tensors.end());
  EXPECT_EQ(output->first_bad, (std::vector<Index>{1, 0, 3, 0}));
  EXPECT_FALSE(d.next.empty());
}

TEST(Diagnosis, SaysSoWhenAMistakeExplainsOnlyMuch) {
  Call call = sized_call(13, usual);
  Plain wrong = right_of(call);
  wrong.scale = 1;
  call.candidate = plain_attention(call, wrong);
  Generator random(14);
  for (const char* name : {"output", "lse"}) {
    for (double& x : call.candidate[name].mutable_values()) x += 0.01 * random.normal();
  }
  const Diagnosis d = diagnose(call);
  EXPECT_EQ(d.verdict, Verdict::partly);
  EXPECT_EQ(names_of(d.mistakes), Names{"scale-omitted"});
  EXPECT_LT(d.mistakes[0].explains, 0.999);
  EXPECT_GT(d.mistakes[0].explains, 0.7);
}

TEST(Diagnosis, NumbersThatAreNotFiniteUpsetNothing) {
  Call call = sized_call(15, usual);
  call.candidate = plain_attention(call, right_of(call));
  const double infinity = std::numeric_limits<double>::infinity();
  call.candidate["output"].set({0, 1, 2, 3}, std::nan(""));
  call.candidate["grad_key"].set({0, 0, 0, 0}, -infinity);
  const Diagnosis d = diagnose(call);
  EXPECT_NE(d.verdict, Verdict::agrees);
  for (const TensorError& t : d.tensors) {
    EXPECT_EQ(t.ok, t.name != "output" && t.name != "grad_key") << t.name;
    EXPECT_TRUE(std::isfinite(t.max_abs)) << t.name;
  }
}

TEST(Diagnosis, NaNInRowsWithoutKeysIsJudgedApart) {
  Call call = sized_call(16, usual);
  Array<double> mask = Array<double>::ones({2, 1, 5, 6});
  for (Index j = 0; j < 6; ++j) mask.set({1, 0, 2, j}, 0);
  call.inputs["mask"] = mask;
  call.candidate = plain_attention(call, right_of(call));
  std::erase_if(call.candidate, [](const auto& named) { return named.first != "output"; });
  for (Index h = 0; h < 3; ++h) {
    for (Index e = 0; e < 4; ++e) call.candidate["output"].set({1, h, 2, e}, std::nan(""));
  }
  const Diagnosis d = diagnose(call);
  EXPECT_EQ(d.verdict, Verdict::explained);
  EXPECT_EQ(names_of(d.mistakes), Names{"allmasked-row/nan"});
}

// ---- parts

TEST(Parts, BlocksAddUpToTheWhole) {
  Generator random(17);
  Call call = random_call(random, {2, 4, 2, 70, 300, 4, 3});
  call.contract.causal = {230, 200};
  call.inputs["bias"] = normal(random, {4, 1, 300}).reshape({1, 4, 1, 300});
  call.inputs["mask"] = coins(random, {2, 1, 70, 300});
  call.inputs["sink"] = normal(random, {4});
  call.inputs["key_lengths"] = Array<double>::of({300, 280});
  call.candidate = evaluate(call, right_formula()).results;
  for (const Cut along : {Cut::rows, Cut::rows_and_heads}) {
    const Tensors blocks = evaluate_in_blocks(call, right_formula(), along);
    for (const auto& [name, whole] : call.candidate) {
      EXPECT_NEAR_RELATIVE(blocks.at(name), whole, 1e-13) << name;  // sums in another order
    }
  }
}

TEST(Parts, ALargeCallIsExplainedOnSomeRowsAndConfirmedOnAll) {
  Call call = sized_call(18, {1, 2, 2, 192, 192, 8, 4});
  ASSERT_GT(call.H * call.L * call.S, 2 * many_scores);
  call.contract.causal = {0};
  Plain wrong = right_of(call);
  wrong.causal = false;
  call.candidate = plain_attention(call, right_of(call));
  EXPECT_EQ(diagnose(call).verdict, Verdict::agrees);
  call.candidate = plain_attention(call, wrong);
  const Diagnosis d = diagnose(call);
  EXPECT_EQ(d.verdict, Verdict::explained);
  EXPECT_EQ(names_of(d.mistakes), Names{"mask-dropped/causal"});
}

// A row that no sample meets is still seen.
TEST(Parts, OneWrongRowOfALargeCallIsSeen) {
  Call call = sized_call(19, {1, 2, 2, 192, 192, 8, 4});
  call.candidate = plain_attention(call, right_of(call));
  call.candidate["output"].set({0, 1, 101, 2}, 7);
  const Diagnosis d = diagnose(call);
  EXPECT_NE(d.verdict, Verdict::agrees);
  const auto output = std::find_if(d.tensors.begin(), d.tensors.end(),
                                   [](const TensorError& t) { return t.name == "output"; });
  EXPECT_EQ(output->first_bad, (std::vector<Index>{0, 1, 101, 2}));
}

// Gradients of keys are sums over all rows, which a sample of rows does not show.
TEST(Parts, AWrongGradientOfKeysOfALargeCallIsNamed) {
  Call call = sized_call(20, {8, 8, 8, 180, 184, 4, 3});
  constexpr Index too_many = 1 << 21;  // to be searched at once
  ASSERT_GT(call.B * call.H * call.L * call.S, too_many);
  const Tensors right = evaluate(call, right_formula()).results;
  for (const char* name : {"grad_key", "grad_query"}) call.candidate[name] = right.at(name);
  for (double& x : call.candidate["grad_key"].mutable_values()) x /= call.contract.scale;
  const Diagnosis d = diagnose(call);
  EXPECT_EQ(d.verdict, Verdict::explained);
  EXPECT_EQ(names_of(d.mistakes), Names{"grad-scale"});
}

TEST(Parts, APartKeepsWhatItMakesAlone) {
  Generator random(22);
  Call call = random_call(random, {2, 4, 2, 6, 5, 4, 3});
  call.inputs["bias"] = normal(random, {6, 5}).reshape({1, 1, 6, 5});
  call.candidate = evaluate(call, right_formula()).results;
  const auto part = part_with_all_rows(call, 1, 1, {"grad_key", "grad_value"});
  ASSERT_TRUE(part);
  EXPECT_FALSE(part->candidate.contains("grad_bias"));  // a sum over samples and heads
  EXPECT_FALSE(part_with_all_rows(call, 1, 1, {"grad_bias"}));
  const Tensors results = evaluate(*part, right_formula()).results;
  for (const char* name : {"output", "grad_query", "grad_key", "grad_value"}) {
    EXPECT_NEAR_RELATIVE(results.at(name), part->candidate.at(name), 1e-13) << name;
  }
}

// Query heads tiled over the key heads: no head may be looked at alone.
TEST(Parts, AMistakeThatMixesHeadsIsConfirmedOnAllOfThem) {
  Call call = sized_call(21, {1, 6, 3, 150, 150, 4, 3});
  ASSERT_GT(call.H * call.L * call.S, 2 * many_scores);
  Call tiled = call;
  tiled.contract.tiled_heads = true;
  call.candidate = {{"output", evaluate(tiled, right_formula(), false).results.at("output")}};
  const Diagnosis d = diagnose(call);
  ASSERT_FALSE(d.mistakes.empty());
  EXPECT_EQ(name_of(d.mistakes.front()), "gqa-tile");
  EXPECT_GT(d.mistakes.front().explains, 0.999);
}

// ---- what is in no table

TEST(Diagnosis, AConstantFactorOfTheOutputIsSaidAndIsNoDropout) {
  Call call = sized_call(23, {1, 2, 2, 8, 9, 4, 3});
  const Tensors right = evaluate(call, right_formula(), false).results;
  for (const bool with_weights : {false, true}) {
    call.candidate = {{"output", right.at("output")}};
    if (with_weights) call.candidate["weights"] = right.at("weights");
    for (auto& [name, x] : call.candidate) {
      for (double& v : x.mutable_values()) v *= 2;
    }
    const Diagnosis d = diagnose(call);
    EXPECT_EQ(d.verdict, Verdict::unexplained);
    EXPECT_TRUE(d.next.find("output is 2 times the right one") != std::string::npos) << d.next;
    call.candidate["output"].set({0, 0, 0, 0}, 7);
    EXPECT_TRUE(diagnose(call).next.find("output is") == std::string::npos);
  }
}

TEST(Formula, AMaskThatDoesNotFitTheScoresIsAnError) {
  Call call = sized_call(24, {1, 2, 2, 4, 5, 4, 3});
  call.mask_is_additive = true;
  call.inputs["mask"] = Array<double>::zeros({1, 1, 4, 6});
  EXPECT_THROW(evaluate(call, right_formula()), ShapeError);
  call.mask_is_additive = false;
  EXPECT_THROW(evaluate(call, right_formula()), ShapeError);
}

// ---- numbers

TEST(SharedNumbers, AreCopiedWhenOneOfThemIsChanged) {
  Numbers x(Array<double>::of({1, 2, 3}));
  const Numbers y = x;
  EXPECT_EQ(std::as_const(x).at.data(), y.at.data());
  x.at[1] = 7;
  EXPECT_EQ(y.at[1], 2);
  const Array<double> seen = x.array();
  x.at[1] = 8;
  EXPECT_EQ(seen.data()[1], 7);
  Numbers z = std::move(x);
  z.at[0] = 9;
  EXPECT_EQ(z.at[1], 8);
  EXPECT_EQ(seen.data()[0], 1);
}

}  // namespace
}  // namespace tapehead::check
