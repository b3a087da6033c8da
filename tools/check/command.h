#pragma once
// tapehead check: its command line, and a run over dumps.

#include <map>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tapehead::check {

struct CheckCommand {
  std::vector<std::string> dumps;
  std::string spec, against, probe;             // files; empty: none
  std::map<std::string, std::string> settings;  // from flags, by the keys of the format
  std::vector<std::string> names;               // "output=ctx"
  bool json = false;
};

void describe_check(CLI::App& app, CheckCommand& command);

// Prints a report a dump: text, or one line of JSON. 0 when all agree, 1 when one does not, 2 when one cannot
// be used; why is one line on standard error, and the others are checked all the same.
int check_command(const CheckCommand& command);

}  // namespace tapehead::check
