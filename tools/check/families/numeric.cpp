// What a type cannot hold, and what is not finite.

#include <algorithm>
#include <cmath>
#include <limits>

#include <tapehead/ops/rounding.h>
#include <tools/check/families/hypotheses.h>
#include <tools/check/number_types.h>

namespace tapehead::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

double largest(NumberType type) {
  switch (type) {
    case NumberType::f32:
      return std::numeric_limits<float>::max();
    case NumberType::bf16:
      return 0x1.FEp127;
    case NumberType::f16:
      return 65504;
    case NumberType::f64:
      break;
  }
  return std::numeric_limits<double>::max();
}

// Whether the candidate has NaN where there should be numbers.
bool lost_numbers(const Call& call, const Work& right, Part part) {
  for (const auto& [name, got] : call.candidate) {
    const Array<double>* ours = find(right.results, name);
    if (name.starts_with("grad_") != (part == Part::gradients) || !ours || ours->size() != got.size())
      continue;
    for (Index i = 0; i < got.size(); ++i) {
      if (std::isnan(got.data()[i]) && std::isfinite(ours->data()[i])) return true;
    }
  }
  return false;
}

// ---- finite numbers for blocked scores

// The conditions of a call, of which one or all may be made with a finite number.
std::vector<bool Conditions::*> conditions_of(const Call& call) {
  std::vector<bool Conditions::*> result;
  const Contract& c = call.contract;
  if (find(call.inputs, "mask")) result.push_back(&Conditions::mask);
  if (c.causal) result.push_back(&Conditions::causal);
  if (c.window_left || c.window_right) result.push_back(&Conditions::window);
  if (find(call.inputs, "key_lengths")) result.push_back(&Conditions::key_lengths);
  if (find(call.inputs, "query_lengths")) result.push_back(&Conditions::query_lengths);
  if (find(call.inputs, "query_segments")) result.push_back(&Conditions::segments);
  return result;
}

Conditions none_but(bool Conditions::*one) {
  Conditions result{false, false, false, false, false, false};
  if (one) result.*one = true;
  return result;
}
Conditions all_but(bool Conditions::*one) {
  Conditions result;
  if (!one) return none_but(nullptr);
  result.*one = false;
  return result;
}

enum class Blocking { replaced, added };

// A large number swallows what is added to it; a small one is rounded as any sum is.
double sum_in(NumberType type, double score, double number) {
  constexpr double small = 256;
  return std::abs(number) < small ? score + number : round_to(score + number, type);
}

// What `condition` (null: every one) blocks gets a finite score, and is seen.
Change finite_score(double number, Blocking how, bool Conditions::*condition) {
  return [=](Formula& f) {
    f.visibility = after(f.visibility, [=](Work& w) {
      const std::vector<char> allowed = w.visible;
      find_visible(w, all_but(condition));
      const bool added_before = w.call->mask_is_additive && find(w.inputs, "mask");
      for (std::size_t n = 0; n < allowed.size(); ++n) {
        if (allowed[n] || (condition && !w.visible[n])) continue;
        w.visible[n] = 1;
        const double score = added_before && !std::isfinite(w.scores.at[n]) ? w.capped.at[n] : w.scores.at[n];
        w.scores.at[n] = how == Blocking::replaced ? number : sum_in(w.contract.computed_in, score, number);
      }
    });
    if (how == Blocking::added) return;
    // A score that was replaced passes no gradient on.
    f.softmax_backward = after(f.softmax_backward, [=](Work& w) {
      for (std::size_t n = 0; n < w.scores.at.size(); ++n) {
        if (w.visible[n] && w.scores.at[n] == number) w.dscores.at[n] = 0;
      }
    });
  };
}

