#pragma once
// The layers that models are made of: structs of Vars with a call operator.

#include <optional>

#include <tapehead/core/random.h>
#include <tapehead/nn/attention.h>
#include <tapehead/nn/model.h>

namespace tapehead {

// Initial values of a projection (in, out): uniform in +-1 / sqrt(in), so that unit variance in gives a third
// out.
template <std::floating_point T>
Var<T> initial_projection(Generator& random, Index in, Index out);

// Self-attention: queries, keys and values are projections of one X. With heads, the projections are split
// head by head and the outputs joined again; w_out, when there is one, follows. x (..., L, M)   w_query,
// w_key (M, H D)   w_value (M, H E)   w_out (H E, M')   output (..., L, H E or M')
template <std::floating_point T>
struct SelfAttention {
  Var<T> w_query, w_key, w_value;
  std::optional<Var<T>> w_out;
  Index heads = 1;

  // Query, key and value projections (width, width) and an output projection.
  static SelfAttention initial(Generator& random, Index width, Index heads);
  AttentionResult<T> operator()(const Var<T>& x, const AttentionOptions<T>& options = {}) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("w_query", self.w_query), f("w_key", self.w_key), f("w_value", self.w_value), f("w_out", self.w_out);
  }
};

// Cross-attention: queries are projections of X, keys and values of Y; their widths may differ.
// x (..., L, M)   y (..., S, N)   w_query (M, H D)   w_key (N, H D)   w_value (N, H E)   w_out (H E, M')
template <std::floating_point T>
struct CrossAttention {
  Var<T> w_query, w_key, w_value;
  std::optional<Var<T>> w_out;
  Index heads = 1;

  // From queries of width `width` to a source of width `source`, back to `width`.
  static CrossAttention initial(Generator& random, Index width, Index source, Index heads);
  AttentionResult<T> operator()(const Var<T>& x, const Var<T>& y,
                                const AttentionOptions<T>& options = {}) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("w_query", self.w_query), f("w_key", self.w_key), f("w_value", self.w_value), f("w_out", self.w_out);
  }
};

// x (..., M)   gain, bias (M)
template <std::floating_point T>
struct LayerNorm {
  Var<T> gain, bias;

  static LayerNorm initial(Index width);  // gain 1, bias 0
  Var<T> operator()(const Var<T>& x) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("gain", self.gain), f("bias", self.bias);
  }
};

// gelu(x w_up + b_up) w_down + b_down        x (..., M)   w_up (M, F)   w_down (F, M)
template <std::floating_point T>
struct FeedForward {
  Var<T> w_up, b_up, w_down, b_down;

  static FeedForward initial(Generator& random, Index width, Index hidden);
  Var<T> operator()(const Var<T>& x) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("w_up", self.w_up), f("b_up", self.b_up), f("w_down", self.w_down), f("b_down", self.b_down);
  }
};

}  // namespace tapehead
