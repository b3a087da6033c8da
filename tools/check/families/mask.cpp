#include <algorithm>
#include <cmath>
#include <limits>

#include <tools/check/families/hypotheses.h>

namespace tapehead::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// What a call says about keys.
struct Declared {
  explicit Declared(const Call& call)
      : mask(find(call.inputs, "mask") != nullptr),
        boolean(mask && !call.mask_is_additive),
        causal(call.contract.causal.has_value()),
        window(call.contract.window_left || call.contract.window_right),
        lengths(find(call.inputs, "key_lengths") != nullptr),
        segments(find(call.inputs, "query_segments") && find(call.inputs, "key_segments")),
        padding_mask(mask && find(call.inputs, "mask")->dim(-2) == 1) {}
  int count() const { return mask + causal + window + lengths + segments; }

  bool mask, boolean, causal, window, lengths, segments, padding_mask;
};

Conditions only(bool Conditions::*kept) {
  Conditions none{false, false, false, false, true, false};
  none.*kept = true;
  return none;
}

Conditions without(bool Conditions::*dropped) {
  Conditions all;
  all.*dropped = false;
  return all;
}

constexpr Conditions nothing{false, false, false, false, true, false};

Change visible_under(Conditions held_to) {
  return [held_to](Formula& f) {
    f.visibility = [held_to](Work& w) { find_visible(w, held_to); };
    if (held_to.mask) return;
    const auto no_mask = [](Work& w) { w.inputs.erase("mask"); };
    f.bias = within(no_mask, f.bias);
  };
}

// A score that an additive mask took away, where a mistake lets the key be seen after all.
Step scores_given_back(Step bias) {
  return [bias](Work& w) {
    if (!w.call->mask_is_additive || !find(w.inputs, "mask")) return;
    Work without = w;
    without.inputs.erase("mask");
    bias(without);
    for (std::size_t n = 0; n < w.visible.size(); ++n) {
      if (w.visible[n] && w.scores.at[n] == -infinity) w.scores.at[n] = without.scores.at[n];
    }
  };
}

// Of the conditions that `of` names, the visible set is the complement; the others hold.
Change inverted(Conditions of) {
  const Conditions rest{!of.mask, !of.causal, !of.window, !of.key_lengths, true, !of.segments};
  return [of, rest](Formula& f) {
    f.visibility = after(
        [of, rest](Work& w) {
          find_visible(w, of);
          const std::vector<char> seen = w.visible;
          find_visible(w, rest);
          for (std::size_t n = 0; n < seen.size(); ++n) w.visible[n] = w.visible[n] && !seen[n];
        },
        scores_given_back(f.bias));
  };
}

// What only `soft` blocks is visible and marked 2.
constexpr char marked = 2;
Step mark_blocked_by(Conditions soft) {
  const Conditions rest{!soft.mask, !soft.causal, !soft.window, !soft.key_lengths, true, !soft.segments};
  return [rest](Work& w) {
    find_visible(w);
    const std::vector<char> all = w.visible;
    find_visible(w, rest);
    for (std::size_t n = 0; n < all.size(); ++n) {
      if (w.visible[n] && !all[n]) w.visible[n] = marked;
    }
  };
}

// Calls f(number of the score) where a key is marked.
template <class F>
void for_each_marked(const Work& w, F f) {
  for (std::size_t n = 0; n < w.visible.size(); ++n) {
    if (w.visible[n] == marked) f(n);
  }
}

// s = 0 where blocked, without a gradient
Change zero_logit(Conditions soft) {
  return [soft](Formula& f) {
    f.visibility = after(mark_blocked_by(soft),
                         [](Work& w) { for_each_marked(w, [&](std::size_t n) { w.scores.at[n] = 0; }); });
    f.softmax_backward = after(
        f.softmax_backward, [](Work& w) { for_each_marked(w, [&](std::size_t n) { w.dscores.at[n] = 0; }); });
  };
}

// p = 1[visible] softmax(s); the softmax is over what is marked, too, and so is its gradient
Change after_softmax(Conditions soft) {
  return [soft](Formula& f) {
    f.visibility = after(mark_blocked_by(soft), scores_given_back(f.bias));
    f.softmax =
        after(f.softmax, [](Work& w) { for_each_marked(w, [&](std::size_t n) { w.weights.at[n] = 0; }); });
    f.softmax_backward = [right = f.softmax_backward](Work& w) {
      const Numbers weights = w.weights;
      weigh(w);
      for_each_marked(w, [&](std::size_t n) { w.dweights.at[n] = 0; });
      right(w);
      w.weights = weights;
    };
  };
}

