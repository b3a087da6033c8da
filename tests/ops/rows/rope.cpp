#include <tapehead/ops/rope.h>

#include <string>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

Pairing pairing_in(const Golden& golden) {
  return golden.meta("pairing") == "interleaved" ? Pairing::neighbours : Pairing::half;
}

const GoldenCase::Function as_in_the_case = [](const Golden& golden, const List<double>& x) {
  return rope(x[0], {.pairing = pairing_in(golden),
                     .base = golden.number("theta"),
                     .start = std::stoll(golden.meta("start"))});
};

// Numbers for (L, D / 2), here (3, 2), that belong to no angle, `first` first.
template <class T>
Array<T> table_from(double first, const Shape& shape = {3, 2}) {
  auto table = Array<T>::uninitialized(shape);
  double next = first;
  for (T& value : table.mutable_values()) {
    value = static_cast<T>(next);
    next -= 0.4;
  }
  return table;
}

const std::vector<Sample> sequences = {{{2, 3, 4}}, {{5, 6}},    {{2, 1, 3, 2}},
                                       {{1, 8}},    {{2, 0, 4}}, {{3, 0}}};

const Rows rows = {
    {.op = "rope",
     .as = "half",
     .call = [](const auto& x) { return rope(x[0], {.base = 100, .start = 3}); },
     .kind = Kind::polynomial,
     .samples = sequences,
     .lacks = {.rank_zero = true},
     .golden = {{.name = "rope_half", .call = as_in_the_case}},
     .refuses = {{.shapes = {{2, 5}}, .texts = {"pairs"}},
                 {.shapes = {{4}}, .texts = {"positions"}},
                 {.shapes = {{}}}}},
    {.op = "rope",
     .as = "neighbours",
     .call = [](const auto& x) { return rope(x[0], {.pairing = Pairing::neighbours, .start = -2}); },
     .kind = Kind::polynomial,
     .samples = sequences,
     .golden = {{.name = "rope_interleaved", .call = as_in_the_case}},
     .refuses = {{.shapes = {{2, 4}},
                  .texts = {"base"},
                  .call = [](const auto& x) { return rope(x[0], {.base = 0}); },
                  .error = Refusal::Of::values}}},
    {.op = "rope",
     .as = "half_of_a_width",
     .call = [](const auto& x) { return rope(x[0], {.base = 100, .start = 3, .width = 4}); },
     .kind = Kind::polynomial,
     .samples = {{{3, 4}}, {{3, 5}}, {{2, 3, 7}}, {{0, 6}}},
     .refuses = {{.shapes = {{2, 3}}, .texts = {"width 4"}},
                 {.shapes = {{2, 6}},
                  .texts = {"width 3", "pairs"},
                  .call = [](const auto& x) { return rope(x[0], {.width = 3}); }},
                 {.shapes = {{2, 6}},
                  .texts = {"width -2"},
                  .call = [](const auto& x) { return rope(x[0], {.width = -2}); }}}},
    {.op = "rope",
     .as = "neighbours_of_scaled_positions",
     .call =
         [](const auto& x) {
           return rope(x[0],
                       {.pairing = Pairing::neighbours, .start = 5, .width = 2, .position_scale = 0.25});
         },
     .kind = Kind::polynomial,
     .samples = {{{3, 4}}, {{2, 1, 3}}},
     .refuses = {{.shapes = {{2, 4}},
                  .texts = {"position scale"},
                  .call = [](const auto& x) { return rope(x[0], {.position_scale = 0}); },
                  .error = Refusal::Of::values}}},
    {.op = "rope",
     .as = "from_a_start_by_sample",
     .call =
         [](const auto& x) {
           return rope(x[0], {.base = 100, .start = Array<Index>::of({4, -1})});
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 4}}, {{2, 1, 3, 2}}, {{2, 3, 1, 4}}, {{2, 0, 4}}},
     .refuses = {{.shapes = {{3, 2, 4}}, .texts = {"start (2)"}},
                 {.shapes = {{2, 4}}, .texts = {"start (2)"}}}},
    {.op = "rope",
     .as = "from_a_start_by_head",
     .call =
         [](const auto& x) {
           return rope(x[0],
                       {.pairing = Pairing::neighbours, .start = Array<Index>::of({{4, -1, 0}, {2, 9, 3}})});
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5, 4}}},
     .refuses = {{.shapes = {{2, 1, 5, 4}}, .texts = {"start (2, 3)"}}}},
    {.op = "rope",
     .as = "given_half",
     .call = []<class T>(const List<T>& x) { return rope(x[0], table_from<T>(1), table_from<T>(0.5)); },
     .kind = Kind::polynomial,
     .samples = {{{3, 4}}, {{2, 5, 3, 4}}},
     .refuses = {{.shapes = {{2, 4}}, .texts = {"cosines (3, 2)", "sines (3, 2)"}},
                 {.shapes = {{3, 6}}, .texts = {"cosines (3, 2)"}},
                 {.shapes = {{4}}}}},
    {.op = "rope",
     .as = "given_neighbours",
     .call =
         []<class T>(const List<T>& x) {
           return rope(x[0], table_from<T>(1), table_from<T>(0.5), Pairing::neighbours);
         },
     .kind = Kind::polynomial,
     .samples = {{{3, 4}}, {{2, 5, 3, 4}}}},
    {.op = "rope",
     .as = "given_of_a_width",
     .call =
         []<class T>(const List<T>& x) {
           return rope(x[0], table_from<T>(1, {3, 1}), table_from<T>(0.5, {3, 1}), Pairing::half, 2);
         },
     .kind = Kind::polynomial,
     .samples = {{{3, 2}}, {{2, 3, 5}}},
     .refuses = {{.shapes = {{4, 6}}, .texts = {"cosines (3, 1)", "sines (3, 1)"}}}},
};

}  // namespace
}  // namespace tapehead::table
