#include <tapehead/nn/tasks.h>
#include <tapehead/nn/training.h>
#include <tapehead/ops/indexing.h>

#include "nn/derivation/support.h"

namespace tapehead::derivation {
namespace {

// ---- 15  the first row
//
// Under a causal mask row 0 has one key, and softmax of one score is 1: that weight carries no information
// and, p (dp - p dp) being 0, no gradient. It says nothing of row i, which divides its weight among i + 1
// keys by scores of its own. That trained models often give the first key much (Xiao and others, "Efficient
// streaming language models with attention sinks", 2024, section 3.1) is learned.

constexpr Index length = 8, width = 16;

// One head of self-attention without values.
struct Head {
  A w_query, w_key;
};
Head random_head(Generator random) {
  const double deviation = 1 / std::sqrt(static_cast<double>(width));  // queries and keys of unit variance
  const A w_query = random.normal<double>({width, width}, 0, deviation);
  return {w_query, random.normal<double>({width, width}, 0, deviation)};
}
A weights_of(const Head& head, const A& x, const Mask& mask = causal(0)) {
  const V query = projection(V(x), V(head.w_query)), key = projection(V(x), V(head.w_key));
  return attention(query, key, V(x), masked_by(mask, true)).weights->value();
}
A random_x(std::uint64_t seed, Index batch) { return Generator(seed).normal<double>({batch, length, width}); }

bool first_row_looks_at_itself(const A& weights) {
  for (Index b = 0; b < weights.dim(0); ++b) {
    if (weights(b, 0, 0) != 1) return false;
  }
  return true;
}

TEST(Claim15FirstRow, LooksAtItselfWhateverTheWeights) {
  for (const std::uint64_t seed : {151u, 152u}) {
    const A x = random_x(seed, 4);
    Head head = random_head(Generator(seed));
    EXPECT_TRUE(first_row_looks_at_itself(weights_of(head, x)));
    EXPECT_FALSE(first_row_looks_at_itself(weights_of(head, x, {})));
    head.w_query = scaled(head.w_query, 50);
    EXPECT_TRUE(first_row_looks_at_itself(weights_of(head, x)));
  }
}

TEST(Claim15FirstRow, TellsTheWeightsNothing) {
  const A x = random_x(153, 4);
  auto gradient_of_row = [&](Index row) {
    Tape<double> tape;
    const V w_query = tape.input(random_head(Generator(153)).w_query);
    const V query = projection(V(x), w_query);
    const V output = slice(attention(query, V(x), V(x), masked_by(causal(0))).output, 1, {row, row + 1});
    return magnitude(gradient_values(sum(output), w_query)[0]);
  };
  EXPECT_EQ(gradient_of_row(0), 0);
  EXPECT_GT(gradient_of_row(1), visible);
}

TEST(Claim15FirstRow, WithQueriesOfZeroLeavesLaterRowsEven) {
  const Head head{A::zeros({width, width}), random_head(Generator(154)).w_key};
  const A weights = weights_of(head, random_x(154, 1));
  A even = A::zeros({1, length, length});
  for (Index i = 0; i < length; ++i) {
    for (Index j = 0; j <= i; ++j) even.set({0, i, j}, 1 / static_cast<double>(i + 1));
  }
  EXPECT_TRUE(agree(weights, even, 1e-15));
  EXPECT_FALSE(agree(weights_of(random_head(Generator(154)), random_x(154, 1)), even, visible));
}

// The mean over rows counts row 0 with 1, row 1 with about 1/2 and so on: of even rows it is
// (1 + 1/2 + ... + 1/L) / L, which is no sign of anything, although it is well above 1/L.
TEST(Claim15FirstRow, RaisesTheMeanOverRowsWhereNoLaterRowLooksAtIt) {
  Options options = masked_by(causal(0));
  options.statistics = true;
  const V zeros(A::zeros({length, width})), keys(Generator(155).normal<double>({length, width}));
  const double mass = attention(zeros, keys, keys, options).statistics->first_key_mass.item();
  double harmonic = 0;
  for (Index i = 1; i <= length; ++i) harmonic += 1 / static_cast<double>(i);
  EXPECT_NEAR(mass, harmonic / length, 1e-15);
  EXPECT_GT(mass, 2.5 / length);
}

// (i + 1) times the weight of the first key in row i, 1 for an even row, over the samples: its mean, and the
// standard error of that.
struct Share {
  double mean, error;
};
Share first_share(const A& weights, Index row) {
  std::vector<double> shares;
  for (Index b = 0; b < weights.dim(0); ++b) {
    shares.push_back(static_cast<double>(row + 1) * weights(b, row, 0));
  }
  return {mean_of(shares), std::sqrt(variance_of(shares) / static_cast<double>(shares.size()))};
}

// One sample from each of many heads.
A untrained_weights(const std::function<void(Head&, A& x)>& change) {
  std::vector<V> all;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Head head = random_head(Generator(156).split(seed));
    A x = Generator(157).split(seed).normal<double>({1, length, width});
    change(head, x);
    all.push_back(weights_of(head, x));
  }
  return concat(all, 0).value();
}

// A feature that the first token alone has, and one that all have: queries of the one meet keys of the other.
void make_a_sink(Head& head, A& x) {
  for (Index l = 0; l < length; ++l) {
    x.set({0, l, 0}, l == 0 ? 1 : 0);
    x.set({0, l, 1}, 1);
  }
  head.w_query.set({1, 0}, 8), head.w_key.set({0, 0}, 8);
}

// Tokens drawn alike, without positions: keys before the row's own are exchangeable, so each has the same
// expected weight; and so has its own but for what a token's score with itself differs in, which is as often
// positive as negative over random weights. Five standard errors are passed once in two million times.
bool even_on_average(const A& weights) {
  for (Index row = 1; row < length; ++row) {
    const auto [mean, error] = first_share(weights, row);
    if (std::abs(mean - 1) > 5 * error) return false;
  }
  return true;
}

TEST(Claim15FirstRow, OfRandomWeightsLeavesLaterRowsEvenOnAverage) {
  const A random = untrained_weights([](Head&, A&) {}), sink = untrained_weights(make_a_sink);
  EXPECT_TRUE(even_on_average(random));
  EXPECT_FALSE(even_on_average(sink));
  for (Index row = 1; row < length; ++row) {
    EXPECT_LT(first_share(random, row).error, 0.02);  // so that a tenth of a share would be seen
    EXPECT_GT(first_share(sink, row).mean, 0.99 * static_cast<double>(row + 1));
  }
}

// ---- trained

// Sequences of random tokens. From row 2 on, the question is for the token before, or for the first one.
enum class Asked { previous, first };
struct Batch {
  Array<Index> tokens, targets;
};
constexpr Index vocabulary = 8, first_asked = 2;
Batch draw(Generator& random, Index batch, Asked asked) {
  const Shape shape{batch, length};
  Batch result{random.integers(shape, vocabulary), Array<Index>::full(shape, no_target)};
  for (Index b = 0; b < batch; ++b) {
    for (Index i = first_asked; i < length; ++i) {
      result.targets.set({b, i}, result.tokens(b, asked == Asked::previous ? i - 1 : 0));
    }
  }
  return result;
}

// Embedded tokens and positions, one causal head, logits.
struct Model {
  V tokens, positions, w_query, w_key, w_value, w_vocabulary;

