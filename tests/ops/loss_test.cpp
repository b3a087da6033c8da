#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using V = Var<double>;
using Options = CrossEntropyOptions<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

Options with(Reduction reduction) {
  Options options;
  options.reduction = reduction;
  return options;
}

// The definition as loops in long double: the weight of each class of a row, its loss and their gradient for
// the row's dloss.
struct Reference {
  Reference(const Array<double>& x, const Array<Index>& targets, const Options& options)
      : losses(Array<double>::zeros(targets.shape())), slopes(Array<double>::zeros(x.shape())) {
    const Index classes = x.dim(-1);
    auto weight = [&](Index c) {
      return options.weights.defined() ? static_cast<Number>(options.weights(c)) : 1;
    };
    for (Index row = 0; row < targets.size(); ++row) {
      const Index target = targets.data()[row];
      if (target == options.ignored) continue;
      target_weight += weight(target);
      Number total = 0, sum = 0, loss = 0;
      const double* in = x.data() + row * classes;
      Number largest = -infinity;
      for (Index c = 0; c < classes; ++c) largest = std::max<Number>(largest, in[c]);
      for (Index c = 0; c < classes; ++c) sum += std::exp(in[c] - largest);
      std::vector<Number> a;
      for (Index c = 0; c < classes; ++c) {
        const Number smoothing = options.smoothing;
        a.push_back((c == target ? (1 - smoothing) * weight(c) : 0) +
                    smoothing / static_cast<Number>(classes) * weight(c));
        total += a.back();
        loss += a.back() * (largest + std::log(sum) - in[c]);
      }
      losses.mutable_values()[static_cast<std::size_t>(row)] = static_cast<double>(loss);
      for (Index c = 0; c < classes; ++c) {
        slopes.mutable_values()[static_cast<std::size_t>(row * classes + c)] =
            static_cast<double>(std::exp(in[c] - largest) / sum * total - a[static_cast<std::size_t>(c)]);
      }
    }
  }
  double total() const {
    long double sum = 0;
    for (const double loss : losses.values()) sum += loss;
    return static_cast<double>(sum);
  }

  using Number = long double;
  Array<double> losses, slopes;
  long double target_weight = 0;
};

constexpr double tolerance = 1e-14;  // a few dozen roundings, relative to the largest element

TEST(CrossEntropy, EveryCombinationOfOptionsAgreesWithTheDefinition) {
  Generator generator(1);
  const Array<double> x = generator.normal<double>({2, 3, 5}, 0, 3);
  const auto targets = Array<Index>::of({{1, 4, 0}, {-7, 2, 1}});
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    for (const bool weighted : {false, true}) {
      Options options;
      options.ignored = -7;
      options.smoothing = smoothing;
      if (weighted) options.weights = Array<double>::of({0.5, 2, 0, 0.25, 1.5});
      const Reference reference(x, targets, options);
      for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean}) {
        options.reduction = reduction;
        Tape<double> tape;
        const V logits = tape.input(x);
        const V loss = cross_entropy(logits, targets, options);
        const V dloss =
            reduction == Reduction::none ? V(generator.normal<double>({2, 3})) : V(Array<double>::scalar(2));
        const double divisor =
            reduction == Reduction::mean ? static_cast<double>(reference.target_weight) : 1;
        if (reduction == Reduction::none) {
          EXPECT_NEAR_RELATIVE(loss, reference.losses, tolerance);
        } else {
          EXPECT_EQ(loss.shape(), Shape{});
          EXPECT_NEAR(loss.item(), reference.total() / divisor, tolerance * reference.total());
        }
        Array<double> expected = reference.slopes;
        for (Index i = 0; i < expected.size(); ++i) {
          const Index row = reduction == Reduction::none ? i / 5 : 0;
          expected.mutable_values()[static_cast<std::size_t>(i)] *= dloss.value().data()[row] / divisor;
        }
        EXPECT_NEAR_RELATIVE(gradient_values(loss, logits, dloss)[0], expected, tolerance);
        EXPECT_NEAR_RELATIVE(gradient(loss, logits, dloss)[0], expected, tolerance);
      }
    }
  }
}

