// all-MiniLM-L6-v2 against what PyTorch computes with it in float64 (scripts/minilm_reference.py). The files
// come by scripts/fetch-minilm; TAPEHEAD_MINILM_DIR names another folder that has them.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>

#include <tapehead/core/gradient.h>
#include <tapehead/nn/text_encoder.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"

namespace tapehead {
namespace {

const char* const named_folder = std::getenv("TAPEHEAD_MINILM_DIR");
const std::filesystem::path folder = named_folder ? named_folder : TAPEHEAD_MINILM_FOLDER;

// Relative to the largest number of what is compared. A hidden state comes out of up to six layers, each a
// few sums of 384 to 1536 rounded products, and its largest numbers, which rounding follows, are ten times
// the others. Measured on several BLAS kernels: 5e-7 of hidden states, 1e-6 of attention and of the gradient
// in float, which is 18 roundings; 6e-15 in double. MistakesWouldShow says what is far enough away.
template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 1e-5 : 5e-14;

template <class T>
class MiniLm : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"model.safetensors", "reference.safetensors"}) {
      if (std::filesystem::exists(folder / name)) continue;
      if (named_folder) FAIL() << "TAPEHEAD_MINILM_DIR is " << folder << ", which has no " << name;
      GTEST_SKIP() << folder / name << " is not there; scripts/fetch-minilm fetches it";
    }
    reference.emplace(folder / "reference.safetensors");
    tokens = reference->template read<Index>("tokens");
    lengths = reference->template read<Index>("lengths");
    model = read_bert<T>(SafetensorsFile(folder / "model.safetensors"), std::stol(meta("heads")),
                         std::stod(meta("norm_eps")));
  }

  const std::string& meta(const std::string& key) const { return reference->metadata().at(key); }
  Array<double> expected(const char* name) const { return reference->template read<double>(name); }

  // Number i along the first axis.
  Array<double> expected(const char* name, std::size_t i) const {
    const Array<double> all = expected(name);
    const Shape shape = all.shape().without(0);
    const auto size = static_cast<std::size_t>(shape.size());
    return Array<double>::from(all.values().subspan(i * size, size), shape);
  }

  EncodedText<T> read(const TextEncoder<T>& encoder) const {
    return encoder(tokens, {.mask = Mask::lengths(lengths), .hidden_states = true, .weights = true});
  }
  Var<T> embeddings(const TextEncoder<T>& encoder) const {
    return unit_rows(mean_pooled(read(encoder).output, lengths));
  }
  // Mean of (cosine - label)^2 over all pairs of sentences.
  Var<T> loss(const TextEncoder<T>& encoder) const {
    const Var<T> e = embeddings(encoder);
    const Var<T> error = matmul(e, e, false, true) - Var<T>(expected("labels").template cast<T>());
    return mean(error * error);
  }
  // Of the loss, with respect to the table of the words.
  Array<double> gradient(TextEncoder<T> encoder) const {
    Tape<T> tape;
    Var<T>& table = encoder.embedding.tokens.table;
    table = tape.input(table.value(), "words");
    return gradient_values(loss(encoder), table)[0].template cast<double>();
  }

  // How far what a changed model makes of the sentences is from the reference.
  double error_of(const TextEncoder<T>& changed) const {
    return relative_error(embeddings(changed).value().template cast<double>(), expected("embeddings"));
  }

  std::optional<SafetensorsFile> reference;
  Array<Index> tokens, lengths;
  TextEncoder<T> model;
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(MiniLm, Types);

template <class T>
Array<double> widened(const Var<T>& x) {
  return x.value().template cast<double>();
}

TYPED_TEST(MiniLm, HasTheSizesOfItsName) {
  EXPECT_EQ(this->model.layers.size(), 6u);
  EXPECT_EQ(this->model.embedding.tokens.table.shape(), Shape({30522, 384}));
  EXPECT_EQ(this->model.layers[5].attention.heads, 12);
  EXPECT_EQ(parameter_count(this->model), 22'565'376)
      << "22,713,216 in the file, 147,840 of them the pooler's";
}

TYPED_TEST(MiniLm, HiddenStatesOfEveryLayerAreThoseOfPyTorch) {
  const auto text = this->read(this->model);
  ASSERT_EQ(text.hidden_states.size(), 7u);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_NEAR_RELATIVE(widened(text.hidden_states[i]), this->expected("hidden_states", i),
                         tolerance<TypeParam>)
        << "after layer " << i;
  }
  EXPECT_SAME_NUMBERS(text.output, text.hidden_states[6]);
}

