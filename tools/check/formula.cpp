#include <tools/check/formula.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include <tapehead/core/errors.h>
#include <tapehead/ops/kernels/gemm.h>

namespace tapehead::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::size_t place(Index i) { return static_cast<std::size_t>(i); }

bool has(const Work& work, std::string_view name) { return work.inputs.find(name) != work.inputs.end(); }

const Array<double>& input(const Work& work, std::string_view name) { return work.inputs.find(name)->second; }

const Array<double>* input_if(const Work& work, std::string_view name) {
  const auto found = work.inputs.find(name);
  return found == work.inputs.end() ? nullptr : &found->second;
}

// Without a way out of the loop, so that it is done in vectors.
bool finite(const double* x, Index count) {
  int all = 1;
  for (Index i = 0; i < count; ++i) all &= std::abs(x[i]) <= std::numeric_limits<double>::max();
  return all != 0;
}

// One operand of a product: a matrix, or its transpose, in memory.
struct Operand {
  const double* at;
  Index stride;
  bool transposed = false;
  double operator()(Index i, Index j) const { return transposed ? at[j * stride + i] : at[i * stride + j]; }
};

void add_in_float(Index m, Index n, Index k, Operand a, Operand b, double* c) {
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      float sum = static_cast<float>(c[i * n + j]);
      for (Index l = 0; l < k; ++l) {
        const float factor = static_cast<float>(a(i, l));
        if (factor != 0) sum += factor * static_cast<float>(b(l, j));
      }
      c[i * n + j] = static_cast<double>(sum);
    }
  }
}

void add_fast(Index m, Index n, Index k, Operand a, Operand b, double* c) {
  if (m == 0 || n == 0 || k == 0) return;
  kernels::gemm<double>(m, n, k, {a.at, a.stride, a.transposed}, {b.at, b.stride, b.transposed}, 1.0, c, n);
}

void add_in_order(Index m, Index n, Index k, Operand a, Operand b, double* c) {
  for (Index i = 0; i < m; ++i) {
    for (Index l = 0; l < k; ++l) {
      const double factor = a(i, l);
      if (factor == 0) continue;
      for (Index j = 0; j < n; ++j) c[i * n + j] += factor * b(l, j);
    }
  }
}

// c (m, n) += a (m, k) b (k, n), where a number of `a` that is 0 takes nothing, not even NaN.
void add_product(const Work& work, Index m, Index n, Index k, Operand a, Operand b, double* c) {
  if (work.float_sums) return add_in_float(m, n, k, a, b, c);
  const bool plain = finite(b.at, b.transposed ? n * b.stride : k * b.stride) &&
                     finite(a.at, a.transposed ? k * a.stride : m * a.stride);
  plain ? add_fast(m, n, k, a, b, c) : add_in_order(m, n, k, a, b, c);
}

// The same for c = 0. What is not finite shows in c, which is less to look through when m is small.
void set_product(const Work& work, Index m, Index n, Index k, Operand a, Operand b, double* c) {
  if (work.float_sums) return add_in_float(m, n, k, a, b, c);
  add_fast(m, n, k, a, b, c);
  if (finite(c, m * n)) return;
  std::fill_n(c, m * n, 0.0);
  add_in_order(m, n, k, a, b, c);
}

const double* head(const Numbers& x, Index b, Index h) {
  return x.at.data() + (b * x.shape[1] + h) * x.shape[2] * x.shape[3];
}
double* head_to_write(Numbers& x, Index b, Index h) {
  return x.at.data() + (b * x.shape[1] + h) * x.shape[2] * x.shape[3];
}

// Calls f(b, h, key head) for each query head of each sample.
template <class F>
void for_each_head(const Work& work, F f) {
  for (Index b = 0; b < work.call->B; ++b) {
    for (Index h = 0; h < work.call->H; ++h) f(b, h, work.key_head[place(h)]);
  }
}

template <class F>
void for_each_row(const Work& work, F f) {
  for (Index b = 0; b < work.call->B; ++b) {
    for (Index h = 0; h < work.call->H; ++h) {
      for (Index i = 0; i < work.call->L; ++i) f(b, h, i);
    }
  }
}

Shape scores_shape(const Call& call) { return {call.B, call.H, call.L, call.S}; }

// ---- projections      x (B, L, M) w (M, H D) + b (H D), cut into heads (B, H, L, D)

