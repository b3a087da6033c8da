#include <tapehead/core/errors.h>
#include <tapehead/nn/pytorch_state.h>

namespace tapehead {
namespace {

void require(bool fits, std::string_view module, std::string_view what) {
  if (!fits) throw LogicError("pytorch_table", std::string(module).append(" has ").append(what));
}

constexpr std::string_view attention_module = "nn.MultiheadAttention";
constexpr std::string_view encoder_module = "nn.TransformerEncoderLayer";
constexpr std::string_view decoder_module = "nn.TransformerDecoderLayer";

template <class T>
void require_counterpart(const MultiHeadAttention<T>& layer) {
  require(layer.out.has_value(), attention_module, "an output projection");
  require(layer.key_heads == 0 || layer.key_heads == layer.heads, attention_module,
          "as many heads of keys as of queries");
  require(!layer.norm, attention_module, "no norm of queries and keys");
  require(!layer.rope, attention_module, "no rotary positions");
  const bool bias = layer.query.b.has_value();
  for (const Projection<T>* one : {&layer.key, &layer.value, &*layer.out}) {
    require(one->b.has_value() == bias, attention_module, "a bias for each projection or for none");
  }
  const Index width = layer.query.w.dim(0);
  for (const Projection<T>* one : {&layer.query, &layer.key, &layer.value, &*layer.out}) {
    require(one->w.dim(1) == width, attention_module, "one width for its queries, keys, values and output");
  }
}

// The parts that encoder and decoder layers share, but for the numbers of the norms.
template <class T, class Layer>
StateTable feed_forward_table(std::string_view module, const Layer& layer, std::string_view norm) {
  require(layer.feed_forward && layer.feed_forward_norm, module, "a feed-forward part");
  const FeedForward<T>& part = *layer.feed_forward;
  require(!part.gate, module, "no gate in its feed-forward part");
  require(part.up.b && part.down.b, module, "biases in its feed-forward part");
  require(std::holds_alternative<LayerNorm<T>>(*layer.feed_forward_norm), module, "nn.LayerNorm");
  StateTable table;
  table.nest("linear1.", "feed_forward.up.", pytorch_table(part.up));
  table.nest("linear2.", "feed_forward.down.", pytorch_table(part.down));
  table.nest(norm, "feed_forward_norm.", pytorch_table(*layer.feed_forward_norm));
  return table;
}

}  // namespace

template <std::floating_point T>
StateTable pytorch_table(const Projection<T>& layer) {
  StateTable table;
  table.add_transposed("weight", "w");
  if (layer.b) table.add("bias", "b");
  return table;
}

template <std::floating_point T>
StateTable pytorch_table(const Embedding<T>&) {
  return StateTable().add("weight", "table");
}

template <std::floating_point T>
StateTable pytorch_table(const LayerNorm<T>&) {
  return StateTable().add("weight", "gain").add("bias", "bias");
}

template <std::floating_point T>
StateTable pytorch_table(const RmsNorm<T>&) {
  return StateTable().add("weight", "gain");
}

template <std::floating_point T>
StateTable pytorch_table(const Norm<T>& layer) {
  return std::visit([](const auto& one) { return pytorch_table(one); }, layer);
}

template <std::floating_point T>
StateTable pytorch_table(const MultiHeadAttention<T>& layer) {
  require_counterpart(layer);
  const Index width = layer.query.w.dim(0);
  const bool packed = layer.key.w.dim(0) == width && layer.value.w.dim(0) == width;
  StateTable table;
  table.add_transposed(packed ? "in_proj_weight" : "q_proj_weight", "query.w");
  table.add_transposed(packed ? "in_proj_weight" : "k_proj_weight", "key.w");
  table.add_transposed(packed ? "in_proj_weight" : "v_proj_weight", "value.w");
  if (layer.query.b) {
    for (const char* part : {"query.b", "key.b", "value.b"}) table.add("in_proj_bias", part);
  }
  return table.nest("out_proj.", "out.", pytorch_table(*layer.out));
}

template <std::floating_point T>
StateTable pytorch_table(const EncoderLayer<T>& layer) {
  require(std::holds_alternative<LayerNorm<T>>(layer.attention_norm), encoder_module, "nn.LayerNorm");
  StateTable table;
  table.nest("self_attn.", "attention.", pytorch_table(layer.attention));
  table.nest("norm1.", "attention_norm.", pytorch_table(layer.attention_norm));
  return table.nest("", "", feed_forward_table<T>(encoder_module, layer, "norm2."));
}

template <std::floating_point T>
StateTable pytorch_table(const DecoderLayer<T>& layer) {
  require(std::holds_alternative<LayerNorm<T>>(layer.attention_norm), decoder_module, "nn.LayerNorm");
  require(std::holds_alternative<LayerNorm<T>>(layer.cross_norm), decoder_module, "nn.LayerNorm");
  StateTable table;
  table.nest("self_attn.", "attention.", pytorch_table(layer.attention));
  table.nest("multihead_attn.", "cross.", pytorch_table(layer.cross));
  table.nest("norm1.", "attention_norm.", pytorch_table(layer.attention_norm));
  table.nest("norm2.", "cross_norm.", pytorch_table(layer.cross_norm));
  return table.nest("", "", feed_forward_table<T>(decoder_module, layer, "norm3."));
}

template <std::floating_point T>
StateTable pytorch_table(const EncoderDecoder<T>& model) {
  StateTable table;
  table.nest("encoder.layers.", "encoder.", pytorch_table(model.encoder));
  if (model.encoder_norm) table.nest("encoder.norm.", "encoder_norm.", pytorch_table(*model.encoder_norm));
  table.nest("decoder.layers.", "decoder.", pytorch_table(model.decoder));
  if (model.decoder_norm) table.nest("decoder.norm.", "decoder_norm.", pytorch_table(*model.decoder_norm));
  return table;
}

#define TAPEHEAD_INSTANTIATE(T)                                    \
  template StateTable pytorch_table(const Projection<T>&);         \
  template StateTable pytorch_table(const Embedding<T>&);          \
  template StateTable pytorch_table(const LayerNorm<T>&);          \
  template StateTable pytorch_table(const RmsNorm<T>&);            \
  template StateTable pytorch_table(const Norm<T>&);               \
  template StateTable pytorch_table(const MultiHeadAttention<T>&); \
  template StateTable pytorch_table(const EncoderLayer<T>&);       \
  template StateTable pytorch_table(const DecoderLayer<T>&);       \
  template StateTable pytorch_table(const EncoderDecoder<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
