#include <tapehead/inspect/subject.h>

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include <tapehead/inspect/command.h>
#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/paths.h>
#include <tapehead/tapehead.h>
#include <tools/train/fit.h>

#include "support/expect_error.h"
#include "support/files.h"
#include "support/golden.h"

namespace tapehead::tools {
namespace {

std::string golden_path(const std::string& name) {
  return std::string(TAPEHEAD_TEST_DATA "/golden/") + name + ".safetensors";
}

InspectSettings of_dump(const std::string& path) {
  InspectSettings settings;
  settings.dump = path;
  return settings;
}

double largest_difference(const std::vector<double>& a, const Array<double>& b) {
  double largest = std::ssize(a) == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.values().size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b.values()[i]));
  }
  return largest;
}

constexpr double bound = 1e-12;  // what the golden numbers are held to everywhere

TEST(Dumped, PathsOfSelfAttentionAreThoseOfPyTorch) {
  for (const char* name : {"paths_self", "paths_self_causal"}) {
    const Golden golden(name);
    Tape<double> tape;
    const Subject<double> subject = dumped(tape, of_dump(golden_path(name)));
    const auto table = inspect_paths(subject.loss, subject.x);
    ASSERT_EQ(table.rows.size(), 3u);
    for (const auto& row : table.rows) {
      EXPECT_LT(largest_difference(row.gradient->numbers, golden.array("grad_x_via_" + row.name)), bound)
          << row.name;
    }
    EXPECT_LT(largest_difference(table.total_numbers->numbers, golden.array("grad_x")), bound);
    EXPECT_LT(table.sum_error, 1e-15);
  }
}

TEST(Dumped, CrossAttentionReadsItsKeysAndValuesFromY) {
  const Golden golden("paths_cross");
  Tape<double> tape;
  const Subject<double> subject = dumped(tape, of_dump(golden_path("paths_cross")));
  const TapeTable table = inspect(tape);
  const Index loss = Tape<double>::index_of("test", subject.loss);
  const auto of_x = inspect_paths(tape, loss, node_called(table, "x")),
             of_y = inspect_paths(tape, loss, node_called(table, "y"));
  EXPECT_EQ(of_x.rows.size(), 1u);
  EXPECT_EQ(of_y.rows.size(), 2u);
  EXPECT_LT(largest_difference(of_x.total_numbers->numbers, golden.array("grad_x")), bound);
  EXPECT_LT(largest_difference(of_y.total_numbers->numbers, golden.array("grad_y")), bound);
}

// Every gradient that a golden case of attention has, whatever its mask, bias, scale or layout.
TEST(Dumped, EveryGoldenCaseGivesItsGradients) {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TAPEHEAD_TEST_DATA "/golden")) {
    const std::string name = entry.path().stem().string();
    if (!name.starts_with("sdpa_") && !name.starts_with("paths_")) continue;
    const Golden golden(name);
    Tape<double> tape;
    const Subject<double> subject = dumped(tape, of_dump(golden_path(name)));
    const auto gradients = gradient_values(Vars<double>(subject.loss), Vars<double>(subject.inputs));
    const TapeTable table = inspect(tape);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Index node = Tape<double>::index_of("test", subject.inputs[i]);
      const std::string tensor = "grad_" + table.rows[static_cast<std::size_t>(node)].label;
      ASSERT_TRUE(golden.has(tensor)) << name << " " << tensor;
      EXPECT_LT(largest_difference(gradients[i].to_vector(), golden.array(tensor)), 1e-11)
          << name << " " << tensor;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 27);
}

using DumpFile = FilesTest;

TEST_F(DumpFile, SaysWhatItMisses) {
  auto refused = [&](const SafetensorsWriter& writer, std::initializer_list<std::string_view> texts) {
    writer.write(path("d.safetensors"));
    Tape<double> tape;
    return raises<FileError>([&] { dumped(tape, of_dump(path("d.safetensors"))); }, texts);
  };
  const auto matrix = Array<double>::ones({2, 3});
  auto qkv = [&] {
    SafetensorsWriter writer;
    return writer.add("q", matrix).add("k", matrix).add("v", matrix);
  };
  EXPECT_TRUE(
      refused(SafetensorsWriter().add("z", matrix), {"d.safetensors: nothing to attend to: expected query"}));
  EXPECT_TRUE(refused(SafetensorsWriter().add("x", matrix), {"w_query: expected, and missing"}));
  EXPECT_TRUE(refused(SafetensorsWriter().add("query", matrix), {"k: no such tensor"}));
  EXPECT_TRUE(refused(qkv().metadata("scale", "wide"), {"the setting scale is 'wide', no number"}));
  EXPECT_TRUE(refused(qkv().metadata("causal", "left"), {"the setting causal is 'left'"}));
  EXPECT_TRUE(refused(qkv().metadata("layout", "THD"), {"the layout is 'THD'"}));
  EXPECT_TRUE(
      refused(qkv().add("upstream", Array<double>::ones({2, 2})), {"upstream: has the shape (2, 2), and"}));
}

