// The tests that are made from the op table (op_table.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/op_checks.h"
#include "ops/op_table.h"

namespace tapehead::table {
namespace {

// ---------------------------------------------------------------- what is done

// How many checks the table makes of one row. A run of all tests is held to it.
Index checks_of(const Row& row) {
  Index checks = std::ssize(row.examples) + std::ssize(row.golden) + std::ssize(row.refuses);
  for (const Sample& sample : row.samples) checks += 2 * row.order + std::ssize(sample) + 3;
  return checks + (row.each ? 3 : 0);
}
Index checks_made = 0;

class Tally : public testing::Environment {
 public:
  void SetUp() override { checks_made = 0; }
  void TearDown() override {
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    if (all.test_to_run_count() != all.total_test_count()) return;
    Index planned = 0;
    for (const Row& row : all_rows()) planned += checks_of(row);
    EXPECT_EQ(checks_made, planned) << "checks of the op table";
    std::printf("op table: %td checks made\n", static_cast<std::ptrdiff_t>(checks_made));
  }
};
[[maybe_unused]] testing::Environment* const tally = testing::AddGlobalTestEnvironment(new Tally);

// ---------------------------------------------------------------- every row

class EveryOp : public testing::TestWithParam<Row> {
 protected:
  static const Row& row() { return GetParam(); }
  static List<double> f(const List<double>& x) { return {row().call.in_double(x)}; }