// s = z + 1 where visible (or where blocked, when 1 means that), and nothing is blocked
Change truth_added(Conditions soft, bool to_blocked) {
  return [soft, to_blocked](Formula& f) {
    f.visibility = after(mark_blocked_by(soft), [to_blocked](Work& w) {
      for (std::size_t n = 0; n < w.visible.size(); ++n) {
        if (w.visible[n] && (w.visible[n] == marked) == to_blocked) w.scores.at[n] += 1;
      }
    });
  };
}

// Blocked where the number is not 0; the number is not added.
Change number_as_truth(std::string name) {
  return [name](Formula& f) {
    const auto no_numbers = [name](Work& w) { w.inputs.erase(name); };
    f.bias = within(no_numbers, f.bias);
    f.scale = within(no_numbers, f.scale);
    f.visibility = after(f.visibility, [name](Work& w) {
      const Array<double>& x = *find(w.inputs, name);
      const Shape scores = w.scores.shape;
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        for (Index j = 0; j < w.call->S; ++j) {
          if (broadcast_at(x, scores, b, h, i, j) == 0) continue;
          w.visible[place(((b * w.call->H + h) * w.call->L + i) * w.call->S + j)] = 0;
        }
      });
    });
  };
}

// ---- causal rule and window

// j <= i + offset of the sample; the window stays where it was, or moves along.
enum class Windows { stay, move };
Change causal_offsets(std::vector<Index> offsets, Windows windows) {
  return [offsets, windows](Formula& f) {
    if (windows == Windows::move) {
      f.contract = after(f.contract, [offsets](Work& w) { w.contract.causal = offsets; });
      return;
    }
    f.visibility = [offsets](Work& w) {
      find_visible(w, without(&Conditions::causal));
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        const Index offset = offsets.size() == 1 ? offsets[0] : offsets[place(b)];
        for (Index j = std::max<Index>(w.row(i) + offset + 1, 0); j < w.call->S; ++j) {
          w.visible[place(((b * w.call->H + h) * w.call->L + i) * w.call->S + j)] = 0;
        }
      });
    };
  };
}

std::vector<Index> moved(std::vector<Index> offsets, Index by) {
  for (Index& offset : offsets) offset += by;
  return offsets;
}

// A second triangle, from the top left corner, on top of what holds already.
Change second_triangle() {
  return [](Formula& f) {
    f.visibility = after(f.visibility, [](Work& w) {
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        for (Index j = w.row(i) + 1; j < w.call->S; ++j) {
          w.visible[place(((b * w.call->H + h) * w.call->L + i) * w.call->S + j)] = 0;
        }
      });
    });
  };
}

Change windows(std::optional<Index> left, std::optional<Index> right) {
  return [left, right](Formula& f) {
    f.contract = after(f.contract, [left, right](Work& w) {
      w.contract.window_left = left;
      w.contract.window_right = right;
    });
  };
}

// Rows of the dump that this call is, or is a part of.
Index rows_of_dump(const Call& call) { return call.rows.empty() ? call.L : call.rows.back() + 1; }

// ---- lengths and masks of samples

// Row i is blocked as a whole where it is past the length, or where the padding mask blocks key i.
Change query_axis(bool padding_mask) {
  return [padding_mask](Formula& f) {
    f.visibility = [padding_mask](Work& w) {
      Conditions rest = without(&Conditions::key_lengths);
      rest.mask = !padding_mask;
      find_visible(w, rest);
      const Array<double>* lengths = find(w.inputs, "key_lengths");
      const Array<double>* mask = padding_mask ? find(w.inputs, "mask") : nullptr;
      const Shape scores = w.scores.shape;
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        const bool valid =
            (!lengths || static_cast<double>(w.row(i)) < lengths->data()[b]) &&
            (!mask || (w.call->mask_is_additive ? broadcast_at(*mask, scores, b, h, 0, w.row(i)) != -infinity
                                                : broadcast_at(*mask, scores, b, h, 0, w.row(i)) != 0));
        if (valid) return;
        char* const row = w.visible.data() + ((b * w.call->H + h) * w.call->L + i) * w.call->S;
        std::fill_n(row, w.call->S, char{0});
      });
    };
  };
}

