#include <algorithm>

#include <tools/contract/claims.h>
#include <tools/contract/draw.h>

namespace tapehead::contract {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// With key 0 all zeros, whose score is then 0.
Problem with_zero_key(Problem p) {
  p.key = mapped(p.key, [&](Index n, double v) { return n / p.width() % p.keys() == 0 ? 0 : v; });
  return p;
}

// y = x A over the last axis.
Array<double> times(const Array<double>& x, const Array<double>& a) {
  const Index rows = a.dim(0), columns = a.dim(1);
  auto y = Array<double>::zeros(x.shape().with(3, columns));
  double* out = y.mutable_values().data();
  for (Index n = 0; n < y.size(); ++n) {
    for (Index d = 0; d < rows; ++d) out[n] += x.data()[n / columns * rows + d] * a(d, n % columns);
  }
  return y;
}

// I - 2 v v^T / (v . v): orthogonal, and far from I.
Array<double> reflection(std::uint64_t seed, Index n) {
  Generator random(seed);
  const Array<double> v = drawn(random, {n});
  double square = 0;
  for (const double x : v.values()) square += x * x;
  return mapped(Array<double>::eye(n),
                [&](Index i, double one) { return one - 2 * v(i / n) * v(i % n) / square; });
}

// I + u^T v, and (I - u^T v / (1 + u . v))^T, its inverse transposed (Sherman and Morrison).
struct Change {
  Array<double> matrix, inverse_transposed;
};
Change invertible(std::uint64_t seed, Index n) {
  Generator random(seed);
  const Array<double> u = random.uniform<double>({n}), v = random.uniform<double>({n});
  double product = 1;
  for (Index d = 0; d < n; ++d) product += u(d) * v(d);
  const Array<double> one = Array<double>::eye(n);
  return {mapped(one, [&](Index i, double x) { return x + u(i / n) * v(i % n); }),
          mapped(one, [&](Index i, double x) { return x - u(i % n) * v(i / n) / product; })};
}

void compare_weights(Trial& trial, const Problem& before, const Problem& after) {
  const Run changed = trial.run(showing_weights(after));
  trial.compare("weight", changed.answer.output, trial.run(showing_weights(before)).answer.output,
                trial.rounding(before) + trial.rounding(after));
}

}  // namespace

void row_sums(Trial& trial) {
  auto sums = [&](std::string_view name, const Problem& problem) {
    trial.part(name, [&] {
      const Run run = trial.run(showing_weights(problem));
      const Array<double>& w = run.answer.output;
      const Index S = problem.keys();
      auto total = Array<double>::zeros(w.shape().with(3, 1));
      for (Index n = 0; n < w.size(); ++n) {
        total.mutable_values()[at(n / S)] += w.data()[n];
        if (w.data()[n] < 0) trial.require(false, fmt::format("a weight is {:.7g}", w.data()[n]));
      }
      // However far off weights are, the same sum divides them all.
      trial.compare("sum of a row", total, Array<double>::ones(total.shape()),
                    trial.unit() * (2 * static_cast<double>(S) + 16));
    });
  };
  Problem p = drawn_problem(41, {.batches = 2, .queries = 3, .keys = 5});
  sums("3 x 5", p);
  sums("5 x 5 causal", [] {
    Problem c = drawn_problem(42, {.queries = 5, .keys = 5});
    c.causal = true;
    return c;
  }());
  p.lengths = {2, 5};
  sums("lengths", p);
  sums("200 keys", drawn_problem(43, {.queries = 2, .keys = 200}));
  sums("6 heads over 2", drawn_problem(44, {.heads = 6, .key_heads = 2}));
}

// log(w[j] / w[0]) = score[j] - score[0], and key 0 has score 0.
void scale(Trial& trial) {
  auto ratios = [&](std::string_view name, std::optional<double> scale) {
    trial.part(name, [&] {
      Problem p = showing_weights(with_zero_key(
          drawn_problem(45, {.batches = 2, .heads = 3, .key_heads = 3, .queries = 4, .keys = 6})));
      p.scale = scale;
      const Run run = trial.run(p);
      const Array<double>& w = run.answer.output;
      const Index S = p.keys();
      const Array<double> got =
          mapped(w, [&](Index n, double x) { return std::log(x / w.data()[n / S * S]); });
      trial.compare("log-ratio of weights", got, scores_of(p), 4 * trial.rounding(p));
    });
  };
  ratios("1 / sqrt(D)", {});
  ratios("0.3", 0.3);
  ratios("1", 1);
  ratios("-0.5", -0.5);
}

