// Self-attention reads one X three times: as queries, as keys and as values. The gradient of X is the sum of
// what comes back by the three paths, and each path has a formula of its own:
//
//   Q = X Wq   K = X Wk   V = X Wv      Z = Q K^T / sqrt(D)   P = softmax(Z)   O = P V
//   dP = dO V^T      dZ = P (dP - rowsum(dP P))
//   by query  dX = (dZ K / sqrt(D)) Wq^T      by key  dX = (dZ^T Q / sqrt(D)) Wk^T      by value  dX = (P^T
//   dO) Wv^T

#include <tapehead/tapehead.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace tapehead;

int main() {
  constexpr Index length = 4, width = 3, head = 2;
  Generator random(7);
  Tape<double> tape;
  const Var<double> x = tape.input(random.normal<double>({length, width}), "X");
  const MultiHeadAttention<double> layer{{tape.input(random.normal<double>({width, head}), "w_query")},
                                         {tape.input(random.normal<double>({width, head}), "w_key")},
                                         {tape.input(random.normal<double>({width, head}), "w_value")}};
  const AttentionResult<double> result = layer(x, {.weights = true});
  const Var<double> upstream = random.normal<double>(result.output.shape());  // dO

  std::printf("The tape:\n\n");
  print(tape);

  // The formulas, on plain values: detached Vars are on no tape.
  const Var<double> X = x.detach(), Wq = layer.query.w.detach(), Wk = layer.key.w.detach(),
                    Wv = layer.value.w.detach();
  const Var<double> Q = matmul(X, Wq), K = matmul(X, Wk), V = matmul(X, Wv), P = result.weights->detach();
  const double scale = 1 / std::sqrt(static_cast<double>(head));
  const Var<double> dP = matmul(upstream, V, false, true);
  const Var<double> dZ = P * (dP - sum(dP * P, -1, Keep::yes));
  const Var<double> by_formula[] = {
      matmul(matmul(dZ, K) * scale, Wq, false, true),
      matmul(matmul(dZ, Q, true) * scale, Wk, false, true),
      matmul(matmul(P, upstream, true), Wv, false, true),
  };

  std::printf("\nThe paths by which X gets its gradient, and their distance from the formulas:\n\n");
  auto total = Var<double>(Array<double>::zeros(x.shape()));
  double worst = 0;
  auto largest = [](const Var<double>& v) {
    double m = 0;
    for (const double a : v.value().values()) m = std::max(m, std::abs(a));
    return m;
  };
  std::size_t i = 0;
  for (const GradientPath<double>& path : gradient_paths(result.output, x, upstream)) {
    const double distance = largest(Var<double>(path.gradient) - by_formula[i++]);
    std::printf("  %-6s largest element %.4f   distance %.1e\n", path.name.c_str(), largest(path.gradient),
                distance);
    worst = std::max(worst, distance);
    total = total + Var<double>(path.gradient);
  }
  const double rest = largest(total - Var<double>(gradient_values(result.output, x, upstream)[0]));
  std::printf("  sum of the paths minus the gradient: %.1e\n", rest);
  return i == 3 && worst < 1e-12 && rest < 1e-12 ? 0 : 1;
}
