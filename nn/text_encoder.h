#pragma once
// A text encoder of BERT's form, the names of its published files, and sentences as vectors.

#include <string_view>

#include <tapehead/nn/safetensors.h>
#include <tapehead/nn/state.h>
#include <tapehead/nn/transformer.h>

namespace tapehead {

struct TextEncoderSizes {
  Index vocabulary = 0;
  Index context = 0;   // longest sequence
  Index segments = 0;  // kinds of text in one sequence; 0: they are not told apart
  Index width = 64;
  Index heads = 2;
  Index layers = 2;
  Index hidden = 256;  // of the feed-forward part
  double norm_eps = 1e-12;
};

struct EncodingOptions {
  Mask mask{};                             // which tokens are read; Mask::lengths for padded sequences
  std::optional<Array<Index>> segments{};  // one for each token; without, all are of segment 0

  // What is wanted besides the output.
  bool hidden_states = false, weights = false;
};

template <std::floating_point T>
struct EncodedText {
  Var<T> output;  // (..., L, M)
  // When they were wanted:
  std::vector<Var<T>> hidden_states{};  // what the first layer reads, then what each gives: (..., L, M)
  std::vector<Var<T>> weights{};        // of the attention of each layer (..., H, L, L)
};

// Embeddings of tokens, positions and segments, added and normalized; then layers that read in both
// directions and normalize their sums. Devlin and others, "BERT: Pre-training of deep bidirectional
// transformers for language understanding", 2019, section 3.
template <std::floating_point T>
struct TextEncoder {
  TokenEmbedding<T> embedding;             // tokens (vocabulary, M), positions (context, M)
  std::optional<Embedding<T>> segments{};  // (segments, M)
  LayerNorm<T> norm;
  std::vector<EncoderLayer<T>> layers;

  // The parts drawn as their own `initial` has it. Throws ShapeError when heads do not divide the width.
  static TextEncoder initial(Generator& random, const TextEncoderSizes& sizes);

  // tokens (..., L). What stands at a place that the mask excludes as a key has no influence on other places,
  // and its own output means nothing. Throws ShapeError for more tokens than the context, for segments of
  // another shape than tokens, and for segments where the model has none; DomainError for a token or segment
  // out of range; and as attention does.
  EncodedText<T> operator()(const Array<Index>& tokens, const EncodingOptions& options = {}) const;

  // The two halves: what the first layer reads (..., L, M), and the layers on such an x.
  Var<T> embedded(const Array<Index>& tokens, const std::optional<Array<Index>>& segment_of = {}) const;
  EncodedText<T> continued(const Var<T>& x, const EncodingOptions& options = {}) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("embedding", self.embedding), f("segments", self.segments), f("norm", self.norm);
    f("layers", self.layers);
  }
};

// Where files of BertModel of the library transformers keep the parameters:
// embeddings.word_embeddings.weight, encoder.layer.0.attention.self.query.weight, ... What such a file may
// hold besides, and is not looked at: the pooler, which only predicts whether two sentences follow each
// other, and embeddings.position_ids, the numbers 0, 1, ... Throws LogicError for what BERT has not: a layer
// without output projection or feed-forward part. (A gate is one too many, which load_parameters reports.)
template <std::floating_point T>
StateTable bert_table(const TextEncoder<T>& model);

// The model of such a file, with the sizes of its tensors. The number of heads and the norms' eps are not in
// it; the config.json beside it says them. With a prefix ("bert."), only names that begin with it are looked
// at. Throws FileError when the tensors that tell the sizes are missing or not matrices, and as
// load_parameters does; ShapeError when the heads do not divide the width.
template <std::floating_point T>
TextEncoder<T> read_bert(const SafetensorsFile& file, Index heads, double norm_eps = 1e-12,
                         std::string_view prefix = {});

// Y = mean of x over the first `length` places of each sequence        dX = dY / length there, 0 elsewhere
// x (..., L, M)   lengths one for all, or of the shape of the first axes   Y (..., M)
// What stands behind the end does not matter, NaN included. Throws ShapeError for fewer than two axes and
// lengths of another shape, DomainError for a length that is not 1 to L.
template <std::floating_point T>
Var<T> mean_pooled(const Var<T>& x, const PerSample& lengths);

// Y = x / sqrt(sum of x^2), over the last axis, so that a product of two rows is the cosine between them.
// x and Y (..., M). Throws ShapeError for a scalar, DomainError for a row that has no direction: whose length
// is 0, infinite or not a number.
template <std::floating_point T>
Var<T> unit_rows(const Var<T>& x);

}  // namespace tapehead
