// Forward: a running maximum, sum and weighted sum of values for each row, over tiles of keys.
#pragma once

#include <tapehead/ops/kernels/simd/attention_tile.h>

namespace tapehead::kernels {
namespace {

constexpr Index forward_tile = most_keys;

// What a block knows after some of the keys: each row's largest score, sum of exp(s - largest) and the values
// weighted by that.
template <class T>
struct PartialSoftmax {
  T *largest, *total, *values;
  Index row;  // of `values`
  PartialSoftmax(T* state, Index value_width)
      : largest(state), total(state + lanes), values(state + 2 * lanes), row(padded<T>(value_width)) {}
  static Index size(const AttentionProblem<T>& p) { return lanes * (2 + padded<T>(p.value_width)); }
};

// What scores are held to: 0 for a row that has seen nothing yet, since infinity - infinity is NaN.
template <class T>
Vector<T> finite_reference(const Vector<T>& largest) {
  return xsimd::select(largest == Vector<T>(-infinity<T>), Vector<T>(0), largest);
}

template <class T>
struct Accumulation {
  const AttentionProblem<T>& p;
  const AttentionBlock& block;
  const LaneRows<T>& rows;
  Tile<T>& tile;
  const PartialSoftmax<T>& state;

  void add(Span keys) {
    const TileRows<T> x = tile_rows(p, rows, block, keys, tile);
    if (!x.any) return;
    multiply_scores(p, rows, keys, x.k, tile);
    if (tile.kept) fill_dropout(p, rows, block.batch, keys, tile);
    bool moved = false;
    alignas(64) T shrink[lanes];
    for (Index v = 0; v < rows.vectors; ++v) moved |= weigh(v, keys, shrink + v * width<T>);
    if (moved && !first) shrink_values(shrink);
    multiply_weighted_keys(rows, keys, tile.scores, x.v, p.value_width, !first, state.values, state.row);
    first = false;
  }
  bool first = true;  // nothing was added yet

 private:
  // Scores to exp(scores - largest so far). Whether what was summed before has to shrink.
  bool weigh(Index v, Span keys, T* shrink) {
    const Span any = rows.any[v].within(keys);
    T *const largest_so_far = state.largest + v * width<T>, *const total_so_far = state.total + v * width<T>;
    const Vector<T> before = load(largest_so_far);
    const Vector<T> now = xsimd::max(LaneScores<T>{p, rows, block.batch, tile}.finish(v, keys), before);
    const Vector<T> reference = finite_reference<T>(now);
    Vector<T> total(0);
    T* s = tile.scores + (any.first - keys.first) * lanes + v * width<T>;
    for (Index j = any.count(); j > 0; --j, s += lanes) {
      const Vector<T> weight = exp_of<T>(load(s) - reference);
      total = total + weight;
      store(s, weight);
    }
    clear_outside(any, keys, v, tile.scores);
    if (tile.kept) drop(v, any, keys.first);
    const Vector<T> factor = exp_of<T>(before - reference);
    store(shrink, factor);
    store(total_so_far, multiply_add<T>(load(total_so_far), factor, total));
    store(largest_so_far, now);
    return any_of<T>(now != before);
  }

  void drop(Index v, Span any, Index base) {
    for (Index j = any.first - base; j < any.last - base; ++j) {
      T* s = tile.scores + j * lanes + v * width<T>;
      store(s, load(s) * load(tile.kept + j * lanes + v * width<T>));
    }
  }

  void shrink_values(const T* factor) {
    for (Index r = 0; r < rows.count; ++r) {
      if (factor[r] == 1) continue;
      T* y = state.values + r * state.row;
      for (Index e = 0; e < state.row; e += width<T>) store(y + e, load(y + e) * Vector<T>(factor[r]));
    }
  }
};

template <class T>
Index forward_room(const AttentionProblem<T>& p) {
  Room<T> room{nullptr};
  tile_in(room, p, least(forward_tile, p.keys), false);
  return room.used;
}

template <class T>
void accumulate(const AttentionProblem<T>& p, const AttentionBlock& block, const LaneRows<T>& rows,
                Index begin, Index end, PartialSoftmax<T> state, T* tile_room) {
  for (Index r = 0; r < lanes; ++r) state.largest[r] = -infinity<T>, state.total[r] = 0;
  const Span keys = rows.keys.within({begin, end});
  Room<T> room{tile_room};
  Tile<T> tile = tile_in(room, p, least(forward_tile, p.keys), false);
  take_queries(p, rows, block.batch, least(forward_tile, p.keys), tile);
  Accumulation<T> accumulation{p, block, rows, tile, state};
  for (Index t = keys.first / forward_tile * forward_tile; t < keys.last; t += forward_tile) {
    accumulation.add(Span{t, t + forward_tile}.within(keys));
  }
  if (accumulation.first) clear_rows(rows.count, p.value_width, state.values, state.row);
}

// Adds a later state to the first.
template <class T>
void merge(Index rows, PartialSoftmax<T> sum, PartialSoftmax<T> part) {
  for (Index v = 0; v < rows; v += width<T>) {
    const Vector<T> a = load(sum.largest + v), b = load(part.largest + v), both = xsimd::max(b, a);
    const Vector<T> reference = finite_reference<T>(both);
    const Vector<T> of_a = exp_of<T>(a - reference), of_b = exp_of<T>(b - reference);
    store(sum.total + v, multiply_add<T>(load(sum.total + v), of_a, load(part.total + v) * of_b));
    store(sum.largest + v, both);
    alignas(64) T factor[2][width<T>];
    store(factor[0], of_a);
    store(factor[1], of_b);
    for (Index r = v; r < least(v + width<T>, rows); ++r) {
      const Vector<T> fa(factor[0][r - v]), fb(factor[1][r - v]);
      T *y = sum.values + r * sum.row, *x = part.values + r * sum.row;
      for (Index e = 0; e < sum.row; e += width<T>)
        store(y + e, multiply_add<T>(load(y + e), fa, load(x + e) * fb));
    }
  }
}

// largest and total of each row become its log-sum-exp, sink included, and what its values are multiplied by.
template <class T>
struct RowEnds {
  double lse[lanes];
  T factor[lanes];

