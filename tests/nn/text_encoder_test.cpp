#include <tapehead/nn/text_encoder.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <tapehead/core/errors.h>
#include <tapehead/core/expect_gradients.h>
#include <tapehead/core/paths.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/files.h"
#include "support/layer_loops.h"
#include "support/model_gradients.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using loops::Rows;

// A few hundred sums of a dozen products one after another, each rounded to 1.1e-16; norms of rows of six
// numbers magnify by a few.
constexpr double rounding = 1e-12;

constexpr Index B = 3, L = 5, M = 6, H = 2, vocabulary = 7;

// An eps that can be seen.
TextEncoderSizes tiny() {
  return {.vocabulary = vocabulary,
          .context = L,
          .segments = 2,
          .width = M,
          .heads = H,
          .layers = 2,
          .hidden = 8,
          .norm_eps = 0.05};
}
TextEncoder<double> tiny_encoder() {
  Generator random(1);
  return with_random_parameters(TextEncoder<double>::initial(random, tiny()), 2, 0.5);
}

const Array<Index> tokens = Array<Index>::of({{1, 2, 3, 4, 5}, {6, 0, 1, 0, 0}, {4, 5, 2, 1, 0}});
const Array<Index> segments = Array<Index>::of({{0, 0, 1, 1, 1}, {0, 1, 0, 0, 0}, {1, 1, 0, 0, 0}});
const Array<Index> lengths = Array<Index>::of({5, 2, 4});

EncodingOptions all_wanted() {
  return {.mask = Mask::lengths(lengths), .segments = segments, .hidden_states = true, .weights = true};
}

TEST(TextEncoder, IsMadeAsItsSizesSay) {
  Generator random(1);
  const auto model = TextEncoder<double>::initial(random, tiny());
  EXPECT_EQ(model.embedding.tokens.table.shape(), Shape({vocabulary, M}));
  EXPECT_EQ(model.embedding.positions->table.shape(), Shape({L, M}));
  EXPECT_EQ(model.segments->table.shape(), Shape({2, M}));
  EXPECT_EQ(model.norm.eps, 0.05);
  ASSERT_EQ(model.layers.size(), 2u);
  for (const auto& layer : model.layers) {
    EXPECT_EQ(layer.norm_place, NormPlace::after);
    EXPECT_EQ(layer.attention.heads, H);
    EXPECT_EQ(std::get<LayerNorm<double>>(layer.attention_norm).eps, 0.05);
    EXPECT_EQ(std::get<LayerNorm<double>>(*layer.feed_forward_norm).eps, 0.05);
    EXPECT_EQ(layer.feed_forward->activation, Activation::gelu);
    EXPECT_EQ(layer.feed_forward->up.w.shape(), Shape({M, 8}));
  }
  // Embeddings and their norm; of a layer four projections, two norms and the feed-forward part.
  EXPECT_EQ(parameter_count(model),
            (vocabulary + L + 2) * M + 2 * M + 2 * (4 * (M * M + M) + 4 * M + M * 8 + 8 + 8 * M + M));
  TextEncoderSizes plain = tiny();
  plain.segments = 0;
  EXPECT_FALSE(TextEncoder<double>::initial(random, plain).segments);
}

// ---- The model as loops

Rows normed_rows(const LayerNorm<double>& layer, Rows x) {
  for (auto& row : x) {
    const auto n = static_cast<double>(row.size());
    double mean = 0, variance = 0;
    for (const double v : row) mean += v / n;
    for (const double v : row) variance += (v - mean) * (v - mean) / n;
    for (std::size_t m = 0; m < row.size(); ++m) {
      const auto column = static_cast<Index>(m);
      row[m] = (row[m] - mean) / std::sqrt(variance + layer.eps) * layer.gain.value()(column) +
               layer.bias.value()(column);
    }
  }
  return x;
}
Rows normed_rows(const Norm<double>& norm, Rows x) {
  return normed_rows(std::get<LayerNorm<double>>(norm), std::move(x));
}

Rows projected(const Projection<double>& layer, const Rows& x) {
  return loops::plus_bias(loops::times(x, layer.w.value()), layer.b->value());
}

