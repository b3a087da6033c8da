#include <tapehead/ops/softmax.h>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

const std::vector<Refusal> no_such_axis = {{{{2}}, {"axis 1 is out of range"}}, {{{}}, {"axis 1"}}};

const Rows rows = {
    {.op = "softmax",
     .call = [](const auto& x) { return softmax(x[0]); },
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .golden = {{.name = "softmax_axis-1"},
                {.name = "softmax_huge", .vanishing = true},
                {.name = "softmax_tied", .folder = "made"}},
     .refuses = {{{{}}, {"axis -1 is out of range"}}}},
    {.op = "softmax",
     .as = "of_axis",
     .call = [](const auto& x) { return softmax(x[0], 1); },
     .samples = rows_of(3),
     .golden = {{.name = "softmax_axis1"}},
     .refuses = no_such_axis},
    {.op = "softmax",
     .as = "of_first_axis",
     .call = [](const auto& x) { return softmax(x[0], 0); },
     .samples = {{{6}}, {{1}}, {{0}}, {{3, 2}}},
     .golden = {{.name = "softmax_axis0"}}},
    {.op = "log_softmax",
     .call = [](const auto& x) { return log_softmax(x[0]); },
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .golden = {{.name = "log_softmax_axis-1"}, {.name = "log_softmax_tied", .folder = "made"}},
     .refuses = {{{{}}, {"axis -1 is out of range"}}}},
    {.op = "log_softmax",
     .as = "of_axis",
     .call = [](const auto& x) { return log_softmax(x[0], 1); },
     .samples = rows_of(3),
     .golden = {{.name = "log_softmax_axis1"}},
     .refuses = no_such_axis},
    {.op = "log_softmax",
     .as = "of_first_axis",
     .call = [](const auto& x) { return log_softmax(x[0], 0); },
     .samples = {{{6}}, {{1}}, {{0}}, {{3, 2}}},
     .golden = {{.name = "log_softmax_axis0"}}},
};

}  // namespace
}  // namespace tapehead::table
