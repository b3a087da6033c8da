#include <tapehead/core/errors.h>
#include <tapehead/nn/attention_parts.h>
#include <tapehead/nn/multi_head_attention.h>

namespace tapehead {
template <std::floating_point T>
MultiHeadAttention<T> MultiHeadAttention<T>::initial(Generator& random, Index width, Index heads,
                                                     const Form& form) {
  const Index key_heads = form.key_heads > 0 ? form.key_heads : heads;
  if (heads < 1 || width % heads != 0) {
    throw ShapeError("MultiHeadAttention",
                     std::to_string(heads) + " heads do not divide the width " + std::to_string(width), {});
  }
  if (form.key_heads < 0 || form.key_width < 0 || form.value_width < 0) {
    throw ShapeError("MultiHeadAttention",
                     "a negative number: key_heads " + std::to_string(form.key_heads) + ", key_width " +
                         std::to_string(form.key_width) + ", value_width " + std::to_string(form.value_width),
                     {});
  }
  if (heads % key_heads != 0) {
    throw ShapeError(
        "MultiHeadAttention",
        std::to_string(key_heads) + " key heads do not divide " + std::to_string(heads) + " heads", {});
  }
  const Index head_width = width / heads;
  MultiHeadAttention layer;
  layer.query = Projection<T>::initial(random, width, width, form.bias);
  layer.key = Projection<T>::initial(random, form.key_width > 0 ? form.key_width : width,
                                     key_heads * head_width, form.bias);
  layer.value = Projection<T>::initial(random, form.value_width > 0 ? form.value_width : width,
                                       key_heads * head_width, form.bias);
  if (form.out) layer.out = Projection<T>::initial(random, width, width, form.bias);
  if (form.norm) layer.norm = QueryKeyNorm<T>{Array<T>::ones({head_width}), Array<T>::ones({head_width})};
  layer.rope = form.rope;
  layer.heads = heads;
  layer.key_heads = form.key_heads;
  return layer;
}

namespace {

// attend(projections, options), and what comes after.
template <class T, class Attend>
AttentionResult<T> projected(const MultiHeadAttention<T>& layer, const Var<T>& x, const Var<T>& key_source,
                             const Var<T>& value_source, const AttentionOptions<T>& given, Attend attend) {
  // One after another: the order of arguments is open.
  const Var<T> query = layer.query(x), key = layer.key(key_source), value = layer.value(value_source);
  AttentionOptions<T> options = given;
  if (layer.norm) options.norm = layer.norm;
  if (layer.rope) options.rope = layer.rope;
  const Index key_heads = layer.key_heads > 0 ? layer.key_heads : layer.heads;
  AttentionResult<T> result = attend(detail::Operands<T>{query, key, value, layer.heads, key_heads}, options);
  if (layer.out) result.output = (*layer.out)(result.output);
  return result;
}

template <class T>
bool single(const detail::Operands<T>& x) {
  return x.heads == 1 && x.key_heads == 1;
}

}  // namespace

template <std::floating_point T>
AttentionResult<T> MultiHeadAttention<T>::operator()(const Var<T>& x, const Var<T>& key_source,
                                                     const Var<T>& value_source,
                                                     const AttentionOptions<T>& options) const {
  return projected(*this, x, key_source, value_source, options,
                   [](const detail::Operands<T>& p, const AttentionOptions<T>& o) {
                     return single(p) ? attention(p.query, p.key, p.value, o)
                                      : detail::attention_side_by_side(p, o);
                   });
}

template <std::floating_point T>
AttentionResult<T> MultiHeadAttention<T>::operator()(const Var<T>& x, const Var<T>& source,
                                                     const AttentionOptions<T>& options) const {
  return (*this)(x, source, source, options);
}

template <std::floating_point T>
AttentionResult<T> MultiHeadAttention<T>::operator()(const Var<T>& x,
                                                     const AttentionOptions<T>& options) const {
  return (*this)(x, x, x, options);
}

template <std::floating_point T>
AttentionResult<T> MultiHeadAttention<T>::operator()(const Var<T>& x, KeyValueCache<T>& cache,
                                                     const AttentionOptions<T>& options) const {
  return projected(*this, x, x, x, options, [&](const detail::Operands<T>& p, const AttentionOptions<T>& o) {
    if (single(p)) return attention(p.query, p.key, p.value, cache, o);
    const Var<T> q = split_heads(p.query, p.heads), k = split_heads(p.key, p.key_heads);
    const Var<T> v = split_heads(p.value, p.key_heads);
    AttentionResult<T> result = attention(q, k, v, cache, o);
    result.output = merge_heads(result.output);
    return result;
  });
}

template struct MultiHeadAttention<float>;
template struct MultiHeadAttention<double>;

}  // namespace tapehead
