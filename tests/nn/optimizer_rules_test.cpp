#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include <tapehead/core/memory.h>
#include <tapehead/nn/optimizer.h>

#include "support/compare.h"
#include "support/golden.h"
#include "support/line_model.h"

namespace tapehead {
namespace {

using A = Array<double>;

// ---- Against PyTorch, step by step

struct Case {
  const char *name, *folder, *kind;
};
std::ostream& operator<<(std::ostream& stream, const Case& c) { return stream << c.name; }

constexpr Case cases[] = {
    {"optim_sgd", "golden", "sgd"},
    {"optim_sgd_momentum", "golden", "sgd"},
    {"optim_sgd_nesterov_wd", "golden", "sgd"},
    {"optim_adam", "golden", "adam"},
    {"optim_adamw", "golden", "adamw"},
    {"optim_sgd_decay", "made", "sgd"},
    {"optim_sgd_momentum_decay", "made", "sgd"},
    {"optim_adam_decay", "made", "adam"},
    {"optim_adamw_decay", "made", "adamw"},
};

struct Settings {
  double momentum, beta1, beta2, eps, decay;
  bool nesterov;
};

double number_or(const Golden& golden, const char* name, double otherwise) {
  return golden.has_meta(name) ? golden.number(name) : otherwise;
}
Settings settings_of(const Golden& golden) {
  return {number_or(golden, "momentum", 0),     number_or(golden, "beta1", 0),
          number_or(golden, "beta2", 0),        number_or(golden, "eps", 0),
          number_or(golden, "weight_decay", 0), golden.has_meta("nesterov")};
}

A part_of(const A& x, Index i) {
  const Shape shape = x.shape().without(0);
  const auto size = static_cast<std::size_t>(shape.size());
  return A::from(x.values().subspan(static_cast<std::size_t>(i) * size, size), shape);
}
double rate_of(const Golden& golden, Index step) {
  return golden.has("rates") ? golden.array("rates")(step) : golden.number("lr");
}

template <class T>
std::unique_ptr<Optimizer<T>> optimizer_of(const Case& c, const Golden& golden) {
  const Settings s = settings_of(golden);
  const std::string kind = c.kind;
  if (kind == "sgd") {
    return std::make_unique<Sgd<T>>(
        typename Sgd<T>::Options{.momentum = s.momentum, .nesterov = s.nesterov, .decay = s.decay});
  }
  if (kind == "adam") {
    return std::make_unique<Adam<T>>(
        typename Adam<T>::Options{.beta1 = s.beta1, .beta2 = s.beta2, .eps = s.eps, .decay = s.decay});
  }
  return std::make_unique<AdamW<T>>(
      typename AdamW<T>::Options{.beta1 = s.beta1, .beta2 = s.beta2, .eps = s.eps, .decay = s.decay});
}

// The parameter after each step.
template <class T>
A trace_of(Optimizer<T>& optimizer, const Golden& golden) {
  const A gradients = golden.array("gradients");
  Single<T> model{golden.array("start").cast<T>()};
  std::vector<double> trace;
  for (Index i = 0; i < gradients.dim(0); ++i) {
    optimizer.set_rate(rate_of(golden, i));
    optimizer.step(model, {part_of(gradients, i).cast<T>()});
    for (const T x : model.weight.value().values()) trace.push_back(static_cast<double>(x));
  }
  return A::from(trace, gradients.shape());
}

// In double what is asked for. In float, with u half a unit in the last place and n steps: the start and the
// parameter after each step are rounded, the latter twice, which is u (1 + 2 n) relative to the largest; and
// each step rounds what is kept, the gradient and the numbers of the rule, a handful of times relative to how
// far a step goes, which at most n later steps repeat: 4 n^2 u of the longest move.
template <class T>
double tolerance_of(const Golden& golden) {
  if constexpr (std::same_as<T, double>) return 1e-13;
  const A trace = golden.array("trace");
  const auto n = static_cast<double>(trace.dim(0));
  double longest = absolute_error(part_of(trace, 0), golden.array("start"));
  for (Index i = 1; i < trace.dim(0); ++i) {
    longest = std::max(longest, absolute_error(part_of(trace, i), part_of(trace, i - 1)));
  }
  return 0x1p-24 * (1 + 2 * n + 4 * n * n * longest / magnitude(trace));
}

class OptimizerGolden : public testing::TestWithParam<Case> {};
std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }

TEST_P(OptimizerGolden, FollowsPyTorchStepByStep) {
  const Golden golden(GetParam().name, GetParam().folder);
  EXPECT_NEAR_RELATIVE(trace_of(*optimizer_of<double>(GetParam(), golden), golden), golden.array("trace"),
                       tolerance_of<double>(golden));
}

TEST_P(OptimizerGolden, FollowsPyTorchInFloat) {
  const Golden golden(GetParam().name, GetParam().folder);
  const double tolerance = tolerance_of<float>(golden);
  EXPECT_LT(tolerance, 2e-5);
  EXPECT_NEAR_RELATIVE(trace_of(*optimizer_of<float>(GetParam(), golden), golden), golden.array("trace"),
                       tolerance);
}

INSTANTIATE_TEST_SUITE_P(Cases, OptimizerGolden, testing::ValuesIn(cases), name_of);

// ---- The rules element by element, right and wrong, held to the same numbers

struct Element {
  double p;
  double first = 0, second = 0;  // what is kept
};
using Rule = void (*)(Element& x, double g, double rate, double t, const Settings& s);

A trace_of(Rule rule, const Golden& golden) {
  const A gradients = golden.array("gradients"), start = golden.array("start");
  const Settings settings = settings_of(golden);
  std::vector<Element> elements;
  for (const double p : start.values()) elements.push_back({p});
  std::vector<double> trace;
  for (Index i = 0; i < gradients.dim(0); ++i) {
    const A g = part_of(gradients, i);
    for (std::size_t k = 0; k < elements.size(); ++k) {
      rule(elements[k], g.values()[k], rate_of(golden, i), static_cast<double>(i + 1), settings);
      trace.push_back(elements[k].p);
    }
  }
  return A::from(trace, gradients.shape());
}

void sgd(Element& x, double g, double rate, double, const Settings& s) {
  const double d = g + s.decay * x.p;
  x.first = s.momentum * x.first + d;
  x.p -= rate * (s.nesterov ? d + s.momentum * x.first : x.first);
}
void sgd_without_the_look_ahead(Element& x, double g, double rate, double, const Settings& s) {
  x.first = s.momentum * x.first + g + s.decay * x.p;
  x.p -= rate * x.first;
}
void sgd_with_the_rate_in_the_velocity(Element& x, double g, double rate, double, const Settings& s) {
  x.first = s.momentum * x.first + rate * (g + s.decay * x.p);
  x.p -= x.first;
}
void sgd_dampened(Element& x, double g, double rate, double, const Settings& s) {
  x.first = s.momentum * x.first + (1 - s.momentum) * (g + s.decay * x.p);
  x.p -= rate * x.first;
}
void sgd_with_decay_apart(Element& x, double g, double rate, double t, const Settings& s) {
  Settings undecayed = s;
  undecayed.decay = 0;
  x.p -= rate * s.decay * x.p;
  sgd(x, g, rate, t, undecayed);
}

// The averages, and the corrected step that they give.
double adam_direction(Element& x, double d, double t, const Settings& s) {
  x.first = s.beta1 * x.first + (1 - s.beta1) * d;
  x.second = s.beta2 * x.second + (1 - s.beta2) * d * d;
  const double mean = x.first / (1 - std::pow(s.beta1, t));
  const double square = x.second / (1 - std::pow(s.beta2, t));
  return mean / (std::sqrt(square) + s.eps);
}
void adam(Element& x, double g, double rate, double t, const Settings& s) {
  x.p -= rate * adam_direction(x, g + s.decay * x.p, t, s);
}
void adamw(Element& x, double g, double rate, double t, const Settings& s) {
  x.p -= rate * s.decay * x.p;
  x.p -= rate * adam_direction(x, g, t, s);
}
void adamw_with_decay_beside_the_rate(Element& x, double g, double rate, double t, const Settings& s) {
  x.p -= s.decay * x.p;
  x.p -= rate * adam_direction(x, g, t, s);
}
void adam_without_correction(Element& x, double g, double rate, double t, const Settings& s) {
  adam_direction(x, g + s.decay * x.p, t, s);
  x.p -= rate * x.first / (std::sqrt(x.second) + s.eps);
}
void adam_with_eps_inside_the_root(Element& x, double g, double rate, double t, const Settings& s) {
  adam_direction(x, g + s.decay * x.p, t, s);
  const double mean = x.first / (1 - std::pow(s.beta1, t));
  x.p -= rate * mean / std::sqrt(x.second / (1 - std::pow(s.beta2, t)) + s.eps);
}
void adam_with_eps_before_the_correction(Element& x, double g, double rate, double t, const Settings& s) {
  adam_direction(x, g + s.decay * x.p, t, s);
  const double root = (std::sqrt(x.second) + s.eps) / std::sqrt(1 - std::pow(s.beta2, t));
  x.p -= rate * x.first / (1 - std::pow(s.beta1, t)) / root;
}
void adam_counting_from_zero(Element& x, double g, double rate, double t, const Settings& s) {
  x.p -= rate * adam_direction(x, g + s.decay * x.p, t + 1, s);
}

TEST_P(OptimizerGolden, AgreesWithItsRuleElementByElement) {
  const Golden golden(GetParam().name, GetParam().folder);
  const std::string kind = GetParam().kind;
  const Rule rule = kind == "sgd" ? sgd : kind == "adam" ? adam : adamw;
  EXPECT_NEAR_RELATIVE(trace_of(rule, golden), golden.array("trace"), 1e-13);
}

struct Mistake {
  const char* name;
  Case reference;
  Rule rule;
};
std::ostream& operator<<(std::ostream& stream, const Mistake& m) { return stream << m.name; }
constexpr Case momentum{"optim_sgd_momentum", "golden", "sgd"},
    nesterov{"optim_sgd_nesterov_wd", "golden", "sgd"}, plain_adam{"optim_adam", "golden", "adam"},
    plain_adamw{"optim_adamw", "golden", "adamw"}, sgd_decay{"optim_sgd_momentum_decay", "made", "sgd"},
    adam_decay{"optim_adam_decay", "made", "adam"}, adamw_decay{"optim_adamw_decay", "made", "adamw"};

class OptimizerMistake : public testing::TestWithParam<Mistake> {};

// In double by far; where the mistake is as large as any decay or eps worth setting, in float as well.
TEST_P(OptimizerMistake, FailsTheCheck) {
  const auto& [name, reference, rule] = GetParam();
  const Golden golden(reference.name, reference.folder);
  const A wrong = trace_of(rule, golden), trace = golden.array("trace");
  EXPECT_FALSE(agree(wrong, trace, 100 * tolerance_of<double>(golden)));
  if (std::string(reference.folder) == "made") {
    EXPECT_FALSE(agree(wrong, trace, tolerance_of<float>(golden)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerMistake,
    testing::Values(Mistake{"NesterovWithoutTheLookAhead", nesterov, sgd_without_the_look_ahead},
                    Mistake{"DecayApartInSgd", nesterov, sgd_with_decay_apart},
                    Mistake{"RateInTheVelocity", sgd_decay, sgd_with_the_rate_in_the_velocity},
                    Mistake{"Dampened", momentum, sgd_dampened},
                    Mistake{"DecoupledWhereItIsCoupled", adam_decay, adamw},
                    Mistake{"CoupledWhereItIsDecoupled", adamw_decay, adam},
                    Mistake{"CoupledInTheGoldenAdamW", plain_adamw, adam},
                    Mistake{"DecayBesideTheRate", adamw_decay, adamw_with_decay_beside_the_rate},
                    Mistake{"NoCorrectionOfTheBias", plain_adam, adam_without_correction},
                    Mistake{"EpsInsideTheRoot", plain_adam, adam_with_eps_inside_the_root},
                    Mistake{"LargeEpsInsideTheRoot", adam_decay, adam_with_eps_inside_the_root},
                    Mistake{"EpsBeforeTheCorrection", adam_decay, adam_with_eps_before_the_correction},
                    Mistake{"StepsCountedFromTwo", plain_adam, adam_counting_from_zero}),
    [](const auto& mistake) { return std::string(mistake.param.name); });

// ---- What each rule means

TEST(Adam, StepsByTheRateAtFirstWhateverTheSizeOfTheGradient) {
  Line<double> model{A::zeros({2, 3}), A::zeros({3})};
  Adam<double> adam({.rate = 0.25});
  adam.step(model, {A::full({2, 3}, 1e4), A::full({3}, -1e-2)});
  // g / (|g| + eps), eps = 1e-8: at most 1e-6 less than a sign.
  EXPECT_NEAR_RELATIVE(model.slope, A::full({2, 3}, -0.25), 1e-11);
  EXPECT_NEAR_RELATIVE(model.offset, A::full({3}, 0.25), 1.1e-6);
}

TEST(Adam, DividesItsDecayByTheRootAsItDoesTheGradient) {
  Single<double> model{A::full({5}, 2)};
  Adam<double> adam({.rate = 0.1, .eps = 0, .decay = 0.5});
  adam.step(model, {A::zeros({5})});
  EXPECT_NEAR_RELATIVE(model.weight, A::full({5}, 2 - 0.1), 1e-14);
}

TEST(AdamW, DecaysByRateTimesDecayApartFromTheGradient) {
  Single<double> model{A::full({5}, 2)};
  AdamW<double> adam({.rate = 0.1, .decay = 0.5});
  adam.step(model, {A::zeros({5})});
  EXPECT_NEAR_RELATIVE(model.weight, A::full({5}, 2 * (1 - 0.1 * 0.5)), 1e-15);
}

TEST(AdamW, WithoutDecayIsAdam) {
  Line<double> model = random_line<double>(1), other = random_line<double>(1);
  Adam<double> adam;
  AdamW<double> adamw({.decay = 0});
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    adam.step(model, random_line_gradients<double>(seed));
    adamw.step(other, random_line_gradients<double>(seed));
  }
  EXPECT_SAME_NUMBERS(model.slope, other.slope);
}

TEST(AdamW, DecaysByAHundredthWhenNothingIsSaid) {
  Single<double> model{A::full({5}, 2)};
  AdamW<double> adam;
  adam.step(model, {A::zeros({5})});
  EXPECT_NEAR_RELATIVE(model.weight, A::full({5}, 2 * (1 - 1e-3 * 1e-2)), 1e-15);
}

TEST(Sgd, GoesAgainstTheGradient) {
  Single<double> model{A::full({5}, 2)};
  Sgd<double> sgd({.rate = 0.5});
  sgd.step(model, {A::full({5}, 3)});
  EXPECT_SAME_NUMBERS(model.weight, A::full({5}, 0.5));
}

TEST(Sgd, WithoutMomentumKeepsNothing) {
  Line<double> model = random_line<double>(1);
  Sgd<double> sgd;
  const auto before = memory_statistics().live;
  const auto gradients = random_line_gradients<double>(2);
  const auto with_gradients = memory_statistics().live;
  sgd.step(model, gradients);
  EXPECT_GT(with_gradients, before);
  EXPECT_EQ(memory_statistics().live, with_gradients);
  EXPECT_TRUE(sgd.state(model).arrays.empty());
}

}  // namespace
}  // namespace tapehead
