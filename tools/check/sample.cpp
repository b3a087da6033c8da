#include <tools/check/sample.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <tapehead/core/parallel.h>

namespace tapehead::check {
namespace {

// Which axes of a tensor run over samples, heads (of queries, or of keys) and queries; -1: none.
struct Axes {
  int sample = -1, head = -1, key_head = -1, row = -1;
};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Axes axes_of(std::string_view name) {
  if (name.starts_with("grad_")) name.remove_prefix(5);
  if (is_one_of(name, {"sink", "slopes"})) return {-1, 0, -1, -1};
  if (name.ends_with("_gain") || name == "partial_end") return {};
  if (name.starts_with("partial_")) return {1, 2, -1, 3};
  if (name.ends_with("_lengths")) return {0, -1, -1, -1};
  if (is_one_of(name, {"query_segments", "query_positions"})) return {0, -1, -1, 1};
  if (is_one_of(name, {"key_segments", "key_positions"})) return {0, -1, -1, -1};
  if (name.starts_with("key") || name.starts_with("value")) return {0, -1, 1, -1};
  return {0, 1, -1, 2};
}

// What broadcasts along an axis is not cut there.
Axes axes_of(const Call& call, std::string_view name, const Shape& shape) {
  Axes axes = axes_of(name);
  const auto expands = [&](int axis, Index extent) { return axis >= 0 && shape[axis] == 1 && extent > 1; };
  if (expands(axes.sample, call.B)) axes.sample = -1;
  if (expands(axes.head, call.H)) axes.head = -1;
  if (expands(axes.row, call.L)) axes.row = -1;
  return axes;
}

using Indices = std::vector<Index>;

Indices from_to(Index first, Index end) {
  Indices all(static_cast<std::size_t>(end - first));
  std::iota(all.begin(), all.end(), first);
  return all;
}

Array<double> slice(const Array<double>& x, int axis, const Indices& of) {
  const Index count = static_cast<Index>(of.size());
  if (axis < 0 || count == x.dim(axis)) return x;
  const Shape& s = x.shape();
  const Index outer = s.first(axis).size(), inner = s.last(s.rank() - axis - 1).size();
  Array<double> y = Array<double>::uninitialized(s.with(axis, count));
  double* to = y.mutable_values().data();
  for (Index n = 0; n < outer; ++n) {
    for (const Index i : of) {
      std::copy_n(x.data() + (n * s[axis] + i) * inner, inner, to);
      to += inner;
    }
  }
  return y;
}

// What a part of a call is of the whole.
struct Part {
  Index sample;
  Indices heads, key_heads, rows;

