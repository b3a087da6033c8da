#include <tapehead/nn/npy.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <tapehead/nn/element_types.h>
#include <tapehead/nn/file_access.h>

namespace tapehead {

struct detail::NpyContents {
  std::string path;
  std::string type;
  StoredArray array;
};

namespace {

using detail::ElementType;

constexpr std::string_view magic = "\x93NUMPY";

struct NamedType {
  std::string_view name;  // without the order of bytes
  ElementType type;
};

constexpr NamedType types[] = {
    {"f8", ElementType::f64}, {"f4", ElementType::f32}, {"f2", ElementType::f16}, {"i8", ElementType::i64},
    {"i4", ElementType::i32}, {"i2", ElementType::i16}, {"i1", ElementType::i8},  {"u8", ElementType::u64},
    {"u4", ElementType::u32}, {"u2", ElementType::u16}, {"u1", ElementType::u8},  {"b1", ElementType::truth},
};

struct Header {
  std::string type;
  ElementType element{};
  bool swapped = false, fortran_order = false;
  Shape shape;
};

// Reads {'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }: the dictionary with exactly these keys,
// in any order, and of Python's literals only those that can stand in it.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  Header parse() {
    require('{');
    while (next() != '}') {
      entry();
      if (!take(',')) break;
    }
    require('}');
    if (next() != '\0' || at_ != text_.size()) fail_syntax();
    if (!has_type_) fail("the header has no descr");
    if (!has_order_) fail("the header has no fortran_order");
    if (!has_shape_) fail("the header has no shape");
    return std::move(header_);
  }

 private:
  void entry() {
    const std::string_view key = string();
    require(':');
    if (key == "descr") {
      once(has_type_, key);
      type();
    } else if (key == "fortran_order") {
      once(has_order_, key);
      header_.fortran_order = truth();
    } else if (key == "shape") {
      once(has_shape_, key);
      shape();
    } else {
      fail("unknown key " + detail::printable(key) + " in the header");
    }
  }

  void once(bool& seen, std::string_view key) const {
    if (std::exchange(seen, true)) fail(std::string(key) + " appears twice in the header");
  }

  void type() {
    if (next() == '[') fail("holds records, which are not read");
    const std::string_view text = string();
    header_.type = detail::printable(text);
    if (text.size() > 1 && text[1] == 'O') fail("holds Python objects, which are not read");
    const bool has_order = !text.empty() && std::string_view("<>|=").find(text[0]) != std::string_view::npos;
    const auto* found = std::ranges::find(types, text.substr(has_order ? 1 : 0), &NamedType::name);
    if (!has_order || found == std::end(types)) fail("is of type " + header_.type + ", which is not read");
    header_.element = found->type;
    header_.swapped = text[0] == '>';
  }

  bool truth() {
    next();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    fail("fortran_order is neither True nor False");
  }

  void shape() {
    if (!take('(')) fail("shape is not a tuple");
    Index extents[max_rank];
    std::size_t rank = 0;
    bool has_comma = true;
    while (has_comma && next() != ')') {
      if (rank == max_rank) fail("shape has more than " + std::to_string(max_rank) + " axes");
      extents[rank++] = extent();
      has_comma = take(',');
    }
    if (!take(')')) fail_syntax();
    if (rank == 1 && !has_comma) fail("shape is not a tuple");
    try {
      header_.shape = Shape(std::span<const Index>(extents, rank));
    } catch (const ShapeError&) {
      fail("shape has more than 2^62 elements");
    }
  }

