#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/op_table.h"

namespace tapehead::table {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class T>
T gelu_of(T x) {
  return std::isinf(x) ? std::max(x, T(0)) : x * (std::erfc(-x / std::numbers::sqrt2_v<T>) / 2);
}
template <class T>
T gelu_tanh_of(T x) {
  const T u = std::sqrt(2 / std::numbers::pi_v<T>) * (x + T(0.044715) * x * x * x);
  return std::isinf(x) ? std::max(x, T(0)) : x * ((1 + std::tanh(u)) / 2);
}

// The kinks and poles are at 0.
const Rows rows = {
    {.op = "exp",
     .call = [](const auto& x) { return exp(x[0]); },
     .samples = alone(),
     .each = [](const auto& x) { return std::exp(x[0]); },
     .golden = {{"exp"}}},
    {.op = "log",
     .call = [](const auto& x) { return log(x[0]); },
     .samples = alone(From::positive),
     .each = [](const auto& x) { return std::log(x[0]); },
     .golden = {{"log"}}},
    {.op = "sqrt",
     .call = [](const auto& x) { return sqrt(x[0]); },
     .samples = alone(From::positive),
     .each = [](const auto& x) { return std::sqrt(x[0]); },
     .golden = {{"sqrt"}}},
    {.op = "tanh",
     .call = [](const auto& x) { return tanh(x[0]); },
     .samples = alone(),
     .each = [](const auto& x) { return std::tanh(x[0]); },
     .golden = {{"tanh"}}},
    {.op = "erf",
     .call = [](const auto& x) { return erf(x[0]); },
     .samples = alone(),
     .each = [](const auto& x) { return std::erf(x[0]); },
     .golden = {{"erf"}}},
    {.op = "relu",
     .call = [](const auto& x) { return relu(x[0]); },
     .samples = alone(From::around_zero),
     .each = []<class T>(const std::vector<T>& x) { return x[0] < 0 ? T(0) : x[0]; },
     .golden = {{"relu"}}},
    {.op = "gelu",
     .call = [](const auto& x) { return gelu(x[0]); },
     .samples = alone(),
     .each = [](const auto& x) { return gelu_of(x[0]); },
     .golden = {{"gelu"}}},
    {.op = "gelu",
     .as = "tanh",
     .call = [](const auto& x) { return gelu(x[0], Gelu::tanh); },
     .samples = alone(),
     .each = [](const auto& x) { return gelu_tanh_of(x[0]); },
     .golden = {{"gelu_tanh"}}},
    {.op = "rsqrt",
     .call = [](const auto& x) { return rsqrt(x[0]); },
     .samples = alone(From::positive),
     .each = [](const auto& x) { return 1 / std::sqrt(x[0]); },
     .golden = {{"rsqrt"}}},
    {.op = "reciprocal",
     .call = [](const auto& x) { return reciprocal(x[0]); },
     .samples = alone(From::around_zero),
     .each = [](const auto& x) { return 1 / x[0]; },
     .golden = {{"reciprocal"}}},
    {.op = "square",
     .call = [](const auto& x) { return square(x[0]); },
     .kind = Kind::polynomial,
     .samples = alone(),
     .each = [](const auto& x) { return x[0] * x[0]; },
     .golden = {{"square"}}},
    {.op = "abs",
     .call = [](const auto& x) { return abs(x[0]); },
     .samples = alone(From::around_zero),
     .each = [](const auto& x) { return std::abs(x[0]); },
     .examples = {{.inputs = {Array<double>::of({0, -0.0, nan, -infinity, infinity})},
                   .y = Array<double>::of({0, 0, nan, infinity, infinity}),
                   .gradients = {Array<double>::of({0, 0, 0, -1, 1})}}},
     .golden = {{"abs"}, {.name = "abs_zero", .folder = "made"}}},
    {.op = "sin",
     .call = [](const auto& x) { return sin(x[0]); },
     .samples = alone(),
     .each = [](const auto& x) { return std::sin(x[0]); },
     .golden = {{"sin"}}},
    {.op = "cos",
     .call = [](const auto& x) { return cos(x[0]); },
     .samples = alone(),
     .each = [](const auto& x) { return std::cos(x[0]); },
     .golden = {{"cos"}}},
    {.op = "sigmoid",
     .call = [](const auto& x) { return sigmoid(x[0]); },
     .samples = alone(),
     .each = [](const auto& x) { return 1 / (1 + std::exp(-x[0])); },
     .examples = {{.inputs = {Array<double>::of({-infinity, -1000, 1000, infinity, nan})},
                   .y = Array<double>::of({0, 0, 1, 1, nan}),
                   .gradients = {Array<double>::of({0, 0, 0, 0, nan})}}},
     .golden = {{"sigmoid"}}},
    {.op = "softplus",
     .call = [](const auto& x) { return softplus(x[0]); },
     .samples = alone(),
     .each = [](const auto& x) { return x[0] > 40 ? x[0] : std::log1p(std::exp(x[0])); },
     .examples = {{.inputs = {Array<double>::of({-infinity, -1000, 1000, infinity, nan})},
                   .y = Array<double>::of({0, 0, 1000, infinity, nan}),
                   .gradients = {Array<double>::of({0, 0, 1, 1, nan})}}},
     .golden = {{"softplus"}}},
    {.op = "silu",
     .call = [](const auto& x) { return silu(x[0]); },
     .samples = alone(),
     .each =
         []<class T>(const std::vector<T>& x) {
           return std::isinf(x[0]) ? std::max(x[0], T(0)) : x[0] / (1 + std::exp(-x[0]));
         },
     .examples = {{.inputs = {Array<double>::of({-infinity, -1000, 1000, infinity, nan})},
                   .y = Array<double>::of({0, 0, 1000, infinity, nan}),
                   .gradients = {Array<double>::of({0, 0, 1, 1, nan})}}},
     .golden = {{"silu"}}},
    // PyTorch's numbers at -700 to 700: (3, N) of sigmoid, silu and softplus.
    {.op = "sigmoid",
     .as = "silu_softplus_in_the_tails",
     .call =
         [](const auto& x) {
           return stack({sigmoid(x[0]), silu(x[0]), softplus(x[0])}, 0);
         },
     .samples = {{{4}}},
     .golden = {{.name = "tails", .folder = "made"}}},
};

}  // namespace
}  // namespace tapehead::table
