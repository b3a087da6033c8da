#include <tapehead/inspect/flops.h>

#include <algorithm>
#include <array>

namespace tapehead {
namespace {

using Arguments = std::span<const std::optional<Shape>>;

// So many for each element of the output, and for each of the first argument.
struct Rate {
  std::string_view op;
  double of_output, of_input;
};
constexpr auto rates = std::to_array<Rate>({
    // Entered, moved or selected.
    {"input", 0, 0},
    {"port", 0, 0},
    {"reshape", 0, 0},
    {"transpose", 0, 0},
    {"permute", 0, 0},
    {"broadcast_to", 0, 0},
    {"slice", 0, 0},
    {"unslice", 0, 0},
    {"concat", 0, 0},
    {"stack", 0, 0},
    {"flip", 0, 0},
    {"roll", 0, 0},
    {"pad", 0, 0},
    {"repeat_interleave", 0, 0},
    {"gather", 0, 0},
    {"index_select", 0, 0},
    {"embedding", 0, 0},
    {"masked_fill", 0, 0},
    {"where", 0, 0},
    {"tril", 0, 0},
    {"triu", 0, 0},
    // Element by element.
    {"accumulate", 1, 0},
    {"add", 1, 0},
    {"sub", 1, 0},
    {"mul", 1, 0},
    {"div", 1, 0},
    {"neg", 1, 0},
    {"pow", 1, 0},
    {"maximum", 1, 0},
    {"minimum", 1, 0},
    {"clamp", 2, 0},
    {"abs", 1, 0},
    {"exp", 1, 0},
    {"log", 1, 0},
    {"sqrt", 1, 0},
    {"rsqrt", 2, 0},
    {"reciprocal", 1, 0},
    {"square", 1, 0},
    {"sin", 1, 0},
    {"cos", 1, 0},
    {"tanh", 1, 0},
    {"erf", 1, 0},
    {"relu", 1, 0},
    {"sigmoid", 4, 0},   // 1 / (1 + exp(-x))
    {"softplus", 3, 0},  // log(1 + exp(x))
    {"silu", 5, 0},      // x sigmoid(x)
    {"gelu", 5, 0},      // x (1 + erf(x / sqrt 2)) / 2
    {"rope", 3, 0},      // x1 cos - x2 sin
    // Over axes.
    {"sum", 0, 1},
    {"sum_to", 0, 1},
    {"mean", 1, 1},
    {"amax", 0, 1},
    {"amin", 0, 1},
    {"prod", 0, 1},
    {"cumsum", 1, 0},
    {"index_add", 0, 1},
    {"scatter_add", 0, 1},
    {"var", 1, 4},          // the mean, then the sum of (x - mean)^2
    {"logsumexp", 2, 4},    // the largest, x - m, exp, their sum; then m + log
    {"softmax", 5, 0},      // the largest, x - m, exp, their sum, the quotient
    {"log_softmax", 5, 0},  // the largest, x - m, exp, their sum, the difference
    {"layer_norm", 7, 0},   // two sums, x - mean, its square, three to scale and shift
    {"rms_norm", 4, 0},     // the square, its sum, two to scale
    {"cross_entropy", 2, 4},
});

// The extent that a product sums over. The operand (..., M, N) may be stored transposed, which the tape does
// not say; but one of its two extents is that of the output's axis, and the other one is N.
Index inner(const Shape& operand, int axis_of_output, const Shape& output) {
  if (operand.rank() == 1) return operand[0];
  const Index kept = output.rank() + axis_of_output >= 0 ? output.dim(axis_of_output) : 1;
  const Index outer = axis_of_output == -2 ? operand.dim(-2) : operand.dim(-1);
  const Index other = axis_of_output == -2 ? operand.dim(-1) : operand.dim(-2);
  return outer == kept ? other : outer;
}

std::optional<double> product(Arguments arguments, const Shape& output) {
  const std::optional<Shape>&a = arguments[0], &b = arguments[1];
  const bool column = b ? b->rank() == 1 : a && output.rank() < a->rank();  // b is a vector
  const auto size = static_cast<double>(output.size());
  if (b && (column || !a)) return 2 * size * static_cast<double>(inner(*b, -1, output));
  if (a) return 2 * size * static_cast<double>(inner(*a, column ? -1 : -2, output));
  return {};
}

std::optional<double> projection(Arguments arguments, const Shape& output) {
  if (!arguments[0] && !arguments[1]) return {};
  const Index width = arguments[1] ? arguments[1]->dim(0) : arguments[0]->dim(-1);
  return static_cast<double>(output.size()) * static_cast<double>(2 * width + (arguments.size() > 2 ? 1 : 0));
}

// Heads have an axis, (..., H, L, D), or lie side by side, (..., L, H D): the product is the same. The output
// may have the log-sum-exp as one more column.
std::optional<double> attention(Arguments arguments, const Shape& output) {
  const auto &query = arguments[0], &key = arguments[1], &value = arguments[2];
  const std::optional<Shape>& width_of = query ? query : key;
  const std::optional<Shape>& length_of = key ? key : value;
  if (!width_of || !length_of) return {};
  const bool one_more = value && output.dim(-1) == value->dim(-1) + 1;
  const Index width = width_of->dim(-1) + output.dim(-1) - (one_more ? 1 : 0);
  const Index rows = output.size() / std::max<Index>(output.dim(-1), 1);
  return 2 * static_cast<double>(rows) * static_cast<double>(length_of->dim(-2)) * static_cast<double>(width);
}

std::optional<double> known(std::string_view op, Arguments arguments, const Shape& output) {
  if (op == "matmul" && arguments.size() == 2) return product(arguments, output);
  if (op == "projection" && arguments.size() >= 2) return projection(arguments, output);
  if (op == "fused_attention" && arguments.size() >= 3) return attention(arguments, output);
  const auto found = std::ranges::find(rates, op, &Rate::op);
  if (found == rates.end()) return {};
  if (found->of_input == 0) return found->of_output * static_cast<double>(output.size());
  if (arguments.empty() || !arguments[0]) return {};
  return found->of_output * static_cast<double>(output.size()) +
         found->of_input * static_cast<double>(arguments[0]->size());
}

}  // namespace

FlopCount flops_of(std::string_view op, std::span<const std::optional<Shape>> arguments,
                   const Shape& output) {
  if (const std::optional<double> flops = known(op, arguments, output)) return {*flops, false};
  return {static_cast<double>(output.size()), true};
}

}  // namespace tapehead
