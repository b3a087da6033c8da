#pragma once
// What a training run found out, for a person, for a program and for the run's folder.

#include <optional>
#include <string>
#include <vector>

#include <tapehead/core/paths.h>
#include <tapehead/nn/transformer.h>
#include <tools/train/settings.h>

namespace tapehead::tools {

// One row of the table of gradient paths.
struct PathRow {
  std::string name;
  double norm;     // of the path's gradient
  double share;    // of the total gradient: <path, total> / <total, total>; the shares sum to 1
  double cosine;   // with the total gradient
  double largest;  // largest absolute element
};

struct PathTable {
  std::string of;  // what the shared value is, in words
  std::vector<PathRow> rows;
  double gradient_norm = 0;
  double residue =
      0;  // largest difference between the sum of the paths and the gradient, over its largest element
};

// `gradient` is that of the same y with respect to the same x.
PathTable path_table(std::string of, const std::vector<GradientPath<float>>& paths,
                     const Array<float>& gradient);

struct TrainReport {
  std::string task;
  std::uint64_t seed = 0;
  Index parameters = 0;
  Index steps = 0;
  double seconds = 0;
  double training_loss = 0;  // mean of the last tenth of the steps
  double loss = 0;           // on what was held out, nats an answer
  double accuracy = 0;       // share of held-out answers that are right
  Index answers = 0;         // how many were asked for
  std::optional<PathTable> paths;
  std::string sample;  // a text written by the model
  std::vector<std::string> files;
};

void print_text(const TrainReport& report);  // to standard output
void print_json(const TrainReport& report);  // one line
std::string run_document(const TrainReport& report, const TransformerOptions& sizes, const Schedule& schedule);
std::string log_line(Index step, double loss, double rate, double seconds);

}  // namespace tapehead::tools
