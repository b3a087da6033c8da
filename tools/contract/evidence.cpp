#include <tools/contract/evidence.h>

#include <tapehead/nn/safetensors.h>

namespace tapehead::contract {
namespace {

// What the settings of a dump cannot say: a window around a position that is not that of a causal mask.
bool needs_its_mask_in_full(const Problem& p) { return p.window && !p.causal && p.offset != 0; }

Array<bool> mask_in_full(const Problem& p) {
  Array<bool> mask = Array<bool>::uninitialized(p.scores());
  const Index S = p.keys(), L = p.queries(), H = p.heads();
  Index n = 0;
  for (bool& seen : mask.mutable_values()) {
    seen = sees(p, n / (S * L * H), n / (S * L) % H, n / S % L, n % S);
    ++n;
  }
  return mask;
}

// The first samples of many: they show what all of them show.
Run shortened(Run run) {
  constexpr Index enough = 16;
  Problem& p = run.problem;
  Answer& a = run.answer;
  if (p.batches() <= enough || p.mask.defined() || p.bias.defined() || !p.lengths.empty()) return run;
  for (Array<double>* x :
       {&p.query, &p.key, &p.value, &p.upstream, &a.output, &a.log_sum_exp, &a.dquery, &a.dkey, &a.dvalue}) {
    if (!x->defined()) continue;
    const Shape shape = x->shape().with(0, enough);
    *x = Array<double>::from(x->values().first(static_cast<std::size_t>(shape.size())), shape);
  }
  return run;
}

}  // namespace

void write_evidence(const std::string& path, const Run& whole, Number number) {
  const Run run = shortened(whole);
  const Problem& p = run.problem;
  const Answer& a = run.answer;
  SafetensorsWriter file;
  auto add = [&](const char* name, const Array<double>& x) {
    if (x.defined()) file.add(name, x, number == Number::f64 ? "F64" : "F32");
  };
  add("query", p.query), add("key", p.key), add("value", p.value);
  add("bias", p.bias), add("sink", p.sink), add("upstream", p.upstream);
  add("output", a.output), add("lse", a.log_sum_exp);
  add("grad_query", a.dquery), add("grad_key", a.dkey), add("grad_value", a.dvalue);
  const bool in_full = needs_its_mask_in_full(p);
  if (in_full || p.mask.defined()) file.add("mask", in_full ? mask_in_full(p) : p.mask);
  if (!p.lengths.empty()) file.add("key_lengths", Array<Index>::from(p.lengths));

  file.metadata("layout", "BHLD").metadata("scale", fmt::format("{}", p.scale_in_force()));
  file.metadata("causal", p.causal ? fmt::format("offset {}", p.offset) : "none");
  if (p.window && !in_full) {
    file.metadata("window_left", fmt::format("{}", p.window->left));
    file.metadata("window_right", fmt::format("{}", p.window->right));
  }
  file.metadata("mask_means", "allowed").metadata("head_map", "grouped").metadata("empty_rows", "zero");
  file.metadata("softcap", p.softcap == 0 ? "none" : fmt::format("{}", p.softcap));
  file.metadata("computed_in", name_of(number)).metadata("lse_base", "e");
  file.write(path);
}

}  // namespace tapehead::contract
