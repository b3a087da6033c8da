#include <tapehead/core/errors.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/shaping.h>

namespace tapehead {
namespace {

std::string layer_label(std::string_view kind, std::size_t number) {
  return std::string(kind) + " " + std::to_string(number + 1);
}

}  // namespace

template <std::floating_point T>
SelfAttentionBlock<T> SelfAttentionBlock<T>::initial(Generator& random, const TransformerSizes& sizes) {
  SelfAttentionBlock block;
  block.attention_norm = LayerNorm<T>::initial(sizes.width);
  block.attention = SelfAttention<T>::initial(random, sizes.width, sizes.heads);
  if (sizes.hidden > 0) {
    block.feed_forward_norm = LayerNorm<T>::initial(sizes.width);
    block.feed_forward = FeedForward<T>::initial(random, sizes.width, sizes.hidden);
  }
  return block;
}

template <std::floating_point T>
Var<T> SelfAttentionBlock<T>::operator()(const Var<T>& x, const AttentionOptions<T>& options) const {
  const Var<T> attended = x + attention(attention_norm(x), options).output;
  return feed_forward ? attended + (*feed_forward)((*feed_forward_norm)(attended)) : attended;
}

template <std::floating_point T>
TokenEmbedding<T> TokenEmbedding<T>::initial(Generator& random, const TransformerSizes& sizes) {
  TokenEmbedding layer;
  layer.tokens = random.normal<T>({sizes.vocabulary, sizes.width});
  layer.positions = random.normal<T>({sizes.context, sizes.width});
  return layer;
}

template <std::floating_point T>
Var<T> TokenEmbedding<T>::operator()(const Array<Index>& input) const {
  const Index length = input.dim(-1);
  if (length > positions.dim(0)) {
    throw ShapeError("TokenEmbedding",
                     "the sequence is longer than the context of " + std::to_string(positions.dim(0)),
                     {{"tokens", input.shape()}});
  }
  return tapehead::embedding(tokens, input) + slice(positions, 0, {0, length});
}

template <std::floating_point T>
CausalModel<T> CausalModel<T>::initial(Generator& random, const TransformerSizes& sizes) {
  CausalModel model;
  model.embedding = TokenEmbedding<T>::initial(random, sizes);
  for (Index i = 0; i < sizes.layers; ++i)
    model.blocks.push_back(SelfAttentionBlock<T>::initial(random, sizes));
  model.norm = LayerNorm<T>::initial(sizes.width);
  model.w_vocabulary = initial_projection<T>(random, sizes.width, sizes.vocabulary);
  return model;
}

template <std::floating_point T>
Var<T> CausalModel<T>::operator()(const Array<Index>& tokens) const {
  return continued(embedding(tokens));
}

template <std::floating_point T>
Var<T> CausalModel<T>::continued(const Var<T>& embedded) const {
  Var<T> x = embedded;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Scope<T> scope(x, layer_label("layer", i));
    x = blocks[i](x, {.mask = Mask::causal(0)});
  }
  return projection(norm(x), w_vocabulary);
}

template <std::floating_point T>
CrossAttentionBlock<T> CrossAttentionBlock<T>::initial(Generator& random, const TransformerSizes& sizes) {
  CrossAttentionBlock block;
  block.self = SelfAttentionBlock<T>::initial(random, sizes);
  block.cross_norm = LayerNorm<T>::initial(sizes.width);
  block.cross = CrossAttention<T>::initial(random, sizes.width, sizes.width, sizes.heads);
  return block;
}

template <std::floating_point T>
Var<T> CrossAttentionBlock<T>::operator()(const Var<T>& x, const Var<T>& source) const {
  const Var<T> attended = x + self.attention(self.attention_norm(x), {.mask = Mask::causal(0)}).output;
  const Var<T> crossed = attended + cross(cross_norm(attended), source).output;
  return self.feed_forward ? crossed + (*self.feed_forward)((*self.feed_forward_norm)(crossed)) : crossed;
}

template <std::floating_point T>
EncoderDecoder<T> EncoderDecoder<T>::initial(Generator& random, const TransformerSizes& sizes) {
  EncoderDecoder model;
  model.source_embedding = TokenEmbedding<T>::initial(random, sizes);
  model.target_embedding = TokenEmbedding<T>::initial(random, sizes);
  for (Index i = 0; i < sizes.layers; ++i) {
    model.encoder.push_back(SelfAttentionBlock<T>::initial(random, sizes));
    model.decoder.push_back(CrossAttentionBlock<T>::initial(random, sizes));
  }
  model.encoder_norm = LayerNorm<T>::initial(sizes.width);
  model.decoder_norm = LayerNorm<T>::initial(sizes.width);
  model.w_vocabulary = initial_projection<T>(random, sizes.width, sizes.vocabulary);
  return model;
}

template <std::floating_point T>
Var<T> EncoderDecoder<T>::encoded(const Array<Index>& source) const {
  Var<T> x = source_embedding(source);
  for (std::size_t i = 0; i < encoder.size(); ++i) {
    const Scope<T> scope(x, layer_label("encoder", i));
    x = encoder[i](x, {});
  }
  return encoder_norm(x);
}

template <std::floating_point T>
Var<T> EncoderDecoder<T>::decoded(const Array<Index>& target, const Var<T>& source) const {
  Var<T> x = target_embedding(target);
  for (std::size_t i = 0; i < decoder.size(); ++i) {
    const Scope<T> scope(x.recorded() ? x : source, layer_label("decoder", i));
    x = decoder[i](x, source);
  }
  return projection(decoder_norm(x), w_vocabulary);
}

#define TAPEHEAD_INSTANTIATE(T)           \
  template struct SelfAttentionBlock<T>;  \
  template struct TokenEmbedding<T>;      \
  template struct CausalModel<T>;         \
  template struct CrossAttentionBlock<T>; \
  template struct EncoderDecoder<T>;
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
