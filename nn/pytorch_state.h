#pragma once
// Where state files of PyTorch's modules keep the parameters of our layers.

#include <optional>
#include <string>
#include <vector>

#include <tapehead/nn/state.h>
#include <tapehead/nn/transformer.h>

namespace tapehead {

// nn.Linear, nn.Embedding, nn.LayerNorm and nn.RMSNorm: weight, and bias where the layer has one. The weight
// of a Linear is (out, in), transposed to (in, out).
template <std::floating_point T>
StateTable pytorch_table(const Projection<T>& layer);
template <std::floating_point T>
StateTable pytorch_table(const Embedding<T>& layer);
template <std::floating_point T>
StateTable pytorch_table(const LayerNorm<T>& layer);
template <std::floating_point T>
StateTable pytorch_table(const RmsNorm<T>& layer);
template <std::floating_point T>
StateTable pytorch_table(const Norm<T>& layer);

// nn.MultiheadAttention: in_proj_weight (3 M, M) of query, key and value, or q_proj_weight, k_proj_weight and
// v_proj_weight when keys and values come from sources of other widths; in_proj_bias (3 M); out_proj. Throws
// LogicError for what that module has not: no output projection, a bias for some projections only, grouped
// heads, another width than M within, norm and rotary positions.
template <std::floating_point T>
StateTable pytorch_table(const MultiHeadAttention<T>& layer);

// nn.TransformerEncoderLayer: self_attn, linear1, linear2, norm1, norm2; and nn.TransformerDecoderLayer:
// self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3. Whether norms come first, and which
// activation there is, no file says. Throws LogicError for what these have not: no feed-forward part, one
// with a gate or without biases, RMS norms, and as for MultiHeadAttention.
template <std::floating_point T>
StateTable pytorch_table(const EncoderLayer<T>& layer);
template <std::floating_point T>
StateTable pytorch_table(const DecoderLayer<T>& layer);

// nn.ModuleList: the layers as 0, 1, ...
template <class Layer>
StateTable pytorch_table(const std::vector<Layer>& layers) {
  StateTable table;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string number = std::to_string(i) + ".";
    table.nest(number, number, pytorch_table(layers[i]));
  }
  return table;
}

// nn.Transformer, that is encoder.layers, encoder.norm, decoder.layers and decoder.norm (each the names of
// nn.TransformerEncoder and nn.TransformerDecoder). It has no embeddings and no projection to the vocabulary:
// to be added under the names that the module around it gives them.
template <std::floating_point T>
StateTable pytorch_table(const EncoderDecoder<T>& model);

}  // namespace tapehead
