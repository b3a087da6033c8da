#pragma once
// Expects an error of a type whose message holds given texts:
//   EXPECT_TRUE(raises<ShapeError>([&] { add(a, b); }, {"add", "(2, 3)", "(3, 2)"}));

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tapehead {

template <class E, class F>
testing::AssertionResult raises(F f, std::initializer_list<std::string_view> texts = {}) {
  try {
    f();
  } catch (const E& error) {
    const std::string message = error.what();
    for (const std::string_view text : texts) {
      if (message.find(text) == std::string::npos) {
        return testing::AssertionFailure()
               << "\"" << text << "\" is not in the message \"" << message << "\"";
      }
    }
    return testing::AssertionSuccess();
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "an error of another type: " << error.what();
  }
  return testing::AssertionFailure() << "no error was thrown";
}

}  // namespace tapehead
