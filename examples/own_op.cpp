// An op of one's own: the gate of a gated linear unit, in one pass instead of three, with a rule for each of
// its inputs. It is held to differences of its values, as the ops of the library are; so is one with a
// mistake.

#include <tapehead/tapehead.h>

#include <cmath>
#include <iostream>

using namespace tapehead;

namespace {

// y = a sigmoid(b)       da = dy sigmoid(b)       db = dy y (1 - sigmoid(b))
Var<double> gated(const Var<double>& a, const Var<double>& b) {
  if (a.shape() != b.shape())
    throw ShapeError("gated", "shapes differ", {{"a", a.shape()}, {"b", b.shape()}});
  Array<double> value = a.value();  // copied when it is written to
  const double* gate = b.value().data();
  for (double& v : value.mutable_values()) v /= 1 + std::exp(-*gate++);
  return record("gated", value, edge(a, [b](const Var<double>& dy) { return gated(dy, b); }),
                edge(b, [b](const Var<double>& y, const Var<double>& dy) { return dy * y * sigmoid(-b); }));
}

// The same with a rule that takes its y from outside: the numbers of dy y (1 - sigmoid(b)) are right, but y
// is a constant to whoever differentiates them.
Var<double> gated_wrongly(const Var<double>& a, const Var<double>& b) {
  const Var<double> y = gated(a.detach(), b.detach());
  return record("gated_wrongly", y.value(), edge(a, [b](const Var<double>& dy) { return gated(dy, b); }),
                edge(b, [y, b](const Var<double>& dy) { return dy * y * sigmoid(-b); }));
}

}  // namespace

int main() {
  Generator random(1);
  const std::vector<Array<double>> at = {random.normal<double>({3, 4}), random.normal<double>({3, 4})};

  const GradientReport right = check_gradients(gated, at);  // to the second order
  const GradientReport wrong = check_gradients(gated_wrongly, at);
  std::cout << "gated\n" << right << "\ngated_wrongly\n" << wrong << "\n";

  // It stands among the ops of the library, on the same tape.
  Tape<double> tape;
  const Var<double> x = tape.input(random.normal<double>({2, 3}), "x");
  const Var<double> w = tape.input(random.normal<double>({3, 4}), "w"),
                    v = tape.input(random.normal<double>({3, 4}), "v");
  const Var<double> loss = sum(gated(matmul(x, w), matmul(x, v)));
  print(tape);
  std::cout << "gradient of v\n" << gradient_values(loss, v)[0] << "\n";
  return right.ok && !wrong.ok ? 0 : 1;
}
