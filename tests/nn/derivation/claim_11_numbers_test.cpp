#include <tapehead/ops/rounding.h>

#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 11  numbers of few digits: plain loops whose every step is rounded to a format

using Reals = std::vector<double>;

// What the steps of one row of attention are rounded to, and how they are taken. Sums may be wider; they are
// rounded to the format when they are stored.
struct Steps {
  Precision format, sums = format;
  bool shifted = true;         // the softmax subtracts the largest score
  bool scaled_before = false;  // the query is scaled, not the score

  double rounded(double x) const { return round_to(x, format); }
  // Terms that are numbers of the format, added from left to right.
  double sum(const Reals& terms) const {
    double total = 0;
    for (const double term : terms) total = round_to(total + term, sums);
    return rounded(total);
  }
  double score(const Reals& query, const Reals& key, double scale) const {
    Reals products;
    for (std::size_t i = 0; i < query.size(); ++i) {
      const double q = scaled_before ? rounded(query[i] * scale) : query[i];
      products.push_back(rounded(q * key[i]));
    }
    return scaled_before ? sum(products) : rounded(sum(products) * scale);
  }
  Reals softmax(const Reals& scores) const {
    const double shift = shifted ? *std::max_element(scores.begin(), scores.end()) : 0;
    Reals e;
    for (const double s : scores) e.push_back(rounded(std::exp(rounded(s - shift))));
    const double total = sum(e);
    for (double& w : e) w = rounded(w / total);
    return e;
  }
};

const Steps in_f16{Precision::f16}, in_bf16{Precision::bf16}, in_f32{Precision::f32}, in_f64{Precision::f64};

Steps unshifted(Steps steps) {
  steps.shifted = false;
  return steps;
}
Steps scaling_before(Steps steps) {
  steps.scaled_before = true;
  return steps;
}
Steps summing_in(Precision wider, Steps steps) {
  steps.sums = wider;
  return steps;
}

bool finite(const Reals& x) {
  return std::all_of(x.begin(), x.end(), [](double v) { return std::isfinite(v); });
}
// Whether both are finite and nowhere further apart than `tolerance`.
bool close(const Reals& x, const Reals& y, double tolerance) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!(std::abs(x[i] - y[i]) <= tolerance)) return false;
  }
  return x.size() == y.size();
}

// A query against keys of the same width, with the scale that attention would take.
struct Row {
  Reals query;
  std::vector<Reals> keys;

  Reals scores(const Steps& steps) const {
    Reals all;
    for (const Reals& key : keys) {
      all.push_back(steps.score(query, key, 1 / std::sqrt(static_cast<double>(query.size()))));
    }
    return all;
  }
  Reals weights(const Steps& steps) const { return steps.softmax(scores(steps)); }
};

// 64 products of 32^2 are 65536; scaled by 1/8 the scores would be 8192 and 8190.
Row large_products() {
  Reals second(64, 32.0);
  second[0] = 31.5;
  return {Reals(64, 32.0), {Reals(64, 32.0), second}};
}
// Scores of 12 and 10 from four numbers each; exp(12) is 162755.
Row large_exponential() { return {{4, 4, 0, 0}, {{4, 2, 0, 0}, {4, 1, 0, 0}}}; }

// Rounding changes a number by this part of it at most. A softmax of two keys, whose scores are exact, rounds
// two exponentials, their sum and the quotient: four times.
constexpr double f16_unit = 0x1p-11, bf16_unit = 0x1p-8;

// Sums and products of f32 numbers, taken in double and rounded, are those of float: 53 bits are more than
// twice 24 and two (Figueroa, "When is double rounding innocuous?", 1995).
TEST(Claim11Steps, InF32AreThoseOfFloat) {
  const Array<float> query = Generator(111).normal<float>({100}), key = Generator(112).normal<float>({100});
  float total = 0;
  for (Index i = 0; i < 100; ++i) total += query(i) * key(i);
  const Reals q = query.cast<double>().to_vector(), k = key.cast<double>().to_vector();
  EXPECT_EQ(in_f32.score(q, k, 1), static_cast<double>(total));
  EXPECT_NE(in_f64.score(q, k, 1), static_cast<double>(total));
  EXPECT_NE(summing_in(Precision::f64, in_f32).score(q, k, 1), static_cast<double>(total));
}

