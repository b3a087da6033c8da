#pragma once
// Calls of attention with random numbers, for tests of the diagnosis.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <tapehead/core/random.h>
#include <tools/check/formula.h>

namespace tapehead::check {

struct CallSize {
  Index B = 2, H = 6, Hk = 2, L = 3, S = 7, D = 8, E = 5;
};

inline Array<double> normal(Generator& random, const Shape& shape, double size = 1) {
  Array<double> x = Array<double>::uninitialized(shape);
  for (double& v : x.mutable_values()) v = size * random.normal();
  return x;
}

// Each 0 or 1.
inline Array<double> coins(Generator& random, const Shape& shape, double chance = 0.7) {
  Array<double> x = Array<double>::uninitialized(shape);
  for (double& v : x.mutable_values()) v = random.uniform() < chance ? 1 : 0;
  return x;
}

inline Call call_of(const CallSize& n) {
  Call call;
  call.B = n.B, call.H = n.H, call.Hk = n.Hk, call.L = n.L, call.S = n.S, call.D = n.D, call.E = n.E;
  return call;
}

// query, key, value and an upstream gradient; no candidate.
inline Call random_call(Generator& random, const CallSize& n = {}, double size = 1) {
  Call call = call_of(n);
  call.contract.scale = 1 / std::sqrt(static_cast<double>(n.D));
  call.inputs["query"] = normal(random, {n.B, n.H, n.L, n.D}, size);
  call.inputs["key"] = normal(random, {n.B, n.Hk, n.S, n.D}, size);
  call.inputs["value"] = normal(random, {n.B, n.Hk, n.S, n.E}, size);
  call.inputs["upstream"] = normal(random, {n.B, n.H, n.L, n.E});
  return call;
}

}  // namespace tapehead::check