// y (B, L, N) = x w + b
Array<double> projected(const Work& work, const Array<double>& x, const Array<double>& w,
                        const Array<double>* b) {
  const Index rows = x.dim(0) * x.dim(1), n = w.dim(1);
  Numbers y({x.dim(0), x.dim(1), n});
  for (Index i = 0; b && i < y.shape.size(); ++i) y.at[place(i)] = b->data()[i % n];
  add_product(work, rows, n, w.dim(0), {x.data(), w.dim(0)}, {w.data(), n}, y.at.data());
  return y.array();
}

// Columns first ... first + H D of x (B, L, N) as heads (B, H, L, D).
Numbers split(const Array<double>& x, Index first, Index heads, Index width) {
  const Index B = x.dim(0), L = x.dim(1), N = x.dim(2);
  Numbers y({B, heads, L, width});
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < heads; ++h) {
      for (Index i = 0; i < L; ++i) {
        const double* from = x.data() + (b * L + i) * N + first + h * width;
        std::copy_n(from, width, &y(b, h, i, 0));
      }
    }
  }
  return y;
}

// The reverse, (B, H, L, D) to columns of y (B, L, N).
void merge(const Numbers& x, Index first, Numbers& y) {
  const Index heads = x.shape[1], L = x.shape[2], width = x.shape[3], N = y.shape[2];
  for (Index b = 0; b < x.shape[0]; ++b) {
    for (Index h = 0; h < heads; ++h) {
      for (Index i = 0; i < L; ++i) {
        std::copy_n(head(x, b, h) + i * width, width, y.at.data() + (b * L + i) * N + first + h * width);
      }
    }
  }
}

Numbers merged(const Numbers& x) {
  Numbers y({x.shape[0], x.shape[2], x.shape[1] * x.shape[3]});
  merge(x, 0, y);
  return y;
}

// Where one of query, key and value comes from.
struct Source {
  std::string name;           // "query"
  Index heads, width, first;  // first column in the fused projection
};
Source query_source(const Call& c) { return {"query", c.H, c.D, 0}; }
Source key_source(const Call& c) { return {"key", c.Hk, c.D, c.H * c.D}; }
Source value_source(const Call& c) { return {"value", c.Hk, c.E, (c.H + c.Hk) * c.D}; }

const Array<double>* projected_from(const Work& work, const Source& source) {
  if (!has(work, "w_" + source.name)) return nullptr;
  const Array<double>* y = source.name == "query" ? nullptr : input_if(work, "y");
  return y ? y : input_if(work, "x");
}

// The fused projection counts where the dump does not hold what was cut from it.
const Array<double>* fused_projection(const Work& work, const Source& source) {
  for (const char* stage : {"_unnormed", "_unrotated", ""}) {
    if (has(work, source.name + stage)) return nullptr;
  }
  return input_if(work, "projection");
}

Numbers begin(const Work& work, const Source& source) {
  if (const auto* fused = fused_projection(work, source)) {
    return split(*fused, source.first, source.heads, source.width);
  }
  if (const auto* x = projected_from(work, source)) {
    return split(projected(work, *x, input(work, "w_" + source.name), input_if(work, "b_" + source.name)), 0,
                 source.heads, source.width);
  }
  for (const char* stage : {"_unnormed", "_unrotated", ""}) {
    if (const auto* given = input_if(work, source.name + stage)) return Numbers(*given);
  }
  return {};
}

void begin_inputs(Work& work) {
  const Call& call = *work.call;
  work.query_unnormed = begin(work, query_source(call));
  work.key_unnormed = begin(work, key_source(call));
  work.value = begin(work, value_source(call));
  work.key_head.resize(place(call.H));
  for (Index h = 0; h < call.H; ++h) {
    work.key_head[place(h)] = work.contract.tiled_heads ? h % call.Hk : h / (call.H / call.Hk);
  }
}

// Whether the dump holds a tensor before the norms, or before the rotation.
bool normed_here(const Work& work, const Source& source) {
  return work.contract.norms != QueryKeyNorms::none &&
         (fused_projection(work, source) || projected_from(work, source) ||
          has(work, source.name + "_unnormed"));
}
bool rotated_here(const Work& work, const Source& source) {
  return work.contract.rope != Pairing::none &&
         (fused_projection(work, source) || projected_from(work, source) ||
          has(work, source.name + "_unnormed") || has(work, source.name + "_unrotated"));
}

// ---- norms      rms: y = x gain / sqrt(mean(x^2) + eps)      l2: y = x gain / sqrt(sum(x^2) + eps)

double inverse_length(const double* x, Index n, QueryKeyNorms norms, double eps) {
  double sum = 0;
  for (Index d = 0; d < n; ++d) sum += x[d] * x[d];
  if (norms == QueryKeyNorms::rms) sum /= static_cast<double>(n);
  return 1 / std::sqrt(sum + eps);
}

