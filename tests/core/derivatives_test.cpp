#include <tapehead/core/derivatives.h>

#include <gtest/gtest.h>

#include <stdexcept>

#include <tapehead/core/gradient_check.h>
#include <tapehead/core/random.h>

#include "support/compare.h"
#include "support/expect_error.h"
#include "support/tiny_ops.h"

namespace tapehead {
namespace {

using A = Array<double>;
using V = Var<double>;

A numbers(std::uint64_t seed, const Shape& shape) { return Generator(seed).normal<double>(shape); }
A product(const A& a, const A& b) { return tiny::zip("product", a, b, std::multiplies<>()); }
double inner(const A& a, const A& b) { return tiny::sum(V(product(a, b))).item(); }

// Sums and products of a few numbers near 1.
constexpr double rounding = 1e-14;

// y_0 = a b (2, 3), y_1 = sum(exp(a) b) (), of a and b (2, 3)
std::vector<V> pair_of(const V& a, const V& b) {
  return {tiny::mul(a, b), tiny::sum(tiny::mul(tiny::exp(a), b))};
}
V number_of(const V& a, const V& b) { return tiny::sum(tiny::mul(tiny::exp(a), tiny::square(b))); }

class Derivatives : public testing::Test {
 protected:
  A a_ = numbers(1, {2, 3}), b_ = numbers(2, {2, 3}), u_ = numbers(3, {2, 3}), v_ = numbers(4, {2, 3}),
    w_ = numbers(5, {2, 3});
  A exp_a_ = tiny::exp(V(a_)).value();
};

// ---------------------------------------------------------------- values

TEST_F(Derivatives, VjpIsTheGradientOfAWeightedSum) {
  const auto dx = vjp(pair_of, {a_, b_}, {w_, A::scalar(0.5)});
  ASSERT_EQ(dx.size(), 2u);
  const V half_exp_a = tiny::scale(V(exp_a_), 0.5);
  EXPECT_NEAR_RELATIVE(dx[0], tiny::add(V(product(w_, b_)), tiny::mul(half_exp_a, V(b_))), rounding);
  EXPECT_NEAR_RELATIVE(dx[1], tiny::add(V(product(w_, a_)), half_exp_a), rounding);
}

TEST_F(Derivatives, JvpIsTheDerivativeAlongADirection) {
  const auto dy = jvp(pair_of, {a_, b_}, {u_, v_});
  ASSERT_EQ(dy.size(), 2u);
  EXPECT_NEAR_RELATIVE(dy[0], tiny::add(V(product(u_, b_)), V(product(a_, v_))), rounding);
  const double expected = inner(product(exp_a_, u_), b_) + inner(exp_a_, v_);
  EXPECT_EQ(dy[1].shape(), Shape{});
  EXPECT_NEAR(dy[1].item(), expected, 1e-14 * 10);
}

TEST_F(Derivatives, JvpAndVjpAreAdjoint) {
  const auto Jv = jvp(pair_of, {a_, b_}, {u_, v_});
  const auto Jw = vjp(pair_of, {a_, b_}, {w_, A::scalar(-1.5)});
  const double left = inner(Jv[0].value(), w_) - 1.5 * Jv[1].item();
  EXPECT_NEAR(left, inner(Jw[0].value(), u_) + inner(Jw[1].value(), v_), 1e-14 * 20);
  EXPECT_GT(std::abs(left), 0.1);
}

TEST_F(Derivatives, HvpIsTheHessianTimesADirection) {
  const auto h = hvp(number_of, {a_, b_}, {u_, v_});
  // d^2/da^2 = exp(a) b^2, d^2/da db = 2 exp(a) b, d^2/db^2 = 2 exp(a), all diagonal
  const A across = tiny::scale(V(product(exp_a_, b_)), 2.0).value();
  const A aa = product(product(exp_a_, b_), b_), bb = tiny::scale(V(exp_a_), 2.0).value();
  EXPECT_NEAR_RELATIVE(h[0], tiny::add(V(product(aa, u_)), V(product(across, v_))), rounding);
  EXPECT_NEAR_RELATIVE(h[1], tiny::add(V(product(across, u_)), V(product(bb, v_))), rounding);
}

TEST_F(Derivatives, JacobianHoldsABlockForEachOutputAndInput) {
  const auto blocks = jacobian(pair_of, {a_, b_});
  ASSERT_EQ(blocks.size(), 2u);
  ASSERT_EQ(blocks[0].size(), 2u);
  EXPECT_EQ(blocks[0][1].shape(), (Shape{2, 3, 2, 3}));
  EXPECT_EQ(blocks[1][0].shape(), (Shape{2, 3}));
  for (Index i = 0; i < 6; ++i) {
    for (Index k = 0; k < 6; ++k) {
      const double expected = i == k ? a_.data()[i] : 0;
      EXPECT_EQ(blocks[0][1](i / 3, i % 3, k / 3, k % 3), expected);
    }
  }
  EXPECT_NEAR_RELATIVE(blocks[1][0], product(exp_a_, b_), rounding);
  EXPECT_NEAR_RELATIVE(blocks[1][1], exp_a_, rounding);
}

TEST_F(Derivatives, JacobianAndHessianTimesAVectorAreJvpAndHvp) {
  const auto f = [](const V& x) { return tiny::mul(tiny::exp(x), tiny::square(x)); };
  const auto total = [&](const V& x) {
    const V y = f(x);
    return tiny::mul(tiny::sum(y), tiny::sum(tiny::square(x)));  // its Hessian is full
  };
  const V x = numbers(6, {4}), v = numbers(7, {4});
  const A J = jacobian(f, x), H = hessian(total, x);
  ASSERT_EQ(J.shape(), (Shape{4, 4}));
  ASSERT_EQ(H.shape(), (Shape{4, 4}));
  const V Jv = jvp(f, x, v), Hv = hvp(total, x, v);
  A J_times_v = A::zeros({4}), H_times_v = A::zeros({4});
  for (Index i = 0; i < 4; ++i) {
    double j = 0, h = 0;
    for (Index k = 0; k < 4; ++k) {
      j += J(i, k) * v.value()(k), h += H(i, k) * v.value()(k);
      EXPECT_NEAR(H(i, k), H(k, i), rounding * magnitude(H));
      EXPECT_NE(H(i, k), 0);
    }
    J_times_v.set({i}, j), H_times_v.set({i}, h);
  }
  EXPECT_NEAR_RELATIVE(Jv, J_times_v, 10 * rounding);
  EXPECT_NEAR_RELATIVE(Hv, H_times_v, 10 * rounding);
}

TEST_F(Derivatives, HessianHoldsABlockForEachPairOfInputs) {
  const auto blocks = hessian(number_of, {a_, b_});
  ASSERT_EQ(blocks.size(), 2u);
  ASSERT_EQ(blocks[1].size(), 2u);
  EXPECT_EQ(blocks[1][0].shape(), (Shape{2, 3, 2, 3}));
  EXPECT_NEAR(blocks[1][0](1, 2, 1, 2), 2 * exp_a_(1, 2) * b_(1, 2), 1e-14 * 100);
  EXPECT_EQ(blocks[1][0](1, 2, 0, 2), 0);
  EXPECT_NEAR(blocks[1][1](0, 1, 0, 1), 2 * exp_a_(0, 1), 1e-14 * 100);
}

TEST_F(Derivatives, WorkInFloat) {
  using F = Var<float>;
  const F x = Array<float>::of({1, 2}), v = Array<float>::of({0.5F, -1});
  const auto f = [](const F& at) { return tiny::mul(tiny::square(at), at); };
  EXPECT_SAME_NUMBERS(jvp(f, x, v), Array<float>::of({1.5F, -12}));
  EXPECT_SAME_NUMBERS(vjp(f, {x}, {v})[0], Array<float>::of({1.5F, -12}));
  EXPECT_SAME_NUMBERS(hvp([&](const F& at) { return tiny::sum(f(at)); }, x, v), Array<float>::of({3, -12}));
  EXPECT_SAME_NUMBERS(jacobian(f, x), Array<float>::of({{3, 0}, {0, 12}}));
  EXPECT_SAME_NUMBERS(hessian([&](const F& at) { return tiny::sum(f(at)); }, {x})[0][0],
                      Array<float>::of({{6, 0}, {0, 12}}));
}

TEST_F(Derivatives, OfWhatDoesNotDependOnTheInputsAreZero) {
  const auto constant = [](const V& x) { return tiny::scale(x, 2.0).detach(); };
  const V x = a_, v = u_;
  EXPECT_SAME_NUMBERS(jvp(constant, x, v), A::zeros({2, 3}));
  EXPECT_SAME_NUMBERS(vjp(constant, x, v), A::zeros({2, 3}));
  EXPECT_SAME_NUMBERS(hvp([](const V& at) { return tiny::sum(at); }, x, v), A::zeros({2, 3}));
  EXPECT_SAME_NUMBERS(jacobian(constant, x), A::zeros({2, 3, 2, 3}));
}

// ---------------------------------------------------------------- on a tape

TEST_F(Derivatives, OfRecordedVarsCanBeDifferentiatedAgain) {
  // Each as a function of its point and direction, checked by differences to second order.
  const auto f = [](const V& x) { return tiny::mul(tiny::exp(x), tiny::reciprocal(x)); };
  const A x = Generator(8).uniform<double>({3}, 0.5, 2);
  const A v = numbers(9, {3});
  EXPECT_TRUE(check_gradients([&](const V& at, const V& d) { return jvp(f, at, d); }, {x, v}));
  EXPECT_TRUE(check_gradients([&](const V& at, const V& d) { return vjp(f, at, d); }, {x, v}));
  const auto total = [&](const V& at) { return tiny::sum(f(at)); };
  EXPECT_TRUE(check_gradients([&](const V& at, const V& d) { return hvp(total, at, d); }, {x, v}));
}

TEST_F(Derivatives, AreOfTheArgumentsAsFSeesThem) {
  // b is computed from a, but the derivative by a is at fixed b.
  Tape<double> tape;
  const V a = tape.input(a_), b = tiny::exp(a);
  const auto dx = vjp([](const V& p, const V& q) { return tiny::mul(p, q); }, {a, b}, {w_});
  EXPECT_NEAR_RELATIVE(dx[0], product(w_, exp_a_), rounding);
  // A gradient taken afterwards does go through b: d/da <w, exp(a)> = w exp(a).
  EXPECT_NEAR_RELATIVE(gradient_values(tiny::sum(dx[0]), a)[0], product(w_, exp_a_), rounding);
}

TEST_F(Derivatives, AreConstantsAndLeaveNothingWhenNothingRecords) {
  const auto f = [](const V& x) { return tiny::exp(x); };
  EXPECT_FALSE(jvp(f, V(a_), V(u_)).recorded());
  Tape<double> tape;
  const V a = tape.input(a_);
  EXPECT_TRUE(jvp(f, a, V(u_)).recorded());
  EXPECT_TRUE(jvp(f, V(a_), tape.input(u_)).recorded());
  const Index before = tape.size();
  const Pause<double> pause(tape);
  const V dy = jvp(f, a, V(u_));
  EXPECT_FALSE(dy.recorded());
  EXPECT_NEAR_RELATIVE(dy, product(exp_a_, u_), rounding);
  EXPECT_NEAR_RELATIVE(hvp([&](const V& x) { return tiny::sum(f(x)); }, a, V(u_)), product(exp_a_, u_),
                       rounding);
  EXPECT_EQ(jacobian(f, a).shape(), (Shape{2, 3, 2, 3}));
  EXPECT_EQ(tape.size(), before);
  EXPECT_TRUE(tape.paused());
}

TEST_F(Derivatives, LeaveTheTapeAsItWasWhenFThrows) {
  Tape<double> tape;
  const V a = tape.input(a_);
  const auto f = [](const V& x) -> V {
    tiny::exp(x);
    throw std::out_of_range("mine");
  };
  EXPECT_TRUE(raises<std::out_of_range>([&] { jvp(f, a, V(u_)); }, {"mine"}));
  EXPECT_TRUE(raises<std::out_of_range>([&] { vjp(f, a, V(u_)); }, {"mine"}));
  EXPECT_TRUE(raises<std::out_of_range>([&] { hessian(f, a); }, {"mine"}));
  EXPECT_EQ(tape.size(), 1);
  EXPECT_SAME_NUMBERS(gradient_values(tiny::sum(a), a)[0], A::ones({2, 3}));
}

// ---------------------------------------------------------------- errors

TEST_F(Derivatives, RefuseWhatDoesNotFit) {
  const auto f = [](const V& x) { return tiny::exp(x); };
  const V x = a_, wrong = numbers(1, {3, 2});
  EXPECT_TRUE(raises<ShapeError>([&] { jvp(f, x, wrong); }, {"jvp", "v (3, 2)", "x (2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { vjp(f, x, wrong); }, {"vjp", "w (3, 2)", "y (2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { hvp(f, x, x); }, {"hvp", "no single number", "y (2, 3)"}));
  EXPECT_TRUE(raises<ShapeError>([&] { hessian(f, x); }, {"hessian", "no single number", "y (2, 3)"}));
  EXPECT_TRUE(raises<LogicError>([&] { jvp(pair_of, {a_, b_}, {u_}); }, {"jvp", "1 v for 2 x"}));
  EXPECT_TRUE(raises<LogicError>([&] { vjp(pair_of, {a_, b_}, {w_}); }, {"vjp", "1 w for 2 y"}));
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        jvp(pair_of, {a_, b_, b_}, {u_, v_, v_});
      },
      {"takes 2 Vars, given 3"}));
  const auto two = [](const V& at) { return std::vector<V>{at, at}; };
  EXPECT_TRUE(raises<LogicError>([&] { jvp(two, x, x); }, {"jvp", "f gives 2 Vars"}));
  EXPECT_TRUE(raises<LogicError>([&] { jacobian(two, x); }, {"jacobian", "f gives 2 Vars"}));
  EXPECT_TRUE(raises<LogicError>([&] { hvp(two, x, x); }, {"hvp", "f gives 2 Vars"}));
  EXPECT_TRUE(raises<ShapeError>([&] { jacobian(f, V(A::zeros({1, 1, 1, 1, 1}))); }));
  Tape<double> one, other;
  EXPECT_TRUE(raises<LogicError>(
      [&] {
        vjp(pair_of, {one.input(a_), other.input(b_)}, {w_, A::scalar(1)});
      },
      {"two different tapes"}));
}

}  // namespace
}  // namespace tapehead
