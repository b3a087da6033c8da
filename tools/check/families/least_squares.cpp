#include <tools/check/families/least_squares.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace tapehead::check {
namespace {

// A = L L^T in the lower triangle. A ridge keeps what the equations do not determine at 0.
class Cholesky {
 public:
  explicit Cholesky(std::vector<double> a, std::size_t n) : a_(std::move(a)), n_(n) {
    double largest = 0;
    for (std::size_t i = 0; i < n_; ++i) largest = std::max(largest, at(i, i));
    for (std::size_t i = 0; i < n_; ++i) at(i, i) += 1e-13 * largest + 1e-300;
    for (std::size_t j = 0; j < n_; ++j) {
      for (std::size_t k = 0; k < j; ++k) {
        for (std::size_t i = j; i < n_; ++i) at(i, j) -= at(i, k) * at(j, k);
      }
      const double root = std::sqrt(std::max(at(j, j), 1e-300));
      for (std::size_t i = j; i < n_; ++i) at(i, j) /= root;
    }
  }
  std::vector<double> solve(std::vector<double> b) const {
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t k = 0; k < i; ++k) b[i] -= at(i, k) * b[k];
      b[i] /= at(i, i);
    }
    for (std::size_t i = n_; i-- > 0;) {
      for (std::size_t k = i + 1; k < n_; ++k) b[i] -= at(k, i) * b[k];
      b[i] /= at(i, i);
    }
    return b;
  }

 private:
  double& at(std::size_t i, std::size_t j) { return a_[i * n_ + j]; }
  double at(std::size_t i, std::size_t j) const { return a_[i * n_ + j]; }
  std::vector<double> a_;
  std::size_t n_;
};

double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

double distance(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
  return sum;
}

// Each set differs from the one before in one term.
std::vector<char> nearest_of_all_sets(const std::vector<std::vector<double>>& terms,
                                      const std::vector<double>& y) {
  std::vector<char> kept(terms.size(), 0), best = kept;
  std::vector<double> sum(y.size(), 0);
  double least = distance(sum, y);
  for (std::size_t count = 1; count < std::size_t{1} << terms.size(); ++count) {
    const auto flipped = static_cast<std::size_t>(std::countr_zero(count));
    const double sign = kept[flipped] ? -1 : 1;
    kept[flipped] = !kept[flipped];
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sign * terms[flipped][i];
    if (const double off = distance(sum, y); off < least) least = off, best = kept;
  }
  return best;
}

constexpr const char* by_head[] = {"grad_query", "grad_key", "grad_value"};

// The numbers of one sample and key head in those gradients, in units of the candidate's largest.
class Equations {
 public:
  Equations(const Call& call, const std::vector<Index>& key_head) : key_head_(key_head) {
    for (const char* name : by_head) {
      double& unit = units_.emplace_back(0);
      if (const Array<double>* got = find(call.candidate, name); got && got->rank() == 4) {
        for (const double x : got->values()) unit = std::max(unit, std::isfinite(x) ? std::abs(x) : 0);
      }
    }
  }
  std::vector<double> of(const Tensors& tensors, Index b, Index g) const {
    std::vector<double> result;
    for (std::size_t n = 0; n < units_.size(); ++n) {
      const Array<double>* x = find(tensors, by_head[n]);
      if (units_[n] == 0 || !x) continue;
      const Index heads = x->dim(1), each = x->dim(2) * x->dim(3);
      for (Index h = 0; h < heads; ++h) {
        if ((n == 0 ? key_head_[place(h)] : h) != g) continue;
        for (Index i = 0; i < each; ++i) {
          const double number = x->data()[(b * heads + h) * each + i] / units_[n];
          result.push_back(std::isfinite(number) ? number : 0);
        }
      }
    }
    return result;
  }

 private:
  const std::vector<Index>& key_head_;
  std::vector<double> units_;
};

Tensors gradients_with(const Call& call, const Change& change) {
  Formula formula = formula_of(call);
  change(formula);
  return evaluate(call, formula).results;
}

}  // namespace

std::vector<double> least_squares(const std::vector<std::vector<double>>& columns, std::vector<double> y) {
  const std::size_t n = columns.size();
  std::vector<double> products(n * n), x(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) products[i * n + j] = dot(columns[i], columns[j]);
  }
  const Cholesky factor(std::move(products), n);
  constexpr int refinements = 3;
  for (int step = 0; step <= refinements; ++step) {
    std::vector<double> along(n);
    for (std::size_t i = 0; i < n; ++i) along[i] = dot(columns[i], y);
    const std::vector<double> more = factor.solve(std::move(along));
    for (std::size_t i = 0; i < n; ++i) {
      x[i] += more[i];
      for (std::size_t m = 0; m < y.size(); ++m) y[m] -= more[i] * columns[i][m];
    }
  }
  return x;
}

std::optional<std::vector<char>> nearest_sum(const std::vector<std::vector<double>>& terms,
                                             const std::vector<double>& y, int bits) {
  constexpr std::size_t all_sets_up_to = 10;
  constexpr double in_the_noise = 2, to_spare = 8;  // bits: another set fits by chance once in 256
  const std::size_t n = terms.size();
  const double known = static_cast<double>(y.size()) * (bits - in_the_noise);
  if (known < static_cast<double>(n) + to_spare || (n > all_sets_up_to && n > y.size())) return std::nullopt;
  if (n <= all_sets_up_to) return nearest_of_all_sets(terms, y);
  std::vector<char> kept;
  for (const double x : least_squares(terms, y)) kept.push_back(x > 0.5);
  return kept;
}

std::optional<Numbers> solve_by_head(const Call& call, Index count,
                                     const std::function<Change(const Numbers&)>& with) {
  constexpr Index most = 256, enough = 3;  // equations for two unknowns
  const Index group = call.Hk > 0 ? call.H / call.Hk : 0;
  if (count < 1 || count > most) return std::nullopt;
  Numbers numbers({call.B, call.Hk, count});
  const Work start = evaluate(call, formula_of(call));
  const Equations equations(call, start.key_head);
  const Index number_of_equations = static_cast<Index>(equations.of(call.candidate, 0, 0).size());
  if (2 * number_of_equations < enough * count ||
      count * number_of_equations * call.B * call.Hk > 8'000'000 || group < 1) {
    return std::nullopt;
  }
  const Tensors base = gradients_with(call, with(numbers));
  std::vector<Tensors> units;
  for (Index n = 0; n < count; ++n) {
    Numbers one(numbers.shape);
    for (Index at = n; at < numbers.shape.size(); at += count) one.at[place(at)] = 1;
    units.push_back(gradients_with(call, with(one)));
  }
  for (Index b = 0; b < call.B; ++b) {
    for (Index g = 0; g < call.Hk; ++g) {
      const std::vector<double> at_zero = equations.of(base, b, g);
      const auto less = [&](std::vector<double> x) {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] -= at_zero[i];
        return x;
      };
      std::vector<std::vector<double>> columns;
      for (const Tensors& unit : units) columns.push_back(less(equations.of(unit, b, g)));
      const auto solution = least_squares(columns, less(equations.of(call.candidate, b, g)));
      std::copy(solution.begin(), solution.end(), numbers.at.begin() + (b * call.Hk + g) * count);
    }
  }
  return numbers;
}

}  // namespace tapehead::check