Numbers normed(const Work& work, const Numbers& x, const Source& source) {
  if (!normed_here(work, source)) return x;
  const Array<double>* gain = input_if(work, source.name + "_gain");
  const Index n = x.shape[3];
  Numbers y = x;
  for (Index row = 0; row < x.shape.size() / n; ++row) {
    double* const at = y.at.data() + row * n;
    const double r = inverse_length(at, n, work.contract.norms, work.contract.norm_eps);
    for (Index d = 0; d < n; ++d) at[d] *= r * (gain ? gain->data()[d] : 1);
  }
  return y;
}

// What is not normed moves on: a copy of the keys of a large call is most of the work of its few sampled
// rows.
void norm(const Work& work, Numbers& x, Numbers& y, const Source& source) {
  y = normed_here(work, source) ? normed(work, x, source) : std::move(x);
}

// u = x r      dx = r (du - u mean(du u)), for l2 with the sum      dgain = sum of dy u
Numbers normed_backward(Work& work, const Numbers& dy, const Numbers& x, const Source& source) {
  if (!normed_here(work, source)) return dy;
  const Array<double>* gain = input_if(work, source.name + "_gain");
  const Index n = x.shape[3];
  const double share = work.contract.norms == QueryKeyNorms::rms ? 1 / static_cast<double>(n) : 1;
  Numbers dx(x.shape), dgain(Shape{n});
  for (Index row = 0; row < x.shape.size() / n; ++row) {
    const double *const at = x.at.data() + row * n, *const up = dy.at.data() + row * n;
    const double r = inverse_length(at, n, work.contract.norms, work.contract.norm_eps);
    double along = 0;
    for (Index d = 0; d < n; ++d) {
      dgain.at[place(d)] += up[d] * at[d] * r;
      along += up[d] * (gain ? gain->data()[d] : 1) * at[d] * r * share;
    }
    for (Index d = 0; d < n; ++d) {
      dx.at[place(row * n + d)] = r * (up[d] * (gain ? gain->data()[d] : 1) - at[d] * r * along);
    }
  }
  if (gain) work.results["grad_" + source.name + "_gain"] = dgain.array();
  return dx;
}

// ---- rotation

Numbers rotated(const Work& work, const Numbers& x, const Source& source, double sign) {
  if (!rotated_here(work, source)) return x;
  Numbers y = x;
  const bool query = source.name == "query";
  rotate(y, work.contract.rope, work.contract.rope_width == 0 ? x.shape[3] : work.contract.rope_width,
         work.contract.rope_base, sign,
         [&](Index b, Index i) { return query ? work.query_position(b, i) : work.key_position(b, i); });
  return y;
}

void turn(const Work& work, Numbers& x, Numbers& y, const Source& source) {
  y = rotated_here(work, source) ? rotated(work, x, source, 1) : std::move(x);
}

// ---- scores      z = t q.k      u = c tanh(z / c)      s = u + bias + mask - slope |distance|

void multiply_queries_and_keys(Work& work) {
  const Call& call = *work.call;
  work.products = Numbers(scores_shape(call));
  for_each_head(work, [&](Index b, Index h, Index g) {
    set_product(work, call.L, call.S, call.D, {head(work.query, b, h), call.D},
                {head(work.key, b, g), call.D, true}, head_to_write(work.products, b, h));
  });
}

// Throws ShapeError when it does not: two mistakes may not go together.
Strides strides_in_scores(const Shape& x, const Shape& scores) {
  if (!broadcasts_to(x, scores)) {
    throw ShapeError("formula", "does not broadcast to the scores", {{"x", x}, {"scores", scores}});
  }
  return Strides(x, scores);
}

// scores += factor * x, which broadcasts to them
void add_broadcast(Numbers& scores, const Array<double>& x, double factor) {
  const Shape shape = scores.shape;
  const Strides stride = strides_in_scores(x.shape(), shape);
  Index n = 0;
  for (Index b = 0; b < shape[0]; ++b) {
    for (Index h = 0; h < shape[1]; ++h) {
      for (Index i = 0; i < shape[2]; ++i) {
        const double* from = x.data() + b * stride[0] + h * stride[1] + i * stride[2];
        for (Index j = 0; j < shape[3]; ++j, ++n) scores.at[place(n)] += factor * from[j * stride[3]];
      }
    }
  }
}

