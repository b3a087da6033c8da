#pragma once
// A candidate's tensors against those of a formula.

#include <map>
#include <string>
#include <vector>

#include <tools/check/rounding_model.h>

namespace tapehead::check {

// Of two tensors, over the numbers that are judged. What is not finite is counted apart.
struct Difference {
  double max = 0, rms = 0;
  Index worst = -1;      // where max is; -1 when nothing differs
  Index first = -1;      // the first number past the tolerance, or not finite where the other is
  Index mismatches = 0;  // not finite in one of them, or not the same infinity
  Index count = 0;
  bool within = true;  // no mismatch, and max and rms within the tolerance
};

// Which numbers of a call's results are judged: not the log-sum-exp of rows without keys, which has no agreed
// value, nor rows past the end of the queries.
class Judged {
 public:
  // `right` holds the right results of the call.
  Judged(const Call& call, const Tensors& right);
  bool operator()(std::string_view name, Index place) const;

 private:
  Index H_, L_, S_, E_, projected_width_;  // the last is 0 when output is that of the heads
  std::vector<char> empty_, padded_;       // (B, H, L), (B, L)
  bool any_padded_ = false;
};

// Within the tolerance is what is no further off than `factor` times the noise.
Difference compare(const Array<double>& got, const Array<double>& formula, const Noise& noise, double factor,
                   const Judged& judged, std::string_view name);

double largest_finite(const Array<double>& x);

}  // namespace tapehead::check
