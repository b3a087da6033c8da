#include <tapehead/nn/safetensors_header.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <tuple>
#include <utility>

namespace tapehead::detail {
namespace {

const std::array<SafetensorsType, 22>& all_types() {
  using enum ElementType;
  static const std::array<SafetensorsType, 22> types{{
      {"F64", 64, f64},   {"F32", 32, f32},       {"F16", 16, f16},       {"BF16", 16, bf16},
      {"I64", 64, i64},   {"I32", 32, i32},       {"I16", 16, i16},       {"I8", 8, i8},
      {"U64", 64, u64},   {"U32", 32, u32},       {"U16", 16, u16},       {"U8", 8, u8},
      {"BOOL", 8, truth}, {"C64", 64, {}},        {"F8_E4M3", 8, {}},     {"F8_E5M2", 8, {}},
      {"F8_E8M0", 8, {}}, {"F8_E4M3FNUZ", 8, {}}, {"F8_E5M2FNUZ", 8, {}}, {"F6_E2M3", 6, {}},
      {"F6_E3M2", 6, {}}, {"F4", 4, {}},
  }};
  return types;
}

// The bytes of the UTF-8 sequence that `text` begins with; 0 when it begins with none (Unicode 15, table
// 3-7).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (first < 0xC2 || first > 0xF4 || byte(1) < lowest || byte(1) > highest) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto put_rest = [&](int shift) {
    for (; shift >= 0; shift -= 6) put(0x80 | (code >> shift & 63));
  };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put_rest(0);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put_rest(6);
  } else {
    put(0xF0 | code >> 18), put_rest(12);
  }
}

