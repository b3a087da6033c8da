#pragma once
// The header of a .safetensors file: JSON of one fixed form, read straight into a table. No document is built
// and no token is kept, so a header made to exhaust memory takes at most about three times its own length.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tapehead/core/shape.h>
#include <tapehead/nn/element_types.h>

namespace tapehead::detail {

// The limit of the format's own library; then ours of a name or key, in bytes as JSON, and of keys of
// metadata.
inline constexpr std::uint64_t longest_safetensors_header = 100'000'000;
inline constexpr std::size_t longest_safetensors_name = 65'536;
inline constexpr std::size_t most_safetensors_keys = 65'536;
inline constexpr std::string_view safetensors_metadata_key = "__metadata__";

struct SafetensorsType {
  std::string name;                    // as files spell it
  unsigned bits;                       // of an element
  std::optional<ElementType> element;  // none: a file may hold it as long as nobody reads it
};

const SafetensorsType& safetensors_type(ElementType type);
const SafetensorsType* find_safetensors_type(std::string_view name);  // null for an unknown one

struct SafetensorsTensor {
  const SafetensorsType* type = nullptr;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // in the buffer that follows the header
};

struct SafetensorsHeader {
  std::vector<std::string> names;  // in the order of the file
  std::deque<SafetensorsTensor> tensors;
  std::vector<std::uint32_t> by_name;
  std::map<std::string, std::string> metadata;

  const SafetensorsTensor* find(std::string_view name) const;  // null when there is none
};

// Throws FileError, naming the tensor where there is one, for a header that is not UTF-8, not JSON or not of
// the form {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}};
// for a name, key or field that comes twice, more than 65,536 bytes of a name or as many keys; and for
// tensors that overlap, leave a hole, end beyond the buffer or have other bytes than their shape asks for.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view json,
                                           std::uint64_t buffer_bytes);

// The text as JSON, in its quotes; none when it is not UTF-8.
std::optional<std::string> json_string(std::string_view text);

}  // namespace tapehead::detail
