#pragma once
// EXPECT_GRADIENTS(f, inputs) and EXPECT_GRADIENTS(f, inputs, options), for users of GoogleTest:
// check_gradients() as an expectation that shows the report. ASSERT_GRADIENTS stops the test.
//
//   EXPECT_GRADIENTS([](const Var<double>& a, const Var<double>& b) { return a * b; }, {a, b});

#include <gtest/gtest.h>

#include <tapehead/core/gradient_check.h>

namespace tapehead::detail {

inline testing::AssertionResult gradients_agree(const GradientReport& report) {
  return report.ok ? testing::AssertionSuccess() : testing::AssertionFailure() << to_string(report);
}

}  // namespace tapehead::detail

#define EXPECT_GRADIENTS(...) \
  EXPECT_TRUE(::tapehead::detail::gradients_agree(::tapehead::check_gradients(__VA_ARGS__)))
#define ASSERT_GRADIENTS(...) \
  ASSERT_TRUE(::tapehead::detail::gradients_agree(::tapehead::check_gradients(__VA_ARGS__)))
