// Numbers that are not finite, where attention must not see them: in keys and values that no row may see, in
// queries of rows without a key, and in what comes back to such rows. Always against the same call with
// zeros in their place, the same bits, forward, backward and twice backward.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/differences.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead {
namespace {

constexpr Index B = 2, H = 4, Hk = 2, L = 5, S = 7, D = 4, E = 3;
const Shape scores{B, H, L, S};
const double poisons[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity()};

template <class T>
constexpr T minus_infinity = -std::numeric_limits<T>::infinity();

// What excludes keys: a mask or a bias.
struct Exclusion {
  std::string name;
  Mask mask = {};
  Array<bool> bias = {};  // where a bias is finite
};

Array<bool> keys_but(const Shape& shape, std::initializer_list<Index> blocked) {
  Array<bool> keys = Array<bool>::ones(shape);
  for (const Index i : blocked) keys.mutable_values()[static_cast<std::size_t>(i)] = false;
  return keys;
}

// Each hides keys from all rows of a key head, and none leaves a row without a key.
std::vector<Exclusion> exclusions() {
  const auto per_sample = [](Index a, Index b) { return PerSample(Array<Index>::of({a, b})); };
  // Head 0 and 1 read key head 0: keys 2 and 3 are hidden from both, 0 and 5 from one only.
  const Array<bool> of_heads = keys_but({H, 1, S}, {0, 2, 3, S + 2, S + 3, S + 5, 3 * S + 6});
  return {
      {"causal", Mask::causal(0)},
      {"causal by sample", Mask::causal(per_sample(0, 1))},
      {"window", Mask::window(1, 0, 2)},
      {"window by sample", Mask::window(0, 1, per_sample(0, 1))},
      {"lengths", Mask::lengths(4)},
      {"lengths by sample", Mask::lengths(per_sample(3, 6))},
      {"documents",
       Mask::documents(Array<Index>::of({1, 1, 1, 2, 2}), Array<Index>::of({1, 3, 1, 2, 2, 3, 0}))},
      {"documents by sample",
       Mask::documents(Array<Index>::of({{1, 1, 1, 2, 2}, {4, 4, 4, 4, 4}}),
                       Array<Index>::of({{1, 1, 1, 2, 2, 2, 0}, {4, 0, 4, 0, 4, 0, 4}}))},
      {"allowed (S)", Mask::allowed(keys_but({S}, {0, 3}))},
      {"allowed (H, 1, S)", Mask::allowed(of_heads)},
      {"allowed (B, 1, 1, S)", Mask::allowed(keys_but({B, 1, 1, S}, {2, S + 6}))},
      {"allowed prefix", Mask::allowed_prefix(Array<bool>::of({{1, 0, 1}}))},
      {"two together", Mask::causal(1) & Mask::allowed(keys_but({B, 1, 1, S}, {1, S + 2}))},
      {"bias (S)", {}, keys_but({S}, {1, 6})},
      {"bias (H, 1, S)", {}, of_heads},
      {"bias and mask", Mask::causal(1), keys_but({B, 1, 1, S}, {2, S + 3})},
  };
}

Array<bool> allowed_by(const Exclusion& excluded) {
  Mask mask = Mask::allowed(Array<bool>::ones(scores)) & excluded.mask;
  if (excluded.bias.defined()) mask = mask & Mask::allowed(excluded.bias);
  return mask.expanded(scores);
}

bool any_row_sees(const Array<bool>& allowed, Index b, Index key_head, Index j) {
  for (Index h = key_head * (H / Hk); h < (key_head + 1) * (H / Hk); ++h) {
    for (Index i = 0; i < L; ++i) {
      if (allowed(b, h, i, j)) return true;
    }
  }
  return false;
}
bool sees_a_key(const Array<bool>& allowed, Index b, Index h, Index i) {
  for (Index j = 0; j < S; ++j) {
    if (allowed(b, h, i, j)) return true;
  }
  return false;
}

// Row (b, h, i) of x (B, H or Hk, rows, columns) filled with one number wherever it is chosen.
template <class T, class Chosen>
Index fill_rows(Array<T>& x, double number, Chosen chosen) {
  Index filled = 0;
  for (Index b = 0; b < x.dim(0); ++b) {
    for (Index h = 0; h < x.dim(1); ++h) {
      for (Index i = 0; i < x.dim(2); ++i) {
        if (!chosen(b, h, i)) continue;
        for (Index d = 0; d < x.dim(3); ++d) x.set({b, h, i, d}, static_cast<T>(number));
        ++filled;
      }
    }
  }
  return filled;
}

// The other options that such numbers must not get around.
enum class With { nothing, softcap, sink, rope, norm, norm_without_eps, slopes, dropout, additive };
constexpr With all_options[] = {With::nothing, With::softcap, With::sink,
                                With::rope,    With::norm,    With::norm_without_eps,
                                With::slopes,  With::dropout, With::additive};
const char* name_of(With with) {
  const char* const names[] = {"nothing",          "softcap", "sink",    "rope",    "norm",
                               "norm without eps", "slopes",  "dropout", "additive"};
  return names[static_cast<int>(with)];
}

template <class T>
struct Inputs {
  Array<T> query, key, value;
  Array<T> up_output, up_weights, up_lse;
  Array<T> v_query, v_key, v_value;  // directions for second order

