#include <tapehead/core/derivatives.h>
#include <tapehead/core/record.h>

#include <algorithm>
#include <optional>

namespace tapehead::detail {
namespace {

template <class T>
using List = std::vector<Var<T>>;
template <class T>
using Blocks = std::vector<std::vector<Array<T>>>;

template <class T>
Tape<T>* tape_of(std::string_view op, std::span<const Var<T>> vars) {
  for (const Var<T>& var : vars) {
    if (var.recorded()) return &Tape<T>::of(op, var);
  }
  return nullptr;
}

// body(tape) where nothing stays on the tape of `x`, or on one of its own when there is none.
template <class T, class Body>
auto forgotten(Tape<T>* tape, Body body) {
  std::optional<Tape<T>> own;
  std::optional<Scratch<T>> scratch;
  if (tape) {
    scratch.emplace(*tape);
  } else {
    tape = &own.emplace();
  }
  return body(*tape);
}

// body(tape) recorded on the tape of x and v when it records, and otherwise as constants.
template <class T, class Body>
List<T> on_tape_of(std::string_view op, std::span<const Var<T>> x, std::span<const Var<T>> v, Body body) {
  Tape<T>* tape = tape_of(op, x);
  if (!tape) tape = tape_of(op, v);
  if (!tape || !tape->recording()) {
    return forgotten(tape, [&](Tape<T>& place) {
      List<T> result = body(place);
      for (Var<T>& one : result) one = one.detach();
      return result;
    });
  }
  const Index size = tape->size();
  try {
    return body(*tape);
  } catch (...) {
    tape->rewind(std::min(size, tape->size()));
    throw;
  }
}

// What f is called with: nodes of their own, so that a derivative ends there and goes no further back.
template <class T>
List<T> arguments_of(Tape<T>& tape, std::span<const Var<T>> x) {
  List<T> arguments;
  for (const Var<T>& one : x) {
    if (one.recorded()) {
      arguments.push_back(record("argument", one.value(), edge(one, [](Var<T> dy) { return dy; })));
    } else {
      arguments.push_back(tape.input(one.value()));
    }
  }
  return arguments;
}

template <class T>
void require_match(std::string_view op, std::string_view name, std::span<const Var<T>> given,
                   std::string_view of, std::span<const Var<T>> wanted) {
  const std::string names = std::string(name).append(" and ").append(of);
  if (given.size() != wanted.size()) {
    throw LogicError(op, std::to_string(given.size())
                             .append(" ")
                             .append(name)
                             .append(" for ")
                             .append(std::to_string(wanted.size()))
                             .append(" ")
                             .append(of));
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i].shape() == wanted[i].shape()) continue;
    throw ShapeError(op, names + " number " + std::to_string(i) + " differ in shape",
                     {{name, given[i].shape()}, {of, wanted[i].shape()}});
  }
}

template <class T>
Var<T> number_of(std::string_view op, const ListFunction<T>& f, const List<T>& x) {
  List<T> y = f(x);
  if (y.size() != 1) throw LogicError(op, "f gives " + std::to_string(y.size()) + " Vars, not one number");
  if (y[0].size() != 1) throw ShapeError(op, "f gives no single number", {{"y", y[0].shape()}});
  return y[0];
}

// Row by row: a sweep for each element of y.
template <class T>
Blocks<T> jacobian_on(Tape<T>& place, const ListFunction<T>& f, std::span<const Var<T>> x) {
  const List<T> arguments = arguments_of(place, x);
  Blocks<T> blocks;
  for (const Var<T>& y : f(arguments)) {
    std::vector<Array<T>>& row_of_blocks = blocks.emplace_back();
    for (const Var<T>& one : x) {
      row_of_blocks.push_back(Array<T>::uninitialized(y.shape().followed_by(one.shape())));
    }
    for (Index k = 0; k < y.size(); ++k) {
      Array<T> seed = Array<T>::zeros(y.shape());
      seed.mutable_values()[static_cast<std::size_t>(k)] = 1;
      const std::vector<Array<T>> row = gradient_values(y, arguments, Var<T>(seed));
      for (std::size_t i = 0; i < row.size(); ++i) {
        std::ranges::copy(row[i].values(), row_of_blocks[i].mutable_values().begin() + k * row[i].size());
      }
    }
  }
  return blocks;
}

}  // namespace

void throw_argument_count(std::size_t takes, std::size_t given) {
  throw LogicError("f", "takes " + std::to_string(takes) + " Vars, given " + std::to_string(given));
}

template <class T>
List<T> vjp(const ListFunction<T>& f, std::span<const Var<T>> x, std::span<const Var<T>> w) {
  return on_tape_of("vjp", x, w, [&](Tape<T>& tape) {
    const List<T> arguments = arguments_of(tape, x), y = f(arguments);
    require_match<T>("vjp", "w", w, "y", y);
    return gradient(y, arguments, w);
  });
}

template <class T>
List<T> jvp(const ListFunction<T>& f, std::span<const Var<T>> x, std::span<const Var<T>> v) {
  require_match<T>("jvp", "v", v, "x", x);
  return on_tape_of("jvp", x, v, [&](Tape<T>& tape) {
    const List<T> arguments = arguments_of(tape, x), y = f(arguments);
    List<T> w;  // the vjp is linear in it: any value will do
    for (const Var<T>& one : y) w.push_back(tape.input(Array<T>::zeros(one.shape())));
    return gradient(gradient(y, arguments, w), w, v);
  });
}

template <class T>
List<T> hvp(const ListFunction<T>& f, std::span<const Var<T>> x, std::span<const Var<T>> v) {
  require_match<T>("hvp", "v", v, "x", x);
  return on_tape_of("hvp", x, v, [&](Tape<T>& tape) {
    const List<T> arguments = arguments_of(tape, x);
    return gradient(gradient(number_of("hvp", f, arguments), arguments), arguments, v);
  });
}

template <class T>
Blocks<T> jacobian(const ListFunction<T>& f, std::span<const Var<T>> x) {
  return forgotten(tape_of("jacobian", x), [&](Tape<T>& place) { return jacobian_on(place, f, x); });
}

template <class T>
Blocks<T> hessian(const ListFunction<T>& f, std::span<const Var<T>> x) {
  const ListFunction<T> slope = [&f](const List<T>& at) { return gradient(number_of("hessian", f, at), at); };
  return forgotten(tape_of("hessian", x), [&](Tape<T>& place) { return jacobian_on(place, slope, x); });
}

#define TAPEHEAD_INSTANTIATE(T)                                                                   \
  template List<T> vjp(const ListFunction<T>&, std::span<const Var<T>>, std::span<const Var<T>>); \
  template List<T> jvp(const ListFunction<T>&, std::span<const Var<T>>, std::span<const Var<T>>); \
  template List<T> hvp(const ListFunction<T>&, std::span<const Var<T>>, std::span<const Var<T>>); \
  template Blocks<T> jacobian(const ListFunction<T>&, std::span<const Var<T>>);                   \
  template Blocks<T> hessian(const ListFunction<T>&, std::span<const Var<T>>);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead::detail
