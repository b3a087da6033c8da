#include <algorithm>

#include <tools/contract/claims.h>
#include <tools/contract/draw.h>

namespace tapehead::contract {
namespace {

// All results and gradients must be the same bits.
void same_answers(Trial& trial, const Run& run, const Answer& before) {
  const Answer& now = run.answer;
  trial.same("output", now.output, before.output);
  trial.same("dquery", now.dquery, before.dquery);
  trial.same("dkey", now.dkey, before.dkey);
  trial.same("dvalue", now.dvalue, before.dvalue);
}

void require_nothing_outside(Trial& trial, const Run& run) {
  const auto& outside = run.answer.outside;
  trial.require(outside.empty(), outside.empty() ? "" : outside.front());
}

// Whose arrays fill whole units of 64 bytes, and whose do not.
constexpr Sizes even = {
    .batches = 2, .heads = 2, .key_heads = 2, .queries = 4, .keys = 8, .width = 16, .value_width = 16};
constexpr Sizes odd = {
    .batches = 1, .heads = 3, .key_heads = 3, .queries = 3, .keys = 5, .width = 7, .value_width = 3};

}  // namespace

void repeatable(Trial& trial) {
  const Sizes sizes = {.batches = 2, .heads = 2, .key_heads = 2, .queries = 65, .keys = 65};
  auto again = [&](const Problem& p) {
    const Answer first = trial.run(p).answer;
    for (int time = 0; time < 4; ++time) {
      Problem other = drawn_problem(111, odd);
      if (p.upstream.defined()) other = with_upstream(other);
      trial.run(other);
      same_answers(trial, trial.run(p), first);
    }
  };
  trial.part("5 times, with another call between", [&] { again(drawn_problem(112, sizes)); });
  trial.gradients("the same", [&] { again(with_upstream(drawn_problem(112, sizes))); });
}

void stays_inside(Trial& trial) {
  struct Side {
    const char* name;
    Placement::Guard guard;
  };
  for (const Side side : {Side{"behind", Placement::Guard::behind}, {"before", Placement::Guard::before}}) {
    auto hold = [&](std::string name, Problem p) {
      p.placement.guard = side.guard;
      trial.part(fmt::format("{}, guard pages {}", name, side.name),
                 [&] { require_nothing_outside(trial, trial.run(p)); });
      trial.gradients(fmt::format("{}, guard pages {}", name, side.name),
                      [&] { require_nothing_outside(trial, trial.run(with_upstream(p))); });
    };
    hold("4 x 8", drawn_problem(113, even));
    hold("3 x 5", drawn_problem(114, odd));
    Problem p = drawn_problem(115, odd);
    p.causal = true, p.lengths = {4};
    hold("causal with lengths", p);
    p.mask = Array<bool>::ones(p.scores());
    hold("and a mask", p);
  }
}

void overwrites_all(Trial& trial) {
  auto hold = [&](Problem p) {
    p.placement.found = 1e30;
    const Run on_numbers = trial.run(p);
    p.placement.found = std::nan("");
    const Run run = trial.run(p);
    for (const Array<double>* x :
         {&run.answer.output, &run.answer.dquery, &run.answer.dkey, &run.answer.dvalue}) {
      for (Index n = 0; n < x->size(); ++n) {
        trial.require(std::isfinite(x->data()[n]), fmt::format("a result at {} holds {} after NaN",
                                                               position_text(x->shape(), n), x->data()[n]));
      }
    }
    same_answers(trial, on_numbers, run.answer);
  };
  Problem masked = drawn_problem(117, even);
  masked.causal = true, masked.offset = -1;
  trial.part("NaN and 1e30 before", [&] { hold(drawn_problem(116, even)); });
  trial.part("with an empty row", [&] { hold(masked); });
  trial.gradients("the same", [&] { hold(with_upstream(drawn_problem(116, even))); });
  trial.gradients("an empty row", [&] { hold(with_upstream(masked)); });
}

void inputs_kept(Trial& trial) {
  auto hold = [&](const Problem& p) {
    Problem usual = p;
    usual.placement.found = 1e30;  // of which only somebody else's memory is in need
    const Run run = trial.run(usual);
    for (const std::string& name : run.answer.changed) trial.require(false, name + " was changed");
    trial.require(run.answer.changed.empty(), {});
  };
  Problem masked = drawn_problem(119, odd);
  masked.causal = true, masked.lengths = {4}, masked.mask = Array<bool>::ones(masked.scores());
  trial.part("3 x 5", [&] { hold(drawn_problem(118, odd)); });
  trial.gradients("the same", [&] { hold(with_upstream(drawn_problem(118, odd))); });
  trial.part("with masks", [&] { hold(masked); });
}

void any_strides(Trial& trial) {
  auto hold = [&](const Problem& p) {
    Problem other = p;
    other.placement.order = Placement::Order::token_major;
    const Run run = trial.run(other);
    trial.compare_answers(run, " by strides", trial.run(p).answer);
    require_nothing_outside(trial, run);
  };
  const Problem p = drawn_problem(120, {.batches = 2, .heads = 3, .key_heads = 3, .queries = 4, .keys = 6});
  Problem masked = p;
  masked.causal = true, masked.offset = 2;
  trial.part("(B, L, H, width), with gaps", [&] { hold(p); });
  trial.part("causal", [&] { hold(masked); });
  trial.gradients("the same", [&] { hold(with_upstream(p)); });
}

}  // namespace tapehead::contract
