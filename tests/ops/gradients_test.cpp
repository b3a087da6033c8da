// Every op against central differences, at first and second order; its plain sweep against its recorded one;
// float against double. One row of the table below for each op and way of calling it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include "support/compare.h"

namespace tapehead {
namespace {

// ---------------------------------------------------------------- the checker

template <class T>
using List = std::vector<Var<T>>;
template <class T>
using Function = std::function<List<T>(const List<T>&)>;  // of any number of arrays, to any number

using Arrays = std::vector<Array<double>>;

// How an op depends on all of its inputs together.
enum class Kind {
  polynomial,  // of degree two at most: a central difference of step 1 is exact, also of its gradient
  smooth,
};

Arrays values_at(const Function<double>& f, const Arrays& x) {
  Tape<double> tape;  // f may ask for gradients
  List<double> inputs;
  for (const Array<double>& one : x) inputs.push_back(tape.input(one));
  Arrays values;
  for (const Var<double>& y : f(inputs)) values.push_back(y.value());
  return values;
}

Arrays moved(const Arrays& x, const Arrays& direction, double step) {
  Arrays result;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Array<double> to = x[i];
    const std::span<double> values = to.mutable_values();
    for (std::size_t k = 0; k < values.size(); ++k) values[k] += step * direction[i].values()[k];
    result.push_back(to);
  }
  return result;
}

Arrays random_like(const Arrays& x, Generator& generator) {
  Arrays result;
  for (const Array<double>& one : x) result.push_back(generator.uniform<double>(one.shape(), -1, 1));
  return result;
}

// <a, b>, and what the terms sum to without their signs.
struct Product {
  double value = 0, size = 0;
  Index terms = 0;
};
Product inner(const Arrays& a, const Arrays& b) {
  Product result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < a[i].values().size(); ++k) {
      const double term = a[i].values()[k] * b[i].values()[k];
      result.value += term;
      result.size += std::abs(term);
      ++result.terms;
    }
  }
  return result;
}

constexpr double epsilon = std::numeric_limits<double>::epsilon();

// <gradient, u> against the derivative of <w, f(x + t u)> by central differences, for a random direction u
// and cotangent w, and then the same for the function (x, w) -> gradient, `order` - 1 times over.
//
// Bound, relative to the sizes of the terms: rounding costs an epsilon for each term, and as many as there
// are terms, and 8, inside the op; the difference divides that by the step. The five-point formula leaves h^4
// / 30 of the fifth derivative: at h = 1e-4, 1e-10 allows it 3e7 times the function, and 3e5 suffice for 1 /
// x^3 at 0.5, the worst here.
testing::AssertionResult gradients_agree(const Function<double>& f, const Arrays& x, Kind kind, int order,
                                         std::uint64_t seed) {
  Generator generator = Generator(seed).split("order").split(static_cast<std::uint64_t>(order));
  Tape<double> tape;
  List<double> inputs;
  for (const Array<double>& one : x) inputs.push_back(tape.input(one));
  const List<double> y = f(inputs);
  Arrays y_values;
  for (const Var<double>& one : y) y_values.push_back(one.value());
  const Arrays w = random_like(y_values, generator), u = random_like(x, generator);
  const List<double> seeds(w.begin(), w.end());
  const Product by_rule = inner(gradient_values(y, inputs, seeds), u);

  const bool exact = kind == Kind::polynomial;
  const double h = exact ? 1 : 1e-4;
  double by_difference = 0, size = 0;
  auto add_difference = [&](double step, double weight) {  // weight (f(step) - f(-step)) / step
    const Product above = inner(values_at(f, moved(x, u, step)), w),
                  below = inner(values_at(f, moved(x, u, -step)), w);
    by_difference += weight * (above.value - below.value) / step;
    size += std::abs(weight) * (above.size + below.size) / step;
  };
  add_difference(h, exact ? 1.0 / 2 : 2.0 / 3);
  if (!exact) add_difference(2 * h, -1.0 / 6);
  const double terms = static_cast<double>(by_rule.terms + inner(y_values, w).terms + 8);
  const double truncation = exact ? 0 : 1e-10 * (by_rule.size + inner(y_values, w).size);
  const double bound = terms * epsilon * (by_rule.size + size) + truncation;
  if (!(std::abs(by_rule.value - by_difference) <= bound)) {
    return testing::AssertionFailure()
           << "order " << order << " from the end, seed " << seed << ": rule " << by_rule.value
           << ", difference " << by_difference << ", bound " << bound;
  }
  if (order == 1) return testing::AssertionSuccess();
  const std::size_t inputs_of_f = x.size();
  const Function<double> vjp = [f, inputs_of_f](const List<double>& x_and_w) {
    const auto split = x_and_w.begin() + static_cast<std::ptrdiff_t>(inputs_of_f);
    const List<double> here(x_and_w.begin(), split), cotangents(split, x_and_w.end());
    return gradient(f(here), here, cotangents);
  };
  Arrays x_and_w = x;
  x_and_w.insert(x_and_w.end(), w.begin(), w.end());
  return gradients_agree(vjp, x_and_w, kind, order - 1, seed);
}