TEST_F(DumpFile, ReadsMasksThatSayWhatIsBlockedOrAddNumbers) {
  const double infinity = std::numeric_limits<double>::infinity();
  auto loss_of = [&](auto add) {
    SafetensorsWriter writer;
    Generator random(1);
    for (const char* name : {"query", "key", "value"}) writer.add(name, random.normal<double>({2, 3, 3}));
    add(writer);
    writer.write(path("d.safetensors"));
    Tape<double> tape;
    return dumped(tape, of_dump(path("d.safetensors"))).loss.item();
  };
  const double causal = loss_of([](SafetensorsWriter& w) { w.metadata("causal", "top-left"); });
  EXPECT_NE(causal, loss_of([](SafetensorsWriter&) {}));
  EXPECT_EQ(causal, loss_of([](SafetensorsWriter& w) {
              w.add("mask", Array<bool>::of({{true, false, false}, {true, true, false}, {true, true, true}}));
            }));
  EXPECT_EQ(
      causal, loss_of([](SafetensorsWriter& w) {
        w.add("mask", Array<bool>::of({{false, true, true}, {false, false, true}, {false, false, false}}));
        w.metadata("mask_means", "blocked");
      }));
  EXPECT_EQ(causal, loss_of([&](SafetensorsWriter& w) {
              w.add("mask", Array<double>::of({{0, -infinity, -infinity}, {0, 0, -infinity}, {0, 0, 0}}));
            }));
}

TEST_F(DumpFile, ReadsHeadsThatLieBesideEachOtherAndBehindTheTokens) {
  Generator random(2);
  const Var<double> q = random.normal<double>({2, 4, 3, 5}), k = random.normal<double>({2, 4, 6, 5}),
                    v = random.normal<double>({2, 4, 6, 5});
  const double expected = sum(attention(q, k, v, {.kernel = AttentionKernel::composed}).output).item();
  auto loss_of = [&](auto change, const char* layout, const char* heads) {
    SafetensorsWriter writer;
    writer.add("query", change(q).value()).add("key", change(k).value()).add("value", change(v).value());
    writer.metadata("layout", layout).metadata("heads", heads);
    writer.write(path("d.safetensors"));
    Tape<double> tape;
    return dumped(tape, of_dump(path("d.safetensors"))).loss.item();
  };
  EXPECT_EQ(loss_of([](const Var<double>& x) { return x; }, "BHLD", "4"), expected);
  const double near = 1e-13;  // the same numbers added in another order
  EXPECT_NEAR(loss_of([](const Var<double>& x) { return merge_heads(x); }, "BLD", "4"), expected, near);
  EXPECT_NEAR(loss_of([](const Var<double>& x) { return transpose(x, 1, 2); }, "BLHD", "4"), expected, near);
}

TEST(Example, OfEachKindHasTheSharedInputsItSays) {
  const std::pair<const char*, std::vector<std::string>> kinds[] = {
      {"self-attention", {"query", "key", "value"}},
      {"cross-attention", {"query"}},
      {"additive", {"query"}},
      {"block", {"layer 1/query", "layer 1/key", "layer 1/value", "layer 1/direct"}}};
  for (const auto& [kind, expected] : kinds) {
    InspectSettings settings;
    settings.what = kind;
    Tape<double> tape;
    const Subject<double> subject = example(tape, settings);
    const auto table = inspect_paths(subject.loss, subject.x);
    std::vector<std::string> labels;
    for (const auto& row : table.rows) labels.push_back(row.label.substr(0, row.label.find(" (")));
    EXPECT_EQ(labels, expected) << kind;
    EXPECT_LT(table.sum_error, 1e-14) << kind;
  }
}

