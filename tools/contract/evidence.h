#pragma once
// A call that shows a failure, as a dump that `tapehead check` reads.

#include <tools/contract/trial.h>

namespace tapehead::contract {

// Writes the call, of many samples the first 16, its settings and what the subject gave as one .safetensors
// file. Throws FileError.
void write_evidence(const std::string& path, const Run& run, Number number);

}  // namespace tapehead::contract
