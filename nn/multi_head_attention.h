#pragma once
// Attention with its projections: what a transformer layer calls attention.

#include <optional>

#include <tapehead/nn/attention.h>
#include <tapehead/nn/key_value_cache.h>
#include <tapehead/nn/layers.h>

namespace tapehead {

// out(attention(query(x), key(y), value(y))), split into H heads of queries and Hk of keys and values.
// x (..., L, M)   key and value sources (..., S, N), (..., S, N')   output (..., L, M')
// query.w (M, H D)   key.w (N, Hk D)   value.w (N', Hk E)   out.w (H E, M')
// Self-attention is of one X, cross-attention of X and another source. The options of a call may set all but
// norm and rope, which belong to the layer. Vaswani and others, 2017, section 3.2.2.
template <std::floating_point T>
struct MultiHeadAttention {
  Projection<T> query, key, value;
  std::optional<Projection<T>> out{};
  std::optional<QueryKeyNorm<T>> norm{};
  std::optional<RopeOptions> rope{};
  Index heads = 1;
  Index key_heads = 0;  // Hk; 0: as many as heads

  // What is not the default when a layer is made. Widths of 0 are that of the input.
  struct Form {
    Index key_heads = 0;
    Index key_width = 0, value_width = 0;  // N and N'
    bool bias = false, out = true, norm = false;
    std::optional<RopeOptions> rope{};
  };
  // D = E = width / heads. Throws ShapeError when heads do not divide the width, or key_heads the heads.
  static MultiHeadAttention initial(Generator& random, Index width, Index heads, const Form& form = {});

  AttentionResult<T> operator()(const Var<T>& x, const AttentionOptions<T>& options = {}) const;
  AttentionResult<T> operator()(const Var<T>& x, const Var<T>& source,
                                const AttentionOptions<T>& options = {}) const;
  AttentionResult<T> operator()(const Var<T>& x, const Var<T>& key_source, const Var<T>& value_source,
                                const AttentionOptions<T>& options = {}) const;
  // Self-attention of a block x that continues what is cached.
  AttentionResult<T> operator()(const Var<T>& x, KeyValueCache<T>& cache,
                                const AttentionOptions<T>& options = {}) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("query", self.query), f("key", self.key), f("value", self.value), f("out", self.out);
    f("norm", self.norm);
  }
};

}  // namespace tapehead
