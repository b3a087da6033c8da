#include <tools/check/settings.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/nn/file_access.h>
#include <tapehead/nn/file_error.h>

namespace tapehead::check {
namespace {

constexpr Index furthest = Index{1} << 40;  // of any position or distance; sums of a few stay exact

// One setting's text and how a complaint about it begins.
struct Text {
  const std::string& origin;
  const std::string& key;
  const std::string& value;

  [[noreturn]] void fail(std::string_view expected) const {
    throw Unusable(fmt::format("{}: setting {}: expected {}, and is \"{}\"", origin, detail::printable(key),
                               expected, detail::printable(value)));
  }
};

template <class Number>
std::optional<Number> parsed(std::string_view text) {
  Number number{};
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Index whole(const Text& text, Index low, Index high, std::string_view expected) {
  const std::optional<Index> number = parsed<Index>(text.value);
  if (!number || *number < low || *number > high) text.fail(expected);
  return *number;
}

template <class Fits>
double real(const Text& text, Fits fits, std::string_view expected) {
  const std::optional<double> number = parsed<double>(text.value);
  if (!number || !std::isfinite(*number) || !fits(*number)) text.fail(expected);
  return *number;
}

template <class T>
struct Choice {
  std::string_view word;
  T value;
};

template <class T, std::size_t n>
T one_of(const Text& text, const Choice<T> (&choices)[n]) {
  const auto* found = std::ranges::find(choices, text.value, &Choice<T>::word);
  if (found != std::end(choices)) return found->value;
  std::string words;
  for (std::size_t i = 0; i < n; ++i) {
    words.append(i == 0 ? "" : i + 1 < n ? ", " : " or ").append(choices[i].word);
  }
  text.fail(words);
}

constexpr Choice<Layout> layouts[] = {{"BHLD", Layout::BHLD},
                                      {"...HLD", Layout::BHLD},
                                      {"BLHD", Layout::BLHD},
                                      {"BLD", Layout::BLD},
                                      {"THD", Layout::THD}};
constexpr Choice<NumberType> types[] = {
    {"f64", NumberType::f64}, {"f32", NumberType::f32}, {"bf16", NumberType::bf16}, {"f16", NumberType::f16}};
constexpr Choice<MaskMeans> meanings[] = {
    {"allowed", MaskMeans::allowed}, {"blocked", MaskMeans::blocked}, {"additive", MaskMeans::additive}};
constexpr Choice<Pairing> pairings[] = {
    {"none", Pairing::none}, {"half", Pairing::half}, {"neighbour", Pairing::neighbour}};
constexpr Choice<QueryKeyNorms> norms[] = {
    {"none", QueryKeyNorms::none}, {"rms", QueryKeyNorms::rms}, {"l2", QueryKeyNorms::l2}};
constexpr Choice<bool> orders[] = {{"after-scale", false}, {"before-scale", true}};
constexpr Choice<bool> modes[] = {{"eval", false}, {"train", true}};
constexpr Choice<bool> head_maps[] = {{"grouped", false}, {"tiled", true}};
constexpr Choice<bool> empty_rows[] = {{"error", false}, {"zero", true}};
constexpr Choice<bool> bases[] = {{"e", false}, {"2", true}};
constexpr Choice<bool> weight_layouts[] = {{"(in,out)", false}, {"(out,in)", true}};

Index head_count(const Text& text) { return whole(text, 1, 65'536, "a whole number from 1 to 65536"); }
Index position(const Text& text) {
  return whole(text, -furthest, furthest, "a whole number from -2^40 to 2^40");
}
double positive(const Text& text) {
  return real(
      text, [](double x) { return x > 0; }, "a finite number above 0");
}

std::optional<CausalSetting> causal(const Text& text) {
  constexpr std::string_view offset = "offset ";
  constexpr std::string_view expected = "none, top-left, bottom-right or offset N";
  if (text.value == "none") return std::nullopt;
  if (text.value == "top-left") return CausalSetting{};
  if (text.value == "bottom-right") return CausalSetting{true, 0};
  if (!text.value.starts_with(offset)) text.fail(expected);
  const std::optional<Index> number = parsed<Index>(std::string_view(text.value).substr(offset.size()));
  if (!number || *number < -furthest || *number > furthest) text.fail(expected);
  return CausalSetting{false, *number};
}

std::optional<Index> distance(const Text& text) {
  if (text.value == "unlimited") return std::nullopt;
  return whole(text, 0, furthest, "a whole number from 0 to 2^40, or unlimited");
}

double softcap(const Text& text) {
  if (text.value == "none") return 0;
  return real(
      text, [](double x) { return x > 0; }, "a finite number above 0, or none");
}

// What the dump is, where its writer says so. Only plain attention and its projections are judged.
void require_judged(const Text& text) {
  static const std::set<std::string, std::less<>> judged = {
      "attention", "self_attention_paths", "cross_attention_paths", "attention_second_order", "module"};
  if (judged.count(text.value) == 0) {
    text.fail("attention by scaled products (one call, with or without projections)");
  }
}
void require_one_attention(const Text& text) {
  if (text.value != "MultiheadAttention") text.fail("MultiheadAttention, a module with one attention");
}
void ignore(const Text&) {}

// How each key is read. Keys that say nothing about the formula are known, and are not read.
using Reader = void (*)(const Text&, Settings&);
struct Row {
  SettingKey shown;
  Reader read;
};

constexpr Row rows[] = {
    {{"layout", "BHLD, BLHD, BLD or THD", "from shapes and numbers"},
     [](const Text& t, Settings& s) { s.layout = one_of(t, layouts); }},
    {{"heads", "query heads", "from shapes; 1 for BLD"},
     [](const Text& t, Settings& s) { s.heads = head_count(t); }},
    {{"kv_heads", "key and value heads", "from shapes; as heads for BLD"},
     [](const Text& t, Settings& s) { s.kv_heads = head_count(t); }},
    {{"scale", "a number", "1/sqrt(D)"},
     [](const Text& t, Settings& s) {
       s.scale = real(
           t, [](double) { return true; }, "a finite number");
     }},
    {{"causal", "none, top-left, bottom-right or \"offset N\"", "none"},
     [](const Text& t, Settings& s) { s.causal = causal(t); }},
    {{"window_left", "keys seen left of the aligned position", "unlimited"},
     [](const Text& t, Settings& s) { s.window_left = distance(t); }},
    {{"window_right", "keys seen right of it", "unlimited"},
     [](const Text& t, Settings& s) { s.window_right = distance(t); }},
    {{"mask_means", "allowed, blocked or additive: what true, or a number, means",
      "allowed for truth values and integers, additive for other numbers"},
     [](const Text& t, Settings& s) { s.mask_means = one_of(t, meanings); }},
    {{"softcap", "a number or none", "none"}, [](const Text& t, Settings& s) { s.softcap = softcap(t); }},
    {{"bias_order", "after-scale or before-scale", "after-scale"},
     [](const Text& t, Settings& s) { s.bias_before_scale = one_of(t, orders); }},
    {{"mode", "train or eval", "eval"}, [](const Text& t, Settings& s) { s.training = one_of(t, modes); }},
    {{"head_map", "grouped (h / (H/Hk)) or tiled (h mod Hk)", "grouped"},
     [](const Text& t, Settings& s) { s.tiled_heads = one_of(t, head_maps); }},
    {{"rope", "none, half or neighbour", "none"},
     [](const Text& t, Settings& s) { s.rope = one_of(t, pairings); }},
    {{"rope_base", "a number", "10000"}, [](const Text& t, Settings& s) { s.rope_base = positive(t); }},
    {{"rope_width", "an even number up to D", "D"},
     [](const Text& t, Settings& s) {
       s.rope_width = whole(t, 2, furthest, "an even whole number from 2 to D");
       if (*s.rope_width % 2 != 0) t.fail("an even whole number from 2 to D");
     }},
    {{"rope_start_query", "position of the first query", "0"},
     [](const Text& t, Settings& s) { s.rope_start_query = position(t); }},
    {{"rope_start_key", "position of the first key", "0"},
     [](const Text& t, Settings& s) { s.rope_start_key = position(t); }},
    {{"qk_norm", "none, rms or l2", "none"},
     [](const Text& t, Settings& s) { s.qk_norm = one_of(t, norms); }},
    {{"qk_norm_eps", "a number", "0"},
     [](const Text& t, Settings& s) {
       s.qk_norm_eps = real(
           t, [](double x) { return x >= 0; }, "a finite number from 0");
     }},
    {{"dropout", "a rate", "0"},
     [](const Text& t, Settings& s) {
       s.dropout = real(
           t, [](double x) { return x >= 0 && x < 1; }, "a rate from 0 to below 1");
     }},
    {{"empty_rows", "error or zero: a row that sees no key", "zero"},
     [](const Text& t, Settings& s) { s.empty_rows_zero = one_of(t, empty_rows); }},
    {{"lse_base", "e or 2", "e"}, [](const Text& t, Settings& s) { s.lse_base_2 = one_of(t, bases); }},
    {{"computed_in", "f64, f32, bf16 or f16", "the type of output"},
     [](const Text& t, Settings& s) { s.computed_in = one_of(t, types); }},
    {{"linear_weight_layout", "(in,out) or (out,in)", "(out,in) for PyTorch's names, else (in,out)"},
     [](const Text& t, Settings& s) { s.weights_out_in = one_of(t, weight_layouts); }},
};

// Other spellings, and keys beside the formula.
constexpr std::pair<std::string_view, Reader> other_rows[] = {
    {"mask_true_means", [](const Text& t, Settings& s) { s.mask_means = one_of(t, meanings); }},
    {"window",  // so many keys, the row's own among them
     [](const Text& t, Settings& s) {
       s.window_left = std::optional(whole(t, 1, furthest, "a whole number from 1 to 2^40") - 1);
     }},
    {"kind", [](const Text& t, Settings&) { require_judged(t); }},
    {"module", [](const Text& t, Settings&) { require_one_attention(t); }},
    {"format", [](const Text& t, Settings&) { ignore(t); }},
    {"comment", [](const Text& t, Settings&) { ignore(t); }},
};

Reader reader_of(std::string_view key) {
  for (const Row& row : rows) {
    if (row.shown.key == key) return row.read;
  }
  for (const auto& [other, read] : other_rows) {
    if (other == key) return read;
  }
  return nullptr;
}

std::string known_keys() {
  std::string keys;
  for (const Row& row : rows) keys.append(keys.empty() ? "" : ", ").append(row.shown.key);
  return keys;
}

void require_one_spelling(const std::map<std::string, std::string>& text, const std::string& origin,
                          const char* one, const char* other) {
  if (text.count(one) == 0 || text.count(other) == 0) return;
  throw Unusable(fmt::format("{}: setting {}: {} says the same, and both are there", origin, one, other));
}

// ---- JSON

[[noreturn]] void fail_value(const std::string& path, const std::string& key) {
  throw FileError(path, detail::printable(key).append(
                            ": expected a text, a number, true, false or null as the value of a setting"));
}

std::string text_of(const nlohmann::json& value, const std::string& path, const std::string& key) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "none";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_float()) return number_text(value.get<double>());
  if (value.is_number()) return value.dump();
  fail_value(path, key);
}

// Parses without building what nests deeper than settings can, and notes a key that comes twice.
nlohmann::json parsed_settings(const std::string& path, std::string_view text) {
  std::set<std::string> keys;
  const auto keep = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth > 1) throw FileError(path, "expected one JSON object of settings, and it holds others");
    if (event == nlohmann::json::parse_event_t::key && !keys.insert(value.get<std::string>()).second) {
      throw FileError(path, detail::printable(value.get<std::string>()).append(": is there twice"));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, keep);
  } catch (const nlohmann::json::exception& error) {
    throw FileError(path, "is not JSON: " + detail::printable(error.what()));
  }
}

}  // namespace

