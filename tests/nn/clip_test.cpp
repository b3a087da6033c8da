#include <tapehead/nn/clip.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tapehead/core/errors.h>
#include <tapehead/core/random.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/golden.h"
#include "support/threads.h"

namespace tapehead {
namespace {

using A = Array<double>;

template <class T>
class Clip : public testing::Test {
 protected:
  using Arrays = std::vector<Array<T>>;

  // Elements are rounded when they are read and when they are scaled, by a factor that is rounded as well.
  static constexpr double tolerance = std::same_as<T, double> ? 1e-13 : 4 * 0x1p-24;

  static Arrays golden(const char* first, const char* second) {
    const Golden golden("optim_clip_grad_norm");
    return {golden.array(first).cast<T>(), golden.array(second).cast<T>()};
  }
  static Arrays random_arrays(std::uint64_t seed, double deviation = 1) {
    Generator random(seed);
    Arrays arrays;
    arrays.push_back(random.normal<T>({3, 4}, 0, deviation));
    arrays.push_back(random.normal<T>({7}, 0, deviation));
    arrays.push_back(random.normal<T>({}, 0, deviation));
    return arrays;
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Clip, Types);

// The norm of all elements by one loop.
template <class T>
double norm_by_loop(const std::vector<Array<T>>& arrays) {
  double sum = 0;
  for (const auto& array : arrays) {
    for (const T x : array.values()) sum += static_cast<double>(x) * static_cast<double>(x);
  }
  return std::sqrt(sum);
}

TYPED_TEST(Clip, IsThatOfPyTorch) {
  auto gradients = this->golden("g1", "g2");
  const auto expected = this->golden("clipped_g1", "clipped_g2");
  const double total = Golden("optim_clip_grad_norm").array("total_norm").item();
  ASSERT_GT(total, 1.5);
  EXPECT_NEAR(global_norm(gradients), total, this->tolerance * total);
  EXPECT_NEAR(clip_global_norm(gradients, 1.0), total, this->tolerance * total);
  EXPECT_NEAR_RELATIVE(gradients[0], expected[0], this->tolerance);
  EXPECT_NEAR_RELATIVE(gradients[1], expected[1], this->tolerance);
}

TYPED_TEST(Clip, ParameterByParameterFailsTheSameCheck) {
  using T = TypeParam;
  auto gradients = this->golden("g1", "g2");
  const auto expected = this->golden("clipped_g1", "clipped_g2");
  std::vector<Array<T>> first{gradients[0]}, second{gradients[1]};
  clip_global_norm(first, 1.0), clip_global_norm(second, 1.0);
  EXPECT_FALSE(agree(first[0], expected[0], 1e-2));
  EXPECT_FALSE(agree(second[0], expected[1], 1e-2));
}

// Without the 1e-6 of PyTorch's factor the clipped gradients are larger by 1e-6 / norm: seen in double.
TEST(ClipOfDoubles, WithoutTheSmallTermFailsTheSameCheck) {
  const Golden golden("optim_clip_grad_norm");
  const double factor = 1 / golden.array("total_norm").item();
  std::vector<double> wrong;
  const auto first = golden.array("g1");
  for (const double x : first.values()) wrong.push_back(factor * x);
  const A expected = golden.array("clipped_g1");
  EXPECT_FALSE(agree(A::from(wrong, expected.shape()), expected, 1e-9));
}

TYPED_TEST(Clip, LeavesANormOfMostAtMost) {
  for (const double most : {1e-3, 0.5, 2.0}) {
    auto gradients = this->random_arrays(1, 5);
    const auto before = gradients;
    const double norm = clip_global_norm(gradients, most);
    EXPECT_NEAR(norm, norm_by_loop(before), 1e-14 * norm);
    EXPECT_NEAR(norm_by_loop(gradients), most, most * (2e-6 / norm + this->tolerance));
    for (std::size_t i = 0; i < gradients.size(); ++i) {  // the direction stays
      for (std::size_t k = 0; k < gradients[i].values().size(); ++k) {
        const double x = static_cast<double>(before[i].values()[k]) * most / norm;
        EXPECT_NEAR(static_cast<double>(gradients[i].values()[k]), x,
                    std::abs(x) * (2e-6 / norm + this->tolerance));
      }
    }
  }
}

TYPED_TEST(Clip, TouchesNothingBelowTheNorm) {
  auto gradients = this->random_arrays(1);
  const auto before = gradients;
  const double norm = norm_by_loop(gradients);
  EXPECT_NEAR(clip_global_norm(gradients, norm + 1e-3), norm, 1e-14 * norm);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(gradients[i].shares_storage_with(before[i])) << i;
  }
}

TYPED_TEST(Clip, ScalesInPlaceWhatNobodyElseHolds) {
  auto gradients = this->random_arrays(1, 5);
  const auto held = gradients[1];
  const auto expected = held.to_vector();
  const auto* own = gradients[0].data();
  clip_global_norm(gradients, 1.0);
  EXPECT_EQ(gradients[0].data(), own);
  EXPECT_EQ(held.to_vector(), expected);
  EXPECT_FALSE(gradients[1].shares_storage_with(held));
}

// Two gradients may be one array, as those of a + b are.
TYPED_TEST(Clip, ScalesASharedGradientOnce) {
  using T = TypeParam;
  const auto shared = Array<T>::full({4}, 1);
  std::vector<Array<T>> gradients{shared, shared};
  const double norm = clip_global_norm(gradients, 0.5);
  EXPECT_NEAR(norm, std::sqrt(8.0), 1e-14);
  const auto expected = Array<T>::full({4}, static_cast<T>(0.5 / (norm + 1e-6)));
  EXPECT_NEAR_RELATIVE(gradients[0], expected, this->tolerance);
  EXPECT_NEAR_RELATIVE(gradients[1], expected, this->tolerance);
}

TYPED_TEST(Clip, OfNothingAndOfZerosHasNormZero) {
  using T = TypeParam;
  std::vector<Array<T>> none, empty{Array<T>::zeros({0, 3})}, zeros{Array<T>::zeros({2})};
  EXPECT_EQ(clip_global_norm(none, 1.0), 0);
  EXPECT_EQ(clip_global_norm(empty, 1.0), 0);
  EXPECT_EQ(clip_global_norm(zeros, 0.0), 0);
  EXPECT_SAME_NUMBERS(zeros[0], Array<T>::zeros({2}));
}

TYPED_TEST(Clip, ToZeroMakesZeros) {
  using T = TypeParam;
  auto gradients = this->random_arrays(1);
  clip_global_norm(gradients, 0);
  EXPECT_SAME_NUMBERS(gradients[0], Array<T>::zeros({3, 4}));
}

TYPED_TEST(Clip, OfANormThatIsNotFiniteNamesTheGradientAndChangesNothing) {
  using T = TypeParam;
  auto gradients = this->random_arrays(1, 5);
  gradients[1].set({6}, std::numeric_limits<T>::infinity());
  const auto before = gradients;
  EXPECT_TRUE(raises<DomainError>([&] { clip_global_norm(gradients, 1.0); },
                                  {"clip_global_norm", "norm is inf", "gradient 1"}));
  gradients[0].set({2, 3}, std::numeric_limits<T>::quiet_NaN());
  EXPECT_TRUE(raises<DomainError>([&] { clip_global_norm(gradients, 1.0); },
                                  {"clip_global_norm", "norm is nan", "gradient 0"}));
  EXPECT_SAME_NUMBERS(gradients[1], before[1]);
  EXPECT_SAME_NUMBERS(gradients[2], before[2]);
}

TYPED_TEST(Clip, OfANormThatIsNotFiniteFollowsPyTorchWhenAllowed) {
  using T = TypeParam;
  auto gradients = this->random_arrays(1);
  gradients[0].set({0, 0}, -std::numeric_limits<T>::infinity());
  EXPECT_EQ(clip_global_norm(gradients, 1.0, {.allow_nonfinite = true}), HUGE_VAL);
  EXPECT_TRUE(std::isnan(gradients[0](0, 0)));  // inf times 0
  EXPECT_SAME_NUMBERS(gradients[1], Array<T>::zeros({7}));
  EXPECT_TRUE(std::isnan(clip_global_norm(gradients, 1.0, {.allow_nonfinite = true})));
  for (const T x : gradients[1].values()) EXPECT_TRUE(std::isnan(x));
}

TYPED_TEST(Clip, OfABoundThatIsNegativeOrNotFiniteIsAnError) {
  auto gradients = this->random_arrays(1);
  for (const double most : {-1.0, HUGE_VAL, std::nan("")}) {
    EXPECT_TRUE(
        raises<DomainError>([&] { clip_global_norm(gradients, most); }, {"clip_global_norm", "most"}));
  }
}

TYPED_TEST(Clip, IsTheSameOnAnyNumberOfThreads) {
  using T = TypeParam;
  expect_same_bits_on_any_threads([] {
    Generator random(1);
    std::vector<Array<T>> gradients{random.normal<T>({3, 50001}), random.normal<T>({5})};
    const double norm = clip_global_norm(gradients, 1.0);
    gradients.push_back(Array<T>::scalar(static_cast<T>(norm)));
    return gradients;
  });
}

// A running sum of squares in float stops at 2^24; every element counts, also in an array of several pieces.
TEST(GlobalNorm, OfManyFloatsIsSummedInDouble) {
  const Index count = (Index{1} << 25) + 3;
  EXPECT_EQ(global_norm<float>({Array<float>::ones({count})}), std::sqrt(static_cast<double>(count)));
}

TEST(GlobalNorm, OfLargeFloatsDoesNotOverflow) {
  EXPECT_NEAR(global_norm<float>({Array<float>::full({4}, 3e38f)}) / 6e38, 1, 1e-6);
}

}  // namespace
}  // namespace tapehead
