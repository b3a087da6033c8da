#include <tapehead/nn/safetensors.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

namespace tapehead {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");
static_assert(sizeof(bool) == 1);

constexpr std::uint64_t longest_header = 100'000'000;  // the limit of the format's own library
constexpr std::string_view metadata_key = "__metadata__";

[[noreturn]] void fail_with_errno(const std::string& file, std::string_view doing) {
  const std::string reason = std::generic_category().message(errno);
  throw FileError(file, std::string(doing) + ": " + reason);
}

// ---- Elements as files hold them

struct Half {  // IEEE 754 binary16
  std::uint16_t bits;
  template <std::floating_point T>
  explicit operator T() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, fraction = bits & 0x3FFu;
    std::uint32_t exponent = (bits >> 10) & 31u;
    if (exponent == 0)
      return (sign ? -0x1p-24f : 0x1p-24f) * static_cast<float>(fraction);  // subnormal or zero
    exponent = exponent == 31 ? 255 : exponent + 112;
    return std::bit_cast<float>(sign | exponent << 23 | fraction << 13);
  }
};

struct BrainFloat {  // the upper half of a float
  std::uint16_t bits;
  template <std::floating_point T>
  explicit operator T() const {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  }
};

struct Truth {
  std::uint8_t bits;
  template <class T>
  explicit operator T() const {
    return static_cast<T>(bits);
  }
};

// Calls f with an element of the C++ type behind `type`; false when the type is not one that is read.
template <class F>
bool with_element_of(std::string_view type, F f) {
  // clang-format off
  if (type == "F64") f(double{});
  else if (type == "F32") f(float{});
  else if (type == "F16") f(Half{});
  else if (type == "BF16") f(BrainFloat{});
  else if (type == "I64") f(std::int64_t{});
  else if (type == "I32") f(std::int32_t{});
  else if (type == "I16") f(std::int16_t{});
  else if (type == "I8") f(std::int8_t{});
  else if (type == "U64") f(std::uint64_t{});
  else if (type == "U32") f(std::uint32_t{});
  else if (type == "U16") f(std::uint16_t{});
  else if (type == "U8") f(std::uint8_t{});
  else if (type == "BOOL") f(Truth{});
  else return false;
  // clang-format on
  return true;
}

// 0 for an unknown type. A file may hold types that are not read, as long as nobody reads them.
std::size_t bytes_of_element(std::string_view type) {
  std::size_t bytes = 0;
  if (with_element_of(type, [&](auto element) { bytes = sizeof element; })) return bytes;
  if (type == "F8_E4M3" || type == "F8_E5M2" || type == "F8_E8M0") return 1;
  return type == "C64" ? 8 : 0;
}

template <class T, class Stored>
constexpr bool readable_as = std::floating_point<T> || std::same_as<Stored, Truth> ||
                             (std::same_as<T, Index> ? std::integral<Stored>
                                                     : std::same_as<Stored, std::uint8_t>);

template <class T, class Stored>
bool fits(Stored stored) {
  constexpr bool is_truth = std::same_as<T, bool> || std::same_as<Stored, Truth>;
  if constexpr (is_truth) return static_cast<std::uint8_t>(stored) <= 1;
  if constexpr (std::same_as<T, Index> && std::same_as<Stored, std::uint64_t>) return stored >> 63 == 0;
  return true;
}

template <class T>
constexpr std::string_view type_of = std::same_as<T, float>    ? "F32"
                                     : std::same_as<T, double> ? "F64"
                                     : std::same_as<T, Index>  ? "I64"
                                                               : "BOOL";

// ---- Reading

struct Descriptor {
  int fd;
  ~Descriptor() { close(); }
  bool close() { return fd < 0 || ::close(std::exchange(fd, -1)) == 0; }
};

// A whole file, mapped read-only.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    // O_NONBLOCK: to open a pipe must not wait for its writer. It means nothing to a regular file.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.fd < 0) fail_with_errno(path, "cannot be opened");
    struct stat status = {};
    if (::fstat(file.fd, &status) != 0) fail_with_errno(path, "cannot be examined");
    if (!S_ISREG(status.st_mode)) throw FileError(path, "is not a regular file");
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size == 0) return;
    void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (memory == MAP_FAILED) fail_with_errno(path, "cannot be mapped");
    bytes_ = {static_cast<const std::byte*>(memory), size};
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

struct Tensor {
  std::string type;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // in the byte buffer
};

}  // namespace

struct detail::SafetensorsContents {
  std::string path;
  std::shared_ptr<const Mapping> mapping;
  std::span<const std::byte> buffer;  // what follows the header
  std::vector<std::string> names;
  std::map<std::string, Tensor, std::less<>> tensors;
  std::map<std::string, std::string> metadata;

