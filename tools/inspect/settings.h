#pragma once
// What `tapehead inspect` is asked to do. What is not said has a default of what is inspected.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tapehead/core/shape.h>
#include <tapehead/nn/attention.h>

namespace tapehead::tools {

struct InspectSettings {
  // One of these four.
  std::string what;               // self-attention, cross-attention, additive or block
  std::string run, dump;          // a folder of `tapehead train`, a file
  std::vector<std::string> diff;  // two files of --json

  std::optional<Index> batch, length, source, width, heads, key_heads, layers, hidden;
  std::optional<Index> window, valid;
  bool causal = false;
  std::uint64_t seed = 1;
  std::string kernel = "composed", type;

  std::vector<std::string> paths;
  std::optional<Index> head, token;
  std::string expand;
  bool step = false;

  std::string level, sort, only;
  bool json = false;
  std::string html, dot, trace, svg;
};

AttentionKernel kernel_of(const InspectSettings& settings);

}  // namespace tapehead::tools
