#pragma once
// Layers as plain loops over the rows of one sequence, in double: what the layers and models of nn/ are held
// to. They read the parameters of a layer and share no op with it.

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <tapehead/nn/layers.h>

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

// exp(q k / sqrt(D)) over their sum, of the keys that the query may see.
inline std::vector<double> weights_of(const std::vector<double>& q, const Rows& key, std::size_t seen) {
  std::vector<double> weights;
  for (std::size_t j = 0; j < seen; ++j) {
    double score = 0;
    for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * key[j][d];
    weights.push_back(score / std::sqrt(static_cast<double>(q.size())));
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - largest);
  for (double& w : weights) w /= sum;
  return weights;
}

// Head by head, each with its own columns of the projections. SelfAttention reads x and x, CrossAttention x
// and y.
template <class Layer>
Rows attention(const Layer& layer, const Rows& x, const Rows& y, bool causal) {
  const Index D = layer.w_query.dim(1) / layer.heads, E = layer.w_value.dim(1) / layer.heads;
  Rows joined(x.size());
  for (Index h = 0; h < layer.heads; ++h) {
    const Rows query = times(x, layer.w_query.value(), h * D, D);
    const Rows key = times(y, layer.w_key.value(), h * D, D);
    const Rows value = times(y, layer.w_value.value(), h * E, E);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::vector<double> weights = weights_of(query[i], key, causal ? i + 1 : key.size());
      std::vector<double> output(static_cast<std::size_t>(E));
      for (std::size_t j = 0; j < weights.size(); ++j) {
        for (std::size_t e = 0; e < output.size(); ++e) output[e] += weights[j] * value[j][e];
      }
      joined[i].insert(joined[i].end(), output.begin(), output.end());
    }
  }
  return layer.w_out ? times(joined, layer.w_out->value()) : joined;
}

inline Rows layer_norm(const LayerNorm<double>& layer, Rows x) {
  for (auto& row : x) {
    const auto n = static_cast<double>(row.size());
    double mean = 0, variance = 0;
    for (const double v : row) mean += v / n;
    for (const double v : row) variance += (v - mean) * (v - mean) / n;
    for (std::size_t j = 0; j < row.size(); ++j) {
      const auto column = static_cast<Index>(j);
      const double u = (row[j] - mean) / std::sqrt(variance + 1e-5);
      row[j] = u * layer.gain.value()(column) + layer.bias.value()(column);
    }
  }
  return x;
}

inline Rows feed_forward(const FeedForward<double>& layer, const Rows& x) {
  Rows hidden = plus_bias(times(x, layer.w_up.value()), layer.b_up.value());
  for (auto& row : hidden) {
    for (double& v : row) v *= 0.5 * (1 + std::erf(v / std::numbers::sqrt2));
  }
  return plus_bias(times(hidden, layer.w_down.value()), layer.b_down.value());
}

}  // namespace tapehead::loops
