#include <tools/doctor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

namespace tapehead::tools {
namespace {

// A machine of which everything is used.
MachineReport sound() {
  MachineReport r;
  r.processor = "some processor";
  r.processors = r.threads = 4;
  r.vectors_in_use = "avx512";
  r.vectors_available = {"baseline", "avx2", "avx512"};
  r.blas_version = "OpenBLAS 0.3.21", r.blas_core = "SkylakeX", r.blas_level = "avx512";
  r.f32 = {100e9, 110e9, 109e9};
  r.f64 = {50e9, 55e9, 54e9};
  r.attention_forward = 95e9, r.attention_forward_backward = 96e9, r.attention_all_threads = 380e9;
  return r;
}

// The one sentence of a machine, which holds all of the texts.
testing::AssertionResult one_sentence(const MachineReport& report, std::initializer_list<const char*> texts) {
  const std::vector<std::string> sentences = advice(report);
  if (sentences.size() != 1) {
    auto failure = testing::AssertionFailure() << sentences.size() << " sentences:";
    for (const std::string& sentence : sentences) failure << "\n" << sentence;
    return failure;
  }
  for (const char* text : texts) {
    if (sentences[0].find(text) == std::string::npos)
      return testing::AssertionFailure() << "no \"" << text << "\" in: " << sentences[0];
  }
  return testing::AssertionSuccess();
}

TEST(Doctor, HasNothingToSayWhereEverythingIsUsed) { EXPECT_TRUE(advice(sound()).empty()); }

TEST(Doctor, NamesTheVariableThatHoldsVectorsBack) {
  MachineReport r = sound();
  r.vectors_in_use = "avx2", r.arch_variable = "avx2";
  EXPECT_TRUE(one_sentence(r, {"TAPEHEAD_ARCH=avx2", "avx512", "unset"}));
}

TEST(Doctor, SaysThatOpenBlasIsBehindAndThatTheOwnProductTakesItsPlace) {
  MachineReport r = sound();
  r.blas_core = "Prescott", r.blas_level = "baseline", r.f32.openblas = 31e9;
  EXPECT_TRUE(one_sentence(r, {"Prescott", "31 GFLOP/s", "109 GFLOP/s", "OPENBLAS_CORETYPE=SkylakeX"}));
  r.core_variable = "Prescott";
  EXPECT_TRUE(one_sentence(r, {"OPENBLAS_CORETYPE=Prescott", "unset"}));
}

TEST(Doctor, CountsThreadsAgainstProcessors) {
  MachineReport r = sound();
  r.threads = 2;
  EXPECT_TRUE(one_sentence(r, {"2 of 4 processors", "set TAPEHEAD_THREADS"}));
  r.threads_variable = "2";
  EXPECT_TRUE(one_sentence(r, {"TAPEHEAD_THREADS=2", "unset"}));
  r.threads = 9;
  EXPECT_TRUE(one_sentence(r, {"9 threads share 4 processors", "TAPEHEAD_THREADS=4"}));
}

TEST(Doctor, NamesAnOldProcessorABuildWithoutOptimizationAndOtherLoad) {
  MachineReport r = sound();
  r.vectors_available = {"baseline"}, r.vectors_in_use = r.blas_level = "baseline";
  EXPECT_TRUE(one_sentence(r, {"no AVX2"}));
  r = sound();
  r.optimized = false;
  EXPECT_TRUE(one_sentence(r, {"not optimized", "Release"}));
  r = sound();
  r.load = 7;
  EXPECT_TRUE(one_sentence(r, {"load 7.0", "too low"}));
}

TEST(Doctor, NamesRatesThatFallShort) {
  MachineReport r = sound();
  r.attention_forward = 40e9;
  EXPECT_TRUE(one_sentence(r, {"0.36", "Attention"}));
  r = sound();
  r.f64.used = 20e9;
  EXPECT_TRUE(one_sentence(r, {"matmul of double", "20 GFLOP/s", "55 GFLOP/s"}));
}

TEST(Doctor, PrintsOneLineOfJsonAboutThisMachine) {
  testing::internal::CaptureStdout();
  doctor({.json = true});
  const std::string line = testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["schema"], 1);
  EXPECT_GE(json["processors"], 1);
  EXPECT_EQ(json["blas"]["library"].get<std::string>().substr(0, 9), "OpenBLAS ");
  const auto available = json["vectors"]["available"];
  EXPECT_NE(std::find(available.begin(), available.end(), json["vectors"]["in_use"]), available.end());
  for (const char* rate :
       {"attention_forward", "attention_forward_backward", "attention_forward_all_threads"}) {
    EXPECT_GT(json["flops_a_second"][rate], 1e6) << rate;
  }
  EXPECT_TRUE(json["advice"].is_array());
}

}  // namespace
}  // namespace tapehead::tools
