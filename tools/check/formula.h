#pragma once
// The attention that somebody may have computed: each step as a function that can be exchanged. With the
// steps as they are it is the contract's attention, forward and backward, in double.

#include <functional>
#include <vector>

#include <tools/check/call.h>
#include <tools/check/numbers.h>

namespace tapehead::check {

// Everything between the inputs of a call and its results, one field a step. Steps read what the earlier ones
// wrote and `call`, whose contract a mistake may have changed.
struct Work {
  const Call* call = nullptr;
  Contract contract;  // the one in force: a mistake changes this one
  Tensors inputs;     // likewise; shares the storage of the call's until changed

  // As the projections give them (or as given), after the norms, and as they enter the scores:
  // (B, H, L, D), (B, Hk, S, D), (B, Hk, S, E). What no norm or rotation is for has moved on, and is empty.
  Numbers query_unnormed, key_unnormed, query_unrotated, key_unrotated;
  Numbers query, key, value;
  std::vector<Index> key_head;     // of each query head
  Numbers products;                // (B, H, L, S): q . k
  Numbers scaled, capped, scores;  // scale; cap; bias, slopes and an additive mask
  std::vector<char> visible;       // (B, H, L, S)
  Numbers weights, log_sum_exp;    // (B, H, L, S), (B, H, L) in base e, with the sink
  Numbers sink_share;              // (B, H, L): weight of the sink; 0 without
  Numbers dropped;                 // weights after dropout
  Numbers output;                  // (B, H, L, E)

  // Backward, in the order in which they are made.
  Numbers doutput, ddropped, dweights, dscores, dcapped, dproducts;  // dscores: 0 where excluded
  std::vector<double> dsink;                                         // (H)
  Numbers dquery, dkey, dvalue;  // of what enters the scores; key and value by their own heads
  Numbers dquery_unrotated, dkey_unrotated, dquery_unnormed, dkey_unnormed;
  Tensors results;  // by the names of the format, gradients among them

  bool float_sums = false;  // products are summed in float, one after the other: for a model of rounding

  // Of a row and key of this call, in the whole dump's numbers.
  Index row(Index i) const { return call->rows.empty() ? i : call->rows[static_cast<std::size_t>(i)]; }
  // Number added to row(i) to give the key it is aligned with: 0 when not causal.
  Index causal_offset(Index b) const;
  bool sees(Index b, Index h, Index i, Index j) const {
    return visible[static_cast<std::size_t>(((b * call->H + h) * call->L + i) * call->S + j)] != 0;
  }
  bool row_is_empty(Index b, Index h, Index i) const;
  // Position for rotation and slopes: as given, or start + index.
  double query_position(Index b, Index i) const;
  double key_position(Index b, Index j) const;
};

using Step = std::function<void(Work&)>;

// In the order in which they run. A mistake exchanges a step, often by one that calls the right one and then
// changes what it wrote.
struct Formula {
  Step contract;  // empty: the call's; a mistake changes work.contract or work.inputs here
  Step inputs;  // projections or given tensors: query_unnormed ... or where the dump begins; value; key_head
  Step norms, rotation;  // what begins later in the dump passes through
  Step products, scale, cap, bias, visibility, softmax, dropout, values;
  Step results;  // output, weights, lse by name, in the order of the format
  // The backward pass starts here; a mistake may change what forward left ("saved") or the contract.
  Step before_backward;
  Step output_backward;  // doutput, through the last projection
  Step values_backward, dropout_backward, softmax_backward, cap_backward, scale_backward, products_backward;
  Step rotation_backward, norms_backward;
  Step inputs_backward;  // through the projections: grad_x, grad_y, grad_w_*, grad_b_*
  Step gradients;        // the other grad_* by name
  bool whole = false;    // it cannot be evaluated on some of the rows
};

// The right steps.
Formula right_formula();

// The same, or with the mistake that was found already: what families fit further mistakes on top of.
Formula formula_of(const Call& call);

// Runs the steps; the backward ones only when an upstream gradient is there and `gradients` says so.
Work evaluate(const Call& call, const Formula& formula, bool gradients = true);

// Which of the conditions on a key are held to.
struct Conditions {
  bool mask = true, causal = true, window = true, key_lengths = true, query_lengths = true, segments = true;
};
// visible = all conditions that the call has. A bias or additive mask of minus infinity excludes, too.
void find_visible(Work& work, const Conditions& held_to = {});

// weights, log_sum_exp and sink_share from scores and visible; what sees no key is left 0 and minus infinity.
void weigh(Work& work);

// The number of a tensor that broadcasts to (B, H, L, S) at a place of it.
double broadcast_at(const Array<double>& x, const Shape& scores, Index b, Index h, Index i, Index j);

// x (B, H, L, D) turned by angles sign * position * base^(-2 pair / width); `position` of (sample, row).
void rotate(Numbers& x, Pairing pairing, Index width, double base, double sign,
            const std::function<double(Index, Index)>& position);

}  // namespace tapehead::check
