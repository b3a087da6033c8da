#include <tapehead/inspect/formulas.h>

#include <algorithm>

namespace tapehead {
namespace {

// In alphabetical order, as the search below wants them.
constexpr OpFormula formulas[] = {
    {"abs", "y = |x|", "dx = dy sign(x)",
     "The size of each number. The gradient keeps its sign where x is positive and turns it where x is "
     "negative; at 0 it stops."},
    {"accumulate", "y = a + b", "da = dy, db = dy",
     "Two contributions to one gradient meet here and are added. Each gets the whole gradient back."},
    {"add", "y = a + b", "da = dy, db = dy",
     "Numbers are added, one by one. The gradient goes to both unchanged; along axes that were repeated it "
     "is summed."},
    {"amax", "y = max x over the axes", "dx = dy / count where x = y, 0 elsewhere",
     "The largest number over the axes. The gradient goes to that number alone, or in equal parts to those "
     "that tie for it."},
    {"amin", "y = min x over the axes", "dx = dy / count where x = y, 0 elsewhere",
     "The smallest number over the axes. The gradient goes to that number alone, or in equal parts to those "
     "that tie for it."},
    {"argument", "y = x", "dx = dy",
     "The place where a derivative was asked for. The gradient passes unchanged."},
    {"broadcast_to", "Y = X repeated to fill the shape", "dX = dY summed over what was repeated",
     "X is repeated along new or single axes. Every copy sends its gradient back, so they are summed."},
    {"clamp", "y = min(max(x, low), high)", "dx = dy where low <= x <= high, 0 elsewhere",
     "Numbers are held between two bounds. The gradient passes where nothing was cut off and stops "
     "elsewhere."},
    {"concat", "Y = the X one after another", "dX_i = the part of dY that X_i filled",
     "Arrays are joined along an axis. The gradient is cut at the seams and each part goes back to its "
     "array."},
    {"cos", "y = cos x", "dx = -dy sin x",
     "The cosine of each number. The gradient is multiplied by the slope of the cosine, minus the sine."},
    {"cross_entropy", "l = sum_c a_c (log sum exp(x) - x_c)", "dx = (softmax(x) sum_c a_c - a) dl",
     "How surprised the logits x are by the target a. The gradient is the predicted distribution minus the "
     "target."},
    {"cumsum", "y_i = x_0 + ... + x_i", "dx_i = dy_i + dy_(i+1) + ...",
     "Running sums along an axis. A number is in every later sum, so the gradients of all of those come back "
     "to it."},
    {"div", "y = a / b", "da = dy / b, db = -dy y / b",
     "Numbers are divided, one by one. The numerator gets the gradient divided by b; the denominator gets it "
     "with the opposite sign, times y / b."},
    {"einsum", "Y = products of A and B, summed over letters that Y has not",
     "dA = einsum(dY, B), dB = einsum(dY, A)",
     "Axes with the same letter are matched, and what the result does not name is summed. Each gradient is "
     "the same kind of product, of dY with the other operand."},
    {"embedding", "Y = rows of the table at the indices",
     "dtable = zeros, each row of dY added where its index says",
     "Each index picks a row. The gradient of a row is the sum over all places that picked it."},
    {"erf", "y = erf x", "dx = dy 2 / sqrt(pi) exp(-x^2)",
     "The error function of each number. The gradient is multiplied by its bell-shaped slope."},
    {"exp", "y = exp x", "dx = dy y",
     "The exponential of each number, which is its own slope: the gradient is multiplied by the result."},
    {"flip", "Y = X read backwards along the axes", "dX = dY read backwards",
     "The order along the axes is turned round. The gradient is turned back."},
    {"fused_attention", "Y = softmax(scale Q K^T, masked) V",
     "dV = P^T dY, dS = P (dP - sum(dP P)), dQ = scale dS K, dK = scale dS^T Q",
     "Attention in one kernel that never holds the matrix of weights P. Going back it makes P again, block "
     "by block, from the saved log-sum-exp; dP is dY V^T."},
    {"gather", "Y[i, j] = X[i, index[i, j]]", "dX = zeros, dY added where the index says",
     "Each place of Y picks one number of X along the axis. The gradient goes back to where it was picked, "
     "summed when that was several times."},
    {"gelu", "y = x Phi(x)", "dx = dy (Phi(x) + x phi(x))",
     "Each number times the chance that a normal variable lies below it. Large numbers pass, negative ones "
     "fade; the gradient is multiplied by the slope of that curve."},
    {"index_add", "Y = zeros, each part of X added where its index says", "dX = dY at the index",
     "Parts of X are added into an array of zeros. Each part gets the gradient of the place that it went "
     "to."},
    {"index_select", "Y = X at the index along the axis", "dX = zeros, dY added where the index says",
     "Parts of X are picked by number. The gradient goes back to the parts, summed when one was picked "
     "several times."},
    {"input", "entered, not computed", "the sum of what comes back from all who read it",
     "A value that was put on the tape, so that gradients with respect to it can be asked for."},
    {"kl_div", "l = sum_c p_c (log p_c - log q_c)", "dlog_q = -p dl, dp = (log p + 1 - log q) dl",
     "How far the distribution q is from p. The more probable a class is under p, the more the gradient "
     "pushes its log q up."},
    {"layer_norm", "y = gain (x - mean) / sqrt(variance + eps) + bias",
     "dx = (du - mean(du) - u mean(du u)) / sqrt(variance + eps), du = dy gain",
     "Each row u is centred, scaled to unit variance, then scaled and shifted. What would change the mean or "
     "the size of the row is taken out of its gradient, since the norm undoes it."},
    {"log", "y = log x", "dx = dy / x",
     "The natural logarithm of each number. The gradient is divided by the number."},
    {"log_softmax", "Y = X - log sum exp(X)", "dX = dY - exp(Y) sum(dY)",
     "The logarithm of the probabilities of each row. From the gradient of a row its total is taken away, "
     "shared out by probability."},
    {"logsumexp", "y = log sum exp(x)", "dx = dy exp(x - y)",
     "A smooth maximum over the axes. The gradient is shared out like a softmax: the largest number gets "
     "most of it."},
    {"masked_fill", "y = x where kept, fill elsewhere", "dx = dy where kept, 0 elsewhere",
     "What the mask does not allow is replaced, in attention by minus infinity. The gradient passes where x "
     "was kept and is 0 elsewhere."},
    {"matmul", "Y = A B", "dA = dY B^T, dB = A^T dY",
     "Rows of A meet columns of B; equal inner axes are summed away. Each factor gets the gradient times the "
     "other factor, transposed."},
    {"maximum", "y = max(a, b)", "da = dy where a > b, dy / 2 where equal, 0 elsewhere; db likewise",
     "The larger of two numbers. The gradient goes to the one that was taken, or half to each when they are "
     "equal."},
    {"mean", "y = sum of x / number", "dx = dy / number, repeated",
     "The average over the axes. Each number gets an equal part of the gradient."},
    {"minimum", "y = min(a, b)", "da = dy where a < b, dy / 2 where equal, 0 elsewhere; db likewise",
     "The smaller of two numbers. The gradient goes to the one that was taken, or half to each when they are "
     "equal."},
    {"mse", "l = (x - target)^2", "dx = 2 (x - target) dl, dtarget = -dx",
     "The squared distance to a target. The gradient points away from the target and grows with the "
     "distance."},
    {"mul", "y = a b", "da = dy b, db = dy a",
     "Numbers are multiplied, one by one. Each factor gets the gradient times the other factor."},
    {"neg", "y = -x", "dx = -dy", "The sign is turned, and so is that of the gradient."},
    {"pad", "Y = X with fill around it", "dX = dY without the border",
     "A border is put around X. The gradient of the border is dropped."},
    {"permute", "Y = X with its axes in another order", "dX = dY with its axes put back",
     "The axes change places, the numbers stay. The gradient's axes are put back."},
    {"port", "y = x", "dx = dy",
     "An identity with a name. The gradient passes unchanged, and what came through here can be told apart "
     "from what came by other ways."},
    {"pow", "y = a^b", "da = dy b a^(b - 1), db = dy y log a",
     "Each number to a power. The gradient is multiplied by the slope of the power."},
    {"prod", "y = product of x over the axes", "dx_i = dy times the product of all but x_i",
     "All numbers over the axes multiplied. Each gets the gradient times the product of the others."},
    {"projection", "Y = X W + b", "dX = dY W^T, dW = X^T dY over all rows, db = sum of the rows of dY",
     "Each row goes through the same linear map. The input gets the gradient through the transposed weights; "
     "the weights collect from all rows."},
    {"reciprocal", "y = 1 / x", "dx = -dy y^2",
     "One over each number. The gradient turns its sign and is multiplied by the square of the result."},
    {"recompute", "y = f(x...)", "each dx by running f again",
     "A stretch that was not kept on the tape. Going back, f runs again and its gradient is taken then: "
     "memory is saved, time is spent."},
    {"relu", "y = max(x, 0)", "dx = dy where x > 0, 0 elsewhere",
     "Negative numbers become 0. The gradient passes where x was positive."},
    {"repeat_interleave", "Y[i] = X[i / repeats]", "dX = sum of the gradients of its copies",
     "Each element is repeated in a row. The gradients of the copies are summed."},
    {"reshape", "Y = X in another shape", "dX = dY in the shape of X",
     "The same numbers in another shape. The gradient is put back into the first one."},
    {"rms_norm", "y = gain x / sqrt(mean(x^2) + eps)",
     "dx = (du - u mean(du u)) / sqrt(mean(x^2) + eps), du = dy gain",
     "Each row u is scaled to a root mean square of 1, then by the gain. What would only change the size of "
     "the row is taken out of its gradient, since the norm undoes it."},
    {"roll", "Y[(i + shift) mod n] = X[i]", "dX = dY moved back",
     "Elements move along the axis and come in again at the other end. The gradient moves back."},
    {"rope", "(y1, y2) = (x1 cos - x2 sin, x1 sin + x2 cos)",
     "(dx1, dx2) = (dy1 cos + dy2 sin, dy2 cos - dy1 sin)",
     "Pairs of numbers are turned by an angle that grows with the position. The gradient is turned back by "
     "the same angle."},
    {"rsqrt", "y = 1 / sqrt(x)", "dx = -dy y^3 / 2",
     "One over the square root. The gradient turns its sign and is multiplied by half the cube of the "
     "result."},
    {"scatter_add", "Y[i, index[i, j]] += X[i, j]", "dX = dY at the index",
     "Each number is added where its index says. It gets the gradient of that place."},
    {"sigmoid", "y = 1 / (1 + exp(-x))", "dx = dy y (1 - y)",
     "Numbers are squeezed between 0 and 1. The gradient fades where y is near either end."},
    {"silu", "y = x sigmoid(x)", "dx = dy sigmoid(x) (1 + x sigmoid(-x))",
     "Each number times its own sigmoid, a smooth gate. The gradient is multiplied by the slope of that "
     "curve."},
    {"sin", "y = sin x", "dx = dy cos x",
     "The sine of each number. The gradient is multiplied by the cosine."},
    {"slice", "Y = part of X", "dX = dY in its place, 0 elsewhere",
     "A part is cut out. The gradient goes back to that part; the rest gets 0."},
    {"softmax", "P = exp(S) / sum exp(S) along the axis", "dS = P (dP - sum(dP P))",
     "Scores become weights that sum to 1. A score gains where its weight's gradient is above the weighted "
     "mean of its row: what raises one weight lowers the others."},
    {"softplus", "y = log(1 + exp x)", "dx = dy sigmoid(x)",
     "A smooth relu. The gradient is multiplied by a sigmoid."},
    {"sqrt", "y = sqrt(x)", "dx = dy / (2 y)",
     "The square root. The gradient is divided by twice the result, so it is large near 0."},
    {"square", "y = x^2", "dx = 2 dy x",
     "Each number squared. The gradient is multiplied by twice the number."},
    {"stack", "Y = the X side by side along a new axis", "dX_i = its part of dY",
     "Arrays of one shape are put side by side. Each gets its part of the gradient."},
    {"sub", "y = a - b", "da = dy, db = -dy",
     "Numbers are subtracted, one by one. The gradient goes to a unchanged and to b with the opposite sign."},
    {"sum", "y = sum of x over the axes", "dx = dy repeated along them",
     "Numbers are summed over the axes. Every term gets the whole gradient."},
    {"sum_to", "Y = X summed to a smaller shape", "dX = dY repeated",
     "The opposite of repeating: axes are summed. Every term gets the whole gradient."},
    {"tanh", "y = tanh x", "dx = dy (1 - y^2)",
     "Numbers are squeezed between -1 and 1. The gradient fades where y is near either end."},
    {"transpose", "Y = X with two axes exchanged", "dX = dY with them exchanged back",
     "Rows become columns. The gradient is transposed back."},
    {"tril", "Y = X on and below a diagonal, 0 above", "dX = dY there, 0 elsewhere",
     "The upper part is set to 0. The gradient passes where X was kept."},
    {"triu", "Y = X on and above a diagonal, 0 below", "dX = dY there, 0 elsewhere",
     "The lower part is set to 0. The gradient passes where X was kept."},
    {"unslice", "Y = zeros, with X in its place", "dX = that part of dY",
     "The opposite of a slice: X is put into zeros. It gets the gradient of its place."},
    {"var", "y = sum (x - mean)^2 / (n - correction)", "dx = dy 2 (x - mean) / (n - correction)",
     "The variance over the axes. Numbers far from the mean get the largest gradient."},
    {"where", "z = x where the condition is true, y elsewhere",
     "dx = dz where true, dy = dz where false, 0 elsewhere",
     "One of two numbers is taken, place by place. The gradient goes to the one that was taken."},
};
static_assert(std::ranges::is_sorted(formulas, {}, &OpFormula::op));

}  // namespace

const OpFormula* formula_of(std::string_view op) {
  const auto found = std::ranges::lower_bound(formulas, op, {}, &OpFormula::op);
  return found != std::end(formulas) && found->op == op ? found : nullptr;
}

}  // namespace tapehead
