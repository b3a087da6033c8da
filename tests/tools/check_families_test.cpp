// Families of position, backward, numeric, layout and state: what was planted is among what they propose,
// with its number, and its formula gives the candidate back. Plantings are loops of their own where that is
// short, and settings of the evaluator that the families do not set themselves elsewhere.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include <tools/check/families/hypotheses.h>
#include <tools/check/families/least_squares.h>

#include "tools/check_calls.h"

namespace tapehead::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Several shapes: grouped, square, more queries than keys, one head.
std::vector<CallSize> sizes() {
  return {{2, 6, 2, 3, 7, 8, 5}, {1, 4, 4, 5, 5, 4, 4}, {2, 4, 2, 6, 3, 6, 3}, {3, 2, 1, 2, 9, 6, 6}};
}

std::string text(const CallSize& n) { return to_string(Shape{n.B, n.H, n.Hk, n.L, n.S, n.D, n.E}); }

// The candidate's results as `change` makes them. Some tensors are left out of a dump.
Call planted(Call call, const Change& change) {
  Formula formula = right_formula();
  if (change) change(formula);
  call.candidate = evaluate(call, formula).results;
  return call;
}

// Largest difference over the tensors of the candidate; infinite when one is not a number and the other is.
double distance(const Call& call, const Change& change) {
  Formula formula = right_formula();
  if (change) change(formula);
  const Tensors results = evaluate(call, formula).results;
  double most = 0;
  for (const auto& [name, got] : call.candidate) {
    const Array<double>& ours = results.find(name)->second;
    for (Index i = 0; i < got.size(); ++i) {
      const double x = got.data()[i], y = ours.data()[i];
      if (std::isnan(x) && std::isnan(y)) continue;
      if (x == y) continue;
      most = std::max(most, std::isfinite(x - y) ? std::abs(x - y) : infinity);
    }
  }
  return most;
}

// The proposed hypothesis of that name that gives the candidate back. A fitted number carries its rounding,
// and differences of up to 1e-8 in results of size 1.
std::optional<Hypothesis> found(Family family, const Call& call, std::string_view id,
                                std::string_view variant) {
  for (const Hypothesis& h : family(call)) {
    if (h.mistake == find_mistake(id, variant) && distance(call, h.change) < 1e-8) return h;
  }
  return std::nullopt;
}

// A planting that changes nothing proves nothing.
void expect_found(Family family, const Call& call, std::string_view id, std::string_view variant) {
  EXPECT_GT(distance(call, {}), 1e-4) << id << "/" << variant << ": nothing was planted";
  EXPECT_TRUE(found(family, call, id, variant).has_value()) << id << "/" << variant;
}

// ---- position

Call rotated_call(Generator& random, const CallSize& n, Index width = 0) {
  Call call = random_call(random, n, 2);
  for (const char* name : {"query", "key"}) {
    call.inputs[std::string(name) + "_unrotated"] = call.inputs[name];
    call.inputs.erase(name);
  }
  call.contract.rope = Pairing::half;
  call.contract.rope_base = 100;
  call.contract.rope_width = width;
  call.contract.rope_start_query = 11;
  call.contract.rope_start_key = 4;
  return call;
}

// The right rotation of a call with other numbers in it: a candidate, judged by the call.
Call rotated_otherwise(const Call& call, const std::function<void(Call&)>& change) {
  Call other = call;
  change(other);
  Call judged = call;
  judged.candidate = evaluate(other, right_formula()).results;
  return judged;
}

Array<double> numbered(Index samples, Index rows, const std::function<double(Index, Index)>& number) {
  auto x = Array<double>::uninitialized({samples, rows});
  for (Index b = 0; b < samples; ++b) {
    for (Index i = 0; i < rows; ++i) x.set({b, i}, number(b, i));
  }
  return x;
}

TEST(CheckPosition, RotationWithOtherSettings) {
  Generator random(1);
  for (const CallSize& n : sizes()) {
    SCOPED_TRACE(text(n));
    const Call call = rotated_call(random, n);
    const auto plant = [&](const char* id, const char* variant, const std::function<void(Call&)>& change) {
      expect_found(position_mistakes, rotated_otherwise(call, change), id, variant);
    };
    plant("rope-pairing", "other", [](Call& c) { c.contract.rope = Pairing::neighbour; });
    plant("rope-missing", "", [](Call& c) { c.contract.rope = Pairing::none; });
    plant("rope-missing", "q-only",
          [](Call& c) { c.inputs["key"] = c.inputs["key_unrotated"], c.inputs.erase("key_unrotated"); });
    plant("rope-missing", "k-only", [](Call& c) {
      c.inputs["query"] = c.inputs["query_unrotated"], c.inputs.erase("query_unrotated");
    });
    plant("rope-position-wrong", "offset", [](Call& c) { c.contract.rope_start_query = 0; });
    plant("rope-position-wrong", "offset", [](Call& c) { c.contract.rope_start_query += 1; });
    plant("rope-position-wrong", "twice", [](Call& c) {
      c.inputs["key_positions"] =
          numbered(c.B, c.S, [](Index, Index j) { return 2.0 * static_cast<double>(4 + j); });
    });
    plant("rope-sign", "", [](Call& c) {
      c.inputs["query_positions"] =
          numbered(c.B, c.L, [](Index, Index i) { return -static_cast<double>(11 + i); });
      c.inputs["key_positions"] =
          numbered(c.B, c.S, [](Index, Index j) { return -static_cast<double>(4 + j); });
    });
    plant("rope-partial-width", "base", [](Call& c) { c.contract.rope_base = 500000; });
    plant("rope-partial-width", "base", [](Call& c) { c.contract.rope_base = 4321.4; });
  }
}

TEST(CheckPosition, OneOffsetASample) {
  Generator random(2);
  const Call call = rotated_call(random, {3, 2, 2, 4, 6, 4, 4});
  const Call judged = rotated_otherwise(call, [](Call& c) {
    c.inputs["query_positions"] = numbered(c.B, c.L, [](Index b, Index i) {
      return static_cast<double>(11 + i + (b == 0 ? 3 : b == 1 ? 0 : -5));
    });
  });
  const auto h = found(position_mistakes, judged, "rope-position-wrong", "per-sample");
  ASSERT_TRUE(h.has_value());
  EXPECT_EQ(h->fitted.at("query offset in sample 0"), 3);
  EXPECT_EQ(h->fitted.at("query offset in sample 1"), 0);
  EXPECT_EQ(h->fitted.at("query offset in sample 2"), -5);
}