// The mask (B, H or 1, L or 1, S) and the lengths that query head h of sample b gets are those of another.
using Origin = std::function<std::pair<Index, Index>(Index b, Index h)>;
Array<double> masks_in_order(const Work& w, const Origin& origin) {
  const Call& call = *w.call;
  const Array<double>*mask = find(w.inputs, "mask"), *lengths = find(w.inputs, "key_lengths");
  const Index rows = mask ? mask->dim(-2) : 1;
  const Shape scores{call.B, call.H, call.L, call.S};
  Numbers result({call.B, call.H, rows, call.S});
  for (Index b = 0; b < call.B; ++b) {
    for (Index h = 0; h < call.H; ++h) {
      const auto [sample, head] = origin(b, h);
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < call.S; ++j) {
          double& x = result(b, h, i, j);
          x = mask ? broadcast_at(*mask, scores, sample, head, i, j) : 1;
          const bool past = lengths && static_cast<double>(j) >= lengths->data()[sample];
          if (past) x = call.mask_is_additive ? -infinity : 0;
        }
      }
    }
  }
  return result.array();
}

Change other_order(Origin origin) {
  return [origin](Formula& f) {
    f.contract = after(f.contract, [origin](Work& w) {
      w.inputs["mask"] = masks_in_order(w, origin);
      w.inputs.erase("key_lengths");
    });
  };
}

// ---- rows without keys

enum class Filling { nan, uniform, unmasked };
enum class Gradient { passes, stops };  // through the scores of blocked keys

void fill_row(Work& w, Filling filling, Index b, Index h, Index i) {
  const Index S = w.call->S;
  double largest = -infinity, total = 0;
  for (Index j = 0; j < S; ++j) largest = std::max(largest, w.scores(b, h, i, j));
  for (Index j = 0; j < S; ++j) total += std::exp(w.scores(b, h, i, j) - largest);
  for (Index j = 0; j < S; ++j) {
    w.weights(b, h, i, j) = filling == Filling::nan       ? std::nan("")
                            : filling == Filling::uniform ? 1 / static_cast<double>(S)
                                                          : std::exp(w.scores(b, h, i, j) - largest) / total;
  }
}

Change empty_rows(Filling filling, Gradient gradient) {
  return [filling, gradient](Formula& f) {
    f.softmax = after(f.softmax, [filling](Work& w) {
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        if (w.row_is_empty(b, h, i)) fill_row(w, filling, b, h, i);
      });
    });
    if (gradient == Gradient::stops) return;
    f.softmax_backward = after(f.softmax_backward, [](Work& w) {
      for_each_row(*w.call, [&](Index b, Index h, Index i) {
        if (!w.row_is_empty(b, h, i)) return;
        double mean = 0;
        for (Index j = 0; j < w.call->S; ++j) mean += w.weights(b, h, i, j) * w.dweights(b, h, i, j);
        for (Index j = 0; j < w.call->S; ++j) {
          w.dscores(b, h, i, j) = w.weights(b, h, i, j) * (w.dweights(b, h, i, j) - mean);
        }
      });
    });
  };
}

Change both(Change first, Change second) {
  return [first = std::move(first), second = std::move(second)](Formula& f) {
    first(f);
    second(f);
  };
}

std::vector<char> rows_without_keys(const Call& call, const Change& change) {
  Formula f = formula_of(call);
  if (change) change(f);
  const Work work = evaluate(call, f, false);
  std::vector<char> empty;
  for (const double lambda : work.log_sum_exp.at) empty.push_back(lambda == -infinity);
  return empty;
}

// ---- the list

class Masks {
 public:
  explicit Masks(const Call& call) : call_(call), has_(call), empty_(rows_without_keys(call, {})) {}

  std::vector<Hypothesis> take() {
    polarity(), dtype(), blocked_scores(), dropped(), samples(), causal(), window(), empty();
    return std::move(found_);
  }

 private:
  // A mistake that leaves rows without keys may show there as 0, NaN or the mean of all values.
  void add(std::string_view id, std::string_view variant, const Change& change,
           const std::map<std::string, double>& fitted = {}) {
    found_.push_back(hypothesis(id, variant, change, fitted));
    const std::vector<char> now = rows_without_keys(call_, change);
    bool more = false;
    for (std::size_t n = 0; n < now.size(); ++n) more = more || (now[n] && !empty_[n]);
    if (!more) return;
    for (const Filling filling : {Filling::nan, Filling::uniform}) {
      for (const Gradient gradient : {Gradient::passes, Gradient::stops}) {
        found_.push_back(hypothesis(id, variant, both(change, empty_rows(filling, gradient)), fitted));
        found_.back().generic = true;
      }
    }
  }