  static Model initial(Generator random) {
    auto draw = [&](Index rows, Index columns, double deviation) {
      return V(random.normal<double>({rows, columns}, 0, deviation));
    };
    const double unit = 1 / std::sqrt(static_cast<double>(width));
    Model model;
    model.tokens = draw(vocabulary, width, 1), model.positions = draw(length, width, 1);
    model.w_query = draw(width, width, unit), model.w_key = draw(width, width, unit);
    model.w_value = draw(width, width, unit), model.w_vocabulary = draw(width, vocabulary, unit);
    return model;
  }
  Result attended(const Array<Index>& input) const {
    const V x = embedding(tokens, input) + positions;
    return attention(projection(x, w_query), projection(x, w_key), projection(x, w_value),
                     masked_by(causal(0), true));
  }
  V loss(const Batch& batch) const {
    const V logits = projection(attended(batch.tokens).output, w_vocabulary);
    return cross_entropy(logits, batch.targets, {.ignored = no_target});
  }

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("tokens", self.tokens), f("positions", self.positions), f("w_query", self.w_query),
        f("w_key", self.w_key);
    f("w_value", self.w_value), f("w_vocabulary", self.w_vocabulary);
  }
};

Model untrained() { return Model::initial(Generator(158)); }
Model trained(Asked asked) {
  Model model = untrained();
  Generator random(159);
  Tape<double> tape;
  AdamW<double> optimizer({.rate = 0.02});
  for (int step = 0; step < 200; ++step) {
    const Batch batch = draw(random, 32, asked);
    training_step(tape, model, optimizer, [&](const Model& recorded) { return recorded.loss(batch); });
  }
  return model;
}

// On sequences that were not trained on.
double loss_of(const Model& model, Asked asked) {
  Generator random(160);
  return model.loss(draw(random, 200, asked)).item();
}
A weights_of(const Model& model) {
  Generator random(161);
  return model.attended(random.integers({200, length}, vocabulary)).weights->value();
}

// Both start from the same weights and answer nearly all questions after 200 steps; log 8 = 2.08 is the loss
// of guessing. Measured: shares of 0.008 at most, and weights of 0.9999 at least.
TEST(Claim15FirstRow, OfATrainedModelIsLookedAtWhereThatIsOfUseAndNotElsewhere) {
  const Model previous = trained(Asked::previous), first = trained(Asked::first);
  EXPECT_GT(loss_of(untrained(), Asked::previous), 2);
  EXPECT_LT(loss_of(previous, Asked::previous), 0.05);
  EXPECT_LT(loss_of(first, Asked::first), 0.05);
  const A before = weights_of(untrained()), useless = weights_of(previous), useful = weights_of(first);
  for (const A& weights : {before, useless, useful}) EXPECT_TRUE(first_row_looks_at_itself(weights));
  for (Index row = first_asked; row < length; ++row) {
    const auto keys = static_cast<double>(row + 1);
    EXPECT_LT(first_share(useless, row).mean, 0.05) << row;  // 1 would be even
    EXPECT_GT(first_share(useful, row).mean, 0.99 * keys) << row;
    EXPECT_LT(first_share(before, row).mean, 0.6 * keys) << row;  // what was useful has grown
  }
}

}  // namespace
}  // namespace tapehead::derivation