  explicit Inputs(std::uint64_t seed) {
    Generator random(seed);
    query = random.normal<T>({B, H, L, D}), v_query = random.normal<T>(query.shape());
    key = random.normal<T>({B, Hk, S, D}), v_key = random.normal<T>(key.shape());
    value = random.normal<T>({B, Hk, S, E}), v_value = random.normal<T>(value.shape());
    up_output = random.normal<T>({B, H, L, E}), up_weights = random.normal<T>(scores);
    up_lse = random.normal<T>({B, H, L});
  }
};

template <class T>
struct Call {
  Exclusion excluded;
  With with = With::nothing;
  EmptyRows empty_rows = EmptyRows::error;
  bool twice = false;
  bool output_only = false;  // nothing else wanted

  // Output, weights, masked scores, lse; the gradients of the inputs, learned options included; entropy,
  // largest score and mass on the first key; if wanted, the gradients of the gradients of query, key and
  // value.
  std::vector<Array<T>> results(const Inputs<T>& in) const {
    Tape<T> tape;
    Generator random(5);
    std::vector<Var<T>> x = {tape.input(in.query), tape.input(in.key), tape.input(in.value)};
    x.reserve(8);  // the calls below refer to its elements
    auto input = [&](const Shape& shape) { return x.emplace_back(tape.input(random.normal<T>(shape))); };
    AttentionOptions<T> o{.mask = excluded.mask, .empty_rows = empty_rows};
    o.masked_scores = o.log_sum_exp = o.weights = o.statistics = !output_only;
    if (excluded.bias.defined()) {
      Array<T> bias = random.normal<T>(excluded.bias.shape());
      for (std::size_t i = 0; i < bias.values().size(); ++i) {
        if (!excluded.bias.values()[i]) bias.mutable_values()[i] = minus_infinity<T>;
      }
      o.bias = x.emplace_back(tape.input(bias));
    }
    if (with == With::softcap) o.softcap = 1.5;
    if (with == With::sink) o.sink = input({H});
    if (with == With::slopes) o.slopes = input({H});
    if (with == With::rope) o.rope = RopeOptions{.base = 100, .start = 2};
    if (with == With::norm) o.norm = QueryKeyNorm<T>{input({D}), input({D})};
    if (with == With::norm_without_eps) o.norm = QueryKeyNorm<T>{input({D}), input({D}), 0};
    if (with == With::dropout) o.dropout = Dropout{0.3, Generator(9)};
    const auto r =
        with == With::additive
            ? additive_attention(x[0], x[1], x[2], {input({D, 6}), input({D, 6}), input({6}), input({6})}, o)
            : attention(x[0], x[1], x[2], o);
    std::vector<Var<T>> y = {r.output}, upstream = {in.up_output};
    std::vector<Array<T>> all = {r.output.value()};
    if (!output_only) {
      y.insert(y.end(), {*r.weights, *r.log_sum_exp, r.statistics->entropy, r.statistics->largest_score,
                         r.statistics->first_key_mass});
      upstream.insert(upstream.end(), {in.up_weights, in.up_lse});
      upstream.resize(y.size(), Var<T>(Array<T>::ones({B, H})));
      all = {r.output.value(), r.weights->value(), r.masked_scores->value(), r.log_sum_exp->value()};
    }
    for (const Array<T>& d : gradient_values(y, x, upstream)) all.push_back(d);
    for (std::size_t i = 3; i < y.size(); ++i) all.push_back(y[i].value());
    if (!twice) return all;
    const auto first = gradient(y, {x[0], x[1], x[2]}, upstream);
    const std::vector<Var<T>> along = {in.v_query, in.v_key, in.v_value};
    for (const Array<T>& d : gradient_values(first, x, along)) all.push_back(d);
    return all;
  }
};

// Bit by bit; under a norm 0 may be -0.
template <class T>
testing::AssertionResult same(const std::vector<Array<T>>& actual, const std::vector<Array<T>>& expected,
                              With with = With::nothing) {
  const bool normed = with == With::norm || with == With::norm_without_eps;
  if (actual.size() != expected.size()) return testing::AssertionFailure() << "not as many results";
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const bool alike =
        normed ? static_cast<bool>(same_numbers(actual[i], expected[i])) : same_bits(actual[i], expected[i]);
    if (alike) continue;
    return testing::AssertionFailure()
           << "result " << i << " is off by " << absolute_error(actual[i], expected[i]);
  }
  return testing::AssertionSuccess();
}