// The sum over the axes that were expanded: dx of the shape of x
Array<double> broadcast_gradient(const Numbers& dscores, const Shape& x, double factor) {
  const Shape shape = dscores.shape;
  const Strides stride = strides_in_scores(x, shape);
  Numbers dx(x);
  Index n = 0;
  for (Index b = 0; b < shape[0]; ++b) {
    for (Index h = 0; h < shape[1]; ++h) {
      for (Index i = 0; i < shape[2]; ++i) {
        double* to = dx.at.data() + b * stride[0] + h * stride[1] + i * stride[2];
        for (Index j = 0; j < shape[3]; ++j, ++n) to[j * stride[3]] += factor * dscores.at[place(n)];
      }
    }
  }
  return dx.array();
}

void scale_scores(Work& work) {
  work.scaled = work.products;
  if (work.contract.bias_before_scale && has(work, "bias"))
    add_broadcast(work.scaled, input(work, "bias"), 1);
  for (double& z : work.scaled.at) z *= work.contract.scale;
}

void cap_scores(Work& work) {
  work.capped = work.scaled;
  const double c = work.contract.softcap;
  if (c == 0) return;
  for (double& u : work.capped.at) u = c * std::tanh(u / c);
}

void add_bias(Work& work) {
  work.scores = work.capped;
  if (!work.contract.bias_before_scale && has(work, "bias"))
    add_broadcast(work.scores, input(work, "bias"), 1);
  if (work.call->mask_is_additive && has(work, "mask")) add_broadcast(work.scores, input(work, "mask"), 1);
  const Array<double>* slopes = input_if(work, "slopes");
  if (!slopes) return;
  for_each_row(work, [&](Index b, Index h, Index i) {
    for (Index j = 0; j < work.call->S; ++j) {
      const double distance = std::abs(work.query_position(b, i) - work.key_position(b, j));
      work.scores(b, h, i, j) -= slopes->data()[h] * distance;
    }
  });
}

// ---- visibility

// The keys [first, last) that a row may see by causal rule, window and lengths.
struct Range {
  Index first, last;
};
Range range_of(const Work& work, const Conditions& held_to, Index b, Index i) {
  Range range{0, work.call->S};
  const Index aligned = work.row(i) + work.causal_offset(b);
  if (held_to.causal && work.contract.causal) range.last = std::min(range.last, aligned + 1);
  if (held_to.window) {
    if (work.contract.window_left) range.first = std::max(range.first, aligned - *work.contract.window_left);
    if (work.contract.window_right)
      range.last = std::min(range.last, aligned + *work.contract.window_right + 1);
  }
  const auto number = [&](const char* name) { return static_cast<Index>(input(work, name).data()[b]); };
  if (held_to.key_lengths && has(work, "key_lengths"))
    range.last = std::min(range.last, number("key_lengths"));
  if (held_to.query_lengths && has(work, "query_lengths") && work.row(i) >= number("query_lengths")) {
    range.last = 0;
  }
  return range;
}

// visible only where `allows` a number of x, which broadcasts to the scores
template <class F>
void exclude(Work& work, const Array<double>& x, F allows) {
  const Shape shape = scores_shape(*work.call);
  const Strides stride = strides_in_scores(x.shape(), shape);
  for_each_row(work, [&](Index b, Index h, Index i) {
    const double* from = x.data() + b * stride[0] + h * stride[1] + i * stride[2];
    char* const row = work.visible.data() + ((b * shape[1] + h) * shape[2] + i) * shape[3];
    for (Index j = 0; j < shape[3]; ++j) row[j] = row[j] != 0 && allows(from[j * stride[3]]);
  });
}

}  // namespace

void find_visible(Work& work, const Conditions& held_to) {
  const Call& call = *work.call;
  work.visible.assign(place(scores_shape(call).size()), 0);
  const Array<double>* queries = held_to.segments ? input_if(work, "query_segments") : nullptr;
  const Array<double>* keys = held_to.segments ? input_if(work, "key_segments") : nullptr;
  for_each_row(work, [&](Index b, Index h, Index i) {
    char* const row = work.visible.data() + ((b * call.H + h) * call.L + i) * call.S;
    const Range range = range_of(work, held_to, b, i);
    for (Index j = std::max<Index>(range.first, 0); j < range.last; ++j) {
      row[j] = !queries || !keys || queries->data()[b * call.L + i] == keys->data()[b * call.S + j];
    }
  });
  const auto not_excluded = [](double x) { return x != -infinity; };
  if (const auto* bias = input_if(work, "bias")) exclude(work, *bias, not_excluded);
  const Array<double>* mask = held_to.mask ? input_if(work, "mask") : nullptr;
  if (mask && call.mask_is_additive) exclude(work, *mask, not_excluded);
  if (mask && !call.mask_is_additive) exclude(work, *mask, [](double x) { return x != 0; });
}

