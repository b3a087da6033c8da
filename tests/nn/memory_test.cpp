#include <tapehead/nn/transformer.h>

#include <gtest/gtest.h>

#include <algorithm>

#include <tapehead/core/memory.h>
#include <tapehead/nn/training.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/reduction.h>

#include "support/pool.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using Bytes = std::ptrdiff_t;

constexpr Index B = 4, L = 96, M = 256, H = 4, hidden = 4 * M, layers = 4, vocabulary = 128;

struct Step {
  CausalModel<float> model;
  Array<Index> tokens, targets;
  AdamW<float> optimizer{{.rate = 1e-3}};
  Tape<float> tape;

  Step() {
    Generator random(1);
    model = CausalModel<float>::initial(
        random,
        {.vocabulary = vocabulary, .context = L, .width = M, .heads = H, .layers = layers, .hidden = hidden});
    tokens = random.integers({B, L}, vocabulary);
    targets = random.integers({B, L}, vocabulary);
  }
  Var<float> loss(const CausalModel<float>& recorded) const {
    return mean(cross_entropy(recorded(tokens), targets));
  }
  void run() {
    training_step(tape, model, optimizer, [&](const CausalModel<float>& recorded) { return loss(recorded); });
  }
};

// What the rules of one layer take, counted by hand, in floats: each value once, however many rules share it.
constexpr Index activation = B * L * M, scores = B * H * L * L;
constexpr Index kept_by_layer = 2 * activation    // x in front of either norm
                                + 2 * activation  // what the norms give, which projections take
                                + 3 * activation  // query, key, value as they are projected
                                + activation  // what attention gives: the output projection takes the same
                                + 2 * B * L * hidden;  // in front of gelu, and behind it

Bytes floats(Index count) { return count * static_cast<Bytes>(sizeof(float)); }

// Arrays that are small beside an activation: masks, statistics of rows, tables of the position.
constexpr double small = 0.02;

template <class T>
Bytes bytes_of(const std::vector<Array<T>>& arrays) {
  Bytes total = 0;
  for (const Array<T>& array : arrays) total += static_cast<Bytes>(array.bytes());
  return total;
}

TEST(TrainingMemory, IsWhatRulesKeepThenTheGradientsAndAFewTemporaries) {
  Step step;
  step.run();
  const CausalModel<float> recorded = on_tape(step.tape, step.model);
  const Bytes before = memory_statistics().live;
  const Var<float> loss = step.loss(recorded);
  const Bytes kept = memory_statistics().live - before;
  const Index expected = layers * kept_by_layer + 2 * activation  // in front of the last norm, and behind it
                         + B * L * vocabulary;                    // the logits
  EXPECT_LE(static_cast<double>(kept), (1 + small) * static_cast<double>(floats(expected)));
  EXPECT_GE(static_cast<double>(kept), (1 - small) * static_cast<double>(floats(expected)));

  reset_memory_peak();
  const Bytes live = memory_statistics().live;
  const auto gradients = gradient_values(Vars<float>(loss), Vars<float>(parameters<float>(recorded)));
  const Bytes temporary = floats(std::max({scores, B * L * hidden, activation}));
  EXPECT_LE(memory_statistics().peak - live, bytes_of(gradients) + 6 * temporary);
}

// On one thread: of several, the calling one may first do in a second step what another did in the first.
TEST(TrainingMemory, OfASecondStepIsThatOfTheFirst) {
  const Threads one(1);
  NEEDS_THE_POOL();
  Step step;
  step.run();
  const Bytes from_system = memory_statistics().from_system;
  step.run();
  EXPECT_EQ(memory_statistics().from_system, from_system);
}

}  // namespace
}  // namespace tapehead
