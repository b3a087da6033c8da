#include <tools/train/attention.h>

#include <fmt/format.h>

#include <tapehead/inspect/inspect.h>
#include <tapehead/nn/model.h>

namespace tapehead::tools {
namespace {

const AttentionOptions<float> composed{.kernel = AttentionKernel::composed};  // the other has no weights
const AttentionOptions<float> causal{.mask = Mask::causal(0), .kernel = AttentionKernel::composed};

Array<Index> first_sequence(const Array<Index>& tokens) {
  const auto values = tokens.values().first(static_cast<std::size_t>(tokens.dim(1)));
  return Array<Index>::from(values, {1, tokens.dim(1)});
}

template <class Word>
Words words_of(const Array<Index>& tokens, Word word) {
  Words words;
  for (Index i = 0; i < tokens.dim(1); ++i) words.push_back(word(tokens(0, i)));
  return words;
}

}  // namespace

Words words_of(const RecallTask& task, const Array<Index>& tokens) {
  return words_of(tokens, [&](Index token) {
    return token < task.keys ? fmt::format("k{}", token) : fmt::format("v{}", token - task.keys);
  });
}

Words words_of(const ReverseTask& task, const Array<Index>& tokens) {
  return words_of(tokens, [&](Index token) {
    return token == task.start() ? std::string("<s>") : std::string(1, static_cast<char>('a' + token));
  });
}

std::vector<AttentionTable> attention_of(const CausalModel<float>& model, const Array<Index>& tokens,
                                         const Words& words) {
  Tape<float> tape;
  tape.keep(KeepLevel::everything);
  const CausalModel<float> recorded = on_tape(tape, model);
  Var<float> x = recorded.embedding(first_sequence(tokens));
  for (std::size_t i = 0; i < recorded.layers.size(); ++i) {
    const Scope<float> scope(x, fmt::format("layer {}", i + 1));
    x = recorded.layers[i](x, causal);
  }
  std::vector<AttentionTable> tables = inspect(tape).attention;
  for (AttentionTable& table : tables) table.query_tokens = table.key_tokens = words;
  return tables;
}

std::vector<AttentionTable> attention_of(const EncoderDecoder<float>& model, const Array<Index>& source,
                                         const Words& source_words, const Array<Index>& input,
                                         const Words& input_words) {
  const Var<float> encoded = model.encoded(first_sequence(source));
  Tape<float> tape;
  tape.keep(KeepLevel::everything);
  const EncoderDecoder<float> recorded = on_tape(tape, model);
  Var<float> x = recorded.target_embedding(first_sequence(input));
  for (std::size_t i = 0; i < recorded.decoder.size(); ++i) {
    const Scope<float> scope(x, fmt::format("decoder {}", i + 1));
    x = recorded.decoder[i](x, encoded, causal, composed);
  }
  std::vector<AttentionTable> tables = inspect(tape).attention;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const bool cross = i % 2 == 1;
    tables[i].label = fmt::format("decoder {}/{}", i / 2 + 1, cross ? "cross-attention" : "self-attention");
    tables[i].query_tokens = input_words;
    tables[i].key_tokens = cross ? source_words : input_words;
  }
  return tables;
}

}  // namespace tapehead::tools
