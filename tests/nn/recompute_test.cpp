// recompute() and watch_nonfinite() on whole layers.

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include <tapehead/core/memory.h>
#include <tapehead/core/recompute.h>
#include <tapehead/core/watch.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/softmax.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

constexpr std::size_t layers = 24;
constexpr double dropped = 0.1;

template <class T>
std::vector<EncoderLayer<T>> encoder() {
  TransformerOptions sizes;
  sizes.width = 32, sizes.heads = 4, sizes.hidden = 128;
  Generator random(3);
  std::vector<EncoderLayer<T>> blocks;
  for (std::size_t i = 0; i < layers; ++i) blocks.push_back(EncoderLayer<T>::initial(random, sizes));
  return blocks;
}

// x in `inputs[0]`, and the parameters of the layer behind it.
template <class T>
std::vector<Var<T>> inputs_of(const EncoderLayer<T>& layer, const Var<T>& x) {
  std::vector<Var<T>> inputs = parameters<T>(layer);
  inputs.insert(inputs.begin(), x);
  return inputs;
}
template <class T>
EncoderLayer<T> with_parameters(EncoderLayer<T> layer, const std::vector<Var<T>>& inputs) {
  std::size_t i = 1;
  for_each_parameter(layer, [&](const std::string&, Var<T>& parameter) { parameter = inputs[i++]; });
  return layer;
}

template <class T>
Var<T> dropout(const Var<T>& x, Generator& generator) {
  auto kept = Array<bool>::uninitialized(x.shape());
  for (bool& keep : kept.mutable_values()) keep = generator.uniform() >= dropped;
  return masked_fill(x, kept, 0) / (1 - dropped);
}

struct Measured {
  std::ptrdiff_t saved = 0;  // bytes that the tape keeps between forward and backward
  Index nodes = 0;
};

// The loss of the encoder, layer by layer as run(layer, x, number) does it, and all gradients.
template <class T, class RunLayer>
std::vector<Array<T>> gradients(RunLayer run, Measured& measured) {
  Tape<T> tape;
  std::vector<EncoderLayer<T>> blocks = encoder<T>();
  for (auto& block : blocks) block = on_tape(tape, block);
  const Var<T> input = tape.input(Generator(5).normal<T>({2, 12, 32}), "x");
  const auto before = memory_statistics().live;
  Var<T> loss;
  {
    Var<T> x = input;
    for (std::size_t i = 0; i < layers; ++i) x = run(blocks[i], x, i);
    loss = sum(x * x);
  }
  measured = {memory_statistics().live - before, tape.size()};
  std::vector<Var<T>> sources = {input};
  for (const auto& block : blocks) {
    for (const Var<T>& parameter : parameters<T>(block)) sources.push_back(parameter);
  }
  auto plain = gradient_values(Vars<T>(loss), Vars<T>(sources));
  EXPECT_EQ(tape.size(), measured.nodes);
  return plain;
}

template <class T>
void expect_same_bits(const std::vector<Array<T>>& actual, const std::vector<Array<T>>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_GT(actual.size(), 12 * layers);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(same_bits(actual[i], expected[i])) << "gradient " << i;
    EXPECT_GT(magnitude(expected[i]), 0) << "gradient " << i;
  }
}

template <class T>
class RecomputedEncoder : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RecomputedEncoder, Types);

TYPED_TEST(RecomputedEncoder, Of24LayersSavesAFifthAtMostAndGivesTheSameBits) {
  using T = TypeParam;
  using Block = EncoderLayer<T>;
  Measured kept, recomputed;
  const auto expected =
      gradients<T>([](const Block& block, const Var<T>& x, std::size_t) { return block(x, {}); }, kept);
  const auto actual = gradients<T>(
      [](const Block& block, const Var<T>& x, std::size_t) {
        return recompute(
            [block](const std::vector<Var<T>>& in) { return with_parameters(block, in)(in[0], {}); },
            Vars<T>(inputs_of(block, x)));
      },
      recomputed);
  expect_same_bits(actual, expected);
  EXPECT_GE(kept.saved, 5 * recomputed.saved);
  EXPECT_GT(recomputed.saved, static_cast<std::ptrdiff_t>(layers * 2 * 12 * 32 * sizeof(T)));  // the inputs
  testing::Test::RecordProperty("saved_bytes", std::to_string(kept.saved));
  testing::Test::RecordProperty("saved_bytes_recomputed", std::to_string(recomputed.saved));
}

