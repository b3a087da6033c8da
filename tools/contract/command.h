#pragma once
// `tapehead contract`: what it is asked for, how that is said, and its exit code.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tapehead::contract {

struct ContractSettings {
  std::string library{};                // empty: the built-in attention, composed and fused
  std::vector<std::string> claims{};    // ids; empty: all
  std::string type{};                   // "f64" or "f32"; empty: both
  std::optional<std::int64_t> width{};  // of a library that has no other
  double time_limit = 5;                // seconds for each claim
  std::string out{};                    // folder for dumps of failing calls; empty: they are not kept
  bool list = false;                    // only say what the claims are
  bool json = false;
};

void describe_contract(CLI::App& command, ContractSettings& settings);

// 0: every claim that was tried holds; 1: some do not. Throws FileError for a library that cannot be used or
// supports nothing, and DomainError for a claim that does not exist.
int contract(const ContractSettings& settings);

}  // namespace tapehead::contract
