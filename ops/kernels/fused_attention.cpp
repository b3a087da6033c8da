#include <tapehead/core/parallel.h>
#include <tapehead/ops/kernels/fused_attention.h>
#include <tapehead/ops/kernels/processor.h>
#include <tapehead/ops/kernels/room.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace tapehead::kernels {
namespace {

// How the queries are cut: a unit is a batch and a key head, whose query heads share its keys. Blocks of long
// queries keep to one head, so that the keys that a window lets them see lie together; heads of few queries
// share a block.
template <class T>
struct Cut {
  const AttentionProblem<T>& p;
  Index units, blocks_a_head, blocks;  // `blocks`: of a unit

  explicit Cut(const AttentionProblem<T>& problem) : p(problem), units(p.batches * p.key_heads) {
    constexpr Index most = AttentionBlock::most_rows;
    const Index group = p.heads / p.key_heads;
    blocks_a_head = p.queries < most ? 0 : (p.queries + most - 1) / most;
    blocks = blocks_a_head > 0 ? group * blocks_a_head : (group * p.queries + most - 1) / most;
  }

  AttentionBlock block(Index unit, Index number) const {
    constexpr Index most = AttentionBlock::most_rows;
    const Index rows = p.heads / p.key_heads * p.queries;
    Index first = number * most, end = rows;
    if (blocks_a_head > 0) {
      const Index head = number / blocks_a_head;
      first = head * p.queries + number % blocks_a_head * most;
      end = (head + 1) * p.queries;
    }
    return {unit / p.key_heads, unit % p.key_heads, first, std::min(most, end - first)};
  }

  Index block_work() const {
    return std::max<Index>(1, AttentionBlock::most_rows * p.keys * (p.width + p.value_width));
  }
};

constexpr Index worth_a_piece = Index{1} << 20;  // multiply-adds, about 20 microseconds

// Pieces that a block's keys are cut into when there are too few blocks to share out.
template <class T>
Index key_pieces(const Cut<T>& cut) {
  constexpr Index enough = 16, least_keys = 512;
  return std::max<Index>(
      1, std::min(enough / std::max<Index>(1, cut.units * cut.blocks), cut.p.keys / least_keys));
}

// The first row of each kind that any thread found.
class Report {
 public:
  void add(const AttentionRows& found) {
    if (found.without_key < 0 && found.not_finite < 0) return;
    const std::lock_guard lock(mutex_);
    keep_first(rows_.without_key, found.without_key);
    keep_first(rows_.not_finite, found.not_finite);
  }
  const AttentionRows& rows() const { return rows_; }

 private:
  static void keep_first(Index& row, Index found) {
    if (found >= 0 && (row < 0 || found < row)) row = found;
  }
  std::mutex mutex_;
  AttentionRows rows_;
};

template <class T>
void forward_whole(const Cut<T>& cut, HeadRows<T> output, double* lse, Report& report) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  const Index state = kernels.attention_state(cut.p);
  parallel_for(cut.units * cut.blocks, worth_a_piece / cut.block_work(), [&](Index begin, Index end) {
    WorkRoom<T> room(state + kernels.forward_room(cut.p));
    AttentionRows found;
    for (Index i = begin; i < end; ++i) {
      const AttentionBlock block = cut.block(i / cut.blocks, i % cut.blocks);
      kernels.attention_block(cut.p, block, output, lse, &found, room.data(), room.data() + state);
    }
    report.add(found);
  });
}

template <class T>
void forward_in_pieces(const Cut<T>& cut, Index count, HeadRows<T> output, double* lse, Report& report) {
  const VectorKernels<T>& kernels = vector_kernels<T>();
  const Index state = kernels.attention_state(cut.p), blocks = cut.units * cut.blocks;
  const Index keys = (cut.p.keys + count - 1) / count;
  WorkRoom<T> states(blocks * count * state);
  auto block_of = [&](Index i) { return cut.block(i / cut.blocks, i % cut.blocks); };
  parallel_for(blocks * count, worth_a_piece * count / cut.block_work(), [&](Index begin, Index end) {
    WorkRoom<T> room(kernels.forward_room(cut.p));
    for (Index i = begin; i < end; ++i) {
      const Index first = i % count * keys;
      kernels.attention_part(cut.p, block_of(i / count), first, std::min(first + keys, cut.p.keys),
                             states.data() + i * state, room.data());
    }
  });
  AttentionRows found;
  for (Index i = 0; i < blocks; ++i) {
    kernels.attention_merge(cut.p, block_of(i), states.data() + i * count * state, count, output, lse,
                            &found);
  }
  report.add(found);
}

// Blocks of a unit add to the same dk and dv: tile by tile in the order of the blocks, each as soon as the
// one before is done with the tile. Blocks are started in order, so the first unfinished one never waits.
class Turns {
 public:
  Turns(Index units, Index blocks, Index tiles)
      : blocks_(blocks), tiles_(tiles), done_(static_cast<std::size_t>(units * blocks)) {}

  class Turn {
   public:
    Turn(Turns& turns, Index unit, Index number)
        : mine_(turns.at(unit, number)),
          before_(number > 0 ? &turns.at(unit, number - 1) : nullptr),
          tiles_(turns.tiles_) {}
    ~Turn() { mine_.store(tiles_, std::memory_order_release); }  // also when the block failed
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    static void enter(void* turn, Index tile) {
      const auto* before = static_cast<Turn*>(turn)->before_;
      while (before && before->load(std::memory_order_acquire) <= tile) std::this_thread::yield();
    }
    static void leave(void* turn, Index tile) {
      static_cast<Turn*>(turn)->mine_.store(tile + 1, std::memory_order_release);
    }

