#pragma once
// What the families share: mistakes as changed steps, and numbers fitted to a candidate.

#include <optional>
#include <span>

#include <tools/check/mistake.h>

namespace tapehead::check {

using Hypotheses = std::vector<Hypothesis>;

using Change = std::function<void(Formula&)>;

// Throws LogicError for a mistake that is not in the table.
Hypothesis hypothesis(std::string_view id, std::string_view variant, Change change,
                      std::map<std::string, double> fitted = {});
Hypothesis backward_hypothesis(std::string_view id, std::string_view variant, Change change,
                               std::map<std::string, double> fitted = {});

Step after(Step first, Step second);
// The step with contract and inputs changed; both are put back behind it.
Step within(Step change, Step step);

// The tensors of a candidate that are fitted: what attention gives, or its gradients.
enum class Part { results, gradients };

// What a formula gives, less what the candidate gave, each tensor relative to the candidate's largest number;
// 0 where either is not finite. Row-major, tensor after tensor.
std::vector<double> residual(const Call& call, const Change& change, Part part);
double sum_of_squares(std::span<const double> x);

struct Fit {
  double number = 0;
  double left = 0;  // sum of squares of the residual
};
// The number whose formula comes nearest to the candidate: the best of `starts`, then Gauss-Newton steps as
// long as they help; without `refine` the best of them. Nothing when right is as near. Of a part of a large
// call the number is found on some of the heads, for which it must be the same.
std::optional<Fit> fit(const Call& call, const std::function<Change(double)>& change,
                       std::span<const double> starts, Part part, bool refine);

// The same on all heads, for a number of one of them.
std::optional<Fit> fit_on_all_heads(const Call& call, const std::function<Change(double)>& change,
                                    std::span<const double> starts, Part part, bool refine);

// `exact` when it leaves about as little as the fitted number, which it stands for; else the fitted one.
double exact_if_as_good(const Call& call, const std::function<Change(double)>& change, const Fit& fitted,
                        double exact, Part part);

// The nearest of several, as an index. Nothing when right is as near. On some of the heads, as `fit`.
std::optional<std::size_t> nearest(const Call& call, std::span<const Change> changes, Part part);

// A tensor of either kind, null when there is none.
const Array<double>* find(const Tensors& tensors, std::string_view name);

inline std::size_t place(Index i) { return static_cast<std::size_t>(i); }

// Calls f(b, h, i) for each row of scores.
template <class F>
void for_each_row(const Call& call, F f) {
  for (Index b = 0; b < call.B; ++b) {
    for (Index h = 0; h < call.H; ++h) {
      for (Index i = 0; i < call.L; ++i) f(b, h, i);
    }
  }
}

}  // namespace tapehead::check
