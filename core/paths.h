#pragma once
// gradient_paths(): the gradient of a shared value, taken apart by the ways in which it came.

#include <functional>
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

// A node by which signals reach some ports, and the part of its gradient that may: one head of an attention's
// output for the ports of its query, key and value. `part` is linear and keeps the shape.
template <std::floating_point T>
struct PathGate {
  Index node = 0;
  std::vector<Index> ports;  // before it on the tape, in order
  std::function<Array<T>(const Array<T>&)> part;
};

template <std::floating_point T>
struct PathsOfNode {
  std::vector<GradientPath<T>> paths;
  Array<T> gradient;  // from one sweep for all of them together
};

// The same between nodes given by number, y of one element. With gates, only the paths of their ports, and of
// each what comes to its port from the gate: the gate gets its whole gradient, and hands on its part. Since
// that is linear, parts that sum to the gradient of the gate give paths that sum to all that came by it.
// Gates are in order on the tape.
// Throws LogicError for a node that the tape has not, and for y of several elements; ShapeError for a part of
// another shape.
template <std::floating_point T>
PathsOfNode<T> gradient_paths(Tape<T>& tape, Index y, Index x, std::span<const PathGate<T>> gates = {});

}  // namespace tapehead