TEST(CheckPosition, TheFittedBaseIsTheOneThatWasUsed) {
  Generator random(3);
  const Call call = rotated_call(random, {});
  const Call judged = rotated_otherwise(call, [](Call& c) { c.contract.rope_base = 500000; });
  EXPECT_EQ(found(position_mistakes, judged, "rope-partial-width", "base")->fitted.at("base"), 500000);
}

// Channels one and two of a row turned by angles of their own: what a table laid out for another pairing
// does.
void turn(Array<double>& x, Index start, const std::function<std::pair<Index, Index>(Index)>& pair,
          const std::function<double(Index channel)>& rate, Index pairs) {
  const Index rows = x.dim(2), width = x.dim(3);
  const auto numbers = x.mutable_values();
  for (Index row = 0; row < x.size() / width; ++row) {
    const double position = static_cast<double>(start + row % rows);
    for (Index n = 0; n < pairs; ++n) {
      const auto [one, two] = pair(n);
      double &a = numbers[place(row * width + one)], &b = numbers[place(row * width + two)];
      const double old = a;
      a = a * std::cos(position * rate(one)) - b * std::sin(position * rate(one));
      b = b * std::cos(position * rate(two)) + old * std::sin(position * rate(two));
    }
  }
}

// Query and key as the loops above leave them, given as they enter the scores.
Call turned(const Call& call, const std::function<std::pair<Index, Index>(Index)>& pair,
            const std::function<double(Index channel)>& rate, Index pairs) {
  return rotated_otherwise(call, [&](Call& c) {
    for (const char* name : {"query", "key"}) {
      Array<double> x = c.inputs[std::string(name) + "_unrotated"];
      turn(x, name == std::string("query") ? c.contract.rope_start_query : c.contract.rope_start_key, pair,
           rate, pairs);
      c.inputs.erase(std::string(name) + "_unrotated");
      c.inputs[name] = x;
    }
    c.inputs.erase("upstream");
  });
}

double rate(Index pair, Index width) {
  return std::pow(100, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
}

TEST(CheckPosition, ATableForOnePairingAndARotationForTheOther) {
  Generator random(4);
  const Call call = rotated_call(random, {2, 4, 2, 3, 5, 8, 4});
  const auto halves = [](Index n) { return std::pair{n, n + 4}; };
  const auto neighbours = [](Index n) { return std::pair{2 * n, 2 * n + 1}; };
  expect_found(position_mistakes,
               turned(
                   call, halves, [](Index c) { return rate(c / 2, 8); }, 4),
               "rope-pairing", "mixed");
  expect_found(position_mistakes,
               turned(
                   call, neighbours, [](Index c) { return rate(c % 4, 8); }, 4),
               "rope-pairing", "mixed");
}

TEST(CheckPosition, AWidthOfAllWhereAPartIsTurned) {
  Generator random(5);
  const Call call = rotated_call(random, {2, 2, 2, 3, 5, 8, 4}, 4);
  const auto near = [](Index n) { return std::pair{n, n + 2}; };
  const auto far = [](Index n) { return std::pair{n, n + 4}; };
  expect_found(position_mistakes,
               turned(
                   call, near, [](Index c) { return rate(c % 2, 8); }, 2),
               "rope-partial-width", "");
  expect_found(position_mistakes,
               turned(
                   call, far, [](Index c) { return rate(c % 4, 4); }, 2),
               "rope-partial-width", "");
  expect_found(position_mistakes,
               turned(
                   call, far, [](Index c) { return rate(c % 4, 8); }, 4),
               "rope-partial-width", "");
}

TEST(CheckPosition, AnglesByHead) {
  Generator random(6);
  const Call call = rotated_call(random, {2, 4, 2, 3, 5, 8, 4});
  const Call judged = rotated_otherwise(call, [](Call& c) {
    for (const char* name : {"query", "key"}) {
      Array<double> x = c.inputs[std::string(name) + "_unrotated"];
      const auto numbers = x.mutable_values();
      const Index heads = x.dim(1), each = x.dim(2) * 8;
      for (Index n = 0; n < x.size() / 8; ++n) {
        const double head = static_cast<double>(n * 8 / each % heads);
        for (Index p = 0; p < 4; ++p) {
          double &a = numbers[place(n * 8 + p)], &b = numbers[place(n * 8 + p + 4)];
          const double old = a, angle = head * rate(p, 8);
          a = a * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + old * std::sin(angle);
        }
      }
      c.inputs.erase(std::string(name) + "_unrotated");
      c.inputs[name] = x;
    }
    c.inputs.erase("upstream");
  });
  expect_found(position_mistakes, judged, "rope-missing", "head-axis");
}

TEST(CheckPosition, Slopes) {
  Generator random(7);
  for (const CallSize& n : {CallSize{2, 6, 2, 3, 7, 8, 5}, CallSize{1, 3, 3, 4, 4, 4, 4}}) {
    SCOPED_TRACE(text(n));
    Call call = random_call(random, n);
    const std::vector<double> published =
        n.H == 6 ? std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125}
                 : std::vector<double>{0.0625, 0.00390625, 0.25};
    call.inputs["slopes"] = Array<double>::from(published);
    const auto plant = [&](const char* variant, const std::function<double(Index h)>& slope) {
      Call other = call;
      for (Index h = 0; h < n.H; ++h) other.inputs["slopes"].set({h}, slope(h));
      Call judged = call;
      judged.candidate = evaluate(other, right_formula(), false).results;
      expect_found(position_mistakes, judged, "alibi-slopes", variant);
    };
    const double H = static_cast<double>(n.H);
    plant("rule", [=](Index h) { return std::exp2(-8 * static_cast<double>(h + 1) / H); });
    plant("exponent", [=](Index h) { return std::exp2(-8 * static_cast<double>(h) / H); });
    plant("sign", [=](Index h) { return -published[place(h)]; });
    plant("rule", [=](Index h) { return 0.3 + 0.1 * static_cast<double>(h); });  // fitted, one by one
  }
}

TEST(CheckPosition, BiasThatGrowsWithTheKey) {
  Generator random(8);
  Call call = random_call(random, {});
  call.inputs["slopes"] = normal(random, {6});
  Call other = call;
  other.inputs.erase("slopes");
  Array<double> bias = Array<double>::zeros({2, 6, 3, 7});
  for (Index n = 0; n < bias.size(); ++n) {
    bias.mutable_values()[place(n)] = call.inputs["slopes"].data()[n / 21 % 6] * static_cast<double>(n % 7);
  }
  other.inputs["bias"] = bias;
  call.candidate = evaluate(other, right_formula(), false).results;
  expect_found(position_mistakes, call, "alibi-slopes", "non-causal");
}

