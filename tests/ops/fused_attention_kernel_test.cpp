// The fused attention kernel against its formulas written as loops in double, gradients included, at every
// vector level that the machine has.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/kernels/fused_attention.h>
#include <tapehead/ops/kernels/processor.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead::kernels {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

std::vector<Arch> archs_here() {
  std::vector<Arch> archs;
  for (const Arch arch : {Arch::baseline, Arch::avx2, Arch::avx512}) {
    if (processor_has(arch)) archs.push_back(arch);
  }
  return archs;
}

// One level while it lives.
class WithArch {
 public:
  explicit WithArch(Arch arch) { use_arch(arch); }
  ~WithArch() { use_arch(before_); }
  WithArch(const WithArch&) = delete;
  WithArch& operator=(const WithArch&) = delete;

 private:
  Arch before_ = arch_in_use();
};

struct Mistake {  // what a wrong kernel might do; the witness can do it too
  bool tiled_heads = false, shifted_range = false, no_cap_slope = false, no_delta = false,
       signed_distance = false;
};

template <class T>
struct Results {
  Array<T> output;
  Array<double> lse;
  Array<T> dq, dk, dv, dbias, dslopes, dsinks;
  double largest_score = 0;
};

// A problem with its arrays. Heads may stand before rows or after, and the last axis may be part of a longer
// one.
template <class T>
struct Case {
  Index B = 1, H = 1, Hk = 1, L = 1, S = 1, D = 1, E = 1;
  double scale = 1, softcap = 0;
  bool rows_first = false;  // (B, L, H, D) instead of (B, H, L, D)
  Index gap = 0;            // unused elements after each row
  std::uint64_t seed = 1;
  bool bias = false, slopes = false, sinks = false, documents = false, range_of_batch = false, dlse = false;
  Shape bias_shape;
  std::vector<Shape> mask_shapes;
  std::vector<KeyRange> ranges;
  double dropout = 0;
  std::function<void(Case&)> change;  // of the numbers, before the kernel sees them

  Array<T> q, k, v, dout, dlse_values, bias_values, slope_values, sink_values;
  std::vector<Array<bool>> masks;
  Array<Index> query_documents, key_documents, positions;

  void fill() {
    Generator random(seed);
    q = random.normal<T>({B * H * L * (D + gap)});
    k = random.normal<T>({B * Hk * S * (D + gap)});
    v = random.normal<T>({B * Hk * S * (E + gap)});
    dout = random.normal<T>({B * H * L * (E + gap)});
    dlse_values = random.normal<T>({B * H * L});
    bias_values = random.normal<T>(bias ? bias_shape : Shape{});
    slope_values = random.uniform<T>({H}, 0.01, 0.3);
    sink_values = random.normal<T>({H});
    for (const Shape& shape : mask_shapes) {
      auto mask = Array<bool>::uninitialized(shape);
      for (bool& x : mask.mutable_values()) x = random.uniform() < 0.7;
      masks.push_back(mask);
    }
    query_documents = random.integers({B * L}, 3);
    key_documents = random.integers({B * S}, 3);
    positions = random.integers({B}, 9);
    if (change) change(*this);
  }

  // NaN for the keys and values that no query may see: they have no part in anything.
  void spoil_unseen_keys() {
    for (Index b = 0; b < B; ++b) {
      for (Index key_head = 0; key_head < Hk; ++key_head) {
        for (Index j = 0; j < S; ++j) {
          if (seen_by_some(b, key_head, j)) continue;
          const T nan = std::numeric_limits<T>::quiet_NaN();
          const Index key = at(rows<const T>(k.data(), Hk, S, D), b, key_head, j);
          const Index value = at(rows<const T>(v.data(), Hk, S, E), b, key_head, j);
          for (Index d = 0; d < D; ++d) k.set({key + d}, nan);
          for (Index e = 0; e < E; ++e) v.set({value + e}, nan);
        }
      }
    }
  }

  template <class U>
  HeadRows<U> rows(U* data, Index heads, Index length, Index columns) const {
    const Index row = columns + gap;
    if (rows_first) return {data, length * heads * row, row, heads * row};
    return {data, heads * length * row, length * row, row};
  }
  template <class U>
  static ScoreArray<U> broadcast(U* data, const Shape& shape, const Shape& scores) {
    const Strides step(shape, scores);
    return {data, step[0], step[1], step[2], step[3]};
  }
  Shape scores() const { return {B, H, L, S}; }

