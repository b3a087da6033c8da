#pragma once
// A dump: tensors that somebody's attention took and gave, with its settings as text. In a .safetensors file,
// in a folder of .npy files beside spec.json, or in memory. docs/dump-format.md fixes the names.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tapehead/core/array.h>

namespace tapehead::check {

struct DumpTensor {
  std::string name;        // the name of the format: "grad_query"
  std::string given_name;  // as it was dumped: "dq"
  std::string type;        // "f64", "f32", "bf16", "f16", "bool", "i64" ...
  Shape shape;
  std::function<Array<double>()> read;  // widened; true is 1
};

struct Dump {
  std::string origin;  // a path, for messages
  std::vector<DumpTensor> tensors;
  std::map<std::string, std::string> settings;

  const DumpTensor* find(std::string_view name) const;  // null when there is none
  void add(std::string name, Array<double> numbers, std::string type);
};

// Opens a .safetensors file or a folder; `names` maps names of the format to those in the file, ahead of the
// usual other names. Throws FileError.
Dump open_dump(const std::string& path, const std::map<std::string, std::string>& names = {});

// Writes tensors in their types and the settings. Throws FileError.
void write_dump(const std::string& path, const Dump& dump);

}  // namespace tapehead::check
