// Memory read in another order or to another extent than it was written.

#include <algorithm>
#include <cmath>
#include <limits>

#include <tools/check/families/hypotheses.h>

namespace tapehead::check {
namespace {

// ---- views read as if they were dense

enum class Read { heads_and_rows, rows_and_channels };

// Where element n of (B, H, L, D), as it should be, is read from: the memory of a view with two axes
// exchanged, read as if it had none.
std::vector<Index> places_of(const Shape& shape, Read read) {
  std::vector<Index> from(place(shape.size()));
  const Index H = shape[1], L = shape[2], D = shape[3];
  Index memory = 0;
  for (Index b = 0; b < shape[0]; ++b) {
    if (read == Read::heads_and_rows) {
      for (Index i = 0; i < L; ++i) {
        for (Index h = 0; h < H; ++h) {
          for (Index d = 0; d < D; ++d) from[place(memory++)] = ((b * H + h) * L + i) * D + d;
        }
      }
    } else {
      for (Index h = 0; h < H; ++h) {
        for (Index d = 0; d < D; ++d) {
          for (Index i = 0; i < L; ++i) from[place(memory++)] = ((b * H + h) * L + i) * D + d;
        }
      }
    }
  }
  return from;
}

Numbers gathered(const Numbers& x, Read read) {
  Numbers y(x.shape);
  const std::vector<Index> from = places_of(x.shape, read);
  for (std::size_t n = 0; n < from.size(); ++n) y.at[n] = x.at[place(from[n])];
  return y;
}

Numbers scattered(const Numbers& dy, Read read) {
  Numbers dx(dy.shape);
  const std::vector<Index> from = places_of(dy.shape, read);
  for (std::size_t n = 0; n < from.size(); ++n) dx.at[place(from[n])] = dy.at[n];
  return dx;
}

struct Which {
  bool query, key, value;
};

// The tensors that are read wrongly, with their gradients, and the steps after which both are there.
struct Place {
  Step Formula::*read, Formula::*written_back;
  Numbers Work::*query, Work::*key, Work::*dquery, Work::*dkey;
};
constexpr Place before_norms{&Formula::inputs,    &Formula::norms_backward, &Work::query_unnormed,
                             &Work::key_unnormed, &Work::dquery_unnormed,   &Work::dkey_unnormed};
constexpr Place at_scores{
    &Formula::rotation, &Formula::products_backward, &Work::query, &Work::key, &Work::dquery, &Work::dkey};

Change read_as_dense(const Place& place, Which which, Read read) {
  return [=](Formula& f) {
    f.whole = true;
    f.*place.read = after(f.*place.read, [=](Work& w) {
      if (which.query) w.*place.query = gathered(w.*place.query, read);
      if (which.key) w.*place.key = gathered(w.*place.key, read);
      if (which.value) w.value = gathered(w.value, read);
    });
    f.*place.written_back = after(f.*place.written_back, [=](Work& w) {
      if (which.query) w.*place.dquery = scattered(w.*place.dquery, read);
      if (which.key) w.*place.dkey = scattered(w.*place.dkey, read);
      if (which.value) w.dvalue = scattered(w.dvalue, read);
    });
  };
}

void add_views(const Call& call, Hypotheses& to) {
  if (!call.rows.empty() || !call.heads.empty()) return;
  const bool prepared = find(call.inputs, "query") == nullptr;  // by norms or rotation
  for (int bits = 1; bits < 8; ++bits) {
    const Which which{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    const std::map<std::string, double> fitted = {
        {"query", which.query}, {"key", which.key}, {"value", which.value}};
    const bool heads = call.H > 1 || (!which.query && call.Hk > 1);
    const auto add = [&](Read read) {
      to.push_back(hypothesis("strides-ignored", "view", read_as_dense(at_scores, which, read), fitted));
      if (prepared)
        to.push_back(hypothesis("strides-ignored", "view", read_as_dense(before_norms, which, read), fitted));
    };
    if (heads) add(Read::heads_and_rows);
    if (bits == 1 || bits == 2 || bits == 4) add(Read::rows_and_channels);
  }
}

// ---- rows of a mask

// Element (i, j) of the last two axes read from place i * taken + j of memory in which rows are `pitch` apart
// and filled up with `filling`; behind its end nothing changes.
Array<double> misread(const Array<double>& x, Index taken, Index pitch, double filling) {
  const Index rows = x.dim(x.rank() - 2), columns = x.dim(x.rank() - 1),
              matrices = x.size() / (rows * columns);
  Array<double> y = x;
  double* out = y.mutable_values().data();
  for (Index m = 0; m < matrices; ++m) {
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < columns; ++j, ++out) {
        const Index at = i * taken + j, row = m * rows + at / pitch, column = at % pitch;
        if (row >= matrices * rows) continue;
        *out = column < columns ? x.data()[row * columns + column] : filling;
      }
    }
  }
  return y;
}

Change misread_mask(const std::string& name, Index taken, Index pitch, double filling) {
  return [=](Formula& f) {
    f.whole = true;
    f.contract = after(f.contract, [=](Work& w) {
      const Array<double>* x = find(w.inputs, name);
      if (!x) return;  // another mistake left it out
      const Array<double> read = misread(*x, taken, pitch, filling);
      w.inputs[name] = read;
    });
  };
}

void add_mask_rows(const Call& call, Hypotheses& to, const std::string& name) {
  const Array<double>* x = find(call.inputs, name);
  if (!x || x->rank() < 2 || x->dim(x->rank() - 2) < 2 || x->dim(x->rank() - 1) < 2 || !call.rows.empty())
    return;
  const Index width = x->dim(x->rank() - 1);
  std::vector<Index> pitches;
  for (Index n = width + 1; n <= width + 8; ++n) pitches.push_back(n);
  for (Index multiple = 8; multiple <= 256; multiple *= 2)
    pitches.push_back((width / multiple + 1) * multiple);
  std::vector<Change> changes;
  std::vector<std::map<std::string, double>> fitted;
  const bool additive = name == "bias" || call.mask_is_additive;
  for (const Index pitch : pitches) {
    const auto add = [&](Index taken, Index apart, double filling) {
      changes.push_back(misread_mask(name, taken, apart, filling));
      fitted.push_back(
          {{"rows apart", static_cast<double>(apart)}, {"taken as", static_cast<double>(taken)}});
    };
    add(width, pitch, 0);
    add(width, pitch, additive ? -std::numeric_limits<double>::infinity() : 1);
    add(pitch, width, 0);
  }
  if (const auto best = nearest(call, changes, Part::results)) {
    to.push_back(hypothesis("strides-ignored", "mask", changes[*best], fitted[*best]));
    to.back().generic = true;
  }
}

// ---- extents

// m columns of score 0 and value 0 join each row that sees a key.
Change with_tail(double columns) {
  return [=](Formula& f) {
    f.softmax = after(f.softmax, [=](Work& w) {
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        if (w.row_is_empty(b, h, i)) return;
        double& lse = w.log_sum_exp(b, h, i);
        const double top = std::max(lse, 0.0);
        const double total = top + std::log(std::exp(lse - top) + columns * std::exp(-top));
        const double kept = std::exp(lse - total);
        for (Index j = 0; j < w.call->S; ++j) w.weights(b, h, i, j) *= kept;
        w.sink_share(b, h, i) *= kept;
        lse = total;
      });
    });
  };
}