  AttentionProblem<T> problem(std::vector<ScoreArray<const bool>>& allowed) const {
    AttentionProblem<T> p;
    p.batches = B, p.heads = H, p.key_heads = Hk, p.queries = L, p.keys = S, p.width = D, p.value_width = E;
    p.q = rows(q.data(), H, L, D), p.k = rows(k.data(), Hk, S, D), p.v = rows(v.data(), Hk, S, E);
    p.scale = scale, p.softcap = softcap;
    if (bias) p.bias = broadcast(bias_values.data(), bias_shape, scores());
    if (slopes) p.slopes = slope_values.data(), p.positions = positions.data();
    if (!ranges.empty()) p.ranges = ranges.data(), p.range_of_batch = range_of_batch;
    for (const Array<bool>& mask : masks) allowed.push_back(broadcast(mask.data(), mask.shape(), scores()));
    p.allowed = allowed.data(), p.allowed_count = static_cast<Index>(allowed.size());
    if (documents) p.query_documents = query_documents.data(), p.key_documents = key_documents.data();
    if (sinks) p.sinks = sink_values.data();
    p.dropout = {dropout, 77, 5};
    return p;
  }

  Results<T> fused(AttentionRows* report = nullptr, bool backward = true) const {
    std::vector<ScoreArray<const bool>> allowed;
    const AttentionProblem<T> p = problem(allowed);
    Results<T> y;
    y.output = Array<T>::zeros({B * H * L * (E + gap)});
    y.lse = Array<double>::zeros({B, H, L});
    y.dq = Array<T>::full(q.shape(), gap ? T{0} : T{7}), y.dk = Array<T>::full(k.shape(), gap ? T{0} : T{7});
    y.dv = Array<T>::full(v.shape(), gap ? T{0} : T{7});
    y.dbias = Array<T>::zeros(bias_values.shape());
    y.dslopes = Array<T>::zeros({H}), y.dsinks = Array<T>::zeros({H});
    const AttentionRows found =
        attention_forward(p, rows(y.output.mutable_values().data(), H, L, E), y.lse.mutable_values().data());
    if (report) *report = found;
    if (!backward) return y;
    AttentionGradients<T> g;
    g.output = rows(y.output.data(), H, L, E), g.doutput = rows(dout.data(), H, L, E);
    g.lse = y.lse.data();
    if (dlse) g.dlse = dlse_values.data();
    g.dq = rows(y.dq.mutable_values().data(), H, L, D);
    g.dk = rows(y.dk.mutable_values().data(), Hk, S, D);
    g.dv = rows(y.dv.mutable_values().data(), Hk, S, E);
    if (bias) g.dbias = y.dbias.mutable_values().data();
    if (slopes) g.dslopes = y.dslopes.mutable_values().data();
    if (sinks) g.dsinks = y.dsinks.mutable_values().data();
    attention_backward(p, g);
    return y;
  }

  // The formulas, one element at a time, in double.
  Results<double> witness(const Mistake& mistake = {}) const {
    Results<double> y;
    y.output = Array<double>::zeros({B * H * L * (E + gap)});
    y.lse = Array<double>::full({B, H, L}, -inf);
    y.dq = Array<double>::zeros(q.shape()), y.dk = Array<double>::zeros(k.shape());
    y.dv = Array<double>::zeros(v.shape()), y.dbias = Array<double>::zeros(bias_values.shape());
    y.dslopes = Array<double>::zeros({H}), y.dsinks = Array<double>::zeros({H});
    for (Index b = 0; b < B; ++b) {
      for (Index h = 0; h < H; ++h) {
        for (Index i = 0; i < L; ++i) witness_row(mistake, b, h, i, y);
      }
    }
    return y;
  }

 private:
  static Index at(const HeadRows<const T>& x, Index b, Index h, Index row) {
    return b * x.batch + h * x.head + row * x.row;
  }
  bool seen_by_some(Index b, Index key_head, Index j) const {
    for (Index h = key_head * (H / Hk); h < (key_head + 1) * (H / Hk); ++h) {
      for (Index i = 0; i < L; ++i) {
        if (allowed({}, b, h, i, j)) return true;
      }
    }
    return false;
  }
  bool allowed(const Mistake& mistake, Index b, Index h, Index i, Index j) const {
    if (!ranges.empty()) {
      const KeyRange& r = ranges[static_cast<std::size_t>(range_of_batch ? b : 0)];
      const Index to = r.to + (mistake.shifted_range ? 1 : 0);
      if (j < r.first || j >= r.last || j < i + r.from || j >= i + to) return false;
    }
    for (const Array<bool>& mask : masks) {
      const Strides step(mask.shape(), scores());
      if (!mask.values()[static_cast<std::size_t>(b * step[0] + h * step[1] + i * step[2] + j * step[3])])
        return false;
    }
    return !documents || query_documents(b * L + i) == key_documents(b * S + j);
  }
  double kept(Index b, Index h, Index i, Index j) const {
    if (dropout == 0) return 1;
    Generator random(77);
    const Index draw = 5 + ((b * H + h) * L + i) * S + j;
    for (Index n = 0; n < draw; ++n) random.bits();
    return random.uniform() < dropout ? 0 : 1 / (1 - dropout);
  }

