#pragma once
// A model is a struct of Vars. It says what its fields are once,
//
//   template <class Self, class F>
//   static void fields(Self& self, F f) { f("w_query", self.w_query); f("layers", self.layers); }
//
// and everything that walks over parameters follows from that. A field is a Var, another such struct, an
// optional, a vector or a variant of them; numbers of its configuration are not fields.

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <tapehead/core/tape.h>

namespace tapehead {
namespace detail {

template <class Field>
inline constexpr bool is_var = false;
template <class T>
inline constexpr bool is_var<Var<T>> = true;
template <class Field>
inline constexpr bool is_optional = false;
template <class Model>
inline constexpr bool is_optional<std::optional<Model>> = true;
template <class Field>
inline constexpr bool is_list = false;
template <class Model>
inline constexpr bool is_list<std::vector<Model>> = true;

template <class Field>
inline constexpr bool is_choice = false;
template <class... Model>
inline constexpr bool is_choice<std::variant<Model...>> = true;

template <class Field, class F>
void walk(const std::string& name, Field& field, F& f) {
  using Kind = std::remove_const_t<Field>;
  if constexpr (is_var<Kind>) {
    f(name, field);
  } else if constexpr (is_optional<Kind>) {
    if (field) walk(name, *field, f);
  } else if constexpr (is_list<Kind>) {
    const std::string before = name.empty() ? name : name + ".";
    for (std::size_t i = 0; i < field.size(); ++i) walk(before + std::to_string(i), field[i], f);
  } else if constexpr (is_choice<Kind>) {
    std::visit([&](auto& one) { walk(name, one, f); }, field);
  } else {
    Kind::fields(field, [&](std::string_view part, auto& inner) {
      walk(name.empty() ? std::string(part) : name + "." + std::string(part), inner, f);
    });
  }
}

}  // namespace detail

// f(name, var) for each parameter in a fixed order; names are paths, "layers.0.attention.w_query".
template <class Model, class F>
void for_each_parameter(Model& model, F f) {
  detail::walk(std::string(), model, f);
}

// A copy of the model whose parameters are inputs of the tape. Copies no element.
template <std::floating_point T, class Model>
Model on_tape(Tape<T>& tape, const Model& model) {
  Model recorded = model;
  for_each_parameter(recorded,
                     [&](const std::string& name, Var<T>& var) { var = tape.input(var.value(), name); });
  return recorded;
}

// The parameters in the order of for_each_parameter.
template <std::floating_point T, class Model>
std::vector<Var<T>> parameters(const Model& model) {
  std::vector<Var<T>> list;
  for_each_parameter(model, [&](const std::string&, const Var<T>& var) { list.push_back(var); });
  return list;
}

template <class Model>
Index parameter_count(const Model& model) {
  Index count = 0;
  for_each_parameter(model, [&](const std::string&, const auto& var) { count += var.size(); });
  return count;
}

}  // namespace tapehead
