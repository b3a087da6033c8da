// Wrong: online softmax over tiles of 16 keys that does not rescale what it has when the running maximum
// rises.
#include <tapehead/tapehead_kernel.h>

#include <algorithm>
#include <cmath>
#include <vector>

const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;

namespace {

constexpr int64_t tile = 16;

struct Running {
  double most = -HUGE_VAL, sum = 0;
  std::vector<double> total;
};

void take(Running& row, const tapehead_call& call, const float* q, int64_t n, int64_t from, int64_t to) {
  const int64_t S = call.key.shape[2], D = call.query.shape[3], E = call.value.shape[3];
  const float* k = static_cast<const float*>(call.key.data) + n * S * D;
  const float* v = static_cast<const float*>(call.value.data) + n * S * E;
  double scores[tile];
  for (int64_t j = from; j < to; ++j) {
    double score = 0;
    for (int64_t d = 0; d < D; ++d) score += static_cast<double>(q[d]) * static_cast<double>(k[j * D + d]);
    scores[j - from] = score * call.scale;
    row.most = std::max(row.most, scores[j - from]);
  }
  // Missing here: sum and total times exp(the maximum before - the maximum now).
  for (int64_t j = from; j < to; ++j) {
    const double w = std::exp(scores[j - from] - row.most);
    row.sum += w;
    for (int64_t e = 0; e < E; ++e)
      row.total[static_cast<std::size_t>(e)] += w * static_cast<double>(v[j * E + e]);
  }
}

}  // namespace

int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  if (call->type != TAPEHEAD_F32 || call->features != 0) return TAPEHEAD_UNSUPPORTED;
  const int64_t rows = call->query.shape[0] * call->query.shape[1] * call->query.shape[2];
  const int64_t S = call->key.shape[2], D = call->query.shape[3], E = call->value.shape[3];
  for (int64_t i = 0; i < rows; ++i) {
    Running row;
    row.total.resize(static_cast<std::size_t>(E));
    for (int64_t from = 0; from < S; from += tile) {
      take(row, *call, static_cast<const float*>(call->query.data) + i * D, i / call->query.shape[2], from,
           std::min(from + tile, S));
    }
    float* y = static_cast<float*>(results->output.data) + i * E;
    for (int64_t e = 0; e < E; ++e)
      y[e] = static_cast<float>(row.total[static_cast<std::size_t>(e)] / row.sum);
  }
  return TAPEHEAD_DONE;
}