Call normed_call(Generator& random, const CallSize& n) {
  Call call = rotated_call(random, n);
  for (const char* name : {"query", "key"}) {
    call.inputs[std::string(name) + "_unnormed"] = call.inputs[std::string(name) + "_unrotated"];
    call.inputs.erase(std::string(name) + "_unrotated");
    call.inputs[std::string(name) + "_gain"] = normal(random, {n.D});
  }
  call.contract.norms = QueryKeyNorms::rms;
  call.contract.norm_eps = 1e-6;
  return call;
}

Array<double> root_mean_square_normed(Array<double> x, const Array<double>* gain) {
  const Index width = x.dim(x.rank() - 1);
  const auto numbers = x.mutable_values();
  for (Index row = 0; row < x.size() / width; ++row) {
    double sum = 0;
    for (Index d = 0; d < width; ++d)
      sum += numbers[place(row * width + d)] * numbers[place(row * width + d)];
    for (Index d = 0; d < width; ++d) {
      numbers[place(row * width + d)] *=
          (gain ? gain->data()[d] : 1) / std::sqrt(sum / static_cast<double>(width) + 1e-6);
    }
  }
  return x;
}

TEST(CheckPosition, Norms) {
  Generator random(9);
  const Call call = normed_call(random, {2, 4, 2, 3, 5, 4, 4});
  expect_found(position_mistakes,
               rotated_otherwise(call, [](Call& c) { c.contract.norms = QueryKeyNorms::none; }),
               "qknorm-wrong", "missing");
  const Call last = rotated_otherwise(call, [](Call& c) {
    for (const std::string name : {"query", "key"}) {
      Array<double> x = c.inputs[name + "_unnormed"];
      turn(
          x, name == "query" ? 11 : 4,
          [](Index n) {
            return std::pair{n, n + 2};
          },
          [](Index channel) { return rate(channel % 2, 4); }, 2);
      const Array<double> gain = c.inputs[name + "_gain"];
      c.inputs[name] = root_mean_square_normed(x, &gain);
      c.inputs.erase(name + "_unnormed");
    }
    c.inputs.erase("upstream");
  });
  expect_found(position_mistakes, last, "qknorm-wrong", "order");
  const Call key_and_value = rotated_otherwise(call, [](Call& c) {
    c.inputs["query_unrotated"] = c.inputs["query_unnormed"];
    c.inputs.erase("query_unnormed");
    c.inputs["value"] = root_mean_square_normed(c.inputs["value"], nullptr);
    c.inputs.erase("upstream");
  });
  expect_found(position_mistakes, key_and_value, "qknorm-wrong", "tensors");
}

// The gradients of an order that is wrong, by differences of its own results.
TEST(CheckPosition, GradientsOfWrongOrdersAreThoseOfTheirResults) {
  Generator random(10);
  const Call call = normed_call(random, {1, 2, 1, 2, 3, 4, 4});
  const Call judged = rotated_otherwise(call, [](Call& c) { c.contract.scale = 0.9; });
  for (const Hypothesis& h : position_mistakes(judged)) {
    if (h.mistake->id != "qknorm-wrong" && h.mistake->id != "rope-pairing") continue;
    Formula formula = right_formula();
    h.change(formula);
    const Tensors gradients = evaluate(call, formula).results;
    for (const std::string name : {"query_unnormed", "key_unnormed", "value"}) {
      const std::string of = "grad_" + name.substr(0, name.find('_'));
      for (const Index at : {Index{0}, Index{5}}) {
        const auto loss = [&](double step) {
          Call moved = call;
          moved.inputs[name].mutable_values()[place(at)] += step;
          const Array<double> output = evaluate(moved, formula, false).results.at("output");
          double sum = 0;
          for (Index i = 0; i < output.size(); ++i)
            sum += output.data()[i] * call.inputs.at("upstream").data()[i];
          return sum;
        };
        const double slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;  // off by 1e-10 of the third derivative
        EXPECT_NEAR(gradients.at(of).data()[at], slope, 1e-7)
            << h.mistake->id << "/" << h.mistake->variant << " " << of;
      }
    }
  }
}

// ---- backward

Call call_with_everything(Generator& random, const CallSize& n) {
  Call call = random_call(random, n);
  call.inputs["bias"] = normal(random, {1, n.H, n.L, n.S});
  call.inputs["sink"] = normal(random, {n.H});
  call.inputs["upstream_lse"] = normal(random, {n.B, n.H, n.L});
  call.contract.softcap = 2;
  return call;
}

TEST(CheckBackward, RightGradientsWithOneLineChanged) {
  Generator random(11);
  for (const CallSize& n : sizes()) {
    SCOPED_TRACE(text(n));
    const Call call = call_with_everything(random, n);
    const auto plant = [&](const char* id, const char* variant, const Change& change) {
      expect_found(backward_mistakes, planted(call, change), id, variant);
    };
    const auto at_scores = [&](double (*ds)(double p, double dp, double delta, double dlse), bool sink) {
      return [=](Formula& f) {
        f.softmax_backward = [=](Work& w) {
          w.dscores = Numbers(w.weights.shape);
          w.dsink.assign(place(w.call->H), 0);
          for_each_row(*w.call, [&](Index b, Index h, Index i) {
            const double dlse = w.inputs.at("upstream_lse").data()[(b * w.call->H + h) * w.call->L + i];
            double delta = 0;
            for (Index j = 0; j < w.call->S; ++j) delta += w.weights(b, h, i, j) * w.dweights(b, h, i, j);
            for (Index j = 0; j < w.call->S; ++j) {
              w.dscores(b, h, i, j) = ds(w.weights(b, h, i, j), w.dweights(b, h, i, j), delta, dlse);
            }
            w.dsink[place(h)] += w.sink_share(b, h, i) * (dlse - (sink ? 0 : delta));
          });
        };
      };
    };
    plant(
        "grad-softmax-jacobian", "diagonal",
        at_scores([](double p, double dp, double, double dlse) { return p * ((1 - p) * dp + dlse); }, false));
    plant("grad-softmax-jacobian", "diagonal",
          at_scores([](double p, double dp, double, double) { return p * (1 - p) * dp; }, false));
    plant("grad-softmax-jacobian", "no-delta",
          at_scores([](double p, double dp, double, double dlse) { return p * (dp + dlse); }, true));
    plant("grad-path-missing", "lse", [](Formula& f) {
      f.before_backward = [](Work& w) {
        w.inputs["upstream_lse"] = Array<double>::zeros(w.inputs["upstream_lse"].shape());
      };
    });
    plant("grad-softcap-missing", "", [](Formula& f) {
      f.cap_backward = after(f.cap_backward, [](Work& w) {
        for (std::size_t at = 0; at < w.dcapped.at.size(); ++at) {
          const double t = std::tanh(w.scaled.at[at] / 2);
          w.dcapped.at[at] /= 1 - t * t;
        }
      });
    });
    plant("grad-path-missing", "severed", [](Formula& f) {
      f.softmax_backward = after(f.softmax_backward, [](Work& w) {
        for (double& x : w.dscores.at) x = 0;
        for (double& x : w.dsink) x = 0;
      });
    });
  }
}

