#pragma once
// Layers as plain loops over the rows of one sequence, in double: what the layers and models of nn/ are held
// to. They read the parameters of a layer and share no op with it.

#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include <tapehead/nn/transformer.h>

namespace tapehead::loops {

using Rows = std::vector<std::vector<double>>;

inline Rows rows_of(const Array<double>& matrix) {
  Rows rows;
  for (Index i = 0; i < matrix.dim(0); ++i) {
    std::vector<double>& row = rows.emplace_back();
    for (Index j = 0; j < matrix.dim(1); ++j) row.push_back(matrix(i, j));
  }
  return rows;
}

// Sequence b of a batch (B, L, M).
inline Rows rows_of(const Array<double>& batch, Index b) {
  const Index size = batch.dim(1) * batch.dim(2);
  const auto one = batch.values().subspan(static_cast<std::size_t>(b * size), static_cast<std::size_t>(size));
  return rows_of(Array<double>::from(one, {batch.dim(1), batch.dim(2)}));
}

// Sequences of one length as a batch (B, L, M).
inline Array<double> batch_of(const std::vector<Rows>& sequences) {
  std::vector<double> numbers;
  for (const Rows& sequence : sequences) {
    for (const auto& row : sequence) numbers.insert(numbers.end(), row.begin(), row.end());
  }
  const Rows& first = sequences.front();
  return Array<double>::from(
      numbers, {std::ssize(sequences), std::ssize(first), first.empty() ? 0 : std::ssize(first.front())});
}

inline Rows plus(Rows x, const Rows& y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x[i].size(); ++j) x[i][j] += y[i][j];
  }
  return x;
}

// X times `count` columns of w, beginning with `from`.
inline Rows times(const Rows& x, const Array<double>& w, Index from, Index count) {
  Rows y;
  for (const auto& row : x) {
    std::vector<double>& out = y.emplace_back();
    for (Index j = from; j < from + count; ++j) {
      double sum = 0;
      for (Index i = 0; i < w.dim(0); ++i) sum += row[static_cast<std::size_t>(i)] * w(i, j);
      out.push_back(sum);
    }
  }
  return y;
}
inline Rows times(const Rows& x, const Array<double>& w) { return times(x, w, 0, w.dim(1)); }

inline Rows plus_bias(Rows x, const Array<double>& b) {
  for (auto& row : x) {
    for (std::size_t j = 0; j < row.size(); ++j) row[j] += b(static_cast<Index>(j));
  }
  return x;
}

// x w + b.
inline Rows projected(const Projection<double>& layer, const Rows& x) {
  const Rows y = times(x, layer.w.value());
  return layer.b ? plus_bias(y, layer.b->value()) : y;
}

// The columns of one head.
inline Rows columns(const Rows& x, Index from, Index count) {
  Rows part;
  for (const auto& row : x) part.emplace_back(row.begin() + from, row.begin() + from + count);
  return part;
}

// Which keys a query sees.
using Seen = std::function<bool(std::size_t query, std::size_t key)>;
inline const Seen everything = [](std::size_t, std::size_t) { return true; };
inline const Seen no_later_key = [](std::size_t i, std::size_t j) { return j <= i; };

// exp(q k / sqrt(D)) over their sum, of the keys that query i may see, and 0 of the others.
inline std::vector<double> weights_of(const std::vector<double>& q, const Rows& key, std::size_t i,
                                      const Seen& seen) {
  std::vector<double> weights(key.size());
  double sum = 0;
  for (std::size_t j = 0; j < key.size(); ++j) {
    if (!seen(i, j)) continue;
    double score = 0;
    for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * key[j][d];
    sum += weights[j] = std::exp(score / std::sqrt(static_cast<double>(q.size())));
  }
  for (double& w : weights) w /= sum;
  return weights;
}

// Of the first `count` keys, all of which the query sees.
inline std::vector<double> weights_of(const std::vector<double>& q, const Rows& key, std::size_t count) {
  return weights_of(q, Rows(key.begin(), key.begin() + static_cast<Index>(count)), 0, everything);
}

// x / sqrt(mean x^2 + eps), times the gain.
inline Rows rms_norm(Rows x, const Array<double>& gain, double eps) {
  for (auto& row : x) {
    double square = 0;
    for (const double v : row) square += v * v / static_cast<double>(row.size());
    for (std::size_t j = 0; j < row.size(); ++j) {
      row[j] *= gain(static_cast<Index>(j)) / std::sqrt(square + eps);
    }
  }
  return x;
}

// Numbers i and i + D / 2 of row l turned by the angle l base^(-2 i / D).
inline Rows turned(Rows x, double base) {
  for (std::size_t l = 0; l < x.size(); ++l) {
    const std::size_t half = x[l].size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(l) *
                           std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(2 * half));
      const double first = x[l][i], second = x[l][i + half];
      x[l][i] = first * std::cos(angle) - second * std::sin(angle);
      x[l][i + half] = first * std::sin(angle) + second * std::cos(angle);
    }
  }
  return x;
}

