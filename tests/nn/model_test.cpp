#include <tapehead/nn/model.h>

#include <gtest/gtest.h>

#include <type_traits>
#include <variant>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/memory.h>
#include <tapehead/nn/transformer.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/reduction.h>

#include "support/compare.h"
#include "support/expect_error.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Names = std::vector<std::string>;

struct Pair {
  V left;
  std::optional<V> right;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("left", self.left), f("right", self.right);
  }
};

struct Nest {
  std::vector<Pair> pairs;
  V single;
  std::optional<Pair> maybe;
  std::vector<V> list;
  std::vector<std::vector<V>> grid;
  int depth = 0;  // not a field

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("pairs", self.pairs), f("single", self.single), f("maybe", self.maybe);
    f("list", self.list), f("grid", self.grid);
  }
};

struct ChoiceNest {
  std::vector<std::variant<Pair, V>> choices;
  std::variant<Pair, V> one;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("choices", self.choices), f("one", self.one);
  }
};

V filled(const Shape& shape, double value) { return A::full(shape, value); }

Nest full_nest() {
  Nest model;
  model.pairs = {Pair{filled({2}, 1), filled({3}, 2)}, Pair{filled({5}, 3), {}}};
  model.single = filled({}, 4);
  model.maybe = Pair{filled({7, 2}, 5), {}};
  model.list = {filled({1, 3}, 6), filled({0}, 7)};
  model.grid = {{}, {filled({11}, 8)}};
  model.depth = 9;
  return model;
}

template <class Model>
Names names_of(const Model& model) {
  Names names;
  for_each_parameter(model, [&](const std::string& name, const auto&) { names.push_back(name); });
  return names;
}

TEST(ForEachParameter, GivesPathsInTheOrderOfTheFields) {
  EXPECT_EQ(names_of(full_nest()), (Names{"pairs.0.left", "pairs.0.right", "pairs.1.left", "single",
                                          "maybe.left", "list.0", "list.1", "grid.1.0"}));
}

TEST(ForEachParameter, GivesEachNameItsOwnVar) {
  const Nest model = full_nest();
  std::vector<Index> sizes;
  for_each_parameter(model, [&](const std::string&, const V& var) { sizes.push_back(var.size()); });
  EXPECT_EQ(sizes, (std::vector<Index>{2, 3, 5, 1, 14, 3, 0, 11}));
}

TEST(ForEachParameter, OfAListBeginsWithItsNumbers) {
  EXPECT_EQ(names_of(full_nest().pairs), (Names{"0.left", "0.right", "1.left"}));
}

TEST(ForEachParameter, LeavesOutWhatAnOptionalOrAListDoesNotHold) {
  Nest model;
  EXPECT_EQ(names_of(model), Names{"single"});
  model.maybe.emplace();
  EXPECT_EQ(names_of(model), (Names{"single", "maybe.left"}));
}

TEST(ForEachParameter, OfAModelCanChangeItAndOfAConstOneCannot) {
  Nest model = full_nest();
  for_each_parameter(model, [](const std::string&, auto& var) {
    static_assert(std::is_same_v<decltype(var), V&>);
    var = V(A::zeros(var.shape()));
  });
  EXPECT_EQ(model.pairs[1].left.value()(4), 0);
  EXPECT_EQ(model.grid[1][0].value()(10), 0);
  for_each_parameter(std::as_const(model), [](const std::string&, auto& var) {
    static_assert(std::is_same_v<decltype(var), const V&>);
  });
}

TEST(ForEachParameter, NamesTheParametersOfATransformer) {
  Generator random(1);
  const auto model = CausalModel<float>::initial(
      random, {.vocabulary = 5, .context = 3, .width = 4, .heads = 2, .layers = 2, .hidden = 0});
  EXPECT_EQ(names_of(model),
            (Names{"embedding.tokens.table", "embedding.positions.table", "layers.0.attention_norm.gain",
                   "layers.0.attention_norm.bias", "layers.0.attention.query.w", "layers.0.attention.key.w",
                   "layers.0.attention.value.w", "layers.0.attention.out.w", "layers.1.attention_norm.gain",
                   "layers.1.attention_norm.bias", "layers.1.attention.query.w", "layers.1.attention.key.w",
                   "layers.1.attention.value.w", "layers.1.attention.out.w", "norm.gain", "norm.bias",
                   "vocabulary.w"}));
}

