#pragma once
// Memory for the arrays of a call: pages that fault beside it, and marks in what must not be written.

#include <cstddef>
#include <span>
#include <string>

#include <tools/contract/problem.h>

namespace tapehead::contract {

// A stretch of whole pages between two that cannot be touched, and in it room for `bytes`, aligned to 64, at
// its end, at its beginning, or with spare room on both sides. A touch of the pages beside it ends the
// process with SIGSEGV; name_faults() makes it say before which array was missed, and on which side.
class GuardedRoom {
 public:
  // Throws Error when the system has no more memory.
  GuardedRoom(std::string name, std::size_t bytes, Placement::Guard guard);
  GuardedRoom(const GuardedRoom&) = delete;
  GuardedRoom& operator=(const GuardedRoom&) = delete;
  ~GuardedRoom();

  const std::string& name() const { return name_; }
  std::byte* data() const { return data_; }
  // All that may be touched: `data` and the spare room around it.
  std::span<std::byte> whole() const { return whole_; }

 private:
  std::string name_;
  std::span<std::byte> mapped_, whole_;
  std::byte* data_ = nullptr;
};

// From now on a fault of this process writes `prefix`, what was touched and a newline to the file descriptor
// before the process ends as it would have.
void name_faults(int descriptor, const char* prefix);

}  // namespace tapehead::contract
