#include "tools/planted/positions.h"

#include <cmath>

namespace tapehead::planted {

double Positions::position(Index b, Index h, Index i, bool query) const {
  if (wrong_.by_head) return static_cast<double>(h);
  const auto& other = query ? wrong_.query_position : wrong_.key_position;
  if (other) return other(b, i);
  return query ? call_.query_position(b, i) : call_.key_position(b, i);
}

// angle(n) = position base^(-2 n / width); the table may be laid out for the other order of pairs, and the
// exponent or the partner may be of another width.
Positions::Pair Positions::pair(Index number, double position) const {
  const Index width = call_.turned_width(), half = width / 2;
  const Turn turn = wrong_.turn.value_or(call_.turn);
  const double base = wrong_.base_of_table > 0 ? wrong_.base_of_table : call_.base;
  const Index of_exponent = wrong_.exponent_width > 0 ? wrong_.exponent_width : width;
  const auto angle = [&](Index n) {
    return wrong_.sign * position *
           std::pow(base, -2.0 * static_cast<double>(n) / static_cast<double>(of_exponent));
  };
  Pair p = turn == Turn::half ? Pair{number, number + (wrong_.partner > 0 ? wrong_.partner : half), 0, 0}
                              : Pair{2 * number, 2 * number + 1, 0, 0};
  const auto entry = [&](Index column) {  // of the table, by column of the rotated part
    const auto order = wrong_.table.value_or(WrongPositions::Table::right);
    if (order == WrongPositions::Table::half) return angle(column % half);
    return order == WrongPositions::Table::neighbour ? angle(column / 2) : angle(number);
  };
  p.angle_one = entry(p.one), p.angle_two = entry(p.two);
  return p;
}

Grid Positions::turned(const Grid& x, bool query) const {
  Grid y = x;
  each(Grid(x.extents[0], x.extents[1], x.extents[2], call_.turned_width() / 2),
       [&](Index b, Index h, Index i, Index n) {
         const Pair p = pair(n, position(b, h, i, query));
         const double one = x(b, h, i, p.one), two = x(b, h, i, p.two);
         y(b, h, i, p.one) = rounding_.step(one * std::cos(p.angle_one) - two * std::sin(p.angle_one));
         y(b, h, i, p.two) = rounding_.step(one * std::sin(p.angle_two) + two * std::cos(p.angle_two));
       });
  return y;
}

// The transpose of the above; or, as a mistake, the rotation itself again.
Grid Positions::turned_back(const Grid& dy, bool query) const {
  if (wrong_.back == WrongPositions::Back::same_direction) return turned(dy, query);
  Grid dx = dy;
  each(Grid(dy.extents[0], dy.extents[1], dy.extents[2], call_.turned_width() / 2),
       [&](Index b, Index h, Index i, Index n) {
         const Pair p = pair(n, position(b, h, i, query));
         const double one = dy(b, h, i, p.one), two = dy(b, h, i, p.two);
         dx(b, h, i, p.one) = rounding_.step(one * std::cos(p.angle_one) + two * std::sin(p.angle_two));
         dx(b, h, i, p.two) = rounding_.step(two * std::cos(p.angle_two) - one * std::sin(p.angle_one));
       });
  return dx;
}

namespace {

// 1 / sqrt(mean x^2 + eps), or 1 / max(|x|, eps).
double inverse_length(const Grid& x, Index b, Index h, Index i, const Call& call) {
  double squares = 0;
  for (Index d = 0; d < x.extents[3]; ++d) squares += x(b, h, i, d) * x(b, h, i, d);
  if (call.norm == Norm::rms)
    return 1 / std::sqrt(squares / static_cast<double>(x.extents[3]) + call.norm_eps);
  return 1 / std::max(std::sqrt(squares), call.norm_eps);
}

double gain_of(const std::vector<double>& gain, Index d) {
  return gain.empty() ? 1 : gain[static_cast<std::size_t>(d) % gain.size()];
}

}  // namespace

Grid Positions::normed(const Grid& x, const std::vector<double>& gain) const {
  Grid y = x;
  each(x, [&](Index b, Index h, Index i, Index d) {
    y(b, h, i, d) =
        rounding_.step(rounding_.step(x(b, h, i, d) * inverse_length(x, b, h, i, call_)) * gain_of(gain, d));
  });
  return y;
}

// u = x r      du = dy gain      dx = r (du - u sum(u du) / n), n = D for rms and 1 for l2
Grid Positions::normed_back(const Grid& dy, const Grid& x, const std::vector<double>& gain) const {
  Grid dx = x;
  each(Grid(x.extents[0], x.extents[1], x.extents[2], 1), [&](Index b, Index h, Index i, Index) {
    const double r = inverse_length(x, b, h, i, call_);
    double dot = 0;
    for (Index d = 0; d < x.extents[3]; ++d) dot += x(b, h, i, d) * r * dy(b, h, i, d) * gain_of(gain, d);
    if (call_.norm == Norm::rms) dot /= static_cast<double>(x.extents[3]);
    for (Index d = 0; d < x.extents[3]; ++d)
      dx(b, h, i, d) = rounding_.step(r * (dy(b, h, i, d) * gain_of(gain, d) - x(b, h, i, d) * r * dot));
  });
  return dx;
}

Grid Positions::forward(const Grid& x, bool query) const {
  const std::vector<double>& gain = query ? call_.query_gain : call_.key_gain;
  Grid y = x;
  if (norms(query) && !wrong_.norm_after_turn) y = normed(y, gain);
  if (turns(query)) y = turned(y, query);
  if (norms(query) && wrong_.norm_after_turn) y = normed(y, gain);
  return y;
}

Grid Positions::backward(const Grid& dy, const Grid& x, bool query) const {
  const std::vector<double>& gain = query ? call_.query_gain : call_.key_gain;
  Grid dx = dy;
  if (norms(query) && wrong_.norm_after_turn) dx = normed_back(dx, turns(query) ? turned(x, query) : x, gain);
  if (turns(query)) dx = turned_back(dx, query);
  if (norms(query) && !wrong_.norm_after_turn) dx = normed_back(dx, x, gain);
  return dx;
}

Grid Positions::value() const {
  return wrong_.norm_value ? normed(call_.value, call_.key_gain) : call_.value;
}

Grid Positions::value_backward(const Grid& dy) const {
  return wrong_.norm_value ? normed_back(dy, call_.value, call_.key_gain) : dy;
}

}  // namespace tapehead::planted