// Changes the tensors of a right candidate.
Call changed(Call call, const std::function<void(Tensors&)>& change) {
  call = planted(call, {});
  change(call.candidate);
  return call;
}
void times(Array<double>& x, double factor) {
  for (double& v : x.mutable_values()) v *= factor;
}

TEST(CheckBackward, FactorsAreNamedWithTheirNumber) {
  Generator random(12);
  for (const CallSize& n : sizes()) {
    SCOPED_TRACE(text(n));
    const Call call = call_with_everything(random, n);
    const double t = call.contract.scale, batch = static_cast<double>(n.B);
    const auto plant = [&](const char* id, const char* variant, const std::function<void(Tensors&)>& change) {
      expect_found(backward_mistakes, changed(call, change), id, variant);
    };
    for (const char* name : {"grad_query", "grad_key"}) {
      plant("grad-scale", "", [&](Tensors& x) { times(x[name], t); });
      plant("grad-scale", "", [&](Tensors& x) { times(x[name], 1 / t); });
    }
    plant("grad-path-missing", "q", [](Tensors& x) { times(x["grad_query"], 0); });
    plant("grad-path-missing", "k", [](Tensors& x) { times(x["grad_key"], 0); });
    plant("grad-path-missing", "v", [](Tensors& x) { times(x["grad_value"], 0); });
    if (n.B > 1) {
      plant("grad-broadcast", "", [&](Tensors& x) { times(x["grad_bias"], 1 / batch); });
      plant("grad-broadcast", "",
            [&](Tensors& x) { times(x["grad_sink"], 1 / (batch * static_cast<double>(n.L))); });
    }
    plant("grad-broadcast", "", [&](Tensors& x) { times(x["grad_bias"], 0); });
    const auto all = [](double factor) {
      return [=](Tensors& x) {
        for (auto& [name, numbers] : x) {
          if (name.starts_with("grad_")) times(numbers, factor);
        }
      };
    };
    plant("grad-path-missing", "off-tape", all(0));
    for (const double factor : {2.0, 1024.0, 1 / (batch * static_cast<double>(n.L) + 3)}) {
      const Call judged = changed(call, all(factor));
      const auto h = found(backward_mistakes, judged, "grad-uniform-factor", "");
      ASSERT_TRUE(h.has_value());
      EXPECT_NEAR(h->fitted.at("factor"), factor, 1e-12 * factor);
    }
  }
}

TEST(CheckBackward, OneSampleOfABiasThatAllShare) {
  Generator random(13);
  const Call call = call_with_everything(random, {});
  for (const Index only : {Index{0}, Index{1}}) {
    Call one = call;  // the other sample feeds nothing back
    const Index each = call.inputs.at("upstream").size() / 2;
    for (Index i = 0; i < each; ++i)
      one.inputs["upstream"].mutable_values()[place(i + (only == 0 ? each : 0))] = 0;
    const Index rows = call.inputs.at("upstream_lse").size() / 2;
    for (Index i = 0; i < rows; ++i)
      one.inputs["upstream_lse"].mutable_values()[place(i + (only == 0 ? rows : 0))] = 0;
    const Tensors of_one = evaluate(one, right_formula()).results;
    for (const char* name : {"grad_bias", "grad_sink"}) {
      expect_found(backward_mistakes, changed(call, [&](Tensors& x) { x[name] = of_one.at(name); }),
                   "grad-broadcast", "");
    }
  }
}

// Gradients of key and value by query head: those of a call in which each query head has a key head of its
// own.
TEST(CheckBackward, SharesOfQueryHeads) {
  Generator random(14);
  const CallSize n;  // 6 query heads on 2 key heads
  const Call call = random_call(random, n);
  Call separate = call;
  separate.Hk = n.H;
  const auto repeated = [&](const std::string& name, Index width) {
    Array<double> x = Array<double>::uninitialized({n.B, n.H, n.S, width});
    for (Index at = 0; at < x.size(); ++at) {
      const Index each = n.S * width, b = at / (n.H * each), h = at / each % n.H;
      x.mutable_values()[place(at)] = call.inputs.at(name).data()[(b * n.Hk + h / 3) * each + at % each];
    }
    separate.inputs[name] = x;
  };
  repeated("key", n.D), repeated("value", n.E);
  const Tensors by_head = evaluate(separate, right_formula()).results;
  const auto summed = [&](const char* name, const std::function<double(Index h, Index g)>& weight) {
    const Array<double>& from = by_head.at(name);
    const Index each = from.dim(2) * from.dim(3);
    Array<double> x = Array<double>::zeros({n.B, n.Hk, from.dim(2), from.dim(3)});
    for (Index b = 0; b < n.B; ++b) {
      for (Index h = 0; h < n.H; ++h) {
        for (Index g = 0; g < n.Hk; ++g) {
          for (Index i = 0; i < each; ++i) {
            x.mutable_values()[place((b * n.Hk + g) * each + i)] +=
                weight(h, g) * from.data()[(b * n.H + h) * each + i];
          }
        }
      }
    }
    return x;
  };
  const auto plant = [&](const char* id, const char* variant,
                         const std::function<double(Index, Index)>& weight) {
    expect_found(backward_mistakes,
                 changed(call,
                         [&](Tensors& x) {
                           for (const char* name : {"grad_key", "grad_value"}) x[name] = summed(name, weight);
                         }),
                 id, variant);
  };
  for (const Index one : {0, 1, 2}) {
    plant("grad-gqa-not-summed", "",
          [=](Index h, Index g) { return h / 3 == g && h % 3 == one ? 1.0 : 0.0; });
  }
  plant("grad-gqa-not-summed", "mean", [](Index h, Index g) { return h / 3 == g ? 1.0 / 3 : 0.0; });
  plant("gqa-tile", "", [](Index h, Index g) { return h % 2 == g ? 1.0 : 0.0; });
  // Only one of the two is wrong.
  expect_found(backward_mistakes,
               changed(call,
                       [&](Tensors& x) {
                         x["grad_key"] =
                             summed("grad_key", [](Index h, Index g) { return h == 3 * g ? 1.0 : 0.0; });
                       }),
               "grad-gqa-not-summed", "");
}

