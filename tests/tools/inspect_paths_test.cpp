#include <tapehead/inspect/paths.h>

#include <gtest/gtest.h>

#include <cmath>

#include <tapehead/inspect/inspect.h>
#include <tapehead/tapehead.h>

#include "support/compare.h"
#include "support/expect_error.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;
using Numbers = std::vector<double>;

// Y = X            dX = dY * mask, whatever Y is: lets one head, or one row, of a gradient pass.
V gate(const V& x, const A& mask) {
  return record("gate", x.value(), edge(x, [mask](const V& dy) { return dy * V(mask); }));
}

constexpr Index heads = 2, length = 3, width = 4, layers = 2;

// Ones where the head (if said) and the row (if said) are, in the shape of an attention's output.
A mask_of(const AttentionPart& part) {
  A mask = A::zeros({1, heads, length, width / heads});
  for (Index h = 0; h < heads; ++h) {
    for (Index i = 0; i < length; ++i) {
      if (part.head.value_or(h) != h || part.query_row.value_or(i) != i) continue;
      for (Index e = 0; e < width / heads; ++e) mask.set({0, h, i, e}, 1);
    }
  }
  return mask;
}

// Two layers with residual sums, each behind a norm, and a gate on the output of each attention.
struct Model {
  Tape<double> tape;
  V x, loss;

  explicit Model(const std::vector<A>& gates = {}, AttentionKernel kernel = AttentionKernel::composed) {
    Generator random(5);
    x = tape.input(random.normal<double>({1, length, width}), "x");
    V y = x;
    for (Index l = 0; l < layers; ++l) {
      const Scope<double> scope(tape, "layer " + std::to_string(l + 1));
      auto projected = [&](const V& z) {
        return split_heads(projection(z, V(random.normal<double>({width, width}))), heads);
      };
      const V z = rms_norm(y, V(A::ones({width})));
      const V q = projected(z), k = projected(z), v = projected(z);
      V out = attention(q, k, v, {.mask = Mask::causal(0), .kernel = kernel}).output;
      if (!gates.empty()) out = gate(out, gates[static_cast<std::size_t>(l)]);
      y = y + merge_heads(out);
    }
    loss = sum(square(y) * V(random.normal<double>({1, length, width})));
  }
};

const A everything = mask_of({});

const PathRow& row_of(const PathTable& table, const std::string& label) {
  for (const PathRow& row : table.rows) {
    if (row.label.starts_with(label)) return row;
  }
  throw std::out_of_range(label);
}