  void witness_row(const Mistake& mistake, Index b, Index h, Index i, Results<double>& y) const {
    const Index group = H / Hk, hk = mistake.tiled_heads ? h % Hk : h / group;
    const auto n = static_cast<std::size_t>(S);
    const T* query = q.data() + at(rows(q.data(), H, L, D), b, h, i);
    const Index out_at = at(rows(dout.data(), H, L, E), b, h, i);
    auto key_at = [&](Index j) { return at(rows(k.data(), Hk, S, D), b, hk, j); };
    auto value_at = [&](Index j) { return at(rows(v.data(), Hk, S, E), b, hk, j); };
    const Strides bias_step(bias ? bias_shape : Shape{}, scores());
    auto bias_at = [&](Index j) {
      return static_cast<std::size_t>(b * bias_step[0] + h * bias_step[1] + i * bias_step[2] +
                                      j * bias_step[3]);
    };
    const double slope = slopes ? static_cast<double>(slope_values(h)) : 0;
    auto distance = [&](Index j) {
      const auto d = static_cast<double>(i + positions(b) - j);
      return mistake.signed_distance ? d : std::abs(d);
    };
    std::vector<double> s(n, -inf), cap_slope(n, 1.0), w(n), keep(n);
    double largest = -inf;
    for (Index j = 0; j < S; ++j) {
      if (!allowed(mistake, b, h, i, j)) continue;
      const auto J = static_cast<std::size_t>(j);
      double t = 0;
      for (Index d = 0; d < D; ++d)
        t += static_cast<double>(query[d]) * static_cast<double>(k.data()[key_at(j) + d]);
      t *= scale;
      if (softcap != 0) {
        const double c = std::tanh(t / softcap);
        t = softcap * c;
        if (!mistake.no_cap_slope) cap_slope[J] = 1 - c * c;
      }
      if (bias) t += static_cast<double>(bias_values.values()[bias_at(j)]);
      if (slopes) t -= slope * distance(j);
      s[J] = t;
      largest = std::max(largest, t);
      if (t > -inf) y.largest_score = std::max(y.largest_score, std::abs(t));
    }
    const double sink = sinks ? static_cast<double>(sink_values(h)) : -inf;
    if (largest == -inf) return;
    const double top = std::max(largest, sink);
    double total = std::exp(sink - top);
    for (const double x : s) total += std::exp(x - top);
    const double lse = top + std::log(total);
    y.lse.mutable_values()[static_cast<std::size_t>((b * H + h) * L + i)] = lse;
    double delta = 0;
    std::vector<double> dw(n);
    for (Index j = 0; j < S; ++j) {
      const auto J = static_cast<std::size_t>(j);
      w[J] = std::exp(s[J] - lse);
      if (w[J] == 0) continue;
      keep[J] = kept(b, h, i, j);
      for (Index e = 0; e < E; ++e) {
        const auto value = static_cast<double>(v.data()[value_at(j) + e]),
                   d = static_cast<double>(dout.data()[out_at + e]);
        y.output.mutable_values()[static_cast<std::size_t>(out_at + e)] += keep[J] * w[J] * value;
        y.dv.mutable_values()[static_cast<std::size_t>(value_at(j) + e)] += keep[J] * w[J] * d;
        dw[J] += keep[J] * value * d;
      }
      delta += w[J] * dw[J];
    }
    if (mistake.no_delta) delta = 0;
    if (dlse) delta -= static_cast<double>(dlse_values((b * H + h) * L + i));
    for (Index j = 0; j < S; ++j) {
      const auto J = static_cast<std::size_t>(j);
      if (w[J] == 0) continue;
      double ds = w[J] * (dw[J] - delta);
      if (bias) y.dbias.mutable_values()[bias_at(j)] += ds;
      if (slopes) y.dslopes.mutable_values()[static_cast<std::size_t>(h)] -= ds * distance(j);
      ds *= scale * cap_slope[J];
      const Index query_at = at(rows(q.data(), H, L, D), b, h, i);
      for (Index d = 0; d < D; ++d) {
        y.dq.mutable_values()[static_cast<std::size_t>(query_at + d)] +=
            ds * static_cast<double>(k.data()[key_at(j) + d]);
        y.dk.mutable_values()[static_cast<std::size_t>(key_at(j) + d)] += ds * static_cast<double>(query[d]);
      }
    }
    if (sinks) y.dsinks.mutable_values()[static_cast<std::size_t>(h)] -= std::exp(sink - lse) * delta;
  }
};

// Rounding of a score moves its weight by as much as the score is large; a sum of n terms of both signs errs
// by about sqrt(n) units. 32 units leave room for both at these sizes.
template <class T>
double tolerance(const Results<double>& expected) {
  return 32 * static_cast<double>(std::numeric_limits<T>::epsilon()) * (1 + expected.largest_score);
}

