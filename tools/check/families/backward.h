#pragma once
// What the files about wrong gradients share.

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <tools/check/families/hypotheses.h>

namespace tapehead::check {

inline void add(Hypotheses& to, const char* id, const char* variant, Change change,
                std::map<std::string, double> fitted = {}) {
  to.push_back(backward_hypothesis(id, variant, std::move(change), std::move(fitted)));
}

inline void fill(Numbers& x, double number) { std::fill(x.at.begin(), x.at.end(), number); }

// Masks and dropout that the backward pass takes otherwise than the forward one.
void add_masks(const Call& call, Hypotheses& to);
void add_dropout(const Call& call, Hypotheses& to);

// Terms of a sum that are lost, counted again or not summed: the paths to x, what is repeated or broadcast,
// and one factor on all gradients. `right` is the right formula's.
void add_sums(const Call& call, const Work& right, Hypotheses& to);

}  // namespace tapehead::check
