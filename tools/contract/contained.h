#pragma once
// Running something in a process of its own that may crash, hang or end.

#include <functional>
#include <string>

namespace tapehead::contract {

struct Ended {
  enum class How { finished, signal, exit, time };
  How how = How::finished;
  int number = 0;    // of the signal, or the exit code
  std::string said;  // all that was written to the pipe
};

// Calls f with the file descriptor of a pipe in a child process that is ended after so many seconds. f has
// finished when it returns. What the child prints to standard output goes to standard error. Throws
// LogicError when the system cannot start a process.
Ended contained(const std::function<void(int pipe)>& f, double seconds);

// "crashed with SIGSEGV (Segmentation fault)", "was still running after 5 s", "ended the process with exit
// code 3"; empty when it finished.
std::string words_of(const Ended& ended, double seconds);

}  // namespace tapehead::contract
