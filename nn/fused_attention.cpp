// What the fused kernel is asked, in its own terms, and attention as one op of it.

#include <tapehead/core/errors.h>
#include <tapehead/core/gradient.h>
#include <tapehead/core/record.h>
#include <tapehead/nn/attention_parts.h>
#include <tapehead/ops/kernels/fused_attention.h>
#include <tapehead/ops/shaping.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tapehead::detail {
namespace {

using kernels::AttentionProblem;
using kernels::HeadRows;
using kernels::KeyRange;
using kernels::ScoreArray;

// The axes of scores (..., H, L, S), those in front of the heads as one.
struct Axes4 {
  Index batches, heads, queries, keys;

  explicit Axes4(const Shape& scores)
      : batches(scores.first(std::max(scores.rank() - 3, 0)).size()),
        heads(scores.rank() >= 3 ? scores.dim(-3) : 1),
        queries(scores.dim(-2)),
        keys(scores.dim(-1)) {
    if (scores.rank() == 3) std::swap(batches, heads);  // rank 3 is one head
  }
};

// How an array that broadcasts to the scores is stepped through; nothing when it repeats along some of
// several axes in front of the heads.
template <class T>
std::optional<ScoreArray<const T>> stepped(const T* data, const Shape& shape, const Shape& scores) {
  const Strides step(shape, scores);
  const int rank = scores.rank(), in_front = std::max(rank >= 4 ? rank - 3 : rank - 2, 0);
  ScoreArray<const T> x{data, 0, rank >= 4 ? step[rank - 3] : 0, step[rank - 2], step[rank - 1]};
  Index next = 0;
  bool first = true;
  for (int axis = in_front; axis-- > 0;) {
    if (scores[axis] == 1) continue;
    if (first) {
      x.batch = step[axis];
      first = false;
    } else if (step[axis] != next) {
      return {};
    }
    next = step[axis] * scores[axis];
  }
  return x;
}

// Whether numbers along the first `axes` axes of the scores are the same for all heads of a batch.
bool same_for_heads(int axes, const Shape& scores) {
  return axes <= (scores.rank() >= 4 ? scores.rank() - 3 : scores.rank() - 2);
}

// A mask as the kernel reads it. Takes little memory, whatever the lengths.
struct KernelMask {
  std::vector<KeyRange> ranges;  // one a batch
  std::vector<ScoreArray<const bool>> allowed;
  std::vector<Index> query_documents, key_documents;
  std::string_view obstacle;

  KernelMask(const Mask& mask, const Shape& scores)
      : scores_(scores), leading_(scores.first(scores.rank() - 2)), axes_(scores) {
    for (const Mask::Condition& condition : mask.conditions()) {
      std::visit([&](const auto& c) { add(c); }, condition);
    }
  }

 private:
  template <class Narrow>
  void narrow(const PerSample& numbers, Narrow narrow_range) {
    if (!same_for_heads(numbers.values().rank(), scores_)) {
      obstacle = of_each_head;
      return;
    }
    ranges.resize(static_cast<std::size_t>(axes_.batches));
    for (Index b = 0; b < axes_.batches; ++b) {
      narrow_range(ranges[static_cast<std::size_t>(b)], number_of(numbers, b));
    }
  }
  Index number_of(const PerSample& numbers, Index batch) const {
    return numbers.of(leading_, batch * (leading_.size() / std::max<Index>(axes_.batches, 1)));
  }