// The errors of results that are sums of terms of both signs are relative to the terms: `floor` bounds their
// size.
template <class T>
testing::AssertionResult close(const char* name, const Array<T>& actual, const Array<double>& expected,
                               double tolerance, double floor) {
  const double error = absolute_error(actual.template cast<double>(), expected);
  if (error <= tolerance * std::max(magnitude(expected), floor)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name << ": error " << error << " at magnitude " << magnitude(expected)
                                     << ", relative tolerance " << tolerance;
}

template <class T>
testing::AssertionResult agrees(const Results<T>& y, const Results<double>& expected) {
  const double t = tolerance<T>(expected);
  const double floor = magnitude(expected.dv);
  for (const auto& result :
       {close("output", y.output, expected.output, t, 0.1), close("lse", y.lse, expected.lse, t, 1),
        close("dq", y.dq, expected.dq, t, floor), close("dk", y.dk, expected.dk, t, floor),
        close("dv", y.dv, expected.dv, t, 0), close("dbias", y.dbias, expected.dbias, t, floor),
        close("dslopes", y.dslopes, expected.dslopes, 8 * t, floor),
        close("dsinks", y.dsinks, expected.dsinks, 8 * t, floor)}) {
    if (!result) return result;
  }
  return testing::AssertionSuccess();
}

template <class T>
class FusedAttentionKernel : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(FusedAttentionKernel, Types);

template <class T>
void expect_agreement(Case<T> x) {
  x.fill();
  x.spoil_unseen_keys();
  const Results<double> expected = x.witness();
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    EXPECT_TRUE(agrees(x.fused(), expected))
        << name_of(arch) << " B " << x.B << " H " << x.H << " Hk " << x.Hk << " L " << x.L << " S " << x.S
        << " D " << x.D << " E " << x.E << " seed " << x.seed;
  }
}

TYPED_TEST(FusedAttentionKernel, AgreesAroundEveryEdgeOfATile) {
  std::uint64_t seed = 1;
  for (const Index length : {1, 2, 5, 6, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
    for (const Index keys : {1, 6, 7, 63, 64, 65, 255, 256, 257, 513}) {
      if (length * keys > 129 * 257 && length != 63) continue;
      Case<TypeParam> x;
      x.L = length, x.S = keys, x.D = 5, x.E = 3, x.scale = 0.4, x.seed = seed++;
      expect_agreement(x);
      x.ranges = {{.to = std::max<Index>(1, keys - length + 1)}};
      expect_agreement(x);
    }
  }
}

TYPED_TEST(FusedAttentionKernel, AgreesForEveryWidth) {
  for (const Index width :
       {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 96, 127, 128, 129, 256, 300}) {
    Case<TypeParam> x;
    x.L = 9, x.S = 20, x.D = width, x.E = width % 37 + 1, x.scale = 1 / std::sqrt(static_cast<double>(width));
    expect_agreement(x);
    std::swap(x.D, x.E);
    expect_agreement(x);
  }
}

TYPED_TEST(FusedAttentionKernel, AgreesForRandomCombinationsOfOptions) {
  constexpr Index sizes[] = {1, 2, 3, 5, 6, 7, 8, 13, 16, 17, 31, 40, 63, 64, 65, 70, 100};
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Generator random(seed);
    auto pick = [&](const auto& list) { return list[random.below(static_cast<Index>(std::size(list)))]; };
    auto coin = [&](double p = 0.5) { return random.uniform() < p; };
    Case<TypeParam> x;
    x.seed = seed;
    x.B = 1 + random.below(3), x.Hk = 1 + random.below(3), x.H = x.Hk * (1 + random.below(3));
    x.L = pick(sizes), x.S = pick(sizes), x.D = pick(sizes) % 40 + 1, x.E = pick(sizes) % 40 + 1;
    x.scale = 1 / std::sqrt(static_cast<double>(x.D)), x.softcap = coin(0.3) ? 2 : 0;
    x.rows_first = coin(), x.gap = random.below(3);
    auto some_axes = [&] {
      return Shape{coin() ? x.B : 1, coin() ? x.H : 1, coin() ? x.L : 1, coin() ? x.S : 1};
    };
    if (coin(0.4)) x.bias = true, x.bias_shape = some_axes();
    x.slopes = coin(0.3), x.sinks = coin(0.3), x.documents = coin(0.2), x.dlse = coin(0.5);
    if (coin(0.3)) x.mask_shapes.push_back(some_axes());
    if (coin(0.2)) x.mask_shapes.push_back(some_axes());
    x.range_of_batch = coin();
    if (coin(0.6)) {
      for (Index b = 0; b < x.B; ++b) {
        KeyRange range;
        if (coin()) range.to = random.below(x.S + 1);
        if (coin()) range.from = -random.below(x.S);
        if (coin(0.3)) range.last = random.below(x.S + 1);
        if (coin(0.2)) range.first = random.below(x.S);
        x.ranges.push_back(range);
      }
    }
    if (coin(0.2) && x.B * x.H * x.L * x.S < 3000) x.dropout = 0.3;
    expect_agreement(x);
  }
}

