#pragma once
// Whole files: mapped for reading, and replaced by new ones in one step. POSIX.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <tapehead/nn/file_error.h>

namespace tapehead::detail {

// A whole file, mapped read-only. Its pages are read from the disk when they are touched; to touch one that
// somebody has cut off since is the signal SIGBUS.
class Mapping {
 public:
  // Throws FileError when there is no such file, it is no regular file or it cannot be read.
  explicit Mapping(const std::string& path);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// A new file in the folder of `path` that takes its place once everything is on the disk, and is removed
// otherwise. A file that was at `path` is untouched until then, and gives its permissions to the new one; a
// symbolic link stays, and what it leads to is replaced.
class Replacement {
 public:
  // Throws FileError when `path` is something other than a regular file, or the new file cannot be created.
  explicit Replacement(const std::string& path);
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement();

  // Both throw FileError when the system refuses, as it does when the disk is full; the new file is gone
  // then.
  void append(const void* data, std::size_t bytes);
  void put_in_place();

 private:
  [[noreturn]] void fail(std::string_view doing);
  void remove() noexcept;

  std::string path_;       // as the caller calls it
  std::string target_;     // where its links lead
  std::string temporary_;  // empty when there is nothing to remove
  int file_ = -1;
};

}  // namespace tapehead::detail
