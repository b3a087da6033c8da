#include <tools/check/packing.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <tools/check/layout.h>

namespace tapehead::check {
namespace {

using Starts = std::vector<Index>;

std::vector<Index> whole_numbers(const Dump& dump, const DumpTensor& tensor) {
  std::vector<Index> numbers;
  const Array<double> values = tensor.read();
  for (const double x : values.values()) {
    if (!is_whole(x)) fail_tensor(dump, tensor, "whole numbers", number_text(x));
    numbers.push_back(static_cast<Index>(x));
  }
  return numbers;
}

// Lengths as where sequences begin, and the end.
void add_up(const Dump& dump, const DumpTensor& tensor, Index total, Starts& numbers) {
  Index sum = 0;
  for (Index& x : numbers) {
    if (x < 0 || x > total) {
      fail_tensor(dump, tensor, fmt::format("lengths from 0 to {}", total), std::to_string(x));
    }
    x = std::exchange(sum, sum + x);
  }
  numbers.push_back(sum);
}

// Empty when neither tensor is there.
Starts starts_of(const Dump& dump, std::string_view cumulative, std::string_view lengths, Index total) {
  const DumpTensor* sums = dump.find(cumulative);
  const DumpTensor* tensor = sums ? sums : dump.find(lengths);
  if (!tensor) return {};
  Starts starts = whole_numbers(dump, *tensor);
  if (!sums) add_up(dump, *tensor, total, starts);
  const bool rises = starts.size() > 1 && starts.front() == 0 && std::ranges::is_sorted(starts);
  if (!rises || starts.back() != total) {
    fail_tensor(dump, *tensor, fmt::format("sequences that fill the {} rows, in order", total),
                starts.empty() ? "empty" : fmt::format("{} ... {}", starts.front(), starts.back()));
  }
  return starts;
}

Index length(const Starts& starts, std::size_t sequence) { return starts[sequence + 1] - starts[sequence]; }

Index longest(const Starts& starts) {
  Index most = 0;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) most = std::max(most, length(starts, i));
  return most;
}

Array<double> lengths_of(const Starts& starts) {
  std::vector<double> lengths;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    lengths.push_back(static_cast<double>(length(starts, i)));
  return Array<double>::from(lengths);
}

// (1, H, T, D) as (N, H, longest, D).
Array<double> by_sequences(const Array<double>& x, const Starts& starts, double fill) {
  const Array<double> rows = heads_first(x, Layout::BLHD, 1).reshape({x.dim(2), x.dim(1), x.dim(3)});
  return heads_first(unpacked(rows, starts, fill), Layout::BLHD, 1);
}

Array<double> by_sequences(const Array<double>& x, Form form, const Packing& packing) {
  const bool of_keys = form == Form::key || form == Form::value || form == Form::keys;
  const Starts& starts = of_keys ? packing.keys : packing.queries;
  if (form == Form::queries || form == Form::keys) return unpacked(x.reshape({-1}), starts, 0);
  if (form != Form::rows) return by_sequences(x, starts, 0);
  const Array<double> rows = x.reshape({1, x.dim(1), x.dim(2), 1});
  return by_sequences(rows, starts, -std::numeric_limits<double>::infinity())
      .reshape({-1, x.dim(1), longest(starts)});
}

bool can_be_cut(Form form) {
  constexpr Form forms[] = {Form::query, Form::key,     Form::value, Form::output,
                            Form::rows,  Form::queries, Form::keys};
  return std::ranges::find(forms, form) != std::end(forms);
}

}  // namespace

Packing packing_of(const Shapes& shapes) {
  const Dump& dump = shapes.dump();
  const Sizes& sizes = shapes.sizes();
  const auto fail = [&](const std::string& what) { throw Unusable(dump.origin + ": " + what); };
  Packing packing{starts_of(dump, "cu_seqlens_q", "query_lengths", sizes.L),
                  starts_of(dump, "cu_seqlens_k", "key_lengths", sizes.S)};
  if (packing.queries.empty()) fail("packed queries: expected cu_seqlens_q or query_lengths beside them");
  if (packing.keys.empty() && sizes.S == sizes.L) packing.keys = packing.queries;
  if (packing.keys.empty()) fail("packed keys: expected cu_seqlens_k or key_lengths beside them");
  if (packing.keys.size() != packing.queries.size()) {
    fail(fmt::format("packed keys: expected {} sequences, as there are of queries, and are {}",
                     packing.queries.size() - 1, packing.keys.size() - 1));
  }
  return packing;
}

Array<double> document_numbers(const std::vector<Index>& starts) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    numbers.insert(numbers.end(), static_cast<std::size_t>(length(starts, i)), static_cast<double>(i + 1));
  }
  return Array<double>::from(numbers, {1, static_cast<Index>(numbers.size())});
}

Call call_by_sequences(Call call, const Packing& packing, const Settings& said, const Dump& dump) {
  for (const char* name : {"query_segments", "key_segments"}) call.inputs.erase(name);
  for (Tensors* tensors : {&call.inputs, &call.candidate}) {
    for (auto& [name, numbers] : *tensors) {
      const Form form = role_of(name)->form;
      if (form == Form::heads || form == Form::width) continue;
      if (!can_be_cut(form)) {
        throw Unusable(
            fmt::format("{}: tensor {}: expected none beside packed sequences of unequal queries and "
                        "keys that are causal or windowed",
                        dump.origin, name));
      }
      numbers = by_sequences(numbers, form, packing);
    }
  }
  call.inputs["query_lengths"] = lengths_of(packing.queries);
  call.inputs["key_lengths"] = lengths_of(packing.keys);
  call.B = static_cast<Index>(packing.queries.size()) - 1;
  call.L = longest(packing.queries);
  call.S = longest(packing.keys);
  if (!said.causal || !*said.causal) return call;
  const CausalSetting& causal = **said.causal;
  call.contract.causal.emplace();
  for (std::size_t i = 0; i + 1 < packing.queries.size(); ++i) {
    const Index bottom_right = length(packing.keys, i) - length(packing.queries, i);
    call.contract.causal->push_back(causal.bottom_right ? bottom_right : causal.offset);
  }
  return call;
}

}  // namespace tapehead::check
