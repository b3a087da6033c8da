#include <tools/contract/report.h>

#include <algorithm>
#include <cctype>

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace tapehead::contract {
namespace {

using Json = nlohmann::ordered_json;

// What is said of a claim in several types is the worst of it.
Verdict verdict_of(const Row& row) {
  Verdict worst = Verdict::not_tried;
  for (const Result& result : row.results) {
    if (is_failure(result.verdict)) return result.verdict;
    if (result.verdict == Verdict::holds) worst = Verdict::holds;
  }
  return worst;
}

// In capitals where the eye is to stop.
std::string shown(Verdict verdict) {
  std::string text = name_of(verdict);
  if (is_failure(verdict)) {
    for (char& c : text) c = static_cast<char>(std::toupper(c));
  }
  return text;
}

std::string error_text(const Result& result) {
  if (result.verdict == Verdict::not_tried) return "-";
  return result.error == 0 ? "0" : fmt::format("{:.1e}", result.error);
}

// The parts that were tried in any of the types; for what was not tried, why.
std::string tried_text(const Row& row) {
  if (verdict_of(row) == Verdict::not_tried) return row.results.front().where;
  const auto more = [](const Result& a, const Result& b) { return a.tried.size() < b.tried.size(); };
  std::vector<std::string> tried = std::max_element(row.results.begin(), row.results.end(), more)->tried;
  std::stable_partition(tried.begin(), tried.end(),
                        [](const std::string& part) { return part != "gradients"; });
  return fmt::format("{}", fmt::join(tried, "; "));
}

void append_failure(std::string& text, const Row& row, bool kept) {
  text += fmt::format("\n{} ({}): {}\n", row.claim->id, row.claim->of, row.claim->sentence);
  for (const Result& result : row.results) {
    if (!is_failure(result.verdict)) continue;
    text += fmt::format("  {}: {}", name_of(result.number), result.where);
    if (result.verdict == Verdict::fails && result.bound > 0) {
      text += fmt::format("; off by {:.2g}, allowed {:.2g}", result.error, result.bound);
    }
    text += "\n";
    if (result.explanation) text += fmt::format("  diagnosis: {}\n", result.explanation->text);
    if (kept && !result.dump.empty()) text += fmt::format("  dump: {}\n", result.dump);
  }
}

Json json_of(const Result& result, bool kept) {
  Json json = {{"type", name_of(result.number)}, {"verdict", name_of(result.verdict)}};
  if (result.verdict == Verdict::not_tried) {
    json["why"] = result.where;
    return json;
  }
  json.update({{"error", result.error}, {"bound", result.bound}, {"tried", result.tried}});
  if (!result.where.empty()) json["where"] = result.where;
  if (kept && !result.dump.empty()) json["dump"] = result.dump;
  if (result.explanation) {
    json["diagnosis"] = {{"verdict", result.explanation->verdict},
                         {"mistakes", result.explanation->mistakes},
                         {"text", result.explanation->text}};
  }
  return json;
}

}  // namespace

int failures(const Table& table) {
  return static_cast<int>(std::count_if(table.rows.begin(), table.rows.end(),
                                        [](const Row& row) { return is_failure(verdict_of(row)); }));
}

bool nothing_tried(const Table& table) {
  return std::all_of(table.rows.begin(), table.rows.end(),
                     [](const Row& row) { return verdict_of(row) == Verdict::not_tried; });
}

std::string text_of(const Table& table, bool kept) {
  std::string text = fmt::format("Claims on {}\n\n  {:<15} {:<13} ", table.subject, "claim", "of");
  for (const Result& result : table.rows.at(0).results) {
    text += fmt::format("{:>9} ", fmt::format("{} error", name_of(result.number)));
  }
  text += " verdict    tried\n";
  for (const Row& row : table.rows) {
    text += fmt::format("  {:<15} {:<13} ", row.claim->id, row.claim->of);
    for (const Result& result : row.results) text += fmt::format("{:>9} ", error_text(result));
    text += fmt::format(" {:<9}  {}\n", shown(verdict_of(row)), tried_text(row));
  }
  int held = 0, untried = 0;
  for (const Row& row : table.rows) {
    held += verdict_of(row) == Verdict::holds, untried += verdict_of(row) == Verdict::not_tried;
    if (is_failure(verdict_of(row))) append_failure(text, row, kept);
  }
  return text +
         fmt::format("\n{} claims hold, {} fail, {} were not tried.\n", held, failures(table), untried);
}

std::string json_of(const std::vector<Table>& tables, bool kept) {
  Json json = {{"schema", 1}, {"subjects", Json::array()}, {"failed", 0}};
  int failed = 0;
  for (const Table& table : tables) {
    Json claims = Json::array();
    for (const Row& row : table.rows) {
      Json types = Json::array();
      for (const Result& result : row.results) types.push_back(json_of(result, kept));
      claims.push_back({{"claim", row.claim->id},
                        {"of", row.claim->of},
                        {"sentence", row.claim->sentence},
                        {"verdict", name_of(verdict_of(row))},
                        {"types", types}});
    }
    json["subjects"].push_back({{"subject", table.subject}, {"claims", claims}});
    failed += failures(table);
  }
  json["failed"] = failed;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tapehead::contract
