#include <tapehead/nn/pytorch_state.h>

#include <gtest/gtest.h>

#include <algorithm>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/files.h"
#include "support/model_gradients.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Attention = MultiHeadAttention<double>;
using Encoder = EncoderLayer<double>;
using Decoder = DecoderLayer<double>;
using Options = AttentionOptions<double>;

// A few dozen sums of products near 1, in another order than PyTorch's, each rounded to 1.1e-16, and norms
// that magnify by a few; what the golden numbers are to be reproduced to.
constexpr double golden_tolerance = 1e-11;
// By how much a wrong version is to miss them: 1e5 times that, and gelu's two forms are 1e-4 apart.
constexpr double clearly = 1e-6;

SafetensorsFile golden(const std::string& name) {
  return SafetensorsFile(TAPEHEAD_TEST_DATA "/golden/" + name + ".safetensors");
}

// What the case masks. In these files true means blocked.
Options options_of(const SafetensorsFile& file) {
  Options options;
  for (const char* name : {"attn_mask", "src_mask", "tgt_mask", "key_padding_mask"}) {
    if (!file.contains(name)) continue;
    EXPECT_EQ(file.metadata().at("mask_true_means"), "blocked");
    Array<bool> allowed = file.read<bool>(name);
    for (bool& one : allowed.mutable_values()) one = !one;
    const bool of_samples = name == std::string("key_padding_mask");
    if (of_samples) allowed = allowed.reshape({allowed.dim(0), 1, 1, allowed.dim(1)});
    options.mask = Mask::allowed(allowed);
  }
  return options;
}

// ---- The modules of the cases, with parameters of our own: of the right shapes, and of other values

Attention skeleton(const SafetensorsFile& file, Attention*) {
  Generator random(1);
  Attention::Form form;
  form.bias = file.contains("param.in_proj_bias");
  if (file.contains("key")) form.key_width = file.shape("key")[2], form.value_width = file.shape("value")[2];
  return Attention::initial(random, file.shape("query")[2], std::stol(file.metadata().at("heads")), form);
}
TransformerOptions sizes_of(const SafetensorsFile& file) {
  return {.width = file.shape("x")[2],
          .heads = std::stol(file.metadata().at("heads")),
          .hidden = file.shape("param.linear1.weight")[0],
          .bias = true,
          .activation = file.metadata().at("activation") == "relu" ? Activation::relu : Activation::gelu,
          .norm_place = file.metadata().at("norm_first") == "True" ? NormPlace::before : NormPlace::after};
}
Encoder skeleton(const SafetensorsFile& file, Encoder*) {
  Generator random(1);
  return Encoder::initial(random, sizes_of(file));
}
Decoder skeleton(const SafetensorsFile& file, Decoder*) {
  Generator random(1);
  return Decoder::initial(random, sizes_of(file));
}

template <class Layer>
Layer loaded(const SafetensorsFile& file, const std::string& prefix = "param.") {
  Layer layer = skeleton(file, static_cast<Layer*>(nullptr));
  load_parameters(layer, file, pytorch_table(layer), prefix);
  return layer;
}

// ---- Their outputs for the inputs of the case

using Inputs = std::vector<V>;

std::vector<std::string> input_names(const SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const char* name : {"query", "key", "value", "x", "memory"}) {
    if (file.contains(name)) names.emplace_back(name);
  }
  return names;
}
Inputs inputs_of(const SafetensorsFile& file) {
  Inputs inputs;
  for (const std::string& name : input_names(file)) inputs.emplace_back(file.read<double>(name));
  return inputs;
}

AttentionResult<double> attended(const Attention& layer, const Inputs& x, Options options) {
  options.weights = true;
  return x.size() == 1 ? layer(x[0], options) : layer(x[0], x[1], x[2], options);
}
V output_of(const Attention& layer, const Inputs& x, const Options& options) {
  return attended(layer, x, options).output;
}
V output_of(const Encoder& layer, const Inputs& x, const Options& options) { return layer(x[0], options); }
V output_of(const Decoder& layer, const Inputs& x, const Options& options) {
  return layer(x[0], x[1], options);
}

