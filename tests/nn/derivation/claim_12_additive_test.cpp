#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 12  additive scores: v . tanh(query w_query + key w_key + b), of hidden width A
// Bahdanau, Cho, Bengio, "Neural machine translation by jointly learning to align and translate", 2015,
// appendix A.1.2.

using Scoring = AdditiveScoring<double>;

struct AdditiveCase {
  Inputs in;
  Scoring scoring;
};

// Queries of width 4, keys of width 3.
AdditiveCase random_case(Index L, Index S, Index hidden, const Shape& leading = {}) {
  Generator random(121);
  auto draw = [&](const Shape& shape) { return random.normal<double>(shape); };
  AdditiveCase c;
  c.in = {draw(leading.followed_by({L, 4})), draw(leading.followed_by({S, 3})),
          draw(leading.followed_by({S, 2})), draw(leading.followed_by({L, 2}))};
  c.scoring = {draw({4, hidden}), draw({3, hidden}), V(draw({hidden})), draw({hidden})};
  return c;
}

Scoring with_v(Scoring scoring, double factor) {
  scoring.v = scaled(scoring.v.value(), factor);
  return scoring;
}
Scoring with_weights(Scoring scoring, double factor) {
  scoring.w_query = scaled(scoring.w_query.value(), factor);
  scoring.w_key = scaled(scoring.w_key.value(), factor);
  return scoring;
}

Result attend(const Inputs& in, const Scoring& scoring) {
  Options options;
  options.weights = options.scaled_scores = true;
  return additive_attention(V(in.query), V(in.key), V(in.value), scoring, options);
}
A scores_of(const Inputs& in, const Scoring& scoring) { return attend(in, scoring).scaled_scores->value(); }
A weights_of(const Inputs& in, const Scoring& scoring) { return attend(in, scoring).weights->value(); }

// tanh(query w_query + key w_key + b) as loops, (L S, A).
A hidden_numbers(const Inputs& in, const Scoring& scoring) {
  const A from_query = product(in.query, scoring.w_query.value()),
          from_key = product(in.key, scoring.w_key.value());
  const Index L = in.query.dim(0), S = in.key.dim(0), width = scoring.v.dim(0);
  A hidden = A::uninitialized({L * S, width});
  for (Index i = 0; i < L * S; ++i) {
    for (Index a = 0; a < width; ++a) {
      hidden.set({i, a}, std::tanh(from_query(i / S, a) + from_key(i % S, a) + scoring.b->value()(a)));
    }
  }
  return hidden;
}

double sum_of_absolutes(const A& x) {
  double total = 0;
  for (const double v : x.values()) total += std::abs(v);
  return total;
}
// Up to the rounding of the sums.
bool bounded_by(double bound, const A& x) { return magnitude(x) <= bound * (1 + rounding); }

// |tanh| < 1 bounds each hidden number, and |v . h| <= sum |v| the score: a bound that is as large as v.
TEST(Claim12AdditiveScores, TanhBoundsTheHiddenNumbersAndNotTheScores) {
  const auto [in, scoring] = random_case(5, 7, 16);
  const A hidden = hidden_numbers(in, scoring), scores = scores_of(in, scoring);
  EXPECT_TRUE(bounded_by(1, hidden));
  EXPECT_TRUE(agree(scores.reshape({35, 1}), product(hidden, scoring.v.value().reshape({16, 1})), rounding));
  for (const double factor : {10.0, 100.0, 1000.0}) {
    const Scoring larger = with_v(scoring, factor);
    EXPECT_TRUE(agree(hidden_numbers(in, larger), hidden, 0));
    EXPECT_TRUE(agree(scores_of(in, larger), scaled(scores, factor), rounding));
    EXPECT_FALSE(bounded_by(factor, scores_of(in, larger)));
  }
}

TEST(Claim12AdditiveScores, StayBelowTheSumOfTheAbsoluteVWhateverTheInputs) {
  const auto [in, scoring] = random_case(5, 7, 16);
  const double bound = sum_of_absolutes(scoring.v.value());
  for (const double factor : {1.0, 1e3, 1e6}) {
    const Inputs larger{scaled(in.query, factor), scaled(in.key, factor), in.value, in.upstream};
    EXPECT_TRUE(bounded_by(bound, scores_of(larger, scoring)));
    // The dot product of the projections has no bound: it grows with the square.
    Options options = scaled_by(1);
    options.scaled_scores = true;
    const V query = projection(V(larger.query), scoring.w_query),
            key = projection(V(larger.key), scoring.w_key);
    const A dots = attention(query, key, V(in.value), options).scaled_scores->value();
    EXPECT_FALSE(bounded_by(bound * factor, dots));
  }
}

TEST(Claim12AdditiveScores, ReachTheBoundWhenTheHiddenNumbersHaveTheSignsOfV) {
  auto [in, scoring] = random_case(5, 7, 16);
  const double bound = sum_of_absolutes(scoring.v.value());
  EXPECT_LT(magnitude(scores_of(in, scoring)), 0.9 * bound);
  scoring.b = V(mapped(scoring.v.value(), [](double v) { return std::copysign(100, v); }));
  EXPECT_TRUE(agree(scores_of(in, scoring), A::full({5, 7}, bound), rounding));
}