TEST(ForEachParameter, NamesWhatAChoiceHoldsByTheNamesOfThat) {
  Names names;
  std::vector<Index> sizes;
  const ChoiceNest model{{Pair{filled({2}, 1), filled({3}, 2)}, filled({5}, 3)}, filled({7}, 4)};
  for_each_parameter(model, [&](const std::string& name, const V& var) {
    names.push_back(name), sizes.push_back(var.size());
  });
  EXPECT_EQ(names, (Names{"choices.0.left", "choices.0.right", "choices.1", "one"}));
  EXPECT_EQ(sizes, (std::vector<Index>{2, 3, 5, 7}));
}

TEST(ForEachParameter, NamesTheParametersOfEveryKindOfLayer) {
  Generator random(1);
  const TransformerOptions all{.vocabulary = 5,
                               .context = 3,
                               .width = 4,
                               .heads = 2,
                               .layers = 1,
                               .hidden = 6,
                               .key_heads = 1,
                               .bias = true,
                               .swiglu = true,
                               .norm = NormKind::rms,
                               .positions = Positions::rotary};
  EXPECT_EQ(
      names_of(CausalModel<float>::initial(random, all)),
      (Names{"embedding.tokens.table", "layers.0.attention_norm.gain", "layers.0.attention.query.w",
             "layers.0.attention.query.b", "layers.0.attention.key.w", "layers.0.attention.key.b",
             "layers.0.attention.value.w", "layers.0.attention.value.b", "layers.0.attention.out.w",
             "layers.0.attention.out.b", "layers.0.feed_forward_norm.gain", "layers.0.feed_forward.up.w",
             "layers.0.feed_forward.gate.w", "layers.0.feed_forward.down.w", "norm.gain", "vocabulary.w"}));
  const auto normed = MultiHeadAttention<float>::initial(random, 4, 2, {.out = false, .norm = true});
  EXPECT_EQ(names_of(normed), (Names{"query.w", "key.w", "value.w", "norm.query_gain", "norm.key_gain"}));
}

TEST(ForEachParameter, NamesTheParametersOfAnEncoderDecoder) {
  Generator random(1);
  TransformerOptions options{.vocabulary = 5, .context = 3, .width = 4, .heads = 2, .layers = 1, .hidden = 6};
  const Names layer = {"attention_norm.gain", "attention_norm.bias", "attention.query.w",
                       "attention.key.w",     "attention.value.w",   "attention.out.w"};
  const Names crossed = {"cross_norm.gain", "cross_norm.bias", "cross.query.w",
                         "cross.key.w",     "cross.value.w",   "cross.out.w"};
  const Names fed = {"feed_forward_norm.gain", "feed_forward_norm.bias", "feed_forward.up.w",
                     "feed_forward.up.b",      "feed_forward.down.w",    "feed_forward.down.b"};
  for (const NormPlace place : {NormPlace::before, NormPlace::after}) {
    options.norm_place = place;
    Names expected;
    auto add = [&](const std::string& prefix, const Names& names) {
      for (const std::string& name : names) expected.push_back(prefix + name);
    };
    const bool last = place == NormPlace::before;
    add("source_embedding.", {"tokens.table", "positions.table"});
    add("target_embedding.", {"tokens.table", "positions.table"});
    add("encoder.0.", layer), add("encoder.0.", fed);
    if (last) add("encoder_norm.", {"gain", "bias"});
    add("decoder.0.", layer), add("decoder.0.", crossed), add("decoder.0.", fed);
    if (last) add("decoder_norm.", {"gain", "bias"});
    add("", {"vocabulary.w"});
    EXPECT_EQ(names_of(EncoderDecoder<float>::initial(random, options)), expected);
  }
}

TEST(Parameters, AreTheVarsInThatOrder) {
  const Nest model = full_nest();
  const std::vector<V> list = parameters<double>(model);
  ASSERT_EQ(list.size(), 8u);
  EXPECT_TRUE(list[0].value().shares_storage_with(model.pairs[0].left.value()));
  EXPECT_TRUE(list[4].value().shares_storage_with(model.maybe->left.value()));
  EXPECT_TRUE(list[7].value().shares_storage_with(model.grid[1][0].value()));
}

