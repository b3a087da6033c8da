#pragma once
// Attention, forward and backward, as loops in double that share nothing with the library but the arrays;
// with the knobs of Wrong, and rounded as a plain implementation in a type rounds.

#include "tools/planted/wrong.h"

namespace tapehead::planted {

// z = t q.k, capped, plus bias; visible keys enter p = e^(s - lse); o = sum p v, and the gradients of
// sum(o upstream) + sum(lse upstream_lse) + sum(p upstream_weights).
Results attention(const Call& call, const Wrong& wrong = {}, const Rounding& rounding = {});

}  // namespace tapehead::planted