  // Calls test(inputs, seed) for each sample.
  template <class F>
  static void at_each(F test) {
    std::uint64_t seed = 100;
    for (const Sample& sample : row().samples) {
      std::string shapes;
      for (const Input& input : sample) shapes += to_string(input.shape) + " ";
      Generator generator(++seed);
      SCOPED_TRACE(shapes + "seed " + std::to_string(seed));
      Arrays x;
      for (const Input& input : sample) x.push_back(input.draw(generator, x.size()));
      test(x, seed);
    }
  }
};

// Nothing, one number under the kink of relu, and a row of one that is always 1 do not move; all else must.
bool may_stay(const Arrays& x, const Arrays& y) {
  auto small = [](const Array<double>& one) {
    return one.size() < 2 || std::count(one.shape().begin(), one.shape().end(), 1) > 0;
  };
  auto empty = [](const Array<double>& one) { return one.size() == 0; };
  return std::any_of(x.begin(), x.end(), small) || std::any_of(y.begin(), y.end(), empty);
}

TEST_P(EveryOp, Gradients) {
  at_each([](const Arrays& x, std::uint64_t seed) {
    const bool constant = may_stay(x, values_at(f, x));
    EXPECT_TRUE(jacobian_agrees(f, x, row().kind, row().order, constant, seed));
    checks_made += row().order;
  });
}

TEST_P(EveryOp, Adjoint) {
  at_each([](const Arrays& x, std::uint64_t seed) {
    Generator generator = Generator(seed).split("adjoint");
    const Arrays w = random_like(values_at(f, x), generator), u = random_like(x, generator);
    for (std::size_t i = 0; i < x.size(); ++i, ++checks_made) {
      Arrays of_one;
      for (const Array<double>& one : x) of_one.push_back(Array<double>::zeros(one.shape()));
      of_one[i] = u[i];
      EXPECT_TRUE(adjoint_agrees(f, x, w, of_one, row().kind)) << "input " << i;
    }
    EXPECT_TRUE(adjoints_agree(f, x, row().kind, row().order, seed));
    checks_made += row().order;
  });
}

TEST_P(EveryOp, Sweeps) {
  at_each([](const Arrays& x, std::uint64_t seed) {
    EXPECT_TRUE(sweeps_agree(f, x, seed));
    ++checks_made;
  });
}

TEST_P(EveryOp, Views) {
  at_each([](const Arrays& x, std::uint64_t seed) {
    EXPECT_TRUE(views_agree(f, x, seed));
    ++checks_made;
  });
}

TEST_P(EveryOp, FloatAndDouble) {
  at_each([](const Arrays& x, std::uint64_t seed) {
    EXPECT_TRUE(float_agrees(row().call, x, seed));
    ++checks_made;
  });
}

template <class Parameter>
std::string name_of(const testing::TestParamInfo<Parameter>& info) {
  return info.param.name();
}
INSTANTIATE_TEST_SUITE_P(, EveryOp, testing::ValuesIn(all_rows()), name_of<Row>);

// ---------------------------------------------------------------- the rows that give more

template <class F>
std::vector<Row> rows_with(F wanted) {
  std::vector<Row> rows;
  std::copy_if(all_rows().begin(), all_rows().end(), std::back_inserter(rows), wanted);
  return rows;
}

class EveryElementwiseOp : public EveryOp {
 protected:
  static std::size_t inputs() { return row().samples.front().size(); }
};

TEST_P(EveryElementwiseOp, SpecialValues) {
  EXPECT_TRUE(special_values_agree(row().call, row().each, inputs()));
  ++checks_made;
}
TEST_P(EveryElementwiseOp, SweepsAtSpecialValues) {
  EXPECT_TRUE(sweeps_agree_at_special_numbers(f, inputs()));
  ++checks_made;
}
TEST_P(EveryElementwiseOp, SpecialValuesTouchNoOther) {
  Generator generator(5);
  Arrays x;
  for (const Input& input : row().samples.front()) {
    x.push_back(Input(input.from, Shape{11}).draw(generator, x.size()));  // longer than a vector register
  }
  EXPECT_TRUE(special_numbers_touch_no_other(f, x));
  ++checks_made;
}
INSTANTIATE_TEST_SUITE_P(, EveryElementwiseOp,
                         testing::ValuesIn(rows_with([](const Row& row) { return bool(row.each); })),
                         name_of<Row>);

class EveryOpWithExamples : public EveryOp {};

TEST_P(EveryOpWithExamples, Examples) {
  for (std::size_t i = 0; i < row().examples.size(); ++i, ++checks_made) {
    EXPECT_TRUE(agrees(f, row().examples[i])) << "example " << i;
  }
}
INSTANTIATE_TEST_SUITE_P(, EveryOpWithExamples,
                         testing::ValuesIn(rows_with([](const Row& row) { return !row.examples.empty(); })),
                         name_of<Row>);

class EveryOpThatRefuses : public EveryOp {};

TEST_P(EveryOpThatRefuses, Refusals) {
  for (std::size_t i = 0; i < row().refuses.size(); ++i, ++checks_made) {
    EXPECT_TRUE(refuses(row().op, row().call, row().refuses[i])) << "refusal " << i;
  }
}
INSTANTIATE_TEST_SUITE_P(, EveryOpThatRefuses,
                         testing::ValuesIn(rows_with([](const Row& row) { return !row.refuses.empty(); })),
                         name_of<Row>);

// ---------------------------------------------------------------- PyTorch

struct HeldTo {
  Row row;
  GoldenCase golden;
  std::string name() const {
    std::string name = golden.name;
    const std::size_t minus = name.find('-');
    return minus == std::string::npos ? name : name.replace(minus, 1, "_minus_");
  }
};
std::ostream& operator<<(std::ostream& stream, const HeldTo& held) { return stream << held.golden.name; }

std::vector<HeldTo> golden_cases() {
  std::vector<HeldTo> cases;
  for (const Row& row : all_rows()) {
    for (const GoldenCase& golden : row.golden) cases.push_back({row, golden});
  }
  return cases;
}

class EveryGoldenCase : public testing::TestWithParam<HeldTo> {};

TEST_P(EveryGoldenCase, ValuesAndGradients) {
  const auto& [row, golden] = GetParam();
  const Function f = [&call = row.call](const List<double>& x) { return List<double>{call.in_double(x)}; };
  EXPECT_TRUE(agrees(f, golden));
  ++checks_made;
}
INSTANTIATE_TEST_SUITE_P(, EveryGoldenCase, testing::ValuesIn(golden_cases()), name_of<HeldTo>);

// ---------------------------------------------------------------- the table itself

TEST(OpTable, Counts) {
  std::set<std::string> ops;
  Index samples = 0, golden = 0, refusals = 0, checks = 0;
  for (const Row& row : all_rows()) {
    ops.insert(row.op);
    samples += std::ssize(row.samples);
    golden += std::ssize(row.golden);
    refusals += std::ssize(row.refuses);
    checks += checks_of(row);
  }
  auto number = [](auto count) { return static_cast<std::ptrdiff_t>(count); };
  std::printf("op table: %td ops, %td rows, %td samples, %td golden cases, %td refusals, %td checks\n",
              number(ops.size()), number(all_rows().size()), number(samples), number(golden),
              number(refusals), number(checks));
  std::printf("ops of the table:");  // read by ops_have_rows_test.sh
  for (const std::string& op : ops) std::printf(" %s", op.c_str());
  std::printf("\n");
  EXPECT_GT(checks, 0);
}

TEST(OpTable, NoTwoRowsHaveOneName) {
  std::set<std::string> names;
  for (const Row& row : all_rows()) EXPECT_TRUE(names.insert(row.name()).second) << row.name();
}

// Which edges some sample of an op has.
struct Edges {
  bool extent_one = false, extent_zero = false, rank_zero = false, different_extents = false;
  bool left_smaller = false, right_smaller = false;