  Array<double> of(const Array<double>& x, const Axes& axes) const {
    return slice(slice(slice(slice(x, axes.sample, {sample}), axes.head, heads), axes.key_head, key_heads),
                 axes.row, rows);
  }
  const Indices* along(const Axes& axes, int axis) const {
    return axis == axes.head       ? &heads
           : axis == axes.key_head ? &key_heads
           : axis == axes.row      ? &rows
                                   : nullptr;
  }
};

// x of a part added to where it belongs in y.
void add(const Array<double>& x, const Axes& axes, const Part& part, Numbers& y) {
  const Shape s = x.shape();
  const int last = std::max({axes.row, axes.head, axes.key_head, axes.sample});
  const Index width = s.last(s.rank() - 1 - last).size(), outer = s.first(last + 1).size();
  for (Index n = 0; n < outer; ++n) {
    Index rest = n, to = 0, step = 1;
    for (int axis = last; axis >= 0; --axis) {
      const Index i = rest % s[axis];
      const Indices* of = part.along(axes, axis);
      to += (axis == axes.sample ? part.sample : of ? (*of)[static_cast<std::size_t>(i)] : i) * step;
      rest /= s[axis];
      step *= y.shape[axis];
    }
    for (Index k = 0; k < width; ++k)
      y.at[static_cast<std::size_t>(to * width + k)] += x.data()[n * width + k];
  }
}

bool has_rows(std::string_view name) { return is_one_of(name, {"output", "weights", "lse", "grad_query"}); }

// The shape of a result over the whole call.
Shape whole_shape(const Call& call, std::string_view name, Shape shape) {
  if (is_one_of(name, {"grad_bias", "grad_mask"})) return call.inputs.find(name.substr(5))->second.shape();
  const Axes axes = axes_of(name);
  if (axes.sample >= 0) shape = shape.with(axes.sample, call.B);
  if (axes.head >= 0) shape = shape.with(axes.head, call.H);
  if (axes.key_head >= 0) shape = shape.with(axes.key_head, call.Hk);
  if (axes.row >= 0) shape = shape.with(axes.row, call.L);
  return shape;
}

Call cut(const Call& call, const Part& part) {
  Call result = call;
  result.B = 1;
  result.H = static_cast<Index>(part.heads.size());
  result.Hk = static_cast<Index>(part.key_heads.size());
  result.L = static_cast<Index>(part.rows.size());
  result.samples = {part.sample};
  if (result.H < call.H) result.heads = part.heads;
  result.rows = part.rows;
  if (result.Hk == 1) result.contract.tiled_heads = false;
  if (call.contract.causal && call.contract.causal->size() > 1) {
    result.contract.causal = {(*call.contract.causal)[static_cast<std::size_t>(part.sample)]};
  }
  for (auto& [name, x] : result.inputs) x = part.of(x, axes_of(call, name, x.shape()));
  std::erase_if(result.candidate, [](const auto& named) { return !has_rows(named.first); });
  for (auto& [name, x] : result.candidate) x = part.of(x, axes_of(name));
  return result;
}

// The query heads that read a key head.
Indices heads_of(const Call& call, Index key_head) {
  Indices heads;
  for (Index h = 0; h < call.H; ++h) {
    if ((call.contract.tiled_heads ? h % call.Hk : h / (call.H / call.Hk)) == key_head) heads.push_back(h);
  }
  return heads;
}

// Small enough for the caches to be of use, large enough for keys and values to be read seldom.
constexpr Index scores_at_once = 1 << 18, rows_at_least = 16;

class Blocks {
 public:
  Blocks(const Call& call, const Formula& formula)
      : call_(call),
        formula_(formula),
        gradients_(std::any_of(call.candidate.begin(), call.candidate.end(),
                               [](const auto& named) { return named.first.starts_with("grad_"); })) {}

  // Several blocks of rows at once, added up in their order, so that the number of threads changes no bit.
  void add_heads(Index sample, const Indices& heads, const Indices& key_heads) {
    constexpr Index at_once = 16;
    const Call all_rows = cut(call_, {sample, heads, key_heads, from_to(0, call_.L)});
    const Index row = std::max<Index>(all_rows.H * call_.S, 1);
    const Index each = std::max(scores_at_once / row, rows_at_least);
    for (Index first = 0; first < call_.L; first += at_once * each) {
      const Index end = std::min(first + at_once * each, call_.L);
      std::vector<Tensors> found(static_cast<std::size_t>((end - first + each - 1) / each));
      parallel_for(end - first, each, [&](Index from, Index to) {
        found[static_cast<std::size_t>(from / each)] = results_of(all_rows, first + from, first + to);
      });
      for (std::size_t n = 0; n < found.size(); ++n) {
        const Index from = first + static_cast<Index>(n) * each;
        add_results(found[n], {sample, heads, key_heads, from_to(from, std::min(from + each, end))});
      }
    }
  }
  Tensors results() const {
    Tensors all;
    for (const auto& [name, x] : sums_) all[name] = x.array();
    return all;
  }

