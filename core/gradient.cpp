#include <tapehead/core/gradient.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/sweep.h>

#include <algorithm>
#include <exception>

namespace tapehead {
namespace detail {
namespace {

template <class T>
Array<T> sum_of(Array<T> a, Array<T> b) {
  if (!a.sole_owner()) std::swap(a, b);
  const bool in_place = a.sole_owner();
  Array<T> sum = in_place ? std::move(a) : Array<T>::uninitialized(b.shape());
  T* s = sum.mutable_values().data();
  const T* p = in_place ? s : a.data();
  const T* q = b.data();
  parallel_for(b.size(), elementwise_grain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) s[i] = p[i] + q[i];
  });
  return sum;
}

// Drops what a failed call recorded.
template <class T>
class RewindOnException {
 public:
  explicit RewindOnException(Tape<T>& tape) : tape_(tape), size_(tape.size()) {}
  ~RewindOnException() {
    if (std::uncaught_exceptions() > exceptions_) tape_.rewind(std::min(size_, tape_.size()));
  }
  RewindOnException(const RewindOnException&) = delete;
  RewindOnException& operator=(const RewindOnException&) = delete;

 private:
  Tape<T>& tape_;
  Index size_;
  int exceptions_ = std::uncaught_exceptions();
};

template <class T>
std::vector<Var<T>> swept(const Request<T>& request, std::span<const Var<T>> x) {
  std::vector<Var<T>> dx(x.size());
  if (request.low <= request.high) {
    Sweep<T> sweep(*request.tape, request.low, request.high);
    sweep.keep();
    for (const Index i : request.x) {
      if (sweep.covers(i)) sweep.add_source(i);
    }
    sweep.spread();
    for (const auto& [i, seed] : request.seeds) {
      if (sweep.reached(i)) sweep.add(i, seed);
    }
    // Sorted by node, so that the one asked about next is always at the back.
    std::vector<std::size_t> order(x.size());
    for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::ranges::sort(order, {}, [&](std::size_t k) { return request.x[k]; });
    sweep.run(request.high, [&](Index i, const Var<T>& dy) {
      while (!order.empty() && request.x[order.back()] > i) order.pop_back();
      for (auto k = order.rbegin(); k != order.rend() && request.x[*k] == i; ++k) dx[*k] = dy;
    });
  }
  for (std::size_t k = 0; k < x.size(); ++k) {
    if (!dx[k].value().defined()) dx[k] = Array<T>::zeros(x[k].shape());
  }
  return dx;
}

}  // namespace

template <class T>
Var<T> accumulate(Var<T> sum, Var<T> term) {
  if (!sum.recorded() && !term.recorded()) {
    Array<T> a = sum.value(), b = term.value();
    sum = {}, term = {};  // so that a storage nobody else reads has one owner and is added to in place
    return Var<T>(sum_of(std::move(a), std::move(b)));
  }
  auto through = [](Var<T> dy) { return dy; };
  return record("accumulate", sum_of(sum.value(), term.value()), edge(sum, through), edge(term, through));
}

template <class T>
Request<T> checked_request(std::string_view op, std::span<const Var<T>> y, std::span<const Var<T>> x,
                           std::span<const Var<T>> seeds) {
  Request<T> request;
  const bool scalar = seeds.empty() && y.size() == 1 && y[0].size() == 1;
  if (!scalar && seeds.size() != y.size()) {
    std::string what = std::to_string(y.size()) + " y and " + std::to_string(seeds.size()) + " seeds";
    if (y.size() == 1 && seeds.empty())
      what = "y of shape " + to_string(y[0].shape()) + " needs a seed of that shape";
    throw LogicError(op, seeds.empty() ? "missing seed: " + what : what);
  }
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    if (seeds[i].shape() != y[i].shape()) {
      throw ShapeError(op, "the seed has not the shape of y",
                       {{"seed", seeds[i].shape()}, {"y", y[i].shape()}});
    }
  }
  auto locate = [&](const Var<T>& var) {
    Tape<T>& tape = Tape<T>::of(op, var);
    if (request.tape && request.tape != &tape) throw_two_tapes(op);
    request.tape = &tape;
    return Tape<T>::index_of(op, var);
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!x[i].recorded()) throw LogicError(op, "x " + std::to_string(i) + " is not recorded on a tape");
    request.x.push_back(locate(x[i]));
  }
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (!scalar && seeds[i].recorded()) locate(seeds[i]);
    if (!y[i].recorded()) {
      if (request.tape && !request.tape->recording()) {
        throw LogicError(
            op, "y " + std::to_string(i) + " is not recorded, and the tape of x records nothing now");
      }
      continue;
    }
    request.seeds.emplace_back(locate(y[i]), scalar ? Var<T>(Array<T>::ones(y[i].shape())) : seeds[i]);
    request.high = std::max(request.high, request.seeds.back().first);
  }
  request.low = request.x.empty() ? request.high + 1 : *std::ranges::min_element(request.x);
  return request;
}

template <class T>
std::vector<Var<T>> recorded_gradient(std::span<const Var<T>> y, std::span<const Var<T>> x,
                                      std::span<const Var<T>> seeds) {
  const Request<T> request = checked_request("gradient", y, x, seeds);
  if (x.empty()) return {};
  if (request.tape->paused()) {
    throw LogicError("gradient", "recording on this tape is paused; gradient_values needs none");
  }
  const RewindOnException<T> rewind(*request.tape);
  const Scope<T> scope(*request.tape, "gradient");
  return swept(request, x);
}

template <class T>
std::vector<Array<T>> plain_gradient(std::span<const Var<T>> y, std::span<const Var<T>> x,
                                     std::span<const Var<T>> seeds) {
  const Request<T> request = checked_request("gradient_values", y, x, seeds);
  if (x.empty()) return {};
  const PlainSweep<T> plain(*request.tape);
  const RewindOnException<T> rewind(*request.tape);
  std::vector<Array<T>> values;
  for (const Var<T>& dx : swept(request, x)) values.push_back(dx.value());
  return values;
}

template Request<float> checked_request(std::string_view, std::span<const Var<float>>,
                                        std::span<const Var<float>>, std::span<const Var<float>>);
template Request<double> checked_request(std::string_view, std::span<const Var<double>>,
                                         std::span<const Var<double>>, std::span<const Var<double>>);
template Var<float> accumulate(Var<float>, Var<float>);
template Var<double> accumulate(Var<double>, Var<double>);

}  // namespace detail

std::vector<Var<float>> gradient(Vars<float> y, Vars<float> x, Vars<float> seeds) {
  return detail::recorded_gradient<float>(y, x, seeds);
}
std::vector<Var<double>> gradient(Vars<double> y, Vars<double> x, Vars<double> seeds) {
  return detail::recorded_gradient<double>(y, x, seeds);
}
std::vector<Array<float>> gradient_values(Vars<float> y, Vars<float> x, Vars<float> seeds) {
  return detail::plain_gradient<float>(y, x, seeds);
}
std::vector<Array<double>> gradient_values(Vars<double> y, Vars<double> x, Vars<double> seeds) {
  return detail::plain_gradient<double>(y, x, seeds);
}

}  // namespace tapehead