TEST(ParameterCount, IsTheNumberOfElements) {
  EXPECT_EQ(parameter_count(full_nest()), 2 + 3 + 5 + 1 + 14 + 3 + 0 + 11);
  EXPECT_EQ(parameter_count(Nest{}), 0);
}

TEST(ParameterCount, OfATransformerIsThatOfItsFormula) {
  Generator random(1);
  constexpr Index classes = 7, context = 5, M = 6, F = 11, layers = 3;
  const auto model = CausalModel<double>::initial(
      random,
      {.vocabulary = classes, .context = context, .width = M, .heads = 3, .layers = layers, .hidden = F});
  const Index block = 2 * M + 4 * M * M + 2 * M + (M * F + F + F * M + M);
  EXPECT_EQ(parameter_count(model), classes * M + context * M + layers * block + 2 * M + M * classes);
}

TEST(ParameterCount, OfOtherFormsIsThatOfTheirFormulas) {
  Generator random(1);
  constexpr Index classes = 7, M = 8, F = 11, layers = 3, kv = M / 2;
  const TransformerOptions llama{.vocabulary = classes,
                                 .width = M,
                                 .heads = 4,
                                 .layers = layers,
                                 .hidden = F,
                                 .key_heads = 2,
                                 .swiglu = true,
                                 .norm = NormKind::rms,
                                 .positions = Positions::rotary};
  const Index block = 2 * M + 2 * M * M + 2 * M * kv + 3 * M * F;
  EXPECT_EQ(parameter_count(CausalModel<double>::initial(random, llama)),
            2 * classes * M + layers * block + M);
}

TEST(OnTape, RecordsEachParameterUnderItsName) {
  Tape<double> tape;
  const Nest model = full_nest();
  const Nest recorded = on_tape(tape, model);
  Names labels;
  for (Index i = 0; i < tape.size(); ++i) {
    EXPECT_EQ(tape.node(i).op.text(), "input");
    labels.push_back(tape.label_path(tape.node(i).name));
  }
  EXPECT_EQ(labels, names_of(model));
  Index next = 0;
  for (const V& parameter : parameters<double>(recorded)) {
    EXPECT_EQ(Tape<double>::index_of("test", parameter), next++);
  }
}

TEST(OnTape, CopiesNoElement) {
  Tape<double> tape;
  const Nest model = full_nest();
  const auto live = memory_statistics().live;
  const Nest recorded = on_tape(tape, model);
  EXPECT_EQ(memory_statistics().live, live);
  const auto before = parameters<double>(model), after = parameters<double>(recorded);
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(after[i].value().data(), before[i].value().data());
}

TEST(OnTape, LeavesTheModelUnrecordedAndKeepsWhatIsNoParameter) {
  Tape<double> tape;
  const Nest model = full_nest();
  EXPECT_EQ(on_tape(tape, model).depth, 9);
  for (const V& parameter : parameters<double>(model)) EXPECT_FALSE(parameter.recorded());
}

TEST(OnTape, OfARecordedModelEntersTheOtherTape) {
  Tape<double> first, second;
  const Nest recorded = on_tape(first, full_nest());
  const Nest again = on_tape(second, recorded);
  EXPECT_EQ(&Tape<double>::of("test", again.single), &second);
  EXPECT_EQ(&Tape<double>::of("test", recorded.single), &first);
}

TEST(OnTape, OfAPausedTapeIsAnError) {
  Tape<double> tape;
  const Pause<double> pause(tape);
  EXPECT_TRUE(raises<LogicError>([&] { on_tape(tape, full_nest()); }, {"paused"}));
  EXPECT_EQ(tape.size(), 0);
}

TEST(OnTape, GradientsComeInTheOrderOfTheParameters) {
  Tape<double> tape;
  const Nest recorded = on_tape(tape, full_nest());
  const std::vector<V> x = parameters<double>(recorded);
  V y = sum(x[0]);
  for (std::size_t i = 1; i < x.size(); ++i) y = y + sum(x[i]) * static_cast<double>(i + 1);
  const auto d = gradient_values(Vars<double>(y), Vars<double>(x));
  ASSERT_EQ(d.size(), x.size());
  for (std::size_t i = 0; i < d.size(); ++i) {
    EXPECT_SAME_NUMBERS(d[i], A::full(x[i].shape(), static_cast<double>(i + 1)));
  }
}

}  // namespace
}  // namespace tapehead
