// Our matrix product against three loops in double, at every vector level that the machine has.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <tapehead/core/memory.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/kernels/block_product.h>
#include <tapehead/ops/kernels/processor.h>

namespace tapehead::kernels {
namespace {

template <class T>
class BlockProduct : public testing::Test {
 protected:
  void SetUp() override { before_ = arch_in_use(); }
  void TearDown() override { use_arch(before_); }

 private:
  Arch before_ = Arch::baseline;
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(BlockProduct, Types);

struct Form {
  bool a_transposed, b_transposed;
  int beta;
  bool bias = false;
  bool cut = false;  // by gemm(), whose pieces may share the packed B
};

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// A rectangle of numbers with `gap` unused ones after each row.
template <class T>
struct Stored {
  std::vector<T> data;
  Index stride;
  bool transposed;
  Stored(Generator& random, Index rows, Index columns, bool is_transposed, Index gap)
      : transposed(is_transposed) {
    if (transposed) std::swap(rows, columns);
    stride = columns + gap;
    data.assign(at(rows * stride), std::numeric_limits<T>::quiet_NaN());  // the gaps are not to be read
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < columns; ++j) data[at(i * stride + j)] = static_cast<T>(random.normal());
    }
  }
  double operator()(Index i, Index j) const {
    return static_cast<double>(data[at(transposed ? j * stride + i : i * stride + j)]);
  }
  Matrix<T> matrix() const { return {data.data(), stride, transposed}; }
};

// The largest |error| over what rounding may do: k products of numbers of size 1, summed in some order, err
// by at most k units of the sum of their sizes. Only one element in `every` is looked at. Infinite when a gap
// of C was written to or C holds a NaN.
template <class T>
double excess(Index m, Index n, Index k, Form form, Index gap, Index every = 1) {
  Generator random(static_cast<std::uint64_t>(m * 1'000'003 + n * 1009 + k));
  const Stored<T> a(random, m, k, form.a_transposed, gap), b(random, k, n, form.b_transposed, gap);
  const Index stride = n + gap;
  std::vector<T> c(at(m * stride), form.beta == 0 ? std::numeric_limits<T>::quiet_NaN() : T{2});
  for (Index i = 0; i < m; ++i) {
    for (Index j = n; j < stride; ++j) c[at(i * stride + j)] = T{-5};
  }
  std::vector<T> bias(at(n));
  for (T& one : bias) one = form.bias ? static_cast<T>(random.normal()) : T{0};
  const T* const added = form.bias ? bias.data() : nullptr;
  const T beta = static_cast<T>(form.beta);
  if (form.cut) {
    gemm<T>(m, n, k, a.matrix(), b.matrix(), beta, c.data(), stride, added);
  } else {
    block_product<T>(m, n, k, a.matrix(), b.matrix(), beta, c.data(), stride, added);
  }
  double worst = 0;
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < stride; ++j) {
      const double actual = static_cast<double>(c[at(i * stride + j)]);
      if (j >= n) {
        if (actual != -5) return std::numeric_limits<double>::infinity();
        continue;
      }
      if ((31 * i + j) % every != 0) continue;
      double sum = form.beta == 0 ? static_cast<double>(bias[at(j)]) : 2, size = std::abs(sum);
      for (Index p = 0; p < k; ++p) sum += a(i, p) * b(p, j), size += std::abs(a(i, p) * b(p, j));
      const double bound =
          static_cast<double>(k + 2) * static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * size;
      const double error = std::abs(actual - sum);
      if (!(error <= bound))
        worst = std::max(worst, std::isnan(error) ? HUGE_VAL : error / std::max(bound, 1e-300));
    }
  }
  return worst;
}

template <class F>
void at_every_level(F f) {
  for (const Arch arch : {Arch::baseline, Arch::avx2, Arch::avx512}) {
    if (!processor_has(arch)) continue;
    use_arch(arch);
    SCOPED_TRACE(name_of(arch));
    f();
  }
}

template <class T>
void expect_right(Index m, Index n, Index k, Index every = 1) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const int beta : {0, 1}) {
        EXPECT_EQ(excess<T>(m, n, k, {ta, tb, beta}, (m + n + k) % 3, every), 0)
            << m << " x " << n << " x " << k << (ta ? ", A transposed" : "") << (tb ? ", B transposed" : "")
            << ", beta " << beta;
      }
    }
  }
}

TYPED_TEST(BlockProduct, AgreesAroundEveryEdgeOfARegisterBlock) {
  at_every_level([] {
    for (const Index m : {1, 2, 5, 6, 7, 13}) {
      for (const Index n : {1, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 130}) {
        for (const Index k : {1, 2, 7, 67}) expect_right<TypeParam>(m, n, k);
      }
    }
  });
}