template <class T>
bool finite(const Array<T>& x) {
  for (const T number : x.values()) {
    if (!std::isfinite(number)) return false;
  }
  return true;
}

template <class T>
class AttentionNotFinite : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(AttentionNotFinite, Types);

// ---- keys that no row may see

template <class T>
Index hide(Inputs<T>& in, const Array<bool>& allowed, double number) {
  auto hidden = [&](Index b, Index h, Index j) { return !any_row_sees(allowed, b, h, j); };
  fill_rows(in.value, number, hidden);
  return fill_rows(in.key, number, hidden);
}

TYPED_TEST(AttentionNotFinite, KeysAndValuesThatNoRowSeesChangeNothing) {
  using T = TypeParam;
  for (const Exclusion& excluded : exclusions()) {
    const Array<bool> allowed = allowed_by(excluded);
    for (const With with : all_options) {
      Inputs<T> in(1);
      const Call<T> call{.excluded = excluded, .with = with, .twice = true};
      const Call<T> short_call{.excluded = excluded, .with = with, .output_only = true};
      ASSERT_GT(hide(in, allowed, 0), 0) << excluded.name;
      const std::vector<Array<T>> expected = call.results(in), shortly = short_call.results(in);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (i == 2) continue;  // masked scores
        EXPECT_TRUE(finite(expected[i])) << excluded.name << ", " << name_of(with) << ", " << i;
      }
      for (const double number : poisons) {
        hide(in, allowed, number);
        EXPECT_TRUE(same(short_call.results(in), shortly, with))
            << excluded.name << ", " << name_of(with) << ", " << number;
        EXPECT_TRUE(same(call.results(in), expected, with))
            << excluded.name << ", " << name_of(with) << ", " << number;
      }
    }
  }
}

// The check sees a key that a single row sees.
TYPED_TEST(AttentionNotFinite, KeysThatOneRowSeesDoChangeSomething) {
  using T = TypeParam;
  const Exclusion excluded{"causal", Mask::causal(0)};  // key 4 is seen by row 4
  Inputs<T> in(1);
  const Call<T> call{.excluded = excluded};
  const std::vector<Array<T>> expected = call.results(in);
  in.value.set({1, 1, 4, 2}, static_cast<T>(poisons[0]));
  EXPECT_FALSE(same(call.results(in), expected));
  in.key.set({1, 1, 4, 2}, static_cast<T>(poisons[0]));
  EXPECT_TRUE(raises<DomainError>([&] { call.results(in); }, {"not a number", "batch 1, head 2, row 4"}));
}

TYPED_TEST(AttentionNotFinite, ScaledAndCappedScoresShowThem) {
  using T = TypeParam;
  Inputs<T> in(2);
  in.key.set({1, 0, 6, 1}, static_cast<T>(poisons[0]));
  AttentionOptions<T> options{.softcap = 2, .mask = Mask::lengths(6)};
  options.scaled_scores = options.capped_scores = options.masked_scores = true;
  const auto r = attention(Var<T>(in.query), Var<T>(in.key), Var<T>(in.value), options);
  EXPECT_TRUE(finite(r.output.value()));
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index j = 0; j < S; ++j) {
        const bool here = b == 1 && h < 2 && j == 6;  // heads 0 and 1 read key head 0
        EXPECT_EQ(std::isnan(r.scaled_scores->value()(b, h, 3, j)), here);
        EXPECT_EQ(std::isnan(r.capped_scores->value()(b, h, 3, j)), here);
        EXPECT_EQ(r.masked_scores->value()(b, h, 3, j) == minus_infinity<T>, j == 6);
      }
    }
  }
}

