// A tile of keys: the room for it, what hides its keys, and its scores from product to softmax.
#pragma once

#include <tapehead/ops/kernels/simd/attention_products.h>
#include <tapehead/ops/kernels/simd/dropout.h>

namespace tapehead::kernels {
namespace {

constexpr Index most_keys = 256;  // of a tile

// The room of a tile of keys, a row of `lanes` for each; parts that the problem does not need are null.
template <class T>
struct Tile {
  T* queries;  // (width, lanes) scale q, transposed; of few rows (few_rows, queries_row), as it is
  Index queries_row;
  T* scores;               // (keys, lanes)
  T* offsets = nullptr;    // bias, or minus infinity for a key that a row must not see
  T* cap_slope = nullptr;  // derivative of the softcap
  T* kept = nullptr;       // what dropout multiplies a weight by
  T* clean_k = nullptr;    // keys and values with zeros in place of rows that no lane sees
  T* clean_v = nullptr;
  Index clean_k_row = 0, clean_v_row = 0;
  bool seen[most_keys];
};
template <class T>
bool has_offsets(const AttentionProblem<T>& p) {
  return p.bias.data || p.allowed_count > 0 || p.query_documents;
}

// Hands out parts of one piece of storage, whole cache lines each; with a null start it only counts.
template <class T>
struct Room {
  T* start;
  Index used = 0;
  T* take(Index count) {
    T* part = start ? start + used : nullptr;
    used += pieces(count, 64 / sizeof(T)) * static_cast<Index>(64 / sizeof(T));
    return part;
  }
};

template <class T>
Tile<T> tile_in(Room<T>& room, const AttentionProblem<T>& p, Index keys, bool backward) {
  Tile<T> tile{};
  tile.queries = room.take(padded<T>(p.width) * lanes);
  tile.queries_row = padded<T>(p.width);
  tile.scores = room.take(keys * lanes);
  if (has_offsets(p)) {
    tile.clean_k_row = padded<T>(p.width), tile.clean_v_row = padded<T>(p.value_width);
    tile.offsets = room.take(keys * lanes);
    tile.clean_k = room.take(keys * tile.clean_k_row);
    tile.clean_v = room.take(keys * tile.clean_v_row);
  }
  if (backward && p.softcap != 0) tile.cap_slope = room.take(keys * lanes);
  if (p.dropout.rate > 0) tile.kept = room.take(keys * lanes);
  return tile;
}

// Fills y (keys, lanes) from f(r, row), which writes the keys of lane r side by side: a few lanes at a time
// are turned, since storing down a column would touch a cache line for each number.
template <class T, class F>
void fill_lanes(Index count, Index keys, T* y, F f) {
  constexpr Index some = 4;
  T row[some][most_keys];
  for (Index r = 0; r < count; r += some) {
    const Index n = least(some, count - r);
    for (Index i = 0; i < n; ++i) f(r + i, row[i]);
    transpose(n, keys, row[0], most_keys, T(1), y + r, lanes);
  }
}

template <class T>
void row_of_bias(const ScoreArray<const T>& bias, Index batch, Index head, Index query, Span keys, T* row) {
  const T* x = bias.data + batch * bias.batch + head * bias.head + query * bias.query + keys.first * bias.key;
  if (bias.key == 1) {
    for (Index j = 0; j < keys.count(); ++j) row[j] = x[j];
  } else {
    for (Index j = 0; j < keys.count(); ++j) row[j] = x[j * bias.key];
  }
}
// Read as bytes, of which g++ makes vectors.
template <class T>
void hide_in_row(const ScoreArray<const bool>& mask, Index batch, Index head, Index query, Span keys,
                 T* __restrict row) {
  const auto* allowed = reinterpret_cast<const unsigned char*>(
      mask.data + batch * mask.batch + head * mask.head + query * mask.query + keys.first * mask.key);
  if (mask.key == 1) {
    for (Index j = 0; j < keys.count(); ++j) row[j] = allowed[j] != 0 ? row[j] : -infinity<T>;
  } else {
    for (Index j = 0; j < keys.count(); ++j) row[j] = allowed[j * mask.key] != 0 ? row[j] : -infinity<T>;
  }
}

template <class T>
void fill_offsets(const AttentionProblem<T>& p, const LaneRows<T>& rows, Index batch, Span keys,
                  Tile<T>& tile) {
  T highest[most_keys];  // over the lanes whose range holds the key
  for (Index j = 0; j < keys.count(); ++j) highest[j] = -infinity<T>;
  fill_lanes(rows.vectors * width<T>, keys.count(), tile.offsets, [&](Index r, T* row) {
    const Index head = rows.head[r], query = rows.query[r];
    if (p.bias.data) {
      row_of_bias(p.bias, batch, head, query, keys, row);
    } else {
      for (Index j = 0; j < keys.count(); ++j) row[j] = 0;
    }
    for (Index m = 0; m < p.allowed_count; ++m) hide_in_row(p.allowed[m], batch, head, query, keys, row);
    if (p.query_documents) {
      const Index document = p.query_documents[batch * p.queries + query];
      const Index* of_key = p.key_documents + batch * p.keys + keys.first;
      for (Index j = 0; j < keys.count(); ++j) row[j] = of_key[j] == document ? row[j] : -infinity<T>;
    }
    const Span see = rows.sees[r].within(keys);
    for (Index j = see.first - keys.first; j < see.last - keys.first; ++j) {
      highest[j] = row[j] > highest[j] ? row[j] : highest[j];
    }
  });
  for (Index j = 0; j < keys.count(); ++j) tile.seen[j] = highest[j] != -infinity<T>;
}

template <class T>
void fill_dropout(const AttentionProblem<T>& p, const LaneRows<T>& rows, Index batch, Span keys,
                  Tile<T>& tile) {
  fill_lanes(rows.count, keys.count(), tile.kept, [&](Index r, T* row) {
    const Index flat = (batch * p.heads + rows.head[r]) * p.queries + rows.query[r];
    const auto first = static_cast<std::uint64_t>(flat * p.keys + keys.first);
    fill_kept(p.dropout, p.dropout.first_draw + first, keys.count(), row);
  });
}

template <class T>
Strided<T> without_unseen(const Tile<T>& tile, Span keys, Strided<T> x, Index columns, T* clean, Index row) {
  for (Index j = 0; j < keys.count(); ++j) {
    for (Index d = 0; d < columns; ++d) clean[j * row + d] = tile.seen[j] ? x.data[j * x.row + d] : T(0);
  }
  return {clean, row, 1};
}

// Readies the block's queries for multiply_scores.
template <class T>
void take_queries(const AttentionProblem<T>& p, const LaneRows<T>& rows, Index batch, Index keys,
                  Tile<T>& tile) {
  const T scale = static_cast<T>(p.scale);
  if (rows.count > few_rows) return transpose_rows(rows, batch, p.q, p.width, scale, tile.queries);
  copy_rows(rows, batch, p.q, p.width, scale, tile.queries, tile.queries_row);
  for (Index j = 0; j < keys; ++j) {  // idle lanes hold numbers, too
    for (Index r = 0; r < rows.vectors * width<T>; ++r) tile.scores[j * lanes + r] = 0;
  }
}
template <class T>
void multiply_scores(const AttentionProblem<T>& p, const LaneRows<T>& rows, Span keys, Strided<T> k,
                     const Tile<T>& tile) {
  if (rows.count > few_rows) return multiply_keys(rows, keys, k, p.width, tile.queries, tile.scores);
  const Strided<T> queries{tile.queries, tile.queries_row, 1};
  multiply_few(rows.count, keys.count(), p.width, queries, k, false, tile.scores, 1, lanes);
}

// Keys and values of a tile, and whether any lane sees one of them.
template <class T>
struct TileRows {
  Strided<T> k, v;
  bool any;
};
template <class T>
TileRows<T> tile_rows(const AttentionProblem<T>& p, const LaneRows<T>& rows, const AttentionBlock& block,
                      Span keys, Tile<T>& tile) {
  TileRows<T> x{{row_of(p.k, block.batch, block.key_head, keys.first), p.k.row, 1},
                {row_of(p.v, block.batch, block.key_head, keys.first), p.v.row, 1},
                keys.count() > 0};
  if (!tile.offsets || !x.any) return x;
  fill_offsets(p, rows, block.batch, keys, tile);
  Index count = 0;
  for (Index j = 0; j < keys.count(); ++j) count += tile.seen[j];
  x.any = count > 0;
  if (count > 0 && count < keys.count()) {
    x.k = without_unseen(tile, keys, x.k, p.width, tile.clean_k, tile.clean_k_row);
    x.v = without_unseen(tile, keys, x.v, p.value_width, tile.clean_v, tile.clean_v_row);
  }
  return x;
}

// Scores as they go into the softmax, in place, for the lanes of one vector and keys [first, last) of `any`.
// Returns their maximum, NaN ignored: xsimd::max gives its second argument when one is NaN.
template <class T>
struct LaneScores {
  const AttentionProblem<T>& p;
  const LaneRows<T>& rows;
  Index batch;
  const Tile<T>& tile;

