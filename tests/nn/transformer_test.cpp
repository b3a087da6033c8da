#include <tapehead/nn/transformer.h>

#include <gtest/gtest.h>

#include <cstring>

#include <tapehead/core/errors.h>
#include <tapehead/core/paths.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/layer_loops.h"
#include "support/model_gradients.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Names = std::vector<std::string>;
using loops::Rows;

// A few hundred sums of a dozen products one after another, each rounded to 1.1e-16; norms of rows of six
// numbers magnify by a few.
constexpr double rounding = 1e-12;
// By how much a wrong version is to miss: a million times that.
constexpr double clearly = 1e-6;

constexpr Index B = 2, L = 4, S = 5, vocabulary = 7;

TransformerOptions tiny(Index hidden) {
  return {.vocabulary = vocabulary, .context = S, .width = 6, .heads = 2, .layers = 2, .hidden = hidden};
}

CausalModel<double> tiny_causal(Index hidden) {
  Generator random(1);
  return with_random_parameters(CausalModel<double>::initial(random, tiny(hidden)), 2, 0.5);
}
EncoderDecoder<double> tiny_encoder_decoder(Index hidden) {
  Generator random(3);
  return with_random_parameters(EncoderDecoder<double>::initial(random, tiny(hidden)), 4, 0.5);
}

// Every token of the vocabulary occurs, so that every row of an embedding has a gradient.
Array<Index> tokens_of(Index length) {
  auto tokens = Array<Index>::zeros({B, length});
  for (Index b = 0; b < B; ++b) {
    for (Index i = 0; i < length; ++i) tokens.set({b, i}, (3 * (b * length + i) + 1) % vocabulary);
  }
  return tokens;
}
const Array<Index> source = tokens_of(S), target = tokens_of(L);
const Mask padding = Mask::lengths(Array<Index>::of({S, 3}));  // of the source

// `count` tokens of each sequence, beginning with number `from`.
Array<Index> tokens_from(const Array<Index>& tokens, Index from, Index count) {
  auto part = Array<Index>::zeros({B, count});
  for (Index b = 0; b < B; ++b) {
    for (Index i = 0; i < count; ++i) part.set({b, i}, tokens(b, from + i));
  }
  return part;
}
const Array<Index> answers = Array<Index>::of({{6, 2, 0, 3}, {1, 5, 5, 4}});

// ---- The models as loops

A causal_by_loops(const CausalModel<double>& model, const Array<Index>& tokens) {
  std::vector<Rows> logits;
  for (Index b = 0; b < B; ++b) {
    Rows x = loops::embedded(model.embedding, tokens, b);
    for (const auto& layer : model.layers) x = loops::encoder_layer(layer, x, loops::no_later_key);
    if (model.norm) x = loops::normed(*model.norm, x);
    logits.push_back(loops::projected(model.vocabulary, x));
  }
  return loops::batch_of(logits);
}

// The first `lengths[b]` tokens of source b can be seen.
A translated_by_loops(const EncoderDecoder<double>& model, const Array<Index>& from, const Array<Index>& to,
                      const std::vector<std::size_t>& lengths = {S, S}) {
  std::vector<Rows> logits;
  for (Index b = 0; b < B; ++b) {
    const loops::Seen seen = [length = lengths[static_cast<std::size_t>(b)]](std::size_t, std::size_t j) {
      return j < length;
    };
    Rows read = loops::embedded(model.source_embedding, from, b);
    for (const auto& layer : model.encoder) read = loops::encoder_layer(layer, read, seen);
    if (model.encoder_norm) read = loops::normed(*model.encoder_norm, read);
    Rows x = loops::embedded(model.target_embedding, to, b);
    for (const auto& layer : model.decoder) x = loops::decoder_layer(layer, x, read, seen);
    if (model.decoder_norm) x = loops::normed(*model.decoder_norm, x);
    logits.push_back(loops::projected(model.vocabulary, x));
  }
  return loops::batch_of(logits);
}

// -log softmax(x)[target], the mean over all rows.
double cross_entropy_by_loops(const A& logits, const Array<Index>& targets) {
  double loss = 0;
  for (Index b = 0; b < B; ++b) {
    for (Index i = 0; i < L; ++i) {
      double sum = 0;
      for (Index c = 0; c < vocabulary; ++c) sum += std::exp(logits(b, i, c));
      loss += (std::log(sum) - logits(b, i, targets(b, i))) / static_cast<double>(B * L);
    }
  }
  return loss;
}