  void add(const Mask::Causal& causal) {
    narrow(causal.offset,
           [](KeyRange& range, Index offset) { range.to = std::min(range.to, saturated_sum(offset, 1)); });
  }
  void add(const Mask::Window& window) {
    narrow(window.offset, [&](KeyRange& range, Index offset) {
      range.from = std::max(range.from, saturated_sum(offset, -window.left));
      range.to = std::min(range.to, saturated_sum(saturated_sum(offset, window.right), 1));
    });
  }
  void add(const Mask::Lengths& lengths) {
    narrow(lengths.lengths, [](KeyRange& range, Index length) { range.last = std::min(range.last, length); });
  }
  void add(const Mask::Documents& documents) {
    if (!query_documents.empty()) {
      obstacle = "composed: the mask has two sets of documents";
      return;
    }
    if (!same_for_heads(documents.queries.rank() - 1, scores_)) {
      obstacle = of_each_head;
      return;
    }
    const Index samples = documents.queries.size() / std::max<Index>(axes_.queries, 1);
    for (Index b = 0; b < axes_.batches; ++b) {
      const Index sample = b * samples / axes_.batches;
      const Index *query = documents.queries.data() + sample * axes_.queries,
                  *key = documents.keys.data() + sample * axes_.keys;
      query_documents.insert(query_documents.end(), query, query + axes_.queries);
      key_documents.insert(key_documents.end(), key, key + axes_.keys);
    }
  }
  void add(const Mask::Allowed& given) {
    Shape scores = scores_;
    if (given.prefix && given.keys.dim(-1) < axes_.keys) {
      const Index held = given.keys.dim(-1);
      narrow(0, [=](KeyRange& range, Index) { range.last = std::min(range.last, held); });
      scores = scores.with(-1, held);
    }
    if (const auto keys = stepped(given.keys.data(), given.keys.shape(), scores)) {
      allowed.push_back(*keys);
    } else {
      obstacle = "composed: a mask repeats along some of several leading axes";
    }
  }

  static constexpr std::string_view of_each_head = "composed: a mask has numbers of each head";

  Shape scores_, leading_;
  Axes4 axes_;
};

// The rows of an array with an axis of heads, or of one whose rows hold several heads side by side. Below
// rank 4 there is one head, and the axis in front of the rows is the batch.
template <class T>
HeadRows<const T> rows_of(const Array<T>& x, Index side_by_side = 0) {
  const Index row = x.dim(-1), rows = x.dim(-2) * row;
  if (side_by_side > 0) {
    const Index head = row / side_by_side;
    return {x.data(), x.rank() == 2 ? head : rows, head, row};
  }
  if (x.rank() <= 3) return {x.data(), rows, 0, row};
  return {x.data(), x.dim(-3) * rows, rows, row};
}

template <class T>
HeadRows<T> writable_rows_of(Array<T>& x, Index side_by_side = 0) {
  if (!x.defined()) return {};
  const HeadRows<const T> rows = rows_of(x, side_by_side);
  return {x.mutable_values().data(), rows.batch, rows.head, rows.row};
}

// The problem and all that it points to.
template <class T>
class FusedProblem {
 public:
  FusedProblem(const Operands<T>& x, const AttentionOptions<T>& options)
      : FusedProblem(x.query_shape(), x.key_shape(), x.value_shape().dim(-1), options) {
    p_.q = rows_of(x.query.value(), x.heads);
    p_.k = rows_of(x.key.value(), x.key_heads), p_.v = rows_of(x.value.value(), x.key_heads);
  }
  // Where the rows of q, k and v lie is said elsewhere.
  FusedProblem(const Shape& query, const Shape& key, Index value_width, const AttentionOptions<T>& options)
      : scores_(scores_shape(query, key)),
        allowed_by_bias_(mask_of_bias(options)),
        mask_(options.mask & allowed_by_bias_, scores_) {
    const Axes4 axes(scores_);
    p_.batches = axes.batches, p_.heads = axes.heads, p_.queries = axes.queries, p_.keys = axes.keys;
    p_.key_heads = key.rank() >= 4 ? key.dim(-3) : 1;
    p_.width = query.dim(-1), p_.value_width = value_width;
    p_.scale = options.scale.number(1 / std::sqrt(static_cast<double>(p_.width)));
    p_.softcap = options.softcap;
    if (options.bias) {
      const Array<T>& bias = options.bias->value();
      p_.bias = stepped(bias.data(), bias.shape(), scores_).value();
    }
    if (options.slopes) add_slopes(*options.slopes, options.query_offset);
    if (options.sink) p_.sinks = options.sink->value().data();
    add_mask();
    if (options.dropout) {
      const auto& generator = std::get<Generator>(options.dropout->kept);
      p_.dropout = {options.dropout->rate, generator.key(), generator.position()};
    }
  }
  FusedProblem(const FusedProblem&) = delete;
  FusedProblem& operator=(const FusedProblem&) = delete;

