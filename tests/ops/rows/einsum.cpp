#include <tapehead/ops/einsum.h>

#include <string>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

Row of(const char* as, const char* spec, std::vector<Sample> samples) {
  return {.op = "einsum",
          .as = as,
          .call = [spec](const auto& x) { return einsum(spec, x[0], x[1]); },
          .kind = Kind::polynomial,
          .samples = std::move(samples)};
}

Row with_golden(Row row, const char* name) {
  row.golden = {{.name = name, .inputs = {"x", "y"}, .call = [](const Golden& golden, const List<double>& x) {
                   return einsum(golden.meta("spec"), x[0], x[1]);
                 }}};
  return row;
}

Row with_refusals(Row row, std::vector<Refusal> refuses) {
  row.refuses = std::move(refuses);
  return row;
}

const Rows rows = {
    with_golden(of("scores", "bhld,bhsd->bhls", {{{2, 3, 4, 5}, {2, 3, 6, 5}}, {{1, 2, 1, 3}, {1, 2, 4, 3}}}),
                "einsum_bhld_bhsd"),
    with_golden(
        of("summed_letter", "bld,de->be", {{{2, 3, 4}, {4, 5}}, {{2, 0, 4}, {4, 5}}, {{2, 3, 0}, {0, 5}}}),
        "einsum_outer_sum"),
    with_refusals(of("matrices", "ij,jk->ik", {{{2, 3}, {3, 5}}, {{3, 3}, {3, 3}}, {{2, 1}, {1, 5}}}),
                  {{.shapes = {{2, 3}, {4, 5}}, .texts = {"\"j\""}},
                   {.shapes = {{2, 3}, {1, 5}}, .texts = {"\"j\""}},
                   {.shapes = {{2, 3, 4}, {3, 5}}, .texts = {"\"ij\""}},
                   {.shapes = {{2, 3}, {}}, .texts = {"\"jk\""}}}),
    with_refusals(of("transposed", "ji,kj->ki", {{{3, 2}, {5, 3}}, {{3, 0}, {5, 3}}}),
                  {{.shapes = {{2, 2}, {2, 2}},
                    .texts = {"\"i\" occurs twice in operand a", "ii,ij->j"},
                    .call = [](const auto& x) { return einsum("ii,ij->j", x[0], x[1]); },
                    .error = Refusal::Of::values},
                   {.shapes = {{2, 2}, {2, 2}},
                    .texts = {"->"},
                    .call = [](const auto& x) { return einsum("ij,jk", x[0], x[1]); },
                    .error = Refusal::Of::values}}),
    of("heads_inside", "blhd,bshd->bhls", {{{2, 4, 3, 5}, {2, 6, 3, 5}}}),
    of("heads_to_width", "bhle,hem->blm", {{{2, 3, 4, 5}, {3, 5, 6}}}),
    of("batches_out_of_order", "hbi,bhj->jbhi", {{{3, 2, 4}, {2, 3, 5}}}),
    of("elementwise", "ij,ji->ij", {{{2, 3}, {3, 2}}, {{1, 4}, {4, 1}}}),
    of("outer", "i,j->ji", {{{3}, {4}}, {{0}, {4}}}),
    of("dot", "ij,ij->", {{{2, 3}, {2, 3}}, {{2, 0}, {2, 0}}}),
    of("numbers", ",->", {{{}, {}}}),
    of("everything_summed", "ij,k->", {{{2, 3}, {4}}}),
};

}  // namespace
}  // namespace tapehead::table
