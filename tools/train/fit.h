#pragma once
// The training loop of every task, with its progress display and the folder it writes.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include <tapehead/nn/schedule.h>
#include <tapehead/nn/state.h>
#include <tapehead/nn/training.h>
#include <tools/train/report.h>

namespace tapehead::tools {

// Shows how far a run is, on standard error: one line that is rewritten on a terminal, otherwise one every
// few seconds.
class Progress {
 public:
  Progress(std::string task, Index steps);
  void show(Index done, double loss);
  void finish();
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::string task_;
  Index steps_;
  bool terminal_;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

// The folder of a run: log.jsonl as it goes, and at the end model.safetensors, run.json, and as pictures
// loss.svg and attention.svg. Does nothing without one. Throws FileError when the folder or a file cannot be
// written.
class RunFolder {
 public:
  explicit RunFolder(std::string path);
  void log(Index step, double loss, double rate, double seconds);
  template <class Model>
  void write_model(const Model& model, const std::string& task) {
    if (path_.empty()) return;
    SafetensorsWriter writer;
    writer.metadata("task", task);
    add_parameters(writer, model);
    writer.write(file("model.safetensors"));
  }
  // Adds the names of the files to the report, and writes it.
  void write_report(TrainReport& report, const TransformerOptions& sizes, const Schedule& schedule);

 private:
  std::string file(const std::string& name) const;
  void write(const std::string& name, const std::string& text) const;
  std::string path_;
  std::ofstream log_;
};

void require_finite(double loss, Index step);       // throws DomainError
void require_fit(const TransformerOptions& sizes);  // throws DomainError: no layer, heads that do not fit

// The mean of the losses of the last tenth of the steps, at least one.
class RecentLoss {
 public:
  explicit RecentLoss(Index steps) : from_(steps - std::max<Index>(steps / 10, 1)) {}
  void add(Index step, double loss) {
    if (step >= from_) sum_ += loss, ++count_;
  }
  double mean() const { return sum_ / static_cast<double>(std::max<Index>(count_, 1)); }

 private:
  Index from_;
  Index count_ = 0;
  double sum_ = 0;
};

// Trains a fresh model on a task and measures it: loss_of(model, random, batch) records the loss of sequences
// drawn from `random`; measure(model, random, report) fills in what it is worth on others, and for a folder
// what its attention looks like.
template <class Model, class LossOf, class Measure>
TrainReport train_task(const TrainSettings& settings, const TransformerOptions& usual_sizes,
                       const Schedule& usual_schedule, LossOf loss_of, Measure measure) {
  const TransformerOptions sizes = chosen(settings, usual_sizes);
  const Schedule schedule = chosen(settings, usual_schedule);
  require_fit(sizes);
  const Generator root(settings.seed);
  Generator weights = root.split("weights"), drawn = root.split("training"),
            held_out = root.split("held out");
  Model model = Model::initial(weights, sizes);
  RunFolder folder(settings.out);
  TrainReport report;
  report.task = settings.task;
  report.seed = settings.seed;
  report.parameters = parameter_count(model);
  report.steps = schedule.steps;

  const Index warmup = std::min<Index>(50, schedule.steps / 5 + 1);
  const RateSchedule rate_of = warm_up({.steps = warmup, .start = 1 / static_cast<double>(warmup + 1)},
                                       cosine_rate({.first = schedule.rate,
                                                    .last = schedule.rate / 20,
                                                    .steps = std::max<Index>(schedule.steps - warmup, 1)}));
  AdamW<float> optimizer({.decay = schedule.decay});
  Tape<float> tape;
  Progress progress(settings.task, schedule.steps);
  RecentLoss recent(schedule.steps);
  for (Index step = 0; step < schedule.steps; ++step) {
    const double rate = rate_of(step);
    optimizer.set_rate(rate);
    const double loss = training_step(tape, model, optimizer,
                                      [&](const Model& m) { return loss_of(m, drawn, schedule.batch); });
    require_finite(loss, step + 1);
    recent.add(step, loss);
    if (!settings.out.empty()) report.losses.push_back(loss);
    folder.log(step + 1, loss, rate, progress.seconds());
    progress.show(step + 1, loss);
  }
  progress.finish();
  report.seconds = progress.seconds();
  report.training_loss = recent.mean();
  measure(model, held_out, report);
  folder.write_model(model, settings.task);
  folder.write_report(report, sizes, schedule);
  return report;
}

// The class with the largest logit in each row of (..., V).
Array<Index> largest_classes(const Array<float>& logits);

// Fills in how many answers are the targets; a target of no_target is not asked for.
void score(TrainReport& report, const Array<Index>& answers, const Array<Index>& targets);

// The mean cross entropy of the targets that are asked for.
Var<float> answer_loss(const Var<float>& logits, const Array<Index>& targets);

}  // namespace tapehead::tools