  void polarity() {
    const char* id = "mask-polarity-inverted";
    if (has_.mask) add(id, "", inverted(only(&Conditions::mask)));
    if (has_.causal) add(id, "", inverted(only(&Conditions::causal)));
    if (has_.lengths) add(id, "", inverted(only(&Conditions::key_lengths)));
    if (has_.count() > 1 || has_.window || has_.segments) add(id, "", inverted(Conditions{}));
  }

  void dtype() {
    std::vector<const char*> variants = {"zero-one"};
    if (!call_.mask_in_numbers) variants.push_back("bool-added");
    for (const char* variant : variants) {
      for (const bool to_blocked : {false, true}) {
        if (has_.boolean)
          add("mask-dtype-confused", variant, truth_added(only(&Conditions::mask), to_blocked));
        if (has_.count() > (has_.boolean ? 1 : 0))
          add("mask-dtype-confused", variant, truth_added(Conditions{}, to_blocked));
      }
    }
    if (has_.mask && call_.mask_is_additive)
      add("mask-dtype-confused", "float-as-bool", number_as_truth("mask"));
    if (find(call_.inputs, "bias")) add("mask-dtype-confused", "float-as-bool", number_as_truth("bias"));
  }

  void blocked_scores() {
    if (has_.count() == 0) return;
    std::vector<Conditions> softly{Conditions{}};
    if (has_.count() > 1 && has_.boolean) softly.push_back(only(&Conditions::mask));
    if (has_.count() > 1 && has_.lengths) softly.push_back(only(&Conditions::key_lengths));
    if (has_.count() > 1 && has_.causal) softly.push_back(only(&Conditions::causal));
    for (const Conditions& soft : softly) {
      add("mask-zero-logit", "", zero_logit(soft));
      add("mask-after-softmax", "", after_softmax(soft));
    }
  }

  void dropped() {
    const char* id = "mask-dropped";
    if (has_.count() == 0) return;
    const bool of_its_own = has_.causal || has_.lengths || has_.padding_mask || has_.segments;
    if (has_.count() > 1 || !of_its_own) add(id, "all", visible_under(nothing));
    if (has_.segments) add("packed-docs-leak", "", visible_under(without(&Conditions::segments)));
    if (has_.count() == 1) {
      if (has_.causal) add(id, "causal", visible_under(nothing));
      if (has_.lengths || has_.padding_mask) add(id, "padding", visible_under(nothing));
      return;
    }
    if (has_.causal) add(id, "causal", visible_under(without(&Conditions::causal)));
    if (has_.lengths) add(id, "padding", visible_under(without(&Conditions::key_lengths)));
    if (has_.padding_mask) add(id, "padding", visible_under(without(&Conditions::mask)));
    if (has_.mask) add(id, "replaced", visible_under(without(&Conditions::mask)));
    if (has_.mask || has_.lengths) {
      if (has_.causal) add(id, "replaced", visible_under(without(&Conditions::causal)));
      Conditions padding = only(&Conditions::mask);
      padding.key_lengths = true;
      if (has_.count() > 2) add(id, "replaced", visible_under(padding));
    }
    if (has_.count() == 2) return;
    if (has_.causal) add(id, "replaced", visible_under(only(&Conditions::causal)));
    if (has_.lengths) add(id, "replaced", visible_under(only(&Conditions::key_lengths)));
    if (has_.mask) add(id, "replaced", visible_under(only(&Conditions::mask)));
  }

  void samples() {
    if (call_.S == rows_of_dump(call_) && (has_.lengths || has_.padding_mask)) {
      add("mask-query-axis", "", query_axis(has_.padding_mask));
    }
    const bool of_samples = has_.lengths || (has_.mask && find(call_.inputs, "mask")->dim(0) > 1);
    if (call_.B == 1 || call_.H == 1 || !of_samples) return;
    const Index B = call_.B, H = call_.H;
    const bool of_heads = has_.mask && find(call_.inputs, "mask")->dim(1) > 1;
    const auto tiled = [=](Index b, Index h) {
      const Index r = b * H + h;
      return std::pair(r % B, of_heads ? r / B : h);
    };
    const auto heads_lead = [=](Index b, Index h) {
      const Index r = h * B + b;
      return std::pair(r / H, of_heads ? r % H : h);
    };
    add("mask-batch-head-order", "", other_order(tiled));
    add("mask-batch-head-order", "", other_order(heads_lead));
  }

