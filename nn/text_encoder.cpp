#include <tapehead/core/errors.h>
#include <tapehead/nn/file_error.h>
#include <tapehead/nn/pytorch_state.h>
#include <tapehead/nn/text_encoder.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/reduction.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

namespace tapehead {

template <std::floating_point T>
TextEncoder<T> TextEncoder<T>::initial(Generator& random, const TextEncoderSizes& sizes) {
  TransformerOptions layer;
  layer.vocabulary = sizes.vocabulary;
  layer.context = sizes.context;
  layer.width = sizes.width;
  layer.heads = sizes.heads;
  layer.hidden = sizes.hidden;
  layer.bias = true;
  layer.norm_place = NormPlace::after;
  LayerNorm<T> norm = LayerNorm<T>::initial(sizes.width);
  norm.eps = sizes.norm_eps;

  TextEncoder model;
  model.embedding = TokenEmbedding<T>::initial(random, layer);
  if (sizes.segments > 0) model.segments = Embedding<T>::initial(random, sizes.segments, sizes.width);
  model.norm = norm;
  for (Index i = 0; i < sizes.layers; ++i) {
    model.layers.push_back(EncoderLayer<T>::initial(random, layer));
    model.layers.back().attention_norm = norm;
    if (model.layers.back().feed_forward_norm) model.layers.back().feed_forward_norm = norm;
  }
  return model;
}

template <std::floating_point T>
Var<T> TextEncoder<T>::embedded(const Array<Index>& tokens,
                                const std::optional<Array<Index>>& segment_of) const {
  if (segment_of && segment_of->shape() != tokens.shape()) {
    throw ShapeError("TextEncoder", "segments are not one for each token",
                     {{"tokens", tokens.shape()}, {"segments", segment_of->shape()}});
  }
  if (segment_of && !segments) {
    throw ShapeError("TextEncoder", "the model does not tell segments apart",
                     {{"segments", segment_of->shape()}});
  }
  const Var<T> x = embedding(tokens);
  if (!segments) return norm(x);
  return norm(x + (*segments)(segment_of ? *segment_of : Array<Index>::zeros(tokens.shape())));
}

template <std::floating_point T>
EncodedText<T> TextEncoder<T>::continued(const Var<T>& x, const EncodingOptions& options) const {
  EncodedText<T> text{x};
  if (options.hidden_states) text.hidden_states.push_back(x);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Scope<T> scope(text.output, "layer " + std::to_string(i + 1));
    AttentionOptions<T> attention;
    attention.mask = options.mask;
    attention.weights = options.weights;
    const AttentionResult<T> attended = layers[i].attended(text.output, attention);
    text.output = layers[i].fed(attended.output);
    if (options.weights) text.weights.push_back(*attended.weights);
    if (options.hidden_states) text.hidden_states.push_back(text.output);
  }
  return text;
}

template <std::floating_point T>
EncodedText<T> TextEncoder<T>::operator()(const Array<Index>& tokens, const EncodingOptions& options) const {
  return continued(embedded(tokens, options.segments), options);
}

namespace {

template <class T>
StateTable bert_layer_table(const EncoderLayer<T>& layer) {
  if (!layer.attention.out) throw LogicError("bert_table", "a layer has no output projection");
  if (!layer.feed_forward || !layer.feed_forward_norm) {
    throw LogicError("bert_table", "a layer has no feed-forward part");
  }
  StateTable table;
  table.nest("attention.self.query.", "attention.query.", pytorch_table(layer.attention.query));
  table.nest("attention.self.key.", "attention.key.", pytorch_table(layer.attention.key));
  table.nest("attention.self.value.", "attention.value.", pytorch_table(layer.attention.value));
  table.nest("attention.output.dense.", "attention.out.", pytorch_table(*layer.attention.out));
  table.nest("attention.output.LayerNorm.", "attention_norm.", pytorch_table(layer.attention_norm));
  table.nest("intermediate.dense.", "feed_forward.up.", pytorch_table(layer.feed_forward->up));
  table.nest("output.dense.", "feed_forward.down.", pytorch_table(layer.feed_forward->down));
  table.nest("output.LayerNorm.", "feed_forward_norm.", pytorch_table(*layer.feed_forward_norm));
  return table;
}

}  // namespace

template <std::floating_point T>
StateTable bert_table(const TextEncoder<T>& model) {
  StateTable table;
  table.nest("embeddings.word_embeddings.", "embedding.tokens.", pytorch_table(model.embedding.tokens));
  if (const auto& positions = model.embedding.positions) {
    table.nest("embeddings.position_embeddings.", "embedding.positions.", pytorch_table(*positions));
  }
  if (model.segments) {
    table.nest("embeddings.token_type_embeddings.", "segments.", pytorch_table(*model.segments));
  }
  table.nest("embeddings.LayerNorm.", "norm.", pytorch_table(model.norm));
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const std::string number = std::to_string(i) + ".";
    table.nest("encoder.layer." + number, "layers." + number, bert_layer_table(model.layers[i]));
  }
  return table.ignore("pooler.").ignore("embeddings.position_ids");
}

namespace {

const Shape& matrix_shape(const SafetensorsFile& file, const std::string& name) {
  const Shape& shape = file.shape(name);
  if (shape.rank() != 2) throw FileError(file.path(), name, "is no matrix: its shape is " + to_string(shape));
  return shape;
}

// How many different words follow the prefix, up to the next point.
Index count_after(const SafetensorsFile& file, const std::string& prefix) {
  std::set<std::string_view> found;
  for (const std::string& name : file.names()) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    found.insert(rest.substr(0, rest.find('.')));
  }
  return std::ssize(found);
}

