#include <tools/contract/claims.h>

namespace tapehead::contract {
namespace {

constexpr Claim all[] = {
    {"formulas", "derivation 1", "output and gradients are those of the explicit formulas",
     explicit_formulas},
    {"row-sums", "derivation 1", "weights are at least 0 and those of a row sum to 1", row_sums},
    {"differences", "derivation 2", "gradients are the slopes that differences of outputs have", differences},
    {"shared-input", "derivation 3", "of one X, the gradients by query, key and value sum to its slope",
     shared_input},
    {"hand-trace", "derivation 4", "a case computed by hand comes out as on paper", hand_trace},
    {"forbidden-keys", "derivation 5", "what a mask forbids changes no bit and gets gradient 0",
     forbidden_keys},
    {"scale", "derivation 6", "the log-ratio of two weights is scale times the difference of the products",
     scale},
    {"variance", "derivation 6", "scores of independent unit queries and keys have variance 1",
     unit_variance},
    {"prefixes", "derivation 7", "under a causal mask the future changes no bit and gets gradient 0",
     prefixes},
    {"basis", "derivation 8", "a change of basis that the product undoes changes nothing", basis_changes},
    {"permutation", "derivation 8", "rows follow their queries, and keys may come in any order",
     permutations},
    {"shifted-keys", "derivation 8", "with orthogonal keys shifted by one, query i finds key i + 1",
     shifted_keys},
    {"entropy", "derivation 9", "weights maximise expected score plus entropy", maximum_entropy},
    {"row-constant", "derivation 9", "a constant added to a row of scores changes nothing", row_constants},
    {"large-scores", "derivation 9", "scores of 16,000 that are nearly tied stay finite and right",
     large_scores},
    {"linear-memory", "derivation 10", "one row of 4,096 scores takes no memory of its square",
     linear_memory},
    {"first-row", "derivation 15", "under a causal mask row 0 is the first value and tells its query nothing",
     first_row},
    {"linear-values", "softmax", "the output is linear in the values", linear_in_values},
    {"key-order", "softmax", "rising, falling and mixed scores give the same", key_order},
    {"log-sum-exp", "softmax", "log-sum-exp is that of the scores, and joins parts of the keys", log_sum_exp},
    {"visible-keys", "masks", "each row sees the keys that its masks allow, and no others", visible_keys},
    {"hidden-nan", "masks", "a key that no row sees may hold NaN", hidden_not_finite},
    {"empty-rows", "masks", "a row without keys is 0 and gives no gradient", empty_rows},
    {"bias", "masks", "a bias is added to the scaled scores", bias},
    {"softcap", "masks", "scores are capped before they are masked", softcap},
    {"sink", "masks", "a sink takes weight exp(sink) and has no value", sink},
    {"heads-apart", "heads", "each head of each sample is computed for itself", heads_apart},
    {"grouped-heads", "heads", "neighbouring query heads share a key head, as if it were repeated",
     grouped_heads},
    {"decoding", "caches", "token by token, or in blocks, gives what the whole sequence gives",
     cached_decoding},
    {"tile-edges", "sizes", "sizes beside those of usual tiles, and primes, are right", tile_edges},
    {"repeatable", "memory", "the same call gives the same bits, whatever came between", repeatable},
    {"inside", "memory", "nothing beside the arrays is read or written", stays_inside},
    {"overwrites", "memory", "every result is written, whatever was there before", overwrites_all},
    {"inputs-kept", "memory", "inputs are as they were", inputs_kept},
    {"strides", "memory", "other strides give the same, and gaps stay as they are", any_strides},
};

}  // namespace

std::span<const Claim> claims() { return all; }

const Claim* find_claim(std::string_view id) {
  for (const Claim& claim : all) {
    if (claim.id == id) return &claim;
  }
  return nullptr;
}

}  // namespace tapehead::contract