  Index extent() {
    if (next() == '-') fail("shape has a negative extent");
    Index value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail("shape has more than 2^62 elements");
    if (error != std::errc() || (*begin == '0' && end - begin > 1)) fail_syntax();
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  std::string_view string() {
    const char quote = next();
    if (quote != '\'' && quote != '"') fail_syntax();
    const std::size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\\' && text_[at_] != '\n') ++at_;
    if (at_ == text_.size() || text_[at_] != quote) fail_syntax();
    return text_.substr(begin, at_++ - begin);
  }

  char next() {  // after white space; 0 at the end, which like a zero byte begins nothing
    constexpr std::string_view space = " \t\n\r\f";
    while (at_ < text_.size() && space.find(text_[at_]) != std::string_view::npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  void require(char c) {
    if (!take(c)) fail_syntax();
  }

  [[noreturn]] void fail(const std::string& what) const { throw FileError(path_, what); }
  [[noreturn]] void fail_syntax() const {
    fail("the header is not a dictionary of literals at its byte " + std::to_string(at_));
  }

  const std::string& path_;
  const std::string_view text_;
  std::size_t at_ = 0;
  bool has_type_ = false, has_order_ = false, has_shape_ = false;
  Header header_;
};

// A whole number of `width` bytes, the lowest first.
std::uint32_t number_at(std::string_view bytes, std::size_t at, std::size_t width) {
  std::uint32_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// The header's text: what follows the magic string, two bytes of version and the length in 2 or 4 bytes.
std::string_view header_of(const std::string& path, std::string_view file) {
  if (!file.starts_with(magic)) throw FileError(path, "does not begin as an .npy file does");
  const std::size_t before_length = magic.size() + 2;
  if (file.size() < before_length) throw FileError(path, "is cut short in its header");
  const std::uint32_t major = number_at(file, magic.size(), 1), minor = number_at(file, magic.size() + 1, 1);
  if (major < 1 || major > 3 || minor != 0) {
    throw FileError(path, "is of version " + std::to_string(major) + "." + std::to_string(minor) +
                              ", which is none of 1.0, 2.0 and 3.0");
  }
  const std::size_t width = major == 1 ? 2 : 4, begin = before_length + width;
  if (file.size() < begin) throw FileError(path, "is cut short in its header");
  const std::uint32_t length = number_at(file, before_length, width);
  if (length > file.size() - begin) {
    throw FileError(path, "claims a header of " + std::to_string(length) + " bytes, and " +
                              std::to_string(file.size() - begin) + " follow");
  }
  return file.substr(begin, length);
}

void require_elements(const std::string& path, const Header& header, std::size_t bytes) {
  const std::size_t width = bytes_of(header.element), count = static_cast<std::size_t>(header.shape.size());
  if (bytes % width == 0 && bytes / width == count) return;
  throw FileError(path, "holds " + std::to_string(bytes) + " bytes of data, where shape " +
                            to_string(header.shape) + " of " + header.type + " needs " +
                            std::to_string(count) + " times " + std::to_string(width));
}

std::string header_text(const Shape& shape, std::string_view type, const NpyForm& form) {
  std::string text = "{'descr': '";
  text += type == "b1" ? '|' : form.byte_order == std::endian::big ? '>' : '<';
  text +=
      std::string(type) + "', 'fortran_order': " + (form.fortran_order ? "True" : "False") + ", 'shape': (";
  for (const Index extent : shape) text += std::to_string(extent) + ", ";
  if (shape.rank() > 0) text.pop_back();
  if (shape.rank() > 1) text.pop_back();  // the comma of a tuple of one stays
  return text += "), }";
}

}  // namespace

NpyFile::NpyFile(const std::string& path) {
  const auto mapping = std::make_shared<const detail::Mapping>(path);
  const std::span<const std::byte> bytes = mapping->bytes();
  const std::string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string_view text = header_of(path, file);
  Header header = HeaderParser(path, text).parse();
  const auto data = static_cast<std::size_t>(text.data() + text.size() - file.data());
  require_elements(path, header, bytes.size() - data);
  contents_ = std::make_shared<const detail::NpyContents>(
      detail::NpyContents{path, std::move(header.type),
                          detail::StoredArray{mapping, bytes.data() + data, header.element, header.shape,
                                              header.swapped, header.fortran_order}});
}

const std::string& NpyFile::path() const { return contents_->path; }
const Shape& NpyFile::shape() const { return contents_->array.shape; }
const std::string& NpyFile::type() const { return contents_->type; }
bool NpyFile::fortran_order() const { return contents_->array.fortran_order; }

template <Element T>
Array<T> NpyFile::read() const {
  const auto fail = [&](const std::string& what) { throw FileError(path(), what); };
  if (!detail::readable_as<T>(contents_->array.type)) {
    fail("is of type " + type() + ", which is not read as " + std::string(detail::name_of_array<T>));
  }
  return detail::read_elements<T>(contents_->array, fail);
}

template <Element T>
void write_npy(const std::string& path, const Array<T>& array, const NpyForm& form) {
  const ElementType type = detail::type_of_array<T>;
  std::string head = header_text(array.shape(), std::ranges::find(types, type, &NamedType::type)->name, form);
  const std::size_t before = magic.size() + 4, all = before + head.size() + 1;
  head.append((64 - all % 64) % 64, ' ') += '\n';  // so that the elements are aligned in the mapped file
  const auto length = static_cast<std::uint16_t>(head.size());  // 8 axes need less than 300 bytes
  std::string start(magic);
  start.append({'\1', '\0', static_cast<char>(length & 255), static_cast<char>(length >> 8)});
  detail::Replacement file(path);
  file.append(start.data(), start.size());
  file.append(head.data(), head.size());
  const bool swapped = form.byte_order != std::endian::native;
  detail::append_elements(file, array, {type, swapped, form.fortran_order});
  file.put_in_place();
}

#define TAPEHEAD_INSTANTIATE(T)            \
  template Array<T> NpyFile::read() const; \
  template void write_npy(const std::string&, const Array<T>&, const NpyForm&);

TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
TAPEHEAD_INSTANTIATE(Index)
TAPEHEAD_INSTANTIATE(bool)

}  // namespace tapehead
