#pragma once
// Attention with softcap, bias and mask as loops in long double over one row at a time, with an upstream
// gradient for each of its results: a witness that shares nothing with the library but the arrays.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <tapehead/core/array.h>

namespace tapehead::loops {

// query (B, H, L, D)   key (B, Hk, S, D)   value (B, Hk, S, E)   bias and allowed (B, H, L, S)
struct AttentionInputs {
  Array<double> query, key, value, bias;
  Array<bool> allowed;
  double scale = 1, softcap = 0;
};

// Results and, under the same names, upstream gradients of them. Scores and weights (B, H, L, S), lse (B, H,
// L).
struct AttentionOutputs {
  Array<double> output, weights, scaled, capped, masked, lse;
};

struct AttentionGradients {
  Array<double> query, key, value, bias;
};

// Of one row of scores.
struct AttentionRow {
  std::vector<long double> scaled, capped, masked, weights;
  long double lse = -std::numeric_limits<long double>::infinity();
};

class AttentionLoops {
 public:
  explicit AttentionLoops(AttentionInputs in) : in_(std::move(in)) {}

  AttentionOutputs outputs() const {
    const Shape scores = in_.bias.shape();
    AttentionOutputs out{Array<double>::zeros(scores.with(-1, columns_)),
                         Array<double>::zeros(scores),
                         Array<double>::zeros(scores),
                         Array<double>::zeros(scores),
                         Array<double>::zeros(scores),
                         Array<double>::zeros(scores.without(-1))};
    each_row([&](Index b, Index h, Index i) {
      const AttentionRow r = row(b, h, i);
      out.lse.set({b, h, i}, static_cast<double>(r.lse));
      for (Index j = 0; j < keys_; ++j) {
        const auto n = static_cast<std::size_t>(j);
        out.scaled.set({b, h, i, j}, static_cast<double>(r.scaled[n]));
        out.capped.set({b, h, i, j}, static_cast<double>(r.capped[n]));
        out.masked.set({b, h, i, j}, static_cast<double>(r.masked[n]));
        out.weights.set({b, h, i, j}, static_cast<double>(r.weights[n]));
      }
      for (Index e = 0; e < columns_; ++e) {
        long double sum = 0;
        for (Index j = 0; j < keys_; ++j)
          sum += r.weights[static_cast<std::size_t>(j)] * in_.value(b, h / group_, j, e);
        out.output.set({b, h, i, e}, static_cast<double>(sum));
      }
    });
    return out;
  }

  // dw_j = do . v_j + what the weights get;  dz_j = w_j (dw_j - sum w dw + dlse) + what the masked scores
  // get; dc = dz + what the capped ones get;  ds = dc (1 - tanh^2) + what the scaled ones get.
  AttentionGradients gradients(const AttentionOutputs& up) const {
    Sums query(in_.query), key(in_.key), value(in_.value), bias(in_.bias);
    each_row([&](Index b, Index h, Index i) {
      const AttentionRow r = row(b, h, i);
      const Index g = h / group_;
      std::vector<long double> dw(r.weights.size());
      long double mean = 0;
      for (Index j = 0; j < keys_; ++j) {
        const auto n = static_cast<std::size_t>(j);
        dw[n] = up.weights(b, h, i, j);
        for (Index e = 0; e < columns_; ++e) {
          dw[n] += static_cast<long double>(up.output(b, h, i, e)) * in_.value(b, g, j, e);
          value.at(b, g, j, e) += r.weights[n] * up.output(b, h, i, e);
        }
        mean += r.weights[n] * dw[n];
      }
      for (Index j = 0; j < keys_; ++j) {
        const auto n = static_cast<std::size_t>(j);
        const bool seen = in_.allowed(b, h, i, j);
        const long double dz =
            seen ? r.weights[n] * (dw[n] - mean + up.lse(b, h, i)) + up.masked(b, h, i, j) : 0.0L;
        bias.at(b, h, i, j) += dz;
        const long double dc = dz + up.capped(b, h, i, j);
        const long double slope = in_.softcap > 0 ? 1 - std::pow(r.capped[n] / in_.softcap, 2.0L) : 1.0L;
        const long double ds = (dc * slope + up.scaled(b, h, i, j)) * in_.scale;
        for (Index d = 0; d < width_; ++d) {
          query.at(b, h, i, d) += ds * in_.key(b, g, j, d);
          key.at(b, g, j, d) += ds * in_.query(b, h, i, d);
        }
      }
    });
    return {query.rounded(), key.rounded(), value.rounded(), bias.rounded()};
  }

 private:
  struct Sums {
    explicit Sums(const Array<double>& like)
        : shape(like.shape()), sums(static_cast<std::size_t>(like.size())) {}
    long double& at(Index b, Index h, Index i, Index j) {
      return sums[static_cast<std::size_t>(((b * shape[1] + h) * shape[2] + i) * shape[3] + j)];
    }
    Array<double> rounded() const {
      return Array<double>::from(std::vector<double>(sums.begin(), sums.end()), shape);
    }
    Shape shape;
    std::vector<long double> sums;
  };

  template <class F>
  void each_row(F f) const {
    for (Index b = 0; b < in_.query.dim(0); ++b) {
      for (Index h = 0; h < in_.query.dim(1); ++h) {
        for (Index i = 0; i < in_.query.dim(2); ++i) f(b, h, i);
      }
    }
  }

  AttentionRow row(Index b, Index h, Index i) const {
    constexpr long double infinity = std::numeric_limits<long double>::infinity();
    AttentionRow r;
    long double largest = -infinity, total = 0;
    for (Index j = 0; j < keys_; ++j) {
      long double score = 0;
      for (Index d = 0; d < width_; ++d) {
        score += static_cast<long double>(in_.query(b, h, i, d)) * in_.key(b, h / group_, j, d);
      }
      score *= in_.scale;
      r.scaled.push_back(score);
      if (in_.softcap > 0) score = in_.softcap * std::tanh(score / in_.softcap);
      r.capped.push_back(score);
      r.masked.push_back(in_.allowed(b, h, i, j) ? score + in_.bias(b, h, i, j) : -infinity);
      largest = std::max(largest, r.masked.back());
    }
    for (const long double z : r.masked)
      total += r.weights.emplace_back(z > -infinity ? std::exp(z - largest) : 0);
    if (total == 0) return r;
    for (long double& w : r.weights) w /= total;
    r.lse = largest + std::log(total);
    return r;
  }

  AttentionInputs in_;
  Index width_ = in_.query.dim(3), keys_ = in_.key.dim(2), columns_ = in_.value.dim(3);
  Index group_ = in_.query.dim(1) / in_.key.dim(1);  // query heads that read one key head
};

}  // namespace tapehead::loops
