#include <tools/contract/contract.h>

#include <unistd.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include <tapehead/nn/file_error.h>
#include <tools/contract/contained.h>
#include <tools/contract/evidence.h>
#include <tools/contract/memory.h>

namespace tapehead::contract {
namespace {

using Json = nlohmann::json;

// A child says lines of a word and a text: "part", "fault", "error", "result", "explanation".
void say(int pipe, const char* word, std::string text) {
  for (char& c : text) c = c == '\n' ? ' ' : c;
  text = fmt::format("{} {}\n", word, text);
  for (std::size_t from = 0; from < text.size();) {
    const ssize_t written = ::write(pipe, text.data() + from, text.size() - from);
    if (written <= 0) return;
    from += static_cast<std::size_t>(written);
  }
}

// The text of the last line that begins with the word.
std::optional<std::string> last(const std::string& said, std::string_view word) {
  std::optional<std::string> text;
  for (std::size_t from = 0; from < said.size();) {
    const std::size_t end = std::min(said.find('\n', from), said.size());
    const std::string_view line = std::string_view(said).substr(from, end - from);
    if (line.substr(0, line.find(' ')) == word) text = line.substr(std::min(word.size() + 1, line.size()));
    from = end + 1;
  }
  return text;
}

// JSON has no infinity; null stands for it.
double number_of(const Json& json) { return json.is_null() ? HUGE_VAL : json.get<double>(); }

std::unique_ptr<Subject> subject_of(const Trials& trials, Number number) {
  return trials.library.empty() ? built_in(trials.kernel, number)
                                : library(trials.library, number, trials.width);
}

// In the child.
void try_one(const Trials& trials, const Claim& claim, Number number, const std::string& dump, int pipe) {
  name_faults(pipe, "fault ");
  try {
    const std::unique_ptr<Subject> subject = subject_of(trials, number);
    Trial trial(*subject, [&](std::string_view part) { say(pipe, "part", std::string(part)); });
    claim.check(trial);
    Json result = {{"tried", trial.tried()}, {"lacking", trial.lacking()}};
    if (const auto& worst = trial.worst()) {
      result.update({{"error", worst->error}, {"bound", worst->bound}, {"fails", worst->fails()}});
      if (worst->fails()) {
        result["where"] = worst->where;
        write_evidence(dump, trial.evidence(), number);
      }
    }
    say(pipe, "result", result.dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (const std::exception& error) {
    say(pipe, "error", error.what());
  }
}

Result result_of(const Ended& ended, double seconds) {
  Result result;
  const std::string part = last(ended.said, "part").value_or("loading");
  if (ended.how != Ended::How::finished) {
    result.verdict = ended.how == Ended::How::time ? Verdict::hangs : Verdict::crashes;
    result.error = HUGE_VAL;
    result.where = words_of(ended, seconds) + ", trying " + part;
    if (const auto fault = last(ended.said, "fault")) result.where += ": it " + *fault;
    result.tried = {part};
    return result;
  }
  if (const auto error = last(ended.said, "error")) {
    result.verdict = Verdict::refuses, result.error = HUGE_VAL;
    result.where = *error + ", trying " + part;
    result.tried = {part};
    return result;
  }
  const Json json = Json::parse(last(ended.said, "result").value_or("{}"));
  result.tried = json.value("tried", std::vector<std::string>{});
  if (result.tried.empty()) {
    result.where = "unsupported: " + json.value("lacking", "");
    return result;
  }
  result.verdict = json.value("fails", false) ? Verdict::fails : Verdict::holds;
  if (json.contains("error")) result.error = number_of(json["error"]), result.bound = json["bound"];
  result.where = json.value("where", "");
  return result;
}

Explanation explained(const std::string& dump, double seconds) {
  const Ended ended = contained(
      [&](int pipe) {
        try {
          const Explanation e = explain(dump);
          say(pipe, "explanation",
              Json({{"verdict", e.verdict}, {"mistakes", e.mistakes}, {"text", e.text}}).dump());
        } catch (const std::exception& error) {
          say(pipe, "error", error.what());
        }
      },
      seconds);
  const auto said = last(ended.said, "explanation");
  if (!said) return {{}, {}, "no diagnosis: " + last(ended.said, "error").value_or(words_of(ended, seconds))};
  const Json json = Json::parse(*said);
  return {json["verdict"], json["mistakes"], json["text"]};
}

// Of a row's types the first that has a dump: in the other it is the same mistake.
void explain_first(Row& row, double seconds) {
  for (Result& result : row.results) {
    if (result.dump.empty()) continue;
    result.explanation = explained(result.dump, seconds);
    return;
  }
}

// Loads the library once, where it does no harm.
void require_library(const Trials& trials) {
  const Ended ended = contained(
      [&](int pipe) {
        try {
          library(trials.library, trials.numbers.at(0));
        } catch (const std::exception& error) {
          say(pipe, "error", error.what());
        }
      },
      trials.seconds);
  if (const auto error = last(ended.said, "error")) throw Error(*error);
  if (ended.how != Ended::How::finished) {
    throw FileError(trials.library, words_of(ended, trials.seconds) + " while it was loaded");
  }
}

}  // namespace

const char* name_of(Verdict verdict) {
  constexpr const char* names[] = {"holds", "fails", "crashes", "hangs", "refuses", "not tried"};
  return names[static_cast<int>(verdict)];
}

Table try_claims(const Trials& trials) {
  if (!trials.library.empty()) require_library(trials);
  Table table;
  table.subject = !trials.library.empty()                   ? trials.library
                  : trials.kernel == AttentionKernel::fused ? "built-in, fused kernel"
                                                            : "built-in, composed of ops";
  constexpr int patience = 3;
  int hung = 0;
  for (const Claim* claim : trials.claims) {
    Row row = {claim, {}};
    for (const Number number : trials.numbers) {
      Result result;
      if (hung < patience) {
        const std::string dump =
            fmt::format("{}/{}-{}.safetensors", trials.folder, claim->id, name_of(number));
        result = result_of(
            contained([&](int pipe) { try_one(trials, *claim, number, dump, pipe); }, trials.seconds),
            trials.seconds);
        if (result.verdict == Verdict::fails) result.dump = dump;
        hung += result.verdict == Verdict::hangs;
      } else {
        result.where = fmt::format("given up after {} that hung", patience);
      }
      result.number = number;
      row.results.push_back(std::move(result));
    }
    table.rows.push_back(std::move(row));
  }
  for (Row& row : table.rows) explain_first(row, trials.seconds);
  return table;
}

}  // namespace tapehead::contract
