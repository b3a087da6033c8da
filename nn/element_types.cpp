#include <tapehead/nn/element_types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace tapehead::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "an unswapped element is little-endian");
static_assert(sizeof(bool) == 1);

constexpr Index block_elements = 4096;

// The bits of x, rounded to nearest with ties to even, in a format of IEEE 754 with fewer bits.
// In units of the last place at its exponent, x is a whole number; what carries out of it belongs to the
// exponent, and so do subnormal numbers, whose exponent is the lowest.
template <int exponent_bits, int fraction_bits>
std::uint16_t rounded_bits(double x) {
  constexpr int highest = (1 << (exponent_bits - 1)) - 1, lowest = 1 - highest;
  constexpr std::uint64_t infinity = ((std::uint64_t{1} << exponent_bits) - 1) << fraction_bits;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t sign = bits >> 63 << 15, field = bits >> 52 & 2047;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (field == 2047 && fraction != 0) {
    const std::uint64_t quiet = std::uint64_t{1} << (fraction_bits - 1);
    return static_cast<std::uint16_t>(sign | infinity | quiet | fraction >> (52 - fraction_bits));
  }
  const int exponent = static_cast<int>(field) - 1023, unit = std::max(exponent, lowest);
  const int dropped = 52 - fraction_bits + unit - exponent;
  if (dropped > 53) return static_cast<std::uint16_t>(sign);  // below half of the smallest
  const std::uint64_t whole = fraction | std::uint64_t{1} << 52;
  const std::uint64_t rest = whole & ((std::uint64_t{1} << dropped) - 1);
  const std::uint64_t half = std::uint64_t{1} << (dropped - 1);
  std::uint64_t units = whole >> dropped;
  if (rest > half || (rest == half && units % 2 == 1)) ++units;
  const std::uint64_t magnitude = (static_cast<std::uint64_t>(unit - lowest) << fraction_bits) + units;
  return static_cast<std::uint16_t>(sign | std::min(magnitude, infinity));
}

struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  explicit Half(double x) : bits(rounded_bits<5, 10>(x)) {}
  template <std::floating_point T>
  explicit operator T() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, fraction = bits & 0x3FFu;
    std::uint32_t exponent = (bits >> 10) & 31u;
    if (exponent == 0)
      return (sign ? -0x1p-24f : 0x1p-24f) * static_cast<float>(fraction);  // subnormal or zero
    exponent = exponent == 31 ? 255 : exponent + 112;
    return std::bit_cast<float>(sign | exponent << 23 | fraction << 13);
  }
};

struct BrainFloat {
  std::uint16_t bits = 0;
  BrainFloat() = default;
  explicit BrainFloat(double x) : bits(rounded_bits<8, 7>(x)) {}
  template <std::floating_point T>
  explicit operator T() const {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  }
};

struct Truth {
  std::uint8_t bits = 0;
  Truth() = default;
  explicit Truth(bool x) : bits(x) {}
  template <class T>
  explicit operator T() const {
    return static_cast<T>(bits);
  }
};

// Calls f with an element of the C++ type behind `type`.
template <class F>
auto with_element_of(ElementType type, F f) {
  switch (type) {
    case ElementType::f64:
      return f(double{});
    case ElementType::f32:
      return f(float{});
    case ElementType::f16:
      return f(Half{});
    case ElementType::bf16:
      return f(BrainFloat{});
    case ElementType::i64:
      return f(std::int64_t{});
    case ElementType::i32:
      return f(std::int32_t{});
    case ElementType::i16:
      return f(std::int16_t{});
    case ElementType::i8:
      return f(std::int8_t{});
    case ElementType::u64:
      return f(std::uint64_t{});
    case ElementType::u32:
      return f(std::uint32_t{});
    case ElementType::u16:
      return f(std::uint16_t{});
    case ElementType::u8:
      return f(std::uint8_t{});
    case ElementType::truth:
      break;
  }
  return f(Truth{});
}

template <class T, class Stored>
constexpr bool is_readable_as = std::floating_point<T> || std::same_as<Stored, Truth> ||
                                (std::same_as<T, Index> ? std::integral<Stored>
                                                        : std::same_as<Stored, std::uint8_t>);

