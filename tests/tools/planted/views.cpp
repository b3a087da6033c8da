#include "tools/planted/views.h"

#include <utility>

namespace tapehead::planted {
namespace {

// The inverse of a move, found by moving the places.
Grid moved_back(const Grid& x, const Move& move) {
  Grid places = x;
  for (std::size_t n = 0; n < places.numbers.size(); ++n) places.numbers[n] = static_cast<double>(n);
  const Grid from = move(places);
  Grid y = x;
  for (std::size_t n = 0; n < x.numbers.size(); ++n)
    y.numbers[static_cast<std::size_t>(from.numbers[n])] = x.numbers[n];
  return y;
}

}  // namespace

Grid axes_swapped(const Grid& x) {
  Grid y(x.extents[0], x.extents[2], x.extents[1], x.extents[3]);
  each(y, [&](Index a, Index b, Index c, Index d) { y(a, b, c, d) = x(a, c, b, d); });
  return y;
}

Grid heads_merged_as_they_lie(const Grid& x) {
  Grid memory = x;
  std::swap(memory.extents[1], memory.extents[2]);
  return axes_swapped(memory);
}

Grid tokens_read_as_heads(const Grid& x) {
  Grid memory = axes_swapped(x);
  std::swap(memory.extents[1], memory.extents[2]);
  return memory;
}

Grid samples_and_heads_swapped(const Grid& x) {
  Grid y = x;
  const Index B = x.extents[0], H = x.extents[1];
  each(y, [&](Index b, Index h, Index c, Index d) {
    const Index row = b * H + h;
    y(b, h, c, d) = x(row % B, row / B, c, d);
  });
  return y;
}

Grid samples_and_heads_swapped_back(const Grid& x) { return moved_back(x, samples_and_heads_swapped); }

Wrong with_output_moved(const Move& move) {
  Wrong wrong;
  wrong.before = [move](Call& c) {
    if (!c.upstream.empty()) c.upstream = moved_back(c.upstream, move);
  };
  wrong.after = [move](Results& r) { r.output = move(r.output); };
  return wrong;
}

Wrong with_inputs_moved(bool query, bool key, bool value, const Move& move) {
  Wrong wrong;
  wrong.before = [=](Call& c) {
    if (query) c.query = move(c.query);
    if (key) c.key = move(c.key);
    if (value) c.value = move(c.value);
  };
  wrong.after = [=](Results& r) {
    if (r.grad_query.empty()) return;
    if (query) r.grad_query = moved_back(r.grad_query, move);
    if (key) r.grad_key = moved_back(r.grad_key, move);
    if (value) r.grad_value = moved_back(r.grad_value, move);
  };
  return wrong;
}

}  // namespace tapehead::planted