// From the log-sum-exp that the forward pass saved, p = e^(s - lse) for the keys of another mask.
TEST(CheckBackward, AnotherMask) {
  Generator random(15);
  for (const CallSize& n : {CallSize{2, 6, 2, 3, 7, 8, 5}, CallSize{1, 2, 2, 5, 8, 4, 4}}) {
    SCOPED_TRACE(text(n));
    Call call = random_call(random, n);
    call.contract.causal = std::vector<Index>{n.S - n.L};
    call.contract.window_left = 3;
    const auto seen = [&](Index i, Index j, Index offset, Index left) {
      return j <= i + offset && i + offset - j <= left;
    };
    const auto plant = [&](Index offset, Index left, bool delta_of_output) {
      const Call judged = planted(call, [=](Formula& f) {
        f.before_backward = [=](Work& w) {
          for_each_row(*w.call, [&](Index b, Index h, Index i) {
            for (Index j = 0; j < w.call->S; ++j) {
              const double p = std::exp(w.scores(b, h, i, j) - w.log_sum_exp(b, h, i));
              w.weights(b, h, i, j) = w.dropped(b, h, i, j) = seen(i, j, offset, left) ? p : 0;
            }
          });
        };
        if (!delta_of_output) return;
        f.softmax_backward = [](Work& w) {
          w.dscores = w.weights;
          w.dsink.assign(place(w.call->H), 0);
          for_each_row(*w.call, [&](Index b, Index h, Index i) {
            double delta = 0;
            for (Index e = 0; e < w.call->E; ++e) delta += w.doutput(b, h, i, e) * w.output(b, h, i, e);
            for (Index j = 0; j < w.call->S; ++j) w.dscores(b, h, i, j) *= w.dweights(b, h, i, j) - delta;
          });
        };
      });
      expect_found(backward_mistakes, judged, "grad-mask-differs", "");
    };
    for (const bool of_output : {false, true}) {
      plant(0, 3, of_output);
      plant(n.S - n.L, 100, of_output);
      plant(n.S - n.L, 4, of_output);
    }
  }
}

Call dropped_call(Generator& random, const CallSize& n) {
  Call call = random_call(random, n);
  call.contract.training = true;
  call.contract.dropout = 0.25;
  call.inputs["dropout_keep"] = coins(random, {n.B, n.H, n.L, n.S});
  return call;
}

TEST(CheckBackward, DropoutOfAnotherMaskIsSolvedFor) {
  Generator random(16);
  for (const CallSize& n : sizes()) {
    SCOPED_TRACE(text(n));
    const Call call = dropped_call(random, n);
    Call judged = planted(call, {});
    Call other = call;
    other.inputs["dropout_keep"] = coins(random, {n.B, n.H, n.L, n.S});
    const Tensors gradients = evaluate(other, right_formula()).results;
    for (const char* name : {"grad_query", "grad_key", "grad_value"})
      judged.candidate[name] = gradients.at(name);
    expect_found(backward_mistakes, judged, "grad-dropout-differs", "");
    expect_found(
        backward_mistakes,
        planted(call, [](Formula& f) { f.dropout_backward = [](Work& w) { w.dweights = w.ddropped; }; }),
        "grad-dropout-differs", "");
    expect_found(
        backward_mistakes,
        planted(call, [](Formula& f) { f.before_backward = [](Work& w) { w.weights = w.dropped; }; }),
        "saved-tensor-mutated", "");
  }
}

TEST(CheckBackward, GradientsOfAnEarlierPassAreSolvedFor) {
  Generator random(17);
  for (const CallSize& n : sizes()) {
    SCOPED_TRACE(text(n));
    const Call call = random_call(random, n);
    Call earlier = call;
    earlier.inputs["upstream"] = normal(random, {n.B, n.H, n.L, n.E});
    const Tensors old = evaluate(earlier, right_formula()).results;
    const Call judged = changed(call, [&](Tensors& x) {
      for (const char* name : {"grad_query", "grad_key", "grad_value"}) {
        for (Index i = 0; i < x[name].size(); ++i)
          x[name].mutable_values()[place(i)] += old.at(name).data()[i];
      }
    });
    expect_found(backward_mistakes, judged, "grad-uniform-factor", "not-zeroed");
    // Any numbers are not the gradients of an earlier pass.
    const Call random_rest = changed(call, [&](Tensors& x) {
      for (const char* name : {"grad_query", "grad_key", "grad_value"}) {
        for (double& v : x[name].mutable_values()) v += random.normal();
      }
    });
    EXPECT_FALSE(found(backward_mistakes, random_rest, "grad-uniform-factor", "not-zeroed").has_value());
  }
}

// x (B, L, M) as query, key and value: its gradient is a sum of three terms.
Call projected_call(Generator& random) {
  Call call = random_call(random, {2, 2, 2, 4, 4, 3, 3});
  call.inputs = {};
  call.inputs["x"] = normal(random, {2, 4, 5});
  for (const char* name : {"query", "key", "value"})
    call.inputs[std::string("w_") + name] = normal(random, {5, 6});
  call.inputs["upstream"] = normal(random, {2, 2, 4, 3});
  return call;
}

TEST(CheckBackward, TermsOfASharedInput) {
  Generator random(18);
  const Call call = projected_call(random);
  // Each term is the gradient of x when the other two come from a y of the same numbers; or of an x of its
  // own.
  const Tensors results = evaluate(call, right_formula()).results;
  std::array<Array<double>, 3> term;
  Call cross = call;
  cross.inputs["y"] = call.inputs.at("x");
  const Tensors of_cross = evaluate(cross, right_formula()).results;
  term[0] = of_cross.at("grad_x");
  for (const std::size_t path : {std::size_t{1}, std::size_t{2}}) {
    const std::string name = path == 1 ? "key" : "value";
    const Array<double>& dy = results.at("grad_" + name);
    const Array<double>& w = call.inputs.at("w_" + name);
    term[path] = Array<double>::zeros({2, 4, 5});
    for (Index b = 0; b < 2; ++b) {
      for (Index i = 0; i < 4; ++i) {
        for (Index m = 0; m < 5; ++m) {
          for (Index c = 0; c < 6; ++c) {
            term[path].mutable_values()[place((b * 4 + i) * 5 + m)] += dy(b, c / 3, i, c % 3) * w(m, c);
          }
        }
      }
    }
  }
  const auto plant = [&](const char* id, const char* variant, std::array<double, 3> counts) {
    expect_found(backward_mistakes,
                 changed(call,
                         [&](Tensors& x) {
                           for (Index i = 0; i < 40; ++i) {
                             double sum = 0;
                             for (std::size_t p = 0; p < 3; ++p) sum += counts[p] * term[p].data()[i];
                             x["grad_x"].mutable_values()[place(i)] = sum;
                           }
                         }),
                 id, variant);
  };
  plant("grad-path-missing", "q", {0, 1, 1});
  plant("grad-path-missing", "k", {1, 0, 1});
  plant("grad-path-missing", "v", {1, 1, 0});
  plant("grad-fanout", "overwrite", {1, 0, 0});
  plant("grad-fanout", "overwrite", {0, 0, 1});
  plant("grad-fanout", "twice", {3, 2, 1});
  plant("grad-fanout", "twice", {1, 1, 2});
}

