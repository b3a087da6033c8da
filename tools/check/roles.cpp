#include <tools/check/roles.h>

#include <algorithm>
#include <iterator>

namespace tapehead::check {
namespace {

constexpr Role roles[] = {
    {"query", Form::query},
    {"key", Form::key},
    {"value", Form::value},
    {"query_unrotated", Form::query},
    {"key_unrotated", Form::key},
    {"query_unnormed", Form::query},
    {"key_unnormed", Form::key},
    {"query_after", Form::query},
    {"key_after", Form::key},
    {"value_after", Form::value},
    {"mask", Form::broadcast},
    {"bias", Form::broadcast},
    {"dropout_keep", Form::broadcast},
    {"sink", Form::heads},
    {"slopes", Form::heads},
    {"key_lengths", Form::samples},
    {"query_lengths", Form::samples},
    {"query_segments", Form::queries},
    {"key_segments", Form::keys},
    {"query_positions", Form::queries},
    {"key_positions", Form::keys},
    {"query_gain", Form::width},
    {"key_gain", Form::width},
    {"upstream", Form::output},
    {"upstream_weights", Form::scores},
    {"upstream_lse", Form::rows},
    {"partial_output", Form::partial_output},
    {"partial_lse", Form::partial_rows},
    {"partial_end", Form::partial_ends},
    {"output_second", Form::output},
    {"x", Form::other},
    {"y", Form::other},
    {"w_query", Form::other},
    {"w_key", Form::other},
    {"w_value", Form::other},
    {"w_out", Form::other},
    {"b_query", Form::other},
    {"b_key", Form::other},
    {"b_value", Form::other},
    {"b_out", Form::other},
    {"projection", Form::other},
    {"output", Form::output, true},
    {"weights", Form::scores, true},
    {"lse", Form::rows, true},
    {"grad_query", Form::query, true},
    {"grad_key", Form::key, true},
    {"grad_value", Form::value, true},
    {"grad_bias", Form::broadcast, true},
    {"grad_mask", Form::broadcast, true},
    {"grad_sink", Form::heads, true},
    {"grad_slopes", Form::heads, true},
    {"grad_query_gain", Form::width, true},
    {"grad_key_gain", Form::width, true},
    {"grad_x", Form::other, true},
    {"grad_y", Form::other, true},
    {"grad_w_query", Form::other, true},
    {"grad_w_key", Form::other, true},
    {"grad_w_value", Form::other, true},
    {"grad_w_out", Form::other, true},
    {"grad_b_query", Form::other, true},
    {"grad_b_key", Form::other, true},
    {"grad_b_value", Form::other, true},
    {"grad_b_out", Form::other, true},
    {"grad_projection", Form::other, true},
};

constexpr std::string_view taken_apart[] = {"key_padding_mask", "cu_seqlens_q", "cu_seqlens_k",
                                            "in_proj_weight",   "in_proj_bias", "grad_in_proj_weight",
                                            "grad_in_proj_bias"};

}  // namespace

const Role* role_of(std::string_view name) {
  const auto* found = std::ranges::find(roles, name, &Role::name);
  return found == std::end(roles) ? nullptr : found;
}

bool is_taken_apart(std::string_view name) {
  return std::ranges::find(taken_apart, name) != std::end(taken_apart);
}

}  // namespace tapehead::check
