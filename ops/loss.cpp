#include <tapehead/core/errors.h>
#include <tapehead/core/record.h>
#include <tapehead/ops/arithmetic.h>
#include <tapehead/ops/elementwise.h>
#include <tapehead/ops/kernels/rows.h>
#include <tapehead/ops/loss.h>
#include <tapehead/ops/masking.h>
#include <tapehead/ops/reduction.h>
#include <tapehead/ops/shaping.h>
#include <tapehead/ops/softmax.h>

#include <algorithm>
#include <vector>

namespace tapehead {
namespace {

// The targets of a call, kept for its rule.
template <class T>
struct Targets {
  Array<Index> classes_of_rows;
  Array<T> weights;
  double smoothing;
  Index ignored;
  Index classes;

  kernels::CrossEntropyRows<T> rows() const {
    return {classes_of_rows.values(), weights.values(), smoothing, ignored, classes};
  }
  T weight(Index c) const { return weights.defined() ? weights.data()[c] : T{1}; }

  // (I..., 1), false where the target is ignored.
  Array<bool> counted() const {
    auto counts = Array<bool>::uninitialized(classes_of_rows.shape().followed_by({1}));
    bool* out = counts.mutable_values().data();
    for (const Index target : classes_of_rows.values()) *out++ = target != ignored;
    return counts;
  }

  // a (I..., C) as an array.
  Array<T> spread() const {
    auto a = Array<T>::zeros(classes_of_rows.shape().followed_by({classes}));
    T* row = a.mutable_values().data();
    for (const Index target : classes_of_rows.values()) {
      if (target != ignored) {
        for (Index c = 0; c < classes; ++c)
          row[c] = static_cast<T>(smoothing / static_cast<double>(classes)) * weight(c);
        row[target] += static_cast<T>(1 - smoothing) * weight(target);
      }
      row += classes;
    }
    return a;
  }
};

template <class T>
Var<T> row_losses(const Var<T>& x, const Targets<T>& targets) {
  auto loss = Array<T>::uninitialized(targets.classes_of_rows.shape());
  auto sums = Array<double>::uninitialized({targets.classes_of_rows.size(), 2});
  kernels::cross_entropy(x.value().data(), targets.rows(), loss.mutable_values().data(),
                         sums.mutable_values().data());
  return record("cross_entropy", std::move(loss), edge(x, [x, targets, sums](const Var<T>& dl) -> Var<T> {
                  if (is_recording(x)) {
                    const Var<T> a = targets.spread();
                    const Var<T> dl_of_class = reshape(dl, dl.shape().followed_by({1}));
                    const Array<bool> counted = targets.counted();
                    const Var<T> p = softmax(masked_fill(x, counted, 0));
                    return (p * sum(a, -1, Keep::yes) - a) * masked_fill(dl_of_class, counted, 0);
                  }
                  auto dx = Array<T>::uninitialized(x.shape());
                  kernels::cross_entropy_vjp(x.value().data(), targets.rows(), sums.data(), dl.value().data(),
                                             dx.mutable_values().data());
                  return Var<T>(std::move(dx));
                }));
}

// x with the axis behind the others.
template <class T>
Var<T> with_last(const Var<T>& x, int axis) {
  if (axis == x.rank() - 1) return x;
  std::vector<int> order;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != axis) order.push_back(i);
  }
  order.push_back(axis);
  return permute(x, std::span<const int>(order));
}

}  // namespace

