#pragma once
// Array to xtensor and back without a copy. The only header that includes xtensor: whoever needs xtensor
// includes this one first, because it repairs what xtensor 0.24 deduces under C++20.

#include <xtensor/xexpression_traits.hpp>

#include <cstddef>

namespace xt::detail {

// xtensor 0.24 (Debian 12) specialises this trait for dynamic shapes under "__cplusplus == 201703L" only.
// With g++ in C++20 the small vector that holds a dynamic shape then matches the rule for std::array, its
// inline capacity 4 is taken for a rank, and xt::eval and others give an xtensor<T, 4>. Full specialisations
// decide it on every version.
template <>
struct xtype_for_shape<xt::dynamic_shape<std::size_t>> {
  template <class T, layout_type L>
  using type = xarray<T, L>;
};
template <>
struct xtype_for_shape<xt::dynamic_shape<std::ptrdiff_t>> {
  template <class T, layout_type L>
  using type = xarray<T, L>;
};

}  // namespace xt::detail

#include <memory>
#include <vector>

#include <xtensor/xadapt.hpp>
#include <xtensor/xarray.hpp>

#include <tapehead/core/array.h>

namespace tapehead {

// Reads the elements of an Array as an xtensor expression. Refers to them: the Array must outlive it.
template <Element T>
auto as_xtensor(const Array<T>& array) {
  const std::vector<std::size_t> shape(array.shape().begin(), array.shape().end());
  const T* data = array.data();
  return xt::adapt(data, static_cast<std::size_t>(array.size()), xt::no_ownership(), shape);
}
template <Element T>
auto as_xtensor(Array<T>&& array) = delete;

// Takes over the elements of a row-major xtensor container; of any other expression, those of its value.
template <Element T>
Array<T> from_xtensor(xt::xarray<T>&& container) {
  auto owner = std::make_shared<xt::xarray<T>>(std::move(container));
  const std::vector<Index> extents(owner->shape().begin(), owner->shape().end());
  const T* data = owner->data();
  return Array<T>::adopt(std::move(owner), data, Shape(std::span<const Index>(extents)));
}
template <class E>
auto from_xtensor(const xt::xexpression<E>& expression) {
  xt::xarray<typename E::value_type> container = expression.derived_cast();
  return from_xtensor(std::move(container));
}

}  // namespace tapehead
