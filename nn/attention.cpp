#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/nn/attention_parts.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/shaping.h>

#include <cmath>

namespace tapehead {
namespace {

using detail::Operands;

// Of every key, also of those that a mask excludes.
template <class T>
bool wants_scores(const AttentionOptions<T>& options) {
  return options.scaled_scores || options.capped_scores;
}

template <class T>
struct Placed {
  Operands<T> operands;
  Operands<T> shown;  // the same, for scores that are wanted of what is excluded as well
};

template <class T>
Placed<T> placed(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                 const AttentionOptions<T>& options) {
  const Operands<T> x{port(query, "query"), port(key, "key"), port(value, "value")};
  auto with = [&](const detail::Exclusion& excluded) {
    return Operands<T>{detail::placed_query(x.query, options, options.query_offset, excluded.rows),
                       detail::placed_key(x.key, options, 0, excluded.seen_keys), x.value};
  };
  detail::Exclusion excluded;
  const Shape scores = detail::scores_shape(query.shape(), key.shape());
  if (options.norm) excluded = detail::exclusion(options, scores, key.shape());
  const Operands<T> operands = with(excluded);
  const bool replaced = excluded.rows.defined() || excluded.seen_keys.defined();
  return {operands, replaced && wants_scores(options) ? with({}) : operands};
}

// Both attentions: raw(query, key) gives the scores (..., H, L, S) before all options.
template <class T, class Raw>
AttentionResult<T> attention_by(const Placed<T>& inputs, double default_scale,
                                const AttentionOptions<T>& options, Raw raw) {
  const auto& [x, every] = inputs;
  const Shape shape = detail::scores_shape(x.query.shape(), x.key.shape());
  const detail::Exclusion excluded = detail::exclusion(options, shape, x.key.shape());
  const Var<T> query = detail::selected(x.query, excluded.rows);
  const Var<T> key = detail::selected(x.key, excluded.seen_keys);
  const Var<T> value = detail::selected(x.value, excluded.seen_keys);
  const Var<T> scores = raw(query, key);
  const bool hidden = excluded.seen_keys.defined() || excluded.rows.defined();
  const Var<T> shown = hidden && wants_scores(options) ? raw(every.query, every.key) : scores;
  detail::Weighed<T> all = detail::weighed(scores, shown, default_scale, excluded, options);
  const Var<T> output = matmul(detail::grouped(all.weights, key.shape()), value);
  all.result.output =
      detail::selected(detail::reshaped(output, x.query.shape().with(-1, value.dim(-1))), all.rows);
  return std::move(all.result);
}

template <class T>
void require_scoring(const Var<T>& query, const Var<T>& key, const AdditiveScoring<T>& s) {
  const bool fit = s.w_query.rank() == 2 && s.w_key.rank() == 2 && s.w_query.dim(0) == query.dim(-1) &&
                   s.w_key.dim(0) == key.dim(-1) && s.w_query.dim(1) == s.w_key.dim(1) &&
                   s.v.shape() == Shape{s.w_query.dim(1)};
  if (fit && s.b && s.b->shape() != s.v.shape()) {
    throw ShapeError("additive_attention", "b and v differ", {{"b", s.b->shape()}, {"v", s.v.shape()}});
  }
  if (fit) return;
  throw ShapeError("additive_attention", "needs w_query (D, A), w_key (N, A), v (A)",
                   {{"query", query.shape()},
                    {"key", key.shape()},
                    {"w_query", s.w_query.shape()},
                    {"w_key", s.w_key.shape()},
                    {"v", s.v.shape()}});
}

// v . tanh(query w_query + b + key w_key) of every pair
template <class T>
Var<T> additive_scores(const Var<T>& query, const Var<T>& key, const AdditiveScoring<T>& s) {
  const Var<T> from_query =
      detail::grouped(s.b ? projection(query, s.w_query, *s.b) : projection(query, s.w_query), key.shape());
  const Var<T> from_key = projection(key, s.w_key);
  auto with_axis = [](const Var<T>& x, int axis) {
    const Shape& shape = x.shape();
    return reshape(x, shape.first(axis).followed_by({1}).followed_by(shape.last(shape.rank() - axis)));
  };
  const Var<T> hidden = tanh(with_axis(from_query, query.rank() - 1) + with_axis(from_key, key.rank() - 2));
  return detail::reshaped(matmul(hidden, s.v), detail::scores_shape(query.shape(), key.shape()));
}

// Empty when the fused kernel is to be taken.
template <class T>
std::string_view why_composed(const Shape& scores, const AttentionOptions<T>& options) {
  if (options.kernel == AttentionKernel::composed) return "composed: asked for";
  const std::string_view obstacle = detail::obstacle_to_fusion(scores, options);
  if (options.kernel == AttentionKernel::fused && !obstacle.empty()) {
    throw DomainError("attention",
                      "the fused kernel was asked for and cannot do this, " + std::string(obstacle));
  }
  return obstacle;
}

void require_heads(const Shape& x, Index heads) {
  if (x.rank() < 2 || heads < 1 || x.dim(-1) % heads != 0) {
    throw ShapeError("split_heads", std::to_string(heads) + " heads do not divide the last axis", {{"x", x}});
  }
}

template <class T>
AttentionResult<T> remarked(AttentionResult<T> result, std::string_view computed_by) {
  result.computed_by = computed_by;
  Tape<T>::remark(result.output, computed_by);
  return result;
}

template <class T>
AttentionResult<T> dot_product_attention(const Placed<T>& x, const AttentionOptions<T>& options) {
  const double scale = 1 / std::sqrt(static_cast<double>(x.operands.query.dim(-1)));
  return attention_by(x, scale, options, detail::dot_products<T>);
}

}  // namespace

template <class T>
AttentionResult<T> detail::composed_attention(const Operands<T>& x, const AttentionOptions<T>& options) {
  return dot_product_attention<T>({x, x}, options);
}

template <std::floating_point T>
double Scale<T>::number(double otherwise) const {
  const double scale = number_.value_or(otherwise);
  if (!std::isfinite(scale)) throw DomainError("attention", "the scale is not finite");
  return scale;
}

template <std::floating_point T>
AttentionResult<T> attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                             const AttentionOptions<T>& options) {
  detail::require_dot_product_shapes("attention", query.shape(), key.shape(), value.shape());
  detail::require_options(options, detail::scores_shape(query.shape(), key.shape()));
  const Placed<T> x = placed(query, key, value, options);
  const std::string_view composed_because = why_composed(x.operands.scores_shape(), options);
  if (composed_because.empty()) return remarked(detail::fused_attention(x.operands, options), "fused");
  return remarked(dot_product_attention(x, options), composed_because);
}

