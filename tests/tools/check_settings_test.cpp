#include <tools/check/settings.h>

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "support/expect_error.h"

namespace tapehead::check {
namespace {

Settings read(const std::map<std::string, std::string>& text) { return read_settings(text, "dump"); }

TEST(CheckSettings, SayNothingWhenNothingIsSaid) {
  const Settings settings = read({});
  EXPECT_FALSE(settings.layout || settings.scale || settings.causal || settings.window_left ||
               settings.softcap || settings.rope || settings.computed_in || settings.empty_rows_zero);
}

TEST(CheckSettings, ReadEveryKey) {
  const Settings s = read({{"layout", "BLHD"},       {"heads", "6"},
                           {"kv_heads", "2"},        {"scale", "-2.5e-1"},
                           {"causal", "offset -4"},  {"window_left", "3"},
                           {"window_right", "0"},    {"mask_means", "blocked"},
                           {"softcap", "50"},        {"bias_order", "before-scale"},
                           {"mode", "train"},        {"head_map", "tiled"},
                           {"rope", "neighbour"},    {"rope_base", "1e6"},
                           {"rope_width", "4"},      {"rope_start_query", "11"},
                           {"rope_start_key", "-2"}, {"qk_norm", "l2"},
                           {"qk_norm_eps", "1e-6"},  {"dropout", "0.25"},
                           {"empty_rows", "error"},  {"lse_base", "2"},
                           {"computed_in", "bf16"},  {"linear_weight_layout", "(out,in)"}});
  EXPECT_EQ(s.layout, Layout::BLHD);
  EXPECT_EQ(s.heads, 6);
  EXPECT_EQ(s.kv_heads, 2);
  EXPECT_EQ(s.scale, -0.25);
  EXPECT_FALSE((*s.causal)->bottom_right);
  EXPECT_EQ((*s.causal)->offset, -4);
  EXPECT_EQ(**s.window_left, 3);
  EXPECT_EQ(**s.window_right, 0);
  EXPECT_EQ(s.mask_means, MaskMeans::blocked);
  EXPECT_EQ(s.softcap, 50);
  EXPECT_EQ(s.bias_before_scale, true);
  EXPECT_EQ(s.training, true);
  EXPECT_EQ(s.tiled_heads, true);
  EXPECT_EQ(s.rope, Pairing::neighbour);
  EXPECT_EQ(s.rope_base, 1e6);
  EXPECT_EQ(s.rope_width, 4);
  EXPECT_EQ(s.rope_start_query, 11);
  EXPECT_EQ(s.rope_start_key, -2);
  EXPECT_EQ(s.qk_norm, QueryKeyNorms::l2);
  EXPECT_EQ(s.qk_norm_eps, 1e-6);
  EXPECT_EQ(s.dropout, 0.25);
  EXPECT_EQ(s.empty_rows_zero, false);
  EXPECT_EQ(s.lse_base_2, true);
  EXPECT_EQ(s.computed_in, NumberType::bf16);
  EXPECT_EQ(s.weights_out_in, true);
}

TEST(CheckSettings, TellNoneFromNotSaid) {
  const Settings settings = read({{"causal", "none"}, {"window_left", "unlimited"}, {"softcap", "none"}});
  ASSERT_TRUE(settings.causal && settings.window_left);
  EXPECT_FALSE(*settings.causal || *settings.window_left);
  EXPECT_EQ(settings.softcap, 0);
  EXPECT_TRUE((*read({{"causal", "bottom-right"}}).causal)->bottom_right);
  EXPECT_EQ((*read({{"causal", "top-left"}}).causal)->offset, 0);
}

TEST(CheckSettings, TakeOtherSpellings) {
  EXPECT_EQ(read({{"layout", "...HLD"}}).layout, Layout::BHLD);
  EXPECT_EQ(read({{"mask_true_means", "blocked"}}).mask_means, MaskMeans::blocked);
  EXPECT_EQ(**read({{"window", "3"}}).window_left, 2);
  EXPECT_NO_THROW(read({{"format", "pt"}, {"kind", "attention"}, {"comment", "mine"}}));
  EXPECT_TRUE(raises<Unusable>(
      [] {
        read({{"mask_true_means", "blocked"}, {"mask_means", "allowed"}});
      },
      {"mask_means", "mask_true_means", "both"}));
}

TEST(CheckSettings, RefuseWhatIsNoPlainAttention) {
  for (const char* kind : {"additive_attention", "training_run"}) {
    EXPECT_TRUE(raises<Unusable>(
        [&] {
          read({{"kind", kind}, {"activation", "gelu"}});
        },
        {"dump: setting kind: expected attention", kind}));
  }
  EXPECT_TRUE(raises<Unusable>(
      [] {
        read({{"module", "TransformerEncoderLayer"}, {"kind", "module"}});
      },
      {"module", "MultiheadAttention", "TransformerEncoderLayer"}));
}

struct Wrong {
  const char *key, *value;
};

class WrongSetting : public testing::TestWithParam<Wrong> {};

TEST_P(WrongSetting, IsOneLineNamingKeyAndValue) {
  const Wrong& wrong = GetParam();
  EXPECT_TRUE(raises<Unusable>(
      [&] {
        read({{wrong.key, wrong.value}});
      },
      {"dump: ", wrong.key, "expected", std::string("\"") + wrong.value + "\""}));
}

INSTANTIATE_TEST_SUITE_P(
    CheckSettings, WrongSetting,
    testing::Values(Wrong{"layout", "bhld"}, Wrong{"heads", "0"}, Wrong{"heads", "-1"}, Wrong{"heads", "2.5"},
                    Wrong{"heads", "99999999999999999999"}, Wrong{"scale", "nan"}, Wrong{"scale", "inf"},
                    Wrong{"scale", "1e999"}, Wrong{"scale", ""}, Wrong{"scale", "0.5x"},
                    Wrong{"scale", "1/8"}, Wrong{"causal", "topleft"}, Wrong{"causal", "offset"},
                    Wrong{"causal", "offset 1.5"}, Wrong{"causal", "offset 9223372036854775807"},
                    Wrong{"window_left", "-1"}, Wrong{"window_right", "-9223372036854775808"},
                    Wrong{"window", "0"}, Wrong{"mask_means", "true"}, Wrong{"softcap", "-1"},
                    Wrong{"softcap", "0"}, Wrong{"softcap", "nan"}, Wrong{"rope", "interleaved"},
                    Wrong{"rope_base", "0"}, Wrong{"rope_width", "3"}, Wrong{"rope_width", "0"},
                    Wrong{"dropout", "1"}, Wrong{"dropout", "-0.1"}, Wrong{"dropout", "nan"},
                    Wrong{"qk_norm_eps", "-1"}, Wrong{"lse_base", "10"}, Wrong{"computed_in", "f8"},
                    Wrong{"mode", "training"}, Wrong{"empty_rows", "nan"},
                    Wrong{"linear_weight_layout", "out,in"}));

TEST(CheckSettings, RefuseAnUnknownKeyAndListTheKnown) {
  EXPECT_TRUE(raises<Unusable>(
      [] {
        read({{"casual", "top-left"}});
      },
      {"dump", "\"casual\"", "causal", "scale"}));
}

TEST(CheckSettings, MessagesHoldNoControlCharacters) {
  try {
    read({{"scale", "a\nb\x01"}});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Unusable& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

// Every key of the table is read, so that a flag for it does something.
TEST(CheckSettings, KeysOfTheTableAreKnown) {
  for (const SettingKey& key : setting_keys()) {
    EXPECT_TRUE(raises<Unusable>(
        [&] {
          read({{std::string(key.key), "no such value"}});
        },
        {std::string("setting ") + std::string(key.key)}));
  }
}

TEST(CheckSettings, NumbersAreWrittenSoThatTheyReadBack) {
  for (const double x : {0.1, 1.0 / 3, 1e300, 2.3e-308, -2.0, 0.0}) EXPECT_EQ(std::stod(number_text(x)), x);
}

}  // namespace
}  // namespace tapehead::check
