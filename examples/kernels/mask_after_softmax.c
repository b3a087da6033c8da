/* Wrong: softmax runs over all keys, and the weights of masked ones are set to zero afterwards. */
#include <math.h>
#include <stdlib.h>
#include <tapehead/tapehead_kernel.h>

const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;

/* Whether the key is masked, and the element of a mask that repeats where its stride is 0. */
static int masked(const tapehead_call* c, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t* step = c->mask.stride;
  if ((c->features & TAPEHEAD_CAUSAL) && j > i + c->offset) return 1;
  if (!(c->features & TAPEHEAD_MASK)) return 0;
  return !((const uint8_t*)c->mask.data)[b * step[0] + h * step[1] + i * step[2] + j * step[3]];
}

int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  const int64_t B = call->query.shape[0], H = call->query.shape[1], L = call->query.shape[2];
  const int64_t S = call->key.shape[2], D = call->query.shape[3], E = call->value.shape[3];
  const double *k = call->key.data, *v = call->value.data;
  double* w;
  if (call->type != TAPEHEAD_F64 || (call->features & ~(TAPEHEAD_CAUSAL | TAPEHEAD_MASK)) != 0) {
    return TAPEHEAD_UNSUPPORTED;
  }
  if (!(w = malloc((size_t)S * sizeof *w))) return -1;
  for (int64_t row = 0; row < B * H * L; ++row) {
    const double* q = (const double*)call->query.data + row * D;
    double *y = (double*)results->output.data + row * E, most = -INFINITY, sum = 0;
    const int64_t n = row / L;
    for (int64_t j = 0; j < S; ++j) {
      w[j] = 0;
      for (int64_t d = 0; d < D; ++d) w[j] += call->scale * q[d] * k[(n * S + j) * D + d];
      most = fmax(most, w[j]);
    }
    for (int64_t j = 0; j < S; ++j) sum += w[j] = exp(w[j] - most);
    for (int64_t j = 0; j < S; ++j) w[j] = masked(call, n / H, n % H, row % L, j) ? 0 : w[j] / sum;
    for (int64_t e = 0; e < E; ++e) {
      y[e] = 0;
      for (int64_t j = 0; j < S; ++j) y[e] += w[j] * v[(n * S + j) * E + e];
    }
  }
  free(w);
  return TAPEHEAD_DONE;
}