TEST(Claim11Overflow, OfTheProductAndOfTheExponentialAreDifferentPlacesInF16) {
  EXPECT_EQ(large_products().scores(in_f16)[0], infinity);
  EXPECT_EQ(large_products().scores(in_f64)[0], 8192);  // f16 would hold it
  const Reals scores = large_exponential().scores(in_f16);
  EXPECT_EQ(scores, (Reals{12, 10}));  // no product nor sum is large
  EXPECT_EQ(round_to(std::exp(scores[0]), Precision::f16), infinity);
  EXPECT_FALSE(finite(large_exponential().weights(unshifted(in_f16))));
  // Where each begins: log 65520, far below the largest score.
  EXPECT_TRUE(std::isfinite(round_to(std::exp(11.0859375), Precision::f16)));
  EXPECT_FALSE(std::isfinite(round_to(std::exp(11.09375), Precision::f16)));  // the next number of f16
}

// exp(s - m) / sum exp(s - m) is exp(s) / sum exp(s) for every m; with the maximum no exponential is above 1.
// A score that is infinite already makes infinity - infinity of it.
TEST(Claim11Overflow, ShiftingByTheMaximumRepairsTheExponentialAndNotTheProduct) {
  const Reals expected = large_exponential().weights(in_f64);
  EXPECT_FALSE(close(large_exponential().weights(unshifted(in_f16)), expected, 1));
  EXPECT_TRUE(close(large_exponential().weights(in_f16), expected, 4 * f16_unit));
  EXPECT_FALSE(finite(large_products().weights(in_f16)));
  EXPECT_TRUE(std::isnan(large_products().weights(in_f16)[0]));
  EXPECT_TRUE(finite(large_products().weights(in_f64)));
}

TEST(Claim11Overflow, ScalingTheQueryFirstRepairsTheProductAndNotTheExponential) {
  const Steps before = scaling_before(in_f16);
  EXPECT_EQ(large_products().scores(before)[0], 8192);
  EXPECT_TRUE(finite(large_products().weights(before)));  // shifted as well
  EXPECT_FALSE(finite(large_products().weights(unshifted(before))));
  EXPECT_FALSE(finite(large_exponential().weights(unshifted(before))));
  EXPECT_FALSE(finite(large_products().scores(in_f16)));
}

// 8 bits of exponent reach 3.4e38 as in f32, and leave 8 bits for the digits where f16 has 11.
TEST(Claim11Bf16, SurvivesWhatF16DoesNot) {
  EXPECT_EQ(large_products().scores(in_bf16), (Reals{8192, 8192}));
  EXPECT_TRUE(finite(large_products().weights(in_bf16)));
  EXPECT_FALSE(finite(large_products().weights(in_f16)));
  EXPECT_TRUE(close(large_exponential().weights(unshifted(in_bf16)), large_exponential().weights(in_f64),
                    4 * bf16_unit));
  EXPECT_FALSE(finite(large_exponential().weights(unshifted(in_f16))));
  EXPECT_FALSE(finite(unshifted(in_bf16).softmax({89, 0})));  // its own exponential ends at 88.7
  EXPECT_TRUE(finite(in_bf16.softmax({89, 0})));
}

TEST(Claim11Bf16, LosesDigitsThatF16Has) {
  const Reals scores{257, 256}, expected = in_f64.softmax(scores);  // 0.731, 0.269
  auto stored = [&](const Steps& steps) {
    Reals rounded = scores;
    for (double& s : rounded) s = steps.rounded(s);
    return rounded;
  };
  EXPECT_EQ(stored(in_f16), scores);
  EXPECT_TRUE(close(in_f16.softmax(stored(in_f16)), expected, 4 * f16_unit));
  EXPECT_EQ(stored(in_bf16), (Reals{256, 256}));  // 257 lies in the middle of 256 and 258
  EXPECT_EQ(in_bf16.softmax(stored(in_bf16)), (Reals{0.5, 0.5}));
  EXPECT_FALSE(close(in_bf16.softmax(stored(in_bf16)), expected, 0.2));
}

