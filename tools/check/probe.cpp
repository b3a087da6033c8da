#include <tools/check/probe.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <tapehead/core/random.h>
#include <tools/check/compare.h>
#include <tools/check/sample.h>

namespace tapehead::check {
namespace {

struct Sizes {
  Index B, H, Hk, L, S, D, E;
};

Sizes sizes_of(const Call& c) { return {c.B, c.H, c.Hk, c.L, c.S, c.D, c.E}; }

// The axes of an input, a letter each; empty for one that cannot be made in other sizes.
std::string axes_of(std::string_view name) {
  struct Axes {
    std::string_view prefix, letters;
  };
  static constexpr Axes known[] = {{"query_positions", "BL"},
                                   {"key_positions", "BS"},
                                   {"query_segments", "BL"},
                                   {"key_segments", "BS"},
                                   {"query_lengths", "B"},
                                   {"key_lengths", "B"},
                                   {"query_gain", "D"},
                                   {"key_gain", "D"},
                                   {"query", "BHLD"},
                                   {"key", "BKSD"},
                                   {"value", "BKSE"},
                                   {"mask", "BHLS"},
                                   {"bias", "BHLS"},
                                   {"dropout_keep", "BHLS"},
                                   {"sink", "H"},
                                   {"slopes", "H"},
                                   {"upstream_weights", "BHLS"},
                                   {"upstream_lse", "BHL"},
                                   {"upstream", "BHLE"}};
  for (const Axes& axes : known) {
    if (name.starts_with(axes.prefix)) return std::string(axes.letters);
  }
  return {};
}

Index extent(char letter, const Sizes& n) {
  switch (letter) {
    case 'B':
      return n.B;
    case 'H':
      return n.H;
    case 'K':
      return n.Hk;
    case 'L':
      return n.L;
    case 'S':
      return n.S;
    case 'D':
      return n.D;
    default:
      return n.E;
  }
}

// In other sizes; axes of 1 that broadcast stay 1.
Shape shape_in(const std::string& axes, const Shape& old, const Sizes& n) {
  std::vector<Index> extents;
  for (int axis = 0; axis < old.rank(); ++axis) {
    const bool expands = axes == "BHLS" && old[axis] == 1;
    extents.push_back(expands ? 1 : extent(axes[static_cast<std::size_t>(axis)], n));
  }
  return Shape(std::span<const Index>(extents));
}

// Numbers of the kind that an input holds.
class InputNumbers {
 public:
  explicit InputNumbers(const Call& call) : call_(call) {}

  Array<double> like(std::string_view name, const Array<double>& old, const Shape& shape, const Sizes& n) {
    Array<double> x = Array<double>::uninitialized(shape);
    const Index row = shape.rank() > 0 ? shape.dim(-1) : 1;
    Index place = 0;
    for (double& v : x.mutable_values()) v = number(name, old, place % row, place / row, n), ++place;
    return x;
  }

 private:
  double number(std::string_view name, const Array<double>& old, Index i, Index outer, const Sizes& n) {
    if (name == "mask") return mask(old, i);
    if (name == "dropout_keep") return random_.uniform() >= call_.contract.dropout ? 1 : 0;
    if (name == "key_lengths") return static_cast<double>(n.S - i % 2);
    if (name == "query_lengths") return static_cast<double>(n.L);
    if (name.ends_with("_segments")) return i < (name == "query_segments" ? n.L : n.S) / 2 ? 0 : 1;
    if (name.ends_with("_positions")) return static_cast<double>(i + 3 * outer);
    if (name == "slopes") return std::exp2(-8 * static_cast<double>(i + 1) / static_cast<double>(n.H));
    if (name.ends_with("_gain")) return 1 + 0.3 * random_.normal();
    return size * random_.normal();
  }
  double mask(const Array<double>& old, Index key) {
    const bool allowed = key == 0 || random_.uniform() < 0.7;
    if (!call_.mask_is_additive) return allowed ? 1 : 0;
    const bool excludes =
        std::any_of(old.values().begin(), old.values().end(), [](double v) { return v < -1e3; });
    return allowed    ? random_.normal()
           : excludes ? -std::numeric_limits<double>::infinity()
                      : random_.normal();
  }

