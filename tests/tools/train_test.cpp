#include <tools/train/train.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include <tapehead/core/errors.h>
#include <tapehead/nn/file_error.h>
#include <tapehead/nn/tasks.h>
#include <tools/train/fit.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/threads.h"

namespace tapehead::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The lines of a log.
std::vector<Json> lines_of(const fs::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

// A folder of one test, gone with it.
class TrainTest : public testing::Test {
 protected:
  TrainTest() { fs::create_directories(folder_); }
  ~TrainTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string put(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary).write(bytes.data(), std::ssize(bytes));
    return path(name);
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / ("tapehead-train-" + std::to_string(getpid()));
};

// A few characters of one to four bytes, over and over; the last tenth has one that the rest has not.
std::string small_text() {
  std::string text;
  for (int i = 0; i < 120; ++i) text += i < 115 ? "naïve “α” 𝄞\n" : "naïve “β” 𝄞\n";
  return text;
}

enum class Task { recall, reverse, reverse_cross, language };

TrainReport run(Task task, const TrainSettings& settings) {
  switch (task) {
    case Task::recall:
      return train_recall(settings);
    case Task::language:
      return train_language(settings);
    default:
      return train_reverse(settings);
  }
}

// A model of width 8, three steps.
TrainSettings tiny(Task task) {
  TrainSettings settings;
  settings.task = task == Task::recall ? "recall" : task == Task::language ? "lm" : "reverse";
  settings.cross = task == Task::reverse_cross;
  settings.steps = 3, settings.batch = 4;
  settings.width = 8, settings.heads = 2, settings.layers = 2, settings.hidden = 12;
  if (task == Task::language) settings.context = 10;
  return settings;
}

class EveryTask : public TrainTest, public testing::WithParamInterface<Task> {
 protected:
  TrainSettings settings(std::uint64_t seed, const std::string& out) const {
    TrainSettings settings = tiny(GetParam());
    settings.seed = seed;
    if (!out.empty()) settings.out = path(out);
    if (GetParam() == Task::language) settings.text = put("text", small_text());
    return settings;
  }
};
std::string name_of(const testing::TestParamInfo<Task>& task) {
  switch (task.param) {
    case Task::recall:
      return "Recall";
    case Task::reverse:
      return "Reverse";
    case Task::reverse_cross:
      return "ReverseCross";
    default:
      return "Language";
  }
}
INSTANTIATE_TEST_SUITE_P(Train, EveryTask,
                         testing::Values(Task::recall, Task::reverse, Task::reverse_cross, Task::language),
                         name_of);

void expect_same_report(const TrainReport& a, const TrainReport& b) {
  EXPECT_EQ(a.training_loss, b.training_loss);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.accuracy, b.accuracy);
  EXPECT_EQ(a.sample, b.sample);
  ASSERT_EQ(a.paths.has_value(), b.paths.has_value());
  if (!a.paths) return;
  ASSERT_EQ(a.paths->rows.size(), b.paths->rows.size());
  for (std::size_t i = 0; i < a.paths->rows.size(); ++i)
    EXPECT_EQ(a.paths->rows[i].norm, b.paths->rows[i].norm);
}

TEST_P(EveryTask, OfTheSameSeedGivesTheSameNumbersBitForBit) {
  const TrainReport first = run(GetParam(), settings(5, "first")),
                    again = run(GetParam(), settings(5, "again"));
  expect_same_report(first, again);
  EXPECT_EQ(bytes_of(path("first/model.safetensors")), bytes_of(path("again/model.safetensors")));
  const auto log = lines_of(path("first/log.jsonl")), log_again = lines_of(path("again/log.jsonl"));
  for (std::size_t i = 0; i < log.size(); ++i) EXPECT_EQ(log[i]["loss"], log_again[i]["loss"]);
}