TEST(CheckBackward, RotationForwardInsteadOfBack) {
  Generator random(19);
  const Call call = rotated_call(random, {2, 2, 2, 3, 5, 4, 4});
  const Tensors right = evaluate(call, right_formula()).results;
  Call judged = changed(call, [&](Tensors& x) {
    for (const std::string name : {"grad_query", "grad_key"}) {
      // R^T dy is right: two turns forward make R dy of it
      for (int again = 0; again < 2; ++again) {
        turn(
            x[name], name == "grad_query" ? 11 : 4,
            [](Index n) {
              return std::pair{n, n + 2};
            },
            [](Index channel) { return rate(channel % 2, 4); }, 2);
      }
    }
  });
  expect_found(backward_mistakes, judged, "grad-rope", "");
}

TEST(CheckBackward, TensorsChangedBehindTheForwardPass) {
  Generator random(20);
  const Call call = random_call(random, {});
  for (const std::string name : {"query", "key", "value"}) {
    Call judged = call;
    judged.inputs[name + "_after"] = normal(random, call.inputs.at(name).shape());
    const Array<double> then = judged.inputs.at(name + "_after");
    judged = planted(judged, [=](Formula& f) {
      f.before_backward = [=](Work& w) {
        (name == "query" ? w.query : name == "key" ? w.key : w.value) = Numbers(then);
      };
    });
    expect_found(backward_mistakes, judged, "saved-tensor-mutated", "");
  }
}

// ---- numeric

Call causal_call(Generator& random, const CallSize& n) {
  Call call = random_call(random, n);
  call.contract.causal = std::vector<Index>{n.S - n.L};
  call.inputs["key_lengths"] = Array<double>::full({n.B}, static_cast<double>(n.S));
  call.inputs["key_lengths"].set({0}, static_cast<double>(n.S - 1));
  return call;
}

// The same call with an additive mask of these numbers where keys are blocked.
Call with_score_of_blocked(const Call& call, double number, bool replaced) {
  const Work right = evaluate(call, right_formula(), false);
  Call other = call;
  other.contract.causal.reset();
  other.inputs.erase("key_lengths");
  Array<double> bias = Array<double>::zeros(right.scores.shape);
  for (std::size_t n = 0; n < right.visible.size(); ++n) {
    if (!right.visible[n]) bias.mutable_values()[n] = replaced ? number - right.scores.at[n] : number;
  }
  other.inputs["bias"] = bias;
  Call judged = call;
  judged.candidate = evaluate(other, right_formula(), false).results;
  return judged;
}

TEST(CheckNumeric, FiniteScoresOfBlockedKeysAreFitted) {
  Generator random(21);
  for (const CallSize& n : {CallSize{2, 6, 2, 3, 7, 8, 5}, CallSize{1, 4, 4, 5, 5, 4, 4}}) {
    SCOPED_TRACE(text(n));
    const Call call = causal_call(random, n);
    for (const double number : {-2.0, -3.7, -5.0}) {
      for (const bool replaced : {true, false}) {
        const Call judged = with_score_of_blocked(call, number, replaced);
        const auto h = found(numeric_mistakes, judged, "sentinel-leak", "");
        ASSERT_TRUE(h.has_value());
        EXPECT_NEAR(h->fitted.at("score of blocked keys"), number, 1e-6);
      }
    }
  }
}

TEST(CheckNumeric, ALeakTooSmallToSeeIsNotProposed) {
  Generator random(22);
  const Call judged = with_score_of_blocked(causal_call(random, {}), -10000, true);
  EXPECT_FALSE(found(numeric_mistakes, judged, "sentinel-leak", "").has_value());
}

TEST(CheckNumeric, AFloorUnderTheExponential) {
  Generator random(23);
  Call call = causal_call(random, {});
  const Work right = evaluate(call, right_formula(), false);
  Call other = call;
  other.contract.causal.reset();
  other.inputs.erase("key_lengths");
  Array<double> bias = Array<double>::zeros(right.scores.shape);
  for (Index row = 0; row < bias.size() / 7; ++row) {
    double most = -infinity;
    for (Index j = 0; j < 7; ++j) {
      if (right.visible[place(row * 7 + j)]) most = std::max(most, right.scores.at[place(row * 7 + j)]);
    }
    for (Index j = 0; j < 7; ++j) {
      const std::size_t at = place(row * 7 + j);
      const double floored =
          std::max(right.visible[at] ? right.scores.at[at] : -infinity, most + std::log(0.02));
      bias.mutable_values()[at] = floored - right.scores.at[at];
    }
  }
  other.inputs["bias"] = bias;
  call.candidate = evaluate(other, right_formula(), false).results;
  const auto h = found(numeric_mistakes, call, "sentinel-leak", "");
  ASSERT_TRUE(h.has_value());
  EXPECT_NEAR(h->fitted.at("floor of the exponential"), 0.02, 1e-8);
}

// Rows of a candidate's output and weights set to a number.
void set_rows(Call& call, const std::function<std::optional<double>(Index row)>& number) {
  for (const auto& [name, width] :
       {std::pair{"output", call.E}, std::pair{"weights", call.S}, std::pair{"lse", Index{1}}}) {
    Array<double>& x = call.candidate[name];
    for (Index at = 0; at < x.size(); ++at) {
      if (const auto other = number(at / width)) x.mutable_values()[place(at)] = *other;
    }
  }
}

TEST(CheckNumeric, ProductsBeyondTheType) {
  Generator random(24);
  Call call = random_call(random, {});
  call.contract.computed_in = NumberType::f16;
  for (double& x : call.inputs["query"].mutable_values()) x *= 100;
  for (double& x : call.inputs["key"].mutable_values()) x *= 100;
  call = planted(call, {});
  const Work right = evaluate(call, right_formula(), false);
  Index beyond = 0;
  set_rows(call, [&](Index row) -> std::optional<double> {
    for (Index j = 0; j < call.S; ++j) {
      if (right.products.at[place(row * call.S + j)] > 65520) return ++beyond, nan;
    }
    return {};
  });
  for (const char* gradient : {"grad_query", "grad_key", "grad_value"}) call.candidate.erase(gradient);
  ASSERT_GT(beyond, 0);
  expect_found(numeric_mistakes, call, "low-precision-overflow", "scores");
}

