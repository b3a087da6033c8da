#pragma once
// The names of tensors: those of the format, and the usual other ones that mean the same.

#include <span>
#include <string>
#include <string_view>

namespace tapehead::check {

// Every name of the format that is not made from another one (grad_query is made from query), in the order of
// docs/dump-format.md.
std::span<const std::string_view> format_names();

bool is_format_name(std::string_view name);  // made ones included

// The name of the format for what a file calls `given`: "q" and "query_states" are query, "dq" and "q.grad"
// grad_query, "dout" upstream. Empty for a name that says nothing.
std::string name_of_format(std::string_view given);

// True for a name that PyTorch gives to the weight of a linear layer, which it keeps as (out, in).
bool is_linear_weight_name(std::string_view given);

}  // namespace tapehead::check