// m = max s      p = exp(s - m) / total      total = sum exp(s - m) + exp(sink - m)      lambda = m + log
// total
void weigh(Work& work) {
  const Call& call = *work.call;
  const Array<double>* sink = input_if(work, "sink");
  work.weights = Numbers(scores_shape(call));
  work.log_sum_exp = Numbers({call.B, call.H, call.L}, -infinity);
  work.sink_share = Numbers({call.B, call.H, call.L});
  for_each_row(work, [&](Index b, Index h, Index i) {
    const double* s = head(work.scores, b, h) + i * call.S;
    const char* sees = work.visible.data() + ((b * call.H + h) * call.L + i) * call.S;
    double largest = -infinity;
    bool any = false;
    for (Index j = 0; j < call.S; ++j) {
      if (sees[j] && !(s[j] <= largest)) largest = s[j];
      any = any || sees[j];
    }
    if (!any) return;
    if (sink) largest = std::max(largest, sink->data()[h]);
    double* p = head_to_write(work.weights, b, h) + i * call.S;
    double total = sink ? std::exp(sink->data()[h] - largest) : 0;
    work.sink_share(b, h, i) = total;
    for (Index j = 0; j < call.S; ++j) {
      if (sees[j]) total += p[j] = std::exp(s[j] - largest);
    }
    for (Index j = 0; j < call.S; ++j) p[j] /= total;
    work.sink_share(b, h, i) /= total;
    work.log_sum_exp(b, h, i) = largest + std::log(total);
  });
}

double broadcast_at(const Array<double>& x, const Shape& scores, Index b, Index h, Index i, Index j) {
  const Strides stride = strides_in_scores(x.shape(), scores);
  return x.data()[b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]];
}

void rotate(Numbers& x, Pairing pairing, Index width, double base, double sign,
            const std::function<double(Index, Index)>& position) {
  std::vector<double> rate(place(width / 2));
  for (Index pair = 0; pair < width / 2; ++pair) {
    rate[place(pair)] = sign * std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
  }
  for (Index b = 0; b < x.shape[0]; ++b) {
    for (Index i = 0; i < x.shape[2]; ++i) {
      const double at = position(b, i);
      for (Index pair = 0; pair < width / 2; ++pair) {
        const double c = std::cos(at * rate[place(pair)]), s = std::sin(at * rate[place(pair)]);
        const Index one = pairing == Pairing::half ? pair : 2 * pair;
        const Index two = pairing == Pairing::half ? pair + width / 2 : 2 * pair + 1;
        for (Index h = 0; h < x.shape[1]; ++h) {
          const double first = x(b, h, i, one), second = x(b, h, i, two);
          x(b, h, i, one) = first * c - second * s;
          x(b, h, i, two) = first * s + second * c;
        }
      }
    }
  }
}

Index Work::causal_offset(Index b) const {
  if (!contract.causal) return 0;
  return contract.causal->size() == 1 ? contract.causal->front() : (*contract.causal)[place(b)];
}

bool Work::row_is_empty(Index b, Index h, Index i) const { return log_sum_exp(b, h, i) == -infinity; }

double Work::query_position(Index b, Index i) const {
  if (const auto* given = input_if(*this, "query_positions")) return given->data()[b * call->L + i];
  return static_cast<double>(contract.rope_start_query + row(i));
}

double Work::key_position(Index b, Index j) const {
  if (const auto* given = input_if(*this, "key_positions")) return given->data()[b * call->S + j];
  return static_cast<double>(contract.rope_start_key + j);
}

namespace {

// ---- dropout, values, results

void drop(Work& work) {
  work.dropped = work.weights;
  const Array<double>* keep = input_if(work, "dropout_keep");
  if (!work.contract.training || !keep) return;
  const double factor = 1 / (1 - work.contract.dropout);
  for_each_row(work, [&](Index b, Index h, Index i) {
    for (Index j = 0; j < work.call->S; ++j) {
      work.dropped(b, h, i, j) *= broadcast_at(*keep, work.dropped.shape, b, h, i, j) != 0 ? factor : 0;
    }
  });
}

void add_values(Work& work) {
  const Call& call = *work.call;
  work.output = Numbers({call.B, call.H, call.L, call.E});
  for_each_head(work, [&](Index b, Index h, Index g) {
    set_product(work, call.L, call.E, call.S, {head(work.dropped, b, h), call.S},
                {head(work.value, b, g), call.E}, head_to_write(work.output, b, h));
  });
}

// Output after the last projection, (B, L, M'), when there is one and it is not the heads' that were dumped.
bool projects_out(const Work& work) {
  const auto dumped = work.call->candidate.find("output");
  return has(work, "w_out") && !(dumped != work.call->candidate.end() && dumped->second.rank() == 4);
}

double squared_distance(const Array<double>& a, const Numbers& b) {
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i) {
    const double x = a.data()[i], y = b.at[place(i)];
    if (x != y) sum += (x - y) * (x - y);
  }
  return sum;
}