void add_tail(const Call& call, Hypotheses& to) {
  std::vector<double> starts;
  for (double m = 1; m <= 8; ++m) starts.push_back(m);
  for (double m = 12; m < 256; m *= 1.5) starts.push_back(m);
  auto found = fit(call, with_tail, starts, Part::results, true);
  if (!found) return;
  const double columns = std::round(found->number);
  constexpr double widest_tile = 256;
  if (columns >= 1 && columns < widest_tile)
    to.push_back(hypothesis("extent-wrong", "tail", with_tail(columns), {{"columns", columns}}));
}

// The first n of a row's numbers; the others are 0.
void cut(Numbers& x, Index n) {
  const Index width = x.shape[3];
  for (std::size_t at = 0; at < x.at.size(); ++at) {
    if (static_cast<Index>(at) % width >= n) x.at[at] = 0;
  }
}

Change first_channels(Index n) {
  return [=](Formula& f) {
    f.products = [=, right = f.products](Work& w) {
      const Numbers query = w.query, key = w.key;
      cut(w.query, n), cut(w.key, n);
      right(w);
      w.query = query, w.key = key;
    };
    f.products_backward = after(f.products_backward, [=](Work& w) { cut(w.dquery, n), cut(w.dkey, n); });
  };
}

Change first_values(Index n) {
  return [=](Formula& f) {
    f.values = after(f.values, [=](Work& w) { cut(w.output, n); });
    f.values_backward = [=, right = f.values_backward](Work& w) {
      const Numbers value = w.value;
      cut(w.value, n);
      right(w);
      w.value = value;
      cut(w.dvalue, n);
    };
  };
}

void add_channels(const Call& call, Hypotheses& to, Index width, Change (*first)(Index), const char* name) {
  std::vector<Change> changes;
  std::vector<Index> counts;
  constexpr Index all_up_to = 64, step = 8;
  for (Index n = width <= all_up_to ? 1 : step; n < width; n += width <= all_up_to ? 1 : step) {
    changes.push_back(first(n)), counts.push_back(n);
  }
  if (const auto best = nearest(call, changes, Part::results)) {
    to.push_back(
        hypothesis("extent-wrong", "head-dim", changes[*best],
                   {{name, static_cast<double>(counts[*best])}, {"expected", static_cast<double>(width)}}));
  }
}

}  // namespace

Hypotheses layout_mistakes(const Call& call) {
  Hypotheses result;
  add_views(call, result);
  add_mask_rows(call, result, "mask");
  add_mask_rows(call, result, "bias");
  add_tail(call, result);
  add_channels(call, result, call.D, first_channels, "channels of query and key");
  add_channels(call, result, call.E, first_values, "channels of value");
  return result;
}

}  // namespace tapehead::check
