#include <tools/contract/claims.h>
#include <tools/contract/draw.h>

namespace tapehead::contract {
namespace {

// Of an array (B, H, rows, width), that of one sample and head, (1, 1, rows, width).
Array<double> one_of(const Array<double>& x, Index n) {
  const Index size = x.dim(2) * x.dim(3);
  return Array<double>::from(
      x.values().subspan(static_cast<std::size_t>(n * size), static_cast<std::size_t>(size)),
      {1, 1, x.dim(2), x.dim(3)});
}

// Each key head `group` times, side by side.
Array<double> repeated(const Array<double>& x, Index group) {
  auto y = Array<double>::uninitialized(x.shape().with(1, x.dim(1) * group));
  const Index size = x.dim(2) * x.dim(3);
  double* out = y.mutable_values().data();
  for (Index n = 0; n < y.size(); ++n) out[n] = x.data()[n / size / group * size + n % size];
  return y;
}
// Its adjoint: the sum over those of a group.
Array<double> summed(const Array<double>& x, Index group) {
  auto y = Array<double>::zeros(x.shape().with(1, x.dim(1) / group));
  const Index size = x.dim(2) * x.dim(3);
  double* out = y.mutable_values().data();
  for (Index n = 0; n < x.size(); ++n) out[n / size / group * size + n % size] += x.data()[n];
  return y;
}

}  // namespace

void heads_apart(Trial& trial) {
  const Problem all = drawn_problem(101, {.batches = 2, .heads = 3, .key_heads = 3, .queries = 4, .keys = 6});
  auto each = [&](const Problem& p) {
    const Answer together = trial.run(p).answer;
    for (Index n = 0; n < 6; ++n) {
      Problem alone = p;
      alone.query = one_of(p.query, n), alone.key = one_of(p.key, n), alone.value = one_of(p.value, n);
      Answer expected = {one_of(together.output, n)};
      if (p.upstream.defined()) {
        alone.upstream = one_of(p.upstream, n);
        expected.dquery = one_of(together.dquery, n), expected.dkey = one_of(together.dkey, n);
        expected.dvalue = one_of(together.dvalue, n);
      }
      trial.compare_answers(trial.run(alone), fmt::format(" of batch {}, head {} alone", n / 3, n % 3),
                            expected);
    }
  };
  trial.part("2 samples, 3 heads", [&] { each(all); });
  trial.gradients("the same", [&] { each(with_upstream(all)); });
}

void grouped_heads(Trial& trial) {
  auto hold = [&](std::string_view name, const Sizes& sizes) {
    const Problem grouped = drawn_problem(102, sizes);
    const Index group = sizes.heads / sizes.key_heads;
    auto compare = [&](const Problem& p) {
      Problem each = p;
      each.key = repeated(p.key, group), each.value = repeated(p.value, group);
      Answer expected = trial.run(each).answer;
      if (p.upstream.defined()) {
        expected.dkey = summed(expected.dkey, group), expected.dvalue = summed(expected.dvalue, group);
      }
      trial.compare_answers(trial.run(p), {}, expected);
    };
    trial.part(name, [&] { compare(grouped); });
    trial.gradients(name, [&] { compare(with_upstream(grouped)); });
  };
  hold("4 heads over 2", {.batches = 2, .heads = 4, .key_heads = 2});
  hold("6 heads over 2", {.batches = 2, .heads = 6, .key_heads = 2});
  hold("6 heads over 3", {.batches = 2, .heads = 6, .key_heads = 3});
  hold("5 heads over 1", {.batches = 2, .heads = 5, .key_heads = 1});
}

// Queries i to i + n see the first i + n keys, with i of them cached.
void cached_decoding(Trial& trial) {
  const Index L = 9;
  Problem whole = drawn_problem(103, {.batches = 2, .heads = 4, .key_heads = 2, .queries = L, .keys = L});
  auto in_blocks = [&](std::string_view name, Index block, Problem p) {
    trial.part(name, [&] {
      p.causal = true;
      const Run all = trial.run(p);
      for (Index from = 0; from < L; from += block) {
        Problem later = p;
        later.query = rows_of(p.query, range(from, from + block));
        later.key = rows_of(p.key, range(0, from + block)),
        later.value = rows_of(p.value, range(0, from + block));
        later.offset = from;
        trial.compare_answers(trial.run(later), fmt::format(" of tokens {} to {}", from, from + block - 1),
                              {rows_of(all.answer.output, range(from, from + block))});
      }
    });
  };
  const Problem ungrouped =
      drawn_problem(104, {.batches = 2, .heads = 2, .key_heads = 2, .queries = L, .keys = L});
  in_blocks("one by one", 1, ungrouped);
  in_blocks("blocks of 3", 3, ungrouped);
  in_blocks("grouped heads", 1, whole);
  whole.window = Window{3, 0};
  in_blocks("a window of 4", 3, whole);
}

}  // namespace tapehead::contract
