#pragma once
// Random numbers from a counter: the same on every machine, and any part of a stream without the parts
// before.

#include <cstdint>
#include <string_view>

#include <tapehead/core/array.h>

namespace tapehead {

// Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// 2011). A value: a copy continues the same stream. Only +, -, *, / and sqrt of IEEE doubles are used, so
// that no libm decides a number.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : key_(seed) {}

  // A generator of another stream, determined by this one's key and `name` alone, whatever was drawn so far.
  Generator split(std::uint64_t name) const;
  Generator split(std::string_view name) const;

  std::uint64_t key() const { return key_; }            // which stream
  std::uint64_t position() const { return position_; }  // how many numbers of it were drawn

  std::uint64_t bits();  // 64 random bits
  double uniform();      // in [0, 1), 53 bits
  double normal();       // mean 0, standard deviation 1; one uniform number each, by the inverse distribution
  Index below(Index limit);  // 0 to limit - 1, unbiased; throws DomainError when limit < 1

  template <std::floating_point T>
  Array<T> uniform(const Shape& shape, double low = 0, double high = 1);
  template <std::floating_point T>
  Array<T> normal(const Shape& shape, double mean = 0, double deviation = 1);
  Array<Index> integers(const Shape& shape, Index limit);
  Array<Index> permutation(Index count);  // of 0 to count - 1

 private:
  std::uint64_t key_;
  std::uint64_t position_ = 0;  // in units of 64 bits; a counter makes two
};

// The inverse of the standard normal distribution, 0 < p < 1, to about 1e-16 relative
// (Wichura: "Algorithm AS 241", Applied Statistics 37, 1988).
double normal_quantile(double p);

}  // namespace tapehead