class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text, std::uint64_t buffer_bytes)
      : path_(path), text_(text), buffer_bytes_(buffer_bytes) {}

  SafetensorsHeader parse() {
    if (text_.empty() || text_[0] != '{') fail("the header does not begin with '{'");
    bool has_metadata = false;
    for_each_member([&](std::string&& name) {
      name_ = std::move(name);
      in_entry_ = true;
      if (name_ != safetensors_metadata_key) {
        tensor();
      } else if (std::exchange(has_metadata, true)) {
        fail("appears twice in the header");
      } else {
        metadata();
      }
      in_entry_ = false;
    });
    next();
    if (at_ != text_.size()) fail_syntax();
    return std::move(header_);
  }

 private:
  // ---- What a header consists of

  void metadata() {
    if (next() != '{') fail_value("its entry is not an object");
    for_each_member([&](std::string&& key) {
      if (next() != '"') fail_value("the value of " + printable(key) + " is not a string");
      if (header_.metadata.size() == most_safetensors_keys) {
        fail("has more than " + std::to_string(most_safetensors_keys) + " keys");
      }
      const auto [place, is_new] = header_.metadata.emplace(std::move(key), string(text_.size()));
      if (!is_new) fail("the key " + printable(place->first) + " appears twice");
    });
  }

  void tensor() {
    if (next() != '{') fail_value("its entry is not an object");
    SafetensorsTensor tensor;
    std::optional<NumberList> extents, offsets;
    for_each_member([&](std::string&& field) {
      if (field == "dtype") {
        if (tensor.type) fail("dtype appears twice");
        tensor.type = type();
      } else if (field == "shape" || field == "data_offsets") {
        auto& list = field == "shape" ? extents : offsets;
        if (list) fail(field + " appears twice");
        list = numbers(field, field == "shape" ? max_rank : 2);
      } else {
        fail("unknown field " + printable(field));
      }
    });
    if (!tensor.type) fail("has no dtype");
    if (!extents) fail("has no shape");
    if (!offsets) fail("has no data_offsets");
    if (offsets->count != 2) fail("data_offsets has fewer than 2 numbers");
    tensor.begin = offsets->values[0];
    tensor.end = offsets->values[1];
    tensor.shape = shape(*extents);
    require_bytes(tensor);
    header_.names.push_back(std::exchange(name_, {}));
    header_.tensors.push_back(tensor);
  }

  const SafetensorsType* type() {
    if (next() != '"') fail_value("dtype is not a string");
    const std::string name = string(longest_safetensors_name);
    const SafetensorsType* found = find_safetensors_type(name);
    if (!found) fail("unknown dtype " + printable(name));
    return found;
  }

  struct NumberList {
    std::uint64_t values[max_rank] = {};
    std::size_t count = 0;
  };

  NumberList numbers(const std::string& field, std::size_t most) {
    const std::string not_a_list = field + " is not a list of whole numbers below 2^64";
    if (next() != '[') fail_value(not_a_list);
    ++at_;
    NumberList list;
    if (take(']')) return list;
    do {
      if (next() == '-') fail(field + " holds a negative number");
      if (!is_digit(next())) fail_value(not_a_list);
      if (list.count == most) fail(field + " has more than " + std::to_string(most) + " numbers");
      const char* const begin = text_.data() + at_;
      const auto [end, error] =
          std::from_chars(begin, text_.data() + text_.size(), list.values[list.count++]);
      if (*begin == '0' && end - begin > 1) fail_syntax();
      at_ += static_cast<std::size_t>(end - begin);
      if (error != std::errc() || is_one_of(".eE")) fail(not_a_list);
    } while (take(','));
    require(']');
    return list;
  }

  Shape shape(const NumberList& list) const {
    Index extents[max_rank];
    // Shape refuses what is negative, and so what is beyond 2^63.
    std::copy_n(list.values, list.count, extents);
    try {
      return Shape(std::span<const Index>(extents, list.count));
    } catch (const ShapeError&) {
      fail("shape has more than 2^62 elements");
    }
  }

  void require_bytes(const SafetensorsTensor& tensor) const {
    const std::uint64_t bytes = tensor.end - tensor.begin;
    if (tensor.begin > tensor.end) {
      fail("data_offsets begin at " + std::to_string(tensor.begin) + " and end at " +
           std::to_string(tensor.end));
    }
    if (tensor.end > buffer_bytes_) {
      fail("ends at byte " + std::to_string(tensor.end) + " of a buffer of " + std::to_string(buffer_bytes_));
    }
    std::uint64_t bits = 0;
    const auto elements = static_cast<std::uint64_t>(tensor.shape.size());
    if (__builtin_mul_overflow(elements, tensor.type->bits, &bits) || bits != bytes * 8) {
      fail("data_offsets leave " + std::to_string(bytes) + " bytes for shape " + to_string(tensor.shape) +
           " of " + tensor.type->name);
    }
  }

  // ---- JSON

  template <class F>
  void for_each_member(F member) {
    require('{');
    if (take('}')) return;
    do {
      std::string key = string(longest_safetensors_name);
      require(':');
      member(std::move(key));
    } while (take(','));
    require('}');
  }

  // The text between quotes. Its end is sought first, so that no more is taken than is needed.
  std::string string(std::size_t most) {
    require('"');
    std::size_t end = at_;
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2u : 1u;
    if (end >= text_.size()) fail_syntax(text_.size());
    if (end - at_ > most) {
      fail("a name of " + std::to_string(end - at_) + " bytes, where " + std::to_string(most) +
           " are allowed: " + printable(text_.substr(at_, most)));
    }
    std::string result;
    result.reserve(end - at_);
    while (at_ < end) {
      if (text_[at_] == '\\') {
        append_escaped(result);
        continue;
      }
      if (static_cast<unsigned char>(text_[at_]) < 0x20) fail_syntax();
      const std::size_t length = utf8_length(text_.substr(at_));
      if (length == 0) fail_about_header("is not UTF-8", at_);
      result += text_.substr(at_, length);
      at_ += length;
    }
    ++at_;
    return result;
  }

  void append_escaped(std::string& result) {
    constexpr std::string_view letters = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
    const std::size_t begin = at_++;
    if (const std::size_t i = letters.find(text_[at_]); i != std::string_view::npos) {
      result += meant[i];
      ++at_;
      return;
    }
    std::uint32_t code = code_unit(begin);
    if (code >= 0xDC00 && code < 0xE000) fail_syntax(begin);
    if (code >= 0xD800 && code < 0xDC00) {  // the first of a surrogate pair
      if (!text_.substr(at_).starts_with('\\')) fail_syntax(begin);
      ++at_;
      const std::uint32_t second = code_unit(begin);
      if (second < 0xDC00 || second >= 0xE000) fail_syntax(begin);
      code = 0x10000 + ((code - 0xD800) << 10 | (second - 0xDC00));
    }
    append_utf8(result, code);
  }

  // The u and four digits of an escape that began at `begin`.
  std::uint32_t code_unit(std::size_t begin) {
    const std::string_view digits = text_.substr(at_ + 1, 4);
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (text_[at_] != 'u' || digits.size() != 4 || end != digits.data() + 4) fail_syntax(begin);
    at_ += 5;
    return code;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  bool is_one_of(std::string_view characters) const {
    return at_ < text_.size() && characters.find(text_[at_]) != std::string_view::npos;
  }
  char next() {  // after white space; 0 at the end, which like a zero byte begins nothing
    while (is_one_of(" \t\n\r")) ++at_;
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

  // ---- Errors

  [[noreturn]] void fail(const std::string& what) const {
    if (in_entry_) throw FileError(path_, name_, what);
    throw FileError(path_, what);
  }
  // A value of the wrong kind, if it is the beginning of a value at all.
  [[noreturn]] void fail_value(const std::string& what) {
    const char c = next();
    if (is_digit(c) || (c != '\0' && std::string_view("{[\"-tfn").find(c) != std::string_view::npos))
      fail(what);
    fail_syntax();
  }
  [[noreturn]] void fail_syntax() const { fail_syntax(at_); }
  [[noreturn]] void fail_syntax(std::size_t at) const { fail_about_header("is not JSON", at); }
  [[noreturn]] void fail_about_header(const std::string& what, std::size_t at) const {
    fail("the header " + what + " at its byte " + std::to_string(at));
  }

  const std::string& path_;
  const std::string_view text_;
  const std::uint64_t buffer_bytes_;
  std::size_t at_ = 0;
  std::string name_;  // of the entry that is being read
  bool in_entry_ = false;
  SafetensorsHeader header_;
};

// Sorts the table by name; a name that comes twice is an error.
void index_by_name(const std::string& path, SafetensorsHeader& header) {
  const auto name_of = [&](std::uint32_t i) -> const std::string& { return header.names[i]; };
  header.by_name.resize(header.names.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0u);
  std::ranges::sort(header.by_name, {}, name_of);
  const auto twice = std::ranges::adjacent_find(header.by_name, {}, name_of);
  if (twice != header.by_name.end()) throw FileError(path, name_of(*twice), "appears twice in the header");
}

// The format allows neither overlaps nor holes: sorted by place, each tensor begins where the last one ended.
void require_full_cover(const std::string& path, const SafetensorsHeader& header,
                        std::uint64_t buffer_bytes) {
  std::vector<std::uint32_t> by_place(header.tensors.size());
  std::iota(by_place.begin(), by_place.end(), 0u);
  std::ranges::sort(by_place, {}, [&](std::uint32_t i) {
    return std::tuple(header.tensors[i].begin, header.tensors[i].end, i);
  });
  std::uint64_t end = 0;
  const std::string* last = nullptr;
  for (const std::uint32_t i : by_place) {
    const std::uint64_t begin = header.tensors[i].begin;
    const std::string& name = header.names[i];
    if (begin < end) throw FileError(path, name, "overlaps " + printable(*last));
    if (begin > end) {
      throw FileError(path, name,
                      "the " + std::to_string(begin - end) + " bytes before it belong to no tensor");
    }
    end = header.tensors[i].end;
    last = &name;
  }
  const std::uint64_t left = buffer_bytes - end;
  if (left > 0) throw FileError(path, "the last " + std::to_string(left) + " bytes belong to no tensor");
}

}  // namespace

