#include <tapehead/ops/norm.h>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

const auto rms_norm_in = [](const Golden& golden, const List<double>& x) {
  return rms_norm(x[0], x[1], golden.number("eps"));
};

const Rows rows = {
    {.op = "layer_norm",
     .call = [](const auto& x) { return layer_norm(x[0], x[1], x[2], 1e-2); },
     .samples = {{{2, 3, 5}, {5}, {5}},
                 {{2, 4, 3}, {4, 3}, {4, 3}},
                 {{4}, {4}, {4}},
                 {{3, 1}, {1}, {1}},
                 {{0, 4}, {4}, {4}},
                 {{2, 0}, {0}, {0}}},
     .lacks = {.rank_zero = true},
     .golden = {{.name = "layer_norm",
                 .inputs = {"x", "weight", "b"},
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return layer_norm(x[0], x[1], x[2], golden.number("eps"));
                     }}},
     .refuses = {{.shapes = {{2, 3}, {2}, {2}}},
                 {.shapes = {{2, 3}, {3}, {2}}},
                 {.shapes = {{2, 3}, {1}, {1}}},
                 {.shapes = {{3}, {2, 3}, {2, 3}}},
                 {.shapes = {{2, 3}, {}, {}}}}},
    {.op = "rms_norm",
     .call = [](const auto& x) { return rms_norm(x[0], x[1], 1e-2); },
     .samples =
         {{{2, 3, 5}, {5}}, {{2, 4, 3}, {4, 3}}, {{4}, {4}}, {{3, 1}, {1}}, {{0, 4}, {4}}, {{2, 0}, {0}}},
     .lacks = {.rank_zero = true},
     .golden = {{.name = "rms_norm", .inputs = {"x", "weight"}, .call = rms_norm_in},
                {.name = "rms_norm_axes", .inputs = {"x", "weight"}, .call = rms_norm_in, .folder = "made"}},
     .refuses = {{.shapes = {{2, 3}, {2}}}, {.shapes = {{3}, {2, 3}}}, {.shapes = {{2, 3}, {}}}}},
};

}  // namespace
}  // namespace tapehead::table
