#include <tapehead/nn/state.h>

#include <gtest/gtest.h>

#include <optional>

#include <tapehead/core/errors.h>
#include <tapehead/nn/transformer.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/files.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Names = std::vector<std::string>;

// A matrix, two vectors of which one may be missing, and a tensor of rank 3.
template <std::floating_point T>
struct Parts {
  Var<T> matrix, vector;
  std::optional<Var<T>> maybe{};
  std::vector<Var<T>> blocks{};

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("matrix", self.matrix), f("vector", self.vector), f("maybe", self.maybe), f("blocks", self.blocks);
  }
};

// Numbers from `start` on, all different.
template <class T>
Array<T> numbers(double start, const Shape& shape) {
  const auto first = static_cast<T>(start);
  return Array<T>::arange(first, first + static_cast<T>(shape.size())).reshape(shape);
}

template <class T>
Parts<T> parts(double start = 0) {
  return {numbers<T>(start, {2, 3}),
          numbers<T>(start + 10, {4}),
          Var<T>(numbers<T>(start + 20, {5})),
          {numbers<T>(start + 30, {2, 3, 4})}};
}

template <class Model>
void expect_same(const Model& actual, const Model& expected) {
  std::vector<std::string> names;
  std::vector<bool> same;
  for_each_parameter(expected, [&](const std::string& name, const auto& var) {
    for_each_parameter(actual, [&](const std::string& other, const auto& found) {
      if (name == other) same.push_back(same_bits(found.value(), var.value())), names.push_back(name);
    });
  });
  for (std::size_t i = 0; i < same.size(); ++i) EXPECT_TRUE(same[i]) << names[i];
  EXPECT_EQ(names.size(), detail::state_parameters(expected).size());
  EXPECT_EQ(names.size(), detail::state_parameters(actual).size());
}

template <class T>
class State : public FilesTest {
 protected:
  template <class Model, class... Rest>
  SafetensorsFile written(const Model& model, const Rest&... rest) const {
    SafetensorsWriter writer;
    add_parameters(writer, model, rest...);
    writer.write(path());
    return SafetensorsFile(path());
  }
};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(State, Scalars);
using StateOfDouble = State<double>;

// ---- Own names

TYPED_TEST(State, UnderOwnNamesComesBackBitForBit) {
  using T = TypeParam;
  const Parts<T> model = parts<T>();
  const SafetensorsFile file = this->written(model);
  EXPECT_EQ(file.names(), (Names{"matrix", "vector", "maybe", "blocks.0"}));
  EXPECT_EQ(file.type("matrix"), sizeof(T) == 4 ? "F32" : "F64");
  Parts<T> other = parts<T>(100);
  load_parameters(other, file);
  expect_same(other, model);
}

TYPED_TEST(State, OfATransformerComesBackBitForBitAndGivesTheSameOutput) {
  using T = TypeParam;
  const TransformerOptions sizes{
      .vocabulary = 5, .context = 4, .width = 6, .heads = 2, .layers = 2, .hidden = 7, .bias = true};
  Generator random(1);
  const auto model = CausalModel<T>::initial(random, sizes);
  auto other = CausalModel<T>::initial(random, sizes);
  const auto tokens = Array<Index>::of({{0, 3, 4}, {1, 1, 2}});
  EXPECT_FALSE(same_bits(other(tokens).value(), model(tokens).value()));
  load_parameters(other, this->written(model));
  expect_same(other, model);
  EXPECT_TRUE(same_bits(other(tokens).value(), model(tokens).value()));
}

TYPED_TEST(State, OfAnotherTypeIsConverted) {
  using T = TypeParam;
  using Other = std::conditional_t<sizeof(T) == 4, double, float>;
  const SafetensorsFile file = this->written(parts<T>());
  Parts<Other> other = parts<Other>(100);
  load_parameters(other, file);
  expect_same(other, parts<Other>());  // small integers, the same in both
}

TYPED_TEST(State, OfARecordedModelIsItsValuesAndWhatIsLoadedIsNotRecorded) {
  using T = TypeParam;
  Tape<T> tape;
  Parts<T> recorded = on_tape(tape, parts<T>());
  const SafetensorsFile file = this->written(recorded);
  EXPECT_EQ(tape.size(), 4);
  load_parameters(recorded, file);
  EXPECT_FALSE(recorded.matrix.recorded());
  expect_same(recorded, parts<T>());
}

struct Mixed {
  Var<float> narrow;
  V wide;

  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("narrow", self.narrow), f("wide", self.wide);
  }
};