template <class Layer>
testing::AssertionResult has_golden_output(const Layer& layer, const SafetensorsFile& file,
                                           double tolerance = golden_tolerance) {
  return agree(output_of(layer, inputs_of(file), options_of(file)), file.read<double>("output"), tolerance);
}

template <class Layer>
void expect_golden_output_and_gradients(const SafetensorsFile& file) {
  const Layer layer = loaded<Layer>(file);
  Tape<double> tape;
  const Layer recorded = on_tape(tape, layer);
  Inputs all = inputs_of(file);
  for (V& x : all) x = tape.input(x.value());
  const V output = output_of(recorded, all, options_of(file));
  EXPECT_NEAR_RELATIVE(output, file.read<double>("output"), golden_tolerance);

  const std::vector<std::string> names = input_names(file);
  for (const V& parameter : parameters<double>(recorded)) all.push_back(parameter);
  const auto gradients = gradient_values(output, all, V(file.read<double>("upstream")));
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_NEAR_RELATIVE(gradients[i], file.read<double>("grad_" + names[i]), golden_tolerance) << names[i];
  }
  std::size_t i = names.size();
  const auto expected_gradients = loaded<Layer>(file, "grad_param.");
  for_each_parameter(expected_gradients, [&](const std::string& name, const V& expected) {
    // The gradient of a key bias is 0, for it moves all scores of a row alike; what both have is rounding.
    const bool vanishes = name.ends_with("key.b");
    EXPECT_LE(absolute_error(gradients[i], expected.value()),
              golden_tolerance * (vanishes ? 1.0 : magnitude(expected.value())))
        << name;
    EXPECT_EQ(magnitude(expected.value()) > 1e-3, !vanishes) << name;
    ++i;
  });
  EXPECT_EQ(i, gradients.size());
}

const std::vector<std::string> attention_cases = {"mha_self", "mha_self_nobias", "mha_causal_blocked_mask",
                                                  "mha_cross_widths"};
const std::vector<std::string> encoder_cases = {"encoder_layer_pre_relu", "encoder_layer_pre_gelu",
                                                "encoder_layer_post_relu", "encoder_layer_post_gelu"};

class GoldenAttention : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(PyTorch, GoldenAttention, testing::ValuesIn(attention_cases),
                         [](const auto& name) { return name.param; });

TEST_P(GoldenAttention, HasItsOutputAndGradients) {
  expect_golden_output_and_gradients<Attention>(golden(GetParam()));
}

TEST_P(GoldenAttention, HasItsWeights) {
  const SafetensorsFile file = golden(GetParam());
  const auto result = attended(loaded<Attention>(file), inputs_of(file), options_of(file));
  EXPECT_NEAR_RELATIVE(*result.weights, file.read<double>("weights"), golden_tolerance);
}

class GoldenEncoderLayer : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(PyTorch, GoldenEncoderLayer, testing::ValuesIn(encoder_cases),
                         [](const auto& name) { return name.param; });

TEST_P(GoldenEncoderLayer, HasItsOutputAndGradients) {
  expect_golden_output_and_gradients<Encoder>(golden(GetParam()));
}

TEST(GoldenDecoderLayer, HasItsOutputAndGradients) {
  expect_golden_output_and_gradients<Decoder>(golden("decoder_layer_pre"));
}

// ---- Wrong versions do not

TEST_P(GoldenEncoderLayer, WithItsNormsInTheOtherPlaceMisses) {
  const SafetensorsFile file = golden(GetParam());
  Encoder layer = loaded<Encoder>(file);
  layer.norm_place = layer.norm_place == NormPlace::before ? NormPlace::after : NormPlace::before;
  EXPECT_FALSE(has_golden_output(layer, file, clearly));
}

