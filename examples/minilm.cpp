// A pretrained encoder at work: which sentences are alike, and which heads of attention look where.
//
//   scripts/fetch-minilm                   once: the model, and five sentences as tokens
//   build/release/bin/examples/minilm      or minilm 3, for the heads in the third sentence

#include <tapehead/tapehead.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>

using namespace tapehead;

namespace {

// Where a head may look from the word at i of n tokens, [CLS] the first and [SEP] the last of them.
constexpr const char* places[] = {"the word before", "the word after", "[CLS]", "[SEP]"};
Index at(std::size_t place, Index i, Index n) { return std::array{i - 1, i + 1, Index{0}, n - 1}[place]; }

struct Head {
  std::size_t layer = 0;
  Index number = 0;
  double share = -1;  // of its weight that is at a place, the mean over the words between the first and last
};

// w (B, H, L, L) of a layer; sentence b, of n tokens.
Head most_devoted(const Array<float>& w, std::size_t layer, Index b, Index n, std::size_t place) {
  Head best;
  for (Index head = 0; head < w.dim(1); ++head) {
    double sum = 0;
    for (Index i = 2; i < n - 2; ++i) sum += static_cast<double>(w(b, head, i, at(place, i, n)));
    if (const double share = sum / static_cast<double>(n - 4); share > best.share)
      best = {layer, head, share};
  }
  return best;
}

// Below each token, the one that gets most of its weight.
void print_gaze(const Array<float>& w, Index b, const Head& head, const std::vector<std::string>& tokens) {
  std::string above, below;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    auto weight = [&](std::size_t j) { return w(b, head.number, Index(i), Index(j)); };
    std::size_t most = 0;
    for (std::size_t j = 1; j < tokens.size(); ++j) most = weight(j) > weight(most) ? j : most;
    const std::size_t width = std::max(above.size(), below.size());
    (above.resize(width, ' '), above += "  ") += tokens[i];
    (below.resize(width, ' '), below += "  ") += tokens[most];
  }
  std::printf("\nlayer %zu, head %d\n%s\n%s\n", head.layer + 1, int(head.number + 1), above.c_str(),
              below.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder = TAPEHEAD_MINILM_FOLDER;
  const Index chosen = argc > 1 ? std::atol(argv[1]) - 1 : 4;
  auto refuse = [](const char* why) { return std::fprintf(stderr, "minilm: %s\n", why), 2; };
  if (chosen < 0 || chosen > 4) return refuse("the sentences are 1 to 5");
  if (!exists(folder / "model.safetensors") || !exists(folder / "reference.safetensors")) {
    return refuse("the model is not there yet: scripts/fetch-minilm fetches it");
  }
  const SafetensorsFile sentences(folder / "reference.safetensors");
  const auto tokens = sentences.read<Index>("tokens"), lengths = sentences.read<Index>("lengths");
  const auto model = read_bert<float>(SafetensorsFile(folder / "model.safetensors"), 12);
  const EncodedText<float> text = model(tokens, {.mask = Mask::lengths(lengths), .weights = true});
  const Var<float> embeddings = unit_rows(mean_pooled(text.output, lengths));
  const Array<float> cosines = matmul(embeddings, embeddings, false, true).value();

  std::printf("How alike the sentences are, 1 at most\n\n");
  for (Index b = 0; b < cosines.dim(0); ++b) {
    Index nearest = b == 0;
    for (Index c = 0; c < cosines.dim(1); ++c) {
      if (c != b && cosines(b, c) > cosines(b, nearest)) nearest = c;
      std::printf(" %5.2f", static_cast<double>(cosines(b, c)));
    }
    const std::string& sentence = sentences.metadata().at("sentence." + std::to_string(b));
    std::printf("   %d, most like %d: %s\n", int(b + 1), int(nearest + 1), sentence.c_str());
  }

  std::istringstream stream(sentences.metadata().at("tokens." + std::to_string(chosen)));
  const std::vector<std::string> words(std::istream_iterator<std::string>(stream), {});
  std::printf("\nThe head of each layer that looks most at ..., in sentence %d\n\n      ", int(chosen + 1));
  for (const char* place : places) std::printf("   %15s", place);
  Head most[std::size(places)];
  for (std::size_t layer = 0; layer < text.weights.size(); ++layer) {
    std::printf("\nlayer %zu", layer + 1);
    for (std::size_t i = 0; i < std::size(places); ++i) {
      const Head head = most_devoted(text.weights[layer].value(), layer, chosen, lengths(chosen), i);
      if (head.share > most[i].share) most[i] = head;
      std::printf("   head %2d %5.0f %%", int(head.number + 1), 100 * head.share);
    }
  }
  std::printf("\n\nBelow each token, the one that gets most of its weight\n");
  for (const Head& h : {most[0], most[1]}) print_gaze(text.weights[h.layer].value(), chosen, h, words);
}
