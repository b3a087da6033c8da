#include <tools/check/report.h>

#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/nn/file_error.h>

namespace tapehead::check {
namespace {

using Json = nlohmann::ordered_json;

std::string full_id(const Mistake& mistake) {
  std::string id(mistake.id);
  return mistake.variant.empty() ? id : id.append("/").append(mistake.variant);
}

std::string ids(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text.append(text.empty() ? "" : " and ").append(full_id(*finding.mistake));
  }
  return text;
}

// ---- Text

// "0.250", "12", "1.3e-07": four digits that say something.
std::string short_number(double x) { return fmt::format("{:.4g}", x); }

std::string fitted_text(const std::map<std::string, double>& fitted) {
  std::string text;
  const auto add = [&](std::string_view words, double number) {
    text.append(text.empty() ? "" : ", ").append(words).append(" ").append(short_number(number));
  };
  const auto expected = fitted.find("expected"), ratio = fitted.find("ratio");
  for (const auto& [name, number] : fitted) {
    if (name != "expected" && name != "ratio") add(name, number);
  }
  if (expected != fitted.end()) add("expected", expected->second);
  if (ratio != fitted.end()) add("ratio", ratio->second);
  return text;
}

std::string finding_text(const Finding& finding) {
  const Mistake& mistake = *finding.mistake;
  std::string text =
      fmt::format("  {}: {}\n    computed: {}\n", full_id(mistake), mistake.sentence, mistake.formula);
  if (!finding.fitted.empty()) text += fmt::format("    fitted: {}\n", fitted_text(finding.fitted));
  text += fmt::format("    explains {:.5g} % of what is off\n", 100 * finding.explains);
  if (!mistake.look_here.empty()) text += fmt::format("    where to look: {}\n", mistake.look_here);
  return text;
}

std::string place_text(const std::vector<Index>& place) {
  std::string text;
  for (const Index i : place) text.append(text.empty() ? "" : ", ").append(std::to_string(i));
  return "(" + text + ")";
}

std::string pairs_text(const std::vector<std::pair<std::string, std::string>>& pairs,
                       std::string_view between) {
  std::string text;
  for (const auto& [name, value] : pairs) {
    text.append(text.empty() ? "" : ", ").append(name).append(between).append(detail::printable(value));
  }
  return text;
}

std::string tensors_text(const std::vector<TensorError>& tensors) {
  std::size_t width = 6;
  for (const TensorError& tensor : tensors) width = std::max(width, tensor.name.size());
  std::string text = fmt::format("  {:<{}}  {:<4}  {:>10}  {:>10}  {:>10}  largest error at\n", "tensor",
                                 width, "", "error", "relative", "plain");
  for (const TensorError& tensor : tensors) {
    text += fmt::format("  {:<{}}  {:<4}  {:>10.3g}  {:>10.3g}  {:>10.3g}", tensor.name, width,
                        tensor.ok ? "ok" : "OFF", tensor.max_abs, tensor.relative, tensor.plain_relative);
    if (!tensor.worst.empty()) {
      text += fmt::format("  {}: got {}, expected {}", place_text(tensor.worst), short_number(tensor.got),
                          short_number(tensor.expected));
    }
    text += "\n";
    if (!tensor.first_bad.empty()) {
      text += fmt::format("  {:<{}}  first off at {}\n", "", width, place_text(tensor.first_bad));
    }
  }
  return text;
}

std::string line(std::string_view head, const std::string& text) {
  return text.empty() ? "" : fmt::format("  {}: {}\n", head, text);
}

std::string verdict_sentence(Verdict verdict) {
  switch (verdict) {
    case Verdict::agrees:
      return "agrees: what is off is no more than rounding";
    case Verdict::explained:
      return "explained: another formula was computed";
    case Verdict::partly:
      return "partly explained";
    case Verdict::ambiguous:
      return "cannot tell: several explanations fit";
    case Verdict::unexplained:
      break;
  }
  return "not explained: no known mistake gives these numbers";
}

// ---- JSON

// A number where the text is one.
Json value_of(const std::string& text) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc() || end != last || !std::isfinite(number)) return text;
  const bool is_whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return is_whole && std::abs(number) < 0x1p53 ? Json(static_cast<Index>(number)) : Json(number);
}

