#include <tapehead/core/errors.h>
#include <tapehead/nn/state.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace tapehead {

StateTable& StateTable::add(std::string tensor, std::string parameter) {
  entries.push_back({std::move(tensor), std::move(parameter)});
  return *this;
}

StateTable& StateTable::add_transposed(std::string tensor, std::string parameter) {
  entries.push_back({std::move(tensor), std::move(parameter), true});
  return *this;
}

StateTable& StateTable::nest(std::string_view tensors, std::string_view parameters, const StateTable& part) {
  for (StateEntry entry : part.entries) {
    entry.tensor.insert(0, tensors);
    entry.parameter.insert(0, parameters);
    entries.push_back(std::move(entry));
  }
  for (const std::string& beginning : part.ignored) ignore(std::string(tensors) + beginning);
  return *this;
}

StateTable& StateTable::ignore(std::string beginning) {
  ignored.push_back(std::move(beginning));
  return *this;
}

namespace detail {
namespace {

const Shape& shape_of(const StateVar& var) {
  return std::visit([](const auto& x) -> const Shape& { return x.shape(); }, var);
}

// A parameter as a part of a tensor.
struct Part {
  const StateEntry* entry;
  std::size_t parameter;  // its number
  Shape shape;            // in the tensor
};

struct StoredTensor {
  std::string name;
  std::vector<Part> parts;
  Shape shape;
};

// The tensors of a table for a model, in the order of the table.
class Layout {
 public:
  Layout(std::string_view op, const std::vector<StateParameter>& parameters, const StateTable& table,
         std::string_view prefix)
      : op_(op), parameters_(parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) numbers_.emplace(parameters[i].name, i);
    require_each_once(table);
    require_values();
    for (const StateEntry& entry : table.entries) place(entry, std::string(prefix) + entry.tensor);
  }

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  bool holds(std::string_view tensor) const { return by_name_.find(tensor) != by_name_.end(); }

 private:
  void require_each_once(const StateTable& table) const {
    std::map<std::string_view, int> count;
    std::string unknown, repeated, left_out;
    for (const StateEntry& entry : table.entries) {
      if (!numbers_.contains(entry.parameter)) unknown += " " + entry.parameter;
      if (++count[entry.parameter] == 2) repeated += " " + entry.parameter;
    }
    for (const auto& [name, var] : parameters_) {
      if (!count.contains(name)) left_out += " " + name;
    }
    std::string what;
    if (!unknown.empty()) what += "; it names what the model has not:" + unknown;
    if (!repeated.empty()) what += "; it has twice:" + repeated;
    if (!left_out.empty()) what += "; it leaves out:" + left_out;
    if (!what.empty()) throw LogicError(op_, "the table does not fit the model" + what);
  }

  void require_values() const {
    for (const auto& [name, var] : parameters_) {
      if (std::visit([](const auto& x) { return x.value().defined(); }, var)) continue;
      throw LogicError(op_, name + " has no value yet, and so no shape");
    }
  }

  void place(const StateEntry& entry, const std::string& name) {
    const std::size_t number = numbers_.at(entry.parameter);
    const Part part{&entry, number, placed_shape(entry, shape_of(parameters_[number].var))};
    const auto [found, fresh] = by_name_.emplace(name, tensors_.size());
    if (fresh) {
      tensors_.push_back({name, {part}, part.shape});
    } else {
      join(tensors_[found->second], part);
    }
  }

  Shape placed_shape(const StateEntry& entry, const Shape& shape) const {
    if (!entry.transposed) return shape;
    if (shape.rank() < 2) throw ShapeError(op_, "cannot be transposed", {{entry.parameter, shape}});
    return shape.with(-1, shape.dim(-2)).with(-2, shape.dim(-1));
  }

  void join(StoredTensor& tensor, const Part& part) const {
    const Part& first = tensor.parts.front();
    if (part.entry->axis != first.entry->axis) {
      throw LogicError(op_, "the table puts " + first.entry->parameter + " and " + part.entry->parameter +
                                " into one tensor along two axes");
    }
    const int axis = part.entry->axis;
    const Index before = tensor.shape.dim(axis);
    const Index extent = part.shape.rank() == tensor.shape.rank() ? part.shape.dim(axis) : 0;
    if (part.shape.rank() != tensor.shape.rank() || part.shape.with(axis, before) != tensor.shape) {
      throw ShapeError(op_, "parts of the tensor " + tensor.name + " do not fit together",
                       {{first.entry->parameter, first.shape}, {part.entry->parameter, part.shape}});
    }
    tensor.parts.push_back(part);
    tensor.shape = tensor.shape.with(axis, before + extent);
  }