TEST(CheckNumeric, ExponentialsBeyondTheType) {
  Generator random(25);
  Call call = random_call(random, {}, 4);
  call.contract.computed_in = NumberType::f16;
  call = planted(call, {});
  const Work right = evaluate(call, right_formula(), false);
  Index beyond = 0;
  const auto exponential = [&](std::size_t at) { return std::exp(right.scores.at[at]); };
  set_rows(call, [&](Index row) -> std::optional<double> {
    for (Index j = 0; j < call.S; ++j) {
      if (exponential(place(row * call.S + j)) > 65520) return ++beyond, nan;
    }
    return {};
  });
  // inf / inf is not a number, all else 0
  for (std::size_t at = 0; at < right.scores.at.size(); ++at) {
    double& p = call.candidate["weights"].mutable_values()[at];
    if (std::isnan(p) && exponential(at) <= 65520) p = 0;
  }
  for (double& x : call.candidate["lse"].mutable_values()) x = std::isnan(x) ? infinity : x;
  for (const char* gradient : {"grad_query", "grad_key", "grad_value"}) call.candidate.erase(gradient);
  ASSERT_GT(beyond, 0);
  expect_found(numeric_mistakes, call, "low-precision-overflow", "scores");
}

// A row without keys: what two masks block is lost, what one blocks keeps the lowest number and shares the
// weight.
TEST(CheckNumeric, TwoLowestNumbers) {
  Generator random(26);
  Call call = random_call(random, {1, 1, 1, 3, 4, 4, 4});
  call.contract.computed_in = NumberType::bf16;
  call.contract.causal = std::vector<Index>{0};
  call.inputs["mask"] = Array<double>::from({0, 1, 1, 0}, {1, 1, 1, 4});  // row 0 sees no key
  call.inputs.erase("upstream");
  call = planted(call, {});
  for (const Index j : {0, 1, 2, 3}) call.candidate["weights"].set({0, 0, 0, j}, j == 3 ? 0 : 1.0 / 3);
  for (Index e = 0; e < 4; ++e) {
    double mean = 0;
    for (const Index j : {0, 1, 2}) mean += call.inputs.at("value")(0, 0, j, e) / 3;
    call.candidate["output"].set({0, 0, 0, e}, mean);
  }
  call.candidate.erase("lse");
  expect_found(numeric_mistakes, call, "low-precision-overflow", "mask-sum");
}

TEST(CheckNumeric, NaNFromBlockedPlaces) {
  Generator random(27);
  for (const bool in_value : {true, false}) {
    Call call = causal_call(random, {2, 2, 2, 3, 5, 4, 4});
    call.inputs[in_value ? "value" : "key"].set({0, 1, 4, 2}, nan);  // of a key past the length of sample 0
    call = planted(call, {});
    for (const auto& [name, x] : call.candidate) {
      EXPECT_TRUE(std::none_of(x.values().begin(), x.values().end(), [](double v) { return std::isnan(v); }))
          << name;
    }
    for (const char* gradient : {"grad_query", "grad_key", "grad_value"}) call.candidate.erase(gradient);
    for (Index i = 0; i < 3; ++i) {
      if (in_value) call.candidate["output"].set({0, 1, i, 2}, nan);
      for (Index e = 0; !in_value && e < 4; ++e) call.candidate["output"].set({0, 1, i, e}, nan);
      for (Index j = 0; !in_value && j < 5; ++j) call.candidate["weights"].set({0, 1, i, j}, nan);
      if (!in_value) call.candidate["lse"].set({0, 1, i}, nan);
    }
    expect_found(numeric_mistakes, call, "nan-from-masked", "forward");
  }
}

TEST(CheckNumeric, NaNGradientsOfRowsThatWereSelectedAway) {
  Generator random(28);
  Call call = random_call(random, {1, 2, 2, 4, 2, 4, 4});
  call.contract.causal = std::vector<Index>{-2};  // rows 0 and 1 see no key
  call = planted(call, {});
  for (Index h = 0; h < 2; ++h) {
    for (Index i = 0; i < 2; ++i) {
      for (Index d = 0; d < 4; ++d) {
        call.candidate["grad_query"].set({0, h, i, d}, nan);
        call.candidate["grad_key"].set({0, h, i, d}, nan);
      }
    }
  }
  expect_found(numeric_mistakes, call, "nan-from-masked", "where");
}

// ---- layout

TEST(CheckLayout, ViewsReadAsDense) {
  Generator random(29);
  for (const CallSize& n : sizes()) {
    if (n.Hk == 1) continue;
    SCOPED_TRACE(text(n));
    const Call call = random_call(random, n);
    for (const std::string name : {"query", "key", "value"}) {
      Call other = call;
      const Array<double>& x = call.inputs.at(name);
      const Index H = x.dim(1), L = x.dim(2), D = x.dim(3);
      std::vector<double> memory;  // (B, L, H, D)
      for (Index b = 0; b < n.B; ++b) {
        for (Index i = 0; i < L; ++i) {
          for (Index h = 0; h < H; ++h) {
            for (Index d = 0; d < D; ++d) memory.push_back(x(b, h, i, d));
          }
        }
      }
      other.inputs[name] = Array<double>::from(memory, x.shape());
      Call judged = call;
      judged.candidate = evaluate(other, right_formula(), false).results;
      const auto h = found(layout_mistakes, judged, "strides-ignored", "view");
      ASSERT_TRUE(h.has_value()) << name;
      EXPECT_EQ(h->fitted.at(name), 1);
    }
  }
}

TEST(CheckLayout, RowsOfAMaskAtTheWrongDistance) {
  Generator random(30);
  Call call = random_call(random, {2, 2, 2, 4, 6, 4, 4});
  call.inputs["mask"] = coins(random, {2, 1, 4, 6});
  for (const Index more : {1, 2, 10}) {
    Call other = call;
    std::vector<double> memory;  // rows 6 + more apart
    for (Index row = 0; row < 8; ++row) {
      for (Index j = 0; j < 6 + more; ++j)
        memory.push_back(j < 6 ? call.inputs.at("mask").data()[row * 6 + j] : 0);
    }
    for (Index b = 0; b < 2; ++b) {
      for (Index i = 0; i < 4; ++i) {
        for (Index j = 0; j < 6; ++j) {
          other.inputs["mask"].set({b, 0, i, j}, memory[place(b * 4 * (6 + more) + i * 6 + j)]);
        }
      }
    }
    Call judged = call;
    judged.candidate = evaluate(other, right_formula(), false).results;
    const auto h = found(layout_mistakes, judged, "strides-ignored", "mask");
    ASSERT_TRUE(h.has_value()) << more;
    EXPECT_EQ(h->fitted.at("rows apart"), 6 + more);
  }
}

