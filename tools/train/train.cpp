#include <tapehead/core/errors.h>
#include <tapehead/core/parallel.h>
#include <tools/train/train.h>

namespace tapehead::tools {

void train(const TrainSettings& settings) {
  if (settings.threads > 0) set_thread_count(settings.threads);
  const TrainReport report = [&] {
    if (settings.task == "recall") return train_recall(settings);
    if (settings.task == "reverse") return train_reverse(settings);
    if (settings.task == "lm") return train_language(settings);
    throw LogicError("train", "no task is called '" + settings.task + "'");
  }();
  settings.json ? print_json(report) : print_text(report);
}

}  // namespace tapehead::tools
