#include <tools/cache.h>

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include <tapehead/core/errors.h>
#include <tapehead/nn/key_value_cache.h>

#include "support/expect_error.h"

namespace tapehead::tools {
namespace {

using Json = nlohmann::json;

CacheSettings of_70b(Index kv_heads, Index length) {
  CacheSettings settings;
  settings.layers = 80, settings.kv_heads = kv_heads, settings.length = length;
  settings.width = 128, settings.bytes = 2;
  return settings;
}

std::string printed(const CacheSettings& settings) {
  testing::internal::CaptureStdout();
  cache(settings);
  return testing::internal::GetCapturedStdout();
}

TEST(CacheSize, OfEightyLayersIsEightyGibibytesAndAnEighthWithAnEighthOfTheHeads) {
  EXPECT_EQ(cache_size(of_70b(64, 32768)).bytes, 85'899'345'920);
  EXPECT_EQ(cache_size(of_70b(8, 32768)).bytes, 10'737'418'240);
  EXPECT_EQ(cache_size(of_70b(64, 4096)).bytes, 10'737'418'240);
  EXPECT_EQ(cache_size(of_70b(8, 4096)).bytes, 1'342'177'280);
  EXPECT_EQ(cache_size(of_70b(8, 4096)).bytes_per_token, 327'680);
}

TEST(CacheSize, GrowsWithTheBatchAndWithEitherWidth) {
  CacheSettings settings = of_70b(8, 4096);
  settings.batch = 3;
  EXPECT_EQ(cache_size(settings).bytes, 4'026'531'840);
  EXPECT_EQ(cache_size(settings).bytes_per_token, 327'680);
  settings.value_width = 64;
  EXPECT_EQ(cache_size(settings).bytes, 3'019'898'880);
}

TEST(CacheSize, IsThatOfTheCachesOfAModel) {
  CacheSettings settings;
  settings.layers = 3, settings.kv_heads = 2, settings.length = 11, settings.width = 5;
  settings.value_width = 7, settings.bytes = sizeof(float), settings.batch = 4;
  KeyValueCache<float> layer;
  layer.reserve(11);
  layer.append(Var<float>(Array<float>::zeros({4, 2, 11, 5})),
               Var<float>(Array<float>::zeros({4, 2, 11, 7})));
  EXPECT_EQ(cache_size(settings).bytes, 3 * static_cast<Index>(layer.bytes_in_use()));
}

TEST(CacheSize, RejectsNumbersBelowOneAndProductsBeyondTheRange) {
  const auto names = {"layers", "kv-heads", "length", "width", "value-width", "bytes", "batch"};
  int at = 0;
  for (const char* name : names) {
    for (const Index number : {0, -5}) {
      CacheSettings s = of_70b(8, 4096);
      s.value_width = 128;
      Index* const fields[] = {&s.layers,       &s.kv_heads, &s.length, &s.width,
                               &*s.value_width, &s.bytes,    &s.batch};
      *fields[at] = number;
      EXPECT_TRUE(
          raises<DomainError>([&] { cache_size(s); }, {"cache_size: ", name, std::to_string(number)}));
    }
    ++at;
  }
  CacheSettings large = of_70b(1, 1);
  large.layers = large.bytes = 1, large.width = Index{1} << 61;
  EXPECT_EQ(cache_size(large).bytes, Index{1} << 62);
  large.batch = 2;
  EXPECT_TRUE(raises<DomainError>([&] { cache_size(large); }, {"cache_size: ", "2^63"}));
  large.batch = 1, large.width = std::numeric_limits<Index>::max();
  EXPECT_TRUE(raises<DomainError>([&] { cache_size(large); }, {"cache_size: ", "2^63"}));
}

TEST(CacheUnits, AreTheLargestThatAreFilledWithUpToThreeDecimals) {
  EXPECT_EQ(binary_units(1), "1 byte");
  EXPECT_EQ(binary_units(1023), "1023 bytes");
  EXPECT_EQ(binary_units(1024), "1 KiB");
  EXPECT_EQ(binary_units(1'342'177'280), "1.25 GiB");
  EXPECT_EQ(binary_units(85'899'345'920), "80 GiB");
  EXPECT_EQ(decimal_units(1'342'177'280), "1.342 GB");
  EXPECT_EQ(decimal_units(85'899'345'920), "85.899 GB");
  EXPECT_EQ(decimal_units(100'000), "100 kB");
  EXPECT_EQ(decimal_units(999'999'999), "1 GB");
  EXPECT_EQ(binary_units(std::numeric_limits<Index>::max()), "8 EiB");
}

TEST(Cache, PrintsTheSizeItsFormulaAndWhatElseTakesMemory) {
  const std::string text = printed(of_70b(64, 32768));
  for (const char* part : {"85,899,345,920 bytes, 80 GiB, 85.899 GB\n",
                           "2 x layers x kv-heads x length x width x bytes x batch\n",
                           "2 x     80 x       64 x 32,768 x   128 x     2 x     1\n", "weights",
                           "activations", "growth", "allocator", "2.5 MiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
  }
  EXPECT_NE(printed(of_70b(8, 4096)).find("1,342,177,280 bytes, 1.25 GiB, 1.342 GB\n"), std::string::npos);
}

TEST(Cache, PrintsOneLineOfJson) {
  CacheSettings settings = of_70b(8, 32768);
  settings.json = true;
  const std::string text = printed(settings);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["bytes"], 10'737'418'240);
  EXPECT_EQ(json["gib"], 10);
  EXPECT_EQ(json["gb"], 10.73741824);
  EXPECT_EQ(json["bytes_per_token"], 327'680);
  EXPECT_EQ(json["value_width"], 128);
  EXPECT_EQ(json["batch"], 1);
}

}  // namespace
}  // namespace tapehead::tools
