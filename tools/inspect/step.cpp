#include <tapehead/inspect/inspect.h>
#include <tapehead/inspect/step.h>

#include <map>

#include <tapehead/core/steps.h>

namespace tapehead {

template <std::floating_point T>
std::vector<StepRow> inspect_steps(const TapeTable& table, const Var<T>& y, Vars<T> x) {
  std::vector<StepRow> rows;
  std::map<Index, Index> contributions;  // to each node
  backward_steps(y, x, [&](const BackwardStep<T>& step) {
    const TapeRow& node = table.rows.at(static_cast<std::size_t>(step.node));
    StepRow row{step.node, node.op, node.label, numbers_of(step.dy), {}};
    for (const StepContribution<T>& contribution : step.contributions) {
      row.contributions.push_back({contribution.to, contribution.argument, ++contributions[contribution.to],
                                   0, numbers_of(contribution.dx), numbers_of(contribution.sum)});
    }
    rows.push_back(std::move(row));
  });
  for (StepRow& row : rows) {
    for (StepRow::Contribution& contribution : row.contributions)
      contribution.of = contributions[contribution.to];
  }
  return rows;
}

template std::vector<StepRow> inspect_steps(const TapeTable&, const Var<float>&, Vars<float>);
template std::vector<StepRow> inspect_steps(const TapeTable&, const Var<double>&, Vars<double>);

}  // namespace tapehead
