// Backward: weights w are recomputed from the scores and the log-sum-exp. With do, o of a row and its dlse,
//   delta = do . o - dlse     dw = kept (v do)     ds = w (dw - delta)
//   dv += (kept w)^T do       dq += scale ds k     dk += scale ds^T q      dsink = -exp(sink - lse) delta
#pragma once

#include <tapehead/ops/kernels/simd/attention_tile.h>

namespace tapehead::kernels {
namespace {

constexpr Index backward_tile = 64;

template <class T>
struct BackwardRoom {
  Tile<T> tile;
  T* douts;       // (value_width, lanes) do, transposed
  T* dweights;    // (keys, lanes) dw, then ds; at first (value_width, lanes) o, transposed
  T* query_rows;  // (lanes, row) scale q
  T* dout_rows;   // (lanes, value_row) do
  T* dqueries;    // (lanes, row)
  Index row, value_row;
  BackwardRoom(Room<T>& room, const AttentionProblem<T>& p)
      : tile(tile_in(room, p, least(backward_tile, p.keys), true)),
        douts(room.take(p.value_width * lanes)),
        dweights(room.take(most(least(backward_tile, p.keys), p.value_width) * lanes)),
        row(padded<T>(p.width)),
        value_row(padded<T>(p.value_width)) {
    query_rows = room.take(lanes * row);
    dout_rows = room.take(lanes * value_row);
    dqueries = room.take(lanes * row);
  }
};

template <class T>
Index backward_room(const AttentionProblem<T>& p) {
  Room<T> room{nullptr};
  const BackwardRoom<T> counted(room, p);
  static_cast<void>(counted);
  return room.used;
}

// y (keys, y_row) = weights x, or += it: `weights` (keys, lanes), x (lanes, x_row).
template <class T>
void multiply_weighted_rows(const LaneRows<T>& rows, Span keys, const T* weights, const T* x, Index x_row,
                            Index columns, bool add, T* y, Index y_row) {
  for (Index e = 0; e < columns; e += kernel_columns<T>) {
    const Index panel = least(kernel_columns<T>, columns - e);
    Index n;
    for (Index j = keys.first; j < keys.last; j += n) {
      n = next_rows(keys.last - j);
      const Span see = rows.vectors_that_see({j, j + n}, 0, rows.vectors);
      KernelCall<T> call{};
      call.c = y + (j - keys.first) * y_row + e;
      call.c_row = y_row;
      if (see.count() == 0) {
        if (!add) clear_rows(n, panel, call.c, y_row);
        continue;
      }
      const Index first = see.first * width<T>, last = least(see.last * width<T>, rows.count);
      call.k = last - first;
      call.a = {weights + (j - keys.first) * lanes + first, lanes, 1};
      call.b = x + first * x_row + e;
      call.b_row = x_row;
      if (add) call.add_to_c();
      multiply_rows(n, panel, call);
    }
  }
}

template <class T>
class BackwardPass {
 public:
  BackwardPass(const AttentionProblem<T>& problem, const AttentionGradients<T>& gradients,
               const AttentionBlock& attention_block, const BackwardBlock& turns, T* storage)
      : p(problem),
        g(gradients),
        block(attention_block),
        way(turns),
        rows(p, block),
        room{storage},
        x(room, p) {}

  void run() {
    prepare_rows();
    for (Index t = 0; t * backward_tile < p.keys; ++t) {
      const Span tile{t * backward_tile, least((t + 1) * backward_tile, p.keys)};
      const Span keys = tile.within(rows.keys);
      const bool any = keys.count() > 0 && weigh_tile(keys);
      if (way.enter) way.enter(way.turns, t);
      if (block.row == 0) clear_keys(tile, any ? keys : Span{tile.last, tile.last});
      if (any) add_keys(keys);
      if (way.leave) way.leave(way.turns, t);
      if (any) add_queries(keys);
    }
    write_queries();
    write_row_gradients();
  }

