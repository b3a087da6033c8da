#pragma once
// What a model is made of: its parameters as a table.

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

#include <tapehead/nn/model.h>

namespace tapehead {

struct ParameterSummary {
  std::string name;
  Shape shape;
  Index count;        // of elements
  std::size_t bytes;  // of these
};

struct ModelSummary {
  std::vector<ParameterSummary> parameters;  // in the order of for_each_parameter
  Index count = 0;                           // of all elements
  std::size_t bytes = 0;
};

template <class Model>
ModelSummary summary(const Model& model) {
  ModelSummary table;
  for_each_parameter(model, [&](const std::string& name, const auto& var) {
    table.parameters.push_back({name, var.shape(), var.size(), var.value().bytes()});
    table.count += var.size();
    table.bytes += var.value().bytes();
  });
  return table;
}

// One line a parameter (name, shape, count, bytes), then the totals.
std::string to_string(const ModelSummary& summary);
std::ostream& operator<<(std::ostream& stream, const ModelSummary& summary);

}  // namespace tapehead
