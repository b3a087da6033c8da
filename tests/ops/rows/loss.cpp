#include <tapehead/ops/loss.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include <limits>
#include <string>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

const auto some_targets = Array<Index>::of({{1, 4, 0}, {-7, 2, 1}});

template <class T>
CrossEntropyOptions<T> every_option(Reduction reduction) {
  return {.reduction = reduction,
          .ignored = -7,
          .smoothing = 0.2,
          .weights = Array<T>::of({0.5, 2, 1, 0.25, 1.5})};
}
template <class T>
CrossEntropyOptions<T> ignoring() {
  return {.reduction = Reduction::mean, .ignored = -7, .smoothing = 0, .weights = {}};
}

Reduction reduction_in(const Golden& golden) {
  const std::string& name = golden.meta("reduction");
  return name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
}

// The cases along the last axis have one row a target in their outputs.
const auto cross_entropy_in = [](const Golden& golden, const List<double>& x) {
  CrossEntropyOptions<double> options;
  options.reduction = reduction_in(golden);
  if (golden.has_meta("ignore_index")) options.ignored = std::stoll(golden.meta("ignore_index"));
  if (golden.has_meta("label_smoothing")) options.smoothing = golden.number("label_smoothing");
  if (golden.has("weight")) options.weights = golden.array("weight");
  if (golden.has_meta("axis")) {
    options.axis = axis_in(golden);
    return cross_entropy(x[0], golden.index("target"), options);
  }
  return cross_entropy(reshape(x[0], {-1, x[0].dim(-1)}), golden.index("target").reshape({-1}), options);
};

