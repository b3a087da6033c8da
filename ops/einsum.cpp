#include <tapehead/core/errors.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/einsum.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace tapehead {
namespace {

using Letters = std::string;  // of axes, in order

bool has(const Letters& letters, char letter) { return letters.find(letter) != Letters::npos; }

// The letters for which keep(letter) holds.
template <class F>
Letters filtered(const Letters& letters, F keep) {
  Letters result;
  std::copy_if(letters.begin(), letters.end(), std::back_inserter(result), keep);
  return result;
}

struct Spec {
  Letters a, b, y;
};

Spec read(std::string_view text) {
  auto refuse = [text](const std::string& what) {
    throw DomainError("einsum", what + ": \"" + std::string(text) + "\"");
  };
  std::string packed(text);
  std::erase(packed, ' ');
  const std::size_t arrow = packed.find("->"), comma = packed.find(',');
  if (arrow == std::string::npos) refuse("no -> and letters of the result");
  if (comma == std::string::npos || comma > arrow) refuse("no comma between two operands");
  const Spec spec{packed.substr(0, comma), packed.substr(comma + 1, arrow - comma - 1),
                  packed.substr(arrow + 2)};
  auto check = [&](const Letters& letters, const char* owner) {
    for (std::size_t i = 0; i < letters.size(); ++i) {
      const char letter = letters[i];
      const std::string quoted = std::string("\"") + letter + "\"";
      if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))) {
        refuse(quoted + " is no letter");
      }
      if (letters.find(letter) != i) refuse("the letter " + quoted + " occurs twice in " + owner);
      if (&letters == &spec.y && !has(spec.a, letter) && !has(spec.b, letter)) {
        refuse("the letter " + quoted + " of the result is in no operand");
      }
    }
  };
  check(spec.a, "operand a");
  check(spec.b, "operand b");
  check(spec.y, "the result");
  return spec;
}

// One operand or the result, and what its axes are called.
template <class T>
struct Lettered {
  Var<T> value;
  Letters letters;

  Index extent(char letter) const { return value.shape()[static_cast<int>(letters.find(letter))]; }
  Shape shape_of(const Letters& some) const {
    std::vector<Index> extents;
    for (const char letter : some) extents.push_back(extent(letter));
    return Shape(std::span<const Index>(extents));
  }
  Lettered without(const Letters& summed) const {
    if (summed.empty()) return *this;
    std::vector<int> axes;
    for (const char letter : summed) axes.push_back(static_cast<int>(letters.find(letter)));
    return {sum(value, Axes(axes)), filtered(letters, [&](char letter) { return !has(summed, letter); })};
  }
  Var<T> in_order(const Letters& order) const {
    if (letters == order) return value;
    std::vector<int> axes;
    for (const char letter : order) axes.push_back(static_cast<int>(letters.find(letter)));
    return permute(value, std::span<const int>(axes));
  }
};

// A batch of matrices, perhaps as stored.
template <class T>
struct Matrices {
  Var<T> value;
  bool transposed = false;
};

// The axes of x folded into (batch, rows, columns), or (batch, columns, rows) where that is how they lie.
template <class T>
Matrices<T> folded(const Lettered<T>& x, const Letters& batch, const Letters& rows, const Letters& columns) {
  const bool transposed = x.letters != batch + rows + columns && x.letters == batch + columns + rows;
  const Letters order = batch + (transposed ? columns + rows : rows + columns);
  const Var<T> value = x.in_order(order);
  const Index m = x.shape_of(rows).size(), n = x.shape_of(columns).size();
  Shape shape = transposed ? Shape{n, m} : Shape{m, n};
  if (!batch.empty()) shape = Shape{x.shape_of(batch).size()}.followed_by(shape);
  return {value.shape() == shape ? value : reshape(value, shape), transposed};
}

}  // namespace

template <std::floating_point T>
Var<T> einsum(std::string_view text, const Var<T>& first, const Var<T>& second) {
  const Spec spec = read(text);
  Lettered<T> a{first, spec.a}, b{second, spec.b};
  for (const Lettered<T>& x : {a, b}) {
    if (static_cast<int>(x.letters.size()) != x.value.rank()) {
      throw ShapeError("einsum", "\"" + x.letters + "\" does not name each axis",
                       {{"a", first.shape()}, {"b", second.shape()}});
    }
  }
  for (const char letter : a.letters) {
    if (has(b.letters, letter) && a.extent(letter) != b.extent(letter)) {
      throw ShapeError("einsum", std::string("the extents of \"") + letter + "\" differ",
                       {{"a", first.shape()}, {"b", second.shape()}});
    }
  }
  auto only_in = [&](const Letters& own, const Letters& other) {
    return filtered(own, [&](char letter) { return !has(other, letter) && !has(spec.y, letter); });
  };
  a = a.without(only_in(spec.a, spec.b));
  b = b.without(only_in(spec.b, spec.a));

  // What the result has of one operand alone becomes rows and columns; whose letter comes first has the rows.
  auto shared = [&](char letter) { return has(a.letters, letter) && has(b.letters, letter); };
  const Letters alone = filtered(spec.y, [&](char letter) { return !shared(letter); });
  if (!alone.empty() && has(b.letters, alone[0])) std::swap(a, b);
  const Letters rows = filtered(alone, [&](char letter) { return has(a.letters, letter); });
  const Letters columns = filtered(alone, [&](char letter) { return has(b.letters, letter); });
  const Letters inner =
      filtered(a.letters, [&](char letter) { return shared(letter) && !has(spec.y, letter); });
  // Of three orders of the batch the one that two agree on, so that at most one is permuted for it.
  auto batch_in = [&](const Letters& letters) {
    return filtered(letters, [&](char letter) { return shared(letter) && has(spec.y, letter); });
  };
  const Letters batch = batch_in(batch_in(b.letters) == batch_in(spec.y) ? spec.y : a.letters);

  const Matrices<T> left = folded(a, batch, rows, inner), right = folded(b, batch, inner, columns);
  // Without a letter to sum over it is no matrix product but one number times another.
  const Var<T> product = inner.empty() ? mul(left.value, right.value)
                                       : matmul(left.value, right.value, left.transposed, right.transposed);
  const Shape shape = a.shape_of(batch + rows).followed_by(b.shape_of(columns));
  return Lettered<T>{reshape(product, shape), batch + rows + columns}.in_order(spec.y);
}

template Var<float> einsum(std::string_view, const Var<float>&, const Var<float>&);
template Var<double> einsum(std::string_view, const Var<double>&, const Var<double>&);

}  // namespace tapehead
