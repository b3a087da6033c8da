/* Attention as <tapehead/tapehead_kernel.h> says it, forward and backward, with every option and in both
 * types. */
#include <math.h>
#include <stdlib.h>
#include <tapehead/tapehead_kernel.h>

const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;

static double get(const tapehead_call* c, const void* data, int64_t i) {
  return c->type == TAPEHEAD_F64 ? ((const double*)data)[i] : (double)((const float*)data)[i];
}
static void put(const tapehead_call* c, void* data, int64_t i, double x) {
  if (c->type == TAPEHEAD_F64)
    ((double*)data)[i] = x;
  else
    ((float*)data)[i] = (float)x;
}
static int64_t at(const int64_t stride[4], int64_t b, int64_t h, int64_t i) {
  return b * stride[0] + h * stride[1] + i * stride[2];
}
static int64_t key_head(const tapehead_call* c, int64_t h) {
  return h / (c->query.shape[1] / c->key.shape[1]);
}

static int sees(const tapehead_call* c, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t position = i + c->offset;
  if ((c->features & TAPEHEAD_CAUSAL) && j > position) return 0;
  if ((c->features & TAPEHEAD_WINDOW) && (j < position - c->window_left || j > position + c->window_right))
    return 0;
  if ((c->features & TAPEHEAD_LENGTHS) && j >= c->key_lengths[b]) return 0;
  return !(c->features & TAPEHEAD_MASK) ||
         ((const uint8_t*)c->mask.data)[at(c->mask.stride, b, h, i) + j * c->mask.stride[3]];
}

/* The weights of a row, what the cap's slope is at each score, and the log-sum-exp, which it returns. */
static double weigh(const tapehead_call* c, int64_t b, int64_t h, int64_t i, double* w, double* slope) {
  const int64_t S = c->key.shape[2], q = at(c->query.stride, b, h, i);
  const double sink = c->features & TAPEHEAD_SINK ? get(c, c->sink, h) : -INFINITY;
  double most = -INFINITY, sum = 0;
  for (int64_t j = 0; j < S; ++j) {
    const int64_t k = at(c->key.stride, b, key_head(c, h), j);
    w[j] = -INFINITY, slope[j] = 1;
    if (!sees(c, b, h, i, j)) continue;
    w[j] = 0;
    for (int64_t d = 0; d < c->query.shape[3]; ++d)
      w[j] += get(c, c->query.data, q + d) * get(c, c->key.data, k + d);
    w[j] *= c->scale;
    if (c->features & TAPEHEAD_SOFTCAP) {
      const double t = tanh(w[j] / c->softcap);
      w[j] = c->softcap * t, slope[j] = 1 - t * t;
    }
    if (c->features & TAPEHEAD_BIAS) {
      w[j] += get(c, c->bias.data, at(c->bias.stride, b, h, i) + j * c->bias.stride[3]);
    }
    most = fmax(most, w[j]);
  }
  if (most == -INFINITY) {
    for (int64_t j = 0; j < S; ++j) w[j] = 0;
    return -INFINITY;
  }
  most = fmax(most, sink);
  for (int64_t j = 0; j < S; ++j) sum += w[j] = exp(w[j] - most);
  sum += exp(sink - most);
  for (int64_t j = 0; j < S; ++j) w[j] /= sum;
  return most + log(sum);
}

static void add(const tapehead_call* c, void* y, int64_t to, double factor, const void* x, int64_t from,
                int64_t count) {
  if (factor == 0) return; /* a key that is not seen may hold anything */
  for (int64_t d = 0; d < count; ++d) put(c, y, to + d, get(c, y, to + d) + factor * get(c, x, from + d));
}
static void clear(const tapehead_call* c, const tapehead_output* y) {
  for (int64_t b = 0; b < y->shape[0]; ++b)
    for (int64_t h = 0; h < y->shape[1]; ++h)
      for (int64_t i = 0; i < y->shape[2]; ++i)
        for (int64_t d = 0; d < y->shape[3]; ++d) put(c, y->data, at(y->stride, b, h, i) + d, 0);
}

/* Forward when g is null, else backward. */
static int32_t rows(const tapehead_call* c, const tapehead_results* r, const tapehead_upstream* u,
                    const tapehead_gradients* g) {
  const int64_t S = c->key.shape[2], D = c->query.shape[3], E = c->value.shape[3];
  double *w = malloc(3 * (size_t)S * sizeof *w), *slope = w + S, *dw = slope + S;
  if (!w) return -1;
  for (int64_t b = 0; b < c->query.shape[0]; ++b)
    for (int64_t h = 0; h < c->query.shape[1]; ++h)
      for (int64_t i = 0; i < c->query.shape[2]; ++i) {
        const double lse = weigh(c, b, h, i, w, slope);
        const int64_t q = at(c->query.stride, b, h, i), y = g ? at(u->doutput.stride, b, h, i) : 0;
        double mean = 0;
        if (!g && r->lse.data) put(c, r->lse.data, at(r->lse.stride, b, h, i), lse);
        for (int64_t j = 0; j < S; ++j) {
          const int64_t v = at(c->value.stride, b, key_head(c, h), j);
          if (!g) add(c, r->output.data, at(r->output.stride, b, h, i), w[j], c->value.data, v, E);
          dw[j] = 0;
          for (int64_t e = 0; g && w[j] != 0 && e < E; ++e) {
            dw[j] += get(c, u->doutput.data, y + e) * get(c, c->value.data, v + e);
          }
          mean += w[j] * dw[j];
        }
        for (int64_t j = 0; g && j < S; ++j) {
          const int64_t n = key_head(c, h), k = at(c->key.stride, b, n, j);
          const double dscore = c->scale * slope[j] * w[j] * (dw[j] - mean);
          add(c, g->dquery.data, at(g->dquery.stride, b, h, i), dscore, c->key.data, k, D);
          add(c, g->dkey.data, at(g->dkey.stride, b, n, j), dscore, c->query.data, q, D);
          add(c, g->dvalue.data, at(g->dvalue.stride, b, n, j), w[j], u->doutput.data, y, E);
        }
      }
  free(w);
  return TAPEHEAD_DONE;
}

int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  clear(call, &results->output);
  return rows(call, results, NULL, NULL);
}

int32_t tapehead_backward(const tapehead_call* call, const tapehead_upstream* upstream,
                          const tapehead_gradients* gradients) {
  clear(call, &gradients->dquery), clear(call, &gradients->dkey), clear(call, &gradients->dvalue);
  return rows(call, NULL, upstream, gradients);
}