// Another row does see it, so it is only multiplied by 0 here; the other keys keep all of the weight.
TYPED_TEST(AttentionNotFinite, AKeyBlockedForSomeRowsHasWeightZeroThere) {
  using T = TypeParam;
  for (const Exclusion& excluded : exclusions()) {
    const Array<bool> allowed = allowed_by(excluded);
    const auto results = Call<T>{.excluded = excluded}.results(Inputs<T>(3));
    Index partly = 0;
    for (Index b = 0; b < B; ++b) {
      for (Index h = 0; h < H; ++h) {
        for (Index i = 0; i < L; ++i) {
          double total = 0;
          for (Index j = 0; j < S; ++j) {
            const T weight = results[1](b, h, i, j);
            EXPECT_EQ(weight > 0, allowed(b, h, i, j)) << excluded.name;
            EXPECT_EQ(results[2](b, h, i, j) == minus_infinity<T>, !allowed(b, h, i, j)) << excluded.name;
            partly += !allowed(b, h, i, j) && any_row_sees(allowed, b, h / (H / Hk), j);
            total += static_cast<double>(weight);
          }
          EXPECT_NEAR(total, 1, 8 * static_cast<double>(std::numeric_limits<T>::epsilon())) << excluded.name;
        }
      }
    }
    EXPECT_EQ(partly > 0, excluded.name.starts_with("causal") || excluded.name.starts_with("window") ||
                              excluded.name.starts_with("documents") ||
                              excluded.name.find("(H") != std::string::npos ||
                              excluded.name == "two together" || excluded.name == "bias and mask")
        << excluded.name;
  }
}

// A bias of minus infinity gets gradient 0, whatever it is broadcast over.
TYPED_TEST(AttentionNotFinite, ABiasOfMinusInfinityHasGradientZero) {
  using T = TypeParam;
  Index excluded_by_bias = 0;
  for (const Exclusion& excluded : exclusions()) {
    if (!excluded.bias.defined()) continue;
    const Array<T> dbias = Call<T>{.excluded = excluded}.results(Inputs<T>(4))[7];
    ASSERT_EQ(dbias.shape(), excluded.bias.shape());
    for (Index i = 0; i < dbias.size(); ++i) {
      if (excluded.bias.data()[i]) continue;
      EXPECT_EQ(dbias.data()[i], 0) << excluded.name << ", " << i;
      ++excluded_by_bias;
    }
    EXPECT_GT(magnitude(dbias), 0.1) << excluded.name;
  }
  EXPECT_GT(excluded_by_bias, 5);
}

// ---- rows without a key

// Each leaves some rows without a key and some with.
std::vector<Exclusion> emptying() {
  const auto per_sample = [](Index a, Index b) { return PerSample(Array<Index>::of({a, b})); };
  Array<bool> rows = Array<bool>::ones({H, L, 1});
  rows.set({1, 2, 0}, false), rows.set({3, 4, 0}, false);
  Array<bool> everywhere = Array<bool>::ones(scores);
  for (Index j = 0; j < S; ++j) everywhere.set({1, 2, 3, j}, false);
  return {
      {"causal", Mask::causal(-2)},
      {"causal by sample", Mask::causal(per_sample(1, -3))},
      {"window", Mask::window(1, 0, 4)},
      {"lengths", Mask::lengths(per_sample(4, 0))},
      {"documents",
       Mask::documents(Array<Index>::of({1, 5, 1, 2, 6}), Array<Index>::of({1, 3, 1, 2, 2, 3, 0}))},
      {"allowed (H, L, 1)", Mask::allowed(rows)},
      {"allowed (B, H, L, S)", Mask::allowed(everywhere)},
      {"lengths and window", Mask::lengths(2) & Mask::window(1, 1)},
      {"bias (H, L, 1)", {}, rows},
      {"bias (B, H, L, S)", {}, everywhere},
      {"bias and causal", Mask::causal(0), keys_but({S}, {0, 1})},
  };
}

TYPED_TEST(AttentionNotFinite, ARowWithoutAKeyIsAnErrorThatNamesTheFirst) {
  using T = TypeParam;
  for (const Exclusion& excluded : emptying()) {
    const Array<bool> allowed = allowed_by(excluded);
    std::string first;
    for (Index n = 0; n < B * H * L && first.empty(); ++n) {
      const Index b = n / (H * L), h = n / L % H, i = n % L;
      if (sees_a_key(allowed, b, h, i)) continue;
      first = "batch " + std::to_string(b) + ", head " + std::to_string(h) + ", row " + std::to_string(i);
    }
    ASSERT_FALSE(first.empty());
    const Call<T> call{.excluded = excluded};
    EXPECT_TRUE(
        raises<DomainError>([&] { call.results(Inputs<T>(5)); }, {"attention: no key is allowed: ", first}))
        << excluded.name;
  }
}