TEST_F(StateOfDouble, OfAModelOfTwoTypesKeepsEachInItsOwn) {
  const Mixed model{numbers<float>(1, {2}), numbers<double>(3, {3})};
  const SafetensorsFile file = written(model);
  EXPECT_EQ(file.type("narrow"), "F32");
  EXPECT_EQ(file.type("wide"), "F64");
  Mixed other{numbers<float>(10, {2}), numbers<double>(30, {3})};
  load_parameters(other, file);
  EXPECT_SAME_NUMBERS(other.narrow, model.narrow);
  EXPECT_SAME_NUMBERS(other.wide, model.wide);
}

TEST_F(StateOfDouble, ThatTheFileHasAsTheyAreReadTheMapping) {
  Parts<double> model = parts<double>(100);
  const SafetensorsFile file = written(parts<double>());
  load_parameters(model, file);
  Parts<double> again = parts<double>(200);
  load_parameters(again, file);
  EXPECT_TRUE(again.matrix.value().shares_storage_with(model.matrix.value()));
}

// ---- A table

TEST_F(StateOfDouble, UnderTheNamesAndLayoutsOfATable) {
  const Parts<double> model = parts<double>();
  StateTable table;
  table.add_transposed("weight", "matrix")
      .add("b", "vector")
      .add("c", "maybe")
      .add_transposed("d", "blocks.0");
  const SafetensorsFile file = written(model, table);
  const A weight = file.read<double>("weight"), d = file.read<double>("d");
  ASSERT_EQ(weight.shape(), Shape({3, 2}));
  ASSERT_EQ(d.shape(), Shape({2, 4, 3})) << "the last two axes";
  for (Index i = 0; i < 2; ++i) {
    for (Index j = 0; j < 3; ++j) {
      EXPECT_EQ(weight(j, i), model.matrix.value()(i, j));
      for (Index k = 0; k < 4; ++k) EXPECT_EQ(d(i, k, j), model.blocks[0].value()(i, j, k));
    }
  }
  Parts<double> other = parts<double>(100);
  load_parameters(other, file, table);
  expect_same(other, model);
}

// Query, key and value of widths 2, 1 and 1 of a model of width 3, packed.
struct Packed {
  V query, key, value;
  template <class Self, class F>
  static void fields(Self& self, F f) {
    f("query", self.query), f("key", self.key), f("value", self.value);
  }
};
Packed packed(double start) {
  return {numbers<double>(start, {3, 2}), numbers<double>(start + 10, {3, 1}),
          numbers<double>(start + 20, {3, 1})};
}

TEST_F(StateOfDouble, OfOneTensorLieOneBehindAnotherInTheOrderOfTheTable) {
  StateTable table;
  table.add_transposed("qkv", "query").add_transposed("qkv", "value").add_transposed("qkv", "key");
  const SafetensorsFile file = written(packed(0), table);
  EXPECT_SAME_NUMBERS(file.read<double>("qkv"), A::of({{0, 2, 4}, {1, 3, 5}, {20, 21, 22}, {10, 11, 12}}));
  Packed other = packed(100);
  load_parameters(other, file, table);
  expect_same(other, packed(0));
}

TEST_F(StateOfDouble, OfOneTensorCanLieAlongItsOtherAxis) {
  StateTable table;  // (in, out) of several, as GPT-2 keeps them
  for (const char* name : {"query", "key", "value"}) table.entries.push_back({"qkv", name, false, -1});
  const SafetensorsFile file = written(packed(0), table);
  EXPECT_SAME_NUMBERS(file.read<double>("qkv"), A::of({{0, 1, 10, 20}, {2, 3, 11, 21}, {4, 5, 12, 22}}));
  Packed other = packed(100);
  load_parameters(other, file, table);
  expect_same(other, packed(0));
}

TEST(StateTable, NestsWithPrefixesOfBothNames) {
  StateTable linear;
  linear.add_transposed("weight", "w").add("bias", "b").ignore("mask");
  StateTable table;
  table.nest("attention.query.", "query.", linear).nest("attention.", "", linear);
  ASSERT_EQ(table.entries.size(), 4u);
  EXPECT_EQ(table.entries[0].tensor, "attention.query.weight");
  EXPECT_EQ(table.entries[0].parameter, "query.w");
  EXPECT_TRUE(table.entries[0].transposed);
  EXPECT_EQ(table.entries[1].parameter, "query.b");
  EXPECT_FALSE(table.entries[1].transposed);
  EXPECT_EQ(table.entries[3].tensor, "attention.bias");
  EXPECT_EQ(table.entries[3].parameter, "b");
  EXPECT_EQ(table.ignored, (Names{"attention.query.mask", "attention.mask"}));
}

