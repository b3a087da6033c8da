#include <algorithm>

#include <tools/contract/claims.h>
#include <tools/contract/draw.h>

namespace tapehead::contract {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

struct Named {
  const char* name;
  Problem problem;
};

// Masks of every kind over one set of inputs: 3 queries, 7 keys.
std::vector<Named> masked(std::uint64_t seed) {
  const Problem p = drawn_problem(seed, {.batches = 2, .heads = 2, .key_heads = 2, .queries = 3, .keys = 7});
  auto with = [&](auto change) {
    Problem changed = p;
    change(changed);
    return changed;
  };
  Array<bool> mask = Array<bool>::ones({1, 2, 3, 7});
  for (Index n = 0; n < mask.size(); ++n)
    mask.mutable_values()[at(n)] = n % 7 == 0 || (n % 7 != 5 && n * n % 5 < 2);
  return {{"causal", with([](Problem& x) { x.causal = true; })},
          {"causal behind 4 cached keys", with([](Problem& x) { x.causal = true, x.offset = 4; })},
          {"window", with([](Problem& x) {
             x.window = Window{2, 1}, x.offset = 2;
           })},
          {"lengths", with([](Problem& x) {
             x.lengths = {3, 6};
           })},
          {"mask", with([&](Problem& x) { x.mask = mask; })},
          {"causal and mask and lengths", with([&](Problem& x) {
             x.mask = mask, x.causal = true, x.offset = 4, x.lengths = {5, 7};
           })}};
}

// Keys, as bits, whose powers of two have this mean; 0 when there are none.
std::uint64_t keys_of_mean(double mean, double mirrored, Index keys) {
  for (Index count = 1; count <= keys; ++count) {
    const double sum = std::round(mean * static_cast<double>(count));
    if (sum < 0 || sum >= std::exp2(keys)) return 0;
    const auto bits = static_cast<std::uint64_t>(sum);
    double mirror = 0;
    for (Index j = 0; j < keys; ++j) mirror += (bits >> j & 1) ? std::exp2(keys - 1 - j) : 0;
    if (__builtin_popcountll(bits) == count && std::abs(sum / static_cast<double>(count) - mean) < 1e-3 &&
        std::abs(mirror / static_cast<double>(count) - mirrored) < 1e-3) {
      return bits;
    }
  }
  return 0;
}

std::string list_of(std::uint64_t bits) {
  std::string text;
  for (int j = 0; j < 64; ++j) {
    if (bits >> j & 1) text += (text.empty() ? "" : ", ") + fmt::format("{}", j);
  }
  return text.empty() ? "no keys" : "keys " + text;
}

// Which keys no row of a sample and key head sees; of problems without grouped heads.
bool is_hidden(const Problem& p, Index head, Index j) {
  for (Index i = 0; i < p.queries(); ++i) {
    if (sees(p, head / p.heads(), head % p.heads(), i, j)) return false;
  }
  return true;
}

// `change` for the keys or values that no row sees.
template <class F>
Array<double> with_hidden(const Problem& p, const Array<double>& x, F change) {
  return mapped(x, [&](Index n, double v) {
    const Index row = n / x.dim(3);
    return is_hidden(p, row / p.keys(), row % p.keys()) ? change() : v;
  });
}

void require_zero_where_hidden(Trial& trial, const Run& run) {
  const Problem& p = run.problem;
  auto zero = [&](const char* what, const Array<double>& x) {
    trial.same(what, with_hidden(p, x, [] { return 0.0; }), x);
  };
  zero("gradient of a hidden key", run.answer.dkey);
  zero("gradient of a hidden value", run.answer.dvalue);
}

}  // namespace

// With q = 0 a row is the mean of the values that it sees.
void visible_keys(Trial& trial) {
  for (const Named& one : masked(71)) {
    trial.part(one.name, [&] {
      Problem p = one.problem;
      const Index S = p.keys();
      p.query = Array<double>::zeros(p.query.shape());
      p.value = mapped(Array<double>::zeros({2, 2, S, 2}), [&](Index n, double) {
        const Index j = n / 2 % S;
        return std::exp2(n % 2 == 0 ? j : S - 1 - j);
      });
      const Run run = trial.run(p);
      for (Index row = 0; row < run.answer.output.size() / 2; ++row) {
        const double* got = run.answer.output.data() + 2 * row;
        const Index b = row / (2 * p.queries()), h = row / p.queries() % 2, i = row % p.queries();
        std::uint64_t seen = 0;
        double sum = 0;
        for (Index j = 0; j < S; ++j) {
          if (sees(p, b, h, i, j)) seen |= std::uint64_t{1} << j, sum += std::exp2(j);
        }
        const double expected = sum / static_cast<double>(__builtin_popcountll(seen));
        const std::uint64_t found = keys_of_mean(got[0], got[1], S);
        trial.within(std::abs(got[0] - expected), trial.rounding(p) * std::exp2(S),
                     fmt::format("batch {}, head {}, row {} sees {}, expected {}", b, h, i,
                                 found ? list_of(found) : "no set of keys evenly", list_of(seen)));
      }
    });
  }
}

void forbidden_keys(Trial& trial) {
  for (const Named& one : masked(72)) {
    const Problem& p = one.problem;
    Problem changed = p;
    Generator random(73);
    changed.key = with_hidden(p, p.key, [&] { return static_cast<float>(20 * random.normal()); });
    changed.value = with_hidden(p, p.value, [&] { return static_cast<float>(20 * random.normal()); });
    if (changed.key.to_vector() == p.key.to_vector()) continue;  // every key is seen by some row
    trial.part(one.name, [&] {
      const Run run = trial.run(changed);
      trial.same("output", run.answer.output, trial.run(p).answer.output);
    });
    trial.gradients(one.name, [&] {
      const Run run = trial.run(with_upstream(changed));
      trial.same("dquery", run.answer.dquery, trial.run(with_upstream(p)).answer.dquery);
      require_zero_where_hidden(trial, run);
    });
  }
}

