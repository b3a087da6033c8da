#pragma once
// Weight files of the format .safetensors: a JSON header that places every tensor in one byte buffer.

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <tapehead/core/array.h>
#include <tapehead/nn/file_error.h>

namespace tapehead {
namespace detail {
struct SafetensorsContents;
}

// A file open for reading. The whole header is checked on opening; the tensors are memory mapped, and their
// pages are touched when they are read. Copies share the mapping. While the file or an array read from it is
// alive, the file must not be shortened or overwritten in place; to replace it by a rename is safe.
// Source: github.com/huggingface/safetensors, README.md, "Format".
class SafetensorsFile {
 public:
  // Throws FileError when the file cannot be opened, is cut short, or has a header that is malformed or
  // disagrees with itself or with the size of the file. Takes a std::filesystem::path as well.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const;
  const std::vector<std::string>& names() const;  // in the order of the header
  bool contains(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const;

  // All three throw FileError when no tensor has this name.
  const Shape& shape(std::string_view name) const;
  const std::string& type(std::string_view name) const;  // as the file spells it: "F64", "BF16", "BOOL"

  // The tensor with its elements converted: float and double from F64, F32, F16, BF16, integers and BOOL
  // (rounded to nearest where they do not fit exactly), Index from integers and BOOL, bool from BOOL and U8.
  // A tensor of float, double or Index that the file holds in this very type, aligned, is not copied: the
  // array reads the mapping. Throws FileError for another type, an integer beyond Index and a truth value
  // that is not 0 or 1.
  template <Element T>
  Array<T> read(std::string_view name) const;

 private:
  std::shared_ptr<const detail::SafetensorsContents> contents_;
};

// Collects tensors and writes them as one file: float as F32, double as F64, Index as I64, bool as BOOL.
class SafetensorsWriter {
 public:
  // The file keeps the order of the calls among elements of one width, and holds wider ones first.
  // The array is held, not copied.
  // Throws LogicError for a name that is taken, reserved ("__metadata__") or not UTF-8.
  template <Element T>
  SafetensorsWriter& add(std::string_view name, const Array<T>& tensor);

  // Throws LogicError for a key that is taken, or a key or value that is not UTF-8.
  SafetensorsWriter& metadata(std::string_view key, std::string_view value);

  // Writes a temporary file in the same folder, flushes it to disk and renames it to `path`. Throws FileError
  // when any of this fails; nothing is left behind then, and a file that was at `path` is untouched.
  void write(const std::string& path) const;

 private:
  struct Entry {
    std::string name;  // as JSON, in its quotes
    std::string_view type;
    std::size_t element_bytes;
    Shape shape;
    std::shared_ptr<const void> owner;
    const void* data;
    std::size_t bytes;
  };
  std::string header() const;

  std::vector<Entry> entries_;  // as they come in the file
  std::set<std::string> names_;
  std::map<std::string, std::string> metadata_;  // as JSON, in their quotes
};

}  // namespace tapehead
