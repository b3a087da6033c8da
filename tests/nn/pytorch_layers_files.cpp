// Writes layers under PyTorch's names, each with inputs and what it gives for them, for
// pytorch_layers_files_test.py:
//   pytorch_layers_files FOLDER
// A file a layer: its parameters as state.NAME, tensors of the call, and what the module is to be made with
// as metadata. Parameters are random, so that no gain is 1 and no bias 0.

#include <iostream>
#include <map>
#include <string>

#include <tapehead/nn/pytorch_state.h>

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Arguments = std::map<std::string, std::string>;

constexpr Index B = 2, L = 4, S = 5, M = 8, heads = 2, hidden = 12;

template <class Layer>
Layer random_parameters(Layer layer) {
  Generator random(7);
  for_each_parameter(layer, [&](const std::string&, V& parameter) {
    parameter = random.normal<double>(parameter.shape(), 0.2, 0.5);
  });
  return layer;
}

class Case {
 public:
  template <class Layer>
  Case(const std::string& module, const Layer& layer, const Arguments& arguments) {
    file_.metadata("module", module);
    for (const auto& [name, value] : arguments) file_.metadata(name, value);
    add_parameters(file_, layer, pytorch_table(layer), "state.");
  }
  template <class T>
  Case& with(const std::string& name, const Array<T>& tensor) {
    file_.add(name, tensor);
    return *this;
  }
  void write(const std::string& folder, const std::string& name, const V& output) {
    file_.add("output", output.value()).write(folder + "/" + name + ".safetensors");
  }

 private:
  SafetensorsWriter file_;
};

A random_array(std::uint64_t seed, const Shape& shape) { return Generator(seed).normal<double>(shape); }

Array<bool> padding() { return Array<bool>::of({{1, 1, 1, 1, 1}, {1, 1, 1, 0, 0}}); }

void write_small_layers(const std::string& folder) {
  Generator random(1);
  const A x = random_array(2, {B, L, M});
  for (const bool bias : {true, false}) {
    const auto layer = random_parameters(Projection<double>::initial(random, M, 5, bias));
    Case("Linear", layer, {{"bias", bias ? "1" : "0"}, {"in", "8"}, {"out", "5"}})
        .with("x", x)
        .write(folder, bias ? "linear" : "linear_nobias", layer(x));
  }
  const auto table = random_parameters(Embedding<double>::initial(random, 7, M));
  const auto tokens = Array<Index>::of({{0, 6, 3, 3}, {1, 2, 5, 4}});
  Case("Embedding", table, {{"count", "7"}, {"width", "8"}})
      .with("x", tokens)
      .write(folder, "embedding", table(tokens));
  const auto norm = random_parameters(LayerNorm<double>::initial(M));
  Case("LayerNorm", norm, {{"width", "8"}}).with("x", x).write(folder, "layer_norm", norm(x));
  const auto rms = random_parameters(RmsNorm<double>::initial(M));
  Case("RMSNorm", rms, {{"width", "8"}}).with("x", x).write(folder, "rms_norm", rms(x));
}

void write_attention(const std::string& folder, const std::string& name, Index key_width, Index value_width,
                     bool bias) {
  Generator random(1);
  const auto layer = random_parameters(MultiHeadAttention<double>::initial(
      random, M, heads, {.key_width = key_width, .value_width = value_width, .bias = bias}));
  const A x = random_array(2, {B, L, M}), key = random_array(3, {B, S, key_width}),
          value = random_array(4, {B, S, value_width});
  AttentionOptions<double> options;
  options.mask = Mask::allowed(padding().reshape({B, 1, 1, S}));
  Case("MultiheadAttention", layer,
       {{"width", "8"},
        {"heads", "2"},
        {"kdim", std::to_string(key_width)},
        {"vdim", std::to_string(value_width)},
        {"bias", bias ? "1" : "0"}})
      .with("x", x)
      .with("key", key)
      .with("value", value)
      .with("seen", padding())
      .write(folder, name, layer(x, key, value, options).output);
}