  const Tensor& find(std::string_view name) const {
    const auto found = tensors.find(name);
    if (found != tensors.end()) return found->second;
    throw FileError(path, name, "no such tensor among the " + std::to_string(names.size()) + " of this file");
  }
};

namespace {

using Contents = detail::SafetensorsContents;

// Takes the header's JSON event by event, so that no document is built, nesting costs nothing, and a key that
// comes twice is seen. Knows the one form that is allowed, and throws FileError at the first departure.
class HeaderReader {
 public:
  explicit HeaderReader(Contents& contents) : file_(contents) {}

  bool start_object(std::size_t) {
    if (place_ == Place::start) {
      place_ = Place::file;
    } else if (place_ == Place::file) {
      place_ = name_ == metadata_key ? Place::metadata : Place::tensor;
    } else {
      fail_at_value();
    }
    return true;
  }

  bool key(std::string& text) {
    if (place_ == Place::file) {
      name_ = text;
      if (name_ == metadata_key ? std::exchange(has_metadata_, true) : file_.tensors.contains(name_)) {
        fail("appears twice in the header");
      }
    } else if (place_ == Place::metadata) {
      field_ = text;
      if (file_.metadata.contains(field_)) fail("the key " + detail::printable(field_) + " appears twice");
    } else {
      field_ = text;
      const bool is_type = field_ == "dtype", is_list = field_ == "shape" || field_ == "data_offsets";
      if (!is_type && !is_list) fail("unknown field " + detail::printable(field_));
      if (is_type ? type_.has_value() : list_of_field().has_value()) fail(field_ + " appears twice");
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::tensor) finish_tensor();
    place_ = Place::file;  // after the outermost object, the parser accepts nothing more
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::tensor || field_ == "dtype") fail_at_value();
    list_of_field().emplace();
    place_ = Place::list;
    return true;
  }
  bool end_array() {
    place_ = Place::tensor;
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (place_ != Place::list) fail_at_value();
    auto& list = *list_of_field();
    const std::size_t most = field_ == "shape" ? max_rank : 2;
    if (list.size() == most) fail(field_ + " has more than " + std::to_string(most) + " numbers");
    list.push_back(value);
    return true;
  }
  bool number_integer(std::int64_t) {
    if (place_ != Place::list) fail_at_value();
    fail(field_ + " holds a negative number");
  }
  bool number_float(double, const std::string&) { return fail_at_value(); }
  bool string(std::string& text) {
    if (place_ == Place::metadata) {
      file_.metadata.emplace(field_, text);
    } else if (place_ == Place::tensor && field_ == "dtype") {
      type_ = text;
    } else {
      fail_at_value();
    }
    return true;
  }
  bool null() { return fail_at_value(); }
  bool boolean(bool) { return fail_at_value(); }
  bool binary(Json::binary_t&) { return fail_at_value(); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    const bool encoding = std::strstr(error.what(), "UTF-8") != nullptr;
    const std::string what =
        (encoding ? "the header is not UTF-8 at its byte " : "the header is not JSON at its byte ") +
        std::to_string(position);
    if (place_ == Place::start || place_ == Place::file) throw FileError(file_.path, what);
    fail(what);
  }

 private:
  enum class Place { start, file, metadata, tensor, list };

  [[noreturn]] void fail(const std::string& what) const { throw FileError(file_.path, name_, what); }

  [[noreturn]] bool fail_at_value() const {
    if (place_ == Place::file) fail("its entry is not an object");
    if (place_ == Place::metadata) fail("the value of " + detail::printable(field_) + " is not a string");
    fail(field_ + (field_ == "dtype" ? " is not a string" : " is not a list of whole numbers below 2^64"));
  }

  std::optional<std::vector<std::uint64_t>>& list_of_field() {
    return field_ == "shape" ? extents_ : offsets_;
  }

  void finish_tensor() {
    if (!type_) fail("has no dtype");
    if (!extents_) fail("has no shape");
    if (!offsets_) fail("has no data_offsets");
    const std::size_t element_bytes = bytes_of_element(*type_);
    if (element_bytes == 0) fail("unknown dtype " + detail::printable(*type_));
    if (offsets_->size() != 2) fail("data_offsets has fewer than 2 numbers");
    const std::uint64_t begin = offsets_->front(), end = offsets_->back(), bytes = end - begin;
    if (begin > end) {
      fail("data_offsets begin at " + std::to_string(begin) + " and end at " + std::to_string(end));
    }
    if (end > file_.buffer.size()) {
      fail("ends at byte " + std::to_string(end) + " of a buffer of " + std::to_string(file_.buffer.size()));
    }
    const Shape shape = checked_shape();
    if (bytes % element_bytes != 0 || bytes / element_bytes != static_cast<std::uint64_t>(shape.size())) {
      fail("data_offsets leave " + std::to_string(bytes) + " bytes for shape " + to_string(shape) + " of " +
           *type_);
    }
    file_.names.push_back(name_);
    file_.tensors.emplace(name_, Tensor{std::move(*type_), shape, begin, end});
    type_.reset();
    extents_.reset();
    offsets_.reset();
  }

