#include <tapehead/core/errors.h>
#include <tapehead/nn/positions.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/shaping.h>

namespace tapehead {
namespace {

std::string layer_label(std::string_view kind, std::size_t number) {
  return std::string(kind) + " " + std::to_string(number + 1);
}

template <class T>
MultiHeadAttention<T> initial_attention(Generator& random, const TransformerOptions& options, bool rotary) {
  typename MultiHeadAttention<T>::Form form;
  form.key_heads = options.key_heads;
  form.bias = options.bias;
  if (rotary) form.rope = RopeOptions{};
  return MultiHeadAttention<T>::initial(random, options.width, options.heads, form);
}

template <class T>
FeedForward<T> initial_feed_forward(Generator& random, const TransformerOptions& options) {
  return options.swiglu ? FeedForward<T>::initial_swiglu(random, options.width, options.hidden)
                        : FeedForward<T>::initial(random, options.width, options.hidden, options.activation);
}

// Of a stack of layers that leave their sums as they are.
template <class T>
std::optional<Norm<T>> initial_last_norm(const TransformerOptions& options) {
  if (options.norm_place == NormPlace::after) return {};
  return initial_norm<T>(options.norm, options.width);
}

// One part of a layer: x + part(norm(x)), or norm(x + part(x)).
template <class T, class Part>
Var<T> added(const Var<T>& x, const Norm<T>& norm, NormPlace place, Part part) {
  return place == NormPlace::before ? x + part(normed(norm, x)) : normed(norm, x + part(x));
}

}  // namespace

template <std::floating_point T>
Norm<T> initial_norm(NormKind kind, Index width) {
  if (kind == NormKind::rms) return RmsNorm<T>::initial(width);
  return LayerNorm<T>::initial(width);
}

template <std::floating_point T>
EncoderLayer<T> EncoderLayer<T>::initial(Generator& random, const TransformerOptions& options) {
  EncoderLayer layer;
  layer.attention_norm = initial_norm<T>(options.norm, options.width);
  layer.attention = initial_attention<T>(random, options, options.positions == Positions::rotary);
  layer.norm_place = options.norm_place;
  if (options.hidden > 0) {
    layer.feed_forward_norm = initial_norm<T>(options.norm, options.width);
    layer.feed_forward = initial_feed_forward<T>(random, options);
  }
  return layer;
}

template <std::floating_point T>
AttentionResult<T> EncoderLayer<T>::attended(const Var<T>& x, const AttentionOptions<T>& options) const {
  AttentionResult<T> result;
  result.output = added(x, attention_norm, norm_place, [&](const Var<T>& z) {
    result = attention(z, options);
    return result.output;
  });
  return result;
}

template <std::floating_point T>
Var<T> EncoderLayer<T>::fed(const Var<T>& x) const {
  return feed_forward ? added(x, *feed_forward_norm, norm_place, *feed_forward) : x;
}

template <std::floating_point T>
Var<T> EncoderLayer<T>::operator()(const Var<T>& x, const AttentionOptions<T>& options) const {
  return fed(attended(x, options).output);
}

template <std::floating_point T>
Var<T> EncoderLayer<T>::operator()(const Var<T>& x, KeyValueCache<T>& cache,
                                   const AttentionOptions<T>& options) const {
  return fed(added(x, attention_norm, norm_place,
                   [&](const Var<T>& z) { return attention(z, cache, options).output; }));
}

template <std::floating_point T>
DecoderLayer<T> DecoderLayer<T>::initial(Generator& random, const TransformerOptions& options) {
  DecoderLayer layer;
  layer.attention_norm = initial_norm<T>(options.norm, options.width);
  layer.attention = initial_attention<T>(random, options, options.positions == Positions::rotary);
  layer.cross_norm = initial_norm<T>(options.norm, options.width);
  layer.cross = initial_attention<T>(random, options, false);  // positions of two sequences do not compare
  layer.norm_place = options.norm_place;
  if (options.hidden > 0) {
    layer.feed_forward_norm = initial_norm<T>(options.norm, options.width);
    layer.feed_forward = initial_feed_forward<T>(random, options);
  }
  return layer;
}

template <std::floating_point T>
Var<T> DecoderLayer<T>::operator()(const Var<T>& x, const Var<T>& source, const AttentionOptions<T>& options,
                                   const AttentionOptions<T>& cross_options) const {
  const Var<T> attended =
      added(x, attention_norm, norm_place, [&](const Var<T>& z) { return attention(z, options).output; });
  const Var<T> crossed = added(attended, cross_norm, norm_place,
                               [&](const Var<T>& z) { return cross(z, source, cross_options).output; });
  return feed_forward ? added(crossed, *feed_forward_norm, norm_place, *feed_forward) : crossed;
}

template <std::floating_point T>
TokenEmbedding<T> TokenEmbedding<T>::initial(Generator& random, const TransformerOptions& options) {
  TokenEmbedding layer;
  layer.tokens = Embedding<T>::initial(random, options.vocabulary, options.width);
  if (options.positions == Positions::learned) {
    layer.positions = Embedding<T>::initial(random, options.context, options.width);
  }
  layer.sinusoidal = options.positions == Positions::sinusoidal;
  return layer;
}

template <std::floating_point T>
Var<T> TokenEmbedding<T>::operator()(const Array<Index>& input, Index start) const {
  const Var<T> x = tokens(input);
  const Index length = input.dim(-1);
  if (sinusoidal) return x + Var<T>(sinusoidal_positions<T>(length, x.dim(-1), 10000, start));
  if (!positions) return x;
  if (start + length > positions->table.dim(0)) {
    throw ShapeError("TokenEmbedding",
                     "the sequence is longer than the context of " + std::to_string(positions->table.dim(0)),
                     {{"tokens", input.shape()}});
  }
  return x + slice(positions->table, 0, {start, start + length});
}

template <std::floating_point T>
CausalModel<T> CausalModel<T>::initial(Generator& random, const TransformerOptions& options) {
  CausalModel model;
  model.embedding = TokenEmbedding<T>::initial(random, options);
  for (Index i = 0; i < options.layers; ++i) {
    model.layers.push_back(EncoderLayer<T>::initial(random, options));
  }
  model.norm = initial_last_norm<T>(options);
  model.vocabulary = Projection<T>::initial(random, options.width, options.vocabulary);
  return model;
}

template <std::floating_point T>
Var<T> CausalModel<T>::operator()(const Array<Index>& tokens) const {
  return continued(embedding(tokens));
}

template <std::floating_point T>
Var<T> CausalModel<T>::continued(const Var<T>& embedded) const {
  Var<T> x = embedded;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Scope<T> scope(x, layer_label("layer", i));
    x = layers[i](x, {.mask = Mask::causal(0)});
  }
  return vocabulary(norm ? normed(*norm, x) : x);
}

