#pragma once
// The op table: for each op and way of calling it one row, from which op_table_test.cpp makes the tests. The
// rows of ops/FAMILY.h are in rows/FAMILY.cpp:
//
//   const Rows rows = {
//       {.op = "softmax",   // its name in the header
//        .as = "of_axis",   // which way of calling it
//        .call = [](const auto& x) { return softmax(x[0], 1); },  // x is a List<float> or a List<double>
//        .samples = rows_of(3),                                   // the shapes to call it with
//        .golden = {{"softmax_axis1"}},                           // op_softmax_axis1.safetensors
//        .refuses = {{.shapes = {{2}}, .texts = {"axis 1"}}}},    // a ShapeError with this text and (2)
//   };
//
// What each row gets, one test a row and check, EveryOp.Gradients/softmax_of_axis and so on:
//   EveryOp.Gradients        the full Jacobian against differences, and so the gradients up to `order`
//   EveryOp.Adjoint          <u, J v> = <J^T u, v> for each input alone, J v by differences of values; then
//                            for the gradient as a function, up to `order`
//   EveryOp.Sweeps           gradient_values() and gradient() give the same; so does what is not recorded
//   EveryOp.Views            inputs that are slices of permutations of something larger give the same bits
//   EveryOp.FloatAndDouble   values and gradients in float are those in double to the rounding of float
// and from what it gives beyond these:
//   EveryElementwiseOp.*     `each`: at infinities, NaN, zeros and the largest numbers what IEEE says, in
//                            both types and both sweeps, and no other element touched
//   EveryOpWithExamples.*    `examples`: these values and gradients
//   EveryOpThatRefuses.*     `refuses`: errors with the op's name, all shapes and the texts
//   EveryGoldenCase.*        `golden`: PyTorch's values and gradients to 1e-12, in both sweeps
//
// Each op, over all its rows, must have samples with an extent of 1, one of 0, rank 0 and pairwise different
// extents, and one that broadcasts, on either side; `lacks` says which it cannot have. It must refuse
// something, and every case op_* of tests/data must be some row's. tests/ops_have_rows_test.sh fails for a
// public function of ops/*.h without a row.

#include <functional>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tapehead/core/random.h>
#include <tapehead/core/var.h>

#include "support/golden.h"

namespace tapehead::table {

template <class T>
using List = std::vector<Var<T>>;
using Arrays = std::vector<Array<double>>;

template <class F, class Result, class Argument>
concept Gives = std::is_invocable_r_v<Result, F&, const Argument&>;

// A generic function object of a List<T>, for either T: one lambda with an `auto` parameter.
class Call {
 public:
  Call() = default;
  template <Gives<Var<double>, List<double>> F>
  Call(F f) : in_double(f), in_float(f) {}

  std::function<Var<double>(const List<double>&)> in_double;
  std::function<Var<float>(const List<float>&)> in_float;
};

// The same for one element of an elementwise op: numbers in, a number out, IEEE's way.
class Each {
 public:
  Each() = default;
  template <Gives<double, std::vector<double>> F>
  Each(F f) : in_double(f), in_float(f) {}
  explicit operator bool() const { return static_cast<bool>(in_double); }

  std::function<double(const std::vector<double>&)> in_double;
  std::function<float(const std::vector<float>&)> in_float;
};

// How an op depends on all of its inputs together.
enum class Kind {
  smooth,
  polynomial,  // linear, bilinear or affine: a central difference of step 1 is exact, also of its gradient
};

// Where the elements of an input are drawn from.
enum class From {
  anywhere,     // normal
  positive,     // 0.5 to 2
  around_zero,  // 0.5 to 2 with either sign: away from the kink of relu and the pole of 1 / x
  apart,        // no two elements, also of the other inputs, nearer than 0.1, nor nearer than 0.05 to a
                // multiple of 0.2: away from ties, and from a kink there; -0.15, 0.05 and 0.45 are drawn
  weights,      // positive, and sum to 1 along the last axis
};

struct Input {
  Input(std::initializer_list<Index> extents) : shape(extents) {}
  Input(From domain, Shape of_shape) : shape(of_shape), from(domain) {}
  Input(Array<double> at) : shape(at.shape()), fixed(std::move(at)) {}  // these numbers
  Array<double> draw(Generator& generator, std::size_t number) const;   // `number` of the input in its sample

  Shape shape;
  From from = From::anywhere;
  Array<double> fixed = {};
};
using Sample = std::vector<Input>;  // what one call takes

// One input of every shape that is an edge: no two extents alike, one of 1, a vector, rank 0, one of 0.
std::vector<Sample> alone(From from = From::anywhere);
// Pairs that broadcast: not at all, on the left, on the right, on both sides, by rank, with a scalar, of
// nothing.
std::vector<Sample> pairs(From left = From::anywhere, From right = From::anywhere);
// One input of the rank, with no two extents alike, an extent of 1 and one of 0 at each place.
std::vector<Sample> rows_of(int rank, From from = From::anywhere);

// What an op must refuse: a call with zeros of these shapes. The message must begin with the op's name and a
// colon and hold every one of the shapes, and the texts.
struct Refusal {
  enum class Of { shapes, values };  // ShapeError, DomainError (which names no shape)

  std::vector<Shape> shapes;
  std::vector<std::string> texts = {};
  Call call = {};  // the row's own when left out
  Of error = Of::shapes;
};

// Inputs, the values they must give and the gradients for dy = 1; NaN equals NaN, what is finite is equal to
// 4 epsilon. Without gradients those are not looked at.
struct Example {
  Arrays inputs;
  Array<double> y;
  Arrays gradients = {};
};

// A case of tests/data: op_NAME.safetensors. `call` gets its numbers: axes, shapes and the like are taken
// from there, not typed again.
struct GoldenCase {
  using Function = std::function<Var<double>(const Golden&, const List<double>&)>;

  std::string name;
  std::vector<std::string> inputs = {"x"};  // the tensors with a gradient, in the order of the call's list
  Function call = {};                       // the row's own when left out
  bool vanishing = false;                   // gradients are rounding of nothing: held to the size of upstream
  std::string folder = "golden";
};

// Edges that no sample of an op can have.
struct Lacks {
  bool extent_one = false, extent_zero = false, rank_zero = false, different_extents = false;
};

struct Row {
  std::string op;
  std::string as = {};
  Call call;
  Kind kind = Kind::smooth;
  int order = 2;  // up to which derivatives are checked
  std::vector<Sample> samples;
  bool broadcasts = false;  // its first two inputs
  Lacks lacks = {};
  Each each = {};
  std::vector<Example> examples = {};
  std::vector<GoldenCase> golden = {};
  std::vector<Refusal> refuses = {};

  std::string name() const { return as.empty() ? op : op + "_" + as; }
};
std::ostream& operator<<(std::ostream& stream, const Row& row);

// Enters the rows of a family. The order of the table is that of their names.
class Rows {
 public:
  Rows(std::initializer_list<Row> rows);
};
const std::vector<Row>& all_rows();

// ---------------------------------------------------------------- reading golden cases

std::vector<int> integers_in(const Golden& golden, const std::string& name);  // "0,2"
Shape shape_in(const Golden& golden, const std::string& name);                // likewise
int axis_in(const Golden& golden);

}  // namespace tapehead::table