  void add(const Sample& sample) {
    for (const Input& input : sample) {
      const Shape& shape = input.shape;
      extent_one = extent_one || std::count(shape.begin(), shape.end(), 1) > 0;
      extent_zero = extent_zero || std::count(shape.begin(), shape.end(), 0) > 0;
      rank_zero = rank_zero || shape.rank() == 0;
      const std::set<Index> extents(shape.begin(), shape.end());
      different_extents = different_extents ||
                          (shape.rank() >= 2 && std::ssize(extents) == shape.rank() && *extents.begin() > 1);
    }
    if (sample.size() < 2) return;
    const Shape &left = sample[0].shape, &right = sample[1].shape;
    left_smaller = left_smaller || (left != right && broadcasts_to(left, right));
    right_smaller = right_smaller || (left != right && broadcasts_to(right, left));
  }
};

TEST(OpTable, EveryOpHasSamplesAtTheEdges) {
  std::map<std::string, Edges> of_op;
  std::map<std::string, std::vector<Row>> rows;
  for (const Row& row : all_rows()) {
    rows[row.op].push_back(row);
    for (const Sample& sample : row.samples) of_op[row.op].add(sample);
  }
  for (const auto& [op, edges] : of_op) {
    bool broadcasts = false;
    Lacks lacks;
    for (const Row& row : rows[op]) {
      broadcasts = broadcasts || row.broadcasts;
      lacks.extent_one = lacks.extent_one || row.lacks.extent_one;
      lacks.extent_zero = lacks.extent_zero || row.lacks.extent_zero;
      lacks.rank_zero = lacks.rank_zero || row.lacks.rank_zero;
      lacks.different_extents = lacks.different_extents || row.lacks.different_extents;
    }
    EXPECT_NE(edges.extent_one, lacks.extent_one) << op << ", an extent of 1";
    EXPECT_NE(edges.extent_zero, lacks.extent_zero) << op << ", an extent of 0";
    EXPECT_NE(edges.rank_zero, lacks.rank_zero) << op << ", rank 0";
    EXPECT_NE(edges.different_extents, lacks.different_extents) << op << ", extents that all differ";
    EXPECT_TRUE(!broadcasts || (edges.left_smaller && edges.right_smaller)) << op << ", broadcasting";
  }
}

TEST(OpTable, EveryOpThatTakesShapesRefusesSome) {
  std::map<std::string, bool> refuses;
  for (const Row& row : all_rows()) {
    refuses[row.op] = refuses[row.op] || !row.refuses.empty() || row.each.in_double;
  }
  for (const auto& [op, some] : refuses) EXPECT_TRUE(some) << op;
}

TEST(OpTable, EveryGoldenCaseOfAnOpHasARow) {
  std::set<std::string> held;
  for (const HeldTo& one : golden_cases()) held.insert(one.golden.folder + "/op_" + one.golden.name);
  for (const std::string folder : {"golden", "made"}) {
    for (const auto& file : std::filesystem::directory_iterator(TAPEHEAD_TEST_DATA "/" + folder)) {
      const std::string name = file.path().stem().string();
      EXPECT_TRUE(!name.starts_with("op_") || held.contains(folder + "/" + name)) << folder << "/" << name;
    }
  }
}

}  // namespace
}  // namespace tapehead::table
