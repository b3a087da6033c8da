#include <tapehead/core/record.h>
#include <tapehead/core/tape.h>

#include <mutex>
#include <vector>

namespace tapehead {
namespace detail {

void throw_stale(std::string_view op, bool recorded, bool tape_alive) {
  if (!recorded) throw LogicError(op, "the Var is not recorded on a tape");
  throw LogicError(op, tape_alive ? "stale Var: its tape was cleared or rewound since it was recorded"
                                  : "stale Var: the tape it was recorded on is gone");
}

void throw_two_tapes(std::string_view op) {
  throw LogicError(op, "the inputs are recorded on two different tapes");
}

namespace {

// Tags are reused by later tapes of the same type and never freed: a stale Var may look at its tag at any
// time.
template <class T>
struct TagPool {
  std::mutex mutex;
  TapeTag<T>* free = nullptr;

  static TagPool& instance() {
    static TagPool& pool = *new TagPool;
    return pool;
  }
};

template <class T>
TapeTag<T>* take_tag(Tape<T>* tape) {
  auto& pool = TagPool<T>::instance();
  const std::lock_guard lock(pool.mutex);
  TapeTag<T>* tag = pool.free;
  if (tag) {
    pool.free = tag->next_free;
  } else {
    tag = new TapeTag<T>;
  }
  tag->tape = tape;
  return tag;
}

template <class T>
void give_tag(TapeTag<T>* tag) {
  auto& pool = TagPool<T>::instance();
  const std::lock_guard lock(pool.mutex);
  tag->tape = nullptr;
  ++tag->epoch;
  tag->next_free = pool.free;
  pool.free = tag;
}

}  // namespace
}  // namespace detail

template <std::floating_point T>
Tape<T>::Tape() : tag_(detail::take_tag<T>(this)) {}

template <std::floating_point T>
Tape<T>::~Tape() {
  detail::give_tag(tag_);
}

template <std::floating_point T>
Var<T> Tape<T>::input(Array<T> value, std::string_view name) {
  if (!recording()) throw LogicError("input", "recording on this tape is paused");
  detail::NodeWriter<T> node(*this, "input");
  node.keep(value, /*computed=*/false);
  return node.finish(std::move(value), node.name(name));
}

template <std::floating_point T>
void Tape<T>::rewind(Index size) {
  if (size < 0 || size > this->size()) {
    throw LogicError("rewind",
                     "to " + std::to_string(size) + " of " + std::to_string(this->size()) + " nodes");
  }
  if (size == this->size()) return;
  const std::size_t edges = node(size).first_edge;
  ++tag_->epoch;
  nodes_.truncate(static_cast<std::size_t>(size));
  edges_.truncate(edges);
  if (keeps()) keeper_->rewound(size);
  while (!seen_.empty() && seen_.back().first >= size) seen_.pop_back();
  std::erase_if(remarks_, [=](const auto& entry) { return entry.first >= size; });
  if (size == 0 && label_ == 0) {  // names that no node or open scope refers to
    label_numbers_.clear();
    labels_.resize(1);
  }
}

template <std::floating_point T>
void Tape<T>::remark(const Var<T>& x, std::string_view literal) {
  if (!x.recorded()) return;
  Tape& tape = of("remark", x);
  tape.remarks_.emplace_back(tape.index_here(x), literal);
}

template <std::floating_point T>
std::string_view Tape<T>::remark_of(Index i) const {
  const auto found = std::ranges::find(remarks_, i, [](const auto& entry) { return entry.first; });
  return found != remarks_.end() ? found->second : std::string_view();
}

template <std::floating_point T>
detail::NonFinite Tape<T>::seen(Index i) const {
  const auto found = std::ranges::lower_bound(seen_, i, {}, [](const auto& entry) { return entry.first; });
  return found != seen_.end() && found->first == i ? found->second : detail::NonFinite::no;
}

template <std::floating_point T>
std::string Tape<T>::label_path(std::uint32_t label) const {
  std::string path;
  for (; label != 0; label = labels_[label].parent) {
    path.insert(0, labels_[label].name + (path.empty() ? "" : "/"));
  }
  return path;
}

template <std::floating_point T>
std::uint32_t Tape<T>::child_label(std::uint32_t parent, std::string_view name) {
  if (const auto known = label_numbers_.find({parent, name}); known != label_numbers_.end())
    return known->second;
  const auto number = static_cast<std::uint32_t>(labels_.size());
  const Label& label = labels_.emplace_back(std::string(name), parent);
  label_numbers_.emplace(std::pair(parent, std::string_view(label.name)), number);
  return number;
}

template <std::floating_point T>
Scope<T>::Scope(Tape<T>& tape, std::string_view name) : tape_(&tape), outer_(tape.label_) {
  tape.label_ = tape.child_label(outer_, name);
}

template <std::floating_point T>
Scope<T>::Scope(const Var<T>& x, std::string_view name) {
  if (!x.recorded()) return;
  tape_ = &Tape<T>::of("Scope", x);
  outer_ = tape_->label_;
  tape_->label_ = tape_->child_label(outer_, name);
}

template <std::floating_point T>
Var<T> port(const Var<T>& x, std::string_view name) {
  const std::array<const Var<T>*, 1> inputs = {&x};
  Tape<T>* tape = detail::recording_tape<T>("port", inputs);
  if (!tape) return x.detach();
  detail::NodeWriter<T> node(*tape, "port");
  node.argument(
      x, [](Var<T> dy) { return dy; }, nullptr);
  node.keep(x.value());
  return node.finish(x.value(), node.name(name), true);
}

template class Tape<float>;
template class Tape<double>;
template class Scope<float>;
template class Scope<double>;
template Var<float> port(const Var<float>&, std::string_view);
template Var<double> port(const Var<double>&, std::string_view);

}  // namespace tapehead