  void causal() {
    if (!has_.causal) {
      const bool decodes = rows_of_dump(call_) < call_.S && (has_.lengths || has_.mask);
      if (decodes) add("causal-alignment-swapped", "", second_triangle(), {{"offset", 0}});
      return;
    }
    const std::vector<Index> right = *call_.contract.causal;
    const Index corner = call_.S - rows_of_dump(call_);
    for (const Index offset : {Index{0}, corner}) add_offset("causal-alignment-swapped", "", {offset});
    add_offset("causal-off-by-one", "leak", moved(right, 1));
    add_offset("causal-off-by-one", "strict", moved(right, -1));
    if (right.front() > 0) add("causal-alignment-swapped", "", second_triangle(), {{"offset", 0}});
    fit_offset(right.front());
  }

  void add_offset(std::string_view id, std::string_view variant, const std::vector<Index>& offsets) {
    if (offsets == *call_.contract.causal) return;
    const std::map<std::string, double> numbers{
        {"offset", static_cast<double>(offsets.front())},
        {"expected", static_cast<double>(call_.contract.causal->front())}};
    add(id, variant, causal_offsets(offsets, Windows::stay), numbers);
    if (has_.window) add(id, variant, causal_offsets(offsets, Windows::move), numbers);
  }

  // Any other offset, where there are few.
  void fit_offset(Index right) {
    constexpr Index few = 64;
    if (call_.S + rows_of_dump(call_) > few || call_.contract.causal->size() > 1) return;
    std::vector<Change> changes;
    std::vector<Index> offsets;
    for (Index offset = 1 - rows_of_dump(call_); offset < call_.S; ++offset) {
      if (std::abs(offset - right) < 2 || offset == 0 || offset == call_.S - rows_of_dump(call_)) continue;
      changes.push_back(causal_offsets({offset}, Windows::stay));
      offsets.push_back(offset);
    }
    const auto best = nearest(call_, changes, Part::results);
    if (!best) return;
    const std::size_t before = found_.size();
    add_offset("causal-alignment-swapped", "", {offsets[*best]});
    for (std::size_t n = before; n < found_.size(); ++n) found_[n].generic = true;
  }

  void window() {
    if (!has_.window) return;
    const auto left = call_.contract.window_left, right = call_.contract.window_right;
    const auto moved_by = [](std::optional<Index> x, Index by) {
      return x ? std::optional<Index>(*x + by) : std::nullopt;
    };
    for (const Index by : {1, -1}) {
      add_window("off-by-one", moved_by(left, by), right);
      add_window("off-by-one", left, moved_by(right, by));
      add_window("off-by-one", moved_by(left, by), moved_by(right, by));
    }
    add_window("wrong-sides", std::nullopt, right);
    add_window("wrong-sides", left, std::nullopt);
    add_window("wrong-sides", right, left);
    if (!left || has_.causal) return;  // what a causal rule hides says nothing of the right side
    if (right == left) return;
    for (const Index wide : {*left, *left + 1}) {
      add_window("wrong-sides", left, wide);
      add_window("wrong-sides", wide, wide);
    }
  }

  void add_window(std::string_view variant, std::optional<Index> left, std::optional<Index> right) {
    const bool same = left == call_.contract.window_left && right == call_.contract.window_right;
    if (same || (left && *left < 0) || (right && *right < 0)) return;
    std::map<std::string, double> numbers;
    if (left) numbers["window_left"] = static_cast<double>(*left);
    if (right) numbers["window_right"] = static_cast<double>(*right);
    add("window-bounds", variant, windows(left, right), numbers);
  }

  void empty() {
    if (std::none_of(empty_.begin(), empty_.end(), [](char x) { return x != 0; })) return;
    for (const Gradient gradient : {Gradient::passes, Gradient::stops}) {
      found_.push_back(hypothesis("allmasked-row", "nan", empty_rows(Filling::nan, gradient)));
      found_.push_back(hypothesis("allmasked-row", "uniform", empty_rows(Filling::uniform, gradient)));
      found_.push_back(hypothesis("allmasked-row", "unmasked", empty_rows(Filling::unmasked, gradient)));
    }
  }

  const Call& call_;
  Declared has_;
  std::vector<char> empty_;
  std::vector<Hypothesis> found_;
};

}  // namespace

std::vector<Hypothesis> mask_mistakes(const Call& call) { return Masks(call).take(); }

}  // namespace tapehead::check
