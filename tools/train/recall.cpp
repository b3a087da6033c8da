#include <fmt/format.h>

#include <tapehead/inspect/paths.h>
#include <tapehead/nn/tasks.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/matmul.h>
#include <tools/train/attention.h>
#include <tools/train/fit.h>
#include <tools/train/train.h>

namespace tapehead::tools {
namespace {

using Model = CausalModel<float>;

// X is what the last layer's attention reads, as queries, as keys and as values: the norm of all that came
// before.
PathTable paths_of_last_attention(const Model& model, const RecallTask::Batch& batch) {
  const AttentionOptions<float> causal{.mask = Mask::causal(0)};
  Var<float> before = model.embedding(batch.tokens);
  for (std::size_t i = 0; i + 1 < model.layers.size(); ++i) before = model.layers[i](before, causal);
  const EncoderLayer<float>& last = model.layers.back();

  Tape<float> tape;
  const Var<float> x = tape.input(normed(last.attention_norm, before).value(), "X");
  const Var<float> y = last.fed(before + last.attention(x, causal).output);
  const Var<float> loss = answer_loss(model.vocabulary(normed(*model.norm, y)), batch.targets);
  PathTable table = inspect_paths(loss, x);
  table.name = fmt::format("X, what the attention of layer {} reads", model.layers.size());
  return table;
}

}  // namespace

TrainReport train_recall(const TrainSettings& settings) {
  const RecallTask task;
  TransformerOptions sizes;
  sizes.vocabulary = task.vocabulary();
  sizes.context = task.length();
  return train_task<Model>(
      settings, sizes, {.steps = 1000, .batch = 64, .rate = 1e-3, .decay = 0},
      [&](const Model& model, Generator& random, Index batch_size) {
        const RecallTask::Batch batch = task.draw(random, batch_size);
        return answer_loss(model(batch.tokens), batch.targets);
      },
      [&](const Model& model, Generator& random, TrainReport& report) {
        const RecallTask::Batch batch = task.draw(random, 512);
        const Var<float> logits = model(batch.tokens);
        score(report, largest_classes(logits.value()), batch.targets);
        report.loss = static_cast<double>(answer_loss(logits, batch.targets).item());
        report.paths = paths_of_last_attention(model, task.draw(random, 64));
        if (settings.out.empty()) return;
        const Array<Index> tokens = task.draw(random, 1).tokens;
        report.attention = attention_of(model, tokens, words_of(task, tokens));
      });
}

}  // namespace tapehead::tools