// Both sweeps at the same point. An op may take a kernel in the one and its formula in the other; they do a
// few roundings a term differently, far from 1e-13 of the largest element at the sizes here.
testing::AssertionResult sweeps_agree(const Function<double>& f, const Arrays& x, std::uint64_t seed) {
  Generator generator = Generator(seed).split("sweeps");
  Tape<double> tape;
  List<double> inputs;
  for (const Array<double>& one : x) inputs.push_back(tape.input(one));
  const List<double> y = f(inputs);
  List<double> seeds;
  for (const Var<double>& one : y) seeds.push_back(generator.normal<double>(one.shape()));
  const Arrays plain = gradient_values(y, inputs, seeds);
  const List<double> recorded = gradient(y, inputs, seeds);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double scale = std::max({magnitude(plain[i]), magnitude(recorded[i].value()), 1e-3});
    const double error = absolute_error(plain[i], recorded[i].value());
    if (!(error <= 1e-13 * scale)) {
      return testing::AssertionFailure() << "input " << i << ": the sweeps differ by " << error / scale;
    }
  }
  return testing::AssertionSuccess();
}

// ---------------------------------------------------------------- the table

// Where the elements of an input are drawn from.
enum class From {
  anywhere,    // normal
  positive,    // 0.5 to 2
  around_zero  // 0.5 to 2 with either sign: away from the kink of relu and the pole of 1 / x
};

struct Input {
  Input(std::initializer_list<Index> extents) : shape(extents) {}
  Input(From domain, Shape of_shape) : shape(of_shape), from(domain) {}
  Shape shape;
  From from = From::anywhere;

  Array<double> draw(Generator& generator) const {
    if (from == From::anywhere) return generator.normal<double>(shape);
    Array<double> x = generator.uniform<double>(shape, 0.5, 2);
    for (double& value : x.mutable_values()) {
      if (from == From::around_zero && generator.below(2) == 0) value = -value;
    }
    return x;
  }
};

struct Row {
  template <class F>
  Row(std::string of_op, Kind of_kind, std::vector<std::vector<Input>> at, F f)
      : name(std::move(of_op)),
        kind(of_kind),
        inputs(std::move(at)),
        in_double([f](const List<double>& x) { return List<double>{f(x)}; }),
        in_float([f](const List<float>& x) { return List<float>{f(x)}; }) {}

  std::string name;
  Kind kind;
  std::vector<std::vector<Input>> inputs;  // sets of inputs to call it with
  Function<double> in_double;
  Function<float> in_float;
};
std::ostream& operator<<(std::ostream& stream, const Row& row) { return stream << row.name; }

std::string shapes_of(const std::vector<Input>& inputs) {
  std::string text;
  for (const Input& input : inputs) text += to_string(input.shape) + " ";
  return text;
}

// The same shapes for every input of a kind: no two extents alike, one of 1, none, rank 0.
std::vector<std::vector<Input>> alone(From from = From::anywhere) {
  std::vector<std::vector<Input>> result;
  for (const Shape& shape : {Shape{2, 3, 5}, Shape{4, 1, 3}, Shape{7}, Shape{}, Shape{2, 0, 3}}) {
    result.push_back({Input(from, shape)});
  }
  return result;
}

