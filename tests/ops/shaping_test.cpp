#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;

V counted(const Shape& shape) { return Array<double>::arange(shape.size()).reshape(shape); }

// Calls f with every index of the shape.
template <class F>
void for_each_index(const Shape& shape, F f) {
  std::vector<Index> index(static_cast<std::size_t>(shape.rank()));
  for (Index number = 0; number < shape.size(); ++number) {
    for (Index rest = number, axis = shape.rank(); axis-- > 0; rest /= shape[static_cast<int>(axis)]) {
      index[static_cast<std::size_t>(axis)] = rest % shape[static_cast<int>(axis)];
    }
    f(index);
  }
}

// <A x, y> = <x, A^T y> with small integers, exactly.
template <class Op, class Adjoint>
void expect_adjoint(Op op, Adjoint adjoint, const Shape& x_shape) {
  Generator generator(99);
  auto whole = [&](const Shape& shape) {
    Array<double> x = generator.integers(shape, 19).cast<double>();
    for (double& value : x.mutable_values()) value -= 9;
    return V(x);
  };
  const V x = whole(x_shape);
  const V y = op(x), w = whole(y.shape());
  const V back = adjoint(w);
  ASSERT_EQ(back.shape(), x.shape());
  EXPECT_EQ(sum(y * w).item(), sum(x * back).item());
}

// ---------------------------------------------------------------- reshape

TEST(Reshape, KeepsTheElementsInOrderAndCopiesNone) {
  const V x = counted({2, 3, 4});
  const V y = reshape(x, {4, 6});
  EXPECT_EQ(y.shape(), Shape({4, 6}));
  EXPECT_TRUE(y.value().shares_storage_with(x.value()));
  EXPECT_EQ(reshape(x, {-1}).shape(), Shape({24}));
  EXPECT_EQ(reshape(x, {2, -1, 2}).shape(), Shape({2, 6, 2}));
  EXPECT_EQ(reshape(x, Shape{24, 1}).shape(), Shape({24, 1}));
  EXPECT_EQ(reshape(V(Array<double>::scalar(3)), {1, -1}).shape(), Shape({1, 1}));
  EXPECT_EQ(reshape(V(Array<double>::ones({1, 1})), Shape{}).shape(), Shape{});
  EXPECT_EQ(reshape(V(Array<double>::zeros({0, 3})), {3, 0}).shape(), Shape({3, 0}));
}