// Weights are dumped before or after dropout, lambda with the sink or without: what is nearer is meant.
Array<double> as_dumped(const Work& work, std::string_view name, const Numbers& usual, const Numbers& other) {
  const auto dumped = work.call->candidate.find(name);
  const bool known = dumped != work.call->candidate.end() && dumped->second.shape() == usual.shape;
  const bool is_other =
      known && squared_distance(dumped->second, other) < squared_distance(dumped->second, usual);
  return (is_other ? other : usual).array();
}

void name_results(Work& work) {
  work.results["output"] = projects_out(work) ? projected(work, merged(work.output).array(),
                                                          input(work, "w_out"), input_if(work, "b_out"))
                                              : work.output.array();
  work.results["weights"] = as_dumped(work, "weights", work.weights, work.dropped);
  Numbers lse = work.log_sum_exp, of_keys = lse;
  const double* const weights = std::as_const(work.weights).at.data();
  for (std::size_t n = 0; n < lse.at.size(); ++n) {
    if (work.sink_share.at[n] > 0) {
      const double* const row = weights + static_cast<Index>(n) * work.call->S;
      of_keys.at[n] += std::log(std::accumulate(row, row + work.call->S, 0.0));
    }
    if (work.contract.lse_base_2) lse.at[n] /= std::log(2.0), of_keys.at[n] /= std::log(2.0);
  }
  work.results["lse"] = as_dumped(work, "lse", lse, of_keys);
}

// A map of heads that a mistake took from a call with more of them is of no use here.
void require_key_heads(const Work& work) {
  for (const Index g : work.key_head) {
    if (g >= 0 && g < work.call->Hk) continue;
    throw ShapeError("formula", "a query head reads a key head that is not there",
                     {{"key", work.key_unnormed.shape}});
  }
}

// ---- backward

// dmerged = dy w^T      dw = merged^T dy      db = sum of dy
void output_backward(Work& work) {
  const Call& call = *work.call;
  work.doutput = Numbers({call.B, call.H, call.L, call.E});
  const auto* upstream = input_if(work, "upstream");
  if (!upstream) return;
  if (!projects_out(work)) {
    work.doutput = Numbers(*upstream);
    return;
  }
  const Array<double>& w = input(work, "w_out");
  const Index rows = call.B * call.L, M = w.dim(0), N = w.dim(1);
  Numbers dmerged({call.B, call.L, M}), dw(w.shape()), db(Shape{N});
  const Numbers joined = merged(work.output);
  add_product(work, rows, M, N, {upstream->data(), N}, {w.data(), N, true}, dmerged.at.data());
  add_product(work, M, N, rows, {joined.at.data(), M, true}, {upstream->data(), N}, dw.at.data());
  for (Index i = 0; i < upstream->size(); ++i) db.at[place(i % N)] += upstream->data()[i];
  work.doutput = split(dmerged.array(), 0, call.H, call.E);
  work.results["grad_w_out"] = dw.array();
  if (has(work, "b_out")) work.results["grad_b_out"] = db.array();
}

// dv_j = sum_i p_ij dO_i      dP_ij = dO_i . v_j
void values_backward(Work& work) {
  const Call& call = *work.call;
  work.dvalue = Numbers(work.value.shape);
  work.ddropped = Numbers(scores_shape(call));
  for_each_head(work, [&](Index b, Index h, Index g) {
    const double* const up = head(work.doutput, b, h);
    add_product(work, call.S, call.E, call.L, {head(work.dropped, b, h), call.S, true}, {up, call.E},
                head_to_write(work.dvalue, b, g));
    set_product(work, call.L, call.S, call.E, {up, call.E}, {head(work.value, b, g), call.E, true},
                head_to_write(work.ddropped, b, h));
  });
}