// Pairs that broadcast: not at all, on the left, on the right, on both sides, by rank, with a scalar, of
// nothing.
std::vector<std::vector<Input>> pairs(From right = From::anywhere) {
  std::vector<std::vector<Input>> result;
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{2, 3, 5}, {2, 3, 5}}, {{3, 1}, {3, 5}}, {{2, 3}, {1, 3}},      {{2, 1, 5}, {3, 1}},
      {{5}, {2, 3, 5}},       {{}, {2, 3}},     {{2, 3}, {}},          {{}, {}},
      {{1, 1}, {4}},          {{2, 0}, {1}},    {{3, 0, 2}, {3, 1, 2}}};
  for (const auto& [a, b] : shapes) result.push_back({Input(From::anywhere, a), Input(right, b)});
  return result;
}

// Rows along some axis.
std::vector<std::vector<Input>> rows() {
  return {{{2, 3, 5}}, {{4, 3, 1}}, {{1, 7, 2}}, {{2, 2, 0}}, {{0, 2, 3}}};
}

template <class T>
Array<T> class_weights() {
  return Array<T>::of({0.5, 2, 1, 0.25, 1.5});
}

const Array<Index>& some_targets() {
  static const auto targets = Array<Index>::of({{1, 4, 0}, {-7, 2, 1}});
  return targets;
}

template <class T>
CrossEntropyOptions<T> every_option(Reduction reduction) {
  return {.reduction = reduction, .ignored = -7, .smoothing = 0.2, .weights = class_weights<T>()};
}
template <class T>
CrossEntropyOptions<T> ignoring() {
  return {.reduction = Reduction::mean, .ignored = -7, .smoothing = 0, .weights = {}};
}

const std::vector<std::vector<Input>> logits = {{{2, 3, 5}}};

