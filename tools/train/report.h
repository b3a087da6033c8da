#pragma once
// What a training run found out, for a person, for a program and for the run's folder.

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <tapehead/inspect/table.h>
#include <tapehead/nn/transformer.h>
#include <tools/train/settings.h>

namespace tapehead::tools {

struct TrainReport {
  std::string task;
  std::uint64_t seed = 0;
  Index parameters = 0;
  Index steps = 0;
  double seconds = 0;
  double training_loss = 0;        // mean of the last tenth of the steps
  double loss = 0;                 // on what was held out, nats an answer
  double accuracy = 0;             // share of held-out answers that are right
  Index answers = 0;               // how many were asked for
  std::optional<PathTable> paths;  // of the gradient of the loss with respect to what `name` says
  std::string sample;              // a text written by the model
  // For a run's folder:
  std::vector<double> losses;             // of each step
  std::vector<AttentionTable> attention;  // on one held-out sequence
  std::vector<std::string> files;
};

void print_text(const TrainReport& report);  // to standard output
void print_json(const TrainReport& report);  // one line
std::string run_document(const TrainReport& report, const TransformerOptions& sizes,
                         const Schedule& schedule);
void write_loss_picture(std::ostream& out, const TrainReport& report);       // SVG
void write_attention_picture(std::ostream& out, const TrainReport& report);  // SVG
std::string log_line(Index step, double loss, double rate, double seconds);

}  // namespace tapehead::tools