template <class T>
Index empty(Inputs<T>& in, const Array<bool>& allowed, double number) {
  auto without = [&](Index b, Index h, Index i) { return !sees_a_key(allowed, b, h, i); };
  fill_rows(in.up_output, number, without);
  fill_rows(in.up_weights, number, without);
  fill_rows(in.v_query, number, without);
  Array<T> lse = in.up_lse.reshape({B, H, L, 1});
  fill_rows(lse, number, without);
  in.up_lse = lse.reshape({B, H, L});
  return fill_rows(in.query, number, without);
}

TYPED_TEST(AttentionNotFinite, RowsWithoutAKeyAreZeroWhateverTheirQueryAndUpstreamHold) {
  using T = TypeParam;
  for (const Exclusion& excluded : emptying()) {
    const Array<bool> allowed = allowed_by(excluded);
    for (const With with : all_options) {
      SCOPED_TRACE(excluded.name + ", " + name_of(with));
      Inputs<T> in(6);
      const Call<T> call{.excluded = excluded, .with = with, .empty_rows = EmptyRows::zero, .twice = true};
      const Call<T> short_call{
          .excluded = excluded, .with = with, .empty_rows = EmptyRows::zero, .output_only = true};
      const Index rows = empty(in, allowed, 0);
      ASSERT_GT(rows, 0);
      ASSERT_LT(rows, B * H * L);
      hide(in, allowed, 0);
      const std::vector<Array<T>> expected = call.results(in), shortly = short_call.results(in);
      const std::size_t inputs = (expected.size() - 7) / 2;
      for (std::size_t i = 4; i < expected.size(); ++i) {
        const bool largest_score = i == 4 + inputs + 1;  // minus infinity for a head without any key
        EXPECT_TRUE(largest_score || finite(expected[i])) << i;
      }
      for (Index n = 0; n < B * H * L; ++n) {
        const Index b = n / (H * L), h = n / L % H, i = n % L;
        const bool seen = sees_a_key(allowed, b, h, i);
        EXPECT_EQ(expected[3](b, h, i) == minus_infinity<T>, !seen);
        if (seen) continue;
        for (Index e = 0; e < E; ++e) EXPECT_EQ(expected[0](b, h, i, e), 0);
        for (Index j = 0; j < S; ++j) EXPECT_EQ(expected[1](b, h, i, j), 0);
        for (Index d = 0; d < D; ++d) EXPECT_EQ(expected[4](b, h, i, d), 0);
      }
      for (const double number : poisons) {
        empty(in, allowed, number);
        hide(in, allowed, number);
        EXPECT_TRUE(same(short_call.results(in), shortly, with)) << number;
        EXPECT_TRUE(same(call.results(in), expected, with)) << number;
      }
    }
  }
}

// The rows that do see keys are those of a call without the others.
TYPED_TEST(AttentionNotFinite, RowsWithoutAKeyLeaveTheOthersAsTheyWere) {
  using T = TypeParam;
  const Inputs<T> in(7);
  const Var<T> query = in.query, key = in.key, value = in.value;
  const Var<T> all =
      attention(query, key, value, {.mask = Mask::causal(-2), .empty_rows = EmptyRows::zero}).output;
  const Var<T> some = attention(slice(query, -2, {2, L}), key, value, {.mask = Mask::causal(0)}).output;
  // A dozen products and exponentials of numbers near 1, rounded in another order.
  EXPECT_NEAR_RELATIVE(slice(all, -2, {2, L}), some,
                       16 * static_cast<double>(std::numeric_limits<T>::epsilon()));
}

// ---- twice differentiated, against differences of the first

TEST(AttentionNotFiniteTwice, GradientsOfRowsWithoutKeysAreDifferences) {
  const Exclusion excluded{"causal by sample", Mask::causal(PerSample(Array<Index>::of({1, -3})))};
  const Call<double> call{.excluded = excluded, .empty_rows = EmptyRows::zero, .twice = true};
  const Inputs<double> in(8);
  auto along = [&](const Array<double>& key) {
    Inputs<double> moved = in;
    moved.key = key;
    const auto r = Call<double>{.excluded = excluded, .empty_rows = EmptyRows::zero}.results(moved);
    return (sum(Var<double>(r[4]) * Var<double>(in.v_query)) +
            sum(Var<double>(r[5]) * Var<double>(in.v_key)) + sum(Var<double>(r[6]) * Var<double>(in.v_value)))
        .item();
  };
  const Array<double> second = call.results(in).end()[-2];  // of the key
  EXPECT_LE(absolute_error(second, central_differences(along, in.key, 1e-5)), 1e-7);
  EXPECT_GT(magnitude(second), 0.1);
}

}  // namespace
}  // namespace tapehead