TEST_P(GoldenEncoderLayer, WithAnotherActivationMisses) {
  const SafetensorsFile file = golden(GetParam());
  Encoder layer = loaded<Encoder>(file);
  const Activation right = layer.feed_forward->activation;
  for (const Activation other :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    layer.feed_forward->activation = other;
    EXPECT_EQ(has_golden_output(layer, file, clearly), other == right);
  }
}

TEST(GoldenDecoderLayer, WithItsAttentionsExchangedMisses) {
  const SafetensorsFile file = golden("decoder_layer_pre");
  Decoder layer = loaded<Decoder>(file);
  ASSERT_TRUE(has_golden_output(layer, file));
  const auto cross = layer.cross;
  layer.cross = layer.attention, layer.attention = cross;
  EXPECT_FALSE(has_golden_output(layer, file, clearly));
}

TEST_P(GoldenAttention, SplitIntoOtherHeadsMisses) {
  const SafetensorsFile file = golden(GetParam());
  Attention layer = loaded<Attention>(file);
  layer.heads = 4;
  EXPECT_FALSE(has_golden_output(layer, file, clearly));
}

// Head h of a tiled split takes columns h, h + H, ...
TEST_P(GoldenAttention, SplitIntoTiledHeadsMisses) {
  const SafetensorsFile file = golden(GetParam());
  Attention layer = loaded<Attention>(file);
  auto tiled = [](const V& x) {
    return transpose(x.value().rank() == 1 ? reshape(x, {4, 2}) : reshape(x, {-1, 4, 2}));
  };
  for (Projection<double>* part : {&layer.query, &layer.key, &layer.value}) {
    part->w = reshape(tiled(part->w), part->w.shape());
    if (part->b) part->b = reshape(tiled(*part->b), part->b->shape());
  }
  EXPECT_FALSE(has_golden_output(layer, file, clearly));
}

// Reads the case with a table in which one thing is wrong.
template <class Change>
Attention misread(const SafetensorsFile& file, Change change) {
  Attention layer = loaded<Attention>(file);
  StateTable table = pytorch_table(layer);
  change(table.entries);
  load_parameters(layer, file, table, "param.");
  return layer;
}
using Entries = std::vector<StateEntry>;
StateEntry& entry_of(Entries& entries, const std::string& parameter) {
  return *std::find_if(entries.begin(), entries.end(),
                       [&](const StateEntry& entry) { return entry.parameter == parameter; });
}

TEST_P(GoldenAttention, WithAWeightThatIsNotTransposedMisses) {
  const SafetensorsFile file = golden(GetParam());
  EXPECT_TRUE(has_golden_output(misread(file, [](Entries&) {}), file));
  for (const char* name : {"query.w", "out.w"}) {
    const Attention layer =
        misread(file, [&](Entries& entries) { entry_of(entries, name).transposed = false; });
    EXPECT_FALSE(has_golden_output(layer, file, clearly)) << name;
  }
}

TEST(GoldenAttention, WithThePartsOfAPackedTensorInAnotherOrderMisses) {
  const SafetensorsFile file = golden("mha_self");
  const char* const parts[] = {"query.w", "key.w", "value.w"};
  for (const auto& [one, other] : {std::pair{0, 1}, {1, 2}, {0, 2}}) {
    const Attention layer = misread(file, [&, a = parts[one], b = parts[other]](Entries& entries) {
      std::swap(entry_of(entries, a).parameter, entry_of(entries, b).parameter);
    });
    EXPECT_FALSE(has_golden_output(layer, file, clearly)) << parts[one] << ", " << parts[other];
  }
}

TEST(GoldenAttention, WithAMaskThatIsReadAsAllowedMisses) {
  const SafetensorsFile file = golden("mha_causal_blocked_mask");
  Options options;
  options.empty_rows = EmptyRows::zero;
  options.mask = Mask::allowed(file.read<bool>("attn_mask"));
  EXPECT_FALSE(agree(output_of(loaded<Attention>(file), inputs_of(file), options),
                     file.read<double>("output"), clearly));
}

