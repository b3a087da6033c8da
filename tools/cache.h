#pragma once
// tapehead cache: what the keys and values of a model take in memory while it decodes.

#include <optional>
#include <string>

#include <tapehead/core/shape.h>

namespace tapehead::tools {

struct CacheSettings {
  Index layers = 0, kv_heads = 0, length = 0, width = 0;
  std::optional<Index> value_width;  // the width of the keys unless given
  Index bytes = 0;                   // of one number
  Index batch = 1;
  bool json = false;
};

struct CacheSize {
  Index bytes;            // of all
  Index bytes_per_token;  // of one token of one sequence, in all layers
};

// bytes = layers kv_heads length (width + value_width) bytes batch. Throws DomainError for a number below 1,
// and for a product of 2^63 bytes or more.
CacheSize cache_size(const CacheSettings& settings);

// Bytes in the largest unit that they fill: "1.25 GiB" and "1.342 GB", with up to three decimals.
std::string binary_units(Index bytes);
std::string decimal_units(Index bytes);

// Prints the size, its formula and what else takes memory; or one line of JSON. Throws as above, and
// FileError when standard output cannot be written.
void cache(const CacheSettings& settings);

}  // namespace tapehead::tools
