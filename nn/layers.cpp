#include <tapehead/nn/layers.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>

#include <cmath>

namespace tapehead {
namespace {

template <class T, class Layer>
AttentionResult<T> attend(const Layer& layer, const Var<T>& x, const Var<T>& source,
                          const AttentionOptions<T>& options) {
  auto projected = [&](const Var<T>& from, const Var<T>& w) {
    const Var<T> p = projection(from, w);
    return layer.heads == 1 ? p : split_heads(p, layer.heads);
  };
  const Var<T> query = projected(x, layer.w_query);  // one after another: the order of arguments is open
  const Var<T> key = projected(source, layer.w_key);
  const Var<T> value = projected(source, layer.w_value);
  AttentionResult<T> result = attention(query, key, value, options);
  if (layer.heads != 1) result.output = merge_heads(result.output);
  if (layer.w_out) result.output = projection(result.output, *layer.w_out);
  return result;
}

}  // namespace

template <std::floating_point T>
Var<T> initial_projection(Generator& random, Index in, Index out) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  return random.uniform<T>({in, out}, -bound, bound);
}

template <std::floating_point T>
SelfAttention<T> SelfAttention<T>::initial(Generator& random, Index width, Index heads) {
  SelfAttention layer;
  layer.w_query = initial_projection<T>(random, width, width);
  layer.w_key = initial_projection<T>(random, width, width);
  layer.w_value = initial_projection<T>(random, width, width);
  layer.w_out = initial_projection<T>(random, width, width);
  layer.heads = heads;
  return layer;
}

template <std::floating_point T>
AttentionResult<T> SelfAttention<T>::operator()(const Var<T>& x, const AttentionOptions<T>& options) const {
  return attend(*this, x, x, options);
}

template <std::floating_point T>
CrossAttention<T> CrossAttention<T>::initial(Generator& random, Index width, Index source, Index heads) {
  CrossAttention layer;
  layer.w_query = initial_projection<T>(random, width, width);
  layer.w_key = initial_projection<T>(random, source, width);
  layer.w_value = initial_projection<T>(random, source, width);
  layer.w_out = initial_projection<T>(random, width, width);
  layer.heads = heads;
  return layer;
}

template <std::floating_point T>
AttentionResult<T> CrossAttention<T>::operator()(const Var<T>& x, const Var<T>& y,
                                                 const AttentionOptions<T>& options) const {
  return attend(*this, x, y, options);
}

template <std::floating_point T>
LayerNorm<T> LayerNorm<T>::initial(Index width) {
  return {Array<T>::ones({width}), Array<T>::zeros({width})};
}

template <std::floating_point T>
Var<T> LayerNorm<T>::operator()(const Var<T>& x) const {
  return layer_norm(x, gain, bias);
}

template <std::floating_point T>
FeedForward<T> FeedForward<T>::initial(Generator& random, Index width, Index hidden) {
  FeedForward layer;
  layer.w_up = initial_projection<T>(random, width, hidden);
  layer.b_up = Array<T>::zeros({hidden});
  layer.w_down = initial_projection<T>(random, hidden, width);
  layer.b_down = Array<T>::zeros({width});
  return layer;
}

template <std::floating_point T>
Var<T> FeedForward<T>::operator()(const Var<T>& x) const {
  return projection(gelu(projection(x, w_up, b_up)), w_down, b_down);
}

#define TAPEHEAD_INSTANTIATE(T)                                 \
  template Var<T> initial_projection(Generator&, Index, Index); \
  template struct SelfAttention<T>;                             \
  template struct CrossAttention<T>;                            \
  template struct LayerNorm<T>;                                 \
  template struct FeedForward<T>;
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
