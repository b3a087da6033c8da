// PyTorch's two-layer causal model, trained for 25 steps of AdamW: each loss, each gradient norm and the last
// parameters.

#include <gtest/gtest.h>

#include <tapehead/nn/clip.h>
#include <tapehead/nn/pytorch_state.h>
#include <tapehead/nn/training.h>
#include <tapehead/ops/loss.h>

#include "support/compare.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Model = CausalModel<double>;

// 25 steps of a model whose every number is rounded to 1.1e-16, in another order than PyTorch's; AdamW
// divides a gradient by its own size and so keeps the relative error of small ones.
constexpr double tolerance = 1e-9;
// By how much a wrong version is to miss: a thousand times that.
constexpr double clearly = 1e-6;

const SafetensorsFile& golden() {
  static const SafetensorsFile file(TAPEHEAD_TEST_DATA "/golden/training_run.safetensors");
  return file;
}

// The names of that model, which keeps query, key and value as one nn.Linear.
StateTable table_of(const Model& model) {
  StateTable table;
  table.nest("tok.", "embedding.tokens.", pytorch_table(model.embedding.tokens));
  table.nest("pos.", "embedding.positions.", pytorch_table(*model.embedding.positions));
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const EncoderLayer<double>& layer = model.layers[i];
    StateTable block;
    for (const char* part : {"query", "key", "value"}) {
      block.add_transposed("qkv.weight", std::string("attention.") + part + ".w");
      block.add("qkv.bias", std::string("attention.") + part + ".b");
    }
    block.nest("out.", "attention.out.", pytorch_table(*layer.attention.out));
    block.nest("up.", "feed_forward.up.", pytorch_table(layer.feed_forward->up));
    block.nest("down.", "feed_forward.down.", pytorch_table(layer.feed_forward->down));
    block.nest("n1.", "attention_norm.", pytorch_table(layer.attention_norm));
    block.nest("n2.", "feed_forward_norm.", pytorch_table(*layer.feed_forward_norm));
    table.nest("blocks." + std::to_string(i) + ".", "layers." + std::to_string(i) + ".", block);
  }
  table.nest("norm.", "norm.", pytorch_table(*model.norm));
  return table.nest("head.", "vocabulary.", pytorch_table(model.vocabulary));
}

Model loaded(const std::string& prefix) {
  const SafetensorsFile& file = golden();
  const Shape tokens = file.shape("param.tok.weight");
  Generator random(1);
  Model model = Model::initial(random, {.vocabulary = tokens[0],
                                        .context = file.shape("param.pos.weight")[0],
                                        .width = tokens[1],
                                        .heads = std::stol(file.metadata().at("heads")),
                                        .layers = std::stol(file.metadata().at("layers")),
                                        .hidden = file.shape("param.blocks.0.up.weight")[0],
                                        .bias = true});
  load_parameters(model, file, table_of(model), prefix);
  return model;
}

// Columns from `first` on, one fewer than there are, of the sequences of one step.
Array<Index> columns(const Array<Index>& tokens, Index step, Index first) {
  auto part = Array<Index>::uninitialized({tokens.dim(1), tokens.dim(2) - 1});
  for (Index b = 0; b < part.dim(0); ++b) {
    for (Index i = 0; i < part.dim(1); ++i) part.set({b, i}, tokens(step, b, i + first));
  }
  return part;
}

struct Training {
  A losses, norms;
  Model last;
};

Training train(Model model, Optimizer<double>&& optimizer, double most = 1.0) {
  const Array<Index> tokens = golden().read<Index>("tokens");
  Training result{A::zeros({tokens.dim(0)}), A::zeros({tokens.dim(0)}), {}};
  Tape<double> tape;
  for (Index step = 0; step < tokens.dim(0); ++step) {
    auto loss = [&](const Model& m) {
      return cross_entropy(m(columns(tokens, step, 0)), columns(tokens, step, 1));
    };
    double norm = 0;
    auto clip = [&](std::vector<A>& gradients) { norm = clip_global_norm(gradients, most); };
    result.losses.set({step}, training_step(tape, model, optimizer, loss, clip));
    result.norms.set({step}, norm);
  }
  result.last = model;
  return result;
}