// Columns `from` to `from + count`.
Rows columns(const Rows& x, Index from, Index count) {
  Rows part;
  for (const auto& row : x) part.emplace_back(row.begin() + from, row.begin() + from + count);
  return part;
}

struct ByLoops {
  std::vector<Rows> hidden;                // of each layer
  std::vector<std::vector<Rows>> weights;  // of each layer and head
};

// One sequence, of which the first `seen` tokens are read.
ByLoops by_loops(const TextEncoder<double>& model, Index b, std::size_t seen) {
  Rows x;
  for (Index i = 0; i < L; ++i) {
    std::vector<double>& row = x.emplace_back();
    for (Index m = 0; m < M; ++m) {
      row.push_back(model.embedding.tokens.table.value()(tokens(b, i), m) +
                    model.embedding.positions->table.value()(i, m) +
                    model.segments->table.value()(segments(b, i), m));
    }
  }
  ByLoops result{{normed_rows(model.norm, x)}, {}};
  for (const auto& layer : model.layers) {
    x = result.hidden.back();
    const Rows q = projected(layer.attention.query, x), k = projected(layer.attention.key, x),
               v = projected(layer.attention.value, x);
    Rows joined(L);
    std::vector<Rows>& heads = result.weights.emplace_back();
    for (Index h = 0; h < H; ++h) {
      Rows& weights = heads.emplace_back();
      const Rows key = columns(k, h * M / H, M / H), value = columns(v, h * M / H, M / H);
      for (const auto& query : columns(q, h * M / H, M / H)) {
        std::vector<double>& out = joined[weights.size()];
        weights.push_back(loops::weights_of(query, key, seen));
        weights.back().resize(L);
        for (std::size_t e = 0; e < value[0].size(); ++e) {
          double sum = 0;
          for (std::size_t j = 0; j < L; ++j) sum += weights.back()[j] * value[j][e];
          out.push_back(sum);
        }
      }
    }
    x = normed_rows(layer.attention_norm, loops::plus(x, projected(*layer.attention.out, joined)));
    x = normed_rows(*layer.feed_forward_norm, loops::plus(x, loops::feed_forward(*layer.feed_forward, x)));
    result.hidden.push_back(x);
  }
  return result;
}

TEST(TextEncoder, AgreesWithLoopsInHiddenStatesAndWeightsOfEveryLayer) {
  const auto model = tiny_encoder();
  const EncodedText<double> text = model(tokens, all_wanted());
  ASSERT_EQ(text.hidden_states.size(), 3u);
  ASSERT_EQ(text.weights.size(), 2u);
  EXPECT_SAME_NUMBERS(text.output, text.hidden_states.back());
  std::vector<ByLoops> expected;
  for (Index b = 0; b < B; ++b) expected.push_back(by_loops(model, b, static_cast<std::size_t>(lengths(b))));
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<Rows> batch;
    for (const ByLoops& one : expected) batch.push_back(one.hidden[i]);
    EXPECT_NEAR_RELATIVE(text.hidden_states[i], loops::batch_of(batch), rounding) << "after layer " << i;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<Rows> batch;
    for (const ByLoops& one : expected) {
      batch.insert(batch.end(), one.weights[i].begin(), one.weights[i].end());
    }
    EXPECT_NEAR_RELATIVE(reshape(text.weights[i], {B * H, L, L}), loops::batch_of(batch), rounding);
  }
}

TEST(TextEncoder, MistakesWouldShowAgainstTheLoops) {
  const auto model = tiny_encoder();
  std::vector<Rows> batch;
  for (Index b = 0; b < B; ++b) {
    batch.push_back(by_loops(model, b, static_cast<std::size_t>(lengths(b))).hidden.back());
  }
  const A right = loops::batch_of(batch);
  const Mask mask = Mask::lengths(lengths);
  auto pre_norm = model, no_segments = model, other_eps = model;
  for (auto& layer : pre_norm.layers) layer.norm_place = NormPlace::before;
  no_segments.segments.reset();
  other_eps.norm.eps = 0.051;
  EXPECT_FALSE(agree(pre_norm(tokens, all_wanted()).output, right, 1e-6));
  EXPECT_FALSE(agree(no_segments(tokens, {.mask = mask}).output, right, 1e-6));
  EXPECT_FALSE(agree(other_eps(tokens, all_wanted()).output, right, 1e-6));
  EXPECT_FALSE(agree(model(tokens, {.mask = mask}).output, right, 1e-6)) << "all of segment 0";
  EXPECT_FALSE(agree(model(tokens, {.segments = segments}).output, right, 1e-6)) << "padding is read";
}

