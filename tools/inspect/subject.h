#pragma once
// What `tapehead inspect` builds a tape of: small examples, tensors of a file, a step of a trained model.

#include <string>
#include <vector>

#include <tapehead/core/tape.h>
#include <tapehead/inspect/settings.h>

namespace tapehead::tools {

template <std::floating_point T>
struct Subject {
  std::string title;
  Var<T> loss;                                        // one number
  Var<T> x;                                           // what `--paths x` means when no input is called x
  std::vector<Var<T>> inputs;                         // what gradients are asked for
  std::vector<std::string> query_tokens, key_tokens;  // of sample 0, when there are any
};

// Attention of random numbers, projected, or layers of a transformer. The loss is the sum of the output times
// random numbers. Throws as what it is built of does: heads that do not divide the width, a row with no key.
template <std::floating_point T>
Subject<T> example(Tape<T>& tape, const InspectSettings& settings);

// Attention of the tensors of a .safetensors file: query, key and value, or x with w_query, w_key and w_value
// (in, out), and what may come with them: y (source of keys and values), w_out, b_query and so on, mask,
// bias, upstream (1 unless given). Its metadata may say scale, softcap, causal, heads, kv_heads, layout,
// mask_means or mask_true_means, linear_weight_layout. Throws FileError for what is missing or does not fit.
template <std::floating_point T>
Subject<T> dumped(Tape<T>& tape, const InspectSettings& settings);

// The loss of a batch of a model that `tapehead train --out` saved. Its numbers are float. Throws FileError
// when the folder is none.
Subject<float> trained(Tape<float>& tape, const InspectSettings& settings);

}  // namespace tapehead::tools