template <std::floating_point T>
Var<T> cross_entropy(const Var<T>& x, const Array<Index>& targets, const CrossEntropyOptions<T>& options) {
  if (x.rank() < 1) {
    throw ShapeError("cross_entropy", "needs logits (I..., C) and targets (I...)",
                     {{"x", x.shape()}, {"targets", targets.shape()}});
  }
  const int axis = axis_of("cross_entropy", x.shape(), options.axis);
  if (x.shape().without(axis) != targets.shape()) {
    throw ShapeError("cross_entropy",
                     axis == x.rank() - 1
                         ? "needs logits (I..., C) and targets (I...)"
                         : "needs targets of the axes of x beside axis " + std::to_string(options.axis),
                     {{"x", x.shape()}, {"targets", targets.shape()}});
  }
  const Index classes = x.dim(axis);
  if (options.weights.defined() && options.weights.shape() != Shape{classes}) {
    throw ShapeError("cross_entropy", "needs a weight for each class",
                     {{"x", x.shape()}, {"weights", options.weights.shape()}});
  }
  if (!(options.smoothing >= 0 && options.smoothing <= 1)) {
    throw DomainError("cross_entropy",
                      "smoothing " + std::to_string(options.smoothing) + " is not in 0 to 1");
  }
  const Targets<T> kept{targets, options.weights, options.smoothing, options.ignored, classes};
  double total_weight = 0;
  for (Index i = 0; i < targets.size(); ++i) {
    const Index target = targets.data()[i];
    if (target == options.ignored) continue;
    if (target < 0 || target >= classes) {
      throw DomainError("cross_entropy", "target " + std::to_string(target) + " at position " +
                                             position_text(targets.shape(), i) + " is not in 0 to " +
                                             std::to_string(classes - 1));
    }
    total_weight += static_cast<double>(kept.weight(target));
  }
  if (options.reduction == Reduction::mean && total_weight == 0) {
    throw DomainError("cross_entropy", "the mean is over nothing: no target has weight");
  }
  const Var<T> losses = row_losses(with_last(x, axis), kept);
  if (options.reduction == Reduction::none) return losses;
  const Var<T> total = sum(losses);
  if (options.reduction == Reduction::sum) return total;
  return total / total_weight;
}

namespace {

template <class T>
Var<T> reduced(const Var<T>& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::mean:
      return mean(losses);
    case Reduction::sum:
      return sum(losses);
    case Reduction::none:
      break;
  }
  return losses;
}

template <class T>
void require_same_shapes(std::string_view op, std::string_view name_a, const Var<T>& a,
                         std::string_view name_b, const Var<T>& b) {
  if (a.shape() != b.shape()) {
    throw ShapeError(op, "shapes differ", {{name_a, a.shape()}, {name_b, b.shape()}});
  }
}

}  // namespace

template <std::floating_point T>
Var<T> mse(const Var<T>& x, const Var<T>& target, Reduction reduction) {
  require_same_shapes("mse", "x", x, "target", target);
  return reduced(square(x - target), reduction);
}

template <std::floating_point T>
Var<T> kl_div(const Var<T>& log_q, const Var<T>& p, Reduction reduction, int axis) {
  require_same_shapes("kl_div", "log_q", log_q, "p", p);
  axis = axis_of("kl_div", p.shape(), axis);
  // Selected away before the logarithm: what has no probability adds nothing, whatever log_q says of it.
  auto counts = Array<bool>::uninitialized(p.shape());
  std::transform(p.value().values().begin(), p.value().values().end(), counts.mutable_values().begin(),
                 [](T one) { return one != 0; });
  const Var<T> logarithms = log(masked_fill(p, counts, 1)) - masked_fill(log_q, counts, 0);
  return reduced(sum(p * logarithms, axis), reduction);
}

template Var<float> mse(const Var<float>&, const Var<float>&, Reduction);
template Var<double> mse(const Var<double>&, const Var<double>&, Reduction);
template Var<float> kl_div(const Var<float>&, const Var<float>&, Reduction, int);
template Var<double> kl_div(const Var<double>&, const Var<double>&, Reduction, int);
template Var<float> cross_entropy(const Var<float>&, const Array<Index>&, const CrossEntropyOptions<float>&);
template Var<double> cross_entropy(const Var<double>&, const Array<Index>&,
                                   const CrossEntropyOptions<double>&);

}  // namespace tapehead