std::vector<Row> table() {
  constexpr Kind exact = Kind::polynomial, smooth = Kind::smooth;
  constexpr From positive_only = From::positive, off_zero = From::around_zero;
  return {
      // arithmetic
      {"add", exact, pairs(), [](const auto& x) { return x[0] + x[1]; }},
      {"sub", exact, pairs(), [](const auto& x) { return x[0] - x[1]; }},
      {"mul", exact, pairs(), [](const auto& x) { return x[0] * x[1]; }},
      {"div", smooth, pairs(off_zero), [](const auto& x) { return x[0] / x[1]; }},
      {"neg", exact, alone(), [](const auto& x) { return -x[0]; }},
      {"add_number", exact, alone(), [](const auto& x) { return 1.5 + x[0]; }},
      {"number_minus", exact, alone(), [](const auto& x) { return 1.5 - x[0]; }},
      {"mul_number", exact, alone(), [](const auto& x) { return x[0] * -2.5; }},
      {"div_number", exact, alone(), [](const auto& x) { return x[0] / 3.0; }},
      {"number_over", smooth, alone(off_zero), [](const auto& x) { return 2.5 / x[0]; }},
      // elementwise
      {"exp", smooth, alone(), [](const auto& x) { return exp(x[0]); }},
      {"log", smooth, alone(positive_only), [](const auto& x) { return log(x[0]); }},
      {"sqrt", smooth, alone(positive_only), [](const auto& x) { return sqrt(x[0]); }},
      {"tanh", smooth, alone(), [](const auto& x) { return tanh(x[0]); }},
      {"erf", smooth, alone(), [](const auto& x) { return erf(x[0]); }},
      {"relu", smooth, alone(off_zero), [](const auto& x) { return relu(x[0]); }},
      {"gelu", smooth, alone(), [](const auto& x) { return gelu(x[0]); }},
      {"gelu_tanh", smooth, alone(), [](const auto& x) { return gelu(x[0], Gelu::tanh); }},
      // indexing
      {"embedding",
       exact,
       {{{5, 3}}, {{6}}, {{5, 1, 2}}, {{5, 0}}},
       [](const auto& x) {
         return embedding(x[0], Array<Index>::of({{1, 4, 1}, {0, 4, 4}}));
       }},
      {"embedding_of_one",
       exact,
       {{{5, 3}}},
       [](const auto& x) { return embedding(x[0], Array<Index>::scalar(3)); }},
      {"embedding_of_nothing",
       exact,
       {{{5, 3}}},
       [](const auto& x) { return embedding(x[0], Array<Index>::zeros({0})); }},
      {"scatter_add",
       exact,
       {{{2, 3, 5}}, {{2, 3}}, {{2, 3, 1, 2}}},
       [](const auto& x) {
         return scatter_add(x[0], Array<Index>::of({{1, 4, 1}, {0, 4, 4}}), 6);
       }},
      // masking
      {"masked_fill",
       exact,
       {{{2, 3}}, {{4, 2, 3}}},
       [](const auto& x) {
         return masked_fill(x[0], Array<bool>::of({{true, false, true}, {false, false, true}}), -1e3);
       }},
      {"masked_fill_by_columns",
       exact,
       {{{2, 3}}, {{3, 2, 1}}},
       [](const auto& x) {
         return masked_fill(x[0], Array<bool>::of({{true}, {false}}), 2.5);
       }},
      // matmul
      {"matmul",
       exact,
       {{{3, 3}, {3, 3}},
        {{2, 3, 3}, {3, 3}},
        {{3, 4}, {4, 5}},
        {{1, 4}, {4, 1}},
        {{3, 1}, {1, 5}},
        {{3, 0}, {0, 5}},
        {{0, 4}, {4, 5}},
        {{3, 4}, {4, 0}},
        {{2, 3, 4, 5}, {2, 3, 5, 2}},
        {{2, 3, 4}, {4, 5}},
        {{2, 3, 0}, {0, 5}},
        {{2, 3, 4}, {4, 0}},
        {{3, 4}, {2, 4, 5}},
        {{2, 1, 3, 4}, {5, 4, 2}},
        {{1, 3, 4}, {2, 4, 5}},
        {{0, 3, 4}, {4, 5}},
        {{0, 3, 4}, {1, 4, 5}},
        {{4}, {4}},
        {{4}, {4, 5}},
        {{3, 4}, {4}},
        {{4}, {2, 4, 5}},
        {{2, 3, 4}, {4}},
        {{0}, {0}},
        {{1}, {1}}},
       [](const auto& x) { return matmul(x[0], x[1]); }},
      {"matmul_tn",
       exact,
       {{{3, 3}, {3, 3}},
        {{2, 3, 3}, {3, 3}},
        {{4, 3}, {4, 5}},
        {{2, 4, 3}, {2, 4, 5}},
        {{2, 4, 3}, {4, 5}},
        {{4, 3}, {2, 4, 5}},
        {{2, 4, 3}, {4}},
        {{0, 3}, {0, 5}},
        {{2, 1, 4, 3}, {5, 4, 2}}},
       [](const auto& x) { return matmul(x[0], x[1], true, false); }},
      {"matmul_nt",
       exact,
       {{{3, 3}, {3, 3}},
        {{2, 3, 3}, {3, 3}},
        {{3, 4}, {5, 4}},
        {{2, 3, 4}, {2, 5, 4}},
        {{2, 3, 4}, {5, 4}},
        {{3, 4}, {2, 5, 4}},
        {{4}, {2, 5, 4}},
        {{3, 0}, {5, 0}},
        {{2, 3, 0}, {5, 0}},
        {{2, 1, 3, 4}, {5, 2, 4}}},
       [](const auto& x) { return matmul(x[0], x[1], false, true); }},
      {"matmul_tt",
       exact,
       {{{3, 3}, {3, 3}},
        {{2, 3, 3}, {3, 3}},
        {{4, 3}, {5, 4}},
        {{2, 4, 3}, {2, 5, 4}},
        {{2, 4, 3}, {5, 4}},
        {{4, 3}, {2, 5, 4}},
        {{0, 3}, {5, 0}}},
       [](const auto& x) { return matmul(x[0], x[1], true, true); }},
      {"matmul_with_itself",
       exact,
       {{{3, 5}}, {{2, 3, 5}}},
       [](const auto& x) { return matmul(x[0], x[0], false, true); }},
      {"projection",
       exact,
       {{{3, 3}, {3, 3}},
        {{2, 3, 4}, {4, 5}},
        {{3, 4}, {4, 5}},
        {{4}, {4, 5}},
        {{3, 1}, {1, 5}},
        {{0, 4}, {4, 5}},
        {{3, 0}, {0, 5}},
        {{3, 4}, {4, 0}}},
       [](const auto& x) { return projection(x[0], x[1]); }},
      {"projection_with_bias",
       exact,
       {{{2, 3, 4}, {4, 5}, {5}}, {{4}, {4, 5}, {5}}, {{2, 1, 4}, {4, 1}, {1}}, {{3, 0}, {0, 5}, {5}}},
       [](const auto& x) { return projection(x[0], x[1], x[2]); }},
      // norm
      {"layer_norm",
       smooth,
       {{{2, 3, 5}, {5}, {5}},
        {{2, 4, 3}, {4, 3}, {4, 3}},
        {{4}, {4}, {4}},
        {{0, 4}, {4}, {4}},
        {{2, 0}, {0}, {0}}},
       [](const auto& x) { return layer_norm(x[0], x[1], x[2], 1e-2); }},
      // reduction
      {"sum", exact, alone(), [](const auto& x) { return sum(x[0]); }},
      {"sum_of_axis", exact, rows(), [](const auto& x) { return sum(x[0], 1); }},
      {"sum_of_axes", exact, rows(),
       [](const auto& x) {
         return sum(x[0], {0, -1});
       }},
      {"sum_of_axes_kept", exact, rows(),
       [](const auto& x) {
         return sum(x[0], {0, -1}, Keep::yes);
       }},
      {"mean", exact, {{{2, 3, 5}}, {{}}, {{1}}}, [](const auto& x) { return mean(x[0]); }},
      {"mean_of_axis", exact, {{{2, 3, 5}}, {{4, 1}}}, [](const auto& x) { return mean(x[0], -1); }},
      {"mean_of_axes_kept",
       exact,
       {{{2, 3, 5}}},
       [](const auto& x) {
         return mean(x[0], {0, 2}, Keep::yes);
       }},
      // shaping
      {"reshape",
       exact,
       {{{2, 3, 5}}, {{6, 5, 1}}, {{30}}},
       [](const auto& x) {
         return reshape(x[0], {5, -1});
       }},
      {"permute", exact, rows(),
       [](const auto& x) {
         return permute(x[0], {2, 0, 1});
       }},
      {"transpose", exact, rows(), [](const auto& x) { return transpose(x[0]); }},
      {"transpose_of_axes", exact, rows(), [](const auto& x) { return transpose(x[0], 0, 2); }},
      {"broadcast_to",
       exact,
       {{{3, 1}}, {{1, 1, 5}}, {{}}, {{2, 3, 5}}, {{5}}},
       [](const auto& x) {
         return broadcast_to(x[0], {2, 3, 5});
       }},
      {"sum_to",
       exact,
       {{{2, 3, 5}}, {{4, 3, 1}}, {{3, 1}}, {{2, 3, 0}}},
       [](const auto& x) {
         return sum_to(x[0], {3, 1});
       }},
      {"concat",
       exact,
       {{{2, 3, 5}, {2, 1, 5}}, {{2, 4}, {2, 3}}, {{2, 0, 3}, {2, 4, 3}}, {{1, 2}, {1, 0}}},
       [](const auto& x) {
         return concat({x[0], x[1], x[0]}, 1);
       }},
      {"slice",
       exact,
       {{{4, 6, 5}}, {{3, 6, 1}}, {{1, 5, 2}}},
       [](const auto& x) {
         return slice(x[0], {{0, -1}, {-1, {}, -2}, {{}, {}, 2}});
       }},
      {"slice_of_nothing",
       exact,
       {{{4, 3}}},
       [](const auto& x) {
         return slice(x[0], {{2, 2}});
       }},
      {"unslice",
       exact,
       {{{2, 3}}, {{2, 3, 2}}},
       []<class T>(const List<T>& x) {
         const std::vector<Slice> where = {{3, 0, -2}, {{}, {}, 2}};
         return unslice(x[0], Shape{4, 5}.followed_by(x[0].shape().last(x[0].rank() - 2)), where);
       }},
      // softmax
      {"softmax", smooth, rows(), [](const auto& x) { return softmax(x[0]); }},
      {"softmax_of_axis", smooth, rows(), [](const auto& x) { return softmax(x[0], 1); }},
      {"softmax_of_a_row", smooth, {{{6}}, {{1}}}, [](const auto& x) { return softmax(x[0], 0); }},
      {"log_softmax", smooth, rows(), [](const auto& x) { return log_softmax(x[0]); }},
      {"log_softmax_of_axis", smooth, rows(), [](const auto& x) { return log_softmax(x[0], 0); }},
      // loss
      {"cross_entropy_mean", smooth, logits,
       []<class T>(const List<T>& x) { return cross_entropy(x[0], some_targets(), ignoring<T>()); }},
      {"cross_entropy_sum", smooth, logits,
       []<class T>(const List<T>& x) {
         return cross_entropy(x[0], some_targets(), every_option<T>(Reduction::sum));
       }},
      {"cross_entropy_none", smooth, logits,
       []<class T>(const List<T>& x) {
         return cross_entropy(x[0], some_targets(), every_option<T>(Reduction::none));
       }},
      {"cross_entropy_weighted_mean", smooth, logits,
       []<class T>(const List<T>& x) {
         return cross_entropy(x[0], some_targets(), every_option<T>(Reduction::mean));
       }},
      {"cross_entropy_of_one_row",
       smooth,
       {{{5}}, {{4}}},
       [](const auto& x) { return cross_entropy(x[0], Array<Index>::scalar(3)); }},
  };
}