// dweights = M / keep ddropped + upstream of the weights
void dropout_backward(Work& work) {
  work.dweights = work.ddropped;
  const Array<double>* keep = input_if(work, "dropout_keep");
  if (work.contract.training && keep) {
    const double factor = 1 / (1 - work.contract.dropout);
    for_each_row(work, [&](Index b, Index h, Index i) {
      for (Index j = 0; j < work.call->S; ++j) {
        work.dweights(b, h, i, j) *= broadcast_at(*keep, work.dweights.shape, b, h, i, j) != 0 ? factor : 0;
      }
    });
  }
  if (const auto* upstream = input_if(work, "upstream_weights")) add_broadcast(work.dweights, *upstream, 1);
}

// dS = p (dP - sum p dP + dlambda)      dsink = share (dlambda - sum p dP)
void softmax_backward(Work& work) {
  const Call& call = *work.call;
  work.dscores = Numbers(scores_shape(call));
  work.dsink.assign(place(call.H), 0);
  const Array<double>* upstream = input_if(work, "upstream_lse");
  const double per_unit = work.contract.lse_base_2 ? 1 / std::log(2.0) : 1;
  for_each_row(work, [&](Index b, Index h, Index i) {
    if (work.row_is_empty(b, h, i)) return;
    const double* p = head(work.weights, b, h) + i * call.S;
    const double* dp = head(work.dweights, b, h) + i * call.S;
    double* ds = head_to_write(work.dscores, b, h) + i * call.S;
    double mean = 0;
    for (Index j = 0; j < call.S; ++j) mean += p[j] == 0 ? 0 : p[j] * dp[j];
    const double rest = (upstream ? upstream->data()[(b * call.H + h) * call.L + i] * per_unit : 0) - mean;
    for (Index j = 0; j < call.S; ++j) ds[j] = p[j] == 0 ? 0 : p[j] * (dp[j] + rest);
    work.dsink[place(h)] += work.sink_share(b, h, i) * rest;
  });
}

// dz = dS (1 - tanh^2(z / c))
void cap_backward(Work& work) {
  work.dcapped = work.dscores;
  const double c = work.contract.softcap;
  if (c == 0) return;
  const SharedNumbers scaled = work.scaled.at;
  for (std::size_t n = 0; n < work.dcapped.at.size(); ++n) {
    const double t = std::tanh(scaled[n] / c);
    if (work.dcapped.at[n] != 0) work.dcapped.at[n] *= 1 - t * t;
  }
}

void scale_backward(Work& work) {
  work.dproducts = work.dcapped;
  for (double& d : work.dproducts.at) d *= work.contract.scale;
}

// dq_i = sum_j dz_ij k_j      dk_j = sum_i dz_ij q_i, over the query heads that share the key head
void products_backward(Work& work) {
  const Call& call = *work.call;
  work.dquery = Numbers(work.query.shape);
  work.dkey = Numbers(work.key.shape);
  for_each_head(work, [&](Index b, Index h, Index g) {
    const double* const d = head(work.dproducts, b, h);
    set_product(work, call.L, call.D, call.S, {d, call.S}, {head(work.key, b, g), call.D},
                head_to_write(work.dquery, b, h));
    add_product(work, call.S, call.D, call.L, {d, call.S, true}, {head(work.query, b, h), call.D},
                head_to_write(work.dkey, b, g));
  });
}

// dx = dy w^T, added to what other paths brought      dw = x^T dy      db = sum of dy
void project_backward(Work& work, const Source& source, const Numbers& dheads) {
  const Array<double>* x = projected_from(work, source);
  if (!x) return;
  const Array<double>& w = input(work, "w_" + source.name);
  const Index rows = x->dim(0) * x->dim(1), M = w.dim(0), N = w.dim(1);
  const Numbers dy = merged(dheads);
  Numbers dx(x->shape()), dw(w.shape()), db(Shape{N});
  add_product(work, rows, M, N, {dy.at.data(), N}, {w.data(), N, true}, dx.at.data());
  add_product(work, M, N, rows, {x->data(), M, true}, {dy.at.data(), N}, dw.at.data());
  for (std::size_t i = 0; i < dy.at.size(); ++i) db.at[i % place(N)] += dy.at[i];
  const std::string to = x == input_if(work, "y") ? "grad_y" : "grad_x";
  if (const auto before = work.results.find(to); before != work.results.end()) {
    for (std::size_t i = 0; i < dx.at.size(); ++i) dx.at[i] += before->second.data()[i];
  }
  work.results[to] = dx.array();
  work.results["grad_w_" + source.name] = dw.array();
  if (has(work, "b_" + source.name)) work.results["grad_b_" + source.name] = db.array();
}

