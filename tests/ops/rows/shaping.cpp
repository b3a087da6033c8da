#include <tapehead/ops/shaping.h>

#include <optional>
#include <sstream>
#include <string>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

std::vector<Slice> slices_in(const Golden& golden) {  // ":,1:3,::2"
  std::vector<Slice> slices;
  std::istringstream axes(golden.meta("slices"));
  for (std::string axis; std::getline(axes, axis, ',');) {
    std::vector<std::optional<Index>> bounds;
    std::istringstream parts(axis);
    for (std::string part; std::getline(parts, part, ':');) {
      bounds.push_back(part.empty() ? std::nullopt : std::optional<Index>(std::stoll(part)));
    }
    bounds.resize(3);
    slices.push_back({bounds[0], bounds[1], bounds[2].value_or(1)});
  }
  return slices;
}

const std::vector<Slice> scattered = {{3, 0, -2}, {{}, {}, 2}};  // (2, 3) of a (4, 5)

const Rows rows = {
    {.op = "reshape",
     .call =
         [](const auto& x) {
           return reshape(x[0], {5, -1});
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{6, 5, 1}}, {{30}}, {{0, 3}}},
     .golden = {{.name = "reshape",
                 .call = [](const Golden& golden,
                            const List<double>& x) { return reshape(x[0], shape_in(golden, "shape")); }}},
     .refuses = {{.shapes = {{2, 3}}, .texts = {"(5, -1)"}},
                 {.shapes = {{2, 3}},
                  .texts = {"sizes differ", "(4)"},
                  .call = [](const auto& x) { return reshape(x[0], Shape{4}); }},
                 {.shapes = {{2, 3}},
                  .texts = {"sizes differ", "(2, 2)"},
                  .call =
                      [](const auto& x) {
                        return reshape(x[0], {2, 2});
                      }}}},
    {.op = "reshape",
     .as = "to_one_number",
     .call = [](const auto& x) { return reshape(x[0], Shape{}); },
     .kind = Kind::polynomial,
     .samples = {{{}}, {{1}}, {{1, 1}}}},
    {.op = "permute",
     .call =
         [](const auto& x) {
           return permute(x[0], {2, 0, 1});
         },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .golden = {{.name = "permute",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       const std::vector<int> axes = integers_in(golden, "axes");
                       return permute(x[0], std::span<const int>(axes));
                     }}},
     .refuses = {{.shapes = {{2, 3}}},
                 {.shapes = {{2, 3, 4, 5}}},
                 {.shapes = {{2, 3}},
                  .texts = {"each axis once"},
                  .call =
                      [](const auto& x) {
                        return permute(x[0], {0, 0});
                      }}}},
    {.op = "permute",
     .as = "nothing",
     .call = [](const auto& x) { return permute(x[0], std::span<const int>()); },
     .kind = Kind::polynomial,
     .samples = {{{}}}},
    {.op = "transpose",
     .call = [](const auto& x) { return transpose(x[0]); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .golden = {{.name = "transpose",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       const std::vector<int> axes = integers_in(golden, "axes");
                       return transpose(x[0], axes.at(0), axes.at(1));
                     }}},
     .refuses = {{.shapes = {{3}}, .texts = {"axis -2 is out of range"}}}},
    {.op = "transpose",
     .as = "of_axes",
     .call = [](const auto& x) { return transpose(x[0], 0, 2); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .refuses = {{.shapes = {{2, 3}}, .texts = {"axis 2 is out of range"}}}},
    {.op = "broadcast_to",
     .call =
         [](const auto& x) {
           return broadcast_to(x[0], {2, 3, 5});
         },
     .kind = Kind::polynomial,
     .samples = {{{3, 1}}, {{1, 1, 5}}, {{}}, {{2, 3, 5}}, {{5}}},
     .golden = {{.name = "broadcast_to",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return broadcast_to(x[0], shape_in(golden, "shape"));
                     }}},
     .refuses = {{.shapes = {{3}}, .texts = {"(2, 3, 5)"}},
                 {.shapes = {{2, 3, 1, 5}}, .texts = {"(2, 3, 5)"}},
                 {.shapes = {{0, 5}}, .texts = {"(2, 3, 5)"}}}},
    {.op = "broadcast_to",
     .as = "nothing",
     .call =
         [](const auto& x) {
           return broadcast_to(x[0], {3, 0, 2});
         },
     .kind = Kind::polynomial,
     .samples = {{{3, 1, 2}}, {{3, 0, 1}}, {{2}}}},
    {.op = "sum_to",
     .call =
         [](const auto& x) {
           return sum_to(x[0], {3, 1});
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}}, {{4, 3, 1}}, {{3, 1}}, {{2, 3, 0}}},
     .refuses = {{.shapes = {{2, 5}}, .texts = {"(3, 1)"}}, {.shapes = {{3}}, .texts = {"(3, 1)"}}}},
    {.op = "sum_to",
     .as = "one_number",
     .call = [](const auto& x) { return sum_to(x[0], {}); },
     .kind = Kind::polynomial,
     .samples = alone()},
    {.op = "concat",
     .call =
         [](const auto& x) {
           return concat({x[0], x[1], x[0]}, 1);
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}, {2, 1, 5}}, {{2, 4}, {2, 3}}, {{2, 0, 3}, {2, 4, 3}}, {{1, 2}, {1, 0}}},
     .lacks = {.rank_zero = true},
     .golden = {{.name = "concat",
                 .inputs = {"x", "y"},
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return concat({x[0], x[1]}, axis_in(golden));
                     }}},
     .refuses = {{.shapes = {{2, 3}, {3, 3}}, .texts = {"axis 1"}},
                 {.shapes = {{2, 3}, {2, 3, 1}}},
                 {.shapes = {{2}, {2}}, .texts = {"axis 1 is out of range"}},
                 {.shapes = {},
                  .texts = {"nothing to join"},
                  .call = []<class T>(const List<T>& x) { return concat(x, 0); }}}},
    {.op = "slice",
     .call =
         [](const auto& x) {
           return slice(x[0], {{0, -1}, {-1, {}, -2}, {{}, {}, 2}});
         },
     .kind = Kind::polynomial,
     .samples = {{{4, 6, 5}}, {{3, 6, 1}}, {{1, 5, 2}}, {{3, 0, 2}}},
     .golden = {{.name = "slice",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       const std::vector<Slice> slices = slices_in(golden);
                       return slice(x[0], std::span<const Slice>(slices));
                     }}},
     .refuses = {{.shapes = {{4, 6}}, .texts = {"3 slices"}},
                 {.shapes = {{4}},
                  .texts = {"step of axis 0 is 0"},
                  .call =
                      [](const auto& x) {
                        return slice(x[0], {{{}, {}, 0}});
                      },
                  .error = Refusal::Of::values}}},
    {.op = "slice",
     .as = "of_axis",
     .call =
         [](const auto& x) {
           return slice(x[0], -1, {1, -1});
         },
     .kind = Kind::polynomial,
     .samples = rows_of(2),
     .refuses = {{.shapes = {{}}, .texts = {"axis -1 is out of range"}}}},
    {.op = "slice",
     .as = "of_nothing",
     .call =
         [](const auto& x) {
           return slice(x[0], {{2, 2}});
         },
     .kind = Kind::polynomial,
     .samples = {{{4, 3}}}},
    {.op = "slice",
     .as = "of_no_axis",
     .call = [](const auto& x) { return slice(x[0], std::span<const Slice>()); },
     .kind = Kind::polynomial,
     .samples = {{{}}, {{2, 3}}}},
    {.op = "unslice",
     .call =
         []<class T>(const List<T>& x) {
           return unslice(x[0], Shape{4, 5}.followed_by(x[0].shape().last(std::max(x[0].rank() - 2, 0))),
                          scattered);
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}}, {{2, 3, 4}}, {{2, 3, 1}}, {{2, 3, 0}}},
     .lacks = {.rank_zero = true},
     .refuses = {{.shapes = {{3, 2}}, .texts = {"(2, 3)"}}, {.shapes = {{2}}, .texts = {"(2, 3)"}}}},
    {.op = "stack",
     .call =
         [](const auto& x) {
           return stack({x[0], x[1], x[0]}, 1);
         },
     .kind = Kind::polynomial,
     .samples = {{{2, 3, 5}, {2, 3, 5}}, {{4}, {4}}, {{1, 2}, {1, 2}}, {{3, 0}, {3, 0}}},
     .golden = {{.name = "stack",
                 .inputs = {"x", "y"},
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return stack({x[0], x[1]}, axis_in(golden));
                     }}},
     .refuses = {{.shapes = {{2, 3}, {3, 2}}, .texts = {"shapes differ"}},
                 {.shapes = {{2, 3}, {2, 3, 1}}},
                 {.shapes = {{}, {}}, .texts = {"axis 1 is out of range for rank 1"}},
                 {.shapes = {},
                  .texts = {"nothing to join"},
                  .call = []<class T>(const List<T>& x) { return stack(x, 0); }}}},
    {.op = "stack",
     .as = "at_the_end",
     .call =
         [](const auto& x) {
           return stack({x[0], x[1]}, -1);
         },
     .kind = Kind::polynomial,
     .samples = {{{}, {}}, {{2, 3}, {2, 3}}}},
    {.op = "pad",
     .call =
         [](const auto& x) {
           return pad(x[0], {{1, 2}, {}, {0, 3}}, 0.5);
         },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .golden = {{.name = "pad",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       const auto padding = [&](const char* name) { return std::stoll(golden.meta(name)); };
                       return pad(x[0], axis_in(golden), {padding("before"), padding("after")});
                     }}},
     .refuses = {{.shapes = {{2, 3}}, .texts = {"3 paddings"}},
                 {.shapes = {{2, 3}},
                  .texts = {"axis 1 cannot be padded by 0 and -1"},
                  .call =
                      [](const auto& x) {
                        return pad(x[0], {{}, {0, -1}});
                      },
                  .error = Refusal::Of::values}}},
    {.op = "pad",
     .as = "axis",
     .call =
         [](const auto& x) {
           return pad(x[0], -1, {2, 1});
         },
     .kind = Kind::polynomial,
     .samples = rows_of(2),
     .refuses = {{.shapes = {{}}, .texts = {"axis -1 is out of range"}}}},
    {.op = "pad",
     .as = "no_axis",
     .call = [](const auto& x) { return pad(x[0], std::span<const Padding>()); },
     .kind = Kind::polynomial,
     .samples = {{{}}, {{2, 3}}}},
    {.op = "flip",
     .call = [](const auto& x) { return flip(x[0], 1); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .golden = {{.name = "flip",
                 .call = [](const Golden& golden,
                            const List<double>& x) { return flip(x[0], axis_in(golden)); }}},
     .refuses = {{.shapes = {{2}}, .texts = {"axis 1 is out of range"}},
                 {.shapes = {{2, 3}},
                  .texts = {"named twice"},
                  .call =
                      [](const auto& x) {
                        return flip(x[0], {0, -2});
                      }}}},
    {.op = "flip",
     .as = "of_two_axes",
     .call =
         [](const auto& x) {
           return flip(x[0], {-1, 0});
         },
     .kind = Kind::polynomial,
     .samples = rows_of(3)},
    {.op = "flip",
     .as = "of_no_axis",
     .call = [](const auto& x) { return flip(x[0], std::vector<int>()); },
     .kind = Kind::polynomial,
     .samples = {{{}}, {{2, 3}}}},
    {.op = "roll",
     .call = [](const auto& x) { return roll(x[0], 2, 1); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .golden = {{.name = "roll",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return roll(x[0], std::stoll(golden.meta("shift")), axis_in(golden));
                     }}},
     .refuses = {{.shapes = {{2}}, .texts = {"axis 1 is out of range"}},
                 {.shapes = {{}}, .texts = {"axis 1"}}}},
    {.op = "roll",
     .as = "back_and_round",
     .call = [](const auto& x) { return roll(x[0], -7, -1); },
     .kind = Kind::polynomial,
     .samples = rows_of(2)},
    {.op = "tril",
     .call = [](const auto& x) { return tril(x[0], 1); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .golden = {{.name = "tril",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return tril(x[0], std::stoll(golden.meta("diagonal")));
                     }}},
     .refuses = {{.shapes = {{3}}, .texts = {"two axes"}}, {.shapes = {{}}}}},
    {.op = "tril",
     .as = "below",
     .call = [](const auto& x) { return tril(x[0], -1); },
     .kind = Kind::polynomial,
     .samples = {{{4, 3}}, {{3, 4}}}},
    {.op = "triu",
     .call = [](const auto& x) { return triu(x[0]); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .refuses = {{.shapes = {{3}}, .texts = {"two axes"}}, {.shapes = {{}}}}},
    {.op = "repeat_interleave",
     .call = [](const auto& x) { return repeat_interleave(x[0], 3, 1); },
     .kind = Kind::polynomial,
     .samples = rows_of(3),
     .lacks = {.rank_zero = true},
     .golden = {{.name = "repeat_interleave",
                 .call =
                     [](const Golden& golden, const List<double>& x) {
                       return repeat_interleave(x[0], std::stoll(golden.meta("repeats")), axis_in(golden));
                     }}},
     .refuses = {{.shapes = {{2}}, .texts = {"axis 1 is out of range"}},
                 {.shapes = {{2, 3}},
                  .texts = {"repeats -1"},
                  .call = [](const auto& x) { return repeat_interleave(x[0], -1, 0); },
                  .error = Refusal::Of::values}}},
    {.op = "repeat_interleave",
     .as = "never",
     .call = [](const auto& x) { return repeat_interleave(x[0], 0, -1); },
     .kind = Kind::polynomial,
     .samples = {{{2, 3}}}},
};

}  // namespace
}  // namespace tapehead::table