const Rows rows = {
    {.op = "cross_entropy",
     .call = []<class T>(const List<T>& x) { return cross_entropy(x[0], some_targets, ignoring<T>()); },
     .samples = {{{2, 3, 5}}},
     .lacks = {.rank_zero = true},
     .golden = {{.name = "cross_entropy_mean", .call = cross_entropy_in},
                {.name = "cross_entropy_ignore", .call = cross_entropy_in},
                {.name = "cross_entropy_smooth", .call = cross_entropy_in}},
     .refuses = {{.shapes = {{3, 2, 5}}, .texts = {"(2, 3)"}},
                 {.shapes = {{2, 5}}, .texts = {"(2, 3)"}},
                 {.shapes = {{}}, .texts = {"(2, 3)"}},
                 {.shapes = {{2, 3, 4}},
                  .texts = {"target 4", "(0, 1)", "0 to 3"},
                  .error = Refusal::Of::values},
                 {.shapes = {{2, 3, 0}}, .texts = {"target 1", "(0, 0)"}, .error = Refusal::Of::values}}},
    {.op = "cross_entropy",
     .as = "sum",
     .call =
         []<class T>(const List<T>& x) {
           return cross_entropy(x[0], some_targets, every_option<T>(Reduction::sum));
         },
     .samples = {{{2, 3, 5}}},
     .golden = {{.name = "cross_entropy_sum", .call = cross_entropy_in}},
     .refuses = {{.shapes = {{2, 3, 6}}, .texts = {"(5)"}}}},
    {.op = "cross_entropy",
     .as = "none",
     .call =
         []<class T>(const List<T>& x) {
           return cross_entropy(x[0], some_targets, every_option<T>(Reduction::none));
         },
     .samples = {{{2, 3, 5}}},
     .golden = {{.name = "cross_entropy_none", .call = cross_entropy_in}}},
    {.op = "cross_entropy",
     .as = "weighted_mean",
     .call =
         []<class T>(const List<T>& x) {
           return cross_entropy(x[0], some_targets, every_option<T>(Reduction::mean));
         },
     .samples = {{{2, 3, 5}}}},
    {.op = "cross_entropy",
     .as = "of_one_row",
     .call = [](const auto& x) { return cross_entropy(x[0], Array<Index>::scalar(0)); },
     .samples = {{{5}}, {{4}}, {{1}}}},
    {.op = "cross_entropy",
     .as = "of_nothing",
     .call =
         []<class T>(const List<T>& x) {
           CrossEntropyOptions<T> options;
           options.reduction = Reduction::none;
           return cross_entropy(x[0], Array<Index>::zeros({0, 2}), options);
         },
     .samples = {{{0, 2, 5}}}},
    // The classes in the middle.
    {.op = "cross_entropy",
     .as = "class_axis",
     .call =
         []<class T>(const List<T>& x) {
           CrossEntropyOptions<T> options = every_option<T>(Reduction::none);
           options.axis = 1;
           return cross_entropy(x[0], some_targets, options);
         },
     .samples = {{{2, 5, 3}}},
     .golden = {{.name = "cross_entropy_axis", .call = cross_entropy_in, .folder = "made"}},
     .refuses = {{.shapes = {{2, 3, 5}}, .texts = {"axis 1", "(2, 3)"}},
                 {.shapes = {{5}}, .texts = {"axis 1 is out of range"}}}},

    {.op = "mse",
     .call = [](const auto& x) { return mse(x[0], x[1]); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}, {2, 3}}, {{}, {}}, {{1}, {1}}},
     .examples = {{.inputs = {Array<double>::zeros({0}), Array<double>::zeros({0})},
                   .y = Array<double>::scalar(nan)}},
     .golden = {{"mse", {"x", "y"}}},
     .refuses = {{.shapes = {{2, 3}, {3, 2}}}, {.shapes = {{2, 3}, {3}}}, {.shapes = {{1}, {}}}}},
    {.op = "mse",
     .as = "sum",
     .call = [](const auto& x) { return mse(x[0], x[1], Reduction::sum); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}, {2, 3}}, {{0, 2}, {0, 2}}},
     .golden = {{.name = "mse_sum", .inputs = {"x", "y"}, .folder = "made"}}},
    {.op = "mse",
     .as = "none",
     .call = [](const auto& x) { return mse(x[0], x[1], Reduction::none); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}, {2, 3}}, {{0, 2}, {0, 2}}},
     .golden = {{.name = "mse_none", .inputs = {"x", "y"}, .folder = "made"}}},
    {.op = "kl_div",
     .call = [](const auto& x) { return kl_div(x[0], x[1]); },
     .samples = {{{2, 3, 5}, Input(From::weights, {2, 3, 5})},
                 {{4}, Input(From::weights, {4})},
                 {{2, 1}, Input(From::weights, {2, 1})}},
     .lacks = {.rank_zero = true},
     .golden = {{.name = "kl_div",
                 .call = [](const Golden& golden,
                            const List<double>&
                                x) { return kl_div(log_softmax(x[0]), Var<double>(golden.array("y"))); }}},
     .refuses = {{.shapes = {{2, 3}, {3, 2}}},
                 {.shapes = {{2, 3}, {3}}},
                 {.shapes = {{}, {}}, .texts = {"axis -1 is out of range"}}}},
    {.op = "kl_div",
     .as = "none",
     .call = [](const auto& x) { return kl_div(x[0], x[1], Reduction::none, 0); },
     .samples = {{{2, 3}, Input(From::positive, {2, 3})}, {{3, 0}, {3, 0}}, {{0, 3}, {0, 3}}},
     // What has no probability adds nothing, whatever is said of it; what cannot be costs infinity.
     .examples = {{.inputs = {Array<double>::of({{-infinity, nan, 0, -infinity}, {-1, 0, 0, 0}}),
                              Array<double>::of({{0, 0, 0, 1}, {1, 1, nan, 0}})},
                   .y = Array<double>::of({1, 0, nan, infinity}),
                   .gradients = {Array<double>::of({{0, 0, 0, -1}, {-1, -1, nan, 0}}),
                                 Array<double>::of({{0, 0, 0, infinity}, {2, 1, nan, 0}})}}},
     .golden = {{.name = "kl_div_both",
                 .inputs = {"x", "y"},
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return kl_div(x[0], x[1], Reduction::none, axis_in(golden));
                     },
                 .folder = "made"}}},
    {.op = "kl_div",
     .as = "sum",
     .call = [](const auto& x) { return kl_div(x[0], x[1], Reduction::sum, 1); },
     .samples = {{{2, 3, 4}, Input(From::positive, {2, 3, 4})}}},
};

}  // namespace
}  // namespace tapehead::table