TEST(TextEncoder, HasTheGradientsOfDifferences) {
  auto model = tiny_encoder();
  // Adds the same to every score of a query, and so has no gradient; see below.
  for (auto& layer : model.layers) layer.attention.key.b.reset();
  const V direction = Generator(5).normal<double>({B, M});
  expect_gradients_of_differences(model, [&](const TextEncoder<double>& encoder) {
    return sum(unit_rows(mean_pooled(encoder(tokens, all_wanted()).output, lengths)) * direction);
  });
}

TEST(TextEncoder, BiasOfTheKeysHasNoGradient) {
  Tape<double> tape;
  const auto model = on_tape(tape, tiny_encoder());
  const V y = model(tokens, all_wanted()).output;
  const V loss = sum(y * V(Generator(6).normal<double>(y.shape())));
  for (const auto& layer : model.layers) {
    const auto gradients =
        gradient_values(Vars<double>(loss), {*layer.attention.key.b, *layer.attention.query.b});
    EXPECT_LE(magnitude(gradients[0]), rounding * magnitude(gradients[1]));
  }
}

TEST(TextEncoder, WithoutWishesGivesTheOutputAlone) {
  const auto model = tiny_encoder();
  const EncodedText<double> text = model(tokens);
  EXPECT_TRUE(text.hidden_states.empty());
  EXPECT_TRUE(text.weights.empty());
  EXPECT_EQ(text.output.shape(), Shape({B, L, M}));
  EXPECT_FALSE(text.output.recorded());
}

TEST(TextEncoder, TakesSegmentZeroWhenNoneIsSaid) {
  const auto model = tiny_encoder();
  EXPECT_SAME_NUMBERS(model(tokens).output, model(tokens, {.segments = Array<Index>::zeros({B, L})}).output);
}

TEST(TextEncoder, PaddingHasNoInfluence) {
  const auto model = tiny_encoder();
  Array<Index> other = tokens;
  for (Index b = 0; b < B; ++b) {
    for (Index i = lengths(b); i < L; ++i) other.set({b, i}, (tokens(b, i) + 3) % vocabulary);
  }
  const V one = model(tokens, all_wanted()).output, two = model(other, all_wanted()).output;
  EXPECT_SAME_NUMBERS(mean_pooled(one, lengths), mean_pooled(two, lengths));
  EXPECT_FALSE(same_numbers(mean(one, -2), mean(two, -2)));

  Tape<double> tape;
  auto recorded = model;
  V& table = recorded.embedding.tokens.table;
  table = tape.input(table.value());
  // Token 0 stands in sequence 1 as a word; without that, only as padding.
  other = tokens;
  other.set({1, 1}, 3);
  const V pooled = mean_pooled(recorded(other, all_wanted()).output, lengths);
  const A gradient = gradient_values(sum(pooled * pooled), table)[0];
  for (Index m = 0; m < M; ++m) EXPECT_EQ(gradient(0, m), 0);
  EXPECT_GT(magnitude(gradient), 1e-3);
}

TEST(TextEncoder, OfOneSequenceGivesWhatItGivesInABatch) {
  const auto model = tiny_encoder();
  const A batch = model(tokens, all_wanted()).output.value();
  const auto one = Array<Index>::of({4, 5, 2, 1}), kinds = Array<Index>::of({1, 1, 0, 0});
  const A alone = model(one, {.segments = kinds}).output.value();
  EXPECT_NEAR_RELATIVE(alone, A::from(batch.values().subspan(2 * L * M, 4 * M), {4, M}), rounding);
}

