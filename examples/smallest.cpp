#include <tapehead/tapehead.h>

#include <iostream>

using namespace tapehead;

int main() {
  Tape<double> tape;
  const Var<double> x = tape.input(Array<double>::of({{1, 0}, {0, 1}, {1, 1}}), "X");

  // X is query, key and value; row i sees keys 0 to i.
  const auto seen = attention(x, x, x, {.mask = Mask::causal(0), .weights = true});
  const Var<double> loss = sum(seen.output * seen.output);

  print(tape);
  std::cout << "weights\n" << seen.weights->value() << "\n";
  for (const auto& path : gradient_paths(loss, x)) {
    std::cout << "gradient of X by " << path.name << "\n" << path.gradient << "\n";
  }
  std::cout << "gradient of X\n" << gradient_values(loss, x)[0] << "\n";
}