TEST(CrossEntropy, EqualLogitsCostTheLogarithmOfTheirNumber) {
  const V loss = cross_entropy(V(Array<double>::zeros({3, 8})), Array<Index>::of({0, 3, 7}));
  EXPECT_DOUBLE_EQ(loss.item(), std::log(8.0));
}

TEST(CrossEntropy, OneRowMayStandAlone) {
  const V loss = cross_entropy(V(Array<double>::of({0, 0})), Array<Index>::scalar(1), with(Reduction::none));
  EXPECT_EQ(loss.shape(), Shape{});
  EXPECT_DOUBLE_EQ(loss.item(), std::log(2.0));
}

TEST(CrossEntropy, OneClassCostsNothing) {
  EXPECT_EQ(cross_entropy(V(Array<double>::of({{3}, {-4}})), Array<Index>::zeros({2})).item(), 0);
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({{1e4, 0, -1e4}, {1e300, -1e300, 0}}));
  const V loss = cross_entropy(x, Array<Index>::of({1, 0}), with(Reduction::none));
  EXPECT_EQ(loss.value().to_vector(), (std::vector<double>{1e4, 0}));
  EXPECT_EQ(gradient_values(loss, x, V(Array<double>::ones({2})))[0].to_vector(),
            (std::vector<double>{1, -1, 0, 0, 0, 0}));
}

TEST(CrossEntropy, AClassThatCannotBeCostsNothingUnlessItIsTheTarget) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({{0, -infinity, 0}}));
  const V possible = cross_entropy(x, Array<Index>::of({2}));
  EXPECT_DOUBLE_EQ(possible.item(), std::log(2.0));
  for (const Array<double>& dx : {gradient_values(possible, x)[0], gradient(possible, x)[0].value()}) {
    EXPECT_NEAR_RELATIVE(dx, Array<double>::of({{0.5, 0, -0.5}}), 1e-15);
  }
  EXPECT_EQ(cross_entropy(x, Array<Index>::of({1})).item(), infinity);
}

TEST(CrossEntropy, NanStaysInItsRow) {
  const V x = Array<double>::of({{0, nan}, {0, 0}});
  const Array<double> loss = cross_entropy(x, Array<Index>::of({0, 0}), with(Reduction::none)).value();
  EXPECT_TRUE(std::isnan(loss(0)));
  EXPECT_DOUBLE_EQ(loss(1), std::log(2.0));
}

TEST(CrossEntropy, AnIgnoredRowCountsForNothingWhateverItHolds) {
  Options options = with(Reduction::sum);
  options.ignored = -1;
  for (const double smoothing : {0.0, 0.1}) {
    options.smoothing = smoothing;
    Tape<double> tape;
    const V x = tape.input(Array<double>::of({{nan, infinity}, {0, 0}}));
    const V loss = cross_entropy(x, Array<Index>::of({-1, 0}), options);
    EXPECT_DOUBLE_EQ(loss.item(), std::log(2.0));
    for (const Array<double>& dx : {gradient_values(loss, x)[0], gradient(loss, x)[0].value()}) {
      EXPECT_EQ(dx(0, 0), 0);
      EXPECT_EQ(dx(0, 1), 0);
    }
  }
}

TEST(CrossEntropy, WithEveryTargetIgnoredThereIsNoMean) {
  Options options;
  options.ignored = 2;
  const V x = Array<double>::zeros({3, 4});
  const auto targets = Array<Index>::full({3}, 2);
  EXPECT_TRUE(raises<DomainError>([&] { cross_entropy(x, targets, options); }, {"cross_entropy:", "mean"}));
  options.reduction = Reduction::sum;
  EXPECT_EQ(cross_entropy(x, targets, options).item(), 0);
  options.reduction = Reduction::none;
  EXPECT_EQ(cross_entropy(x, targets, options).value().to_vector(), (std::vector<double>{0, 0, 0}));
}

TEST(CrossEntropy, OfNoRows) {
  const V x = Array<double>::zeros({0, 4});
  const auto none = Array<Index>::zeros({0});
  EXPECT_EQ(cross_entropy(x, none, with(Reduction::sum)).item(), 0);
  EXPECT_EQ(cross_entropy(x, none, with(Reduction::none)).shape(), Shape({0}));
  EXPECT_THROW(cross_entropy(x, none), DomainError);
}

