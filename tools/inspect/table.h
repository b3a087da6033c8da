#pragma once
// What a tape holds, as plain numbers: the one thing that every writer of this folder takes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tapehead/core/keep.h>

namespace tapehead {

// An array widened to double.
struct ArrayNumbers {
  Shape shape;
  std::vector<double> numbers;  // row-major
};

// An argument of an op: a node of the tape, or a constant, of which nothing is known but that it was there.
struct TapeArgument {
  std::optional<Index> node;
};

struct TapeRow {
  Index index = 0;
  std::string op;
  std::string label;  // path of scopes, and the name of an input or port last: "layer 1/attention/query"
  std::string scope;  // the path of scopes alone
  bool port = false;
  bool input = false;  // entered with Tape::input
  std::vector<TapeArgument> arguments;
  Shape shape;
  std::string type;            // "f32" or "f64"
  Index bytes = 0;             // of the output
  Index kept_bytes = 0;        // of it, what the tape itself keeps for the rule
  double flops = 0;            // forward; 0 where nothing is multiplied or added
  bool flops_assumed = false;  // the op is not in the table: one an element of its output
  std::string remark;          // which kernel ran, and why
  // From the level statistics on, and where a gradient was asked for:
  std::optional<double> forward_seconds, backward_seconds;
  std::optional<double> forward_start, backward_start;  // since the tape began to keep, in seconds
  std::optional<ArraySummary> value, gradient;
  std::optional<Index> live_bytes_forward, live_bytes_backward;  // of all arrays, right after
  // At the level everything:
  std::optional<ArrayNumbers> value_numbers, gradient_numbers;
};

// Totals of the rows that share an op, or a scope and all that is inside it.
struct TapeTotal {
  std::string name;
  Index nodes = 0;
  Index bytes = 0, kept_bytes = 0;
  double flops = 0;
  double forward_seconds = 0, backward_seconds = 0;
};

// One head of one sample is a matrix, query by key.
struct AttentionTable {
  std::string label;                            // the scope of the attention
  Index node = 0;                               // the softmax
  ArrayNumbers weights;                         // (B, H, L, S)
  std::optional<ArrayNumbers> scores;           // (B, H, L, S), minus infinity where the mask does not allow
  std::optional<ArrayNumbers> weight_gradient;  // (B, H, L, S)
  std::vector<std::string> query_tokens, key_tokens;  // of sample 0; empty when there are none
};

// One way from an output to a shared value.
struct PathRow {
  std::string name, label;  // as GradientPath has them
  Index node = 0;
  double norm = 0;
  double share = 0;                 // <path, total> / <total, total>: the shares sum to 1
  double cosine = 0;                // with the total; 0 when one of both is 0
  double largest = 0;               // largest magnitude
  std::vector<Index> largest_at{};  // where
  std::optional<ArrayNumbers> gradient{};
};

struct PathTable {
  Index node = 0;    // the shared value
  std::string name;  // its label
  std::vector<PathRow> rows;
  ArraySummary total;
  std::optional<ArrayNumbers> total_numbers;
  double sum_error = 0;  // largest |sum of the rows - gradient| over the largest |gradient|
  // When only that head or that query row of each attention was asked for. `total` is then what came by it.
  std::optional<Index> head{}, query_row{};
  double share_of_gradient = 1;  // <total, whole gradient> / <whole gradient, whole gradient>
};

// One node of the backward pass whose gradient is complete, and what its rules give to its inputs.
struct StepRow {
  struct Contribution {
    Index to = 0;
    Index argument = 0;    // of the op
    Index number = 1;      // which contribution to that node it is,
    Index of = 1;          // and of how many
    ArrayNumbers dx, sum;  // `sum` is that of all contributions to the node so far
  };
  Index node = 0;
  std::string op, label;
  ArrayNumbers gradient;
  std::vector<Contribution> contributions;
};

struct TapeTable {
  std::string title;
  std::string level;  // "rules", "statistics" or "everything": how much the tape kept
  std::vector<TapeRow> rows;
  std::vector<TapeTotal> by_op, by_label;
  std::vector<AttentionTable> attention;
  std::vector<PathTable> paths;
  std::vector<StepRow> steps;
};

}  // namespace tapehead