TEST(Reshape, SizesThatDifferAreNamed) {
  const V x = counted({2, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { reshape(x, {4, 2}); }, {"reshape:", "(2, 3)", "(4, 2)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { reshape(x, Shape{7}); }, {"reshape:", "(2, 3)", "(7)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { reshape(x, {4, -1}); }, {"reshape:", "(2, 3)", "4, -1"}));
  EXPECT_TRUE(raises<ShapeError>([&] { reshape(x, {-1, -1}); }, {"reshape:", "more than one"}));
  EXPECT_THROW(reshape(V(Array<double>::zeros({0, 3})), {0, -1}), ShapeError);
}

// ---------------------------------------------------------------- permute and transpose

TEST(Permute, EveryOrderOfFourAxes) {
  const V x = counted({2, 3, 4, 5});
  std::vector<int> axes = {0, 1, 2, 3};
  do {
    const Array<double> y = permute(x, std::span<const int>(axes)).value();
    for (int i = 0; i < 4; ++i) ASSERT_EQ(y.dim(i), x.dim(axes[static_cast<std::size_t>(i)]));
    for_each_index(y.shape(), [&](const std::vector<Index>& index) {
      std::vector<Index> from(4);
      for (std::size_t i = 0; i < 4; ++i) from[static_cast<std::size_t>(axes[i])] = index[i];
      ASSERT_EQ(y.at(index), x.value().at(from));
    });
    std::vector<int> back(4);
    for (std::size_t i = 0; i < 4; ++i) back[static_cast<std::size_t>(axes[i])] = static_cast<int>(i);
    EXPECT_SAME_NUMBERS(permute(V(y), std::span<const int>(back)), x);
    auto there = [&](const V& v) { return permute(v, std::span<const int>(axes)); };
    auto and_back = [&](const V& v) { return permute(v, std::span<const int>(back)); };
    expect_adjoint(there, and_back, x.shape());
  } while (std::ranges::next_permutation(axes).found);
}

TEST(Permute, AxesOfOneAndOfNothing) {
  EXPECT_SAME_NUMBERS(permute(counted({3, 1, 4}), {1, 2, 0}), reshape(transpose(counted({3, 4})), {1, 4, 3}));
  EXPECT_EQ(permute(counted({3, 0, 4}), {2, 0, 1}).shape(), Shape({4, 3, 0}));
  EXPECT_EQ(permute(V(Array<double>::scalar(2)), {}).item(), 2);
}

TEST(Permute, AxesFromTheEnd) {
  EXPECT_SAME_NUMBERS(permute(counted({2, 3, 4}), {-1, 0, -2}), permute(counted({2, 3, 4}), {2, 0, 1}));
}

TEST(Permute, NeedsEachAxisOnce) {
  const V x = counted({2, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { permute(x, {0}); }, {"permute:", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { permute(x, {0, 0}); }, {"permute:", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { permute(x, {0, -2}); }, {"permute:", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { permute(x, {0, 1, 2}); }, {"permute:", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { permute(x, {0, 2}); }, {"permute:", "axis 2", "(2, 3)"}));
}

TEST(Transpose, ExchangesTwoAxesByDefaultTheLast) {
  const V x = counted({2, 3, 4});
  EXPECT_SAME_NUMBERS(transpose(x), permute(x, {0, 2, 1}));
  EXPECT_SAME_NUMBERS(transpose(x, 0, -1), permute(x, {2, 1, 0}));
  EXPECT_SAME_NUMBERS(transpose(x, 1, 1), x);
  EXPECT_TRUE(raises<ShapeError>([] { transpose(counted({3})); }, {"transpose:", "axis -2", "(3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { transpose(x, 0, 3); }, {"transpose:", "axis 3", "(2, 3, 4)"}));
}

// Sizes beside the tiles of 32 and beyond one piece of work.
TEST(Transpose, LargeOnesAreRightAndTheSameBitsOnAnyThreads) {
  for (const Shape& shape : {Shape{33, 31}, Shape{257, 301}, Shape{9, 65, 127}, Shape{70, 31, 33}}) {
    const V x = counted(shape);
    expect_same_bits_on_any_threads([&] {
      return std::vector{transpose(x).value(), transpose(x, 0, -1).value(), transpose(x, 0, 1).value()};
    });
    const Array<double> y = transpose(x).value();
    const Index rows = x.dim(-2), columns = x.dim(-1);
    for (Index i = 0; i < x.size(); ++i) {
      const Index matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
      ASSERT_EQ(y.data()[(matrix * columns + column) * rows + row], static_cast<double>(i));
    }
  }
}

// ---------------------------------------------------------------- broadcast_to and sum_to

TEST(BroadcastTo, RepeatsEveryAxisThatIsOneOrMissing) {
  const Shape to{2, 3, 4};
  for (unsigned ones = 0; ones < 8; ++ones) {
    for (int dropped = 0; dropped <= 3; ++dropped) {
      Shape from = to;
      for (int i = 0; i < 3; ++i) {
        if (ones >> i & 1u) from = from.with(i, 1);
      }
      from = from.last(3 - dropped);
      const V x = counted(from);
      const Array<double> y = broadcast_to(x, to).value();
      ASSERT_EQ(y.shape(), to);
      for_each_index(to, [&](const std::vector<Index>& index) {
        std::vector<Index> own(index.begin() + dropped, index.end());
        for (std::size_t i = 0; i < own.size(); ++i) own[i] = std::min(own[i], from[static_cast<int>(i)] - 1);
        ASSERT_EQ(y.at(index), x.value().at(own)) << to_string(from);
      });
      expect_adjoint([&](const V& v) { return broadcast_to(v, to); },
                     [&](const V& v) { return sum_to(v, from); }, from);
      expect_adjoint([&](const V& v) { return sum_to(v, from); },
                     [&](const V& v) { return broadcast_to(v, to); }, to);
    }
  }
}

TEST(BroadcastTo, ToNothingAndBackIsZero) {
  EXPECT_EQ(broadcast_to(counted({3, 1}), {3, 0}).shape(), Shape({3, 0}));
  EXPECT_EQ(sum_to(V(Array<double>::zeros({3, 0})), {3, 1}).value().to_vector(),
            (std::vector<double>{0, 0, 0}));
}

TEST(BroadcastTo, ShapesThatDoNotFitAreNamed) {
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        broadcast_to(counted({2, 3}), {3, 3});
      },
      {"broadcast_to:", "(2, 3)", "(3, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        broadcast_to(counted({2, 3}), {3});
      },
      {"broadcast_to:", "(2, 3)", "(3)"}));
  EXPECT_TRUE(raises<ShapeError>([] { broadcast_to(counted({3}), {1}); }, {"broadcast_to:", "(3)", "(1)"}));
  EXPECT_TRUE(raises<ShapeError>([] { sum_to(counted({2, 3}), {2}); }, {"sum_to:", "(2, 3)", "(2)"}));
  EXPECT_TRUE(raises<ShapeError>([] { sum_to(counted({3}), {2, 3}); }, {"sum_to:", "(3)", "(2, 3)"}));
}

// ---------------------------------------------------------------- concat

TEST(Concat, AlongEveryAxis) {
  for (int axis = 0; axis < 3; ++axis) {
    const Shape shape{2, 3, 4};
    std::vector<V> parts;
    Index total = 0;
    for (const Index extent : {2, 1, 0, 3}) {
      parts.push_back(counted(shape.with(axis, extent)) + 100.0 * static_cast<double>(total));
      total += extent;
    }
    const V y = concat(parts, axis);
    EXPECT_SAME_NUMBERS(concat(parts, axis - 3), y);
    ASSERT_EQ(y.shape(), shape.with(axis, total));
    Index start = 0;
    for (const V& part : parts) {
      for_each_index(part.shape(), [&](std::vector<Index> index) {
        const double expected = part.value().at(index);
        index[static_cast<std::size_t>(axis)] += start;
        ASSERT_EQ(y.value().at(index), expected);
      });
      start += part.dim(axis);
    }
  }
}

TEST(Concat, GradientsAreTheSlicesOfEachPart) {
  Tape<double> tape;
  const V a = tape.input(counted({2, 2}).value()), b = tape.input(counted({2, 1}).value());
  const V y = concat({a, b, a}, 1);
  const auto d = gradient_values(y, {a, b}, counted({2, 5}));
  EXPECT_EQ(d[0].to_vector(), (std::vector<double>{0 + 3, 1 + 4, 5 + 8, 6 + 9}));
  EXPECT_EQ(d[1].to_vector(), (std::vector<double>{2, 7}));
}

TEST(Concat, OfOneAndOfFloats) {
  EXPECT_SAME_NUMBERS(concat({counted({2, 3})}, 0), counted({2, 3}));
  const Var<float> x = Array<float>::ones({2});
  EXPECT_EQ(concat({x, x}, 0).shape(), Shape({4}));
}

TEST(Concat, WhatDoesNotFitIsNamed) {
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        concat({counted({2, 3}), counted({2, 4})}, 0);
      },
      {"concat:", "axis 0", "(2, 3)", "(2, 4)"}));
  EXPECT_TRUE(raises<ShapeError>(
      [] {
        concat({counted({2, 3}), counted({2, 3, 1})}, 1);
      },
      {"concat:", "(2, 3)", "(2, 3, 1)"}));
  EXPECT_TRUE(raises<ShapeError>([] { concat({counted({2, 3})}, 2); }, {"concat:", "axis 2", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([] { concat({V(Array<double>::scalar(1))}, 0); }, {"concat:", "()"}));
  EXPECT_TRUE(raises<ShapeError>([] { concat(std::vector<V>{}, 0); }, {"concat:"}));
}

// ---------------------------------------------------------------- slice

// What Python's x[start:stop:step] takes from an axis, by walking it.
std::vector<Index> sliced_indices(Index extent, const Slice& s) {
  std::vector<Index> taken;
  auto from_end = [&](Index i) { return i < 0 ? i + extent : i; };
  if (s.step > 0) {
    const Index start = s.start ? std::max<Index>(from_end(*s.start), 0) : 0;
    const Index stop = s.stop ? from_end(*s.stop) : extent;
    for (Index i = start; i < std::min(stop, extent); i += s.step) taken.push_back(i);
  } else {
    const Index start = s.start ? std::min(from_end(*s.start), extent - 1) : extent - 1;
    const Index stop = s.stop ? from_end(*s.stop) : -1;
    for (Index i = start; i > std::max<Index>(stop, -1); i += s.step) taken.push_back(i);
  }
  return taken;
}

std::vector<std::optional<Index>> bounds() {
  std::vector<std::optional<Index>> result = {std::nullopt, 1000, -1000};
  for (Index i = -7; i <= 7; ++i) result.push_back(i);
  return result;
}

TEST(Slice, EveryStartStopAndStepAsInPython) {
  int slices = 0;
  for (Index extent = 0; extent <= 5; ++extent) {
    const V x = counted({extent});
    for (const auto& start : bounds()) {
      for (const auto& stop : bounds()) {
        for (const Index step : {1, 2, 3, 7, -1, -2, -3, -7}) {
          const Slice part{start, stop, step};
          const std::vector<Index> expected = sliced_indices(extent, part);
          const Array<double> y = slice(x, {part}).value();
          ASSERT_EQ(y.cast<Index>().to_vector(), expected)
              << extent << "[" << start.value_or(99) << ":" << stop.value_or(99) << ":" << step << "]";
          const Array<double> back = unslice(V(y) + 1.0, {extent}, std::vector{part}).value();
          std::vector<double> scattered(static_cast<std::size_t>(extent));
          for (const Index i : expected) scattered[static_cast<std::size_t>(i)] = static_cast<double>(i + 1);
          ASSERT_EQ(back.to_vector(), scattered);
          ++slices;
        }
      }
    }
  }
  EXPECT_EQ(slices, 6 * 18 * 18 * 8);
}

TEST(Slice, TheOracleIsPythonItself) {  // these by Python 3.11
  EXPECT_EQ(sliced_indices(5, {{}, {}, 2}), (std::vector<Index>{0, 2, 4}));
  EXPECT_EQ(sliced_indices(5, {{}, {}, -2}), (std::vector<Index>{4, 2, 0}));
  EXPECT_EQ(sliced_indices(5, {-2, {}, 1}), (std::vector<Index>{3, 4}));
  EXPECT_EQ(sliced_indices(5, {1, -1, 1}), (std::vector<Index>{1, 2, 3}));
  EXPECT_EQ(sliced_indices(5, {-9, 3, 1}), (std::vector<Index>{0, 1, 2}));
  EXPECT_EQ(sliced_indices(5, {9, -9, -3}), (std::vector<Index>{4, 1}));
  EXPECT_EQ(sliced_indices(5, {3, -1, -1}), (std::vector<Index>{}));
  EXPECT_EQ(sliced_indices(5, {2, 0, -1}), (std::vector<Index>{2, 1}));
}

TEST(Slice, EnormousStepsTakeOneElement) {
  constexpr Index most = std::numeric_limits<Index>::max(), least = std::numeric_limits<Index>::min();
  const V x = counted({5});
  EXPECT_EQ(slice(x, {{1, {}, most}}).value().to_vector(), (std::vector<double>{1}));
  EXPECT_EQ(slice(x, {{{}, {}, -most}}).value().to_vector(), (std::vector<double>{4}));
  EXPECT_EQ(slice(x, {{{}, {}, least}}).value().to_vector(), (std::vector<double>{4}));
  EXPECT_EQ(slice(x, {{least, most, 3}}).value().to_vector(), (std::vector<double>{0, 3}));
}

TEST(Slice, OfSeveralAxesTakesTheirCombinations) {
  const V x = counted({4, 5, 6});
  Generator generator(1);
  auto random_bound = [&]() -> std::optional<Index> {
    if (generator.below(3) == 0) return std::nullopt;
    return generator.below(15) - 7;
  };
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::vector<Slice> slices(static_cast<std::size_t>(generator.below(4)));
    std::vector<std::vector<Index>> taken;
    for (int axis = 0; axis < 3; ++axis) {
      const bool named = axis < static_cast<int>(slices.size());
      if (named) {
        const Index step = 1 + generator.below(3);
        slices[static_cast<std::size_t>(axis)] = {random_bound(), random_bound(),
                                                  generator.below(2) ? step : -step};
      }
      taken.push_back(sliced_indices(x.dim(axis), named ? slices[static_cast<std::size_t>(axis)] : Slice{}));
    }
    const Array<double> y = slice(x, std::span<const Slice>(slices)).value();
    for (int axis = 0; axis < 3; ++axis) {
      ASSERT_EQ(y.dim(axis), static_cast<Index>(taken[static_cast<std::size_t>(axis)].size()));
    }
    for_each_index(y.shape(), [&](const std::vector<Index>& index) {
      std::vector<Index> from;
      for (std::size_t axis = 0; axis < 3; ++axis)
        from.push_back(taken[axis][static_cast<std::size_t>(index[axis])]);
      ASSERT_EQ(y.at(index), x.value().at(from));
    });
    expect_adjoint([&](const V& v) { return slice(v, std::span<const Slice>(slices)); },
                   [&](const V& v) { return unslice(v, x.shape(), slices); }, x.shape());
  }
}

TEST(Slice, OfOneAxisLeavesTheOthersWhole) {
  const V x = counted({2, 3, 4});
  EXPECT_SAME_NUMBERS(slice(x, 1, {1, {}}), slice(x, {{}, {1, {}}}));
  EXPECT_SAME_NUMBERS(slice(x, -1, {{}, {}, -1}), slice(x, {{}, {}, {{}, {}, -1}}));
  EXPECT_SAME_NUMBERS(slice(x, 0, {}), x);
}

TEST(Slice, GradientIsZeroWhereNothingWasTaken) {
  Tape<double> tape;
  const V x = tape.input(counted({2, 5}).value());
  const V y = slice(x, {{1, {}}, {3, 0, -2}});
  const auto dx = gradient_values(y, x, V(Array<double>::of({{10, 20}})))[0];
  EXPECT_EQ(dx.to_vector(), (std::vector<double>{0, 0, 0, 0, 0, 0, 20, 0, 10, 0}));
}

TEST(Slice, WhatCannotBeMeantIsAnError) {
  const V x = counted({2, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { slice(x, {{}, {}, {}}); }, {"slice:", "3 slices", "(2, 3)"}));
  EXPECT_TRUE(raises<DomainError>([&] { slice(x, {{}, {0, 2, 0}}); }, {"slice:", "step", "axis 1"}));
  EXPECT_TRUE(raises<ShapeError>([&] { slice(x, 2, {}); }, {"slice:", "axis 2", "(2, 3)"}));
  const std::vector<Slice> one_row = {{0, 1}};
  EXPECT_TRUE(raises<ShapeError>([&] { unslice(x, {2, 3}, one_row); }, {"unslice:", "(2, 3)", "(1, 3)"}));
}

// ---------------------------------------------------------------- stack

TEST(Stack, AlongEveryNewAxis) {
  const Shape shape{2, 3, 4};
  const std::vector<V> parts = {counted(shape), counted(shape) + 100.0, counted(shape) * -1.0};
  for (int axis = 0; axis <= 3; ++axis) {
    const V y = stack(parts, axis);
    EXPECT_SAME_NUMBERS(stack(parts, axis - 4), y);
    ASSERT_EQ(y.shape(), shape.first(axis).followed_by({3}).followed_by(shape.last(3 - axis)));
    for_each_index(y.shape(), [&](std::vector<Index> index) {
      const double stacked = y.value().at(index);
      const Index part = index[static_cast<std::size_t>(axis)];
      index.erase(index.begin() + axis);
      ASSERT_EQ(stacked, parts[static_cast<std::size_t>(part)].value().at(index));
    });
  }
}

TEST(Stack, OfScalarsIsAVector) {
  const V a = Array<double>::scalar(2), b = Array<double>::scalar(3);
  EXPECT_EQ(stack({a, b, a}, 0).value().to_vector(), (std::vector<double>{2, 3, 2}));
  EXPECT_EQ(stack({a}, -1).shape(), Shape({1}));
  EXPECT_EQ(stack({counted({0, 2}), counted({0, 2})}, 1).shape(), Shape({0, 2, 2}));
}

TEST(Stack, GradientsAreThePartsOfEach) {
  Tape<double> tape;
  const V a = tape.input(counted({2}).value()), b = tape.input(counted({2}).value());
  const auto d = gradient_values(stack({a, b, a}, 1), {a, b}, counted({2, 3}));
  EXPECT_EQ(d[0].to_vector(), (std::vector<double>{0 + 2, 3 + 5}));
  EXPECT_EQ(d[1].to_vector(), (std::vector<double>{1, 4}));
}

TEST(Stack, WhatDoesNotFitIsNamed) {
  const V x = counted({2, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { stack({x, counted({3, 2})}, 0); }, {"stack:", "(2, 3)", "(3, 2)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { stack({x, counted({2, 3, 1})}, 0); }, {"stack:", "(2, 3, 1)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { stack({x}, 3); }, {"stack:", "axis 3", "rank 3", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { stack({x}, -4); }, {"stack:", "axis -4", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([] { stack(std::vector<V>{}, 0); }, {"stack:"}));
}

// ---------------------------------------------------------------- pad

TEST(Pad, PutsTheFillAroundAndNothingElse) {
  const V x = counted({2, 3, 4}) + 1.0;
  const std::vector<Padding> around = {{1, 0}, {}, {2, 3}};
  const V y = pad(x, std::span<const Padding>(around), -7);
  ASSERT_EQ(y.shape(), Shape({3, 3, 9}));
  EXPECT_SAME_NUMBERS(slice(y, {{1, {}}, {}, {2, 6}}), x);
  double filled = 0;
  for (const double value : y.value().values()) filled += value == -7 ? 1 : 0;
  EXPECT_EQ(filled, 3 * 3 * 9 - 2 * 3 * 4);
  EXPECT_SAME_NUMBERS(pad(x, {{1, 0}, {}, {2, 3}}, -7), y);
  EXPECT_SAME_NUMBERS(pad(pad(x, 0, {1, 0}, -7), -1, {2, 3}, -7), y);
}

TEST(Pad, WithZerosIsTheAdjointOfTakingAwayTheRim) {
  const std::vector<Padding> around = {{1, 2}, {0, 3}};
  auto rim_off = [](const V& v) { return slice(v, {{1, 3}, {0, 3}}); };
  expect_adjoint([&](const V& v) { return pad<double>(v, around); }, rim_off, {2, 3, 4});
  expect_adjoint(rim_off, [&](const V& v) { return pad<double>(v, around); }, {5, 6, 4});
}

TEST(Pad, OfNothingAndByNothing) {
  EXPECT_EQ(pad(counted({0}), {{1, 2}}, 5).value().to_vector(), (std::vector<double>{5, 5, 5}));
  EXPECT_SAME_NUMBERS(pad(counted({2, 3}), {}), counted({2, 3}));
  EXPECT_EQ(pad(V(Array<double>::scalar(4)), {}).item(), 4);
  Tape<double> tape;
  const V x = tape.input(Array<double>::zeros({0, 2}));
  const V y = pad(x, 0, {1, 1});
  EXPECT_EQ(gradient_values(y, x, counted({2, 2}))[0].shape(), Shape({0, 2}));
}

TEST(Pad, WhatCannotBeMeantIsAnError) {
  constexpr Index most = std::numeric_limits<Index>::max();
  const V x = counted({2, 3});
  EXPECT_TRUE(raises<DomainError>([&] { pad(x, {{1, 1}, {-1, 2}}); }, {"pad:", "axis 1", "-1 and 2"}));
  EXPECT_TRUE(raises<DomainError>([&] { pad(x, {{0, -3}}); }, {"pad:", "axis 0", "0 and -3"}));
  EXPECT_TRUE(raises<DomainError>([&] { pad(x, {{most, most}}); }, {"pad:", "axis 0"}));
  EXPECT_TRUE(raises<ShapeError>([&] { pad(x, {{}, {}, {}}); }, {"pad:", "3 paddings", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { pad(x, 2, {1, 1}); }, {"pad:", "axis 2", "(2, 3)"}));
}

// ---------------------------------------------------------------- flip and roll

TEST(Flip, ReadsEverySetOfAxesBackwards) {
  const V x = counted({2, 3, 4});
  for (unsigned set = 0; set < 8; ++set) {
    std::vector<int> axes;
    for (int i = 0; i < 3; ++i) {
      if (set >> i & 1u) axes.push_back(i % 2 == 0 ? i : i - 3);
    }
    auto flipped = [&](const V& v) { return flip(v, axes); };
    const V y = flipped(x);
    for_each_index(x.shape(), [&](std::vector<Index> index) {
      const double value = y.value().at(index);
      for (int i = 0; i < 3; ++i) {
        Index& at = index[static_cast<std::size_t>(i)];
        if (set >> i & 1u) at = x.dim(i) - 1 - at;
      }
      ASSERT_EQ(value, x.value().at(index));
    });
    expect_adjoint(flipped, flipped, x.shape());
  }
  EXPECT_SAME_NUMBERS(flip(x, 1), slice(x, {{}, {{}, {}, -1}}));
  EXPECT_EQ(flip(counted({0, 3}), 0).shape(), Shape({0, 3}));
}

TEST(Flip, AxesThatDoNotFitAreNamed) {
  EXPECT_TRUE(raises<ShapeError>([] { flip(counted({2, 3}), 2); }, {"flip:", "axis 2", "(2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([] { flip(counted({2, 3}), {1, -1}); }, {"flip:", "axis -1", "(2, 3)"}));
}

TEST(Roll, MovesEachAxisRoundItsEnd) {
  const V x = counted({2, 3, 4});
  for (int axis = 0; axis < 3; ++axis) {
    const Index n = x.dim(axis);
    for (Index shift = -9; shift <= 9; ++shift) {
      const V y = roll(x, shift, axis - (shift % 2 == 0 ? 3 : 0));
      for_each_index(x.shape(), [&](std::vector<Index> index) {
        const double value = x.value().at(index);
        Index& at = index[static_cast<std::size_t>(axis)];
        at = (at + shift + 9 * n) % n;
        ASSERT_EQ(y.value().at(index), value) << axis << " by " << shift;
      });
      expect_adjoint([&](const V& v) { return roll(v, shift, axis); },
                     [&](const V& v) { return roll(v, -shift, axis); }, x.shape());
    }
  }
}

TEST(Roll, AnyIntegerWillDo) {
  constexpr Index most = std::numeric_limits<Index>::max(), least = std::numeric_limits<Index>::min();
  Tape<double> tape;
  const V x = tape.input(counted({5}).value());
  const V far = roll(x, most, 0), back = roll(x, least, 0);  // 2^63 is 3 modulo 5
  EXPECT_SAME_NUMBERS(far, roll(x, 2, 0));
  EXPECT_SAME_NUMBERS(back, roll(x, -3, 0));
  EXPECT_SAME_NUMBERS(gradient_values(back, x, counted({5}))[0], roll(counted({5}), 3, 0));
  EXPECT_EQ(roll(counted({3, 0}), 1, 1).shape(), Shape({3, 0}));
  EXPECT_EQ(roll(counted({0, 3}), 1, 1).shape(), Shape({0, 3}));
  EXPECT_TRUE(raises<ShapeError>([] { roll(counted({2, 3}), 1, -3); }, {"roll:", "axis -3", "(2, 3)"}));
}

// ---------------------------------------------------------------- tril and triu

TEST(Triangles, KeepTheirSideOfEveryDiagonal) {
  constexpr Index most = std::numeric_limits<Index>::max(), least = std::numeric_limits<Index>::min();
  for (const Shape& shape : {Shape{3, 5}, Shape{5, 3}, Shape{2, 4, 4}, Shape{1, 3}, Shape{2, 3, 1}}) {
    const V x = counted(shape) + 1.0;
    const std::size_t row = static_cast<std::size_t>(shape.rank()) - 2;
    for (const Index diagonal :
         {least, Index{-9}, Index{-2}, Index{-1}, Index{0}, Index{1}, Index{3}, most}) {
      const V lower = tril(x, diagonal), upper = triu(x, diagonal);
      for_each_index(shape, [&](const std::vector<Index>& index) {
        const Index over = index[row + 1] - index[row];  // the diagonal that the element lies on
        ASSERT_EQ(lower.value().at(index), over <= diagonal ? x.value().at(index) : 0) << diagonal;
        ASSERT_EQ(upper.value().at(index), over >= diagonal ? x.value().at(index) : 0) << diagonal;
      });
      auto keep_lower = [&](const V& v) { return tril(v, diagonal); };
      auto keep_upper = [&](const V& v) { return triu(v, diagonal); };
      expect_adjoint(keep_lower, keep_lower, shape);
      expect_adjoint(keep_upper, keep_upper, shape);
    }
  }
}

TEST(Triangles, WhatIsLeftOutDoesNotMatter) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_SAME_NUMBERS(tril(V(Array<double>::of({{1, nan}, {2, 3}}))), V(Array<double>::of({{1, 0}, {2, 3}})));
  EXPECT_SAME_NUMBERS(triu(V(Array<double>::of({{1, 2}, {nan, 3}}))), V(Array<double>::of({{1, 2}, {0, 3}})));
}

TEST(Triangles, OfNothingAndOfTooFewAxes) {
  EXPECT_EQ(tril(counted({0, 3})).shape(), Shape({0, 3}));
  EXPECT_EQ(triu(counted({2, 3, 0}), -1).shape(), Shape({2, 3, 0}));
  EXPECT_TRUE(raises<ShapeError>([] { tril(counted({3})); }, {"tril:", "(3)"}));
  EXPECT_TRUE(raises<ShapeError>([] { triu(V(Array<double>::scalar(1))); }, {"triu:", "()"}));
}

// ---------------------------------------------------------------- repeat_interleave

TEST(RepeatInterleave, CopiesStandBesideEachOther) {
  const V x = counted({2, 3, 4});
  for (int axis = 0; axis < 3; ++axis) {
    for (const Index repeats : {1, 2, 5}) {
      const V y = repeat_interleave(x, repeats, axis);
      EXPECT_SAME_NUMBERS(repeat_interleave(x, repeats, axis - 3), y);
      ASSERT_EQ(y.shape(), x.shape().with(axis, repeats * x.dim(axis)));
      for_each_index(y.shape(), [&](std::vector<Index> index) {
        const double value = y.value().at(index);
        index[static_cast<std::size_t>(axis)] /= repeats;
        ASSERT_EQ(value, x.value().at(index));
      });
    }
  }
}

TEST(RepeatInterleave, GradientIsTheSumOverTheCopies) {
  Tape<double> tape;
  const V x = tape.input(counted({2, 2}).value());
  const V y = repeat_interleave(x, 3, 1);
  const auto dx =
      gradient_values(y, x, V(Array<double>::of({{1, 10, 100, 2, 20, 200}, {3, 30, 300, 4, 40, 400}})))[0];
  EXPECT_SAME_NUMBERS(dx, Array<double>::of({{111, 222}, {333, 444}}));
}

TEST(RepeatInterleave, OfHighRankAndNoTimes) {
  const V x = counted({1, 2, 1, 2, 1, 2, 1, 2});
  EXPECT_EQ(repeat_interleave(x, 2, 3).shape(), Shape({1, 2, 1, 4, 1, 2, 1, 2}));
  Tape<double> tape;
  const V in = tape.input(counted({2, 3}).value());
  const V none = repeat_interleave(in, 0, 1);
  EXPECT_EQ(none.shape(), Shape({2, 0}));
  EXPECT_SAME_NUMBERS(gradient_values(none, in, V(Array<double>::zeros({2, 0})))[0],
                      Array<double>::zeros({2, 3}));
}

TEST(RepeatInterleave, WhatCannotBeMeantIsAnError) {
  const V x = counted({2, 3});
  EXPECT_TRUE(raises<DomainError>([&] { repeat_interleave(x, -1, 0); }, {"repeat_interleave:", "-1"}));
  EXPECT_TRUE(
      raises<ShapeError>([&] { repeat_interleave(x, 2, 2); }, {"repeat_interleave:", "axis 2", "(2, 3)"}));
  EXPECT_THROW(repeat_interleave(x, std::numeric_limits<Index>::max(), 0), ShapeError);
}

// ---------------------------------------------------------------- one after another

TEST(Shaping, ChainsReadWhatTheirPartsRead) {
  const V x = counted({3, 4, 5});
  const V y = slice(permute(x, {2, 0, 1}), {{{}, {}, -2}, {1, {}}, {0, 4, 3}});  // (3, 2, 2)
  ASSERT_EQ(y.shape(), Shape({3, 2, 2}));
  for_each_index(y.shape(), [&](const std::vector<Index>& i) {
    EXPECT_EQ(y.value().at(i), x.value()(1 + i[1], 3 * i[2], 4 - 2 * i[0]));
  });
  const V z = broadcast_to(reshape(transpose(slice(x, 1, {{}, {}, 3}), 0, 2), {5, 1, 6}), {5, 2, 6});
  for_each_index(z.shape(), [&](const std::vector<Index>& i) {
    EXPECT_EQ(z.value().at(i), x.value()(i[2] % 3, i[2] / 3 * 3, i[0]));
  });
}

TEST(Shaping, GradientsComeBackThroughAChain) {
  Tape<double> tape;
  const V x = tape.input(counted({3, 4, 5}).value());
  const V y = slice(permute(x, {2, 0, 1}), {{{}, {}, -2}, {1, {}}, {0, 4, 3}});
  const V seed = counted({3, 2, 2}) + 1.0;
  Array<double> expected = Array<double>::zeros({3, 4, 5});
  for_each_index(y.shape(), [&](const std::vector<Index>& i) {
    expected.set({1 + i[1], 3 * i[2], 4 - 2 * i[0]}, seed.value().at(i));
  });
  EXPECT_SAME_NUMBERS(gradient_values(y, x, seed)[0], expected);
}

TEST(Shaping, HeadsSplitAndMergeToTheSame) {
  const V x = counted({2, 7, 6});
  const V heads = permute(reshape(x, {2, 7, 3, 2}), {0, 2, 1, 3});
  EXPECT_EQ(heads.shape(), Shape({2, 3, 7, 2}));
  EXPECT_EQ(heads.value()(1, 2, 5, 1), x.value()(1, 5, 5));
  EXPECT_SAME_NUMBERS(reshape(permute(heads, {0, 2, 1, 3}), {2, 7, 6}), x);
}

TEST(Shaping, ErrorsLeaveTheTapeAsItWas) {
  Tape<double> tape;
  const V x = tape.input(counted({2, 3}).value());
  EXPECT_THROW(reshape(x, {5}), ShapeError);
  EXPECT_THROW(permute(x, {0, 0}), ShapeError);
  EXPECT_THROW(broadcast_to(x, {3, 3}), ShapeError);
  EXPECT_THROW(concat({x, V(Array<double>::zeros({3}))}, 0), ShapeError);
  EXPECT_THROW(slice(x, {{0, 1, 0}}), DomainError);
  EXPECT_THROW(stack({x, V(Array<double>::zeros({3}))}, 0), ShapeError);
  EXPECT_THROW(pad(x, {{0, -1}}), DomainError);
  EXPECT_THROW(flip(x, 2), ShapeError);
  EXPECT_THROW(repeat_interleave(x, -1, 0), DomainError);
  EXPECT_EQ(tape.size(), 1);
}

TEST(Shaping, LargeArraysAreTheSameBitsOnAnyThreads) {
  const V x = Generator(2).normal<double>({40, 50, 60});
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const V in = tape.input(x.value());
    const V y = slice(permute(in, {1, 2, 0}), {{{}, {}, -1}, {1, {}}, {{}, {}, 2}});
    const V z = concat({y, y}, 1);
    const V wide = broadcast_to(reshape(slice(in, 2, {3, 4}), {40, 50, 1}), {40, 50, 60});
    return std::vector{z.value(), gradient_values(z, in, z.detach())[0], wide.value(),
                       gradient_values(wide, in, x.detach())[0]};
  });
  expect_same_bits_on_any_threads([&] {
    return std::vector{roll(x, 17, 1).value(), roll(x, -1, 0).value(),  tril(x, 3).value(),
                       triu(x, -3).value(),    flip(x, {0, 2}).value(), repeat_interleave(x, 3, 1).value()};
  });
}

}  // namespace
}  // namespace tapehead