// Whether a row with allowed keys gives weight to others: what happens to rows without is a mistake of its
// own.
bool leaks(const Call& call, const Change& change) {
  Formula formula = formula_of(call);
  const Work right = evaluate(call, formula, false);
  change(formula);
  const Work wrong = evaluate(call, formula, false);
  for (std::size_t n = 0; n < right.weights.at.size(); ++n) {
    const Index row = static_cast<Index>(n) / call.S;
    if (right.log_sum_exp.at[place(row)] == -infinity) continue;
    if (!right.visible[n] && wrong.weights.at[n] > 2 * unit_roundoff(call.contract.computed_in)) return true;
  }
  return false;
}

void add_sentinels(const Call& call, Hypotheses& to) {
  std::vector<bool Conditions::*> which = conditions_of(call);
  if (which.empty()) return;
  if (which.size() > 1)
    which.insert(which.begin(), nullptr);
  else
    which = {nullptr};
  std::vector<double> starts = {
      -1e4, -1e3, -100, -65504, -1e5, -1e6, -1e9, -1e10, -largest(call.contract.computed_in)};
  for (double x = 1; x < 1000; x *= 1.5) starts.push_back(-x);
  const std::vector<double> named(starts.begin(), starts.begin() + 9);
  for (bool Conditions::*const condition : which) {
    for (const Blocking how : {Blocking::replaced, Blocking::added}) {
      const auto with = [=](double x) { return finite_score(x, how, condition); };
      const auto found = fit(call, with, starts, Part::results, true);
      if (!found || !leaks(call, with(found->number))) continue;
      double number = found->number;
      for (const double exact : named) {
        if (std::abs(number - exact) > 1e-3 * std::abs(exact)) continue;
        number = exact_if_as_good(call, with, *found, exact, Part::results);
      }
      to.push_back(hypothesis("sentinel-leak", "", with(number), {{"score of blocked keys", number}}));
      to.back().generic = true;
    }
  }
}

// What the scores of floored exponentials pass on: as if there were no floor, nothing where blocked, nothing.
enum class Slopes { all, seen, above_floor };

// e^(s - m) is at least `floor`; blocked keys have none, or that.
Change exponential_floor(double floor, bool of_blocked, Slopes slopes) {
  return [=](Formula& f) {
    f.softmax_backward = after(f.softmax_backward, [=](Work& w) {
      for (Index n = 0; n < w.dscores.shape.size() && slopes != Slopes::all; ++n) {
        const Index row = n / w.call->S;
        double& ds = w.dscores.at[place(n)];
        if (!w.visible[place(n)]) ds = 0;
        if (slopes == Slopes::seen || w.log_sum_exp.at[place(row)] == -infinity) continue;
        double lowest = infinity;
        for (Index j = 0; j < w.call->S; ++j) {
          const double p = w.weights.at[place(row * w.call->S + j)];
          if (p > 0) lowest = std::min(lowest, p);
        }
        if (w.weights.at[place(n)] == lowest) ds = 0;
      }
    });
    f.softmax = after(f.softmax, [=](Work& w) {
      const Array<double>* sink = find(w.inputs, "sink");
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        if (w.row_is_empty(b, h, i)) return;
        double most = sink ? sink->data()[h] : -infinity;
        for (Index j = 0; j < w.call->S; ++j) {
          if (w.sees(b, h, i, j)) most = std::max(most, w.scores(b, h, i, j));
        }
        double total = sink ? std::exp(sink->data()[h] - most) : 0;
        const double of_sink = total;
        for (Index j = 0; j < w.call->S; ++j) {
          double& p = w.weights(b, h, i, j);
          p = w.sees(b, h, i, j) ? std::exp(w.scores(b, h, i, j) - most) : 0;
          if (of_blocked || w.sees(b, h, i, j)) p = std::max(p, floor);
          total += p;
        }
        for (Index j = 0; j < w.call->S; ++j) w.weights(b, h, i, j) /= total;
        w.sink_share(b, h, i) = of_sink / total;
        w.log_sum_exp(b, h, i) = most + std::log(total);
      });
    });
  };
}