  Shape checked_shape() const {
    std::vector<Index> extents;
    for (const std::uint64_t extent : *extents_) {
      extents.push_back(extent >> 63 ? -1 : static_cast<Index>(extent));  // Shape refuses both
    }
    try {
      return Shape(std::span<const Index>(extents));
    } catch (const ShapeError&) {
      fail("shape has more than 2^62 elements");
    }
  }

  Contents& file_;
  Place place_ = Place::start;
  std::string name_, field_;
  bool has_metadata_ = false;
  std::optional<std::string> type_;
  std::optional<std::vector<std::uint64_t>> extents_, offsets_;
};

// The format allows neither overlaps nor holes: sorted by place, each tensor begins where the last one ended.
void require_full_cover(const Contents& file) {
  using Named = std::pair<const std::string, Tensor>;
  std::vector<const Named*> by_place;
  for (const Named& one : file.tensors) by_place.push_back(&one);
  std::ranges::sort(by_place, {},
                    [](const Named* one) { return std::pair(one->second.begin, one->second.end); });
  std::uint64_t end = 0;
  const Named* last = nullptr;
  for (const Named* one : by_place) {
    const std::uint64_t begin = one->second.begin;
    if (begin < end) throw FileError(file.path, one->first, "overlaps " + detail::printable(last->first));
    if (begin > end) {
      throw FileError(file.path, one->first,
                      "the " + std::to_string(begin - end) + " bytes before it belong to no tensor");
    }
    end = one->second.end;
    last = one;
  }
  const std::uint64_t left = file.buffer.size() - end;
  if (left > 0) throw FileError(file.path, "the last " + std::to_string(left) + " bytes belong to no tensor");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  auto file = std::make_shared<Contents>();
  file->path = path;
  file->mapping = std::make_shared<const Mapping>(path);
  const std::span<const std::byte> bytes = file->mapping->bytes();
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) {
    throw FileError(path, "has " + std::to_string(bytes.size()) + " bytes, too few for a header");
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::uint64_t rest = bytes.size() - sizeof length;
  if (length > longest_header || length > rest) {
    throw FileError(path, "claims a header of " + std::to_string(length) + " bytes; " + std::to_string(rest) +
                              " follow and " + std::to_string(longest_header) + " are allowed");
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof length);
  file->buffer = bytes.subspan(sizeof length + length);
  // The parser takes a zero byte for the end, and skips a byte order mark; neither is allowed here.
  if (length == 0 || *text != '{') throw FileError(path, "the header does not begin with '{'");
  if (std::memchr(text, 0, length)) throw FileError(path, "the header holds a zero byte");
  HeaderReader reader(*file);
  Json::sax_parse(text, text + length, &reader);
  require_full_cover(*file);
  contents_ = std::move(file);
}

const std::string& SafetensorsFile::path() const { return contents_->path; }
const std::vector<std::string>& SafetensorsFile::names() const { return contents_->names; }
bool SafetensorsFile::contains(std::string_view name) const { return contents_->tensors.contains(name); }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return contents_->metadata; }
const Shape& SafetensorsFile::shape(std::string_view name) const { return contents_->find(name).shape; }
const std::string& SafetensorsFile::type(std::string_view name) const { return contents_->find(name).type; }

template <Element T>
Array<T> SafetensorsFile::read(std::string_view name) const {
  const Tensor& tensor = contents_->find(name);
  const std::byte* bytes = contents_->buffer.data() + tensor.begin;
  std::optional<Array<T>> result;
  with_element_of(tensor.type, [&]<class Stored>(Stored stored) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(bytes) % alignof(Stored) == 0;
    if constexpr (std::same_as<T, Stored>) {
      const auto* elements = reinterpret_cast<const T*>(bytes);
      if (aligned) result = Array<T>::adopt(contents_->mapping, elements, tensor.shape);
    }
    if constexpr (readable_as<T, Stored>) {
      if (result) return;
      result = Array<T>::uninitialized(tensor.shape);
      const std::span<T> elements = result->mutable_values();
      for (std::size_t i = 0; i < elements.size(); ++i) {
        std::memcpy(&stored, bytes + i * sizeof stored, sizeof stored);
        if (!fits<T>(stored)) {
          const std::string what = "element " + std::to_string(i) + " is not a value of type ";
          throw FileError(path(), name, what + std::string(type_of<T>));
        }
        elements[i] = static_cast<T>(stored);
      }
    }
  });
  if (result) return *result;
  throw FileError(path(), name, "is " + tensor.type + ", which is not read as " + std::string(type_of<T>));
}

