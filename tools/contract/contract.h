#pragma once
// Trying claims, each in a process of its own.

#include <optional>
#include <string>
#include <vector>

#include <tools/contract/claims.h>
#include <tools/contract/explain.h>

namespace tapehead::contract {

enum class Verdict {
  holds,
  fails,      // a number is further off than its bound
  crashes,    // a signal, or the end of the process
  hangs,      // the time limit
  refuses,    // the kernel reports a failure of its own
  not_tried,  // the subject does not support what the claim asks for
};
const char* name_of(Verdict verdict);
inline bool is_failure(Verdict verdict) { return verdict != Verdict::holds && verdict != Verdict::not_tried; }

// Of a claim in one type.
struct Result {
  Number number = Number::f64;
  Verdict verdict = Verdict::not_tried;
  double error = 0, bound = 0;       // of the worst number
  std::vector<std::string> tried{};  // parts
  std::string where{};               // of a failure: what was found; of not_tried: why
  std::string dump{};                // file of the failing call; empty when there is none
  std::optional<Explanation> explanation{};
};

struct Row {
  const Claim* claim;
  std::vector<Result> results;  // one a type
};

struct Table {
  std::string subject;
  std::vector<Row> rows;
};

struct Trials {
  std::string library{};         // empty: AttentionKernel says which of our own
  std::optional<Index> width{};  // of a library that has no other
  AttentionKernel kernel = AttentionKernel::composed;
  std::vector<const Claim*> claims{};
  std::vector<Number> numbers{};
  double seconds = 5;    // for each claim
  std::string folder{};  // where dumps of failing calls go
};

// Tries every claim in every type and has failing calls diagnosed. Throws FileError for a library that cannot
// be used.
Table try_claims(const Trials& trials);

}  // namespace tapehead::contract