void add_floor(const Call& call, Hypotheses& to) {
  std::vector<double> starts;
  for (double x = 0.5; x < 40; x *= 1.3) starts.push_back(-x);
  for (const bool of_blocked : {true, false}) {
    const auto with = [=](double x, Slopes slopes) {
      return exponential_floor(std::exp(x), of_blocked, slopes);
    };
    const auto found = fit(
        call, [=](double x) { return with(x, Slopes::all); }, starts, Part::results, true);
    if (!found || (of_blocked && !leaks(call, with(found->number, Slopes::all)))) continue;
    for (const Slopes slopes : {Slopes::seen, Slopes::all, Slopes::above_floor}) {
      to.push_back(hypothesis("sentinel-leak", "", with(found->number, slopes),
                              {{"floor of the exponential", std::exp(found->number)}}));
      to.back().generic = true;
    }
  }
}

// ---- overflow

void set_row(Work& w, Index b, Index h, Index i, double number) {
  for (Index j = 0; j < w.call->S; ++j) w.weights(b, h, i, j) = number;
  w.log_sum_exp(b, h, i) = number;
}

// Each condition adds the lowest finite number to what it blocks.
void summed_masks(Formula& f) {
  f.visibility = after(f.visibility, [](Work& w) {
    const NumberType type = w.contract.computed_in;
    Work one = w;
    for (bool Conditions::*const condition : conditions_of(*w.call)) {
      find_visible(one, none_but(condition));
      for (std::size_t n = 0; n < one.visible.size(); ++n) {
        if (!one.visible[n]) w.scores.at[n] = round_to(w.scores.at[n] - largest(type), type);
      }
    }
    std::fill(w.visible.begin(), w.visible.end(), char{1});
    for (std::size_t n = 0; n < w.visible.size(); ++n) w.visible[n] = w.scores.at[n] != -infinity;
  });
  f.softmax = after(f.softmax, [](Work& w) {
    for_each_row(*w.call, [&](Index b, Index h, Index i) {
      if (w.row_is_empty(b, h, i)) set_row(w, b, h, i, nan);
    });
  });
}

bool without_keys(const Work& w) {
  return std::any_of(w.log_sum_exp.at.begin(), w.log_sum_exp.at.end(),
                     [](double x) { return x == -infinity; });
}

// (1 - mask) times a constant that the type takes for infinity: 0 inf is not a number, in any row.
void no_numbers(Formula& f) {
  f.softmax = after(f.softmax, [](Work& w) {
    for_each_row(*w.call, [&](Index b, Index h, Index i) { set_row(w, b, h, i, nan); });
  });
}

// q.k, also after the scale, as the type holds it.
Change rounded_scores(bool scaled_first) {
  return [=](Formula& f) {
    Step Formula::*const step = scaled_first ? &Formula::scale : &Formula::products;
    f.*step = after(f.*step, [=](Work& w) {
      Numbers& scores = scaled_first ? w.scaled : w.products;
      for (double& x : scores.at) {
        const double rounded = round_to(x, w.contract.computed_in);
        if (!std::isfinite(rounded)) x = rounded;
      }
    });
    f.softmax = after(f.softmax, [](Work& w) {
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        for (Index j = 0; j < w.call->S; ++j) {
          const double s = w.scores(b, h, i, j);
          if (w.sees(b, h, i, j) && (s == infinity || std::isnan(s))) return set_row(w, b, h, i, nan);
        }
        // all that it sees is minus infinity
        if (std::isnan(w.log_sum_exp(b, h, i))) set_row(w, b, h, i, nan);
      });
    });
  };
}

