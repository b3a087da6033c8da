#include <tapehead/nn/safetensors.h>

#include <algorithm>
#include <cstring>

#include <tapehead/nn/element_types.h>
#include <tapehead/nn/file_access.h>
#include <tapehead/nn/safetensors_header.h>

namespace tapehead {

using detail::SafetensorsTensor;

struct detail::SafetensorsContents {
  std::string path;
  std::shared_ptr<const Mapping> mapping;
  std::span<const std::byte> buffer;  // what follows the header
  SafetensorsHeader header;

  const SafetensorsTensor& find(std::string_view name) const {
    if (const SafetensorsTensor* found = header.find(name)) return *found;
    throw FileError(path, name,
                    "no such tensor among the " + std::to_string(header.names.size()) + " of this file");
  }
};

namespace {

using detail::longest_safetensors_header;

void require_header_length(const std::string& path, std::uint64_t length, std::uint64_t data_bytes) {
  constexpr std::uint64_t without_question = 10'000'000;
  if (length <= longest_safetensors_header && length <= std::max(without_question, data_bytes)) return;
  throw FileError(path, "a header of " + std::to_string(length) + " bytes for " + std::to_string(data_bytes) +
                            " bytes of data; " + std::to_string(without_question) +
                            " are allowed, or as many as the data up to " +
                            std::to_string(longest_safetensors_header));
}

// The header's text, which begins after the 8 bytes of its length.
std::string_view header_of(const std::string& path, std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) {
    throw FileError(path, "has " + std::to_string(bytes.size()) + " bytes, too few for a header");
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::uint64_t rest = bytes.size() - sizeof length;
  if (length > rest) {
    throw FileError(path, "claims a header of " + std::to_string(length) + " bytes, and " +
                              std::to_string(rest) + " follow");
  }
  require_header_length(path, length, rest - length);
  return {reinterpret_cast<const char*>(bytes.data() + sizeof length), length};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  auto file = std::make_shared<detail::SafetensorsContents>();
  file->path = path;
  file->mapping = std::make_shared<const detail::Mapping>(path);
  const std::span<const std::byte> bytes = file->mapping->bytes();
  const std::string_view header = header_of(path, bytes);
  file->buffer = bytes.subspan(sizeof(std::uint64_t) + header.size());
  file->header = detail::parse_safetensors_header(path, header, file->buffer.size());
  contents_ = std::move(file);
}

const std::string& SafetensorsFile::path() const { return contents_->path; }
const std::vector<std::string>& SafetensorsFile::names() const { return contents_->header.names; }
bool SafetensorsFile::contains(std::string_view name) const {
  return contents_->header.find(name) != nullptr;
}
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return contents_->header.metadata;
}
const Shape& SafetensorsFile::shape(std::string_view name) const { return contents_->find(name).shape; }
const std::string& SafetensorsFile::type(std::string_view name) const {
  return contents_->find(name).type->name;
}

template <Element T>
Array<T> SafetensorsFile::read(std::string_view name) const {
  const SafetensorsTensor& tensor = contents_->find(name);
  const auto fail = [&](const std::string& what) { throw FileError(path(), name, what); };
  if (!tensor.type->element || !detail::readable_as<T>(*tensor.type->element)) {
    fail("is " + tensor.type->name + ", which is not read as " + std::string(detail::name_of_array<T>));
  }
  const std::byte* bytes = contents_->buffer.data() + tensor.begin;
  return detail::read_elements<T>({contents_->mapping, bytes, *tensor.type->element, tensor.shape}, fail);
}

namespace {

std::string quoted(std::string_view text) {
  std::optional<std::string> json = detail::json_string(text);
  if (json) return *std::move(json);
  throw LogicError("SafetensorsWriter", "not UTF-8: " + detail::printable(text));
}

std::string quoted_name(std::string_view name) {
  std::string json = quoted(name);
  const std::size_t bytes = json.size() - 2;
  if (bytes <= detail::longest_safetensors_name) return json;
  throw LogicError("SafetensorsWriter", "a name of " + std::to_string(bytes) + " bytes, where " +
                                            std::to_string(detail::longest_safetensors_name) +
                                            " are allowed: " + detail::printable(name));
}

}  // namespace

template <Element T>
SafetensorsWriter& SafetensorsWriter::add(std::string_view name, const Array<T>& tensor,
                                          std::string_view type) {
  if (name == detail::safetensors_metadata_key) {
    throw LogicError("SafetensorsWriter", "a tensor cannot be called __metadata__");
  }
  const detail::SafetensorsType* as = type.empty() ? &detail::safetensors_type(detail::type_of_array<T>)
                                                   : detail::find_safetensors_type(type);
  if (!as || !as->element || !detail::writable_as<T>(*as->element)) {
    throw LogicError("SafetensorsWriter", std::string(name)
                                              .append(": ")
                                              .append(detail::name_of_array<T>)
                                              .append(" is not written as ")
                                              .append(type));
  }
  std::string json = quoted_name(name);
  if (!names_.insert(json).second) throw LogicError("SafetensorsWriter", json + " is added twice");
  // Wide elements first: the format allows no holes, and so every tensor is aligned.
  const std::size_t width = detail::bytes_of(*as->element);
  const auto place = std::ranges::upper_bound(entries_, width, std::ranges::greater(), &Entry::element_bytes);
  const auto append = [tensor, element = *as->element](detail::Replacement& file) {
    detail::append_elements(file, tensor, {element});
  };
  entries_.insert(place, {std::move(json), as->name, width, static_cast<std::size_t>(tensor.size()) * width,
                          tensor.shape(), append});
  return *this;
}

SafetensorsWriter& SafetensorsWriter::metadata(std::string_view key, std::string_view value) {
  if (metadata_.size() == detail::most_safetensors_keys) {
    throw LogicError("SafetensorsWriter",
                     "more than " + std::to_string(detail::most_safetensors_keys) + " metadata keys");
  }
  const auto [place, is_new] = metadata_.emplace(quoted_name(key), quoted(value));
  if (!is_new) throw LogicError("SafetensorsWriter", "the metadata key " + place->first + " is set twice");
  return *this;
}

std::string SafetensorsWriter::header() const {
  std::string text = "{";
  if (!metadata_.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata_) text += key + ":" + value + ",";
    text.back() = '}';
    text += ',';
  }
  std::size_t end = 0;
  for (const Entry& entry : entries_) {
    text += entry.name + ":{\"dtype\":\"" + std::string(entry.type) + "\",\"shape\":[";
    for (const Index extent : entry.shape) text += std::to_string(extent) + ",";
    if (entry.shape.rank() > 0) text.pop_back();
    text += "],\"data_offsets\":[" + std::to_string(end) + ",";
    end += entry.bytes;
    text += std::to_string(end) + "]},";
  }
  if (text.size() > 1) text.pop_back();
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the buffer is aligned in the mapped file
  return text;
}

void SafetensorsWriter::write(const std::string& path) const {
  const std::string text = header();
  const std::uint64_t length = text.size();
  std::uint64_t data_bytes = 0;
  for (const Entry& entry : entries_) data_bytes += entry.bytes;
  require_header_length(path, length, data_bytes);
  detail::Replacement file(path);
  file.append(&length, sizeof length);
  file.append(text.data(), text.size());
  for (const Entry& entry : entries_) entry.append(file);
  file.put_in_place();
}

#define TAPEHEAD_INSTANTIATE(T)                                    \
  template Array<T> SafetensorsFile::read(std::string_view) const; \
  template SafetensorsWriter& SafetensorsWriter::add(std::string_view, const Array<T>&, std::string_view);

TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
TAPEHEAD_INSTANTIATE(Index)
TAPEHEAD_INSTANTIATE(bool)

}  // namespace tapehead
