#include <tapehead/core/errors.h>
#include <tapehead/nn/mask.h>

#include <algorithm>

namespace tapehead {
namespace {

// Leading axes of the scores that a condition of samples depends on, kept, and the others at extent 1.
Shape by_sample(const Shape& samples, const Shape& scores) {
  return with_ones(samples, scores.rank() - 2).followed_by(scores.last(2));
}

void require_samples(const char* what, const PerSample& numbers, const Shape& scores) {
  if (numbers.fits(scores.first(scores.rank() - 2))) return;
  throw ShapeError("attention", std::string(what) + " of the mask are not one for each sample of the scores",
                   {{what, numbers.values().shape()}, {"scores", scores}});
}

void require(const Mask::Causal& causal, const Shape& scores) {
  require_samples("offsets", causal.offset, scores);
}

void require(const Mask::Window& window, const Shape& scores) {
  require_samples("offsets", window.offset, scores);
}

void require(const Mask::Lengths& lengths, const Shape& scores) {
  require_samples("lengths", lengths.lengths, scores);
  for (const Index length : lengths.lengths.values().values()) {
    if (length > scores.dim(-1)) {
      throw ShapeError("attention",
                       "a length of the mask, " + std::to_string(length) + ", is beyond the keys",
                       {{"scores", scores}});
    }
  }
}

void require(const Mask::Documents& documents, const Shape& scores) {
  const Shape &queries = documents.queries.shape(), &keys = documents.keys.shape();
  const int samples = queries.rank() - 1;
  const bool fit = keys.rank() == queries.rank() && samples <= scores.rank() - 2 &&
                   scores.first(samples).followed_by({scores.dim(-2)}) == queries &&
                   scores.first(samples).followed_by({scores.dim(-1)}) == keys;
  if (fit) return;
  throw ShapeError("attention", "the documents of the mask do not fit the scores",
                   {{"queries", queries}, {"keys", keys}, {"scores", scores}});
}

void require(const Mask::Allowed& allowed, const Shape& scores) {
  Shape keys = allowed.keys.shape();
  if (allowed.prefix && keys.dim(-1) < scores.dim(-1)) keys = keys.with(-1, scores.dim(-1));
  if (broadcasts_to(keys, scores)) return;
  throw ShapeError("attention", "the mask does not broadcast to the scores",
                   {{"mask", allowed.keys.shape()}, {"scores", scores}});
}

// Keys [first, last) of each row are allowed; range(sample, row) gives the two.
template <class Range>
Array<bool> ranges(const Shape& samples, const Shape& scores, Range range) {
  const Shape shape = by_sample(samples, scores);
  auto keys = Array<bool>::uninitialized(shape);
  bool* row = keys.mutable_values().data();
  const Index rows = scores.dim(-2), columns = scores.dim(-1);
  for (Index sample = 0; sample < samples.size(); ++sample) {
    for (Index i = 0; i < rows; ++i, row += columns) {
      const auto [first, last] = range(sample, i);
      const Index begin = std::clamp<Index>(first, 0, columns), end = std::clamp(last, begin, columns);
      std::fill_n(row, columns, false);
      std::fill(row + begin, row + end, true);
    }
  }
  return keys;
}

struct Range {
  Index first, last;
};

Array<bool> expand(const Mask::Causal& causal, const Shape& scores) {
  return ranges(causal.offset.values().shape(), scores, [&](Index sample, Index i) {
    return Range{0, saturated_sum(causal.offset.values().data()[sample], i + 1)};
  });
}

Array<bool> expand(const Mask::Window& window, const Shape& scores) {
  return ranges(window.offset.values().shape(), scores, [&](Index sample, Index i) {
    const Index at = saturated_sum(window.offset.values().data()[sample], i);
    const bool open_left = window.left == Mask::unbounded, open_right = window.right == Mask::unbounded;
    return Range{open_left ? 0 : saturated_sum(at, -window.left),
                 open_right ? scores.dim(-1) : saturated_sum(saturated_sum(at, window.right), 1)};
  });
}

Array<bool> expand(const Mask::Lengths& lengths, const Shape& scores) {
  const Shape one_row = scores.with(-2, 1);
  return ranges(lengths.lengths.values().shape(), one_row, [&](Index sample, Index) {
    return Range{0, lengths.lengths.values().data()[sample]};
  });
}

Array<bool> expand(const Mask::Documents& documents, const Shape& scores) {
  const int samples = documents.queries.rank() - 1;
  auto allowed = Array<bool>::uninitialized(by_sample(scores.first(samples), scores));
  bool* out = allowed.mutable_values().data();
  const Index *query = documents.queries.data(), *key = documents.keys.data();
  const Index rows = scores.dim(-2), columns = scores.dim(-1);
  for (Index i = 0; i < documents.queries.size(); ++i) {
    const Index* of_sample = key + i / rows * columns;
    for (Index j = 0; j < columns; ++j) *out++ = query[i] == of_sample[j];
  }
  return allowed;
}

Array<bool> with_rank(const Array<bool>& keys, int rank) {
  Shape shape;
  while (shape.rank() + keys.rank() < rank) shape = shape.followed_by({1});
  return keys.reshape(shape.followed_by(keys.shape()));
}

// Followed by blocked keys up to `columns`.
Array<bool> continued(const Array<bool>& keys, Index columns) {
  auto longer = Array<bool>::full(keys.shape().with(-1, columns), false);
  bool* out = longer.mutable_values().data();
  const Index held = keys.dim(-1);
  for (Index row = 0; row < keys.shape().without(-1).size(); ++row) {
    std::copy_n(keys.data() + row * held, held, out + row * columns);
  }
  return longer;
}

Array<bool> expand(const Mask::Allowed& allowed, const Shape& scores) {
  const bool shorter = allowed.prefix && allowed.keys.dim(-1) < scores.dim(-1);
  const Array<bool> keys = shorter ? continued(allowed.keys, scores.dim(-1)) : allowed.keys;
  return with_rank(keys, scores.rank());
}

Array<bool> both(const Array<bool>& a, const Array<bool>& b) {
  const Shape shape = broadcast_shapes("attention", "mask", a.shape(), "mask", b.shape());
  const Strides step_a(a.shape(), shape), step_b(b.shape(), shape);
  const int last = shape.rank() - 1;
  auto keys = Array<bool>::uninitialized(shape);
  bool* out = keys.mutable_values().data();
  for (Index row = 0; row < shape.without(-1).size(); ++row) {
    Index at_a = 0, at_b = 0;
    for (Index rest = row, axis = last; axis-- > 0;) {
      const int i = static_cast<int>(axis);
      at_a += rest % shape[i] * step_a[i];
      at_b += rest % shape[i] * step_b[i];
      rest /= shape[i];
    }
    for (Index j = 0; j < shape[last]; ++j) {
      *out++ = a.data()[at_a + j * step_a[last]] && b.data()[at_b + j * step_b[last]];
    }
  }
  return keys;
}

std::string words(const PerSample& numbers) {
  if (numbers.same()) return std::to_string(numbers.values().item());
  std::string text = "by sample";
  for (Index i = 0; i < std::min<Index>(numbers.values().size(), 8); ++i) {
    text.append(" ").append(std::to_string(numbers.values().data()[i]));
  }
  return numbers.values().size() > 8 ? text + " ..." : text;
}

std::string side(Index distance) {
  return distance == Mask::unbounded ? "unbounded" : std::to_string(distance);
}

std::string words(const Mask::Causal& causal) { return "causal, offset " + words(causal.offset); }
std::string words(const Mask::Window& window) {
  return "window, left " + side(window.left) + ", right " + side(window.right) + ", offset " +
         words(window.offset);
}
std::string words(const Mask::Lengths& lengths) { return "lengths " + words(lengths.lengths); }
std::string words(const Mask::Documents& documents) {
  return "documents, queries " + to_string(documents.queries.shape()) + ", keys " +
         to_string(documents.keys.shape());
}
std::string words(const Mask::Allowed& allowed) {
  return "allowed " + to_string(allowed.keys.shape()) + (allowed.prefix ? ", and no key after its end" : "");
}

std::string name_of_axis(const Shape& leading, int axis) {
  const bool head = axis == leading.rank() - 1 && leading.rank() >= 2;
  return head ? "head" : axis == 0 ? "batch" : "axis " + std::to_string(axis);
}

// The leading axes of the scores that a picture is for: "batch 1, every head".
std::string place_of_picture(const Shape& pictures, const Shape& leading, Index picture) {
  const Strides step(pictures);
  std::string place;
  for (int axis = 0; axis < leading.rank(); ++axis) {
    const std::string name = name_of_axis(leading, axis);
    place += axis > 0 ? ", " : "";
    place += pictures[axis] < leading[axis]
                 ? "every " + name
                 : name + " " + std::to_string(picture / step[axis] % pictures[axis]);
  }
  return place;
}

}  // namespace

Mask Mask::causal(PerSample offset) { return Mask(Causal{std::move(offset)}); }

Mask Mask::window(Index left, Index right, PerSample offset) {
  if (left < 0 || right < 0) {
    throw DomainError("Mask::window", "left " + std::to_string(left) + " and right " + std::to_string(right) +
                                          " must not be negative; an open side is Mask::unbounded");
  }
  return Mask(Window{left, right, std::move(offset)});
}

Mask Mask::lengths(PerSample lengths) {
  for (const Index length : lengths.values().values()) {
    if (length < 0)
      throw DomainError("Mask::lengths", "a length is " + std::to_string(length) + "; none may be negative");
  }
  return Mask(Lengths{std::move(lengths)});
}

Mask Mask::documents(Array<Index> queries, Array<Index> keys) {
  if (queries.rank() < 1 || keys.rank() < 1) {
    throw ShapeError("Mask::documents", "needs queries (..., L) and keys (..., S)",
                     {{"queries", queries.shape()}, {"keys", keys.shape()}});
  }
  return Mask(Documents{std::move(queries), std::move(keys)});
}

Mask Mask::allowed(Array<bool> keys) { return Mask(Allowed{std::move(keys), false}); }

Mask Mask::allowed_prefix(Array<bool> keys) {
  if (keys.rank() < 1) {
    throw ShapeError("Mask::allowed_prefix", "needs an axis of keys", {{"keys", keys.shape()}});
  }
  return Mask(Allowed{std::move(keys), true});
}

Mask Mask::later(Index steps) const {
  Mask mask = *this;
  for (Condition& condition : mask.conditions_) {
    if (auto* causal = std::get_if<Causal>(&condition)) causal->offset = causal->offset + steps;
    if (auto* window = std::get_if<Window>(&condition)) window->offset = window->offset + steps;
  }
  return mask;
}

void Mask::require_fits(const Shape& scores) const {
  if (scores.rank() < 2) throw ShapeError("Mask", "needs scores (..., L, S)", {{"scores", scores}});
  for (const Condition& condition : conditions_) {
    std::visit([&](const auto& c) { require(c, scores); }, condition);
  }
}

Array<bool> Mask::expanded(const Shape& scores) const {
  require_fits(scores);
  if (conditions_.empty()) return with_rank(Array<bool>::full({1, 1}, true), scores.rank());
  Array<bool> keys;
  for (const Condition& condition : conditions_) {
    const Array<bool> part = std::visit([&](const auto& c) { return expand(c, scores); }, condition);
    keys = keys.defined() ? both(keys, part) : part;
  }
  return keys;
}

std::optional<Index> Mask::first_empty_row(const Shape& scores) const {
  const Array<bool> keys = expanded(scores);
  const Shape rows = keys.shape().without(-1);
  const Strides step(scores.without(-1));
  for (Index row = 0; row < rows.size(); ++row) {
    const bool* first = keys.data() + row * keys.dim(-1);
    if (std::find(first, first + keys.dim(-1), true) != first + keys.dim(-1)) continue;
    Index at = 0;
    for (Index rest = row, axis = rows.rank(); axis-- > 0; rest /= rows[static_cast<int>(axis)]) {
      at += rest % rows[static_cast<int>(axis)] * step[static_cast<int>(axis)];
    }
    return at;
  }
  return std::nullopt;
}

std::string Mask::explain(const Shape& scores) const {
  constexpr Index most = 64, most_pictures = 8;
  const Array<bool> keys = expanded(scores);
  const Shape pictures = keys.shape().first(keys.rank() - 2);
  const Index rows = scores.dim(-2), columns = scores.dim(-1);
  const Index step_row = keys.dim(-2) == 1 ? 0 : keys.dim(-1), step_key = keys.dim(-1) == 1 ? 0 : 1;
  std::string text = conditions_.empty() ? "every key" : "";
  for (std::size_t i = 0; i < conditions_.size(); ++i) {
    text += (i > 0 ? " and " : "") + std::visit([](const auto& c) { return words(c); }, conditions_[i]);
  }
  text += "\na row a query, a column a key, # where it is seen\n";
  for (Index p = 0; p < std::min(pictures.size(), most_pictures); ++p) {
    if (pictures.rank() > 0) text += place_of_picture(pictures, scores.first(scores.rank() - 2), p) + "\n";
    const bool* first = keys.data() + p * keys.dim(-2) * keys.dim(-1);
    for (Index i = 0; i < std::min(rows, most); ++i) {
      for (Index j = 0; j < std::min(columns, most); ++j) {
        text += first[i * step_row + j * step_key] ? '#' : '.';
      }
      text += columns > most ? "  and " + std::to_string(columns - most) + " keys more\n" : "\n";
    }
    if (rows > most) text += "and " + std::to_string(rows - most) + " queries more\n";
  }
  if (pictures.size() > most_pictures) {
    text += "and " + std::to_string(pictures.size() - most_pictures) + " pictures more\n";
  }
  return text;
}

std::string place_of_row(const Shape& scores, Index row) {
  const Shape leading = scores.first(scores.rank() - 2);
  const Strides step(leading);
  const Index of_leading = row / scores.dim(-2);
  std::string place;
  for (int axis = 0; axis < leading.rank(); ++axis) {
    place +=
        name_of_axis(leading, axis) + " " + std::to_string(of_leading / step[axis] % leading[axis]) + ", ";
  }
  return place + "row " + std::to_string(row % scores.dim(-2));
}

}  // namespace tapehead
