#pragma once
// The layers that models are made of: structs of Vars with a call operator.

#include <optional>
#include <variant>

#include <tapehead/core/random.h>
#include <tapehead/nn/model.h>

namespace tapehead {

// x w + b        x (..., in)   w (in, out)   b (out), when there is one   output (..., out)
template <std::floating_point T>
struct Projection {
  Var<T> w;
  std::optional<Var<T>> b{};

  // w uniform in +-1 / sqrt(in), so that unit variance in gives a third out; b, when wanted, 0.
  static Projection initial(Generator& random, Index in, Index out, bool bias = false);
  Var<T> operator()(const Var<T>& x) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("w", self.w), f("b", self.b);
  }
};

// The rows of a table (count, M) that indices (...) name: (..., M).
template <std::floating_point T>
struct Embedding {
  Var<T> table;

  static Embedding initial(Generator& random, Index count, Index width);  // of unit variance
  Var<T> operator()(const Array<Index>& indices) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("table", self.table);
  }
};

// x (..., M)   gain, bias (M)
template <std::floating_point T>
struct LayerNorm {
  Var<T> gain, bias;
  double eps = 1e-5;

  static LayerNorm initial(Index width);  // gain 1, bias 0
  Var<T> operator()(const Var<T>& x) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("gain", self.gain), f("bias", self.bias);
  }
};

// x (..., M)   gain (M)
template <std::floating_point T>
struct RmsNorm {
  Var<T> gain;
  double eps = 1e-6;

  static RmsNorm initial(Index width);  // gain 1
  Var<T> operator()(const Var<T>& x) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("gain", self.gain);
  }
};

template <std::floating_point T>
using Norm = std::variant<LayerNorm<T>, RmsNorm<T>>;

template <std::floating_point T>
Var<T> normed(const Norm<T>& norm, const Var<T>& x) {
  return std::visit([&](const auto& one) { return one(x); }, norm);
}

enum class Activation { relu, gelu, gelu_tanh, silu };

template <std::floating_point T>
Var<T> activated(Activation activation, const Var<T>& x);

// down(activation(up(x))), or down(activation(gate(x)) up(x)) when there is a gate; with silu that is SwiGLU
// (Shazeer, "GLU variants improve transformer", 2020).
// x (..., M)   up, gate (M, F)   down (F, M)
template <std::floating_point T>
struct FeedForward {
  Projection<T> up;
  std::optional<Projection<T>> gate{};
  Projection<T> down;
  Activation activation = Activation::gelu;

  // With biases of 0, and without a gate; or as SwiGLU has it, with a gate and without biases.
  static FeedForward initial(Generator& random, Index width, Index hidden,
                             Activation activation = Activation::gelu);
  static FeedForward initial_swiglu(Generator& random, Index width, Index hidden);
  Var<T> operator()(const Var<T>& x) const;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("up", self.up), f("gate", self.gate), f("down", self.down);
  }
};

}  // namespace tapehead