V translated(const EncoderDecoder<double>& model, const Array<Index>& from, const Array<Index>& to,
             const Mask& mask = {}) {
  return model.decoded(to, model.encoded(from, mask), mask);
}

// Whether the logits of sequence b at position i are bitwise the same in both.
bool same_row(const A& first, const A& second, Index b, Index i) {
  const Index row = (b * first.dim(1) + i) * vocabulary;
  return std::memcmp(first.data() + row, second.data() + row, vocabulary * sizeof(double)) == 0;
}
Array<Index> with_token(Array<Index> tokens, Index b, Index i) {
  tokens.set({b, i}, (tokens(b, i) + 1) % vocabulary);
  return tokens;
}

// ---- What a model can be made of

struct Form {
  const char* name;
  TransformerOptions options;
};
std::ostream& operator<<(std::ostream& stream, const Form& form) { return stream << form.name; }

// Changes to a model of width 8 with two layers of two heads.
template <class Change>
Form form(const char* name, Change change) {
  Form made{name, {.vocabulary = vocabulary, .context = S, .width = 8, .heads = 2, .layers = 2, .hidden = 9}};
  change(made.options);
  return made;
}

const Form forms[] = {
    form("FeedForward", [](auto&) {}),
    form("NoFeedForward", [](auto& o) { o.hidden = 0; }),
    form("NormsBehind", [](auto& o) { o.norm_place = NormPlace::after; }),
    form("RmsNorms", [](auto& o) { o.norm = NormKind::rms; }),
    form("RmsNormsBehind", [](auto& o) { o.norm = NormKind::rms, o.norm_place = NormPlace::after; }),
    form("Bias", [](auto& o) { o.bias = true; }),
    form("Grouped", [](auto& o) { o.heads = 4, o.key_heads = 2; }),
    form("OneKeyHead", [](auto& o) { o.heads = 4, o.key_heads = 1; }),
    form("SwiGlu", [](auto& o) { o.swiglu = true; }),
    form("Relu", [](auto& o) { o.activation = Activation::relu; }),
    form("GeluTanh", [](auto& o) { o.activation = Activation::gelu_tanh; }),
    form("NoPositions", [](auto& o) { o.positions = Positions::none; }),
    form("Sinusoidal", [](auto& o) { o.positions = Positions::sinusoidal; }),
    form("Rotary", [](auto& o) { o.positions = Positions::rotary; }),
    form("LikeThatOf2017",
         [](auto& o) {
           o.bias = true, o.activation = Activation::relu;
           o.norm_place = NormPlace::after, o.positions = Positions::sinusoidal;
         }),
    form("LikeLlama",
         [](auto& o) {
           o.heads = 4, o.key_heads = 2, o.swiglu = true;
           o.norm = NormKind::rms, o.positions = Positions::rotary;
         }),
};

// Weights around 0 with a deviation of 1 / sqrt(8), gains around 1: larger ones give third derivatives that
// differences do not bear, and when all lean to one side, norms behind the parts leave the rows of a sequence
// alike, so that attention has nothing to tell apart.
template <class Model>
Model spread(Model model, std::uint64_t seed) {
  Generator random(seed);
  for_each_parameter(model, [&](const std::string& name, V& parameter) {
    const double mean = name.ends_with("gain") ? 1 : name.ends_with("b") || name.ends_with("bias") ? 0.2 : 0;
    const double deviation = name.ends_with("table") ? 1 : 0.35;
    parameter = random.normal<double>(parameter.shape(), mean, deviation);
  });
  return model;
}

class Forms : public testing::TestWithParam<Form> {
 protected:
  static CausalModel<double> causal() {
    Generator random(1);
    return spread(CausalModel<double>::initial(random, GetParam().options), 2);
  }
  static EncoderDecoder<double> encoder_decoder() {
    Generator random(3);
    return spread(EncoderDecoder<double>::initial(random, GetParam().options), 4);
  }
};
INSTANTIATE_TEST_SUITE_P(Models, Forms, testing::ValuesIn(forms),
                         [](const auto& one) { return one.param.name; });

// A key bias moves all scores of a row alike, so that it has no gradient to compare, unless keys are turned.
void drop_key_bias(MultiHeadAttention<double>& layer) {
  if (!layer.rope) layer.key.b.reset();
}

// ---- CausalModel