TEST(TextEncoder, PathsOfWhatItReadsAreThoseOfItsLayers) {
  const auto model = tiny_encoder();
  Tape<double> tape;
  const V x = tape.input(model.embedded(tokens, segments).value(), "X");
  std::vector<std::string> labels;
  for (const auto& path : gradient_paths(sum(model.continued(x, all_wanted()).output * x), x)) {
    if (path.name != "direct") labels.push_back(path.label);
  }
  EXPECT_EQ(labels, (std::vector<std::string>{"layer 1/query", "layer 1/key", "layer 1/value",
                                              "layer 2/query", "layer 2/key", "layer 2/value"}));
}

TEST(TextEncoder, RefusesWhatItCannotRead) {
  const auto model = tiny_encoder();
  EXPECT_TRUE(raises<ShapeError>([&] { model(Array<Index>::zeros({2, L + 1})); }, {"longer", "5", "(2, 6)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { model(tokens, {.segments = lengths}); },
                                 {"TextEncoder", "tokens (3, 5)", "segments (3)"}));
  EXPECT_TRUE(raises<DomainError>([&] { model(Array<Index>::of({{0, 7}})); }, {"7"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        model(tokens, {.segments = Array<Index>::full({B, L}, 2)});
      },
      {"2"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        model(tokens, {.mask = Mask::lengths(Array<Index>::of({5, 0, 2}))});
      },
      {"batch 1"}));
  auto without = model;
  without.segments.reset();
  EXPECT_TRUE(raises<ShapeError>([&] { without(tokens, {.segments = segments}); },
                                 {"TextEncoder", "does not tell segments apart"}));
  Generator random(1);
  TextEncoderSizes odd = tiny();
  odd.heads = 4;
  EXPECT_TRUE(raises<ShapeError>([&] { TextEncoder<double>::initial(random, odd); }, {"4 heads", "6"}));
}

// ---- Files of BERT

// Written by hand, not by the table: the names of transformers' BertModel and the shapes of nn.Linear.
using Tensors = std::vector<std::pair<std::string, Shape>>;
Tensors bert_tensors() {
  Tensors list = {{"embeddings.word_embeddings.weight", {vocabulary, M}},
                  {"embeddings.position_embeddings.weight", {L, M}},
                  {"embeddings.token_type_embeddings.weight", {2, M}},
                  {"embeddings.LayerNorm.weight", {M}},
                  {"embeddings.LayerNorm.bias", {M}}};
  for (const std::string layer : {"encoder.layer.0.", "encoder.layer.1."}) {
    for (const std::string part : {"self.query", "self.key", "self.value", "output.dense"}) {
      list.push_back({layer + "attention." + part + ".weight", {M, M}});
      list.push_back({layer + "attention." + part + ".bias", {M}});
    }
    list.push_back({layer + "attention.output.LayerNorm.weight", {M}});
    list.push_back({layer + "attention.output.LayerNorm.bias", {M}});
    list.push_back({layer + "intermediate.dense.weight", {8, M}});
    list.push_back({layer + "intermediate.dense.bias", {8}});
    list.push_back({layer + "output.dense.weight", {M, 8}});
    list.push_back({layer + "output.dense.bias", {M}});
    list.push_back({layer + "output.LayerNorm.weight", {M}});
    list.push_back({layer + "output.LayerNorm.bias", {M}});
  }
  return list;
}

class BertFiles : public FilesTest {
 protected:
  // Tensor number i holds i + 0, i + 1/1000, ...
  SafetensorsFile written(const Tensors& tensors, const std::string& prefix = {}) const {
    SafetensorsWriter writer;
    double number = 0;
    for (const auto& [name, shape] : tensors) {
      A values = A::uninitialized(shape);
      for (Index i = 0; i < shape.size(); ++i) {
        values.mutable_values()[static_cast<std::size_t>(i)] = number + static_cast<double>(i) / 1000;
      }
      number += 1;
      writer.add(prefix + name, values);
    }
    writer.write(path());
    return SafetensorsFile(path());
  }
};

TEST_F(BertFiles, GiveEachParameterItsTensor) {
  const SafetensorsFile file = written(bert_tensors());
  const auto model = read_bert<double>(file, H, 0.05);
  EXPECT_EQ(model.layers.size(), 2u);
  EXPECT_EQ(model.norm.eps, 0.05);
  EXPECT_EQ(std::get<LayerNorm<double>>(*model.layers[1].feed_forward_norm).eps, 0.05);
  EXPECT_EQ(model.layers[1].norm_place, NormPlace::after);
  EXPECT_EQ(model.layers[1].attention.heads, H);
  EXPECT_EQ(model.layers[1].feed_forward->activation, Activation::gelu);

  auto read = [&](const std::string& name) { return file.read<double>(name); };
  EXPECT_SAME_NUMBERS(model.embedding.tokens.table, read("embeddings.word_embeddings.weight"));
  EXPECT_SAME_NUMBERS(model.embedding.positions->table, read("embeddings.position_embeddings.weight"));
  EXPECT_SAME_NUMBERS(model.segments->table, read("embeddings.token_type_embeddings.weight"));
  EXPECT_SAME_NUMBERS(model.norm.gain, read("embeddings.LayerNorm.weight"));
  EXPECT_SAME_NUMBERS(model.norm.bias, read("embeddings.LayerNorm.bias"));
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string name = "encoder.layer." + std::to_string(i) + ".";
    const EncoderLayer<double>& layer = model.layers[i];
    auto expect_linear = [&](const Projection<double>& part, const std::string& linear) {
      EXPECT_SAME_NUMBERS(transpose(part.w), read(name + linear + ".weight"));
      EXPECT_SAME_NUMBERS(*part.b, read(name + linear + ".bias"));
    };
    expect_linear(layer.attention.query, "attention.self.query");
    expect_linear(layer.attention.key, "attention.self.key");
    expect_linear(layer.attention.value, "attention.self.value");
    expect_linear(*layer.attention.out, "attention.output.dense");
    expect_linear(layer.feed_forward->up, "intermediate.dense");
    expect_linear(layer.feed_forward->down, "output.dense");
    auto expect_norm = [&](const Norm<double>& part, const std::string& norm) {
      EXPECT_SAME_NUMBERS(std::get<LayerNorm<double>>(part).gain, read(name + norm + ".weight"));
      EXPECT_SAME_NUMBERS(std::get<LayerNorm<double>>(part).bias, read(name + norm + ".bias"));
    };
    expect_norm(layer.attention_norm, "attention.output.LayerNorm");
    expect_norm(*layer.feed_forward_norm, "output.LayerNorm");
  }
}

