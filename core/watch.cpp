#include <tapehead/core/errors.h>
#include <tapehead/core/sweep.h>
#include <tapehead/core/watch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace tapehead::detail {
namespace {

constexpr NonFinite operator|(NonFinite a, NonFinite b) {
  return static_cast<NonFinite>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
constexpr NonFinite without(NonFinite a, NonFinite b) {
  return static_cast<NonFinite>(static_cast<std::uint8_t>(a) & ~static_cast<std::uint8_t>(b));
}
NonFinite nonfinite_of(double x) {
  return std::isfinite(x) ? NonFinite::no : std::isnan(x) ? NonFinite::nan : NonFinite::infinity;
}

// What the elements of an array range over.
template <class T>
struct Elements {
  explicit Elements(const Array<T>& x) : shape(x.shape()) {
    for (const T value : x.values()) {
      if (std::isnan(value)) {
        ++nans;
      } else if (std::isinf(value)) {
        ++infinities;
      } else {
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
  }

  std::string text() const {
    std::ostringstream text;
    text << to_string(shape);
    if (low <= high) text << " from " << low << " to " << high;
    if (nans > 0) text << ", " << nans << " NaN";
    if (infinities > 0) text << ", " << infinities << " infinite";
    return text.str();
  }

  const Shape& shape;
  T low = std::numeric_limits<T>::infinity(), high = -low;  // of those that are finite
  Index nans = 0, infinities = 0;
};

template <class T>
NonFinite nonfinite_in(const Array<T>& x) {
  T zero{};
  for (const T value : x.values()) zero += value * T{0};  // NaN when one is not finite
  if (zero == T{0}) return NonFinite::no;
  const Elements<T> elements(x);
  return (elements.nans > 0 ? NonFinite::nan : NonFinite::no) |
         (elements.infinities > 0 ? NonFinite::infinity : NonFinite::no);
}

// What watch_op() and its like say of a node and of the arrays at hand.
class Report {
 public:
  template <class T>
  Report(const std::string& what, NonFinite made, const Tape<T>& tape, Index i, std::uint32_t label) {
    const std::string path = tape.label_path(label);
    text_ << what << (what.empty() ? "made " : " made ")
          << (made == NonFinite::nan        ? "NaN"
              : made == NonFinite::infinity ? "an infinity"
                                            : "NaN and infinities")
          << " at node %" << i << (path.empty() ? "" : " in ") << path << ":";
  }
  template <class T>
  Report& add(std::string_view name, const Array<T>& x) {
    text_ << (empty_ ? " " : ", ") << name << " " << Elements<T>(x).text();
    empty_ = false;
    return *this;
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  bool empty_ = true;
};

std::string numbered(std::string_view what, std::size_t number) {
  return std::string(what) + std::to_string(number);
}

}  // namespace

template <class T>
NonFinite watch_op(const Tape<T>& tape, OpName op, std::uint32_t label, bool in_sweep, const Array<T>& value,
                   std::span<const Var<T>* const> inputs, Given given) {
  NonFinite came = nonfinite_of(given.number);
  for (const Var<T>* input : inputs) came = came | nonfinite_in(input->value());
  const NonFinite holds = nonfinite_in(value);
  const NonFinite made = without(holds, came);
  if (made == NonFinite::no || in_sweep) return came | holds;
  Report report("", made, tape, tape.size(), label);
  report.add("y", value);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::string name = numbered("argument ", i);
    if (inputs[i]->recorded()) {
      name += numbered(" %", static_cast<std::size_t>(Tape<T>::index_of(op, *inputs[i])));
    }
    report.add(name, inputs[i]->value());
  }
  throw DomainError(op, report.text());
}

template <class T>
void watch_rule(const Tape<T>& tape, Index i, const Edge<T>& edge, const Var<T>& y, const Var<T>& dy,
                const Var<T>& dx, const Var<T>& sum) {
  const Node<T>& node = tape.node(i);
  if (node.continues) return;  // looked at inside, and dx is a sum
  const NonFinite came = tape.seen(i) | nonfinite_in(dy.value()) | nonfinite_in(y.value());
  const NonFinite holds = nonfinite_in(dx.value());
  if (const NonFinite made = without(holds, came); made != NonFinite::no) {
    Report report(numbered("the rule of argument ", edge.slot), made, tape, i, node.label);
    report.add(numbered("dx of %", edge.input), dx.value()).add("dy", dy.value());
    if (y.value().defined()) report.add("y", y.value());
    throw DomainError(node.op, report.text());
  }
  if (!sum.value().defined()) return;
  const Array<T> total = accumulate(sum.detach(), dx.detach()).value();
  const NonFinite made = without(nonfinite_in(total), holds | nonfinite_in(sum.value()));
  if (made == NonFinite::no) return;
  const Node<T>& input = tape.node(edge.input);
  Report report("the sum of its gradients", made, tape, edge.input, input.name ? input.name : input.label);
  report.add("sum", total).add("of", sum.value()).add("and", dx.value());
  throw DomainError(input.op, report.text());
}

#define TAPEHEAD_INSTANTIATE(T)                                                                 \
  template NonFinite watch_op(const Tape<T>&, OpName, std::uint32_t, bool, const Array<T>&,     \
                              std::span<const Var<T>* const>, Given);                           \
  template void watch_rule(const Tape<T>&, Index, const Edge<T>&, const Var<T>&, const Var<T>&, \
                           const Var<T>&, const Var<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead::detail
