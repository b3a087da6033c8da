#include <tools/check/tensor_names.h>

#include <algorithm>
#include <cctype>

namespace tapehead::check {
namespace {

constexpr std::string_view names[] = {
    "query",
    "key",
    "value",
    "query_unrotated",
    "key_unrotated",
    "query_unnormed",
    "key_unnormed",
    "mask",
    "bias",
    "sink",
    "slopes",
    "key_lengths",
    "query_lengths",
    "query_segments",
    "key_segments",
    "dropout_keep",
    "output",
    "weights",
    "lse",
    "upstream",
    "upstream_weights",
    "upstream_lse",
    "x",
    "y",
    "w_query",
    "w_key",
    "w_value",
    "w_out",
    "b_query",
    "b_key",
    "b_value",
    "b_out",
    "query_gain",
    "key_gain",
    "query_positions",
    "key_positions",
    "partial_output",
    "partial_lse",
    "partial_end",
    "output_second",
    "projection",
    "key_padding_mask",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "in_proj_weight",
    "in_proj_bias",
};

constexpr std::string_view with_gradient[] = {
    "query",    "key",     "value", "bias",       "mask",           "sink",         "slopes", "query_gain",
    "key_gain", "x",       "y",     "w_query",    "w_key",          "w_value",      "w_out",  "b_query",
    "b_key",    "b_value", "b_out", "projection", "in_proj_weight", "in_proj_bias",
};

struct Alias {
  std::string_view given, name;
};

constexpr Alias aliases[] = {
    {"q", "query"},
    {"queries", "query"},
    {"query_states", "query"},
    {"query_layer", "query"},
    {"k", "key"},
    {"keys", "key"},
    {"key_states", "key"},
    {"key_layer", "key"},
    {"v", "value"},
    {"values", "value"},
    {"value_states", "value"},
    {"value_layer", "value"},
    {"out", "output"},
    {"o", "output"},
    {"outputs", "output"},
    {"attn_out", "output"},
    {"attn_output", "output"},
    {"attention_output", "output"},
    {"ctx", "output"},
    {"context", "output"},
    {"context_layer", "output"},
    {"result", "output"},
    {"encoded", "output"},
    {"p", "weights"},
    {"probs", "weights"},
    {"attn", "weights"},
    {"attn_probs", "weights"},
    {"attn_weights", "weights"},
    {"attention_probs", "weights"},
    {"attention_weights", "weights"},
    {"softmax_lse", "lse"},
    {"logsumexp", "lse"},
    {"log_sum_exp", "lse"},
    {"softmax_logsumexp", "lse"},
    {"attn_mask", "mask"},
    {"attention_mask", "mask"},
    {"src_mask", "mask"},
    {"attn_bias", "bias"},
    {"attention_bias", "bias"},
    {"position_bias", "bias"},
    {"rel_pos_bias", "bias"},
    {"sinks", "sink"},
    {"attn_sink", "sink"},
    {"attention_sink", "sink"},
    {"attention_sinks", "sink"},
    {"s_aux", "sink"},
    {"alibi_slopes", "slopes"},
    {"key_lens", "key_lengths"},
    {"k_lengths", "key_lengths"},
    {"kv_lengths", "key_lengths"},
    {"seqlens_k", "key_lengths"},
    {"seqused_k", "key_lengths"},
    {"cache_seqlens", "key_lengths"},
    {"query_lens", "query_lengths"},
    {"q_lengths", "query_lengths"},
    {"seqlens_q", "query_lengths"},
    {"seqlens", "query_lengths"},
    {"seq_lens", "query_lengths"},
    {"lengths", "query_lengths"},
    {"segment_ids", "query_segments"},
    {"document_ids", "query_segments"},
    {"q_segments", "query_segments"},
    {"q_segment_ids", "query_segments"},
    {"k_segments", "key_segments"},
    {"kv_segment_ids", "key_segments"},
    {"dropout_mask", "dropout_keep"},
    {"keep_mask", "dropout_keep"},
    {"cotangent", "upstream"},
    {"q_gain", "query_gain"},
    {"q_norm.weight", "query_gain"},
    {"k_gain", "key_gain"},
    {"k_norm.weight", "key_gain"},
    {"position_ids", "query_positions"},
    {"positions", "query_positions"},
    {"q_positions", "query_positions"},
    {"k_positions", "key_positions"},
    {"q_unrotated", "query_unrotated"},
    {"q_pre_rope", "query_unrotated"},
    {"k_unrotated", "key_unrotated"},
    {"k_pre_rope", "key_unrotated"},
    {"q_unnormed", "query_unnormed"},
    {"q_pre_norm", "query_unnormed"},
    {"k_unnormed", "key_unnormed"},
    {"k_pre_norm", "key_unnormed"},
    {"hidden_states", "x"},
    {"encoder_hidden_states", "y"},
    {"memory", "y"},
    {"wq", "w_query"},
    {"w_q", "w_query"},
    {"q_proj.weight", "w_query"},
    {"q_proj_weight", "w_query"},
    {"wk", "w_key"},
    {"w_k", "w_key"},
    {"k_proj.weight", "w_key"},
    {"k_proj_weight", "w_key"},
    {"wv", "w_value"},
    {"w_v", "w_value"},
    {"v_proj.weight", "w_value"},
    {"v_proj_weight", "w_value"},
    {"wo", "w_out"},
    {"w_o", "w_out"},
    {"o_proj.weight", "w_out"},
    {"out_proj.weight", "w_out"},
    {"bq", "b_query"},
    {"b_q", "b_query"},
    {"q_proj.bias", "b_query"},
    {"bk", "b_key"},
    {"b_k", "b_key"},
    {"k_proj.bias", "b_key"},
    {"bv", "b_value"},
    {"b_v", "b_value"},
    {"v_proj.bias", "b_value"},
    {"bo", "b_out"},
    {"b_o", "b_out"},
    {"o_proj.bias", "b_out"},
    {"out_proj.bias", "b_out"},
    {"qkv", "projection"},
    {"mixed_qkv", "projection"},
    {"fused_qkv", "projection"},
    {"padding_mask", "key_padding_mask"},
    {"cu_seqlens", "cu_seqlens_q"},
    {"q_cu_seqlens", "cu_seqlens_q"},
    {"cu_seqlens_kv", "cu_seqlens_k"},
    {"k_cu_seqlens", "cu_seqlens_k"},
    {"out_second", "output_second"},
    {"out2", "output_second"},
};

bool is_one_of(std::span<const std::string_view> list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::string_view plain_name(std::string_view given) {
  for (const std::string_view prefix : {"param.", "self_attn.", "attn."}) take_prefix(given, prefix);
  if (is_one_of(names, given)) return given;
  const auto* alias = std::ranges::find(aliases, given, &Alias::given);
  return alias == std::end(aliases) ? std::string_view() : alias->name;
}

// Of what `given` is the gradient in its spelling; empty when it is none.
std::string_view differentiated(std::string_view given) {
  std::string_view rest = given;
  for (const std::string_view prefix : {"grad_", "grad.", "d_"}) {
    if (take_prefix(rest, prefix)) return rest;
  }
  for (const std::string_view suffix : {"_grad", ".grad"}) {
    if (take_suffix(rest, suffix)) return rest;
  }
  return take_prefix(rest, "d") ? rest : std::string_view();
}

std::string gradient_name(std::string_view of) {
  if (of == "output") return "upstream";
  if (of == "query_unrotated" || of == "query_unnormed") return "grad_query";
  if (of == "key_unrotated" || of == "key_unnormed") return "grad_key";
  return is_one_of(with_gradient, of) ? "grad_" + std::string(of) : "";
}

}  // namespace

std::span<const std::string_view> format_names() { return names; }

bool is_format_name(std::string_view name) {
  if (is_one_of(names, name)) return true;
  if (take_prefix(name, "grad_")) return is_one_of(with_gradient, name);
  return take_suffix(name, "_after") && (name == "query" || name == "key" || name == "value");
}

std::string name_of_format(std::string_view given) {
  if (is_format_name(given)) return std::string(given);
  const std::string small = lower(given);
  if (const std::string_view name = plain_name(small); !name.empty()) return std::string(name);
  if (const std::string_view of = differentiated(small); !of.empty()) return gradient_name(plain_name(of));
  std::string_view rest = small;
  if (!take_suffix(rest, "_after")) return {};
  std::string after = std::string(plain_name(rest)).append("_after");
  return is_format_name(after) ? after : std::string();
}

bool is_linear_weight_name(std::string_view given) {
  return given.ends_with("proj.weight") || given.ends_with("proj_weight");
}

}  // namespace tapehead::check