  RowEnds(const AttentionProblem<T>& p, const LaneRows<T>& rows, const PartialSoftmax<T>& sum) {
    double largest[lanes], total[lanes], share[lanes];
    const Index used = rows.vectors * width<T>;
    for (Index r = 0; r < used; ++r) {
      largest[r] = static_cast<double>(sum.largest[r]), total[r] = static_cast<double>(sum.total[r]);
      share[r] = 1;
    }
    for (Index r = 0; p.sinks && r < rows.count; ++r) {
      const double sink = static_cast<double>(p.sinks[rows.head[r]]);
      if (total[r] != 0) add_sink(sink, largest[r], total[r], share[r]);  // a row of no key stays so
    }
    const Vector<double> zero(0), none(-infinity<double>);
    for (Index r = 0; r < used; r += width<double>) {
      const Vector<double> all = load(total + r), log = load(largest + r) + xsimd::log(all);
      store(lse + r, xsimd::select(all == zero, none, log));
      store(share + r, xsimd::select(all == zero, zero, load(share + r) / all));
    }
    for (Index r = 0; r < used; ++r) factor[r] = static_cast<T>(share[r]);
  }

  static void add_sink(double sink, double& largest, double& total, double& share) {
    const double both = sink > largest ? sink : largest;
    share = __builtin_exp(largest - both);
    total = total * share + __builtin_exp(sink - both);
    largest = both;
  }
};

template <class T>
void report_rows(const AttentionProblem<T>& p, const LaneRows<T>& rows, Index batch, const T* total,
                 AttentionRows* report) {
  for (Index r = 0; r < rows.count; ++r) {
    if (total[r] > 0) continue;
    const Index flat = (batch * p.heads + rows.head[r]) * p.queries + rows.query[r];
    Index& found = total[r] == 0 ? report->without_key : report->not_finite;  // a NaN is not 0
    if (found < 0 || flat < found) found = flat;
  }
}

template <class T>
void finish(const AttentionProblem<T>& p, const AttentionBlock& block, const LaneRows<T>& rows,
            const PartialSoftmax<T>& sum, HeadRows<T> output, double* lse, AttentionRows* report) {
  report_rows(p, rows, block.batch, sum.total, report);
  const RowEnds<T> ends(p, rows, sum);
  for (Index r = 0; r < rows.count; ++r) {
    if (lse) lse[(block.batch * p.heads + rows.head[r]) * p.queries + rows.query[r]] = ends.lse[r];
    const Vector<T> factor(ends.factor[r]);
    const T* x = sum.values + r * sum.row;
    T* y = row_of(output, block.batch, rows.head[r], rows.query[r]);
    Index e = 0;
    for (; e + width<T> <= p.value_width; e += width<T>) store(y + e, load(x + e) * factor);
    if (e < p.value_width) store_first(y + e, load(x + e) * factor, static_cast<int>(p.value_width - e));
  }
}

template <class T>
void attention_block(const AttentionProblem<T>& p, const AttentionBlock& block, HeadRows<T> output,
                     double* lse, AttentionRows* report, T* state_room, T* tile_room) {
  const LaneRows<T> rows(p, block);
  const PartialSoftmax<T> state(state_room, p.value_width);
  accumulate(p, block, rows, 0, p.keys, state, tile_room);
  finish(p, block, rows, state, output, lse, report);
}

template <class T>
void attention_part(const AttentionProblem<T>& p, const AttentionBlock& block, Index begin, Index end,
                    T* state_room, T* tile_room) {
  const LaneRows<T> rows(p, block);
  accumulate(p, block, rows, begin, end, PartialSoftmax<T>(state_room, p.value_width), tile_room);
}

template <class T>
void attention_merge(const AttentionProblem<T>& p, const AttentionBlock& block, T* states, Index count,
                     HeadRows<T> output, double* lse, AttentionRows* report) {
  const PartialSoftmax<T> sum(states, p.value_width);
  for (Index i = 1; i < count; ++i) {
    merge(block.count, sum, PartialSoftmax<T>(states + i * PartialSoftmax<T>::size(p), p.value_width));
  }
  finish(p, block, LaneRows<T>(p, block), sum, output, lse, report);
}

}  // namespace
}  // namespace tapehead::kernels