TEST_P(Forms, CausalModelAgreesWithLoopsInLogitsAndLoss) {
  const auto model = causal();
  const A expected = causal_by_loops(model, target);
  const V logits = model(target);
  EXPECT_NEAR_RELATIVE(logits, expected, rounding);
  EXPECT_NEAR(cross_entropy(logits, answers).item(), cross_entropy_by_loops(expected, answers), rounding);
}

TEST_P(Forms, CausalModelHasTheGradientsOfDifferences) {
  auto model = causal();
  for (auto& layer : model.layers) drop_key_bias(layer.attention);
  expect_gradients_of_differences(
      model, [](const CausalModel<double>& m) { return cross_entropy(m(source), tokens_of(S)); });
}

TEST_P(Forms, CausalModelOnWhatContinuesItsCachesHasTheLogitsOfTheWhole) {
  const auto model = causal();
  const A whole = model(source).value();
  for (const std::vector<Index>& blocks :
       {std::vector<Index>{1, 1, 1, 1, 1}, {3, 2}, {2, 1, 2}, {4, 1}, {5}}) {
    std::vector<KeyValueCache<double>> caches;
    std::vector<V> logits;
    Index from = 0;
    for (const Index n : blocks) {
      logits.push_back(model(tokens_from(source, from, n), caches));
      from += n;
      ASSERT_EQ(caches.size(), 2u);
      for (const auto& cache : caches) EXPECT_EQ(cache.length(), from);
    }
    EXPECT_NEAR_RELATIVE(concat(Vars<double>(logits), 1), whole, rounding);
  }
}

TEST(CausalModel, LogitsDoNotDependOnLaterTokens) {
  const auto model = tiny_causal(9);
  const A before = model(target).value();
  for (Index changed = 0; changed < L; ++changed) {
    const A after = model(with_token(target, 1, changed)).value();
    for (Index i = 0; i < L; ++i) {
      EXPECT_EQ(same_row(before, after, 1, i), i < changed) << "logits " << i << " of token " << changed;
      EXPECT_TRUE(same_row(before, after, 0, i)) << "another sequence";
    }
  }
}

TEST(CausalModel, GradientOfALogitWithRespectToLaterTokensIsExactlyZero) {
  const auto model = tiny_causal(9);
  Tape<double> tape;
  const V x = tape.input(model.embedding(target).value(), "X");
  const V logits = model.continued(x);
  A seed = A::zeros(logits.shape());
  seed.set({0, 1, 3}, 1);
  const A dx = gradient_values(logits, x, V(seed))[0];
  for (Index b = 0; b < B; ++b) {
    for (Index i = 0; i < L; ++i) {
      double largest = 0;
      for (Index m = 0; m < 6; ++m) largest = std::max(largest, std::abs(dx(b, i, m)));
      EXPECT_EQ(largest > 0, b == 0 && i <= 1) << b << ", " << i;
    }
  }
}

TEST(CausalModel, OfOneSequenceHasTheLogitsItHasInABatch) {
  const auto model = tiny_causal(9);
  const A batch = model(target).value();
  const A one = model(Array<Index>::from(target.values().subspan(L), {L})).value();
  ASSERT_EQ(one.shape(), Shape({L, vocabulary}));
  EXPECT_NEAR_RELATIVE(one, A::from(batch.values().subspan(L * vocabulary), {L, vocabulary}), rounding);
}

TEST(CausalModel, ReadsAsManyTokensAsItsContextAndNoMore) {
  const auto model = tiny_causal(0);
  EXPECT_EQ(model(Array<Index>::zeros({1, S})).shape(), Shape({1, S, vocabulary}));
  EXPECT_TRUE(raises<ShapeError>([&] { model(Array<Index>::zeros({3, S + 1})); }, {"longer", "5", "(3, 6)"}));
}

TEST(CausalModel, WithCachesOfAnotherModelIsAnErrorAndSoIsATokenPastItsContext) {
  const auto model = tiny_causal(9);
  std::vector<KeyValueCache<double>> three(3), caches;
  EXPECT_TRUE(raises<LogicError>([&] { model(source, three); }, {"CausalModel", "3 caches", "2 layers"}));
  model(source, caches);
  EXPECT_TRUE(
      raises<ShapeError>([&] { model(tokens_from(source, 0, 1), caches); }, {"longer", "5", "(2, 1)"}));
  for (const auto& cache : caches) EXPECT_EQ(cache.length(), S) << "is as it was";
}