// e^s without the largest score subtracted, in the type: inf / inf, x / inf and 0 / 0. The sum may have been
// kept in a wider type; where it is a number, the powers, too.
Change unshifted_exponentials(bool rounded, bool wide_sum) {
  return [=](Formula& f) {
    f.softmax_backward = after(f.softmax_backward, [](Work& w) {
      for (std::size_t n = 0; n < w.weights.at.size(); ++n) {
        if (std::isnan(w.weights.at[n])) w.dscores.at[n] = nan;
      }
    });
    f.softmax = after(f.softmax, [=](Work& w) {
      const NumberType type = w.contract.computed_in;
      const Array<double>* sink = find(w.inputs, "sink");
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        if (w.row_is_empty(b, h, i)) return;
        double total = sink ? round_to(std::exp(sink->data()[h]), type) : 0;
        for (Index j = 0; j < w.call->S; ++j) {
          if (!w.sees(b, h, i, j)) continue;
          total += round_to(std::exp(w.scores(b, h, i, j)), type);
          if (!wide_sum) total = round_to(total, type);
        }
        if (std::isfinite(total) && total > 0 && !rounded) return;
        for (Index j = 0; j < w.call->S; ++j) {
          if (w.sees(b, h, i, j))
            w.weights(b, h, i, j) = round_to(std::exp(w.scores(b, h, i, j)), type) / total;
        }
        w.log_sum_exp(b, h, i) = std::log(total);
      });
    });
  };
}

bool makes_every_empty_row_nan(const Work& right, const Work& wrong) {
  for (std::size_t row = 0; row < right.log_sum_exp.at.size(); ++row) {
    if (right.log_sum_exp.at[row] == -infinity && !std::isnan(wrong.log_sum_exp.at[row])) return false;
  }
  return true;
}

// Whether a key of a row without keys is lost, and others are not.
bool loses_keys(const Work& right, const Work& wrong) {
  const std::size_t keys = right.weights.at.size() / std::max<std::size_t>(right.log_sum_exp.at.size(), 1);
  for (std::size_t n = 0; n < wrong.visible.size(); ++n) {
    if (right.log_sum_exp.at[n / keys] == -infinity && !wrong.visible[n]) return true;
  }
  return false;
}

void add_mask_sum(const Call& call, const Work& right, Hypotheses& to,
                  const std::function<void(const char*)>& add_nan_rows) {
  Formula formula = formula_of(call);
  summed_masks(formula);
  const Work wrong = evaluate(call, formula, false);
  if (makes_every_empty_row_nan(right, wrong)) return add_nan_rows("mask-sum");
  if (loses_keys(right, wrong)) to.push_back(hypothesis("low-precision-overflow", "mask-sum", summed_masks));
}

void add_overflow(const Call& call, const Work& right, Hypotheses& to) {
  const auto add = [&](const char* variant, Change change) {
    to.push_back(hypothesis("low-precision-overflow", variant, std::move(change)));
  };
  // What makes NaN of the rows without keys, in the forward pass and back, is known in another family.
  const auto add_nan_rows = [&](const char* variant) {
    for (Hypothesis& h : mask_mistakes(call)) {
      if (h.mistake == find_mistake("allmasked-row", "nan")) add(variant, std::move(h.change));
    }
  };
  const std::size_t conditions = conditions_of(call).size();
  const bool empty = without_keys(right), narrow = call.contract.computed_in == NumberType::f16;
  if (conditions > 1 && empty) add_mask_sum(call, right, to, add_nan_rows);
  if (narrow && conditions > 0) add("constant", no_numbers);
  if (narrow && conditions > 0 && empty) add_nan_rows("constant");
  if (call.contract.computed_in == NumberType::f64 || !lost_numbers(call, right, Part::results)) return;
  add("scores", rounded_scores(false));
  add("scores", rounded_scores(true));
  for (const bool rounded : {false, true}) {
    for (const bool wide_sum : {false, true}) add("scores", unshifted_exponentials(rounded, wide_sum));
  }
}

// ---- what is not finite in blocked places

bool finite(const Numbers& x) {
  return std::all_of(x.at.begin(), x.at.end(), [](double v) { return std::isfinite(v); });
}

double dot(const double* x, const double* y, Index n) {
  double sum = 0;
  for (Index d = 0; d < n; ++d) sum += x[d] * y[d];
  return sum;
}