// ---- Written again, they are what PyTorch wrote

class PytorchFiles : public FilesTest {
 protected:
  template <class Layer>
  void expect_written_as_read(const std::string& name) {
    const SafetensorsFile file = golden(name);
    const Layer layer = loaded<Layer>(file);
    SafetensorsWriter writer;
    add_parameters(writer, layer, pytorch_table(layer), "param.");
    writer.write(path());
    const SafetensorsFile written(path());
    std::size_t count = 0;
    for (const std::string& tensor : file.names()) {
      if (!tensor.starts_with("param.")) continue;
      ASSERT_TRUE(written.contains(tensor)) << tensor;
      EXPECT_TRUE(same_bits(written.read<double>(tensor), file.read<double>(tensor))) << tensor;
      ++count;
    }
    EXPECT_EQ(count, written.names().size());
  }

  template <class Layer>
  void expect_same_bits_when_read_again(const Layer& layer, Layer other) {
    SafetensorsWriter writer;
    add_parameters(writer, layer, pytorch_table(layer));
    writer.write(path());
    load_parameters(other, SafetensorsFile(path()), pytorch_table(other));
    std::vector<V> read = parameters<double>(other);
    std::size_t i = 0;
    for_each_parameter(layer, [&](const std::string& name, const V& parameter) {
      EXPECT_TRUE(same_bits(read[i++].value(), parameter.value())) << name;
    });
  }
  std::vector<std::string> names_in_file() const {
    std::vector<std::string> names = SafetensorsFile(path()).names();
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(PytorchFiles, WrittenByUsHaveTheTensorsOfPyTorchBitForBit) {
  for (const std::string& name : attention_cases) expect_written_as_read<Attention>(name);
  for (const std::string& name : encoder_cases) expect_written_as_read<Encoder>(name);
  expect_written_as_read<Decoder>("decoder_layer_pre");
}

TEST_F(PytorchFiles, OfASingleLayerComeBackBitForBit) {
  Generator random(1), other(2);
  auto check = [&](const auto& layer, auto fresh) {
    expect_same_bits_when_read_again(with_random_parameters(layer, 3), fresh);
  };
  check(Projection<double>::initial(random, 3, 5, true), Projection<double>::initial(other, 3, 5, true));
  EXPECT_EQ(names_in_file(), (std::vector<std::string>{"bias", "weight"}));
  EXPECT_EQ(SafetensorsFile(path()).shape("weight"), Shape({5, 3}));
  check(Projection<double>::initial(random, 3, 5), Projection<double>::initial(other, 3, 5));
  EXPECT_EQ(names_in_file(), std::vector<std::string>{"weight"});
  check(Embedding<double>::initial(random, 7, 3), Embedding<double>::initial(other, 7, 3));
  EXPECT_EQ(SafetensorsFile(path()).shape("weight"), Shape({7, 3}));
  check(LayerNorm<double>::initial(4), LayerNorm<double>::initial(4));
  EXPECT_EQ(names_in_file(), (std::vector<std::string>{"bias", "weight"}));
  check(RmsNorm<double>::initial(4), RmsNorm<double>::initial(4));
  EXPECT_EQ(names_in_file(), std::vector<std::string>{"weight"});
  check(Norm<double>(LayerNorm<double>::initial(4)), Norm<double>(LayerNorm<double>::initial(4)));
}

TransformerOptions small_sizes(NormPlace place = NormPlace::before) {
  return {.vocabulary = 5,
          .context = 4,
          .width = 6,
          .heads = 2,
          .layers = 2,
          .hidden = 7,
          .bias = true,
          .norm_place = place};
}

TEST_F(PytorchFiles, OfAStackOfLayersNumberThem) {
  Generator random(1);
  const std::vector<Encoder> layers = {with_random_parameters(Encoder::initial(random, small_sizes()), 2),
                                       with_random_parameters(Encoder::initial(random, small_sizes()), 3)};
  SafetensorsWriter writer;
  add_parameters(writer, layers, pytorch_table(layers), "layers.");
  writer.write(path());
  std::vector<Encoder> stack = {Encoder::initial(random, small_sizes()),
                                Encoder::initial(random, small_sizes())};
  load_parameters(stack, SafetensorsFile(path()), pytorch_table(stack), "layers.");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    EXPECT_TRUE(same_bits(stack[i].feed_forward->up.w.value(), layers[i].feed_forward->up.w.value()));
  }
  const StateTable table = pytorch_table(layers);
  EXPECT_EQ(table.entries.front().tensor, "0.self_attn.in_proj_weight");
  EXPECT_EQ(table.entries.front().parameter, "0.attention.query.w");
  EXPECT_EQ(table.entries.back().tensor.substr(0, 2), "1.");
  EXPECT_EQ(table.entries.size(), 2 * parameters<double>(layers[0]).size());
}

// An encoder-decoder as a module of nn.Transformer, two embeddings, two of positions and a projection.
StateTable whole_table(const EncoderDecoder<double>& model) {
  StateTable table;
  table.nest("transformer.", "", pytorch_table(model));
  table.nest("source.", "source_embedding.tokens.", pytorch_table(model.source_embedding.tokens));
  table.nest("target.", "target_embedding.tokens.", pytorch_table(model.target_embedding.tokens));
  table.nest("source_at.", "source_embedding.positions.", pytorch_table(*model.source_embedding.positions));
  table.nest("target_at.", "target_embedding.positions.", pytorch_table(*model.target_embedding.positions));
  return table.nest("head.", "vocabulary.", pytorch_table(model.vocabulary));
}

TEST_F(PytorchFiles, OfAWholeTransformerComeBackBitForBit) {
  for (const NormPlace place : {NormPlace::before, NormPlace::after}) {
    Generator random(1);
    const auto model = with_random_parameters(EncoderDecoder<double>::initial(random, small_sizes(place)), 2);
    SafetensorsWriter writer;
    add_parameters(writer, model, whole_table(model), "module.");
    writer.write(path());
    auto other = EncoderDecoder<double>::initial(random, small_sizes(place));
    const SafetensorsFile file(path());
    load_parameters(other, file, whole_table(other), "module.");
    const auto expected = parameters<double>(model), read = parameters<double>(other);
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_TRUE(same_bits(read[i].value(), expected[i].value())) << i;
    }
    EXPECT_EQ(file.shape("module.transformer.decoder.layers.1.multihead_attn.in_proj_weight"),
              Shape({18, 6}));
    EXPECT_EQ(file.shape("module.transformer.encoder.layers.0.linear1.weight"), Shape({7, 6}));
    EXPECT_EQ(file.contains("module.transformer.decoder.norm.weight"), place == NormPlace::before);
  }
}

