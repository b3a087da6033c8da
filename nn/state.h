#pragma once
// The parameters of a model to and from a file: under their own names, or under the names and in the layouts
// that a table says.

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tapehead/nn/model.h>
#include <tapehead/nn/safetensors.h>

namespace tapehead {

// Where a file keeps a parameter.
struct StateEntry {
  std::string tensor;       // as the file calls it
  std::string parameter;    // as for_each_parameter calls it
  bool transposed = false;  // the file has the last two axes the other way round
  int axis = 0;             // along which the tensor holds several parameters, if it does
};

// Says of each parameter of a model where a file keeps it; the same table serves reading and writing. Entries
// that name one tensor lie in it one behind another, along their axis and in their order. Tables of parts
// make that of a whole:
//
//   StateTable table;
//   table.nest("attention.self.query.", "attention.query.", pytorch_table(layer.attention.query));
//   table.add("word_embeddings.weight", "tokens.table");
//   load_parameters(model, SafetensorsFile("weights.safetensors"), table);
struct StateTable {
  std::vector<StateEntry> entries;
  std::vector<std::string> ignored;  // names of a file that begin with one of these are not looked at

  // A parameter that is a tensor as it is, and the weights (in, out) of a projection, of which the file has
  // (out, in).
  StateTable& add(std::string tensor, std::string parameter);
  StateTable& add_transposed(std::string tensor, std::string parameter);
  // All of another table, with something put in front of the names of its tensors and of its parameters.
  StateTable& nest(std::string_view tensors, std::string_view parameters, const StateTable& part);
  StateTable& ignore(std::string beginning);
};

namespace detail {

// A parameter of a model, or a value for it.
using StateVar = std::variant<Var<float>, Var<double>>;
struct StateParameter {
  std::string name;
  StateVar var;
};

template <class Model>
std::vector<StateParameter> state_parameters(const Model& model) {
  std::vector<StateParameter> list;
  for_each_parameter(model, [&](const std::string& name, const auto& var) { list.push_back({name, var}); });
  return list;
}

StateTable own_names(const std::vector<StateParameter>& parameters);
// Values for the parameters, in their order.
std::vector<StateVar> read_state(const std::vector<StateParameter>& parameters, const SafetensorsFile& file,
                                 const StateTable& table, std::string_view prefix);
void write_state(const std::vector<StateParameter>& parameters, SafetensorsWriter& writer,
                 const StateTable& table, std::string_view prefix);

template <class Model>
void assign(Model& model, std::vector<StateVar> values) {
  auto next = values.begin();
  for_each_parameter(model, [&](const std::string&, auto& var) {
    var = std::get<std::remove_reference_t<decltype(var)>>(std::move(*next++));
  });
}

}  // namespace detail

// Gives every parameter of a model the value that a file has for it. Without a table the file has their own
// names. With a prefix, only names of the file that begin with it are looked at, and the table has what comes
// after it. Parameters are then on no tape, and those that the file holds in their very type and layout read
// the mapping of the file. Throws FileError that lists all tensors that are missing, unexpected or misshapen,
// each with the shape that was expected and the one that was found; LogicError for a table that leaves out a
// parameter of the model, has one twice, or one that the model has not. Nothing has changed then.
template <class Model>
void load_parameters(Model& model, const SafetensorsFile& file, const StateTable& table,
                     std::string_view prefix = {}) {
  detail::assign(model, detail::read_state(detail::state_parameters(model), file, table, prefix));
}
template <class Model>
void load_parameters(Model& model, const SafetensorsFile& file) {
  load_parameters(model, file, detail::own_names(detail::state_parameters(model)));
}

// Adds what load_parameters reads to a file to be written. Throws LogicError as it does, and as
// SafetensorsWriter::add does; ShapeError when parameters of one tensor do not fit together.
template <class Model>
void add_parameters(SafetensorsWriter& writer, const Model& model, const StateTable& table,
                    std::string_view prefix = {}) {
  detail::write_state(detail::state_parameters(model), writer, table, prefix);
}
template <class Model>
void add_parameters(SafetensorsWriter& writer, const Model& model) {
  add_parameters(writer, model, detail::own_names(detail::state_parameters(model)));
}

}  // namespace tapehead
