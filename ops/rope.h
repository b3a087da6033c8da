#pragma once
// Rotary positions: pairs of numbers turned by an angle that grows with the position, so that the product of
// a query and a key depends on how far apart they are (Su and others, RoFormer, 2021, section 3.2).

#include <tapehead/core/per_sample.h>
#include <tapehead/core/var.h>

namespace tapehead {

// Which two of a row of D numbers turn together.
enum class Pairing {
  half,        // i and i + D / 2: GPT-NeoX, Llama as published by Hugging Face
  neighbours,  // 2 i and 2 i + 1: the paper, GPT-J
};

// What is turned together, and by how much.
struct RopeOptions {
  Pairing pairing = Pairing::half;
  double base = 10000;
  PerSample start = 0;        // the position of the first row
  Index width = 0;            // how many of the D are turned, the first ones; 0: all
  double position_scale = 1;  // positions are multiplied by it: 1/4 reads four times the length (Chen and
                              // others, "Extending context window ... via positional interpolation", 2023)
};

// (y1, y2) = (x1 cos - x2 sin, x1 sin + x2 cos)      (dx1, dx2) = (dy1 cos + dy2 sin, dy2 cos - dy1 sin)
// X (..., L, D)   Y the same; pair i of row l is turned by scale (start + l) base^(-2 i / width), what lies
// past the width is left as it is. Throws ShapeError for fewer than two axes, an odd or too large width, a
// start that is not one or one for each sample; DomainError unless base and scale are positive and finite.
template <std::floating_point T>
Var<T> rope(const Var<T>& x, const RopeOptions& options = {});

// The same with given cosines and sines; they may differ from those of an angle.
// X (..., L, D)   cosines, sines of one shape that broadcasts to (..., L, width / 2)
// Throws ShapeError when they do not, and as above.
template <std::floating_point T>
Var<T> rope(const Var<T>& x, const Array<T>& cosines, const Array<T>& sines, Pairing pairing = Pairing::half,
            Index width = 0);

}  // namespace tapehead
