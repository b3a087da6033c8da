#include <tapehead/nn/layers.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>

#include <cmath>

namespace tapehead {

template <std::floating_point T>
Projection<T> Projection<T>::initial(Generator& random, Index in, Index out, bool bias) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  Projection layer{random.uniform<T>({in, out}, -bound, bound)};
  if (bias) layer.b = Array<T>::zeros({out});
  return layer;
}

template <std::floating_point T>
Var<T> Projection<T>::operator()(const Var<T>& x) const {
  return b ? projection(x, w, *b) : projection(x, w);
}

template <std::floating_point T>
Embedding<T> Embedding<T>::initial(Generator& random, Index count, Index width) {
  return {random.normal<T>({count, width})};
}

template <std::floating_point T>
Var<T> Embedding<T>::operator()(const Array<Index>& indices) const {
  return embedding(table, indices);
}

template <std::floating_point T>
LayerNorm<T> LayerNorm<T>::initial(Index width) {
  return {Array<T>::ones({width}), Array<T>::zeros({width})};
}

template <std::floating_point T>
Var<T> LayerNorm<T>::operator()(const Var<T>& x) const {
  return layer_norm(x, gain, bias, eps);
}

template <std::floating_point T>
RmsNorm<T> RmsNorm<T>::initial(Index width) {
  return {Array<T>::ones({width})};
}

template <std::floating_point T>
Var<T> RmsNorm<T>::operator()(const Var<T>& x) const {
  return rms_norm(x, gain, eps);
}

template <std::floating_point T>
Var<T> activated(Activation activation, const Var<T>& x) {
  switch (activation) {
    case Activation::relu:
      return relu(x);
    case Activation::gelu:
      return gelu(x);
    case Activation::gelu_tanh:
      return gelu(x, Gelu::tanh);
    case Activation::silu:
      break;
  }
  return silu(x);
}

template <std::floating_point T>
FeedForward<T> FeedForward<T>::initial(Generator& random, Index width, Index hidden, Activation activation) {
  FeedForward layer;
  layer.up = Projection<T>::initial(random, width, hidden, true);
  layer.down = Projection<T>::initial(random, hidden, width, true);
  layer.activation = activation;
  return layer;
}

template <std::floating_point T>
FeedForward<T> FeedForward<T>::initial_swiglu(Generator& random, Index width, Index hidden) {
  FeedForward layer;
  layer.up = Projection<T>::initial(random, width, hidden);
  layer.gate = Projection<T>::initial(random, width, hidden);
  layer.down = Projection<T>::initial(random, hidden, width);
  layer.activation = Activation::silu;
  return layer;
}

template <std::floating_point T>
Var<T> FeedForward<T>::operator()(const Var<T>& x) const {
  if (!gate) return down(activated(activation, up(x)));
  const Var<T> open = activated(activation, (*gate)(x));
  return down(open * up(x));
}

#define TAPEHEAD_INSTANTIATE(T)                         \
  template struct Projection<T>;                        \
  template struct Embedding<T>;                         \
  template struct LayerNorm<T>;                         \
  template struct RmsNorm<T>;                           \
  template Var<T> activated(Activation, const Var<T>&); \
  template struct FeedForward<T>;
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead
