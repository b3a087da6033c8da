#pragma once
// What is done to query and key before the scores: a norm with gains, then a rotation; and back.

#include "tools/planted/wrong.h"

namespace tapehead::planted {

class Positions {
 public:
  Positions(const Call& call, const WrongPositions& wrong, const Rounding& rounding)
      : call_(call), wrong_(wrong), rounding_(rounding) {}

  Grid query() const { return forward(call_.query, true); }
  Grid key() const { return forward(call_.key, false); }
  Grid value() const;  // a norm of it is a mistake
  Grid query_backward(const Grid& dy) const { return backward(dy, call_.query, true); }
  Grid key_backward(const Grid& dy) const { return backward(dy, call_.key, false); }
  Grid value_backward(const Grid& dy) const;

 private:
  struct Pair {
    Index one, two;
    double angle_one, angle_two;
  };
  Grid forward(const Grid& x, bool query) const;
  Grid backward(const Grid& dy, const Grid& x, bool query) const;
  Grid turned(const Grid& x, bool query) const;
  Grid turned_back(const Grid& dy, bool query) const;
  Grid normed(const Grid& x, const std::vector<double>& gain) const;
  Grid normed_back(const Grid& dy, const Grid& x, const std::vector<double>& gain) const;
  double position(Index b, Index h, Index i, bool query) const;
  Pair pair(Index number, double position) const;
  bool turns(bool query) const { return call_.turn != Turn::none && (query ? wrong_.query : wrong_.key); }
  bool norms(bool query) const {
    return call_.norm != Norm::none && (query ? wrong_.norm_query : wrong_.norm_key);
  }

  const Call& call_;
  const WrongPositions& wrong_;
  const Rounding& rounding_;
};

}  // namespace tapehead::planted
