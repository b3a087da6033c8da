#include <tapehead/ops/reduction.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

Keep keep_in(const Golden& golden) { return golden.meta("keepdim") == "1" ? Keep::yes : Keep::no; }

const auto sum_in = [](const Golden& golden, const List<double>& x) {
  return sum(x[0], integers_in(golden, "axis"), keep_in(golden));
};

constexpr double ln2 = std::numbers::ln2;

// What follows of sums of infinities, along the last axis.
const Array<double> not_finite = Array<double>::of(
    {{1, infinity, 2}, {infinity, -infinity, 0}, {nan, 1, infinity}, {-infinity, 1, 2}, {1, 2, 3}});

const auto var_in = [](const Golden& golden, const List<double>& x) {
  return var(x[0], integers_in(golden, "axis"), keep_in(golden), std::stoi(golden.meta("correction")));
};

// There is no extreme, and a logarithm of 0, of no element.
std::vector<Sample> with_something_along_axis_1(From from) {
  std::vector<Sample> samples;
  for (const Sample& sample : rows_of(3, from)) {
    if (sample[0].shape[1] > 0) samples.push_back(sample);
  }
  return samples;
}

const Rows rows = {
    {.op = "sum",
     .call = [](const auto& x) { return sum(x[0]); },
     .kind = Kind::polynomial,
     .samples = alone(),
     .golden = {{"sum_all"}}},
    {.op = "sum",
     .as = "over_axis",
     .call = [](const auto& x) { return sum(x[0], 1); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .examples = {{.inputs = {not_finite},
                   .y = Array<double>::of({infinity, nan, nan, -infinity, 6}),
                   .gradients = {Array<double>::ones({5, 3})}}},
     .golden = {{.name = "sum_axis0", .call = sum_in},
                {.name = "sum_axis1", .call = sum_in},
                {.name = "sum_axis-1", .call = sum_in}},
     .refuses = {{.shapes = {{2}}, .texts = {"axis 1 is out of range"}},
                 {.shapes = {{}}, .texts = {"axis 1 is out of range"}}}},
    {.op = "sum",
     .as = "over_axes",
     .call =
         [](const auto& x) {
           return sum(x[0], {0, -1});
         },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .refuses = {{.shapes = {{2}}, .texts = {"named twice"}}}},
    {.op = "sum",
     .as = "over_axes_kept",
     .call =
         [](const auto& x) {
           return sum(x[0], {0, -1}, Keep::yes);
         },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .golden = {{.name = "sum_keep", .call = sum_in}}},
    // Over no element the mean is NaN.
    {.op = "mean",
     .call = [](const auto& x) { return mean(x[0]); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{}}, {{1}}},
     .examples = {{.inputs = {Array<double>::zeros({0})}, .y = Array<double>::scalar(nan)}}},
    {.op = "mean",
     .as = "over_axis",
     .call = [](const auto& x) { return mean(x[0], -1); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{4, 1}}, {{0, 3}}},
     .examples = {{.inputs = {not_finite}, .y = Array<double>::of({infinity, nan, nan, -infinity, 2})}},
     .golden = {{.name = "mean_axis",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return mean(x[0], integers_in(golden, "axis"), keep_in(golden));
                     }}},
     .refuses = {{.shapes = {{}}, .texts = {"axis -1 is out of range"}}}},
    {.op = "mean",
     .as = "over_axes_kept",
     .call =
         [](const auto& x) {
           return mean(x[0], {0, 2}, Keep::yes);
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{2, 0, 5}}},
     .refuses = {{.shapes = {{2, 3}}, .texts = {"axis 2 is out of range"}}}},
    {.op = "var",
     .call = [](const auto& x) { return var(x[0]); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{1}}},
     .lacks = {.rank_zero = true},  // where it is 0
     .examples = {{.inputs = {Array<double>::zeros({0})}, .y = Array<double>::scalar(nan)}}},
    {.op = "var",
     .as = "over_axis",
     .call = [](const auto& x) { return var(x[0], 1); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{4, 1}}, {{0, 3}}},
     .examples = {{.inputs = {not_finite}, .y = Array<double>::of({nan, nan, nan, nan, 2.0 / 3})}},
     .golden = {{.name = "var_axis", .call = var_in}},
     .refuses = {{.shapes = {{}}, .texts = {"axis 1 is out of range"}}}},
    {.op = "var",
     .as = "of_a_sample",
     .call = [](const auto& x) { return var(x[0], {0, -1}, Keep::yes, 1); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{2, 0, 5}}, {{1, 4, 2}}},
     .examples = {{.inputs = {Array<double>::ones({1, 2, 1})}, .y = Array<double>::full({1, 2, 1}, nan)}},
     .golden = {{.name = "var_sample", .call = var_in, .folder = "made"}},
     .refuses = {{.shapes = {{2}}, .texts = {"named twice"}},
                 {.shapes = {{2}},
                  .texts = {"correction 2"},
                  .call = [](const auto& x) { return var(x[0], 0, Keep::no, 2); },
                  .error = Refusal::Of::values}}},
    {.op = "amax",
     .call = [](const auto& x) { return amax(x[0]); },
     .samples = {{Input(From::apart, {2, 3, 5})}, {Input(From::apart, {4, 1, 3})}, {{}}},
     .refuses = {{.shapes = {{2, 0}}, .texts = {"no element"}}}},
    {.op = "amax",
     .as = "over_axis",
     .call = [](const auto& x) { return amax(x[0], 1); },
     .samples = with_something_along_axis_1(From::apart),
     .examples = {{.inputs = {Array<double>::of({{1, 3, 3, 0},
                                                 {2, nan, 5, 7},
                                                 {1, infinity, 2, 1},
                                                 {-infinity, -infinity, -infinity, -infinity}})},
                   .y = Array<double>::of({3, nan, infinity, -infinity}),
                   .gradients = {Array<double>::of(
                       {{0, 0.5, 0.5, 0}, {nan, nan, nan, nan}, {0, 1, 0, 0}, {0.25, 0.25, 0.25, 0.25}})}}},
     .golden = {{.name = "amax_ties",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return amax(x[0], integers_in(golden, "axis"), keep_in(golden));
                     }}},
     .refuses = {{.shapes = {{2, 0, 3}}, .texts = {"no element"}},
                 {.shapes = {{0, 0}}, .texts = {"no element"}},
                 {.shapes = {{2}}, .texts = {"axis 1 is out of range"}}}},
    {.op = "amax",
     .as = "over_axes_kept",
     .call =
         [](const auto& x) {
           return amax(x[0], {0, -1}, Keep::yes);
         },
     .samples = {{Input(From::apart, {2, 3, 5})}, {Input(From::apart, {2, 0, 5})}},
     .golden = {{.name = "amax_axes",
                 .call = [](const Golden& golden,
                            const List<double>& x) { return amax(x[0], integers_in(golden, "axis")); },
                 .folder = "made"}}},
    {.op = "amin",
     .call = [](const auto& x) { return amin(x[0]); },
     .samples = {{Input(From::apart, {2, 3, 5})}, {Input(From::apart, {4, 1, 3})}, {{}}},
     .refuses = {{.shapes = {{2, 0}}, .texts = {"no element"}}}},
    {.op = "amin",
     .as = "over_axis",
     .call = [](const auto& x) { return amin(x[0], 1); },
     .samples = with_something_along_axis_1(From::apart),
     .examples = {{.inputs = {Array<double>::of({{1, 3, 3, 0},
                                                 {2, nan, 5, 7},
                                                 {1, infinity, 2, 1},
                                                 {-infinity, -infinity, -infinity, -infinity}})},
                   .y = Array<double>::of({0, nan, 1, -infinity}),
                   .gradients = {Array<double>::of(
                       {{0, 0, 0, 1}, {nan, nan, nan, nan}, {0.5, 0, 0, 0.5}, {0.25, 0.25, 0.25, 0.25}})}}},
     .golden = {},
     .refuses = {{.shapes = {{2, 0, 3}}, .texts = {"no element"}},
                 {.shapes = {{0, 0}}, .texts = {"no element"}},
                 {.shapes = {{2}}, .texts = {"axis 1 is out of range"}}}},
    {.op = "amin",
     .as = "over_axes_kept",
     .call =
         [](const auto& x) {
           return amin(x[0], {0, -1}, Keep::yes);
         },
     .samples = {{Input(From::apart, {2, 3, 5})}, {Input(From::apart, {2, 0, 5})}},
     .golden = {{.name = "amin_axes",
                 .call = [](const Golden& golden,
                            const List<double>& x) { return amin(x[0], integers_in(golden, "axis")); },
                 .folder = "made"}}},
    {.op = "prod",
     .call = [](const auto& x) { return prod(x[0]); },
     .samples = alone(From::around_zero),
     .golden = {{.name = "prod_all", .folder = "made"}}},
    {.op = "prod",
     .as = "over_axis",
     .call = [](const auto& x) { return prod(x[0], 1); },
     .samples = rows_of(3, From::around_zero),
     .refuses = {{.shapes = {{2}}, .texts = {"axis 1 is out of range"}}}},
    {.op = "prod",
     .as = "over_axes_kept",
     .call =
         [](const auto& x) {
           return prod(x[0], {0, -1}, Keep::yes);
         },
     .samples = rows_of(3, From::around_zero),
     .refuses = {{.shapes = {{2}}, .texts = {"named twice"}}}},
    // Of degree four, so that a difference leaves nothing of the higher derivatives: with none, one, two and
    // three zeros.
    {.op = "prod",
     .as = "with_zeros",
     .call = [](const auto& x) { return prod(x[0], -1); },
     .order = 3,
     .samples = {{Array<double>::of({1.5, -0.5, 2, 0.75})},
                 {Array<double>::of({1.5, 0, 2, 0.75})},
                 {Array<double>::of({0, -0.5, 2, 0})},
                 {Array<double>::of({0, 0, 2, 0})},
                 {Array<double>::of({0, 0, 0, 0})},
                 {Array<double>::of({0, 3})},
                 {Array<double>::of({0, 0, 3})},
                 {Array<double>::of({{0, 3, 2}, {1, 0, 0}})}},
     .golden = {{.name = "prod_axis"}, {.name = "prod_zeros", .folder = "made"}}},
    {.op = "logsumexp",
     .call = [](const auto& x) { return logsumexp(x[0]); },
     .samples = {{{2, 3, 5}}, {{}}, {{1}}},
     .examples = {{.inputs = {Array<double>::zeros({2, 0})}, .y = Array<double>::scalar(-infinity)}}},
    {.op = "logsumexp",
     .as = "over_axis",
     .call = [](const auto& x) { return logsumexp(x[0], 1); },
     .samples = with_something_along_axis_1(From::anywhere),
     // PyTorch's values and gradients; of 1000 its gradient is exp of the rounded 1000 - y, off by 3e-14.
     .examples = {{.inputs = {Array<double>::of({{-infinity, -infinity},
                                                 {infinity, 1},
                                                 {-infinity, 2},
                                                 {nan, 1},
                                                 {1000, 1000},
                                                 {-1000, -1000}})},
                   .y = Array<double>::of({-infinity, infinity, 2, nan, 1000 + ln2, -1000 + ln2}),
                   .gradients = {Array<double>::of(
                       {{nan, nan}, {nan, 0}, {0, 1}, {nan, nan}, {0.5, 0.5}, {0.5, 0.5}})}}},
     .golden = {{.name = "logsumexp",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return logsumexp(x[0], integers_in(golden, "axis"), keep_in(golden));
                     }}},
     .refuses = {{.shapes = {{2}}, .texts = {"axis 1 is out of range"}}}},
    {.op = "logsumexp",
     .as = "over_axes_kept",
     .call =
         [](const auto& x) {
           return logsumexp(x[0], {0, -1}, Keep::yes);
         },
     .samples = {{{2, 3, 5}}, {{2, 0, 5}}, {{1, 4, 1}}},
     .golden = {{.name = "logsumexp_axes",
                 .call =
                     [](const Golden&, const List<double>& x) {
                       return logsumexp(x[0], {0, 2});
                     },
                 .folder = "made"}}},
    {.op = "cumsum",
     .call = [](const auto& x) { return cumsum(x[0], 1); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .examples = {{.inputs = {not_finite},
                   .y = Array<double>::of({{1, infinity, infinity},
                                           {infinity, nan, nan},
                                           {nan, nan, nan},
                                           {-infinity, -infinity, -infinity},
                                           {1, 3, 6}})}},
     .golden = {{.name = "cumsum",
                 .call = [](const Golden& golden,
                            const List<double>& x) { return cumsum(x[0], axis_in(golden)); }}},
     .refuses = {{.shapes = {{2}}, .texts = {"axis 1 is out of range"}}}},
    {.op = "cumsum",
     .as = "along_the_last",
     .call = [](const auto& x) { return cumsum(x[0], -1); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{7}}, {{1}}, {{0}}},
     .refuses = {{.shapes = {{}}, .texts = {"axis -1 is out of range"}}}},
};

}  // namespace
}  // namespace tapehead::table
