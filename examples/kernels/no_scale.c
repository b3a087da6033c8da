/* Wrong: scores are not multiplied by call->scale. Everything else is right. */
#include <math.h>
#include <stdlib.h>
#include <tapehead/tapehead_kernel.h>

const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;

static void attend(const float* q, const float* k, const float* v, float* y, int64_t S, int64_t D, int64_t E,
                   double* w) {
  double most = -INFINITY, sum = 0;
  for (int64_t j = 0; j < S; ++j) {
    w[j] = 0;
    for (int64_t d = 0; d < D; ++d) w[j] += (double)q[d] * k[j * D + d];
    most = fmax(most, w[j]);
  }
  for (int64_t j = 0; j < S; ++j) sum += w[j] = exp(w[j] - most);
  for (int64_t e = 0; e < E; ++e) {
    double total = 0;
    for (int64_t j = 0; j < S; ++j) total += w[j] * v[j * E + e];
    y[e] = (float)(total / sum);
  }
}

int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  if (call->type != TAPEHEAD_F32 || call->features != 0) return TAPEHEAD_UNSUPPORTED;
  const int64_t heads = call->query.shape[0] * call->query.shape[1], L = call->query.shape[2];
  const int64_t S = call->key.shape[2], D = call->query.shape[3], E = call->value.shape[3];
  double* w = malloc((size_t)S * sizeof *w);
  if (!w) return -1;
  for (int64_t n = 0; n < heads; ++n) {
    const float *k = (const float*)call->key.data + n * S * D,
                *v = (const float*)call->value.data + n * S * E;
    for (int64_t i = n * L; i < (n + 1) * L; ++i) {
      attend((const float*)call->query.data + i * D, k, v, (float*)results->output.data + i * E, S, D, E, w);
    }
  }
  free(w);
  return TAPEHEAD_DONE;
}