  std::string_view op_;
  const std::vector<StateParameter>& parameters_;
  std::map<std::string_view, std::size_t> numbers_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

void require_as_expected(const Layout& layout, const SafetensorsFile& file, const StateTable& table,
                         std::string_view prefix) {
  std::string missing, unexpected, misshapen;
  for (const StoredTensor& tensor : layout.tensors()) {
    const std::string expected = printable(tensor.name) + ", expected " + to_string(tensor.shape);
    if (!file.contains(tensor.name)) {
      missing += "\n  missing: " + expected;
    } else if (file.shape(tensor.name) != tensor.shape) {
      misshapen += "\n  misshapen: " + expected + ", found " + to_string(file.shape(tensor.name));
    }
  }
  for (const std::string& name : file.names()) {
    if (!name.starts_with(prefix) || layout.holds(name)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (std::any_of(table.ignored.begin(), table.ignored.end(),
                    [&](const std::string& beginning) { return rest.starts_with(beginning); })) {
      continue;
    }
    unexpected += "\n  unexpected: " + printable(name) + ", found " + to_string(file.shape(name));
  }
  const std::string problems = missing + unexpected + misshapen;
  if (!problems.empty()) throw FileError(file.path(), "the tensors are not those of the model" + problems);
}

// Part of a tensor that begins with `from` along the axis, as the parameter that it is.
template <class T>
Var<T> taken(const Var<T>& tensor, const Part& part, Index from) {
  const int axis = part.entry->axis;
  const bool whole = part.shape == tensor.shape();
  const Var<T> placed = whole ? tensor : slice(tensor, axis, {from, from + part.shape.dim(axis)});
  return part.entry->transposed ? transpose(placed) : placed;
}

template <class T>
Var<T> joined(const std::vector<StateParameter>& parameters, const StoredTensor& tensor) {
  std::vector<Var<T>> parts;
  for (const Part& part : tensor.parts) {
    const auto* var = std::get_if<Var<T>>(&parameters[part.parameter].var);
    if (!var) throw LogicError("add_parameters", "float and double in one tensor: " + tensor.name);
    const Var<T> value = var->detach();
    parts.push_back(part.entry->transposed ? transpose(value) : value);
  }
  return parts.size() == 1 ? parts.front() : concat(Vars<T>(parts), tensor.parts.front().entry->axis);
}

}  // namespace

StateTable own_names(const std::vector<StateParameter>& parameters) {
  StateTable table;
  for (const auto& [name, var] : parameters) table.add(name, name);
  return table;
}

std::vector<StateVar> read_state(const std::vector<StateParameter>& parameters, const SafetensorsFile& file,
                                 const StateTable& table, std::string_view prefix) {
  const Layout layout("load_parameters", parameters, table, prefix);
  require_as_expected(layout, file, table, prefix);
  std::vector<StateVar> values(parameters.size());
  for (const StoredTensor& tensor : layout.tensors()) {
    std::tuple<Array<float>, Array<double>> read;  // once, however many parts
    Index from = 0;
    for (const Part& part : tensor.parts) {
      std::visit(
          [&]<class T>(const Var<T>&) {
            Array<T>& whole = std::get<Array<T>>(read);
            if (!whole.defined()) whole = file.read<T>(tensor.name);
            values[part.parameter] = taken(Var<T>(whole), part, from);
          },
          parameters[part.parameter].var);
      if (tensor.parts.size() > 1) from += part.shape.dim(part.entry->axis);
    }
  }
  return values;
}

void write_state(const std::vector<StateParameter>& parameters, SafetensorsWriter& writer,
                 const StateTable& table, std::string_view prefix) {
  const Layout layout("add_parameters", parameters, table, prefix);
  for (const StoredTensor& tensor : layout.tensors()) {
    std::visit(
        [&]<class T>(const Var<T>&) { writer.add(tensor.name, joined<T>(parameters, tensor).value()); },
        parameters[tensor.parts.front().parameter].var);
  }
}

}  // namespace detail
}  // namespace tapehead
