// What depends on the mode of the call. What depends on an earlier call needs both dumps:
// tools/check/against.

#include <algorithm>
#include <cmath>

#include <tools/check/families/hypotheses.h>
#include <tools/check/families/least_squares.h>
#include <tools/check/number_types.h>

namespace tapehead::check {
namespace {

struct Dropped {
  Numbers keep;  // (B, H, L, S)
  double rate = 0;
};

Change dropping(const Dropped& dropped, bool in_weights) {
  return [=, keep = dropped.keep.array(), rate = dropped.rate](Formula& f) {
    f.contract = after(f.contract, [=](Work& w) {
      w.contract.training = true;
      w.contract.dropout = rate;
      w.inputs["dropout_keep"] = keep;
    });
    if (!in_weights) return;
    f.results = after(f.results, [](Work& w) { w.results["weights"] = w.dropped.array(); });
  };
}

// A mask of dropout keeps about 1 - rate of what it sees, and a factor that drops nothing is none.
bool is_likely(const Dropped& dropped, const Work& right) {
  double seen = 0, kept = 0;
  for (std::size_t n = 0; n < right.weights.at.size(); ++n) {
    if (right.weights.at[n] != 0) seen += 1, kept += dropped.keep.at[n];
  }
  const double share = 1 - dropped.rate, deviation = std::sqrt(share * dropped.rate / std::max(seen, 1.0));
  return kept != seen && std::abs(kept / seen - share) <= 5 * deviation;
}

// ---- from the weights: what is 0 was dropped, the others are 1 / (1 - rate) times as large

std::optional<Dropped> from_weights(const Call& call, const Work& right) {
  const Array<double>* got = find(call.candidate, "weights");
  if (!got || got->size() != right.weights.shape.size()) return std::nullopt;
  Dropped result{Numbers(right.weights.shape, 1)};
  double along = 0, length = 0;
  for (std::size_t n = 0; n < right.weights.at.size(); ++n) {
    const double ours = right.weights.at[n], theirs = got->data()[n];
    if (theirs == 0) result.keep.at[n] = 0;
    if (theirs != 0) along += theirs * ours, length += ours * ours;
  }
  if (length == 0) return std::nullopt;
  result.rate = 1 - length / along;
  if (!(result.rate > 1e-3 && result.rate < 1)) return std::nullopt;
  if (call.contract.dropout > 0) result.rate = call.contract.dropout;
  return is_likely(result, right) ? std::optional(result) : std::nullopt;
}

// ---- from the output: which of a row's terms p_j v_j / (1 - rate) it is the sum of

struct Terms {
  std::vector<Index> keys;                 // that the row sees
  std::vector<std::vector<double>> terms;  // of each, (E)
  std::vector<double> output;              // (E), as the candidate gives it
};

Terms terms_of(const Call& call, const Work& right, Index b, Index h, Index i, double factor) {
  Terms row;
  const Index g = right.key_head[place(h)];
  for (Index j = 0; j < call.S; ++j) {
    if (right.weights(b, h, i, j) == 0) continue;
    std::vector<double>& term = row.terms.emplace_back();
    for (Index e = 0; e < call.E; ++e)
      term.push_back(factor * right.weights(b, h, i, j) * right.value(b, g, j, e));
    row.keys.push_back(j);
  }
  const double* output = find(call.candidate, "output")->data() + ((b * call.H + h) * call.L + i) * call.E;
  row.output.assign(output, output + call.E);
  return row;
}

struct Solved {
  Dropped dropped;
  double left = 0;
};

// Nothing when the output cannot tell.
std::optional<Solved> solved_with(const Call& call, const Work& right, double rate) {
  Solved result{{Numbers(right.weights.shape, 1), rate}};
  bool told = true;
  for_each_row(call, [&](Index b, Index h, Index i) {
    if (!told) return;
    Terms row = terms_of(call, right, b, h, i, 1 / (1 - rate));
    const auto kept = nearest_sum(row.terms, row.output, significand_bits(call.contract.computed_in));
    told = kept.has_value();
    for (std::size_t k = 0; told && k < row.terms.size(); ++k) {
      result.dropped.keep(b, h, i, row.keys[k]) = (*kept)[k];
      for (std::size_t e = 0; (*kept)[k] && e < row.output.size(); ++e) row.output[e] -= row.terms[k][e];
    }
    for (const double x : row.output) result.left += x * x;
  });
  return told ? std::optional(std::move(result)) : std::nullopt;
}

std::optional<Dropped> from_output(const Call& call, const Work& right) {
  const Array<double>* got = find(call.candidate, "output");
  if (!got || got->size() != right.output.shape.size() || got->rank() != 4) return std::nullopt;
  std::vector<double> rates = {0.1, 0.05, 0.2, 0.25, 0.3, 0.4, 0.5};
  if (call.contract.dropout > 0) rates = {call.contract.dropout};
  std::optional<Solved> best;
  for (const double rate : rates) {
    std::optional<Solved> solved = solved_with(call, right, rate);
    if (!solved) return std::nullopt;
    if (!best || solved->left < best->left) best = std::move(solved);
  }
  return is_likely(best->dropped, right) ? std::optional(best->dropped) : std::nullopt;
}

// ---- from two outputs that differ as dropout lets them: by variance rate / (1 - rate) sum p_j^2 v_j^2

struct Spread {
  double got = 0, unit = 0;  // sums over the output of squared differences, and of sum p_j^2 v_j^2
  double together = 0;       // of products of the two outputs' differences
};

Spread spread(const Call& call, const Work& right, const Array<double>& one, const Array<double>& other) {
  Spread result;
  for_each_row(call, [&](Index b, Index h, Index i) {
    const Index g = right.key_head[place(h)], row = ((b * call.H + h) * call.L + i) * call.E;
    for (Index e = 0; e < call.E; ++e) {
      const double a = one.data()[row + e] - right.output.at[place(row + e)];
      const double c = other.data()[row + e] - right.output.at[place(row + e)];
      result.got += (a * a + c * c) / 2;
      result.together += a * c;
      for (Index j = 0; j < call.S; ++j) {
        const double term = right.weights(b, h, i, j);
        if (term != 0) result.unit += term * term * right.value(b, g, j, e) * right.value(b, g, j, e);
      }
    }
  });
  return result;
}

// The output is whatever an unknown mask makes of it: named, not reproduced.
void add_unrepeatable(const Call& call, const Work& right, Hypotheses& to) {
  const Array<double>*one = find(call.candidate, "output"), *other = find(call.inputs, "output_second");
  if (!one || !other || one->size() != other->size() || one->size() != right.output.shape.size()) return;
  constexpr Index enough = 256;  // numbers: the sums below are then within a few tenths
  if (one->size() < enough || std::equal(one->values().begin(), one->values().end(), other->values().begin()))
    return;
  const Spread s = spread(call, right, *one, *other);
  if (!(s.unit > 0) || !(std::abs(s.together) < 0.3 * s.got)) return;
  const double rate = s.got / (s.got + s.unit);
  const double asked = call.contract.dropout;
  if (asked > 0 && std::abs(s.got / s.unit / (asked / (1 - asked)) - 1) > 0.5) return;
  const auto unknown_mask = [output = *one](Formula& f) {
    f.results = after(f.results, [=](Work& w) { w.results["output"] = output; });
  };
  to.push_back(hypothesis("dropout-mode", "active", unknown_mask, {{"rate", rate}, {"expected", 0}}));
}

void add_active(const Call& call, Hypotheses& to) {
  const Work right = evaluate(call, formula_of(call), false);
  const auto add = [&](const Dropped& dropped) {
    for (const bool in_weights : {false, true}) {
      if (in_weights && !find(call.candidate, "weights")) continue;
      to.push_back(hypothesis("dropout-mode", "active", dropping(dropped, in_weights),
                              {{"rate", dropped.rate}, {"expected", 0}}));
    }
  };
  const Array<double>* keep = find(call.inputs, "dropout_keep");
  if (keep && call.contract.dropout > 0) {
    Dropped given{Numbers(right.weights.shape), call.contract.dropout};
    for_each_row(call, [&](Index b, Index h, Index i) {
      for (Index j = 0; j < call.S; ++j) {
        given.keep(b, h, i, j) = broadcast_at(*keep, right.weights.shape, b, h, i, j);
      }
    });
    add(given);
  }
  if (const auto dropped = from_weights(call, right)) add(*dropped);
  const std::size_t before = to.size();
  if (const auto dropped = from_output(call, right)) add(*dropped);
  if (to.size() == before) add_unrepeatable(call, right, to);
}

}  // namespace

Hypotheses state_mistakes(const Call& call) {
  Hypotheses result;
  if (!call.contract.training) add_active(call, result);
  if (call.contract.training && call.contract.dropout > 0) {
    const auto off = [](Formula& f) {
      f.contract = after(f.contract, [](Work& w) { w.contract.training = false; });
    };
    result.push_back(hypothesis("dropout-mode", "stuck-off", off));
  }
  return result;
}

}  // namespace tapehead::check
