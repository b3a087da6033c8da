#pragma once
// The smallest models there are, for the tests of what walks over parameters and updates them.

#include <string>
#include <vector>

#include <tapehead/core/random.h>
#include <tapehead/nn/model.h>

namespace tapehead {

template <class T>
struct Single {
  Var<T> weight;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("weight", self.weight);
  }
};

// y = x slope + offset       slope (2, 3)   offset (3)
template <class T>
struct Line {
  Var<T> slope, offset;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("slope", self.slope), f("offset", self.offset);
  }
};

template <class T>
Line<T> random_line(std::uint64_t seed) {
  Generator random(seed);
  Line<T> line;
  line.slope = random.normal<T>({2, 3});
  line.offset = random.normal<T>({3});
  return line;
}

template <class T>
std::vector<Array<T>> random_line_gradients(std::uint64_t seed) {
  Generator random(seed);
  std::vector<Array<T>> gradients;
  gradients.push_back(random.normal<T>({2, 3}));
  gradients.push_back(random.normal<T>({3}));
  return gradients;
}

// Of its own storage.
template <class T>
Array<T> copy_of(const Var<T>& x) {
  return Array<T>::from(x.value().values(), x.shape());
}
template <class T>
Line<T> copy_of(const Line<T>& line) {
  return {copy_of(line.slope), copy_of(line.offset)};
}

}  // namespace tapehead
