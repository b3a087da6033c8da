#pragma once
// The diagnosis on planted dumps: what it answered, and the table of answers by family.

#include <string>
#include <vector>

#include <tools/check/check.h>

#include "tools/planted/cases.h"

namespace tapehead::planted {

enum class Outcome {
  right,        // exactly what was planted
  set,          // a set of answers with the truth among them, and no other than would give these numbers
  equal,        // not the truth, but one that would give these numbers
  partly,       // a part of the truth, said to be a part
  missed,       // said not to be explained
  wrong,        // another mistake
  false_alarm,  // a mistake where there is none
  no_alarm,     // agrees where there is a mistake
  refused,      // said to be unusable
};

struct Judgement {
  Outcome outcome;
  std::string answer;
};

check::Dump dump_of(const Case& planted);
Judgement judge(const Case& planted);

// Counts by family; lines "truth (case): answer" of all that is not right, a set or an agreement.
struct Tally {
  void add(const Case& planted, const Judgement& judgement);
  std::string table() const;
  std::size_t count(Outcome outcome) const;
  std::size_t total() const;

  std::map<std::string, std::map<Outcome, std::size_t>> families;
  std::vector<std::string> complaints;
};

}  // namespace tapehead::planted
