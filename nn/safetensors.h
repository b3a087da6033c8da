#pragma once
// Weight files of the format .safetensors: a JSON header that places every tensor in one byte buffer.

#include <cstddef>
#include <functional>
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
class Replacement;
}  // namespace detail

// A file open for reading. The whole header is checked on opening; the tensors are memory mapped, and their
// pages are touched when they are read. Copies share the mapping. While the file or an array read from it is
// alive, the file must not be shortened or overwritten in place; to replace it by a rename is safe.
// Source: github.com/huggingface/safetensors, README.md, "Format".
class SafetensorsFile {
 public:
  // Throws FileError when the file cannot be opened, is cut short, or has a header that is malformed,
  // disagrees with itself or with the size of the file, has more than 100 MB, or more than 10 MB and more
  // than the data it describes. Takes a std::filesystem::path as well.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const;
  const std::vector<std::string>& names() const;  // in the order of the header
  bool contains(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const;

  // All three throw FileError when no tensor has this name.
  const Shape& shape(std::string_view name) const;
  const std::string& type(std::string_view name) const;  // as the file spells it: "F64", "BF16", "BOOL"

  // The tensor with its elements converted, block by block: float and double from F64, F32, F16, BF16,
  // integers and BOOL (rounded to nearest where they do not fit exactly), Index from integers and BOOL, bool
  // from BOOL and U8. A tensor of float, double or Index that the file holds in this very type, aligned, is
  // not copied: the array reads the mapping. Throws FileError for another type, an integer beyond Index and a
  // truth value that is not 0 or 1.
  template <Element T>
  Array<T> read(std::string_view name) const;

 private:
  std::shared_ptr<const detail::SafetensorsContents> contents_;
};

// Collects tensors and writes them as one file.
class SafetensorsWriter {
 public:
  // Without a type, float is written as F32, double as F64, Index as I64 and bool as BOOL; with one, float
  // and double as F64, F32, F16 or BF16, rounded to nearest, ties to even. The file keeps the order of the
  // calls among elements of one width, and holds wider ones first. The array is held, not copied. Throws
  // LogicError for a name that is taken, reserved ("__metadata__"), longer than 65,536 bytes or not UTF-8,
  // and for a type that T is not written as.
  template <Element T>
  SafetensorsWriter& add(std::string_view name, const Array<T>& tensor, std::string_view type = {});

  // Throws LogicError for a key that is taken or longer than 65,536 bytes, for more than 65,536 keys, and for
  // a key or value that is not UTF-8.
  SafetensorsWriter& metadata(std::string_view key, std::string_view value);

  // Writes a temporary file in the same folder, flushes it to disk and renames it to `path`. Throws FileError
  // when any of this fails, or for a header that SafetensorsFile would refuse for its length; nothing is left
  // behind then, and a file that was at `path` is untouched.
  void write(const std::string& path) const;

 private:
  struct Entry {
    std::string name;  // as JSON, in its quotes
    std::string_view type;
    std::size_t element_bytes, bytes;
    Shape shape;
    std::function<void(detail::Replacement&)> append;
  };
  std::string header() const;

  std::vector<Entry> entries_;  // as they come in the file
  std::set<std::string> names_;
  std::map<std::string, std::string> metadata_;  // as JSON, in their quotes
};

}  // namespace tapehead