TEST_F(BertFiles, AreWrittenAndReadBack) {
  const auto model = tiny_encoder();
  SafetensorsWriter writer;
  add_parameters(writer, model, bert_table(model), "bert.");
  writer.write(path());
  const auto again = read_bert<double>(SafetensorsFile(path()), H, 0.05, "bert.");
  EXPECT_SAME_NUMBERS(again(tokens, all_wanted()).output, model(tokens, all_wanted()).output);
}

TEST_F(BertFiles, MayHoldAPoolerAndPositionsAndLackSegments) {
  Tensors tensors = bert_tensors();
  tensors.push_back({"pooler.dense.weight", {M, M}});
  tensors.push_back({"embeddings.position_ids", {1, L}});
  std::erase_if(tensors, [](const auto& one) { return one.first.find("token_type") != std::string::npos; });
  EXPECT_FALSE(read_bert<double>(written(tensors), H).segments);
}

TEST_F(BertFiles, WithAPrefixMayHoldAnythingBesides) {
  Tensors tensors = bert_tensors();
  for (auto& one : tensors) one.first.insert(0, "bert.");
  tensors.push_back({"classifier.weight", {2, M}});
  const SafetensorsFile file = written(tensors);
  EXPECT_EQ(read_bert<double>(file, H, 1e-12, "bert.").layers.size(), 2u);
  EXPECT_TRUE(
      raises<FileError>([&] { read_bert<double>(file, H); }, {path(), "embeddings.word_embeddings.weight"}));
}

