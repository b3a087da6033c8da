#pragma once
// What `tapehead train` is asked to do. What is not said has a default of the task.

#include <cstdint>
#include <optional>
#include <string>

#include <tapehead/core/shape.h>
#include <tapehead/nn/transformer.h>

namespace tapehead::tools {

struct TrainSettings {
  std::string task;
  bool cross = false;  // reverse: encoder-decoder with cross-attention instead of one causal model
  std::string text;    // lm: the file to learn
  std::uint64_t seed = 1;
  std::optional<Index> steps, batch, width, heads, layers, hidden, context;
  std::optional<double> rate, decay;
  std::string out;  // folder for what is learned; empty: nothing is written
  bool json = false;
  int threads = 0;  // 0: all that the machine has
};

// The settings of a task, with what was said in place of its defaults.
struct Schedule {
  Index steps, batch;
  double rate, decay;
};
inline Schedule chosen(const TrainSettings& settings, const Schedule& usual) {
  return {settings.steps.value_or(usual.steps), settings.batch.value_or(usual.batch),
          settings.rate.value_or(usual.rate), settings.decay.value_or(usual.decay)};
}
inline TransformerOptions chosen(const TrainSettings& settings, TransformerOptions usual) {
  usual.width = settings.width.value_or(usual.width);
  usual.heads = settings.heads.value_or(usual.heads);
  usual.layers = settings.layers.value_or(usual.layers);
  usual.hidden = settings.hidden.value_or(usual.hidden);
  return usual;
}

}  // namespace tapehead::tools