  Vector<T> finish(Index v, Span keys) const {
    const Span any = rows.any[v].within(keys), all = rows.all[v].within(keys);
    Vector<T> largest(-infinity<T>);
    if (p.softcap != 0 || p.slopes || tile.offsets) change(v, any, keys.first);
    if (all.count() == 0) return mask(v, any, keys.first, largest);
    largest = mask(v, {any.first, all.first}, keys.first, largest);
    const T* s = tile.scores + v * width<T>;
    for (Index j = all.first; j < all.last; ++j)
      largest = xsimd::max(load(s + (j - keys.first) * lanes), largest);
    return mask(v, {all.last, any.last}, keys.first, largest);
  }

  Vector<T> lane_numbers(Index v, const Index* x, Index minus) const {
    alignas(64) T lane[width<T>];
    for (Index r = 0; r < width<T>; ++r) lane[r] = static_cast<T>(x[v * width<T> + r] - minus);
    return load(lane);
  }
  Vector<T> slopes(Index v) const {
    alignas(64) T lane[width<T>];
    for (Index r = 0; r < width<T>; ++r) lane[r] = p.slopes[rows.head[v * width<T> + r]];
    return load(lane);
  }
  // |i + position - j| of the lanes is |distances - (j - base)|.
  Vector<T> distances(Index v, Index base) const {
    return lane_numbers(v, rows.query, base - (p.positions ? p.positions[batch] : 0));
  }