TEST_F(PytorchFiles, InFloatAreReadAsDoubleAndTheOtherWayRound) {
  Generator random(1);
  const auto layer = EncoderLayer<float>::initial(random, small_sizes());
  SafetensorsWriter writer;
  add_parameters(writer, layer, pytorch_table(layer));
  writer.write(path());
  EXPECT_EQ(SafetensorsFile(path()).type("self_attn.in_proj_weight"), "F32");
  Encoder wide = Encoder::initial(random, small_sizes());
  load_parameters(wide, SafetensorsFile(path()), pytorch_table(wide));
  const auto expected = parameters<float>(layer);
  std::size_t i = 0;
  for_each_parameter(wide, [&](const std::string& name, const V& parameter) {
    EXPECT_TRUE(same_bits(parameter.value().cast<float>(), expected[i++].value())) << name;
  });
}

// ---- What PyTorch's modules have not

template <class Layer, class Change>
void expect_no_table(Layer layer, Change change, std::string_view module, std::string_view what) {
  EXPECT_NO_THROW(pytorch_table(layer));
  change(layer);
  EXPECT_TRUE(raises<LogicError>([&] { pytorch_table(layer); }, {"pytorch_table", module, what}));
}

TEST(PytorchTable, OfAttentionThatPyTorchHasNotIsAnError) {
  Generator random(1);
  const auto layer = Attention::initial(random, 6, 2, {.bias = true});
  constexpr auto module = "nn.MultiheadAttention";
  expect_no_table(
      layer, [](auto& x) { x.out.reset(); }, module, "output projection");
  expect_no_table(
      layer, [](auto& x) { x.key_heads = 1; }, module, "heads of keys");
  expect_no_table(
      layer, [](auto& x) { x.rope = RopeOptions{}; }, module, "rotary");
  expect_no_table(
      layer,
      [](auto& x) {
        x.norm = QueryKeyNorm<double>{A::ones({3}), A::ones({3})};
      },
      module, "norm");
  expect_no_table(
      layer, [](auto& x) { x.key.b.reset(); }, module, "bias");
  expect_no_table(
      layer,
      [](auto& x) {
        x.value.w = A::ones({6, 8});
      },
      module, "width");
}

