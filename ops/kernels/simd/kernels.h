// Fills the table of the processor level that the including file is compiled for.
#pragma once

#include <tapehead/ops/kernels/simd/attention_backward.h>
#include <tapehead/ops/kernels/simd/attention_forward.h>
#include <tapehead/ops/kernels/simd/block_product.h>

namespace tapehead::kernels {
namespace {

template <class T>
void exp_all(const T* x, Index n, T* y) {
  for (; n >= width<T>; n -= width<T>, x += width<T>, y += width<T>) store(y, exp_of<T>(load(x)));
  if (n > 0) store_first(y, exp_of<T>(load_first(x, static_cast<int>(n))), static_cast<int>(n));
}
template <class T>
void tanh_all(const T* x, Index n, T* y) {
  for (; n >= width<T>; n -= width<T>, x += width<T>, y += width<T>) store(y, tanh_of<T>(load(x)));
  if (n > 0) store_first(y, tanh_of<T>(load_first(x, static_cast<int>(n))), static_cast<int>(n));
}

template <class T>
constexpr VectorKernels<T> table() {
  VectorKernels<T> kernels{};
  kernels.block_product = block_product<T>;
  kernels.block_product_room = block_product_room<T>;
  kernels.attention_block = attention_block<T>;
  kernels.attention_part = attention_part<T>;
  kernels.attention_merge = attention_merge<T>;
  kernels.attention_state = PartialSoftmax<T>::size;
  kernels.forward_room = forward_room<T>;
  kernels.backward_block = backward_block<T>;
  kernels.backward_room = backward_room<T>;
  kernels.backward_tile = backward_tile;
  kernels.exp = exp_all<T>;
  kernels.tanh = tanh_all<T>;
  return kernels;
}

}  // namespace
}  // namespace tapehead::kernels