template <std::floating_point T>
Var<T> CausalModel<T>::operator()(const Array<Index>& tokens, std::vector<KeyValueCache<T>>& caches) const {
  if (caches.empty()) caches.resize(layers.size());
  if (caches.size() != layers.size()) {
    throw LogicError("CausalModel", std::to_string(caches.size()) + " caches for " +
                                        std::to_string(layers.size()) + " layers");
  }
  Var<T> x = embedding(tokens, caches.empty() ? 0 : caches.front().length());
  for (std::size_t i = 0; i < layers.size(); ++i) x = layers[i](x, caches[i], {.mask = Mask::causal(0)});
  return vocabulary(norm ? normed(*norm, x) : x);
}

template <std::floating_point T>
EncoderDecoder<T> EncoderDecoder<T>::initial(Generator& random, const TransformerOptions& options) {
  EncoderDecoder model;
  model.source_embedding = TokenEmbedding<T>::initial(random, options);
  model.target_embedding = TokenEmbedding<T>::initial(random, options);
  for (Index i = 0; i < options.layers; ++i) {
    model.encoder.push_back(EncoderLayer<T>::initial(random, options));
    model.decoder.push_back(DecoderLayer<T>::initial(random, options));
  }
  model.encoder_norm = initial_last_norm<T>(options);
  model.decoder_norm = initial_last_norm<T>(options);
  model.vocabulary = Projection<T>::initial(random, options.width, options.vocabulary);
  return model;
}

template <std::floating_point T>
Var<T> EncoderDecoder<T>::encoded(const Array<Index>& source, const Mask& mask) const {
  Var<T> x = source_embedding(source);
  for (std::size_t i = 0; i < encoder.size(); ++i) {
    const Scope<T> scope(x, layer_label("encoder", i));
    x = encoder[i](x, {.mask = mask});
  }
  return encoder_norm ? normed(*encoder_norm, x) : x;
}

template <std::floating_point T>
Var<T> EncoderDecoder<T>::decoded(const Array<Index>& target, const Var<T>& source, const Mask& mask) const {
  Var<T> x = target_embedding(target);
  for (std::size_t i = 0; i < decoder.size(); ++i) {
    const Scope<T> scope(x.recorded() ? x : source, layer_label("decoder", i));
    x = decoder[i](x, source, {.mask = Mask::causal(0)}, {.mask = mask});
  }
  return vocabulary(decoder_norm ? normed(*decoder_norm, x) : x);
}

#define TAPEHEAD_INSTANTIATE(T)                   \
  template Norm<T> initial_norm(NormKind, Index); \
  template struct EncoderLayer<T>;                \
  template struct DecoderLayer<T>;                \
  template struct TokenEmbedding<T>;              \
  template struct CausalModel<T>;                 \
  template struct EncoderDecoder<T>;
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
