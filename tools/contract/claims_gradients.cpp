#include <sys/resource.h>

#include <algorithm>
#include <functional>

#include <tools/contract/claims.h>
#include <tools/contract/draw.h>

namespace tapehead::contract {
namespace {

// Multiples of 1/64, so that a step of a power of two is exact.
Array<double> on_a_grid(const Array<double>& x) {
  return mapped(x, [](Index, double v) { return std::round(64 * v) / 64; });
}

double product(const Array<double>& a, const Array<double>& b) {
  double sum = 0;
  for (Index n = 0; n < a.size(); ++n) sum += a.data()[n] * b.data()[n];
  return sum;
}

// Slopes of f(x) along each element of x by central differences at steps h and 2 h, whose errors of order
// h^2 cancel.
Array<double> slopes(const Array<double>& x, double h, const std::function<double(const Array<double>&)>& f) {
  return mapped(x, [&](Index n, double v) {
    auto moved = [&](double step) {
      Array<double> y = x;
      y.mutable_values()[static_cast<std::size_t>(n)] = v + step;
      return f(y);
    };
    const double near = (moved(h) - moved(-h)) / (2 * h), far = (moved(2 * h) - moved(-2 * h)) / (4 * h);
    return (4 * near - far) / 3;
  });
}

// The step at which truncation, h^4, meets rounding, u / h, is u^(1/5); either is then near u^(4/5). The
// factor is for the steps of an evaluation and for the fifth derivative of softmax.
double step(Number number) { return number == Number::f64 ? 0x1p-10 : 0x1p-5; }
double left_by_differences(Number number) { return 25 * std::pow(unit_roundoff(number), 0.8); }

Problem small(std::uint64_t seed) {
  Problem p = drawn_problem(seed, {.queries = 3, .keys = 5, .width = 4, .value_width = 3});
  p.query = on_a_grid(p.query), p.key = on_a_grid(p.key), p.value = on_a_grid(p.value);
  return p;
}

}  // namespace

void differences(Trial& trial) {
  auto hold = [&](std::string_view name, const Problem& plain) {
    trial.part(name, [&] {
      const Problem p = with_upstream(plain);
      const Run run = trial.run(p);
      const Magnitudes size = magnitudes(p);
      auto of = [&](const char* what, Array<double> Problem::*input, const Array<double>& got,
                    double magnitude) {
        const Array<double> expected = slopes(p.*input, step(trial.number()), [&](const Array<double>& x) {
          Problem moved = plain;
          moved.*input = x;
          return product(trial.run(moved).answer.output, p.upstream);
        });
        const double most = std::max({magnitude, size.output, 1.0});
        trial.compare(what, got, expected, left_by_differences(trial.number()) * most);
      };
      of("dquery", &Problem::query, run.answer.dquery, size.dquery);
      of("dkey", &Problem::key, run.answer.dkey, size.dkey);
      of("dvalue", &Problem::value, run.answer.dvalue, size.dvalue);
    });
  };
  Problem p = small(91);
  hold("3 x 5", p);
  p.causal = true, p.offset = 1;
  hold("causal", p);
  p = small(92), p.softcap = 1.5;
  hold("softcap", p);
  p = small(93), p.sink = Array<double>::of({0.5});
  hold("sink", p);
  p = small(94);
  Generator random(95);
  p.query = on_a_grid(drawn(random, {1, 2, 3, 4}));
  hold("2 heads over 1", p);
}

void shared_input(Trial& trial) {
  auto hold = [&](std::string_view name, bool causal) {
    trial.part(name, [&] {
      Generator random(96);
      Problem plain;
      plain.query = plain.key = plain.value = on_a_grid(drawn(random, {1, 1, 4, 3}));
      plain.causal = causal;
      const Problem p = with_upstream(plain);
      const Run run = trial.run(p);
      const Answer& a = run.answer;
      const Array<double> sum =
          mapped(a.dquery, [&](Index n, double v) { return v + a.dkey.data()[n] + a.dvalue.data()[n]; });
      const Array<double> expected = slopes(p.query, step(trial.number()), [&](const Array<double>& x) {
        Problem moved = plain;
        moved.query = moved.key = moved.value = x;
        return product(trial.run(moved).answer.output, p.upstream);
      });
      const Magnitudes size = magnitudes(p);
      trial.compare("dquery + dkey + dvalue", sum, expected,
                    left_by_differences(trial.number()) * (size.dquery + size.dkey + size.dvalue));
    });
  };
  hold("4 x 4", false);
  hold("causal", true);
}

// The most memory that this process has had, in bytes.
double peak() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return 1024 * static_cast<double>(usage.ru_maxrss);
}

void linear_memory(Trial& trial) {
  const Index S = 4096;
  const double square = static_cast<double>(S * S) * (trial.number() == Number::f64 ? 8 : 4);
  auto measure = [&](auto wanted) {
    // A first call takes what a library takes once.
    trial.run(wanted(drawn_problem(97, {.queries = 1, .keys = 64})));
    const Problem p = wanted(drawn_problem(98, {.queries = 1, .keys = S}));
    const double before = peak();
    const Run run = trial.run(p);
    const double taken = peak() - before;
    trial.within(taken, square / 4,
                 fmt::format("it took {:.0f} bytes; a matrix of 4,096 x 4,096 has {:.0f}", taken, square));
  };
  trial.part("1 x 4,096", [&] { measure([](const Problem& p) { return p; }); });
  trial.gradients("1 x 4,096", [&] { measure([](const Problem& p) { return with_upstream(p); }); });
}

}  // namespace tapehead::contract