const SafetensorsType& safetensors_type(ElementType type) {
  return *std::ranges::find(all_types(), std::optional(type), &SafetensorsType::element);
}

const SafetensorsType* find_safetensors_type(std::string_view name) {
  const auto found = std::ranges::find(all_types(), name, &SafetensorsType::name);
  return found == all_types().end() ? nullptr : &*found;
}

const SafetensorsTensor* SafetensorsHeader::find(std::string_view name) const {
  const auto name_of = [&](std::uint32_t i) { return std::string_view(names[i]); };
  const auto found = std::ranges::lower_bound(by_name, name, {}, name_of);
  return found != by_name.end() && name_of(*found) == name ? &tensors[*found] : nullptr;
}

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view json,
                                           std::uint64_t buffer_bytes) {
  SafetensorsHeader header = HeaderParser(path, json, buffer_bytes).parse();
  index_by_name(path, header);
  require_full_cover(path, header, buffer_bytes);
  return header;
}

std::optional<std::string> json_string(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string json = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return std::nullopt;
    const auto byte = static_cast<unsigned char>(text.front());
    if (byte < 0x20) {
      (json.append("\\u00") += digits[byte >> 4]) += digits[byte & 15];
    } else {
      if (byte == '"' || byte == '\\') json += '\\';
      json += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return json += '"';
}

}  // namespace tapehead::detail
