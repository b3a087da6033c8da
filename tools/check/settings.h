#pragma once
// The settings of a dump, from text to values. Strict: an unknown key and a value out of range are errors.

#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <tools/check/number_types.h>

namespace tapehead::check {

// A setting or tensor that is missing or inconsistent is one line; the command exits with 2.
class Unusable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Layout { BHLD, BLHD, BLD, THD };
std::string_view name_of(Layout layout);

// Query i sees key j when j <= i + offset; bottom_right stands for the offset S - L.
struct CausalSetting {
  bool bottom_right = false;
  Index offset = 0;
};

enum class MaskMeans { allowed, blocked, additive };

// What a dump, a spec or flags say; empty: they do not.
struct Settings {
  std::optional<Layout> layout{};
  std::optional<Index> heads{}, kv_heads{};
  std::optional<double> scale{};
  std::optional<std::optional<CausalSetting>> causal{};               // said to be none: an empty one
  std::optional<std::optional<Index>> window_left{}, window_right{};  // likewise, unlimited
  std::optional<MaskMeans> mask_means{};
  std::optional<double> softcap{};  // 0: none
  std::optional<bool> bias_before_scale{}, training{}, tiled_heads{}, empty_rows_zero{}, lse_base_2{};
  std::optional<Pairing> rope{};
  std::optional<double> rope_base{};
  std::optional<Index> rope_width{}, rope_start_query{}, rope_start_key{};
  std::optional<QueryKeyNorms> qk_norm{};
  std::optional<double> qk_norm_eps{};
  std::optional<double> dropout{};
  std::optional<NumberType> computed_in{};
  std::optional<bool> weights_out_in{};  // linear_weight_layout
};

// A key, the values it takes, and what holds when it is absent, in the order of docs/dump-format.md.
struct SettingKey {
  std::string_view key, values, absent;
};
std::span<const SettingKey> setting_keys();

// Throws Unusable, `origin: setting KEY: expected ..., and is ...`.
Settings read_settings(const std::map<std::string, std::string>& text, const std::string& origin);

// The object of a JSON file as settings: texts, numbers, truth values and null (none). Throws FileError.
std::map<std::string, std::string> settings_of_json_file(const std::string& path);

std::string number_text(double x);  // the shortest that reads back as x

}  // namespace tapehead::check
