#pragma once
// Elements as files hold them, converted to and from the elements of arrays.

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <tapehead/core/array.h>
#include <tapehead/nn/file_access.h>

namespace tapehead::detail {

enum class ElementType : unsigned char {
  f64,
  f32,
  f16,   // IEEE 754 binary16
  bf16,  // the upper half of a float
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  truth  // one byte, 0 or 1
};

std::size_t bytes_of(ElementType type);

// The type whose elements are those of an Array<T>, and how messages call it.
template <Element T>
inline constexpr ElementType type_of_array = std::same_as<T, double>  ? ElementType::f64
                                             : std::same_as<T, float> ? ElementType::f32
                                             : std::same_as<T, Index> ? ElementType::i64
                                                                      : ElementType::truth;
template <Element T>
inline constexpr std::string_view name_of_array = std::same_as<T, double>  ? "double"
                                                  : std::same_as<T, float> ? "float"
                                                  : std::same_as<T, Index> ? "int64"
                                                                           : "bool";

// What a file holds of one array, which has exactly the bytes that its shape asks for.
struct StoredArray {
  std::shared_ptr<const void> owner;  // of the bytes
  const std::byte* bytes;
  ElementType type;
  Shape shape;
  bool swapped = false;        // the bytes of an element come in the order that is not this machine's
  bool fortran_order = false;  // the first index runs fastest
};

// float and double are read from every type, rounded to nearest where they do not fit exactly; int64 from
// integers and truth; bool from truth and u8.
template <Element T>
bool readable_as(ElementType type);

// The array, row-major. Its elements stay where they are when they are those of an Array<T>, aligned; else
// they are converted block by block. Calls `fail`, which throws, with words for an element that is not a T:
// an integer beyond int64, a truth value that is neither 0 nor 1. Throws LogicError when the type is not
// readable_as<T>.
template <Element T>
Array<T> read_elements(const StoredArray& stored, const std::function<void(const std::string&)>& fail);

// float and double are written as f64, f32, f16 and bf16, rounded to nearest, ties to even; int64 and bool as
// they are.
template <Element T>
bool writable_as(ElementType type);

struct WrittenForm {
  ElementType type;
  bool swapped = false, fortran_order = false;  // as in StoredArray
};

// Appends the elements, converted block by block. Throws LogicError when the type is not writable_as<T>.
template <Element T>
void append_elements(Replacement& file, const Array<T>& array, const WrittenForm& form);

}  // namespace tapehead::detail
