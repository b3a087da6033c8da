#include <tools/check/equivalent.h>

#include <algorithm>
#include <cmath>

namespace tapehead::check {
namespace {

bool agrees(const Call& call, const Search& search, const std::string& name, const Array<double>& formula) {
  return compare(call.candidate.find(name)->second, formula, search.noise().find(name)->second, noise_factor,
                 search.judged(), name)
      .within;
}

Array<double> times(const Array<double>& x, double factor) {
  Array<double> y = x;
  for (double& v : y.mutable_values()) v *= factor;
  return y;
}

bool all_finite(const Array<double>& x) {
  return std::all_of(x.values().begin(), x.values().end(), [](double v) { return std::isfinite(v); });
}

}  // namespace

std::vector<std::string> equivalent_forms(const Call& call, const Search& search) {
  const auto has = [&](const char* name) {
    return std::find(search.names().begin(), search.names().end(), name) != search.names().end();
  };
  if (!has("lse") || !(has("output") || has("weights"))) return {};
  for (const std::string& name : search.names()) {
    const bool fits = agrees(call, search, name, search.right().find(name)->second);
    if (fits == (name == "lse")) return {};
  }
  const Array<double>& right = search.right().find("lse")->second;
  const double ln2 = std::log(2.0);
  if (agrees(call, search, "lse", times(right, call.contract.lse_base_2 ? ln2 : 1 / ln2))) {
    return {call.contract.lse_base_2 ? "log-sum-exp in base e" : "log-sum-exp in base 2"};
  }
  const bool shift_matters = call.inputs.contains("sink") || !all_finite(call.candidate.find("lse")->second);
  return shift_matters ? std::vector<std::string>{} : std::vector<std::string>{"row-constant shift"};
}

}  // namespace tapehead::check
