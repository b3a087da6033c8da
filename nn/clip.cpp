#include <tapehead/core/parallel.h>
#include <tapehead/nn/clip.h>
#include <tapehead/nn/option_checks.h>

#include <algorithm>
#include <numeric>

namespace tapehead {
namespace {

// Independent partial sums, which the compiler can keep in vector registers.
template <class T>
double squares(std::span<const T> x) {
  constexpr std::size_t lanes = 8;
  double lane[lanes] = {};
  std::size_t i = 0;
  for (; i + lanes <= x.size(); i += lanes) {
    for (std::size_t k = 0; k < lanes; ++k) {
      const auto value = static_cast<double>(x[i + k]);
      lane[k] += value * value;
    }
  }
  for (; i < x.size(); ++i) lane[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::accumulate(lane, lane + lanes, 0.0);
}

template <class T>
double sum_of_squares(const Array<T>& x) {
  constexpr Index grain = elementwise_grain;
  std::vector<double> parts(static_cast<std::size_t>((x.size() + grain - 1) / grain));
  parallel_for(x.size(), grain, [&](Index begin, Index end) {
    const auto from = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
    parts[static_cast<std::size_t>(begin / grain)] = squares(x.values().subspan(from, count));
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

template <class T>
void scale(std::span<T> x, T factor) {
  parallel_for(static_cast<Index>(x.size()), elementwise_grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) x[static_cast<std::size_t>(i)] *= factor;
  });
}

[[noreturn]] void fail_for_norm(const char* op, const std::vector<double>& sums, double norm) {
  const auto blamed = std::find_if(sums.begin(), sums.end(), [](double sum) { return !std::isfinite(sum); });
  std::ostringstream text;
  text << "the norm is " << norm << ", not finite";
  if (blamed != sums.end()) text << ": first in gradient " << blamed - sums.begin();
  throw DomainError(op, text.str());
}

template <class T>
std::vector<double> sums_of_squares(const std::vector<Array<T>>& arrays) {
  std::vector<double> sums;
  for (const Array<T>& array : arrays) sums.push_back(sum_of_squares(array));
  return sums;
}

double norm_of(const std::vector<double>& sums) {
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

}  // namespace

template <std::floating_point T>
double global_norm(const std::vector<Array<T>>& arrays) {
  return norm_of(sums_of_squares(arrays));
}

template <std::floating_point T>
double clip_global_norm(std::vector<Array<T>>& gradients, double most, const ClipOptions& options) {
  detail::require_not_negative("clip_global_norm", "most", most);
  const std::vector<double> sums = sums_of_squares(gradients);
  const double norm = norm_of(sums);
  if (!std::isfinite(norm) && !options.allow_nonfinite) fail_for_norm("clip_global_norm", sums, norm);
  const double factor = most / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (Array<T>& gradient : gradients) scale(gradient.mutable_values(), static_cast<T>(factor));
  return norm;
}

template double global_norm(const std::vector<Array<float>>&);
template double global_norm(const std::vector<Array<double>>&);
template double clip_global_norm(std::vector<Array<float>>&, double, const ClipOptions&);
template double clip_global_norm(std::vector<Array<double>>&, double, const ClipOptions&);

}  // namespace tapehead