TEST_F(StateOfDouble, BehindAPrefixIsAllThatIsLookedAt) {
  const Parts<double> model = parts<double>();
  const StateTable table = detail::own_names(detail::state_parameters(model));
  SafetensorsWriter writer;
  writer.add("matrix", A::ones({7}));  // of somebody else, who uses the same name
  add_parameters(writer, model, table, "mine.");
  writer.write(path());
  Parts<double> other = parts<double>(100);
  load_parameters(other, SafetensorsFile(path()), table, "mine.");
  expect_same(other, model);
  EXPECT_TRUE(raises<FileError>([&] { load_parameters(other, SafetensorsFile(path()), table); },
                                {"missing: vector", "unexpected: mine.matrix", "misshapen: matrix"}));
}

TEST_F(StateOfDouble, BesideWhatTheTableIgnoresIsRead) {
  StateTable table;
  table.add("matrix", "matrix").add("vector", "vector").add("maybe", "maybe").add("block", "blocks.0");
  SafetensorsWriter writer;
  add_parameters(writer, parts<double>(), table, "all.");
  writer.add("all.pooler.weight", A::ones({2})).add("all.pooler.bias", A::ones({2}));
  writer.add("all.x.pooler.weight", A::ones({3}));
  writer.write(path());
  const SafetensorsFile file(path());
  Parts<double> model = parts<double>(100);
  EXPECT_TRUE(raises<FileError>([&] { load_parameters(model, file, table, "all."); },
                                {"unexpected: all.pooler.weight, found (2)", "unexpected: all.pooler.bias",
                                 "unexpected: all.x.pooler.weight, found (3)"}));
  table.ignore("pooler.");
  EXPECT_EQ(message_of([&] { load_parameters(model, file, table, "all."); }),
            path() + ": the tensors are not those of the model\n  unexpected: all.x.pooler.weight, found (3)")
      << "what is ignored is a beginning, behind the prefix";
  table.ignore("x.pooler.weight");
  load_parameters(model, file, table, "all.");
  expect_same(model, parts<double>());
}

// ---- Files that do not fit

TEST_F(StateOfDouble, OfAFileThatDoesNotFitSaysAllThatIsWrongAndChangesNothing) {
  SafetensorsWriter writer;
  writer.add("vector", A::ones({3})).add("blocks.0", A::ones({4, 3, 2})).add("extra", A::ones({1, 2}));
  writer.add("another", A::ones({}));
  writer.write(path());
  Parts<double> model = parts<double>();
  const Parts<double> before = model;
  EXPECT_EQ(message_of([&] { load_parameters(model, SafetensorsFile(path())); }),
            path() +
                ": the tensors are not those of the model\n"
                "  missing: matrix, expected (2, 3)\n"
                "  missing: maybe, expected (5)\n"
                "  unexpected: extra, found (1, 2)\n"
                "  unexpected: another, found ()\n"
                "  misshapen: vector, expected (4), found (3)\n"
                "  misshapen: blocks.0, expected (2, 3, 4), found (4, 3, 2)");
  expect_same(model, before);
  EXPECT_TRUE(model.matrix.value().shares_storage_with(before.matrix.value()));
}

TEST_F(StateOfDouble, OfAMatrixTheOtherWayRoundIsMisshapen) {
  StateTable table;
  table.add_transposed("matrix", "matrix").add("vector", "vector");
  table.add("maybe", "maybe").add("blocks.0", "blocks.0");
  const SafetensorsFile file = written(parts<double>());
  Parts<double> model = parts<double>();
  EXPECT_TRUE(raises<FileError>([&] { load_parameters(model, file, table); },
                                {"misshapen: matrix, expected (3, 2), found (2, 3)"}));
}

TEST_F(StateOfDouble, OfATensorThatCannotBeReadChangesNothing) {
  std::string header = R"({"matrix":{"dtype":"F64","shape":[2,3],"data_offsets":[0,48]},)"
                       R"("vector":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[48,52]},)"
                       R"("maybe":{"dtype":"U8","shape":[5],"data_offsets":[52,57]},)"
                       R"("blocks.0":{"dtype":"BF16","shape":[2,3,4],"data_offsets":[57,105]}})";
  const auto length = static_cast<std::uint64_t>(header.size());
  put(path(), std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(105, '\1'));
  Parts<double> model = parts<double>();
  EXPECT_TRUE(
      raises<FileError>([&] { load_parameters(model, SafetensorsFile(path())); }, {"vector", "F8_E4M3"}));
  expect_same(model, parts<double>());
}

