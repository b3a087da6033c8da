#include <tapehead/core/errors.h>
#include <tapehead/nn/file_error.h>
#include <tapehead/nn/tasks.h>
#include <tools/train/attention.h>
#include <tools/train/fit.h>
#include <tools/train/train.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>

namespace tapehead::tools {
namespace {

using Model = CausalModel<float>;

// The length of the UTF-8 character that begins a text (RFC 3629), 0 when none does: neither overlong forms
// nor surrogates nor what is past U+10FFFF is a character.
std::size_t character_length(std::string_view text) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : lead >= 0xE0 && lead < 0xF0 ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool beyond = (lead == 0xED && byte(1) >= 0xA0) || (lead == 0xF4 && byte(1) >= 0x90);
  return overlong || beyond ? 0 : length;
}

// The bytes of each character of a UTF-8 text.
std::vector<std::string_view> characters(const std::string& file, std::string_view text) {
  std::vector<std::string_view> result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(text.substr(at));
    if (length == 0) throw FileError(file, "not UTF-8 at byte " + std::to_string(at));
    result.push_back(text.substr(at, length));
    at += length;
  }
  return result;
}

// A text as token numbers: the characters of the part that is trained on, and one token for any other.
struct Corpus {
  std::vector<std::string> characters;  // of each token; the last is that for all others
  std::vector<Index> tokens;
  Index split;  // where the held-out tenth begins

  Index vocabulary() const { return static_cast<Index>(characters.size()); }
};

Corpus read_corpus(const std::string& file, Index context) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream || !std::filesystem::is_regular_file(file)) throw FileError(file, "cannot be read");
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  const std::vector<std::string_view> all = characters(file, text);
  const auto count = static_cast<Index>(all.size());
  const Index split = count - count / 10;
  if (count - split <= context) {
    throw FileError(file, std::to_string(count) +
                              " characters are too few: a tenth of them is held out and must be more than "
                              "the context of " +
                              std::to_string(context));
  }
  std::map<std::string_view, Index> numbers;  // ordered, so that the same text gives the same numbers
  for (Index i = 0; i < split; ++i) numbers.emplace(all[static_cast<std::size_t>(i)], 0);
  Corpus corpus{{}, {}, split};
  for (auto& [character, number] : numbers) {
    number = corpus.vocabulary();
    corpus.characters.emplace_back(character);
  }
  const Index other = corpus.vocabulary();
  corpus.characters.emplace_back("\uFFFD");
  for (const std::string_view character : all) {
    const auto known = numbers.find(character);
    corpus.tokens.push_back(known == numbers.end() ? other : known->second);
  }
  return corpus;
}

// A window of the text, and the first of its positions that is asked for the character after it.
struct Window {
  Index start, first;
};
struct Windows {
  Array<Index> tokens, targets;  // (B, context)
};

Windows cut_out(const Corpus& corpus, const std::vector<Window>& list, Index context) {
  const auto count = static_cast<Index>(list.size());
  Windows windows{Array<Index>::uninitialized({count, context}),
                  Array<Index>::full({count, context}, no_target)};
  Index* token = windows.tokens.mutable_values().data();
  Index* target = windows.targets.mutable_values().data();
  for (const auto& [start, first] : list) {
    const Index* from = corpus.tokens.data() + start;
    std::copy_n(from, context, token);
    std::copy_n(from + first + 1, context - first, target + first);
    token += context, target += context;
  }
  return windows;
}

Windows drawn_windows(const Corpus& corpus, Generator& random, Index batch, Index context) {
  std::vector<Window> list;
  for (Index b = 0; b < batch; ++b) list.push_back({random.below(corpus.split - context), 0});
  return cut_out(corpus, list, context);
}

// Every held-out character is asked for once, with at least half a context before it.
void measure(const Model& model, const Corpus& corpus, Index context, TrainReport& report) {
  const Index last = static_cast<Index>(corpus.tokens.size()) - 1 - context;  // where the last window begins
  std::vector<Window> list;
  for (Index asked = corpus.split; asked <= last + context;) {
    const Index start = std::min(asked - 1 - context / 2, last);
    list.push_back({start, asked - 1 - start});
    asked = start + context + 1;
  }
  const Windows windows = cut_out(corpus, list, context);
  const Var<float> logits = model(windows.tokens);
  score(report, largest_classes(logits.value()), windows.targets);
  report.loss = static_cast<double>(answer_loss(logits, windows.targets).item());
}

// What the model goes on with after the beginning of the held-out part: each character drawn by its
// probability.
std::string sample(const Model& model, const Corpus& corpus, Generator& random, Index context, Index length) {
  std::vector<Index> tokens(corpus.tokens.begin() + corpus.split - context / 2,
                            corpus.tokens.begin() + corpus.split);
  std::string text;
  for (Index i = 0; i < length; ++i) {
    const std::vector<Index> recent(tokens.end() - std::min<std::ptrdiff_t>(context, std::ssize(tokens)),
                                    tokens.end());
    const Array<float> logits = model(Array<Index>::from(recent, {1, std::ssize(recent)})).value();
    const float* last = logits.data() + logits.size() - corpus.vocabulary();
    const float largest = *std::max_element(last, last + corpus.vocabulary());
    std::vector<double> mass;  // running sums of exp(logit)
    for (Index c = 0; c < corpus.vocabulary(); ++c) {
      mass.push_back((mass.empty() ? 0 : mass.back()) + std::exp(static_cast<double>(last[c] - largest)));
    }
    const auto drawn = std::ranges::upper_bound(mass, random.uniform() * mass.back()) - mass.begin();
    tokens.push_back(std::min<Index>(drawn, corpus.vocabulary() - 1));
    text += corpus.characters[static_cast<std::size_t>(tokens.back())];
  }
  return text;
}

// The beginning of the held-out part, (1, length).
Array<Index> first_held_out(const Corpus& corpus, Index length) {
  const auto begin = corpus.tokens.begin() + corpus.split;
  return Array<Index>::from(std::vector<Index>(begin, begin + length), {1, length});
}

Words words_of(const Corpus& corpus, const Array<Index>& tokens) {
  Words words;
  for (const Index token : tokens.values())
    words.push_back(corpus.characters[static_cast<std::size_t>(token)]);
  return words;
}

}  // namespace

TrainReport train_language(const TrainSettings& settings) {
  const Index context = settings.context.value_or(64);
  const Corpus corpus = read_corpus(settings.text, context);
  TransformerOptions sizes;
  sizes.vocabulary = corpus.vocabulary();
  sizes.context = context;
  sizes.width = 128;
  sizes.heads = 4;
  sizes.hidden = 512;
  return train_task<Model>(
      settings, sizes, {.steps = 600, .batch = 32, .rate = 2e-3, .decay = 0.1},
      [&](const Model& model, Generator& random, Index batch_size) {
        const Windows windows = drawn_windows(corpus, random, batch_size, context);
        return answer_loss(model(windows.tokens), windows.targets);
      },
      [&](const Model& model, Generator& random, TrainReport& report) {
        measure(model, corpus, context, report);
        report.sample = sample(model, corpus, random, context, 300);
        if (settings.out.empty()) return;
        const Array<Index> tokens = first_held_out(corpus, std::min<Index>(context, 64));
        report.attention = attention_of(model, tokens, words_of(corpus, tokens));
      });
}

}  // namespace tapehead::tools
