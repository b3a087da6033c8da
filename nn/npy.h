#pragma once
// Files of NumPy, .npy: one array behind a header that is a Python dictionary.

#include <bit>
#include <memory>
#include <string>

#include <tapehead/core/array.h>
#include <tapehead/nn/file_error.h>

namespace tapehead {
namespace detail {
struct NpyContents;
}

// A file open for reading, of format version 1.0, 2.0 or 3.0. The header is checked on opening; the elements
// are memory mapped, and their pages are touched when they are read. Copies share the mapping, and what
// SafetensorsFile says of a file that is shortened holds here.
// Source: numpy.org, "NumPy Enhancement Proposal 1", and the documentation of numpy.lib.format.
class NpyFile {
 public:
  // Throws FileError when the file cannot be opened or is no .npy file, when its header is malformed, asks
  // for more than 8 axes or 2^62 elements or disagrees with the size of the file either way, and for an array
  // of anything but f2, f4, f8, i1 to i8, u1 to u8 and b1: texts, dates, complex numbers, records, Python
  // objects. Takes a std::filesystem::path as well.
  explicit NpyFile(const std::string& path);

  const std::string& path() const;
  const Shape& shape() const;
  const std::string& type() const;  // as the file spells it, the order of bytes first: "<f8", ">i4", "|b1"
  bool fortran_order() const;       // the first index runs fastest in the file

  // The array, row-major whatever the order in the file, its elements converted block by block: float and
  // double from every type (rounded to nearest where they do not fit exactly), Index from integers and b1,
  // bool from b1 and u1. An array of float, double or Index that the file holds row-major in this very type,
  // aligned, is not copied: the array reads the mapping. Throws FileError for another type, an integer beyond
  // Index and a truth value that is not 0 or 1.
  template <Element T>
  Array<T> read() const;

 private:
  std::shared_ptr<const detail::NpyContents> contents_;
};

// NpyFile(path).read<T>().
template <Element T>
Array<T> read_npy(const std::string& path) {
  return NpyFile(path).read<T>();
}

struct NpyForm {
  bool fortran_order = false;  // the first index runs fastest in the file
  std::endian byte_order = std::endian::little;
};

// Writes version 1.0: float as f4, double as f8, Index as i8, bool as b1. A temporary file in the same folder
// is flushed to disk and renamed to `path`. Throws FileError when any of this fails; nothing is left behind
// then, and a file that was at `path` is untouched.
template <Element T>
void write_npy(const std::string& path, const Array<T>& array, const NpyForm& form = {});

}  // namespace tapehead
