#pragma once
// Attention without the matrix of weights: online softmax over tiles of keys (Dao and others,
// "FlashAttention", 2022; Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
//
// This header holds plain structs and nothing inline, since the vector code includes it.
//
// For batch b, head h, query i and key j, with g = h / (heads / key_heads):
//   t = scale q[b,h,i] . k[b,g,j]          s = softcap tanh(t / softcap), or t when softcap is 0
//   s += bias[b,h,i,j] - slope[h] |i + position[b] - j|;  minus infinity where a mask does not allow j
//   lse[b,h,i] = log(sum_j exp(s) + exp(sink[h]))          w = exp(s - lse)
//   output[b,h,i] = sum_j kept w v[b,g,j]   kept = 1, or with dropout 0 or 1 / (1 - rate)

#include <cstdint>

namespace tapehead {
using Index = std::int64_t;
}

namespace tapehead::kernels {

// (batches, heads, rows, columns): distances in elements between neighbours; the columns of a row touch.
template <class T>
struct HeadRows {
  T* data = nullptr;
  Index batch = 0, head = 0, row = 0;
};

// (batches, heads, queries, keys), any strides, 0 where it repeats.
template <class T>
struct ScoreArray {
  T* data = nullptr;
  Index batch = 0, head = 0, query = 0, key = 0;
};

// Query i sees key j when first <= j < last and i + from <= j < i + to. A causal mask with P keys before the
// first query has to = P + 1; a window of w keys back has from = P - w; a sample of n keys has last = n.
struct KeyRange {
  static constexpr Index unlimited = Index{1} << 40;
  Index first = 0, last = unlimited, from = -unlimited, to = unlimited;
};

// Element (b, h, i, j) of an array (batches, heads, queries, keys) uses number first_draw + its place of a
// Generator's stream, and is dropped when that is below the rate.
struct AttentionDropout {
  double rate = 0;
  std::uint64_t key = 0, first_draw = 0;
};

template <class T>
struct AttentionProblem {
  Index batches = 1, heads = 1, key_heads = 1, queries = 0, keys = 0, width = 0, value_width = 0;
  HeadRows<const T> q, k, v;
  double scale = 1, softcap = 0;
  ScoreArray<const T> bias;          // none when null
  const T* slopes = nullptr;         // (heads); none when null
  const Index* positions = nullptr;  // (batches) position of query 0 for the slopes; 0 when null
  const KeyRange* ranges = nullptr;  // one, or one a batch; all keys when null
  bool range_of_batch = false;
  const ScoreArray<const bool>* allowed = nullptr;  // `allowed_count` of them; a key needs true in each
  Index allowed_count = 0;
  const Index* query_documents = nullptr;  // (batches, queries) and (batches, keys): equal ones see each
  const Index* key_documents = nullptr;    // other; all when null
  const T* sinks = nullptr;                // (heads); none when null
  AttentionDropout dropout;
};

// The first row (b heads + h) queries + i of its kind, -1 for none. A row that sees no key has output 0, lse
// minus infinity, whatever its sink, and gradients 0, whatever its query holds.
struct AttentionRows {
  Index without_key = -1;
  Index not_finite = -1;  // its largest score is NaN or infinite
};

// What backward reads (output and lse as forward left them) and what it writes, each gradient unless null.
// dq, dk and dv are overwritten; dbias, shaped and strided like the bias, is added to.
template <class T>
struct AttentionGradients {
  HeadRows<const T> output, doutput;
  const double* lse = nullptr;  // (batches, heads, queries)
  const T* dlse = nullptr;      // likewise; zeros when null
  HeadRows<T> dq, dk, dv;
  T* dbias = nullptr;
  T* dslopes = nullptr;  // (heads)
  T* dsinks = nullptr;   // (heads)
};

// output (batches, heads, queries, value_width); lse (batches, heads, queries) unless null: in double, since
// a float of a large score has no digits left for the weights. Extra memory does not grow with queries x
// keys.
template <class T>
AttentionRows attention_forward(const AttentionProblem<T>& problem, HeadRows<T> output, double* lse);

// Recomputes the scores tile by tile. The same bits for any number of threads.
template <class T>
void attention_backward(const AttentionProblem<T>& problem, const AttentionGradients<T>& gradients);

}  // namespace tapehead::kernels
