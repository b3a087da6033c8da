#pragma once
// All of tapehead but its xtensor adapter, in the order in which it is built up.

#include <tapehead/core/array.h>
#include <tapehead/core/derivatives.h>
#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/gradient_check.h>
#include <tapehead/core/memory.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/paths.h>
#include <tapehead/core/print.h>
#include <tapehead/core/random.h>
#include <tapehead/core/recompute.h>
#include <tapehead/core/record.h>
#include <tapehead/core/tape.h>
#include <tapehead/core/watch.h>

#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/einsum.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/indexing.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/norm.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/rope.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include <tapehead/nn/attention.h>
#include <tapehead/nn/attention_reference.h>
#include <tapehead/nn/layers.h>
#include <tapehead/nn/mask.h>
#include <tapehead/nn/model.h>
#include <tapehead/nn/optimizer.h>
#include <tapehead/nn/safetensors.h>
#include <tapehead/nn/tasks.h>
#include <tapehead/nn/training.h>
#include <tapehead/nn/transformer.h>
