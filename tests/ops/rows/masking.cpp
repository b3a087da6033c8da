#include <tapehead/ops/masking.h>

#include <limits>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class T>
Var<T> filled(const Var<T>& x, const Array<bool>& kept) {
  return masked_fill(x, kept, -1e3);
}

const Array<bool> some_places = Array<bool>::of({{true, false, true}, {false, false, true}});

const auto where_in = [](const Golden& golden, const List<double>& x) {
  return where(golden.mask("condition"), x[0], x[1]);
};

const Rows rows = {
    {.op = "masked_fill",
     .call =
         [](const auto& x) {
           return filled(x[0], Array<bool>::of({{true, false, true}, {false, false, true}}));
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}}, {{4, 2, 3}}, {{0, 2, 3}}},
     .examples = {{.inputs = {Array<double>::of({{1, nan, infinity}, {nan, infinity, nan}})},
                   .y = Array<double>::of({{1, -1e3, infinity}, {-1e3, -1e3, nan}}),
                   .gradients = {Array<double>::of({{1, 0, 1}, {0, 0, 1}})}}},
     .golden = {{.name = "masked_fill",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return masked_fill(x[0], golden.mask("mask"), golden.number("fill"));
                     }}},
     .refuses = {{.shapes = {{2, 2}}, .texts = {"(2, 3)"}},
                 {.shapes = {{3}}, .texts = {"(2, 3)"}},
                 {.shapes = {{1, 3}}, .texts = {"(2, 3)"}}}},
    {.op = "masked_fill",
     .as = "by_columns",
     .call = [](const auto& x) { return filled(x[0], Array<bool>::of({{true}, {false}})); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}}, {{3, 2, 1}}, {{2, 0}}}},
    {.op = "masked_fill",
     .as = "as_a_whole",
     .call = [](const auto& x) { return filled(x[0], Array<bool>::scalar(true)); },
     .kind = Kind::polynomial,
     .samples = alone()},
    {.op = "where",
     .call = [](const auto& x) { return where(some_places, x[0], x[1]); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}, {2, 3}},
                 {{3}, {2, 1}},
                 {{2, 1}, {3}},
                 {{4, 2, 3}, {}},
                 {{1}, {4, 1, 3}},
                 {{}, {}},
                 {{0, 2, 3}, {1, 3}}},
     .broadcasts = true,
     .examples = {{.inputs = {Array<double>::of({{1, nan, infinity}, {nan, infinity, nan}}),
                              Array<double>::of({-infinity, 2, nan})},
                   .y = Array<double>::of({{1, 2, infinity}, {-infinity, 2, nan}}),
                   .gradients = {Array<double>::of({{1, 0, 1}, {0, 0, 1}}), Array<double>::of({1, 2, 0})}}},
     .golden = {{.name = "where", .inputs = {"x", "y"}, .call = where_in},
                {.name = "where_all", .inputs = {"x", "y"}, .call = where_in, .folder = "made"}},
     .refuses = {{.shapes = {{2, 2}, {2, 2}}, .texts = {"condition (2, 3)", "x (2, 2)", "y (2, 2)"}},
                 {.shapes = {{4}, {2, 3}}, .texts = {"condition (2, 3)"}},
                 {.shapes = {{2, 3}, {3, 1}}, .texts = {"condition (2, 3)"}}}},
};

}  // namespace
}  // namespace tapehead::table