TEST(Example, OfOneSeedIsTheSameAndFollowsItsSizes) {
  auto loss_of = [](std::uint64_t seed) {
    InspectSettings settings;
    settings.what = "block", settings.seed = seed, settings.layers = 3, settings.width = 12,
    settings.heads = 3;
    settings.key_heads = 1, settings.causal = true, settings.batch = 2;
    Tape<double> tape;
    const Subject<double> subject = example(tape, settings);
    EXPECT_EQ(subject.x.shape(), (Shape{2, 4, 12}));
    return subject.loss.item();
  };
  EXPECT_EQ(loss_of(1), loss_of(1));
  EXPECT_NE(loss_of(1), loss_of(2));
}

using SavedRun = FilesTest;

// A folder as `tapehead train` writes it, with a model that has learned nothing.
template <class Model>
void save(const std::string& folder, const std::string& task, Index vocabulary, Index context) {
  TransformerOptions sizes;
  sizes.vocabulary = vocabulary, sizes.context = context, sizes.width = 8, sizes.layers = 2;
  Generator random(3);
  RunFolder run(folder);
  run.write_model(Model::initial(random, sizes), task);
  TrainReport report;
  report.task = task, report.losses = {1};
  run.write_report(report, sizes, {.steps = 1, .batch = 1, .rate = 1, .decay = 0});
}

TEST_F(SavedRun, OfEachTaskIsATapeWithPathsThatSum) {
  const ReverseTask reverse;
  save<CausalModel<float>>(path("recall"), "recall", RecallTask{}.vocabulary(), RecallTask{}.length());
  save<CausalModel<float>>(path("reverse"), "reverse", reverse.vocabulary(), 2 * reverse.length);
  save<EncoderDecoder<float>>(path("cross"), "reverse", reverse.vocabulary(), reverse.length);
  save<CausalModel<float>>(path("lm"), "lm", 3, 8);
  for (const char* name : {"recall", "reverse", "cross", "lm"}) {
    InspectSettings settings;
    settings.run = path(name);
    Tape<float> tape;
    const Subject<float> subject = trained(tape, settings);
    EXPECT_TRUE(std::isfinite(subject.loss.item())) << name;
    const auto table = inspect_paths(subject.loss, subject.x);
    EXPECT_GE(table.rows.size(), 4u) << name;
    EXPECT_LT(table.sum_error, 1e-5) << name;  // in float
    const auto gradients = gradient_values(Vars<float>(subject.loss), Vars<float>(subject.inputs));
    EXPECT_EQ(gradients.size(), subject.inputs.size());
    EXPECT_FALSE(subject.query_tokens.empty());
  }
}

// The tape is that of the model: its loss is what the model itself gives for the same tokens.
TEST_F(SavedRun, ComputesWhatTheModelComputes) {
  save<CausalModel<float>>(path("recall"), "recall", RecallTask{}.vocabulary(), RecallTask{}.length());
  InspectSettings settings;
  settings.run = path("recall"), settings.seed = 7, settings.batch = 3, settings.kernel = "automatic";
  Tape<float> tape;
  const float loss = trained(tape, settings).loss.item();
  TransformerOptions sizes;
  sizes.vocabulary = RecallTask{}.vocabulary(), sizes.context = RecallTask{}.length(), sizes.width = 8;
  Generator unused(0);
  auto model = CausalModel<float>::initial(unused, sizes);
  load_parameters(model, SafetensorsFile(path("recall/model.safetensors")));
  Generator random = Generator(7).split("inspect");
  const auto batch = RecallTask{}.draw(random, 3);
  EXPECT_FLOAT_EQ(loss, cross_entropy(model(batch.tokens), batch.targets, {.ignored = no_target}).item());
}

TEST_F(SavedRun, ThatIsNoneIsRefused) {
  Tape<float> tape;
  InspectSettings settings;
  settings.run = path("nothing");
  EXPECT_TRUE(raises<FileError>([&] { trained(tape, settings); }, {"nothing/run.json: cannot be read"}));
  settings.run = path();
  fs::create_directory(path());
  put(path("file/run.json"), "{}");
  EXPECT_TRUE(raises<FileError>([&] { trained(tape, settings); }, {"run.json: ", "sizes"}));
  put(path("file/run.json"), R"({"task": "lm", "sizes": {"vocabulary": 3, "context": -1, "width": 8, )"
                             R"("heads": 2, "layers": 1, "hidden": 0}})");
  EXPECT_TRUE(
      raises<FileError>([&] { trained(tape, settings); }, {"run.json: a size of the model is not positive"}));
}

}  // namespace
}  // namespace tapehead::tools
