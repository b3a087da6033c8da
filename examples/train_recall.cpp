// A whole training, in the open: a causal model learns to look up values by their keys. Draw a batch, record
// the loss, differentiate, step.

#include <tapehead/tapehead.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

using namespace tapehead;

namespace {

Var<float> loss_of(const CausalModel<float>& model, const RecallTask::Batch& batch) {
  return cross_entropy(model(batch.tokens), batch.targets, {.ignored = no_target});
}

// The share of values that the model would write.
double accuracy(const CausalModel<float>& model, const RecallTask::Batch& batch) {
  const Array<float> logits = model(batch.tokens).value();  // no tape, so nothing is recorded
  const Index classes = logits.dim(-1);
  Index right = 0, asked = 0;
  for (Index i = 0; i < batch.targets.size(); ++i) {
    const Index target = batch.targets.data()[i];
    if (target == no_target) continue;
    const float* row = logits.data() + i * classes;
    right += std::max_element(row, row + classes) - row == target;
    ++asked;
  }
  return static_cast<double>(right) / static_cast<double>(asked);
}

}  // namespace

int main(int argc, char** argv) {
  const Index steps = argc > 1 ? std::atol(argv[1]) : 600;
  const RecallTask task;
  TransformerOptions sizes;
  sizes.vocabulary = task.vocabulary();
  sizes.context = task.length();

  Generator random(1);
  auto model = CausalModel<float>::initial(random, sizes);
  Adam<float> adam;
  Tape<float> tape;
  for (Index step = 1; step <= steps; ++step) {
    const RecallTask::Batch batch = task.draw(random, 64);
    std::vector<Array<float>> gradients;
    double loss;
    {
      const CausalModel<float> recorded = on_tape(tape, model);
      const Var<float> y = loss_of(recorded, batch);
      loss = static_cast<double>(y.item());
      gradients = gradient_values(y, parameters<float>(recorded));
    }
    tape.clear();  // lets go of the parameters, so the optimizer can update them in place
    adam.step(model, gradients);
    if (step % 50 == 0) {
      std::printf("step %4ld   loss %.4f   accuracy %5.1f %%\n", static_cast<long>(step), loss,
                  100 * accuracy(model, task.draw(random, 64)));
    }
  }
}
