#include <tapehead/core/errors.h>
#include <tapehead/nn/attention_reference.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tapehead {
namespace {

// Whether query i of batch entry b (all leading axes counted as one) may see key j.
bool visible(const Mask::Causal& causal, const Shape&, Index, Index i, Index j) {
  return j - i <= causal.offset;
}

bool visible(const Mask::Allowed& allowed, const Shape& scores, Index b, Index i, Index j) {
  // From the last axis forward: the index along each axis of the scores, and 0 where the mask has extent 1.
  Index rest = (b * scores[scores.rank() - 2] + i) * scores[scores.rank() - 1] + j;
  Index offset = 0, step = 1;
  const Shape& own = allowed.keys.shape();
  for (int back = 1; back <= own.rank(); ++back) {
    const bool exists = back <= scores.rank();
    const Index extent = exists ? scores[scores.rank() - back] : 0, own_extent = own[own.rank() - back];
    if (!exists || (own_extent != 1 && own_extent != extent)) {
      throw ShapeError("attention_reference", "the mask does not broadcast to the scores",
                       {{"mask", own}, {"scores", scores}});
    }
    if (own_extent != 1) offset += rest % extent * step;
    step *= own_extent;
    rest /= extent;
  }
  return allowed.keys.data()[offset];
}

bool visible(const Mask& mask, const Shape& scores, Index b, Index i, Index j) {
  for (const Mask::Condition& condition : mask.conditions()) {
    if (!std::visit([&](const auto& c) { return visible(c, scores, b, i, j); }, condition)) return false;
  }
  return true;
}

double scale_of(const AttentionOptions<double>& options, Index width) {
  const double scale = options.scale.var() ? options.scale.var()->item() : options.scale.number(width);
  if (!std::isfinite(scale)) throw DomainError("attention_reference", "the scale is not finite");
  return scale;
}

}  // namespace

AttentionReference attention_reference(const Array<double>& query, const Array<double>& key,
                                       const Array<double>& value, const AttentionOptions<double>& options,
                                       const Array<double>& upstream) {
  const int rank = query.rank();
  const bool fit = rank >= 2 && key.rank() == rank && value.rank() == rank &&
                   query.shape().first(rank - 2) == key.shape().first(rank - 2) &&
                   query.shape().first(rank - 2) == value.shape().first(rank - 2) &&
                   query.dim(-1) == key.dim(-1) && key.dim(-2) == value.dim(-2) && query.dim(-1) > 0 &&
                   key.dim(-2) > 0;
  if (!fit) {
    throw ShapeError("attention_reference", "needs query (..., L, D), key (..., S, D), value (..., S, E)",
                     {{"query", query.shape()}, {"key", key.shape()}, {"value", value.shape()}});
  }
  const Shape leading = query.shape().first(rank - 2);
  const Index B = leading.size(), L = query.dim(-2), S = key.dim(-2), D = query.dim(-1), E = value.dim(-1);
  const Shape scores_shape = leading.followed_by({L, S});
  const bool backward = upstream.defined();
  AttentionReference r{
      Array<double>::zeros(leading.followed_by({L, E})), Array<double>::zeros(scores_shape), {}, {}, {}, {}};
  if (backward) {
    if (upstream.shape() != r.output.shape()) {
      throw ShapeError("attention_reference", "upstream has not the shape of the output",
                       {{"upstream", upstream.shape()}, {"output", r.output.shape()}});
    }
    r.dquery = Array<double>::zeros(query.shape());
    r.dkey = Array<double>::zeros(key.shape());
    r.dvalue = Array<double>::zeros(value.shape());
    r.dscores = Array<double>::zeros(scores_shape);
  }
  const double scale = scale_of(options, D);
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  double* const output = r.output.mutable_values().data();
  double* const weights = r.weights.mutable_values().data();
  double* const dquery = r.dquery.mutable_values().data();
  double* const dkey = r.dkey.mutable_values().data();
  double* const dvalue = r.dvalue.mutable_values().data();
  double* const dscores = r.dscores.mutable_values().data();
  std::vector<double> raw(static_cast<std::size_t>(S)), z(raw.size()), dw(raw.size());

  for (Index b = 0; b < B; ++b) {
    const double* k = key.data() + b * S * D;
    const double* v = value.data() + b * S * E;
    for (Index i = 0; i < L; ++i) {
      const double* q = query.data() + (b * L + i) * D;
      double* w = weights + (b * L + i) * S;
      double* o = output + (b * L + i) * E;

      // 1  raw_j = sum_d q_d k_jd      z_j = scale raw_j, or minus infinity where the key is not allowed
      double largest = minus_infinity;
      for (Index j = 0; j < S; ++j) {
        const auto at = static_cast<std::size_t>(j);
        raw[at] = 0;
        for (Index d = 0; d < D; ++d) raw[at] += q[d] * k[j * D + d];
        z[at] = visible(options.mask, scores_shape, b, i, j) ? scale * raw[at] : minus_infinity;
        if (std::isnan(z[at])) largest = z[at];
        if (z[at] > largest) largest = z[at];
      }
      if (!std::isfinite(largest)) {
        throw DomainError("attention_reference", "no key is allowed, or a score is not finite: " +
                                                     place_of_row(scores_shape, b * L + i));
      }
      // 2  w_j = exp(z_j - max z) / sum_j exp(z_j - max z)
      double total = 0;
      for (Index j = 0; j < S; ++j) total += w[j] = std::exp(z[static_cast<std::size_t>(j)] - largest);
      for (Index j = 0; j < S; ++j) w[j] /= total;
      // 3  o_e = sum_j w_j v_je
      for (Index j = 0; j < S; ++j) {
        for (Index e = 0; e < E; ++e) o[e] += w[j] * v[j * E + e];
      }
      if (!backward) continue;

      const double* up = upstream.data() + (b * L + i) * E;
      // 3' o_e = sum_j w_j v_je:            dw_j = sum_e do_e v_je      dv_je += w_j do_e
      double mean_dw = 0;
      for (Index j = 0; j < S; ++j) {
        const auto at = static_cast<std::size_t>(j);
        dw[at] = 0;
        for (Index e = 0; e < E; ++e) {
          dw[at] += up[e] * v[j * E + e];
          dvalue[(b * S + j) * E + e] += w[j] * up[e];
        }
        mean_dw += w[j] * dw[at];
      }
      for (Index j = 0; j < S; ++j) {
        const auto at = static_cast<std::size_t>(j);
        // 2' the Jacobian of softmax is diag(w) - w w^T:      dz_j = w_j (dw_j - sum_k w_k dw_k)
        const double dz = z[at] == minus_infinity ? 0 : w[j] * (dw[at] - mean_dw);
        dscores[(b * L + i) * S + j] = dz;
        // 1' z_j = scale sum_d q_d k_jd:    dq_d += scale dz_j k_jd     dk_jd += scale dz_j q_d
        for (Index d = 0; d < D; ++d) {
          dquery[(b * L + i) * D + d] += scale * dz * k[j * D + d];
          dkey[(b * S + j) * D + d] += scale * dz * q[d];
        }
        r.dscale += dz * raw[at];
      }
    }
  }
  return r;
}

}  // namespace tapehead