TEST(PytorchTable, OfALayerThatPyTorchHasNotIsAnError) {
  Generator random(1);
  const auto encoder = Encoder::initial(random, small_sizes());
  constexpr auto module = "nn.TransformerEncoderLayer";
  expect_no_table(
      encoder, [](auto& x) { x.feed_forward.reset(); }, module, "feed-forward");
  expect_no_table(
      encoder, [](auto& x) { x.feed_forward->gate = x.feed_forward->up; }, module, "gate");
  expect_no_table(
      encoder, [](auto& x) { x.feed_forward->up.b.reset(); }, module, "biases");
  expect_no_table(
      encoder, [](auto& x) { x.attention_norm = RmsNorm<double>::initial(6); }, module, "nn.LayerNorm");
  expect_no_table(
      encoder, [](auto& x) { x.feed_forward_norm = Norm<double>(RmsNorm<double>::initial(6)); }, module,
      "nn.LayerNorm");
  const auto decoder = Decoder::initial(random, small_sizes());
  expect_no_table(
      decoder, [](auto& x) { x.cross_norm = RmsNorm<double>::initial(6); }, "nn.TransformerDecoderLayer",
      "nn.LayerNorm");
  expect_no_table(
      decoder, [](auto& x) { x.cross.out.reset(); }, "nn.MultiheadAttention", "output");
}

TEST(PytorchTable, OfKeysAndValuesOfOtherWidthsHasThreeWeightsAndOneBias) {
  Generator random(1);
  const auto layer = Attention::initial(random, 6, 2, {.key_width = 4, .bias = true});
  std::vector<std::string> tensors;
  for (const StateEntry& entry : pytorch_table(layer).entries) tensors.push_back(entry.tensor);
  EXPECT_EQ(tensors,
            (std::vector<std::string>{"q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias",
                                      "in_proj_bias", "in_proj_bias", "out_proj.weight", "out_proj.bias"}));
}

TEST_F(PytorchFiles, OfAnotherFormThanTheModelSayAllThatIsWrongAtOnce) {
  Attention layer = loaded<Attention>(golden("mha_cross_widths"));
  const auto before = parameters<double>(layer);
  const SafetensorsFile file = golden("mha_self_nobias");
  EXPECT_TRUE(raises<FileError>(
      [&] { load_parameters(layer, file, pytorch_table(layer), "param."); },
      {"mha_self_nobias.safetensors", "missing: param.q_proj_weight, expected (8, 8)",
       "missing: param.k_proj_weight, expected (8, 5)", "missing: param.v_proj_weight, expected (8, 6)",
       "missing: param.in_proj_bias, expected (24)", "missing: param.out_proj.bias, expected (8)",
       "unexpected: param.in_proj_weight, found (24, 8)"}));
  const auto after = parameters<double>(layer);
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(after[i].value().shares_storage_with(before[i].value()));
  }
}

}  // namespace
}  // namespace tapehead
