#include <tools/check/dump.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/nn/file_access.h>
#include <tapehead/nn/npy.h>
#include <tapehead/nn/safetensors.h>
#include <tools/check/settings.h>
#include <tools/check/tensor_names.h>

namespace tapehead::check {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view spec_name = "spec.json";

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

// "f32" for "<f4".
std::string type_of(const NpyFile& file) {
  const std::string& type = file.type();
  if (type[1] == 'b') return "bool";
  return fmt::format("{}{}", type[1], 8 * (type[2] - '0'));
}

std::vector<DumpTensor> tensors_of_file(const std::string& path, Dump& dump) {
  const SafetensorsFile file(path);
  dump.settings = file.metadata();
  std::vector<DumpTensor> tensors;
  for (const std::string& name : file.names()) {
    tensors.push_back({name, name, lower_case(file.type(name)), file.shape(name),
                       [file, name] { return file.read<double>(name); }});
  }
  return tensors;
}

std::vector<fs::path> sorted_files(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    paths.push_back(entry->path());
  }
  if (error) throw FileError(folder, "cannot be read: " + error.message());
  std::ranges::sort(paths);
  return paths;
}

std::vector<DumpTensor> tensors_of_folder(const std::string& folder, Dump& dump) {
  std::vector<DumpTensor> tensors;
  for (const fs::path& path : sorted_files(folder)) {
    if (path.filename() == spec_name) dump.settings = settings_of_json_file(path.string());
    if (path.extension() != ".npy") continue;
    const NpyFile file(path.string());
    const std::string name = path.stem().string();
    tensors.push_back({name, name, type_of(file), file.shape(), [file] { return file.read<double>(); }});
  }
  if (tensors.empty()) throw FileError(folder, "holds no .npy file");
  return tensors;
}

// What was asked for by name comes first, then names of the format, then the usual other ones.
class Naming {
 public:
  Naming(const std::string& path, std::vector<DumpTensor>& tensors) : path_(path), tensors_(tensors) {}

  void give(const std::map<std::string, std::string>& asked) {
    for (DumpTensor& tensor : tensors_) tensor.name.clear();
    for (const auto& [name, given] : asked) take_asked(name, given);
    const auto is_asked = [&](const std::string& name) { return asked.count(name) > 0; };
    for (DumpTensor& tensor : tensors_) {
      if (is_format_name(tensor.given_name) && tensor.name.empty() && !taken(tensor.given_name)) {
        tensor.name = tensor.given_name;
      }
    }
    for (DumpTensor& tensor : tensors_) {
      std::string name = tensor.name.empty() ? name_of_format(tensor.given_name) : std::string();
      if (!name.empty() && !is_asked(name)) take_usual(tensor, std::move(name));
    }
  }

 private:
  const DumpTensor* taken(std::string_view name) const {
    const auto found = std::ranges::find(tensors_, name, &DumpTensor::name);
    return found == tensors_.end() ? nullptr : &*found;
  }

  void take_asked(const std::string& name, const std::string& given) {
    if (!is_format_name(name)) throw FileError(path_, name, "is no name of the dump format");
    const auto found = std::ranges::find(tensors_, given, &DumpTensor::given_name);
    if (found == tensors_.end()) {
      throw FileError(path_, given,
                      "no such tensor among the " + std::to_string(tensors_.size()) +
                          " of this dump, where " + name + " was said to be");
    }
    if (!found->name.empty()) throw FileError(path_, given, "cannot be both " + found->name + " and " + name);
    found->name = name;
  }

  void take_usual(DumpTensor& tensor, std::string name) {
    const DumpTensor* other = taken(name);
    if (!other) {
      tensor.name = std::move(name);
    } else if (other->given_name != name) {
      throw FileError(path_, tensor.given_name,
                      fmt::format("may be {0}, and so may {1}; say which one with --name {0}=...", name,
                                  other->given_name));
    }
  }

  const std::string& path_;
  std::vector<DumpTensor>& tensors_;
};

template <class T>
Array<T> as(const Array<double>& numbers) {
  auto result = Array<T>::uninitialized(numbers.shape());
  T* to = result.mutable_values().data();
  for (const double x : numbers.values()) *to++ = static_cast<T>(x);
  return result;
}

bool is_real(std::string_view type) { return type.starts_with('f') || type == "bf16"; }

std::string upper_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return result;
}

void write_file(const std::string& path, const Dump& dump) {
  SafetensorsWriter writer;
  for (const DumpTensor& tensor : dump.tensors) {
    const Array<double> numbers = tensor.read();
    if (is_real(tensor.type)) {
      writer.add(tensor.given_name, numbers, upper_case(tensor.type));
    } else if (tensor.type == "bool") {
      writer.add(tensor.given_name, as<bool>(numbers));
    } else {
      writer.add(tensor.given_name, as<Index>(numbers));
    }
  }
  for (const auto& [key, value] : dump.settings) writer.metadata(key, value);
  writer.write(path);
}

void write_text(const std::string& path, const std::string& text) {
  detail::Replacement file(path);
  file.append(text.data(), text.size());
  file.put_in_place();
}

void write_folder(const std::string& folder, const Dump& dump) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw FileError(folder, "cannot be created: " + error.message());
  for (const DumpTensor& tensor : dump.tensors) {
    const std::string path = folder + "/" + tensor.given_name + ".npy";
    const Array<double> numbers = tensor.read();
    if (tensor.type == "f64") {
      write_npy(path, numbers);
    } else if (is_real(tensor.type)) {
      write_npy(path, as<float>(numbers));
    } else if (tensor.type == "bool") {
      write_npy(path, as<bool>(numbers));
    } else {
      write_npy(path, as<Index>(numbers));
    }
  }
  write_text(folder + "/" + std::string(spec_name), nlohmann::json(dump.settings).dump(2) + "\n");
}

}  // namespace

const DumpTensor* Dump::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &DumpTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

void Dump::add(std::string name, Array<double> numbers, std::string type) {
  const Shape shape = numbers.shape();
  tensors.push_back({name, name, std::move(type), shape, [numbers] { return numbers; }});
}

Dump open_dump(const std::string& path, const std::map<std::string, std::string>& names) {
  Dump dump;
  dump.origin = path;
  std::error_code none;
  const bool is_folder = fs::is_directory(path, none);
  dump.tensors = is_folder ? tensors_of_folder(path, dump) : tensors_of_file(path, dump);
  Naming(path, dump.tensors).give(names);
  return dump;
}

void write_dump(const std::string& path, const Dump& dump) {
  path.ends_with(".safetensors") ? write_file(path, dump) : write_folder(path, dump);
}

}  // namespace tapehead::check
