// Is the gradient right? Nudge one number at a time and see. A central difference of step h is off by about
// h^2 from cutting off the series and by about 1e-16 / h from rounding, so the error falls as h shrinks and
// then rises again.

#include <tapehead/tapehead.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace tapehead;

namespace {

// A scalar of attention with a causal mask, so that every query sees another number of keys.
Var<double> loss(const Var<double>& query, const Var<double>& key, const Var<double>& value) {
  return sum(tanh(attention(query, key, value, {.mask = Mask::causal(0)}).output));
}

double nudged(const Array<double> (&inputs)[3], int which, Index i, double by) {
  Array<double> moved[3] = {inputs[0], inputs[1], inputs[2]};  // shares the elements until one is written
  moved[which].mutable_values()[static_cast<std::size_t>(i)] += by;
  return loss(moved[0], moved[1], moved[2]).item();
}

}  // namespace

int main() {
  Generator random(1);
  const Array<double> inputs[3] = {random.normal<double>({5, 3}), random.normal<double>({5, 3}),
                                   random.normal<double>({5, 2})};
  const char* const names[3] = {"query", "key", "value"};
  Tape<double> tape;
  const Var<double> q = tape.input(inputs[0]), k = tape.input(inputs[1]), v = tape.input(inputs[2]);
  const std::vector<Array<double>> gradients = gradient_values(loss(q, k, v), {q, k, v});

  std::printf("largest difference between the gradient and a central difference\n\n%8s", "step");
  for (const char* name : names) std::printf("%10s", name);
  std::printf("\n");
  double best = 1;
  for (const double h : {1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7}) {
    std::printf("%8.0e", h);
    double worst_of_all = 0;
    for (int which = 0; which < 3; ++which) {
      double worst = 0;
      for (Index i = 0; i < inputs[which].size(); ++i) {
        const double difference = (nudged(inputs, which, i, h) - nudged(inputs, which, i, -h)) / (2 * h);
        worst = std::max(worst, std::abs(difference - gradients[static_cast<std::size_t>(which)].data()[i]));
      }
      std::printf("%10.1e", worst);
      worst_of_all = std::max(worst_of_all, worst);
    }
    std::printf("\n");
    best = std::min(best, worst_of_all);
  }
  return best < 1e-8 ? 0 : 1;
}