template <class T, class Stored>
constexpr bool is_writable_as =
    std::floating_point<T>
        ? std::floating_point<Stored> || std::same_as<Stored, Half> || std::same_as<Stored, BrainFloat>
        : std::same_as<Stored, std::conditional_t<std::same_as<T, Index>, std::int64_t, Truth>>;

template <class T, class Stored>
bool fits(Stored stored) {
  constexpr bool is_truth = std::same_as<T, bool> || std::same_as<Stored, Truth>;
  if constexpr (is_truth) return static_cast<std::uint8_t>(stored) <= 1;
  if constexpr (std::same_as<T, Index> && std::same_as<Stored, std::uint64_t>) return stored >> 63 == 0;
  return true;
}

template <class Stored>
using Bytes = std::array<std::byte, sizeof(Stored)>;

template <class Stored>
Bytes<Stored> reversed_if(bool swapped, Bytes<Stored> bytes) {
  if (swapped) std::reverse(bytes.begin(), bytes.end());
  return bytes;
}

// Converts `count` elements that lie `step` elements apart; true when all of them fit.
template <class T, class Stored>
bool widen(const std::byte* from, std::ptrdiff_t step, bool swapped, std::size_t count, T* to) {
  const auto run = [&](std::ptrdiff_t distance, bool swap) {
    bool all_fit = true;
    Bytes<Stored> bytes;
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&bytes, from + static_cast<std::ptrdiff_t>(i) * distance, sizeof bytes);
      const auto stored = std::bit_cast<Stored>(reversed_if<Stored>(swap, bytes));
      all_fit &= fits<T>(stored);
      to[i] = static_cast<T>(stored);
    }
    return all_fit;
  };
  // A step and a swap that the compiler knows make a loop of vectors.
  constexpr std::ptrdiff_t width = sizeof(Stored);
  if (step == 1) return swapped ? run(width, true) : run(width, false);
  return run(step * width, swapped);
}

template <class T, class Stored>
void narrow(const T* from, std::ptrdiff_t step, bool swapped, std::size_t count, std::byte* to) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto stored = static_cast<Stored>(from[static_cast<std::ptrdiff_t>(i) * step]);
    const auto bytes = reversed_if<Stored>(swapped, std::bit_cast<Bytes<Stored>>(stored));
    std::memcpy(to + i * sizeof bytes, &bytes, sizeof bytes);
  }
}

// Elements in memory: one that moves along axis i by 1 moves by step[i] elements.
struct Layout {
  Shape shape;
  Index step[max_rank] = {};
};

Layout row_major(const Shape& shape) {  // as one run
  Layout layout{Shape{shape.size()}};
  layout.step[0] = 1;
  return layout;
}

// The steps of an array of this shape whose first index runs fastest.
Layout first_fastest(const Shape& shape) {
  Layout layout{shape};
  Index next = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    layout.step[i] = next;
    next *= shape[i];
  }
  return layout;
}

// A row-major array of this shape, its axes in reverse order.
Layout reversed(const Shape& shape) {
  const Strides strides(shape);
  std::vector<Index> extents(shape.begin(), shape.end());
  std::ranges::reverse(extents);
  Layout layout{Shape(std::span<const Index>(extents))};
  for (int i = 0; i < shape.rank(); ++i) layout.step[i] = strides[shape.rank() - 1 - i];
  return layout;
}

// Calls f(offset, step, count) for runs of at most block_elements along the last axis, in row-major order.
template <class F>
void for_each_run(const Layout& layout, F f) {
  const int last = layout.shape.rank() - 1;
  if (layout.shape.size() == 0) return;
  if (last < 0) return f(Index{0}, Index{1}, std::size_t{1});
  const Index length = layout.shape[last], step = layout.step[last];
  Index position[max_rank] = {};
  Index offset = 0;
  for (;;) {
    for (Index i = 0; i < length; i += block_elements) {
      f(offset + i * step, step, static_cast<std::size_t>(std::min<Index>(length - i, block_elements)));
    }
    int axis = last - 1;
    for (; axis >= 0; --axis) {
      offset += layout.step[axis];
      if (++position[axis] < layout.shape[axis]) break;
      offset -= layout.step[axis] * std::exchange(position[axis], 0);
    }
    if (axis < 0) return;
  }
}