// In the backward pass 0 meets what is not finite in a blocked key or value.
void poisoned_backward(Formula& f) {
  f.softmax_backward = after(f.softmax_backward, [](Work& w) {
    for_each_row(*w.call, [&](Index b, Index h, Index i) {
      for (Index j = 0; j < w.call->S; ++j) {
        const double dp = dot(&w.doutput(b, h, i, 0), &w.value(b, w.key_head[place(h)], j, 0), w.call->E);
        if (std::isfinite(dp)) continue;
        for (Index k = 0; k < w.call->S; ++k) w.dscores(b, h, i, k) = nan;
        w.dsink[place(h)] = nan;
      }
    });
  });
  f.products_backward = after(f.products_backward, [](Work& w) {
    for_each_row(*w.call, [&](Index b, Index h, Index i) {
      for (Index j = 0; j < w.call->S; ++j) {
        const Index g = w.key_head[place(h)];
        for (Index d = 0; d < w.call->D; ++d) {
          if (!std::isfinite(w.key(b, g, j, d)))
            w.dquery(b, h, i, d) += w.dproducts(b, h, i, j) * w.key(b, g, j, d);
        }
      }
    });
  });
}

// 0 times what is not finite joins: v in the output, a score of a blocked key in its row.
Change poisoned(bool by_values, bool by_scores) {
  return [=](Formula& f) {
    poisoned_backward(f);
    if (by_scores) {
      f.softmax = after(f.softmax, [](Work& w) {
        for_each_row(*w.call, [&](Index b, Index h, Index i) {
          for (Index j = 0; j < w.call->S; ++j) {
            const double z = dot(&w.query(b, h, i, 0), &w.key(b, w.key_head[place(h)], j, 0), w.call->D);
            if (!w.sees(b, h, i, j) && !std::isfinite(z)) return set_row(w, b, h, i, nan);
          }
        });
      });
    }
    if (!by_values) return;
    f.values = after(f.values, [](Work& w) {
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        for (Index j = 0; j < w.call->S; ++j) {
          for (Index e = 0; e < w.call->E; ++e) {
            const double v = w.value(b, w.key_head[place(h)], j, e);
            if (!std::isfinite(v)) w.output(b, h, i, e) += w.dropped(b, h, i, j) * v;
          }
        }
      });
    });
  };
}

// Rows without keys: 0 was selected in the forward pass, and its other branch is differentiated.
void empty_rows_backward(Formula& f) {
  f.softmax_backward = after(f.softmax_backward, [](Work& w) {
    for_each_row(*w.call, [&](Index b, Index h, Index i) {
      if (!w.row_is_empty(b, h, i)) return;
      for (Index j = 0; j < w.call->S; ++j) w.dscores(b, h, i, j) = nan;
    });
  });
}

void add_not_finite(const Call& call, const Work& right, Hypotheses& to) {
  const bool in_values = !finite(right.value), in_keys = !finite(right.key) || !finite(right.query);
  if (lost_numbers(call, right, Part::results)) {
    const auto add = [&](Change change) {
      to.push_back(hypothesis("nan-from-masked", "forward", std::move(change)));
    };
    if (in_values) add(poisoned(true, false));
    if (in_keys) add(poisoned(false, true));
    if (in_values && in_keys) add(poisoned(true, true));
  }
  if (right.dquery.empty() || !lost_numbers(call, right, Part::gradients)) return;
  if (in_values || in_keys) to.push_back(backward_hypothesis("nan-from-masked", "where", poisoned_backward));
  if (without_keys(right)) to.push_back(backward_hypothesis("nan-from-masked", "where", empty_rows_backward));
}

}  // namespace

Hypotheses numeric_mistakes(const Call& call) {
  Hypotheses result;
  const Work right = evaluate(call, formula_of(call));
  add_sentinels(call, result);
  add_floor(call, result);
  add_overflow(call, right, result);
  add_not_finite(call, right, result);
  return result;
}

}  // namespace tapehead::check