TYPED_TEST(RecomputedEncoder, WithDropoutGivesTheSameBits) {
  using T = TypeParam;
  using Block = EncoderLayer<T>;
  const auto run = [](const Block& block, const Var<T>& x, Generator& generator) {
    return dropout(block(dropout(x, generator), {}), generator);
  };
  Measured kept, recomputed;
  const auto expected = gradients<T>(
      [&](const Block& block, const Var<T>& x, std::size_t i) {
        Generator generator = Generator(9).split(i);
        return run(block, x, generator);
      },
      kept);
  const auto actual = gradients<T>(
      [&](const Block& block, const Var<T>& x, std::size_t i) {
        return recompute(
            [run, block, generator = Generator(9).split(i)](const std::vector<Var<T>>& in) mutable {
              return run(with_parameters(block, in), in[0], generator);
            },
            Vars<T>(inputs_of(block, x)));
      },
      recomputed);
  expect_same_bits(actual, expected);
  EXPECT_GE(kept.saved, 5 * recomputed.saved);
}

TEST(RecomputedLayer, WhoseParametersAreNotInputsIsAnError) {
  Tape<double> tape;
  const auto block = on_tape(tape, encoder<double>().front());
  const Var<double> x = tape.input(Generator(5).normal<double>({4, 32}));
  const Index length = tape.size();
  EXPECT_TRUE(raises<LogicError>([&] { recompute([&](const Var<double>& v) { return block(v, {}); }, x); },
                                 {"recompute", "layer_norm", "attention_norm.gain", "make it an input"}));
  EXPECT_EQ(tape.size(), length);
}

TEST(RecomputedLayer, HasAGradientOfItsGradient) {
  const auto slope_of_slope = [](bool again) {
    Tape<double> tape;
    const auto block = on_tape(tape, encoder<double>().front());
    const Var<double> x = tape.input(Generator(5).normal<double>({4, 32}));
    const auto f = [&block](const std::vector<Var<double>>& in) {
      return with_parameters(block, in)(in[0], {});
    };
    const std::vector<Var<double>> inputs = inputs_of(block, x);
    const Var<double> y = again ? recompute(f, inputs) : f(inputs);
    const Var<double> slope = gradient(sum(y * y), x)[0];
    return gradient_values(sum(slope * slope), inputs);
  };
  const auto actual = slope_of_slope(true), expected = slope_of_slope(false);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR_RELATIVE(actual[i], expected[i], 1e-13);
}

// Masks are minus infinities that come in.

TEST(WatchedLayer, WithAMaskIsNotToBlame) {
  Tape<double> tape;
  tape.watch_nonfinite();
  auto block = encoder<double>().front();
  block = on_tape(tape, block);
  const Var<double> x = tape.input(Generator(5).normal<double>({2, 6, 32}));
  const Var<double> y = block(x, {.mask = Mask::causal(0)});
  const auto dx = gradient_values(sum(y * y), x);
  EXPECT_GT(magnitude(dx[0]), 1);
  EXPECT_EQ(gradient(sum(y * y), x)[0].shape(), x.shape());
}

TEST(WatchedLayer, NamesTheRowThatBecameNaN) {
  Tape<double> tape;
  tape.watch_nonfinite();
  const Var<double> scores = tape.input(Generator(5).normal<double>({2, 3}));
  const auto kept = Array<bool>::of({{true, true, false}, {false, false, false}});
  const Scope<double> scope(tape, "layer 7");
  const Var<double> masked = masked_fill(scores, kept, -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(raises<DomainError>([&] { softmax(masked, -1); },
                                  {"softmax: made NaN at node %2 in layer 7", "3 NaN", "4 infinite"}));
}

}  // namespace
}  // namespace tapehead