void inputs_backward(Work& work) {
  const Call& call = *work.call;
  if (const auto* fused = fused_projection(work, query_source(call))) {
    Numbers d(fused->shape());
    merge(work.dquery_unnormed, query_source(call).first, d);
    merge(work.dkey_unnormed, key_source(call).first, d);
    merge(work.dvalue, value_source(call).first, d);
    work.results["grad_projection"] = d.array();
    return;
  }
  project_backward(work, query_source(call), work.dquery_unnormed);
  project_backward(work, key_source(call), work.dkey_unnormed);
  project_backward(work, value_source(call), work.dvalue);
}

void name_gradients(Work& work) {
  work.results["grad_query"] = work.dquery_unnormed.array();
  work.results["grad_key"] = work.dkey_unnormed.array();
  work.results["grad_value"] = work.dvalue.array();
  if (const auto* bias = input_if(work, "bias")) {
    const bool before = work.contract.bias_before_scale;
    work.results["grad_bias"] = broadcast_gradient(before ? work.dproducts : work.dscores, bias->shape(), 1);
  }
  const auto* mask = input_if(work, "mask");
  if (mask && work.call->mask_is_additive) {
    work.results["grad_mask"] = broadcast_gradient(work.dscores, mask->shape(), 1);
  }
  if (has(work, "sink")) work.results["grad_sink"] = Array<double>::from(work.dsink);
  if (has(work, "slopes")) {
    std::vector<double> dslopes(place(work.call->H));
    for_each_row(work, [&](Index b, Index h, Index i) {
      for (Index j = 0; j < work.call->S; ++j) {
        dslopes[place(h)] -=
            work.dscores(b, h, i, j) * std::abs(work.query_position(b, i) - work.key_position(b, j));
      }
    });
    work.results["grad_slopes"] = Array<double>::from(dslopes);
  }
}

}  // namespace

Formula right_formula() {
  Formula f;
  f.inputs = begin_inputs;
  f.norms = [](Work& w) {
    norm(w, w.query_unnormed, w.query_unrotated, query_source(*w.call));
    norm(w, w.key_unnormed, w.key_unrotated, key_source(*w.call));
  };
  f.rotation = [](Work& w) {
    turn(w, w.query_unrotated, w.query, query_source(*w.call));
    turn(w, w.key_unrotated, w.key, key_source(*w.call));
  };
  f.products = multiply_queries_and_keys;
  f.scale = scale_scores;
  f.cap = cap_scores;
  f.bias = add_bias;
  f.visibility = [](Work& w) { find_visible(w); };
  f.softmax = weigh;
  f.dropout = drop;
  f.values = add_values;
  f.results = name_results;
  f.output_backward = output_backward;
  f.values_backward = values_backward;
  f.dropout_backward = dropout_backward;
  f.softmax_backward = softmax_backward;
  f.cap_backward = cap_backward;
  f.scale_backward = scale_backward;
  f.products_backward = products_backward;
  f.rotation_backward = [](Work& w) {
    w.dquery_unrotated = rotated(w, w.dquery, query_source(*w.call), -1);
    w.dkey_unrotated = rotated(w, w.dkey, key_source(*w.call), -1);
  };
  f.norms_backward = [](Work& w) {
    w.dquery_unnormed = normed_backward(w, w.dquery_unrotated, w.query_unnormed, query_source(*w.call));
    w.dkey_unnormed = normed_backward(w, w.dkey_unrotated, w.key_unnormed, key_source(*w.call));
  };
  f.inputs_backward = inputs_backward;
  f.gradients = name_gradients;
  return f;
}

Formula formula_of(const Call& call) {
  Formula f = right_formula();
  if (call.found) call.found(f);
  return f;
}

Work evaluate(const Call& call, const Formula& f, bool gradients) {
  Work work;
  work.call = &call;
  work.contract = call.contract;
  work.inputs = call.inputs;
  const auto run = [&](const Step& step) {
    if (step) step(work);
  };
  for (const Step* step : {&f.contract, &f.inputs}) run(*step);
  require_key_heads(work);
  for (const Step* step : {&f.norms, &f.rotation, &f.products, &f.scale, &f.cap, &f.bias, &f.visibility,
                           &f.softmax, &f.dropout, &f.values, &f.results}) {
    run(*step);
  }
  const bool asked = has(work, "upstream") || has(work, "upstream_weights") || has(work, "upstream_lse");
  if (!gradients || !asked) return work;
  for (const Step* step : {&f.before_backward, &f.output_backward, &f.values_backward, &f.dropout_backward,
                           &f.softmax_backward, &f.cap_backward, &f.scale_backward, &f.products_backward,
                           &f.rotation_backward, &f.norms_backward, &f.inputs_backward, &f.gradients}) {
    run(*step);
  }
  return work;
}

}  // namespace tapehead::check
