#pragma once
// Scaled dot-product attention as a composition of ops: it has no rule of its own.

#include <optional>
#include <string_view>
#include <variant>

#include <tapehead/core/random.h>
#include <tapehead/core/var.h>
#include <tapehead/nn/mask.h>
#include <tapehead/ops/rope.h>

namespace tapehead {

// What scores are multiplied by: 1 / sqrt(D) unless given, a number, or a Var that broadcasts to the scores
// and gets a gradient (a learned temperature). The variance of a sum of D independent products of unit
// variance is D.
template <std::floating_point T>
class Scale {
 public:
  Scale() = default;
  Scale(double number) : number_(number) {}
  Scale(Var<T> var) : var_(std::move(var)) {}

  const std::optional<Var<T>>& var() const { return var_; }
  // When there is no Var; `otherwise` when nothing was given. Throws DomainError when it is not finite.
  double number(double otherwise) const;

 private:
  std::optional<double> number_;
  std::optional<Var<T>> var_;
};

// What becomes of a row whose every key is excluded.
enum class EmptyRows {
  error,  // DomainError naming batch, head and row
  zero,   // its output, its weights and all gradients from it are 0, its log-sum-exp is minus infinity
};

// Which weights are dropped: weight number n, in row-major order of (..., L, S), is kept when the n-th
// uniform number of the generator is at least the rate; or as an array says. What is kept is divided by
// 1 - rate. Srivastava and others, "Dropout", 2014.
struct Dropout {
  double rate;
  std::variant<Generator, Array<bool>> kept;
};

// Query and key divided by the root mean square of their D numbers, times a gain (D), before rotary positions
// and scores. Henry and others, "Query-key normalization for transformers", 2020.
template <std::floating_point T>
struct QueryKeyNorm {
  Var<T> query_gain, key_gain;
  double eps = 1e-6;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("query_gain", self.query_gain), f("key_gain", self.key_gain);
  }
};

// What computes attention: ops of the tape, or one kernel that never holds the weights. The kernel gives the
// output and the log-sum-exp, in any order of derivatives, with the options but those that need the scores.
enum class AttentionKernel {
  automatic,  // the kernel when it can
  composed,
  fused,  // DomainError that says why when it cannot
};

// In the order in which they come to bear. H is the number of query heads, 1 below rank 4.
template <std::floating_point T>
struct AttentionOptions {
  std::optional<QueryKeyNorm<T>> norm{};
  std::optional<RopeOptions> rope{};  // keys from its start on, queries from start + query_offset on
  PerSample query_offset = 0;         // position of the first query, counted from the first key, for rope and
                                      // slopes; a mask has its own
  Scale<T> scale{};
  double softcap = 0;              // c tanh(score / c); 0: none. Gemma 2, 2024, section 2
  std::optional<Var<T>> bias{};    // broadcasts to the scores and is added; minus infinity excludes the key
  std::optional<Var<T>> slopes{};  // (H): slope |position of query - position of key| is subtracted (ALiBi)
  Mask mask{};
  EmptyRows empty_rows = EmptyRows::error;
  std::optional<Var<T>> sink{};  // (H): a logit that joins the sum under the softmax and has no value
  std::optional<Dropout> dropout{};

  // What is wanted besides the output.
  bool scaled_scores = false, capped_scores = false, masked_scores = false;
  bool log_sum_exp = false, weights = false, statistics = false, kept = false;

  AttentionKernel kernel = AttentionKernel::automatic;
};

// Of each head of each sample, over the rows that see a key: what its attention looks like in three numbers.
template <std::floating_point T>
struct AttentionStatistics {
  Var<T> entropy;         // (..., H) mean over the rows of - sum w log w, the sink's share included
  Var<T> largest_score;   // (..., H) after bias and mask
  Var<T> first_key_mass;  // (..., H) mean over the rows of the weight of key 0
};

template <std::floating_point T>
struct AttentionResult {
  Var<T> output;  // (..., L, E)
  // When they were wanted:
  std::optional<Var<T>> weights{};        // (..., L, S), as softmax gives them, before dropout
  std::optional<Var<T>> scaled_scores{};  // (..., L, S), of every key, also of those that a mask excludes
  std::optional<Var<T>> capped_scores{};  // (..., L, S), likewise, after softcap
  std::optional<Var<T>> masked_scores{};  // (..., L, S), after bias and mask: minus infinity where excluded
  std::optional<Var<T>> log_sum_exp{};    // (..., L), of the masked scores and the sink
  std::optional<AttentionStatistics<T>> statistics{};
  std::optional<Array<bool>> kept{};  // (..., L, S), what dropout kept; to be handed back in

  // What computed it and why, also as a remark on the tape: "fused", "composed: the weights are wanted".
  std::string_view computed_by{};
};

// scores = softcap(scale query key^T) + bias, minus infinity where the mask does not allow;
// weights = softmax(scores) over the keys; output = dropout(weights) value.
// query (..., H, L, D)   key (..., Hk, S, D)   value (..., Hk, S, E)   output (..., H, L, E)
// The other leading axes are equal. Hk divides H, and query head h reads key head h / (H / Hk), rounded down.
// Below rank 4 there is one head, and rank 3 is (B, L, D). A key that no row may see influences nothing, even
// when it holds NaN. Query, key and value pass through ports of these names, so the gradient paths of an
// input they share are query, key and value. Vaswani and others, "Attention is all you need", 2017,
// section 3.2.1; grouped heads: Ainslie and others, "GQA", 2023. Throws ShapeError for widths, lengths, heads
// or leading axes that disagree, S = 0, D = 0, an option that does not fit the scores; DomainError for a
// scale, cap or rate out of range, a row with no allowed key (see EmptyRows), and a row whose largest score
// is infinite or not a number, naming batch, head and row.
template <std::floating_point T>
AttentionResult<T> attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                             const AttentionOptions<T>& options = {});

// Scores of a network with one hidden layer: v . tanh(query w_query + key w_key + b).
template <std::floating_point T>
struct AdditiveScoring {
  Var<T> w_query;           // (D, A)
  Var<T> w_key;             // (N, A)
  std::optional<Var<T>> b;  // (A)
  Var<T> v;                 // (A)
};

// The same with other scores. query (..., H, L, D)   key (..., Hk, S, N)   value (..., Hk, S, E). The scale
// is 1 unless given. Its hidden layer takes L S A numbers a head, where a product of query and key takes L S.
// Bahdanau, Cho, Bengio, "Neural machine translation by jointly learning to align and translate", 2015,
// appendix A.1.2. Throws as attention does.
template <std::floating_point T>
AttentionResult<T> additive_attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                                      const AdditiveScoring<T>& scoring,
                                      const AttentionOptions<T>& options = {});

// ALiBi's slopes for H heads: 2^(-8 h / H) for h = 1 ... H when H is a power of two; otherwise those of the
// next lower power of two, followed by every second one of twice that power. Press, Smith, Lewis, "Train
// short, test long", 2022, section 3, and its published code for other H. Throws DomainError when heads < 1.
template <std::floating_point T>
Array<T> alibi_slopes(Index heads);

// The H heads of the last axis, token by token: (..., L, H D) to (..., H, L, D), and back.
// Throws ShapeError when heads does not divide the last axis.
template <std::floating_point T>
Var<T> split_heads(const Var<T>& x, Index heads);
template <std::floating_point T>
Var<T> merge_heads(const Var<T>& x);

}  // namespace tapehead
