#include <tools/train/report.h>

#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/inspect/svg.h>
#include <tapehead/nn/file_error.h>
#include <tools/output.h>

namespace tapehead::tools {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const PathTable& table) {
  Json rows = Json::array();
  for (const PathRow& row : table.rows) {
    rows.push_back({{"name", row.label},
                    {"norm", row.norm},
                    {"share", row.share},
                    {"cosine", row.cosine},
                    {"largest", row.largest}});
  }
  return {
      {"of", table.name}, {"rows", rows}, {"gradient_norm", table.total.norm}, {"residue", table.sum_error}};
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

void print_text(const TrainReport& report) {
  fmt::print(
      "{}: {:.2f} % of {} held-out answers right, loss {:.4f}, after {} steps in {:.1f} s (seed {}, {} "
      "parameters)\n",
      report.task, 100 * report.accuracy, report.answers, report.loss, report.steps, report.seconds,
      report.seed, report.parameters);
  if (report.paths) {
    const PathTable& table = *report.paths;
    fmt::print("\nGradient of the loss with respect to {}, by path:\n\n", table.name);
    std::size_t width = 4;
    for (const PathRow& row : table.rows) width = std::max(width, row.label.size());
    fmt::print("  {:<{}}  {:>10}  {:>7}  {:>7}  {:>10}\n", "path", width, "norm", "share", "cosine",
               "largest");
    for (const PathRow& row : table.rows) {
      fmt::print("  {:<{}}  {:>10.3e}  {:>6.1f}%  {:>7.3f}  {:>10.3e}\n", row.name, width, row.norm,
                 100 * row.share, row.cosine, row.largest);
    }
    fmt::print("  {:<{}}  {:>10.3e}\n\n", "all", width, table.total.norm);
    fmt::print("The paths sum to the gradient to {:.0e} of its largest element.\n", table.sum_error);
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

std::string run_document(const TrainReport& report, const TransformerOptions& sizes,
                         const Schedule& schedule) {
  Json json = json_of(report);
  json["sizes"] = {{"vocabulary", sizes.vocabulary}, {"context", sizes.context}, {"width", sizes.width},
                   {"heads", sizes.heads},           {"layers", sizes.layers},   {"hidden", sizes.hidden}};
  json["schedule"] = {{"steps", schedule.steps},
                      {"batch", schedule.batch},
                      {"rate", schedule.rate},
                      {"decay", schedule.decay}};
  return json.dump(2) + "\n";
}

void write_loss_picture(std::ostream& out, const TrainReport& report) {
  write_loss_svg(out, fmt::format("{}: training loss by step", report.task), report.losses);
}

void write_attention_picture(std::ostream& out, const TrainReport& report) {
  TapeTable table;
  table.title = fmt::format("{} on a held-out sequence", report.task);
  table.attention = report.attention;
  write_attention_svg(out, table);
}

std::string log_line(Index step, double loss, double rate, double seconds) {
  return Json{{"step", step}, {"loss", loss}, {"rate", rate}, {"seconds", seconds}}.dump() + "\n";
}

}  // namespace tapehead::tools
