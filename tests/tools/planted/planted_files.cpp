// Writes dumps with planted mistakes into a folder, with an index.json that says what is in which:
//
//   planted_files FOLDER [SET [LIMIT]]
//
// as .safetensors files, and every tenth in f32 or f64 as a folder of .npy files as well. `truth` is what was
// planted, empty for a right dump; `acceptable` are all answers that would give the same numbers.

#include <tapehead/nn/npy.h>
#include <tapehead/nn/safetensors.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "tools/planted/cases.h"

namespace tapehead::planted {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Read by index, so that names of types are those of the file.
std::string type_in_file(const std::string& type) {
  std::string upper;
  for (const char letter : type) upper += static_cast<char>(std::toupper(letter));
  return upper;
}

void write_file(const Case& dump, const fs::path& path) {
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : dump.tensors) {
    if (tensor.type == "bool") {
      writer.add(name, tensor.numbers.cast<bool>());
    } else if (tensor.type == "i64") {
      writer.add(name, tensor.numbers.cast<Index>());
    } else {
      writer.add(name, tensor.numbers, type_in_file(tensor.type));
    }
  }
  for (const auto& [key, value] : dump.settings) writer.metadata(key, value);
  writer.write(path.string());
}

void write_folder(const Case& dump, const fs::path& folder) {
  fs::create_directories(folder);
  for (const auto& [name, tensor] : dump.tensors) {
    const std::string path = (folder / (name + ".npy")).string();
    if (tensor.type == "bool") {
      write_npy(path, tensor.numbers.cast<bool>());
    } else if (tensor.type == "i64") {
      write_npy(path, tensor.numbers.cast<Index>());
    } else if (tensor.type == "f32") {
      write_npy(path, tensor.numbers.cast<float>());
    } else {
      write_npy(path, tensor.numbers);
    }
  }
  std::ofstream(folder / "spec.json") << Json(dump.settings).dump(2) << '\n';
}

std::string name_text(const Name& name) {
  return name.second.empty() ? name.first : name.first + "/" + name.second;
}

Json list_of(const Names& names) {
  Json list = Json::array();
  for (const Name& name : names) list.push_back(name_text(name));
  return list;
}

Json entry(const Case& dump, const std::string& file) {
  Json acceptable = Json::array();
  for (const Names& names : dump.acceptable) acceptable.push_back(list_of(names));
  return {{"file", file}, {"case", dump.text()}, {"truth", list_of(dump.truth)}, {"acceptable", acceptable}};
}

std::vector<Case> all_cases(unsigned set, std::size_t limit) {
  std::vector<Case> all = single_mistakes(set, limit);
  for (const auto& more :
       {pairs_of_mistakes(set, 10 * limit), right_dumps(set + 1, 20 * limit), equal_forms(set)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

int write_all(const fs::path& folder, unsigned set, std::size_t limit) {
  fs::create_directories(folder);
  Json index = Json::array();
  std::size_t number = 0;
  for (const Case& dump : all_cases(set, limit)) {
    const std::string name = std::to_string(number++);
    write_file(dump, folder / (name + ".safetensors"));
    index.push_back(entry(dump, name + ".safetensors"));
    if (number % 10 != 0 || (dump.type != Type::f32 && dump.type != Type::f64)) continue;
    write_folder(dump, folder / name);
    index.push_back(entry(dump, name));
  }
  std::ofstream(folder / "index.json") << index.dump(1) << '\n';
  std::cout << index.size() << " dumps in " << folder.string() << '\n';
  return 0;
}

}  // namespace
}  // namespace tapehead::planted

int main(int count, char** arguments) {
  if (count < 2 || count > 4) {
    std::cerr << "usage: planted_files FOLDER [SET [LIMIT]]\n";
    return 2;
  }
  const auto number = [&](int n, unsigned long otherwise) {
    return count > n ? std::strtoul(arguments[n], nullptr, 10) : otherwise;
  };
  return tapehead::planted::write_all(arguments[1], static_cast<unsigned>(number(2, 0)), number(3, 8));
}
