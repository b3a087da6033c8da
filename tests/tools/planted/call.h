#pragma once
// What attention was asked to compute: sizes, inputs and options, as the dump states them.

#include <optional>
#include <string>
#include <vector>

#include "tools/planted/grid.h"
#include "tools/planted/numbers.h"

namespace tapehead::planted {

enum class Causal { none, top_left, bottom_right, offset };
enum class MaskKind { none, allowed, blocked, additive };
enum class Turn { none, half, neighbour };
enum class Norm { none, rms, l2 };

struct Call {
  std::string shape;  // its name in reports
  Type type = Type::f64;
  Index B = 1, H = 1, Hk = 1, L = 1, S = 1, D = 1, E = 1;

  Grid query, key, value;       // (B,H,L,D), (B,Hk,S,D), (B,Hk,S,E), before norm and rotation
  std::optional<double> scale;  // 1 / sqrt(D) when it is not said
  double softcap = 0;           // 0: none
  Grid bias;                    // repeated to (B,H,L,S)
  bool bias_before_scale = false;
  std::vector<double> slopes, sink;  // (H)

  MaskKind mask_kind = MaskKind::none;
  Grid mask;                     // repeated to (B,H,L,S); 1 and 0, or numbers to add
  bool mask_in_numbers = false;  // 1 and 0 are dumped in floating point
  Causal causal = Causal::none;
  Index offset = 0;  // of Causal::offset
  std::optional<Index> window_left, window_right;
  std::vector<Index> key_lengths, query_lengths;    // (B)
  std::vector<Index> query_segments, key_segments;  // (B,L), (B,S)

  bool tiled = false;  // head map
  Turn turn = Turn::none;
  double base = 10000;
  Index width = 0;  // that is turned; 0: D
  Index start_query = 0, start_key = 0;
  std::vector<double> query_positions, key_positions;  // (B,L), (B,S): instead of start + index
  Norm norm = Norm::none;
  double norm_eps = 0;
  std::vector<double> query_gain, key_gain;  // (D)

  double dropout = 0;
  bool train = false;
  Grid keep;  // (B,H,L,S)

  Grid upstream;                        // (B,H,L,E); empty: no gradients
  Grid upstream_weights, upstream_lse;  // (B,H,L,S), (B,H,L,1)
  bool lse_base_2 = false;
  std::vector<Index> part_ends;  // keys in parts, for partial results

  // One tensor (B,1,L,(H + 2 Hk) D) that is cut into query, key and value: in three blocks, or head by head.
  Grid projection;
  bool cut_by_head = false;

  // Query, key and value as products: x (B,1,L,M), y (B,1,S,M) or x again, weights (1,1,M,H*D) ...
  Grid x, y, w_query, w_key, w_value;

  double score_scale() const;
  Index causal_offset() const;  // 0 when not causal
  Index key_head(Index h) const { return tiled ? h % Hk : h / (H / Hk); }
  Index turned_width() const { return width == 0 ? D : width; }
  double query_position(Index b, Index i) const;
  double key_position(Index b, Index j) const;

  // Whether a condition lets row i of sample b and head h see key j.
  bool mask_allows(Index b, Index h, Index i, Index j) const;
  bool causal_allows(Index i, Index j) const;
  bool window_allows(Index i, Index j) const;
  bool length_allows(Index b, Index j) const;
  bool is_row(Index b, Index i) const;  // not past the length of its sample
  bool segment_allows(Index b, Index i, Index j) const;
  bool visible(Index b, Index h, Index i, Index j) const;  // all of them
  bool has_empty_row() const;

  void cut_projection(bool by_head);  // into query, key and value
};

}  // namespace tapehead::planted