 private:
  void prepare_rows() {
    take_queries(p, rows, block.batch, least(backward_tile, p.keys), x.tile);
    transpose_rows(rows, block.batch, g.doutput, p.value_width, T(1), x.douts);
    copy_rows(rows, block.batch, p.q, p.width, static_cast<T>(p.scale), x.query_rows, x.row);
    copy_rows(rows, block.batch, g.doutput, p.value_width, T(1), x.dout_rows, x.value_row);
    for (Index r = 0; r < lanes; ++r) lse_high[r] = infinity<T>, lse_low[r] = 0, distance_sum[r] = 0;
    sum_delta();
    for (Index r = 0; r < rows.count; ++r) {
      const Index flat = flat_row(r);
      const double lse = g.lse[flat];
      if (lse == -infinity<double>) {
        forget_row(r);  // its weights are exp(s - infinity) = 0
        continue;
      }
      lse_high[r] = static_cast<T>(lse);
      lse_low[r] = static_cast<T>(lse - static_cast<double>(lse_high[r]));
      if (g.dlse) delta[r] -= g.dlse[flat];
    }
  }

  // Zeros for what the weights of a row without a key are multiplied by.
  void forget_row(Index r) {
    clear_rows(1, p.width, x.query_rows + r * x.row, x.row);
    clear_rows(1, p.value_width, x.dout_rows + r * x.value_row, x.value_row);
    clear_rows(p.value_width, 1, x.douts + r, lanes);
    delta[r] = 0;
  }

  // In the order in which the product sums v do, so that a weight of 1 has a ds of exactly 0.
  void sum_delta() {
    transpose_rows(rows, block.batch, g.output, p.value_width, T(1), x.dweights);
    for (Index v = 0; v < rows.vectors * width<T>; v += width<T>) {
      Vector<T> sum(0);
      for (Index e = 0; e < p.value_width; ++e) {
        sum = multiply_add<T>(load(x.dweights + e * lanes + v), load(x.douts + e * lanes + v), sum);
      }
      store(delta + v, sum);
    }
  }

  Index flat_row(Index r) const { return (block.batch * p.heads + rows.head[r]) * p.queries + rows.query[r]; }

  // The tile's weights and ds, unless it has no key that a row sees.
  bool weigh_tile(Span keys) {
    from = tile_rows(p, rows, block, keys, x.tile);
    if (!from.any) return false;
    multiply_scores(p, rows, keys, from.k, x.tile);
    multiply_keys(rows, keys, from.v, p.value_width, x.douts, x.dweights);
    if (x.tile.kept) fill_dropout(p, rows, block.batch, keys, x.tile);
    for (Index v = 0; v < rows.vectors; ++v) weigh(v, keys);
    if (g.dbias) add_bias_gradient(keys);
    if (x.tile.cap_slope) apply_cap_slope(keys);
    return true;
  }

  T* key_row(const HeadRows<T>& y, Index j) const { return row_of(y, block.batch, block.key_head, j); }

  // The first block of a key head writes what the others add to: zeros where it has nothing to say.
  void clear_keys(Span tile, Span but) {
    for (const Span keys : {Span{tile.first, but.first}, Span{but.last, tile.last}}) {
      if (g.dk.data) clear_rows(keys.count(), p.width, key_row(g.dk, keys.first), g.dk.row);
      if (g.dv.data) clear_rows(keys.count(), p.value_width, key_row(g.dv, keys.first), g.dv.row);
    }
  }

  void add_keys(Span keys) {
    const bool add = block.row > 0;
    if (g.dv.data) {
      multiply_weighted_rows(rows, keys, x.tile.scores, x.dout_rows, x.value_row, p.value_width, add,
                             key_row(g.dv, keys.first), g.dv.row);
    }
    if (g.dk.data) {
      multiply_weighted_rows(rows, keys, x.dweights, x.query_rows, x.row, p.width, add,
                             key_row(g.dk, keys.first), g.dk.row);
    }
  }

  void add_queries(Span keys) {
    if (!g.dq.data) return;
    multiply_weighted_keys(rows, keys, x.dweights, from.k, p.width, some_queries, x.dqueries, x.row);
    some_queries = true;
  }