TEST(CrossEntropy, TargetsWithoutWeightHaveNoMean) {
  Options options;
  options.weights = Array<double>::of({0, 1});
  EXPECT_THROW(cross_entropy(V(Array<double>::zeros({2, 2})), Array<Index>::zeros({2}), options),
               DomainError);
}

TEST(CrossEntropy, ATargetThatIsNoClassIsNamedWithItsPosition) {
  const V x = Array<double>::zeros({2, 3, 4});
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        cross_entropy(x, Array<Index>::of({{0, 1, 2}, {3, 4, 0}}));
      },
      {"cross_entropy:", "target 4", "position (1, 1)", "0 to 3"}));
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        cross_entropy(x, Array<Index>::of({{0, 1, -1}, {3, 0, 0}}));
      },
      {"target -1", "position (0, 2)"}));
}

TEST(CrossEntropy, SmoothingIsAShare) {
  Options options;
  const V x = Array<double>::zeros({1, 2});
  for (const double smoothing : {-0.1, 1.1, nan}) {
    options.smoothing = smoothing;
    EXPECT_TRUE(raises<DomainError>([&] { cross_entropy(x, Array<Index>::zeros({1}), options); },
                                    {"cross_entropy:", "smoothing"}));
  }
}

TEST(CrossEntropy, ShapesThatDoNotFitAreNamed) {
  const V x = Array<double>::zeros({2, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { cross_entropy(x, Array<Index>::zeros({3})); },
                                 {"cross_entropy:", "x (2, 3)", "targets (3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { cross_entropy(x, Array<Index>::zeros({2, 1})); }, {"targets (2, 1)"}));
  EXPECT_TRUE(raises<ShapeError>([] { cross_entropy(V(Array<double>::scalar(1)), Array<Index>::zeros({1})); },
                                 {"x ()", "targets (1)"}));
  Options options;
  options.weights = Array<double>::ones({2});
  EXPECT_TRUE(raises<ShapeError>([&] { cross_entropy(x, Array<Index>::zeros({2}), options); },
                                 {"cross_entropy:", "x (2, 3)", "weights (2)"}));
}

TEST(CrossEntropy, AnErrorLeavesTheTapeAsItWas) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::zeros({2, 3}));
  Options options;
  options.ignored = 0;
  EXPECT_THROW(cross_entropy(x, Array<Index>::of({1, 3})), DomainError);
  EXPECT_THROW(cross_entropy(x, Array<Index>::zeros({2}), options), DomainError);
  EXPECT_EQ(tape.size(), 1);
}

TEST(CrossEntropy, TheCallersTargetsMayChangeAfterwards) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::zeros({1, 2}));
  auto targets = Array<Index>::of({1});
  const V loss = cross_entropy(x, targets);
  targets.set({0}, 0);
  EXPECT_EQ(gradient_values(loss, x)[0].to_vector(), (std::vector<double>{0.5, -0.5}));
}

TEST(CrossEntropy, ManyRowsAreTheSameBitsOnAnyThreads) {
  Generator generator(3);
  const Array<double> x = generator.normal<double>({700, 37});
  const Array<Index> targets = generator.integers({700}, 37);
  expect_same_bits_on_any_threads([&] {
    Tape<double> tape;
    const V logits = tape.input(x);
    const V loss = cross_entropy(logits, targets);
    return std::vector{loss.value(), gradient_values(loss, logits)[0]};
  });
}

TEST(CrossEntropy, AlongAnyAxisIsThatOfTheTransposedLogits) {
  Generator generator(4);
  const Array<Index> targets = Array<Index>::of({{1, 4, 0}, {-7, 2, 1}});
  Options options = with(Reduction::none);
  options.ignored = -7;
  options.smoothing = 0.1;
  options.weights = Array<double>::of({0.5, 2, 1, 0.25, 1.5});
  Tape<double> tape;
  const V x = tape.input(generator.normal<double>({2, 3, 5}));
  const V seed = generator.normal<double>({2, 3});
  const V expected = cross_entropy(x, targets, options);
  const Array<double> slopes = gradient_values(expected, x, seed)[0];
  for (const auto& [axis, order] : std::vector<std::pair<int, std::vector<int>>>{
           {0, {2, 0, 1}}, {1, {0, 2, 1}}, {-2, {0, 2, 1}}, {2, {0, 1, 2}}}) {
    options.axis = axis;
    const V moved = tape.input(permute(x, std::span<const int>(order)).value());
    const V loss = cross_entropy(moved, targets, options);
    EXPECT_SAME_NUMBERS(loss, expected) << axis;
    EXPECT_SAME_NUMBERS(gradient_values(loss, moved, seed)[0],
                        permute(V(slopes), std::span<const int>(order)));
  }
}

