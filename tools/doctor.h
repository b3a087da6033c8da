#pragma once
// tapehead doctor: what this machine offers, whether it is used, and what is slower than it need be.

#include <optional>
#include <string>
#include <vector>

namespace tapehead::tools {

struct DoctorSettings {
  bool json = false;
};

// Operations a second.
struct Rates {
  double openblas = 0, ours = 0, used = 0;  // of a product of 1024 x 1024; `used` is what matmul gives
};

struct MachineReport {
  std::string processor;
  int processors = 0;                                                         // that this process may run on
  int threads = 0;                                                            // that kernels use
  std::optional<std::string> threads_variable, arch_variable, core_variable;  // TAPEHEAD_THREADS ...
  std::string vectors_in_use;
  std::vector<std::string> vectors_available;  // rising
  std::string blas_version, blas_core, blas_level;
  bool optimized = true;  // the build
  double load = 0;        // processes that want to run, averaged over a minute
  Rates f32, f64;         // on one thread
  // Float, D = 64, L = S = 2048, eight heads, through the tape, on one thread.
  double attention_forward = 0, attention_forward_backward = 0;
  double attention_all_threads = 0;  // forward
};

// Runs for about two seconds.
MachineReport examine_machine();

// A plain sentence for each thing that is slower than it need be, and what to do about it.
std::vector<std::string> advice(const MachineReport& report);

// Prints the report and the advice, or one line of JSON. Throws FileError when standard output cannot be
// written.
void doctor(const DoctorSettings& settings);

}  // namespace tapehead::tools