double largest_difference(const Numbers& a, const Numbers& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

constexpr double rounding = 1e-13;  // of numbers of size 1 to 10, after some hundred operations

TEST(InspectPaths, MeasuresEachPathAndTheirSumIsTheGradient) {
  Tape<double> tape;
  const V x = tape.input(A::of({3, 4}), "x");
  // By query (3, 0), by key (0, 8), directly (-1, -1).
  const V by_query = sum(port(x, "query") * V(A::of({3, 0})));
  const V by_key = sum(port(x, "key") * V(A::of({0, 8})));
  const V y = by_query + by_key - sum(x);
  const PathTable table = inspect_paths(y, x);
  EXPECT_EQ(table.name, "x");
  EXPECT_EQ(table.node, 0);
  EXPECT_EQ(table.total_numbers->numbers, (Numbers{2, 7}));
  EXPECT_DOUBLE_EQ(table.total.norm, std::sqrt(53));
  ASSERT_EQ(table.rows.size(), 3u);
  const PathRow &query = table.rows[0], &key = table.rows[1], &direct = table.rows[2];
  EXPECT_EQ(query.name, "query");
  EXPECT_EQ(query.gradient->numbers, (Numbers{3, 0}));
  EXPECT_EQ(query.norm, 3);
  EXPECT_DOUBLE_EQ(query.share, 6.0 / 53);
  EXPECT_DOUBLE_EQ(query.cosine, 6 / (3 * std::sqrt(53)));
  EXPECT_EQ(key.largest, 8);
  EXPECT_EQ(key.largest_at, (std::vector<Index>{1}));
  EXPECT_DOUBLE_EQ(key.share, 56.0 / 53);
  EXPECT_EQ(direct.name, "direct");
  EXPECT_TRUE(direct.label.starts_with("direct (%")) << direct.label;
  EXPECT_DOUBLE_EQ(direct.share, -9.0 / 53);
  EXPECT_DOUBLE_EQ(query.share + key.share + direct.share, 1);
  EXPECT_EQ(table.sum_error, 0);
  EXPECT_EQ(table.share_of_gradient, 1);
}

TEST(InspectPaths, OfTwoLayersAreThoseOfBothAndTheDirectOne) {
  Model model;
  const PathTable table = inspect_paths(model.loss, model.x);
  std::vector<std::string> labels;
  for (const PathRow& row : table.rows) labels.push_back(row.label.substr(0, row.label.find(" (")));
  EXPECT_EQ(labels,
            (std::vector<std::string>{"layer 1/query", "layer 1/key", "layer 1/value", "layer 1/direct",
                                      "layer 2/query", "layer 2/key", "layer 2/value"}));
  EXPECT_LT(table.sum_error, 1e-14);
  EXPECT_LT(
      largest_difference(table.total_numbers->numbers, gradient_values(model.loss, model.x)[0].to_vector()),
      rounding);
}

TEST(InspectPaths, OfAHeadAreWhatCameByItInTheFirstAttentionAlone) {
  for (const AttentionKernel kernel : {AttentionKernel::composed, AttentionKernel::fused}) {
    for (const AttentionPart part :
         {AttentionPart{0, {}}, AttentionPart{1, {}}, AttentionPart{{}, 2}, AttentionPart{1, 0}}) {
      Model model({}, kernel);
      const PathTable table = inspect_paths(model.loss, model.x, part);
      EXPECT_EQ(table.rows.size(), 6u);  // the direct one came by no head
      EXPECT_LT(table.sum_error, 1e-14);
      const A mask = mask_of(part);
      Model first({mask, everything}, kernel), second({everything, mask}, kernel);
      const PathTable by_first = inspect_paths(first.loss, first.x),
                      by_second = inspect_paths(second.loss, second.x);
      for (const char* name : {"query", "key", "value"}) {
        for (const auto& [layer, expected] : {std::pair("layer 1/", &by_first), {"layer 2/", &by_second}}) {
          const std::string label = std::string(layer) + name;
          EXPECT_LT(largest_difference(row_of(table, label).gradient->numbers,
                                       row_of(*expected, label).gradient->numbers),
                    rounding)
              << label;
        }
      }
    }
  }
}

// The sum over the parts of one row of the table, and of what the whole table holds.
template <class PartOf>
void expect_parts_sum(Index count, PartOf part_of) {
  Model model;
  const PathTable whole = inspect_paths(model.loss, model.x);
  const PathRow direct = row_of(whole, "layer 1/direct");
  Numbers sum = direct.gradient->numbers;
  double share = direct.share;
  std::vector<PathTable> parts;
  for (Index i = 0; i < count; ++i) {
    parts.push_back(inspect_paths(model.loss, model.x, part_of(i)));
    share += parts.back().share_of_gradient;
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += parts.back().total_numbers->numbers[k];
  }
  EXPECT_LT(largest_difference(sum, whole.total_numbers->numbers), rounding);
  EXPECT_NEAR(share, 1, rounding);
  for (const PathRow& row : whole.rows) {
    if (row.name == "direct") continue;
    Numbers total(sum.size());
    for (const PathTable& part : parts) {
      const Numbers of_part = row_of(part, row.label).gradient->numbers;
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += of_part[k];
    }
    EXPECT_LT(largest_difference(total, row.gradient->numbers), rounding) << row.label;
  }
}

TEST(InspectPaths, OfAllHeadsSumToTheGradient) {
  expect_parts_sum(heads, [](Index h) { return AttentionPart{h, {}}; });
}
TEST(InspectPaths, OfAllQueryRowsSumToTheGradient) {
  expect_parts_sum(length, [](Index i) { return AttentionPart{{}, i}; });
}

// The reading that was not taken: a head of every attention that the signal meets. What comes by head 0 of
// one layer and head 1 of the other is then in no table.
TEST(InspectPaths, OfTheSameHeadInEveryLayerWouldNotSumToTheGradient) {
  Model model;
  const PathRow whole = row_of(inspect_paths(model.loss, model.x), "layer 1/value");
  Numbers sum(whole.gradient->numbers.size());
  for (Index h = 0; h < heads; ++h) {
    const A mask = mask_of({h, {}});
    Model gated({mask, mask});
    const PathTable table = inspect_paths(gated.loss, gated.x);
    const Numbers part = row_of(table, "layer 1/value").gradient->numbers;
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += part[k];
  }
  EXPECT_GT(largest_difference(sum, whole.gradient->numbers), 1e-3);
}

TEST(InspectPaths, OfAHeadOfAdditiveAttention) {
  Generator random(6);
  Tape<double> tape;
  const V x = tape.input(random.normal<double>({1, 2, 3, 4}), "x");
  AdditiveScoring<double> scoring;
  scoring.w_query = random.normal<double>({4, 5}), scoring.w_key = random.normal<double>({4, 5});
  scoring.v = random.normal<double>({5});
  const V out = additive_attention(x, x, x, scoring).output;
  const V loss = sum(square(out));
  // Heads do not mix here: what came by head 1 is the gradient of its own part of the loss.
  const Numbers expected = gradient_values(sum(square(slice(out, 1, {1, 2}))), x)[0].to_vector();
  const PathTable table = inspect_paths(loss, x, {1, {}});
  EXPECT_EQ(table.rows.size(), 3u);
  EXPECT_LT(largest_difference(table.total_numbers->numbers, expected), rounding);
}

TEST(InspectPaths, OfAHiddenStateAndAParameter) {
  Model model;
  const TapeTable table = inspect(model.tape);
  const Index loss = Tape<double>::index_of("test", model.loss), state = node_called(table, "layer 1");
  const PathTable paths = inspect_paths(model.tape, loss, state);
  ASSERT_EQ(paths.rows.size(), 4u);
  EXPECT_EQ(paths.rows[0].label, "layer 2/query");
  EXPECT_EQ(paths.rows[3].name, "direct");
  EXPECT_LT(paths.sum_error, 1e-14);
  Tape<double> other;
  const V w = other.input(A::of({{1, 2}, {3, 4}}), "w");
  const PathTable tied = inspect_paths(sum(matmul(square(w), w)), w);
  EXPECT_EQ(tied.rows.size(), 2u);
  EXPECT_LT(tied.sum_error, 1e-15);
}

TEST(InspectPaths, OfWhatTheLossDoesNotDependOnAreNone) {
  Tape<double> tape;
  const V x = tape.input(A::of({1, 2}), "x"), z = tape.input(A::of({3}), "z");
  const PathTable table = inspect_paths(sum(z), x);
  EXPECT_TRUE(table.rows.empty());
  EXPECT_EQ(table.total.norm, 0);
  EXPECT_EQ(table.sum_error, 0);
}

TEST(InspectPaths, SayWhatIsWrong) {
  Model model;
  auto paths = [&](const AttentionPart& part) {
    return [&, part] { inspect_paths(model.loss, model.x, part); };
  };
  EXPECT_TRUE(raises<DomainError>(paths({2, {}}),
                                  {"no attention has head 2: there are heads 0 to 1 and query rows 0 to 2"}));
  EXPECT_TRUE(raises<DomainError>(paths({{}, 3}), {"no attention has query row 3"}));
  EXPECT_TRUE(raises<DomainError>(paths({-1, {}}), {"no attention has head -1"}));
  EXPECT_TRUE(
      raises<LogicError>([&] { inspect_paths(model.x, model.x); }, {"y is not one number: (1, 3, 4)"}));
  EXPECT_TRUE(raises<LogicError>([&] { inspect_paths(model.tape, 0, 9999); }, {"there is no node 9999"}));
  Tape<double> fused;
  const V z = fused.input(A::ones({1, 3, 4}), "z");
  const V out = sum(attention(z, z, z, {.kernel = AttentionKernel::fused}).output);
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        inspect_paths(out, z, {0, {}});
      },
      {"the heads of 'attention' are not told apart", "(1, 3, 4)"}));
  EXPECT_EQ(inspect_paths(out, z, {{}, 1}).rows.size(), 3u);
  Tape<double> bare;
  const V x = bare.input(A::of({1, 2}), "x");
  EXPECT_TRUE(raises<DomainError>(
      [&] {
        inspect_paths(sum(x), x, {0, {}});
      },
      {"there is no attention on the tape"}));
}