  static constexpr double size = 1.5;  // scores of a few units: neither one-hot nor flat
  const Call& call_;
  Generator random_{20};
};

// The call in other sizes with random numbers and an upstream gradient; nothing when an input does not allow
// it.
std::optional<Call> call_in(const Call& call, const Sizes& n) {
  Call made;
  made.B = n.B, made.H = n.H, made.Hk = n.Hk, made.L = n.L, made.S = n.S, made.D = n.D, made.E = n.E;
  made.contract = call.contract;
  made.contract.computed_in = NumberType::f64;
  made.mask_is_additive = call.mask_is_additive;
  made.mask_in_numbers = call.mask_in_numbers;
  const double by_default = 1 / std::sqrt(static_cast<double>(call.D));
  if (std::abs(call.contract.scale / by_default - 1) < 1e-12) {
    made.contract.scale = 1 / std::sqrt(static_cast<double>(n.D));
  }
  if (call.contract.causal) {
    const bool corner = call.contract.causal->front() == call.S - call.L && call.S != call.L;
    made.contract.causal = {corner ? n.S - n.L : call.contract.causal->front()};
  }
  InputNumbers numbers(call);
  Tensors inputs = call.inputs;
  inputs.try_emplace("upstream", Array<double>::zeros({call.B, call.H, call.L, call.E}));
  for (const auto& [name, old] : inputs) {
    if (name.ends_with("_after") || name.starts_with("partial_") || name == "output_second") continue;
    const std::string axes = axes_of(name);
    if (axes.empty() || static_cast<int>(axes.size()) != old.rank()) return std::nullopt;
    made.inputs[name] = numbers.like(name, old, shape_in(axes, old.shape(), n), n);
  }
  return made;
}

// From the smallest change on. Of a large call first to few rows and keys: many formulas are tried.
std::vector<Sizes> other_sizes(const Call& call) {
  constexpr Index rows = 12, keys = 16;
  Sizes now = sizes_of(call);
  if (call.B * call.H * call.L * call.S > many_scores)
    now.L = std::min(now.L, rows), now.S = std::min(now.S, keys);
  std::vector<Sizes> list{now};
  const auto add = [&](auto change) {
    Sizes n = now;
    change(n);
    list.push_back(n);
  };
  add([](Sizes& n) { n.D += 2; });
  add([](Sizes& n) { n.E += 3; });
  add([](Sizes& n) { n.S += 2; });
  add([](Sizes& n) { n.L += 2, n.S += 3; });
  add([](Sizes& n) { n.B += 1; });
  add([](Sizes& n) { n.H = 3 * n.Hk; });
  add([](Sizes& n) { n.H += n.Hk, n.Hk += n.H == 2 * n.Hk ? n.Hk : 0; });
  add([](Sizes& n) { n.H = 6, n.Hk = 2; });
  add([](Sizes& n) { n = {2, 6, 2, 3, 7, n.D + 2, n.E + 3}; });
  add([](Sizes& n) { n = {2, 5, 5, 5, 11, n.D + 4, n.E + 3}; });
  return list;
}

std::string in_words(const Sizes& now, const Sizes& then) {
  struct Named {
    const char* text;
    Index now, then;
  };
  const Named all[] = {{"B = {} samples instead of {}", now.B, then.B},
                       {"H = {} query heads instead of {}", now.H, then.H},
                       {"Hk = {} key heads instead of {}", now.Hk, then.Hk},
                       {"L = {} queries instead of {}", now.L, then.L},
                       {"S = {} keys instead of {}", now.S, then.S},
                       {"a head width of D = {} instead of {}", now.D, then.D},
                       {"a value width of E = {} instead of {}", now.E, then.E}};
  std::string text;
  for (const Named& n : all) {
    if (n.now != n.then)
      text += (text.empty() ? "" : ", ") + fmt::format(fmt::runtime(n.text), n.then, n.now);
  }
  return text.empty() ? "random numbers with a random upstream gradient, in float64" : text;
}

// The hypotheses of one mistake in a call, each with its results.
std::vector<Hypothesis> hypotheses_of(const std::vector<Finding>& set, const std::vector<Hypothesis>& all) {
  std::vector<Hypothesis> acting;
  for (const Finding& finding : set) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Hypothesis& h) { return h.mistake == finding.mistake; });
    if (found != all.end()) acting.push_back(*found);
  }
  return acting;
}

constexpr double visible = 1e-3;  // of the largest number: seen in each type

bool differ(const Tensors& a, const Tensors& b) {
  return std::any_of(a.begin(), a.end(), [&](const auto& named) {
    const auto other = b.find(named.first);
    if (other == b.end() || other->second.shape() != named.second.shape()) return true;
    const double unit = largest_finite(named.second);
    for (Index n = 0; n < named.second.size(); ++n) {
      const double x = named.second.data()[n], y = other->second.data()[n];
      if (std::isfinite(x) != std::isfinite(y) || std::abs(x - y) > visible * unit) return true;
    }
    return false;
  });
}

bool separates(const Call& probe, const std::vector<std::vector<Finding>>& alternatives) {
  Call right = probe;
  right.candidate = evaluate(probe, right_formula()).results;
  std::vector<Hypothesis> all;
  for (const Family family : families()) {
    for (Hypothesis& h : family(right)) all.push_back(std::move(h));
  }
  std::vector<Tensors> results;
  for (const auto& set : alternatives) {
    const std::vector<Hypothesis> acting = hypotheses_of(set, all);
    if (acting.size() != set.size()) {
      results.push_back(right.candidate);  // it cannot be made here: right
    } else {
      Formula f = right_formula();
      for (const Hypothesis& h : acting) h.change(f);
      results.push_back(evaluate(probe, f).results);
    }
    for (std::size_t n = 0; n + 1 < results.size(); ++n) {
      if (!differ(results[n], results.back())) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<Separation> separation(const Call& call,
                                     const std::vector<std::vector<Finding>>& alternatives) {
  for (const Sizes& sizes : other_sizes(call)) {
    std::optional<Call> probe = call_in(call, sizes);
    if (probe && separates(*probe, alternatives)) {
      return Separation{in_words(sizes_of(call), sizes), std::move(*probe)};
    }
  }
  return std::nullopt;
}

Call separating_probe(const Call& call, const std::vector<std::vector<Finding>>& alternatives) {
  if (auto found = separation(call, alternatives)) return std::move(found->call);
  if (auto other = call_in(call, other_sizes(call).back())) return std::move(*other);
  Call same = call;
  same.candidate.clear();
  return same;
}

}  // namespace tapehead::check
