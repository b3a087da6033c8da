#pragma once
// tapehead train TASK

#include <tools/train/report.h>

namespace tapehead::tools {

// Each trains one task and measures it on what was held out. Throws Error for settings or files that cannot
// be used.
TrainReport train_recall(const TrainSettings& settings);
TrainReport train_reverse(const TrainSettings& settings);
TrainReport train_language(const TrainSettings& settings);

// Trains the task that the settings name and prints the report.
void train(const TrainSettings& settings);

}  // namespace tapehead::tools
