// The contract on whole subjects: our own attention, and libraries that are right or misbehave, each claim in
// a process of its own.

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include <tapehead/nn/safetensors.h>
#include <tools/contract/command.h>
#include <tools/contract/contained.h>
#include <tools/contract/evidence.h>
#include <tools/contract/placed.h>
#include <tools/contract/report.h>

#include "support/expect_error.h"
#include "support/files.h"

namespace tapehead::contract {
namespace {

std::string kernel(const std::string& name) { return TAPEHEAD_TEST_KERNELS "/" + name + ".so"; }

std::string test_name(std::string_view id) {
  std::string name(id);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

void expect_all_hold(const Trials& trials) {
  for (const Row& row : try_claims(trials).rows) {
    for (const Result& result : row.results) EXPECT_FALSE(is_failure(result.verdict)) << result.where;
  }
}

class ContractSubjects : public testing::TestWithParam<Claim> {
 protected:
  Trials trials_of_this_claim() const {
    Trials trials;
    trials.claims = {find_claim(GetParam().id)};
    trials.numbers = {Number::f64, Number::f32};
    trials.seconds = 60;  // a loaded machine is no failure
    return trials;
  }
};

TEST_P(ContractSubjects, ComposedAttentionHolds) { expect_all_hold(trials_of_this_claim()); }

TEST_P(ContractSubjects, FusedAttentionHolds) {
  Trials trials = trials_of_this_claim();
  trials.kernel = AttentionKernel::fused;
  expect_all_hold(trials);
}

TEST_P(ContractSubjects, ACompleteLibraryHoldsWithNothingLeftUntried) {
  Trials trials = trials_of_this_claim();
  trials.library = kernel("complete");
  const Table table = try_claims(trials);
  for (const Result& result : table.rows.at(0).results)
    EXPECT_EQ(result.verdict, Verdict::holds) << result.where;
}

INSTANTIATE_TEST_SUITE_P(Contract, ContractSubjects, testing::ValuesIn(claims().begin(), claims().end()),
                         [](const auto& claim) { return test_name(claim.param.id); });

// ---- libraries that misbehave

class MisbehavingKernel : public FilesTest {
 protected:
  ~MisbehavingKernel() override { ::unsetenv("MISBEHAVE"); }

  Result tried(const char* misbehaviour, const char* claim, double seconds = 60,
               std::optional<Index> width = {}) const {
    ::setenv("MISBEHAVE", misbehaviour, 1);
    Trials trials;
    trials.library = kernel("misbehaving"), trials.claims = {find_claim(claim)};
    trials.numbers = {Number::f64}, trials.seconds = seconds, trials.folder = folder_;
    trials.width = width;
    const Table table = try_claims(trials);
    return table.rows.at(0).results.at(0);
  }

  void expect(const char* misbehaviour, const char* claim, Verdict verdict, std::string_view where) const {
    const Result result = tried(misbehaviour, claim);
    EXPECT_EQ(result.verdict, verdict) << result.where;
    EXPECT_TRUE(has(result.where, where)) << result.where;
  }
};

TEST_F(MisbehavingKernel, NotAtAllHolds) {
  for (const char* claim :
       {"formulas", "inside", "overwrites", "inputs-kept", "repeatable", "linear-memory"}) {
    EXPECT_EQ(tried("", claim).verdict, Verdict::holds) << claim;
  }
}

TEST_F(MisbehavingKernel, ByACrashIsNamedBySignalAndPart) {
  expect("crashes", "row-sums", Verdict::crashes, "SIGSEGV");
  expect("crashes", "row-sums", Verdict::crashes, "trying 3 x 5");
  expect("aborts", "row-sums", Verdict::crashes, "SIGABRT");
  expect("overflows the stack", "row-sums", Verdict::crashes, "SIGSEGV");
}

TEST_F(MisbehavingKernel, ByEndingTheProcessIsNoSuccess) {
  expect("exits", "row-sums", Verdict::crashes, "exit code 0");
}

TEST_F(MisbehavingKernel, ByAHangIsEndedAndGivenUpAfterThree) {
  ::setenv("MISBEHAVE", "hangs", 1);
  Trials trials;
  trials.library = kernel("misbehaving"), trials.numbers = {Number::f64}, trials.seconds = 0.2;
  for (const char* id : {"row-sums", "scale", "basis", "entropy"}) trials.claims.push_back(find_claim(id));
  const Table table = try_claims(trials);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(table.rows[i].results[0].verdict, Verdict::hangs);
    EXPECT_TRUE(has(table.rows[i].results[0].where, "still running after 0.2 s"));
  }
  EXPECT_EQ(table.rows[3].results[0].verdict, Verdict::not_tried);
  EXPECT_TRUE(has(table.rows[3].results[0].where, "given up"));
}

TEST_F(MisbehavingKernel, ByAFailureOfItsOwnIsReportedWithItsNumber) {
  expect("fails", "row-sums", Verdict::refuses, "tapehead_forward: returned 7");
}

TEST_F(MisbehavingKernel, InMemoryIsSeenAndSaysWhere) {
  expect("writes behind", "inside", Verdict::crashes, "touched memory behind output");
  expect("writes before", "inside", Verdict::crashes, "touched memory before output");
  expect("reads past the keys", "inside", Verdict::crashes, "touched memory behind key");
  expect("changes its input", "inputs-kept", Verdict::fails, "query was changed");
  expect("skips the last row", "overwrites", Verdict::fails, "holds nan after NaN");
  expect("adds to what is there", "overwrites", Verdict::fails, "holds nan after NaN");
  expect("ignores strides", "strides", Verdict::fails, "by strides");
  expect("takes the square of memory", "linear-memory", Verdict::fails, "4,096 x 4,096");
}

TEST_F(MisbehavingKernel, InMemoryLeavesOtherClaimsAlone) {
  for (const char* misbehaviour : {"writes behind", "writes before", "changes its input"}) {
    EXPECT_EQ(tried(misbehaviour, "formulas").verdict, Verdict::holds) << misbehaviour;
  }
}

TEST_F(MisbehavingKernel, ByAnotherLastBitIsSeen) {
  expect("does not repeat", "repeatable", Verdict::fails, "expected exactly");
  EXPECT_EQ(tried("does not repeat", "formulas").verdict, Verdict::holds);
}

TEST_F(MisbehavingKernel, ByNaNIsAnErrorWithoutBound) {
  const Result result = tried("gives NaN", "formulas");
  EXPECT_EQ(result.verdict, Verdict::fails);
  EXPECT_EQ(result.error, HUGE_VAL);
  EXPECT_TRUE(has(result.where, "is nan"));
}

TEST_F(MisbehavingKernel, ByWhatItDoesNotSupportIsNotTried) {
  const Result result = tried("supports nothing", "formulas");
  EXPECT_EQ(result.verdict, Verdict::not_tried);
  EXPECT_EQ(result.where, "unsupported: f64");
  EXPECT_EQ(tried("", "sink").where, "unsupported: sink");
  EXPECT_EQ(tried("", "differences").where, "unsupported: gradients");
}

// Which is no misbehaviour: zeros behind its channels change no score.
TEST_F(MisbehavingKernel, OfOneWidthIsGivenThatWidth) {
  for (const char* claim : {"formulas", "row-sums", "basis", "inside", "repeatable"}) {
    EXPECT_EQ(tried("has 64 channels only", claim).verdict, Verdict::not_tried) << claim;
    EXPECT_EQ(tried("has 64 channels only", claim, 60, 64).verdict, Verdict::holds) << claim;
  }
  EXPECT_EQ(tried("has 64 channels only", "tile-edges").tried.front(), "widths 1 to 129");  // 64 among them
  EXPECT_EQ(tried("gives NaN", "formulas", 60, 64).verdict, Verdict::fails);
  const Result narrow = tried("", "row-sums", 60, 4);
  EXPECT_EQ(narrow.where, "unsupported: more than 4 channels");
}

TEST(Widening, KeepsEveryResultOfTheFormulas) {
  Generator random(7);
  Problem p;
  p.query = random.normal<double>({1, 2, 3, 4}), p.key = random.normal<double>({1, 2, 5, 4});
  p.value = random.normal<double>({1, 2, 5, 2}), p.upstream = random.normal<double>({1, 2, 3, 2});
  const Answer wide = formulas(widened(p, 7)), right = formulas(p), cut = narrowed(wide, 4, 2);
  EXPECT_EQ(wide.output.shape(), Shape({1, 2, 3, 7}));
  EXPECT_TRUE(all_close(cut.output, right.output, 1e-15, 0));
  EXPECT_TRUE(all_close(cut.dquery, right.dquery, 1e-14, 1e-15));
  EXPECT_TRUE(all_close(cut.dkey, right.dkey, 1e-14, 1e-15));
  EXPECT_TRUE(all_close(cut.dvalue, right.dvalue, 1e-14, 1e-15));
}

TEST_F(MisbehavingKernel, OnLoadIsAnErrorThatNamesTheFile) {
  auto load = [](const std::string& file) {
    return [file] {
      Trials trials;
      trials.library = file, trials.numbers = {Number::f64};
      try_claims(trials);
    };
  };
  EXPECT_TRUE(
      raises<Error>(load(kernel("crash_on_load")), {"crash_on_load.so", "SIGSEGV", "while it was loaded"}));
  EXPECT_TRUE(raises<Error>(load(kernel("version_2")), {"version_2.so", "is of version 2", "expected 1"}));
  EXPECT_TRUE(raises<Error>(load(kernel("no_version")), {"no_version.so", "has no tapehead_kernel_version"}));
  EXPECT_TRUE(
      raises<Error>(load(kernel("no_forward")), {"no_forward.so", "has no function tapehead_forward"}));
  put(path(), "not a library");
  EXPECT_TRUE(raises<Error>(load(path()), {path(), "cannot be loaded"}));
}

// ---- processes

Ended run(const std::function<void(int)>& f, double seconds = 60) { return contained(f, seconds); }
void say(int pipe, std::string_view text) {
  if (::write(pipe, text.data(), text.size()) < 0) std::abort();
}

TEST(Contained, GivesWhatWasSaid) {
  const Ended ended = run([](int pipe) { say(pipe, std::string(200'000, 'x')); });
  EXPECT_EQ(ended.how, Ended::How::finished);
  EXPECT_EQ(ended.said, std::string(200'000, 'x'));
  EXPECT_EQ(words_of(ended, 1), "");
}

TEST(Contained, KeepsWhatWasSaidBeforeTheEnd) {
  const Ended crashed = run([](int pipe) { say(pipe, "so far"), ::raise(SIGFPE); });
  EXPECT_EQ(crashed.said, "so far");
  EXPECT_EQ(words_of(crashed, 1), "crashed with SIGFPE (Floating point exception)");
  const Ended left = run([](int) { ::_exit(3); });
  EXPECT_EQ(words_of(left, 1), "ended the process with exit code 3");
  const Ended hung = run([](int pipe) { say(pipe, "so far"), ::pause(); }, 0.1);
  EXPECT_EQ(hung.said, "so far");
  EXPECT_EQ(words_of(hung, 0.1), "was still running after 0.1 s");
}

TEST(Contained, ClosingThePipeIsNotTheEnd) {
  EXPECT_EQ(run([](int pipe) { ::close(pipe), ::pause(); }, 0.1).how, Ended::How::time);
}

TEST(Contained, LeavesNoProcessBehind) {
  run([](int) { ::pause(); }, 0.05);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // there is no child
}

// ---- memory

TEST(GuardedRooms, AreNamedWhenTheyAreMissed) {
  auto touch = [](Placement::Guard guard, std::ptrdiff_t at) {
    return run([=](int pipe) {
             name_faults(pipe, "fault: ");
             const GuardedRoom other("other", 64, guard), room("room", 128, guard);
             static_cast<volatile std::byte*>(room.data())[at] = std::byte{1};
             say(pipe, "nothing\n");
           })
        .said;
  };
  EXPECT_EQ(touch(Placement::Guard::behind, 128), "fault: touched memory behind room\n");
  EXPECT_EQ(touch(Placement::Guard::behind, 127), "nothing\n");
  EXPECT_EQ(touch(Placement::Guard::before, -1), "fault: touched memory before room\n");
  EXPECT_EQ(touch(Placement::Guard::before, 0), "nothing\n");
  EXPECT_EQ(touch(Placement::Guard::none, 128), "nothing\n");
  EXPECT_EQ(touch(Placement::Guard::none, -1), "nothing\n");
}

TEST(PlacedArrays, SeeEveryByteBesideTheirElements) {
  for (const auto order : {Placement::Order::row_major, Placement::Order::token_major}) {
    Placed<float> y("y", {2, 3, 4, 5}, {.order = order});
    y.expect_result(7);
    const tapehead_output described = y.as_output();
    EXPECT_EQ(y.marks_lost(), 0);
    for (Index b = 0; b < 2; ++b) {
      for (Index h = 0; h < 3; ++h) {
        for (Index i = 0; i < 4; ++i) {
          for (Index d = 0; d < 5; ++d) {
            float& at = static_cast<float*>(
                described
                    .data)[b * described.stride[0] + h * described.stride[1] + i * described.stride[2] + d];
            EXPECT_EQ(at, 7);
            at = static_cast<float>(((b * 3 + h) * 4 + i) * 5 + d);
          }
        }
      }
    }
    EXPECT_EQ(y.marks_lost(), 0);
    EXPECT_EQ(y.numbers().to_vector(), Array<double>::arange(120).to_vector());
    y.data()[-1] = 0;
    EXPECT_EQ(y.marks_lost(), 4);
  }
  Placed<float> y("y", {1, 1, 2, 5}, {.order = Placement::Order::token_major});
  y.expect_result(0);
  y.data()[5] = 0;  // between the rows
  EXPECT_EQ(y.marks_lost(), 4);
}

TEST(PlacedArrays, SeeAChangeOfAnInputAndOfWhatLiesBesideIt) {
  Placed<double> x("x", {1, 1, 2, 3}, {});
  x.hold(Array<double>::arange(6).reshape({1, 1, 2, 3}));
  EXPECT_TRUE(x.unchanged());
  x.data()[2] = -2;
  EXPECT_FALSE(x.unchanged());
  x.data()[2] = 2;
  EXPECT_TRUE(x.unchanged());
  EXPECT_TRUE(std::isnan(x.data()[6]));
  x.data()[6] = 0;
  EXPECT_FALSE(x.unchanged());
}

// ---- evidence and reports

class ContractEvidence : public FilesTest {};

TEST_F(ContractEvidence, HoldsTheCallAndItsSettingsUnderTheNamesOfADump) {
  Problem p;
  p.query = Array<double>::ones({1, 2, 3, 4}), p.key = Array<double>::ones({1, 1, 5, 4});
  p.value = Array<double>::ones({1, 1, 5, 2}), p.upstream = Array<double>::ones({1, 2, 3, 2});
  p.causal = true, p.offset = 2, p.window = Window{1, 0}, p.softcap = 3, p.lengths = {4};
  p.mask = Array<bool>::ones({1, 1, 3, 5}), p.log_sum_exp = true;
  write_evidence(path(), {p, formulas(p)}, Number::f32);
  const SafetensorsFile file(path());
  for (const char* name : {"query", "key", "value", "upstream", "mask", "key_lengths", "output", "lse",
                           "grad_query", "grad_key", "grad_value"}) {
    EXPECT_TRUE(file.contains(name)) << name;
  }
  EXPECT_EQ(file.type("query"), "F32");
  EXPECT_EQ(file.type("mask"), "BOOL");
  const std::map<std::string, std::string> expected = {
      {"causal", "offset 2"}, {"computed_in", "f32"}, {"empty_rows", "zero"},    {"head_map", "grouped"},
      {"layout", "BHLD"},     {"lse_base", "e"},      {"mask_means", "allowed"}, {"scale", "0.5"},
      {"softcap", "3"},       {"window_left", "1"},   {"window_right", "0"}};
  EXPECT_EQ(file.metadata(), expected);
}

TEST_F(ContractEvidence, WritesAWindowAroundAnotherPositionAsAMask) {
  Problem p;
  p.query = Array<double>::ones({1, 1, 2, 4}), p.key = p.value = Array<double>::ones({1, 1, 5, 4});
  p.offset = 2, p.window = Window{1, 0};
  write_evidence(path(), {p, formulas(p)}, Number::f64);
  const SafetensorsFile file(path());
  EXPECT_EQ(file.metadata().count("window_left"), 0u);
  EXPECT_EQ(file.read<bool>("mask").to_vector(),
            Array<bool>::of({{{{0, 1, 1, 0, 0}, {0, 0, 1, 1, 0}}}}).to_vector());
}

class ContractCommand : public MisbehavingKernel {
 protected:
  static std::pair<int, std::string> printed(const ContractSettings& settings) {
    testing::internal::CaptureStdout();
    const int code = contract(settings);
    return {code, testing::internal::GetCapturedStdout()};
  }
};

TEST_F(ContractCommand, SaysWhichOfOurOwnItTries) {
  const auto [code, text] = printed({.claims = {"hand-trace"}});
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(has(text, "Claims on built-in, composed of ops\n"));
  EXPECT_TRUE(has(text, "Claims on built-in, fused kernel\n"));
  EXPECT_TRUE(has(text, "1 claims hold, 0 fail, 0 were not tried."));
}

TEST_F(ContractCommand, FailsWithOneWhereAClaimFailsAndKeepsTheDump) {
  ::setenv("MISBEHAVE", "gives NaN", 1);
  const auto [code, text] =
      printed({.library = kernel("misbehaving"), .claims = {"scale", "sink"}, .out = path("out")});
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(has(text, "FAILS"));
  EXPECT_TRUE(has(text, "not tried"));
  EXPECT_TRUE(has(text, path("out") + "/scale-f64.safetensors"));
  EXPECT_EQ(SafetensorsFile(path("out") + "/scale-f64.safetensors").metadata().at("computed_in"), "f64");
}

TEST_F(ContractCommand, PrintsOneLineOfJson) {
  ::setenv("MISBEHAVE", "gives NaN", 1);
  const auto [code, text] =
      printed({.library = kernel("misbehaving"), .claims = {"scale", "sink"}, .json = true});
  EXPECT_EQ(code, 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["failed"], 1);
  const auto& claims = json["subjects"][0]["claims"];
  EXPECT_EQ(claims[0]["verdict"], "fails");
  EXPECT_TRUE(claims[0]["types"][0]["error"].is_null());  // infinite
  EXPECT_TRUE(claims[0]["types"][0].contains("diagnosis"));
  EXPECT_EQ(claims[1]["verdict"], "not tried");
}

TEST_F(ContractCommand, RefusesWhatCannotBeTried) {
  EXPECT_TRUE(raises<DomainError>([] { contract({.claims = {"nosuch"}}); }, {"no claim 'nosuch'"}));
  ::setenv("MISBEHAVE", "supports nothing", 1);
  EXPECT_TRUE(raises<FileError>([] { contract({.library = kernel("misbehaving"), .claims = {"scale"}}); },
                                {"misbehaving.so", "nothing could be tried", "f64"}));
  put(path("file"), "");
  EXPECT_TRUE(raises<FileError>([&] { contract({.claims = {"scale"}, .out = path("file/below")}); },
                                {path("file/below"), "cannot be made"}));
}

}  // namespace
}  // namespace tapehead::contract
