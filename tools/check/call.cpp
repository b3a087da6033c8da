#include <tools/check/call.h>

#include <algorithm>

#include <fmt/format.h>

#include <tools/check/check.h>

namespace tapehead::check {
namespace {

// One offset; a dump has no words for one a sample.
std::string causal_text(const std::vector<Index>& offsets) {
  const bool is_one = std::ranges::all_of(offsets, [&](Index offset) { return offset == offsets.front(); });
  if (!is_one) throw Unusable("causal: expected one offset for all samples, to be written as a setting");
  return fmt::format("offset {}", offsets.front());
}

std::map<std::string, std::string> settings_of(const Call& call) {
  const Contract& contract = call.contract;
  const auto distance = [](const std::optional<Index>& n) { return n ? std::to_string(*n) : "unlimited"; };
  std::map<std::string, std::string> text = {
      {"layout", "BHLD"},
      {"scale", number_text(contract.scale)},
      {"causal", contract.causal ? causal_text(*contract.causal) : "none"},
      {"window_left", distance(contract.window_left)},
      {"window_right", distance(contract.window_right)},
      {"softcap", contract.softcap == 0 ? "none" : number_text(contract.softcap)},
      {"bias_order", contract.bias_before_scale ? "before-scale" : "after-scale"},
      {"head_map", contract.tiled_heads ? "tiled" : "grouped"},
      {"rope_start_query", std::to_string(contract.rope_start_query)},
      {"rope_start_key", std::to_string(contract.rope_start_key)},
      {"mode", contract.training ? "train" : "eval"},
      {"dropout", number_text(contract.dropout)},
      {"empty_rows", contract.empty_rows_zero ? "zero" : "error"},
      {"lse_base", contract.lse_base_2 ? "2" : "e"},
      {"computed_in", std::string(name_of(contract.computed_in))},
  };
  if (call.inputs.count("mask") > 0) text["mask_means"] = call.mask_is_additive ? "additive" : "allowed";
  if (contract.rope != Pairing::none) {
    text["rope"] = contract.rope == Pairing::half ? "half" : "neighbour";
    text["rope_base"] = number_text(contract.rope_base);
    text["rope_width"] = std::to_string(contract.rope_width);
  }
  if (contract.norms != QueryKeyNorms::none) {
    text["qk_norm"] = contract.norms == QueryKeyNorms::rms ? "rms" : "l2";
    text["qk_norm_eps"] = number_text(contract.norm_eps);
  }
  return text;
}

// Numbers that say which or how many are whole whatever attention computes in.
std::string type_of(const Call& call, std::string_view name) {
  const bool is_whole =
      name.ends_with("_lengths") || name.ends_with("_segments") || name.ends_with("_positions");
  if (is_whole || name == "partial_end") return "i64";
  const bool is_truth = name == "dropout_keep" || (name == "mask" && !call.mask_is_additive);
  return is_truth ? "bool" : std::string(name_of(call.contract.computed_in));
}

}  // namespace

Dump dump_of(const Call& call) {
  Dump dump;
  dump.settings = settings_of(call);
  if (call.inputs.count("w_query") > 0 || call.inputs.count("projection") > 0) {
    dump.settings["heads"] = std::to_string(call.H);
    dump.settings["kv_heads"] = std::to_string(call.Hk);
  }
  for (const auto& [name, numbers] : call.inputs) dump.add(name, numbers, type_of(call, name));
  return dump;
}

}  // namespace tapehead::check