TYPED_TEST(MiniLm, AttentionOfEveryHeadIsThatOfPyTorch) {
  const auto text = this->read(this->model);
  ASSERT_EQ(text.weights.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR_RELATIVE(widened(text.weights[i]), this->expected("attention", i), tolerance<TypeParam>)
        << "in layer " << i + 1;
  }
}

TYPED_TEST(MiniLm, EmbeddingsAndTheirCosinesAreThoseOfPyTorch) {
  const Var<TypeParam> pooled = mean_pooled(this->read(this->model).output, this->lengths);
  EXPECT_NEAR_RELATIVE(widened(pooled), this->expected("pooled"), tolerance<TypeParam>);
  const Var<TypeParam> e = unit_rows(pooled);
  EXPECT_NEAR_RELATIVE(widened(e), this->expected("embeddings"), tolerance<TypeParam>);
  EXPECT_NEAR_RELATIVE(widened(matmul(e, e, false, true)), this->expected("similarity"),
                       tolerance<TypeParam>);
}

TYPED_TEST(MiniLm, GradientOfALossWithRespectToTheWordsIsThatOfPyTorch) {
  EXPECT_NEAR(static_cast<double>(this->loss(this->model).item()), this->expected("loss").item(),
              tolerance<TypeParam>);
  const Array<double> gradient = this->gradient(this->model);
  ASSERT_EQ(gradient.shape(), Shape({30522, 384}));
  const auto rows = this->reference->template read<Index>("gradient_rows");
  const Array<double> expected = this->expected("gradient");
  auto elsewhere = gradient, found = Array<double>::zeros(expected.shape());
  for (Index i = 0; i < rows.size(); ++i) {
    for (Index m = 0; m < 384; ++m) {
      found.set({i, m}, gradient(rows(i), m));
      elsewhere.set({rows(i), m}, 0);
    }
  }
  EXPECT_NEAR_RELATIVE(found, expected, tolerance<TypeParam>);
  EXPECT_EQ(magnitude(elsewhere), 0) << "the gradient of words that do not occur";
}

// Each of these runs as well as the right one, and gives numbers of the right shape.
TYPED_TEST(MiniLm, MistakesWouldShow) {
  using T = TypeParam;
  const double bound = 10 * tolerance<T>;
  EXPECT_LE(this->error_of(this->model), tolerance<T>);

  auto tanh_gelu = this->model, pre_norm = this->model, six_heads = this->model, turned = this->model,
       no_segment = this->model, other_eps = this->model;
  for (auto& layer : tanh_gelu.layers) layer.feed_forward->activation = Activation::gelu_tanh;
  for (auto& layer : pre_norm.layers) layer.norm_place = NormPlace::before;
  for (auto& layer : six_heads.layers) layer.attention.heads = 6;
  for (auto& layer : turned.layers) layer.attention.query.w = transpose(layer.attention.query.w);
  no_segment.segments.reset();
  other_eps.norm.eps = 1e-5;
  for (auto& layer : other_eps.layers) {
    for (Norm<T>* norm : {&layer.attention_norm, &*layer.feed_forward_norm}) {
      std::get<LayerNorm<T>>(*norm).eps = 1e-5;
    }
  }
  EXPECT_GT(this->error_of(tanh_gelu), bound) << "the other GELU";
  EXPECT_GT(this->error_of(pre_norm), bound) << "norms before the parts";
  EXPECT_GT(this->error_of(six_heads), bound) << "half as many heads";
  EXPECT_GT(this->error_of(turned), bound) << "query weights (out, in)";
  EXPECT_GT(this->error_of(other_eps), bound) << "the eps of PyTorch's nn.LayerNorm";
  EXPECT_GT(this->error_of(no_segment), bound) << "the embedding of segment 0 left out";

  const Array<double> right = this->expected("pooled");
  const Var<T> unmasked = this->model(this->tokens).output;
  EXPECT_GT(relative_error(widened(mean_pooled(unmasked, this->lengths)), right), bound) << "padding is read";
  const Var<T> output = this->read(this->model).output;
  EXPECT_GT(relative_error(widened(mean(output, -2)), right), bound) << "padding is pooled";
}

}  // namespace
}  // namespace tapehead
