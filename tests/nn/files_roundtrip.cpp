// Reads a file that Python wrote and writes what it read, for files_python_test.py:
//   files_roundtrip npy IN OUT float|double|int64|bool C|F little|big
//   files_roundtrip safetensors IN OUT [TYPE]    with TYPE, floats are written as it
// Exits 2, with the message, on an error.

#include <iostream>
#include <string>
#include <vector>

#include <tapehead/nn/npy.h>
#include <tapehead/nn/safetensors.h>

namespace tapehead {
namespace {

template <Element T>
void copy_npy(const std::vector<std::string>& arguments) {
  const NpyForm form{.fortran_order = arguments.at(4) == "F",
                     .byte_order = arguments.at(5) == "big" ? std::endian::big : std::endian::little};
  write_npy(arguments.at(2), read_npy<T>(arguments.at(1)), form);
}

void copy_npy(const std::vector<std::string>& arguments) {
  const std::string& type = arguments.at(3);
  if (type == "float") return copy_npy<float>(arguments);
  if (type == "double") return copy_npy<double>(arguments);
  if (type == "int64") return copy_npy<Index>(arguments);
  copy_npy<bool>(arguments);
}

void copy_safetensors(const SafetensorsFile& file, const std::string& to, const std::string& float_type) {
  SafetensorsWriter writer;
  for (const std::string& name : file.names()) {
    const std::string& type = file.type(name);
    const std::string& as = float_type.empty() ? type : float_type;
    if (type == "F64") {
      writer.add(name, file.read<double>(name), as);
    } else if (type == "F32" || type == "F16" || type == "BF16") {
      writer.add(name, file.read<float>(name), as);
    } else if (type == "BOOL") {
      writer.add(name, file.read<bool>(name));
    } else {
      writer.add(name, file.read<Index>(name));
    }
  }
  for (const auto& [key, value] : file.metadata()) writer.metadata(key, value);
  writer.write(to);
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.at(0) == "npy") return copy_npy(arguments);
  copy_safetensors(SafetensorsFile(arguments.at(1)), arguments.at(2),
                   arguments.size() > 3 ? arguments[3] : std::string());
}

}  // namespace
}  // namespace tapehead

int main(int count, char** values) {
  try {
    tapehead::run({values + 1, values + count});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
