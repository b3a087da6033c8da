#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/random.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/einsum.h>
#include <tapehead/ops/matmul.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>

#include "support/compare.h"
#include "support/expect_error.h"

namespace tapehead {
namespace {

using V = Var<double>;
using Extents = std::map<char, Index>;

// Small integers, so that sums are exact in any order.
Array<double> whole_numbers(Generator& generator, const Shape& shape) {
  Array<double> x = generator.integers(shape, 19).cast<double>();
  for (double& value : x.mutable_values()) value -= 9;
  return x;
}

Shape shape_of(const std::string& letters, const Extents& extents) {
  std::vector<Index> result;
  for (const char letter : letters) result.push_back(extents.at(letter));
  return Shape(std::span<const Index>(result));
}

// Where in an array with axes of these letters the element lies whose letters have the given values.
std::size_t place(const std::string& letters, const Extents& extents, const Extents& at) {
  Index result = 0;
  for (const char letter : letters) result = result * extents.at(letter) + at.at(letter);
  return static_cast<std::size_t>(result);
}

// Value and gradients by the definition: a loop over every value of every letter.
struct Defined {
  Defined(const std::string& a, const std::string& b, const std::string& y, const Extents& extents,
          const Array<double>& a_value, const Array<double>& b_value, const Array<double>& dy_value)
      : value(Array<double>::zeros(shape_of(y, extents))),
        da(Array<double>::zeros(a_value.shape())),
        db(Array<double>::zeros(b_value.shape())) {
    Index count = 1;
    std::string letters;
    for (const auto& [letter, extent] : extents) {
      letters += letter;
      count *= extent;
    }
    const auto all_value = value.mutable_values(), all_da = da.mutable_values(), all_db = db.mutable_values();
    for (Index number = 0; number < count; ++number) {
      Extents at;
      for (Index rest = number; const char letter : letters) {
        at[letter] = rest % extents.at(letter);
        rest /= extents.at(letter);
      }
      const std::size_t i = place(a, extents, at), j = place(b, extents, at), k = place(y, extents, at);
      all_value[k] += a_value.values()[i] * b_value.values()[j];
      all_da[i] += dy_value.values()[k] * b_value.values()[j];
      all_db[j] += dy_value.values()[k] * a_value.values()[i];
    }
  }
  Array<double> value, da, db;
};

// Extents must name the letters of the spec and no others.
void expect_defined(const std::string& a, const std::string& b, const std::string& y, const Extents& extents,
                    Generator& generator) {
  const std::string spec = a + "," + b + "->" + y;
  SCOPED_TRACE(spec);
  Tape<double> tape;
  const V left = tape.input(whole_numbers(generator, shape_of(a, extents)));
  const V right = tape.input(whole_numbers(generator, shape_of(b, extents)));
  const V result = einsum(spec, left, right);
  const Array<double> dy = whole_numbers(generator, shape_of(y, extents));
  const Defined expected(a, b, y, extents, left.value(), right.value(), dy);
  EXPECT_SAME_NUMBERS(result.value(), expected.value);
  const auto d = gradient_values(result, {left, right}, V(dy));
  EXPECT_SAME_NUMBERS(d[0], expected.da);
  EXPECT_SAME_NUMBERS(d[1], expected.db);
}

struct Three {
  std::string a, b, y;
};

TEST(Einsum, WhatPeopleWrite) {
  const std::vector<Three> specs = {
      {"bhld", "bhsd", "bhls"},                        // scores
      {"bhls", "bhse", "bhle"},                        // weights by values
      {"blhd", "bshd", "bhls"},                        // heads not yet in front
      {"bhls", "bshe", "blhe"}, {"bld", "de", "ble"},  // projection
      {"bld", "hde", "bhle"},                          // to heads
      {"bhle", "hem", "blm"},                          // and back
      {"bld", "de", "be"},                             // a letter of one operand, summed
      {"ij", "jk", "ik"},       {"ij", "jk", "ki"},   {"ji", "jk", "ik"}, {"ij", "kj", "ik"},
      {"ji", "kj", "ik"},       {"ij", "ij", "ij"},  // elementwise
      {"ij", "ij", "i"},        {"ij", "ij", ""},     {"ij", "ji", ""},   {"ij", "ji", "ji"},
      {"i", "j", "ij"},  // outer
      {"i", "j", "ji"},         {"i", "j", ""},       {"i", "i", ""},     {"ij", "", "ij"},
      {"", "i", "i"},           {"", "", ""},         {"Aa", "aB", "BA"},  // case matters
  };
  Generator generator(1);
  for (const Three& spec : specs) {
    for (const Index largest : {5, 1}) {
      Extents extents;
      for (const char letter : spec.a + spec.b) {
        const Index next = static_cast<Index>(extents.size()) + 2;
        extents.insert({letter, std::min(next, largest)});
      }
      expect_defined(spec.a, spec.b, spec.y, extents, generator);
    }
  }
}

TEST(Einsum, AnySpecAgreesWithTheDefinition) {
  Generator generator(2);
  auto some_of = [&](std::string letters, Index at_most) {
    for (std::size_t i = letters.size(); i > 1; --i) {
      std::swap(letters[i - 1], letters[static_cast<std::size_t>(generator.below(static_cast<Index>(i)))]);
    }
    const Index count = generator.below(std::min(static_cast<Index>(letters.size()), at_most) + 1);
    return letters.substr(0, static_cast<std::size_t>(count));
  };
  for (int repeat = 0; repeat < 500; ++repeat) {
    const std::string a = some_of("abcdef", 4), b = some_of("abcdef", 4);
    Extents extents;
    for (const char letter : a + b)
      extents.insert({letter, generator.below(20) == 0 ? 0 : 1 + generator.below(4)});
    std::string letters;
    for (const auto& entry : extents) letters += entry.first;
    expect_defined(a, b, some_of(letters, 6), extents, generator);
  }
}

TEST(Einsum, BlanksAreIgnored) {
  Generator generator(3);
  const V a = generator.normal<double>({2, 3}), b = generator.normal<double>({3, 4});
  EXPECT_SAME_NUMBERS(einsum(" i j, jk -> ik ", a, b), matmul(a, b));
}

TEST(Einsum, OfAnOperandWithItself) {
  Tape<double> tape;
  const V x = tape.input(Array<double>::of({{1, 2}, {3, 4}}));
  const V y = einsum("ij,kj->ik", x, x);
  EXPECT_SAME_NUMBERS(y, matmul(x, x, false, true));
  EXPECT_SAME_NUMBERS(gradient_values(y, x, V(Array<double>::of({{1, 0}, {0, 0}})))[0],
                      Array<double>::of({{2, 4}, {0, 0}}));
}

// The ops recorded between the inputs and the end.
std::vector<std::string> ops_of(const char* spec, const Shape& a, const Shape& b) {
  Tape<double> tape;
  const V left = tape.input(Array<double>::ones(a)), right = tape.input(Array<double>::ones(b));
  einsum(spec, left, right);
  std::vector<std::string> ops;
  for (Index i = 2; i < tape.size(); ++i) ops.emplace_back(tape.node(i).op.text());
  return ops;
}

TEST(Einsum, CopiesNoOperandThatAFlagOfMatmulCanRead) {
  auto copies = [](const char* spec, const Shape& a, const Shape& b) {
    const std::vector<std::string> ops = ops_of(spec, a, b);
    EXPECT_EQ(std::count(ops.begin(), ops.end(), "matmul"), 1) << spec;
    return std::count(ops.begin(), ops.end(), "permute");
  };
  for (const char* spec : {"bhld,bhsd->bhls", "bhld,bhds->bhls", "bhdl,bhds->bhls", "bhdl,bhsd->bhls",
                           "bhsd,bhld->bhls", "bhds,bhld->bhls"}) {
    EXPECT_EQ(copies(spec, {2, 2, 2, 2}, {2, 2, 2, 2}), 0) << spec;
  }
  EXPECT_EQ(copies("ij,jk->ki", {2, 2}, {2, 2}), 0);
  EXPECT_EQ(copies("bld,de->ble", {2, 2, 2}, {2, 2}), 0);
  EXPECT_EQ(copies("hbld,bhsd->bhls", {2, 2, 2, 2}, {2, 2, 2, 2}), 1);
  EXPECT_EQ(copies("bhld,hbsd->bhls", {2, 2, 2, 2}, {2, 2, 2, 2}), 1);
  EXPECT_EQ(copies("hbld,hbsd->bhls", {2, 2, 2, 2}, {2, 2, 2, 2}), 1);
}

TEST(Einsum, MultipliesNumbersWithoutAMatrixProduct) {
  EXPECT_EQ(ops_of("ij,ij->ij", {2, 3}, {2, 3}).back(), "reshape");
  for (const char* spec : {"i,j->ij", "ij,ij->ij", "ij,i->ij", "ij,k->"}) {
    const bool rank_two = std::string(spec).find("ij,ij") == 0;
    const std::vector<std::string> ops =
        ops_of(spec, std::string(spec)[1] == ',' ? Shape{2} : Shape{2, 3}, rank_two ? Shape{2, 3} : Shape{2});
    EXPECT_EQ(std::count(ops.begin(), ops.end(), "matmul"), 0) << spec;
  }
}

TEST(Einsum, ASpecThatCannotBeReadIsNamed) {
  const V x = Array<double>::ones({2, 2});
  auto with = [&](const char* spec) { return [&x, spec] { einsum(spec, x, x); }; };
  EXPECT_TRUE(
      raises<DomainError>(with("ii,ij->j"), {"einsum:", "\"i\" occurs twice in operand a", "ii,ij->j"}));
  EXPECT_TRUE(raises<DomainError>(with("ij,kk->ij"), {"einsum:", "\"k\" occurs twice in operand b"}));
  EXPECT_TRUE(raises<DomainError>(with("ij,jk->ii"), {"einsum:", "\"i\" occurs twice in the result"}));
  EXPECT_TRUE(raises<DomainError>(with("ij,jk->iz"), {"einsum:", "\"z\" of the result is in no operand"}));
  EXPECT_TRUE(raises<DomainError>(with("ij,jk"), {"einsum:", "->", "ij,jk"}));
  EXPECT_TRUE(raises<DomainError>(with("ij->i"), {"einsum:", "comma"}));
  EXPECT_TRUE(raises<DomainError>(with("ij->i,j"), {"einsum:", "comma"}));
  EXPECT_TRUE(raises<DomainError>(with("...j,jk->...k"), {"einsum:", "\".\" is no letter"}));
  EXPECT_TRUE(raises<DomainError>(with("ij,jk,kl->il"), {"einsum:", "\",\" is no letter"}));
  EXPECT_TRUE(raises<DomainError>(with("i1,1k->ik"), {"einsum:", "\"1\" is no letter"}));
}

TEST(Einsum, ShapesThatDoNotFitAreNamed) {
  const V a = Array<double>::ones({2, 3}), b = Array<double>::ones({4, 3});
  EXPECT_TRUE(raises<ShapeError>([&] { einsum("ij,jk->ik", a, b); },
                                 {"einsum:", "extents of \"j\" differ", "a (2, 3)", "b (4, 3)"}));
  EXPECT_TRUE(
      raises<ShapeError>([&] { einsum("ijk,jk->i", a, b); }, {"einsum:", "\"ijk\"", "a (2, 3)", "b (4, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { einsum("ij,j->i", a, b); }, {"einsum:", "\"j\"", "b (4, 3)"}));
  EXPECT_TRUE(raises<ShapeError>(  // an extent of 1 does not repeat
      [&] {
        einsum("ij,jk->ik", a, V(Array<double>::ones({1, 5})));
      },
      {"einsum:", "\"j\"", "b (1, 5)"}));
}

TEST(Einsum, AnErrorLeavesTheTapeAsItWas) {
  Tape<double> tape;
  const V a = tape.input(Array<double>::ones({2, 3}));
  EXPECT_THROW(einsum("ij,kj->kz", a, a), DomainError);
  EXPECT_THROW(einsum("ij,jk->ik", a, a), ShapeError);
  EXPECT_EQ(tape.size(), 1);
}

}  // namespace
}  // namespace tapehead