  AttentionProblem<T>& operator*() { return p_; }
  const AttentionProblem<T>& operator*() const { return p_; }
  const AttentionProblem<T>* operator->() const { return &p_; }

 private:
  static Mask mask_of_bias(const AttentionOptions<T>& options) {
    return options.bias ? allowed_by(*options.bias) : Mask();
  }

  void add_slopes(const Var<T>& slopes, const PerSample& offset) {
    p_.slopes = slopes.value().data();
    const Shape leading = scores_.first(scores_.rank() - 2);
    for (Index b = 0; b < p_.batches; ++b) {
      positions_.push_back(offset.of(leading, b * (leading.size() / p_.batches)));
    }
    p_.positions = positions_.data();
  }

  void add_mask() {
    if (!mask_.ranges.empty()) {
      p_.ranges = mask_.ranges.data();
      p_.range_of_batch = true;
    }
    if (!mask_.allowed.empty()) {
      p_.allowed = mask_.allowed.data();
      p_.allowed_count = static_cast<Index>(mask_.allowed.size());
    }
    if (!mask_.query_documents.empty()) {
      p_.query_documents = mask_.query_documents.data();
      p_.key_documents = mask_.key_documents.data();
    }
  }

  Shape scores_;
  Mask allowed_by_bias_;
  KernelMask mask_;
  std::vector<Index> positions_;
  AttentionProblem<T> p_;
};

// Inputs of the op in the order of its arguments; those that are not given are undefined Vars.
template <class T>
struct Inputs {
  Var<T> query, key, value, bias, slopes, sink;
  Index heads, key_heads;  // as Operands have them

