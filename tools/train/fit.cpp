#include <tapehead/core/errors.h>
#include <tapehead/nn/file_error.h>
#include <tapehead/nn/tasks.h>
#include <tapehead/ops/loss.h>
#include <tools/train/fit.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

namespace tapehead::tools {

Progress::Progress(std::string task, Index steps)
    : task_(std::move(task)), steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void Progress::show(Index done, double loss) {
  using namespace std::chrono_literals;
  const Clock::time_point now = Clock::now();
  if (now - shown_ < (terminal_ ? 100ms : 5000ms) && !(terminal_ && done == steps_)) return;
  shown_ = now;
  const double elapsed = seconds();
  const double left = elapsed / static_cast<double>(done) * static_cast<double>(steps_ - done);
  constexpr Index cells = 24;
  const auto full = static_cast<std::size_t>(cells * done / steps_);
  const std::string bar = std::string(full, '#') + std::string(cells - full, '.');
  fmt::print(stderr, "{}{} [{}] step {}/{}  loss {:.4f}  {:.0f} s left{}", terminal_ ? "\r\033[K" : "", task_,
             bar, done, steps_, loss, left, terminal_ ? "" : "\n");
  std::fflush(stderr);
}

void Progress::finish() {
  if (terminal_) fmt::print(stderr, "\r\033[K");
}

RunFolder::RunFolder(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) throw FileError(path_, "cannot make the folder: " + error.message());
  log_.open(file("log.jsonl"));
  if (!log_) throw FileError(file("log.jsonl"), "cannot be written");
}

std::string RunFolder::file(const std::string& name) const {
  return (std::filesystem::path(path_) / name).string();
}

void RunFolder::log(Index step, double loss, double rate, double seconds) {
  if (path_.empty()) return;
  log_ << log_line(step, loss, rate, seconds);
  if (!log_) throw FileError(file("log.jsonl"), "cannot be written");
}

void RunFolder::write_report(TrainReport& report, const TransformerOptions& sizes, const Schedule& schedule) {
  if (path_.empty()) return;
  log_.close();
  if (!log_) throw FileError(file("log.jsonl"), "cannot be written");
  report.files = {file("model.safetensors"), file("log.jsonl"), file("run.json"), file("loss.svg")};
  std::ostringstream loss, attention;
  write_loss_picture(loss, report);
  write("loss.svg", loss.str());
  if (!report.attention.empty()) {
    write_attention_picture(attention, report);
    write("attention.svg", attention.str());
    report.files.push_back(file("attention.svg"));
  }
  write("run.json", run_document(report, sizes, schedule));
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  std::ofstream stream(file(name));
  stream << text;
  stream.close();
  if (!stream) throw FileError(file(name), "cannot be written");
}

Array<Index> largest_classes(const Array<float>& logits) {
  const Index classes = logits.dim(-1);
  auto result = Array<Index>::uninitialized(logits.shape().first(logits.rank() - 1));
  const float* row = logits.data();
  for (Index& best : result.mutable_values()) {
    best = std::max_element(row, row + classes) - row;
    row += classes;
  }
  return result;
}

void score(TrainReport& report, const Array<Index>& answers, const Array<Index>& targets) {
  Index right = 0, asked = 0;
  for (Index i = 0; i < targets.size(); ++i) {
    if (targets.data()[i] == no_target) continue;
    ++asked;
    right += answers.data()[i] == targets.data()[i];
  }
  report.accuracy = static_cast<double>(right) / static_cast<double>(asked);
  report.answers = asked;
}

Var<float> answer_loss(const Var<float>& logits, const Array<Index>& targets) {
  return cross_entropy(logits, targets, {.ignored = no_target});
}

void require_fit(const TransformerOptions& sizes) {
  if (sizes.layers < 1) throw DomainError("train", "a model needs at least one layer");
  if (sizes.heads < 1 || sizes.width % sizes.heads != 0) {
    throw DomainError("train", std::to_string(sizes.heads) + " heads do not divide the width " +
                                   std::to_string(sizes.width));
  }
}

void require_finite(double loss, Index step) {
  if (std::isfinite(loss)) return;
  throw DomainError("train",
                    "the loss is not finite at step " + std::to_string(step) + "; a lower --rate may help");
}

}  // namespace tapehead::tools