// Head by head, each with its own columns of the projections; query head h reads key head h / (H / Hk).
inline Rows attention(const MultiHeadAttention<double>& layer, const Rows& x, const Rows& key_source,
                      const Rows& value_source, const Seen& seen) {
  const Index H = layer.heads, Hk = layer.key_heads > 0 ? layer.key_heads : H;
  const Index D = layer.query.w.dim(1) / H, E = layer.value.w.dim(1) / Hk;
  Rows joined(x.size());
  for (Index h = 0; h < H; ++h) {
    const Index g = h / (H / Hk);
    Rows query = columns(projected(layer.query, x), h * D, D);
    Rows key = columns(projected(layer.key, key_source), g * D, D);
    const Rows value = columns(projected(layer.value, value_source), g * E, E);
    if (layer.norm) {
      query = rms_norm(query, layer.norm->query_gain.value(), layer.norm->eps);
      key = rms_norm(key, layer.norm->key_gain.value(), layer.norm->eps);
    }
    if (layer.rope) query = turned(query, layer.rope->base), key = turned(key, layer.rope->base);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::vector<double> weights = weights_of(query[i], key, i, seen);
      std::vector<double> output(static_cast<std::size_t>(E));
      for (std::size_t j = 0; j < weights.size(); ++j) {
        for (std::size_t e = 0; e < output.size(); ++e) output[e] += weights[j] * value[j][e];
      }
      joined[i].insert(joined[i].end(), output.begin(), output.end());
    }
  }
  return layer.out ? projected(*layer.out, joined) : joined;
}
inline Rows attention(const MultiHeadAttention<double>& layer, const Rows& x, const Rows& source,
                      bool causal) {
  return attention(layer, x, source, source, causal ? no_later_key : everything);
}

inline Rows layer_norm(const LayerNorm<double>& layer, Rows x) {
  for (auto& row : x) {
    const auto n = static_cast<double>(row.size());
    double mean = 0, variance = 0;
    for (const double v : row) mean += v / n;
    for (const double v : row) variance += (v - mean) * (v - mean) / n;
    for (std::size_t j = 0; j < row.size(); ++j) {
      const auto column = static_cast<Index>(j);
      const double u = (row[j] - mean) / std::sqrt(variance + layer.eps);
      row[j] = u * layer.gain.value()(column) + layer.bias.value()(column);
    }
  }
  return x;
}

inline Rows normed(const Norm<double>& norm, const Rows& x) {
  if (const auto* rms = std::get_if<RmsNorm<double>>(&norm)) return rms_norm(x, rms->gain.value(), rms->eps);
  return layer_norm(std::get<LayerNorm<double>>(norm), x);
}

inline double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return x * 0.5 * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_tanh:
      return x * 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return NAN;
}

inline Rows feed_forward(const FeedForward<double>& layer, const Rows& x) {
  Rows hidden = projected(layer.up, x);
  const Rows open = layer.gate ? projected(*layer.gate, x) : Rows();
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    for (std::size_t j = 0; j < hidden[i].size(); ++j) {
      double& v = hidden[i][j];
      v = layer.gate ? activated(layer.activation, open[i][j]) * v : activated(layer.activation, v);
    }
  }
  return projected(layer.down, hidden);
}

// ---- Transformers

// The part of a layer and its input added, and a norm ahead of the part or behind the sum.
template <class Part>
Rows added(const Rows& x, const Norm<double>& norm, NormPlace place, Part part) {
  return place == NormPlace::before ? plus(x, part(normed(norm, x))) : normed(norm, plus(x, part(x)));
}

template <class Layer>
Rows fed(const Layer& layer, const Rows& x) {
  if (!layer.feed_forward) return x;
  return added(x, *layer.feed_forward_norm, layer.norm_place,
               [&](const Rows& z) { return feed_forward(*layer.feed_forward, z); });
}

inline Rows encoder_layer(const EncoderLayer<double>& layer, const Rows& x, const Seen& seen) {
  return fed(layer, added(x, layer.attention_norm, layer.norm_place,
                          [&](const Rows& z) { return attention(layer.attention, z, z, z, seen); }));
}

// Causal towards itself.
inline Rows decoder_layer(const DecoderLayer<double>& layer, const Rows& x, const Rows& source,
                          const Seen& seen) {
  const Rows attended = added(x, layer.attention_norm, layer.norm_place, [&](const Rows& z) {
    return attention(layer.attention, z, z, z, no_later_key);
  });
  return fed(layer, added(attended, layer.cross_norm, layer.norm_place,
                          [&](const Rows& z) { return attention(layer.cross, z, source, source, seen); }));
}

inline Rows embedded(const TokenEmbedding<double>& layer, const Array<Index>& tokens, Index b) {
  Rows x;
  for (Index i = 0; i < tokens.dim(1); ++i) {
    std::vector<double>& row = x.emplace_back();
    const Index width = layer.tokens.table.dim(1);
    for (Index m = 0; m < width; ++m) {
      double v = layer.tokens.table.value()(tokens(b, i), m);
      if (layer.positions) v += layer.positions->table.value()(i, m);
      if (layer.sinusoidal) {
        const double angle = static_cast<double>(i) *
                             std::pow(10000.0, -static_cast<double>(m - m % 2) / static_cast<double>(width));
        v += m % 2 == 0 ? std::sin(angle) : std::cos(angle);
      }
      row.push_back(v);
    }
  }
  return x;
}

}  // namespace tapehead::loops
