#include <tapehead/nn/tasks.h>
#include <tools/train/attention.h>
#include <tools/train/fit.h>
#include <tools/train/train.h>

namespace tapehead::tools {
namespace {

constexpr Index held_out_sequences = 256;
constexpr Schedule usual_schedule{.steps = 800, .batch = 64, .rate = 2e-3, .decay = 0};

TransformerOptions usual_sizes(const ReverseTask& task, Index context, Index layers) {
  TransformerOptions sizes;
  sizes.vocabulary = task.vocabulary();
  sizes.context = context;
  sizes.layers = layers;
  sizes.hidden = 128;
  return sizes;
}

// The answer as the model writes it by itself, each symbol read back before the next: logits_of(input) has a
// row for every position of the input, and the answer is read from position `first` on.
template <class LogitsOf>
Array<Index> written(Array<Index> input, Index first, LogitsOf logits_of) {
  for (Index i = first; i + 1 < input.dim(1); ++i) {
    const Array<Index> answers = largest_classes(logits_of(input).value());
    for (Index b = 0; b < input.dim(0); ++b) input.set({b, i + 1}, answers(b, i));
  }
  return largest_classes(logits_of(input).value());
}

// The encoder reads the source, the decoder writes the answer.
TrainReport with_cross_attention(const TrainSettings& settings, const ReverseTask& task) {
  using Model = EncoderDecoder<float>;
  return train_task<Model>(
      settings, usual_sizes(task, task.length, 1), usual_schedule,
      [&](const Model& model, Generator& random, Index batch_size) {
        const ReverseTask::Batch batch = task.draw(random, batch_size);
        return answer_loss(model.decoded(batch.input, model.encoded(batch.source)), batch.targets);
      },
      [&](const Model& model, Generator& random, TrainReport& report) {
        const ReverseTask::Batch batch = task.draw(random, held_out_sequences);
        const Var<float> source = model.encoded(batch.source);
        report.loss =
            static_cast<double>(answer_loss(model.decoded(batch.input, source), batch.targets).item());
        const Array<Index> only_start = Array<Index>::full(batch.input.shape(), task.start());
        auto logits_of = [&](const Array<Index>& input) { return model.decoded(input, source); };
        score(report, written(only_start, 0, logits_of), batch.targets);
        if (settings.out.empty()) return;
        report.attention = attention_of(model, batch.source, words_of(task, batch.source), batch.input,
                                        words_of(task, batch.input));
      });
}

// One causal model reads the source and goes on with the answer.
TrainReport with_one_causal_model(const TrainSettings& settings, const ReverseTask& task) {
  using Model = CausalModel<float>;
  return train_task<Model>(
      settings, usual_sizes(task, 2 * task.length, 2), usual_schedule,
      [&](const Model& model, Generator& random, Index batch_size) {
        const ReverseTask::Joined batch = ReverseTask::joined(task.draw(random, batch_size));
        return answer_loss(model(batch.tokens), batch.targets);
      },
      [&](const Model& model, Generator& random, TrainReport& report) {
        const ReverseTask::Joined batch = ReverseTask::joined(task.draw(random, held_out_sequences));
        report.loss = static_cast<double>(answer_loss(model(batch.tokens), batch.targets).item());
        Array<Index> only_source = batch.tokens;
        for (Index b = 0; b < only_source.dim(0); ++b) {
          for (Index i = task.length; i < only_source.dim(1); ++i) only_source.set({b, i}, task.start());
        }
        score(report, written(only_source, task.length, model), batch.targets);
        if (settings.out.empty()) return;
        report.attention = attention_of(model, batch.tokens, words_of(task, batch.tokens));
      });
}

}  // namespace

TrainReport train_reverse(const TrainSettings& settings) {
  const ReverseTask task;
  return settings.cross ? with_cross_attention(settings, task) : with_one_causal_model(settings, task);
}

}  // namespace tapehead::tools