TEST(CrossEntropy, APositionIsThatOfTheTargetAlsoWithClassesInTheMiddle) {
  Options options;
  options.axis = 1;
  const V x = Array<double>::zeros({2, 4, 3});
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        cross_entropy(x, Array<Index>::of({{0, 1, 2}, {3, 4, 0}}), options);
      },
      {"target 4", "position (1, 1)", "0 to 3"}));
}

TEST(MeanSquaredError, IsTheMeanOverAllElements) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({{1, 2}, {3, 4}})),
          y = tape.input(Array<double>::of({{1, 0}, {4, 8}}));
  const V mean = mse(x, y);
  EXPECT_EQ(mean.item(), (4 + 1 + 16) / 4.0);
  EXPECT_EQ(mse(x, y, Reduction::sum).item(), 21);
  EXPECT_EQ(mse(x, y, Reduction::none).value().to_vector(), (std::vector<double>{0, 4, 1, 16}));
  const auto d = gradient_values(mean, {x, y});
  EXPECT_EQ(d[0].to_vector(), (std::vector<double>{0, 1, -0.5, -2}));
  EXPECT_EQ(d[1].to_vector(), (std::vector<double>{0, -1, 0.5, 2}));
}

// Gibbs: the divergence from oneself is zero, and its gradient by the logits too.
TEST(KullbackLeibler, FromItselfIsZero) {
  Tape<double> tape;
  const V logits = tape.input(Generator(5).normal<double>({3, 4}));
  const V p = softmax(logits).detach();
  const V l = kl_div(log_softmax(logits), p);
  EXPECT_NEAR(l.item(), 0, 1e-15);
  EXPECT_LE(magnitude(gradient_values(l, logits)[0]), 1e-16);
}

TEST(KullbackLeibler, IsTheMeanOverTheDistributions) {
  const V p = Array<double>::of({{0.5, 0.5}, {1, 0}, {0.25, 0.75}});
  const V log_q = Array<double>::of(
      {{std::log(0.25), std::log(0.75)}, {std::log(0.5), -infinity}, {std::log(0.25), std::log(0.75)}});
  const double first = 0.5 * std::log(2.0) + 0.5 * std::log(2 / 3.0), second = std::log(2.0);
  const Array<double> rows = kl_div(log_q, p, Reduction::none).value();
  EXPECT_NEAR_RELATIVE(rows, Array<double>::of({first, second, 0}), 1e-15);
  EXPECT_NEAR(kl_div(log_q, p).item(), (first + second) / 3, 1e-15);
  EXPECT_NEAR(kl_div(log_q, p, Reduction::sum).item(), first + second, 1e-15);
}

// Minus infinity times 0 would be NaN.
TEST(KullbackLeibler, WhatHasNoProbabilityHasNoGradientAtAnyOrder) {
  Tape<double> tape;
  const V log_q = tape.input(Array<double>::of({-infinity, -1})), p = tape.input(Array<double>::of({0, 1}));
  const std::vector<V> d = gradient(kl_div(log_q, p), {log_q, p});
  EXPECT_EQ(d[0].value().to_vector(), (std::vector<double>{0, -1}));
  EXPECT_EQ(d[1].value().to_vector(), (std::vector<double>{0, 2}));
  const V ones = Array<double>::ones({2});
  EXPECT_EQ(gradient_values(d[1], p, ones)[0].to_vector(), (std::vector<double>{0, 1}));
  EXPECT_EQ(gradient_values(d[1], log_q, ones)[0].to_vector(), (std::vector<double>{0, -1}));
}

}  // namespace
}  // namespace tapehead
