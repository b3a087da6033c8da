/* Attention as <tapehead/tapehead_kernel.h> says it, with some of its options; sums are taken in double. */
#include <math.h>
#include <stdlib.h>
#include <tapehead/tapehead_kernel.h>

const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;

static int supported(const tapehead_call* c) {
  return c->type == TAPEHEAD_F32 && !(c->features & ~(TAPEHEAD_CAUSAL | TAPEHEAD_LENGTHS | TAPEHEAD_MASK |
                                                      TAPEHEAD_GROUPED | TAPEHEAD_STRIDED | TAPEHEAD_LSE));
}

/* Where the row of (b, h, i) begins. */
static const float* in(const tapehead_input* x, int64_t b, int64_t h, int64_t i) {
  return (const float*)x->data + b * x->stride[0] + h * x->stride[1] + i * x->stride[2];
}
static float* out(const tapehead_output* x, int64_t b, int64_t h, int64_t i) {
  return (float*)x->data + b * x->stride[0] + h * x->stride[1] + i * x->stride[2];
}

static int sees(const tapehead_call* c, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t* step = c->mask.stride;
  if ((c->features & TAPEHEAD_CAUSAL) && j > i + c->offset) return 0;
  if ((c->features & TAPEHEAD_LENGTHS) && j >= c->key_lengths[b]) return 0;
  if (!(c->features & TAPEHEAD_MASK)) return 1;
  return ((const uint8_t*)c->mask.data)[b * step[0] + h * step[1] + i * step[2] + j * step[3]];
}

static double dot(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t d = 0; d < count; ++d) sum += (double)a[d] * b[d];
  return sum;
}
static void add(float* y, double factor, const float* x, int64_t count) {
  if (factor == 0) return; /* a key that is not seen may hold NaN */
  for (int64_t d = 0; d < count; ++d) y[d] += (float)(factor * x[d]);
}
static void clear(const tapehead_output* y) {
  for (int64_t n = 0; n < y->shape[0] * y->shape[1] * y->shape[2]; ++n) {
    float* row = out(y, n / (y->shape[1] * y->shape[2]), n / y->shape[2] % y->shape[1], n % y->shape[2]);
    for (int64_t d = 0; d < y->shape[3]; ++d) row[d] = 0;
  }
}

/* The weights of a row that reads key head g; returns its log-sum-exp. */
static double weigh(const tapehead_call* c, int64_t b, int64_t h, int64_t g, int64_t i, double* w) {
  double most = -INFINITY, sum = 0;
  for (int64_t j = 0; j < c->key.shape[2]; ++j) {
    w[j] = -INFINITY;
    if (!sees(c, b, h, i, j)) continue;
    w[j] = c->scale * dot(in(&c->query, b, h, i), in(&c->key, b, g, j), c->query.shape[3]);
    most = fmax(most, w[j]);
  }
  const int empty = most == -INFINITY; /* no key is seen */
  for (int64_t j = 0; j < c->key.shape[2]; ++j) sum += w[j] = empty ? 0 : exp(w[j] - most);
  for (int64_t j = 0; j < c->key.shape[2]; ++j) w[j] /= empty ? 1 : sum;
  return empty ? -INFINITY : most + log(sum);
}

/* Every row: forward when there are results, else backward. */
static int32_t run(const tapehead_call* c, const tapehead_results* results, const tapehead_upstream* upstream,
                   const tapehead_gradients* d) {
  const int64_t H = c->query.shape[1], L = c->query.shape[2], S = c->key.shape[2], D = c->query.shape[3];
  const int64_t E = c->value.shape[3], group = H / c->key.shape[1];
  double *w = malloc(2 * (size_t)S * sizeof *w), *dw = w + S;
  if (!w) return -1;
  for (int64_t n = 0; n < c->query.shape[0] * H * L; ++n) {
    const int64_t b = n / (H * L), h = n / L % H, i = n % L, g = h / group;
    const double lse = weigh(c, b, h, g, i, w);
    double mean = 0;
    if (results && results->lse.data) *out(&results->lse, b, h, i) = (float)lse;
    for (int64_t j = 0; results && j < S; ++j)
      add(out(&results->output, b, h, i), w[j], in(&c->value, b, g, j), E);
    for (int64_t j = 0; d && j < S; ++j) {
      dw[j] = w[j] == 0 ? 0 : dot(in(&upstream->doutput, b, h, i), in(&c->value, b, g, j), E);
      mean += w[j] * dw[j];
    }
    for (int64_t j = 0; d && j < S; ++j) {
      const double dscore = c->scale * w[j] * (dw[j] - mean);
      add(out(&d->dquery, b, h, i), dscore, in(&c->key, b, g, j), D);
      add(out(&d->dkey, b, g, j), dscore, in(&c->query, b, h, i), D);
      add(out(&d->dvalue, b, g, j), w[j], in(&upstream->doutput, b, h, i), E);
    }
  }
  free(w);
  return TAPEHEAD_DONE;
}

int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  if (!supported(call)) return TAPEHEAD_UNSUPPORTED;
  clear(&results->output);
  return run(call, results, NULL, NULL);
}

int32_t tapehead_backward(const tapehead_call* call, const tapehead_upstream* upstream,
                          const tapehead_gradients* gradients) {
  clear(&gradients->dquery), clear(&gradients->dkey), clear(&gradients->dvalue);
  return run(call, NULL, upstream, gradients);
}
