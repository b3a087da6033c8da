#pragma once
// What the tests of the op table check with: each of one function at one point, saying what is wrong with it.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "ops/op_table.h"

namespace tapehead::table {

using Function = std::function<List<double>(const List<double>&)>;  // of any number of arrays, to any number

Arrays values_at(const Function& f, const Arrays& x);  // f may ask for gradients
Arrays random_like(const Arrays& x, Generator& generator);

// The full Jacobian against differences, and the gradient of <w, gradient> and so on, by check_gradients(). f
// must move with each input, unless `may_stay`.
testing::AssertionResult jacobian_agrees(const Function& f, const Arrays& x, Kind kind, int order,
                                         bool may_stay, std::uint64_t seed);

// <J^T w, u> = <w, J u> for the Jacobian J of f at x, J u by differences of values.
testing::AssertionResult adjoint_agrees(const Function& f, const Arrays& x, const Arrays& w, const Arrays& u,
                                        Kind kind);
// The same for random w and u, and then for the function (x, w) -> J^T w, `order` - 1 times over.
testing::AssertionResult adjoints_agree(const Function& f, const Arrays& x, Kind kind, int order,
                                        std::uint64_t seed);

// gradient_values() and gradient() give the same, and what is unrecorded the same values.
testing::AssertionResult sweeps_agree(const Function& f, const Arrays& x, std::uint64_t seed);

// The inputs as slices of permutations of something larger, NaN around them: the same bits.
testing::AssertionResult views_agree(const Function& f, const Arrays& x, std::uint64_t seed);

// Values and gradients in float, of inputs rounded to it, are those in double but for rounding.
testing::AssertionResult float_agrees(const Call& call, const Arrays& x, std::uint64_t seed);

// Of an elementwise op at every combination of special numbers, infinities and NaN among them: it gives what
// `each` gives, in both types; its sweeps give the same; and one such number changes no element but its own.
testing::AssertionResult special_values_agree(const Call& call, const Each& each, std::size_t inputs);
testing::AssertionResult sweeps_agree_at_special_numbers(const Function& f, std::size_t inputs);
testing::AssertionResult special_numbers_touch_no_other(const Function& f, const Arrays& x);

testing::AssertionResult agrees(const Function& f, const Example& example);
testing::AssertionResult agrees(const Function& f, const GoldenCase& of_case);
testing::AssertionResult refuses(std::string_view op, const Call& call, const Refusal& refusal);

}  // namespace tapehead::table
