#include <tools/cache.h>
#include <tools/output.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/core/errors.h>
#include <tapehead/nn/file_error.h>

namespace tapehead::tools {
namespace {

using Json = nlohmann::ordered_json;

Index at_least_one(const char* name, Index number) {
  if (number < 1)
    throw DomainError("cache_size", fmt::format("{} must be at least 1, and is {}", name, number));
  return number;
}

Index product(std::initializer_list<Index> factors) {
  Index result = 1;
  for (const Index factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) {
      throw DomainError("cache_size", "these numbers make 2^63 bytes or more");
    }
  }
  return result;
}

Index both_widths(const CacheSettings& settings) {
  Index sum = 0;
  if (__builtin_add_overflow(settings.width, settings.value_width.value_or(settings.width), &sum)) {
    throw DomainError("cache_size", "these numbers make 2^63 bytes or more");
  }
  return sum;
}

std::string in_units(Index bytes, double step, std::span<const char* const> units) {
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  constexpr double rounded_up = 0.0005;  // to the next whole number, by three decimals
  for (; amount >= step - rounded_up && unit + 1 < units.size(); ++unit) amount /= step;
  std::string text = fmt::format("{:.3f}", amount);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " " + (text == "1" && unit == 0 ? "byte" : units[unit]);
}

std::string with_commas(Index number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

// The formula above its numbers, factor under factor.
std::string formula(const CacheSettings& s) {
  struct Factor {
    std::string name, number;
  };
  const bool one_width = !s.value_width || *s.value_width == s.width;
  std::vector<Factor> factors = {{"layers", with_commas(s.layers)}, {"kv-heads", with_commas(s.kv_heads)},
                                 {"length", with_commas(s.length)}, {"width", with_commas(s.width)},
                                 {"bytes", with_commas(s.bytes)},   {"batch", with_commas(s.batch)}};
  if (one_width) {
    factors.insert(factors.begin(), Factor{"2", "2"});
  } else {
    factors[3] = {"(width + value-width)",
                  fmt::format("({} + {})", with_commas(s.width), with_commas(*s.value_width))};
  }
  std::string names = " ", numbers = " ";
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::size_t width = std::max(factors[i].name.size(), factors[i].number.size());
    names += fmt::format(" {}{:>{}}", i > 0 ? "x " : "", factors[i].name, width);
    numbers += fmt::format(" {}{:>{}}", i > 0 ? "x " : "", factors[i].number, width);
  }
  return names + "\n" + numbers + "\n";
}

void print_text(const CacheSettings& settings, const CacheSize& size) {
  fmt::print("Key/value cache: {} bytes, {}, {}\n\n", with_commas(size.bytes), binary_units(size.bytes),
             decimal_units(size.bytes));
  fmt::print("{}\n", formula(settings));
  fmt::print("The key and the value of one token take {}, in all layers together.\n\n",
             binary_units(size.bytes_per_token));
  fmt::print(
      "What else takes memory:\n"
      "  weights      parameters x bytes of each, once for all sequences\n"
      "  activations  of one step: few when tokens come one by one, many when a prompt is read at once; "
      "where\n"
      "               they are stored, scores take batch x query heads x new tokens x length numbers a "
      "layer\n"
      "               and logits batch x new tokens x vocabulary\n"
      "  growth       a cache that doubles when it is full has room for up to twice its tokens, and three\n"
      "               times them while it moves, when old and new room are both held; reserving the length\n"
      "               beforehand avoids both\n"
      "  allocator    blocks rounded up, freed ones kept for later, gaps that fit nothing\n"
      "  training     gradients, optimizer state, activations kept for the backward pass: none for decoding\n"
      "  the rest     the program, its libraries and their workspace\n");
}

void print_json(const CacheSettings& settings, const CacheSize& size) {
  const Json json = {{"bytes", size.bytes},
                     {"gib", static_cast<double>(size.bytes) / 0x1p30},
                     {"gb", static_cast<double>(size.bytes) / 1e9},
                     {"bytes_per_token", size.bytes_per_token},
                     {"layers", settings.layers},
                     {"kv_heads", settings.kv_heads},
                     {"length", settings.length},
                     {"width", settings.width},
                     {"value_width", settings.value_width.value_or(settings.width)},
                     {"bytes_per_number", settings.bytes},
                     {"batch", settings.batch}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

CacheSize cache_size(const CacheSettings& settings) {
  at_least_one("layers", settings.layers);
  at_least_one("kv-heads", settings.kv_heads);
  at_least_one("length", settings.length);
  at_least_one("width", settings.width);
  at_least_one("value-width", settings.value_width.value_or(settings.width));
  at_least_one("bytes", settings.bytes);
  at_least_one("batch", settings.batch);
  const Index of_a_token =
      product({settings.layers, settings.kv_heads, both_widths(settings), settings.bytes});
  return {product({of_a_token, settings.length, settings.batch}), of_a_token};
}

std::string binary_units(Index bytes) {
  static constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  return in_units(bytes, 1024, units);
}

std::string decimal_units(Index bytes) {
  static constexpr const char* units[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
  return in_units(bytes, 1000, units);
}

void cache(const CacheSettings& settings) {
  const CacheSize size = cache_size(settings);
  settings.json ? print_json(settings, size) : print_text(settings, size);
  flush_output();
}

}  // namespace tapehead::tools