TEST(Claim11WiderSums, HelpWhereTheSumPassesTheEndAndComesBack) {
  const Reals query{200, 200, 200}, key{200, 200, -200};  // 40000 + 40000 - 40000
  EXPECT_EQ(summing_in(Precision::f32, in_f16).score(query, key, 1), 40000);
  EXPECT_EQ(in_f16.score(query, key, 1), infinity);
}

// f16 has no odd number past 2048: 2048 + 1 is a middle and goes back to 2048.
TEST(Claim11WiderSums, HelpWhereManySmallTermsMeetALargeSum) {
  const Reals equal(4096, 0.0);
  const Reals wide = summing_in(Precision::f32, in_f16).softmax(equal), narrow = in_f16.softmax(equal);
  EXPECT_EQ(wide[0], 1.0 / 4096);
  EXPECT_EQ(narrow[0], 1.0 / 2048);
  EXPECT_EQ(std::accumulate(wide.begin(), wide.end(), 0.0), 1);
  EXPECT_EQ(std::accumulate(narrow.begin(), narrow.end(), 0.0), 2);  // a row that sums to 2
}

TEST(Claim11WiderSums, DoNotHelpATooLargeProductNorATooLargeResult) {
  for (const Precision wider : {Precision::f32, Precision::f64}) {
    const Steps wide = summing_in(wider, in_f16);
    // One product of 65536, taken back by the next.
    EXPECT_TRUE(std::isnan(wide.score({256, 256}, {256, -256}, 1)));
    EXPECT_EQ(in_f64.score({256, 256}, {256, -256}, 1), 0);
    // The sum of 65536 is right, and stored in f16 before it is scaled.
    EXPECT_EQ(large_products().scores(wide)[0], infinity);
    EXPECT_EQ(large_products().scores(scaling_before(wide))[0], 8192);
  }
}

// Around 65504 float numbers are 2^-8 apart, so each product of 2^-10 is lost; together they are 1.
TEST(Claim11WiderSums, LoseTheirOwnDigits) {
  Reals query(1026, 0x1p-5), key(1026, 0x1p-5);
  query.front() = 65504, key.front() = 1;
  query.back() = 65504, key.back() = -1;
  EXPECT_EQ(summing_in(Precision::f32, in_f16).score(query, key, 1), 0);
  EXPECT_EQ(summing_in(Precision::f64, in_f16).score(query, key, 1), 1);  // a factor of e in the weights
  EXPECT_EQ(in_f64.score(query, key, 1), 1);
}

// ---- masks that are finite numbers

// Weights of a row whose masked scores get the sentinel added, as by a float mask, or become the sentinel.
enum class By { adding, replacing };
Reals sentinel_weights(const Steps& steps, double sentinel, Reals scores, const std::vector<bool>& allowed,
                       By by = By::adding) {
  const double stored = steps.rounded(sentinel);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const double s = steps.rounded(scores[j]);
    scores[j] = allowed[j] ? s : by == By::adding ? steps.rounded(s + stored) : stored;
  }
  return steps.softmax(scores);
}

// What attention gives, in double, for the same scores and a Boolean mask.
Reals masked_weights(const Reals& scores, const std::vector<bool>& allowed) {
  const auto n = static_cast<Index>(scores.size());
  auto keys = Array<bool>::uninitialized({n});
  std::copy(allowed.begin(), allowed.end(), keys.mutable_values().begin());
  const V value(A::ones({n, 1}));
  return attention_on(V(A::from(scores, {1, n})), value, Mask::allowed(keys)).weights->value().to_vector();
}

struct Sentinel {
  const char* type;
  const char* name;
  Precision format;
  double value;
  double stored;    // in that format
  double leaks_at;  // the smallest score of a masked key that leaves it mass, beside an allowed score of 0
};

