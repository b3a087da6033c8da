#pragma once
// tapehead inspect: its command line, and what it does.

#include <tapehead/inspect/settings.h>

namespace CLI {
class App;
}

namespace tapehead::tools {

// Gives the command its options and its help.
void describe_inspect(CLI::App& command, InspectSettings& settings);

// Builds the tape, differentiates the loss and writes what was asked for; with --diff compares two files.
// Returns the exit code: 1 when --diff found a difference, else 0. Throws Error for settings, files or
// tensors that cannot be used, and FileError when something cannot be written.
int inspect_command(const InspectSettings& settings);

}  // namespace tapehead::tools
