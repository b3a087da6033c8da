#pragma once
// Products of two arrays by the letters of their axes.

#include <string_view>

#include <tapehead/core/var.h>

namespace tapehead {

// Y = the products of A and B, summed over the letters that Y has not
// dA = einsum(dY, B) with the letters exchanged                dB = einsum(dY, A), likewise
// spec "A's letters,B's letters->Y's letters", as in "bhld,bhsd->bhls": a letter an axis, a to z or A to Z,
// blanks ignored. A letter may be in one operand only, "bld,de->be". Its extent is the same wherever it is;
// an extent of 1 does not repeat. Throws DomainError for a spec that cannot be read, a letter twice in one
// operand or in Y, or a letter of Y that is in no operand; ShapeError for letters that do not fit an
// operand's axes, or two extents of a letter.
template <std::floating_point T>
Var<T> einsum(std::string_view spec, const Var<T>& a, const Var<T>& b);

}  // namespace tapehead