// exp(x) is 0 in f32, bf16 and f16 when it is at most half of the smallest number, 2^-150, 2^-134, 2^-25:
// for x to -103.97, -92.88, -17.33. A masked key keeps mass from the first score on for which score plus
// sentinel is above. Which that is hangs on how far apart numbers are there: at 1e4, 2^-10 in f32, 64 in bf16
// and 8 in f16; at 1e9, 64 in f32 and 2^22 in bf16; at 1e30 and at the end so far that it is minus the
// sentinel.
constexpr double lowest_f16 = -65504, lowest_bf16 = -0x1.FEp127, lowest_f32 = -0x1.FFFFFEp127;
constexpr Sentinel sentinels[] = {
    {"f32", "-1e4", Precision::f32, -1e4, -1e4, 1e4 - 103.9716796875},
    {"f32", "-1e9", Precision::f32, -1e9, -1e9, 1e9 - 64},
    {"f32", "-1e30", Precision::f32, -1e30, -0x1.93E594p99, 0x1.93E594p99},
    {"f32", "lowest", Precision::f32, lowest_f32, lowest_f32, -lowest_f32},
    {"bf16", "-1e4", Precision::bf16, -1e4, -9984, 9984 - 64},
    {"bf16", "-1e9", Precision::bf16, -1e9, -0x1.DCp29, 0x1.DCp29},
    {"bf16", "-1e30", Precision::bf16, -1e30, -0x1.94p99, 0x1.94p99},
    {"bf16", "lowest", Precision::bf16, lowest_bf16, lowest_bf16, -lowest_bf16},
    {"f16", "-1e4", Precision::f16, -1e4, -1e4, 1e4 - 16},
    {"f16", "lowest", Precision::f16, lowest_f16, lowest_f16, -lowest_f16},
    {"f16", "-1e9", Precision::f16, -1e9, -infinity, infinity},  // no longer a finite sentinel
    {"f16", "-1e30", Precision::f16, -1e30, -infinity, infinity},
};

double largest_of(Precision format) {
  return format == Precision::f16 ? -lowest_f16 : format == Precision::bf16 ? -lowest_bf16 : -lowest_f32;
}

double mass_of_masked(const Sentinel& s, double score) {
  return sentinel_weights(Steps{s.format}, s.value, {0, score}, {true, false})[1];
}

// The first score of the format at which the masked key has mass, by halving; infinite when none has.
double first_leak(const Sentinel& s) {
  double low = 0, high = largest_of(s.format);
  if (mass_of_masked(s, high) == 0) return infinity;
  for (;;) {
    const double middle = round_to(low + (high - low) / 2, s.format);
    if (middle == low || middle == high) return high;
    (mass_of_masked(s, middle) > 0 ? high : low) = middle;
  }
}

TEST(Claim11Sentinel, UnderflowsToExactlyZeroBelowAScoreAndLeavesMassFromItOn) {
  for (const Sentinel& s : sentinels) {
    SCOPED_TRACE(std::string(s.type) + " " + s.name);
    EXPECT_EQ(round_to(s.value, s.format), s.stored);
    EXPECT_EQ(first_leak(s), s.leaks_at);
    for (const double score : {-1000.0, -20.0, 0.0, 20.0, 1000.0}) EXPECT_EQ(mass_of_masked(s, score), 0);
    if (s.leaks_at == infinity) continue;
    EXPECT_GT(mass_of_masked(s, s.leaks_at), 0);  // and attention with a mask leaves none
    EXPECT_EQ(masked_weights({0, s.leaks_at}, {true, false}), (Reals{1, 0}));
  }
}

// A query and a key of 128 numbers near 9 have a product of 10368. Unscaled, beside an allowed score of 0,
// the masked key takes all.
TEST(Claim11Sentinel, OfMinusTenThousandLetsALargeProductThrough) {
  const double score = in_f32.score(Reals(128, 9.0), Reals(128, 9.0), 1);
  for (const Steps& steps : {in_f32, in_bf16, in_f16}) {
    EXPECT_EQ(sentinel_weights(steps, -1e4, {0, score}, {true, false}), (Reals{0, 1}));
    EXPECT_EQ(sentinel_weights(steps, -6e4, {0, score}, {true, false}), (Reals{1, 0}));
  }
  EXPECT_EQ(masked_weights({0, score}, {true, false}), (Reals{1, 0}));
  // To attention a finite bias is a bias: it gives the same in float.
  AttentionOptions<float> options;
  options.scale = 1;
  options.weights = true;
  options.bias = Array<float>::of({0, -1e4f});
  const Var<float> query(Array<float>::of({{1}})), key(Array<float>::of({{0}, {static_cast<float>(score)}}));
  EXPECT_SAME_NUMBERS(*attention(query, key, key, options).weights, Array<float>::of({{0, 1}}));
}

