/* Wrong: query head h reads key head h mod Hk, as if the key heads were laid side by side again and again; it
 * is h / (H / Hk) that makes neighbours share. */
#include <math.h>
#include <stdlib.h>
#include <tapehead/tapehead_kernel.h>

const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;

int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  const int64_t B = call->query.shape[0], H = call->query.shape[1], Hk = call->key.shape[1];
  const int64_t L = call->query.shape[2], S = call->key.shape[2], D = call->query.shape[3];
  const int64_t E = call->value.shape[3];
  double* w;
  if (call->type != TAPEHEAD_F64 || (call->features & ~TAPEHEAD_GROUPED) != 0) return TAPEHEAD_UNSUPPORTED;
  if (!(w = malloc((size_t)S * sizeof *w))) return -1;
  for (int64_t row = 0; row < B * H * L; ++row) {
    const int64_t b = row / (H * L), h = row / L % H, n = b * Hk + h % Hk;
    const double *q = (const double*)call->query.data + row * D,
                 *k = (const double*)call->key.data + n * S * D;
    const double* v = (const double*)call->value.data + n * S * E;
    double *y = (double*)results->output.data + row * E, most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < S; ++j) {
      w[j] = 0;
      for (int64_t d = 0; d < D; ++d) w[j] += call->scale * q[d] * k[j * D + d];
      most = fmax(most, w[j]);
    }
    for (int64_t j = 0; j < S; ++j) sum += w[j] = exp(w[j] - most);
    for (int64_t e = 0; e < E; ++e) {
      y[e] = 0;
      for (int64_t j = 0; j < S; ++j) y[e] += w[j] / sum * v[j * E + e];
    }
  }
  free(w);
  return TAPEHEAD_DONE;
}
