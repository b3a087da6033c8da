#ifndef TAPEHEAD_KERNEL_H
#define TAPEHEAD_KERNEL_H
/* What `tapehead contract --library FILE` asks of somebody's attention: a shared library that defines
 *
 *   const int32_t tapehead_kernel_version = TAPEHEAD_KERNEL_VERSION;
 *   int32_t tapehead_forward(const tapehead_call *call, const tapehead_results *results);
 *   int32_t tapehead_backward(const tapehead_call *call, const tapehead_upstream *upstream,
 *                             const tapehead_gradients *gradients);        (optional)
 *
 * C99 or C++; there is nothing else to include and nothing to link.
 *
 *   cc -std=c99 -O2 -shared -fPIC mine.c -o mine.so -lm
 *   tapehead contract --library ./mine.so
 *
 * Letters: B batches, H query heads, Hk key and value heads, L queries, S keys, D width of a query and a key,
 * E width of a value. For batch b, query head h, query i, key j and g = h / (H / Hk), rounded down:
 *
 *   score   = scale q[b,h,i] . k[b,g,j]
 *   score   = softcap tanh(score / softcap)             when TAPEHEAD_SOFTCAP
 *   score  += bias[b,h,i,j]                             when TAPEHEAD_BIAS
 *   seen    = all of: j <= i + offset                   when TAPEHEAD_CAUSAL
 *             i + offset - window_left <= j <= i + offset + window_right   when TAPEHEAD_WINDOW
 *             j < key_lengths[b]                        when TAPEHEAD_LENGTHS
 *             mask[b,h,i,j] != 0                        when TAPEHEAD_MASK
 *   sum     = sum over the seen keys of exp(score), plus exp(sink[h]) when TAPEHEAD_SINK
 *   output[b,h,i] = sum over the seen keys of exp(score) / sum  v[b,g,j]
 *   lse[b,h,i]    = log(sum)                            when TAPEHEAD_LSE
 *
 * A row that sees no key has output 0, lse minus infinity and adds nothing to any gradient. A bias of minus
 * infinity excludes the key. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TAPEHEAD_KERNEL_VERSION 1

/* What a function returns. A call that asks for what the kernel does not have, a feature, a type or sizes, is
 * refused with TAPEHEAD_UNSUPPORTED: what needs it is then not tried, and not held against the kernel. Any
 * other number is a failure. */
#define TAPEHEAD_DONE 0
#define TAPEHEAD_UNSUPPORTED 1

/* tapehead_call.type, of all numbers but where something else is said. */
#define TAPEHEAD_F32 1 /* float */
#define TAPEHEAD_F64 2 /* double */

/* tapehead_call.features: the sum of what the call needs. A kernel that has only some begins with
 *
 *   if (call->type != TAPEHEAD_F32 || (call->features & ~(uint32_t)(TAPEHEAD_CAUSAL | TAPEHEAD_LSE)) != 0) {
 *     return TAPEHEAD_UNSUPPORTED;
 *   }
 */
#define TAPEHEAD_CAUSAL 0x001u  /* offset */
#define TAPEHEAD_WINDOW 0x002u  /* offset, window_left, window_right */
#define TAPEHEAD_LENGTHS 0x004u /* key_lengths */
#define TAPEHEAD_MASK 0x008u    /* mask */
#define TAPEHEAD_BIAS 0x010u    /* bias */
#define TAPEHEAD_SOFTCAP 0x020u /* softcap */
#define TAPEHEAD_SINK 0x040u    /* sink */
#define TAPEHEAD_GROUPED 0x080u /* Hk is less than H */
#define TAPEHEAD_STRIDED                                                                                  \
  0x100u                    /* some array among query, key, value, results and gradients has gaps, or its \
                               axes in another order in memory; without it all of them are row-major */
#define TAPEHEAD_LSE 0x200u /* results.lse is wanted; backward gets it when forward could give it */

/* Arrays of four axes. Element (i0, i1, i2, i3) is data[i0 stride[0] + i1 stride[1] + i2 stride[2] +
 * i3 stride[3]], strides counted in elements. stride[3] is 1, but in mask and bias, where an axis that
 * repeats has stride 0. data is aligned to 64 bytes, or null where an array is absent. */
typedef struct tapehead_input {
  const void* data;
  int64_t shape[4];
  int64_t stride[4];
} tapehead_input;

typedef struct tapehead_output {
  void* data; /* what was there before is no number: write every element and nothing else */
  int64_t shape[4];
  int64_t stride[4];
} tapehead_output;

typedef struct tapehead_call {
  int32_t type;
  uint32_t features;
  tapehead_input query; /* (B, H, L, D) */
  tapehead_input key;   /* (B, Hk, S, D) */
  tapehead_input value; /* (B, Hk, S, E) */
  double scale;         /* always given */
  double softcap;
  int64_t offset; /* position of query 0, counted from key 0; may be negative */
  int64_t window_left, window_right;
  const int64_t* key_lengths; /* (B) */
  tapehead_input mask;        /* (B, H, L, S) of uint8_t */
  tapehead_input bias;        /* (B, H, L, S) */
  const void* sink;           /* (H) */
} tapehead_call;

typedef struct tapehead_results {
  tapehead_output output; /* (B, H, L, E) */
  tapehead_output lse;    /* (B, H, L, 1) */
} tapehead_results;

/* Of the same call: what forward gave, and the gradient that comes back to output. */
typedef struct tapehead_upstream {
  tapehead_input output;  /* (B, H, L, E) */
  tapehead_input lse;     /* (B, H, L, 1); null when forward did not give it */
  tapehead_input doutput; /* (B, H, L, E) */
} tapehead_upstream;

typedef struct tapehead_gradients {
  tapehead_output dquery; /* (B, H, L, D) */
  tapehead_output dkey;   /* (B, Hk, S, D): the sum over the query heads that read this head */
  tapehead_output dvalue; /* (B, Hk, S, E): likewise */
} tapehead_gradients;

#if defined(__GNUC__)
#define TAPEHEAD_EXPORT __attribute__((visibility("default")))
#else
#define TAPEHEAD_EXPORT
#endif

TAPEHEAD_EXPORT extern const int32_t tapehead_kernel_version;
TAPEHEAD_EXPORT int32_t tapehead_forward(const tapehead_call* call, const tapehead_results* results);
TAPEHEAD_EXPORT int32_t tapehead_backward(const tapehead_call* call, const tapehead_upstream* upstream,
                                          const tapehead_gradients* gradients);

#ifdef __cplusplus
}
#endif
#endif /* TAPEHEAD_KERNEL_H */
