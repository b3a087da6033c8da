#pragma once
// From a call with a candidate's results to a verdict.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <tools/check/mistake.h>

namespace tapehead::check {

enum class Verdict { agrees, explained, partly, unexplained, ambiguous };

// How far a tensor of the candidate is from a formula's.
struct TensorError {
  std::string name;
  bool ok = false;
  double max_abs = 0, relative = 0;  // relative to the largest magnitude of the reference
  double plain_relative = 0;         // of a plain implementation in the candidate's type
  std::vector<Index> worst;          // where max_abs is
  double got = 0, expected = 0;      // there
  std::vector<Index> first_bad;      // first batch, head, row, element past the tolerance; empty when ok
};

struct Finding {
  const Mistake* mistake = nullptr;
  std::map<std::string, double> fitted{};
  double explains = 0;  // share of the norm of the residual that it takes away
};

struct Diagnosis {
  Verdict verdict = Verdict::unexplained;
  std::vector<Finding> mistakes{};                   // act together
  std::vector<std::vector<Finding>> alternatives{};  // sets that fit equally well
  std::string separate{};                            // the smallest change of input that would separate them
  std::vector<std::string> equivalent{};             // forms equal on paper that were seen
  std::vector<TensorError> tensors{};
  std::string next{};  // what to dump to decide
};

// Every step rounded, and float accumulation with only the weights rounded: the errors of two plain
// implementations in the candidate's type, by tensor; the larger counts.
std::map<std::string, double> plain_errors(const Call& call, const Tensors& reference);

Diagnosis diagnose(const Call& call);

// The smallest call that tells these apart, as inputs without results; for --probe.
Call separating_probe(const Call& call, const std::vector<std::vector<Finding>>& alternatives);

}  // namespace tapehead::check
