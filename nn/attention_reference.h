#pragma once
// The explicit formulas of attention, forward and backward, as plain loops in double: what the composition is
// held to, and what others can hold theirs to. Shares no code with the engine, its ops, the expansion of
// masks or the steps of attention.

#include <tapehead/nn/attention.h>

namespace tapehead {

// Everything attention can be asked for; or a gradient for each, undefined where there is none.
struct AttentionOutputs {
  Array<double> output{};                                           // (..., L, E)
  Array<double> weights{};                                          // (..., L, S), before dropout
  Array<double> scaled_scores{}, capped_scores{}, masked_scores{};  // (..., L, S)
  Array<double> log_sum_exp{};                                      // (..., L)
  Array<double> entropy{}, largest_score{}, first_key_mass{};       // (..., H)
};

// Gradients are there when an upstream gradient was given, and those of an option when it was.
struct AttentionReference : AttentionOutputs {
  Array<bool> kept{};  // (..., L, S), what dropout kept
  Array<double> dquery{}, dkey{}, dvalue{};
  Array<double> dscores{};                   // (..., L, S), of the masked scores: exactly 0 where excluded
  Array<double> dscale{};                    // of the shape of the scale, () when it is a number
  Array<double> dquery_gain{}, dkey_gain{};  // (D)
  Array<double> dbias{};                     // of the shape of the bias
  Array<double> dslopes{}, dsink{};          // (H)
};

struct AdditiveReference : AttentionReference {
  Array<double> dw_query{}, dw_key{}, db{}, dv{};
};

// query (..., H, L, D)   key (..., Hk, S, D)   value (..., Hk, S, E), as attention() takes them. What an
// option asks for is always given. Gradients are those of the sum of each output times its upstream gradient.
// Throws as attention() does, and ShapeError for an upstream gradient that has not the shape of its output.
AttentionReference attention_reference(const Array<double>& query, const Array<double>& key,
                                       const Array<double>& value,
                                       const AttentionOptions<double>& options = {},
                                       const AttentionOutputs& upstream = {});

// The same of additive_attention().
AdditiveReference additive_attention_reference(const Array<double>& query, const Array<double>& key,
                                               const Array<double>& value,
                                               const AdditiveScoring<double>& scoring,
                                               const AttentionOptions<double>& options = {},
                                               const AttentionOutputs& upstream = {});

}  // namespace tapehead
