#include <tools/check/compare.h>

#include <algorithm>
#include <cmath>

namespace tapehead::check {
namespace {

bool same_non_finite(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

}  // namespace

double largest_finite(const Array<double>& x) {
  double largest = 0;
  for (const double v : x.values()) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  return largest;
}

Judged::Judged(const Call& call, const Tensors& right)
    : H_(call.H), L_(call.L), S_(call.S), E_(call.E), projected_width_(0) {
  const Array<double>& output = right.find("output")->second;
  if (output.rank() == 3) projected_width_ = output.dim(-1);
  for (const double lse : right.find("lse")->second.values()) empty_.push_back(std::isinf(lse) && lse < 0);
  const auto lengths = call.inputs.find("query_lengths");
  for (Index b = 0; b < call.B; ++b) {
    for (Index i = 0; i < L_; ++i) {
      const Index row = call.rows.empty() ? i : call.rows[static_cast<std::size_t>(i)];
      const bool padded =
          lengths != call.inputs.end() && static_cast<double>(row) >= lengths->second.data()[b];
      padded_.push_back(padded);
      any_padded_ = any_padded_ || padded;
    }
  }
}

bool Judged::operator()(std::string_view name, Index place) const {
  if (name != "lse" && !any_padded_) return true;
  const bool of_heads = name == "weights" || name == "lse" || (name == "output" && projected_width_ == 0);
  if (!of_heads && name != "output") return true;
  const Index width = name == "lse"          ? 1
                      : name == "weights"    ? S_
                      : projected_width_ > 0 ? projected_width_
                                             : E_;
  const Index row = place / width;
  if (!of_heads) return !padded_[static_cast<std::size_t>(row)];
  if (name == "lse" && empty_[static_cast<std::size_t>(row)]) return false;
  return !padded_[static_cast<std::size_t>(row / (H_ * L_) * L_ + row % L_)];
}

Difference compare(const Array<double>& got, const Array<double>& formula, const Noise& noise, double factor,
                   const Judged& judged, std::string_view name) {
  Difference d;
  double sum = 0;
  for (Index n = 0; n < formula.size(); ++n) {
    if (!judged(name, n)) continue;
    const double x = got.data()[n], y = formula.data()[n], off = std::abs(x - y);
    ++d.count;
    if (std::isfinite(off)) {
      sum += off * off;
      if (off > d.max) d.max = off, d.worst = n;
    } else if (!same_non_finite(x, y)) {
      ++d.mismatches;
    } else {
      continue;
    }
    if (d.first < 0 && !(off <= factor * noise.max)) d.first = n;
  }
  d.rms = std::sqrt(sum / static_cast<double>(std::max<Index>(d.count, 1)));
  d.within = d.mismatches == 0 && d.max <= factor * noise.max && d.rms <= factor * noise.rms;
  return d;
}

}  // namespace tapehead::check
