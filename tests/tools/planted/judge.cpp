#include "tools/planted/judge.h"

#include <algorithm>
#include <cstdio>

namespace tapehead::planted {
namespace {

constexpr std::pair<Outcome, const char*> columns[] = {
    {Outcome::right, "right"},   {Outcome::set, "set"},         {Outcome::equal, "equal"},
    {Outcome::partly, "partly"}, {Outcome::missed, "missed"},   {Outcome::wrong, "wrong"},
    {Outcome::no_alarm, "none"}, {Outcome::refused, "refused"}, {Outcome::false_alarm, "alarm"},
};

Names names_of(const std::vector<check::Finding>& findings) {
  Names names;
  for (const check::Finding& finding : findings)
    names.emplace(std::string(finding.mistake->id), std::string(finding.mistake->variant));
  return names;
}

std::string text(const Names& names) {
  std::string line;
  for (const auto& [id, variant] : names) {
    line.append(line.empty() ? "" : " with ").append(id);
    if (!variant.empty()) line.append("/").append(variant);
  }
  return line.empty() ? "nothing" : line;
}

bool shares(const Names& a, const Names& b) {
  return std::any_of(a.begin(), a.end(), [&](const Name& name) { return b.count(name) > 0; });
}

Outcome outcome_of(const Case& planted, check::Verdict verdict, const std::set<Names>& answers) {
  using check::Verdict;
  if (planted.truth.empty()) return verdict == Verdict::agrees ? Outcome::right : Outcome::false_alarm;
  if (verdict == Verdict::agrees) return Outcome::no_alarm;
  if (verdict == Verdict::unexplained || answers.empty()) return Outcome::missed;
  if (verdict == Verdict::partly)
    return shares(*answers.begin(), planted.truth) ? Outcome::partly : Outcome::missed;
  const bool all_fit = std::all_of(answers.begin(), answers.end(),
                                   [&](const Names& names) { return planted.acceptable.count(names) > 0; });
  if (!all_fit) return Outcome::wrong;
  if (answers.count(planted.truth) == 0) return Outcome::equal;
  return answers.size() == 1 ? Outcome::right : Outcome::set;
}

const char* word(check::Verdict verdict) {
  const char* const words[] = {"agrees", "explained", "partly", "unexplained", "ambiguous"};
  return words[static_cast<int>(verdict)];
}

}  // namespace

check::Dump dump_of(const Case& planted) {
  check::Dump dump;
  dump.origin = planted.text();
  dump.settings = planted.settings;
  for (const auto& [name, tensor] : planted.tensors) dump.add(name, tensor.numbers, tensor.type);
  return dump;
}

Judgement judge(const Case& planted) {
  try {
    const check::Diagnosis diagnosis = check::check(dump_of(planted)).diagnosis;
    std::set<Names> answers;
    if (!diagnosis.mistakes.empty()) answers.insert(names_of(diagnosis.mistakes));
    for (const auto& alternative : diagnosis.alternatives) answers.insert(names_of(alternative));
    std::string answer = word(diagnosis.verdict);
    for (const Names& names : answers) answer.append(answer.back() == 's' ? ": " : ", ").append(text(names));
    for (const check::TensorError& error : diagnosis.tensors)
      if (!error.ok) answer.append("; ").append(error.name).append(" differs");
    return {outcome_of(planted, diagnosis.verdict, answers), answer};
  } catch (const check::Unusable& error) {
    return {Outcome::refused, error.what()};
  }
}

void Tally::add(const Case& planted, const Judgement& judgement) {
  ++families[planted.truth.empty() && planted.family.empty() ? "right" : planted.family][judgement.outcome];
  if (judgement.outcome == Outcome::right || judgement.outcome == Outcome::set) return;
  std::string line = planted.text() + ": ";
  for (const auto& [outcome, name] : columns)
    if (outcome == judgement.outcome) line.append(name);
  complaints.push_back(line.append(": ").append(judgement.answer));
}

std::size_t Tally::count(Outcome outcome) const {
  std::size_t sum = 0;
  for (const auto& [family, counts] : families)
    if (const auto found = counts.find(outcome); found != counts.end()) sum += found->second;
  return sum;
}

std::size_t Tally::total() const {
  std::size_t sum = 0;
  for (const auto& column : columns) sum += count(column.first);
  return sum;
}

std::string Tally::table() const {
  char cell[64];
  std::snprintf(cell, sizeof cell, "%-22s%8s", "family", "planted");
  std::string text = cell;
  for (const auto& column : columns) std::snprintf(cell, sizeof cell, "%8s", column.second), text += cell;
  const auto row = [&](const std::string& name, std::size_t sum, const auto& number) {
    std::snprintf(cell, sizeof cell, "\n%-22s%8zu", name.c_str(), sum), text += cell;
    for (const auto& column : columns)
      std::snprintf(cell, sizeof cell, "%8zu", number(column.first)), text += cell;
  };
  for (const auto& [family, counts] : families) {
    std::size_t sum = 0;
    for (const auto& entry : counts) sum += entry.second;
    row(family, sum, [&counts = counts](Outcome outcome) {
      const auto found = counts.find(outcome);
      return found == counts.end() ? std::size_t{0} : found->second;
    });
  }
  row("all", total(), [this](Outcome outcome) { return count(outcome); });
  return text + "\n";
}

}  // namespace tapehead::planted