TEST_F(BertFiles, ThatAreNotBertsSayAllThatIsWrongAtOnce) {
  Tensors tensors = bert_tensors();
  std::erase_if(tensors, [](const auto& one) { return one.first == "encoder.layer.1.output.dense.bias"; });
  for (auto& [name, shape] : tensors) {
    if (name == "encoder.layer.0.attention.self.key.weight") shape = {M, M + 1};
    if (name == "embeddings.LayerNorm.bias") shape = {1, M};
  }
  tensors.push_back({"cls.predictions.bias", {vocabulary}});
  EXPECT_TRUE(raises<FileError>(
      [&] { read_bert<double>(written(tensors), H); },
      {path(), "missing: encoder.layer.1.output.dense.bias, expected (6)", "unexpected: cls.predictions.bias",
       "misshapen: encoder.layer.0.attention.self.key.weight, expected (6, 6), found (6, 7)",
       "misshapen: embeddings.LayerNorm.bias, expected (6), found (1, 6)"}));
}

TEST_F(BertFiles, WithAGapBetweenLayersLackThoseOfTheGap) {
  Tensors tensors = bert_tensors();
  for (auto& [name, shape] : tensors) {
    if (name.starts_with("encoder.layer.1.")) name[std::string("encoder.layer.").size()] = '7';
  }
  EXPECT_TRUE(raises<FileError>(
      [&] { read_bert<double>(written(tensors), H); },
      {"missing: encoder.layer.1.output.dense.weight", "unexpected: encoder.layer.7.output.dense.weight"}));
}

TEST_F(BertFiles, WhoseSizesCannotBeToldAreErrors) {
  for (const std::string name :
       {"embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight", "encoder.layer.0.intermediate.dense.weight"}) {
    Tensors tensors = bert_tensors();
    const auto found = std::ranges::find(tensors, name, &Tensors::value_type::first);
    found->second = {4};
    EXPECT_TRUE(raises<FileError>([&] { read_bert<double>(written(tensors), H); }, {path(), name, "(4)"}));
    if (name.find("token_type") != std::string::npos) continue;
    tensors.erase(found);
    EXPECT_TRUE(raises<FileError>([&] { read_bert<double>(written(tensors), H); }, {path(), name}));
  }
  const SafetensorsFile file = written(bert_tensors());
  for (const Index heads : {4, 0, -1}) {
    EXPECT_TRUE(raises<ShapeError>([&] { read_bert<double>(file, heads); },
                                   {"read_bert", std::to_string(heads) + " heads", "6"}));
  }
}

// Sizes that agree with each other and would take 32 TB: nothing of that is allocated before the tensors that
// must have them are seen not to.
TEST_F(BertFiles, ThatClaimHugeSizesAllocateNothing) {
  Tensors tensors = bert_tensors();
  for (auto& [name, shape] : tensors) {
    if (name == "embeddings.word_embeddings.weight") shape = {1, 2'000'000};
    if (name == "encoder.layer.0.intermediate.dense.weight") shape = {2'000'000, 1};
  }
  EXPECT_TRUE(
      raises<FileError>([&] { read_bert<double>(written(tensors), 1); },
                        {"encoder.layer.1.output.dense.weight, expected (2000000, 2000000), found (6, 8)"}));
}

TEST(BertTable, OfWhatBertHasNotIsAnError) {
  auto no_part = tiny_encoder(), no_output = tiny_encoder(), gated = tiny_encoder();
  no_part.layers[1].feed_forward.reset();
  no_output.layers[1].attention.out.reset();
  EXPECT_TRUE(raises<LogicError>([&] { bert_table(no_part); }, {"bert_table", "feed-forward"}));
  EXPECT_TRUE(raises<LogicError>([&] { bert_table(no_output); }, {"bert_table", "output projection"}));
  gated.layers[1].feed_forward->gate = gated.layers[1].feed_forward->up;
  SafetensorsWriter writer;
  EXPECT_TRUE(raises<LogicError>([&] { add_parameters(writer, gated, bert_table(gated)); },
                                 {"leaves out", "layers.1.feed_forward.gate.w"}));
}

// ---- Sentences as vectors

