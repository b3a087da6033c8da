#include <tools/train/report.h>

#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/nn/file_error.h>

namespace tapehead::tools {
namespace {

using Json = nlohmann::ordered_json;

double dot(const Array<float>& a, const Array<float>& b) {
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a.data()[i]) * static_cast<double>(b.data()[i]);
  return sum;
}

double largest_of(const Array<float>& a) {
  double largest = 0;
  for (const float x : a.values()) largest = std::max(largest, static_cast<double>(std::abs(x)));
  return largest;
}

Json json_of(const PathTable& table) {
  Json rows = Json::array();
  for (const PathRow& row : table.rows) {
    rows.push_back({{"name", row.name},
                    {"norm", row.norm},
                    {"share", row.share},
                    {"cosine", row.cosine},
                    {"largest", row.largest}});
  }
  return {
      {"of", table.of}, {"rows", rows}, {"gradient_norm", table.gradient_norm}, {"residue", table.residue}};
}

Json json_of(const TrainReport& report) {
  Json json = {
      {"task", report.task},   {"seed", report.seed},         {"parameters", report.parameters},
      {"steps", report.steps}, {"seconds", report.seconds},   {"training_loss", report.training_loss},
      {"loss", report.loss},   {"accuracy", report.accuracy}, {"answers", report.answers}};
  if (report.paths) json["paths"] = json_of(*report.paths);
  if (!report.sample.empty()) json["sample"] = report.sample;
  json["files"] = report.files;
  return json;
}

}  // namespace

PathTable path_table(std::string of, const std::vector<GradientPath<float>>& paths,
                     const Array<float>& gradient) {
  PathTable table{std::move(of), {}, std::sqrt(dot(gradient, gradient)), 0};
  std::vector<double> sum(static_cast<std::size_t>(gradient.size()));
  auto ratio = [](double part, double whole) {
    return whole == 0 ? 0 : part / whole;
  };  // nothing has no direction
  for (const GradientPath<float>& path : paths) {
    const double norm = std::sqrt(dot(path.gradient, path.gradient)), along = dot(path.gradient, gradient);
    table.rows.push_back({path.label, norm, ratio(along, table.gradient_norm * table.gradient_norm),
                          ratio(along, norm * table.gradient_norm), largest_of(path.gradient)});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(path.gradient.data()[i]);
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    table.residue = std::max(table.residue, std::abs(sum[i] - static_cast<double>(gradient.data()[i])));
  }
  table.residue = ratio(table.residue, largest_of(gradient));
  return table;
}

namespace {

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw FileError("standard output", "cannot be written");
}

}  // namespace

void print_text(const TrainReport& report) {
  fmt::print(
      "{}: {:.2f} % of {} held-out answers right, loss {:.4f}, after {} steps in {:.1f} s (seed {}, {} "
      "parameters)\n",
      report.task, 100 * report.accuracy, report.answers, report.loss, report.steps, report.seconds,
      report.seed, report.parameters);
  if (report.paths) {
    const PathTable& table = *report.paths;
    fmt::print("\nGradient of the loss with respect to {}, by path:\n\n", table.of);
    std::size_t width = 4;
    for (const PathRow& row : table.rows) width = std::max(width, row.name.size());
    fmt::print("  {:<{}}  {:>10}  {:>7}  {:>7}  {:>10}\n", "path", width, "norm", "share", "cosine",
               "largest");
    for (const PathRow& row : table.rows) {
      fmt::print("  {:<{}}  {:>10.3e}  {:>6.1f}%  {:>7.3f}  {:>10.3e}\n", row.name, width, row.norm,
                 100 * row.share, row.cosine, row.largest);
    }
    fmt::print("  {:<{}}  {:>10.3e}\n\n", "all", width, table.gradient_norm);
    fmt::print("The paths sum to the gradient to {:.0e} of its largest element.\n", table.residue);
  }
  if (!report.sample.empty()) fmt::print("\nWritten by the model:\n\n{}\n", report.sample);
  if (!report.files.empty()) {
    fmt::print("\nFiles:\n");
    for (const std::string& file : report.files) fmt::print("  {}\n", file);
  }
  flush_output();
}

void print_json(const TrainReport& report) {
  fmt::print("{}\n", json_of(report).dump());
  flush_output();
}

std::string run_document(const TrainReport& report, const TransformerOptions& sizes, const Schedule& schedule) {
  Json json = json_of(report);
  json["sizes"] = {{"vocabulary", sizes.vocabulary}, {"context", sizes.context}, {"width", sizes.width},
                   {"heads", sizes.heads},           {"layers", sizes.layers},   {"hidden", sizes.hidden}};
  json["schedule"] = {{"steps", schedule.steps},
                      {"batch", schedule.batch},
                      {"rate", schedule.rate},
                      {"decay", schedule.decay}};
  return json.dump(2) + "\n";
}

std::string log_line(Index step, double loss, double rate, double seconds) {
  return Json{{"step", step}, {"loss", loss}, {"rate", rate}, {"seconds", seconds}}.dump() + "\n";
}

}  // namespace tapehead::tools