AdamW<double> adamw() { return AdamW<double>({.rate = 3e-3, .beta2 = 0.95, .decay = 0.1}); }

// Which of the three it reproduces.
struct Reproduced {
  bool losses, norms, last;
};
Reproduced reproduced(const Training& run, double within) {
  bool last = true;
  const auto expected = parameters<double>(loaded("final."));
  std::size_t i = 0;
  for_each_parameter(run.last, [&](const std::string&, const V& parameter) {
    last = agree(parameter, expected[i++], within) && last;
  });
  return {agree(run.losses, golden().read<double>("losses"), within),
          agree(run.norms, golden().read<double>("grad_norms"), within), last};
}

TEST(TrainingRun, ReproducesEachLossAndGradientNormAndTheLastParameters) {
  const Training ours = train(loaded("param."), adamw());
  EXPECT_NEAR_RELATIVE(ours.losses, golden().read<double>("losses"), tolerance);
  EXPECT_NEAR_RELATIVE(ours.norms, golden().read<double>("grad_norms"), tolerance);
  const auto expected = parameters<double>(loaded("final.")), start = parameters<double>(loaded("param."));
  std::size_t i = 0;
  for_each_parameter(ours.last, [&](const std::string& name, const V& parameter) {
    EXPECT_NEAR_RELATIVE(parameter, expected[i], tolerance) << name;
    EXPECT_FALSE(agree(start[i], expected[i], 1e-3)) << name << " has hardly moved";
    ++i;
  });
}

// ---- Wrong versions do not

void expect_other_run(const Model& model) {
  const Reproduced what = reproduced(train(model, adamw()), clearly);
  EXPECT_FALSE(what.losses);
  EXPECT_FALSE(what.norms);
  EXPECT_FALSE(what.last);
}

TEST(TrainingRun, WithNormsBehindTheirPartsDiffers) {
  Model model = loaded("param.");
  for (auto& layer : model.layers) layer.norm_place = NormPlace::after;
  expect_other_run(model);
}

TEST(TrainingRun, WithTheApproximationOfGeluDiffers) {
  Model model = loaded("param.");
  for (auto& layer : model.layers) layer.feed_forward->activation = Activation::gelu_tanh;
  expect_other_run(model);
}

TEST(TrainingRun, WithAnotherNumberOfHeadsDiffers) {
  Model model = loaded("param.");
  for (auto& layer : model.layers) layer.attention.heads = 4;
  expect_other_run(model);
}

TEST(TrainingRun, WithAnOutputProjectionThatWasNotTransposedDiffers) {
  Model model = loaded("param.");
  StateTable table = table_of(model);
  for (StateEntry& entry : table.entries) {
    if (entry.tensor.ends_with("out.weight")) entry.transposed = false;
  }
  load_parameters(model, golden(), table, "param.");
  expect_other_run(model);
}

TEST(TrainingRun, WithTheDecayInTheGradientDiffersInAllButTheFirstStep) {
  const Training coupled = train(loaded("param."), Adam<double>({.rate = 3e-3, .beta2 = 0.95, .decay = 0.1}));
  const A losses = golden().read<double>("losses");
  EXPECT_NEAR(coupled.losses(0), losses(0), tolerance);
  const Reproduced what = reproduced(coupled, clearly);
  EXPECT_FALSE(what.losses);
  EXPECT_FALSE(what.norms);
  EXPECT_FALSE(what.last);
}

TEST(TrainingRun, WithAnotherMemoryOfSquaresDiffers) {
  EXPECT_FALSE(
      reproduced(train(loaded("param."), AdamW<double>({.rate = 3e-3, .decay = 0.1})), clearly).last);
}

TEST(TrainingRun, ClippedToWhatItsNormsExceedDiffers) {
  EXPECT_LT(magnitude(golden().read<double>("grad_norms")), 1) << "so the run's own clipping changes nothing";
  const Training clipped = train(loaded("param."), adamw(), 0.6);
  EXPECT_NEAR(clipped.norms(0), golden().read<double>("grad_norms")(0), tolerance)
      << "the norm before clipping";
  EXPECT_FALSE(reproduced(clipped, clearly).last);
}

}  // namespace
}  // namespace tapehead