// The sample variance of 5,000 numbers has a relative standard error of 2 to 3 %, so 15 % are five of them.
void unit_variance(Trial& trial) {
  for (const Index D : {8, 32, 128}) {
    trial.part(fmt::format("D = {}", D), [&] {
      Problem p = with_zero_key(drawn_problem(46, {.batches = 5000, .queries = 1, .keys = 2, .width = D}));
      const Run run = trial.run(showing_weights(p));
      const double* w = run.answer.output.data();
      double sum = 0, squares = 0;
      for (Index b = 0; b < p.batches(); ++b) {
        const double score = std::log(w[2 * b + 1] / w[2 * b]);
        sum += score, squares += score * score;
      }
      const auto count = static_cast<double>(p.batches());
      const double variance = squares / count - sum / count * (sum / count);
      trial.within(std::abs(variance - 1), 0.15,
                   fmt::format("the variance at D = {} is {:.4g}", D, variance));
    });
  }
}

void basis_changes(Trial& trial) {
  const Problem p = drawn_problem(51, {.batches = 2, .queries = 3, .keys = 5});
  trial.part("orthogonal, of queries and keys", [&] {
    const Array<double> r = reflection(52, p.width());
    Problem changed = p;
    changed.query = times(p.query, r), changed.key = times(p.key, r);
    compare_weights(trial, p, changed);
  });
  trial.part("invertible, with its inverse transpose", [&] {
    const Change change = invertible(53, p.width());
    Problem changed = p;
    changed.query = times(p.query, change.matrix), changed.key = times(p.key, change.inverse_transposed);
    compare_weights(trial, p, changed);
  });
  trial.part("of values", [&] {
    const Array<double> r = reflection(54, p.value_width());
    Problem changed = p;
    changed.value = times(p.value, r);
    const Run run = trial.run(changed);
    trial.compare("output", run.answer.output, times(trial.run(p).answer.output, r),
                  2 * trial.rounding(p) * magnitudes(p).output * static_cast<double>(p.value_width()));
  });
}

void permutations(Trial& trial) {
  const Problem p =
      with_upstream(drawn_problem(55, {.batches = 2, .heads = 2, .key_heads = 2, .queries = 5, .keys = 7}));
  const std::vector<Index> rows = {4, 2, 0, 1, 3}, keys = {6, 3, 0, 5, 1, 2, 4};
  auto compare = [&](const char* what, bool gradients) {
    Problem before = p, after = p;
    after.query = rows_of(p.query, rows), after.upstream = rows_of(p.upstream, rows);
    after.key = rows_of(p.key, keys), after.value = rows_of(p.value, keys);
    if (!gradients) before.upstream = after.upstream = {};
    const Answer a = trial.run(before).answer;
    Answer expected = {rows_of(a.output, rows)};
    if (gradients) {
      expected.dquery = rows_of(a.dquery, rows);
      expected.dkey = rows_of(a.dkey, keys), expected.dvalue = rows_of(a.dvalue, keys);
    }
    trial.compare_answers(trial.run(after), what, expected);
  };
  trial.part("queries and keys mixed", [&] { compare(" of mixed rows", false); });
  trial.gradients("the same", [&] { compare(" of mixed rows", true); });
}

void shifted_keys(Trial& trial) {
  trial.part("5 positions", [&] {
    const Index n = 5;
    Problem p;
    p.query = reflection(56, n).reshape({1, 1, n, n});
    p.key = rows_of(p.query, {4, 0, 1, 2, 3});
    p.scale = 8;
    const Run run = trial.run(showing_weights(p));
    for (Index i = 0; i < n; ++i) {
      const double* w = run.answer.output.data() + i * n;
      const Index best = std::max_element(w, w + n) - w;
      trial.require(best == (i + 1) % n, fmt::format("query {} finds key {}", i, best));
    }
  });
}

// Of all distributions r over the keys, sum r s - sum r log r is largest for softmax(s), where it is
// log sum exp(s).
void maximum_entropy(Trial& trial) {
  auto value_of = [](const double* r, const double* s, Index count) {
    double value = 0;
    for (Index j = 0; j < count; ++j) value += r[j] > 0 ? r[j] * (s[j] - std::log(r[j])) : 0;
    return value;
  };
  auto beats_samples = [&](double temperature) {
    Problem p = drawn_problem(57, {.queries = 3, .keys = 7});
    p.scale = p.scale_in_force() / temperature;
    const Run run = trial.run(showing_weights(p));
    const Array<double> scores = scores_of(p);
    Generator random(58);
    const double bound = 4 * trial.rounding(p);
    for (Index i = 0; i < p.queries(); ++i) {
      const double *w = run.answer.output.data() + i * 7, *s = scores.data() + i * 7;
      const double own = value_of(w, s, 7);
      double sum = 0;
      for (Index j = 0; j < 7; ++j) sum += std::exp(s[j]);
      trial.within(std::abs(own - std::log(sum)), bound,
                   fmt::format("row {} reaches {:.7g}, and {:.7g} is possible", i, own, std::log(sum)));
      for (int sample = 0; sample < 500; ++sample) {
        double r[7], total = 0;
        // Half of them near the weights, half anywhere.
        for (Index j = 0; j < 7; ++j) {
          total += r[j] =
              sample % 2 ? w[j] * std::exp(0.1 * random.normal()) : -std::log(1 - random.uniform());
        }
        for (double& x : r) x /= total;
        trial.within(std::max(0.0, value_of(r, s, 7) - own), bound,
                     fmt::format("row {} reaches {:.7g}, and {:.7g} is possible", i, own, value_of(r, s, 7)));
      }
    }
  };
  trial.part("temperature 1", [&] { beats_samples(1); });
  trial.part("temperature 3", [&] { beats_samples(3); });
}

