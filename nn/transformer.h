#pragma once
// Models: a causal one that continues a sequence, and an encoder-decoder that translates one into another.

#include <string>
#include <vector>

#include <tapehead/nn/multi_head_attention.h>

namespace tapehead {

// Where a layer normalizes: the input of each part (pre-norm), or the sum of the part and its input
// (post-norm, as Vaswani and others have it). Xiong and others, "On layer normalization in the transformer
// architecture", 2020.
enum class NormPlace { before, after };
enum class NormKind { layer, rms };

// How a model knows where a token stands: rows of a learned table or of sines added to the embedding, or
// queries and keys turned by rotary positions.
enum class Positions { none, learned, sinusoidal, rotary };

struct TransformerOptions {
  Index vocabulary = 0;
  Index context = 0;  // longest sequence; learned positions have a row for each of it
  Index width = 64;
  Index heads = 2;
  Index layers = 2;
  Index hidden = 0;     // of the feed-forward part; 0: there is none
  Index key_heads = 0;  // 0: as many as heads
  bool bias = false;    // of the projections of attention
  bool swiglu = false;
  Activation activation = Activation::gelu;  // without swiglu
  NormKind norm = NormKind::layer;
  NormPlace norm_place = NormPlace::before;
  Positions positions = Positions::learned;
};

template <std::floating_point T>
Norm<T> initial_norm(NormKind kind, Index width);

// Self-attention, then the feed-forward part when there is one, each added to its input. (..., L, M) to the
// same. With a causal mask it is the layer of a decoder-only model.
template <std::floating_point T>
struct EncoderLayer {
  Norm<T> attention_norm;
  MultiHeadAttention<T> attention;
  std::optional<Norm<T>> feed_forward_norm{};
  std::optional<FeedForward<T>> feed_forward{};
  NormPlace norm_place = NormPlace::before;

  static EncoderLayer initial(Generator& random, const TransformerOptions& options);
  Var<T> operator()(const Var<T>& x, const AttentionOptions<T>& options = {}) const;
  // For a block x that continues what is cached.
  Var<T> operator()(const Var<T>& x, KeyValueCache<T>& cache, const AttentionOptions<T>& options) const;

  // The two halves. The first also gives what the attention was asked for.
  AttentionResult<T> attended(const Var<T>& x, const AttentionOptions<T>& options = {}) const;
  Var<T> fed(const Var<T>& x) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("attention_norm", self.attention_norm), f("attention", self.attention);
    f("feed_forward_norm", self.feed_forward_norm), f("feed_forward", self.feed_forward);
  }
};

// Self-attention on x, cross-attention from x to the encoded source, feed-forward, each added to its input.
// x (..., L, M)   source (..., S, M)
template <std::floating_point T>
struct DecoderLayer {
  Norm<T> attention_norm;
  MultiHeadAttention<T> attention;
  Norm<T> cross_norm;
  MultiHeadAttention<T> cross;
  std::optional<Norm<T>> feed_forward_norm{};
  std::optional<FeedForward<T>> feed_forward{};
  NormPlace norm_place = NormPlace::before;

  static DecoderLayer initial(Generator& random, const TransformerOptions& options);
  // `options` are those of the self-attention, `cross_options` those of the cross-attention.
  Var<T> operator()(const Var<T>& x, const Var<T>& source, const AttentionOptions<T>& options,
                    const AttentionOptions<T>& cross_options = {}) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("attention_norm", self.attention_norm), f("attention", self.attention);
    f("cross_norm", self.cross_norm), f("cross", self.cross);
    f("feed_forward_norm", self.feed_forward_norm), f("feed_forward", self.feed_forward);
  }
};

// Tokens embedded, with their positions unless these are rotary: (..., L) to (..., L, M).
template <std::floating_point T>
struct TokenEmbedding {
  Embedding<T> tokens;                      // (vocabulary, M)
  std::optional<Embedding<T>> positions{};  // (context, M), when they are learned
  bool sinusoidal = false;

  static TokenEmbedding initial(Generator& random, const TransformerOptions& options);
  // The first token stands at position `start`. Throws ShapeError for a position beyond learned ones.
  Var<T> operator()(const Array<Index>& tokens, Index start = 0) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("tokens", self.tokens), f("positions", self.positions);
  }
};

// Reads tokens (..., L) and gives logits (..., L, vocabulary) for what comes next after each.
template <std::floating_point T>
struct CausalModel {
  TokenEmbedding<T> embedding;
  std::vector<EncoderLayer<T>> layers;
  std::optional<Norm<T>> norm{};  // there is none when the layers normalize their sums
  Projection<T> vocabulary;

  static CausalModel initial(Generator& random, const TransformerOptions& options);
  Var<T> operator()(const Array<Index>& tokens) const;
  // The layers and all behind them, on embedded tokens x (..., L, M).
  Var<T> continued(const Var<T>& x) const;
  // Logits for tokens that continue those cached, one cache a layer (an empty list is filled): the same
  // numbers as those of the whole sequence, at the cost of the new tokens. Throws LogicError for another
  // number of caches.
  Var<T> operator()(const Array<Index>& tokens, std::vector<KeyValueCache<T>>& caches) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("embedding", self.embedding), f("layers", self.layers), f("norm", self.norm);
    f("vocabulary", self.vocabulary);
  }
};

// Reads a source (..., S) and the target so far (..., L); gives logits (..., L, vocabulary) for the next of
// each.
template <std::floating_point T>
struct EncoderDecoder {
  TokenEmbedding<T> source_embedding, target_embedding;
  std::vector<EncoderLayer<T>> encoder;
  std::optional<Norm<T>> encoder_norm{};
  std::vector<DecoderLayer<T>> decoder;
  std::optional<Norm<T>> decoder_norm{};
  Projection<T> vocabulary;

  static EncoderDecoder initial(Generator& random, const TransformerOptions& options);
  // `mask` says which keys of the source may be seen, and is the same for both.
  Var<T> encoded(const Array<Index>& source, const Mask& mask = {}) const;
  Var<T> decoded(const Array<Index>& target, const Var<T>& source, const Mask& mask = {}) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("source_embedding", self.source_embedding), f("target_embedding", self.target_embedding);
    f("encoder", self.encoder), f("encoder_norm", self.encoder_norm);
    f("decoder", self.decoder), f("decoder_norm", self.decoder_norm);
    f("vocabulary", self.vocabulary);
  }
};

}  // namespace tapehead