TEST_F(StateOfDouble, OfAPackedTensorThatIsMissingOrTooShortIsOneProblem) {
  StateTable table;
  table.add_transposed("qkv", "query").add_transposed("qkv", "value").add_transposed("qkv", "key");
  SafetensorsWriter().add("qkv", A::ones({3, 3})).write(path("short"));
  SafetensorsWriter().write(path("empty"));
  Packed model = packed(0);
  EXPECT_EQ(message_of([&] { load_parameters(model, SafetensorsFile(path("short")), table); }),
            path("short") +
                ": the tensors are not those of the model\n  misshapen: qkv, expected (4, 3), found (3, 3)");
  EXPECT_EQ(message_of([&] { load_parameters(model, SafetensorsFile(path("empty")), table); }),
            path("empty") + ": the tensors are not those of the model\n  missing: qkv, expected (4, 3)");
  expect_same(model, packed(0));
}

TEST_F(StateOfDouble, OfANameWithControlCharactersShowsThemAsNumbers) {
  SafetensorsWriter writer;
  add_parameters(writer, parts<double>());
  writer.add("new\nline", A::ones({1}));
  writer.write(path());
  Parts<double> model = parts<double>();
  EXPECT_TRUE(raises<FileError>([&] { load_parameters(model, SafetensorsFile(path())); }, {"new\\x0aline"}));
}

// ---- Tables that do not fit

TEST_F(StateOfDouble, OfATableThatDoesNotFitTheModelIsAnErrorThatSaysAll) {
  const Parts<double> model = parts<double>();
  StateTable table;
  table.add("a", "matrix").add("b", "matrix").add("c", "vector").add("d", "no.such").add("e", "other");
  for (const char* op : {"add_parameters", "load_parameters"}) {
    const bool writing = op == std::string("add_parameters");
    EXPECT_TRUE(raises<LogicError>(
        [&] {
          SafetensorsWriter writer;
          if (writing) return add_parameters(writer, model, table);
          Parts<double> other = model;
          load_parameters(other, written(model), table);
        },
        {op, "has not: no.such other", "twice: matrix", "leaves out: maybe blocks.0"}));
  }
}

TEST_F(StateOfDouble, OfPartsOfATensorThatDoNotFitTogetherIsAnError) {
  const auto write = [&](const StateTable& table) {
    SafetensorsWriter writer;
    add_parameters(writer, packed(0), table);
  };
  StateTable lengths;
  lengths.add("qkv", "query").add("qkv", "key").add("v", "value");
  EXPECT_TRUE(raises<ShapeError>([&] { write(lengths); }, {"qkv", "query (3, 2)", "key (3, 1)"}));
  StateTable axes;
  axes.entries = {{"qkv", "query", true, 0}, {"qkv", "key", true, 1}, {"v", "value"}};
  EXPECT_TRUE(raises<LogicError>([&] { write(axes); }, {"query", "key", "two axes"}));
  StateTable vector;
  vector.add_transposed("a", "vector").add("b", "matrix").add("c", "maybe").add("d", "blocks.0");
  SafetensorsWriter writer;
  EXPECT_TRUE(raises<ShapeError>([&] { add_parameters(writer, parts<double>(), vector); }, {"vector (4)"}));
  EXPECT_TRUE(raises<ShapeError>(
      [&] {
        add_parameters(
            writer, parts<double>(),
            StateTable().add("a", "matrix").add("a", "vector").add("c", "maybe").add("d", "blocks.0"));
      },
      {"matrix (2, 3)", "vector (4)"}));
}

TEST_F(StateOfDouble, OfAParameterWithoutAValueIsAnError) {
  Parts<double> model;
  model.matrix = A::ones({2});
  SafetensorsWriter writer;
  EXPECT_TRUE(raises<LogicError>([&] { add_parameters(writer, model); }, {"vector", "no value"}));
}

TEST_F(StateOfDouble, AddedTwiceUnderOneNameIsAnError) {
  SafetensorsWriter writer;
  add_parameters(writer, parts<double>());
  EXPECT_TRUE(raises<LogicError>([&] { add_parameters(writer, parts<double>()); }, {"matrix"}));
}

}  // namespace
}  // namespace tapehead