// Heads of few queries share a block, and a window leaves keys out on both sides of what each of them sees.
TYPED_TEST(FusedAttentionKernel, AgreesWhereHeadsShareABlock) {
  for (const Index length : {1, 3, 8, 9, 17, 20, 33, 50, 63}) {
    for (const Index heads : {2, 5, 8}) {
      Case<TypeParam> x;
      x.B = 2, x.H = 2 * heads, x.Hk = 2, x.L = length, x.S = 90, x.D = 6, x.E = 7, x.scale = 0.4;
      x.ranges = {{.from = 3, .to = 11}, {.last = 77, .from = -20, .to = 30}}, x.range_of_batch = true;
      x.seed = static_cast<std::uint64_t>(length * heads);
      expect_agreement(x);
      x.mask_shapes = {{1, 1, 1, 90}};
      expect_agreement(x);
    }
  }
}

// The witness and the tolerance tell a right kernel from one with a mistake.
TYPED_TEST(FusedAttentionKernel, AMistakeIsNotWithinTheTolerance) {
  Case<TypeParam> x;
  x.B = 2, x.H = 6, x.Hk = 3, x.L = 20, x.S = 70, x.D = 8, x.E = 5, x.scale = 0.35, x.softcap = 3;
  x.slopes = x.dlse = true, x.ranges = {{.to = 40}};
  x.fill();
  const Results<TypeParam> y = x.fused();
  EXPECT_TRUE(agrees(y, x.witness()));
  for (const Mistake& mistake :
       {Mistake{.tiled_heads = true}, Mistake{.shifted_range = true}, Mistake{.no_cap_slope = true},
        Mistake{.no_delta = true}, Mistake{.signed_distance = true}}) {
    EXPECT_FALSE(agrees(y, x.witness(mistake)));
  }
}

TYPED_TEST(FusedAttentionKernel, GradientsThatAreNotWantedAreNotTouched) {
  Case<TypeParam> x;
  x.L = 10, x.S = 12, x.D = 4, x.E = 4;
  x.fill();
  const Results<TypeParam> all = x.fused();
  std::vector<ScoreArray<const bool>> allowed;
  const AttentionProblem<TypeParam> p = x.problem(allowed);
  for (int wanted = 0; wanted < 8; ++wanted) {
    auto dq = Array<TypeParam>::zeros(x.q.shape()), dk = Array<TypeParam>::zeros(x.k.shape()),
         dv = Array<TypeParam>::zeros(x.v.shape());
    AttentionGradients<TypeParam> g;
    g.output = x.rows(all.output.data(), 1, x.L, x.E), g.doutput = x.rows(x.dout.data(), 1, x.L, x.E);
    g.lse = all.lse.data();
    if (wanted & 1) g.dq = x.rows(dq.mutable_values().data(), 1, x.L, x.D);
    if (wanted & 2) g.dk = x.rows(dk.mutable_values().data(), 1, x.S, x.D);
    if (wanted & 4) g.dv = x.rows(dv.mutable_values().data(), 1, x.S, x.E);
    attention_backward(p, g);
    EXPECT_TRUE(same_bits(dq, wanted & 1 ? all.dq : Array<TypeParam>::zeros(dq.shape())));
    EXPECT_TRUE(same_bits(dk, wanted & 2 ? all.dk : Array<TypeParam>::zeros(dk.shape())));
    EXPECT_TRUE(same_bits(dv, wanted & 4 ? all.dv : Array<TypeParam>::zeros(dv.shape())));
  }
}

template <class T>
std::vector<Array<T>> arrays_of(const Results<T>& y) {
  return {y.output, y.lse.template cast<T>(), y.dq, y.dk, y.dv, y.dbias, y.dslopes, y.dsinks};
}

// Each path by which work is cut: blocks of one head that take turns, keys in pieces, units, a shared bias.
TYPED_TEST(FusedAttentionKernel, TheSameBitsOnAnyNumberOfThreads) {
  Case<TypeParam> turns, pieces, units, shared;
  turns.L = turns.S = 600, turns.D = turns.E = 32, turns.ranges = {{.to = 1}};
  pieces.H = 4, pieces.L = 2, pieces.S = 4200, pieces.D = pieces.E = 24;
  units.B = 3, units.H = 6, units.Hk = 3, units.L = units.S = 150, units.D = units.E = 32;
  units.slopes = units.sinks = true;
  shared = units, shared.bias = true, shared.bias_shape = {1, 1, 150, 150};
  Case<TypeParam> by_head = shared, by_batch = shared;
  by_head.bias_shape = {1, 6, 150, 1}, by_batch.bias_shape = {3, 1, 1, 150};
  for (Case<TypeParam>* x : {&turns, &pieces, &units, &shared, &by_head, &by_batch}) {
    x->scale = 0.2;
    x->fill();
    expect_same_bits_on_any_threads([&] { return arrays_of(x->fused()); });
  }
}