TEST_P(EveryTask, OfAnotherSeedGivesOthers) {
  const TrainReport first = run(GetParam(), settings(5, "first")),
                    other = run(GetParam(), settings(6, "other"));
  EXPECT_NE(first.training_loss, other.training_loss);
  EXPECT_NE(first.loss, other.loss);
  EXPECT_NE(bytes_of(path("first/model.safetensors")), bytes_of(path("other/model.safetensors")));
}

TEST_P(EveryTask, OnTwoThreadsGivesTheSameBitsAsOnOne) {
  auto on = [&](int count, const std::string& out) {
    const Threads threads(count);
    TrainSettings wide = settings(5, out);  // more than 2^15 numbers a step, so that there is work to share
    wide.steps = 2, wide.batch = 48, wide.width = 32, wide.layers = 1,
    wide.context = wide.context ? 32 : wide.context;
    return run(GetParam(), wide);
  };
  if (GetParam() == Task::language) put("text", small_text());
  expect_same_report(on(1, "one"), on(2, "two"));
  EXPECT_EQ(bytes_of(path("one/model.safetensors")), bytes_of(path("two/model.safetensors")));
}

TEST_P(EveryTask, ReportsWhatItDid) {
  const TrainReport report = run(GetParam(), settings(5, ""));
  EXPECT_EQ(report.task, tiny(GetParam()).task);
  EXPECT_EQ(report.seed, 5u);
  EXPECT_EQ(report.steps, 3);
  EXPECT_GT(report.parameters, 0);
  EXPECT_GT(report.answers, 0);
  EXPECT_GE(report.seconds, 0);
  EXPECT_TRUE(report.accuracy >= 0 && report.accuracy <= 1) << report.accuracy;
  EXPECT_TRUE(std::isfinite(report.loss) && report.loss > 0) << report.loss;
  EXPECT_TRUE(std::isfinite(report.training_loss) && report.training_loss > 0) << report.training_loss;
  EXPECT_TRUE(report.files.empty()) << "nothing is written without a folder";
}

TEST_P(EveryTask, WritesALogOfALineAStep) {
  const TrainReport report = run(GetParam(), settings(5, "run"));
  const auto log = lines_of(path("run/log.jsonl"));
  ASSERT_EQ(log.size(), 3u);
  for (std::size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i]["step"], i + 1);
    EXPECT_TRUE(log[i]["loss"].is_number());
    EXPECT_GT(log[i]["rate"].get<double>(), 0);
    EXPECT_GE(log[i]["seconds"].get<double>(), 0);
  }
  EXPECT_EQ(log[2]["loss"].get<double>(), report.training_loss)
      << "of three steps the last tenth is the last";
}

TEST_P(EveryTask, WritesARunThatParsesAndSaysTheSame) {
  const TrainReport report = run(GetParam(), settings(5, "run"));
  const Json json = Json::parse(bytes_of(path("run/run.json")));
  EXPECT_EQ(json["task"], report.task);
  EXPECT_EQ(json["seed"], 5);
  EXPECT_EQ(json["steps"], 3);
  EXPECT_EQ(json["parameters"], report.parameters);
  EXPECT_EQ(json["loss"].get<double>(), report.loss);
  EXPECT_EQ(json["accuracy"].get<double>(), report.accuracy);
  EXPECT_EQ(json["answers"], report.answers);
  EXPECT_EQ(json["sizes"]["width"], 8);
  EXPECT_EQ(json["sizes"]["hidden"], 12);
  EXPECT_EQ(json["schedule"]["batch"], 4);
  EXPECT_EQ(json["files"].get<Names>(),
            (Names{path("run/model.safetensors"), path("run/log.jsonl"), path("run/run.json"),
                   path("run/loss.svg"), path("run/attention.svg")}));
  for (const std::string& file : report.files) EXPECT_TRUE(fs::is_regular_file(file)) << file;
}