TEST(NodeCalled, FindsNamesScopesAndNumbers) {
  Model model;
  const TapeTable table = inspect(model.tape);
  EXPECT_EQ(node_called(table, "x"), 0);
  EXPECT_EQ(node_called(table, "%7"), 7);
  const Index query = node_called(table, "layer 2/query");
  EXPECT_TRUE(table.rows[static_cast<std::size_t>(query)].port);
  const Index out = node_called(table, "layer 1");
  EXPECT_EQ(table.rows[static_cast<std::size_t>(out)].op, "add");
  EXPECT_EQ(table.rows[static_cast<std::size_t>(out) + 1].scope, "layer 2");
  EXPECT_TRUE(raises<DomainError>([&] { node_called(table, "query"); }, {"2 nodes are called 'query'"}));
  EXPECT_TRUE(
      raises<DomainError>([&] { node_called(table, "z"); }, {"no input, port or scope is called 'z'"}));
  for (const char* name : {"%", "%-1", "%1x", "%99999"}) {
    EXPECT_TRUE(raises<DomainError>([&] { node_called(table, name); }, {"there is no node"})) << name;
  }
}

TEST(SharedValues, AreWhatIsReadTwice) {
  const TapeTable table = inspect(Model().tape);
  const std::vector<Index> shared = shared_values(table);
  EXPECT_EQ(shared, (std::vector<Index>{node_called(table, "x"), node_called(table, "layer 1")}));
  EXPECT_EQ(shared_values(table, 1).size(), 1u);
}

