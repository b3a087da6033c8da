#pragma once
// What each tensor of the format is in a call: its axes, and whether it is judged.

#include <string_view>

namespace tapehead::check {

// What a tensor's axes are.
enum class Form {
  query,
  key,
  value,
  output,     // (B, H, L, D), (B, Hk, S, D), (B, Hk, S, E), (B, H, L, E) in the layout
  scores,     // (B, H, L, S)
  broadcast,  // broadcasts to it
  rows,       // (B, H, L)
  heads,
  samples,
  width,  // (H), (B), (D)
  queries,
  keys,  // (B, L), (B, S)
  partial_output,
  partial_rows,
  partial_ends,  // the same over P parts
  other,         // projections, checked apart
};

struct Role {
  std::string_view name;
  Form form;
  bool judged = false;
};

const Role* role_of(std::string_view name);  // null for a name that has none

// Names that are understood and brought to tensors with a role.
bool is_taken_apart(std::string_view name);

}  // namespace tapehead::check
