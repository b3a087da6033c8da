#pragma once
// gradient_paths(): the gradient of a shared value, taken apart by the ways in which it came.

#include <string>
#include <vector>

#include <tapehead/core/gradient.h>
#include <tapehead/core/record.h>

namespace tapehead {

// One way from y back to x. A path is named by the first port that the signal meets after leaving x; what
// meets no port on its way is "direct", one entry for each op and argument that consumes x.
template <std::floating_point T>
struct GradientPath {
  std::string name;    // of the port, or "direct"
  std::string label;   // the same with its scopes: "layer 1/query"
  Index node = 0;      // the port, or the op that consumes x, on the tape
  std::string op;      // of that node
  Index argument = 0;  // of that op; 0 for a port
  Array<T> gradient;   // of the shape of x
};

// All paths in tape order; their gradients sum to the gradient. One element of y needs no seed. Records
// nothing. Throws as gradient() does.
std::vector<GradientPath<float>> gradient_paths(const Var<float>& y, const Var<float>& x,
                                                Vars<float> seed = {});
std::vector<GradientPath<double>> gradient_paths(const Var<double>& y, const Var<double>& x,
                                                 Vars<double> seed = {});

}  // namespace tapehead