TYPED_TEST(BlockProduct, AgreesWherePackingBegins) {
  at_every_level([] {
    for (const Index m : {7, 26}) {
      for (const Index n : {64, 65, 257}) {
        for (const Index k : {255, 256, 257}) expect_right<TypeParam>(m, n, k, 5);
      }
    }
    expect_right<TypeParam>(197, 300, 520, 101);
    expect_right<TypeParam>(26, 1100, 270, 101);
    expect_right<TypeParam>(2055, 261, 270, 1009);
  });
}

TYPED_TEST(BlockProduct, ABiasIsAddedToEachRow) {
  at_every_level([] {
    for (const bool tb : {false, true}) {
      for (const Index m : {1, 2, 7, 60}) {
        for (const Index n : {3, 64, 130}) {
          for (const Index k : {5, 64, 300}) {
            EXPECT_EQ(excess<TypeParam>(m, n, k, {false, tb, 0, true}, 2), 0)
                << m << " x " << n << " x " << k;
          }
        }
      }
    }
  });
}

// Large enough to be cut into pieces of rows or of columns, the last one small; with a B that pieces share,
// and with one that is too large for it.
TYPED_TEST(BlockProduct, IsTheSameInPieces) {
  const Index sizes[][3] = {{131, 100, 90}, {100, 131, 90}, {259, 70, 300}, {70, 259, 300}};
  at_every_level([&] {
    for (const auto& [m, n, k] : sizes) {
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
          for (const Form& form :
               {Form{ta, tb, 0, false, true}, {ta, tb, 0, true, true}, {ta, tb, 1, false, true}}) {
            EXPECT_EQ(excess<TypeParam>(m, n, k, form, 1, 67), 0) << m << " x " << n << " x " << k;
          }
        }
      }
    }
  });
  EXPECT_EQ(excess<TypeParam>(1050, 1040, 1030, {false, true, 0, true, true}, 1, 100'003), 0);
}

TYPED_TEST(BlockProduct, NothingToSumIsZeroOrWhatWasThere) {
  const TypeParam one = 1;
  TypeParam c[] = {7, 8, 9};
  block_product<TypeParam>(1, 2, 0, {&one, 0}, {&one, 2}, TypeParam{1}, c, 2);
  EXPECT_EQ(c[0], 7);
  block_product<TypeParam>(1, 2, 0, {&one, 0}, {&one, 2}, TypeParam{0}, c, 2);
  EXPECT_EQ(c[0], 0);
  EXPECT_EQ(c[1], 0);
  EXPECT_EQ(c[2], 9);
  block_product<TypeParam>(0, 2, 1, {&one, 1}, {&one, 2}, TypeParam{0}, c + 2, 2);
  EXPECT_EQ(c[2], 9);
  const TypeParam bias[] = {3, 4};
  block_product<TypeParam>(1, 2, 0, {&one, 0}, {&one, 2}, TypeParam{0}, c, 2, bias);
  EXPECT_EQ(c[0], 3);
  EXPECT_EQ(c[1], 4);
}

TYPED_TEST(BlockProduct, NaNAndInfinityPass) {
  at_every_level([] {
    const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN(), infinity = HUGE_VALF;
    const TypeParam a[] = {0, nan, 1, 0}, b[] = {infinity, 1, 2, 3};
    TypeParam c[4];
    block_product<TypeParam>(2, 2, 2, {a, 2}, {b, 2}, TypeParam{0}, c, 2);
    EXPECT_TRUE(std::isnan(c[0]));  // 0 infinity + NaN 2
    EXPECT_TRUE(std::isnan(c[1]));
    EXPECT_EQ(c[2], infinity);
    EXPECT_EQ(c[3], 1);
  });
}

// The room for packing does not grow with the matrices.
TYPED_TEST(BlockProduct, TakesLittleRoomAndGivesItBack) {
  const Index n = 1500;
  const std::vector<TypeParam> a(at(n * n), TypeParam{1}), b = a;
  std::vector<TypeParam> c(at(n * n));
  const std::ptrdiff_t before = memory_statistics().live;
  reset_memory_peak();
  block_product<TypeParam>(n, n, n, {a.data(), n}, {b.data(), n, true}, TypeParam{0}, c.data(), n);
  EXPECT_EQ(c[0], static_cast<TypeParam>(n));
  EXPECT_EQ(memory_statistics().live, before);
  EXPECT_GT(memory_statistics().peak, before);
  EXPECT_LT(memory_statistics().peak - before, 4 << 20);
}

// The names are those of openblas_get_corename; Prescott is what OpenBLAS takes for a processor it does not
// know.
TEST(BlasCore, IsOfTheLevelItIsWrittenFor) {
  for (const char* core : {"SkylakeX", "Cooperlake", "SapphireRapids"}) {
    EXPECT_EQ(arch_of_blas_core(core), Arch::avx512) << core;
  }
  for (const char* core : {"Haswell", "Zen"}) EXPECT_EQ(arch_of_blas_core(core), Arch::avx2) << core;
  for (const char* core : {"Prescott", "Nehalem", "Sandybridge", ""}) {
    EXPECT_EQ(arch_of_blas_core(core), Arch::baseline) << core;
  }
}

}  // namespace
}  // namespace tapehead::kernels
