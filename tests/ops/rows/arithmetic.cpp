#include <tapehead/ops/arithmetic.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

const std::vector<Refusal> no_broadcast = {
    {.shapes = {{2, 3}, {3, 2}}}, {.shapes = {{2, 3}, {2}}}, {.shapes = {{4, 1, 3}, {2, 2, 3}}}};

// Of two numbers the extreme does not move with the other.
std::vector<Sample> competing_pairs() {
  std::vector<Sample> samples = pairs(From::apart, From::apart);
  std::erase_if(samples, [](const Sample& sample) {
    return sample[0].shape == sample[1].shape && sample[0].shape.rank() == 0;
  });
  return samples;
}

const auto sum = [](const auto& x) { return x[0] + x[1]; };
const auto difference = [](const auto& x) { return x[0] - x[1]; };
const auto product = [](const auto& x) { return x[0] * x[1]; };
const auto quotient = [](const auto& x) { return x[0] / x[1]; };
const auto opposite = [](const auto& x) { return -x[0]; };
const auto plus = [](const auto& x) { return 1.5F + x[0]; };
const auto minus = [](const auto& x) { return x[0] - 1.5F; };
const auto minus_from = [](const auto& x) { return 1.5F - x[0]; };
const auto times = [](const auto& x) { return x[0] * -2.5F; };
const auto over = [](const auto& x) { return x[0] / 3.0F; };
const auto over_from = [](const auto& x) { return 2.5F / x[0]; };

