#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 9  what softmax is

bool is_distribution(const A& weights) {
  return all_finite(weights) && rows_sum_to_one(weights) &&
         std::all_of(weights.values().begin(), weights.values().end(), [](double w) { return w >= 0; });
}

// Expected score plus temperature times entropy, of a distribution over keys.
double free_energy(const A& p, const A& scores, double temperature) {
  double total = 0;
  for (std::size_t j = 0; j < p.values().size(); ++j) {
    const double w = p.values()[j];
    total += w * scores.values()[j] - (w > 0 ? temperature * w * std::log(w) : 0);
  }
  return total;
}

// Thousands of distributions over the keys of p: drawn evenly, drawn near p, and with all weight on one or
// two keys.
std::vector<A> sampled_distributions(const A& p, std::uint64_t seed) {
  Generator random(seed);
  const Index n = p.size();
  std::vector<A> samples;
  auto add_normalised = [&](auto weight_of) {
    A q = A::uninitialized(p.shape());
    double total = 0;
    for (Index j = 0; j < n; ++j) total += q.mutable_values()[static_cast<std::size_t>(j)] = weight_of(j);
    samples.push_back(scaled(q, 1 / total));
  };
  for (int i = 0; i < 3000; ++i) add_normalised([&](Index) { return -std::log(1 - random.uniform()); });
  for (int i = 0; i < 3000; ++i) {
    const double size = std::pow(10, -3 * random.uniform());
    add_normalised([&](Index j) { return p.data()[j] * std::exp(size * random.normal()); });
  }
  for (Index a = 0; a < n; ++a) {
    for (Index b = 0; b < n; ++b) add_normalised([&](Index j) { return (j == a) + 2.0 * (j == b); });
  }
  return samples;
}

// The best sample may come within rounding of the maximum, but no nearer: 1e-14 is some ulps of the sums.
bool beats_every_sample(const A& p, const A& scores, double temperature) {
  const double own = free_energy(p, scores, temperature);
  for (const A& q : sampled_distributions(p, 91)) {
    if (free_energy(q, scores, temperature) > own + 1e-14) return false;
  }
  return true;
}

const A& some_scores() {
  static const A scores = A::of({{1.5, -0.25, 0.75, -2, 1}});
  return scores;
}
const double temperatures[] = {0.5, 1, 3};

TEST(Claim09MaximumEntropy, ClosedFormBeatsEverySampledDistribution) {
  for (const double temperature : temperatures) {
    const A p = weights_on(some_scores(), 1 / temperature);
    EXPECT_TRUE(beats_every_sample(p, some_scores(), temperature));
    EXPECT_FALSE(
        beats_every_sample(weights_on(some_scores(), 1.05 / temperature), some_scores(), temperature));
    EXPECT_FALSE(beats_every_sample(A::full({1, 5}, 0.2), some_scores(), temperature));
    double total = 0;  // the maximum is temperature log sum exp(scores / temperature)
    for (const double s : some_scores().values()) total += std::exp(s / temperature);
    EXPECT_NEAR(free_energy(p, some_scores(), temperature), temperature * std::log(total), 1e-14);
  }
}