  Inputs(const Operands<T>& x, const AttentionOptions<T>& options)
      : query(x.query),
        key(x.key),
        value(x.value),
        bias(options.bias.value_or(Var<T>())),
        slopes(options.slopes.value_or(Var<T>())),
        sink(options.sink.value_or(Var<T>())),
        heads(x.heads),
        key_heads(x.key_heads) {}
  Operands<T> operands() const { return {query, key, value, heads, key_heads}; }
  std::array<const Var<T>*, 6> pointers() const { return {&query, &key, &value, &bias, &slopes, &sink}; }
  std::array<Var<T>*, 6> pointers() { return {&query, &key, &value, &bias, &slopes, &sink}; }
};

// Output (..., L, E), or with the log-sum-exp as one more column (..., L, E + 1).
template <class T>
Array<T> packed(const Array<T>& output, const Array<double>& lse) {
  const Index width = output.dim(-1);
  auto both = Array<T>::uninitialized(output.shape().with(-1, width + 1));
  T* out = both.mutable_values().data();
  for (Index row = 0; row < lse.size(); ++row, out += width + 1) {
    std::copy_n(output.data() + row * width, width, out);
    out[width] = static_cast<T>(lse.data()[row]);
  }
  return both;
}

template <class T>
struct Unpacked {
  Array<T> output, last;  // `last` is undefined when there is no more column
};
template <class T>
Unpacked<T> unpacked(const Array<T>& y, Index width) {
  if (y.dim(-1) == width) return {y, {}};
  Unpacked<T> x{Array<T>::uninitialized(y.shape().with(-1, width)),
                Array<T>::uninitialized(y.shape().without(-1))};
  T *output = x.output.mutable_values().data(), *last = x.last.mutable_values().data();
  for (Index row = 0; row < x.last.size(); ++row) {
    const T* from = y.data() + row * (width + 1);
    std::copy_n(from, width, output + row * width);
    last[row] = from[width];
  }
  return x;
}

// x with 0 for the rows without a key, of which lse (batches, heads, queries) tells: they may hold NaN, which
// the kernel would multiply by 0.
template <class T>
Array<T> without_empty_rows(const Array<T>& x, const Array<double>& lse, Index side_by_side) {
  Array<T> result = x;
  const Index queries = lse.dim(-1), heads = lse.dim(-2);
  const Index width = x.dim(-1) / std::max<Index>(side_by_side, 1);
  for (Index row = 0; row < lse.size(); ++row) {
    if (lse.data()[row] > -std::numeric_limits<double>::infinity()) continue;
    const HeadRows<T> rows = writable_rows_of(result, side_by_side);
    const Index head = row / queries;
    std::fill_n(rows.data + head / heads * rows.batch + head % heads * rows.head + row % queries * rows.row,
                width, T{});
  }
  return result;
}

template <class T>
struct Forward {
  Array<T> output;
  Array<double> lse;  // (..., heads, queries)
  Index refused;      // the first row that is an error, -1 for none
};
template <class T>
Forward<T> forward(const AttentionProblem<T>& p, const Shape& shape, Index side_by_side,
                   EmptyRows empty_rows) {
  auto output = Array<T>::uninitialized(shape);
  auto lse = Array<double>::uninitialized({p.batches, p.heads, p.queries});
  const kernels::AttentionRows rows =
      kernels::attention_forward(p, writable_rows_of(output, side_by_side), lse.mutable_values().data());
  if (rows.without_key >= 0 && empty_rows == EmptyRows::error) return {output, lse, rows.without_key};
  if (rows.without_key >= 0) output = without_empty_rows(output, lse, side_by_side);
  return {std::move(output), std::move(lse), rows.not_finite};
}

// The gradients of a plain sweep, from one pass of the kernel.
template <class T>
std::array<Var<T>, 6> kernel_gradients(const Inputs<T>& in, const AttentionOptions<T>& options,
                                       const Array<T>& y, const Array<double>& lse, const Array<T>& dy,
                                       Wanted wanted) {
  Operands<T> operands = in.operands();
  operands.query = without_empty_rows(in.query.value(), lse, in.heads);
  const FusedProblem<T> problem(operands, options);
  const Index width = problem->value_width * std::max<Index>(in.heads, 1);
  const Unpacked<T> output = unpacked(y, width),
                    upstream = unpacked(without_empty_rows(dy, lse, in.heads), width);
  kernels::AttentionGradients<T> g;
  g.output = rows_of(output.output, in.heads), g.doutput = rows_of(upstream.output, in.heads);
  g.lse = lse.data();
  g.dlse = upstream.last.data();
  std::array<Array<T>, 6> d;
  const auto inputs = in.pointers();
  for (std::size_t i = 0; i < 6; ++i) {
    if (wanted[i])
      d[i] = i < 3 ? Array<T>::uninitialized(inputs[i]->shape()) : Array<T>::zeros(inputs[i]->shape());
  }
  g.dq = writable_rows_of(d[0], in.heads);
  g.dk = writable_rows_of(d[1], in.key_heads), g.dv = writable_rows_of(d[2], in.key_heads);
  auto values = [](Array<T>& x) { return x.defined() ? x.mutable_values().data() : nullptr; };
  g.dbias = values(d[3]), g.dslopes = values(d[4]), g.dsinks = values(d[5]);
  kernels::attention_backward(*problem, g);
  std::array<Var<T>, 6> result;
  std::move(d.begin(), d.end(), result.begin());
  return result;
}

// The options with the Vars of `in`, what they ask for besides the output, and no more to be done to the
// operands.
template <class T>
AttentionOptions<T> with_inputs(AttentionOptions<T> options, const Inputs<T>& in) {
  if (options.bias) options.bias = in.bias;
  if (options.slopes) options.slopes = in.slopes;
  if (options.sink) options.sink = in.sink;
  return options;
}

// The operands with an axis of heads.
template <class T>
Operands<T> by_head(const Operands<T>& x) {
  if (x.heads == 0) return x;
  const Var<T> query = split_heads(x.query, x.heads), key = split_heads(x.key, x.key_heads);
  return {query, key, split_heads(x.value, x.key_heads)};
}

// The gradients of a recorded sweep: those of the composition, which can be differentiated again.
template <class T>
std::array<Var<T>, 6> composed_gradients(Inputs<T> in, const AttentionOptions<T>& options, const Var<T>& dy,
                                         Wanted wanted) {
  // Each as a node of its own, so that one Var in two places gets the gradient of each place.
  std::vector<Var<T>> sources;
  const auto inputs = in.pointers();
  for (std::size_t i = 0; i < 6; ++i) {
    if (!wanted[i]) continue;
    *inputs[i] = reshape(*inputs[i], inputs[i]->shape());
    sources.push_back(*inputs[i]);
  }
  const AttentionResult<T> again = composed_attention(by_head(in.operands()), with_inputs(options, in));
  Var<T> y = in.heads > 0 ? merge_heads(again.output) : again.output;
  if (again.log_sum_exp) {
    const Var<T>& lse = *again.log_sum_exp;
    y = concat({y, reshape(lse, lse.shape().followed_by({1}))}, -1);
  }
  const std::vector<Var<T>> gradients = gradient(Vars<T>(y), Vars<T>(sources), Vars<T>(dy));
  std::array<Var<T>, 6> d;
  for (std::size_t i = 0, next = 0; i < 6; ++i) {
    if (wanted[i]) d[i] = gradients[next++];
  }
  return d;
}

}  // namespace