void hidden_not_finite(Trial& trial) {
  for (const Named& one : masked(74)) {
    const Problem& p = one.problem;
    Problem poisoned = p;
    poisoned.key = with_hidden(p, p.key, [] { return std::nan(""); });
    poisoned.value = with_hidden(p, p.value, [] { return HUGE_VAL; });
    if (std::none_of(poisoned.key.values().begin(), poisoned.key.values().end(),
                     [](double v) { return std::isnan(v); })) {
      continue;
    }
    trial.part(one.name, [&] {
      const Run run = trial.run(poisoned);
      trial.same("output", run.answer.output, trial.run(p).answer.output);
    });
    trial.gradients(one.name, [&] {
      const Run run = trial.run(with_upstream(poisoned));
      trial.same("dquery", run.answer.dquery, trial.run(with_upstream(p)).answer.dquery);
      require_zero_where_hidden(trial, run);
    });
  }
}

// Changing what comes after position t leaves rows 0 to t as they were, bit by bit.
void prefixes(Trial& trial) {
  const Index L = 9;
  Problem p = drawn_problem(75, {.batches = 2, .queries = L, .keys = L});
  p.causal = true;
  auto after = [&](Index t, const Array<double>& x) {
    Generator random(76);
    return mapped(x, [&](Index n, double v) {
      return n / x.dim(3) % L > t ? static_cast<double>(static_cast<float>(20 * random.normal())) : v;
    });
  };
  trial.part("9 x 9", [&] {
    const Array<double> before = trial.run(p).answer.output;
    for (Index t = 0; t + 1 < L; ++t) {
      Problem changed = p;
      changed.query = after(t, p.query), changed.key = after(t, p.key), changed.value = after(t, p.value);
      const Run run = trial.run(changed);
      trial.same(fmt::format("output up to row {}", t), rows_of(run.answer.output, range(0, t + 1)),
                 rows_of(before, range(0, t + 1)));
    }
  });
  trial.gradients("the same", [&] {
    for (Index t = 0; t + 1 < L; ++t) {
      Problem early = with_upstream(p);
      early.upstream =
          mapped(early.upstream, [&](Index n, double v) { return n / p.value_width() % L > t ? 0 : v; });
      const Run run = trial.run(early);
      for (const Array<double>* x : {&run.answer.dkey, &run.answer.dvalue}) {
        const Array<double> future = rows_of(*x, range(t + 1, L));
        trial.same(fmt::format("gradient from rows up to {} to later keys", t), future,
                   Array<double>::zeros(future.shape()));
      }
    }
  });
}

// Row 0 has one key, of weight 1 whatever its score.
void first_row(Trial& trial) {
  Problem p = drawn_problem(77, {.batches = 2, .queries = 5, .keys = 5});
  p.causal = true;
  trial.part("5 x 5", [&] {
    const Run run = trial.run(p);
    trial.compare("row", rows_of(run.answer.output, {0}), rows_of(p.value, {0}),
                  trial.rounding(p) * magnitudes(p).output);
  });
  trial.gradients("the same", [&] {
    const Run run = trial.run(with_upstream(p));
    const Array<double> got = rows_of(run.answer.dquery, {0});
    trial.compare("dquery of row 0", got, Array<double>::zeros(got.shape()),
                  trial.gradient_rounding(p) * magnitudes(run.problem).dquery);
  });
}

void empty_rows(Trial& trial) {
  auto of = [&](std::string_view name, const Problem& problem) {
    const Shape scores = problem.scores();
    auto is_empty = [&](Index row) {
      const Index L = scores[2], H = scores[1];
      for (Index j = 0; j < scores[3]; ++j) {
        if (sees(problem, row / (H * L), row / L % H, row % L, j)) return false;
      }
      return true;
    };
    auto zero_in_empty_rows = [&](const char* what, const Array<double>& x, double number) {
      trial.same(what, x, mapped(x, [&](Index n, double v) {
                   return is_empty(n * scores.first(3).size() / x.size()) ? number : v;
                 }));
    };
    trial.part(name, [&] {
      const Run run = trial.run(problem);
      zero_in_empty_rows("output of an empty row", run.answer.output, 0);
      trial.compare_answers(run, {}, formulas(problem));
    });
    trial.gradients(name, [&] {
      const Run run = trial.run(with_upstream(problem));
      zero_in_empty_rows("dquery of an empty row", run.answer.dquery, 0);
      trial.compare_answers(run, {}, formulas(run.problem));
    });
    trial.part(fmt::format("{} log-sum-exp", name), [&] {
      Problem wanting = problem;
      wanting.log_sum_exp = true;
      const Run run = trial.run(wanting);
      zero_in_empty_rows("log-sum-exp of an empty row", run.answer.log_sum_exp, -HUGE_VAL);
    });
  };
  Problem p = drawn_problem(78, {.batches = 2, .queries = 5, .keys = 3});
  p.causal = true, p.offset = -2;
  of("causal, 5 x 3, to the end", p);
  p = drawn_problem(79, {.batches = 2, .queries = 3, .keys = 5});
  p.lengths = {0, 4};
  of("a sample of length 0", p);
  p.lengths = {}, p.mask = Array<bool>::ones({1, 1, 3, 5});
  for (Index j = 0; j < 5; ++j) p.mask.set({0, 0, 1, j}, false);
  of("mask", p);
}

}  // namespace tapehead::contract
