#include <tapehead/ops/indexing.h>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

const auto some_rows = Array<Index>::of({{1, 4, 1}, {0, 4, 4}});

// An index of the shape: of each number up to `count` about as many, some beside themselves.
Array<Index> spread(const Shape& shape, Index count) {
  auto index = Array<Index>::uninitialized(shape);
  Index i = 0;
  for (Index& number : index.mutable_values()) {
    number = (i + i / 3) / 2 % count;
    ++i;
  }
  return index;
}

const Rows rows = {
    {.op = "embedding",
     .call = [](const auto& x) { return embedding(x[0], some_rows); },
     .kind = Kind::polynomial,
     .samples = {{{5, 3}}, {{6}}, {{5, 1, 2}}, {{5, 0}}},
     .lacks = {.rank_zero = true},
     .golden = {{.name = "embedding",
                 .inputs = {"table"},
                 .call = [](const Golden& golden,
                            const List<double>& x) { return embedding(x[0], golden.index("index")); }}},
     .refuses = {{.shapes = {{}}},
                 {.shapes = {{4, 2}}, .texts = {"index 4", "(0, 1)", "0 to 3"}, .error = Refusal::Of::values},
                 {.shapes = {{0, 2}}, .texts = {"index 1", "(0, 0)"}, .error = Refusal::Of::values},
                 {.shapes = {{3}},
                  .texts = {"index -1", "(1)"},
                  .call =
                      [](const auto& x) {
                        return embedding(x[0], Array<Index>::of({0, -1}));
                      },
                  .error = Refusal::Of::values}}},
    {.op = "embedding",
     .as = "of_one",
     .call = [](const auto& x) { return embedding(x[0], Array<Index>::scalar(3)); },
     .kind = Kind::polynomial,
     .samples = {{{5, 3}}, {{4}}}},
    {.op = "embedding",
     .as = "of_nothing",
     .call = [](const auto& x) { return embedding(x[0], Array<Index>::zeros({0})); },
     .kind = Kind::polynomial,
     .samples = {{{5, 3}}, {{0, 3}}}},
    {.op = "index_add",
     .call = [](const auto& x) { return index_add(x[0], some_rows, 0, 6); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{2, 3}}, {{2, 3, 1, 2}}, {{2, 3, 0}}},
     .refuses = {{.shapes = {{3, 2}}, .texts = {"(2, 3)"}},
                 {.shapes = {{2}}, .texts = {"(2, 3)"}},
                 {.shapes = {{2, 3}},
                  .texts = {"index 4", "(0, 1)", "0 to 3"},
                  .call = [](const auto& x) { return index_add(x[0], some_rows, 0, 4); },
                  .error = Refusal::Of::values},
                 {.shapes = {{2, 3}},
                  .texts = {"count -1"},
                  .call = [](const auto& x) { return index_add(x[0], some_rows, 0, -1); },
                  .error = Refusal::Of::values}}},
    {.op = "index_add",
     .as = "of_one",
     .call = [](const auto& x) { return index_add(x[0], Array<Index>::scalar(1), 0, 3); },
     .kind = Kind::polynomial,
     .samples = {{{}}, {{4}}, {{2, 3}}}},
    {.op = "index_add",
     .as = "along_the_last_axis",
     .call =
         [](const auto& x) {
           return index_add(x[0], Array<Index>::of({2, 0, 2, 1}), -1, 3);
         },
     .kind = Kind::polynomial,
     .samples = {{{5, 4}}, {{2, 1, 4}}, {{4}}},
     .refuses = {{.shapes = {{4, 3}}, .texts = {"axis -1", "index (4)"}}}},
    {.op = "index_select",
     .call =
         [](const auto& x) {
           return index_select(x[0], spread({2, 4}, x[0].dim(1)), 1);
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{4, 5}}, {{3, 1, 2}}, {{0, 2}}, {{2, 3, 0}}},
     .lacks = {.rank_zero = true},
     .golden = {{.name = "index_select",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return index_select(x[0], golden.index("index"), axis_in(golden));
                     }}},
     .refuses = {{.shapes = {{2, 3}},
                  .texts = {"axis 2 is out of range"},
                  .call = [](const auto& x) { return index_select(x[0], some_rows, 2); }},
                 {.shapes = {{2, 4}},
                  .texts = {"index 4", "(0, 1)", "0 to 3"},
                  .call = [](const auto& x) { return index_select(x[0], some_rows, -1); },
                  .error = Refusal::Of::values}}},
    {.op = "index_select",
     .as = "one_from_the_end",
     .call = [](const auto& x) { return index_select(x[0], Array<Index>::scalar(1), -1); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}}, {{4}}}},
    {.op = "gather",
     .call =
         [](const auto& x) {
           return gather(x[0], spread(x[0].shape().with(1, 2 * x[0].dim(1)), x[0].dim(1)), 1);
         },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .golden = {{.name = "gather",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return gather(x[0], golden.index("index"), axis_in(golden));
                     }}},
     .refuses = {{.shapes = {{2}},
                  .texts = {"axis 0", "index (2, 3)"},
                  .call = [](const auto& x) { return gather(x[0], some_rows, 0); }},
                 {.shapes = {{5, 2}},
                  .texts = {"axis 0", "index (2, 3)"},
                  .call = [](const auto& x) { return gather(x[0], some_rows, 0); }},
                 {.shapes = {{2, 3}},
                  .texts = {"axis 2 is out of range"},
                  .call = [](const auto& x) { return gather(x[0], some_rows, 2); }},
                 {.shapes = {{4, 3}},
                  .texts = {"index 4", "(0, 1)", "0 to 3"},
                  .call = [](const auto& x) { return gather(x[0], some_rows, 0); },
                  .error = Refusal::Of::values}}},
    {.op = "gather",
     .as = "of_a_part",
     .call = [](const auto& x) { return gather(x[0], some_rows, -2); },
     .kind = Kind::polynomial,
     .samples = {{{5, 3}}, {{6, 4}}}},
    {.op = "scatter_add",
     .call =
         [](const auto& x) {
           const Shape& from = x[0].shape();
           return scatter_add(x[0], spread(from, 4), 1, from.with(1, 4).with(0, from[0] + 1));
         },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .refuses = {{.shapes = {{3, 2}},
                  .texts = {"index (2, 3)"},
                  .call =
                      [](const auto& x) {
                        return scatter_add(x[0], some_rows, 0, {5, 3});
                      }},
                 {.shapes = {{2, 3}},
                  .texts = {"axis 0", "to (5, 2)"},
                  .call =
                      [](const auto& x) {
                        return scatter_add(x[0], some_rows, 0, {5, 2});
                      }},
                 {.shapes = {{2, 3}},
                  .texts = {"index 4", "(0, 1)", "0 to 3"},
                  .call =
                      [](const auto& x) {
                        return scatter_add(x[0], some_rows, -1, {2, 4});
                      },
                  .error = Refusal::Of::values}}},
};

}  // namespace
}  // namespace tapehead::table