template <class T>
std::string_view obstacle_to_fusion(const Shape& scores, const AttentionOptions<T>& options) {
  if (options.weights) return "composed: the weights are wanted";
  if (options.scaled_scores || options.capped_scores || options.masked_scores) {
    return "composed: scores are wanted";
  }
  if (options.statistics) return "composed: statistics are wanted";
  if (options.scale.var()) return "composed: the scale is a Var";
  if (options.dropout && (options.kept || std::holds_alternative<Array<bool>>(options.dropout->kept))) {
    return "composed: the mask of dropout is given or wanted";
  }
  if (options.bias && !stepped(options.bias->value().data(), options.bias->shape(), scores)) {
    return "composed: the bias repeats along some of several leading axes";
  }
  if (options.slopes && !same_for_heads(options.query_offset.values().rank(), scores)) {
    return "composed: the query offset is one of each head";
  }
  return KernelMask(options.mask, scores).obstacle;
}

template <class T>
AttentionResult<T> fused_attention(const Operands<T>& x, const AttentionOptions<T>& options) {
  const FusedProblem<T> problem(x, options);
  const Index width = problem->value_width * std::max<Index>(x.heads, 1);
  Forward<T> made = forward(*problem, x.query.shape().with(-1, width), x.heads, options.empty_rows);
  if (made.refused >= 0) {
    composed_attention(by_head(x), options);  // says which row and why
    throw DomainError("attention", "no key is allowed, or a score is not finite: " +
                                       place_of_row(x.scores_shape(), made.refused));
  }
  const Inputs<T> in(x, options);
  Array<T> value = options.log_sum_exp ? packed(made.output, made.lse) : std::move(made.output);
  const Var<T> y = record_joint(
      "fused_attention", std::move(value), in.pointers(),
      [in, options, lse = made.lse](const Var<T>& output, const Var<T>& dy, Wanted wanted) {
        const bool recorded = is_recording(dy, in.query, in.key, in.value, in.bias, in.slopes, in.sink);
        return recorded ? composed_gradients(in, options, dy, wanted)
                        : kernel_gradients(in, options, output.value(), lse, dy.value(), wanted);
      });
  if (!options.log_sum_exp) return {y};
  AttentionResult<T> result{slice(y, -1, {0, width})};
  result.log_sum_exp = reshape(slice(y, -1, {width, width + 1}), x.query.shape().without(-1));
  return result;
}

template <class T>
Array<T> fused_output(const Array<T>& query, const Array<T>& keys, const Array<T>& values, Index length,
                      const AttentionOptions<T>& options) {
  FusedProblem<T> problem(query.shape(), keys.shape().with(-2, length), values.dim(-1), options);
  AttentionProblem<T>& p = *problem;
  p.q = rows_of(query), p.k = rows_of(keys), p.v = rows_of(values);
  const Forward<T> made = forward(p, query.shape().with(-1, values.dim(-1)), 0, options.empty_rows);
  return made.refused < 0 ? made.output : Array<T>();
}

#define TAPEHEAD_INSTANTIATE(T)                                                                \
  template std::string_view obstacle_to_fusion(const Shape&, const AttentionOptions<T>&);      \
  template AttentionResult<T> fused_attention(const Operands<T>&, const AttentionOptions<T>&); \
  template Array<T> fused_output(const Array<T>&, const Array<T>&, const Array<T>&, Index,     \
                                 const AttentionOptions<T>&);
TAPEHEAD_INSTANTIATE(float)
TAPEHEAD_INSTANTIATE(double)
#undef TAPEHEAD_INSTANTIATE

}  // namespace tapehead::detail