TextEncoderSizes bert_sizes(const SafetensorsFile& file, const std::string& prefix) {
  const std::string embeddings = prefix + "embeddings.", layers = prefix + "encoder.layer.";
  const Shape words = matrix_shape(file, embeddings + "word_embeddings.weight");
  TextEncoderSizes sizes;
  sizes.vocabulary = words[0];
  sizes.width = words[1];
  sizes.context = matrix_shape(file, embeddings + "position_embeddings.weight")[0];
  const std::string segments = embeddings + "token_type_embeddings.weight";
  if (file.contains(segments)) sizes.segments = matrix_shape(file, segments)[0];
  sizes.hidden = matrix_shape(file, layers + "0.intermediate.dense.weight")[0];
  sizes.layers = count_after(file, layers);
  return sizes;
}

// A shape alone, to be replaced before an element of it is asked for: the sizes of a file may be any.
template <class T>
Var<T> unread(const Shape& shape) {
  return Array<T>::adopt(nullptr, nullptr, shape);
}
template <class T>
Projection<T> unread_projection(Index in, Index out) {
  return {unread<T>({in, out}), unread<T>({out})};
}

template <class T>
TextEncoder<T> unread_model(const TextEncoderSizes& sizes) {
  const Index width = sizes.width;
  const LayerNorm<T> norm{unread<T>({width}), unread<T>({width}), sizes.norm_eps};
  EncoderLayer<T> layer;
  layer.attention_norm = norm;
  layer.attention.query = layer.attention.key = layer.attention.value = unread_projection<T>(width, width);
  layer.attention.out = unread_projection<T>(width, width);
  layer.attention.heads = sizes.heads;
  layer.feed_forward_norm = norm;
  layer.feed_forward = FeedForward<T>{.up = unread_projection<T>(width, sizes.hidden),
                                      .down = unread_projection<T>(sizes.hidden, width)};
  layer.norm_place = NormPlace::after;

  TextEncoder<T> model;
  model.embedding.tokens = {unread<T>({sizes.vocabulary, width})};
  model.embedding.positions = Embedding<T>{unread<T>({sizes.context, width})};
  if (sizes.segments > 0) model.segments = Embedding<T>{unread<T>({sizes.segments, width})};
  model.norm = norm;
  model.layers.assign(static_cast<std::size_t>(sizes.layers), layer);
  return model;
}

}  // namespace

template <std::floating_point T>
TextEncoder<T> read_bert(const SafetensorsFile& file, Index heads, double norm_eps, std::string_view prefix) {
  TextEncoderSizes sizes = bert_sizes(file, std::string(prefix));
  if (heads < 1 || sizes.width % heads != 0) {
    throw ShapeError("read_bert",
                     std::to_string(heads) + " heads do not divide the width " + std::to_string(sizes.width),
                     {});
  }
  sizes.heads = heads;
  sizes.norm_eps = norm_eps;
  auto model = unread_model<T>(sizes);
  load_parameters(model, file, bert_table(model), prefix);
  return model;
}

template <std::floating_point T>
Var<T> mean_pooled(const Var<T>& x, const PerSample& lengths) {
  const int rank = x.shape().rank();
  if (rank < 2) throw ShapeError("mean_pooled", "needs tokens and their numbers", {{"x", x.shape()}});
  const Shape leading = x.shape().first(rank - 2);
  if (!lengths.fits(leading)) {
    throw ShapeError("mean_pooled", "lengths are not one for each sequence",
                     {{"x", x.shape()}, {"lengths", lengths.values().shape()}});
  }
  const Index most = x.dim(-2);
  auto kept = Array<bool>::full(leading.followed_by({most, 1}), false);
  auto counts = Array<T>::zeros(leading.followed_by({1}));
  for (Index b = 0; b < leading.size(); ++b) {
    const Index length = lengths.of(leading, b);
    if (length < 1 || length > most) {
      throw DomainError("mean_pooled", "the length at " + position_text(leading, b) + " is " +
                                           std::to_string(length) + ", not 1 to " + std::to_string(most));
    }
    counts.mutable_values()[static_cast<std::size_t>(b)] = static_cast<T>(length);
    const auto row = kept.mutable_values().subspan(static_cast<std::size_t>(b * most));
    std::fill_n(row.begin(), length, true);
  }
  return sum(masked_fill(x, kept, 0), -2) / Var<T>(counts);
}

template <std::floating_point T>
Var<T> unit_rows(const Var<T>& x) {
  if (x.shape().rank() < 1) throw ShapeError("unit_rows", "a scalar has no rows", {{"x", x.shape()}});
  const Var<T> lengths = sqrt(sum(x * x, -1, Keep::yes));
  for (Index row = 0; row < lengths.size(); ++row) {
    const T length = lengths.value().data()[row];
    if (length > 0 && std::isfinite(length)) continue;
    throw DomainError("unit_rows", "the row at " + position_text(x.shape().first(x.shape().rank() - 1), row) +
                                       " has the length " + std::to_string(length));
  }
  return x / lengths;
}

#define TAPEHEAD_INSTANTIATE(T)                                                               \
  template struct TextEncoder<T>;                                                             \
  template StateTable bert_table(const TextEncoder<T>&);                                      \
  template TextEncoder<T> read_bert(const SafetensorsFile&, Index, double, std::string_view); \
  template Var<T> mean_pooled(const Var<T>&, const PerSample&);                               \
  template Var<T> unit_rows(const Var<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