TEST(CheckLayout, ColumnsPastTheEnd) {
  Generator random(31);
  for (const CallSize& n : sizes()) {
    for (const Index more : {1, 5, 57}) {
      const Call call = random_call(random, n);
      Call other = call;
      other.S = n.S + more;
      const auto padded = [&](const char* name) {
        const Array<double>& x = call.inputs.at(name);
        Array<double> y = Array<double>::zeros({n.B, n.Hk, n.S + more, x.dim(3)});
        for (Index at = 0; at < x.size(); ++at) {
          const Index each = n.S * x.dim(3);
          y.mutable_values()[place(at / each * (each + more * x.dim(3)) + at % each)] = x.data()[at];
        }
        other.inputs[name] = y;
      };
      padded("key"), padded("value");
      Call judged = call;
      judged.candidate["output"] = evaluate(other, right_formula(), false).results.at("output");
      const auto h = found(layout_mistakes, judged, "extent-wrong", "tail");
      ASSERT_TRUE(h.has_value()) << text(n) << " " << more;
      EXPECT_EQ(h->fitted.at("columns"), static_cast<double>(more));
    }
  }
}

TEST(CheckLayout, TheFirstChannelsOnly) {
  Generator random(32);
  for (const CallSize& n : sizes()) {
    SCOPED_TRACE(text(n));
    const Call call = random_call(random, n);
    Call other = call;
    for (Index at = 0; at < other.inputs["query"].size(); ++at) {
      if (at % n.D >= n.D - 2) other.inputs["query"].mutable_values()[place(at)] = 0;
    }
    Call judged = call;
    judged.candidate = evaluate(other, right_formula(), false).results;
    const auto h = found(layout_mistakes, judged, "extent-wrong", "head-dim");
    ASSERT_TRUE(h.has_value());
    EXPECT_EQ(h->fitted.at("channels of query and key"), static_cast<double>(n.D - 2));
  }
}

// ---- state

TEST(CheckState, DropoutInEvaluation) {
  Generator random(33);
  const CallSize n{2, 3, 3, 4, 6, 8, 5};
  Call call = random_call(random, n);
  call.inputs.erase("upstream");
  Call other = call;
  other.contract.training = true;
  other.contract.dropout = 0.4;
  other.inputs["dropout_keep"] = coins(random, {n.B, n.H, n.L, n.S}, 0.6);
  const Work work = evaluate(other, right_formula(), false);
  call.candidate = work.results;
  call.candidate["weights"] = work.dropped.array();
  const auto by_weights = found(state_mistakes, call, "dropout-mode", "active");
  ASSERT_TRUE(by_weights.has_value());
  EXPECT_NEAR(by_weights->fitted.at("rate"), 0.4, 1e-12);
  call.candidate.erase("weights");
  expect_found(state_mistakes, call, "dropout-mode", "active");  // from the output alone
  call.contract.computed_in = NumberType::bf16;  // five numbers of 8 bits hardly tell 2^6 masks apart
  call.contract.dropout = 0.4;
  EXPECT_TRUE(found(state_mistakes, call, "dropout-mode", "active").has_value());
}

TEST(CheckState, OneNumberARowTellsNoMask) {
  Generator random(34);
  Call call = random_call(random, {2, 3, 3, 4, 8, 8, 1});
  call.contract.dropout = 0.4;
  call.contract.computed_in = NumberType::bf16;
  call.candidate["output"] = normal(random, {2, 3, 4, 1});  // near some sum of terms, as any number is
  EXPECT_TRUE(state_mistakes(call).empty());
}

TEST(CheckState, TwoOutputsThatDifferAsDropoutLetsThem) {
  Generator random(35);
  const CallSize n{1, 4, 4, 12, 64, 8, 8};  // more keys than channels: no mask can be solved for
  Call call = random_call(random, n);
  Call other = call;
  other.contract.training = true;
  other.contract.dropout = 0.2;
  for (const char* name : {"output", "output_second"}) {
    other.inputs["dropout_keep"] = coins(random, {n.B, n.H, n.L, n.S}, 0.8);
    const Array<double> output = evaluate(other, right_formula(), false).results.at("output");
    (name == std::string("output") ? call.candidate["output"] : call.inputs["output_second"]) = output;
  }
  const auto h = found(state_mistakes, call, "dropout-mode", "active");
  ASSERT_TRUE(h.has_value());
  EXPECT_NEAR(h->fitted.at("rate"), 0.2, 0.05);
  call.inputs["output_second"] = call.candidate["output"];  // repeatable: no dropout
  EXPECT_TRUE(state_mistakes(call).empty());
}

TEST(CheckState, NoDropoutInTraining) {
  Generator random(36);
  Call call = dropped_call(random, {});
  call = planted(call, [](Formula& f) { f.dropout = [](Work& w) { w.dropped = w.weights; }; });
  for (const char* gradient : {"grad_query", "grad_key", "grad_value"}) call.candidate.erase(gradient);
  expect_found(state_mistakes, call, "dropout-mode", "stuck-off");
}

// ---- what they have in common

TEST(CheckFamilies, LeastSquares) {
  const std::vector<std::vector<double>> columns = {{1, 2, 3, 4}, {0, 0, 0, 0}, {1, -1, 1, 5}};
  const std::vector<double> y = {2 * 1 - 3 * 1, 2 * 2 + 3 * 1, 2 * 3 - 3 * 1, 2 * 4 - 3 * 5};
  const std::vector<double> x = least_squares(columns, y);
  EXPECT_NEAR(x[0], 2, 1e-12);
  EXPECT_EQ(x[1], 0);
  EXPECT_NEAR(x[2], -3, 1e-12);
}

// A right candidate: fits find nothing to propose, but for what gives the right numbers anyway.
TEST(CheckFamilies, FittedNumbersOfARightCandidateAreNotProposed) {
  Generator random(37);
  const Call call = planted(rotated_call(random, {}), {});
  for (const Hypothesis& h : position_mistakes(call)) {
    EXPECT_FALSE(h.mistake->id == "rope-position-wrong" && h.mistake->variant != "twice");
    EXPECT_NE(h.mistake->variant, "base");
  }
  for (const Family family : {numeric_mistakes, layout_mistakes}) {
    for (const Hypothesis& h : family(call)) {
      EXPECT_NE(h.mistake->id, "sentinel-leak");
      EXPECT_NE(h.mistake->id, "extent-wrong");
    }
  }
}

}  // namespace
}  // namespace tapehead::check