template <class T>
AttentionResult<T> detail::attention_side_by_side(const Operands<T>& x, const AttentionOptions<T>& options) {
  require_heads(x.query.shape(), x.heads);
  require_dot_product_shapes("attention", x.query_shape(), x.key_shape(), x.value_shape());
  require_options(options, x.scores_shape());
  if (options.norm || options.rope || options.log_sum_exp ||
      !why_composed(x.scores_shape(), options).empty()) {
    const Var<T> query = split_heads(x.query, x.heads), key = split_heads(x.key, x.key_heads);
    AttentionResult<T> result = attention(query, key, split_heads(x.value, x.key_heads), options);
    result.output = merge_heads(result.output);
    return result;
  }
  const Var<T> query = port(x.query, "query"), key = port(x.key, "key"), value = port(x.value, "value");
  return remarked(fused_attention<T>({query, key, value, x.heads, x.key_heads}, options), "fused");
}

template <std::floating_point T>
AttentionResult<T> additive_attention(const Var<T>& query, const Var<T>& key, const Var<T>& value,
                                      const AdditiveScoring<T>& scoring, const AttentionOptions<T>& options) {
  detail::require_attention_shapes("additive_attention", query.shape(), key.shape(), value.shape());
  require_scoring(query, key, scoring);
  return remarked(
      attention_by(placed(query, key, value, options), 1, options,
                   [&](const Var<T>& q, const Var<T>& k) { return additive_scores(q, k, scoring); }),
      "composed: additive scores");
}

template <std::floating_point T>
Array<T> alibi_slopes(Index heads) {
  if (heads < 1) throw DomainError("alibi_slopes", std::to_string(heads) + " heads");
  Index power = 1;
  while (2 * power <= heads) power *= 2;
  auto slopes = Array<T>::uninitialized({heads});
  T* const out = slopes.mutable_values().data();
  for (Index h = 0; h < heads; ++h) {
    // Past the power of two: the 1st, 3rd, 5th ... of twice as many.
    const double exponent = h < power
                                ? static_cast<double>(h + 1) / static_cast<double>(power)
                                : static_cast<double>(2 * (h - power) + 1) / static_cast<double>(2 * power);
    out[h] = static_cast<T>(std::exp2(-8 * exponent));
  }
  return slopes;
}

Shape detail::shape_by_head(const Shape& x, Index heads) {
  if (heads == 0) return x;
  require_heads(x, heads);
  return x.first(x.rank() - 2).followed_by({heads, x.dim(-2), x.dim(-1) / heads});
}

template <std::floating_point T>
Var<T> split_heads(const Var<T>& x, Index heads) {
  require_heads(x.shape(), heads);
  const Var<T> by_head = reshape(x, x.shape().first(x.rank() - 1).followed_by({heads, x.dim(-1) / heads}));
  return transpose(by_head, -3, -2);
}

template <std::floating_point T>
Var<T> merge_heads(const Var<T>& x) {
  if (x.rank() < 3) throw ShapeError("merge_heads", "needs (..., H, L, D)", {{"x", x.shape()}});
  const Var<T> by_token = transpose(x, -3, -2);
  return reshape(by_token, x.shape().first(x.rank() - 3).followed_by({x.dim(-2), x.dim(-3) * x.dim(-1)}));
}

#define TAPEHEAD_INSTANTIATE(T)                                                                           \
  template AttentionResult<T> detail::composed_attention(const Operands<T>&, const AttentionOptions<T>&); \
  template AttentionResult<T> detail::attention_side_by_side(const Operands<T>&,                          \
                                                             const AttentionOptions<T>&);                 \
  template class Scale<T>;                                                                                \
  template AttentionResult<T> attention(const Var<T>&, const Var<T>&, const Var<T>&,                      \
                                        const AttentionOptions<T>&);                                      \
  template AttentionResult<T> additive_attention(const Var<T>&, const Var<T>&, const Var<T>&,             \
                                                 const AdditiveScoring<T>&, const AttentionOptions<T>&);  \
  template Array<T> alibi_slopes(Index);                                                                  \
  template Var<T> split_heads(const Var<T>&, Index);                                                      \
  template Var<T> merge_heads(const Var<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
