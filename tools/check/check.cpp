#include <tools/check/check.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include <tools/check/against.h>
#include <tools/check/infer.h>
#include <tools/check/sample.h>

namespace tapehead::check {
namespace {

using Text = std::map<std::string, std::string>;

// Settings of the dump, with those that were said ahead of them.
Settings merged_settings(const Dump& dump, const Text& said) {
  read_settings(said, dump.origin);  // a complaint about these alone comes first
  Text all = dump.settings;
  for (const auto& [key, value] : said) {
    if (key == "mask_means") all.erase("mask_true_means");
    if (key == "window_left") all.erase("window");
    all[key] = value;
  }
  return read_settings(all, dump.origin);
}

// How far a result is from the right formula's, relative to its size; what is not finite is passed over.
double misfit(const Call& call) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Work work = evaluate(call, right_formula());
  for (const char* name : {"output", "weights", "lse", "grad_query", "grad_key", "grad_value"}) {
    const auto got = call.candidate.find(name);
    const auto right = work.results.find(name);
    if (got == call.candidate.end() || right == work.results.end()) continue;
    if (got->second.shape() != right->second.shape()) return infinity;
    double most = 0;
    for (Index i = 0; i < got->second.size(); ++i) {
      const double off = std::abs(got->second.data()[i] - right->second.data()[i]);
      if (std::isfinite(off)) most = std::max(most, off);
    }
    return most / std::max(largest_finite(right->second), std::numeric_limits<double>::min());
  }
  return 0;
}

// Far above the rounding of a type, far below what another layout or mask makes.
double rough_tolerance(NumberType type) {
  switch (type) {
    case NumberType::f64:
      return 1e-8;
    case NumberType::f32:
      return 1e-3;
    case NumberType::f16:
      return 0.02;
    case NumberType::bf16:
      return 0.1;
  }
  return 0;
}

// Three rows of a sample tell layouts and causal rules apart; what has no rows is evaluated as it is.
bool may_agree(const Call& call) {
  const double tolerance = rough_tolerance(call.contract.computed_in);
  if (call.B * call.H * call.L * call.S <= many_scores) return misfit(call) < tolerance;
  if (!has_parts(call)) return true;
  const std::set<Index> rows = {0, call.L / 2, call.L - 1};
  return misfit(part_of(call, 0, std::vector<Index>(rows.begin(), rows.end()))) < tolerance;
}

struct Outcome {
  Call call;
  Assumed assumed;
  Diagnosis diagnosis;
};

// Better first: agrees, explained, ambiguous, partly, unexplained.
int rank_of(Verdict verdict) {
  constexpr Verdict order[] = {Verdict::agrees, Verdict::explained, Verdict::ambiguous, Verdict::partly,
                               Verdict::unexplained};
  return static_cast<int>(std::ranges::find(order, verdict) - std::begin(order));
}

std::string layout_note(const std::vector<Layout>& possible, Layout chosen, bool fits) {
  std::string names;
  for (const Layout layout : possible) names.append(names.empty() ? "" : " and ").append(name_of(layout));
  return fmt::format("layout: the shapes allow {}; the numbers fit {}", names,
                     fits ? name_of(chosen) : std::string_view("none of them wholly"));
}

// The layouts that the numbers may fit; all that are possible when they fit none.
std::vector<Layout> layouts_to_try(const Dump& dump, const Settings& settings) {
  std::vector<Layout> possible = possible_layouts(dump, settings);
  if (possible.size() == 1) return possible;
  std::vector<Layout> fitting;
  for (const Layout layout : possible) {
    Assumed scratch;
    if (may_agree(call_in_layout(dump, settings, layout, scratch))) fitting.push_back(layout);
  }
  if (fitting.empty()) return possible;
  return fitting;
}

Outcome outcome_in(const Dump& dump, const Settings& settings, Layout layout) {
  Outcome outcome;
  outcome.call = call_in_layout(dump, settings, layout, outcome.assumed);
  outcome.diagnosis = diagnose(outcome.call);
  return outcome;
}

void replace_assumed(Assumed& assumed, const std::string& setting, const std::string& value) {
  for (auto& [key, text] : assumed) {
    if (key == setting) text = value;
  }
}

// A rule that was not said, where the results agree with it and not without.
bool try_setting(const Dump& dump, Settings settings, Layout layout, const std::string& setting,
                 const std::string& value, Outcome& outcome) {
  const Settings more = read_settings({{setting, value}}, dump.origin);
  if (more.causal) settings.causal = more.causal;
  if (more.lse_base_2) settings.lse_base_2 = more.lse_base_2;
  Outcome other;
  other.call = call_in_layout(dump, settings, layout, other.assumed);
  if (!may_agree(other.call)) return false;
  other.diagnosis = diagnose(other.call);
  if (other.diagnosis.verdict != Verdict::agrees) return false;
  other.assumed = outcome.assumed;
  replace_assumed(other.assumed, setting, value);
  outcome = std::move(other);
  return true;
}

void try_unsaid(const Dump& dump, const Settings& settings, Layout layout, Outcome& outcome) {
  const bool is_open = !settings.causal && !settings.window_left && !settings.window_right;
  if (is_open && outcome.call.L > 1) {
    if (try_setting(dump, settings, layout, "causal", "top-left", outcome)) return;
    if (outcome.call.L != outcome.call.S &&
        try_setting(dump, settings, layout, "causal", "bottom-right", outcome)) {
      return;
    }
  }
  if (!settings.lse_base_2 && outcome.call.candidate.count("lse") > 0) {
    try_setting(dump, settings, layout, "lse_base", "2", outcome);
  }
}

std::vector<std::pair<std::string, std::string>> renamed_tensors(const Dump& dump) {
  std::vector<std::pair<std::string, std::string>> renamed;
  for (const DumpTensor& tensor : dump.tensors) {
    if (!tensor.name.empty() && tensor.name != tensor.given_name) {
      renamed.emplace_back(tensor.name, tensor.given_name);
    }
  }
  return renamed;
}

bool fits(const Diagnosis& diagnosis) {
  return diagnosis.verdict == Verdict::agrees || diagnosis.verdict == Verdict::explained;
}

Outcome best_outcome(const Dump& dump, const Settings& settings, Report& report) {
  const std::vector<Layout> layouts = layouts_to_try(dump, settings);
  Layout chosen = layouts.front();
  Outcome best = outcome_in(dump, settings, chosen);
  if (best.diagnosis.verdict != Verdict::agrees) try_unsaid(dump, settings, chosen, best);
  for (std::size_t i = 1; i < layouts.size() && best.diagnosis.verdict != Verdict::agrees; ++i) {
    Outcome other = outcome_in(dump, settings, layouts[i]);
    if (other.diagnosis.verdict != Verdict::agrees) try_unsaid(dump, settings, layouts[i], other);
    if (rank_of(other.diagnosis.verdict) >= rank_of(best.diagnosis.verdict)) continue;
    best = std::move(other);
    chosen = layouts[i];
  }
  if (const std::vector<Layout> possible = possible_layouts(dump, settings); possible.size() > 1) {
    report.notes.push_back(layout_note(possible, chosen, layouts.size() == 1 || fits(best.diagnosis)));
  }
  return best;
}

}  // namespace

Call make_call(const Dump& dump, const CheckSettings& settings, Assumed& assumed) {
  const Settings said = merged_settings(dump, settings.settings);
  return call_in_layout(dump, said, layouts_to_try(dump, said).front(), assumed);
}

Report check(const Dump& dump, const CheckSettings& settings) {
  const Settings said = merged_settings(dump, settings.settings);
  Report report;
  report.file = dump.origin;
  report.renamed = renamed_tensors(dump);
  report.unused = unused_tensors(dump);
  if (!settings.against.empty()) return check_against(dump, settings, std::move(report));
  Outcome best = best_outcome(dump, said, report);
  report.assumed = std::move(best.assumed);
  report.diagnosis = std::move(best.diagnosis);
  return report;
}

Dump separating_dump(const Dump& dump, const CheckSettings& settings, const Report& report) {
  Assumed scratch;
  const Call call = make_call(dump, settings, scratch);
  return dump_of(separating_probe(call, report.diagnosis.alternatives));
}

}  // namespace tapehead::check