// Grouping

PathTable of_layers(int count) {
  PathTable table;
  table.total_numbers = ArrayNumbers{{2}, {0, 0}};
  for (int l = 1; l <= count; ++l) {
    for (const char* name : {"query", "key", "value"}) {
      PathRow row{name, "layer " + std::to_string(l) + "/" + name, l};
      row.gradient = ArrayNumbers{{2}, {1.0 * l, name[0] == 'q' ? 1.0 : -0.5}};
      table.total_numbers->numbers[0] += l;
      table.rows.push_back(row);
    }
  }
  return table;
}

Numbers sum_of(const PathTable& table) {
  Numbers sum(2);
  for (const PathRow& row : table.rows) {
    for (std::size_t k = 0; k < 2; ++k) sum[k] += row.gradient->numbers[k];
  }
  return sum;
}

TEST(Grouped, LeavesAPageAlone) { EXPECT_EQ(grouped(of_layers(13)).rows.size(), 39u); }

TEST(Grouped, MakesOneRowOfALayerAndKeepsTheSum) {
  const PathTable all = of_layers(20), table = grouped(all), open = grouped(all, "layer 2");
  ASSERT_EQ(table.rows.size(), 20u);
  EXPECT_EQ(table.rows[1].label, "layer 2 (3 paths)");
  EXPECT_EQ(table.rows[1].gradient->numbers, (Numbers{6, 0}));
  EXPECT_EQ(table.rows[1].norm, 6);
  EXPECT_EQ(table.rows[1].cosine, 1);
  EXPECT_EQ(sum_of(table), sum_of(all));
  ASSERT_EQ(open.rows.size(), 22u);
  EXPECT_EQ(open.rows[1].label, "layer 2/query");
  EXPECT_EQ(sum_of(open), sum_of(all));
  EXPECT_TRUE(raises<DomainError>([&] { grouped(all, "layer 99"); }, {"no path is inside 'layer 99'"}));
}

TEST(Grouped, MakesOneRowOfTheSmallestWhenThereAreStillTooMany) {
  const PathTable all = of_layers(100), table = grouped(all);
  ASSERT_EQ(table.rows.size(), 40u);
  EXPECT_EQ(sum_of(table), sum_of(all));
  EXPECT_EQ(row_of(table, "smaller ones (").label, "smaller ones (61 labels)");
  EXPECT_EQ(table.rows.back().label, "layer 100 (3 paths)");
  EXPECT_EQ(grouped(all, "layer 1").rows.size(), 40u);
}

}  // namespace
}  // namespace tapehead
