#pragma once
// A dump against the reference: settings read or inferred, the call judged, the report.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tools/check/diagnosis.h>
#include <tools/check/dump.h>
#include <tools/check/settings.h>

namespace tapehead::check {

struct CheckSettings {
  std::map<std::string, std::string> settings{};  // from flags and --spec: ahead of the dump's own
  std::map<std::string, std::string> names{};     // --name output=ctx: of the format, in the file
  std::string against{};                          // another dump of the same call
};

struct Report {
  std::string file;
  Diagnosis diagnosis;
  std::vector<std::pair<std::string, std::string>>
      assumed{};  // setting, value: not said, inferred or default
  std::vector<std::pair<std::string, std::string>> renamed{};  // name of the format, as it was dumped
  std::vector<std::string> unused{};                           // tensors with no place in the call
  std::vector<std::string> notes{};                            // lines about how it was read
};

// Reads settings and layout; what is not said is inferred where the numbers decide it, and noted in
// `assumed`. Throws Unusable, and FileError when a tensor cannot be read.
Call make_call(const Dump& dump, const CheckSettings& settings,
               std::vector<std::pair<std::string, std::string>>& assumed);

// make_call, then diagnose; a layout, a causal rule and a base that are not said are those with which the
// results agree, where there are such. Throws as make_call.
Report check(const Dump& dump, const CheckSettings& settings = {});

// The smallest dump that tells the sets of mistakes apart which explain this one, without results. Throws as
// make_call.
Dump separating_dump(const Dump& dump, const CheckSettings& settings, const Report& report);

// The inputs and settings of a call, as a dump.
Dump dump_of(const Call& call);

}  // namespace tapehead::check