template <class Model>
Model loaded(const SafetensorsFile& file, const TransformerOptions& sizes) {
  Generator random(1);
  Model model = Model::initial(random, sizes);
  load_parameters(model, file);
  return model;
}

TEST_P(EveryTask, WritesAModelThatCanBeReadBackByTheNamesOfItsParameters) {
  const TrainReport report = run(GetParam(), settings(5, "run"));
  const Json sizes = Json::parse(bytes_of(path("run/run.json")))["sizes"];
  const TransformerOptions read{.vocabulary = sizes["vocabulary"],
                                .context = sizes["context"],
                                .width = sizes["width"],
                                .heads = sizes["heads"],
                                .layers = sizes["layers"],
                                .hidden = sizes["hidden"]};
  const SafetensorsFile file(path("run/model.safetensors"));
  EXPECT_EQ(file.metadata().at("task"), report.task);
  if (GetParam() == Task::reverse_cross) {
    EXPECT_EQ(parameter_count(loaded<EncoderDecoder<float>>(file, read)), report.parameters);
  } else {
    EXPECT_EQ(parameter_count(loaded<CausalModel<float>>(file, read)), report.parameters);
  }
}

TEST_P(EveryTask, ReplacesWhatAnEarlierRunLeftInTheFolder) {
  TrainSettings longer = settings(6, "run");
  longer.steps = 5;
  run(GetParam(), longer);
  run(GetParam(), settings(5, "run"));
  run(GetParam(), settings(5, "fresh"));
  EXPECT_EQ(lines_of(path("run/log.jsonl")).size(), 3u);
  EXPECT_EQ(bytes_of(path("run/model.safetensors")), bytes_of(path("fresh/model.safetensors")));
}

TEST_P(EveryTask, MakesFoldersInFolders) {
  run(GetParam(), settings(5, "some/where/else"));
  EXPECT_TRUE(fs::is_regular_file(path("some/where/else/run.json")));
}

TEST_P(EveryTask, IntoAFolderThatCannotBeIsAnErrorNamingIt) {
  put("file", "not a folder");
  EXPECT_TRUE(raises<FileError>([&] { run(GetParam(), settings(5, "file")); }, {path("file")}));
  EXPECT_TRUE(raises<FileError>([&] { run(GetParam(), settings(5, "file/below")); }, {path("file/below")}));
  fs::create_directories(path("run/log.jsonl"));
  EXPECT_TRUE(raises<FileError>([&] { run(GetParam(), settings(5, "run")); }, {path("run/log.jsonl")}));
}

TEST_P(EveryTask, OfHeadsThatDoNotDivideTheWidthIsAnError) {
  TrainSettings odd = settings(5, "");
  odd.heads = 3;
  EXPECT_TRUE(raises<DomainError>([&] { run(GetParam(), odd); }, {"3 heads", "width 8"}));
  odd.heads = 0;
  EXPECT_TRUE(raises<DomainError>([&] { run(GetParam(), odd); }, {"heads"}));
}

TEST_P(EveryTask, OfARateThatIsFarTooHighIsAnErrorAndWritesNoModel) {
  TrainSettings wild = settings(5, "run");
  wild.rate = 1e30;
  EXPECT_TRUE(raises<DomainError>([&] { run(GetParam(), wild); }));
  EXPECT_FALSE(fs::exists(path("run/model.safetensors")));
}

// ---- What each learns

TEST(Learning, ReverseWithCrossAttentionInTwoHundredSmallSteps) {
  TrainSettings settings;
  settings.task = "reverse";
  settings.cross = true;
  settings.steps = 200, settings.batch = 32, settings.width = 32, settings.hidden = 32, settings.rate = 5e-3;
  const TrainReport report = train_reverse(settings);
  EXPECT_GT(report.accuracy, 0.9) << "by chance it is 1 in 16";
  EXPECT_LT(report.loss, 0.5) << "by chance it is log 16 = 2.8";
}

