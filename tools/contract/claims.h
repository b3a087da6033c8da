#pragma once
// The claims that attention is held to, as data: each a sentence and a function that tries it.

#include <span>
#include <string_view>

#include <tools/contract/trial.h>

namespace tapehead::contract {

struct Claim {
  std::string_view id;        // "row-sums"
  std::string_view of;        // where it comes from: "derivation 1", "masks", "memory"
  std::string_view sentence;  // what holds
  void (*check)(Trial& trial);
};

// All of them, in the order in which they are tried.
std::span<const Claim> claims();

// Null when there is none.
const Claim* find_claim(std::string_view id);

// By file.
void explicit_formulas(Trial& trial);
void row_sums(Trial& trial);
void hand_trace(Trial& trial);
void scale(Trial& trial);
void unit_variance(Trial& trial);
void basis_changes(Trial& trial);
void permutations(Trial& trial);
void shifted_keys(Trial& trial);
void maximum_entropy(Trial& trial);
void row_constants(Trial& trial);
void large_scores(Trial& trial);
void linear_in_values(Trial& trial);

void differences(Trial& trial);
void shared_input(Trial& trial);
void linear_memory(Trial& trial);

void forbidden_keys(Trial& trial);
void prefixes(Trial& trial);
void first_row(Trial& trial);
void visible_keys(Trial& trial);
void hidden_not_finite(Trial& trial);
void empty_rows(Trial& trial);

void bias(Trial& trial);
void softcap(Trial& trial);
void sink(Trial& trial);
void log_sum_exp(Trial& trial);

void heads_apart(Trial& trial);
void grouped_heads(Trial& trial);
void cached_decoding(Trial& trial);

void key_order(Trial& trial);
void tile_edges(Trial& trial);
void repeatable(Trial& trial);

void stays_inside(Trial& trial);
void overwrites_all(Trial& trial);
void inputs_kept(Trial& trial);
void any_strides(Trial& trial);

}  // namespace tapehead::contract