// A key is summed with the same others wherever the mask that hides the rest comes from.
TYPED_TEST(FusedAttentionKernel, AKeyThatNoRowMaySeeMayHoldNaN) {
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    for (const bool by_range : {true, false}) {
      Case<TypeParam> x;
      x.H = 2, x.L = 70, x.S = 300, x.D = 6, x.E = 5, x.scale = 0.4;
      if (by_range) {
        x.ranges = {{.first = 3, .last = 291}};
      } else {
        x.mask_shapes = {{1, 1, 1, 300}};
      }
      x.fill();
      if (!by_range) {
        for (Index j = 0; j < x.S; ++j) x.masks[0].set({0, 0, 0, j}, j >= 3 && j < 291 && j % 50 != 7);
      }
      auto clean = x, dirty = x;
      for (Index j = 0; j < x.S; ++j) {
        if (j >= 3 && j < 291 && (by_range || j % 50 != 7)) continue;
        for (Index e = 0; e < x.D; ++e)
          dirty.k.set({j * x.D + e}, std::numeric_limits<TypeParam>::quiet_NaN());
        for (Index e = 0; e < x.E; ++e)
          dirty.v.set({j * x.E + e}, std::numeric_limits<TypeParam>::infinity());
      }
      dirty.Hk = clean.Hk = 1;
      AttentionRows report;
      const auto expected = arrays_of(clean.fused()), actual = arrays_of(dirty.fused(&report));
      EXPECT_EQ(report.not_finite, -1);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(same_bits(actual[i], expected[i])) << name_of(arch) << " result " << i;
      }
    }
  }
}

TYPED_TEST(FusedAttentionKernel, ReportsTheFirstRowWithoutAKeyAndTheFirstThatIsNotFinite) {
  using T = TypeParam;
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    Case<T> x;
    x.B = 2, x.H = 2, x.Hk = 2, x.L = 80, x.S = 90, x.D = 4, x.E = 3, x.range_of_batch = true;
    x.ranges = {{}, {.to = -4}};  // the first five rows of the second batch see nothing
    x.fill();
    const Results<double> expected = x.witness();
    AttentionRows report;
    const Results<T> y = x.fused(&report);
    EXPECT_TRUE(agrees(y, expected));
    EXPECT_EQ(report.without_key, 2 * 80);
    EXPECT_EQ(report.not_finite, -1);
    EXPECT_EQ(y.lse(1, 0, 4), -inf);
    EXPECT_EQ(y.output(2 * 80 * 3), T{0});

    for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
      Case<T> broken = x;
      broken.q.set({(80 + 33) * 4 + 1}, bad);
      broken.fused(&report, false);
      EXPECT_EQ(report.not_finite, 80 + 33);
      EXPECT_EQ(report.without_key, 2 * 80);
    }
  }
}

// A row without keys is empty with a sink as well, and nothing that it holds comes through.
TYPED_TEST(FusedAttentionKernel, ARowWithoutAKeyGivesNothing) {
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    Case<TypeParam> x;
    x.L = 20, x.S = 4, x.D = 2, x.E = 2, x.sinks = x.dlse = true, x.ranges = {{.to = -5}};
    x.fill();
    auto dirty = x;
    AttentionRows report;
    const Results<TypeParam> y = x.fused(&report);
    EXPECT_TRUE(agrees(y, x.witness()));
    EXPECT_EQ(y.lse(0, 0, 5), -inf);
    EXPECT_EQ(y.output(5 * 2), TypeParam{0});
    EXPECT_EQ(report.without_key, 0);
    for (Index i = 0; i < 6 * 2; ++i) {
      dirty.q.set({i}, std::numeric_limits<TypeParam>::quiet_NaN());
      dirty.dout.set({i}, std::numeric_limits<TypeParam>::infinity());
    }
    const auto expected = arrays_of(y), actual = arrays_of(dirty.fused());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
  }
}

TYPED_TEST(FusedAttentionKernel, ThereMayBeNoQueryOrNoKey) {
  for (const auto& [length, keys] : {std::pair<Index, Index>{0, 5}, {5, 0}, {0, 0}}) {
    Case<TypeParam> x;
    x.B = 2, x.H = 4, x.Hk = 2, x.L = length, x.S = keys, x.D = 3, x.E = 2, x.slopes = x.sinks = true;
    expect_agreement(x);
  }
}

TYPED_TEST(FusedAttentionKernel, ABiasOfMinusInfinityHidesAKey) {
  Case<TypeParam> x;
  x.L = 20, x.S = 30, x.D = 4, x.E = 4, x.bias = true, x.bias_shape = {1, 1, 20, 30};
  x.change = [](Case<TypeParam>& c) {
    for (std::size_t i = 0; i < 600; i += 3)
      c.bias_values.mutable_values()[i] = -std::numeric_limits<TypeParam>::infinity();
  };
  expect_agreement(x);
}

