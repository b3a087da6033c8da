#pragma once
// What an implementation does other than asked: one knob for each place in the loops where a mistake is made.
// A default one is right.

#include <functional>
#include <optional>

#include "tools/planted/call.h"

namespace tapehead::planted {

using OfKey = std::function<bool(Index b, Index h, Index i, Index j)>;
using NumberOfKey = std::function<double(Index b, Index h, Index i, Index j)>;

struct Results {
  Grid output, weights, lse;              // (B,H,L,E), (B,H,L,S), (B,H,L,1)
  Grid grad_query, grad_key, grad_value;  // as what they belong to
  Grid grad_bias, grad_sink;              // as the bias, (1,H,1,1)
  Grid partial_output, partial_lse;       // (P*B,H,L,E), (P*B,H,L,1)
  Grid query_after, key_after, value_after, output_second;
  Grid grad_x, grad_y, grad_w_query, grad_w_key, grad_w_value;
};

struct WrongPositions {
  enum class Table { right, half, neighbour };     // whose order of angles is read
  enum class Back { transposed, same_direction };  // how gradients are turned
  std::optional<Turn> turn;
  std::optional<Table> table;  // in the other order than the rotation
  bool query = true, key = true;
  bool by_head = false;  // the angle follows the head instead of the row
  double sign = 1, base_of_table = 0;
  std::function<double(Index b, Index i)> query_position, key_position;
  Index exponent_width = 0, partner = 0;  // 0: of the turned width
  Back back = Back::transposed;
  bool norm_query = true, norm_key = true, norm_value = false, norm_after_turn = false;
};

struct WrongBackward {
  enum class Jacobian { right, diagonal, without_delta, delta_of_some, delta_of_own_block };
  enum class Share { sum, first, last, mean };  // of a group of query heads, for their key head
  enum class Drop { right, not_in_weights_gradient, dropped_weights, dropped_weights_and_delta };
  Jacobian jacobian = Jacobian::right;
  Index delta_keys = 0;  // the first so many; or as many a block
  bool cap_slope = true, lse_path = true, weights_path = true;
  double query_factor = 1, key_factor = 1;
  Share share = Share::sum;
  bool share_key = true, share_value = true;
  std::function<Index(Index h)> key_head;  // whose gradient a query head adds to
  OfKey visible;                           // weights made again from the log-sum-exp under another mask
  Drop drop = Drop::right;
  Grid keep;  // another mask of dropout
  bool zero_weight_meets_nan = false;
  Grid query, key, value;                               // as they are after the forward pass changed them
  double path_query = 1, path_key = 1, path_value = 1;  // how often each path reaches grad_x
};

struct Wrong {
  enum class Cap { right, omitted, with_bias, before_scale, without_bound };
  enum class Axis { key, query, head, batch, matrix, all, none };  // what the weights are normalised over
  enum class Empty { zero, nan, uniform, unmasked };
  enum class Online { right, no_rescale, no_rescale_of_sum, no_rescale_of_output, start };
  enum class Merge { not_split, right, base_2, mean, counts };

  // scores
  std::optional<double> scale;
  bool power_of_two = false, power_slope = true;  // 2^s; whether gradients carry its ln 2
  Cap cap = Cap::right;
  bool bias_before_scale = false;
  Index channels = 0;  // of D; 0: all
  std::vector<double> slopes;
  bool signed_distance = false;  // j - i instead of -|i - j|
  // keys
  OfKey visible;
  NumberOfKey added;                                                               // to a score
  std::function<std::optional<double>(Index b, Index h, Index i, Index j)> fixed;  // instead of a score
  OfKey dropped;     // weights set to 0 after the softmax
  double floor = 0;  // that no exponential falls below, blocked or not
  Empty empty = Empty::zero;
  bool filled = false;               // scores of blocked keys were replaced: no gradient passes them
  bool finite_mask_ignored = false;  // an additive mask only excludes
  bool renormalised = false;         // after `dropped`
  // softmax
  Axis axis = Axis::key;
  bool other_sink = false;
  std::vector<double> sink;  // then; empty: none
  double sink_count = 1;
  bool sink_unshifted = false;
  double extra_columns = 0;  // of score 0 and value 0
  Online online = Online::right;
  Index tile = 0;
  double start = 0;      // of the running maximum
  bool guarded = false;  // a sum of 0 divides nothing
  Merge merge = Merge::not_split;
  std::function<Index(Index h)> key_head;
  bool no_dropout = false;
  Grid keep;                           // dropout by this mask whatever was asked
  bool zero_weight_meets_nan = false;  // 0 times a value that is not finite joins the output
  double largest_product = 0;          // of query and key; past it they are infinite
  double largest_power = 0;            // exp without subtracting the maximum, infinite past it
  WrongPositions positions;
  WrongBackward backward;
  std::function<void(Call&)> before;
  std::function<void(Results&)> after;
};

}  // namespace tapehead::planted