// ---- Writing

namespace {

// A new file beside `path` that takes its place once everything is on the disk, and is removed otherwise.
class Replacement {
 public:
  explicit Replacement(const std::string& path) : path_(path) {
    struct stat status = {};
    const bool exists = ::stat(path.c_str(), &status) == 0;
    if (exists && !S_ISREG(status.st_mode)) throw FileError(path, "is not a regular file");
    const mode_t mode = exists ? status.st_mode & 0777 : 0666;
    static std::atomic<unsigned> count{0};
    do {
      temporary_ = path + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp";
      file_.fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    } while (file_.fd < 0 && errno == EEXIST);  // left by a process of this number that was killed
    if (file_.fd < 0) fail_with_errno(path, "cannot be created");
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() { remove(); }

  void append(const void* data, std::size_t bytes) {
    const auto* next = static_cast<const std::byte*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(file_.fd, next, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot be written");
      next += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  void put_in_place() {
    if (::fsync(file_.fd) != 0) fail("cannot be flushed to disk");
    if (!file_.close()) fail("cannot be closed");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be replaced");
    is_temporary_ = false;
    // The new name reaches the disk with the folder. Not every file system can do this, and the file is whole
    // either way, so a failure here is none of the caller's.
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const Descriptor opened{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (opened.fd >= 0) ::fsync(opened.fd);
  }

 private:
  // Cleans up first: an exception that nobody catches runs no destructor.
  [[noreturn]] void fail(std::string_view doing) {
    const int reason = errno;
    remove();
    errno = reason;
    fail_with_errno(path_, doing);
  }
  void remove() {
    if (std::exchange(is_temporary_, false)) ::unlink(temporary_.c_str());
  }

  std::string path_, temporary_;
  Descriptor file_{-1};
  bool is_temporary_ = true;
};

std::string quoted(std::string_view text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw LogicError("SafetensorsWriter", "not UTF-8: " + detail::printable(text));
  }
}

}  // namespace

template <Element T>
SafetensorsWriter& SafetensorsWriter::add(std::string_view name, const Array<T>& tensor) {
  if (name == metadata_key) throw LogicError("SafetensorsWriter", "a tensor cannot be called __metadata__");
  std::string json = quoted(name);
  if (!names_.insert(json).second) throw LogicError("SafetensorsWriter", json + " is added twice");
  auto owner = std::make_shared<const Array<T>>(tensor);
  const T* data = owner->data();
  // Wide elements first: the format allows no holes, and so every tensor is aligned.
  const auto place =
      std::ranges::upper_bound(entries_, sizeof(T), std::ranges::greater(), &Entry::element_bytes);
  entries_.insert(place, {std::move(json), type_of<T>, sizeof(T), tensor.shape(), std::move(owner), data,
                          tensor.bytes()});
  return *this;
}

SafetensorsWriter& SafetensorsWriter::metadata(std::string_view key, std::string_view value) {
  const auto [place, is_new] = metadata_.emplace(quoted(key), quoted(value));
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
  if (length > longest_header) {
    throw FileError(path, "the header would have " + std::to_string(length) + " bytes, more than " +
                              std::to_string(longest_header));
  }
  Replacement file(path);
  file.append(&length, sizeof length);
  file.append(text.data(), text.size());
  for (const Entry& entry : entries_) file.append(entry.data, entry.bytes);
  file.put_in_place();
}

template Array<float> SafetensorsFile::read(std::string_view) const;
template Array<double> SafetensorsFile::read(std::string_view) const;
template Array<Index> SafetensorsFile::read(std::string_view) const;
template Array<bool> SafetensorsFile::read(std::string_view) const;
template SafetensorsWriter& SafetensorsWriter::add(std::string_view, const Array<float>&);
template SafetensorsWriter& SafetensorsWriter::add(std::string_view, const Array<double>&);
template SafetensorsWriter& SafetensorsWriter::add(std::string_view, const Array<Index>&);
template SafetensorsWriter& SafetensorsWriter::add(std::string_view, const Array<bool>&);

}  // namespace tapehead
