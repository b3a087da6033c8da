#pragma once
// FileError: a file that cannot be read or written, or that does not hold what it says it holds.

#include <string>
#include <string_view>

#include <tapehead/core/errors.h>

namespace tapehead {
namespace detail {

// What came out of a file, fit for a message: control characters as \xNN, and not much more than 80 bytes.
inline std::string printable(std::string_view text) {
  constexpr std::size_t most = 80;
  std::size_t end = text.size();
  if (end > most) {
    end = most;
    while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not in the middle of a UTF-8 sequence
  }
  std::string shown;
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      shown += c;
    } else {
      constexpr char digits[] = "0123456789abcdef";
      shown.append("\\x") += digits[byte >> 4];
      shown += digits[byte & 15];
    }
  }
  return end < text.size() ? shown + "..." : shown;
}

}  // namespace detail

// The message is `file: what`, or `file: tensor: what` when one tensor is to blame.
struct FileError : Error {
  FileError(std::string_view file, std::string_view what)
      : Error(std::string(file).append(": ").append(what)) {}
  FileError(std::string_view file, std::string_view tensor, std::string_view what)
      : FileError(file, (tensor.empty() ? "\"\"" : detail::printable(tensor)).append(": ").append(what)) {}
};

}  // namespace tapehead
