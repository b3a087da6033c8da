// Fills the table of the processor level that the including file is compiled for.
#pragma once

#include <tapehead/ops/kernels/simd/attention_backward.h>
#include <tapehead/ops/kernels/simd/attention_forward.h>
#include <tapehead/ops/kernels/simd/block_product.h>
#include <tapehead/ops/kernels/simd/maps.h>
#include <tapehead/ops/kernels/simd/rows.h>
#include <tapehead/ops/kernels/simd/updates.h>

namespace tapehead::kernels {
namespace {

template <class T>
constexpr VectorKernels<T> table() {
  VectorKernels<T> kernels{};
  kernels.block_product = block_product<T>;
  kernels.block_product_room = block_product_room<T>;
  kernels.pack_product = pack_product<T>;
  kernels.packed_product_room = packed_product_room<T>;
  kernels.attention_block = attention_block<T>;
  kernels.attention_part = attention_part<T>;
  kernels.attention_merge = attention_merge<T>;
  kernels.attention_state = PartialSoftmax<T>::size;
  kernels.forward_room = forward_room<T>;
  kernels.backward_block = backward_block<T>;
  kernels.backward_room = backward_room<T>;
  kernels.backward_tile = backward_tile;
  kernels.exp = map_all<T, full_exp<T>>;
  kernels.tanh = map_all<T, tanh_of<T>>;
  kernels.sigmoid = map_all<T, sigmoid_of<T>>;
  kernels.silu = map_all<T, silu_of<T>>;
  kernels.gelu = map_all<T, gelu_of<T>>;
  kernels.gelu_tanh = map_all<T, gelu_tanh_of<T>>;
  kernels.silu_vjp = weigh_all<T, silu_slope<T>>;
  kernels.gelu_vjp = weigh_all<T, gelu_slope<T>>;
  kernels.gelu_tanh_vjp = weigh_all<T, gelu_tanh_slope<T>>;
  kernels.sum = sum_of<T>;
  kernels.dot = dot_of<T>;
  kernels.maximum = maximum_of<T>;
  kernels.exponentials = exponentials<T>;
  kernels.sum_columns = sum_columns<T>;
  kernels.normalise = normalise<T>;
  kernels.normalise_vjp = normalise_vjp<T>;
  kernels.adapt = adapt<T>;
  return kernels;
}

}  // namespace
}  // namespace tapehead::kernels
