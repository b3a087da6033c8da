#pragma once
// Two dumps of the same call: where they part, and whether one was computed with what belongs to the other.

#include <string>
#include <vector>

#include <tools/check/check.h>

namespace tapehead::check {

// Where two calls part first, in the order in which attention computes.
struct Parting {
  enum class Kind { equal, within_rounding, results_differ, inputs_differ } kind = Kind::equal;
  std::string tensor{};        // the first that differs; empty when none does
  std::vector<Index> place{};  // its first element that differs, or differs by more than rounding
  double one = 0, other = 0;   // there
  double relative = 0;         // the largest difference, relative to the tensor's largest number
  std::string sentence{};
};

Parting parting_of(const Call& one, const Call& other);

// The report of a dump with the one at settings.against beside it. With the same inputs, results must be the
// same too, and its output is a second one of the call (dropout left on shows so). With other parameters
// (angles, slopes, mask), a dump that fits those of the other was computed with a stale table. Throws as
// check.
Report check_against(const Dump& dump, const CheckSettings& settings, Report report);

}  // namespace tapehead::check
