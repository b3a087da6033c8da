#include <tapehead/core/errors.h>
#include <tapehead/nn/attention_reference.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tapehead {
namespace {

constexpr const char* op = "attention_reference";
constexpr double infinity = std::numeric_limits<double>::infinity();

// Numbers by entry (all leading axes counted as one), row and column.
struct Grid {
  Grid(Index entries_, Index rows_, Index columns_, double number = 0)
      : entries(entries_),
        rows(rows_),
        columns(columns_),
        numbers(static_cast<std::size_t>(entries * rows * columns), number) {}
  explicit Grid(const Array<double>& x) : Grid(x.shape().first(x.rank() - 2).size(), x.dim(-2), x.dim(-1)) {
    numbers.assign(x.values().begin(), x.values().end());
  }

  std::size_t at(Index b, Index i, Index j) const {
    return static_cast<std::size_t>((b * rows + i) * columns + j);
  }
  double& operator()(Index b, Index i, Index j) { return numbers[at(b, i, j)]; }
  double operator()(Index b, Index i, Index j) const { return numbers[at(b, i, j)]; }
  Grid like() const { return {entries, rows, columns}; }  // zeros
  Array<double> array(const Shape& shape) const { return Array<double>::from(numbers, shape); }

  Index entries, rows, columns;
  std::vector<double> numbers;
};

// The extents of a call. An entry is a head of a sample; `group` query heads, neighbours, share a key head.
struct Sizes {
  Shape scores, leading;  // (..., H, L, S) and (..., H)
  Index B, H, group, L, S;