// u added to every key adds q . u to every score of a row.
void row_constants(Trial& trial) {
  auto shifted = [&](Problem p) {
    auto eighths = [](Index, double v) { return std::round(8 * v) / 8; };
    p.query = mapped(p.query, eighths), p.key = mapped(p.key, eighths);
    return p;
  };
  const Problem p = shifted(drawn_problem(61, {.batches = 2, .queries = 4, .keys = 9}));
  trial.part("keys moved together", [&] {
    Problem moved = p;
    moved.key = mapped(p.key, [](Index n, double v) { return v + 0.5 * static_cast<double>(n % 8) - 1.5; });
    const Run run = trial.run(moved);
    trial.compare("output", run.answer.output, trial.run(p).answer.output,
                  (trial.rounding(p) + trial.rounding(moved)) * magnitudes(p).output);
  });
  trial.part("so gradients of keys sum to 0", [&] {
    const Run run = trial.run(with_upstream(p));
    const Index D = p.width(), S = p.keys();
    auto sum = Array<double>::zeros({p.batches(), D});
    for (Index n = 0; n < run.answer.dkey.size(); ++n) {
      sum.mutable_values()[at(n / (S * D) * D + n % D)] += run.answer.dkey.data()[n];
    }
    trial.compare("sum of dkey", sum, Array<double>::zeros(sum.shape()),
                  trial.gradient_rounding(p) * magnitudes(run.problem).dkey * static_cast<double>(S));
  });
}

// Scores 16384 + 0, 1, 2 ..., exact in both types.
void large_scores(Trial& trial) {
  auto towards = [&](std::string_view name, double sign) {
    trial.part(name, [&] {
      Problem p = drawn_problem(62, {.queries = 1, .keys = 5});
      p.scale = 1;
      p.query = mapped(p.query, [&](Index n, double) { return n == 0 ? sign * 128.0 : 0; });
      p.key = mapped(p.key, [](Index n, double) {
        return n % 8 == 0 ? 128 + static_cast<double>(n / 8 * 2 % 5) / 128 : 0;
      });
      const Run run = trial.run(p);
      trial.compare_answers(run, {}, formulas(p));
    });
  };
  towards("16,384 and a little more", 1);
  towards("as far below 0", -1);
}

void linear_in_values(Trial& trial) {
  trial.part("2 v - u / 2", [&] {
    Problem v = drawn_problem(63, {.batches = 2, .queries = 3, .keys = 7}), u = v, both = v;
    Generator random(64);
    u.value = drawn(random, v.value.shape());
    both.value = mapped(v.value, [&](Index n, double x) { return 2 * x - u.value.data()[n] / 2; });
    const Array<double> of_v = trial.run(v).answer.output, of_u = trial.run(u).answer.output;
    const Run run = trial.run(both);
    trial.compare(
        "output", run.answer.output,
        mapped(of_v, [&](Index n, double x) { return 2 * x - of_u.data()[n] / 2; }),
        trial.rounding(v) * (magnitudes(both).output + 2 * magnitudes(v).output + magnitudes(u).output));
  });
}

void key_order(Trial& trial) {
  const Index S = 133;
  // One query; scores from -20 to 20.
  Problem rising = drawn_problem(65, {.queries = 2, .keys = S});
  rising.scale = 1;
  rising.query = mapped(rising.query, [](Index n, double) { return n % 8 == 0 ? 1 : 0; });
  rising.key = mapped(rising.key, [](Index n, double v) {
    return n % 8 == 0 ? std::round(40 * static_cast<double>(n / 8) / 132 * 16) / 16 - 20 : v;
  });
  auto order_of = [&](std::vector<Index> order) {
    Problem p = rising;
    p.key = rows_of(p.key, order), p.value = rows_of(p.value, order);
    return p;
  };
  std::vector<Index> falling = range(0, S), mixed = Generator(66).permutation(S).to_vector();
  std::reverse(falling.begin(), falling.end());
  trial.part("rising and falling", [&] {
    trial.compare_answers(trial.run(rising), " of rising scores", trial.run(order_of(falling)).answer);
  });
  trial.part("rising and mixed", [&] {
    trial.compare_answers(trial.run(rising), " of rising scores", trial.run(order_of(mixed)).answer);
  });
}

}  // namespace tapehead::contract
