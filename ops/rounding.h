#pragma once
// Numbers rounded to a narrower format, to see what that format does to a computation.

#include <tapehead/core/array.h>

namespace tapehead {

// IEEE 754 binary64, binary32 and binary16, and the upper half of a binary32.
enum class Precision { f64, f32, f16, bf16 };

// The number of that format nearest to x, of two equally near ones the even one; infinity when that lies past
// the largest (from 65520 on in f16), a subnormal number or a zero of the same sign below the smallest normal
// one. Infinities and NaN stay. Rounded once, however many digits x has. Not differentiable: it takes plain
// numbers. IEEE 754-2019, sections 3.3 and 4.3.1; bf16 has its exponent in 8 bits and its fraction in 7.
template <std::floating_point T>
T round_to(T x, Precision precision);
// Each of them.
template <std::floating_point T>
Array<T> round_to(const Array<T>& x, Precision precision);

}  // namespace tapehead
