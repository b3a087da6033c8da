#pragma once
// Models: a causal one that continues a sequence, and an encoder-decoder that translates one into another.

#include <vector>

#include <tapehead/nn/layers.h>

namespace tapehead {

struct TransformerSizes {
  Index vocabulary = 0;
  Index context = 0;  // longest sequence
  Index width = 64;
  Index heads = 2;
  Index layers = 2;
  Index hidden = 0;  // of the feed-forward part; 0: there is none
};

// x + attention(norm(x)), then x + feed_forward(norm(x)) when there is one. (..., L, M) to the same.
template <std::floating_point T>
struct SelfAttentionBlock {
  LayerNorm<T> attention_norm;
  SelfAttention<T> attention;
  std::optional<LayerNorm<T>> feed_forward_norm;
  std::optional<FeedForward<T>> feed_forward;

  static SelfAttentionBlock initial(Generator& random, const TransformerSizes& sizes);
  Var<T> operator()(const Var<T>& x, const AttentionOptions<T>& options) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("attention_norm", self.attention_norm), f("attention", self.attention);
    f("feed_forward_norm", self.feed_forward_norm), f("feed_forward", self.feed_forward);
  }
};

// Tokens and positions embedded: (..., L) to (..., L, M).
template <std::floating_point T>
struct TokenEmbedding {
  Var<T> tokens;     // (vocabulary, M), of unit variance
  Var<T> positions;  // (context, M), of unit variance

  static TokenEmbedding initial(Generator& random, const TransformerSizes& sizes);
  Var<T> operator()(const Array<Index>& tokens) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("tokens", self.tokens), f("positions", self.positions);
  }
};

// Reads tokens (..., L) and gives logits (..., L, vocabulary) for what comes next after each.
template <std::floating_point T>
struct CausalModel {
  TokenEmbedding<T> embedding;
  std::vector<SelfAttentionBlock<T>> blocks;
  LayerNorm<T> norm;
  Var<T> w_vocabulary;

  static CausalModel initial(Generator& random, const TransformerSizes& sizes);
  Var<T> operator()(const Array<Index>& tokens) const;
  // The blocks and all behind them, on embedded tokens x (..., L, M).
  Var<T> continued(const Var<T>& x) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("embedding", self.embedding), f("blocks", self.blocks), f("norm", self.norm);
    f("w_vocabulary", self.w_vocabulary);
  }
};

// The decoder's layer: causal self-attention on x, cross-attention from x to the encoded source,
// feed-forward.
template <std::floating_point T>
struct CrossAttentionBlock {
  SelfAttentionBlock<T> self;
  LayerNorm<T> cross_norm;
  CrossAttention<T> cross;

  static CrossAttentionBlock initial(Generator& random, const TransformerSizes& sizes);
  Var<T> operator()(const Var<T>& x, const Var<T>& source) const;

  template <class Self, class F>
  static void fields(Self& self_, F f) {
    f("self", self_.self), f("cross_norm", self_.cross_norm), f("cross", self_.cross);
  }
};

// Reads a source (..., S) and the target so far (..., L); gives logits (..., L, vocabulary) for the next of
// each.
template <std::floating_point T>
struct EncoderDecoder {
  TokenEmbedding<T> source_embedding, target_embedding;
  std::vector<SelfAttentionBlock<T>> encoder;
  LayerNorm<T> encoder_norm;
  std::vector<CrossAttentionBlock<T>> decoder;
  LayerNorm<T> decoder_norm;
  Var<T> w_vocabulary;

  static EncoderDecoder initial(Generator& random, const TransformerSizes& sizes);
  Var<T> encoded(const Array<Index>& source) const;
  Var<T> decoded(const Array<Index>& target, const Var<T>& source) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("source_embedding", self.source_embedding), f("target_embedding", self.target_embedding);
    f("encoder", self.encoder), f("encoder_norm", self.encoder_norm);
    f("decoder", self.decoder), f("decoder_norm", self.decoder_norm);
    f("w_vocabulary", self.w_vocabulary);
  }
};

}  // namespace tapehead