 private:
  // Weights are as many as scores: only when the candidate holds them.
  bool is_wanted(const std::string& name) const {
    return name == "output" || name == "lse" || call_.candidate.contains(name);
  }
  Tensors results_of(const Call& all_rows, Index from, Index to) const {
    Call block = cut(all_rows, {0, from_to(0, all_rows.H), from_to(0, all_rows.Hk), from_to(from, to)});
    block.samples = all_rows.samples;
    Tensors results = evaluate(block, formula_, gradients_).results;
    std::erase_if(results, [&](const auto& named) { return !is_wanted(named.first); });
    return results;
  }
  void add_results(const Tensors& results, const Part& part) {
    for (const auto& [name, x] : results) {
      const Shape shape = whole_shape(call_, name, x.shape());
      add(x, axes_of(call_, name, shape), part, sums_.try_emplace(name, shape).first->second);
    }
  }

  const Call& call_;
  const Formula& formula_;
  bool gradients_;
  std::map<std::string, Numbers, std::less<>> sums_;
};

// Whether a tensor of the candidate is made by this part alone.
bool is_of(const Call& call, const Part& part, const std::string& name, const Array<double>& x) {
  const Axes axes = axes_of(call, name, x.shape());
  const bool all_heads = static_cast<Index>(part.heads.size()) == call.H;
  return (axes.sample >= 0 || call.B == 1) && (axes.head >= 0 || axes.key_head >= 0 || all_heads);
}

}  // namespace

bool has_parts(const Call& call) {
  if (!call.rows.empty()) return false;
  return std::none_of(call.inputs.begin(), call.inputs.end(), [](const auto& named) {
    return named.first == "x" || named.first == "projection" || named.first.starts_with("w_");
  });
}

Call part_of(const Call& call, Index sample, std::span<const Index> rows) {
  return cut(call, {sample, from_to(0, call.H), from_to(0, call.Hk), Indices(rows.begin(), rows.end())});
}

Call heads_of_part(const Call& part, Index key_head) {
  Call result = cut(part, {0, heads_of(part, key_head), {key_head}, from_to(0, part.L)});
  result.samples = part.samples;
  result.rows = part.rows;
  return result;
}

std::vector<Call> sampled_parts(const Call& call) {
  const Index row = std::max<Index>(call.H * call.S, 1), samples = std::min<Index>(call.B, 2);
  const Index count = std::clamp<Index>(many_scores / row / samples, std::min<Index>(3, call.L), call.L);
  Indices rows;
  for (Index n = 0; n < count; ++n) rows.push_back((n + 1) * call.L / count - 1);
  std::vector<Call> parts;
  for (Index n = 0; n < samples; ++n) parts.push_back(part_of(call, n == 0 ? 0 : call.B - 1, rows));
  return parts;
}

std::optional<Call> part_with_all_rows(const Call& call, Index sample, std::optional<Index> key_head,
                                       const std::vector<std::string>& names) {
  const Part part{sample, key_head ? heads_of(call, *key_head) : from_to(0, call.H),
                  key_head ? Indices{*key_head} : from_to(0, call.Hk), from_to(0, call.L)};
  for (const std::string& name : names) {
    if (!is_of(call, part, name, call.candidate.find(name)->second)) return std::nullopt;
  }
  Call result = cut(call, part);
  for (const auto& [name, x] : call.candidate) {
    if (is_of(call, part, name, x)) result.candidate[name] = part.of(x, axes_of(call, name, x.shape()));
  }
  return result;
}

Tensors evaluate_in_blocks(const Call& call, const Formula& formula, Cut along) {
  if (formula.whole || !has_parts(call)) return evaluate(call, formula).results;
  Blocks blocks(call, formula);
  for (Index b = 0; b < call.B; ++b) {
    if (along == Cut::rows) blocks.add_heads(b, from_to(0, call.H), from_to(0, call.Hk));
    for (Index g = 0; along == Cut::rows_and_heads && g < call.Hk; ++g) {
      blocks.add_heads(b, heads_of(call, g), {g});
    }
  }
  return blocks.results();
}

}  // namespace tapehead::check
