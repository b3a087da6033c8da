#include <tools/contract/claims.h>
#include <tools/contract/draw.h>

namespace tapehead::contract {
namespace {

void hold_to_formulas(Trial& trial, std::string_view name, const Problem& problem) {
  trial.part(name, [&] { trial.compare_answers(trial.run(problem), {}, formulas(problem)); });
  trial.gradients(name, [&] {
    const Run run = trial.run(with_upstream(problem));
    trial.compare_answers(run, {}, formulas(run.problem));
  });
}

// Two samples, six heads over two, no two extents alike and none a multiple of a tile.
Problem wide(std::uint64_t seed) {
  return drawn_problem(seed,
                       {.batches = 2, .heads = 6, .key_heads = 2, .queries = 3, .keys = 7, .value_width = 5});
}

Array<double> drawn_array(std::uint64_t seed, const Shape& shape) {
  Generator random(seed);
  return drawn(random, shape);
}

// True but for about a third, and for the first key of each row.
Array<bool> drawn_mask(std::uint64_t seed, const Shape& shape) {
  Generator random(seed);
  Array<bool> mask = Array<bool>::ones(shape);
  Index n = 0;
  for (bool& seen : mask.mutable_values()) seen = n++ % shape[3] == 0 || random.uniform() > 0.33;
  return mask;
}

}  // namespace

void explicit_formulas(Trial& trial) {
  Problem p = drawn_problem(
      11, {.batches = 2, .heads = 3, .key_heads = 3, .queries = 3, .keys = 5, .width = 7, .value_width = 2});
  hold_to_formulas(trial, "3 x 5", p);
  p = drawn_problem(
      12, {.batches = 2, .heads = 3, .key_heads = 3, .queries = 4, .keys = 4, .width = 3, .value_width = 5});
  p.causal = true;
  hold_to_formulas(trial, "4 x 4 causal", p);
  p = drawn_problem(
      13, {.batches = 2, .heads = 3, .key_heads = 3, .queries = 2, .keys = 5, .width = 7, .value_width = 3});
  p.causal = true, p.offset = 3;
  hold_to_formulas(trial, "2 x 5 behind 3 cached keys", p);
  hold_to_formulas(trial, "6 heads over 2", p = wide(14));
  p.scale = 0.7;
  hold_to_formulas(trial, "another scale", p);
  p = wide(15), p.window = Window{2, 1}, p.offset = 4;
  hold_to_formulas(trial, "window", p);
  p = wide(16), p.lengths = {4, 7};
  hold_to_formulas(trial, "lengths", p);
  p = wide(17), p.mask = drawn_mask(18, {2, 1, 3, 7});
  hold_to_formulas(trial, "mask", p);
  p = wide(19), p.bias = drawn_array(20, {1, 6, 3, 7});
  hold_to_formulas(trial, "bias", p);
  p = wide(21), p.softcap = 2;
  hold_to_formulas(trial, "softcap", p);
  p = wide(22), p.sink = drawn_array(23, {6});
  hold_to_formulas(trial, "sink", p);
  p.causal = true, p.offset = 4, p.window = Window{4, 0}, p.lengths = {6, 7}, p.softcap = 2;
  p.mask = drawn_mask(24, {1, 6, 3, 7}), p.bias = drawn_array(25, {2, 1, 3, 7});
  hold_to_formulas(trial, "all together", p);
}

// X = [[1, 0], [0, 1], [1, 1]] as query, key and value; worked out with pencil and paper to six places.
void hand_trace(Trial& trial) {
  const Array<double> x = Array<double>::of({{{{1, 0}, {0, 1}, {1, 1}}}});
  Problem problem;
  problem.query = problem.key = problem.value = x;
  constexpr double six_places = 1e-6;
  trial.part("all keys", [&] {
    const Run run = trial.run(problem);
    trial.compare("output", run.answer.output,
                  Array<double>::of({{{{0.802224, 0.598888}, {0.598888, 0.802224}, {0.751745, 0.751745}}}}),
                  six_places + trial.rounding(problem));
  });
  trial.part("causal", [&] {
    problem.causal = true;
    const Run run = trial.run(problem);
    trial.compare("output", run.answer.output,
                  Array<double>::of({{{{1, 0}, {0.330238, 0.669762}, {0.751745, 0.751745}}}}),
                  six_places + trial.rounding(problem));
  });
}

void tile_edges(Trial& trial) {
  constexpr Index sizes[] = {1, 2, 3, 7, 13, 15, 16, 17, 31, 32, 33, 61, 63, 64, 65, 97, 127, 128, 129};
  auto each = [&](std::string_view name, const char* unit, auto made) {
    auto all = [&](auto wanted) {
      std::optional<Unsupported> lack;
      int tried = 0;
      for (const Index size : sizes) {
        try {
          const Problem problem = wanted(made(size));
          trial.compare_answers(trial.run(problem), fmt::format(" of {} {}", unit, size), formulas(problem));
          ++tried;
        } catch (const Unsupported& unsupported) {
          lack = unsupported;  // of this size; another may do
        }
      }
      if (tried == 0) throw Unsupported(lack.value());
    };
    trial.part(name, [&] { all([](const Problem& p) { return p; }); });
    trial.gradients(name, [&] { all([](const Problem& p) { return with_upstream(p); }); });
  };
  each("1 to 129 keys", "keys:", [](Index n) { return drawn_problem(31, {.queries = 2, .keys = n}); });
  each("as many queries, causal", "keys and queries:", [](Index n) {
    Problem p = drawn_problem(32, {.queries = n, .keys = n, .width = 5});
    p.causal = true;
    return p;
  });
  each("widths 1 to 129", "width",
       [](Index n) { return drawn_problem(34, {.keys = 9, .width = n, .value_width = n}); });
}

}  // namespace tapehead::contract