TEST_F(TrainTest, LanguageOfFewStepsBeatsWhatEveryCharacterAloneCouldSay) {
  TrainSettings settings = tiny(Task::language);
  settings.text = put("text", small_text());
  settings.steps = 60, settings.batch = 16, settings.width = 16, settings.rate = 1e-2;
  const TrainReport report = train_language(settings);
  EXPECT_LT(report.loss, 1.2) << "of 11 characters as often as each other it would be log 11 = 2.4";
}

// ---- Recall

TEST_F(TrainTest, RecallMeasuresTheModelThatItWrites) {
  TrainSettings settings = tiny(Task::recall);
  settings.out = path("run");
  const TrainReport report = train_recall(settings);
  const RecallTask task;
  const auto model = loaded<CausalModel<float>>(SafetensorsFile(path("run/model.safetensors")),
                                                {.vocabulary = task.vocabulary(),
                                                 .context = task.length(),
                                                 .width = 8,
                                                 .heads = 2,
                                                 .layers = 2,
                                                 .hidden = 12});
  Generator held_out = Generator(settings.seed).split("held out");
  const auto batch = task.draw(held_out, 512);
  const Var<float> logits = model(batch.tokens);
  EXPECT_EQ(static_cast<double>(answer_loss(logits, batch.targets).item()), report.loss);
  TrainReport scored;
  score(scored, largest_classes(logits.value()), batch.targets);
  EXPECT_EQ(scored.accuracy, report.accuracy);
  EXPECT_EQ(scored.answers, 512 * 8);
}

TEST(TrainRecall, TakesTheGradientOfXApartIntoQueryKeyAndValue) {
  const TrainReport report = train_recall(tiny(Task::recall));
  ASSERT_TRUE(report.paths.has_value());
  Names names;
  double shares = 0;
  for (const PathRow& row : report.paths->rows) {
    names.push_back(row.label);
    shares += row.share;
    EXPECT_GT(row.norm, 0);
    EXPECT_GE(row.norm, row.largest);
    EXPECT_LE(std::abs(row.cosine), 1 + 1e-12);
    EXPECT_NEAR(row.share * report.paths->total.norm, row.cosine * row.norm, 1e-12 * row.norm);
  }
  EXPECT_EQ(names, (Names{"query", "key", "value"}));
  // The gradient is the sum of three floats, each rounded to 6e-8 of the largest of them.
  EXPECT_NEAR(shares, 1, 1e-5);
  EXPECT_LT(report.paths->sum_error, 1e-5);
}

TEST(TrainRecall, WithoutALayerHasNoAttentionToMeasure) {
  TrainSettings settings = tiny(Task::recall);
  settings.layers = 0;
  EXPECT_TRUE(raises<DomainError>([&] { train_recall(settings); }, {"layer"}));
}

// ---- Texts

TEST_F(TrainTest, LanguageOfATextThatIsTooShortIsAnErrorNamingItsLength) {
  TrainSettings settings = tiny(Task::language);
  settings.text = put("short", std::string(100, 'x'));
  EXPECT_TRUE(raises<FileError>([&] { train_language(settings); }, {path("short"), "100 characters", "10"}));
  settings.text = put("empty", "");
  EXPECT_TRUE(raises<FileError>([&] { train_language(settings); }, {path("empty"), "0 characters"}));
  settings.text = put("enough", std::string(110, 'x'));
  EXPECT_EQ(train_language(settings).steps, 3);
}

TEST_F(TrainTest, LanguageCountsCharactersAndNotBytes) {
  TrainSettings settings = tiny(Task::language);
  std::string text;
  for (int i = 0; i < 100; ++i) text += "𝄞";
  settings.text = put("short", text);
  EXPECT_TRUE(raises<FileError>([&] { train_language(settings); }, {"100 characters"}));
}

