#include <tapehead/core/keep.h>
#include <tapehead/core/memory.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tapehead {
namespace detail {
namespace {

using Clock = std::chrono::steady_clock;

template <class T>
class KeptTable final : public Keeper<T> {
 public:
  explicit KeptTable(KeepLevel level) : level_(level) {}

  void op_done(Index i, const Array<T>& value, bool computed) override {
    const Moment end = now();
    if (!computed) last_ = end;
    entries_.resize(static_cast<std::size_t>(i));  // an op that threw may have left one
    Entry& entry = entries_.emplace_back();
    entry.node.forward = kept(last_, value);
    entry.node.forward->seconds = between(last_, end);
    entry.node.forward->live_bytes = memory_statistics().live;
    last_ = entry.end = resumed(end);
  }

  void sweep_begins(bool nested) override {
    if (nested) return;
    for (Entry& entry : entries_) entry.node.backward.reset();
  }

  void rule_begins(Index i, const Array<T>& dy) override {
    const Moment begin = now();
    const auto at = static_cast<std::size_t>(i);
    if (entries_.size() <= at) entries_.resize(at + 1);
    entries_[at].node.backward = kept(begin, dy);
    last_ = entries_[at].rule_begin = resumed(begin);
  }

  void rule_done(Index i) override {
    const Moment end = now();
    Entry& entry = entries_[static_cast<std::size_t>(i)];
    entry.node.backward->seconds = between(entry.rule_begin, end);
    entry.node.backward->live_bytes = memory_statistics().live;
  }

  void sweep_done(bool nested) override {
    if (!nested) last_ = now();
  }

  void rewound(Index size) override {
    if (entries_.size() > static_cast<std::size_t>(size)) entries_.resize(static_cast<std::size_t>(size));
    last_ = entries_.empty() || !entries_.back().node.forward ? now() : entries_.back().end;
  }

  const KeptNode<T>* node(Index i) const override {
    const auto at = static_cast<std::size_t>(i);
    if (at >= entries_.size()) return nullptr;
    const KeptNode<T>& node = entries_[at].node;
    return node.forward || node.backward ? &node : nullptr;
  }

 private:
  // A time since the table was made, and how much of that time had gone into keeping.
  struct Moment {
    double seconds = 0, keeping = 0;
  };
  struct Entry {
    KeptNode<T> node;
    Moment end, rule_begin;
  };

  Moment now() const { return {std::chrono::duration<double>(Clock::now() - began_).count(), keeping_}; }
  static double between(const Moment& from, const Moment& to) {
    return std::max(0.0, (to.seconds - from.seconds) - (to.keeping - from.keeping));
  }
  // What was done since then was keeping.
  Moment resumed(const Moment& then) {
    const Moment here = now();
    keeping_ += here.seconds - then.seconds;
    return {here.seconds, keeping_};
  }

  KeptArray<T> kept(const Moment& start, const Array<T>& x) const {
    KeptArray<T> array;
    array.start = start.seconds;
    array.summary = summary_of(x);
    if (level_ == KeepLevel::everything) array.array = x;
    return array;
  }

  KeepLevel level_;
  Clock::time_point began_ = Clock::now();
  double keeping_ = 0;
  Moment last_;  // when the last op was done, or the last rule began, or the last gradient was done
  std::vector<Entry> entries_;
};

}  // namespace
}  // namespace detail

// Long double holds the square of every double, and the sum of as many as fit into memory.
template <std::floating_point T>
ArraySummary summary_of(const Array<T>& x) {
  ArraySummary summary;
  long double sum = 0, squares = 0;
  Index count = 0;
  for (const T element : x.values()) {
    if (!std::isfinite(element)) {
      ++(std::isnan(element) ? summary.nans : summary.infinities);
      continue;
    }
    const auto number = static_cast<double>(element);
    summary.least = count == 0 ? number : std::min(summary.least, number);
    summary.largest = count == 0 ? number : std::max(summary.largest, number);
    sum += static_cast<long double>(number);
    squares += static_cast<long double>(number) * static_cast<long double>(number);
    ++count;
  }
  if (count == 0) return summary;
  const long double mean = sum / static_cast<long double>(count);
  long double off = 0;
  for (const T element : x.values()) {
    const long double difference = static_cast<long double>(element) - mean;
    if (std::isfinite(element)) off += difference * difference;
  }
  summary.mean = static_cast<double>(mean);
  summary.spread = static_cast<double>(std::sqrt(off / static_cast<long double>(count)));
  summary.norm = static_cast<double>(std::sqrt(squares));
  return summary;
}

template <std::floating_point T>
void Tape<T>::keep(KeepLevel level) {
  if (level == KeepLevel::rules) {
    keeper_.reset();
  } else {
    keeper_ = std::make_unique<detail::KeptTable<T>>(level);
  }
  observe(keeping, keeper_ != nullptr);
}

template ArraySummary summary_of(const Array<float>&);
template ArraySummary summary_of(const Array<double>&);
template void Tape<float>::keep(KeepLevel);
template void Tape<double>::keep(KeepLevel);

}  // namespace tapehead