// In place of the score it does not move with it; the allowed scores can come down to it.
TEST(Claim11Sentinel, ReplacingTheScoreLeavesMassBesideScoresAsLow) {
  const std::vector<bool> allowed{true, false};
  for (const Steps& steps : {in_f32, in_bf16, in_f16}) {
    const double low = steps.rounded(-1e4);
    EXPECT_EQ(sentinel_weights(steps, -1e4, {low, 3}, allowed, By::replacing), (Reals{0.5, 0.5}));
    EXPECT_EQ(sentinel_weights(steps, -1e4, {0, 10368}, allowed, By::replacing), (Reals{1, 0}));
    EXPECT_EQ(masked_weights({low, 3}, allowed), (Reals{1, 0}));
  }
}

// What becomes of a row that has no key: softmax forgets a constant, so a sentinel that leaves the scores
// their digits is forgotten; one that swallows them leaves equal ones; from one that overflows comes infinity
// minus infinity.
enum class Becomes { unmasked, uniform, nan };

Becomes fully_masked(const Steps& steps, double sentinel, const Reals& scores) {
  const Reals w = sentinel_weights(steps, sentinel, scores, std::vector<bool>(scores.size(), false));
  if (!finite(w)) return Becomes::nan;
  if (close(w, Reals(w.size(), w[0]), 0)) return Becomes::uniform;
  EXPECT_TRUE(close(w, in_f64.softmax(scores), 0.01));  // what there would be without a mask
  return Becomes::unmasked;
}

TEST(Claim11Sentinel, AFullyMaskedRowIsUnmaskedOrUniformOrNaN) {
  const Reals small{0.5, 3, -2, 1}, eights{0, 8, -8, 8}, low{-16, -20, -24, -17};
  EXPECT_EQ(fully_masked(in_f32, -1e4, small), Becomes::unmasked);
  EXPECT_EQ(fully_masked(in_f16, -1e4, eights), Becomes::unmasked);
  EXPECT_EQ(fully_masked(in_f16, -1e4, small), Becomes::uniform);  // numbers are 8 apart there
  EXPECT_EQ(fully_masked(in_bf16, -1e4, small), Becomes::uniform);
  EXPECT_EQ(fully_masked(in_f32, -1e9, small), Becomes::uniform);
  EXPECT_EQ(fully_masked(in_f32, -1e30, low), Becomes::uniform);
  EXPECT_EQ(fully_masked(in_f32, lowest_f32, low), Becomes::uniform);
  EXPECT_EQ(fully_masked(in_f16, lowest_f16, small), Becomes::uniform);
  EXPECT_EQ(fully_masked(in_f16, lowest_f16, low), Becomes::nan);  // -65504 - 16 is minus infinity
  EXPECT_EQ(fully_masked(in_f16, -1e9, small), Becomes::nan);
  EXPECT_EQ(fully_masked(in_bf16, -1e9, small), Becomes::uniform);
  for (const Reals& scores : {small, eights, low}) {
    const std::vector<bool> none(4, false);
    EXPECT_TRUE(raises<DomainError>([&] { masked_weights(scores, none); }, {"no key"}));
  }
}

// A causal mask and one of padding, both of the lowest number of the format, meet in one place.
TEST(Claim11Sentinel, AddedTwiceTheLowestNumberIsMinusInfinity) {
  const std::pair<Steps, double> formats[] = {
      {in_f32, lowest_f32}, {in_bf16, lowest_bf16}, {in_f16, lowest_f16}};
  for (const auto& [steps, lowest] : formats) {
    EXPECT_EQ(steps.rounded(lowest + lowest), -infinity);
    EXPECT_EQ(fully_masked(steps, steps.rounded(lowest + lowest), {1, 2}), Becomes::nan);
    EXPECT_EQ(fully_masked(steps, lowest, {1, 2}), Becomes::uniform);
    EXPECT_EQ(fully_masked(steps, steps.rounded(lowest / 4 + lowest / 4), {1, 2}), Becomes::uniform);
  }
}

}  // namespace
}  // namespace tapehead::derivation
