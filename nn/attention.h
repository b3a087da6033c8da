#pragma once
// Scaled dot-product attention as a composition of ops: it has no rule of its own.

#include <optional>

#include <tapehead/core/var.h>
#include <tapehead/nn/mask.h>

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
  double number(Index width) const;  // when there is no Var

 private:
  std::optional<double> number_;
  std::optional<Var<T>> var_;
};

template <std::floating_point T>
struct AttentionOptions {
  Scale<T> scale{};
  Mask mask{};
  bool weights = false;  // whether the weights are wanted too
};

template <std::floating_point T>
struct AttentionResult {
  Var<T> output;                  // (..., L, E)
  std::optional<Var<T>> weights;  // (..., L, S), when they were wanted
};

// scores = scale query key^T, minus infinity where the mask does not allow; weights = softmax(scores) over
// the keys; output = weights value. query (..., L, D)   key (..., S, D)   value (..., S, E), leading axes
// equal. Query, key and value pass through ports of these names, so the gradient paths of an input they share
// are query, key and value. Vaswani and others, "Attention is all you need", 2017, section 3.2.1. Throws
// ShapeError for widths, lengths or leading axes that disagree, S = 0, D = 0, a mask or scale that does not
// broadcast to the scores; DomainError for a scale that is not finite, a row with no allowed key, and a row
// whose largest score is infinite or not a number, naming batch, head and row.
template <std::floating_point T>
AttentionResult<T> attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                             const AttentionOptions<T>& options = {});

// The H heads of the last axis, token by token: (..., L, H D) to (..., H, L, D), and back.
// Throws ShapeError when heads does not divide the last axis.
template <std::floating_point T>
Var<T> split_heads(const Var<T>& x, Index heads);
template <std::floating_point T>
Var<T> merge_heads(const Var<T>& x);

}  // namespace tapehead