// ---------------------------------------------------------------- the tests

class EveryOp : public testing::TestWithParam<Row> {
 protected:
  // Calls test(inputs, seed) for each set of inputs.
  template <class F>
  void at_each(F test) {
    std::uint64_t seed = 100;
    for (const std::vector<Input>& set : GetParam().inputs) {
      SCOPED_TRACE(shapes_of(set));
      Generator generator(++seed);
      Arrays x;
      for (const Input& input : set) x.push_back(input.draw(generator));
      test(x, seed);
    }
  }
};

TEST_P(EveryOp, AgreesWithCentralDifferencesAtFirstOrder) {
  at_each([&](const Arrays& x, std::uint64_t seed) {
    EXPECT_TRUE(gradients_agree(GetParam().in_double, x, GetParam().kind, 1, seed));
  });
}

TEST_P(EveryOp, AgreesWithCentralDifferencesAtSecondOrder) {
  at_each([&](const Arrays& x, std::uint64_t seed) {
    EXPECT_TRUE(gradients_agree(GetParam().in_double, x, GetParam().kind, 2, seed));
  });
}

TEST_P(EveryOp, PlainAndRecordedSweepsAgree) {
  at_each(
      [&](const Arrays& x, std::uint64_t seed) { EXPECT_TRUE(sweeps_agree(GetParam().in_double, x, seed)); });
}

