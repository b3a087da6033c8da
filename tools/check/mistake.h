#pragma once
// The mistakes as data: one table from which reports, docs/mistakes.md and tests are made; and as hypotheses,
// which a family makes for a call.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tools/check/formula.h>

namespace tapehead::check {

// A row of the table. A mistake with variants has one row for each.
struct Mistake {
  std::string_view id;           // "scale-omitted"
  std::string_view variant;      // "" or what follows the slash: "no-delta"
  std::string_view family;       // "scale"
  std::string_view sentence;     // what was done, plain
  std::string_view formula;      // what was computed
  std::string_view exposed_by;   // what a dump must hold to show it
  std::string_view hidden_when;  // conditions under which it equals the right result or another mistake
  std::string_view look_alikes;  // ids, comma-separated
  std::string_view look_here;    // where in code it is usually made
};

std::span<const Mistake> mistakes();
const Mistake* find_mistake(std::string_view id, std::string_view variant = {});

// A mistake that may have been made in a call: what it changes of the right formula.
struct Hypothesis {
  const Mistake* mistake = nullptr;
  std::function<void(Formula&)> change;  // applied in turn, so that two can act together
  std::map<std::string, double>
      fitted{};                // numbers that were fitted to the candidate, as "scale", "expected"
  bool backward_only = false;  // leaves output, weights and lse right
  // Its number was fitted and is no name of its own: it gives way to a hypothesis that is not generic.
  bool generic = false;
};

// What a call can have gone wrong in, by family. They look at the candidate to fit numbers, starting from
// formula_of(call): it holds the mistake that was found already when a second one is looked for. They leave
// out what this call cannot show.
using Family = std::vector<Hypothesis> (*)(const Call& call);
std::span<const Family> families();

std::vector<Hypothesis> scale_mistakes(const Call& call);
std::vector<Hypothesis> mask_mistakes(const Call& call);
std::vector<Hypothesis> softmax_mistakes(const Call& call);
std::vector<Hypothesis> head_mistakes(const Call& call);
std::vector<Hypothesis> position_mistakes(const Call& call);
std::vector<Hypothesis> backward_mistakes(const Call& call);
std::vector<Hypothesis> numeric_mistakes(const Call& call);
std::vector<Hypothesis> layout_mistakes(const Call& call);
std::vector<Hypothesis> state_mistakes(const Call& call);

}  // namespace tapehead::check