TEST(CausalModel, WithCachesOfWhichOneWasCopiedGoesOnFromEach) {
  const auto model = tiny_causal(9);
  std::vector<KeyValueCache<double>> caches;
  model(tokens_from(source, 0, 3), caches);
  auto other = caches;
  const A first = model(tokens_from(source, 3, 1), caches).value();
  const A second = model(with_token(tokens_from(source, 3, 1), 0, 0), other).value();
  EXPECT_NEAR_RELATIVE(first, A::from(slice(model(source), 1, {3, 4}).value().values(), {B, 1, vocabulary}),
                       rounding);
  EXPECT_FALSE(same_row(first, second, 0, 0));
  EXPECT_TRUE(same_row(first, second, 1, 0));
}

TEST(CausalModel, WithoutPositionsForgetsTheOrderOfWhatCameBeforeInTheLastLogits) {
  Generator random(1);
  const Array<Index> reordered = Array<Index>::of({{3, 1, 4, 2}});
  const Array<Index> tokens = Array<Index>::of({{1, 4, 3, 2}});
  for (const Positions positions :
       {Positions::none, Positions::learned, Positions::sinusoidal, Positions::rotary}) {
    auto options = tiny(9);
    options.positions = positions, options.layers = 1, options.width = 8;
    const auto model = with_random_parameters(CausalModel<double>::initial(random, options), 2, 0.5);
    const A one = model(tokens).value(), other = model(reordered).value();
    const A last = A::from(one.values().last(vocabulary), {vocabulary});
    EXPECT_EQ(agree(A::from(other.values().last(vocabulary), {vocabulary}), last, 1e-6),
              positions == Positions::none);
  }
}

TEST(CausalModel, OfATokenBeyondTheVocabularyIsAnError) {
  const auto model = tiny_causal(0);
  EXPECT_TRUE(raises<DomainError>([&] { model(Array<Index>::of({{0, 7}})); }, {"7"}));
  EXPECT_TRUE(raises<DomainError>([&] { model(Array<Index>::of({{-1, 0}})); }, {"-1"}));
}

TEST(CausalModel, PathsOfItsEmbeddedInputAreThoseOfBothLayersAndADirectOne) {
  const auto model = tiny_causal(9);
  Tape<double> tape;
  const V x = tape.input(model.embedding(target).value(), "X");
  const V loss = cross_entropy(model.continued(x), answers);
  const auto paths = gradient_paths(loss, x);
  Names labels;
  A sum = A::zeros(x.shape());
  for (const GradientPath<double>& path : paths) {
    if (path.name != "direct") labels.push_back(path.label);
    EXPECT_GT(magnitude(path.gradient), 1e-6) << path.label;
    sum = (V(sum) + V(path.gradient)).value();
  }
  EXPECT_EQ(labels, (Names{"layer 1/query", "layer 1/key", "layer 1/value", "layer 2/query", "layer 2/key",
                           "layer 2/value"}));
  EXPECT_EQ(paths.size(), 7u) << "and one that is direct, past all attention";
  EXPECT_NEAR_RELATIVE(sum, gradient_values(loss, x)[0], rounding);
}

TEST(CausalModel, PathsAreTheSameWhenItsParametersAreRecordedToo) {
  const auto model = tiny_causal(9);
  Tape<double> tape;
  const auto recorded = on_tape(tape, model);
  const V x = recorded.embedding(target);
  const auto paths = gradient_paths(cross_entropy(recorded.continued(x), answers), x);
  Tape<double> other;
  const V y = other.input(x.value());
  const auto expected = gradient_paths(cross_entropy(model.continued(y), answers), y);
  ASSERT_EQ(paths.size(), expected.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ(paths[i].label, expected[i].label);
    EXPECT_NEAR_RELATIVE(paths[i].gradient, expected[i].gradient, rounding);
  }
}

TEST(CausalModel, WithoutARecordedParameterRecordsNothing) {
  EXPECT_FALSE(tiny_causal(9)(target).recorded());
}

// ---- EncoderDecoder

TEST_P(Forms, EncoderDecoderAgreesWithLoopsInLogitsAndLoss) {
  const auto model = encoder_decoder();
  const A expected = translated_by_loops(model, source, target);
  const V logits = translated(model, source, target);
  EXPECT_NEAR_RELATIVE(logits, expected, rounding);
  EXPECT_NEAR(cross_entropy(logits, answers).item(), cross_entropy_by_loops(expected, answers), rounding);
}