// The longest sequence's worth of rows in a fixed room: not even one row of scores more for a key more.
TEST(FusedAttentionKernelMemory, StaysUnder16MiBAt32768Keys) {
  const Threads one(1);
  Case<float> x;
  x.L = x.S = 32768, x.D = x.E = 64, x.ranges = {{.from = -64, .to = 1}};  // the window keeps the test short
  x.fill();
  auto output = Array<float>::zeros(x.q.shape()), dq = output.reshape(output.shape()),
       dk = Array<float>::zeros(x.k.shape()), dv = Array<float>::zeros(x.v.shape());
  dq = Array<float>::zeros(x.q.shape());
  auto lse = Array<double>::zeros({x.L});
  float *const o = output.mutable_values().data(), *const q = dq.mutable_values().data(),
               *const k = dk.mutable_values().data(), *const v = dv.mutable_values().data();
  double* const l = lse.mutable_values().data();
  std::vector<ScoreArray<const bool>> allowed;
  const AttentionProblem<float> p = x.problem(allowed);
  reset_memory_peak();
  const std::ptrdiff_t before = memory_statistics().live;
  attention_forward(p, x.rows(o, 1, x.L, x.E), l);
  AttentionGradients<float> g;
  g.output = x.rows<const float>(o, 1, x.L, x.E), g.doutput = x.rows(x.dout.data(), 1, x.L, x.E), g.lse = l;
  g.dq = x.rows(q, 1, x.L, x.D), g.dk = x.rows(k, 1, x.S, x.D), g.dv = x.rows(v, 1, x.S, x.E);
  attention_backward(p, g);
  const std::ptrdiff_t used = memory_statistics().peak - before;
  EXPECT_GT(used, 0);  // the count sees the kernel's room
  EXPECT_LT(used, 1 << 20);
}

// The same in float, a matrix at a time: what the fused form replaces.
struct ComposedFloat {
  std::vector<float> output, dq, dk, dv;
  ComposedFloat(const Case<float>& x)
      : output(size(x.L * x.E)), dq(size(x.L * x.D)), dk(size(x.S * x.D)), dv(size(x.S * x.E)) {
    std::vector<float> w(size(x.S)), dw(w.size());
    for (Index i = 0; i < x.L; ++i) {
      float largest = -std::numeric_limits<float>::infinity(), total = 0, delta = 0;
      for (Index j = 0; j < x.S; ++j) {
        float sum = 0, dsum = 0;
        for (Index d = 0; d < x.D; ++d) sum += x.q(i * x.D + d) * x.k(j * x.D + d);
        for (Index e = 0; e < x.E; ++e) dsum += x.dout(i * x.E + e) * x.v(j * x.E + e);
        w[size(j)] = sum * static_cast<float>(x.scale), dw[size(j)] = dsum;
        largest = std::max(largest, w[size(j)]);
      }
      for (float& s : w) total += s = std::exp(s - largest);
      for (std::size_t j = 0; j < w.size(); ++j) w[j] /= total, delta += w[j] * dw[j];
      for (Index j = 0; j < x.S; ++j) {
        const float p = w[size(j)], ds = p * (dw[size(j)] - delta) * static_cast<float>(x.scale);
        for (Index e = 0; e < x.E; ++e) output[size(i * x.E + e)] += p * x.v(j * x.E + e);
        for (Index e = 0; e < x.E; ++e) dv[size(j * x.E + e)] += p * x.dout(i * x.E + e);
        for (Index d = 0; d < x.D; ++d) dq[size(i * x.D + d)] += ds * x.k(j * x.D + d);
        for (Index d = 0; d < x.D; ++d) dk[size(j * x.D + d)] += ds * x.q(i * x.D + d);
      }
    }
  }
  static std::size_t size(Index n) { return static_cast<std::size_t>(n); }
};

// Scores that the family wants: query i is along the first axis, key j has target(j) there and noise beside.
Case<float> family(const std::function<double(Index, Generator&)>& target, double noise) {
  Case<float> x;
  x.L = 70, x.S = 700, x.D = x.E = 32, x.scale = 0.25;
  x.change = [target, noise](Case<float>& c) {
    Generator random(9);
    for (Index i = 0; i < c.L * c.D; ++i) c.q.set({i}, i % c.D == 0 ? 4.0f : c.q(i));
    for (Index j = 0; j < c.S; ++j) {
      for (Index d = 1; d < c.D; ++d) c.k.set({j * c.D + d}, static_cast<float>(noise) * c.k(j * c.D + d));
      c.k.set({j * c.D}, static_cast<float>(target(j, random)));
    }
  };
  x.fill();
  return x;
}