const Rows rows = {
    {.op = "add",
     .call = sum,
     .kind = Kind::polynomial,
     .samples = pairs(),
     .broadcasts = true,
     .each = sum,
     .golden = {{"add_broadcast", {"x", "y"}}},
     .refuses = no_broadcast},
    {.op = "sub",
     .call = difference,
     .kind = Kind::polynomial,
     .samples = pairs(),
     .broadcasts = true,
     .each = difference,
     .golden = {{"sub_broadcast", {"x", "y"}}},
     .refuses = no_broadcast},
    {.op = "mul",
     .call = product,
     .kind = Kind::polynomial,
     .samples = pairs(),
     .broadcasts = true,
     .each = product,
     .golden = {{"mul_broadcast", {"x", "y"}}},
     .refuses = no_broadcast},
    {.op = "mul",
     .as = "of_itself",
     .call = [](const auto& x) { return x[0] * x[0]; },
     .kind = Kind::polynomial,
     .samples = alone()},
    {.op = "div",
     .call = quotient,
     .samples = pairs(From::anywhere, From::around_zero),
     .broadcasts = true,
     .each = quotient,
     .golden = {{"div_broadcast", {"x", "y"}}},
     .refuses = no_broadcast},
    {.op = "neg",
     .call = opposite,
     .kind = Kind::polynomial,
     .samples = alone(),
     .each = opposite,
     .golden = {{"neg"}}},

    // with numbers
    {.op = "add", .as = "number", .call = plus, .kind = Kind::polynomial, .samples = alone(), .each = plus},
    {.op = "sub", .as = "number", .call = minus, .kind = Kind::polynomial, .samples = alone(), .each = minus},
    {.op = "sub",
     .as = "from_number",
     .call = minus_from,
     .kind = Kind::polynomial,
     .samples = alone(),
     .each = minus_from},
    {.op = "mul", .as = "number", .call = times, .kind = Kind::polynomial, .samples = alone(), .each = times},
    {.op = "div", .as = "number", .call = over, .kind = Kind::polynomial, .samples = alone(), .each = over},
    {.op = "div",
     .as = "of_number",
     .call = over_from,
     .samples = alone(From::around_zero),
     .each = over_from},

    // powers and extremes
    {.op = "pow",
     .call = [](const auto& x) { return pow(x[0], x[1]); },
     .samples = pairs(From::positive, From::anywhere),
     .broadcasts = true,
     .each = [](const auto& x) { return std::pow(x[0], x[1]); },
     // As PyTorch has them, the gradients of 0^0, 0^0.5, 0^2, 0^-1, (-2)^3, (-2)^0.5, NaN^0, 2^0, inf^0 and
     // 0^1.
     .examples = {{.inputs = {Array<double>::of({0, 0, 0, 0, -2, -2, nan, 2, infinity, 0}),
                              Array<double>::of({0, 0.5, 2, -1, 3, 0.5, 0, 0, 0, 1})},
                   .y = Array<double>::of({1, 0, 0, infinity, -8, nan, 1, 1, 1, 0}),
                   .gradients = {Array<double>::of({0, infinity, 0, -infinity, 12, nan, 0, 0, 0, 1}),
                                 Array<double>::of(
                                     {0, 0, 0, -infinity, nan, nan, nan, 0.6931471805599453, infinity, 0})}}},
     .golden = {{"pow", {"x", "y"}},
                {.name = "pow_zero", .inputs = {"x", "y"}, .folder = "made"},
                {.name = "pow_signs",
                 .call = [](const Golden& golden,
                            const List<double>& x) { return pow(x[0], Var<double>(golden.array("y"))); },
                 .folder = "made"}},
     .refuses = no_broadcast},
    {.op = "pow",
     .as = "at_zeros",
     .call =
         []<class T>(const List<T>& x) {
           return pow(x[0], Var<T>(Array<T>::of({0, 1, 2, 3})));
         },
     .samples = {{Array<double>::of({0, 0, 0, 0})}, {Array<double>::of({-2, -1, 3, -0.5})}}},
    {.op = "pow",
     .as = "number",
     .call = [](const auto& x) { return pow(x[0], 3); },
     .samples = alone(),
     .each = [](const auto& x) { return x[0] * x[0] * x[0]; },
     .golden = {{.name = "pow_scalar",
                 .call = [](const Golden& golden,
                            const List<double>& x) { return pow(x[0], golden.number("exponent")); }}}},
    {.op = "pow",
     .as = "broken_number",
     .call = [](const auto& x) { return pow(x[0], -1.5); },
     .samples = alone(From::positive)},
    {.op = "pow",
     .as = "number_zero",
     .call = [](const auto& x) { return x[0] * pow(x[0], 0); },
     .kind = Kind::polynomial,
     .samples = alone(),
     .examples = {{.inputs = {Array<double>::of({0, 2, -1})},
                   .y = Array<double>::of({0, 2, -1}),
                   .gradients = {Array<double>::ones({3})}}}},
    {.op = "maximum",
     .call = [](const auto& x) { return maximum(x[0], x[1]); },
     .samples = competing_pairs(),
     .broadcasts = true,
     .each = [](const auto& x) { return std::isnan(x[1]) ? x[1] : std::max(x[0], x[1]); },
     .examples = {{.inputs = {Array<double>::of({1, 2, nan, 1, infinity}),
                              Array<double>::of({1, 1, 1, nan, infinity})},
                   .y = Array<double>::of({1, 2, nan, nan, infinity}),
                   .gradients = {Array<double>::of({0.5, 1, 1, 1, 0.5}),
                                 Array<double>::of({0.5, 0, 1, 1, 0.5})}}},
     .golden = {{"maximum_broadcast", {"x", "y"}},
                {.name = "maximum_ties", .inputs = {"x", "y"}, .folder = "made"}},
     .refuses = no_broadcast},
    {.op = "minimum",
     .call = [](const auto& x) { return minimum(x[0], x[1]); },
     .samples = competing_pairs(),
     .broadcasts = true,
     .each = [](const auto& x) { return std::isnan(x[1]) ? x[1] : std::min(x[0], x[1]); },
     .examples = {{.inputs = {Array<double>::of({1, 2, nan, 1, infinity}),
                              Array<double>::of({1, 1, 1, nan, infinity})},
                   .y = Array<double>::of({1, 1, nan, nan, infinity}),
                   .gradients = {Array<double>::of({0.5, 0, 1, 1, 0.5}),
                                 Array<double>::of({0.5, 1, 1, 1, 0.5})}}},
     .golden = {{"minimum_broadcast", {"x", "y"}},
                {.name = "minimum_ties", .inputs = {"x", "y"}, .folder = "made"}},
     .refuses = no_broadcast},
    {.op = "clamp",
     .call = [](const auto& x) { return clamp(x[0], -1, 0.6); },
     .samples = alone(From::apart),
     .each =
         []<class T>(const std::vector<T>& x) {
           return std::isnan(x[0]) ? x[0] : std::min(std::max(x[0], T(-1)), T(0.6));
         },
     .examples = {{.inputs = {Array<double>::of({-1, 0.6, 0, 2, nan, infinity})},
                   .y = Array<double>::of({-1, 0.6, 0, 0.6, nan, 0.6}),
                   .gradients = {Array<double>::of({1, 1, 1, 0, 0, 0})}}},
     .golden = {{.name = "clamp",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return clamp(x[0], golden.number("low"), golden.number("high"));
                     },
                 .folder = "made"}},
     .refuses = {{.shapes = {{2}},
                  .texts = {"low 2", "high 1"},
                  .call = [](const auto& x) { return clamp(x[0], 2, 1); },
                  .error = Refusal::Of::values},
                 {.shapes = {{2}},
                  .texts = {"nan"},
                  .call = [](const auto& x) { return clamp(x[0], nan, 1); },
                  .error = Refusal::Of::values}}},
};

}  // namespace
}  // namespace tapehead::table