TEST_P(Forms, EncoderDecoderOfAPaddedSourceAgreesWithLoopsThatDoNotSeeIt) {
  const auto model = encoder_decoder();
  const A expected = translated_by_loops(model, source, target, {S, 3});
  EXPECT_NEAR_RELATIVE(translated(model, source, target, padding), expected, rounding);
  EXPECT_FALSE(agree(translated(model, source, target), expected, clearly)) << "without a mask";
  EXPECT_FALSE(agree(model.decoded(target, model.encoded(source, padding)), expected, clearly))
      << "on one side";
  EXPECT_FALSE(agree(model.decoded(target, model.encoded(source), padding), expected, clearly))
      << "on the other";
}

TEST_P(Forms, EncoderDecoderHasTheGradientsOfDifferences) {
  auto model = encoder_decoder();
  for (auto& layer : model.encoder) drop_key_bias(layer.attention);
  for (auto& layer : model.decoder) drop_key_bias(layer.attention), drop_key_bias(layer.cross);
  // Targets as long as the context: every position has a gradient.
  expect_gradients_of_differences(model, [](const EncoderDecoder<double>& m) {
    return cross_entropy(translated(m, source, with_token(source, 0, 1), padding), tokens_of(S));
  });
}

TEST(EncoderDecoder, LogitsDoNotDependOnPaddingOfTheSource) {
  const auto model = tiny_encoder_decoder(9);
  const A before = translated(model, source, target, padding).value();
  for (Index changed = 0; changed < S; ++changed) {
    const A after = translated(model, with_token(source, 1, changed), target, padding).value();
    for (Index i = 0; i < L; ++i)
      EXPECT_EQ(same_row(before, after, 1, i), changed >= 3) << changed << ", " << i;
  }
}

TEST(EncoderDecoder, LogitsDoNotDependOnLaterTargets) {
  const auto model = tiny_encoder_decoder(9);
  const A before = translated(model, source, target).value();
  for (Index changed = 0; changed < L; ++changed) {
    const A after = translated(model, source, with_token(target, 1, changed)).value();
    for (Index i = 0; i < L; ++i) {
      EXPECT_EQ(same_row(before, after, 1, i), i < changed) << "logits " << i << " of token " << changed;
      EXPECT_TRUE(same_row(before, after, 0, i)) << "another sequence";
    }
  }
}

TEST(EncoderDecoder, EveryLogitDependsOnEveryTokenOfItsSource) {
  const auto model = tiny_encoder_decoder(9);
  const A before = translated(model, source, target).value();
  for (Index changed = 0; changed < S; ++changed) {
    const A after = translated(model, with_token(source, 0, changed), target).value();
    for (Index i = 0; i < L; ++i) {
      EXPECT_FALSE(same_row(before, after, 0, i)) << "logits " << i << " of source token " << changed;
      EXPECT_TRUE(same_row(before, after, 1, i)) << "another sequence";
    }
  }
}

TEST(EncoderDecoder, PathsOfTheEncodedSourceAreTheKeysAndValuesOfTheDecoder) {
  const auto model = tiny_encoder_decoder(9);
  Tape<double> tape;
  const V read = tape.input(model.encoded(source).value(), "source");
  Names labels;
  for (const auto& path : gradient_paths(cross_entropy(model.decoded(target, read), answers), read)) {
    labels.push_back(path.label);
  }
  EXPECT_EQ(labels, (Names{"decoder 1/key", "decoder 1/value", "decoder 2/key", "decoder 2/value"}));
}

TEST(EncoderDecoder, OfASourceOrTargetLongerThanItsContextIsAnError) {
  const auto model = tiny_encoder_decoder(0);
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        model.encoded(Array<Index>::zeros({1, S + 1}));
      },
      {"longer", "5", "(1, 6)"}));
  const V read = model.encoded(source);
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        model.decoded(Array<Index>::zeros({B, S + 2}), read);
      },
      {"longer", "(2, 7)"}));
}

TEST(EncoderDecoder, OfAnotherNumberOfTargetsThanSourcesIsAnError) {
  const auto model = tiny_encoder_decoder(0);
  const V read = model.encoded(source);
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        model.decoded(Array<Index>::zeros({B + 1, L}), read);
      },
      {"leading axes"}));
}

// ---- Both

TEST(TokenEmbedding, IsDrawnWithUnitVariance) {
  Generator random(1);
  const auto layer = TokenEmbedding<double>::initial(random, {.vocabulary = 50, .context = 40, .width = 64});
  for (const A& table : {layer.tokens.table.value(), layer.positions->table.value()}) {
    const auto n = static_cast<double>(table.size());
    double mean = 0, square = 0;
    for (const double x : table.values()) mean += x / n, square += x * x / n;
    EXPECT_NEAR(mean, 0,
                5 / std::sqrt(n));  // five deviations of a mean and a mean square of n normal numbers
    EXPECT_NEAR(square, 1, 5 * std::sqrt(2 / n));
  }
}