  // Scores to weights (with dropout), dw to ds.
  void weigh(Index v, Span keys) {
    const Span any = rows.any[v].within(keys);
    const LaneScores<T> lane_scores{p, rows, block.batch, x.tile};
    lane_scores.finish(v, keys);
    const Vector<T> high = load(lse_high + v * width<T>), low = load(lse_low + v * width<T>);
    const Vector<T> shift = load(delta + v * width<T>);
    const bool plain = !x.tile.kept && !x.tile.offsets;
    for (Index j = any.first - keys.first; j < any.last - keys.first; ++j) {
      const Index at = j * lanes + v * width<T>;
      const Vector<T> weight = exp_of<T>((load(x.tile.scores + at) - high) - low);
      Vector<T> dweight = load(x.dweights + at);
      if (plain) {
        store(x.tile.scores + at, weight);
        store(x.dweights + at, weight * (dweight - shift));
        continue;
      }
      Vector<T> kept_weight = weight;
      if (x.tile.kept) {
        const Vector<T> kept = load(x.tile.kept + at);
        kept_weight = weight * kept, dweight = dweight * kept;
      }
      store(x.tile.scores + at, kept_weight);
      store(x.dweights + at, xsimd::select(weight == Vector<T>(0), Vector<T>(0), weight * (dweight - shift)));
    }
    clear_outside(any, keys, v, x.tile.scores);
    clear_outside(any, keys, v, x.dweights);
    if (way.dslopes) add_distances(lane_scores, v, any, keys.first);
  }

  void add_distances(const LaneScores<T>& lane_scores, Index v, Span any, Index base) {
    const Vector<T> distance = lane_scores.distances(v, base);
    Vector<T> sum(0);
    for (Index j = any.first - base; j < any.last - base; ++j) {
      sum = multiply_add<T>(load(x.dweights + j * lanes + v * width<T>),
                            xsimd::abs(distance - Vector<T>(static_cast<T>(j))), sum);
    }
    alignas(64) T lane[width<T>];
    store(lane, sum);
    for (Index r = 0; r < width<T>; ++r) distance_sum[v * width<T> + r] += static_cast<double>(lane[r]);
  }

  void add_bias_gradient(Span keys) {
    for (Index r = 0; r < rows.count; ++r) {
      T* d = g.dbias + block.batch * p.bias.batch + rows.head[r] * p.bias.head +
             rows.query[r] * p.bias.query + keys.first * p.bias.key;
      const T* ds = x.dweights + r;
      if (p.bias.key != 0) {
        for (Index j = 0; j < keys.count(); ++j) d[j * p.bias.key] += ds[j * lanes];
      } else {
        double sum = 0;
        for (Index j = 0; j < keys.count(); ++j) sum += static_cast<double>(ds[j * lanes]);
        *d += static_cast<T>(sum);
      }
    }
  }

  void apply_cap_slope(Span keys) {
    for (Index v = 0; v < rows.vectors; ++v) {
      const Span any = rows.any[v].within(keys);
      for (Index j = any.first - keys.first; j < any.last - keys.first; ++j) {
        const Index at = j * lanes + v * width<T>;
        const Vector<T> ds = load(x.dweights + at);
        store(x.dweights + at,
              xsimd::select(ds == Vector<T>(0), Vector<T>(0), ds * load(x.tile.cap_slope + at)));
      }
    }
  }

  void write_queries() {
    if (!g.dq.data) return;
    if (!some_queries) clear_rows(rows.count, p.width, x.dqueries, x.row);
    const T scale = static_cast<T>(p.scale);
    for (Index r = 0; r < rows.count; ++r) {
      T* y = row_of(g.dq, block.batch, rows.head[r], rows.query[r]);
      for (Index d = 0; d < p.width; ++d) y[d] = scale * x.dqueries[r * x.row + d];
    }
  }

  void write_row_gradients() {
    for (Index r = 0; r < rows.count; ++r) {
      const Index flat = flat_row(r);
      if (way.dslopes) way.dslopes[flat] = -distance_sum[r];
      if (!way.dsinks) continue;
      const double share = __builtin_exp(static_cast<double>(p.sinks[rows.head[r]]) - g.lse[flat]);
      way.dsinks[flat] = g.lse[flat] == -infinity<double> ? 0 : -share * static_cast<double>(delta[r]);
    }
  }

  const AttentionProblem<T>& p;
  const AttentionGradients<T>& g;
  const AttentionBlock& block;
  const BackwardBlock& way;
  LaneRows<T> rows;
  Room<T> room;
  BackwardRoom<T> x;
  TileRows<T> from;
  bool some_queries = false;  // dqueries holds a sum
  alignas(64) T lse_high[lanes], lse_low[lanes], delta[lanes];
  double distance_sum[lanes];
};

template <class T>
void backward_block(const AttentionProblem<T>& p, const AttentionGradients<T>& g, const AttentionBlock& block,
                    const BackwardBlock& way, T* room) {
  BackwardPass<T>(p, g, block, way, room).run();
}

}  // namespace
}  // namespace tapehead::kernels
