// Wrong: query i sees keys 0 to i, where call->offset is forgotten: right for a square, wrong behind a cache.
#include <tapehead/tapehead_kernel.h>

#include <algorithm>
#include <cmath>
#include <vector>

const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;

template <class T>
void attend(const tapehead_call& call, T* y) {
  const int64_t heads = call.query.shape[0] * call.query.shape[1], L = call.query.shape[2];
  const int64_t S = call.key.shape[2], D = call.query.shape[3], E = call.value.shape[3];
  const bool causal = (call.features & TAPEHEAD_CAUSAL) != 0;
  std::vector<double> w(static_cast<std::size_t>(S));
  for (int64_t row = 0; row < heads * L; ++row) {
    const int64_t n = row / L, i = row % L, seen = causal ? std::min(i + 1, S) : S;
    const T* q = static_cast<const T*>(call.query.data) + row * D;
    const T* k = static_cast<const T*>(call.key.data) + n * S * D;
    const T* v = static_cast<const T*>(call.value.data) + n * S * E;
    double most = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < seen; ++j) {
      double score = 0;
      for (int64_t d = 0; d < D; ++d) score += static_cast<double>(q[d]) * static_cast<double>(k[j * D + d]);
      w[static_cast<std::size_t>(j)] = score * call.scale;
      most = std::max(most, score * call.scale);
    }
    for (int64_t j = 0; j < seen; ++j) {
      double& x = w[static_cast<std::size_t>(j)];
      sum += x = std::exp(x - most);
    }
    for (int64_t e = 0; e < E; ++e) {
      double total = 0;
      for (int64_t j = 0; j < seen; ++j)
        total += w[static_cast<std::size_t>(j)] * static_cast<double>(v[j * E + e]);
      y[row * E + e] = static_cast<T>(total / sum);
    }
  }
}

int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  if ((call->features & ~TAPEHEAD_CAUSAL) != 0) return TAPEHEAD_UNSUPPORTED;
  if (call->type == TAPEHEAD_F64)
    attend(*call, static_cast<double*>(results->output.data));
  else
    attend(*call, static_cast<float*>(results->output.data));
  return TAPEHEAD_DONE;
}
