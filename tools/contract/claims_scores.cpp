#include <tools/contract/claims.h>
#include <tools/contract/draw.h>

namespace tapehead::contract {
namespace {

// log(w[j] / w[0]) of each row.
Array<double> log_ratios(const Array<double>& weights) {
  const Index S = weights.dim(3);
  return mapped(weights, [&](Index n, double w) { return std::log(w / weights.data()[n / S * S]); });
}
Array<double> differences_from_first(const Array<double>& scores) {
  const Index S = scores.dim(3);
  return mapped(scores, [&](Index n, double s) { return s - scores.data()[n / S * S]; });
}

}  // namespace

void bias(Trial& trial) {
  const Problem p = showing_weights(drawn_problem(81, {.batches = 2, .heads = 2, .key_heads = 2, .keys = 6}));
  auto added = [&](const Problem& problem, const Shape& shape) {
    Generator random(82);
    Problem biased = problem;
    biased.bias = drawn(random, shape);
    const Run run = trial.run(biased);
    const Strides step(shape, problem.scores());
    const Strides dense(problem.scores());
    const Array<double> expected = mapped(scores_of(problem), [&](Index n, double score) {
      Index at = 0;
      for (int axis = 0; axis < 4; ++axis) at += n / dense[axis] % problem.scores()[axis] * step[axis];
      return score + biased.bias.data()[at];
    });
    trial.compare("log-ratio of weights", log_ratios(run.answer.output), differences_from_first(expected),
                  4 * trial.rounding(biased));
  };
  Problem no_scores = p;
  no_scores.query = Array<double>::zeros(p.query.shape());
  trial.part("q = 0", [&] { added(no_scores, p.scores()); });
  trial.part("with scores", [&] { added(p, p.scores()); });
  trial.part("repeated over samples and heads", [&] { added(p, {1, 1, 3, 6}); });
  trial.part("repeated over rows", [&] { added(p, {2, 2, 1, 6}); });
  trial.part("minus infinity excludes", [&] {
    Problem excluding = p, masking = p;
    excluding.bias = Array<double>::zeros({1, 1, 3, 6});
    for (Index i = 0; i < 3; ++i) excluding.bias.set({0, 0, i, i + 1}, -HUGE_VAL);
    const Run run = trial.run(excluding);
    trial.compare_answers(run, {}, formulas(excluding));
    for (Index row = 0; row < p.scores().first(3).size(); ++row) {
      const double w = run.answer.output.data()[row * 6 + row % 3 + 1];
      trial.require(w == 0, fmt::format("the weight of an excluded key is {:.7g}", w));
    }
  });
}

void softcap(Trial& trial) {
  Problem p = showing_weights(drawn_problem(83, {.batches = 2, .queries = 5, .keys = 5}));
  p.scale = 1, p.softcap = 2;
  trial.part("c = 2", [&] {
    const Run run = trial.run(p);
    const Array<double> capped = mapped(scores_of(p), [](Index, double z) { return 2 * std::tanh(z / 2); });
    trial.compare("log-ratio of weights", log_ratios(run.answer.output), differences_from_first(capped),
                  4 * trial.rounding(p));
  });
  trial.part("and causal", [&] {
    Problem causal = p;
    causal.causal = true;
    const Run run = trial.run(causal);
    const Array<double>& w = run.answer.output;
    trial.same("weight of a forbidden key", w,
               mapped(w, [](Index n, double x) { return n % 5 > n / 5 % 5 ? 0 : x; }));
  });
  trial.gradients("the same", [&] {
    const Run run = trial.run(with_upstream(p));
    trial.compare_answers(run, {}, formulas(run.problem));
  });
}

// With q = 0 each of the n keys that are seen has weight 1 / (n + exp(sink)).
void sink(Trial& trial) {
  Problem p = showing_weights(drawn_problem(84, {.heads = 3, .key_heads = 3, .queries = 4, .keys = 4}));
  p.query = Array<double>::zeros(p.query.shape());
  p.sink = Array<double>::of({-1, 0.5, 2});
  auto even = [&](bool causal) {
    p.causal = causal;
    const Run run = trial.run(p);
    const Array<double> expected = mapped(run.answer.output, [&](Index n, double) {
      const Index i = n / 4 % 4, j = n % 4;
      const double seen = static_cast<double>(causal ? i + 1 : 4);
      return causal && j > i ? 0 : 1 / (seen + std::exp(p.sink(n / 16)));
    });
    trial.compare("weight", run.answer.output, expected, 2 * trial.rounding(p));
  };
  trial.part("q = 0", [&] { even(false); });
  trial.part("causal", [&] { even(true); });
  trial.part("with scores, which it does not shift", [&] {
    Problem scored = drawn_problem(85, {.heads = 3, .key_heads = 3});
    scored.scale = 5, scored.sink = p.sink;
    trial.compare_answers(trial.run(scored), {}, formulas(scored));
  });
}

void log_sum_exp(Trial& trial) {
  trial.part("of the scores", [&] {
    Problem p = drawn_problem(86, {.batches = 2, .queries = 3, .keys = 6});
    p.log_sum_exp = true;
    const Run run = trial.run(p);
    const Array<double> scores = scores_of(p);
    const Array<double> expected = mapped(Array<double>::zeros({2, 1, 3}), [&](Index row, double) {
      double sum = 0;
      for (Index j = 0; j < 6; ++j) sum += std::exp(scores.data()[row * 6 + j]);
      return std::log(sum);
    });
    trial.compare("log-sum-exp", run.answer.log_sum_exp, expected, 4 * trial.rounding(p));
  });
  // output = sum over the parts of exp(lse of the part - lse) output of the part.
  trial.part("joining 1, 2 and 4 keys", [&] {
    Problem p = drawn_problem(87, {.batches = 2, .queries = 3, .keys = 7});
    p.log_sum_exp = true;
    const Run run = trial.run(p);
    auto joined = Array<double>::zeros(run.answer.output.shape());
    for (const auto& [from, to] : {std::pair<Index, Index>{0, 1}, {1, 3}, {3, 7}}) {
      Problem part = p;
      part.key = rows_of(p.key, range(from, to)), part.value = rows_of(p.value, range(from, to));
      const Answer answer = trial.run(part).answer;
      for (Index n = 0; n < joined.size(); ++n) {
        const Index row = n / p.value_width();
        joined.mutable_values()[static_cast<std::size_t>(n)] +=
            std::exp(answer.log_sum_exp.data()[row] - run.answer.log_sum_exp.data()[row]) *
            answer.output.data()[n];
      }
    }
    trial.compare("output", run.answer.output, joined, 6 * trial.rounding(p) * magnitudes(p).output);
  });
}

}  // namespace tapehead::contract