  Index key_entry(Index b) const { return b / group; }
  Index head(Index b) const { return b % H; }
  Index place(Index b, Index i, Index j) const { return (b * L + i) * S + j; }
};

// Where, in an array that broadcasts to the scores, the number for a place of theirs is.
Index broadcast_place(const Shape& own, const Shape& scores, Index place) {
  Index offset = 0, step = 1;
  for (int back = 1; back <= own.rank(); ++back) {
    const Index extent = scores[scores.rank() - back], own_extent = own[own.rank() - back];
    if (own_extent != 1) offset += place % extent * step;
    step *= own_extent;
    place /= extent;
  }
  return offset;
}

// Of the sample that entry b of so many belongs to.
Index number_of(const PerSample& numbers, Index entries, Index b) {
  return numbers.values().data()[b / (entries / numbers.values().size())];
}

// A gradient goes no further than where it is 0: what was selected away there may hold NaN.
double times(double gradient, double slope) { return gradient == 0 ? 0 : gradient * slope; }

double given(const Array<double>& upstream, Index place) {
  return upstream.defined() ? upstream.data()[place] : 0;
}

// ---- norm      r = 1 / sqrt(mean(x^2) + eps)      u = x r      y = u gain

double inverse_root_mean_square(const Grid& x, Index b, Index i, double eps) {
  double sum = 0;
  for (Index d = 0; d < x.columns; ++d) sum += x(b, i, d) * x(b, i, d);
  return 1 / std::sqrt(sum / static_cast<double>(x.columns) + eps);
}

Grid normed(const Grid& x, const Array<double>& gain, double eps) {
  Grid y = x.like();
  for (Index b = 0; b < x.entries; ++b) {
    for (Index i = 0; i < x.rows; ++i) {
      const double r = inverse_root_mean_square(x, b, i, eps);
      for (Index d = 0; d < x.columns; ++d) y(b, i, d) = x(b, i, d) * r * gain.data()[d];
    }
  }
  return y;
}

// du = dy gain      dx = (du - u mean(du u)) r      dgain = sum of dy u over the rows
Grid normed_backward(const Grid& dy, const Grid& x, const Array<double>& gain, double eps,
                     Array<double>& dgain) {
  Grid dx = x.like();
  double* const dg = dgain.mutable_values().data();
  for (Index b = 0; b < x.entries; ++b) {
    for (Index i = 0; i < x.rows; ++i) {
      const double r = inverse_root_mean_square(x, b, i, eps);
      double mean = 0;
      for (Index d = 0; d < x.columns; ++d) {
        dg[d] += times(dy(b, i, d), x(b, i, d) * r);
        mean += times(dy(b, i, d), gain.data()[d] * x(b, i, d) * r) / static_cast<double>(x.columns);
      }
      for (Index d = 0; d < x.columns; ++d) {
        dx(b, i, d) = times(dy(b, i, d), gain.data()[d] * r) - times(mean, x(b, i, d) * r * r);
      }
    }
  }
  return dx;
}

// ---- rotary positions      (y1, y2) = (x1 cos a - x2 sin a, x1 sin a + x2 cos a)
// a = position_scale position base^(-2 pair / width); the gradient is turned back: sign -1

Grid turned(const Grid& x, const RopeOptions& rope, const std::vector<Index>& first, double sign) {
  Grid y = x;
  const Index width = rope.width == 0 ? x.columns : rope.width;
  for (Index b = 0; b < x.entries; ++b) {
    for (Index i = 0; i < x.rows; ++i) {
      const double position = static_cast<double>(first[static_cast<std::size_t>(b)] + i);
      for (Index pair = 0; pair < width / 2; ++pair) {
        const Index one = rope.pairing == Pairing::half ? pair : 2 * pair;
        const Index two = rope.pairing == Pairing::half ? pair + width / 2 : 2 * pair + 1;
        const double a = rope.position_scale * position *
                         std::pow(rope.base, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
        y(b, i, one) = x(b, i, one) * std::cos(a) - sign * x(b, i, two) * std::sin(a);
        y(b, i, two) = sign * x(b, i, one) * std::sin(a) + x(b, i, two) * std::cos(a);
      }
    }
  }
  return y;
}

// ---- scores, of either kind

struct DotProduct {
  // s_ij = sum_d q_id k_jd
  Grid scores(const Sizes& n, const Grid& q, const Grid& k) const {
    Grid s(n.B, n.L, n.S);
    for (Index b = 0; b < n.B; ++b) {
      for (Index i = 0; i < n.L; ++i) {
        for (Index j = 0; j < n.S; ++j) {
          for (Index d = 0; d < q.columns; ++d) s(b, i, j) += q(b, i, d) * k(n.key_entry(b), j, d);
        }
      }
    }
    return s;
  }

  // dq_id = sum_j ds_ij k_jd      dk_jd = sum_i ds_ij q_id, over the rows of all heads that share it
  void backward(const Sizes& n, const Grid& ds, const Grid& q, const Grid& k, Grid& dq, Grid& dk) {
    for (Index b = 0; b < n.B; ++b) {
      for (Index i = 0; i < n.L; ++i) {
        for (Index j = 0; j < n.S; ++j) {
          for (Index d = 0; d < q.columns; ++d) {
            dq(b, i, d) += times(ds(b, i, j), k(n.key_entry(b), j, d));
            dk(n.key_entry(b), j, d) += times(ds(b, i, j), q(b, i, d));
          }
        }
      }
    }
  }
};

class Additive {
 public:
  explicit Additive(const AdditiveScoring<double>& scoring)
      : A_(scoring.v.size()),
        w_query_(scoring.w_query.value()),
        w_key_(scoring.w_key.value()),
        b_(scoring.b ? scoring.b->value() : Array<double>::zeros({A_})),
        v_(scoring.v.value()),
        dw_query(w_query_.like()),
        dw_key(w_key_.like()),
        db(static_cast<std::size_t>(A_)),
        dv(db) {}

  // s_ij = sum_a v_a h_ija
  Grid scores(const Sizes& n, const Grid& q, const Grid& k) const {
    Grid s(n.B, n.L, n.S);
    for (Index b = 0; b < n.B; ++b) {
      for (Index i = 0; i < n.L; ++i) {
        for (Index j = 0; j < n.S; ++j) {
          for (Index a = 0; a < A_; ++a) s(b, i, j) += v_.data()[a] * hidden(n, q, k, b, i, j, a);
        }
      }
    }
    return s;
  }

  // du_a = ds_ij v_a (1 - h_a^2)      dv_a += ds_ij h_a      db_a += du_a
  // dq_id += du_a w_query_da          dw_query_da += du_a q_id          and so for the key
  void backward(const Sizes& n, const Grid& ds, const Grid& q, const Grid& k, Grid& dq, Grid& dk) {
    for (Index b = 0; b < n.B; ++b) {
      const Index of_key = n.key_entry(b);
      for (Index i = 0; i < n.L; ++i) {
        for (Index j = 0; j < n.S; ++j) {
          for (Index a = 0; a < A_; ++a) {
            const double h = hidden(n, q, k, b, i, j, a);
            const double du = times(ds(b, i, j), v_.data()[a] * (1 - h * h));
            dv[static_cast<std::size_t>(a)] += times(ds(b, i, j), h);
            db[static_cast<std::size_t>(a)] += du;
            for (Index d = 0; d < q.columns; ++d) {
              dq(b, i, d) += times(du, w_query_(0, d, a));
              dw_query(0, d, a) += times(du, q(b, i, d));
            }
            for (Index d = 0; d < k.columns; ++d) {
              dk(of_key, j, d) += times(du, w_key_(0, d, a));
              dw_key(0, d, a) += times(du, k(of_key, j, d));
            }
          }
        }
      }
    }
  }

 private:
  // h_ija = tanh(sum_d q_id w_query_da + sum_d k_jd w_key_da + b_a)
  double hidden(const Sizes& n, const Grid& q, const Grid& k, Index b, Index i, Index j, Index a) const {
    double u = b_.data()[a];
    for (Index d = 0; d < q.columns; ++d) u += q(b, i, d) * w_query_(0, d, a);
    for (Index d = 0; d < k.columns; ++d) u += k(n.key_entry(b), j, d) * w_key_(0, d, a);
    return std::tanh(u);
  }

  Index A_;
  Grid w_query_, w_key_;
  Array<double> b_, v_;

 public:
  Grid dw_query, dw_key;
  std::vector<double> db, dv;
};

// ---- softcap      y = c tanh(x / c)      dx = dy (1 - tanh(x / c)^2)

double capped(double x, double c) { return c == 0 ? x : c * std::tanh(x / c); }

double capped_backward(double dy, double x, double c) {
  const double t = c == 0 ? 0 : std::tanh(x / c);
  return times(dy, 1 - t * t);
}

// ---- mask: whether query i of entry b may see key j

bool visible(const Mask::Causal& causal, const Sizes& n, Index b, Index i, Index j) {
  return j - i <= number_of(causal.offset, n.B, b);
}

bool visible(const Mask::Window& window, const Sizes& n, Index b, Index i, Index j) {
  const Index position = saturated_sum(number_of(window.offset, n.B, b), i);
  return saturated_sum(position, -window.left) <= j && j <= saturated_sum(position, window.right);
}

bool visible(const Mask::Lengths& lengths, const Sizes& n, Index b, Index, Index j) {
  return j < number_of(lengths.lengths, n.B, b);
}

bool visible(const Mask::Documents& documents, const Sizes& n, Index b, Index i, Index j) {
  const Index samples = documents.queries.size() / n.L, sample = b / (n.B / samples);
  return documents.queries.data()[sample * n.L + i] == documents.keys.data()[sample * n.S + j];
}

bool visible(const Mask::Allowed& allowed, const Sizes& n, Index b, Index i, Index j) {
  const Shape& own = allowed.keys.shape();
  if (!allowed.prefix) return allowed.keys.data()[broadcast_place(own, n.scores, n.place(b, i, j))];
  // Its last axis does not repeat: the key's number is counted there, and that of the row in the others.
  const Index held = own.dim(-1);
  return j < held &&
         allowed.keys.data()[broadcast_place(own.without(-1), n.scores.without(-1), b * n.L + i) * held + j];
}

bool visible(const AttentionOptions<double>& options, const Sizes& n, Index b, Index i, Index j) {
  if (options.bias) {
    const Array<double>& bias = options.bias->value();
    if (bias.data()[broadcast_place(bias.shape(), n.scores, n.place(b, i, j))] == -infinity) return false;
  }
  for (const Mask::Condition& condition : options.mask.conditions()) {
    if (!std::visit([&](const auto& c) { return visible(c, n, b, i, j); }, condition)) return false;
  }
  return true;
}

// ---- what is rejected

void require_shapes(const Array<double>& query, const Array<double>& key, const Array<double>& value) {
  const int rank = query.rank(), same = rank >= 4 ? rank - 3 : rank - 2;
  const bool fit = rank >= 2 && key.rank() == rank && value.rank() == rank &&
                   query.shape().first(same) == key.shape().first(same) &&
                   key.shape().first(rank - 2) == value.shape().first(rank - 2) &&
                   key.dim(-2) == value.dim(-2) && query.dim(-1) > 0 && key.dim(-2) > 0 &&
                   (rank < 4 || (key.dim(-3) > 0 && query.dim(-3) % key.dim(-3) == 0));
  if (fit) return;
  throw ShapeError(op, "needs query (..., H, L, D), key (..., Hk, S, D), value (..., Hk, S, E)",
                   {{"query", query.shape()}, {"key", key.shape()}, {"value", value.shape()}});
}

void require(bool fits, const char* name, const Shape& shape, const Shape& scores) {
  if (!fits) {
    throw ShapeError(op, std::string("the ") + name + " does not fit the scores",
                     {{name, shape}, {"scores", scores}});
  }
}

void require(bool inside, const char* what) {
  if (!inside) throw DomainError(op, what);
}

bool finite(const Array<double>& x) {
  return std::all_of(x.values().begin(), x.values().end(), [](double v) { return std::isfinite(v); });
}

void require_numbers(const PerSample& numbers, const char* name, const Sizes& n) {
  require(numbers.fits(n.leading), name, numbers.values().shape(), n.scores);
}

void require_fit(const Mask::Causal& causal, const Sizes& n) {
  require_numbers(causal.offset, "offset of the mask", n);
}
void require_fit(const Mask::Window& window, const Sizes& n) {
  require_numbers(window.offset, "offset of the mask", n);
}
void require_fit(const Mask::Lengths& lengths, const Sizes& n) {
  require_numbers(lengths.lengths, "lengths", n);
  for (const Index length : lengths.lengths.values().values()) {
    require(length <= n.S, "length of the mask", Shape{length}, n.scores);
  }
}
void require_fit(const Mask::Documents& documents, const Sizes& n) {
  const int samples = documents.queries.rank() - 1;
  const bool fits = samples <= n.leading.rank() &&
                    documents.queries.shape() == n.leading.first(samples).followed_by({n.L}) &&
                    documents.keys.shape() == n.leading.first(samples).followed_by({n.S});
  require(fits, "documents", documents.queries.shape(), n.scores);
}
void require_fit(const Mask::Allowed& allowed, const Sizes& n) {
  const Shape& own = allowed.keys.shape();
  const bool shorter = allowed.prefix && own.dim(-1) < n.S;
  require(broadcasts_to(shorter ? own.with(-1, n.S) : own, n.scores), "mask", own, n.scores);
}

void require_rope(const AttentionOptions<double>& options, const Array<double>& query,
                  const Array<double>& key) {
  const RopeOptions& rope = *options.rope;
  for (const Array<double>* x : {&query, &key}) {
    const Index width = rope.width == 0 ? x->dim(-1) : rope.width;
    require(width >= 0 && width <= x->dim(-1) && width % 2 == 0, "rotary width", Shape{std::abs(width)},
            x->shape());
    require(rope.start.fits(x->shape().first(x->rank() - 2)), "rotary start", rope.start.values().shape(),
            x->shape());
  }
  require(rope.base > 0 && std::isfinite(rope.base), "the base is not positive and finite");
  require(rope.position_scale > 0 && std::isfinite(rope.position_scale),
          "the position scale is not positive and finite");
  require(rope.start.same() || options.query_offset.same(),
          "give positions of each sample by rope.start or query_offset, not by both");
}

void require_options(const AttentionOptions<double>& options, const Sizes& n, const Array<double>& query,
                     const Array<double>& key) {
  if (options.norm) {
    const Shape &of_query = options.norm->query_gain.shape(), &of_key = options.norm->key_gain.shape();
    require(of_query == query.shape().last(1), "query gain", of_query, query.shape());
    require(of_key == key.shape().last(1), "key gain", of_key, key.shape());
  }
  if (options.rope) require_rope(options, query, key);
  if (options.rope || options.slopes) require_numbers(options.query_offset, "query_offset", n);
  if (options.scale.var()) {
    const Array<double>& scale = options.scale.var()->value();
    require(broadcasts_to(scale.shape(), n.scores), "scale", scale.shape(), n.scores);
    require(finite(scale), "the scale is not finite");
  }
  require(std::isfinite(options.scale.number(1)), "the scale is not finite");
  require(options.softcap >= 0 && std::isfinite(options.softcap), "the softcap is not positive, or 0");
  if (options.bias)
    require(broadcasts_to(options.bias->shape(), n.scores), "bias", options.bias->shape(), n.scores);
  for (const auto* numbers : {&options.slopes, &options.sink}) {
    if (!*numbers) continue;
    const Array<double>& of_heads = (*numbers)->value();
    require(of_heads.shape() == Shape{n.H}, numbers == &options.sink ? "sink" : "slopes", of_heads.shape(),
            n.scores);
    require(finite(of_heads), "a slope or sink is not finite");
  }
  for (const Mask::Condition& condition : options.mask.conditions()) {
    std::visit([&](const auto& c) { require_fit(c, n); }, condition);
  }
  if (options.dropout) {
    require(options.dropout->rate >= 0 && options.dropout->rate < 1, "the dropout rate is not in [0, 1)");
    if (const auto* kept = std::get_if<Array<bool>>(&options.dropout->kept)) {
      require(broadcasts_to(kept->shape(), n.scores), "dropout mask", kept->shape(), n.scores);
    }
  }
}

// ---- from raw scores to the output, and back

struct Gradients {
  Grid raw, masked, value;  // of the raw scores, the masked scores, the value
};

// The steps of each row, every one beside its gradient.
class Formulas {
 public:
  Formulas(const Sizes& n, const AttentionOptions<double>& options, double default_scale, const Grid& raw,
           const Array<double>& value)
      : n_(n), options_(options), default_scale_(default_scale), v_(value), raw_(raw) {}

  void forward(AttentionReference& r) {
    if (options_.dropout) draw_kept();
    for_each_row([&](Index b, Index i) { score(b, i); });
    find_seen_keys();
    for_each_row([&](Index b, Index i) { weigh(b, i); });
    for_each_row([&](Index b, Index i) { add_values(b, i); });
    for (Index b = 0; b < n_.B; ++b) summarize(b);
    r.output = output_.array(n_.scores.with(-1, v_.columns));
    r.weights = p_.array(n_.scores);
    r.scaled_scores = scaled_.array(n_.scores);
    r.capped_scores = capped_.array(n_.scores);
    r.masked_scores = z_.array(n_.scores);
    r.log_sum_exp = lse_.array(n_.scores.without(-1));
    r.entropy = entropy_.array(n_.leading);
    r.largest_score = largest_.array(n_.leading);
    r.first_key_mass = first_.array(n_.leading);
    r.kept = kept_;
  }

  Gradients backward(const AttentionOutputs& upstream, AttentionReference& r) const {
    r.dscale = Array<double>::zeros(options_.scale.var() ? options_.scale.var()->shape() : Shape{});
    if (options_.bias) r.dbias = Array<double>::zeros(options_.bias->shape());
    if (options_.slopes) r.dslopes = Array<double>::zeros({n_.H});
    if (options_.sink) r.dsink = Array<double>::zeros({n_.H});
    Gradients d{raw_.like(), raw_.like(), v_.like()};
    for_each_row([&](Index b, Index i) {
      if (!empty(b, i)) {
        std::vector<double> dp = add_values_backward(b, i, upstream, d);
        summarize_backward(b, i, upstream, dp);
        weigh_backward(b, i, upstream, dp, d, r);
      }
      score_backward(b, i, upstream, d, r);
    });
    return d;
  }

 private:
  template <class F>
  void for_each_row(F f) const {
    for (Index b = 0; b < n_.B; ++b) {
      for (Index i = 0; i < n_.L; ++i) f(b, i);
    }
  }

  bool excluded(Index b, Index i, Index j) const { return z_(b, i, j) == -infinity; }
  bool empty(Index b, Index i) const { return lse_(b, i, 0) == -infinity; }
  bool seen(Index b, Index j) const { return seen_(n_.key_entry(b), j, 0) != 0; }

  // A key is seen when some row of some head that shares it sees it.
  void find_seen_keys() {
    for_each_row([&](Index b, Index i) {
      for (Index j = 0; j < n_.S; ++j) {
        if (!excluded(b, i, j)) seen_(n_.key_entry(b), j, 0) = 1;
      }
    });
  }

  // ---- scaled = scale raw      capped = softcap(scaled)
  // z = capped + bias - slope |position of query - position of key|, minus infinity where excluded

  Index scale_place(Index b, Index i, Index j) const {
    const auto& scale = options_.scale.var();
    return scale ? broadcast_place(scale->shape(), n_.scores, n_.place(b, i, j)) : 0;
  }
  double scale(Index b, Index i, Index j) const {
    const auto& scale = options_.scale.var();
    return scale ? scale->value().data()[scale_place(b, i, j)] : options_.scale.number(default_scale_);
  }
  Index bias_place(Index b, Index i, Index j) const {
    return broadcast_place(options_.bias->shape(), n_.scores, n_.place(b, i, j));
  }
  double distance(Index b, Index i, Index j) const {
    return std::abs(static_cast<double>(saturated_sum(number_of(options_.query_offset, n_.B, b), i - j)));
  }

  void score(Index b, Index i) {
    for (Index j = 0; j < n_.S; ++j) {
      scaled_(b, i, j) = scale(b, i, j) * raw_(b, i, j);
      capped_(b, i, j) = capped(scaled_(b, i, j), options_.softcap);
      double z = capped_(b, i, j);
      if (options_.bias) z += options_.bias->value().data()[bias_place(b, i, j)];
      if (options_.slopes) z -= options_.slopes->value().data()[n_.head(b)] * distance(b, i, j);
      z_(b, i, j) = visible(options_, n_, b, i, j) ? z : -infinity;
    }
  }

  // dbias += dz      dslope -= dz distance      dcapped = dz, and what comes to it from outside
  // dscaled = dcapped softcap'(scaled), likewise        dscale += dscaled raw      draw = dscaled scale
  void score_backward(Index b, Index i, const AttentionOutputs& up, Gradients& d,
                      AttentionReference& r) const {
    for (Index j = 0; j < n_.S; ++j) {
      const Index place = n_.place(b, i, j);
      const double dz = d.masked(b, i, j);
      if (options_.bias) r.dbias.mutable_values().data()[bias_place(b, i, j)] += dz;
      if (options_.slopes) r.dslopes.mutable_values().data()[n_.head(b)] -= dz * distance(b, i, j);
      const double dcapped = dz + given(up.capped_scores, place);
      const double dscaled =
          capped_backward(dcapped, scaled_(b, i, j), options_.softcap) + given(up.scaled_scores, place);
      r.dscale.mutable_values().data()[scale_place(b, i, j)] += times(dscaled, raw_(b, i, j));
      d.raw(b, i, j) = times(dscaled, scale(b, i, j));
    }
  }

  // ---- p_j = exp(z_j) / total      share = exp(sink) / total      lse = log total
  // total = sum_j exp(z_j) + exp(sink), all divided by the exponential of the largest

  void weigh(Index b, Index i) {
    double largest = -infinity;
    for (Index j = 0; j < n_.S; ++j) {
      if (!(z_(b, i, j) <= largest)) largest = z_(b, i, j);
      if (std::isnan(largest)) break;
    }
    if (largest == -infinity && options_.empty_rows == EmptyRows::zero) return;
    if (!std::isfinite(largest)) {
      const char* what = std::isnan(largest)    ? "a score is not a number: "
                         : largest == -infinity ? "no key is allowed: "
                                                : "a score is infinite: ";
      throw DomainError(op, what + place_of_row(n_.scores, b * n_.L + i));
    }
    const double sink = options_.sink ? options_.sink->value().data()[n_.head(b)] : -infinity;
    largest = std::max(largest, sink);
    double total = std::exp(sink - largest);
    for (Index j = 0; j < n_.S; ++j) total += std::exp(z_(b, i, j) - largest);
    for (Index j = 0; j < n_.S; ++j) p_(b, i, j) = std::exp(z_(b, i, j) - largest) / total;
    share_(b, i, 0) = std::exp(sink - largest) / total;
    lse_(b, i, 0) = largest + std::log(total);
  }

  // The Jacobian of softmax is diag(p) - p p^T, and that of lse is p, over the keys and the sink:
  // dz_j = p_j (dp_j - sum_k p_k dp_k + dlse), 0 where excluded      dsink += the same of the share
  // dp holds the gradients of the weights and, last, of the share.
  void weigh_backward(Index b, Index i, const AttentionOutputs& up, const std::vector<double>& dp,
                      Gradients& d, AttentionReference& r) const {
    double mean = share_(b, i, 0) * dp.back();
    for (Index j = 0; j < n_.S; ++j) mean += p_(b, i, j) * dp[static_cast<std::size_t>(j)];
    const double dlse = given(up.log_sum_exp, b * n_.L + i);
    for (Index j = 0; j < n_.S; ++j) {
      if (excluded(b, i, j)) continue;
      double& dz = d.masked(b, i, j);
      dz = p_(b, i, j) * (dp[static_cast<std::size_t>(j)] - mean + dlse) +
           given(up.masked_scores, n_.place(b, i, j));
      if (z_(b, i, j) == largest_(b, 0, 0)) dz += given(up.largest_score, b) / static_cast<double>(ties(b));
    }
    if (options_.sink) {
      r.dsink.mutable_values().data()[n_.head(b)] += share_(b, i, 0) * (dp.back() - mean + dlse);
    }
  }

  // ---- dropout and values      w_j = p_j / (1 - rate) where kept, else 0      o_e = sum_j w_j v_je
  // A key that no row sees is left out: it may hold NaN. One that this row does not see has weight 0.

  void draw_kept() {
    kept_ = Array<bool>::uninitialized(n_.scores);
    bool* const kept = kept_.mutable_values().data();
    const auto* mask = std::get_if<Array<bool>>(&options_.dropout->kept);
    Generator generator = mask ? Generator(0) : std::get<Generator>(options_.dropout->kept);
    for (Index place = 0; place < kept_.size(); ++place) {
      kept[place] = mask ? mask->data()[broadcast_place(mask->shape(), n_.scores, place)]
                         : generator.uniform() >= options_.dropout->rate;
    }
  }

  // What a weight is multiplied by.
  double kept(Index b, Index i, Index j) const {
    if (!options_.dropout) return 1;
    return kept_.data()[n_.place(b, i, j)] ? 1 / (1 - options_.dropout->rate) : 0;
  }

  void add_values(Index b, Index i) {
    if (empty(b, i)) return;
    for (Index j = 0; j < n_.S; ++j) {
      if (!seen(b, j)) continue;
      const double w = p_(b, i, j) * kept(b, i, j);
      for (Index e = 0; e < v_.columns; ++e) output_(b, i, e) += w * v_(n_.key_entry(b), j, e);
    }
  }

  // dv_je += w_j do_e      dw_j = sum_e do_e v_je      dp_j = dw_j / (1 - rate) where kept, else 0
  std::vector<double> add_values_backward(Index b, Index i, const AttentionOutputs& up, Gradients& d) const {
    std::vector<double> dp(static_cast<std::size_t>(n_.S) + 1);
    for (Index j = 0; j < n_.S; ++j) {
      double& dp_j = dp[static_cast<std::size_t>(j)];
      for (Index e = 0; e < v_.columns && seen(b, j); ++e) {
        const double out = given(up.output, (b * n_.L + i) * v_.columns + e);
        d.value(n_.key_entry(b), j, e) += p_(b, i, j) * kept(b, i, j) * out;
        dp_j += out * v_(n_.key_entry(b), j, e);
      }
      dp_j = times(kept(b, i, j), dp_j) + given(up.weights, n_.place(b, i, j));
    }
    return dp;
  }

  // ---- of a head, over its rows that see a key
  // entropy = mean of - sum_j p_j log p_j - share log share      first = mean of p_0      largest = max of z

  Index rows_with_keys(Index b) const {
    Index count = 0;
    for (Index i = 0; i < n_.L; ++i) count += empty(b, i) ? 0 : 1;
    return count;
  }
  Index ties(Index b) const {  // how many scores are the largest
    Index count = 0;
    for (Index i = 0; i < n_.L; ++i) {
      for (Index j = 0; j < n_.S; ++j) count += z_(b, i, j) == largest_(b, 0, 0) ? 1 : 0;
    }
    return count;
  }
  static double surprise(double p) { return p > 0 ? -p * std::log(p) : 0; }
  static double surprise_backward(double p) { return p > 0 ? -std::log(p) - 1 : 0; }

  void summarize(Index b) {
    const double count = static_cast<double>(std::max<Index>(rows_with_keys(b), 1));
    for (Index i = 0; i < n_.L; ++i) {
      entropy_(b, 0, 0) += surprise(share_(b, i, 0)) / count;
      first_(b, 0, 0) += p_(b, i, 0) / count;
      for (Index j = 0; j < n_.S; ++j) {
        entropy_(b, 0, 0) += surprise(p_(b, i, j)) / count;
        largest_(b, 0, 0) = std::max(largest_(b, 0, 0), z_(b, i, j));
      }
    }
  }

  // dp_j += dentropy (- log p_j - 1) / count, and of the share      dp_0 += dfirst / count
  void summarize_backward(Index b, Index i, const AttentionOutputs& up, std::vector<double>& dp) const {
    const double count = static_cast<double>(rows_with_keys(b));
    const double dentropy = given(up.entropy, b) / count;
    for (Index j = 0; j < n_.S; ++j) {
      dp[static_cast<std::size_t>(j)] += dentropy * surprise_backward(p_(b, i, j));
    }
    dp.back() += dentropy * surprise_backward(share_(b, i, 0));
    dp.front() += given(up.first_key_mass, b) / count;
  }

  const Sizes& n_;
  const AttentionOptions<double>& options_;
  double default_scale_;
  Grid v_, raw_;
  Grid scaled_ = raw_.like(), capped_ = raw_.like(), z_ = raw_.like(), p_ = raw_.like();
  Grid share_{n_.B, n_.L, 1}, lse_{n_.B, n_.L, 1, -infinity}, output_{n_.B, n_.L, v_.columns};
  Grid entropy_{n_.B, 1, 1}, largest_{n_.B, 1, 1, -infinity}, first_{n_.B, 1, 1};
  Grid seen_{n_.B / n_.group, n_.S, 1};
  Array<bool> kept_;
};

// ---- the two attentions

bool any_given(const AttentionOutputs& up) {
  return up.output.defined() || up.weights.defined() || up.scaled_scores.defined() ||
         up.capped_scores.defined() || up.masked_scores.defined() || up.log_sum_exp.defined() ||
         up.entropy.defined() || up.largest_score.defined() || up.first_key_mass.defined();
}

void require_upstream(const AttentionOutputs& up, const AttentionOutputs& r) {
  auto same = [](const char* name, const Array<double>& upstream, const Array<double>& output) {
    if (!upstream.defined() || upstream.shape() == output.shape()) return;
    throw ShapeError(op, "the upstream gradient has not the shape of its output",
                     {{"upstream", upstream.shape()}, {name, output.shape()}});
  };
  same("output", up.output, r.output);
  same("weights", up.weights, r.weights);
  same("scaled_scores", up.scaled_scores, r.scaled_scores);
  same("capped_scores", up.capped_scores, r.capped_scores);
  same("masked_scores", up.masked_scores, r.masked_scores);
  same("log_sum_exp", up.log_sum_exp, r.log_sum_exp);
  same("entropy", up.entropy, r.entropy);
  same("largest_score", up.largest_score, r.largest_score);
  same("first_key_mass", up.first_key_mass, r.first_key_mass);
}

Sizes sizes_of(const Array<double>& query, const Array<double>& key) {
  const bool heads = query.rank() >= 4;
  const Shape leading = query.shape().first(query.rank() - 2);
  const Index L = query.dim(-2), S = key.dim(-2), H = heads ? query.dim(-3) : 1;
  const Index group = heads ? std::max<Index>(H / key.dim(-3), 1) : 1;
  return {leading.followed_by({L, S}), leading, leading.size(), H, group, L, S};
}

// The position of the first row of each entry; `offset` is counted from the start of the rotary positions.
std::vector<Index> first_positions(Index entries, const PerSample& start, const PerSample& offset) {
  std::vector<Index> first;
  for (Index b = 0; b < entries; ++b) {
    first.push_back(saturated_sum(number_of(start, entries, b), number_of(offset, entries, b)));
  }
  return first;
}

template <class Scoring>
void reference(Scoring& scoring, double default_scale, const Array<double>& query, const Array<double>& key,
               const Array<double>& value, const AttentionOptions<double>& options,
               const AttentionOutputs& upstream, AttentionReference& r) {
  const Sizes n = sizes_of(query, key);
  require_options(options, n, query, key);
  const Grid x_query(query), x_key(key);
  const auto& norm = options.norm;
  Grid q = norm ? normed(x_query, norm->query_gain.value(), norm->eps) : x_query;
  Grid k = norm ? normed(x_key, norm->key_gain.value(), norm->eps) : x_key;
  std::vector<Index> first_query, first_key;
  if (options.rope) {
    first_query = first_positions(q.entries, options.rope->start, options.query_offset);
    first_key = first_positions(k.entries, options.rope->start, 0);
    q = turned(q, *options.rope, first_query, 1);
    k = turned(k, *options.rope, first_key, 1);
  }
  Formulas formulas(n, options, default_scale, scoring.scores(n, q, k), value);
  formulas.forward(r);
  require_upstream(upstream, r);
  if (!any_given(upstream)) return;

  const Gradients d = formulas.backward(upstream, r);
  Grid dq = q.like(), dk = k.like();
  scoring.backward(n, d.raw, q, k, dq, dk);
  if (options.rope) {
    dq = turned(dq, *options.rope, first_query, -1);
    dk = turned(dk, *options.rope, first_key, -1);
  }
  if (norm) {
    r.dquery_gain = Array<double>::zeros(norm->query_gain.shape());
    r.dkey_gain = Array<double>::zeros(norm->key_gain.shape());
    dq = normed_backward(dq, x_query, norm->query_gain.value(), norm->eps, r.dquery_gain);
    dk = normed_backward(dk, x_key, norm->key_gain.value(), norm->eps, r.dkey_gain);
  }
  r.dquery = dq.array(query.shape());
  r.dkey = dk.array(key.shape());
  r.dvalue = d.value.array(value.shape());
  r.dscores = d.masked.array(n.scores);
}

void require_scoring(const Array<double>& query, const Array<double>& key, const AdditiveScoring<double>& s) {
  const Index A = s.v.size();
  const bool fit = s.v.rank() == 1 && s.w_query.shape() == Shape{query.dim(-1), A} &&
                   s.w_key.shape() == Shape{key.dim(-1), A} && (!s.b || s.b->shape() == s.v.shape());
  if (fit) return;
  throw ShapeError("additive_attention_reference", "needs w_query (D, A), w_key (N, A), v and b (A)",
                   {{"query", query.shape()},
                    {"key", key.shape()},
                    {"w_query", s.w_query.shape()},
                    {"w_key", s.w_key.shape()},
                    {"v", s.v.shape()},
                    {"b", s.b ? s.b->shape() : s.v.shape()}});
}

}  // namespace

AttentionReference attention_reference(const Array<double>& query, const Array<double>& key,
                                       const Array<double>& value, const AttentionOptions<double>& options,
                                       const AttentionOutputs& upstream) {
  require_shapes(query, key, value);
  if (query.dim(-1) != key.dim(-1)) {
    throw ShapeError(op, "the widths of query and key differ",
                     {{"query", query.shape()}, {"key", key.shape()}, {"value", value.shape()}});
  }
  AttentionReference r;
  DotProduct scoring;
  reference(scoring, 1 / std::sqrt(static_cast<double>(query.dim(-1))), query, key, value, options, upstream,
            r);
  return r;
}

AdditiveReference additive_attention_reference(const Array<double>& query, const Array<double>& key,
                                               const Array<double>& value,
                                               const AdditiveScoring<double>& scoring,
                                               const AttentionOptions<double>& options,
                                               const AttentionOutputs& upstream) {
  require_shapes(query, key, value);
  require_scoring(query, key, scoring);
  AdditiveReference r;
  Additive additive(scoring);
  reference(additive, 1, query, key, value, options, upstream, r);
  if (!r.dquery.defined()) return r;
  r.dw_query = additive.dw_query.array(scoring.w_query.shape());
  r.dw_key = additive.dw_key.array(scoring.w_key.shape());
  if (scoring.b) r.db = Array<double>::from(additive.db, scoring.b->shape());
  r.dv = Array<double>::from(additive.dv, scoring.v.shape());
  return r;
}

}  // namespace tapehead