TEST(TokenEmbedding, AddsThePositionToTheToken) {
  const auto model = tiny_causal(0);
  std::vector<Rows> expected;
  for (Index b = 0; b < B; ++b) expected.push_back(loops::embedded(model.embedding, target, b));
  EXPECT_SAME_NUMBERS(model.embedding(target), loops::batch_of(expected));
}

TEST(TokenEmbedding, AtALaterStartIsThatOfTheTokensInTheirPlace) {
  Generator random(1);
  for (const Positions positions :
       {Positions::none, Positions::learned, Positions::sinusoidal, Positions::rotary}) {
    auto options = tiny(9);
    options.positions = positions;
    const auto layer = TokenEmbedding<double>::initial(random, options);
    EXPECT_EQ(layer.positions.has_value(), positions == Positions::learned);
    EXPECT_EQ(layer.sinusoidal, positions == Positions::sinusoidal);
    const V whole = layer(source);
    EXPECT_SAME_NUMBERS(layer(tokens_from(source, 2, 3), 2), slice(whole, 1, {2, 5}));
    const bool placed = positions == Positions::learned || positions == Positions::sinusoidal;
    EXPECT_EQ(!agree(layer(tokens_from(source, 2, 3)), slice(whole, 1, {2, 5}), 1e-3), placed);
  }
}

TEST(TokenEmbedding, OfALearnedPositionThatThereIsNotIsAnErrorAndOfSinesThereIsNone) {
  Generator random(1);
  auto options = tiny(9);
  const auto learned = TokenEmbedding<double>::initial(random, options);
  EXPECT_TRUE(raises<ShapeError>([&] { learned(target, 2); }, {"TokenEmbedding", "longer", "5", "(2, 4)"}));
  EXPECT_EQ(learned(target, 1).shape(), Shape({B, L, 6}));
  options.positions = Positions::sinusoidal;
  EXPECT_EQ(TokenEmbedding<double>::initial(random, options)(target, 1000).shape(), Shape({B, L, 6}));
}

TEST(EncoderLayer, GivesItsHalvesAndTheWeightsOfTheFirst) {
  for (const NormPlace place : {NormPlace::before, NormPlace::after}) {
    Generator random(1);
    auto options = tiny(9);
    options.norm_place = place;
    const auto layer = with_random_parameters(EncoderLayer<double>::initial(random, options), 2);
    const V x = random.normal<double>({B, L, 6});
    AttentionOptions<double> wanted;
    wanted.mask = Mask::causal(0), wanted.weights = true;
    const auto half = layer.attended(x, wanted);
    EXPECT_SAME_NUMBERS(layer.fed(half.output), layer(x, wanted));
    const V read = place == NormPlace::before ? normed(layer.attention_norm, x) : x;
    EXPECT_SAME_NUMBERS(*half.weights, *layer.attention(read, wanted).weights);
  }
}

TEST(Transformers, OfOneSeedAreTheSameAndOfAnotherAreOthers) {
  auto drawn = [](std::uint64_t seed) {
    Generator random(seed);
    return parameters<double>(EncoderDecoder<double>::initial(random, tiny(9)));
  };
  const auto first = drawn(1), again = drawn(1), other = drawn(2);
  std::size_t different = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(same_bits(first[i].value(), again[i].value()));
    different += !same_bits(first[i].value(), other[i].value());
  }
  // All but gains and biases: 4 embeddings, 2 (4 + 2) projections of the encoder, 2 (4 + 4 + 2) of the
  // decoder, 1.
  EXPECT_EQ(different, 4u + 12u + 20u + 1u);
}

TEST(Transformers, InFloatAgreeWithDouble) {
  const auto model = tiny_causal(9);
  Generator random(1);
  auto single = CausalModel<float>::initial(random, tiny(9));
  const auto exact = parameters<double>(model);
  std::size_t i = 0;
  for_each_parameter(single, [&](const std::string&, Var<float>& parameter) {
    parameter = exact[i++].value().cast<float>();
  });
  // Rounding to 6e-8, magnified by two layers of scores and norms.
  EXPECT_NEAR_RELATIVE(single(target).value().cast<double>(), model(target), 1e-5);
}

}  // namespace
}  // namespace tapehead