TEST_P(EveryOp, RecordsWhatItComputesUnrecorded) {
  at_each([&](const Arrays& x, std::uint64_t) {
    const List<double> constants(x.begin(), x.end());
    const List<double> y = GetParam().in_double(constants);
    EXPECT_FALSE(y[0].recorded());
    EXPECT_SAME_NUMBERS(y[0], values_at(GetParam().in_double, x)[0]);
  });
}

// With u = 2^-24 the rounding of one operation, n elements of input feed at most n products and n sums into
// one of output or gradient, and 16 operations more lie in the formula of the longest op: each may err by u
// of the largest number in play.
TEST_P(EveryOp, FloatAgreesWithDoubleToItsRounding) {
  at_each([&](const Arrays& drawn, std::uint64_t seed) {
    Tape<float> tape;
    Tape<double> exact_tape;
    List<float> x;
    List<double> exact_x;
    double operations = 16, largest = 1;
    for (const Array<double>& one : drawn) {
      x.push_back(tape.input(one.cast<float>()));
      exact_x.push_back(exact_tape.input(x.back().value().cast<double>()));
      operations += 2 * static_cast<double>(one.size());
      largest = std::max(largest, magnitude(one));
    }
    const Var<float> y = GetParam().in_float(x)[0];
    const Var<double> exact_y = GetParam().in_double(exact_x)[0];
    const double bound = operations * 0x1p-24;
    largest = std::max(largest, magnitude(exact_y.value()));
    EXPECT_LE(absolute_error(y.value().cast<double>(), exact_y.value()), bound * largest);

    const Array<float> dy = Generator(seed).normal<float>(y.shape());
    const auto dx = gradient_values(y, x, Var<float>(dy));
    const auto exact_dx = gradient_values(exact_y, exact_x, Var<double>(dy.cast<double>()));
    for (std::size_t i = 0; i < dx.size(); ++i) {
      const double scale = std::max({largest, magnitude(dy), magnitude(exact_dx[i])});
      EXPECT_LE(absolute_error(dx[i].cast<double>(), exact_dx[i]), bound * scale)
          << "gradient of input " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Table, EveryOp, testing::ValuesIn(table()),
                         [](const auto& row) { return row.param.name; });

// ---------------------------------------------------------------- wrong on purpose

using V = Var<double>;

// y = x^2 with a first derivative of 2 `first` x and a second of 2 `second`.
V square_with(const V& x, double first, double second);

V doubled_with(const V& x, const V& dy, double first, double second) {  // 2 first x dy
  auto y = (x * dy * (2 * first)).value();
  return record("doubled", std::move(y), edge(x, [dy, second](const V& d) { return d * dy * (2 * second); }),
                edge(dy, [x, first](const V& d) { return d * x * (2 * first); }));
}

V square_with(const V& x, double first, double second) {
  return record("square", (x * x).value(),
                edge(x, [x, first, second](const V& dy) { return doubled_with(x, dy, first, second); }));
}

class Checker : public testing::TestWithParam<Kind> {
 protected:
  template <class F>
  testing::AssertionResult check(F f, int order) {
    const Function<double> function = [f](const List<double>& v) { return List<double>{f(v[0])}; };
    return gradients_agree(function, {x_}, GetParam(), order, 1);
  }
  Array<double> x_ = Generator(3).normal<double>({3, 4});
};

TEST_P(Checker, AcceptsARightRule) {
  EXPECT_TRUE(check([](const V& x) { return square_with(x, 1, 1); }, 2));
}

TEST_P(Checker, RefusesARuleWrongByOneInAThousand) {
  for (const double first : {1.001, 0.999}) {
    EXPECT_FALSE(check([first](const V& x) { return square_with(x, first, first); }, 1));
  }
}

TEST_P(Checker, RefusesARuleWrongOnlyAtSecondOrder) {
  for (const double second : {1.001, 0.999}) {
    auto wrong = [second](const V& x) { return square_with(x, 1, second); };
    EXPECT_TRUE(check(wrong, 1));
    EXPECT_FALSE(check(wrong, 2));
  }
}

TEST_P(Checker, RefusesARuleThatForgetsToDifferentiateWhatItKept) {
  auto constant = [](const V& x) {
    return record("square", (x * x).value(),
                  edge(x, [kept = x.detach()](const V& dy) { return dy * kept * 2.0; }));
  };
  EXPECT_TRUE(check(constant, 1));
  EXPECT_FALSE(check(constant, 2));
}

TEST_P(Checker, RefusesOneWrongElementInAGradient) {
  auto one_off = [](const V& x) {
    return record("double", (x * 2.0).value(), edge(x, [](const V& dy) {
                    Array<double> dx = (dy * 2.0).value();
                    dx.mutable_values()[5] *= 1.001;
                    return V(dx);
                  }));
  };
  EXPECT_FALSE(check(one_off, 1));
}

INSTANTIATE_TEST_SUITE_P(Steps, Checker, testing::Values(Kind::polynomial, Kind::smooth),
                         [](const auto& step) {
                           return step.param == Kind::polynomial ? "of_one" : "small";
                         });

TEST(SweepChecker, RefusesAKernelThatDiffersFromItsFormula) {
  const Function<double> two_faced = [](const List<double>& v) {
    const V& x = v[0];
    return List<double>{record("double", (x * 2.0).value(), edge(x, [x](const V& dy) {
                                 return is_recording(x) ? dy * 2.0 : dy * (2.0 + 1e-11);
                               }))};
  };
  const Arrays x = {Generator(3).normal<double>({3, 4})};
  EXPECT_FALSE(sweeps_agree(two_faced, x, 1));
}

}  // namespace
}  // namespace tapehead
