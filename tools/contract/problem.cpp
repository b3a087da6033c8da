#include <tools/contract/problem.h>

#include <algorithm>
#include <cmath>

namespace tapehead::contract {
namespace {

double largest(const Array<double>& x) {
  double most = 0;
  for (const double v : x.values()) most = std::max(most, std::isfinite(v) ? std::abs(v) : 0);
  return most;
}

std::size_t place(Index i) { return static_cast<std::size_t>(i); }

// Of an array that broadcasts to `shape`.
template <class T>
T broadcast_at(const Array<T>& x, const Shape& shape, Index b, Index h, Index i, Index j) {
  const Strides step(x.shape(), shape);
  return x.data()[b * step[0] + h * step[1] + i * step[2] + j * step[3]];
}

// sum over d of |a[d] c[d]|, leaving out what is not finite.
double absolute_product(const double* a, const double* c, Index count) {
  double sum = 0;
  for (Index d = 0; d < count; ++d) {
    const double term = std::abs(a[d] * c[d]);
    if (std::isfinite(term)) sum += term;
  }
  return sum;
}

// Cut off, or with zeros behind.
Array<double> with_channels(const Array<double>& x, Index count) {
  auto y = Array<double>::zeros(x.shape().with(3, count));
  const Index width = x.dim(3), common = std::min(width, count);
  double* out = y.mutable_values().data();
  for (Index row = 0; row < x.size() / width; ++row) {
    std::copy_n(x.data() + row * width, common, out + row * count);
  }
  return y;
}

Mask mask_of(const Problem& problem) {
  Mask mask;
  if (problem.causal) mask = mask & Mask::causal(problem.offset);
  if (problem.window) {
    mask = mask & Mask::window(problem.window->left, problem.window->right, problem.offset);
  }
  if (!problem.lengths.empty()) mask = mask & Mask::lengths(Array<Index>::from(problem.lengths));
  if (problem.mask.defined()) mask = mask & Mask::allowed(problem.mask);
  return mask;
}

}  // namespace

double Problem::scale_in_force() const { return scale.value_or(1 / std::sqrt(static_cast<double>(width()))); }

bool sees(const Problem& p, Index b, Index h, Index i, Index j) {
  const Index position = i + p.offset;
  if (p.causal && j > position) return false;
  if (p.window && (j < position - p.window->left || j > position + p.window->right)) return false;
  if (!p.lengths.empty() && j >= p.lengths[place(b)]) return false;
  if (p.bias.defined() && broadcast_at(p.bias, p.scores(), b, h, i, j) == -HUGE_VAL) return false;
  return !p.mask.defined() || broadcast_at(p.mask, p.scores(), b, h, i, j);
}

template <class T>
AttentionOptions<T> options_of(const Problem& problem) {
  AttentionOptions<T> options = {.scale = problem.scale_in_force(),
                                 .softcap = problem.softcap,
                                 .mask = mask_of(problem),
                                 .empty_rows = EmptyRows::zero,
                                 .log_sum_exp = problem.log_sum_exp};
  if (problem.bias.defined()) options.bias = Var<T>(problem.bias.cast<T>());
  if (problem.sink.defined()) options.sink = Var<T>(problem.sink.cast<T>());
  return options;
}
template AttentionOptions<float> options_of(const Problem&);
template AttentionOptions<double> options_of(const Problem&);

Answer formulas(const Problem& problem) {
  AttentionOutputs upstream;
  upstream.output = problem.upstream;
  const AttentionReference r =
      attention_reference(problem.query, problem.key, problem.value, options_of<double>(problem), upstream);
  return {r.output, r.log_sum_exp, r.dquery, r.dkey, r.dvalue};
}

Problem widened(Problem problem, Index width) {
  problem.scale = problem.scale_in_force();
  for (Array<double>* x : {&problem.query, &problem.key, &problem.value, &problem.upstream}) {
    if (x->defined()) *x = with_channels(*x, width);
  }
  return problem;
}

Answer narrowed(Answer answer, Index width, Index value_width) {
  for (Array<double>* x : {&answer.dquery, &answer.dkey}) {
    if (x->defined()) *x = with_channels(*x, width);
  }
  for (Array<double>* x : {&answer.output, &answer.dvalue}) {
    if (x->defined()) *x = with_channels(*x, value_width);
  }
  return answer;
}

double rounding(const Problem& p, Number number) {
  double score = largest(p.bias);
  const Index D = p.width(), group = p.heads() / p.key_heads();
  for (Index row = 0; row < p.batches() * p.heads(); ++row) {
    const double* q = p.query.data() + row * p.queries() * D;
    const Index b = row / p.heads(), g = row % p.heads() / group;
    const double* k = p.key.data() + (b * p.key_heads() + g) * p.keys() * D;
    for (Index i = 0; i < p.queries(); ++i) {
      for (Index j = 0; j < p.keys(); ++j) {
        score = std::max(score, std::abs(p.scale_in_force()) * absolute_product(q + i * D, k + j * D, D));
      }
    }
  }
  const double steps = static_cast<double>(D) + 4, terms = 2 * static_cast<double>(p.keys()) + 16;
  return unit_roundoff(number) * (2 * steps * score + terms);
}

Magnitudes magnitudes(const Problem& p) {
  const AttentionReference reference = attention_reference(p.query, p.key, p.value, options_of<double>(p));
  const Index L = p.queries(), S = p.keys(), D = p.width(), E = p.value_width();
  const Index group = p.heads() / p.key_heads();
  const double scale = std::abs(p.scale_in_force());
  Magnitudes most;
  most.output = largest(p.value);
  if (!p.upstream.defined()) return most;
  std::vector<double> dkey(place(p.key.size())), dvalue(place(p.value.size()));
  auto add = [](double* sum, const double* x, double factor, Index count) {
    for (Index d = 0; d < count; ++d) sum[d] += std::isfinite(x[d]) ? factor * std::abs(x[d]) : 0;
  };
  for (Index row = 0; row < p.batches() * p.heads() * L; ++row) {
    const Index head = row / L, g = head / p.heads() * p.key_heads() + head % p.heads() / group;
    const double* w = reference.weights.data() + row * S;
    const double* dy = p.upstream.data() + row * E;
    std::vector<double> dweights(place(S)), dquery(place(D));
    double mean = 0;
    for (Index j = 0; j < S; ++j) {
      if (w[j] == 0) continue;
      dweights[place(j)] = absolute_product(dy, p.value.data() + (g * S + j) * E, E);
      mean += w[j] * dweights[place(j)];
    }
    for (Index j = 0; j < S; ++j) {
      if (w[j] == 0) continue;
      const double dscore = w[j] * (dweights[place(j)] + mean);
      add(dquery.data(), p.key.data() + (g * S + j) * D, scale * dscore, D);
      add(dkey.data() + (g * S + j) * D, p.query.data() + row * D, scale * dscore, D);
      add(dvalue.data() + (g * S + j) * E, dy, w[j], E);
    }
    most.dquery = std::max(most.dquery, *std::max_element(dquery.begin(), dquery.end()));
  }
  most.dkey = *std::max_element(dkey.begin(), dkey.end());
  most.dvalue = *std::max_element(dvalue.begin(), dvalue.end());
  return most;
}

}  // namespace tapehead::contract
