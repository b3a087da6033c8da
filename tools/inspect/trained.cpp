#include <tapehead/inspect/subject.h>

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/nn/state.h>
#include <tapehead/nn/tasks.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/loss.h>
#include <tools/train/attention.h>

namespace tapehead::tools {
namespace {

using Json = nlohmann::json;

struct Run {
  std::string folder, task;
  TransformerOptions sizes;

  std::string file(const char* name) const { return (std::filesystem::path(folder) / name).string(); }
};

Run read_run(const std::string& folder) {
  Run run{folder, {}, {}};
  const std::string path = run.file("run.json");
  std::ifstream file(path);
  if (!file) throw FileError(path, "cannot be read; expected a folder that `tapehead train --out` made");
  try {
    const Json json = Json::parse(file), &sizes = json.at("sizes");
    json.at("task").get_to(run.task);
    sizes.at("vocabulary").get_to(run.sizes.vocabulary), sizes.at("context").get_to(run.sizes.context);
    sizes.at("width").get_to(run.sizes.width), sizes.at("heads").get_to(run.sizes.heads);
    sizes.at("layers").get_to(run.sizes.layers), sizes.at("hidden").get_to(run.sizes.hidden);
  } catch (const Json::exception& error) {
    throw FileError(path, detail::printable(error.what()));
  }
  const TransformerOptions& sizes = run.sizes;
  const bool positive = sizes.vocabulary > 0 && sizes.context > 0 && sizes.width > 0 && sizes.heads > 0 &&
                        sizes.layers > 0 && sizes.hidden >= 0;
  if (!positive) throw FileError(path, "a size of the model is not positive");
  return run;
}

// Of a language model the numbers of its characters, since its run keeps no alphabet.
Words tokens_in_words(const std::string& task, const Array<Index>& tokens) {
  if (task == "recall") return words_of(RecallTask{}, tokens);
  if (task == "reverse") return words_of(ReverseTask{}, tokens);
  Words words;
  for (Index i = 0; i < tokens.dim(1); ++i) words.push_back(fmt::format("{}", tokens(0, i)));
  return words;
}

// What a causal model reads, and what it is asked for.
struct Sequences {
  Array<Index> tokens, targets;  // (B, L)
};

// Of the task; a language model is asked for the next of random tokens, since its run keeps no text.
Sequences drawn(const Run& run, Generator& random, Index batch) {
  if (run.task == "recall") {
    const RecallTask::Batch drawn = RecallTask{}.draw(random, batch);
    return {drawn.tokens, drawn.targets};
  }
  if (run.task == "reverse") {
    const ReverseTask::Joined drawn = ReverseTask::joined(ReverseTask{}.draw(random, batch));
    return {drawn.tokens, drawn.targets};
  }
  Sequences result{Array<Index>::uninitialized({batch, run.sizes.context}),
                   Array<Index>::uninitialized({batch, run.sizes.context})};
  for (Index b = 0; b < batch; ++b) {
    Index next = random.below(run.sizes.vocabulary);
    for (Index i = 0; i < run.sizes.context; ++i) {
      result.tokens.set({b, i}, next);
      next = random.below(run.sizes.vocabulary);
      result.targets.set({b, i}, next);
    }
  }
  return result;
}

template <class Model>
Model loaded(const Run& run, const SafetensorsFile& file) {
  Generator unused(0);
  Model model = Model::initial(unused, run.sizes);
  load_parameters(model, file);
  return model;
}

Var<float> loss_of(const Var<float>& logits, const Array<Index>& targets) {
  return cross_entropy(logits, targets, {.ignored = no_target});
}

AttentionOptions<float> masked(const Mask& mask, AttentionKernel kernel) {
  AttentionOptions<float> options;
  options.mask = mask;
  options.kernel = kernel;
  return options;
}

// The model as CausalModel has it, with the attention that is asked for.
Subject<float> of_causal_model(Tape<float>& tape, const Run& run, const SafetensorsFile& file, Index batch,
                               Generator& random, AttentionKernel kernel) {
  const auto model = on_tape(tape, loaded<CausalModel<float>>(run, file));
  const Sequences sequences = drawn(run, random, batch);
  Subject<float> subject;
  subject.inputs = parameters<float>(model);
  {
    const Scope<float> scope(tape, "embedding");
    subject.x = model.embedding(sequences.tokens);
  }
  Var<float> x = subject.x;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const Scope<float> scope(tape, fmt::format("layer {}", i + 1));
    x = model.layers[i](x, masked(Mask::causal(0), kernel));
  }
  const Scope<float> scope(tape, "loss");
  subject.loss = loss_of(model.vocabulary(model.norm ? normed(*model.norm, x) : x), sequences.targets);
  subject.query_tokens = subject.key_tokens = tokens_in_words(run.task, sequences.tokens);
  return subject;
}

Subject<float> of_encoder_decoder(Tape<float>& tape, const Run& run, const SafetensorsFile& file, Index batch,
                                  Generator& random, AttentionKernel kernel) {
  const auto model = on_tape(tape, loaded<EncoderDecoder<float>>(run, file));
  const ReverseTask::Batch drawn = ReverseTask{}.draw(random, batch);
  Subject<float> subject;
  subject.inputs = parameters<float>(model);
  Var<float> source = model.source_embedding(drawn.source);
  for (std::size_t i = 0; i < model.encoder.size(); ++i) {
    const Scope<float> scope(tape, fmt::format("encoder {}", i + 1));
    source = model.encoder[i](source, masked({}, kernel));
  }
  if (model.encoder_norm) {
    const Scope<float> scope(tape, "encoded");
    source = normed(*model.encoder_norm, source);
  }
  subject.x = source;
  Var<float> x = model.target_embedding(drawn.input);
  for (std::size_t i = 0; i < model.decoder.size(); ++i) {
    const Scope<float> scope(tape, fmt::format("decoder {}", i + 1));
    x = model.decoder[i](x, source, masked(Mask::causal(0), kernel), masked({}, kernel));
  }
  const Scope<float> scope(tape, "loss");
  subject.loss =
      loss_of(model.vocabulary(model.decoder_norm ? normed(*model.decoder_norm, x) : x), drawn.targets);
  subject.query_tokens = tokens_in_words(run.task, drawn.input);
  subject.key_tokens = tokens_in_words(run.task, drawn.source);
  return subject;
}

}  // namespace

Subject<float> trained(Tape<float>& tape, const InspectSettings& settings) {
  const Run run = read_run(settings.run);
  const SafetensorsFile file(run.file("model.safetensors"));
  Generator random = Generator(settings.seed).split("inspect");
  const Index batch = settings.batch.value_or(1);
  const bool pair = file.contains("source_embedding.tokens.table");
  Subject<float> subject =
      (pair ? of_encoder_decoder : of_causal_model)(tape, run, file, batch, random, kernel_of(settings));
  subject.title = fmt::format("a training step of {}: {}, {} {}, seed {}, loss {:.4f}", settings.run,
                              run.task, batch, batch == 1 ? "sequence" : "sequences", settings.seed,
                              static_cast<double>(subject.loss.item()));
  return subject;
}

}  // namespace tapehead::tools