std::string_view name_of(Layout layout) {
  constexpr std::string_view names[] = {"BHLD", "BLHD", "BLD", "THD"};
  return names[static_cast<std::size_t>(layout)];
}

std::string number_text(double x) { return fmt::format("{}", x); }

std::span<const SettingKey> setting_keys() {
  static const std::vector<SettingKey> keys = [] {
    std::vector<SettingKey> list;
    for (const Row& row : rows) list.push_back(row.shown);
    return list;
  }();
  return keys;
}

Settings read_settings(const std::map<std::string, std::string>& text, const std::string& origin) {
  require_one_spelling(text, origin, "mask_means", "mask_true_means");
  require_one_spelling(text, origin, "window_left", "window");
  Settings settings;
  for (const char* first : {"kind", "module"}) {  // what it is comes before how it was set
    if (const auto said = text.find(first); said != text.end()) {
      reader_of(first)({origin, said->first, said->second}, settings);
    }
  }
  for (const auto& [key, value] : text) {
    const Reader read = reader_of(key);
    if (!read) {
      throw Unusable(fmt::format("{}: unknown setting \"{}\"; there are {}", origin, detail::printable(key),
                                 known_keys()));
    }
    read({origin, key, value}, settings);
  }
  return settings;
}

std::map<std::string, std::string> settings_of_json_file(const std::string& path) {
  constexpr std::size_t most = 1'000'000;
  const detail::Mapping file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > most) {
    throw FileError(path, fmt::format("has {} bytes, where {} are enough for settings", bytes.size(), most));
  }
  const nlohmann::json json =
      parsed_settings(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!json.is_object()) throw FileError(path, "expected one JSON object of settings");
  std::map<std::string, std::string> settings;
  for (const auto& [key, value] : json.items()) settings[key] = text_of(value, path, key);
  return settings;
}

}  // namespace tapehead::check