   private:
    std::atomic<Index>& mine_;
    const std::atomic<Index>* before_;
    Index tiles_;
  };

 private:
  std::atomic<Index>& at(Index unit, Index number) {
    return done_[static_cast<std::size_t>(unit * blocks_ + number)];
  }
  Index blocks_, tiles_;
  std::vector<std::atomic<Index>> done_;
};

template <class T>
class Backward {
 public:
  Backward(const AttentionProblem<T>& p, const AttentionGradients<T>& g)
      : p_(p),
        g_(g),
        cut_(p),
        kernels_(vector_kernels<T>()),
        rows_(p.batches * p.heads * p.queries),
        slope_rows_(p.slopes && g.dslopes ? rows_ : 0),
        sink_rows_(p.sinks && g.dsinks ? rows_ : 0) {
    way_.dslopes = slope_rows_.data();
    way_.dsinks = sink_rows_.data();
  }

  void run() {
    if (cut_.blocks == 0) {
      clear(g_.dk, p_.width);
      clear(g_.dv, p_.value_width);
    } else if (g_.dbias) {
      run_beside_shared_bias();
    } else if (cut_.units >= 8 || cut_.blocks == 1) {
      parallel_for(cut_.units, worth_a_piece / (2 * cut_.blocks * cut_.block_work()),
                   [&](Index begin, Index end) { run_units(begin, end, 1); });
    } else {
      run_in_turns();
    }
    sum_rows(slope_rows_.data(), g_.dslopes);
    sum_rows(sink_rows_.data(), g_.dsinks);
  }

 private:
  // Without a query there is no block that writes the gradients of the keys.
  void clear(const HeadRows<T>& y, Index columns) const {
    for (Index i = 0; y.data && i < cut_.units * p_.keys; ++i) {
      const Index unit = i / p_.keys;
      std::fill_n(y.data + unit / p_.key_heads * y.batch + unit % p_.key_heads * y.head + i % p_.keys * y.row,
                  columns, T{0});
    }
  }

  // Units first, first + step, ... below end, one after the other.
  void run_units(Index first, Index end, Index step) {
    WorkRoom<T> room(kernels_.backward_room(p_));
    for (Index unit = first; unit < end; unit += step) {
      for (Index i = 0; i < cut_.blocks; ++i) {
        kernels_.backward_block(p_, g_, cut_.block(unit, i), way_, room.data());
      }
    }
  }

  // Where batches or heads share a bias, they add to its gradient one after the other.
  void run_beside_shared_bias() {
    const bool batches_share = p_.bias.batch == 0, heads_share = p_.bias.head == 0;
    if (batches_share && heads_share) {
      run_units(0, cut_.units, 1);
    } else if (batches_share) {
      parallel_for(p_.key_heads, 1, [&](Index begin, Index end) {
        for (Index head = begin; head < end; ++head) run_units(head, cut_.units, p_.key_heads);
      });
    } else {
      const Index grain = heads_share ? p_.key_heads : 1;
      parallel_for(cut_.units, grain, [&](Index begin, Index end) { run_units(begin, end, 1); });
    }
  }

  void run_in_turns() {
    Turns turns(cut_.units, cut_.blocks, (p_.keys + kernels_.backward_tile - 1) / kernels_.backward_tile);
    parallel_for(cut_.units * cut_.blocks, 1, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) {
        const Index unit = i % cut_.units, number = i / cut_.units;
        Turns::Turn turn(turns, unit, number);
        BackwardBlock way = way_;
        way.enter = Turns::Turn::enter, way.leave = Turns::Turn::leave, way.turns = &turn;
        WorkRoom<T> room(kernels_.backward_room(p_));
        kernels_.backward_block(p_, g_, cut_.block(unit, number), way, room.data());
      }
    });
  }

  void sum_rows(const double* rows, T* y) const {
    if (!rows) return;
    for (Index h = 0; h < p_.heads; ++h) {
      double sum = 0;
      for (Index b = 0; b < p_.batches; ++b) {
        const double* x = rows + (b * p_.heads + h) * p_.queries;
        for (Index i = 0; i < p_.queries; ++i) sum += x[i];
      }
      y[h] = static_cast<T>(sum);
    }
  }

  const AttentionProblem<T>& p_;
  const AttentionGradients<T>& g_;
  const Cut<T> cut_;
  const VectorKernels<T>& kernels_;
  const Index rows_;
  WorkRoom<double> slope_rows_, sink_rows_;
  BackwardBlock way_;
};

}  // namespace

template <class T>
AttentionRows attention_forward(const AttentionProblem<T>& problem, HeadRows<T> output, double* lse) {
  Report report;
  const Cut<T> cut(problem);
  const Index count = key_pieces(cut);
  if (count == 1) {
    forward_whole(cut, output, lse, report);
  } else {
    forward_in_pieces(cut, count, output, lse, report);
  }
  return report.rows();
}

template <class T>
void attention_backward(const AttentionProblem<T>& problem, const AttentionGradients<T>& gradients) {
  Backward<T>(problem, gradients).run();
}

template AttentionRows attention_forward(const AttentionProblem<float>&, HeadRows<float>, double*);
template AttentionRows attention_forward(const AttentionProblem<double>&, HeadRows<double>, double*);
template void attention_backward(const AttentionProblem<float>&, const AttentionGradients<float>&);
template void attention_backward(const AttentionProblem<double>&, const AttentionGradients<double>&);

}  // namespace tapehead::kernels
