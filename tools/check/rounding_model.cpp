#include <tools/check/number_types.h>
#include <tools/check/rounding_model.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <tapehead/core/random.h>
#include <tapehead/ops/rounding.h>

namespace tapehead::check {
namespace {

using Round = std::function<double(double)>;

void apply(const Round& round, SharedNumbers& x) {
  for (double& v : x) v = round(v);
}

void apply(const Round& round, Tensors& tensors) {
  for (auto& [name, x] : tensors) {
    for (double& v : x.mutable_values()) v = round(v);
  }
}

// The step, then what it wrote rounded.
template <class... Written>
void follow(Step& step, const Round& round, Written... written) {
  step = [inner = std::move(step), round, written...](Work& work) {
    if (inner) inner(work);
    (apply(round, (work.*written).at), ...);
  };
}

void follow_results(Step& step, const Round& round) {
  step = [inner = std::move(step), round](Work& work) {
    if (inner) inner(work);
    apply(round, work.results);
  };
}

void follow_all(Formula& f, const Round& round) {
  follow(f.norms, round, &Work::query_unrotated, &Work::key_unrotated);
  follow(f.rotation, round, &Work::query, &Work::key);
  follow(f.products, round, &Work::products);
  follow(f.scale, round, &Work::scaled);
  follow(f.cap, round, &Work::capped);
  follow(f.bias, round, &Work::scores);
  follow(f.softmax, round, &Work::weights, &Work::sink_share);
  follow(f.dropout, round, &Work::dropped);
  follow(f.values, round, &Work::output);
  follow(f.output_backward, round, &Work::doutput);
  follow(f.values_backward, round, &Work::ddropped, &Work::dvalue);
  follow(f.dropout_backward, round, &Work::dweights);
  follow(f.softmax_backward, round, &Work::dscores);
  follow(f.cap_backward, round, &Work::dcapped);
  follow(f.scale_backward, round, &Work::dproducts);
  follow(f.products_backward, round, &Work::dquery, &Work::dkey);
  follow(f.rotation_backward, round, &Work::dquery_unrotated, &Work::dkey_unrotated);
}

double largest(std::span<const double> x) {
  double y = 0;
  for (const double v : x) {
    if (std::isfinite(v)) y = std::max(y, std::abs(v));
  }
  return y;
}

// False when the plain implementation has left the range of its type: then it says nothing.
bool error_of(const Array<double>& got, const Array<double>& exact, Noise& noise) {
  if (got.shape() != exact.shape()) return false;
  double most = 0, sum = 0;
  Index count = 0;
  for (Index i = 0; i < exact.size(); ++i) {
    const double x = exact.data()[i], y = got.data()[i];
    if (!std::isfinite(x)) continue;
    if (!std::isfinite(y)) return false;
    most = std::max(most, std::abs(y - x));
    sum += (y - x) * (y - x);
    ++count;
  }
  noise.max = std::max(noise.max, most);
  noise.rms = std::max(noise.rms, std::sqrt(sum / static_cast<double>(std::max<Index>(count, 1))));
  return true;
}

}  // namespace

Formula rounded(const Formula& formula, NumberType type, Rounding rounding, unsigned seed) {
  Formula f = formula;
  const Round to_type = [type](double x) { return round_to(x, type); };
  if (rounding == Rounding::shaken) {
    const auto random = std::make_shared<Generator>(seed);
    const double size = 2 * unit_roundoff(type);
    const Round shake = [random, size](double x) { return x * (1 + size * (2 * random->uniform() - 1)); };
    follow_all(f, shake);
    if (type == NumberType::f64 || type == NumberType::f32) follow(f.inputs, shake, &Work::value);
  } else {
    const bool wide = type == NumberType::f64 || type == NumberType::f32;
    const Round to_float = [](double x) { return static_cast<double>(static_cast<float>(x)); };
    if (rounding == Rounding::every_step || wide) {
      follow_all(f, to_type);
    } else {
      follow_all(f, to_float);
      follow(f.softmax, to_type, &Work::weights);
      follow(f.dropout, to_type, &Work::dropped);
    }
    f.contract = [inner = f.contract, sums = type == NumberType::f32](Work& work) {
      if (inner) inner(work);
      work.float_sums = sums;
    };
  }
  follow_results(f.results, to_type);
  follow_results(f.gradients, to_type);
  return f;
}

// Shaken runs are several, so that an error that is small by luck in one does not set the measure; fewer
// where each tensor is an average over many numbers anyway.
std::map<std::string, Noise, std::less<>> noise_of(const Call& call, const Formula& formula,
                                                   const Tensors& results) {
  std::map<std::string, Noise, std::less<>> noise;
  const NumberType type = call.contract.computed_in;
  for (const auto& [name, x] : results) {
    const auto kept = call.kept_in.find(name);
    const double unit = kept == call.kept_in.end() ? 0 : unit_roundoff(kept->second);
    const double once = std::max(unit, unit_roundoff(type)) * largest(x.values());
    noise[name] = {once, once / 4};
  }
  const auto add = [&](const Formula& plain) {
    const Tensors got = evaluate(call, plain).results;
    for (auto& [name, x] : results) {
      const auto found = got.find(name);
      if (found != got.end()) error_of(found->second, x, noise[name]);
    }
  };
  add(rounded(formula, type, Rounding::every_step));
  if (type == NumberType::bf16 || type == NumberType::f16) add(rounded(formula, type, Rounding::weights));
  const unsigned shaken = call.B * call.H * call.L * call.S > 20000 ? 1 : 8;
  for (unsigned seed = 1; seed <= shaken; ++seed) add(rounded(formula, type, Rounding::shaken, seed));
  return noise;
}

}  // namespace tapehead::check
