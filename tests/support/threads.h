#pragma once
// How many threads the kernels of a test use, and that it does not matter.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include <tapehead/core/array.h>
#include <tapehead/core/parallel.h>

namespace tapehead {

// So many while it lives.
class Threads {
 public:
  explicit Threads(int count) { set_thread_count(count); }
  ~Threads() { set_thread_count(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_ = thread_count();
};

template <class T>
bool same_bits(const Array<T>& a, const Array<T>& b) {
  return a.shape() == b.shape() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

// f() returns a vector of Arrays.
template <class F>
void expect_same_bits_on_any_threads(F f) {
  auto on = [&](int count) {
    const Threads threads(count);
    return f();
  };
  const auto expected = on(1);
  for (const int count : {2, 3, 5}) {
    const auto actual = on(count);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(actual[i], expected[i])) << "result " << i << " on " << count << " threads";
    }
  }
}

}  // namespace tapehead