template <class T, class Stored>
Array<T> widened(const StoredArray& stored, const std::function<void(const std::string&)>& fail) {
  auto result = Array<T>::uninitialized(stored.shape);
  T* const begin = result.mutable_values().data();
  T* next = begin;
  const Layout layout = stored.fortran_order ? first_fastest(stored.shape) : row_major(stored.shape);
  for_each_run(layout, [&](Index offset, Index step, std::size_t count) {
    const std::byte* from = stored.bytes + offset * static_cast<Index>(sizeof(Stored));
    const std::ptrdiff_t distance = step * static_cast<Index>(sizeof(Stored));
    if (!widen<T, Stored>(from, step, stored.swapped, count, next)) {
      while (widen<T, Stored>(from, 1, stored.swapped, 1, next)) ++next, from += distance;
      fail("element " + position_text(stored.shape, next - begin) + " is not a value of type " +
           std::string(name_of_array<T>));
    }
    next += count;
  });
  return result;
}

template <class T>
bool in_place(const StoredArray& stored) {
  const bool row_major = !stored.fortran_order || stored.shape.rank() < 2;
  return stored.type == type_of_array<T> && !std::same_as<T, bool> && !stored.swapped && row_major &&
         reinterpret_cast<std::uintptr_t>(stored.bytes) % alignof(T) == 0;
}

// Elements on their way to a file, a block at a time.
class Blocks {
 public:
  explicit Blocks(Replacement& file) : file_(file) {}
  void flush() { file_.append(block_.data(), std::exchange(used_, 0)); }
  std::byte* room(std::size_t bytes) {  // at most block_elements * 8
    if (used_ + bytes > block_.size()) flush();
    return block_.data() + std::exchange(used_, used_ + bytes);
  }

 private:
  Replacement& file_;
  std::vector<std::byte> block_ = std::vector<std::byte>(std::size_t{8} * block_elements);
  std::size_t used_ = 0;
};

}  // namespace

std::size_t bytes_of(ElementType type) {
  return with_element_of(type, [](auto element) { return sizeof element; });
}

template <Element T>
bool readable_as(ElementType type) {
  return with_element_of(type, []<class Stored>(Stored) { return is_readable_as<T, Stored>; });
}

template <Element T>
bool writable_as(ElementType type) {
  return with_element_of(type, []<class Stored>(Stored) { return is_writable_as<T, Stored>; });
}

template <Element T>
Array<T> read_elements(const StoredArray& stored, const std::function<void(const std::string&)>& fail) {
  if (!readable_as<T>(stored.type)) throw LogicError("read_elements", "the type is not readable");
  if (in_place<T>(stored)) {
    return Array<T>::adopt(stored.owner, reinterpret_cast<const T*>(stored.bytes), stored.shape);
  }
  return with_element_of(stored.type, [&]<class Stored>(Stored) -> Array<T> {
    if constexpr (is_readable_as<T, Stored>) return widened<T, Stored>(stored, fail);
    return {};
  });
}

template <Element T>
void append_elements(Replacement& file, const Array<T>& array, const WrittenForm& form) {
  if (!writable_as<T>(form.type)) throw LogicError("append_elements", "the type is not writable");
  const bool row_major_order = !form.fortran_order || array.rank() < 2;
  if (form.type == type_of_array<T> && !form.swapped && row_major_order) {
    return file.append(array.data(), array.bytes());
  }
  const std::size_t width = bytes_of(form.type);
  const Layout layout = row_major_order ? row_major(array.shape()) : reversed(array.shape());
  Blocks blocks(file);
  for_each_run(layout, [&](Index offset, Index step, std::size_t count) {
    std::byte* const to = blocks.room(count * width);
    with_element_of(form.type, [&]<class Stored>(Stored) {
      if constexpr (is_writable_as<T, Stored>) {
        narrow<T, Stored>(array.data() + offset, step, form.swapped, count, to);
      }
    });
  });
  blocks.flush();
}

#define TAPEHEAD_INSTANTIATE(T)                                                                        \
  template bool readable_as<T>(ElementType);                                                           \
  template bool writable_as<T>(ElementType);                                                           \
  template Array<T> read_elements(const StoredArray&, const std::function<void(const std::string&)>&); \
  template void append_elements(Replacement&, const Array<T>&, const WrittenForm&);

TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
TAPEHEAD_INSTANTIATE(Index)
TAPEHEAD_INSTANTIATE(bool)

}  // namespace tapehead::detail
