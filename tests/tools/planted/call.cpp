#include "tools/planted/call.h"

#include <cmath>

namespace tapehead::planted {

double Call::score_scale() const { return scale ? *scale : 1 / std::sqrt(static_cast<double>(D)); }

Index Call::causal_offset() const {
  if (causal == Causal::bottom_right) return S - L;
  return causal == Causal::offset ? offset : 0;
}

bool Call::mask_allows(Index b, Index h, Index i, Index j) const {
  if (mask_kind == MaskKind::none) return true;
  const double m = mask.numbers[mask.repeated(b, h, i, j)];
  if (mask_kind == MaskKind::additive) return m > -INFINITY;
  return (m != 0) == (mask_kind == MaskKind::allowed);
}

bool Call::causal_allows(Index i, Index j) const {
  return causal == Causal::none || j <= i + causal_offset();
}

bool Call::window_allows(Index i, Index j) const {
  const Index position = i + causal_offset();
  return (!window_left || position - *window_left <= j) && (!window_right || j <= position + *window_right);
}

bool Call::length_allows(Index b, Index j) const {
  return key_lengths.empty() || j < key_lengths[static_cast<std::size_t>(b)];
}

bool Call::is_row(Index b, Index i) const {
  return query_lengths.empty() || i < query_lengths[static_cast<std::size_t>(b)];
}

double Call::query_position(Index b, Index i) const {
  return query_positions.empty() ? static_cast<double>(start_query + i)
                                 : query_positions[static_cast<std::size_t>(b * L + i)];
}

double Call::key_position(Index b, Index j) const {
  return key_positions.empty() ? static_cast<double>(start_key + j)
                               : key_positions[static_cast<std::size_t>(b * S + j)];
}

bool Call::segment_allows(Index b, Index i, Index j) const {
  return query_segments.empty() || query_segments[static_cast<std::size_t>(b * L + i)] ==
                                       key_segments[static_cast<std::size_t>(b * S + j)];
}

bool Call::visible(Index b, Index h, Index i, Index j) const {
  return is_row(b, i) && mask_allows(b, h, i, j) && causal_allows(i, j) && window_allows(i, j) &&
         length_allows(b, j) && segment_allows(b, i, j);
}

bool Call::has_empty_row() const {
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < L; ++i) {
        bool any = !is_row(b, i);
        for (Index j = 0; j < S; ++j) any = any || visible(b, h, i, j);
        if (!any) return true;
      }
    }
  }
  return false;
}

// Blocks: all query heads, all key heads, all values. By head: of each key head, its G queries, key, value.
void Call::cut_projection(bool by_head) {
  const Index G = H / Hk;
  const auto head = [&](Index g, Index n) {
    return by_head ? g * (G + 2) + n : n < G ? g * G + n : H + (n - G) * Hk + g;
  };
  each(query, [&](Index b, Index h, Index i, Index d) {
    query(b, h, i, d) = projection(b, 0, i, head(h / G, h % G) * D + d);
  });
  each(key, [&](Index b, Index g, Index j, Index d) {
    key(b, g, j, d) = projection(b, 0, j, head(g, G) * D + d);
    value(b, g, j, d) = projection(b, 0, j, head(g, G + 1) * D + d);
  });
}

}  // namespace tapehead::planted
