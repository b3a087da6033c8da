#pragma once
// One call of somebody's attention, in numbers that float and double both hold, and what came of it.

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <tapehead/nn/attention_reference.h>

namespace tapehead::contract {

enum class Number { f64, f32 };

inline const char* name_of(Number number) { return number == Number::f64 ? "f64" : "f32"; }

// The largest relative error of one rounding.
inline double unit_roundoff(Number number) { return number == Number::f64 ? 0x1p-53 : 0x1p-24; }

// Where arrays are put for a kernel that gets pointers.
struct Placement {
  enum class Order {
    row_major,
    token_major,  // (B, L, H, width) in memory, with gaps between the rows
  };
  enum class Guard { none, behind, before };  // pages that must not be touched, next to every array

  Order order = Order::row_major;
  Guard guard = Guard::none;
  double found = std::numeric_limits<double>::quiet_NaN();  // what results and gradients hold beforehand

  bool usual() const { return order == Order::row_major && guard == Guard::none && found != found; }
};

struct Window {
  Index left, right;
};

// What <tapehead/tapehead_kernel.h> calls a call. Query i sees key j as it says there.
struct Problem {
  Array<double> query{}, key{}, value{};  // (B, H, L, D), (B, Hk, S, D), (B, Hk, S, E)
  std::optional<double> scale{};          // 1 / sqrt(D)
  double softcap = 0;                     // 0: none
  bool causal = false;
  std::optional<Window> window{};
  Index offset = 0;
  std::vector<Index> lengths{};  // (B); empty: none
  Array<bool> mask{};            // broadcasts to (B, H, L, S); undefined: none
  Array<double> bias{};          // likewise
  Array<double> sink{};          // (H); undefined: none
  bool log_sum_exp = false;      // wanted
  Array<double> upstream{};      // (B, H, L, E), with which gradients are wanted; undefined: they are not
  Placement placement{};

  Index batches() const { return query.dim(0); }
  Index heads() const { return query.dim(1); }
  Index key_heads() const { return key.dim(1); }
  Index queries() const { return query.dim(2); }
  Index keys() const { return key.dim(2); }
  Index width() const { return query.dim(3); }
  Index value_width() const { return value.dim(3); }
  Shape scores() const { return {batches(), heads(), queries(), keys()}; }
  double scale_in_force() const;
};

struct Answer {
  Array<double> output{};       // (B, H, L, E)
  Array<double> log_sum_exp{};  // (B, H, L)
  Array<double> dquery{}, dkey{}, dvalue{};
  std::vector<std::string> outside{};  // what was written beside the results, in words
  std::vector<std::string> changed{};  // inputs that hold other numbers than before
};

// The kernel says that it cannot do this; not a failure.
struct Unsupported {
  std::string what;
};

// Whether query i of head h of sample b sees key j.
bool sees(const Problem& problem, Index b, Index h, Index i, Index j);

// The same for the library's attention; a row without keys gives 0.
template <class T>
AttentionOptions<T> options_of(const Problem& problem);

// By the explicit formulas.
Answer formulas(const Problem& problem);

// The same problem with channels of zeros behind those of query, key and value, as many as make `width`; and
// an answer to that without them. Scores and outputs are the same: the scale is said.
Problem widened(Problem problem, Index width);
Answer narrowed(Answer answer, Index width, Index value_width);

// What rounding may leave, worst case and to first order, relative to the sums of absolute terms below: a
// score is a sum of D products and each of its roundings is relative to `sum of |scale q k|`, exp turns that
// into a relative error of a weight, above the line and below it; sums over S keys and the last steps are the
// rest.
double rounding(const Problem& problem, Number number);

// The largest sum of the absolute values of the terms that an element is summed from.
struct Magnitudes {
  double output = 0, dquery = 0, dkey = 0, dvalue = 0;
};
Magnitudes magnitudes(const Problem& problem);

}  // namespace tapehead::contract