TEST(MeanPooled, IsTheMeanOfTheFirstRowsOfEachSequence) {
  const A x = A::of({{{1, 2}, {3, 8}, {9, 9}}, {{5, 6}, {7, 8}, {9, 16}}});
  EXPECT_SAME_NUMBERS(mean_pooled(V(x), Array<Index>::of({2, 3})), A::of({{2, 5}, {7, 10}}));
  EXPECT_SAME_NUMBERS(mean_pooled(V(x), 1), A::of({{1, 2}, {5, 6}}));
  EXPECT_SAME_NUMBERS(mean_pooled(V(A::of({{1, 2}, {3, 8}})), 2), A::of({2, 5})) << "one sequence";
}

TEST(MeanPooled, OfMoreAxesTakesALengthForEachOfTheFirst) {
  const V x = Generator(1).normal<double>({2, 3, 4, 5});
  const V pooled = mean_pooled(x, Array<Index>::of({2, 4}));
  ASSERT_EQ(pooled.shape(), Shape({2, 3, 5}));
  EXPECT_NEAR_RELATIVE(slice(pooled, 0, {0, 1}), mean(slice(x, {{0, 1}, {}, {0, 2}}), -2), rounding);
  EXPECT_NEAR_RELATIVE(slice(pooled, 0, {1, 2}), mean(slice(x, 0, {1, 2}), -2), rounding);
}

TEST(MeanPooled, DoesNotSeeWhatStandsBehindTheEnd) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  Tape<double> tape;
  const V x = tape.input(A::of({{1, 2}, {3, 8}, {nan, nan}}));
  const V pooled = mean_pooled(x, 2);
  EXPECT_SAME_NUMBERS(pooled, A::of({2, 5}));
  EXPECT_SAME_NUMBERS(gradient_values(sum(pooled), x)[0], A::of({{0.5, 0.5}, {0.5, 0.5}, {0, 0}}));
}

TEST(MeanPooled, HasTheGradientsOfDifferences) {
  EXPECT_GRADIENTS(
      [](const V& x) {
        return mean_pooled(x, Array<Index>::of({1, 3}));
      },
      Generator(2).normal<double>({2, 3, 4}));
}

TEST(MeanPooled, RefusesLengthsThatAreNone) {
  const V x = A::zeros({2, 3, 4});
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        mean_pooled(x, Array<Index>::of({3, 0}));
      },
      {"mean_pooled", "(1)", "is 0", "1 to 3"}));
  EXPECT_TRUE(raises<DomainError>([&] { mean_pooled(x, 4); }, {"is 4"}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        mean_pooled(x, Array<Index>::of({1, 1, 1}));
      },
      {"mean_pooled", "x (2, 3, 4)", "lengths (3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { mean_pooled(V(A::zeros({4})), 1); }, {"mean_pooled", "x (4)"}));
}

TEST(UnitRows, HaveLengthOneAndTheDirectionOfTheirs) {
  EXPECT_NEAR_RELATIVE(unit_rows(V(A::of({{3, 4}, {0, -2}}))), A::of({{0.6, 0.8}, {0, -1}}), 1e-15);
  EXPECT_NEAR_RELATIVE(unit_rows(V(A::of({3, 4}))), A::of({0.6, 0.8}), 1e-15);
}

TEST(UnitRows, HaveTheGradientsOfDifferences) {
  EXPECT_GRADIENTS([](const V& x) { return unit_rows(x); }, Generator(3).normal<double>({2, 3}));
}

TEST(UnitRows, OfARowWithoutADirectionAreAnError) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const char* where = "(0, 1)";
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        unit_rows(V(A::of({{{1, 2}, {0, 0}}})));
      },
      {"unit_rows", where, "0"}));
  EXPECT_TRUE(raises<DomainError>([&] { unit_rows(V(A::of({{{1, 2}, {infinity, 0}}}))); }, {where, "inf"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        unit_rows(V(A::of({{{1, 2}, {infinity - infinity, 0}}})));
      },
      {where, "nan"}));
  EXPECT_TRUE(raises<ShapeError>([&] { unit_rows(V(A::scalar(1))); }, {"unit_rows", "x ()"}));
}

}  // namespace
}  // namespace tapehead