double largest_weight(const A& weights, Index row) {
  return *std::max_element(weights.data() + row * weights.dim(1),
                           weights.data() + (row + 1) * weights.dim(1));
}
bool is_one_hot(const A& weights) {
  for (Index row = 0; row < weights.dim(0); ++row) {
    if (largest_weight(weights, row) < 1 - 1e-9) return false;
  }
  return true;
}
// The largest gradient of the queries.
double signal(const Inputs& in, const Scoring& scoring) {
  Tape<double> tape;
  const V query = tape.input(in.query);
  const V output = additive_attention(query, V(in.key), V(in.value), scoring).output;
  return magnitude(gradient_values(output, query, V(in.upstream))[0]);
}

// Softmax sees the gaps between scores, and v stretches them: at a gap g the second weight is below e^-g.
TEST(Claim12AdditiveScores, ALargeVSaturatesSoftmaxAndItsGradientVanishes) {
  const auto [in, scoring] = random_case(5, 7, 16);
  EXPECT_FALSE(is_one_hot(weights_of(in, scoring)));
  EXPECT_GT(signal(in, scoring), visible);
  const Scoring large = with_v(scoring, 1e4);
  EXPECT_TRUE(is_one_hot(weights_of(in, large)));
  EXPECT_LT(signal(in, large), 1e-9);
}

TEST(Claim12AdditiveScores, SaturatedHiddenNumbersDoNotSaturateSoftmax) {
  const auto [in, scoring] = random_case(5, 7, 16);
  const Scoring steep = with_weights(with_v(scoring, 0.1), 1e4);
  const auto hidden = hidden_numbers(in, steep);
  for (const double h : hidden.values()) EXPECT_EQ(std::abs(h), 1);
  const double spread = std::exp(2 * sum_of_absolutes(steep.v.value()));  // of two weights, at most
  for (Index row = 0; row < 5; ++row) {
    EXPECT_LE(largest_weight(weights_of(in, steep), row), spread / (spread + 6));
  }
  EXPECT_FALSE(is_one_hot(weights_of(in, steep)));
  EXPECT_LT(signal(in, steep), 1e-9);  // here it is tanh that lets nothing through
}

// ---- bytes

constexpr Index number = sizeof(double);

// Of the largest value that a node of the tape has.
Index largest_on_tape(const Tape<double>& tape) {
  Index largest = 0;
  for (Index i = 0; i < tape.size(); ++i) largest = std::max(largest, tape.node(i).shape.size());
  return largest * number;
}

// Bytes of a forward pass and a gradient with respect to the queries: the largest piece, on the tape and of
// all that was taken, and the most at any time.
struct Taken {
  Index on_tape, largest, peak;
};
Taken taken_by(const Inputs& in, const std::function<Result(const V& query)>& attend_to) {
  Tape<double> tape;
  const V query = tape.input(in.query);
  reset_memory_peak();
  const std::ptrdiff_t before = memory_statistics().live;
  const V output = attend_to(query).output;
  const Index on_tape = largest_on_tape(tape);
  gradient_values(output, query, V(in.upstream));
  return {on_tape, memory_statistics().largest, memory_statistics().peak - before};
}
// Of an array of so many bytes: what describes it lies in front of them.
bool is_storage_of(Index bytes, Index taken) { return bytes <= taken && taken <= bytes + 256; }

Taken by_adding(const AdditiveCase& c) {
  return taken_by(
      c.in, [&](const V& query) { return additive_attention(query, V(c.in.key), V(c.in.value), c.scoring); });
}
Taken by_product(const Inputs& in) {
  return taken_by(in, [&](const V& query) {
    return attention(query, V(in.key), V(in.value), {.kernel = AttentionKernel::composed});
  });
}

// Each pair has a hidden layer of its own: nothing of it can be summed before tanh. A dot product's sum over
// the width is inside the matrix product and never stored.
TEST(Claim12AdditiveBytes, ThePairsTakeTheHiddenWidthTimesWhatADotProductTakes) {
  for (const Index batch : {1, 3}) {
    const Index L = 24, S = 40, hidden = 32, pairs = batch * L * S * number;
    const Taken adding = by_adding(random_case(L, S, hidden, {batch}));
    const Taken product = by_product(random_inputs(122, L, S, 16, 8, {batch}));
    EXPECT_EQ(product.on_tape, pairs);
    EXPECT_EQ(adding.on_tape, pairs * hidden);
    EXPECT_TRUE(is_storage_of(pairs * hidden, adding.largest));
    EXPECT_GE(adding.peak, 2 * pairs * hidden);   // what tanh gave is kept for its rule, beside the gradient
    EXPECT_LT(product.peak, pairs * hidden / 2);  // room that a matrix product packs into included
  }
}

TEST(Claim12AdditiveBytes, GrowWithTheHiddenWidthWhereADotProductsDoNotGrowWithItsOwn) {
  const Taken adding = by_adding(random_case(24, 40, 32)), wider_adding = by_adding(random_case(24, 40, 64));
  const Taken product = by_product(random_inputs(122, 24, 40, 8, 2));
  const Taken wider_product = by_product(random_inputs(122, 24, 40, 16, 2));
  EXPECT_EQ(wider_adding.on_tape, 2 * adding.on_tape);
  EXPECT_EQ(wider_product.on_tape, product.on_tape);
}

}  // namespace
}  // namespace tapehead::derivation
