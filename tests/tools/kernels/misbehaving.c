/* Attention that is right but for what the environment variable MISBEHAVE says. As compiled, also:
 * CRASH_ON_LOAD, VERSION=n, NO_VERSION, NO_FORWARD. */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tapehead/tapehead_kernel.h>

#ifndef VERSION
#define VERSION TAPEHEAD_KERNEL_VERSION
#endif
#ifndef NO_VERSION
const int32_t tapehead_kernel_version = VERSION;
#endif

#ifdef CRASH_ON_LOAD
__attribute__((constructor)) static void crash(void) { raise(SIGSEGV); }
#endif

static int is(const char* what) {
  const char* asked = getenv("MISBEHAVE");
  return asked && strcmp(asked, what) == 0;
}

static void attend(const tapehead_call* call, double* output) {
  const int64_t rows = call->query.shape[0] * call->query.shape[1] * call->query.shape[2];
  const int64_t L = call->query.shape[2], S = call->key.shape[2], D = call->query.shape[3],
                E = call->value.shape[3];
  /* A kernel whose tiles of 4 keys run over the end. */
  const int64_t read = is("reads past the keys") ? (S + 3) / 4 * 4 + 4 : S;
  double* w = malloc((size_t)read * sizeof *w);
  for (int64_t row = 0; row < rows - is("skips the last row"); ++row) {
    const double* q = (const double*)call->query.data + row * D;
    const double* k = (const double*)call->key.data + row / L * S * D;
    const double* v = (const double*)call->value.data + row / L * S * E;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < read; ++j) {
      w[j] = 0;
      for (int64_t d = 0; d < D; ++d) w[j] += call->scale * q[d] * k[j * D + d];
      if (j < S) most = fmax(most, w[j]);
    }
    for (int64_t j = 0; j < S; ++j) sum += w[j] = exp(w[j] - most);
    for (int64_t e = 0; e < E; ++e) {
      double* y = output + row * E + e;
      *y = is("adds to what is there") ? *y : 0;
      for (int64_t j = 0; j < S; ++j) *y += w[j] / sum * v[j * E + e];
      if (is("gives NaN")) *y = NAN;
    }
  }
  free(w);
}

/* Takes 16 KB of the stack a level. */
static int recurse(int levels) {
  volatile int here[4096];
  here[levels % 4096] = levels;
  return levels == 0 ? 0 : recurse(levels - 1) + here[levels % 4096];
}

#ifndef NO_FORWARD
int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results) {
  static int calls = 0;
  const tapehead_output* y = &results->output;
  double* output = y->data;
  const int64_t size = y->shape[0] * y->shape[1] * y->shape[2] * y->shape[3];
  const int ignores_strides = is("ignores strides");
  if (call->type != TAPEHEAD_F64 || (call->features & ~(ignores_strides ? TAPEHEAD_STRIDED : 0u)) != 0 ||
      is("supports nothing")) {
    return TAPEHEAD_UNSUPPORTED;
  }
  if (is("has 64 channels only") && (call->query.shape[3] != 64 || call->value.shape[3] != 64)) {
    return TAPEHEAD_UNSUPPORTED;
  }
  ++calls;
  if (is("crashes")) raise(SIGSEGV);
  if (is("aborts")) abort();
  if (is("exits")) exit(0);
  if (is("overflows the stack")) return recurse(1 << 24);
  if (is("fails")) return 7;
  if (is("prints")) puts("a word on standard output");
  while (is("hangs")) {
  }
  if (is("takes the square of memory")) {
    const size_t square = (size_t)(call->key.shape[2] * call->key.shape[2]) * sizeof(double);
    char* all = malloc(square);
    for (size_t i = 0; i < square; i += 4096) ((volatile char*)all)[i] = 1;
    free(all);
  }
  attend(call, output);
  if (is("writes behind")) output[size] = 1;
  if (is("writes before")) output[-1] = 1;
  if (is("changes its input")) ((double*)(intptr_t)call->query.data)[0] += 1;
  if (is("does not repeat")) output[0] *= 1 + calls % 3 * 3e-16;
  return TAPEHEAD_DONE;
}
#endif
