#include <tapehead/nn/transformer.h>

#include <gtest/gtest.h>

#include <cstring>

#include <tapehead/core/errors.h>
#include <tapehead/core/paths.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/reduction.h>

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

constexpr Index B = 2, L = 4, S = 5, vocabulary = 7;

TransformerSizes tiny(Index hidden) {
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
const Array<Index> answers = Array<Index>::of({{6, 2, 0, 3}, {1, 5, 5, 4}});

// ---- The models as loops

Rows embedded(const TokenEmbedding<double>& layer, const Array<Index>& tokens, Index b) {
  Rows x;
  for (Index i = 0; i < tokens.dim(1); ++i) {
    std::vector<double>& row = x.emplace_back();
    for (Index m = 0; m < layer.tokens.dim(1); ++m) {
      row.push_back(layer.tokens.value()(tokens(b, i), m) + layer.positions.value()(i, m));
    }
  }
  return x;
}

Rows attended(const SelfAttentionBlock<double>& block, const Rows& x, bool causal) {
  const Rows read = loops::layer_norm(block.attention_norm, x);
  return loops::plus(x, loops::attention(block.attention, read, read, causal));
}
Rows fed_forward(const SelfAttentionBlock<double>& block, const Rows& x) {
  if (!block.feed_forward) return x;
  return loops::plus(
      x, loops::feed_forward(*block.feed_forward, loops::layer_norm(*block.feed_forward_norm, x)));
}

A causal_by_loops(const CausalModel<double>& model, const Array<Index>& tokens) {
  std::vector<Rows> logits;
  for (Index b = 0; b < B; ++b) {
    Rows x = embedded(model.embedding, tokens, b);
    for (const auto& block : model.blocks) x = fed_forward(block, attended(block, x, true));
    logits.push_back(loops::times(loops::layer_norm(model.norm, x), model.w_vocabulary.value()));
  }
  return loops::batch_of(logits);
}

A translated_by_loops(const EncoderDecoder<double>& model, const Array<Index>& from, const Array<Index>& to) {
  std::vector<Rows> logits;
  for (Index b = 0; b < B; ++b) {
    Rows read = embedded(model.source_embedding, from, b);
    for (const auto& block : model.encoder) read = fed_forward(block, attended(block, read, false));
    read = loops::layer_norm(model.encoder_norm, read);
    Rows x = embedded(model.target_embedding, to, b);
    for (const auto& block : model.decoder) {
      x = attended(block.self, x, true);
      x = loops::plus(x, loops::attention(block.cross, loops::layer_norm(block.cross_norm, x), read, false));
      x = fed_forward(block.self, x);
    }
    logits.push_back(loops::times(loops::layer_norm(model.decoder_norm, x), model.w_vocabulary.value()));
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

V translated(const EncoderDecoder<double>& model, const Array<Index>& from, const Array<Index>& to) {
  return model.decoded(to, model.encoded(from));
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

class WithHidden : public testing::TestWithParam<Index> {};
INSTANTIATE_TEST_SUITE_P(Models, WithHidden, testing::Values(0, 9), [](const auto& hidden) {
  return hidden.param == 0 ? "NoFeedForward" : "FeedForward";
});

// ---- CausalModel

TEST_P(WithHidden, CausalModelAgreesWithLoopsInLogitsAndLoss) {
  const auto model = tiny_causal(GetParam());
  const A expected = causal_by_loops(model, target);
  const V logits = model(target);
  EXPECT_NEAR_RELATIVE(logits, expected, rounding);
  EXPECT_NEAR(cross_entropy(logits, answers).item(), cross_entropy_by_loops(expected, answers), rounding);
}

TEST_P(WithHidden, CausalModelHasTheGradientsOfDifferences) {
  expect_gradients_of_differences(tiny_causal(GetParam()), [](const CausalModel<double>& model) {
    return cross_entropy(model(source), tokens_of(S));
  });
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

TEST_P(WithHidden, EncoderDecoderAgreesWithLoopsInLogitsAndLoss) {
  const auto model = tiny_encoder_decoder(GetParam());
  const A expected = translated_by_loops(model, source, target);
  const V logits = translated(model, source, target);
  EXPECT_NEAR_RELATIVE(logits, expected, rounding);
  EXPECT_NEAR(cross_entropy(logits, answers).item(), cross_entropy_by_loops(expected, answers), rounding);
}

TEST_P(WithHidden, EncoderDecoderHasTheGradientsOfDifferences) {
  // Targets as long as the context: every position has a gradient.
  expect_gradients_of_differences(tiny_encoder_decoder(GetParam()), [](const EncoderDecoder<double>& model) {
    return cross_entropy(translated(model, source, with_token(source, 0, 1)), tokens_of(S));
  });
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
  for (const A& table : {layer.tokens.value(), layer.positions.value()}) {
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
  for (Index b = 0; b < B; ++b) expected.push_back(embedded(model.embedding, target, b));
  EXPECT_SAME_NUMBERS(model.embedding(target), loops::batch_of(expected));
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