// The gradient, by the engine, of <p, s> + T entropy(p) - lambda (sum(p) - 1), at lambda = T log sum exp(s /
// T) - T.
testing::AssertionResult lagrangian_gradient_vanishes(const A& p, double temperature) {
  double total = 0;
  for (const double s : some_scores().values()) total += std::exp(s / temperature);
  Tape<double> tape;
  const V weights = tape.input(p),
          lambda = tape.input(A::scalar(temperature * std::log(total) - temperature));
  const V lagrangian = sum(weights * V(some_scores())) - temperature * sum(weights * log(weights)) -
                       lambda * (sum(weights) - 1);
  const auto d = gradient_values(lagrangian, {weights, lambda});
  const double largest = std::max(magnitude(d[0]), magnitude(d[1]));
  if (largest < 1e-14 * (1 + temperature)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "it is " << d[0] << " and " << d[1];
}

TEST(Claim09MaximumEntropy, LagrangianGradientVanishes) {
  for (const double temperature : temperatures) {
    EXPECT_TRUE(lagrangian_gradient_vanishes(weights_on(some_scores(), 1 / temperature), temperature));
    EXPECT_FALSE(lagrangian_gradient_vanishes(weights_on(some_scores(), 1.001 / temperature), temperature));
    EXPECT_FALSE(lagrangian_gradient_vanishes(A::full({1, 5}, 0.2), temperature));
  }
}

// Another model: scores divided by their sum.
V normalised(const V& scores) { return scores / sum(scores, -1, Keep::yes); }

TEST(Claim09DividingByTheSum, GivesNegativeWeightsForSignedScores) {
  const A scores = A::of({{2, -1, 1}});
  EXPECT_TRUE(is_distribution(weights_on(scores)));
  EXPECT_FALSE(is_distribution(normalised(V(scores)).value()));
  EXPECT_LT(normalised(V(scores)).value()(0, 1), 0);
}

TEST(Claim09DividingByTheSum, HasAZeroDenominatorForScoresThatCancel) {
  const A scores = A::of({{2, -3, 1}});
  EXPECT_TRUE(is_distribution(weights_on(scores)));
  EXPECT_FALSE(all_finite(normalised(V(scores)).value()));
}

const A& positive_scores() {
  static const A scores = A::of({{0.5, 2, 1.25, 3}});
  return scores;
}

TEST(Claim09DividingByTheSum, OfPositiveScoresIsADistributionButAnotherOne) {
  const A weights = normalised(V(positive_scores())).value();
  EXPECT_TRUE(is_distribution(weights));
  EXPECT_FALSE(agree(weights, weights_on(positive_scores()), visible));
}

// w_i = s_i / total has dw_i / ds_j = ([i = j] - w_i) / total;  softmax has w_i ([i = j] - w_j).
TEST(Claim09DividingByTheSum, HasItsOwnGradient) {
  const A upstream = A::of({{1, -2, 0.5, 0.25}});
  const double total = 6.75;
  const A w = normalised(V(positive_scores())).value(), p = weights_on(positive_scores());
  A own = A::uninitialized({1, 4}), of_softmax = own;
  for (Index j = 0; j < 4; ++j) {
    own.set({0, j}, (upstream(0, j) - dot(upstream.values(), w.values())) / total);
    of_softmax.set({0, j}, p(0, j) * (upstream(0, j) - dot(upstream.values(), p.values())));
  }
  const A by_sum = dz_of(normalised, positive_scores(), upstream);
  const A by_softmax = dz_of(
      [](const V& z) {
        return *attention_on(z, V(A::zeros({4, 1}))).weights;
      },
      positive_scores(), upstream);
  EXPECT_TRUE(agree(by_sum, own, rounding));
  EXPECT_FALSE(agree(by_sum, of_softmax, visible));
  EXPECT_TRUE(agree(by_softmax, of_softmax, rounding));
  EXPECT_FALSE(agree(by_softmax, own, visible));
}

// Multiples of 1/8 plus 1024 are exact, so that not a bit may change.
testing::AssertionResult ignores_a_constant(const std::function<V(const V&)>& weights_of) {
  const A z = A::of({{1.5, -0.25, 0.75}, {-2, 1, 0.125}}), constants = A::of({{1024}, {-16}});
  const A upstream = A::of({{1, -2, 0.5}, {0.25, 3, -1}});
  const A shifted = (V(z) + V(constants)).value();
  const testing::AssertionResult weights = same_numbers(weights_of(V(shifted)), weights_of(V(z)));
  return weights ? same_numbers(dz_of(weights_of, shifted, upstream), dz_of(weights_of, z, upstream))
                 : weights;
}

TEST(Claim09Shift, AConstantAddedToARowChangesNothing) {
  EXPECT_TRUE(ignores_a_constant([](const V& z) { return *attention_on(z, V(A::zeros({3, 1}))).weights; }));
  EXPECT_TRUE(ignores_a_constant([](const V& z) { return softmax(z); }));
  EXPECT_FALSE(ignores_a_constant(normalised));
  EXPECT_FALSE(ignores_a_constant([](const V& z) { return softmax(z, 0); }));  // over the wrong axis
}

// exp(z - max z) / sum, without a thought for rows of minus infinities.
A naively_shifted(const A& z) {
  A largest = A::uninitialized({z.dim(0), 1});
  for (Index i = 0; i < z.dim(0); ++i) {
    largest.set({i, 0}, *std::max_element(z.data() + i * z.dim(1), z.data() + (i + 1) * z.dim(1)));
  }
  const V e = exp(V(z) - V(largest));
  return (e / sum(e, -1, Keep::yes)).value();
}

TEST(Claim09Infinities, NaiveShiftingMakesNaNOfAMaskedRowAndOursIsAnError) {
  const A scores = A::of({{1, 2, -0.5}, {0.5, -1, 3}});
  EXPECT_TRUE(agree(naively_shifted(scores), weights_on(scores), rounding));
  const Mask mask = Mask::allowed(Array<bool>::of({{true, false, true}, {false, false, false}}));
  const A naive = naively_shifted(kept(V(scores), mask, -infinity).value());
  EXPECT_TRUE(std::isnan(naive(1, 0)));
  EXPECT_FALSE(is_distribution(naive));
  const V value(A::ones({3, 2}));
  EXPECT_TRUE(
      raises<DomainError>([&] { attention_on(V(scores), value, mask); }, {"attention", "no key", "row 1"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] { attention_reference(scores, A::eye(3), value.value(), masked_by(mask)); }, {"no key", "row 1"}));
  EXPECT_NO_THROW(attention_on(V(scores), value));
}

TEST(Claim09Infinities, ScoresOfTenThousandStayFinite) {
  const A z = A::of({{1e4, -1e4, 9999}, {-1e4, -10001, -1e4}});
  const A value = A::of({{1, 2}, {3, 4}, {5, 7}}), upstream = A::of({{1, -1}, {0.5, 2}});
  const Inputs in{z, A::eye(3), value, upstream};
  const Numbers numbers = evaluated(attention_with(scaled_by(1)), in);
  for (const A& part : {numbers.output, numbers.weights, numbers.dquery, numbers.dkey, numbers.dvalue}) {
    EXPECT_TRUE(all_finite(part));
  }
  EXPECT_TRUE(agree(numbers, formulas(in, scaled_by(1)), rounding));
  EXPECT_NEAR(numbers.weights(0, 0), 1 / (1 + std::exp(-1.0)), 1e-15);
  const V unshifted = exp(V(z));
  EXPECT_FALSE(all_finite((unshifted / sum(unshifted, -1, Keep::yes)).value()));
}

TEST(Claim09Infinities, ALargestScoreOfInfinityIsAnError) {
  const A query = A::of({{1, 0}, {1e200, 0}}), key = A::of({{1e200, 1}, {2, 1}, {-3, 1}}),
          value = A::ones({3, 1});
  EXPECT_TRUE(raises<DomainError>([&] { attention(V(query), V(key), V(value)); }, {"infinite", "row 1"}));
  EXPECT_TRUE(raises<DomainError>([&] { attention_reference(query, key, value); }, {"row 1"}));
  const Mask without =
      Mask::allowed(Array<bool>::of({false, true, true}));  // nobody looks at the infinite one
  EXPECT_TRUE(all_finite(attention(V(query), V(key), V(value), masked_by(without)).output.value()));
  EXPECT_TRUE(std::isnan(softmax(V(A::of({{1, infinity}}))).value()(0, 1)));  // the plain op follows IEEE
}

TEST(Claim09Infinities, AScoreOfMinusInfinityIsAKeyThatIsNotSeen) {
  const A query = A::of({{1e200}}), key = A::of({{-1e200}, {1e-200}}), value = A::of({{3}, {5}});
  const Result result = attention(V(query), V(key), V(value), with_weights());
  EXPECT_SAME_NUMBERS(*result.weights, A::of({{0, 1}}));
  EXPECT_SAME_NUMBERS(result.output, A::of({{5}}));
  EXPECT_TRUE(
      raises<DomainError>([&] { attention(V(query), V(A::of({{-1e200}})), V(A::of({{3}}))); }, {"no key"}));
}

// ---- 10  the cost of softmax's VJP

constexpr Index row_length = 4096;

// Bytes taken during a call beyond what was held before: at most, and in one piece.
struct Bytes {
  std::ptrdiff_t peak, largest;
};
Bytes bytes_taken(const std::function<void()>& call) {
  reset_memory_peak();
  const std::ptrdiff_t before = memory_statistics().live;
  call();
  return {memory_statistics().peak - before, memory_statistics().largest};
}

// Forward and gradient of a function of one row (1, S).
Bytes bytes_of(const std::function<V(const V&)>& f, Index S) {
  const A z = Generator(101).normal<double>({1, S}), dy = Generator(102).normal<double>({1, S});
  return bytes_taken([&] { dz_of(f, z, dy); });
}

// A dozen rows and some small change: far from S x S, which would be 4096 rows.
bool is_linear(const Bytes& bytes, Index S) {
  const std::ptrdiff_t row = S * static_cast<std::ptrdiff_t>(sizeof(double));
  return bytes.largest <= 2 * row && bytes.peak <= 12 * row + 65536;
}

V softmax_by_jacobian(const V& s) {
  return softmax_with_rule(s, [](const V& y, const V& dy) {
    return y * dy - matmul(dy, matmul(y, y, true));  // dy (diag(y) - y^T y)
  });
}

TEST(Claim10SoftmaxVjpIsLinearInTheRow, AllocatesNothingOfTheSquareOfTheRow) {
  EXPECT_TRUE(is_linear(bytes_of([](const V& s) { return softmax(s); }, row_length), row_length));
  const Bytes wrong = bytes_of(softmax_by_jacobian, row_length);
  EXPECT_FALSE(is_linear(wrong, row_length));
  EXPECT_GE(wrong.largest, row_length * row_length * static_cast<Index>(sizeof(double)));
}

TEST(Claim10SoftmaxVjpIsLinearInTheRow, TwiceTheRowTakesTwiceTheBytes) {
  auto ratio = [](const std::function<V(const V&)>& f, Index S) {
    return static_cast<double>(bytes_of(f, 2 * S).peak) / static_cast<double>(bytes_of(f, S).peak);
  };
  EXPECT_LT(ratio([](const V& s) { return softmax(s); }, row_length), 2.1);
  EXPECT_GT(ratio(softmax_by_jacobian, 512), 3.5);
}

TEST(Claim10SoftmaxVjpIsLinearInTheRow, HoldsForOneQueryOfAttentionToo) {
  Generator random(103);
  const A query = random.normal<double>({1, 2}), key = random.normal<double>({row_length, 2}),
          value = random.normal<double>({row_length, 1});
  const Inputs in{query, key, value, A::ones({1, 1})};
  const Bytes bytes = bytes_taken([&] { evaluated(attention_with({}), in); });
  EXPECT_LE(bytes.largest, 3 * key.size() * static_cast<Index>(sizeof(double)));
  EXPECT_LT(bytes.peak, row_length * row_length * static_cast<Index>(sizeof(double)) / 100);
}

TEST(Claim10SoftmaxVjpIsLinearInTheRow, IsTheProductWithTheJacobian) {
  const A z = Generator(104).normal<double>({3, 5}), dy = Generator(105).normal<double>({3, 5});
  const A p = softmax(V(z)).value();
  A expected = A::zeros({3, 5}), without_the_outer_product = expected;
  for (Index i = 0; i < 3; ++i) {
    for (Index j = 0; j < 5; ++j) {
      double total = 0;
      for (Index k = 0; k < 5; ++k) total += dy(i, k) * p(i, k) * ((j == k) - p(i, j));
      expected.set({i, j}, total);
      without_the_outer_product.set({i, j}, dy(i, j) * p(i, j));
    }
  }
  const A dz = dz_of([](const V& s) { return softmax(s); }, z, dy);
  EXPECT_TRUE(agree(dz, expected, rounding));
  EXPECT_FALSE(agree(dz, without_the_outer_product, visible));
}

}  // namespace
}  // namespace tapehead::derivation
