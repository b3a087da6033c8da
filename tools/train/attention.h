#pragma once
// What the attention of a trained model looks like on one sequence, with the tokens in words.

#include <string>
#include <vector>

#include <tapehead/inspect/table.h>
#include <tapehead/nn/tasks.h>
#include <tapehead/nn/transformer.h>

namespace tapehead::tools {

using Words = std::vector<std::string>;

// Of the first sequence: "k3" and "v7" for keys and values; letters, and "<s>" for the start.
Words words_of(const RecallTask& task, const Array<Index>& tokens);
Words words_of(const ReverseTask& task, const Array<Index>& tokens);

// The weights of each layer on the first of the sequences (B, L).
std::vector<AttentionTable> attention_of(const CausalModel<float>& model, const Array<Index>& tokens,
                                         const Words& words);

// Of the decoder, on the first of the sequences: of each layer the self-attention, then the cross-attention
// to what the encoder makes of the source (B, S).
std::vector<AttentionTable> attention_of(const EncoderDecoder<float>& model, const Array<Index>& source,
                                         const Words& source_words, const Array<Index>& input,
                                         const Words& input_words);

}  // namespace tapehead::tools
