#include <tools/contract/explain.h>

#include <fmt/format.h>

#include <tools/check/check.h>
#include <tools/check/report.h>

namespace tapehead::contract {
namespace {

std::string id_of(const check::Mistake& mistake) {
  return mistake.variant.empty() ? std::string(mistake.id)
                                 : fmt::format("{}/{}", mistake.id, mistake.variant);
}

std::string ids_of(const std::vector<check::Finding>& findings) {
  std::string ids;
  for (const check::Finding& finding : findings)
    ids += (ids.empty() ? "" : " with ") + id_of(*finding.mistake);
  return ids;
}

std::string text_of(const check::Diagnosis& diagnosis) {
  switch (diagnosis.verdict) {
    case check::Verdict::agrees:
      return "this call by itself has the right results";
    case check::Verdict::unexplained:
      return "no known mistake gives these numbers";
    default:
      break;
  }
  std::string text;
  for (const check::Finding& finding : diagnosis.mistakes) {
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : " ", id_of(*finding.mistake), finding.mistake->sentence);
  }
  if (diagnosis.verdict == check::Verdict::partly) text += " This explains a part.";
  std::string others;
  for (const std::vector<check::Finding>& set : diagnosis.alternatives) {
    if (ids_of(set) == ids_of(diagnosis.mistakes)) continue;
    others += (others.empty() ? "" : ", or ") + ids_of(set);
  }
  return others.empty() ? text : fmt::format("{} It may as well be {}.", text, others);
}

}  // namespace

Explanation explain(const std::string& dump) {
  const check::Report report = check::check(check::open_dump(dump));
  Explanation explanation = {
      std::string(check::name_of(report.diagnosis.verdict)), {}, text_of(report.diagnosis)};
  for (const check::Finding& finding : report.diagnosis.mistakes) {
    explanation.mistakes.push_back(id_of(*finding.mistake));
  }
  return explanation;
}

}  // namespace tapehead::contract
