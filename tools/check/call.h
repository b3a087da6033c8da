#pragma once
// One call of attention in one layout, (B, H, L, D), with its settings as numbers: what is computed, and what
// a candidate gave.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <tapehead/core/array.h>
#include <tapehead/ops/rounding.h>

namespace tapehead::check {

struct Formula;

using NumberType = Precision;
enum class Pairing { none, half, neighbour };
enum class QueryKeyNorms { none, rms, l2 };

// What attention is asked to compute.
struct Contract {
  double scale = 1;
  std::optional<std::vector<Index>>
      causal{};  // one, or one a sample: query i sees key j when j <= i + offset
  // Keys left and right of the aligned position i + offset (0 when not causal) that are seen.
  std::optional<Index> window_left{}, window_right{};
  double softcap = 0;  // 0: none
  bool bias_before_scale = false;
  bool tiled_heads = false;  // query head h reads key head h mod Hk
  Pairing rope = Pairing::none;
  double rope_base = 10000;
  Index rope_width = 0;  // of D
  Index rope_start_query = 0, rope_start_key = 0;
  QueryKeyNorms norms = QueryKeyNorms::none;
  double norm_eps = 0;
  double dropout = 0;  // rate; 0 in evaluation
  bool training = false;
  bool empty_rows_zero = true;
  bool lse_base_2 = false;
  NumberType computed_in = NumberType::f64;
};

// By the names of the format, in its layout BHLD.
using Tensors = std::map<std::string, Array<double>, std::less<>>;

struct Call {
  Index B = 0, H = 0, Hk = 0, L = 0, S = 0, D = 0, E = 0;
  Contract contract;
  // query, key, value, mask, bias, sink ..., upstream, upstream_weights, upstream_lse; x, w_query ...; and
  // what tells more about the call without being judged itself: partial_*, *_after, output_second. Score-like
  // ones (mask, bias, dropout_keep) have rank 4 and broadcast to (B, H, L, S).
  Tensors inputs;
  Tensors candidate;  // output, weights, lse, grad_* ...: what is judged
  // Of candidates that were dumped in a narrower type than contract.computed_in: they were rounded to it at
  // the end.
  std::map<std::string, NumberType, std::less<>> kept_in{};
  bool mask_is_additive = false;  // else true (1) is allowed, whatever the dump's convention was
  // Numbers of the samples, query heads and rows in the dump when this is a part of it; empty: all.
  std::vector<Index> samples{}, heads{}, rows{};
  bool mask_in_numbers = false;  // the dump holds a mask that is not additive in floating-point numbers
  // A mistake that was found already, while another is looked for: formula_of(call) holds it.
  std::function<void(Formula&)> found{};
};

}  // namespace tapehead::check