TEST_F(TrainTest, LanguageAsksForEveryHeldOutCharacterOnce) {
  TrainSettings settings = tiny(Task::language);
  for (const std::size_t length : {190u, 191u, 199u, 200u, 207u}) {
    settings.text = put("text", std::string(length, 'x'));
    EXPECT_EQ(train_language(settings).answers, static_cast<Index>(length / 10)) << length;
  }
}

TEST_F(TrainTest, LanguageOfATextThatIsNotThereOrNoFileIsAnErrorNamingIt) {
  TrainSettings settings = tiny(Task::language);
  settings.text = path("nowhere");
  EXPECT_TRUE(raises<FileError>([&] { train_language(settings); }, {path("nowhere")}));
  fs::create_directories(path("folder"));
  settings.text = path("folder");
  EXPECT_TRUE(raises<FileError>([&] { train_language(settings); }, {path("folder")}));
}

// RFC 3629, section 4: no overlong forms, no surrogates, nothing past U+10FFFF.
struct Invalid {
  const char *name, *bytes;
};
std::ostream& operator<<(std::ostream& stream, const Invalid& invalid) { return stream << invalid.name; }

class NotUtf8 : public TrainTest, public testing::WithParamInterface<Invalid> {};

TEST_P(NotUtf8, IsAnErrorNamingTheByte) {
  const std::string good(300, 'x'), bad = GetParam().bytes;
  TrainSettings settings = tiny(Task::language);
  settings.text = put("text", good + bad + good);
  EXPECT_TRUE(raises<FileError>([&] { train_language(settings); }, {path("text"), "UTF-8", "byte 300"}));
  settings.text = put("end", good + bad);
  EXPECT_TRUE(raises<FileError>([&] { train_language(settings); }, {path("end"), "UTF-8", "byte 300"}));
}

INSTANTIATE_TEST_SUITE_P(Train, NotUtf8,
                         testing::Values(Invalid{"Continuation", "\x80"}, Invalid{"Latin1", "\xE9"},
                                         Invalid{"CutShort", "\xE2\x82"}, Invalid{"NoSuchByte", "\xFF"},
                                         Invalid{"OverlongOfTwo", "\xC1\xBF"},
                                         Invalid{"OverlongOfThree", "\xE0\x9F\xBF"},
                                         Invalid{"OverlongOfFour", "\xF0\x8F\xBF\xBF"},
                                         Invalid{"Surrogate", "\xED\xA0\x80"},
                                         Invalid{"PastTheLast", "\xF4\x90\x80\x80"},
                                         Invalid{"FarPastTheLast", "\xF5\x80\x80\x80"}),
                         [](const auto& invalid) { return std::string(invalid.param.name); });

TEST_F(TrainTest, LanguageTakesTheEdgesOfUtf8) {
  TrainSettings settings = tiny(Task::language);
  std::string text;  // the first and last character of each length, and those around the surrogates
  for (int i = 0; i < 40; ++i)
    text +=
        "\x01\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF"
        "\xBF";
  settings.text = put("text", text);
  settings.out = path("run");
  EXPECT_EQ(train_language(settings).answers, 40);
  EXPECT_EQ(Json::parse(bytes_of(path("run/run.json")))["sizes"]["vocabulary"], 10 + 1)
      << "and one for others";
}

TEST_F(TrainTest, LanguageWritesASampleInTheCharactersOfTheText) {
  TrainSettings settings = tiny(Task::language);
  settings.text = put("text", small_text());
  settings.out = path("run");
  const TrainReport report = train_language(settings);
  EXPECT_FALSE(report.sample.empty());
  EXPECT_EQ(Json::parse(bytes_of(path("run/run.json")))["sample"], report.sample);
}

// ---- By name

TEST(Train, OfATaskThatThereIsNotIsAnErrorNamingIt) {
  TrainSettings settings;
  settings.task = "sort";
  EXPECT_TRUE(raises<LogicError>([&] { train(settings); }, {"sort"}));
}

}  // namespace
}  // namespace tapehead::tools