 private:
  void change(Index v, Span keys, Index base) const {
    const Vector<T> cap(static_cast<T>(p.softcap)), per_cap(static_cast<T>(1 / p.softcap)), one(1);
    Vector<T> slope(0), distance(0);
    if (p.slopes) slope = slopes(v), distance = distances(v, base);
    for (Index j = keys.first - base; j < keys.last - base; ++j) {
      const Index at = j * lanes + v * width<T>;
      Vector<T> s = load(tile.scores + at);
      if (p.softcap != 0) {
        const Vector<T> t = tanh_of<T>(s * per_cap);
        if (tile.cap_slope) store(tile.cap_slope + at, subtract_product<T>(t, t, one));
        s = t * cap;
      }
      if (p.slopes) s = subtract_product<T>(slope, xsimd::abs(distance - Vector<T>(static_cast<T>(j))), s);
      if (tile.offsets) {
        const Vector<T> offset = load(tile.offsets + at);
        s = xsimd::select(offset == Vector<T>(-infinity<T>), offset, s + offset);
      }
      store(tile.scores + at, s);
    }
  }

  Vector<T> mask(Index v, Span keys, Index base, Vector<T> largest) const {
    if (keys.count() <= 0) return largest;
    alignas(64) T lane[2][width<T>];
    for (Index r = 0; r < width<T>; ++r) {
      lane[0][r] = static_cast<T>(rows.sees[v * width<T> + r].first - base);
      lane[1][r] = static_cast<T>(rows.sees[v * width<T> + r].last - base);
    }
    const Vector<T> first = load(lane[0]), last = load(lane[1]);
    for (Index j = keys.first - base; j < keys.last - base; ++j) {
      T* s = tile.scores + j * lanes + v * width<T>;
      const Vector<T> key(static_cast<T>(j));
      const Vector<T> masked = xsimd::select(first <= key && key < last, load(s), Vector<T>(-infinity<T>));
      store(s, masked);
      largest = xsimd::max(masked, largest);
    }
    return largest;
  }
};

// Zeros for the keys of the tile that the vector's lanes do not see.
template <class T>
void clear_outside(Span any, Span keys, Index v, T* x) {
  const Vector<T> zero(0);
  for (Index j = keys.first; j < any.first; ++j) store(x + (j - keys.first) * lanes + v * width<T>, zero);
  for (Index j = any.last; j < keys.last; ++j) store(x + (j - keys.first) * lanes + v * width<T>, zero);
}

}  // namespace
}  // namespace tapehead::kernels