TEST(FusedAttentionKernelAccuracy, IsThatOfTheComposedFormWhateverTheScores) {
  const std::pair<const char*, Case<float>> families[] = {
      {"rising", family([](Index j, Generator&) { return 0.1 * static_cast<double>(j); }, 0.1)},
      {"falling", family([](Index j, Generator&) { return -0.1 * static_cast<double>(j); }, 0.1)},
      {"huge", family([](Index, Generator& g) { return 1e4 * g.normal(); }, 1)},
      {"huge and near", family([](Index, Generator& g) { return 1e4 + g.normal(); }, 0.1)},
      {"constant", family([](Index, Generator&) { return 3.0; }, 0)},
      {"nearly tied", family([](Index, Generator& g) { return 100 + 1e-5 * g.normal(); }, 1e-6)},
      {"one-hot", family([](Index j, Generator&) { return j == 411 ? 300.0 : 0.0; }, 0.1)},
      {"tiny", family([](Index, Generator& g) { return 1e-30 * g.normal(); }, 1e-30)},
      {"normal", family([](Index, Generator& g) { return g.normal(); }, 1)}};
  for (const auto& family_of_scores : families) {
    const char* name = family_of_scores.first;
    const Case<float>& x = family_of_scores.second;
    const Results<double> exact = x.witness();
    const ComposedFloat composed(x);
    auto error = [](const auto& actual, const Array<double>& expected) {
      double worst = 0;
      for (std::size_t i = 0; i < expected.values().size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(actual[i]) - expected.values()[i]));
      }
      return worst;
    };
    const double ulps = 4 * 0x1p-23;
    const double largest_ds = x.scale * magnitude(x.v) * magnitude(x.dout);
    for (const Arch arch : archs_here()) {
      const WithArch with(arch);
      const Results<float> y = x.fused();
      auto holds = [&](const char* what, const Array<float>& actual, const std::vector<float>& other,
                       const Array<double>& expected, double largest) {
        const double ours = error(actual.values(), expected), theirs = error(other, expected);
        EXPECT_LE(ours, std::max(1.5 * theirs, ulps * largest))
            << name_of(arch) << ", " << name << ", " << what << ": composed " << theirs;
      };
      holds("output", y.output, composed.output, exact.output, magnitude(x.v));
      holds("dq", y.dq, composed.dq, exact.dq, largest_ds * magnitude(x.k));
      holds("dk", y.dk, composed.dk, exact.dk, largest_ds * magnitude(x.q));
      holds("dv", y.dv, composed.dv, exact.dv, magnitude(exact.dv));
    }
  }
}

// Largest error of f(x) in units in the last place of the result.
template <class T, class F, class Exact>
double worst_ulp(F kernel, Exact exact, T low, T high) {
  std::vector<T> x(200'003), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = low + (high - low) * static_cast<T>(i) / static_cast<T>(x.size() - 1);
  }
  kernel(x.data(), static_cast<Index>(x.size()), y.data());
  long double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double expected = exact(static_cast<long double>(x[i]));
    const T size = std::max(std::abs(static_cast<T>(expected)), std::numeric_limits<T>::min());
    const long double ulp = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
    worst = std::max(worst, std::abs(static_cast<long double>(y[i]) - expected) / ulp);
  }
  return static_cast<double>(worst);
}

TYPED_TEST(FusedAttentionKernel, ExpAndTanhAreAccurate) {
  using T = TypeParam;
  for (const Arch arch : archs_here()) {
    const WithArch with(arch);
    const VectorKernels<T>& kernels = vector_kernels<T>();
    auto exp = [](long double x) { return std::exp(x); };
    auto tanh = [](long double x) { return std::tanh(x); };
    const T lowest = sizeof(T) == 4 ? T{-104} : T{-746};
    // Half a unit where 1 is added to e^r - 1; below 1, twice a quarter from r and from the series.
    EXPECT_LT(worst_ulp(kernels.exp, exp, lowest, T{0}), 1.05) << name_of(arch);
    EXPECT_LT(worst_ulp(kernels.exp, exp, T{-1}, T{60}), 1.05) << name_of(arch);
    EXPECT_LT(worst_ulp(kernels.tanh, tanh, T{-12}, T{12}), 3.0) << name_of(arch);
    EXPECT_LT(worst_ulp(kernels.tanh, tanh, T(-0.001), T(0.001)), 3.0) << name_of(arch);
    const T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
    const T x[] = {0, lowest * 2, -infinity, nan, T(-1e30), -T{0}};
    T y[6];
    kernels.exp(x, 6, y);
    EXPECT_EQ(y[0], T{1});
    EXPECT_EQ(y[1], T{0});
    EXPECT_EQ(y[2], T{0});
    EXPECT_TRUE(std::isnan(y[3]));
    EXPECT_EQ(y[4], T{0});
    EXPECT_EQ(y[5], T{1});
    const T z[] = {-infinity, infinity, nan, 0};
    kernels.tanh(z, 4, y);
    EXPECT_EQ(y[0], T{-1});
    EXPECT_EQ(y[1], T{1});
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[3], T{0});
  }
}

TEST(Processor, ALevelIsNamedOrRefused) {
  EXPECT_EQ(arch_named("baseline"), Arch::baseline);
  EXPECT_TRUE(raises<DomainError>([] { arch_named("avx1024"); },
                                  {"TAPEHEAD_ARCH", "avx1024", "baseline, avx2 and avx512"}));
  for (const Arch arch : {Arch::avx2, Arch::avx512}) {
    if (processor_has(arch)) {
      EXPECT_EQ(arch_named(name_of(arch)), arch);
    } else {
      EXPECT_TRUE(raises<DomainError>([&] { arch_named(name_of(arch)); }, {"does not have", name_of(arch)}));
      EXPECT_TRUE(raises<DomainError>([&] { use_arch(arch); }, {"does not have", name_of(arch)}));
    }
  }
}

}  // namespace
}  // namespace tapehead::kernels