TransformerOptions sizes(NormPlace place, Activation activation) {
  return {.vocabulary = 3,
          .context = S,
          .width = M,
          .heads = heads,
          .layers = 2,
          .hidden = hidden,
          .bias = true,
          .activation = activation,
          .norm_place = place};
}
Arguments arguments(NormPlace place, Activation activation) {
  return {{"width", std::to_string(M)},
          {"heads", std::to_string(heads)},
          {"hidden", std::to_string(hidden)},
          {"norm_first", place == NormPlace::before ? "1" : "0"},
          {"activation", activation == Activation::relu ? "relu" : "gelu"}};
}

void write_layers(const std::string& folder, NormPlace place, Activation activation,
                  const std::string& name) {
  Generator random(1);
  const A x = random_array(2, {B, L, M}), memory = random_array(3, {B, S, M});
  const auto form = sizes(place, activation);
  const auto arguments_of = arguments(place, activation);
  AttentionOptions<double> causal, seen;
  causal.mask = Mask::causal(0);
  seen.mask = Mask::allowed(padding().reshape({B, 1, 1, S}));

  const auto encoder = random_parameters(EncoderLayer<double>::initial(random, form));
  Case("TransformerEncoderLayer", encoder, arguments_of)
      .with("memory", memory)
      .with("seen", padding())
      .write(folder, "encoder_layer_" + name, encoder(memory, seen));
  const auto decoder = random_parameters(DecoderLayer<double>::initial(random, form));
  Case("TransformerDecoderLayer", decoder, arguments_of)
      .with("x", x)
      .with("memory", memory)
      .with("seen", padding())
      .write(folder, "decoder_layer_" + name, decoder(x, memory, causal, seen));
}

// The stacks of an encoder-decoder alone, as nn.Transformer has them; it always has the last norms.
struct Stacks {
  std::vector<EncoderLayer<double>> encoder;
  Norm<double> encoder_norm;
  std::vector<DecoderLayer<double>> decoder;
  Norm<double> decoder_norm;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("encoder", self.encoder), f("encoder_norm", self.encoder_norm);
    f("decoder", self.decoder), f("decoder_norm", self.decoder_norm);
  }
  V operator()(const V& source, const V& target, const Mask& mask) const {
    V read = source, x = target;
    for (const auto& layer : encoder) read = layer(read, {.mask = mask});
    read = normed(encoder_norm, read);
    for (const auto& layer : decoder) x = layer(x, read, {.mask = Mask::causal(0)}, {.mask = mask});
    return normed(decoder_norm, x);
  }
};
StateTable pytorch_table(const Stacks& model) {
  EncoderDecoder<double> whole;
  whole.encoder = model.encoder, whole.encoder_norm = model.encoder_norm;
  whole.decoder = model.decoder, whole.decoder_norm = model.decoder_norm;
  return tapehead::pytorch_table(whole);
}

void write_transformer(const std::string& folder, NormPlace place, const std::string& name) {
  Generator random(1);
  const auto form = sizes(place, Activation::relu);
  Stacks model;
  for (int i = 0; i < 2; ++i) {
    model.encoder.push_back(EncoderLayer<double>::initial(random, form));
    model.decoder.push_back(DecoderLayer<double>::initial(random, form));
  }
  model.encoder_norm = model.decoder_norm = LayerNorm<double>::initial(M);
  model = random_parameters(model);
  const A source = random_array(2, {B, S, M}), target = random_array(3, {B, L, M});
  Case("Transformer", model, arguments(place, Activation::relu))
      .with("memory", source)
      .with("x", target)
      .with("seen", padding())
      .write(folder, name, model(source, target, Mask::allowed(padding().reshape({B, 1, 1, S}))));
}

void write_all(const std::string& folder) {
  write_small_layers(folder);
  write_attention(folder, "attention", M, M, true);
  write_attention(folder, "attention_nobias", M, M, false);
  write_attention(folder, "attention_widths", 3, 6, true);
  write_attention(folder, "attention_value_width", M, 6, false);
  write_layers(folder, NormPlace::before, Activation::gelu, "pre_gelu");
  write_layers(folder, NormPlace::after, Activation::relu, "post_relu");
  write_transformer(folder, NormPlace::before, "transformer_pre");
  write_transformer(folder, NormPlace::after, "transformer_post");
}

}  // namespace
}  // namespace tapehead

int main(int count, char** values) {
  try {
    if (count != 2) throw std::runtime_error("usage: pytorch_layers_files FOLDER");
    tapehead::write_all(values[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
