#include <tools/check/against.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

namespace tapehead::check {
namespace {

// In the order in which attention computes.
constexpr std::string_view inputs_in_order[] = {"x",
                                                "y",
                                                "w_query",
                                                "b_query",
                                                "w_key",
                                                "b_key",
                                                "w_value",
                                                "b_value",
                                                "w_out",
                                                "b_out",
                                                "projection",
                                                "query_unnormed",
                                                "key_unnormed",
                                                "query_gain",
                                                "key_gain",
                                                "query_positions",
                                                "key_positions",
                                                "query_unrotated",
                                                "key_unrotated",
                                                "query",
                                                "key",
                                                "value",
                                                "bias",
                                                "slopes",
                                                "mask",
                                                "key_lengths",
                                                "query_lengths",
                                                "query_segments",
                                                "key_segments",
                                                "sink",
                                                "dropout_keep",
                                                "upstream_weights",
                                                "upstream_lse",
                                                "upstream"};
constexpr std::string_view results_in_order[] = {"weights",   "lse",        "output",    "grad_value",
                                                 "grad_bias", "grad_sink",  "grad_mask", "grad_query",
                                                 "grad_key",  "grad_slopes"};

// What a table may hold that an earlier call left behind, and what of a call decides it.
struct Table {
  std::string_view what;
  std::vector<std::string_view> tensors;
  void (*take)(Contract& contract, const Contract& earlier);
};
const std::vector<Table>& tables() {
  static const std::vector<Table> list = {
      {"angles",
       {"query_positions", "key_positions"},
       [](Contract& contract, const Contract& earlier) {
         contract.rope_base = earlier.rope_base;
         contract.rope_width = earlier.rope_width;
         contract.rope_start_query = earlier.rope_start_query;
         contract.rope_start_key = earlier.rope_start_key;
       }},
      {"slopes", {"slopes"}, [](Contract&, const Contract&) {}},
      {"mask",
       {"mask", "key_lengths", "query_lengths", "query_segments", "key_segments"},
       [](Contract& contract, const Contract& earlier) {
         contract.causal = earlier.causal;
         contract.window_left = earlier.window_left;
         contract.window_right = earlier.window_right;
       }},
  };
  return list;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Where two arrays part; none when they are the same.
std::optional<Parting> parting_of(std::string_view name, const Array<double>& one, const Array<double>& other,
                                  double tolerance) {
  Parting parting;
  parting.tensor = name;
  if (one.shape() != other.shape()) {
    parting.relative = std::numeric_limits<double>::infinity();
    parting.sentence =
        fmt::format("{} is {} here and {} there", name, to_string(one.shape()), to_string(other.shape()));
    return parting;
  }
  double size = 0, most = 0;
  for (const double x : one.values()) size = std::isfinite(x) ? std::max(size, std::abs(x)) : size;
  std::optional<Index> first, first_far;
  for (Index i = 0; i < one.size(); ++i) {
    const double a = one.data()[i], b = other.data()[i];
    if (same(a, b)) continue;
    const double off = std::isfinite(a - b) ? std::abs(a - b) : std::numeric_limits<double>::infinity();
    most = std::max(most, off);
    if (!first) first = i;
    if (!first_far && off > tolerance * size) first_far = i;
  }
  if (!first) return std::nullopt;
  const Index at = first_far.value_or(*first);
  parting.place = position_of(one.shape(), at);
  parting.one = one.data()[at], parting.other = other.data()[at];
  parting.relative = most / std::max(size, std::numeric_limits<double>::min());
  parting.sentence =
      fmt::format("{} parts at {}: {} here and {} there, and by up to {:.3g} of its largest number", name,
                  position_text(one.shape(), at), parting.one, parting.other, parting.relative);
  return parting;
}

template <class Names>
std::optional<Parting> first_parting(const Names& names, const Tensors& one, const Tensors& other,
                                     double tolerance) {
  std::optional<Parting> within;
  for (const std::string_view name : names) {
    const auto a = one.find(name), b = other.find(name);
    if (a == one.end() || b == other.end()) continue;
    const std::optional<Parting> parting = parting_of(name, a->second, b->second, tolerance);
    if (parting && parting->relative > tolerance) return parting;
    if (parting && !within) within = parting;
  }
  return within;
}

const char* differing_setting(const Contract& a, const Contract& b) {
  if (a.scale != b.scale) return "scale";
  if (a.causal != b.causal) return "causal";
  if (a.window_left != b.window_left || a.window_right != b.window_right) return "the window";
  if (a.softcap != b.softcap) return "softcap";
  if (a.tiled_heads != b.tiled_heads) return "head_map";
  if (a.rope != b.rope || a.rope_base != b.rope_base || a.rope_width != b.rope_width) return "rope";
  if (a.rope_start_query != b.rope_start_query || a.rope_start_key != b.rope_start_key) return "rope_start";
  if (a.training != b.training || a.dropout != b.dropout) return "mode or dropout";
  return nullptr;
}

std::optional<Finding> stale_table(const Call& call, const Call& earlier) {
  for (const Table& table : tables()) {
    Call changed = call;
    table.take(changed.contract, earlier.contract);
    for (const std::string_view name : table.tensors) {
      const auto before = earlier.inputs.find(name);
      const auto now = changed.inputs.find(name);
      if (before == earlier.inputs.end() || now == changed.inputs.end()) continue;
      if (before->second.shape() == now->second.shape()) now->second = before->second;
    }
    if (diagnose(changed).verdict != Verdict::agrees) continue;
    Finding finding;
    finding.mistake = find_mistake("stale-table");
    finding.explains = 1;
    return finding;
  }
  return std::nullopt;
}

}  // namespace

Parting parting_of(const Call& one, const Call& other) {
  if (const char* setting = differing_setting(one.contract, other.contract)) {
    Parting parting;
    parting.kind = Parting::Kind::inputs_differ;
    parting.tensor = setting;
    parting.sentence = fmt::format("two calls: they differ in {}", setting);
    return parting;
  }
  if (std::optional<Parting> input = first_parting(inputs_in_order, one.inputs, other.inputs, 0)) {
    input->kind = Parting::Kind::inputs_differ;
    input->sentence = "two calls: " + input->sentence;
    return *input;
  }
  // Two sums in other orders differ by a few roundings.
  const double tolerance = 8 * std::max(2 * unit_roundoff(one.contract.computed_in),
                                        2 * unit_roundoff(other.contract.computed_in));
  std::optional<Parting> result = first_parting(results_in_order, one.candidate, other.candidate, tolerance);
  if (!result)
    return {Parting::Kind::equal, {}, {}, 0, 0, 0, "repeatable: what both hold is the same bit for bit"};
  const bool far = result->relative > tolerance;
  result->kind = far ? Parting::Kind::results_differ : Parting::Kind::within_rounding;
  result->sentence = (far ? "the same inputs, other results: " : "not the same bits, but within rounding: ") +
                     result->sentence;
  return *result;
}

Report check_against(const Dump& dump, const CheckSettings& settings, Report report) {
  CheckSettings alone = settings;
  alone.against.clear();
  const Dump beside = open_dump(settings.against, settings.names);
  std::vector<std::pair<std::string, std::string>> scratch;
  const Call one = make_call(dump, alone, scratch), other = make_call(beside, alone, scratch);
  const Parting parting = parting_of(one, other);
  Dump both = dump;
  const DumpTensor *const first = dump.find("output"), *const second = beside.find("output");
  const bool same_call = parting.kind != Parting::Kind::inputs_differ;
  if (same_call && first && second && first->shape == second->shape && !dump.find("output_second")) {
    both.tensors.push_back(*second);
    both.tensors.back().name = "output_second";
  }
  Report checked = check(both, alone);
  checked.renamed = std::move(report.renamed);
  checked.notes.push_back(fmt::format("against {}: {}", settings.against, parting.sentence));
  Diagnosis& diagnosis = checked.diagnosis;
  if (parting.kind == Parting::Kind::results_differ && diagnosis.verdict == Verdict::agrees) {
    diagnosis.verdict = Verdict::unexplained;
    diagnosis.next = parting.sentence + "; this dump agrees with the formula, the other does not repeat it";
  }
  if (!same_call && diagnosis.verdict != Verdict::agrees) {
    if (const std::optional<Finding> stale = stale_table(one, other)) {
      diagnosis.verdict = Verdict::explained;
      diagnosis.mistakes = {*stale};
      diagnosis.alternatives.clear();
      diagnosis.next.clear();
    }
  }
  return checked;
}

}  // namespace tapehead::check