Json mistake_json(const Finding& finding) {
  const Mistake& mistake = *finding.mistake;
  Json fitted = Json::object();
  for (const auto& [name, number] : finding.fitted) fitted[name] = number;
  return {{"id", mistake.id},
          {"variant", mistake.variant},
          {"family", mistake.family},
          {"sentence", mistake.sentence},
          {"formula", mistake.formula},
          {"fitted", fitted},
          {"explains", finding.explains}};
}

Json tensor_json(const TensorError& tensor) {
  return {{"name", tensor.name},
          {"ok", tensor.ok},
          {"max_abs", tensor.max_abs},
          {"relative", tensor.relative},
          {"plain_relative", tensor.plain_relative},
          {"worst", tensor.worst},
          {"got", tensor.got},
          {"expected", tensor.expected}};
}

Json empty_document(const std::string& file, std::string_view verdict) {
  return {{"schema", 1},
          {"file", file},
          {"verdict", verdict},
          {"mistakes", Json::array()},
          {"alternatives", Json::array()},
          {"separate", ""},
          {"equivalent", Json::array()},
          {"assumed", Json::object()},
          {"tensors", Json::array()},
          {"next", ""}};
}

// Bytes of a file's name that are no UTF-8 are replaced, as JSON has no other way.
std::string one_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string next_text(const Report& report) {
  std::string text = report.diagnosis.next;
  for (const std::string& note : report.notes) text.append(text.empty() ? "" : "; ").append(note);
  return text;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  constexpr std::string_view names[] = {"agrees", "explained", "partly", "unexplained", "ambiguous"};
  return names[static_cast<std::size_t>(verdict)];
}

int exit_code(const Report& report) { return report.diagnosis.verdict == Verdict::agrees ? 0 : 1; }

std::string report_text(const Report& report) {
  const Diagnosis& diagnosis = report.diagnosis;
  std::string text =
      fmt::format("{}: {}\n", detail::printable(report.file), verdict_sentence(diagnosis.verdict));
  for (const Finding& finding : diagnosis.mistakes) text += finding_text(finding);
  for (const auto& set : diagnosis.alternatives) {
    if (ids(set) == ids(diagnosis.mistakes)) continue;
    text += fmt::format("  or, just as well, {}:\n", ids(set));
    for (const Finding& finding : set)
      text += line("  " + full_id(*finding.mistake), std::string(finding.mistake->sentence));
  }
  text += line("to tell them apart", diagnosis.separate);
  for (const std::string& form : diagnosis.equivalent) text += line("equal on paper", form);
  text += tensors_text(diagnosis.tensors);
  text += line("assumed", pairs_text(report.assumed, " "));
  text += line("names", pairs_text(report.renamed, " is "));
  std::string unused;
  for (const std::string& name : report.unused)
    unused.append(unused.empty() ? "" : ", ").append(detail::printable(name));
  text += line("not used", unused);
  for (const std::string& note : report.notes) text += fmt::format("  {}\n", note);
  return text + line("next", diagnosis.next);
}

std::string report_json(const Report& report) {
  const Diagnosis& diagnosis = report.diagnosis;
  Json json = empty_document(report.file, name_of(diagnosis.verdict));
  for (const Finding& finding : diagnosis.mistakes) json["mistakes"].push_back(mistake_json(finding));
  for (const auto& set : diagnosis.alternatives) {
    Json names = Json::array();
    for (const Finding& finding : set) names.push_back(full_id(*finding.mistake));
    json["alternatives"].push_back(names);
  }
  json["separate"] = diagnosis.separate;
  json["equivalent"] = diagnosis.equivalent;
  for (const auto& [name, given] : report.renamed) json["assumed"][name] = given;
  for (const auto& [setting, value] : report.assumed) json["assumed"][setting] = value_of(value);
  for (const TensorError& tensor : diagnosis.tensors) json["tensors"].push_back(tensor_json(tensor));
  json["next"] = next_text(report);
  return one_line(json);
}

std::string unusable_json(const std::string& file, const std::string& why) {
  Json json = empty_document(file, "unusable");
  json["next"] = why;
  return one_line(json);
}

}  // namespace tapehead::check
