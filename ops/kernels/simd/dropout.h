// Which weights dropout keeps, from the counter-based generator of core/random.h.
#pragma once

#include <tapehead/ops/kernels/simd/vector.h>

namespace tapehead::kernels {
namespace {

// The two 64-bit words of Philox 4x32-10 for one counter; a loop over counters becomes vectors.
struct Words {
  std::uint64_t word[2];
};
inline Words philox(std::uint64_t key, std::uint64_t counter) {
  constexpr std::uint64_t low = 0xFFFFFFFF;
  std::uint64_t x0 = counter & low, x1 = counter >> 32, x2 = 0, x3 = 0;
  std::uint64_t k0 = key & low, k1 = key >> 32;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53 * x0, p1 = 0xCD9E8D57 * x2;
    x0 = (p1 >> 32) ^ x1 ^ k0, x1 = p1 & low;
    x2 = (p0 >> 32) ^ x3 ^ k1, x3 = p0 & low;
    k0 = (k0 + 0x9E3779B9) & low, k1 = (k1 + 0xBB67AE85) & low;
  }
  return {{x0 | x1 << 32, x2 | x3 << 32}};
}

// y[i] = 0 or 1 / (1 - rate) for draws first to first + n - 1, n <= 256.
template <class T>
void fill_kept(const AttentionDropout& dropout, std::uint64_t first, Index n, T* y) {
  std::uint64_t word[260];
  const std::uint64_t counter = first / 2;
  const Index skipped = static_cast<Index>(first % 2);
  for (Index c = 0; c < (skipped + n + 1) / 2; ++c) {
    const Words words = philox(dropout.key, counter + static_cast<std::uint64_t>(c));
    word[2 * c] = words.word[0], word[2 * c + 1] = words.word[1];
  }
  // A uniform number is the upper 53 bits over 2^53, so it is below the rate when they are below rate 2^53.
  const double limit = dropout.rate * 0x1p53;
  const T factor = static_cast<T>(1 / (1 - dropout.rate));
  for (Index i = 0; i < n; ++i) {
    y[i] = static_cast<double>(word[skipped + i] >> 11) < limit ? T(0) : factor;
  }
}

}  // namespace
}  // namespace tapehead::kernels
